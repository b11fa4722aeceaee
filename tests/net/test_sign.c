/* `trainer sign`: the signature beside each file verifies, and if anything is wrong nothing is written. */
#include <sys/stat.h>

#include "base/cli/commands.h"
#include "base/file.h"
#include "net/operator_key.h"
#include "tests/check.h"
#include "tests/net/loopback.h"

static char folder[64];
static const char *key_path;

static int begin(void **state)
{
    static char path[160];
    struct error error;
    loopback_make_folder(folder);
    snprintf(path, sizeof path, "%s", loopback_file(folder, "operator.key"));
    key_path = path;
    return operator_key_create(path, NULL, &error) ? 0 : 1;
}

static int end(void **state)
{
    loopback_remove_folder(folder);
    return 0;
}

static const char *write_text(const char *name, const char *text)
{
    const char *path = loopback_file(folder, name);
    FILE *file = fopen(path, "w");
    assert_true(file && fputs(text, file) >= 0 && fclose(file) == 0);
    return path;
}

static int run(const char *key, const char *comment, const char *const *files, int count)
{
    char *operands[4];
    for (int i = 0; i < count; i++) {
        operands[i] = (char *)(uintptr_t)files[i];
    }
    const struct command_call call = {
        .command = &command_sign, .values = {key, comment}, .operands = operands, .operand_count = count};
    return command_sign.run(&call);
}

/* It has a signature by the operator, with this comment. */
static void assert_signed(const char *path, const char *comment)
{
    struct minisign signature;
    struct minisign_key key;
    struct error error;
    uint8_t public_key[OPERATOR_PUBLIC_KEY], digest[MINISIGN_DIGEST], *bytes;
    char beside[200], public_path[200];
    size_t size;
    snprintf(beside, sizeof beside, "%s.minisig", path);
    snprintf(public_path, sizeof public_path, "%s.pub", key_path);
    if (!operator_key_read_public(public_path, public_key, &error) ||
        !file_read(beside, MINISIGN_MAX_FILE, &bytes, &size, &error) || !minisign_digest(path, digest, &error) ||
        !minisign_parse(&signature, (const char *)bytes, &error)) {
        fail_msg("%s", error.text);
    }
    free(bytes);
    minisign_key_of(&key, public_key);
    assert_true(minisign_verify(&signature, &key, digest, &error));
    assert_string_equal(signature.comment, comment);
}

static bool has_signature(const char *path)
{
    char beside[200];
    snprintf(beside, sizeof beside, "%s.minisig", path);
    return access(beside, F_OK) == 0;
}

/* Each file separately, under its name or the given comment. */
TEST(files_are_signed)
{
    const char *const files[] = {write_text("one", "1"), write_text("two", "2")};
    assert_int_equal(run(key_path, NULL, files, 2), COMMAND_DONE);
    assert_signed(files[0], "one");
    assert_signed(files[1], "two");
    assert_int_equal(run(key_path, "a release", files, 1), COMMAND_DONE); /* over the existing one */
    assert_signed(files[0], "a release");
    assert_signed(files[1], "two");
    char here[200];
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(folder), 0);
    const char *const bare[] = {"one"};
    const int status = run(key_path, NULL, bare, 1);
    assert_int_equal(chdir(here), 0);
    assert_int_equal(status, COMMAND_DONE);
    assert_signed(files[0], "one");
}

/* Stops at the first failure, which gets no signature. */
TEST(what_fails)
{
    static char deep[5000];
    const char *const missing[] = {loopback_file(folder, "none"), write_text("behind", "3")};
    const char *const lonely[] = {write_text("three", "3")}, *const path[] = {deep};
    memset(deep, 'x', sizeof deep - 1);
    assert_int_equal(run(key_path, NULL, missing, 2), COMMAND_FAILED);
    assert_false(has_signature(missing[0]) || has_signature(missing[1]));
    assert_int_equal(run(key_path, NULL, path, 1), COMMAND_FAILED);
    assert_int_equal(run(key_path, "two\nlines", lonely, 1), COMMAND_FAILED);
    assert_int_equal(run(missing[0], NULL, lonely, 1), COMMAND_FAILED);
    assert_false(has_signature(lonely[0]));
    assert_int_equal(run(NULL, NULL, lonely, 1), COMMAND_MISUSED);
    assert_int_equal(run(key_path, NULL, NULL, 0), COMMAND_MISUSED);
    char blocked[200]; /* where the signature should be */
    snprintf(blocked, sizeof blocked, "%s.minisig", lonely[0]);
    assert_int_equal(mkdir(blocked, 0700), 0);
    assert_int_equal(run(key_path, NULL, lonely, 1), COMMAND_FAILED);
}

int main(void)
{
    return check_run(begin, end);
}
