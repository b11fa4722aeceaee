/*
 * What the program tells its user while it runs.
 *
 * Text format: events and information go to standard output, warnings and errors to standard error, one line each.
 * JSON format: every line on standard output is one JSON object with an "event" member; information and warnings are
 * {"event":"log","level":...,"message":...}; an error goes to standard output as such an object and to standard error
 * as text. Lines are written whole (one write each), so that lines of several threads or processes never mix.
 *
 * log_setup is called once, before other threads exist; everything else may be called from any thread.
 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdbool.h>

#include <cJSON.h>

enum log_format { LOG_TEXT, LOG_JSON };
enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARNING, LOG_ERROR };

void log_setup(enum log_format format, enum log_level lowest);
enum log_format log_format(void);

/*
 * Lines that cannot be written are dropped. If some for standard output were because a disk is full: the errno, for the
 * program's exit status. 0 otherwise, also where a reader closed its pipe, having seen enough.
 */
int log_lost(void);

void log_message(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define log_debug(...)   log_message(LOG_DEBUG, __VA_ARGS__)
#define log_info(...)    log_message(LOG_INFO, __VA_ARGS__)
#define log_warning(...) log_message(LOG_WARNING, __VA_ARGS__)
#define log_error(...)   log_message(LOG_ERROR, __VA_ARGS__)

/*
 * Something a program may want to read: in JSON format `fields` with "event": name put first, in text format the
 * formatted text as information (nothing if text is NULL). No level keeps the JSON back. Takes ownership of fields, which may be NULL.
 */
void log_event(const char *name, cJSON *fields, const char *text, ...) __attribute__((format(printf, 3, 4)));

/*
 * A progress line on a terminal shares the screen with log lines: whoever draws it registers here, and every log line
 * first erases it and has it drawn again. Both are called with the log's lock held; they may write, but not log.
 */
void log_set_status_line(void (*erase)(void *context), void (*draw)(void *context), void *context);

#endif
