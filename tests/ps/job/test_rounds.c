/* Rounds with participation below 1: who is selected, how long a round waits, and what counts. */
#include <stdio.h>
#include <string.h>

#include "ps/job/job.h"
#include "ps/job/plan.h"
#include "tests/check.h"

enum { PLACES = 10 };

static char names[PLACES][16];
static char *workers[PLACES], *servers[] = {(char[]){"p:1"}, (char[]){"q:1"}};

struct scene {
    struct config config;
    struct job job; /* of ps 0, which decides */
    double now_s;
    uint64_t sequences[PLACES];
};

static void come(struct scene *scene, int worker, uint64_t incarnation)
{
    const struct peer who = {.member = {MEMBER_WORKER, worker}, .incarnation = incarnation, .program = "trainer"};
    struct error message;
    assert_int_equal(job_hello(&scene->job, &who, "10.0.0.1:1", scene->now_s, &message), 0);
    job_note_ready(&scene->job, worker, incarnation, scene->now_s);
}

static void begin(struct scene *scene, double participation, double over_selection, double deadline_s, int present)
{
    struct error error;
    struct verdict verdict;
    memset(scene, 0, sizeof *scene);
    for (int i = 0; i < PLACES; i++) {
        snprintf(names[i], sizeof names[i], "w%d:1", i);
        workers[i] = names[i];
    }
    scene->config.cluster = (struct config_cluster){.ps_hosts = {.items = servers, .count = 2},
                                                    .worker_hosts = {.items = workers, .count = PLACES},
                                                    .issync = true,
                                                    .min_replicas = 1,
                                                    .min_workers = 1,
                                                    .lease_secs = 10};
    scene->config.train = (struct config_train){.local_steps = 4,
                                                .seed = 7,
                                                .participation = participation,
                                                .over_selection = over_selection,
                                                .round_deadline_secs = deadline_s};
    scene->config.model.layers[0] = 6;
    scene->config.model.layers[1] = 3;
    scene->config.model.layer_count = 2;
    scene->now_s = 100;
    assert_true(job_create(&scene->job, &scene->config, 0, scene->now_s, &error));
    scene->job.gathered.shards = 1; /* as if the other ps had received everything */
    for (int i = 0; i < present; i++) {
        come(scene, i, (uint64_t)i + 1);
    }
    job_begin_restore(&scene->job, 0, 1, "initialised", scene->now_s, &verdict);
    job_end_restore(&scene->job, 0, 1, 0, 600, scene->now_s, &verdict);
    assert_int_equal(verdict.code, 0);
    job_pull(&scene->job, 0, 1, 1, scene->now_s, &verdict);
    assert_int_equal(verdict.code, 0);
}

static bool is_asked(const struct scene *scene, int worker)
{
    return job_token(&scene->job, worker, scene->job.global_step) == scene->job.global_step;
}

static int count_asked(const struct scene *scene)
{
    int count = 0;
    for (int i = 0; i < PLACES; i++) {
        count += is_asked(scene, i);
    }
    return count;
}

static uint16_t push_at(struct scene *scene, int worker, int64_t step, bool finite)
{
    struct verdict verdict;
    bool receive;
    const uint64_t incarnation = scene->job.workers[worker].incarnation;
    const struct job_push push = {
        .generation = 1, .sequence = ++scene->sequences[worker], .base_step = step, .token = step, .finite = finite};
    job_stage(&scene->job, worker, incarnation, &push, scene->now_s, &verdict, &receive);
    if (verdict.code == 0) {
        job_staged(&scene->job, worker, incarnation, &push, receive, scene->now_s, &verdict);
    }
    return verdict.code;
}

static uint16_t push(struct scene *scene, int worker)
{
    return push_at(scene, worker, scene->job.global_step, true);
}

/* Makes the decided step; returns its number of differences, 0: none is decided. */
static int make(struct scene *scene)
{
    struct job_step step;
    if (!job_take_step(&scene->job, &step)) {
        return 0;
    }
    job_step_applied(&scene->job, &step, true, scene->now_s);
    return step.count;
}

static void pass(struct scene *scene, double seconds)
{
    scene->now_s += seconds;
    for (int i = 0; i < PLACES; i++) {
        if (scene->job.workers[i].present) {
            job_touch(&scene->job, i, scene->job.workers[i].incarnation, scene->now_s);
        }
    }
    job_tick(&scene->job, scene->now_s);
}

/* A worker may take part as long as its round is open, and it is selected. */
TEST(test_a_token_is_of_the_open_round)
{
    struct scene scene;
    struct verdict verdict;
    begin(&scene, 0.3, 1, 0, PLACES);
    assert_int_equal(count_asked(&scene), 3);
    for (int i = 0; i < PLACES; i++) {
        assert_int_equal(job_token(&scene.job, i, 1), -1);
    }
    for (int i = 0; i < PLACES; i++) {
        if (is_asked(&scene, i)) {
            assert_int_equal(push(&scene, i), 0);
        }
    }
    assert_true(job_has_step(&scene.job));
    assert_int_equal(count_asked(&scene), 0); /* it is decided */
    assert_int_equal(make(&scene), 3);
    assert_int_equal(count_asked(&scene), 3);
    for (int i = 0; i < PLACES; i++) {
        assert_int_equal(job_token(&scene.job, i, 0), -1);
    }
    job_begin_restore(&scene.job, 0, 2, "a checkpoint", scene.now_s, &verdict);
    assert_int_equal(count_asked(&scene), 0);
    job_destroy(&scene.job);
}

TEST(test_those_are_asked_who_are_there_in_the_rounds_order)
{
    for (int present = 1; present <= PLACES; present++) {
        struct scene scene;
        bool moved = false;
        begin(&scene, 0.3, 1, 0, present);
        for (int64_t round = 0; round < 20; round++) {
            struct sampler_order order;
            const int share = round_share(0.3, present);
            int taken = 0, first = -1;
            round_order(&order, 7, PLACES, round);
            assert_int_equal(count_asked(&scene), share);
            for (uint32_t place = 0; place < PLACES; place++) {
                const int worker = (int)sampler_index(&order, place);
                const bool is_due = worker < present && taken < share;
                assert_int_equal(is_asked(&scene, worker), is_due);
                assert_int_equal(push(&scene, worker), is_due ? 0 : ERROR_BAD_REQUEST);
                first = first < 0 && is_due ? worker : first;
                taken += is_due;
                assert_int_equal(make(&scene), is_due && taken == share ? share : 0);
                if (is_due && taken == share) {
                    break;
                }
            }
            moved = moved || first != 0;
        }
        assert_true(moved || present == 1);
        job_destroy(&scene.job);
    }
}

TEST(test_the_first_of_more_make_the_round)
{
    struct scene scene;
    int asked[PLACES], count = 0;
    begin(&scene, 0.4, 1.5, 0, PLACES);
    for (int i = 0; i < PLACES; i++) {
        if (is_asked(&scene, i)) {
            asked[count++] = i;
        }
    }
    assert_int_equal(count, 6);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(make(&scene), 0);
        assert_int_equal(push(&scene, asked[i]), 0);
    }
    assert_int_equal(count_asked(&scene), 0); /* those that have not begun need not */
    assert_int_equal(make(&scene), 4);
    assert_int_equal(push_at(&scene, asked[4], 0, true), 0);
    struct verdict verdict;
    const struct job_push late = {.generation = 1, .sequence = scene.sequences[asked[4]], .token = 0, .finite = true};
    assert_true(job_settled(&scene.job, asked[4], scene.job.workers[asked[4]].incarnation, &late, &verdict));
    assert_int_equal(verdict.outcome, PUSH_STALE);
    for (int i = 0; i < 6; i++) {
        const struct job_worker *worker = &scene.job.workers[asked[i]];
        assert_int_equal(worker->applied, i < 4);
        assert_int_equal(worker->missed, i >= 4);
        assert_int_equal(worker->stale, i == 4);
        assert_true(worker->asked >= 1);
    }
    job_destroy(&scene.job);
}

TEST(test_a_round_ends_at_its_deadline)
{
    for (int some = 0; some < 2; some++) {
        struct scene scene;
        begin(&scene, some ? 0.5 : 1, 1, 20, PLACES);
        scene.job.config.cluster.min_replicas = scene.job.gathered.least = 2;
        int pushed = 0;
        for (int i = 0; i < PLACES && pushed < 2; i++) {
            pushed += is_asked(&scene, i) && push(&scene, i) == 0;
        }
        pass(&scene, 19);
        assert_int_equal(make(&scene), 0);
        pass(&scene, 2);
        assert_int_equal(make(&scene), 2);
        int64_t missed = 0;
        for (int i = 0; i < PLACES; i++) {
            missed += scene.job.workers[i].missed;
        }
        assert_int_equal(missed, some ? 3 : 8);
        pass(&scene, 19); /* the next round has its own deadline */
        assert_int_equal(make(&scene), 0);
        job_destroy(&scene.job);
    }
}

TEST(test_others_are_asked_where_too_few_can_come)
{
    struct scene scene;
    bool gone[PLACES] = {false};
    begin(&scene, 0.2, 1, 0, PLACES - 1);
    for (int i = 0; i < PLACES; i++) {
        if (is_asked(&scene, i)) {
            gone[i] = true;
            job_leave(&scene.job, i, (uint64_t)i + 1, "", scene.now_s);
        }
    }
    int asked = 0;
    for (int i = 0; i < PLACES; i++) {
        if (is_asked(&scene, i) && !gone[i]) {
            asked++;
            assert_int_equal(push(&scene, i), 0);
        }
    }
    assert_int_equal(asked, 2);
    assert_int_equal(make(&scene), 2);
    job_destroy(&scene.job);

    /* All others are gone: any new worker is selected, and so is one that returns. */
    begin(&scene, 0.2, 1, 0, 2);
    for (int i = 0; i < 2; i++) {
        job_leave(&scene.job, i, (uint64_t)i + 1, "", scene.now_s);
    }
    pass(&scene, 1);
    assert_int_equal(make(&scene), 0);
    come(&scene, 5, 77);
    pass(&scene, 1);
    assert_true(is_asked(&scene, 5));
    assert_int_equal(push(&scene, 5), 0);
    assert_int_equal(make(&scene), 1);
    job_destroy(&scene.job);
}

/* None came in time: others get as much time, and then all of them count. */
TEST(test_others_are_asked_where_nobody_came_in_time)
{
    struct scene scene;
    begin(&scene, 0.3, 1, 5, PLACES);
    assert_int_equal(count_asked(&scene), 3);
    pass(&scene, 6);
    assert_int_equal(count_asked(&scene), 6);
    pass(&scene, 4);
    assert_int_equal(count_asked(&scene), 6);
    pass(&scene, 2);
    assert_int_equal(count_asked(&scene), 9);
    for (int i = 0; i < PLACES; i++) {
        if (is_asked(&scene, i)) {
            assert_int_equal(push(&scene, i), 0);
            break;
        }
    }
    pass(&scene, 5);
    assert_int_equal(make(&scene), 1);
    job_destroy(&scene.job);
}

/* Another ps reports complete differences; those of workers that are not selected don't count. */
TEST(test_a_report_of_who_is_not_asked_counts_for_nothing)
{
    struct scene scene;
    bool finite[PLACES], none[PLACES] = {false};
    struct verdict verdict;
    begin(&scene, 0.3, 1, 0, PLACES);
    scene.job.shards[1] = 0;
    memset(finite, 1, sizeof finite);
    job_report(&scene.job, 1, 1, 0, finite, none, scene.now_s, &verdict);
    assert_int_equal(verdict.code, 0);
    assert_int_equal(make(&scene), 3);
    job_destroy(&scene.job);
}

TEST(test_not_finite_is_no_part_of_a_round)
{
    struct scene scene;
    int bad = -1;
    begin(&scene, 0.3, 1, 0, PLACES);
    for (int i = 0; i < PLACES; i++) {
        if (is_asked(&scene, i)) {
            assert_int_equal(push_at(&scene, i, 0, bad >= 0), 0);
            bad = bad < 0 ? i : bad;
        }
    }
    assert_int_equal(make(&scene), 2);
    assert_int_equal(scene.job.workers[bad].missed, 1);
    assert_int_equal(scene.job.workers[bad].not_finite, 1);
    job_destroy(&scene.job);
}

int main(void)
{
    return check_run(NULL, NULL);
}
