/*
 * How fast TFRecord files are read, on one core, from the page cache:
 *
 *     data_bench FILE [ROUNDS]
 *
 * prints one JSON line: GB/s of records alone (framing and both CRCs), and with their Examples taken apart; medians.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "worker/data/tfrecord/example.h"
#include "worker/data/tfrecord/reader.h"

enum { MOST_ROUNDS = 100 };

/* Content in GB per second; negative after an error, which is printed. */
enum way { RECORDS, EXAMPLES, ALIKE, WAYS };

/* EXAMPLES: each is parsed as if it were the first. ALIKE: in order, each like the one before. */
static double read_once(const char *path, enum way way)
{
    static const struct example_names names = {.image = "image_raw", .label = "label"};
    struct tfrecord_reader *reader;
    struct example example = {.memory = NULL};
    struct error error;
    const uint8_t *record;
    size_t size;
    if (!tfrecord_open(&reader, path, &error)) {
        fprintf(stderr, "%s\n", error.text);
        return -1;
    }
    double begun_s = clock_monotonic_s();
    enum tfrecord_status status;
    bool good = true;
    while (good && (status = tfrecord_next(reader, &record, &size, &error)) != TFRECORD_END) {
        if (way == EXAMPLES) {
            example.frame.size = 0;
        }
        good = status == TFRECORD_RECORD && (way == RECORDS || example_decode(&example, record, size, &names, &error));
    }
    double seconds = clock_monotonic_s() - begun_s, bytes = (double)tfrecord_position(reader);
    tfrecord_close(reader);
    example_free(&example);
    if (!good) {
        fprintf(stderr, "%s\n", error.text);
        return -1;
    }
    return bytes / seconds / 1e9;
}

static int by_size(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

int main(int count, char **arguments)
{
    int rounds = count > 2 ? atoi(arguments[2]) : 7;
    double rates[WAYS][MOST_ROUNDS];
    if (count < 2 || rounds < 1 || rounds > MOST_ROUNDS) {
        fprintf(stderr, "data_bench FILE [ROUNDS, at most %d]\n", MOST_ROUNDS);
        return 2;
    }
    for (int i = 0; i < rounds; i++) {
        for (enum way way = 0; way < WAYS; way++) {
            rates[way][i] = read_once(arguments[1], way);
            if (rates[way][i] < 0) {
                return 1;
            }
        }
    }
    for (enum way way = 0; way < WAYS; way++) {
        qsort(rates[way], (size_t)rounds, sizeof **rates, by_size);
    }
    printf("{\"records\": %.3f, \"examples\": %.3f, \"alike\": %.3f}\n", rates[RECORDS][rounds / 2],
           rates[EXAMPLES][rounds / 2], rates[ALIKE][rounds / 2]);
    return 0;
}
