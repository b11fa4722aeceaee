/* A member's part: hosts that do less than worker 0, who has no place in the target, and catching up. */
#include "tests/check.h"
#include "tests/ps/rollout/participating.h"

#include <fcntl.h>

#include "base/log.h"
#include "tests/worker/remote/story.h"

static void act(struct participant_order *order, enum rollout_order what)
{
    order->order = what;
    participant_act(&participant, order);
}

static void settle_now(void)
{
    participant_act(&participant, &(struct participant_order){.order = ORDER_NOTHING, .settled = true});
}

/* The lines of the audit log that say that. */
static int audited(const char *what)
{
    static char text[1 << 16];
    char path[128];
    int count = 0;
    snprintf(path, sizeof path, "%s/config.json.d/audit.log", folder);
    FILE *file = fopen(path, "r");
    text[file ? fread(text, 1, sizeof text - 1, file) : 0] = '\0';
    if (file) {
        fclose(file);
    }
    for (const char *at = text; (at = strstr(at, what)); at++) {
        count++;
    }
    return count;
}

/* --- Hosts --- */

static int quiet(void **state);

/* All but worker 0 neither save nor restore. */
TEST_WITH(most_members_only_switch, quiet, tear_down)
{
    static const struct participant_host least = {.switch_to = switch_to, .leave = leave};
    participant.host = least;
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.25, "", secret_key);
    act(&order, ORDER_STAGE);
    says(PHASE_STAGED, 1, "");
    assert_false(participant.prepared);
    act(&order, ORDER_SWITCH);
    says(PHASE_SWITCHED, 2, "");
    act(&order, ORDER_BACK);
    act(&order, ORDER_RESTORE);
    act(&order, ORDER_RESTORE);
    says(PHASE_BACK, 1, "");
    start();
    participant.host = least;
    settle_now();
    says(PHASE_NONE, 1, "");
    disk_left = 0;
    act(&order, ORDER_STAGE);
    says(PHASE_FAILED, 1, "are left on that disk");
    act(&order, ORDER_RESTORE);
    says(PHASE_BACK, 1, "are left on that disk");
}

/* A fleet's first rollout may lead from a config without a number. */
TEST_WITH(the_first_version_is_1, quiet, tear_down)
{
    write_text("config.json", text_of(0, 0.5, ""));
    start();
    struct participant_order order = order_of(ORDER_STAGE, 0, 0.5, 1, 0.25, "", secret_key);
    act(&order, ORDER_STAGE);
    says(PHASE_STAGED, 0, "");
    act(&order, ORDER_SWITCH);
    says(PHASE_SWITCHED, 1, "");
    act(&order, ORDER_BACK);
    says(PHASE_BACK, 0, "");
}

/* The file is noted before a version is in force, so that the next process sees an edit of this one's time, too. */
TEST_WITH(an_edit_under_this_process_is_known_to_the_next, quiet, tear_down)
{
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.25, "", secret_key);
    act(&order, ORDER_STAGE);
    act(&order, ORDER_SWITCH);
    says(PHASE_SWITCHED, 2, "");
    write_text("config.json", text_of(1, 0.75, ""));
    start();
    assert_non_null(strstr(participant.drift.text, "was edited by hand"));
}

/* In place, or as a new file; at the time, or with the size, of the one before. */
TEST_WITH(however_the_file_is_edited_it_is_told, quiet, tear_down)
{
    static const struct {
        double rate;
        bool in_place;
        struct timespec when;
    } edits[] = {{0.7, true, {1001, 5}}, {0.7, true, {1000, 6}}, {0.75, true, {1000, 5}}, {0.7, false, {1000, 5}}};
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        const struct timespec before[2] = {{1000, 5}, {1000, 5}}, after[2] = {edits[i].when, edits[i].when};
        write_text("config.json", text_of(1, 0.5, ""));
        assert_int_equal(utimensat(AT_FDCWD, config_path, before, 0), 0);
        start();
        const char *text = text_of(1, edits[i].rate, "");
        if (edits[i].in_place) {
            FILE *file = fopen(config_path, "r+");
            assert_true(file && fputs(text, file) >= 0 && fclose(file) == 0);
        } else {
            write_text("config.json", text);
        }
        assert_int_equal(utimensat(AT_FDCWD, config_path, after, 0), 0);
        assert_string_equal(participant.drift.text, "");
        participant_act(&participant, &(struct participant_order){.order = ORDER_NOTHING});
        assert_non_null(strstr(participant.drift.text, "was edited by hand"));
    }
}

/* What it was refused for does not matter on the way back, and the model is restored only when all are back. */
TEST_WITH(who_refused_restores_when_it_is_told, quiet, tear_down)
{
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.25, "", secret_key);
    disk_left = 0;
    act(&order, ORDER_STAGE);
    says(PHASE_FAILED, 1, "are left on that disk");
    act(&order, ORDER_BACK);
    act(&order, ORDER_BACK);
    says(PHASE_BACK, 1, "are left on that disk");
    assert_int_equal(host.restored, 0);
    act(&order, ORDER_RESTORE);
    act(&order, ORDER_RESTORE);
    says(PHASE_RESTORED, 1, "");
    assert_int_equal(host.restored, 1);
}

/* What was kept for going back is released in either version, and not by one that came later. */
TEST_WITH(what_is_settled_is_of_the_last_rollout, quiet, tear_down)
{
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.25, "", secret_key);
    act(&order, ORDER_STAGE);
    start();
    settle_now();
    settle_now();
    assert_int_equal(host.settled, 1);
    act(&order, ORDER_STAGE);
    act(&order, ORDER_SWITCH);
    says(PHASE_SWITCHED, 2, "");
    start();
    settle_now();
    assert_int_equal(host.settled, 1);
    write_text("config.json", text_of(3, 0.125, ""));
    start();
    says(PHASE_NONE, 3, "");
    settle_now();
    assert_int_equal(host.settled, 0);
}

static enum participant_switch switch_late(void *context, const struct config *now, int64_t step)
{
    return step == 100 ? SWITCH_LATE : SWITCH_DONE;
}

TEST_WITH(who_learns_of_the_step_too_late_goes_back_with_the_others, quiet, tear_down)
{
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.25, "", secret_key);
    participant.host.switch_to = switch_late;
    order.step = 100;
    act(&order, ORDER_STAGE);
    act(&order, ORDER_SWITCH);
    says(PHASE_LATE, 1, "step 100 had passed when it learnt of it");
    act(&order, ORDER_SWITCH); /* and does not switch alone */
    says(PHASE_LATE, 1, "step 100");
    act(&order, ORDER_BACK);
    says(PHASE_BACK, 1, "");
}

/* --- Who has no place in the target --- */

static void start_worker_1(void)
{
    struct error error;
    const struct config_setting flags[] = {{"job_name", "worker"}, {"task_index", "1"}};
    participant_destroy(&participant);
    config_free(&config);
    assert_true(config_load(&config, config_path, flags, 2, &error));
    participant_create(&participant, &config, (struct member){MEMBER_WORKER, 1}, &table);
    memset(&host, 0, sizeof host);
}

/* Worker 1 of two; the target has only one. */
static struct participant_order order_without_worker_1(void)
{
    write_text("config.json", text_of(1, 0.5, ",\"127.0.0.1:3\""));
    start_worker_1();
    const struct manifest_config before = signed_config(text_of(1, 0.5, ",\"127.0.0.1:3\""), 1, "");
    const struct manifest_config after = signed_config(text_of(2, 0.5, ""), 2, "");
    return order_signed(ORDER_STAGE, &before, &after, secret_key);
}

/* Until that is settled the others may go back, and need it again. */
TEST_WITH(who_is_removed_stays_until_it_is_settled, quiet, tear_down)
{
    struct participant_order order = order_without_worker_1();
    host.has_no_memory = true; /* which it would not need */
    act(&order, ORDER_STAGE);
    says(PHASE_STAGED, 1, "");
    assert_int_equal(host.checked, 0);
    act(&order, ORDER_RESTART);
    says(PHASE_STAGED, 1, "");
    assert_int_equal(host.left, 0);
    assert_int_equal(current(), 1);
    act(&order, ORDER_RETURN);
    says(PHASE_BACK, 1, "");
    order.in_force = 2;
    act(&order, ORDER_CATCH_UP);
    assert_int_equal(host.left, 1);
    assert_true(host.for_good);
    assert_int_equal(current(), 2);
    start_worker_1(); /* somebody started it again, and the fleet goes back after all */
    act(&order, ORDER_RETURN);
    act(&order, ORDER_RETURN);
    assert_int_equal(host.left, 1);
    assert_false(host.for_good);
    assert_int_equal(current(), 1);
}

/* --- What is checked --- */

/* The text with `from` replaced; valid until the next call. */
static char *edited(char *text, const char *from, const char *to)
{
    static char made[600];
    char *at = strstr(text, from);
    assert_non_null(at);
    snprintf(made, sizeof made, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    return made;
}

static void stages(char *before, char *after, const char *refusal)
{
    const struct manifest_config from = signed_config(before, 1, "");
    static uint64_t version = 2;
    char number[40];
    snprintf(number, sizeof number, "\"version\":%d", (int)++version);
    const struct manifest_config to = signed_config(edited(after, "\"version\":2", number), version, "");
    struct participant_order order = order_signed(ORDER_STAGE, &from, &to, secret_key);
    start();
    participant_act(&participant, &order);
    says(refusal[0] != '\0' ? PHASE_FAILED : PHASE_STAGED, 1, refusal);
}

TEST_WITH(only_new_hosts_are_looked_up, quiet, tear_down)
{
    static const char one_ps[] = "\"127.0.0.1:1\"]", new_ps[] = "\"127.0.0.1:1\",\"nowhere.example:9\"]";
    static const char one_worker[] = "\"127.0.0.1:2\"", moved[] = "\"nowhere.example:2\"";
    char before[600], after[600];
    strcpy(before, text_of(1, 0.5, ""));
    strcpy(after, edited(text_of(2, 0.5, ""), one_ps, new_ps));
    stages(before, after, "nowhere.example: there is no such host");
    strcpy(after, edited(text_of(2, 0.5, ""), one_worker, moved));
    stages(before, after, "nowhere.example: there is no such host");
    strcpy(before, edited(text_of(1, 0.5, ""), one_worker, moved)); /* it is so already: it may be off */
    write_text("config.json", before);
    strcpy(after, edited(text_of(2, 0.25, ""), one_worker, moved));
    stages(before, after, "");
}

/* A version is known by its number, in the manifest as in the config. */
TEST_WITH(a_config_of_another_number_is_not_taken, quiet, tear_down)
{
    const struct manifest_config before = signed_config(text_of(1, 0.5, ""), 1, "");
    const struct manifest_config after = signed_config(text_of(2, 0.25, ""), 3, "");
    struct participant_order order = order_signed(ORDER_STAGE, &before, &after, secret_key);
    act(&order, ORDER_STAGE);
    says(PHASE_FAILED, 1, "this program reads the manifest's target differently from the one that signed it");
}

TEST_WITH(as_much_disk_as_it_takes_is_enough, quiet, tear_down)
{
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.25, "", secret_key);
    disk_left = (1 << 20) - 1;
    act(&order, ORDER_STAGE);
    says(PHASE_FAILED, 1, "less than 1024 KiB are left");
    start();
    disk_left++;
    act(&order, ORDER_STAGE);
    says(PHASE_STAGED, 1, "");
}

/* The error names the flag's key before the version is compared with what the flag makes of it. */
TEST_WITH(a_flag_in_the_way_has_a_name, quiet, tear_down)
{
    const struct config_setting flags[] = {{"job_name", "worker"}, {"task_index", "0"}, {"learning_rate", "0.5"}};
    struct error error;
    participant_destroy(&participant);
    config_free(&config);
    assert_true(config_load(&config, config_path, flags, 3, &error));
    participant_create(&participant, &config, (struct member){MEMBER_WORKER, 0}, &table);
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.25, "", secret_key);
    act(&order, ORDER_STAGE);
    says(PHASE_FAILED, 1, "train.learning_rate is set by a flag or the environment here");
}

/* Beside the config, wherever that is. */
TEST_WITH(the_key_lies_beside_the_config, quiet, tear_down)
{
    char path[64], name[] = "config.json", deep[] = "a/b/config.json";
    struct config one = {.path = name};
    struct error error;
    assert_true(participant_key_path(&one, path, sizeof "operator.pub", &error));
    assert_string_equal(path, "operator.pub");
    assert_false(participant_key_path(&one, path, sizeof "operator.pub" - 1, &error));
    assert_non_null(strstr(error.text, "config.json: the path is too long"));
    one.path = deep;
    assert_true(participant_key_path(&one, path, sizeof path, &error));
    assert_string_equal(path, "a/b/operator.pub");
}

/* What is staged well is nothing to warn of. */
TEST_WITH(a_refusal_is_warned_of, quiet, tear_down)
{
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.25, "", secret_key);
    listen_in();
    log_setup(LOG_TEXT, LOG_WARNING);
    act(&order, ORDER_STAGE);
    says(PHASE_STAGED, 1, "");
    assert_string_equal(heard_so_far(), "");
    order = order_of(ORDER_STAGE, 1, 0.5, 3, 0.25, "", secret_key);
    order.manifest_size--;
    act(&order, ORDER_STAGE);
    says(PHASE_FAILED, 1, "manifest");
    assert_int_equal(times(heard(), "version 3 of the config is refused: "), 1);
}

/* --- Catching up --- */

/* What is the same again is said once; a new reason is told. */
TEST_WITH(why_it_can_not_follow_is_said_once, quiet, tear_down)
{
    char path[128];
    struct participant_order order = order_of(ORDER_CATCH_UP, 1, 0.5, 2, 0.25, "", secret_key);
    order.in_force = 3;
    for (int i = 0; i <= 200; i++) {
        participant_act(&participant, &order);
        says(PHASE_FAILED, 1, "the manifest is for fleet \"north\" and version 2, not for \"north\" and version 3");
    }
    assert_int_equal(audited("\"what\":\"catch up\""), 1);
    snprintf(path, sizeof path, "%s/operator.pub", folder);
    assert_int_equal(rename(path, config_path), 0);
    for (int i = 0; i < 100; i++) {
        participant_act(&participant, &order);
    }
    says(PHASE_FAILED, 1, "operator.pub");
    assert_int_equal(audited("\"what\":\"catch up\""), 2);
}

/* However long the reason: what fits a report is compared. */
TEST_WITH(a_long_reason_is_said_once_too, quiet, tear_down)
{
    char text[1024], name[400] = "";
    struct participant_order order = order_of(ORDER_CATCH_UP, 1, 0.5, 2, 0.25, "", secret_key);
    memset(name, 'n', sizeof name - 1);
    snprintf(text, sizeof text,
             "{\"fleet\":{\"name\":\"%s\",\"version\":1},\"cluster\":{\"ps_hosts\":[\"127.0.0.1:1\"],"
             "\"worker_hosts\":[\"127.0.0.1:2\"]}}",
             name);
    write_text("config.json", text);
    start();
    order.in_force = 2;
    for (int i = 0; i <= 200; i++) {
        participant_act(&participant, &order);
        says(PHASE_FAILED, 1, "the manifest is for fleet \"north\" and version 2, not for \"nnnn");
    }
    assert_int_equal(audited("\"what\":\"catch up\""), 1);
}

/* Manifests bring it from now on; the caller frees it. */
static uint8_t *other_program(size_t *size)
{
    uint8_t *program;
    struct error error;
    assert_true(program_own_bytes(&program, size, &error));
    program[*size / 2] ^= 1;
    programs = (struct manifest_programs){.count = 1, .protocol = 1, .items = {{.size = *size}}};
    snprintf(programs.items[0].architecture, sizeof programs.items[0].architecture, "%s", program_own_architecture());
    checked_digest(program, *size, programs.items[0].digest);
    return program;
}

TEST_WITH(a_program_is_taken_before_it_follows, quiet, tear_down)
{
    size_t size;
    const char *digest;
    uint64_t offset;
    uint8_t *program = other_program(&size);
    struct participant_order order = order_of(ORDER_CATCH_UP, 1, 0.5, 2, 0.5, "", secret_key);
    order.in_force = 2;
    participant_take(&participant, 0, program, size); /* which it has not asked for */
    says(PHASE_NONE, 1, "");
    for (int i = 0; i < 3; i++) {
        act(&order, ORDER_CATCH_UP);
        says(PHASE_NONE, 1, "");
        assert_int_equal(host.left, 0);
    }
    assert_true(participant_wants(&participant, &digest, &offset));
    assert_string_equal(digest, programs.items[0].digest);
    assert_int_equal(offset, 0);
    participant_take(&participant, 0, program, 0);
    says(PHASE_NONE, 1, ""); /* of nothing there is nothing to say */
    participant_take(&participant, 0, program, size);
    assert_false(participant_wants(&participant, &digest, &offset));
    act(&order, ORDER_CATCH_UP);
    assert_int_equal(host.left, 1);
    assert_false(host.for_good);
    assert_int_equal(current(), 2);
    assert_int_equal(audited("\"what\":\"catch up\",\"version\":2,\"outcome\":\"begun\""), 1);
    programs.count = 0;
    free(program);
}

/* Another process of this machine may receive it then. */
TEST_WITH(a_program_that_is_half_here_is_let_go, quiet, tear_down)
{
    size_t size;
    const char *digest;
    uint64_t offset;
    free(other_program(&size));
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.5, "", secret_key);
    const int files = open_files();
    act(&order, ORDER_STAGE);
    act(&order, ORDER_STAGE);
    assert_true(participant_wants(&participant, &digest, &offset));
    assert_true(open_files() > files);
    participant_destroy(&participant);
    assert_int_equal(open_files(), files);
    programs.count = 0;
}

/* The disk filled up after it was staged. */
TEST_WITH(a_program_without_room_is_refused, quiet, tear_down)
{
    size_t size;
    const char *digest;
    uint64_t offset;
    uint8_t *program = other_program(&size);
    free(program);
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.5, "", secret_key);
    programs.count = 0;
    act(&order, ORDER_STAGE);
    says(PHASE_NONE, 1, "");
    disk_left = size / 2;
    act(&order, ORDER_STAGE);
    says(PHASE_FAILED, 1, folder);
    assert_false(participant_wants(&participant, &digest, &offset));
    assert_int_equal(audited("\"what\":\"fetch the program\",\"version\":2"), 1);
}

static void touch_program(const struct programs *kept, char letter, char path[VERSIONS_PATH])
{
    static const struct file_part part = {"x", 1};
    char digest[PROGRAM_DIGEST_HEX + 1] = "";
    struct error error;
    memset(digest, letter, PROGRAM_DIGEST_HEX);
    assert_true(programs_path(kept, digest, path, &error));
    *strrchr(path, '/') = '\0';
    assert_int_equal(mkdir(path, 0755), 0);
    path[strlen(path)] = '/';
    assert_true(file_write_atomic(path, &part, 1, &error));
}

/* Those of the manifest stay, of every architecture: ps 0 has them to send, there and back. */
TEST_WITH(programs_of_former_rollouts_are_removed, quiet, tear_down)
{
    char coming[VERSIONS_PATH], to_go_back_to[VERSIONS_PATH], former[VERSIONS_PATH];
    struct programs kept;
    struct error error;
    assert_true(programs_name(&kept, config_path, &error) && programs_keep_own(&kept, &error));
    touch_program(&kept, 'a', coming);
    touch_program(&kept, 'b', to_go_back_to);
    touch_program(&kept, 'c', former);
    programs = (struct manifest_programs){.count = 2, .protocol = 1, .items = {{.size = 1000}, {.size = 1000}}};
    snprintf(programs.items[0].architecture, sizeof programs.items[0].architecture, "%s", program_own_architecture());
    memset(programs.items[0].digest, 'd', PROGRAM_DIGEST_HEX);
    strcpy(programs.items[1].architecture, "vax");
    memset(programs.items[1].digest, 'a', PROGRAM_DIGEST_HEX);
    memset(programs.items[1].fallback, 'b', PROGRAM_DIGEST_HEX);
    struct participant_order order = order_of(ORDER_STAGE, 1, 0.5, 2, 0.5, "", secret_key);
    programs.count = 0;
    act(&order, ORDER_STAGE);
    says(PHASE_NONE, 1, "");
    assert_true(file_exists(coming) && file_exists(to_go_back_to));
    assert_false(file_exists(former));
    assert_true(programs_have(&kept, program_own_digest()));
}

static int quiet(void **state)
{
    log_setup(LOG_TEXT, (enum log_level)(LOG_ERROR + 1)); /* nothing */
    return set_up(state);
}

int main(void)
{
    return check_run(NULL, NULL);
}
