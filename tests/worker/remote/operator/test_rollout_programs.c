/*
 * Programs that an operator rolls out: which files are accepted, with what rate and waves, what follows from those in
 * force, and how they are sent to a ps 0 that has part of them, forgets, or is too old.
 */
#include "worker/remote/operator/rollout_client.h"

#include <sys/stat.h>

#include "tests/check.h"

#include "base/file.h"
#include "ps/rollout/decide.h"
#include "tests/worker/remote/fake_member.h"
#include "tests/worker/remote/operator/program_file.h"
#include "tests/worker/remote/story.h"

enum { SIZE = 300 * 1000, MARK_AT = PROGRAM_FILE_MARK_AT };

static char folder[64];

static const char *file(const char *name)
{
    static char paths[4][160];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static int make_folder(void **state)
{
    strcpy(folder, "/tmp/test_programs.XXXXXX");
    return mkdtemp(folder) ? 0 : 1;
}

static int remove_folder(void **state)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

/* A trainer that speaks protocol `lowest` and later; 0: it does not look like one. */
static void write_program(const char *name, uint16_t machine, uint16_t lowest, size_t size)
{
    assert_true(program_file_write(file(name), machine, lowest, size));
}

static void refused(const char *files, const char *rate, const char *waves, const char *why)
{
    struct rollout_programs programs;
    struct error error;
    const struct rollout_flags flags = {.rate = rate, .waves = waves};
    assert_false(rollout_programs_read(&programs, files, &flags, &error));
    if (!strstr(error.text, why)) {
        fail_msg("\"%s\" instead of \"%s\"", error.text, why);
    }
    rollout_programs_free(&programs);
}

static struct rollout_programs taken(const char *files, const char *rate, const char *waves)
{
    struct rollout_programs programs;
    struct error error;
    const struct rollout_flags flags = {.rate = rate, .waves = waves};
    if (!rollout_programs_read(&programs, files, &flags, &error)) {
        fail_msg("%s", error.text);
    }
    return programs;
}

/* --- Files --- */

TEST(files_that_are_no_program)
{
    char files[512];
    write_program("x86", EM_X86_64, 1, SIZE);
    write_program("x86.2", EM_X86_64, 1, SIZE);
    write_program("old", EM_X86_64, 0, SIZE);
    write_program("cut", EM_X86_64, 1, MARK_AT + 24);
    write_program("cut.2", EM_X86_64, 1, MARK_AT + 27);
    refused(file("none"), NULL, NULL, "No such file");
    refused(folder, NULL, NULL, folder);
    refused(file("old"), NULL, NULL, "old: is not a trainer, or is too old to be rolled out");
    refused(file("cut"), NULL, NULL, "cut: is not a trainer, or is too old");
    refused(file("cut.2"), NULL, NULL, "cut.2: is not a trainer, or is too old");
    snprintf(files, sizeof files, "%s,%s", file("x86"), file("x86.2"));
    refused(files, NULL, NULL, "x86.2: is a second program for x86_64: give one for each architecture");
    refused("", NULL, NULL, "--binary: names no program");
    refused(",", NULL, NULL, "--binary: expected the paths of programs, separated by commas");
    snprintf(files, sizeof files, "%s,,%s", file("x86"), file("x86.2"));
    refused(files, NULL, NULL, "--binary: expected the paths of programs, separated by commas");
    static char long_path[5000];
    memset(long_path, 'x', sizeof long_path - 1);
    refused(long_path, NULL, NULL, "--binary: expected the paths of programs, separated by commas");
    refused(NULL, "5", NULL, "--rate_mb, --waves, --budget and --least_speed go with --binary");
    refused(NULL, NULL, "1", "--rate_mb, --waves, --budget and --least_speed go with --binary");
}

TEST(files_that_are_programs)
{
    char files[512], digest[PROGRAM_DIGEST_HEX + 1];
    uint8_t *bytes;
    size_t size;
    struct error error;
    write_program("x", EM_X86_64, 2, SIZE);
    write_program("arm", EM_AARCH64, 1, SIZE - 5);
    snprintf(files, sizeof files, "%s,%s", file("x"), file("arm"));
    struct rollout_programs programs = taken(files, NULL, NULL);
    const struct manifest_programs *all = &programs.programs;
    assert_int_equal(all->count, 2);
    assert_string_equal(all->items[0].architecture, "x86_64");
    assert_string_equal(all->items[1].architecture, "aarch64");
    assert_int_equal(all->items[0].size, SIZE);
    assert_int_equal(all->items[1].size, SIZE - 5);
    assert_int_equal(all->protocol, 2); /* all of them speak it and later ones */
    assert_string_equal(all->items[0].fallback, "");
    assert_true(file_read(file("arm"), SIZE, &bytes, &size, &error));
    checked_digest(bytes, size, digest);
    assert_string_equal(all->items[1].digest, digest);
    assert_memory_equal(programs.bytes[1], bytes, size);
    free(bytes);
    assert_int_equal(all->waves.count, 4);
    assert_int_equal(all->waves.items[0], 1);
    assert_int_equal(all->waves.items[1], 10 | ROLLOUT_PERCENT);
    assert_int_equal(all->waves.items[3], 100 | ROLLOUT_PERCENT);
    rollout_programs_free(&programs);
    assert_int_equal(programs.programs.count, 0);
    assert_null(programs.bytes[0]);
    write_program("one", EM_X86_64, 0x102, MARK_AT + 28); /* the mark is at the very end */
    programs = taken(file("one"), NULL, NULL);
    assert_int_equal(programs.programs.count, 1);
    assert_int_equal(programs.programs.protocol, 0x102);
    rollout_programs_free(&programs);
    programs = taken(NULL, NULL, NULL);
    assert_int_equal(programs.programs.count, 0);
    rollout_programs_free(&programs);
}

TEST(rates_and_waves)
{
    static const char *const bad_rates[] = {"", "x", "0", "-1", "1x", "nan", "inf", "100001"};
    static const char *const bad_waves[] = {"0",   "-1", "101%", "0%", "1000001",           "x",    "1,",
                                            "1,x", "1x", "1 ,2", "%",  "1,2,3,4,5,6,7,8,9", "10%%", ",1"};
    static const struct {
        const char *text;
        uint32_t kib;
    } rates[] = {{NULL, 19532}, {"20", 19532}, {"0.001", 1}, {"1", 977}, {"100000", 97656251}};
    write_program("x", EM_X86_64, 1, SIZE);
    for (size_t i = 0; i < sizeof bad_rates / sizeof *bad_rates; i++) {
        refused(file("x"), bad_rates[i], NULL, "--rate_mb must be a number above 0");
    }
    for (size_t i = 0; i < sizeof bad_waves / sizeof *bad_waves; i++) {
        if (strcmp(bad_waves[i], "1,") != 0) {
            refused(file("x"), NULL, bad_waves[i], "--waves must be up to 8 numbers of workers, or shares of them");
        }
    }
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        struct rollout_programs programs = taken(file("x"), rates[i].text, "1000000,100%,1,2,3,4,5%,6");
        assert_int_equal(programs.programs.rate_kib, rates[i].kib);
        assert_int_equal(programs.programs.waves.count, ROLLOUT_MAX_WAVES);
        assert_int_equal(programs.programs.waves.items[0], 1000000);
        assert_int_equal(programs.programs.waves.items[1], 100 | ROLLOUT_PERCENT);
        assert_int_equal(programs.programs.waves.items[6], 5 | ROLLOUT_PERCENT);
        assert_int_equal(programs.programs.waves.items[7], 6);
        rollout_programs_free(&programs);
    }
}

TEST(budgets_and_least_speeds)
{
    static const char *const bad_budgets[] = {"", "x", "0", "-1", "0%", "101%", "1000001", "5%%", "5x", "%"};
    static const char *const bad_speeds[] = {"", "50", "-1%", "101%", "50%%", "%", "x%"};
    static const struct {
        const char *budget, *least_speed;
        uint32_t workers, percent;
    } good[] = {{NULL, NULL, 0, 50},
                {"1", "0%", 1, 0},
                {"1000000", "100%", 1000000, 100},
                {"1%", "1%", 1 | ROLLOUT_PERCENT, 1},
                {"100%", NULL, 100 | ROLLOUT_PERCENT, 50}};
    struct rollout_programs programs;
    struct error error;
    write_program("x", EM_X86_64, 1, SIZE);
    for (size_t i = 0; i < sizeof bad_budgets / sizeof *bad_budgets; i++) {
        const struct rollout_flags flags = {.budget = bad_budgets[i]};
        assert_false(rollout_programs_read(&programs, file("x"), &flags, &error));
        assert_non_null(strstr(error.text, "--budget must be how many workers may be down at once"));
        rollout_programs_free(&programs);
        assert_false(rollout_programs_read(&programs, NULL, &flags, &error));
    }
    for (size_t i = 0; i < sizeof bad_speeds / sizeof *bad_speeds; i++) {
        const struct rollout_flags flags = {.least_speed = bad_speeds[i]};
        assert_false(rollout_programs_read(&programs, file("x"), &flags, &error));
        assert_non_null(strstr(error.text, "--least_speed must be a share such as 50%"));
        rollout_programs_free(&programs);
        assert_false(rollout_programs_read(&programs, NULL, &flags, &error));
    }
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        const struct rollout_flags flags = {.budget = good[i].budget, .least_speed = good[i].least_speed};
        assert_true(rollout_programs_read(&programs, file("x"), &flags, &error));
        assert_int_equal(programs.programs.waves.budget, good[i].workers);
        assert_int_equal(programs.programs.waves.least_speed, good[i].percent);
        rollout_programs_free(&programs);
    }
}

/* --- What is in force --- */

static struct manifest_programs in_force(int count, const char *const architectures[], uint32_t protocol)
{
    struct manifest_programs programs = {
        .count = count, .protocol = protocol, .rate_kib = 77, .waves = {.count = 1, .items = {9}}};
    for (int i = 0; i < count; i++) {
        snprintf(programs.items[i].architecture, PROGRAM_ARCHITECTURE, "%s", architectures[i]);
        memset(programs.items[i].digest, 'a' + i, PROGRAM_DIGEST_HEX);
        memset(programs.items[i].fallback, 'f', PROGRAM_DIGEST_HEX);
        programs.items[i].size = 1000 + (uint64_t)i;
    }
    return programs;
}

TEST(what_is_in_force_is_gone_back_to)
{
    static const char *const two[] = {"aarch64", "x86_64"};
    static const char *const five[] = {"riscv64", "ppc64", "mips", "s390x"};
    const struct manifest_programs old = in_force(2, two, 3), others = in_force(4, five, 1);
    write_program("x", EM_X86_64, 2, SIZE);
    struct rollout_programs programs = taken(file("x"), "1", "1,2");
    rollout_programs_follow(&programs, &old);
    assert_int_equal(programs.programs.count, 2);
    assert_string_equal(programs.programs.items[0].architecture, "x86_64");
    assert_int_equal(programs.programs.items[0].size, SIZE);
    assert_string_equal(programs.programs.items[0].fallback, old.items[1].digest);
    assert_string_equal(programs.programs.items[1].architecture, "aarch64"); /* stays, as its own fallback */
    assert_string_equal(programs.programs.items[1].digest, old.items[0].digest);
    assert_string_equal(programs.programs.items[1].fallback, old.items[0].digest);
    assert_null(programs.bytes[1]);
    assert_int_equal(programs.programs.protocol, 3);
    assert_int_equal(programs.programs.rate_kib, 977); /* as the operator specified */
    assert_int_equal(programs.programs.waves.count, 2);
    rollout_programs_free(&programs);
    programs = taken(file("x"), NULL, NULL);
    rollout_programs_follow(&programs, &others);
    assert_int_equal(programs.programs.count, MANIFEST_MAX_PROGRAMS); /* one of the others does not fit */
    assert_string_equal(programs.programs.items[3].architecture, "mips");
    assert_int_equal(programs.programs.protocol, 2);
    rollout_programs_free(&programs);
    programs = taken(NULL, NULL, NULL);
    rollout_programs_follow(&programs, &old);
    assert_int_equal(programs.programs.count, 2);
    assert_int_equal(programs.programs.rate_kib, 77);
    assert_int_equal(programs.programs.waves.count, 1);
    assert_int_equal(programs.programs.waves.items[0], 9);
    rollout_programs_free(&programs);
}

TEST(what_is_shown)
{
    static const char *const two[] = {"aarch64", "x86_64"};
    const struct manifest_programs old = in_force(2, two, 1);
    char words[128];
    write_program("x", EM_X86_64, 1, SIZE);
    struct rollout_programs programs = taken(file("x"), NULL, NULL);
    listen_in();
    rollout_programs_show(&programs);
    rollout_programs_follow(&programs, &old);
    rollout_programs_show(&programs);
    const char *text = heard();
    snprintf(words, sizeof words, "program for x86_64           each machine's own -> %.16s  (292 KiB)\n",
             programs.programs.items[0].digest);
    assert_non_null(strstr(text, words));
    snprintf(words, sizeof words, "program for x86_64           bbbbbbbbbbbbbbbb -> %.16s  (292 KiB)\n",
             programs.programs.items[0].digest);
    assert_non_null(strstr(text, words));
    assert_null(strstr(text, "aarch64"));
    rollout_programs_free(&programs);
}

/* --- Sending --- */

static const struct hello_identity self = {.program = "p", .cluster = "", .digest = "d", .job = "{}"};

/* A ps 0 that accepts programs. */
static struct {
    struct fake_member member;
    uint8_t bytes[SIZE];
    uint64_t there;
    int offers, puts;
    bool forgets;             /* at the second piece it behaves as if restarted */
    bool stands_still;        /* reports no progress */
    bool exaggerates;         /* reports more than there is */
    enum message_type odd;    /* answers with this; 0: correctly */
    bool refuses, misnumbers; /* misnumbers: answers a request that was not made */
    char digest[PROGRAM_DIGEST_HEX + 1];
    uint8_t manifest[16];
    size_t manifest_size;
} ps;

static bool take_piece(struct channel *channel)
{
    struct error error;
    const uint64_t at = channel->message.put_program.offset;
    const size_t size = channel->bulk_left;
    static uint8_t piece[PROGRAM_CHUNK];
    if (size > sizeof piece || !channel_read_bulk(channel, piece, size, fake_member_soon(), &error)) {
        return false;
    }
    ps.puts++;
    if (ps.forgets && ps.puts == 2) {
        ps.there = 5;
        return true;
    }
    if (at == ps.there && at + size <= SIZE) {
        memcpy(ps.bytes + at, piece, size);
        ps.there += ps.stands_still ? 0 : size;
    }
    return true;
}

static bool answer(struct fake_member *member, struct channel *channel)
{
    struct error error;
    if (channel->frame.type == MESSAGE_offer_program) {
        snprintf(ps.digest, sizeof ps.digest, "%s", channel->message.offer_program.digest);
        ps.manifest_size = channel->bulk_left;
        ps.offers++;
        if (ps.manifest_size > sizeof ps.manifest ||
            !channel_read_bulk(channel, ps.manifest, ps.manifest_size, fake_member_soon(), &error)) {
            return false;
        }
    } else if (channel->frame.type != MESSAGE_put_program || !take_piece(channel)) {
        return false;
    }
    if (ps.refuses) {
        return fake_member_object(channel, ERROR_NOT_ALLOWED);
    }
    const struct message_program program = {.offset = ps.there + (ps.exaggerates && ps.puts > 0 ? SIZE : 0)};
    const struct message_done done = {-1};
    channel->frame.request += ps.misnumbers;
    return ps.odd ? fake_member_say(channel, ps.odd, &done) : fake_member_say(channel, MESSAGE_program, &program);
}

/* The result; NULL: success. */
static const char *bring(uint64_t there)
{
    static struct error error;
    static const uint8_t manifest[] = "signed";
    struct rollout_client client;
    struct config config;
    char hosts[64];
    fake_member_listen(&ps.member, MEMBER_PS, 0);
    snprintf(hosts, sizeof hosts, "%s", ps.member.host);
    const struct config_setting settings[] = {
        {"ps_hosts", hosts}, {"worker_hosts", "127.0.0.1:1"}, {"insecure", "true"}};
    ps.there = there;
    fake_member_start(&ps.member, &self, answer);
    write_program("x", EM_X86_64, 1, SIZE);
    struct rollout_programs programs = taken(file("x"), NULL, NULL);
    const char *const kept[] = {"aarch64"};
    const struct manifest_programs old = in_force(1, kept, 1);
    rollout_programs_follow(&programs, &old); /* from this one nothing must be sent */
    assert_true(config_parse(&config, "the test", NULL, 0, settings, 3, &error));
    if (!rollout_client_open(&client, &config, &error) || !rollout_client_reach(&client, &error)) {
        fail_msg("%s", error.text);
    }
    const bool done = rollout_programs_bring(&programs, &client, manifest, sizeof manifest, &error);
    assert_string_equal(ps.digest, programs.programs.items[0].digest);
    assert_int_equal(ps.manifest_size, sizeof manifest);
    assert_memory_equal(ps.manifest, manifest, sizeof manifest);
    if (done) {
        assert_memory_equal(ps.bytes + there, programs.bytes[0] + there, SIZE - there);
        assert_int_equal(ps.there, SIZE);
        assert_int_equal(ps.offers, 1);
    }
    rollout_client_close(&client);
    rollout_programs_free(&programs);
    config_free(&config);
    fake_member_stop(&ps.member);
    return done ? NULL : error.text;
}

TEST(a_program_is_brought)
{
    const struct {
        uint64_t there;
        int pieces;
    } cases[] = {{0, 3}, {SIZE, 0}, {SIZE - 1, 1}, {SIZE - PROGRAM_CHUNK, 1}, {7, 3}, {SIZE - PROGRAM_CHUNK - 1, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memset(&ps, 0, sizeof ps);
        assert_null(bring(cases[i].there));
        assert_int_equal(ps.puts, cases[i].pieces);
    }
}

TEST(a_ps_that_does_not_take_it)
{
    memset(&ps, 0, sizeof ps);
    ps.forgets = true;
    assert_non_null(strstr(bring(0), "ps 0 has 5 bytes of the program after it was sent those up to 262144"));
    memset(&ps, 0, sizeof ps);
    ps.stands_still = true;
    assert_non_null(strstr(bring(9), "ps 0 has 9 bytes of the program after it was sent those up to 131081"));
    memset(&ps, 0, sizeof ps);
    ps.exaggerates = true;
    assert_non_null(strstr(bring(0), "ps 0 has 431072 bytes of the program after it was sent those up to 131072"));
    memset(&ps, 0, sizeof ps);
    ps.refuses = true;
    assert_non_null(strstr(bring(0), "ps 0 refuses it: as the test wants"));
    assert_int_equal(ps.puts, 0);
    memset(&ps, 0, sizeof ps);
    ps.odd = MESSAGE_done;
    assert_non_null(strstr(bring(0), "answered offer_program with done"));
    assert_int_equal(ps.puts, 0);
    memset(&ps, 0, sizeof ps);
    ps.misnumbers = true;
    assert_non_null(strstr(bring(0), "answer to a request that was not made"));
    assert_int_equal(ps.puts, 0);
}

int main(void)
{
    return check_run(make_folder, remove_folder);
}
