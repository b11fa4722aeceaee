/*
 * Log lines.
 *
 * Text format: events and information go to standard output, warnings and errors to standard error, a line each. JSON
 * format: every line on standard output is one JSON object with an "event" member; information and warnings are
 * {"event":"log","level":...,"message":...}; an error goes to standard output as such an object and to standard error
 * as text. Each line is a single write, so that lines of different threads or processes never mix.
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
 * Lines that cannot be written are dropped. Returns the errno if lines for standard output were lost, to a full disk
 * say, so that the program can exit with failure; 0 otherwise, also if the reader closed its pipe.
 */
int log_lost(void);

void log_message(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define log_debug(...)   log_message(LOG_DEBUG, __VA_ARGS__)
#define log_info(...)    log_message(LOG_INFO, __VA_ARGS__)
#define log_warning(...) log_message(LOG_WARNING, __VA_ARGS__)
#define log_error(...)   log_message(LOG_ERROR, __VA_ARGS__)

/*
 * An event for programs: in JSON format `fields` preceded by "event": name, whatever the log level; in text format the
 * formatted text as information (nothing if text is NULL). Takes ownership of fields, which may be NULL.
 */
void log_event(const char *name, cJSON *fields, const char *text, ...) __attribute__((format(printf, 3, 4)));

/*
 * A progress line shares the terminal with log lines: every log line erases it first and redraws it afterwards. Both
 * callbacks run with the log's lock held; they may write, but not log.
 */
void log_set_status_line(void (*erase)(void *context), void (*draw)(void *context), void *context);

#endif
