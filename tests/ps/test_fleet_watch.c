/* A thread that queries all members' state, and what it last heard. */
#include "tests/check.h"
#include "tests/ps/telling.h"

#include "ps/status.h"
#include "tests/worker/remote/story.h"

enum { ROOM = 8 };

static struct board_member heard_of[ROOM];

static struct fleet_watch *begin(void)
{
    struct fleet_watch *watch;
    struct error error;
    if (!fleet_watch_create(&watch, &telling.config, &telling.identity, &error)) {
        fail_msg("%s", error.text);
    }
    return watch;
}

/* For a worker, which learns of all members. */
static void start(void)
{
    telling_begin("worker", "0");
    telling.identity.hello.member = (struct member){MEMBER_WORKER, 0};
}

TEST(what_was_heard_last_is_told)
{
    start();
    telling.says[0].statuses[0].global_step = 40;
    struct fleet_watch *watch = begin();
    AWAIT(fleet_watch_members(watch, heard_of, ROOM) > 0 && heard_of[0].global_step == 40); /* it answered in time */
    assert_int_equal(fleet_watch_members(watch, heard_of, ROOM), 4);
    assert_string_equal(heard_of[1].role, "ps");
    assert_int_equal(heard_of[1].task, 1);
    assert_int_equal(heard_of[3].task, 1);
    memset(heard_of, 0, sizeof heard_of);
    assert_int_equal(fleet_watch_members(watch, heard_of, 1), 1); /* as many as fit */
    assert_string_equal(heard_of[0].role, "ps");
    assert_string_equal(heard_of[1].role, "");
    assert_true(fleet_watch_most(watch) == 2 + config_worker_room(&telling.config.cluster));
    fleet_watch_destroy(watch);
    telling_end();
}

TEST(it_asks_each_second)
{
    start();
    const double began_s = story_s();
    struct fleet_watch *watch = begin();
    AWAIT(atomic_load(&telling.says[0].asked) >= 3);
    assert_true(story_s() - began_s >= 1.9);
    fleet_watch_destroy(watch);
    telling_end();
}

/* The seconds from before the first question, which is not answered, to the end; *count: of members heard of. */
static double ends_unanswered(int *count)
{
    start();
    telling.says[0].is_silent = true;
    const double asked_s = story_s();
    struct fleet_watch *watch = begin();
    AWAIT(atomic_load(&telling.says[0].asked) >= 1);
    *count = fleet_watch_members(watch, heard_of, ROOM);
    fleet_watch_destroy(watch); /* it need not wait for the answer */
    const double took_s = story_s() - asked_s;
    telling_end();
    return took_s;
}

TEST(nothing_was_heard_at_first)
{
    int count;
    for (int tries = 0; ends_unanswered(&count) > 1.5; tries++) { /* the watch itself waits for 2 s */
        assert_in_range(tries, 0, 30);
    }
    assert_int_equal(count, 0);
    fleet_watch_destroy(NULL);
}

TEST(a_list_that_makes_no_sense_is_refused)
{
    struct fleet_watch *watch;
    struct error error;
    start();
    char *kept = telling.config.cluster.ps_hosts.items[1];
    telling.config.cluster.ps_hosts.items[1] = (char *)(uintptr_t) "nowhere at all";
    assert_false(fleet_watch_create(&watch, &telling.config, &telling.identity, &error));
    assert_non_null(strstr(error.text, "nowhere at all"));
    telling.config.cluster.ps_hosts.items[1] = kept;
    telling_end();
}

int main(void)
{
    return check_run(NULL, NULL);
}
