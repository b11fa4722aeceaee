/* What a change from one config to another requires. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/rollout/manifest.h"
#include "tests/check.h"

static void parse(struct config *config, const char *text)
{
    struct error error = {""};
    if (!config_parse(config, "c.json", (const uint8_t *)text, strlen(text), NULL, 0, &error)) {
        fail_msg("%s", error.text);
    }
}

/* message: why it is impossible; NULL: it is possible, as `kind` */
static void expect(const char *from, const char *to, bool local, enum rollout_kind kind, const char *message)
{
    struct config before, after;
    struct error error = {""};
    enum rollout_kind found = ROLLOUT_LOCAL;
    parse(&before, from);
    parse(&after, to);
    bool can = change_kind(&before, &after, local, &found, &error);
    if (can != !message || (!can && !strstr(error.text, message))) {
        fail_msg("%s: \"%s\"", to, error.text);
    }
    if (can) {
        assert_int_equal(found, kind);
    }
    config_free(&before);
    config_free(&after);
}

/* The table alone decides. */
TEST(every_key_is_of_its_class)
{
    struct config before, after;
    struct error error;
    for (const struct config_key *key = config_keys; key->section; key++) {
        const bool number =
            key->type == KEY_SWITCH || key->type == KEY_COUNT || key->type == KEY_LONG || key->type == KEY_NUMBER;
        bool fixed = strcmp(key->name, "insecure") == 0 || strcmp(key->name, "version") == 0;
        if (key->scope != SCOPE_JOB || !number || fixed) {
            continue;
        }
        parse(&before, "{}");
        parse(&after, "{}");
        char *was = config_key_text(key, &before);
        bool other = false;
        for (const char *const *text = (const char *const[]){"1", "0.5", "0", "2", "0.25", NULL}; *text && !other;
             text++) {
            if (config_key_set_text(key, &after, *text, &error)) {
                char *is = config_key_text(key, &after);
                other = strcmp(was, is) != 0;
                free(is);
            }
        }
        enum rollout_kind kind;
        assert_true(other && change_kind(&before, &after, false, &kind, &error));
        if (kind != (key->change == CHANGE_LIVE ? ROLLOUT_LIVE : ROLLOUT_JOB)) {
            fail_msg("%s takes %d", key->name, (int)kind);
        }
        assert_true(change_kind(&before, &after, true, &kind, &error));
        assert_int_equal(kind, ROLLOUT_JOB); /* with local keys, too */
        free(was);
        config_free(&before);
        config_free(&after);
    }
    expect("{}", "{}", true, ROLLOUT_LOCAL, NULL);
}

#define HOSTS(ps, workers) "{\"cluster\": {\"ps_hosts\": [" ps "], \"worker_hosts\": [" workers "]}}"

TEST(hosts)
{
    const char *from = HOSTS("\"p:1\", \"q:1\"", "\"a:1\", \"b:1\", \"c:1\"");
    expect(from, HOSTS("\"p:1\", \"q:1\"", "\"a:1\", \"b:1\""), false, ROLLOUT_JOB, NULL);
    expect(from, HOSTS("\"p:1\", \"q:1\", \"r:1\"", "\"a:1\", \"b:1\", \"c:1\", \"d:1\""), false, ROLLOUT_JOB, NULL);
    /* Workers move, also the chief, also several at a time, and along with others that join or leave. */
    expect(from, HOSTS("\"p:1\", \"q:1\"", "\"a:1\", \"b:2\", \"c:1\""), false, ROLLOUT_JOB, NULL);
    expect(from, HOSTS("\"p:1\", \"q:1\"", "\"x:1\", \"y:1\""), false, ROLLOUT_JOB, NULL);
    expect(from, HOSTS("\"p:1\", \"q:1\"", "\"a:1\", \"y:1\", \"c:1\", \"d:1\""), false, ROLLOUT_JOB, NULL);
    /* But a shifted list is another matter. */
    expect(from, HOSTS("\"p:1\", \"q:1\"", "\"a:1\", \"c:1\""), false, ROLLOUT_JOB,
           "cluster.worker_hosts: entry 1 is b:1 and would be c:1, which is worker 2 now");
    expect(from, HOSTS("\"p:1\", \"q:1\"", "\"b:1\", \"a:1\", \"c:1\""), false, ROLLOUT_JOB, "entry 0 is a:1");
    expect(from, HOSTS("\"p:1\", \"q:1\"", "\"z:1\", \"a:1\", \"b:1\", \"c:1\""), false, ROLLOUT_JOB,
           "entry 1 is b:1 and would be a:1, which is worker 0 now");
    /* A ps is found by its address. */
    expect(from, HOSTS("\"p:1\", \"q:2\"", "\"a:1\", \"b:1\", \"c:1\""), false, ROLLOUT_JOB,
           "cluster.ps_hosts: entry 1 is q:1 and would be q:2: the others find a ps by its address");
    expect(from, HOSTS("\"p:1\"", "\"a:1\", \"b:1\", \"c:1\""), false, ROLLOUT_JOB, NULL);
}

int main(void)
{
    return check_run(NULL, NULL);
}
