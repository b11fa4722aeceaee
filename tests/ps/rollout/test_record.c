/* What a member's part in a rollout leaves behind: the audit log, programs, and what the next process finds. */
#include "tests/check.h"
#include "tests/ps/rollout/participating.h"

#include "base/log.h"
#include "net/message.h"

static void act(struct participant_order *order, enum rollout_order what)
{
    order->order = what;
    participant_act(&participant, order);
}

/* --- The audit log --- */

static const char *audit(void)
{
    static char text[1 << 16], path[128];
    snprintf(path, sizeof path, "%s/config.json.d/audit.log", folder);
    FILE *file = fopen(path, "r");
    const size_t size = file ? fread(text, 1, sizeof text - 1, file) : 0;
    text[size] = '\0';
    if (file) {
        fclose(file);
    }
    return text;
}

/* Action, version and result of each entry, in the order of `lines`, and nothing else. */
static void audited(const char *const *lines)
{
    const char *at = audit();
    for (; *lines; lines++) {
        char wanted[200], line[600];
        snprintf(wanted, sizeof wanted, "\"member\":\"worker 0\",\"who\":\"me@desk\",%s", *lines);
        const size_t size = strcspn(at, "\n");
        snprintf(line, sizeof line, "%.*s", (int)size, at);
        if (!strstr(line, wanted)) {
            fail_msg("%s, and not %s", line, wanted);
        }
        at += size + 1;
    }
    assert_string_equal(at, "");
}

static bool cant_restore(void *context, struct error *error)
{
    return error_set(error, "the checkpoint is gone");
}

static int forget_program(void **state);

static int quiet(void **state);

TEST_WITH(each_step_of_a_live_rollout_is_on_record, quiet, forget_program)
{
    static const char *const lines[] = {"\"what\":\"stage\",\"version\":2,\"outcome\":\"done\"",
                                        "\"what\":\"switch\",\"version\":2,\"outcome\":\"done\"",
                                        "\"what\":\"go back\",\"version\":2,\"outcome\":\"done\"",
                                        "\"what\":\"restore\",\"version\":2,\"outcome\":\"the checkpoint is gone\"",
                                        "\"what\":\"restore\",\"version\":2,\"outcome\":\"done\"",
                                        NULL};
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.25, "", secret_key);
    act(&order, ORDER_STAGE);
    act(&order, ORDER_SWITCH);
    act(&order, ORDER_BACK);
    participant.host.restore = cant_restore;
    act(&order, ORDER_RESTORE);
    says(PHASE_BACK, 1, "the checkpoint is gone");
    participant.host.restore = restore;
    act(&order, ORDER_RESTORE);
    says(PHASE_RESTORED, 1, "");
    audited(lines);
}

static bool try_out(void *context, const struct config *then, bool may_lose, struct error *error)
{
    assert_int_equal(then->cluster.worker_hosts.count, 2);
    assert_false(may_lose);
    return true;
}

TEST_WITH(each_step_of_a_job_that_starts_anew_is_on_record, quiet, forget_program)
{
    static const char *const lines[] = {"\"what\":\"stage\",\"version\":2,\"outcome\":\"done\"",
                                        "\"what\":\"try\",\"version\":2,\"outcome\":\"done\"",
                                        "\"what\":\"save\",\"version\":2,\"outcome\":\"the disk is full\"",
                                        "\"what\":\"start again\",\"version\":2,\"outcome\":\"begun\"",
                                        "\"what\":\"stage\",\"version\":2,\"outcome\":\"done\"",
                                        "\"what\":\"go back\",\"version\":2,\"outcome\":\"begun\"",
                                        NULL};
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.5, ",\"127.0.0.1:3\"", secret_key);
    participant.host.try_out = try_out;
    participant.host.stays = true; /* which matters only where machines change alone */
    act(&order, ORDER_STAGE);
    host.cant_save = true;
    act(&order, ORDER_TRY);
    act(&order, ORDER_SAVE);
    act(&order, ORDER_RESTART);
    start();
    act(&order, ORDER_RESTART);
    act(&order, ORDER_RETURN);
    audited(lines);
}

TEST_WITH(a_catch_up_is_on_record, quiet, forget_program)
{
    static const char *const lines[] = {"\"what\":\"catch up\",\"version\":2,\"outcome\":\"begun\"", NULL};
    struct participant_order order = order_of(ORDER_CATCH_UP, 1, 0.5, 2, 0.25, "", secret_key);
    order.in_force = 2;
    act(&order, ORDER_CATCH_UP);
    assert_int_equal(host.left, 1);
    assert_false(host.for_good);
    audited(lines);
}

/* --- Who takes part --- */

static bool is_not_ready(void *context)
{
    return false;
}

static bool is_ready(void *context)
{
    return true;
}

static bool reports_ready(void)
{
    struct rollout_report report;
    participant_report(&participant, &report);
    return report.ready;
}

TEST_WITH(who_trains_is_ready_until_it_leaves, quiet, forget_program)
{
    assert_true(reports_ready()); /* nobody asks it */
    participant.host.ready = is_not_ready;
    assert_false(reports_ready());
    participant.host.ready = is_ready;
    assert_true(reports_ready());
    struct participant_order order = order_of(ORDER_CATCH_UP, 1, 0.5, 2, 0.25, "", secret_key);
    order.in_force = 2;
    act(&order, ORDER_CATCH_UP);
    assert_false(reports_ready());
    act(&order, ORDER_CATCH_UP); /* it has left for good */
    assert_int_equal(host.left, 1);
}

TEST_WITH(without_a_file_there_is_no_place_for_versions, quiet, forget_program)
{
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.25, "", secret_key);
    char *path = config.path;
    config.path = NULL;
    act(&order, ORDER_STAGE);
    says(PHASE_FAILED, 1, "it runs without a config file");
    config.path = path;
}

/* A flag would win again at the next start: the result would be a version that nobody signed. */
TEST_WITH(a_flag_of_this_process_is_in_the_way, quiet, forget_program)
{
    const struct config_setting flags[] = {{"job_name", "worker"}, {"task_index", "0"}, {"learning_rate", "0.75"}};
    struct error error;
    participant_destroy(&participant);
    config_free(&config);
    assert_true(config_load(&config, config_path, flags, 3, &error));
    participant_create(&participant, &config, (struct member){MEMBER_WORKER, 0}, &table);
    struct participant_order order = order_of(ORDER_CATCH_UP, 1, 0.5, 2, 0.25, "", secret_key);
    order.in_force = 2;
    act(&order, ORDER_CATCH_UP);
    says(PHASE_FAILED, 1, "flags or the environment of this process change it: see `trainer config show`");
    assert_int_equal(host.left, 0);
}

/* --- What the next process finds --- */

/* Members of both versions may work together while a live rollout is not settled. */
TEST_WITH(the_next_process_knows_both_versions, quiet, forget_program)
{
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.25, "", secret_key);
    act(&order, ORDER_STAGE);
    char target[CONFIG_DIGEST_HEX + 1];
    strcpy(target, participant.digests[0]);
    assert_string_not_equal(target, "");
    assert_string_equal(participant.digests[1], participant.digest);
    start();
    assert_string_equal(participant.digests[0], target);
    assert_string_equal(participant.digests[1], participant.digest);
    assert_true(participant.prepared);
}

/* All members of a job change at once, and none may work with the other version's. */
TEST_WITH(versions_of_a_job_do_not_mix, quiet, forget_program)
{
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.5, ",\"127.0.0.1:3\"", secret_key);
    act(&order, ORDER_STAGE);
    says(PHASE_STAGED, 1, "");
    for (int i = 0; i < 2; i++) {
        assert_string_equal(participant.digests[0], "");
        assert_string_equal(participant.digests[1], "");
        start();
    }
}

static struct participant_order local_order(const char *keys)
{
    local[0] = keys;
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.5, "", secret_key);
    local[0] = "";
    return order;
}

/* Local keys may wait for the next start if the host stays. */
TEST_WITH(a_host_that_stays_takes_local_keys_at_its_next_start, quiet, forget_program)
{
    participant.host.stays = true;
    struct participant_order order = local_order("{\"train\":{\"num_threads\":2}}");
    act(&order, ORDER_STAGE);
    says(PHASE_STAGED, 1, "");
    act(&order, ORDER_RESTART);
    assert_int_equal(host.left, 0);
    assert_int_equal(current(), 2);
    assert_string_equal(participant.digest, participant.digests[0]);
    act(&order, ORDER_RESTART);
    says(PHASE_SWITCHED, 2, "");
    act(&order, ORDER_RETURN);
    assert_int_equal(host.left, 0);
    assert_int_equal(current(), 1);
    assert_string_equal(participant.digest, participant.digests[1]);
    act(&order, ORDER_RETURN);
    says(PHASE_BACK, 1, "");
    assert_non_null(strstr(audit(), "\"what\":\"switch\",\"version\":2,\"outcome\":\"done\""));
    assert_non_null(strstr(audit(), "\"what\":\"go back\",\"version\":2,\"outcome\":\"done\""));
}

/* Nobody switches to a version that is not there, however often it is ordered; once it is there, it does. */
TEST_WITH(a_way_back_that_is_damaged_is_not_gone, quiet, forget_program)
{
    struct participant_order order = local_order("{\"train\":{\"num_threads\":2}}");
    act(&order, ORDER_STAGE);
    act(&order, ORDER_RESTART);
    assert_int_equal(current(), 2);
    start();
    participant.digest[0] ^= 1; /* its program misreads the config */
    act(&order, ORDER_RESTART);
    says(PHASE_FAILED, 2, "the configs differ");
    char *kept = NULL;
    size_t size;
    char path[128];
    struct error error;
    snprintf(path, sizeof path, "%s/config.json.d/00000001.json", folder);
    assert_true(file_read(path, 1 << 16, (uint8_t **)&kept, &size, &error));
    write_text("config.json.d/00000001.json", "{}");
    const uint8_t *manifest = order.manifest;
    order.manifest = NULL;
    for (int i = 0; i < 3; i++) {
        act(&order, ORDER_RETURN);
        assert_int_equal(host.left, 0);
    }
    const struct file_part part = {kept, size};
    assert_true(file_write_atomic(path, &part, 1, &error));
    free(kept);
    order.manifest = manifest;
    for (int i = 0; i < 200 && host.left == 0; i++) {
        act(&order, ORDER_RETURN);
    }
    assert_int_equal(host.left, 1);
    assert_int_equal(current(), 1);
}

/* An invalid digest there says nothing: the file counts as it is. */
TEST_WITH(a_damaged_base_is_made_anew, quiet, forget_program)
{
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.25, "", secret_key);
    act(&order, ORDER_STAGE);
    act(&order, ORDER_SWITCH);
    says(PHASE_SWITCHED, 2, "");
    start();
    assert_string_equal(participant.drift.text, "");
    write_text("config.json.d/base", "abc");
    start();
    assert_string_equal(participant.drift.text, "");
    write_text("config.json", text_of(1, 0.75, ""));
    participant_act(&participant, &(struct participant_order){.order = ORDER_NOTHING});
    assert_non_null(strstr(participant.drift.text, "edited by hand"));
    start(); /* which the next process knows */
    assert_non_null(strstr(participant.drift.text, "edited by hand"));
}

/* --- Programs --- */

static uint8_t *program;
static size_t program_size;

/* The next manifest brings another program than this one. */
static struct manifest_program *bring_program(void)
{
    struct error error;
    free(program);
    assert_true(program_own_bytes(&program, &program_size, &error));
    program[program_size / 2] ^= 1;
    programs = (struct manifest_programs){.count = 1, .protocol = 1};
    struct manifest_program *one = &programs.items[0];
    one->size = program_size;
    snprintf(one->architecture, sizeof one->architecture, "%s", program_own_architecture());
    checked_digest(program, program_size, one->digest);
    return one;
}

static struct participant_order order_with_program(void)
{
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.5, "", secret_key);
    programs.count = 0;
    return order;
}

TEST_WITH(a_program_is_taken_in_piece_by_piece, quiet, forget_program)
{
    const char *digest;
    uint64_t offset;
    char noted[PROGRAM_DIGEST_HEX + 1], wanted[PROGRAM_DIGEST_HEX + 1], heard[100];
    struct error error;
    strcpy(wanted, bring_program()->digest);
    struct participant_order order = order_with_program();
    assert_false(participant_wants(&participant, &digest, &offset));
    act(&order, ORDER_STAGE);
    says(PHASE_NONE, 1, "");
    act(&order, ORDER_STAGE);
    assert_true(participant_wants(&participant, &digest, &offset));
    assert_string_equal(digest, wanted);
    assert_int_equal(offset, 0);
    const size_t half = program_size / 2;
    participant_take(&participant, 5, program + 5, 100); /* nobody requested it */
    participant_take(&participant, 0, program, 0);
    participant_take(&participant, 0, program, half);
    assert_true(participant_wants(&participant, &digest, &offset));
    assert_int_equal(offset, half);
    snprintf(heard, sizeof heard, "%zu of %zu KiB of the program are here", half >> 10, program_size >> 10);
    says(PHASE_NONE, 1, heard);
    participant_take(&participant, half, program + half, program_size - half);
    assert_false(participant_wants(&participant, &digest, &offset));
    act(&order, ORDER_STAGE);
    says(PHASE_STAGED, 1, "");
    struct rollout_report report;
    participant_report(&participant, &report);
    assert_string_equal(report.message, "");
    assert_non_null(strstr(audit(), "\"what\":\"fetch the program\",\"version\":2,\"outcome\":\"done\""));
    assert_true(program_of_version(config_path, 2, noted, &error));
    assert_string_equal(noted, wanted);
    assert_true(program_of_version(config_path, 1, noted, &error));
    assert_string_equal(noted, program_own_digest());
}

TEST_WITH(a_program_that_came_damaged_is_no_program, quiet, forget_program)
{
    const char *digest;
    uint64_t offset;
    bring_program();
    struct participant_order order = order_with_program();
    act(&order, ORDER_STAGE);
    act(&order, ORDER_STAGE);
    program[program_size / 3] ^= 1;
    participant_take(&participant, 0, program, program_size);
    struct rollout_report report;
    participant_report(&participant, &report);
    assert_int_equal(report.phase, PHASE_FAILED);
    assert_string_not_equal(report.message, "");
    assert_false(participant_wants(&participant, &digest, &offset));
    assert_non_null(strstr(audit(), "\"what\":\"fetch the program\",\"version\":2"));
    assert_null(strstr(audit(), "\"what\":\"fetch the program\",\"version\":2,\"outcome\":\"done\""));
}

TEST_WITH(programs_that_this_machine_can_not_run_are_refused, quiet, forget_program)
{
    struct manifest_program *one = bring_program();
    snprintf(one->architecture, sizeof one->architecture, "%s",
             strcmp(program_own_architecture(), "x86_64") == 0 ? "aarch64" : "x86_64");
    struct participant_order order = order_with_program();
    act(&order, ORDER_STAGE);
    says(PHASE_FAILED, 1, "roll out one for each architecture");
    start();
    bring_program();
    programs.protocol = PROTOCOL_VERSION_MAX + 1;
    order = order_with_program();
    act(&order, ORDER_STAGE);
    says(PHASE_FAILED, 1, "they could not train together");
    start();
    bring_program();
    programs.protocol = PROTOCOL_VERSION_MAX;
    order = order_with_program();
    act(&order, ORDER_STAGE);
    says(PHASE_NONE, 1, "");
    start();
    memset(bring_program()->fallback, 'b', PROGRAM_DIGEST_HEX);
    order = order_with_program();
    act(&order, ORDER_STAGE);
    says(PHASE_FAILED, 1, "this machine runs another program");
    start();
    snprintf(bring_program()->fallback, PROGRAM_DIGEST_HEX + 1, "%s", program_own_digest());
    order = order_with_program();
    act(&order, ORDER_STAGE);
    says(PHASE_NONE, 1, "");
}

TEST_WITH(a_config_alone_stays_in_the_program_that_runs, quiet, forget_program)
{
    char digest[PROGRAM_DIGEST_HEX + 1] = "", noted[PROGRAM_DIGEST_HEX + 1];
    struct error error;
    memset(digest, 'd', PROGRAM_DIGEST_HEX);
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.25, "", secret_key);
    act(&order, ORDER_STAGE);
    assert_true(program_of_version(config_path, 2, noted, &error));
    assert_string_equal(noted, ""); /* the installed one */
    start();
    assert_true(program_set_version(config_path, 1, digest, &error));
    order = order_of(ORDER_STAGE, 1, 0.5, 3, 0.25, "", secret_key);
    act(&order, ORDER_STAGE);
    says(PHASE_STAGED, 1, "");
    assert_true(program_of_version(config_path, 3, noted, &error));
    assert_string_equal(noted, digest);
}

/* A host that ignores local keys still restarts for a program. */
TEST_WITH(nobody_stays_in_the_former_program, quiet, forget_program)
{
    participant.host.stays = true;
    bring_program();
    struct participant_order order = order_with_program();
    act(&order, ORDER_STAGE);
    act(&order, ORDER_STAGE);
    participant_take(&participant, 0, program, program_size);
    act(&order, ORDER_STAGE);
    says(PHASE_STAGED, 1, "");
    act(&order, ORDER_RESTART);
    assert_int_equal(host.left, 1);
    assert_int_equal(current(), 2);
}

/* A member that goes back needs nothing of the target. */
TEST_WITH(going_back_waits_for_no_program, quiet, forget_program)
{
    bring_program();
    struct participant_order order = order_with_program();
    act(&order, ORDER_STAGE);
    act(&order, ORDER_STAGE);
    says(PHASE_NONE, 1, "");
    act(&order, ORDER_RESTART); /* it can't switch to a version whose program it lacks */
    assert_int_equal(host.left, 0);
    act(&order, ORDER_RETURN);
    says(PHASE_BACK, 1, "");
    assert_int_equal(host.left, 0);
}

static int quiet(void **state)
{
    log_setup(LOG_TEXT, (enum log_level)(LOG_ERROR + 1)); /* nothing */
    programs.count = 0;
    return set_up(state);
}

static int forget_program(void **state)
{
    free(program);
    program = NULL;
    return tear_down(state);
}

int main(void)
{
    return check_run(NULL, NULL);
}
