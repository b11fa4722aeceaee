/* Events in protocol buffers; field numbers are those of event.proto and summary.proto. */
#include "worker/summary/event.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "worker/data/tfrecord/reader.h"

enum { EVENT_WALL = 1, EVENT_STEP = 2, EVENT_VERSION = 3, EVENT_GRAPH = 4, EVENT_SUMMARY = 5, EVENT_SESSION = 7 };
enum { SUMMARY_VALUE = 1 };
enum { VALUE_TAG = 1, VALUE_SCALAR = 2, VALUE_IMAGE = 4, VALUE_HISTOGRAM = 5, VALUE_TENSOR = 8, VALUE_METADATA = 9 };
enum { SESSION_START = 1, TYPE_FLOAT = 1, TYPE_STRING = 7, GREYSCALE = 1 };

static void begin(struct event *event, double wall_s, int64_t step)
{
    proto_clear(&event->proto);
    proto_double(&event->proto, EVENT_WALL, wall_s);
    proto_integer(&event->proto, EVENT_STEP, step);
}

void event_begin(struct event *event, double wall_s, int64_t step)
{
    begin(event, wall_s, step);
    event->summary = proto_begin(&event->proto, EVENT_SUMMARY);
}

void event_end(struct event *event)
{
    proto_end(&event->proto, event->summary);
}

static size_t begin_value(struct event *event, const char *tag)
{
    size_t value = proto_begin(&event->proto, SUMMARY_VALUE);
    proto_text(&event->proto, VALUE_TAG, tag);
    return value;
}

void event_scalar(struct event *event, const char *tag, double number)
{
    size_t value = begin_value(event, tag);
    proto_float(&event->proto, VALUE_SCALAR, (float)number);
    proto_end(&event->proto, value);
}

void event_histogram(struct event *event, const char *tag, const struct histogram *histogram)
{
    size_t value = begin_value(event, tag);
    histogram_encode(histogram, &event->proto, VALUE_HISTOGRAM);
    proto_end(&event->proto, value);
}

void event_image(struct event *event, const char *tag, int width, int height, const uint8_t *png, size_t size)
{
    size_t value = begin_value(event, tag), image = proto_begin(&event->proto, VALUE_IMAGE);
    proto_integer(&event->proto, 1, height);
    proto_integer(&event->proto, 2, width);
    proto_integer(&event->proto, 3, GREYSCALE);
    proto_bytes(&event->proto, 4, png, size);
    proto_end(&event->proto, image);
    proto_end(&event->proto, value);
}

static void put_metadata(struct event *event, const char *plugin, const struct proto *content)
{
    size_t metadata = proto_begin(&event->proto, VALUE_METADATA), data = proto_begin(&event->proto, 1);
    proto_text(&event->proto, 1, plugin);
    if (content) {
        proto_bytes(&event->proto, 2, content->bytes, content->size);
    }
    proto_end(&event->proto, data);
    proto_end(&event->proto, metadata);
}

void event_text(struct event *event, const char *tag, const char *markdown)
{
    size_t value = begin_value(event, tag), tensor = proto_begin(&event->proto, VALUE_TENSOR);
    proto_integer(&event->proto, 1, TYPE_STRING);
    size_t shape = proto_begin(&event->proto, 2); /* no dimensions: one string */
    proto_end(&event->proto, shape);
    proto_text(&event->proto, 8, markdown);
    proto_end(&event->proto, tensor);
    put_metadata(event, "text", NULL);
    proto_end(&event->proto, value);
}

void event_pr_curve(struct event *event, const char *tag, int thresholds, const float *values)
{
    enum { ROWS = 6 };
    struct proto content = {0};
    size_t value = begin_value(event, tag), tensor = proto_begin(&event->proto, VALUE_TENSOR);
    proto_integer(&event->proto, 1, TYPE_FLOAT);
    size_t shape = proto_begin(&event->proto, 2);
    const int sizes[] = {ROWS, thresholds};
    for (int i = 0; i < 2; i++) {
        size_t dimension = proto_begin(&event->proto, 2);
        proto_integer(&event->proto, 1, sizes[i]);
        proto_end(&event->proto, dimension);
    }
    proto_end(&event->proto, shape);
    proto_bytes(&event->proto, 4, values, (size_t)ROWS * (size_t)thresholds * sizeof *values); /* little-endian */
    proto_end(&event->proto, tensor);
    proto_integer(&content, 2, thresholds);
    put_metadata(event, "pr_curves", &content);
    proto_end(&event->proto, value);
    proto_free(&content);
}

void event_plugin(struct event *event, const char *tag, const char *plugin, const struct proto *content)
{
    size_t value = begin_value(event, tag);
    put_metadata(event, plugin, content);
    proto_end(&event->proto, value);
}

/* Complete events of other kinds. */
static void event_file_version(struct event *event, double wall_s)
{
    proto_clear(&event->proto);
    proto_double(&event->proto, EVENT_WALL, wall_s);
    proto_text(&event->proto, EVENT_VERSION, "brain.Event:2");
}

void event_session_start(struct event *event, double wall_s, int64_t step)
{
    begin(event, wall_s, step);
    size_t session = proto_begin(&event->proto, EVENT_SESSION);
    proto_integer(&event->proto, 1, SESSION_START);
    proto_end(&event->proto, session);
}

void event_graph(struct event *event, double wall_s, const struct proto *graph)
{
    begin(event, wall_s, 0);
    proto_bytes(&event->proto, EVENT_GRAPH, graph->bytes, graph->size);
}

/* --- The file --- */

/*
 * Frames are collected in memory and appended by one write, so that TensorBoard, which reads the growing file, sees
 * whole events.
 */

enum { MOST_TRIES = 1000 };

/* The host name, restricted to characters allowed in a file name. */
static void host_name(char *name, size_t size)
{
    if (gethostname(name, size) != 0) {
        snprintf(name, size, "localhost");
    }
    name[size - 1] = '\0';
    for (char *next = name; *next != '\0'; next++) {
        *next = *next == '/' ? '-' : *next;
    }
}

static bool create_file(struct event_file *file, const char *folder, struct error *error)
{
    char host[128], name[256];
    host_name(host, sizeof host);
    for (int i = 0; i < MOST_TRIES; i++) {
        snprintf(name, sizeof name, "events.out.tfevents.%010lld.%s.%ld.%d", (long long)clock_wall_s(), host,
                 (long)getpid(), i);
        if (!file_join(file->path, sizeof file->path, folder, name, error)) {
            return false;
        }
        file->fd = file_create(file->path, 0666, error);
        if (file->fd >= 0 || errno != EEXIST) {
            break;
        }
    }
    return file->fd >= 0;
}

bool event_file_create(struct event_file *file, const char *folder, struct error *error)
{
    struct event event = {0};
    *file = (struct event_file){.fd = -1};
    if (!file_make_folder(folder, error) || !create_file(file, folder, error)) {
        return false;
    }
    event_file_version(&event, clock_wall_s());
    event_file_add(file, &event);
    proto_free(&event.proto);
    return true;
}

void event_file_add(struct event_file *file, const struct event *event)
{
    tfrecord_append(&file->pending, event->proto.bytes, event->proto.size);
}

bool event_file_flush(struct event_file *file, struct error *error)
{
    for (size_t done = 0; done < file->pending.size;) {
        ssize_t written = write(file->fd, file->pending.bytes + done, file->pending.size - done);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written < 0) {
            return file_error(error, file->path, "cannot be written", errno);
        }
        done += (size_t)written;
    }
    proto_clear(&file->pending);
    return true;
}

void event_file_close(struct event_file *file)
{
    if (file->fd >= 0) {
        close(file->fd);
    }
    proto_free(&file->pending);
    file->fd = -1;
}
