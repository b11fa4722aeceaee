/* Indexes for workers that come without one: the same key gets the same one, and none gets another's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/job/job.h"
#include "tests/check.h"

enum { LISTED = 2, ROOM = 5, LEASE_S = 10 };

static char *workers[] = {(char[]){"v:1"}, (char[]){"w:1"}}, *servers[] = {(char[]){"p:1"}};

struct scene {
    struct config config;
    struct job job;
    double now_s;
};

static void begin(struct scene *scene, bool elastic)
{
    struct error error;
    memset(scene, 0, sizeof *scene);
    scene->config.cluster = (struct config_cluster){.ps_hosts = {.items = servers, .count = 1},
                                                    .worker_hosts = {.items = workers, .count = LISTED},
                                                    .elastic = elastic,
                                                    .elastic_workers = ROOM,
                                                    .min_workers = 1,
                                                    .lease_secs = LEASE_S};
    scene->config.model.layers[0] = 6;
    scene->config.model.layers[1] = 3;
    scene->config.model.layer_count = 2;
    scene->now_s = 100;
    assert_true(job_create(&scene->job, &scene->config, 0, scene->now_s, &error));
}

static int place(struct scene *scene, uint64_t key)
{
    struct verdict verdict;
    char text[80];
    const int index = job_assign_index(&scene->job, key, scene->now_s, &verdict);
    assert_int_equal(verdict.code, index >= 0                      ? 0
                                   : scene->config.cluster.elastic ? ERROR_NOT_READY
                                                                   : ERROR_NOT_ALLOWED);
    if (index < 0 && scene->config.cluster.elastic) {
        snprintf(text, sizeof text, "all %d places beyond worker_hosts are taken: raise elastic_workers", ROOM);
        assert_string_equal(verdict.message, text);
    } else if (index < 0) {
        assert_string_equal(verdict.message, "no worker may join beyond worker_hosts: set elastic, or a task_index");
    }
    return index;
}

static void come(struct scene *scene, int worker)
{
    const struct peer who = {
        .member = {MEMBER_WORKER, worker}, .incarnation = (uint64_t)worker + 1, .program = "trainer"};
    struct error message;
    assert_int_equal(job_hello(&scene->job, &who, "10.0.0.1:1", scene->now_s, &message), 0);
}

static void go(struct scene *scene, int worker)
{
    job_leave(&scene->job, worker, (uint64_t)worker + 1, "", scene->now_s);
    job_disconnected(&scene->job, worker, (uint64_t)worker + 1, scene->now_s);
}

TEST(test_each_key_has_a_number_of_its_own)
{
    struct scene scene;
    bool taken[LISTED + ROOM] = {true, true}; /* the listed ones */
    int first[ROOM];
    begin(&scene, true);
    for (int i = 0; i < ROOM; i++) {
        first[i] = place(&scene, (uint64_t)i * ROOM + 7); /* all hash to the same one */
        assert_in_range(first[i], LISTED, LISTED + ROOM - 1);
        assert_false(taken[first[i]]);
        taken[first[i]] = true;
        come(&scene, first[i]);
    }
    for (int i = 0; i < ROOM; i++) {
        assert_int_equal(place(&scene, (uint64_t)i * ROOM + 7), first[i]);
    }
    assert_int_equal(place(&scene, 1000), -1);
    job_destroy(&scene.job);
}

TEST(test_a_new_ps_puts_a_key_where_the_old_one_did)
{
    struct scene scene;
    int before[3];
    begin(&scene, true);
    for (int i = 0; i < 3; i++) {
        before[i] = place(&scene, UINT64_MAX - (uint64_t)i);
    }
    job_destroy(&scene.job);
    begin(&scene, true);
    for (int i = 2; i >= 0; i--) {
        assert_int_equal(place(&scene, UINT64_MAX - (uint64_t)i), before[i]);
    }
    job_destroy(&scene.job);
}

/* Asking costs nothing, so what was only asked for keeps nobody out: the oldest such assignment gives way. */
TEST(test_numbers_that_nobody_uses_keep_nobody_out)
{
    struct scene scene;
    begin(&scene, true);
    const int used = place(&scene, 1);
    come(&scene, used);
    for (int i = 1; i < ROOM; i++) {
        scene.now_s += 0.01;
        place(&scene, 1000 + (uint64_t)i);
    }
    const int first = place(&scene, 1001);
    for (int i = 2; i < ROOM; i++) { /* the first one was renewed just now, so it is the newest */
        scene.now_s += 0.01;
        const int index = place(&scene, 2000 + (uint64_t)i);
        assert_true(index >= LISTED && index != used);
        come(&scene, index);
    }
    assert_int_equal(place(&scene, 3000), first);
    come(&scene, first);
    assert_int_equal(place(&scene, 3001), -1);
    job_destroy(&scene.job);
}

/* A worker with its own index, or away for less than a lease, keeps it. */
TEST(test_numbers_of_those_who_are_gone_are_given_again)
{
    struct scene scene;
    begin(&scene, true);
    come(&scene, LISTED);
    for (int i = 1; i < ROOM; i++) {
        const int index = place(&scene, (uint64_t)i);
        assert_int_not_equal(index, LISTED);
        come(&scene, index);
    }
    assert_int_equal(place(&scene, 50), -1);
    const int early = place(&scene, 3), late = place(&scene, 1);
    go(&scene, early);
    scene.now_s += 1;
    go(&scene, late);
    scene.now_s += LEASE_S - 0.5;
    assert_int_equal(place(&scene, 50), early);
    come(&scene, early);
    assert_int_equal(place(&scene, 51), -1); /* that one is taken, and the other's lease is not over */
    scene.now_s += 1;
    assert_int_equal(place(&scene, 51), late);
    come(&scene, late);
    assert_int_equal(place(&scene, 50), early);
    assert_int_equal(place(&scene, 3), -1);
    job_destroy(&scene.job);
}

TEST(test_without_elastic_there_are_none)
{
    struct scene scene;
    begin(&scene, false);
    assert_int_equal(place(&scene, 50), -1);
    job_destroy(&scene.job);
}

int main(void)
{
    return check_run(NULL, NULL);
}
