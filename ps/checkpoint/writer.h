/*
 * Writes checkpoints in the background: one thread, one checkpoint at a time, so that training pauses only for the copy
 * of its state. The thread runs at lower priority than those that compute.
 *
 *     copy the engine's state into the snapshot; checkpoint_writer_submit; continue training
 *     checkpoint_writer_poll now and then: reports the outcome of each checkpoint once
 *
 * A writer is driven by one thread.
 */
#ifndef PS_CHECKPOINT_WRITER_H
#define PS_CHECKPOINT_WRITER_H

#include <stdbool.h>

#include "base/error.h"
#include "ps/checkpoint/folder.h"

struct checkpoint_writer;

enum checkpoint_outcome {
    CHECKPOINT_NO_NEWS, /* nothing was submitted, it is still being written, or its outcome was reported already */
    CHECKPOINT_WRITTEN,
    CHECKPOINT_FAILED,
};

/* The folder is borrowed, for the writer's exclusive use until it is destroyed. */
bool checkpoint_writer_create(struct checkpoint_writer **writer, struct checkpoint_folder *folder, struct error *error);

/* Finishes the submitted checkpoint first. NULL is fine. */
void checkpoint_writer_destroy(struct checkpoint_writer *writer);

/*
 * targets: as checkpoint_folder_save. The state is borrowed until poll or wait has reported the outcome; info is
 * copied. One at a time: only after the last one's outcome was reported.
 */
void checkpoint_writer_submit(struct checkpoint_writer *writer, int targets, const struct checkpoint_state *state,
                              const struct checkpoint_info *info);

/* The outcome of the submitted checkpoint: its info, and how long it took; error is set if it failed. */
struct checkpoint_report {
    struct checkpoint_info info;
    int targets;
    double seconds;
};

/* Does not wait. */
enum checkpoint_outcome checkpoint_writer_poll(struct checkpoint_writer *writer, struct checkpoint_report *report,
                                               struct error *error);

/* Waits for the outcome if one is outstanding. */
enum checkpoint_outcome checkpoint_writer_wait(struct checkpoint_writer *writer, struct checkpoint_report *report,
                                               struct error *error);

#endif
