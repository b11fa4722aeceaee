/* A scene with three workers, a new one for each test. */
#ifndef TESTS_PS_JOB_ENTERED_H
#define TESTS_PS_JOB_ENTERED_H

#include "tests/ps/job/scene.h"

static struct scene scene;

static inline int enter(void **state)
{
    set_up(&scene, 3);
    return 0;
}

static inline int leave(void **state)
{
    job_destroy(&scene.job);
    return 0;
}

#endif
