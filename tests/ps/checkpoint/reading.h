/* Reads a whole checkpoint at once, for tests of what was written. */
#ifndef TESTS_PS_CHECKPOINT_READING_H
#define TESTS_PS_CHECKPOINT_READING_H

#include "ps/checkpoint/checkpoint.h"

/* Opens, loads and closes one file. */
static inline bool read_checkpoint(const char *path, struct checkpoint_state *state, struct checkpoint_info *info,
                                   struct error *error)
{
    struct checkpoint_file *file;
    if (checkpoint_open(&file, path, error) != CHECKPOINT_OPENED) {
        return false;
    }
    bool loaded = checkpoint_load(file, state, error);
    *info = *checkpoint_file_info(file);
    checkpoint_close(file);
    return loaded;
}

#endif
