/* Command lines as people type them. */
#include "base/cli/command.h"
#include "tests/check.h"

#include <string.h>

enum { LAYERS, ISSYNC, WORKER_HOSTS, NOTES, FLAG_COUNT };

static const struct flag flags[FLAG_COUNT] = {
    {"layers", false}, {"issync", true}, {"worker_hosts", false}, {"notes", false}};

struct parsed {
    const char *values[FLAG_COUNT];
    char *operands[8];
    int operand_count;
    struct error error;
};

/* words: at most 8, terminated by NULL. */
static bool parse(struct parsed *parsed, const char *const *words)
{
    static char copies[8][64];
    char *argv[8];
    int argc = 0;
    for (; words[argc]; argc++) {
        argv[argc] = strcpy(copies[argc], words[argc]);
    }
    return flags_parse(flags, FLAG_COUNT, argc, argv, parsed->values, parsed->operands, &parsed->operand_count,
                       &parsed->error);
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void accept(struct parsed *parsed, const char *const *words)
{
    if (!parse(parsed, words)) {
        fail_msg("%s", parsed->error.text);
    }
}

static void refuse(const char *const *words, const char *expected)
{
    struct parsed parsed;
    if (parse(&parsed, words)) {
        fail_msg("accepted, and should say: %s", expected);
    }
    assert_string_equal(parsed.error.text, expected);
}

TEST(values)
{
    struct parsed parsed;
    accept(&parsed, WORDS("--layers=784,10", "--worker_hosts", "a:1"));
    assert_string_equal(parsed.values[LAYERS], "784,10");
    assert_string_equal(parsed.values[WORKER_HOSTS], "a:1");
    assert_null(parsed.values[ISSYNC]);
    accept(&parsed, WORDS("--layers=", "--notes", "-1", "--worker_hosts=a=b"));
    assert_string_equal(parsed.values[LAYERS], "");
    assert_string_equal(parsed.values[NOTES], "-1");
    assert_string_equal(parsed.values[WORKER_HOSTS], "a=b");
}

TEST(switches)
{
    static const char *const on[] = {"--issync", "--issync=true", "--issync=1", "--issync=yes"};
    static const char *const off[] = {"--noissync", "--issync=false", "--issync=0", "--issync=no"};
    struct parsed parsed;
    for (int i = 0; i < 4; i++) {
        accept(&parsed, WORDS(on[i]));
        assert_string_equal(parsed.values[ISSYNC], "true");
        accept(&parsed, WORDS(off[i]));
        assert_string_equal(parsed.values[ISSYNC], "false");
    }
    refuse(WORDS("--issync=on"), "--issync: must be true or false, not \"on\"");
    refuse(WORDS("--noissync=1"), "--noissync takes no value; write --issync=1");
    accept(&parsed, WORDS("--issync", "0"));
    assert_int_equal(parsed.operand_count, 1);
    assert_string_equal(parsed.operands[0], "0");
}

TEST(operands)
{
    struct parsed parsed;
    accept(&parsed, WORDS("a", "--layers", "b", "c", "--issync", "d", "-"));
    assert_int_equal(parsed.operand_count, 4);
    assert_string_equal(parsed.operands[3], "-");
    assert_string_equal(parsed.operands[0], "a");
    assert_string_equal(parsed.operands[1], "c");
    assert_string_equal(parsed.operands[2], "d");
}

TEST(mistakes)
{
    refuse(WORDS("--wroker_hosts=a:1"), "unknown flag --wroker_hosts; did you mean --worker_hosts?");
    refuse(WORDS("--worker-hosts", "a:1"), "unknown flag --worker-hosts; did you mean --worker_hosts?");
    refuse(WORDS("--zzz"), "unknown flag --zzz; `trainer help flags` lists them all");
    refuse(WORDS("--nolayers"), "unknown flag --nolayers; did you mean --layers?");
    refuse(WORDS("--layers=1", "--layers=1"), "--layers is given twice");
    refuse(WORDS("--issync", "--noissync"), "--issync is given twice");
    refuse(WORDS("--layers"), "--layers needs a value: --layers=...");
    refuse(WORDS("--layers", "--issync"), "--layers needs a value: --layers=...");
    refuse(WORDS("-layers=1"), "-layers=1: flags begin with two dashes: --layers");
    refuse(WORDS("--"), "--: not a flag; flags are written --name=value");
    refuse(WORDS("--=3"), "--=3: not a flag; flags are written --name=value");
}

int main(void)
{
    return check_run(NULL, NULL);
}
