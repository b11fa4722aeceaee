/* `trainer keygen`: the keys that members of a cluster know each other by. */
#include <stdlib.h>
#include <string.h>

#include "base/cli/commands.h"
#include "base/log.h"
#include "net/credentials.h"
#include "net/member.h"
#include "net/operator_key.h"

enum { DEFAULT_DAYS = 365, MAX_DAYS = 36500 };

static const struct command_flag flags[] = {
    {"out", "FILE", "where to write the key; it must not be there yet"},
    {"ca", "DIR", "make an authority there, or, with --member, use it"},
    {"member", "WHO", "make a key for ps:0, worker:1, ps or worker (any index), or operator"},
    {"operator", "FILE", "make the operator's pair of keys, which sign configs for `trainer rollout`"},
    {"days", "N", "how long a member's certificate is valid (365)"},
    {NULL, NULL, NULL},
};

static const char details[] =
    "trainer keygen --out=fleet.key\n"
    "    One key for the whole fleet: copy it to every machine, beside config.json. Members accept exactly this key;\n"
    "    no clock is needed. Whoever has it can do everything.\n"
    "    To change it: make a new one, put it beside the old one as fleet.key.next on every machine and restart the\n"
    "    members; both are trusted now. Then rename fleet.key to fleet.key.previous and fleet.key.next to fleet.key,\n"
    "    machine by machine. At last remove fleet.key.previous.\n"
    "trainer keygen --ca=keys\n"
    "trainer keygen --ca=keys --member=worker:1 --out=worker1.key\n"
    "    An authority and a key for each member, for those who want roles told apart: a key for worker 1 is refused\n"
    "    where it claims to be anybody else. keys/ca.key stays with whoever makes keys; members don't need it.\n"
    "    Certificates expire, so clocks must be right. Start a member with --fleet_key=worker1.key.\n"
    "trainer keygen --operator=operator.key\n"
    "    The keys of whoever may change the fleet's config while it runs (`trainer help rollout`). operator.key stays "
    "with\n"
    "    that person; operator.key.pub goes to every machine, beside config.json, under the name operator.pub.\n";

static int misuse(const char *what)
{
    log_error("keygen: %s; try: trainer keygen --out=fleet.key", what);
    return COMMAND_MISUSED;
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
    if (days_text) {
        char *end;
        days = strtol(days_text, &end, 10);
        if (end == days_text || *end != '\0' || days < 1 || days > MAX_DAYS) {
            return misuse("--days must be a whole number from 1 to 36500");
        }
    }
    if (operator_key && (out || ca || who || days_text)) {
        return misuse("--operator=FILE stands alone");
    }
    if (who && !ca) {
        return misuse("--member needs --ca=DIR, the authority that vouches for it");
    }
    if (days_text && !who) {
        return misuse("--days goes with --member");
    }
    if (who && !out) {
        return misuse("--member needs --out=FILE");
    }
    if (ca && out && !who) {
        return misuse("--ca with --out needs --member, whom the key is for");
    }
    if (!ca && !out && !operator_key) {
        return misuse("where should the key go?");
    }
    if (who && !member_parse(who, &member, &error)) {
        return misuse(error.text);
    }
    bool done = operator_key ? operator_key_create(operator_key, &error)
                : who        ? credentials_create_member(ca, &member, (int)days, out, &error)
                : ca         ? credentials_create_authority(ca, &error)
                             : credentials_create_fleet_key(out, &error);
    if (!done) {
        log_error("%s", error.text);
        return COMMAND_FAILED;
    }
    if (operator_key) {
        log_info(
            "wrote %s, which signs configs and stays with you, and %s.pub; copy the latter to every machine, beside "
            "config.json, as operator.pub",
            operator_key, operator_key);
    } else if (who) {
        log_info("wrote %s, the key of %s, valid for %ld days; start it with --fleet_key=%s", out, who, days, out);
    } else if (ca) {
        log_info("wrote %s/ca.key; next: trainer keygen --ca=%s --member=ps:0 --out=ps0.key", ca, ca);
    } else {
        log_info("wrote %s; copy it to every machine of the fleet, and to nobody else", out);
    }
    return COMMAND_DONE;
}

const struct command command_keygen = {
    .name = "keygen",
    .summary = "make the keys that members of a cluster know each other by",
    .details = details,
    .flags = flags,
    .run = run,
};
