/* A worker without an index asks ps 0 for one, as the same worker each time, until it gets an answer. */
#include "worker/remote/worker.h"

#include "tests/check.h"

#include "base/process/restart.h"
#include "base/process/signals.h"
#include "ps/identity.h"
#include "tests/net/keys.h"
#include "tests/worker/remote/fake_member.h"

static struct {
    struct fake_member ps;
    int cuts, odd; /* connections cut instead of an answer; answers of another type, before it */
    bool objects;  /* for good */
    int number;    /* that it gives */
    int asked;
    uint64_t key; /* sent with the request; it must not change */
} said;

static bool answer(struct fake_member *member, struct channel *channel)
{
    const uint64_t key = channel->message.get_place.key;
    if (channel->frame.type != MESSAGE_get_place || member->peer.digest[0] != '\0') {
        return false;
    }
    said.key = said.asked == 0 || said.key == key ? key : 0;
    said.asked++;
    if (said.cuts > 0) {
        said.cuts--;
        return false;
    }
    if (said.odd > 0) {
        said.odd--;
        return fake_member_say(channel, MESSAGE_pong, &(struct message_pong){1});
    }
    if (said.objects) {
        return fake_member_object(channel, ERROR_NOT_ALLOWED);
    }
    return fake_member_say(channel, MESSAGE_place, &(struct message_place){said.number});
}

/* The result of place_find for such a config; the index is in *index. */
static bool find(const char *role, const char *number, const char *key, int *index, struct error *error)
{
    struct config config;
    struct identity identity;
    fake_member_listen(&said.ps, MEMBER_PS, 0);
    const struct config_setting settings[] = {{"ps_hosts", said.ps.host},
                                              {"worker_hosts", "b:1"},
                                              {"elastic", "true"},
                                              {"join_secs", "60"},
                                              {"job_name", role},
                                              {"task_index", number},
                                              {key ? "fleet_key" : "insecure", key ? key : "true"}};
    if (!config_load(&config, NULL, settings, sizeof settings / sizeof *settings, error)) {
        fail_msg("%s", error->text);
    }
    struct config plain = config;
    plain.security.insecure = true;
    if (!identity_create(&identity, &plain, (struct member){MEMBER_PS, 0}, error)) {
        fail_msg("%s", error->text);
    }
    fake_member_start(&said.ps, &identity.hello, answer);
    const bool found = place_find(&config, error);
    fake_member_stop(&said.ps);
    identity_destroy(&identity);
    *index = config.cluster.task_index;
    config_free(&config);
    return found;
}

static void begin(void)
{
    memset(&said, 0, sizeof said);
    said.number = 7;
}

static void find_7(void)
{
    struct error error = {""};
    int index;
    if (!find("worker", "auto", NULL, &index, &error)) {
        fail_msg("%s", error.text);
    }
    assert_int_equal(index, 7);
    assert_int_equal(said.ps.peer.member.role, MEMBER_WORKER);
    assert_int_equal(said.ps.peer.member.index, MEMBER_ANY_INDEX);
}

TEST(ps_0_says_the_number)
{
    begin();
    find_7();
    assert_int_equal(said.asked, 1);
    assert_true(said.key != 0);
}

/* After a failure, or an invalid answer, the same worker asks again. */
TEST(it_is_asked_again)
{
    for (int i = 0; i < 2; i++) {
        begin();
        said.cuts = i == 0;
        said.odd = i == 1;
        find_7();
        assert_int_equal(said.asked, 2);
        assert_true(said.key != 0);
    }
}

TEST(what_is_no_number_is_not_taken)
{
    static const struct {
        int number;
        bool is_one;
    } cases[] = {{-5, false}, {-1, false}, {0, true}, {MEMBER_MAX_INDEX, true}, {MEMBER_MAX_INDEX + 1, false}};
    struct error error = {""};
    int index;
    (void)state;
    for (int i = 0; i < 5; i++) {
        begin();
        said.number = cases[i].number;
        assert_int_equal(find("worker", "auto", NULL, &index, &error), cases[i].is_one);
        assert_int_equal(index, cases[i].is_one ? cases[i].number : CONFIG_AUTO);
        assert_true(cases[i].is_one || strstr(error.text, "which is invalid"));
    }
}

TEST(no_is_no)
{
    struct error error = {""};
    int index;
    (void)state;
    begin();
    said.objects = true;
    assert_false(find("worker", "auto", NULL, &index, &error));
    assert_non_null(strstr(error.text, "as the test wants"));
    assert_int_equal(said.asked, 1);
}

/* Several workers of one machine differ by folder or command line; a restarted one is the same. */
TEST(who_it_is_known_as)
{
    static char program[] = "trainer", role[] = "--job_name=worker", other[] = "--train_dir=two";
    static char *one[] = {program, role, NULL}, *two[] = {program, role, other, NULL};
    char *const *const commands[] = {one, two, one};
    uint64_t keys[4];
    char home[512];
    (void)state;
    assert_non_null(getcwd(home, sizeof home));
    for (int i = 0; i < 4; i++) {
        begin();
        if (i < 3) {
            restart_remember((char **)(uintptr_t)commands[i]);
        } else {
            assert_int_equal(chdir(folder), 0);
        }
        find_7();
        keys[i] = said.key;
    }
    assert_int_equal(chdir(home), 0);
    assert_true(keys[0] == keys[2]);
    assert_true(keys[0] != keys[1] && keys[0] != keys[3] && keys[1] != keys[3]);
}

/* A worker with an index, from its config or certificate, asks nobody; nor does a ps, which must have one. */
TEST(who_asks_nobody)
{
    struct error error = {""};
    int index;
    (void)state;
    begin();
    assert_true(find("worker", "3", NULL, &index, &error));
    assert_int_equal(index, 3);
    assert_true(find("ps", "0", NULL, &index, &error));
    assert_int_equal(index, 0);
    assert_true(find("worker", "auto", file("worker1.key"), &index, &error));
    assert_int_equal(index, 1);
    assert_false(find("worker", "auto", file("none.key"), &index, &error));
    assert_non_null(strstr(error.text, "none.key"));
    assert_int_equal(atomic_load(&said.ps.connections), 0);
}

/* Only a worker may need an index, even where none is set. */
TEST(a_ps_without_a_number)
{
    struct config config;
    struct error error = {""};
    (void)state;
    config_defaults(&config);
    config.cluster.job_name = JOB_PS;
    config.cluster.task_index = CONFIG_AUTO;
    assert_true(place_find(&config, &error));
    assert_int_equal(config.cluster.task_index, CONFIG_AUTO);
    config_free(&config);
}

int main(void)
{
    return check_run(make_keys, remove_keys);
}
