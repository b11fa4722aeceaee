/*
 * Each line is formatted into its own buffer and written by one call, under one lock. Text longer than the buffer is
 * truncated; a JSON line that does not fit is printed by cJSON into allocated memory.
 */
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/text/json.h"
#include "base/text/text.h"

enum { LINE_BYTES = 2048 };

static const char *const level_names[] = {"debug", "info", "warning", "error"};

static struct {
    pthread_mutex_t lock;
    enum log_format format;
    enum log_level lowest;
    void (*erase)(void *context);
    void (*draw)(void *context);
    void *context;
    int lost;
} log_state = {.lock = PTHREAD_MUTEX_INITIALIZER, .lowest = LOG_INFO};

void log_setup(enum log_format format, enum log_level lowest)
{
    log_state.format = format;
    log_state.lowest = lowest;
}

int log_lost(void)
{
    pthread_mutex_lock(&log_state.lock);
    int lost = log_state.lost;
    pthread_mutex_unlock(&log_state.lock);
    return lost;
}

enum log_format log_format(void)
{
    return log_state.format;
}

void log_set_status_line(void (*erase)(void *context), void (*draw)(void *context), void *context)
{
    pthread_mutex_lock(&log_state.lock);
    log_state.erase = erase;
    log_state.draw = draw;
    log_state.context = context;
    pthread_mutex_unlock(&log_state.lock);
}

/* A reader that has gone (a closed pipe) must not end training: output that cannot be written is dropped. Lock held. */
static void write_whole(int fd, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t written = write(fd, bytes, size);
        if (written <= 0) {
            bool no_room = written < 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG);
            log_state.lost = no_room && fd == STDOUT_FILENO ? errno : log_state.lost;
            return;
        }
        bytes += written;
        size -= (size_t)written;
    }
}

static void write_line(int fd, const char *line, size_t size)
{
    pthread_mutex_lock(&log_state.lock);
    if (log_state.erase) {
        log_state.erase(log_state.context);
    }
    write_whole(fd, line, size);
    if (log_state.draw) {
        log_state.draw(log_state.context);
    }
    pthread_mutex_unlock(&log_state.lock);
}

/* Formats prefix + text + newline into buffer, cut to fit; returns the length. The text may quote a peer's. */
static size_t format_line(char *buffer, size_t size, const char *prefix, const char *format, va_list arguments)
{
    char text[LINE_BYTES];
    size_t used = (size_t)snprintf(buffer, size, "%s", prefix);
    if (vsnprintf(text, sizeof text, format, arguments) < 0) {
        text[0] = '\0';
    }
    used += strlen(printable(buffer + used, size - used - 1, text));
    buffer[used] = '\n';
    buffer[used + 1] = '\0';
    return used + 1;
}

static void write_json(cJSON *object)
{
    char *text = object ? cJSON_PrintUnformatted(object) : NULL;
    text = text ? printable_json(text) : NULL;
    if (text) {
        size_t length = strlen(text);
        text[length] = '\n'; /* replaces the terminator: the line is written by one call */
        write_line(STDOUT_FILENO, text, length + 1);
    }
    cJSON_free(text);
    cJSON_Delete(object);
}

void log_message(enum log_level level, const char *format, ...)
{
    if (level < log_state.lowest) {
        return;
    }
    static const char *const prefixes[] = {"debug: ", "", "trainer: warning: ", "trainer: error: "};
    char line[LINE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    size_t size = format_line(line, sizeof line, prefixes[level], format, arguments);
    va_end(arguments);
    if (log_state.format == LOG_JSON) {
        line[size - 1] = '\0';
        cJSON *object = cJSON_CreateObject();
        cJSON_AddStringToObject(object, "event", "log");
        cJSON_AddStringToObject(object, "level", level_names[level]);
        cJSON_AddStringToObject(object, "message", line + strlen(prefixes[level]));
        write_json(object);
        line[size - 1] = '\n';
        if (level == LOG_ERROR) {
            write_line(STDERR_FILENO, line, size);
        }
        return;
    }
    write_line(level >= LOG_WARNING ? STDERR_FILENO : STDOUT_FILENO, line, size);
}

void log_event(const char *name, cJSON *fields, const char *text, ...)
{
    if (log_state.format == LOG_JSON) {
        cJSON *object = fields ? fields : cJSON_CreateObject();
        cJSON *event = cJSON_CreateString(name);
        if (json_put(object, "event", event)) {
            cJSON_DetachItemViaPointer(object, event);
            cJSON_InsertItemInArray(object, 0, event);
        }
        write_json(object);
        return;
    }
    cJSON_Delete(fields);
    if (text && log_state.lowest <= LOG_INFO) {
        char line[LINE_BYTES];
        va_list arguments;
        va_start(arguments, text);
        size_t size = format_line(line, sizeof line, "", text, arguments);
        va_end(arguments);
        write_line(STDOUT_FILENO, line, size);
    }
}
