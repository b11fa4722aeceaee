/*
 * What the code under test did, as lines of text that a test compares: stubs record their calls, and output on standard
 * output and standard error can be inspected. Any thread may record.
 */
#ifndef TESTS_WORKER_REMOTE_STORY_H
#define TESTS_WORKER_REMOTE_STORY_H

#include <dirent.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct story {
    pthread_mutex_t lock;
    char text[64 * 1024];
    size_t size;
} story = {.lock = PTHREAD_MUTEX_INITIALIZER};

static inline void __attribute__((format(printf, 1, 2))) tell(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    pthread_mutex_lock(&story.lock);
    const size_t left = sizeof story.text - story.size;
    const int size = vsnprintf(story.text + story.size, left, format, arguments);
    story.size += (size_t)size < left ? (size_t)size : left - 1;
    pthread_mutex_unlock(&story.lock);
    va_end(arguments);
}

/* Everything recorded since the last call. */
static inline const char *told(void)
{
    static char text[sizeof story.text];
    pthread_mutex_lock(&story.lock);
    memcpy(text, story.text, story.size);
    text[story.size] = '\0';
    story.size = 0;
    story.text[0] = '\0';
    pthread_mutex_unlock(&story.lock);
    return text;
}

static inline bool was_told(const char *what)
{
    pthread_mutex_lock(&story.lock);
    story.text[story.size] = '\0';
    const bool there = strstr(story.text, what);
    pthread_mutex_unlock(&story.lock);
    return there;
}

/* By a clock that no test controls. */
static inline double story_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

enum { STORY_PATIENCE_S = 60 }; /* with other threads, however busy this machine is */

/* Until it is so; the test fails if that takes a minute. */
#define AWAIT(condition)                                                                                               \
    do {                                                                                                               \
        const double awaited_s = story_s();                                                                            \
        while (!(condition)) {                                                                                         \
            if (story_s() - awaited_s > STORY_PATIENCE_S) {                                                            \
                fail_msg("never: %s", #condition);                                                                     \
            }                                                                                                          \
            usleep(1000);                                                                                              \
        }                                                                                                              \
    } while (0)

/* Until it was recorded; false: not within a minute. */
static inline bool await_told(const char *what)
{
    const double until_s = story_s() + STORY_PATIENCE_S;
    while (!was_told(what)) {
        if (story_s() > until_s) {
            fprintf(stderr, "never told: %s\nbut: %s\n", what, told());
            return false;
        }
        usleep(1000);
    }
    return true;
}

/* --- Output --- */

static struct {
    FILE *file;
    int out, err;
} overheard;

/* So far; it continues. */
static inline const char *heard_so_far(void)
{
    static char text[256 * 1024];
    fflush(NULL);
    const ssize_t size = pread(fileno(overheard.file), text, sizeof text - 1, 0);
    text[size > 0 ? size : 0] = '\0';
    return text;
}

static inline const char *heard(void)
{
    const char *text = heard_so_far();
    dup2(overheard.out, 1);
    dup2(overheard.err, 2);
    close(overheard.out);
    close(overheard.err);
    fclose(overheard.file);
    overheard.file = NULL;
    return text;
}

/* left over from a failed test */
static inline void speak_up(void)
{
    if (overheard.file) {
        fputs(heard(), stderr);
    }
}

/* From here on into a file: standard output and standard error. */
static inline void listen_in(void)
{
    static bool warned;
    speak_up();
    if (!warned) {
        warned = atexit(speak_up) == 0;
    }
    fflush(NULL);
    overheard.file = tmpfile();
    overheard.out = dup(1);
    overheard.err = dup(2);
    if (!overheard.file || dup2(fileno(overheard.file), 1) != 1 || dup2(fileno(overheard.file), 2) != 2) {
        abort();
    }
}

/* How many this process has open. */
static inline int open_files(void)
{
    DIR *listing = opendir("/proc/self/fd");
    int count = -3; /* but for ., .. and the listing itself */
    while (listing && readdir(listing)) {
        count++;
    }
    closedir(listing);
    return count;
}

/* How often. */
static inline int times(const char *text, const char *what)
{
    int count = 0;
    while ((text = strstr(text, what))) {
        text += strlen(what);
        count++;
    }
    return count;
}

#endif
