/*
 * TFRecords as rows of a table: the first of three records determines the columns. Each is refused with a one-line
 * message that names the file, or is a row with one number per column.
 */
#include "tests/fuzz/fuzz.h"

#include "worker/data/table/records.h"
#include "worker/data/tfrecord/reader.h"

FUZZ_MEMORY(128, 1 << 20)

static const struct config_data *random_data(uint8_t byte)
{
    static char name[] = "y";
    static char *names[] = {name};
    static struct config_data data = {.target = {.items = names, .count = 1}};
    data.label_dtype = (enum label_dtype)(byte % (LABEL_FLOAT64 + 1));
    data.feature_dtype = (enum label_dtype)(byte / 8 % (LABEL_FLOAT64 + 1));
    return &data;
}

static volatile uint64_t seen; /* so that all bytes of a row are read */

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct error error = {""};
    struct records_reader *reader;
    struct proto file = {0};
    struct records_row row;
    enum csv_status status = CSV_END;
    if (size < 3) {
        return 0;
    }
    size_t first = (size_t)bytes[1] << 8 | bytes[2];
    first = first < size - 3 ? first : size - 3;
    tfrecord_append(&file, bytes + 3, first);
    tfrecord_append(&file, bytes + 3 + first, size - 3 - first);
    tfrecord_append(&file, bytes + 3, size - 3);
    assert(records_are_known("rows", file.bytes, file.size));
    const struct stream_content content = {.name = "rows", .bytes = file.bytes, .size = file.size};
    if (!records_open(&reader, &content, random_data(bytes[0]), &error)) {
        check_beginning(&error, "rows: ");
    } else {
        int rows = 0;
        for (; (status = records_next(reader, &row, &error)) != CSV_END && status != CSV_FAILED; rows++) {
            if (status == CSV_ROW) {
                uint64_t sum = row.raw_size > 0 ? (uint8_t)row.raw[row.raw_size - 1] : 0;
                for (int i = 0; i < records_columns(reader); i++) {
                    sum += row.numbers ? (uint64_t)(row.numbers[i] == 0) : row.fields[i].size;
                    for (uint32_t at = 0; !row.numbers && at < row.fields[i].size; at++) {
                        sum += (uint8_t)row.fields[i].text[at];
                    }
                    assert(records_column_name(reader, i)[0] != '\0');
                }
                seen = sum;
            } else {
                check_beginning(&error, "rows: ");
            }
        }
        assert(status == CSV_END && rows == 3);
        records_close(reader);
    }
    proto_free(&file);
    return 0;
}
