/* `trainer sign`: signatures of files, of a release say, that minisign and `trainer version --verify` check. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include <sodium.h>

#include "base/cli/commands.h"
#include "base/file.h"
#include "base/log.h"
#include "net/minisign.h"

enum { MAX_FILES = 64 };

static const struct command_flag flags[] = {
    {"key", "FILE", "the operator's secret key (trainer keygen --operator=FILE)"},
    {"comment", "TEXT", "a comment that is signed too (the file's name)"},
    {NULL, NULL, NULL},
};

static bool sign_file(const char *path, const char *comment, const uint8_t key[OPERATOR_SECRET_KEY],
                      struct error *error)
{
    char to[PATH_MAX], text[MINISIGN_MAX_FILE];
    uint8_t digest[MINISIGN_DIGEST];
    const char *slash = strrchr(path, '/');
    if ((size_t)snprintf(to, sizeof to, "%s.minisig", path) >= sizeof to) {
        return error_set(error, "%s: the path is too long", path);
    }
    if (!minisign_digest(path, digest, error) ||
        !minisign_sign(key, digest, comment ? comment : (slash ? slash + 1 : path), text, error)) {
        return false;
    }
    const struct file_part part = {text, strlen(text)};
    if (!file_write_atomic(to, &part, 1, error)) {
        return false;
    }
    log_info("wrote %s", to);
    return true;
}

static int run(const struct command_call *call)
{
    const char *key_path = command_value(call, "key");
    uint8_t key[OPERATOR_SECRET_KEY];
    struct error error;
    if (!key_path || call->operand_count == 0) {
        log_error("sign: missing %s; try: trainer sign --key=operator.key SHA256SUMS",
                  key_path ? "FILE" : "--key=FILE");
        return COMMAND_MISUSED;
    }
    bool done = operator_key_read_secret(key_path, key, &error);
    for (int i = 0; i < call->operand_count && done; i++) {
        done = sign_file(call->operands[i], command_value(call, "comment"), key, &error);
    }
    sodium_memzero(key, sizeof key);
    if (!done) {
        log_error("%s", error.text);
        return COMMAND_FAILED;
    }
    return COMMAND_DONE;
}

const struct command command_sign = {
    .name = "sign",
    .operands = "FILE...",
    .max_operands = MAX_FILES,
    .summary = "sign files with the operator's key, in minisign's format",
    .details =
        "Writes FILE.minisig beside each FILE. `minisign -Vm FILE -P KEY` verifies it, with the public key that "
        "`trainer keygen --operator` printed; the signature's first line, which is not itself signed, contains it too. "
        "In a release SHA256SUMS is signed, and `trainer version --verify` checks the other files against it.",
    .flags = flags,
    .run = run,
};
