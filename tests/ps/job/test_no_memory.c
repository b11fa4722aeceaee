/* A job for which there is no memory, whichever part of it is missing: that is said, and nothing of it stays. */
#include "tests/check.h"
#include "tests/ps/job/scene.h"

#include "tests/no_memory.h"

static int count_failures(struct config *config)
{
    int failures = 0;
    for (bool created = false; !created; failures += !created) {
        struct job job;
        struct error error = {""};
        no_memory_from(failures + 1, 1);
        created = job_create(&job, config, 0, 100, &error);
        no_memory_end();
        assert_true(created || strstr(error.text, "out of memory"));
        job_destroy(&job);
    }
    return failures;
}

TEST(each_part_may_be_missing)
{
    struct scene scene;
    set_up(&scene, 3);
    job_destroy(&scene.job);
    scene.config.cluster.min_replicas = 1;
    const int of_its_own = count_failures(&scene.config);
    scene.config.cluster.issync = true;
    assert_int_equal(count_failures(&scene.config), of_its_own + 5 + 2); /* and what it gathers */
}

/* It has nothing that would have to be destroyed; the sanitizers see whether that is so. */
TEST(what_gathers_is_created_whole_or_not_at_all)
{
    for (int failing = 1; failing <= 2; failing++) {
        struct aggregation aggregation;
        struct error error = {""};
        no_memory_from(failing, 1);
        assert_false(aggregation_create(&aggregation, 3, 2, 1, 1, &error));
        no_memory_end();
        assert_string_equal(error.text, "out of memory");
    }
}

int main(void)
{
    return check_run(NULL, NULL);
}
