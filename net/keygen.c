/*
 * `trainer keygen`: the keys by which members of a cluster recognise each other. `trainer sign`: signatures of files,
 * those of a release for example, that minisign and `trainer version --verify` check.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#include "base/cli/commands.h"
#include "base/file.h"
#include "base/log.h"
#include "net/credentials.h"
#include "net/member.h"
#include "net/operator_key.h"

enum { DEFAULT_DAYS = 365, MAX_DAYS = 36500 };

static const struct command_flag keygen_flags[] = {
    {"out", "FILE", "where to write the key; the file must not exist"},
    {"ca", "DIR", "create a certificate authority there or, with --member, use it"},
    {"member", "WHO", "make a key for ps:0, worker:1, ps or worker (any index), or operator"},
    {"operator", "FILE", "create the operator's key pair, which signs configs for `trainer rollout`"},
    {"days", "N", "how long a member's certificate is valid (365)"},
    {"passphrase", NULL, "lock the operator's key with a passphrase, which is asked for whenever it signs"},
    {NULL, NULL, NULL},
};

static const char keygen_details[] =
    "trainer keygen --out=fleet.key\n"
    "    One key for the whole fleet: copy it to every machine, beside config.json. Members accept exactly this key,\n"
    "    and clocks do not matter. Anyone who holds it can do anything.\n"
    "    To rotate it: create a new key, install it beside the old one as fleet.key.next on every machine, and\n"
    "    restart the members; both are now trusted. Then, machine by machine, rename fleet.key to\n"
    "    fleet.key.previous and fleet.key.next to fleet.key. Finally remove fleet.key.previous.\n"
    "trainer keygen --ca=keys\n"
    "trainer keygen --ca=keys --member=worker:1 --out=worker1.key\n"
    "    An authority and one key per member, to enforce roles: a key for worker 1 cannot be used as any other\n"
    "    member. keys/ca.key stays where keys are issued; members do not need it. Certificates expire, so clocks\n"
    "    must be right. Start the member with --fleet_key=worker1.key.\n"
    "trainer keygen --operator=operator.key\n"
    "    The key pair of the operator, who may change the config of a running fleet (`trainer help rollout`).\n"
    "    Keep operator.key secret; copy operator.key.pub to every machine, beside config.json, as operator.pub.\n"
    "    With --passphrase the key is of no use to whoever copies the file. It is asked for on the terminal; where "
    "there\n"
    "    is none, set TRAINER_OPERATOR_PASSPHRASE.\n";

static int misuse(const char *what)
{
    log_error("keygen: %s; try: trainer keygen --out=fleet.key", what);
    return COMMAND_MISUSED;
}

/* Asks twice, unless the environment says it. */
static bool choose_passphrase(char passphrase[OPERATOR_PASSPHRASE], struct error *error)
{
    char *again = secret_memory(OPERATOR_PASSPHRASE, error);
    bool done = again && operator_key_ask("passphrase for the new key", passphrase, error) &&
                operator_key_ask("the same again", again, error);
    if (done && (passphrase[0] == '\0' || strcmp(passphrase, again) != 0)) {
        done = error_set(error, passphrase[0] == '\0' ? "the passphrase is empty" : "the two passphrases differ");
    }
    secret_free(again, OPERATOR_PASSPHRASE);
    return done;
}

static bool create_operator(const char *path, bool is_locked, char known_as[MINISIGN_KEY_TEXT], struct error *error)
{
    char *passphrase = secret_memory(OPERATOR_PASSPHRASE, error);
    char public_path[PATH_MAX];
    uint8_t public_key[OPERATOR_PUBLIC_KEY];
    struct minisign_key key;
    const bool created = passphrase && (!is_locked || choose_passphrase(passphrase, error)) &&
                         operator_key_create(path, passphrase, error);
    secret_free(passphrase, OPERATOR_PASSPHRASE);
    if (!created) {
        return false;
    }
    snprintf(public_path, sizeof public_path, "%s.pub", path);
    if (!operator_key_read_public(public_path, public_key, error)) {
        return false;
    }
    minisign_key_of(&key, public_key);
    minisign_key_format(&key, known_as);
    return true;
}

static int run_keygen(const struct command_call *call)
{
    const char *out = command_value(call, "out");
    const char *ca = command_value(call, "ca");
    const char *who = command_value(call, "member");
    const char *operator_key = command_value(call, "operator");
    const char *days_text = command_value(call, "days");
    const bool is_locked = command_switch(call, "passphrase");
    struct error error;
    struct member member;
    long days = DEFAULT_DAYS;
    char known_as[MINISIGN_KEY_TEXT];
    if (days_text) {
        char *end;
        days = strtol(days_text, &end, 10);
        if (end == days_text || *end != '\0' || days < 1 || days > MAX_DAYS) {
            return misuse("--days must be a whole number from 1 to 36500");
        }
    }
    if (is_locked && !operator_key) {
        return misuse("--passphrase needs --operator");
    }
    if (operator_key && (out || ca || who || days_text)) {
        return misuse("--operator cannot be combined with other flags");
    }
    if (who && !ca) {
        return misuse("--member needs --ca=DIR, the authority that signs it");
    }
    if (days_text && !who) {
        return misuse("--days needs --member");
    }
    if (who && !out) {
        return misuse("--member needs --out=FILE");
    }
    if (ca && out && !who) {
        return misuse("--ca with --out needs --member, the owner of the key");
    }
    if (!ca && !out && !operator_key) {
        return misuse("missing --out=FILE");
    }
    if (who && !member_parse(who, &member, &error)) {
        return misuse(error.text);
    }
    bool done = operator_key ? create_operator(operator_key, is_locked, known_as, &error)
                : who        ? credentials_create_member(ca, &member, (int)days, out, &error)
                : ca         ? credentials_create_authority(ca, &error)
                             : credentials_create_fleet_key(out, &error);
    if (!done) {
        log_error("%s", error.text);
        return COMMAND_FAILED;
    }
    if (operator_key) {
        log_info("wrote %s, which signs configs: keep it secret; and %s.pub: copy it to every machine, beside "
                 "config.json, as operator.pub. minisign knows it as %s",
                 operator_key, operator_key, known_as);
    } else if (who) {
        log_info("wrote %s, the key of %s, valid for %ld days; start that member with --fleet_key=%s", out, who, days,
                 out);
    } else if (ca) {
        log_info("wrote %s/ca.key; next: trainer keygen --ca=%s --member=ps:0 --out=ps0.key", ca, ca);
    } else {
        log_info("wrote %s; copy it to every machine of the fleet, and nowhere else", out);
    }
    return COMMAND_DONE;
}

const struct command command_keygen = {
    .name = "keygen",
    .summary = "create the keys that authenticate members of a cluster",
    .details = keygen_details,
    .flags = keygen_flags,
    .confine = CONFINE_READER,
    .run = run_keygen,
};

/* --- trainer sign --- */

enum { MAX_FILES = 64 };

static const struct command_flag sign_flags[] = {
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

static int run_sign(const struct command_call *call)
{
    const char *key_path = command_value(call, "key");
    struct error error;
    if (!key_path || call->operand_count == 0) {
        log_error("sign: missing %s; try: trainer sign --key=operator.key SHA256SUMS",
                  key_path ? "FILE" : "--key=FILE");
        return COMMAND_MISUSED;
    }
    uint8_t *key = secret_memory(OPERATOR_SECRET_KEY, &error);
    bool done = key && operator_key_read_secret(key_path, key, &error);
    for (int i = 0; i < call->operand_count && done; i++) {
        done = sign_file(call->operands[i], command_value(call, "comment"), key, &error);
    }
    secret_free(key, OPERATOR_SECRET_KEY);
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
    .flags = sign_flags,
    .confine = CONFINE_READER,
    .run = run_sign,
};
