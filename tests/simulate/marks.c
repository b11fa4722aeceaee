/* Marks in the program's code (base/simulation.h): which were reached, and making rare events happen. */
#ifndef TRAINER_SIMULATED
#define TRAINER_SIMULATED /* for tools that check this file alone */
#endif
#include "base/simulation.h"

#include <stdint.h>
#include <stdio.h>

#include "tests/simulate/marks.h"
#include "tests/simulate/world.h"

enum { ONE_IN = 200 };

extern struct simulation_mark __start_marks[], __stop_marks[]; /* NOLINT: the linker's names */

void simulation_pass(struct simulation_mark *mark)
{
    if (!mark->passed) {
        mark->passed = true;
        say("mark: %s", mark->what);
    }
}

bool simulation_rarely(struct simulation_mark *mark)
{
    const bool now = chance(ONE_IN) == 0;
    if (now) {
        simulation_pass(mark);
    }
    return now;
}

static int count(void)
{
    return (int)(((uintptr_t)__stop_marks - (uintptr_t)__start_marks) / sizeof *__start_marks);
}

void marks_collect(unsigned char passed[MOST_MARKS])
{
    for (int i = 0; i < count() && i < MOST_MARKS; i++) {
        if (__start_marks[i].passed) {
            passed[i] = 1; /* any other writer writes the same value */
        }
    }
}

bool marks_note(const char *path, const unsigned char passed[MOST_MARKS])
{
    FILE *file = fopen(path, "ae");
    for (int i = 0; file && i < count() && i < MOST_MARKS; i++) {
        if (passed[i]) {
            fprintf(file, "%s\n", __start_marks[i].what);
        }
    }
    return file && fclose(file) == 0;
}

void marks_list(void)
{
    for (int i = 0; i < count(); i++) {
        printf("%s\n", __start_marks[i].what);
    }
}
