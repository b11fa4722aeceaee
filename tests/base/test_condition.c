/* Waiting for a condition with a timeout. */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <time.h>

#include "base/clock.h"
#include "base/threads.h"
#include "tests/check.h"
#include "tests/system.h"

/* A clock that stands still, and a record of who waits until when. */
static struct {
    bool stands;
    struct timespec now, until;
    int result;
} stage;

int clock_gettime(clockid_t id, struct timespec *now)
{
    if (!stage.stands || id != CLOCK_MONOTONIC) {
        return SYSTEM(clock_gettime)(id, now);
    }
    *now = stage.now;
    return 0;
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until)
{
    if (!stage.stands) {
        return pthread_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, until);
    }
    stage.until = *until;
    return stage.result;
}

static pthread_cond_t condition;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static bool notified;

static void asked_until(double most_s, time_t seconds, long nanoseconds)
{
    condition_wait_for(&condition, &mutex, most_s);
    assert_int_equal(stage.until.tv_sec, seconds);
    assert_int_equal(stage.until.tv_nsec, nanoseconds);
}

TEST(test_deadline)
{
    stage.stands = true;
    stage.now = (struct timespec){.tv_sec = 5, .tv_nsec = 750000000};
    asked_until(0, 5, 750000000);
    asked_until(0.125, 5, 875000000);
    asked_until(0.25, 6, 0);
    asked_until(0.5, 6, 250000000);
    asked_until(3, 8, 750000000);
    asked_until(86400.375, 86406, 125000000);
    asked_until(-1.5, 5, 750000000);
}

TEST(test_result)
{
    stage.stands = true;
    stage.result = 0;
    assert_true(condition_wait_for(&condition, &mutex, 1));
    stage.result = ETIMEDOUT;
    assert_false(condition_wait_for(&condition, &mutex, 1));
}

/* With the system's own condition: its clock is the deadline's. */
TEST(test_waits)
{
    stage.stands = false;
    const double begun_s = clock_monotonic_s();
    condition_create(&condition);
    pthread_mutex_lock(&mutex);
    while (condition_wait_for(&condition, &mutex, begun_s + 0.05 - clock_monotonic_s())) {
    }
    pthread_mutex_unlock(&mutex);
    pthread_cond_destroy(&condition);
    assert_true(clock_monotonic_s() >= begun_s + 0.05);
}

static void *tell(void *context)
{
    pthread_mutex_lock(&mutex);
    notified = true;
    pthread_cond_signal(&condition);
    pthread_mutex_unlock(&mutex);
    return NULL;
}

TEST(test_told)
{
    pthread_t teller;
    bool in_time = true;
    stage.stands = false;
    condition_create(&condition);
    pthread_mutex_lock(&mutex);
    assert_int_equal(pthread_create(&teller, NULL, tell, NULL), 0);
    while (!notified && in_time) {
        in_time = condition_wait_for(&condition, &mutex, 60);
    }
    pthread_mutex_unlock(&mutex);
    pthread_join(teller, NULL);
    pthread_cond_destroy(&condition);
    assert_true(notified && in_time);
}

int main(void)
{
    return check_run(NULL, NULL);
}
