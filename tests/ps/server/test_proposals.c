/* ps 0 as the coordinator of rollouts: which proposals it accepts, and how programs are received and sent. */
#include <elf.h>

#include "tests/check.h"

#include "tests/ps/server/leading.h"
#include "tests/one_operator.h"

/* --- Proposals --- */

TEST_WITH(a_proposal_is_on_disk_before_anybody_hears_of_it, enter, leave)
{
    uint8_t *kept;
    size_t size;
    struct error error;
    (void)state;
    begin_with_all();
    sign(1, 0.5, 2, 0.25, "", secret_key);
    accepted();
    assert_true(checked_read(path_of("config.json.d/00000002.manifest"), MANIFEST_MAX_BYTES, &kept, &size, &error));
    assert_true(size == proposal_size && memcmp(kept, proposal, size) == 0);
    free(kept);
    audited("\"member\":\"ps 0\",\"who\":\"me@desk\",\"what\":\"propose\",\"version\":2,\"outcome\":\"begun\"");
    assert_int_equal(report(1), 0); /* its state is not stored yet: a restarted ps 0 would know nothing of it */
    assert_int_equal(order, ORDER_NOTHING);
    assert_int_equal(told.state, ROLLOUT_IDLE);
    assert_int_equal(report(PS_0), 0);
    assert_int_equal(order, ORDER_NOTHING);
    assert_int_equal(status()->state, ROLLOUT_STAGING); /* operators want to know that */
    coordinator_tick(coordinator);
    assert_true(there_is("config.json.d/rollout.json"));
    audited("\"who\":\"me@desk\",\"what\":\"staging\",\"version\":2");
    assert_int_equal(report(1), proposal_size);
    const uint8_t *bytes = manifest_told(1, &size);
    assert_true(size == proposal_size && memcmp(bytes, proposal, size) == 0);
    report(1);
    assert_int_equal(order, ORDER_STAGE);
    assert_int_equal(told.state, ROLLOUT_STAGING);
    assert_int_equal(told.target, 2);
    assert_int_equal(told.version, 1);
    assert_int_equal(told.highest, 2);
    fakes[1].target = 2; /* it has it by now */
    assert_int_equal(report(1), 0);
    assert_int_equal(order, ORDER_STAGE);
    assert_int_equal(report(PS_0), proposal_size);
    assert_int_equal(order, ORDER_STAGE);
    end();
}

TEST_WITH(what_it_refuses, enter, leave)
{
    begin(0, text_of(1, 0.5, ""));
    operator_comes();
    sign(1, 0.5, 2, 0.25, "", secret_key);
    come(0, MEMBER_WORKER, 0, false);
    refused("the job is not training now");
    restore(100);
    sign(1, 0.5, 2, 0.25, "", strange_key);
    refused("not signed by the operator key");
    fleet = "south";
    sign(1, 0.5, 2, 0.25, "", secret_key);
    refused("south");
    fleet = "north";
    sign(1, 0.125, 2, 0.25, "", secret_key);
    refused("made for another config than the one in force here");
    sign(2, 0.5, 3, 0.25, "", secret_key);
    refused("version");
    local_keys = "{\"security\":{\"operator_key\":\"/tmp/mine.pub\"}}";
    sign(1, 0.5, 2, 0.25, "", secret_key);
    refused("security.operator_key");
    local_keys = "";
    assert_int_equal(coordinator->rollout.state, ROLLOUT_IDLE);
    assert_false(there_is("config.json.d/rollout.json"));
    end();
}

/* What can be known here of the change itself is known before anybody stages it. */
TEST_WITH(what_would_lead_nowhere_is_refused, enter, leave)
{
    static const char fewer[] = "\"127.0.0.1:2\",\"127.0.0.1:4\"",
                      all[] = "\"127.0.0.1:2\",\"127.0.0.1:3\",\"127.0.0.1:4\"";
    (void)state;
    begin_with_all();
    sign_texts(1, job_of(1, 0.5, ""), 2, edited(job_of(2, 0.5, ""), all, fewer), secret_key);
    refused("cluster.worker_hosts: entry 1 is 127.0.0.1:3 and would be 127.0.0.1:4, which is worker 2 now");
    sign_texts(1, job_of(1, 0.5, ""), 2, edited(job_of(2, 0.5, ""), "\"train_steps\":\"auto\"", "\"train_steps\":102"),
               secret_key);
    refused("the job would be over after step 102");
    sign_texts(1, job_of(1, 0.5, ""), 2, edited(job_of(2, 0.5, ""), "\"sgd\"", "\"none\""), secret_key);
    refused("train.optimizer");
    char *before = edited(job_of(1, 0.5, ""), "\"sgd\"", "\"none\"");
    sign_texts(1, before, 2, job_of(2, 0.5, ""), secret_key);
    struct error error;
    struct manifest manifest;
    assert_true(manifest_decode(&manifest, proposal, proposal_size, only(public_key), &error));
    strcpy(agent.digest, manifest.fallback.digest);
    refused("train.optimizer");
    assert_int_equal(coordinator->rollout.state, ROLLOUT_IDLE);
    end();
}

/* It would have restarted for a wait, there or back. */
TEST_WITH(a_job_that_would_wait_is_not_restarted, enter, leave)
{
    begin_with_all();
    serving.now_s += ROLLOUT_IDLE_TIMEOUT_S;
    for (int i = 0; i < WORKERS + 2; i++) {
        if (i != 2) {
            report(i);
        }
    }
    sign_texts(1, job_of(1, 0.5, ""), 2,
               edited(job_of(2, 0.5, ",\"issync\":true"), "\"min_workers\":1", "\"min_workers\":3"), secret_key);
    refused("worker 2 is off, and the job would restart and wait for 3 workers (min_workers), of which 2 can come");
    sign(1, 0.5, 2, 0.5, ",\"issync\":true", secret_key);
    serving.server.job.config.cluster.min_workers = 3;
    refused("wait for 3 workers");
    serving.server.job.config.cluster.min_workers = 1;
    may_lose = true;
    sign(1, 0.5, 2, 0.5, ",\"issync\":true", secret_key);
    may_lose = false;
    accepted();
    assert_true(coordinator->rollout.may_lose);
    end();
}

TEST_WITH(healthy_seconds_are_a_day_at_most, enter, leave)
{
    static const struct {
        double healthy_s;
        bool good;
    } cases[] = {{-0.5, false}, {86400.5, false}, {NAN, false}, {INFINITY, false}, {0, true}, {86400, true}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin(0, text_of(1, 0.5, ""));
        operator_comes();
        come(0, MEMBER_WORKER, 0, false);
        restore(100);
        sign(1, 0.5, 2 + i, 0.25, "", secret_key);
        if (cases[i].good) {
            propose_for(cases[i].healthy_s);
            assert_int_equal(serving.sessions[OPERATOR].client.frame.type, MESSAGE_done);
            assert_true(coordinator->rollout.healthy_s == cases[i].healthy_s);
        } else {
            propose_for(cases[i].healthy_s);
            refuses(&serving.sessions[OPERATOR], "healthy_secs must be from 0 to 86400, a day");
            assert_int_equal(coordinator->rollout.state, ROLLOUT_IDLE);
        }
        end();
    }
}

/* Refusals are recorded, with the signer's name, but within limits: they cost the sender nothing. */
TEST_WITH(refusals_are_on_record, enter, leave)
{
    begin(0, text_of(1, 0.5, ""));
    operator_comes();
    come(0, MEMBER_WORKER, 0, false);
    restore(100);
    sign(1, 0.125, 2, 0.25, "", secret_key);
    refused("another config");
    audited("\"who\":\"me@desk\",\"what\":\"propose\",\"version\":2,\"outcome\":\"the manifest was made for");
    sign(1, 0.5, 2, 0.25, "", strange_key);
    refused("not signed by the operator key");
    audited("\"who\":\"unknown\",\"what\":\"propose\",\"version\":0");
    word(false, 2, "north", 0, strange_key);
    refuses(&serving.sessions[OPERATOR], "the abort");
    audited("\"who\":\"unknown\",\"what\":\"abort\",\"version\":0");
    author = her = "x";
    sign(1, 0.125, 2, 0.25, "", secret_key);
    refused("another config");
    audited("\"who\":\"x\",\"what\":\"propose\"");
    word(true, 2, "north", 0, secret_key);
    author = "me@desk";
    her = "she@desk";
    audited("\"who\":\"x\",\"what\":\"resume\",\"version\":2");
    sign(1, 0.5, 2, 0.25, "", strange_key);
    for (int i = 0; i < 20; i++) {
        refused("not signed by the operator key");
    }
    int lines = 0;
    for (const char *at = audit(); (at = strchr(at, '\n')); at++) {
        lines++;
    }
    assert_in_range(lines, 10, 12);
    serving.now_s += 61;
    refused("not signed by the operator key");
    audited("\"left_out\":");
    end();
}

TEST_WITH(one_at_a_time, enter, leave)
{
    begin_with_all();
    coordinator->proposing = true; /* another operator's, on another connection */
    sign(1, 0.5, 2, 0.25, "", secret_key);
    refused("another proposal is being checked: try again");
    assert_true(coordinator->proposing);
    assert_false(there_is("config.json.d/00000002.manifest"));
    coordinator->proposing = false;
    sign(1, 0.125, 2, 0.25, "", secret_key);
    refused("another config");
    sign(1, 0.5, 2, 0.25, "", secret_key);
    accepted(); /* a refused one is no longer in the way */
    sign(1, 0.5, 2, 0.125, "", secret_key);
    refused("version"); /* that number is used up */
    sign(1, 0.5, 3, 0.125, "", secret_key);
    refused("the rollout of version 2 is in progress");
    sign(1, 0.5, 2, 0.25, "", secret_key);
    word(false, 2, "north", 0, secret_key); /* still of the one under way */
    assert_int_equal(serving.sessions[OPERATOR].client.frame.type, MESSAGE_done);
    end();
}

TEST_WITH(who_can_not_lead, enter, leave)
{
    begin(1, text_of(1, 0.5, ""));
    operator_comes();
    come(1, MEMBER_WORKER, 1, true);
    sign(1, 0.5, 2, 0.25, "", secret_key);
    refused("rollouts are led by ps 0");
    word(false, 2, "north", 0, secret_key);
    refuses(&serving.sessions[OPERATOR], "rollouts are led by ps 0");
    const struct message_report says = report_of(1);
    ask(&serving.sessions[1], MESSAGE_report, &says, NULL, 0);
    refuses(&serving.sessions[1], "rollouts are led by ps 0");
    assert_null(agent.options.ask); /* its agent asks ps 0 */
    assert_int_equal(agent.options.who.index, 1);
    end();
    begin(0, NULL); /* without a file versions can't be stored, but members may ask */
    operator_comes();
    all_come();
    refused("ps 0 runs without a config file");
    coordinator_tick(coordinator);
    report(1);
    assert_int_equal(order, ORDER_NOTHING);
    assert_non_null(agent.options.ask);
    assert_non_null(status()->job);
    assert_string_equal(status()->local, "");
    end();
}

/* --- Programs --- */

enum { PROGRAM_BYTES = 300000 };

static uint8_t program[PROGRAM_BYTES];

/* Headers of a program, followed by noise. */
static void make_program(void)
{
    Elf64_Ehdr head = {.e_type = ET_DYN,
                       .e_machine = EM_X86_64,
                       .e_phoff = sizeof head,
                       .e_phentsize = sizeof(Elf64_Phdr),
                       .e_phnum = 1};
    const Elf64_Phdr segment = {.p_type = PT_LOAD, .p_filesz = PROGRAM_BYTES};
    uint32_t seed = 1;
    memcpy(head.e_ident, ELFMAG, SELFMAG);
    head.e_ident[EI_CLASS] = ELFCLASS64;
    head.e_ident[EI_DATA] = ELFDATA2LSB;
    for (size_t i = 0; i < PROGRAM_BYTES; i++) {
        seed = seed * 1664525 + 1013904223;
        program[i] = (uint8_t)(seed >> 24);
    }
    memcpy(program, &head, sizeof head);
    memcpy(program + sizeof head, &segment, sizeof segment);
    programs = (struct manifest_programs){.count = 1, .protocol = 1, .items = {{.size = PROGRAM_BYTES}}};
    strcpy(programs.items[0].architecture, "x86_64");
    checked_digest(program, PROGRAM_BYTES, programs.items[0].digest);
}

static uint16_t offer(const char *digest)
{
    const struct message_offer_program message = {.digest = (char *)(uintptr_t)digest};
    return ask(&serving.sessions[OPERATOR], MESSAGE_offer_program, &message, proposal, proposal_size);
}

/* Sends bytes from `from` on as those at `offset`; returns how much ps 0 has then. */
static uint64_t put_at(const char *digest, uint64_t offset, size_t from, size_t size)
{
    const struct message_put_program message = {.digest = (char *)(uintptr_t)digest, .offset = offset};
    struct serving_session *one = &serving.sessions[OPERATOR];
    const uint16_t type = ask(one, MESSAGE_put_program, &message, program + from, size);
    return type == MESSAGE_program ? one->client.message.program.offset : UINT64_MAX;
}

/* What a member receives from that offset on; its size, or -1. */
static int64_t get_from(const char *digest, uint64_t offset)
{
    const uint8_t *bytes;
    struct serving_session *one = &serving.sessions[1];
    const struct message_get_program message = {.digest = (char *)(uintptr_t)digest, .offset = offset};
    if (ask(one, MESSAGE_get_program, &message, NULL, 0) != MESSAGE_program) {
        return -1;
    }
    assert_int_equal(one->client.message.program.offset, offset);
    const size_t size = bulk_of(one, &bytes);
    assert_memory_equal(bytes, program + offset, size);
    return (int64_t)size;
}

static void bring(void)
{
    const char *digest = programs.items[0].digest;
    assert_int_equal(offer(digest), MESSAGE_program);
    for (uint64_t there = 0; there < PROGRAM_BYTES;) {
        const uint64_t left = PROGRAM_BYTES - there;
        there = put_at(digest, there, there, left < 100000 ? left : 100000);
        assert_true(there <= PROGRAM_BYTES);
    }
}

TEST_WITH(an_operator_brings_a_program, enter, leave)
{
    make_program();
    const char *digest = programs.items[0].digest;
    begin(0, text_of(1, 0.5, ""));
    struct serving_session *one = operator_comes();
    all_come();
    assert_int_equal(put_at(digest, 0, 0, 1000), UINT64_MAX); /* nobody has signed it */
    refuses(one, "that program was not offered");
    assert_int_equal(put_at("", 0, 0, 1000), UINT64_MAX);
    refuses(one, "that program was not offered");
    sign(1, 0.5, 2, 0.5, "", strange_key);
    assert_int_equal(offer(digest), MESSAGE_error);
    refuses(one, "not signed by the operator key");
    audited("\"what\":\"program\"");
    sign(1, 0.5, 2, 0.5, "", secret_key);
    assert_int_equal(offer("abcdef"), MESSAGE_error);
    refuses(one, "the manifest names no program abcdef");
    refused("the program for x86_64");
    assert_int_equal(offer(digest), MESSAGE_program);
    assert_int_equal(one->client.message.program.offset, 0);
    assert_int_equal(put_at(digest, 0, 0, 100000), 100000);
    assert_int_equal(put_at(digest, 50000, 50000, 100000), 100000); /* the wrong offset: dropped, and reported */
    assert_int_equal(put_at("abcdef", 100000, 100000, 1000), UINT64_MAX);
    assert_int_equal(offer(digest), MESSAGE_program); /* after a broken connection */
    assert_int_equal(one->client.message.program.offset, 100000);
    assert_int_equal(put_at(digest, 100000, 100000, 1), 100001);
    assert_int_equal(put_at(digest, 100001, 100001, 199999), PROGRAM_BYTES);
    assert_int_equal(put_at(digest, 5, 5, 10), PROGRAM_BYTES); /* it is complete */
    assert_int_equal(put_at(digest, 0, 0, 10), PROGRAM_BYTES);
    assert_int_equal(offer(digest), MESSAGE_program);
    assert_int_equal(one->client.message.program.offset, PROGRAM_BYTES);
    assert_true(programs_have_whole(&coordinator->programs, digest));
    assert_int_equal(get_from(digest, 0), -1); /* not rolled out yet */
    refuses(&serving.sessions[1], "no such program is rolled out");
    accepted();
    sign(1, 0.5, 2, 0.5, "", secret_key);
    assert_int_equal(offer(digest), MESSAGE_error); /* that version number is used up */
    refuses(one, "version");
    end();
    programs.count = 0;
}

TEST_WITH(members_take_a_program_piece_by_piece, enter, leave)
{
    make_program();
    const char *digest = programs.items[0].digest;
    begin_with_all();
    sign(1, 0.5, 2, 0.5, "", secret_key);
    bring();
    accepted();
    pass(0.25);
    assert_int_equal(get_from("abcdef", 0), -1);
    assert_int_equal(get_from(digest, 0), PROGRAM_CHUNK);
    assert_int_equal(get_from(digest, PROGRAM_CHUNK), PROGRAM_CHUNK);
    assert_int_equal(get_from(digest, 2 * PROGRAM_CHUNK), PROGRAM_BYTES - 2 * PROGRAM_CHUNK);
    assert_int_equal(get_from(digest, PROGRAM_BYTES - 1), 1);
    assert_int_equal(get_from(digest, PROGRAM_BYTES), -1);
    for (int i = 0; i < 150; i++) { /* staging takes as long as the transfer */
        pass(1);
        assert_int_equal(get_from(digest, 0), PROGRAM_CHUNK);
    }
    assert_int_equal(coordinator->rollout.state, ROLLOUT_STAGING);
    for (int i = 0; i < 62; i++) {
        pass(1);
    }
    assert_int_equal(coordinator->rollout.state, ROLLOUT_IDLE);
    assert_int_equal(status()->outcome, OUTCOME_NOT_BEGUN);
    end();
    programs.count = 0;
}

/* The one that the version in force runs in: members that are behind need it. */
TEST_WITH(a_former_program_is_sent_too, enter, leave)
{
    struct error error;
    (void)state;
    make_program();
    const char *digest = programs.items[0].digest;
    begin_with_all();
    sign(1, 0.5, 2, 0.5, "", secret_key);
    bring();
    assert_true(coordinator_store_manifest(coordinator, 2, proposal, proposal_size, &error));
    programs.count = 0;
    is_in(2, 0.5);
    everybody(PHASE_NONE, 0, 2);
    pass(0.25);
    assert_int_equal(get_from(digest, 0), -1);
    sign(2, 0.5, 3, 0.25, "", secret_key);
    accepted();
    assert_int_equal(get_from(digest, 0), PROGRAM_CHUNK);
    pass(0.25);
    assert_true(lead(&error));
    assert_int_equal(get_from(digest, 0), PROGRAM_CHUNK);
    sign(2, 0.5, 4, 0.25, "", secret_key);
    coordinator->rollout.state = ROLLOUT_STAGING;
    refused("the rollout of version 3 is in progress"); /* and forgets what it has read for it */
    end();
}

/* A leader that is back in the new program goes on, by the plan; in the former one it goes back. */
TEST_WITH(a_leader_that_restarts_in_the_new_program_goes_on, enter, leave)
{
    struct error error;
    (void)state;
    make_program();
    programs.waves = (struct rollout_waves){.count = 1, .items = {2}, .budget = 1};
    begin_with_all();
    sign(1, 0.5, 2, 0.5, "", secret_key);
    bring();
    accepted();
    everybody(PHASE_STAGED, 2, 1);
    pass(0.25);
    assert_int_equal(coordinator->rollout.state, ROLLOUT_SWITCHING);
    assert_int_equal(coordinator->rollout.wave, 2);
    serving.config.fleet.version = 2;
    assert_true(lead(&error));
    assert_int_equal(coordinator->rollout.state, ROLLOUT_SWITCHING);
    assert_int_equal(coordinator->rollout.ps_turn, PS_RESTARTS);
    assert_true(coordinator->rollout.brings_program);
    assert_true(coordinator->rollout.waves.count == 1 && coordinator->rollout.waves.items[0] == 2);
    serving.config.fleet.version = 1;
    assert_true(lead(&error));
    assert_int_equal(coordinator->rollout.state, ROLLOUT_GOING_BACK);
    end();
    programs.count = 0;
    programs.waves.count = 0;
}

/* All members together get a limited rate, and one that must wait is told for how long. */
TEST_WITH(programs_leave_room_on_the_line, enter, leave)
{
    make_program();
    programs.rate_kib = 64;
    const char *digest = programs.items[0].digest;
    struct serving_session *member = &serving.sessions[1];
    begin_with_all();
    sign(1, 0.5, 2, 0.5, "", secret_key);
    bring();
    accepted();
    pass(0.25);
    assert_int_equal(get_from(digest, 0), 64 << 10); /* a second's */
    assert_int_equal(member->client.message.program.wait_ms, 0);
    assert_int_equal(get_from(digest, 0), 0);
    const uint32_t wait_ms = member->client.message.program.wait_ms;
    const double due_ms = 1000.0 * (64 - 16) / 64;
    assert_true(wait_ms >= due_ms && wait_ms <= due_ms + 2);
    serving.now_s += (wait_ms - 10) / 1000.0;
    assert_int_equal(get_from(digest, 0), 0);
    assert_in_range(member->client.message.program.wait_ms, 1, 12);
    serving.now_s += member->client.message.program.wait_ms / 1000.0; /* and no longer */
    assert_int_equal(get_from(digest, 0), 64 << 10);
    serving.now_s += 1000; /* unused budget is not saved up */
    int at_once = 0;
    while (get_from(digest, 0) > 0) {
        at_once++;
    }
    assert_int_equal(at_once, 1);
    end();
    programs.count = 0;
    programs.rate_kib = 0;
}

/* A build that a member reports counts as the new one if the rollout brings it. */
TEST_WITH(who_runs_what_is_known_by_its_build, enter, leave)
{
    make_program();
    begin_with_all();
    sign(1, 0.5, 2, 0.5, "", secret_key);
    bring();
    accepted();
    char *name = serving.sessions[1].session.program;
    const struct rollout_member *member = &coordinator->rollout.members[2 + 1];
    strcpy(name, "trainer 1");
    report(1);
    assert_true(!member->runs_target && member->architecture == 0);
    snprintf(name, 65, "trainer 1, build %.16s", programs.items[0].digest);
    report(1);
    assert_true(member->runs_target && member->architecture == 0); /* early programs don't report it */
    snprintf(name, 65, "trainer 1, build %.16s x86_64", programs.items[0].digest);
    report(1);
    assert_true(member->runs_target && member->architecture == 1);
    strcpy(name, "trainer 1, build 0000000000000000 x86_64");
    report(1);
    assert_true(!member->runs_target && member->architecture == 1);
    strcpy(name, "trainer 1, build 0000000000000000 riscv64");
    report(1);
    assert_true(!member->runs_target && member->architecture == 0);
    report(0);
    assert_int_equal(coordinator->rollout.members[2].steps, 2); /* of its process */
    end();
    programs.count = 0;
}

int main(void)
{
    return check_run(NULL, NULL);
}
