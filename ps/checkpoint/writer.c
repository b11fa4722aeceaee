/* One mutex, one condition, three states: nothing else is shared by the two threads. */
#include "ps/checkpoint/writer.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/profile.h"

enum { NICENESS = 10 };

enum writer_state { WRITER_IDLE, WRITER_WRITING, WRITER_FINISHED };

struct checkpoint_writer {
    struct checkpoint_folder *folder;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    enum writer_state state; /* with all below, under the mutex */
    bool leave;
    const struct checkpoint_state *snapshot;
    struct checkpoint_report report;
    bool written;
    struct error error;
};

static void *write_checkpoints(void *context)
{
    struct checkpoint_writer *writer = context;
    profile_thread("checkpoints");
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICENESS); /* of this thread alone, on Linux */
    pthread_mutex_lock(&writer->mutex);
    for (;;) {
        while (writer->state != WRITER_WRITING && !writer->leave) {
            pthread_cond_wait(&writer->changed, &writer->mutex);
        }
        if (writer->state != WRITER_WRITING) {
            break;
        }
        pthread_mutex_unlock(&writer->mutex);
        /* Between submit and the report these belong to this thread. */
        double began_s = clock_monotonic_s();
        writer->written = checkpoint_folder_save(writer->folder, writer->report.targets, writer->snapshot,
                                                 &writer->report.info, &writer->error);
        writer->report.seconds = clock_monotonic_s() - began_s;
        pthread_mutex_lock(&writer->mutex);
        writer->state = WRITER_FINISHED;
        pthread_cond_broadcast(&writer->changed);
    }
    pthread_mutex_unlock(&writer->mutex);
    return NULL;
}

/* Signals are for the main thread. */
static int start_thread(struct checkpoint_writer *writer)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int reason = pthread_create(&writer->thread, NULL, write_checkpoints, writer);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return reason;
}

bool checkpoint_writer_create(struct checkpoint_writer **created, struct checkpoint_folder *folder, struct error *error)
{
    struct checkpoint_writer *writer = must_zero(1, sizeof *writer, "the checkpoint writer");
    writer->folder = folder;
    pthread_mutex_init(&writer->mutex, NULL);
    pthread_cond_init(&writer->changed, NULL);
    int reason = start_thread(writer);
    if (reason != 0) {
        pthread_cond_destroy(&writer->changed);
        pthread_mutex_destroy(&writer->mutex);
        free(writer);
        return error_set(error, "the thread that writes checkpoints cannot start: %s: raise the limit of threads",
                         strerror(reason));
    }
    *created = writer;
    return true;
}

void checkpoint_writer_destroy(struct checkpoint_writer *writer)
{
    if (!writer) {
        return;
    }
    pthread_mutex_lock(&writer->mutex);
    writer->leave = true;
    pthread_cond_broadcast(&writer->changed);
    pthread_mutex_unlock(&writer->mutex);
    pthread_join(writer->thread, NULL);
    pthread_cond_destroy(&writer->changed);
    pthread_mutex_destroy(&writer->mutex);
    free(writer);
}

void checkpoint_writer_submit(struct checkpoint_writer *writer, int targets, const struct checkpoint_state *state,
                              const struct checkpoint_info *info)
{
    pthread_mutex_lock(&writer->mutex);
    assert(writer->state == WRITER_IDLE);
    writer->snapshot = state;
    writer->report = (struct checkpoint_report){.info = *info, .targets = targets};
    writer->state = WRITER_WRITING;
    pthread_cond_broadcast(&writer->changed);
    pthread_mutex_unlock(&writer->mutex);
}

static enum checkpoint_outcome take_outcome(struct checkpoint_writer *writer, bool wait,
                                            struct checkpoint_report *report, struct error *error)
{
    enum checkpoint_outcome outcome = CHECKPOINT_NO_NEWS;
    pthread_mutex_lock(&writer->mutex);
    while (wait && writer->state == WRITER_WRITING) {
        pthread_cond_wait(&writer->changed, &writer->mutex);
    }
    if (writer->state == WRITER_FINISHED) {
        outcome = writer->written ? CHECKPOINT_WRITTEN : CHECKPOINT_FAILED;
        *report = writer->report;
        if (!writer->written) {
            *error = writer->error;
        }
        writer->state = WRITER_IDLE;
    }
    pthread_mutex_unlock(&writer->mutex);
    return outcome;
}

enum checkpoint_outcome checkpoint_writer_poll(struct checkpoint_writer *writer, struct checkpoint_report *report,
                                               struct error *error)
{
    return take_outcome(writer, false, report, error);
}

enum checkpoint_outcome checkpoint_writer_wait(struct checkpoint_writer *writer, struct checkpoint_report *report,
                                               struct error *error)
{
    return take_outcome(writer, true, report, error);
}
