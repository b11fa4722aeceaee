/*
 * Arbitrary profiles of two members: refused with a one-line message that names the file, or aligned to one clock and
 * written as JSON that others can read, whatever their names contain.
 */
#include "tests/fuzz/fuzz.h"

#include <cJSON.h>

#include "base/file.h"
#include "base/text/json.h"
#include "worker/export/profile.h"

FUZZ_MEMORY(512, 4 << 20)

static void check_traces(const struct trace *traces, int count)
{
    for (int i = 0; i < count; i++) {
        const struct trace *trace = &traces[i];
        assert(trace->count > 0 && trace->name_count <= TRACE_MAX_NAMES && trace->thread_count <= TRACE_MAX_THREADS);
        for (size_t k = 0; k < trace->count; k++) {
            assert(trace->spans[k].name >= 0 && trace->spans[k].name < trace->name_count);
            assert(trace->spans[k].thread >= 0 && trace->spans[k].thread < trace->thread_count);
        }
    }
}

static void check_written(const char *path)
{
    enum { MOST = 1 << 28 };
    struct error error;
    struct json_place place;
    uint8_t *bytes;
    size_t size;
    bool read = file_read(path, MOST, &bytes, &size, &error);
    assert(read && json_check((const char *)bytes, size, &place, &error));
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct input input = input_of(bytes, size);
    struct error error = {""};
    struct trace *traces;
    char paths[2][300], merged[300], *list[2] = {paths[0], paths[1]};
    int count = 0;
    do {
        size_t part_size;
        const uint8_t *part = input_part(&input, &part_size);
        snprintf(paths[count], sizeof paths[count], "%s/%d", fuzz_folder(), count);
        fuzz_write(paths[count++], part, part_size);
    } while (count < 2 && input_left(&input) > 0);
    snprintf(merged, sizeof merged, "%s/merged", fuzz_folder());
    if (!trace_read(&traces, list, count, &error)) {
        check_beginning(&error, fuzz_folder());
        assert(!traces);
        return 0;
    }
    check_traces(traces, count);
    assert(trace_write(traces, count, merged, &error));
    check_written(merged);
    trace_free(traces, count);
    return 0;
}
