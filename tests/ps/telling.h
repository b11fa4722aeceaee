/*
 * Fake parameter servers that report about themselves and workers whatever the test wants, over plain TCP, in answer to
 * status queries.
 */
#ifndef TESTS_PS_TELLING_H
#define TESTS_PS_TELLING_H

#include <math.h>
#include <string.h>

#include "base/log.h"
#include "ps/identity.h"
#include "tests/check.h"
#include "tests/worker/remote/fake_member.h"

enum { TELLING_PS = 2, TELLING_MOST = 8 };

/* One ps's answer, frame by frame: its statuses, then its rounds. */
struct telling {
    struct message_status statuses[TELLING_MOST];
    struct message_rounds rounds[TELLING_MOST];
    int status_count, rounds_count;
    bool is_silent;                       /* it does not answer */
    enum message_type odd;                /* a frame of this kind comes after the first; 0: none */
    bool misnumbers;                      /* rounds carry another request's number */
    void (*when_asked)(void);             /* NULL: nothing */
    atomic_int asked, members, connected; /* members: according to the last request */
};

static struct {
    struct config config;
    struct identity identity; /* of the ps */
    struct fake_member members[TELLING_PS];
    struct telling says[TELLING_PS];
} telling;

static inline bool telling_send(struct channel *channel, enum message_type type, const void *message, bool more)
{
    struct error error;
    const struct outgoing frame = {.type = type, .request = channel->frame.request, .message = message, .more = more};
    return channel_send_frame(channel, &frame, fake_member_soon(), &error);
}

static inline bool telling_answer(struct fake_member *member, struct channel *channel)
{
    struct telling *says = &telling.says[member->member.index];
    if (channel->frame.type != MESSAGE_get_status) {
        return false;
    }
    atomic_store(&says->members, channel->message.get_status.members);
    atomic_fetch_add(&says->asked, 1);
    if (says->when_asked) {
        says->when_asked();
    }
    if (says->is_silent) {
        return true;
    }
    bool sent = true;
    for (int i = 0; i < says->status_count && sent; i++) {
        const bool more = i + 1 < says->status_count || says->rounds_count > 0 || says->odd;
        sent = telling_send(channel, MESSAGE_status, &says->statuses[i], more);
    }
    if (sent && says->odd) {
        sent = telling_send(channel, says->odd, &(struct message_pong){.nonce = 1}, says->rounds_count > 0);
    }
    channel->frame.request += says->misnumbers;
    for (int i = 0; i < says->rounds_count && sent; i++) {
        sent = telling_send(channel, MESSAGE_rounds, &says->rounds[i], i + 1 < says->rounds_count);
    }
    return sent;
}

/* One that reports only who it is. */
static inline struct message_status *telling_of(int ps, enum member_role role, int index, enum member_state state,
                                                uint32_t silent_ms)
{
    struct telling *says = &telling.says[ps];
    assert_true(says->status_count < TELLING_MOST);
    struct message_status *status = &says->statuses[says->status_count++];
    *status = (struct message_status){.role = role,
                                      .index = index,
                                      .state = (uint8_t)state,
                                      .silent_ms = silent_ms,
                                      .loss = NAN,
                                      .cpu_percent = NAN,
                                      .gpu_percent = NAN,
                                      .digest = "",
                                      .program = "",
                                      .host = "",
                                      .device = "",
                                      .message = ""};
    return status;
}

static inline struct message_rounds *telling_rounds(int ps, int worker, uint64_t asked)
{
    struct telling *says = &telling.says[ps];
    assert_true(says->rounds_count < TELLING_MOST);
    struct message_rounds *rounds = &says->rounds[says->rounds_count++];
    *rounds = (struct message_rounds){.worker = worker, .asked = asked};
    return rounds;
}

/* Clears what they report, but not how often they were asked. */
static inline void telling_anew(void)
{
    for (int i = 0; i < TELLING_PS; i++) {
        telling.says[i].status_count = telling.says[i].rounds_count = 0;
        telling_of(i, MEMBER_PS, i, STATE_READY, 0);
    }
}

/* The ps, which are running, and the querying member's config: there are two workers. */
static inline void telling_begin(const char *job, const char *index)
{
    char hosts[80];
    struct error error;
    memset(&telling, 0, sizeof telling);
    log_setup(LOG_TEXT, LOG_ERROR); /* no warnings about plain text */
    for (int i = 0; i < TELLING_PS; i++) {
        fake_member_listen(&telling.members[i], MEMBER_PS, i);
    }
    snprintf(hosts, sizeof hosts, "%s,%s", telling.members[0].host, telling.members[1].host);
    const struct config_setting settings[] = {{"ps_hosts", hosts},  {"worker_hosts", "b:1,c:1"}, {"layers", "3,4,2"},
                                              {"insecure", "true"}, {"job_name", job},           {"task_index", index},
                                              {"elastic", "true"},  {"lease_secs", "60"}};
    if (!config_load(&telling.config, NULL, settings, sizeof settings / sizeof *settings, &error) ||
        !identity_create(&telling.identity, &telling.config, (struct member){MEMBER_PS, 0}, &error)) {
        fail_msg("%s", error.text);
    }
    telling_anew();
    for (int i = 0; i < TELLING_PS; i++) {
        fake_member_start(&telling.members[i], &telling.identity.hello, telling_answer);
    }
}

static inline void telling_end(void)
{
    for (int i = 0; i < TELLING_PS; i++) {
        fake_member_stop(&telling.members[i]);
    }
    identity_destroy(&telling.identity);
    config_free(&telling.config);
}

#endif
