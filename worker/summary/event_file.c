/*
 * Frames are collected in memory and appended by one write, so that TensorBoard, which reads the growing file, sees
 * whole events.
 */
#include "worker/summary/event_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "worker/data/tfrecord/framing.h"

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
    file->pending.failed = file->pending.failed || event->proto.failed;
}

bool event_file_flush(struct event_file *file, struct error *error)
{
    if (file->pending.failed) {
        return error_set(error, "%s: out of memory for events to be written", file->path);
    }
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
