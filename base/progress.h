/*
 * A progress line at the bottom of a terminal. It is redrawn at most ten times a second, follows the terminal's width,
 * and makes way for log lines (log_set_status_line).
 *
 * A struct progress is driven by one thread; log lines may come from any.
 */
#ifndef BASE_PROGRESS_H
#define BASE_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <pthread.h>

enum { PROGRESS_MAX_TEXT = 256 };

/* What the line shows. */
struct progress_view {
    int64_t step;
    int64_t last_step;  /* where the run ends; INT64_MAX: unknown */
    double steps_per_s; /* recent; 0: not known yet */
    double loss;        /* NaN: not known yet */
    double validation;  /* accuracy, 0..1; negative: not known yet */
    const char *unit;   /* of what is counted; NULL: "step" */
};

struct progress {
    bool active;
    double drawn_s;
    char text[PROGRESS_MAX_TEXT];
    pthread_mutex_t mutex; /* guards text and the terminal: held from a log line's erase to its draw */
};

/*
 * The line for a terminal of `columns` columns: at most columns - 1 characters, so that it never wraps. The least
 * important pieces are left out first. text: [size], size <= PROGRESS_MAX_TEXT.
 */
void progress_format(char *text, size_t size, int columns, const struct progress_view *view);

/* "4:05", "1:02:03", "3d 04:05" */
void progress_format_duration(char *text, size_t size, double seconds);

/* Starts drawing if `wanted` and standard output is a capable terminal. The struct must outlive its drawing. */
void progress_begin(struct progress *progress, bool wanted);

/* Redraws if a tenth of a second has passed. */
void progress_update(struct progress *progress, const struct progress_view *view);

/* Erases the line. */
void progress_end(struct progress *progress);

#endif
