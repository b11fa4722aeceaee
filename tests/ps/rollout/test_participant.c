/* A member's side: what it takes, what it refuses and why, and that orders may come in any number. */
#include "tests/check.h"
#include "tests/ps/rollout/participating.h"

#include "base/clock.h"

TEST_WITH(live_there_and_back, set_up, tear_down)
{
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.25, "", secret_key);
    participant_act(&participant, &order);
    says(PHASE_STAGED, 1, "");
    assert_int_equal(host.checked + host.saved, 2);
    participant_act(&participant, &order);
    assert_int_equal(host.checked, 1);
    order.order = ORDER_SWITCH;
    order.step = 100;
    participant_act(&participant, &order);
    says(PHASE_STAGED, 1, "");
    assert_int_equal(current(), 1);
    host.now = 100;
    participant_act(&participant, &order);
    participant_act(&participant, &order);
    says(PHASE_SWITCHED, 2, "");
    assert_int_equal(current(), 2);
    order.order = ORDER_BACK;
    participant_act(&participant, &order);
    says(PHASE_BACK, 1, "");
    assert_int_equal(current(), 1);
    order.order = ORDER_RESTORE;
    participant_act(&participant, &order);
    participant_act(&participant, &order);
    says(PHASE_RESTORED, 1, "");
    assert_int_equal(host.restored, 1);
    participant_act(&participant, &(struct participant_order){.order = ORDER_NOTHING, .settled = true});
    assert_int_equal(host.settled, 1);
    assert_int_equal(host.left, 0);
}

static void refused(const struct participant_order *order, const char *message)
{
    participant_act(&participant, order);
    says(PHASE_FAILED, 1, message);
    assert_int_equal(host.left, 0);
    assert_int_equal(current(), 1);
    start();
}

static void kept_above(const struct participant_order *order, uint64_t version)
{
    participant_act(&participant, order);
    participant_act(&participant, order);
    says(PHASE_FAILED, version, "is below version 2, on which the fleet had settled");
    assert_int_equal(host.left + host.restored, 0);
    assert_int_equal(current(), version);
}

/* A false ps 0 has every manifest that was ever signed: none of them leads below what the fleet had settled on. */
TEST_WITH(manifests_of_before_lead_nowhere, set_up, tear_down)
{
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.25, "", secret_key), old;
    struct error error;
    char path[128];
    (void)state;
    participant_act(&participant, &order);
    order.order = ORDER_SWITCH;
    participant_act(&participant, &order);
    says(PHASE_SWITCHED, 2, "");
    participant_act(&participant, &(struct participant_order){.order = ORDER_NOTHING, .settled = true, .in_force = 2});
    static const enum rollout_order replays[] = {ORDER_BACK, ORDER_RESTORE, ORDER_RETURN};
    for (int again = 0; again < 2; again++) { /* the second time in a new process */
        for (size_t i = 0; i < sizeof replays / sizeof *replays; i++) {
            old = order_of(replays[i], 1, 0.5, 2, 0.25, "", secret_key);
            participant_act(&participant, &old); /* stages it, if it has to */
            kept_above(&old, 2);
        }
        old = order_of(ORDER_CATCH_UP, 1, 0.5, 2, 0.25, "", secret_key);
        old.in_force = 1;
        kept_above(&old, 2);
        start();
    }
    /* Nor does `current`, whoever wrote it; and a damaged floor is none. */
    const struct config_setting flags[] = {{"job_name", "worker"}, {"task_index", "0"}};
    struct config other;
    write_text("config.json.d/current", "1\n");
    assert_false(config_load(&other, config_path, flags, 2, &error));
    assert_non_null(strstr(error.text, "version 1 of the config is below version 2"));
    config_free(&other);
    write_text("config.json.d/floor", "1 #00000000\n");
    assert_false(config_load(&other, config_path, flags, 2, &error));
    assert_non_null(strstr(error.text, "floor: holds no version number"));
    config_free(&other);
    snprintf(path, sizeof path, "%s.d/floor", config_path);
    assert_int_equal(unlink(path), 0);
    start(); /* as the message says */
    says(PHASE_NONE, 1, "");
}

/* What was signed long ago begins nothing, except that what has begun may end. */
TEST_WITH(a_signature_ends, set_up, tear_down)
{
    expires_s = (uint64_t)clock_wall_s() - 1;
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.25, "", secret_key);
    refused(&order, "the manifest expired at ");
    order.order = ORDER_SWITCH;
    participant_act(&participant, &order);
    says(PHASE_STAGED, 1, "");
    start();
    expires_s -= 86400;
    order = order_of(ORDER_SWITCH, 1, 0.5, 2, 0.25, "", secret_key);
    refused(&order, "the manifest expired at ");
    order.order = ORDER_CATCH_UP;
    order.in_force = 2;
    participant_act(&participant, &order);
    expires_s = 0;
    assert_int_equal(host.left, 1); /* who was away follows the fleet */
    assert_int_equal(current(), 2);
}

TEST_WITH(what_is_refused, set_up, tear_down)
{
    uint8_t other_public[OPERATOR_PUBLIC_KEY], other_secret[OPERATOR_SECRET_KEY];
    crypto_sign_keypair(other_public, other_secret);
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.25, "", other_secret);
    refused(&order, "is not signed by the operator key");
    order.order = ORDER_CATCH_UP;
    order.in_force = 2;
    refused(&order, "is not signed by the operator key");
    order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.25, "", secret_key);
    order.manifest_size--;
    refused(&order, "the manifest is");
    order = order_of(ORDER_STAGE, 0, 0.5, 1, 0.25, "", secret_key);
    participant_act(&participant, &order);
    says(PHASE_FAILED, 1, "the configs differ");
    start();
    order = order_of(ORDER_STAGE, 3, 0.5, 4, 0.25, "", secret_key);
    refused(&order, "the manifest goes back to version 3, but this fleet runs version 1");
    order = order_of(ORDER_STAGE, 1, 0.75, 2, 0.25, "", secret_key);
    refused(&order, "what runs here is not version 1 of the manifest");
}

/* What an operator was made to sign is refused, too: no file of this machine is written by anybody's order. */
TEST_WITH(what_is_a_machines_own, set_up, tear_down)
{
    for (int i = 0; i < 2; i++) {
        local[i] = "{\"output\":{\"profile\":\"/tmp/everything\"}}";
        struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.5, "", secret_key);
        refused(&order, "sets output.profile, which belongs to each machine");
        order = order_of(ORDER_CATCH_UP, 1, 0.5, 2, 0.5, "", secret_key);
        order.in_force = 2;
        refused(&order, "sets output.profile, which belongs to each machine");
        local[i] = "";
    }
    local[0] = "{\"train\":{\"num_threads\":2}}";
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.5, "", secret_key);
    local[0] = "";
    participant_act(&participant, &order);
    says(PHASE_STAGED, 1, "");
}

TEST_WITH(a_key_that_anybody_may_replace, set_up, tear_down)
{
    char path[128];
    snprintf(path, sizeof path, "%s/operator.pub", folder);
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.25, "", secret_key);
    assert_int_equal(chmod(path, 0646), 0);
    refused(&order, "operator.pub: is not trusted");
    assert_int_equal(chmod(path, 0644), 0);
    participant_act(&participant, &order);
    says(PHASE_STAGED, 1, "");
}

/* A machine that was away goes over to what killed this process before only now and then. */
TEST_WITH(what_failed_here_is_caught_up_with_later, set_up, tear_down)
{
    struct participant_order order = order_of(ORDER_CATCH_UP, 1, 0.5, 2, 0.25, "", secret_key);
    char path[128];
    snprintf(path, sizeof path, "%s/config.json", folder);
    order.in_force = 2;
    participant_act(&participant, &order);
    assert_int_equal(host.left, 1);
    assert_int_equal(current(), 2);
    for (int i = 0; i <= PROBATION_STARTS; i++) { /* as the next processes do at their start */
        assert_int_equal(current(), 2);
        probation_check(path);
    }
    assert_int_equal(current(), 1);
    start();
    participant_act(&participant, &order);
    says(PHASE_FAILED, 1, "it failed 2 times when started in version 2");
    assert_int_equal(host.left, 0);
    assert_int_equal(current(), 1);
    participant.failed_s -= 60;
    for (int i = 0; i < 100; i++) {
        participant_act(&participant, &order);
    }
    assert_int_equal(host.left, 1);
    assert_int_equal(current(), 2);
}

/* Started again while a rollout is under way, it must not write over the checkpoint to go back to. */
TEST_WITH(holds_until_it_is_settled, set_up, tear_down)
{
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.25, "", secret_key);
    assert_false(lineage_is_fresh(&config));
    participant_act(&participant, &order);
    says(PHASE_STAGED, 1, "");
    assert_int_equal(host.saved, 1);
    start();
    assert_true(lineage_is_fresh(&config));
    order.order = ORDER_SWITCH;
    participant_act(&participant, &order);
    assert_int_equal(host.saved + host.settled, 0);
    participant_act(&participant, &(struct participant_order){.order = ORDER_NOTHING, .settled = true});
    assert_int_equal(host.settled, 1);
}

/* Back to what ran here, which is neither of the two that the manifest names, and was never rolled out. */
TEST_WITH(goes_back_to_what_it_ran_before, set_up, tear_down)
{
    struct participant_order order = order_of(ORDER_CATCH_UP, 2, 0.25, 3, 0.125, "", secret_key);
    char path[128];
    snprintf(path, sizeof path, "%s/config.json", folder);
    order.in_force = 3;
    participant_act(&participant, &order);
    assert_int_equal(host.left, 1);
    for (int i = 0; i <= PROBATION_STARTS; i++) {
        assert_int_equal(current(), 3);
        probation_check(path);
    }
    assert_int_equal(current(), 1);
    start();
    says(PHASE_NONE, 1, "");
}

/* A manifest that goes back to a version need not bring that version's program; without it nobody comes into that. */
TEST_WITH(a_program_that_is_not_here_is_not_done_without, set_up, tear_down)
{
    programs = (struct manifest_programs){.count = 1, .protocol = 1};
    struct manifest_program *program = &programs.items[0];
    program->size = 1000;
    snprintf(program->architecture, sizeof program->architecture, "%s", program_own_architecture());
    memset(program->digest, 'b', PROGRAM_DIGEST_HEX);
    memset(program->fallback, 'b', PROGRAM_DIGEST_HEX);
    struct participant_order order = order_of(ORDER_CATCH_UP, 2, 0.25, 3, 0.125, "", secret_key);
    programs.count = 0;
    order.in_force = 2;
    participant_act(&participant, &order);
    says(PHASE_FAILED, 1, "the program of version 2 (bbbbbbbbbbbbbbbb) is not on this machine");
    assert_int_equal(host.left, 0);
    assert_int_equal(current(), 1);
}

/* Who comes straight into a version that may yet be gone back from knows which program belongs to the one before it. */
TEST_WITH(knows_the_program_to_go_back_to, set_up, tear_down)
{
    char digest[PROGRAM_DIGEST_HEX + 1];
    struct programs kept;
    struct error error;
    programs = (struct manifest_programs){.count = 1, .protocol = 1};
    struct manifest_program *program = &programs.items[0];
    program->size = 1000;
    snprintf(program->architecture, sizeof program->architecture, "%s", program_own_architecture());
    snprintf(program->digest, sizeof program->digest, "%s", program_own_digest());
    memset(program->fallback, 'b', PROGRAM_DIGEST_HEX);
    struct participant_order order = order_of(ORDER_CATCH_UP, 2, 0.25, 3, 0.125, "", secret_key);
    programs.count = 0;
    assert_true(programs_name(&kept, config_path, &error) && programs_keep_own(&kept, &error));
    order.in_force = 3;
    participant_act(&participant, &order);
    assert_int_equal(host.left, 1);
    assert_int_equal(current(), 3);
    assert_true(program_of_version(config_path, 2, digest, &error));
    assert_memory_equal(digest, "bbbbbbbbbbbbbbbb", PROGRAM_ID_HEX);
    assert_true(program_of_version(config_path, 3, digest, &error));
    assert_string_equal(digest, program_own_digest());
}

/* Its copy of the former program is damaged, say, so that it runs the installed one; the fleet went on without it. */
TEST_WITH(follows_the_fleet_from_any_program, set_up, tear_down)
{
    char digest[PROGRAM_DIGEST_HEX + 1];
    struct programs kept;
    struct error error;
    programs = (struct manifest_programs){.count = 1, .protocol = 1};
    struct manifest_program *program = &programs.items[0];
    program->size = 1000;
    snprintf(program->architecture, sizeof program->architecture, "%s", program_own_architecture());
    snprintf(program->digest, sizeof program->digest, "%s", program_own_digest());
    memset(program->fallback, 'b', PROGRAM_DIGEST_HEX);
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.5, "", secret_key);
    assert_true(programs_name(&kept, config_path, &error) && programs_keep_own(&kept, &error));
    participant_act(&participant, &order); /* while it could still hold the others up */
    says(PHASE_FAILED, 1, "this machine runs another program");
    order.order = ORDER_CATCH_UP;
    order.in_force = 2;
    participant_act(&participant, &order);
    programs.count = 0;
    assert_int_equal(host.left, 1);
    assert_int_equal(current(), 2);
    assert_true(program_of_version(config_path, 1, digest, &error));
    assert_string_equal(digest, program_own_digest());
}

/* The next rollout tells that the one before was settled, whose way back is not kept any longer. */
TEST_WITH(the_next_rollout_ends_its_probation, set_up, tear_down)
{
    struct probation probation;
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.25, "", secret_key);
    participant_act(&participant, &order);
    assert_true(probation_begin(config_path, 2, 1, &(struct error){""}));
    assert_true(versions_switch(&participant.versions, 2, &(struct error){""}));
    start();
    order = order_of(ORDER_STAGE, 2, 0.25, 3, 0.125, "", secret_key);
    host.has_no_memory = true;
    participant_act(&participant, &order);
    says(PHASE_FAILED, 2, "9 MiB");
    assert_true(probation_read(config_path, &probation)); /* not by one that it refuses */
    start();
    participant_act(&participant, &order);
    says(PHASE_STAGED, 2, "");
    assert_false(probation_read(config_path, &probation));
}

/* The next process, in the target: its program makes something else of the config than the one that staged it. */
static struct participant_order misread(void)
{
    local[0] = "{\"train\":{\"num_threads\":2}}";
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.5, "", secret_key);
    local[0] = "";
    participant_act(&participant, &order);
    order.order = ORDER_RESTART;
    participant_act(&participant, &order);
    assert_int_equal(host.left, 1);
    assert_int_equal(current(), 2);
    start();
    participant.digest[0] ^= 1;
    participant_act(&participant, &order);
    says(PHASE_FAILED, 2, "what runs here is not version 2 of the manifest: the configs differ");
    assert_int_equal(host.left, 0);
    return order;
}

TEST_WITH(a_canary_that_misreads_goes_back_by_itself, set_up, tear_down)
{
    struct participant_order order = misread();
    participant_act(&participant, &order); /* by now it has said why */
    participant_act(&participant, &order);
    assert_int_equal(host.left, 1);
    assert_int_equal(current(), 1);
    start();
    participant_act(&participant, &order);
    participant_act(&participant, &order);
    says(PHASE_FAILED, 1, "when started in version 2");
    assert_int_equal(host.left, 0);
    assert_int_equal(current(), 1);
}

TEST_WITH(who_misreads_is_sent_back, set_up, tear_down)
{
    struct participant_order order = misread();
    probation_end(config_path);
    for (int i = 0; i < 300; i++) { /* off probation, it goes nowhere by itself */
        participant_act(&participant, &order);
    }
    says(PHASE_FAILED, 2, "the configs differ");
    assert_int_equal(host.left, 0);
    order.order = ORDER_RETURN;
    participant_act(&participant, &order);
    assert_int_equal(host.left, 1);
    assert_int_equal(current(), 1);
    start();
    participant_act(&participant, &order);
    participant_act(&participant, &order);
    says(PHASE_BACK, 1, "");
}

/* What was signed when this version came says where to, if the order's signature can't be checked any more. */
TEST_WITH(goes_back_without_the_key, set_up, tear_down)
{
    struct participant_order order = misread();
    char path[128];
    snprintf(path, sizeof path, "%s/operator.pub", folder);
    start();
    order.order = ORDER_RETURN;
    participant_act(&participant, &order);
    says(PHASE_STAGED, 2, "");
    start();
    assert_int_equal(unlink(path), 0);
    participant_act(&participant, &order);
    says(PHASE_FAILED, 2, "operator.pub");
    participant_act(&participant, &order);
    assert_int_equal(host.left, 1);
    assert_int_equal(current(), 1);
}

/* Else the fleet would wait for ever. */
TEST_WITH(goes_back_even_if_its_program_is_gone, set_up, tear_down)
{
    struct error error;
    char digest[PROGRAM_DIGEST_HEX + 1] = "";
    local[0] = "{\"train\":{\"num_threads\":2}}";
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.5, "", secret_key);
    local[0] = "";
    participant_act(&participant, &order);
    order.order = ORDER_RESTART;
    participant_act(&participant, &order);
    assert_int_equal(current(), 2);
    memset(digest, 'c', PROGRAM_DIGEST_HEX);
    assert_true(program_set_version(config_path, 1, digest, &error));
    start();
    order.order = ORDER_RETURN;
    participant_act(&participant, &order);
    participant_act(&participant, &order);
    assert_int_equal(host.left, 1);
    assert_int_equal(current(), 1);
}

/* What the disk has done to a version's file is made good by taking it again. */
TEST_WITH(a_damaged_version_is_caught_up_with_again, set_up, tear_down)
{
    struct participant_order order = order_of(ORDER_CATCH_UP, 1, 0.5, 2, 0.25, "", secret_key);
    char path[128];
    snprintf(path, sizeof path, "%s/config.json", folder);
    order.in_force = 2;
    participant_act(&participant, &order);
    assert_int_equal(current(), 2);
    probation_check(path);
    write_text("config.json.d/00000002.json", "{}");
    probation_check(path);
    assert_int_equal(current(), 1);
    start();
    participant_act(&participant, &order);
    assert_int_equal(host.left, 1);
    assert_int_equal(current(), 2);
    start();
    says(PHASE_NONE, 2, "");
}

/* ps 0 may send manifests as often as it likes. */
TEST_WITH(the_audit_log_stays_small, set_up, tear_down)
{
    uint8_t other_public[OPERATOR_PUBLIC_KEY], other_secret[OPERATOR_SECRET_KEY], *bytes;
    size_t size, lines = 0;
    char path[128];
    struct error error;
    crypto_sign_keypair(other_public, other_secret);
    for (uint64_t i = 0; i < 100; i++) {
        struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2 + i, 0.25, "", other_secret);
        participant_act(&participant, &order);
        order.order = ORDER_CATCH_UP;
        order.in_force = 2 + i;
        participant_act(&participant, &order);
    }
    snprintf(path, sizeof path, "%s/config.json.d/audit.log", folder);
    assert_true(file_read(path, 1 << 20, &bytes, &size, &error));
    for (size_t i = 0; i < size; i++) {
        lines += bytes[i] == '\n';
    }
    free(bytes);
    assert_in_range(lines, 5, 11);
}

/* Before anything changes, each member looks whether its machine can bear it. */
TEST_WITH(what_the_machine_cant_bear, set_up, tear_down)
{
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.25, ",\"nowhere.example:3\"", secret_key);
    refused(&order, "nowhere.example: there is no such host");
    order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.25, ",\"somewhere.example:3\"", secret_key);
    participant_act(&participant, &order);
    says(PHASE_STAGED, 1, "");
    start();
    order = order_of(ORDER_STAGE, 1, 0.5, 3, 0.25, "", secret_key);
    disk_left = 1000;
    refused(&order, "config.json.d: less than 1024 KiB are left on that disk");
    disk_left = 1 << 30;
    host.has_no_memory = true;
    refused(&order, "it would take 9 MiB of memory here, and there are 2");
    host.cant_save = true;
    refused(&order, "the disk is full");
    participant_act(&participant, &order);
    says(PHASE_STAGED, 1, "");
}

/* One that was away as the others switched follows them once its reason to refuse is gone, whatever the kind. */
TEST_WITH(what_was_refused_is_staged_anew_one_day, set_up, tear_down)
{
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.25, "", secret_key);
    disk_left = 1000;
    refused(&order, "config.json.d: less than 1024 KiB are left on that disk");
    order.order = ORDER_SWITCH;
    participant_act(&participant, &order);
    says(PHASE_FAILED, 1, "are left on that disk");
    disk_left = 1 << 30;
    for (int i = 0; i < 200 && participant.version != 2; i++) {
        participant_act(&participant, &order);
    }
    says(PHASE_SWITCHED, 2, "");
}

TEST_WITH(a_job_starts_anew, set_up, tear_down)
{
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.5, ",\"127.0.0.1:3\"", secret_key);
    participant_act(&participant, &order);
    says(PHASE_STAGED, 1, "");
    order.order = ORDER_RESTART;
    participant_act(&participant, &order);
    participant_act(&participant, &order);
    assert_int_equal(host.left, 1);
    assert_false(host.for_good);
    assert_int_equal(current(), 2);
    start();
    says(PHASE_NONE, 2, "");
    participant_act(&participant, &order); /* the new process stages first, and prepares nothing: it is there */
    participant_act(&participant, &order);
    says(PHASE_SWITCHED, 2, "");
    assert_int_equal(host.left + host.saved, 0);
    order.order = ORDER_RETURN;
    participant_act(&participant, &order);
    assert_int_equal(host.left, 1);
    assert_int_equal(current(), 1);
}

/* Away while the fleet went on, or back. */
TEST_WITH(a_late_comer_catches_up, set_up, tear_down)
{
    struct participant_order order = order_of(ORDER_CATCH_UP, 6, 0.5, 7, 0.25, "", secret_key);
    order.in_force = 7;
    participant_act(&participant, &order);
    assert_int_equal(host.left, 1);
    assert_int_equal(current(), 7);
    start();
    says(PHASE_NONE, 7, "");
    /* The fleet went back from 7 to 6 meanwhile, and from 8 to 6, too: 7's own manifest says that 6 comes after it. */
    order = order_of(ORDER_CATCH_UP, 6, 0.5, 8, 0.125, "", secret_key);
    order.in_force = 6;
    participant_act(&participant, &order);
    assert_int_equal(host.left, 1);
    assert_int_equal(current(), 6);
    start();
    order = order_of(ORDER_CATCH_UP, 4, 0.5, 9, 0.125, "", secret_key);
    order.in_force = 4;
    participant_act(&participant, &order);
    says(PHASE_FAILED, 6, "the manifest is old: version 4, but version 6 is here");
    assert_int_equal(host.left, 0);
}

/* What kept it from catching up may be gone. */
TEST_WITH(a_full_disk_is_no_end, set_up, tear_down)
{
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.25, "", secret_key);
    participant_act(&participant, &order);
    order.order = ORDER_SWITCH;
    participant_act(&participant, &order);
    says(PHASE_SWITCHED, 2, "");
    start();
    disk_left = 0;
    order.order = ORDER_BACK;
    participant_act(&participant, &order);
    says(PHASE_STAGED, 2, ""); /* nothing but a switch is left to do here, and that needs no room to speak of */
    participant_act(&participant, &order);
    says(PHASE_BACK, 1, "");
    start();
    order = order_of(ORDER_RESTORE, 1, 0.5, 3, 0.125, "", secret_key);
    participant_act(&participant, &order);
    says(PHASE_FAILED, 1, "are left on that disk");
    participant_act(&participant, &order); /* the model must be restored regardless */
    participant_act(&participant, &order);
    says(PHASE_RESTORED, 1, "");
    assert_int_equal(host.restored, 1);
}

/* --- Edits by hand --- */

static void drift_says(const char *words)
{
    participant_act(&participant, &(struct participant_order){.order = ORDER_NOTHING});
    if (words[0] == '\0') {
        assert_string_equal(participant.drift.text, "");
    } else if (!strstr(participant.drift.text, words)) {
        fail_msg("\"%s\", and not \"%s\"", participant.drift.text, words);
    }
}

/* Looked at whenever the file was touched; spaces do not count, and undoing the edit ends it. */
TEST_WITH(an_edit_by_hand_is_told, set_up, tear_down)
{
    static const char told[] = "config.json was edited by hand and is not in force: roll it out or undo the edit";
    char spaced[600] = " \n ";
    drift_says("");
    strcat(spaced, text_of(1, 0.5, ""));
    write_text("config.json", spaced);
    drift_says("");
    write_text("config.json", text_of(1, 0.75, ""));
    drift_says(told);
    drift_says("drift: /");
    write_text("config.json", "no JSON");
    drift_says(told);
    write_text("config.json", text_of(1, 0.5, ""));
    drift_says("");
    write_text("config.json", text_of(1, 0.75, ""));
    drift_says(told);
    start(); /* the file is in force: what it says now is what later edits are compared with */
    drift_says("");
    write_text("config.json", text_of(1, 0.5, ""));
    drift_says(told);
}

/* While a version counts, a restarted process knows what the file was before the edit. */
TEST_WITH(an_edit_is_known_to_the_next_process, set_up, tear_down)
{
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.25, "", secret_key);
    participant_act(&participant, &order);
    order.order = ORDER_SWITCH;
    participant_act(&participant, &order);
    says(PHASE_SWITCHED, 2, "");
    drift_says("");
    start();
    drift_says("");
    write_text("config.json", text_of(1, 0.75, ""));
    start();
    drift_says("was edited by hand and is not in force");
    write_text("config.json", text_of(1, 0.5, ""));
    start();
    drift_says("");
}

/* A file that would override what is rolled out is a reason to refuse it, with the version that it has. */
TEST_WITH(a_file_of_a_later_version_is_in_the_way, set_up, tear_down)
{
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.25, "", secret_key);
    write_text("config.json", text_of(3, 0.5, ""));
    participant_act(&participant, &order);
    says(PHASE_FAILED, 1,
         "config.json here has fleet.version 3, so it would override version 2: was it edited by hand?");
    write_text("config.json", text_of(1, 0.5, ""));
    start();
    write_text("config.json", text_of(2, 0.125, ""));
    participant_act(&participant, &order);
    says(PHASE_FAILED, 1, "has fleet.version 2, so it would override version 2");
    write_text("config.json", text_of(1, 0.5, ""));
    start();
    write_text("config.json", text_of(2, 0.25, "")); /* what is rolled out stands there already */
    participant_act(&participant, &order);
    says(PHASE_STAGED, 1, "");
}

/* --- What worker 0 alone does --- */

static int tries;
static bool fails;

static bool try_out(void *context, const struct config *then, bool may_lose, struct error *error)
{
    tries++;
    assert_false(may_lose);
    assert_int_equal(then->cluster.worker_hosts.count, 2);
    return !fails || error_set(error, "the trial's loss is not finite");
}

/* A trial and a checkpoint, each once in a rollout however often the order comes. */
TEST_WITH(tries_and_saves_once, set_up, tear_down)
{
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.5, ",\"127.0.0.1:3\"", secret_key);
    for (int i = 0; i < 3; i++) {
        tries = 0;
        fails = i > 0;
        start();
        participant.host.try_out = i < 2 ? try_out : NULL;
        order.order = ORDER_STAGE;
        participant_act(&participant, &order);
        says(PHASE_STAGED, 1, "");
        host.cant_save = fails;
        order.order = i < 2 ? ORDER_TRY : ORDER_SAVE;
        participant_act(&participant, &order);
        participant_act(&participant, &order);
        says(i == 0 ? PHASE_TRIED : PHASE_FAILED, 1,
             i == 0   ? ""
             : i == 1 ? "the trial's loss is not finite"
                      : "the disk is full");
        assert_int_equal(tries, i < 2);
        if (i == 0) {
            order.order = ORDER_SAVE;
            participant_act(&participant, &order);
            participant_act(&participant, &order);
            says(PHASE_SAVED, 1, "");
            assert_int_equal(tries, 1);
        }
        assert_int_equal(host.saved, 1 + (i != 1)); /* one before anything changes */
    }
    fails = false;
    start();
    order.order = ORDER_STAGE;
    participant_act(&participant, &order);
    order.order = ORDER_TRY;
    participant_act(&participant, &order);
    says(PHASE_FAILED, 1, "only worker 0 can do that");
}

/* A flag of it that flips would make another rollout of it; it can't be checked against its signature for ever. */
TEST_WITH(a_damaged_manifest_is_not_obeyed, set_up, tear_down)
{
    struct lineage lineage;
    struct manifest manifest;
    struct error error;
    char path[128];
    uint8_t *bytes;
    size_t size;
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.25, "", secret_key);
    participant_act(&participant, &order);
    says(PHASE_STAGED, 1, "");
    assert_true(lineage_read(&config, &lineage) && lineage_of(&config, 2, &lineage));
    snprintf(path, sizeof path, "%s.d/00000002.manifest", config_path);
    assert_true(file_read(path, MANIFEST_MAX_BYTES, &bytes, &size, &error));
    const size_t flags = strlen("trainer rollout manifest 3\n") + 4 + 5 + 4 + 7 + 8 + 8;
    bytes[flags] ^= 1;
    const struct file_part part = {bytes, size};
    assert_true(file_write_atomic(path, &part, 1, &error));
    assert_true(manifest_decode_unsigned(&manifest, bytes, size, &error)); /* it looks like any other */
    free(bytes);
    assert_false(lineage_read(&config, &lineage));
    assert_false(lineage_load(&config, 0, &bytes, &size, &error));
    assert_false(lineage_of(&config, 2, &lineage));
    assert_false(lineage_load(&config, 2, &bytes, &size, &error));
    assert_non_null(strstr(error.text, "00000002.manifest: is damaged"));
    start();
    participant_act(&participant, &order); /* it comes again */
    says(PHASE_STAGED, 1, "");
    assert_true(lineage_read(&config, &lineage) && lineage_of(&config, 2, &lineage));
}

int main(void)
{
    return check_run(NULL, NULL);
}
