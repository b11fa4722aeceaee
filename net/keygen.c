/* `trainer keygen`: the keys by which members of a cluster recognise each other. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli/commands.h"
#include "base/log.h"
#include "net/credentials.h"
#include "net/member.h"
#include "net/minisign.h"
#include "net/operator_key.h"

enum { DEFAULT_DAYS = 365, MAX_DAYS = 36500 };

static const struct command_flag flags[] = {
    {"out", "FILE", "where to write the key; the file must not exist"},
    {"ca", "DIR", "create a certificate authority there or, with --member, use it"},
    {"member", "WHO", "make a key for ps:0, worker:1, ps or worker (any index), or operator"},
    {"operator", "FILE", "create the operator's key pair, which signs configs for `trainer rollout`"},
    {"days", "N", "how long a member's certificate is valid (365)"},
    {NULL, NULL, NULL},
};

static const char details[] =
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
    "    Keep operator.key secret; copy operator.key.pub to every machine, beside config.json, as operator.pub.\n";

static int misuse(const char *what)
{
    log_error("keygen: %s; try: trainer keygen --out=fleet.key", what);
    return COMMAND_MISUSED;
}

static bool create_operator(const char *path, char known_as[MINISIGN_KEY_TEXT], struct error *error)
{
    char public_path[PATH_MAX];
    uint8_t public_key[OPERATOR_PUBLIC_KEY];
    struct minisign_key key;
    if (!operator_key_create(path, error)) {
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

static int run(const struct command_call *call)
{
    const char *out = command_value(call, "out");
    const char *ca = command_value(call, "ca");
    const char *who = command_value(call, "member");
    const char *operator_key = command_value(call, "operator");
    const char *days_text = command_value(call, "days");
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
    bool done = operator_key ? create_operator(operator_key, known_as, &error)
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
    .details = details,
    .flags = flags,
    .run = run,
};
