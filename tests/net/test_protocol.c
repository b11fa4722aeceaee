/*
 * net/PROTOCOL.md compared with the program: its tables are those of net/message_table.h, and its vectors decode and
 * encode to the same bytes. `test_protocol --print` writes the tables as they should be.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "net/message.h"
#include "tests/check.h"

static char *document;

/* One message's table, in the form of PROTOCOL.md. */
#define PRINT_FIELD(kind, name, limit, text) fprintf(stream, "| %s | %s | %d | %s |\n", #name, #kind, limit, text);
#define PRINT_MESSAGE(number, name, bulk, text)                                                                        \
    static void table_of_##name(FILE *stream)                                                                          \
    {                                                                                                                  \
        fprintf(stream, "\n### %d %s\n\n%c%s.%s\n\n", number, #name, (char)(text[0] - 'a' + 'A'), text + 1,            \
                (bulk) > 0 ? " Has bulk." : "");                                                                       \
        fputs("| field | kind | limit | meaning |\n| --- | --- | --- | --- |\n", stream);                              \
        MESSAGE_FIELDS_##name(PRINT_FIELD)                                                                             \
    }
MESSAGE_TABLE(PRINT_MESSAGE)
#define PRINT_FUNCTION(number, name, bulk, text) table_of_##name,
static void (*const printers[])(FILE *stream) = {MESSAGE_TABLE(PRINT_FUNCTION)};

/* The tables of all messages; the caller frees them. */
static char *expected_tables(void)
{
    char *text;
    size_t size;
    FILE *stream = open_memstream(&text, &size);
    assert_non_null(stream);
    for (size_t i = 0; i < sizeof printers / sizeof *printers; i++) {
        printers[i](stream);
    }
    fclose(stream);
    return text;
}

static int read_document(void **state)
{
    struct error error;
    uint8_t *bytes;
    size_t size;
    if (!file_read("net/PROTOCOL.md", 1 << 20, &bytes, &size, &error)) {
        fail_msg("%s (tests run in the top folder of the tree)", error.text);
    }
    document = (char *)bytes;
    return 0;
}

static int free_document(void **state)
{
    free(document);
    return 0;
}

TEST(tables_are_current)
{
    char *tables = expected_tables();
    char *save = NULL;
    for (char *line = strtok_r(tables, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (!strstr(document, line)) {
            fail_msg("net/PROTOCOL.md lacks this line: %s", line);
        }
    }
    free(tables);
}

/* Reads hex digits, skipping white space, to the end of the block. */
static size_t read_hex(const char *text, const char *end, uint8_t *bytes, size_t limit)
{
    size_t digits = 0;
    for (; text < end; text++) {
        const char *place = strchr("0123456789abcdef", *text);
        if (place && *text) {
            unsigned value = (unsigned)(place - "0123456789abcdef") & 15;
            size_t at = digits / 2;
            assert_true(at < limit);
            bytes[at] = (uint8_t)(digits % 2 ? bytes[at] * 16U + value : value);
            digits++;
        } else {
            assert_true(*text == ' ' || *text == '\n');
        }
    }
    assert_int_equal(digits % 2, 0);
    return digits / 2;
}

TEST(vectors_decode)
{
    static const char opening[] = "```vector ";
    int found = 0;
    for (const char *next = strstr(document, opening); next; next = strstr(next + 1, opening)) {
        char name[32];
        uint8_t bytes[4096], again[4096];
        struct frame frame;
        union message message;
        struct error error;
        assert_int_equal(sscanf(next + sizeof opening - 1, "%31s", name), 1);
        const char *hex = strchr(next, '\n'), *end = strstr(next, "---");
        assert_true(hex && end);
        size_t size = read_hex(hex, end, bytes, sizeof bytes);
        assert_true(size >= FRAME_HEADER);
        if (!frame_decode(bytes, &frame, &error)) {
            fail_msg("vector %s: %s", name, error.text);
        }
        assert_string_equal(message_name(frame.type), name);
        assert_int_equal(size, FRAME_HEADER + frame.message_bytes + frame.bulk_bytes);
        if (!message_decode(frame.version, frame.type, bytes + FRAME_HEADER, frame.message_bytes, frame.bulk_bytes,
                            &message, &error)) {
            fail_msg("vector %s: %s", name, error.text);
        }
        frame_encode(&frame, again);
        message_encode(frame.version, frame.type, &message, again + FRAME_HEADER, frame.message_bytes);
        assert_memory_equal(again, bytes, FRAME_HEADER + frame.message_bytes);
        if (frame.type == MESSAGE_push) {
            struct range range = range_get(&message.push.ranges, 1);
            assert_int_equal(message.push.sequence, 41);
            assert_true(message.push.loss == 0.5F && range.first == 528 && range.count == 1);
        }
        found++;
    }
    assert_true(found >= 5);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--print") == 0) {
        char *tables = expected_tables();
        fputs(tables, stdout);
        free(tables);
        return 0;
    }
    return check_run(read_document, free_document);
}
