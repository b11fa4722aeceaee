/*
 * Heartbeats to the test's own members: their contents and frequency, which answers count, and who learns that a ps is
 * silent. The clock runs by itself, and jumps where a test has no time to wait.
 */
#include "tests/check.h"
#include "worker/remote/heartbeat.h"

#include <errno.h>
#include <math.h>
#include <sys/socket.h>

#include "base/log.h"
#include "ps/store/model.h"
#include "tests/own_clock.h"
#include "tests/system.h"
#include "tests/worker/remote/fake_member.h"
#include "tests/worker/remote/story.h"

enum { SERVERS = 3, WITHOUT_PARAMETERS = 2 };

/* A lease that no member misses, however busy this machine is: half of it is the idle timeout. */
#define LONG_LEASE "50"

static _Atomic(double) jumped_s, stopped_s; /* stopped_s: when the clock was stopped; 0: it runs */

double own_clock_s(void)
{
    const double at_s = atomic_load(&stopped_s);
    return (at_s > 0 ? at_s : system_clock_s()) + atomic_load(&jumped_s);
}

/* What this worker's page shows. */
static atomic_ullong shown_in, shown_out, shown_retries;

void __wrap_observe_traffic(uint64_t bytes_in, uint64_t bytes_out, uint64_t retries);

void __wrap_observe_traffic(uint64_t bytes_in, uint64_t bytes_out, uint64_t retries)
{
    atomic_store(&shown_in, bytes_in);
    atomic_store(&shown_out, bytes_out);
    atomic_store(&shown_retries, retries);
}

/* Likewise: what it waits for. */
static char shown_message[256];

void __wrap_observe_waiting(const char *message);

void __wrap_observe_waiting(const char *message)
{
    snprintf(shown_message, sizeof shown_message, "%s", message);
}

/* And the system: that this process is alive. */
static atomic_int alive;

void __wrap_notify_alive(void);

void __wrap_notify_alive(void)
{
    atomic_fetch_add(&alive, 1);
}

/* No ps can be reached. */
static atomic_bool all_are_absent;
static atomic_int attempts;

int connect(int fd, __CONST_SOCKADDR_ARG address, socklen_t length)
{
    if (atomic_load(&all_are_absent)) {
        atomic_fetch_add(&attempts, 1);
        errno = ECONNREFUSED;
        return -1;
    }
    return SYSTEM(connect)(fd, address, length);
}

static struct server {
    struct fake_member member;
    pthread_mutex_t lock;
    int beats, leaves, pongs, answers;
    bool hangs_up; /* a worker that leaves does not wait for the answer */
    struct message_heartbeat last;
    char message[256], host[256], device[256], goodbye[256];
    struct message_lease lease;
    uint32_t generation;
    bool pings, mute;
    int layers, layered;    /* messages of that kind; the connection of the last of them */
    char units[64];         /* of the last of them */
    const char *says_units; /* sent with each lease; NULL: nothing */
} servers[SERVERS];

static struct bench {
    struct config config;
    struct identity identity;
    struct traffic traffic;
    struct heartbeat *heartbeat;
    int count;
} bench;

static struct hello_identity self;

static bool answer(struct fake_member *member, struct channel *channel)
{
    struct server *server = &servers[member->member.index];
    const struct message_done done = {-1};
    bool good = true;
    pthread_mutex_lock(&server->lock);
    channel->generation = server->generation;
    const int connection = atomic_load(&member->connections);
    if (channel->frame.type == MESSAGE_heartbeat) {
        assert_true(server->layers == 0 || server->layered == connection);
        server->last = channel->message.heartbeat;
        snprintf(server->message, sizeof server->message, "%s", server->last.message);
        snprintf(server->host, sizeof server->host, "%s", server->last.host);
        snprintf(server->device, sizeof server->device, "%s", server->last.device);
        server->beats++;
        if (server->pings) {
            const struct message_ping ping = {77};
            server->pings = false;
            good = fake_member_say(channel, MESSAGE_ping, &ping);
        }
        const struct message_layers layers = {.units = (char *)(uintptr_t)server->says_units};
        good = good && (!server->says_units || fake_member_say(channel, MESSAGE_layers, &layers));
        good = good && (server->mute || fake_member_say(channel, MESSAGE_lease, &server->lease));
        server->answers += !server->mute;
    } else if (channel->frame.type == MESSAGE_layers) {
        assert_int_not_equal(server->layered, connection); /* first on every connection, and once */
        server->layered = connection;
        server->layers++;
        snprintf(server->units, sizeof server->units, "%s", channel->message.layers.units);
    } else if (channel->frame.type == MESSAGE_pong) {
        server->pongs += channel->message.pong.nonce == 77;
    } else if (channel->frame.type == MESSAGE_leave) {
        struct pollfd hangup = {.fd = connection_fd(channel->connection), .events = POLLIN};
        server->leaves++;
        server->hangs_up = poll(&hangup, 1, 200) > 0;
        snprintf(server->goodbye, sizeof server->goodbye, "%s", channel->message.leave.message);
        good = fake_member_say(channel, MESSAGE_done, &done);
    }
    pthread_mutex_unlock(&server->lock);
    return good;
}

static struct server look(int index)
{
    pthread_mutex_lock(&servers[index].lock);
    const struct server seen = servers[index];
    pthread_mutex_unlock(&servers[index].lock);
    return seen;
}

/* Sets this ps's report; returns once it has sent it. */
static void say(int index, uint8_t job_state, uint32_t generation, const char *message)
{
    struct server *server = &servers[index];
    pthread_mutex_lock(&server->lock);
    server->lease.job_state = job_state;
    server->lease.message = message;
    server->generation = generation;
    const int answers = server->answers;
    pthread_mutex_unlock(&server->lock);
    AWAIT(look(index).answers > answers + 1); /* the first of them may have been in flight */
}

/* Listens; nothing runs yet. */
static void begin(int count, const char *lease_s)
{
    char hosts[256] = "";
    struct error error;
    memset(&bench, 0, sizeof bench);
    bench.count = count;
    atomic_store(&jumped_s, 0);
    for (int i = 0; i < count; i++) {
        struct server *server = &servers[i];
        memset(server, 0, sizeof *server);
        pthread_mutex_init(&server->lock, NULL);
        fake_member_listen(&server->member, MEMBER_PS, i);
        server->lease =
            (struct message_lease){.lease_ms = 1000, .job_state = JOB_TRAINING, .test_accuracy = NAN, .message = ""};
        server->generation = 3;
        snprintf(hosts + strlen(hosts), sizeof hosts - strlen(hosts), "%s%s", i > 0 ? "," : "", server->member.host);
    }
    const struct config_setting settings[] = {
        {"insecure", "true"},   {"layers", "6,3"},       {"ps_hosts", hosts},         {"worker_hosts", "127.0.0.1:1"},
        {"job_name", "worker"}, {"lease_secs", lease_s}, {"placement", "round_robin"}};
    listen_in();
    if (!config_load(&bench.config, NULL, settings, 7, &error) ||
        !identity_create(&bench.identity, &bench.config, (struct member){MEMBER_WORKER, 0}, &error)) {
        fail_msg("%s", error.text);
    }
    self = bench.identity.hello;
}

static void start(int index)
{
    fake_member_start(&servers[index].member, &self, answer);
}

static void create(void)
{
    struct error error;
    if (!heartbeat_create(&bench.heartbeat, &bench.config, &bench.identity, &bench.traffic, "an abacus", &error)) {
        fail_msg("%s", error.text);
    }
}

static void begin_all(int count, const char *lease_s)
{
    begin(count, lease_s);
    for (int i = 0; i < count; i++) {
        start(i);
    }
    create();
}

static void begin_hurried(int count, const char *lease_s)
{
    begin_all(count, lease_s);
    heartbeat_wake(bench.heartbeat);
}

static void end(void)
{
    heartbeat_destroy(bench.heartbeat, "bye");
    for (int i = 0; i < bench.count; i++) {
        fake_member_stop(&servers[i].member);
        pthread_mutex_destroy(&servers[i].lock);
    }
    identity_destroy(&bench.identity);
    config_free(&bench.config);
    heard();
}

/* The worker's state, in every beat to every ps; at the end a goodbye. */
TEST(what_a_beat_says)
{
    char host[256] = "";
    struct job_status job;
    gethostname(host, sizeof host - 1);
    begin_all(2, LONG_LEASE);
    for (int i = 0; i < 2; i++) {
        AWAIT(look(i).beats >= 1);
        assert_string_equal(look(i).host, host);
        assert_string_equal(look(i).device, "an abacus");
    }
    atomic_store(&bench.traffic.retries, 5);
    heartbeat_set_message(bench.heartbeat, "counts");
    assert_string_equal(shown_message, "counts");
    heartbeat_set_vitals(bench.heartbeat, &(struct vitals){.state = STATE_TRAINING,
                                                           .global_step = 40,
                                                           .local_step = 20,
                                                           .steps_per_s = 2.5f,
                                                           .loss = 0.25f,
                                                           .staleness = 3});
    for (int i = 0; i < 2; i++) {
        AWAIT(look(i).last.global_step == 40 && look(i).last.bytes_in > 0);
        const struct message_heartbeat last = look(i).last;
        assert_int_equal(last.state, STATE_TRAINING);
        assert_int_equal(last.local_step, 20);
        assert_true(last.steps_per_s == 2.5f && last.loss == 0.25f);
        assert_int_equal(last.staleness, 3);
        assert_int_equal(last.retries, 5);
        assert_true(last.bytes_out > last.bytes_in); /* beats are larger than leases */
        assert_true(last.memory_bytes > 1 << 20);    /* of this very process */
        assert_string_equal(look(i).message, "counts");
    }
    assert_true(atomic_load(&shown_in) >= look(0).last.bytes_in && atomic_load(&shown_in) < atomic_load(&shown_out));
    assert_int_equal(atomic_load(&shown_retries), 5);
    heartbeat_job_status(bench.heartbeat, &job);
    assert_true(job.known && !job.over && !job.refused);
    assert_false(heartbeat_is_over(bench.heartbeat));
    atomic_store(&stopped_s, system_clock_s()); /* a slow answer to its goodbye is no reason to hang up */
    heartbeat_destroy(bench.heartbeat, "bye");
    bench.heartbeat = NULL;
    atomic_store(&stopped_s, 0);
    end();
    for (int i = 0; i < 2; i++) {
        assert_int_equal(servers[i].leaves, 1);
        assert_string_equal(servers[i].goodbye, "bye");
        assert_false(servers[i].hangs_up);
        assert_int_equal(atomic_load(&servers[i].member.connections), 1);
    }
}

/* The first beat of a worker that has not joined. */
TEST(before_joining)
{
    struct job_status job;
    begin(1, "0.6");
    create();
    heartbeat_job_status(bench.heartbeat, &job);
    assert_true(!job.known && isnan(job.test_accuracy));
    start(0); /* it is tried again and again */
    AWAIT(look(0).beats >= 1);
    assert_int_equal(look(0).last.state, STATE_STARTING);
    assert_int_equal(look(0).last.global_step, -1);
    assert_true(isnan(look(0).last.loss));
    assert_string_equal(look(0).message, "");
    end();
}

/* Three per lease, at least one each second, and many after a request to poll faster. */
TEST(how_often)
{
    double begun_s = story_s();
    begin_all(1, "0.6");
    AWAIT(look(0).beats >= 4);
    assert_true(story_s() - begun_s > 0.55); /* three intervals of 0.2 s */
    end();
    begun_s = story_s();
    begin_all(1, "60");
    AWAIT(look(0).beats >= 2);
    assert_in_range((int)(1e3 * (story_s() - begun_s)), 900, 15000);
    heartbeat_wake(bench.heartbeat);
    begun_s = story_s();
    AWAIT(look(0).beats >= 42);
    assert_true(story_s() - begun_s < 30);
    assert_true(story_s() - begun_s > 0.5);
    end();
}

/* Until a ps that can't be reached has been tried five times more, when tries have become rare. */
static double tries_last_s(void)
{
    begin(1, "0.6");
    atomic_store(&attempts, 0);
    atomic_store(&all_are_absent, true);
    create();
    AWAIT(atomic_load(&attempts) >= 8);
    const double begun_s = story_s();
    AWAIT(atomic_load(&attempts) >= 13);
    const double took_s = story_s() - begun_s;
    atomic_store(&all_are_absent, false);
    end();
    return took_s;
}

/* A ps may know the worker from another link and count its lease: it is tried as often as beats are due. */
TEST(an_absent_ps)
{
    for (int tries = 0; tries_last_s() > 2;
         tries++) { /* five delays of 0.1 to 0.2 s; those of other links take 0.5 to 1 s */
        assert_in_range(tries, 0, 30);
    }
}

/* From a beat, with a second until the next one, to two more at the faster rate. */
static double hurries_s(void)
{
    begin_all(1, "60");
    AWAIT(look(0).beats >= 1);
    const double begun_s = story_s();
    heartbeat_wake(bench.heartbeat);
    AWAIT(look(0).beats >= 3);
    const double took_s = story_s() - begun_s;
    end();
    return took_s;
}

/* From a beat, with a second until the next one, to the end. */
static double leaves_s(void)
{
    begin_all(1, "60");
    AWAIT(look(0).answers >= 1);
    const double begun_s = story_s();
    heartbeat_destroy(bench.heartbeat, "bye");
    bench.heartbeat = NULL;
    const double took_s = story_s() - begun_s;
    end();
    return took_s;
}

/* Neither a hurry nor the end waits for the next beat; on a busy machine that shows now and then. */
TEST(what_begins_at_once)
{
    for (int tries = 0; hurries_s() > 0.6; tries++) {
        assert_in_range(tries, 0, 30);
    }
    for (int tries = 0; leaves_s() > 0.6; tries++) {
        assert_in_range(tries, 0, 30);
    }
}

/* A worker that computes for long answers pings anyway. */
TEST(pings)
{
    begin(1, LONG_LEASE);
    servers[0].pings = true;
    start(0);
    create();
    heartbeat_wake(bench.heartbeat);
    AWAIT(look(0).pongs == 1);
    const int before = atomic_load(&alive);
    AWAIT(look(0).beats >= 3 && atomic_load(&alive) > before);
    end();
}

/* The first ps that knows of the end is believed, whatever others report later. */
TEST(the_end_of_the_job)
{
    struct job_status job;
    begin_hurried(2, LONG_LEASE);
    pthread_mutex_lock(&servers[0].lock);
    servers[0].lease.test_accuracy = 0.5f;
    pthread_mutex_unlock(&servers[0].lock);
    say(0, JOB_DONE, 3, "it is done");
    AWAIT(heartbeat_is_over(bench.heartbeat));
    say(1, JOB_FAILED, 3, "it failed");
    heartbeat_job_status(bench.heartbeat, &job);
    assert_true(job.over && !job.failed && !job.refused && job.test_accuracy == 0.5f);
    assert_string_equal(job.message, "it is done");
    assert_false(heartbeat_is_fenced(bench.heartbeat));
    end();
    begin_hurried(1, LONG_LEASE);
    say(0, JOB_FAILED, 3, "it failed");
    AWAIT(heartbeat_is_over(bench.heartbeat));
    heartbeat_job_status(bench.heartbeat, &job);
    assert_true(job.over && job.failed);
    assert_string_equal(job.message, "it failed");
    end();
}

/* A refused process is fenced, for good, and does not ask again; others still get its heartbeats. */
TEST(refused)
{
    struct job_status job;
    begin(2, LONG_LEASE);
    atomic_store(&servers[1].member.refusal, REFUSAL_MEMBER);
    start(0);
    start(1);
    create();
    heartbeat_wake(bench.heartbeat);
    AWAIT(heartbeat_is_fenced(bench.heartbeat));
    assert_true(heartbeat_is_over(bench.heartbeat));
    heartbeat_job_status(bench.heartbeat, &job);
    assert_true(job.refused && !job.over);
    assert_non_null(strstr(job.message, "as the test wants"));
    const int before = look(0).beats, asked = atomic_load(&servers[1].member.connections);
    AWAIT(look(0).beats > before + 4);
    assert_int_equal(atomic_load(&servers[1].member.connections), asked);
    end();
}

/* Layers that follow from data are sent to every ps on each connection, and compared with worker 0's. */
TEST(layers)
{
    struct job_status job;
    char units[MODEL_UNITS_TEXT];
    begin_hurried(1, LONG_LEASE);
    AWAIT(look(0).beats >= 3);
    assert_int_equal(look(0).layers, 0); /* they are in the config */
    end();
    begin(2, LONG_LEASE);
    bench.config.model.hidden_count = 0;
    model_units_text(&bench.config.model, units);
    servers[1].says_units = units;
    start(0);
    start(1);
    create();
    heartbeat_wake(bench.heartbeat);
    for (int i = 0; i < 2; i++) {
        AWAIT(look(i).beats >= 3);
        assert_true(look(i).layers >= 1);
        assert_string_equal(look(i).units, units);
    }
    const int layers_before = look(0).layers;
    atomic_store(&servers[0].member.cut, true);
    AWAIT(look(0).layers > layers_before);
    assert_false(heartbeat_is_over(bench.heartbeat));
    pthread_mutex_lock(&servers[1].lock);
    servers[1].says_units = "7,3";
    pthread_mutex_unlock(&servers[1].lock);
    AWAIT(heartbeat_is_fenced(bench.heartbeat));
    heartbeat_job_status(bench.heartbeat, &job);
    assert_true(job.refused);
    assert_non_null(strstr(job.message, "ps 1 (127.0.0.1:"));
    assert_non_null(strstr(job.message, "has layers 7,3 from worker 0's data, but the data here need "));
    assert_non_null(strstr(job.message, units));
    end();
}

static bool needs(uint32_t generation, double since_s, char why[256])
{
    why[0] = '\0';
    return heartbeat_needs_rejoin(bench.heartbeat, generation, since_s, why);
}

/* A ps without a model, or with another one, or another process than before; but nothing it reported earlier counts. */
TEST(when_to_join_again)
{
    char why[256];
    begin_hurried(2, LONG_LEASE);
    say(0, JOB_TRAINING, 3, "");
    say(1, JOB_TRAINING, 3, "");
    assert_false(needs(3, 0, why));
    assert_false(needs(4, 0, why));
    assert_true(needs(2, 0, why));
    assert_non_null(strstr(why, "ps 0 (127.0.0.1:"));
    assert_non_null(strstr(why, "has generation 3 of the model"));
    assert_false(needs(2, clock_monotonic_s() + 100, why));
    const uint8_t states[] = {JOB_WAITING, JOB_RESTORING};
    for (int i = 0; i < 2; i++) {
        say(1, states[i], 3, "");
        AWAIT(needs(3, 0, why));
        assert_non_null(strstr(why, "ps 1 (127.0.0.1:"));
        assert_non_null(strstr(why, "has no model"));
    }
    say(1, JOB_TRAINING, 3, "");
    AWAIT(!needs(3, 0, why));
    const double since_s = clock_monotonic_s();
    atomic_store(&servers[1].member.incarnation, 999); /* a process with the same number */
    atomic_store(&servers[1].member.cut, true);
    AWAIT(needs(3, since_s, why));
    assert_non_null(strstr(why, "ps 1 (127.0.0.1:"));
    assert_non_null(strstr(why, "is another process now"));
    assert_false(needs(3, clock_monotonic_s(), why));
    say(1, JOB_TRAINING, 3, "");
    const double joined_s = clock_monotonic_s();
    const int connections = atomic_load(&servers[1].member.connections);
    atomic_store(&servers[1].member.cut, true); /* the same one, by another connection */
    AWAIT(atomic_load(&servers[1].member.connections) > connections);
    say(1, JOB_TRAINING, 3, "");
    assert_false(needs(3, joined_s, why));
    say(1, JOB_DONE, 5, "");
    AWAIT(heartbeat_is_over(bench.heartbeat));
    assert_false(needs(3, 0, why)); /* it is over */
    end();
}

/* A connection on which nothing is answered is dead, whatever the system believes. */
TEST(unanswered)
{
    begin(1, LONG_LEASE);
    servers[0].mute = true;
    start(0);
    create();
    AWAIT(look(0).beats >= 2);
    assert_int_equal(atomic_load(&servers[0].member.connections), 1);
    assert_int_equal(atomic_load(&bench.traffic.retries), 0);
    atomic_store(&jumped_s, atomic_load(&jumped_s) + 26);
    AWAIT(atomic_load(&servers[0].member.connections) >= 2);
    assert_true(atomic_load(&bench.traffic.retries) >= 1);
    const int connections = atomic_load(&servers[0].member.connections);
    pthread_mutex_lock(&servers[0].lock);
    servers[0].mute = false;
    pthread_mutex_unlock(&servers[0].lock);
    AWAIT(look(0).answers >= 2); /* the new one is as good as any */
    assert_in_range(atomic_load(&servers[0].member.connections), connections, connections + 1);
    end();
}

/* The clock jumps, in parts of a lease, and ps 0 keeps answering. */
static void pass(double seconds)
{
    while (seconds > 0) {
        const int answers = look(0).answers;
        AWAIT(look(0).answers > answers + 2);
        atomic_store(&jumped_s, atomic_load(&jumped_s) + fmin(seconds, 20));
        seconds -= 20;
    }
    const int answers = look(0).answers;
    AWAIT(look(0).answers > answers + 3);
}

/* If one ps is silent while others are not, they are told: nobody should wait for this worker's gradient. */
TEST(a_silent_ps)
{
    begin(2, LONG_LEASE);
    atomic_store(&servers[1].member.absent, true);
    start(0);
    start(1);
    create();
    heartbeat_wake(bench.heartbeat);
    AWAIT(look(0).answers >= 1);
    heartbeat_set_vitals(bench.heartbeat, &(struct vitals){.state = STATE_TRAINING, .global_step = 4, .loss = NAN});
    pass(40);
    assert_int_equal(look(0).last.state, STATE_TRAINING);
    pass(20);
    AWAIT(look(0).last.state == STATE_LOST);
    assert_non_null(strstr(look(0).message, "has not reached ps 1 (127.0.0.1:"));
    static const char since[] = ") for ";
    const double silent_s = strtod(strstr(look(0).message, since) + strlen(since), NULL);
    assert_true(silent_s >= 52 && silent_s < 52 + 60);
    assert_int_equal(look(0).last.global_step, 4);
    assert_int_equal(times(heard_so_far(), "is unreachable for "), 1);
    pass(40);
    assert_int_equal(times(heard_so_far(), "is unreachable"), 1);
    assert_int_equal(times(heard_so_far(), "is reachable again"), 0);
    atomic_store(&servers[1].member.absent, false);
    AWAIT(look(0).last.state == STATE_TRAINING);
    assert_int_equal(times(heard_so_far(), "is reachable again; resuming"), 1);
    end();
}

/* Of two that are silent the one that was named first stays so: who reads it is not to think that it is back. */
TEST(two_silent_ps)
{
    begin(SERVERS, LONG_LEASE);
    atomic_store(&servers[2].member.absent, true);
    for (int i = 0; i < SERVERS; i++) {
        start(i);
    }
    create(); /* and to join takes all of them */
    heartbeat_wake(bench.heartbeat);
    AWAIT(look(0).answers >= 1 && look(1).answers >= 1);
    pass(60);
    AWAIT(look(0).last.state == STATE_LOST);
    assert_non_null(strstr(look(0).message, "has not reached ps 2 ("));
    atomic_store(&servers[1].member.absent, true);
    atomic_store(&servers[1].member.cut, true);
    pass(80);
    assert_non_null(strstr(look(0).message, "has not reached ps 2 ("));
    assert_int_equal(times(heard_so_far(), "is unreachable"), 1);
    atomic_store(&servers[2].member.absent, false);
    AWAIT(strstr(look(0).message, "has not reached ps 1 ("));
    assert_int_equal(times(heard_so_far(), "is reachable again"), 0); /* there is another one still */
    end();
}

/* A ps without parameters is needed to join, but not to train; and where none is heard of, none is silent. */
TEST(a_ps_that_is_not_needed)
{
    begin(SERVERS, LONG_LEASE);
    atomic_store(&servers[WITHOUT_PARAMETERS].member.absent, true);
    start(0);
    start(1);
    start(2);
    create();
    heartbeat_wake(bench.heartbeat);
    AWAIT(look(0).answers >= 1 && look(1).answers >= 1);
    heartbeat_set_vitals(bench.heartbeat, &(struct vitals){.state = STATE_TRAINING, .global_step = 4, .loss = NAN});
    pass(80);
    assert_int_equal(look(0).last.state, STATE_TRAINING);
    heartbeat_set_vitals(bench.heartbeat, &(struct vitals){.state = STATE_STARTING, .global_step = 4, .loss = NAN});
    AWAIT(look(0).last.state == STATE_LOST);
    assert_non_null(strstr(look(0).message, "has not reached ps 2 ("));
    end();
    begin_all(2, LONG_LEASE);
    heartbeat_wake(bench.heartbeat);
    heartbeat_set_vitals(bench.heartbeat, &(struct vitals){.state = STATE_TRAINING, .global_step = 4, .loss = NAN});
    AWAIT(look(0).answers >= 1 && look(1).answers >= 1);
    atomic_store(&jumped_s, 100); /* this process was stopped, say */
    const int answers = look(0).answers;
    AWAIT(look(0).answers > answers + 10);
    assert_int_equal(look(0).last.state, STATE_TRAINING);
    assert_int_equal(times(heard_so_far(), "heard of"), 0);
    end();
}

int main(void)
{
    return check_run(NULL, NULL);
}
