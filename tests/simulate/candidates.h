/* What the operator of a simulated fleet (fleet.h) proposes next, and its fate, both drawn from the run's seed. */
#ifndef TESTS_SIMULATE_CANDIDATES_H
#define TESTS_SIMULATE_CANDIDATES_H

#include <stdint.h>

#include "base/config.h"

struct disk;
struct machine;

/* What will happen when a version comes into force. */
enum fate { FATE_GOOD, FATE_DIVERGES, FATE_KILLS, FATE_FAILS_ITS_TRIAL, FATE_FITS_NOT_ALL, FATE_BAD_PROGRAM };

struct candidate {
    struct config config; /* values only; owns nothing */
    enum fate fate;
    const char *binary;    /* the value of --binary, for programs that come with it; NULL: none */
    struct machine *small; /* a member that has no memory for it; NULL: none */
};

/* A version with one or two changes to this config. */
struct candidate candidate_draw(const struct config *from, uint64_t version);

/* A new program for this config, perhaps with a local key. Puts the program's files on the disk. */
struct candidate candidate_draw_program(const struct config *from, uint64_t version, struct disk *disk);

#endif
