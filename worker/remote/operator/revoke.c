/*
 * `trainer revoke`: locks out keys before they expire. The command adds to the list that the fleet has
 * (net/revocation.h), signs it, and hands it to ps 0, from which every member takes it with its next report.
 *
 * The list to start from is the later one of ps 0's, which may be an impostor, and of this machine's: both only as far
 * as they are signed.
 */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <sodium.h>

#include "base/cli/commands.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "net/credentials.h"
#include "net/revocation.h"
#include "ps/rollout/history.h"
#include "ps/rollout/revoked.h"
#include "worker/remote/operator/rollout_client.h"

enum { MAX_OPERANDS = 64, DAY_S = 86400, VALID_DAYS = 90, MAX_DAYS = 3650 };

static const double CALL_S = 5.0;

/* One run of the command. */
struct revocation_call {
    const struct command_call *command;
    struct command_call renewal; /* without operands */
    struct rollout_client client;
    struct operator_keys keys;  /* whose signatures count: operator.pub */
    struct operators operators; /* and those that vouch for the list to start from */
    struct revocation_list list;
    uint8_t bytes[REVOCATION_MAX_BYTES];
    size_t size;
};

/* --- Files --- */

static void beside_config(const struct command_call *call, const char *name, char path[PATH_MAX])
{
    const char *config = call->config->path, *slash = config ? strrchr(config, '/') : NULL;
    snprintf(path, PATH_MAX, "%.*s%s", slash ? (int)(slash - config) + 1 : 0, config ? config : "", name);
}

static bool read_secret(const struct command_call *call, uint8_t *secret, struct error *error)
{
    char path[PATH_MAX];
    const char *given = command_value(call, "key");
    beside_config(call, "operator.key", path);
    return operator_key_read_secret(given ? given : path, secret, error);
}

static bool read_bytes(struct revocation_call *run, const char *path, struct error *error)
{
    uint8_t *bytes;
    if (!file_read(path, REVOCATION_MAX_BYTES, &bytes, &run->size, error)) {
        return false;
    }
    memcpy(run->bytes, bytes, run->size);
    free(bytes);
    return true;
}

static bool is_for_this_fleet(const struct revocation_call *run, struct error *error)
{
    const char *fleet = run->command->config->fleet.name;
    return strcmp(run->list.fleet, fleet) == 0 ||
           error_set(error, "the list of revoked keys is for fleet \"%s\", but this is fleet \"%s\"", run->list.fleet,
                     fleet);
}

/* --- ps 0 --- */

/* *bytes: NULL if it has none; the caller frees them. */
static bool fetch(struct revocation_call *run, uint8_t **bytes, size_t *size, struct error *error)
{
    struct channel *channel = &run->client.link.channel;
    const struct message_get_revoked wanted = {.number = 0};
    const double deadline_s = clock_monotonic_s() + CALL_S;
    *bytes = NULL;
    *size = 0;
    if (!channel_call(channel, MESSAGE_get_revoked, &wanted, MESSAGE_revoked, deadline_s, NULL, error)) {
        return false;
    }
    *size = channel->bulk_left; /* at most REVOCATION_MAX_BYTES: net/message_table.h */
    if (*size == 0) {
        return true;
    }
    *bytes = malloc(*size);
    if (!*bytes) {
        return error_set(error, "out of memory");
    }
    return channel_read_bulk(channel, *bytes, *size, deadline_s, error) || (free(*bytes), *bytes = NULL, false);
}

static bool install(struct revocation_call *run, struct error *error)
{
    struct link *link = &run->client.link;
    const struct message_revoke message = {.number = run->list.number};
    const struct iovec bulk = {run->bytes, run->size};
    struct outgoing frame = {.type = MESSAGE_revoke, .message = &message, .bulk = &bulk, .bulk_parts = 1};
    uint16_t code;
    if (link_call(link, &frame, MESSAGE_done, &code, error)) {
        return true;
    }
    return code == 0 ? error_wrap(error, "ps 0 may or may not have taken it; see `trainer revoke show`")
                     : error_set(error, "ps 0 refuses it: %s", link->channel.message.error.message);
}

/* --- The list to start from --- */

/* As signed, into `list`; number 0: there is none. */
static bool decode(const struct revocation_call *run, struct revocation_list *list, const uint8_t *bytes, size_t size,
                   const char *whose, struct error *error)
{
    struct error ignored;
    memset(list, 0, sizeof *list);
    if (!bytes ||
        (run->operators.count > 1 && revocation_decode(list, bytes, size, &run->operators.sets[1], &ignored))) {
        return true;
    }
    struct error why;
    return revocation_decode(list, bytes, size, &run->keys, &why) ||
           error_set(error, "%s: %s; if operators' keys were replaced, keep the old ones as operator.pub.previous",
                     whose, why.text);
}

static bool find_list(struct revocation_call *run, struct error *error)
{
    struct revocation_list *here = malloc(sizeof *here);
    uint8_t *theirs = NULL, *ours = NULL;
    size_t their_size = 0, our_size = 0;
    bool done = here || error_set(error, "out of memory");
    done = done && fetch(run, &theirs, &their_size, error) &&
           decode(run, &run->list, theirs, their_size, "what ps 0 has", error) &&
           revoked_read(run->command->config, &ours, &our_size, error);
    struct error ignored; /* one that others signed may be renewed from ps 0's */
    if (done && decode(run, here, ours, our_size, "this machine's", &ignored) && here->number > run->list.number) {
        log_warning("ps 0 has list %" PRIu64 " of revoked keys, but list %" PRIu64 " is here, and counts",
                    run->list.number, here->number);
        run->list = *here;
    }
    free(ours);
    free(theirs);
    free(here);
    return done && (run->list.number == 0 || is_for_this_fleet(run, error));
}

/* --- What changes --- */

/* A member, 64 hex digits of a key's hash, or a file with a key or certificate. */
static bool parse_entry(const char *word, struct revocation_entry *entry, struct error *error)
{
    size_t size = 0;
    const char *end = NULL;
    struct error ignored;
    *entry = (struct revocation_entry){.member = {MEMBER_NONE, MEMBER_ANY_INDEX}};
    if (member_parse(word, &entry->member, &ignored)) {
        entry->until_s = (uint64_t)time(NULL);
        return true;
    }
    if (strlen(word) == 2 * (size_t)REVOCATION_KEY &&
        sodium_hex2bin(entry->key, sizeof entry->key, word, strlen(word), NULL, &size, &end) == 0 && *end == '\0' &&
        size == sizeof entry->key) {
        return true;
    }
    struct member named;
    return file_exists(word) ? credentials_public_hash(word, entry->key, &named, error)
                             : error_set(error,
                                         "%s: is no file with a key, no member such as worker:1, and no key's hash of "
                                         "64 hex digits",
                                         word);
}

static bool is_same(const struct revocation_entry *one, const struct revocation_entry *other)
{
    return one->member.role == other->member.role && one->member.index == other->member.index &&
           memcmp(one->key, other->key, REVOCATION_KEY) == 0;
}

/* An entry that replaces one never ends before it, whatever this machine's clock says. */
static void take_off(struct revocation_list *list, struct revocation_entry *entry)
{
    int kept = 0;
    for (int i = 0; i < list->count; i++) {
        const struct revocation_entry *one = &list->entries[i];
        if (!is_same(one, entry)) {
            list->entries[kept++] = *one;
        } else if (one->until_s > entry->until_s) {
            entry->until_s = one->until_s;
        }
    }
    list->count = kept;
}

/* The key that this command itself uses: with a fleet key that is everybody's. */
static bool check_own(const struct revocation_call *run, const struct revocation_entry *entry, struct error *error)
{
    struct revocation_peer self;
    const struct credentials *credentials = run->client.identity.credentials;
    if (!credentials) {
        return true;
    }
    credentials_describe(credentials, &self);
    if (self.member.role == MEMBER_NONE && entry->member.role != MEMBER_NONE) {
        return error_set(error,
                         "this fleet has one key for all, so none of its members can be locked out alone; revoke "
                         "a former key by its file, or make a key for each member: trainer keygen --ca=DIR");
    }
    const bool is_by_name = entry->member.role != MEMBER_NONE && entry->member.role == self.member.role &&
                            (entry->member.index == MEMBER_ANY_INDEX || entry->member.index == self.member.index) &&
                            self.issued_s <= entry->until_s;
    return (!is_by_name && memcmp(self.key, entry->key, REVOCATION_KEY) != 0) ||
           error_set(error, "this is the key that this command uses itself%s; use another one first",
                     self.member.role == MEMBER_NONE ? ", and the whole fleet's" : "");
}

static bool change(struct revocation_call *run, struct error *error)
{
    const struct command_call *call = run->command;
    const bool restores = command_switch(call, "restore");
    const char *reason = command_value(call, "reason");
    struct revocation_list *list = &run->list;
    if (reason && strlen(reason) > REVOCATION_REASON) {
        return error_set(error, "--reason has %zu bytes; at most %d are kept", strlen(reason), REVOCATION_REASON);
    }
    for (int i = 0; i < call->operand_count; i++) {
        struct revocation_entry entry;
        if (!parse_entry(call->operands[i], &entry, error) || (!restores && !check_own(run, &entry, error))) {
            return false;
        }
        const int before = list->count;
        take_off(list, &entry);
        if (restores && list->count == before) {
            return error_set(error, "%s is not on the list; see `trainer revoke show`", call->operands[i]);
        }
        if (restores) {
            continue;
        }
        if (list->count == REVOCATION_MAX_ENTRIES) {
            return error_set(error,
                             "the list of revoked keys holds %d at most: make a new authority, and new keys for "
                             "those who remain, with trainer keygen --ca",
                             REVOCATION_MAX_ENTRIES);
        }
        snprintf(entry.reason, sizeof entry.reason, "%s", reason ? reason : "");
        list->entries[list->count++] = entry;
    }
    return true;
}

static bool read_days(const struct command_call *call, long *days)
{
    const char *text = command_value(call, "days");
    char *end = NULL;
    *days = text ? strtol(text, &end, 10) : VALID_DAYS;
    return !text || (end != text && *end == '\0' && *days >= 1 && *days <= MAX_DAYS);
}

static bool sign_new(struct revocation_call *run, long days, struct error *error)
{
    struct revocation_list *list = &run->list;
    const char *user = getenv("USER");
    char host[128] = "";
    gethostname(host, sizeof host - 1);
    snprintf(list->fleet, sizeof list->fleet, "%s", run->command->config->fleet.name);
    snprintf(list->author, sizeof list->author, "%.100s@%s", user ? user : "unknown", host);
    list->number++;
    list->signed_s = (uint64_t)time(NULL);
    list->expires_s = list->signed_s + (uint64_t)days * DAY_S;
    uint8_t *secret = secret_memory(OPERATOR_SECRET_KEY, error);
    const bool done = secret && read_secret(run->command, secret, error) &&
                      revocation_encode(list, secret, run->bytes, &run->size, error);
    secret_free(secret, OPERATOR_SECRET_KEY);
    return done;
}

/* --- The verbs --- */

static void show(const struct revocation_list *list)
{
    char text[REVOCATION_TEXT];
    struct error expired;
    for (int i = 0; i < list->count; i++) {
        revocation_describe(&list->entries[i], text);
        log_info("revoked: %s%s%s", text, list->entries[i].reason[0] != '\0' ? ": " : "", list->entries[i].reason);
    }
    log_info("list %" PRIu64 ", signed by %s: %d revoked", list->number, list->author, list->count);
    if (!revocation_is_current(list, clock_wall_s(), &expired)) {
        log_warning("%s", expired.text);
    }
}

/* This machine keeps it too, so that ps 0 can't show the command an older one. */
static bool install_and_keep(struct revocation_call *run, struct error *error)
{
    const struct config *config = run->command->config;
    const struct member self = {MEMBER_OPERATOR, MEMBER_ANY_INDEX};
    struct error why;
    if (!revocation_decode(&run->list, run->bytes, run->size, &run->keys, error) || !install(run, error)) {
        return false;
    }
    if (revoked_number(run->client.identity.credentials) < run->list.number &&
        !revoked_take(config, run->client.identity.credentials, &self, REVOKED_BY_PS_0, run->bytes, run->size, &why)) {
        log_warning("this machine does not keep the list: %s", why.text);
    }
    log_info("ps 0 has list %" PRIu64 ", with %d revoked; members take it with their next report, and cut what is open",
             run->list.number, run->list.count);
    return true;
}

static bool write_list(const struct revocation_call *run, const char *path, int signatures, struct error *error)
{
    if (!file_write_atomic(path, &(struct file_part){run->bytes, run->size}, 1, error)) {
        return false;
    }
    log_info("%s has %d of %d signatures; next: trainer revoke %s --list=%s", path, signatures, run->keys.threshold,
             signatures < run->keys.threshold ? "sign" : "install", path);
    return true;
}

static bool add_signature(struct revocation_call *run, struct error *error)
{
    const char *path = command_value(run->command, "list");
    struct revocation_list *list = &run->list;
    if (!read_bytes(run, path, error) || run->size > sizeof run->bytes - OPERATOR_SIGNATURE ||
        !revocation_decode_unsigned(list, run->bytes, run->size, error) || !is_for_this_fleet(run, error)) {
        return false;
    }
    show(list);
    uint8_t *secret = secret_memory(OPERATOR_SECRET_KEY, error);
    const bool done = secret && read_secret(run->command, secret, error) &&
                      revocation_add_signature(list, &run->keys, secret, run->bytes, &run->size, error) &&
                      write_list(run, path, list->signatures + 1, error);
    secret_free(secret, OPERATOR_SECRET_KEY);
    return done;
}

static bool reach(struct revocation_call *run, struct error *error)
{
    return rollout_client_open(&run->client, run->command->config, error) && rollout_client_reach(&run->client, error);
}

static bool revoke_named(struct revocation_call *run, long days, struct error *error)
{
    const char *path = command_value(run->command, "list");
    if (!path && run->keys.threshold > 1) {
        return error_set(error,
                         "operator.pub asks for the signatures of %d operators: add --list=FILE, to which the others "
                         "add theirs with `trainer revoke sign --list=FILE`",
                         run->keys.threshold);
    }
    if (!reach(run, error) || !find_list(run, error) || !change(run, error) || !sign_new(run, days, error)) {
        return false;
    }
    show(&run->list);
    return path ? write_list(run, path, 1, error) : install_and_keep(run, error);
}

static bool show_fleets(struct revocation_call *run, struct error *error)
{
    if (!reach(run, error) || !find_list(run, error)) {
        return false;
    }
    if (run->list.number == 0) {
        log_info("no key is revoked");
    } else {
        show(&run->list);
    }
    return true;
}

/* --- The command --- */

static int misuse(const char *what)
{
    log_error("revoke: %s; try: trainer help revoke", what);
    return COMMAND_MISUSED;
}

static bool is_verb(const struct command_call *call, const char *verb)
{
    return call->operand_count == 1 && strcmp(call->operands[0], verb) == 0;
}

static bool run_verb(struct revocation_call *run, long days, struct error *error)
{
    char path[PATH_MAX];
    beside_config(run->command, "config.json", path);
    if (!operators_read(path, &run->operators, error)) {
        return false;
    }
    run->keys = run->operators.sets[0];
    if (is_verb(run->command, "show")) {
        return show_fleets(run, error);
    }
    if (is_verb(run->command, "sign")) {
        return add_signature(run, error);
    }
    if (is_verb(run->command, "install")) {
        return read_bytes(run, command_value(run->command, "list"), error) && reach(run, error) &&
               install_and_keep(run, error);
    }
    if (is_verb(run->command, "renew")) { /* the same entries, by a new signature */
        run->renewal = *run->command;
        run->renewal.operand_count = 0;
        run->command = &run->renewal;
    }
    return revoke_named(run, days, error);
}

static int run_revoke(const struct command_call *call)
{
    struct error error = {""};
    long days;
    const bool needs_list = is_verb(call, "sign") || is_verb(call, "install");
    if (call->operand_count == 0) {
        return misuse("name what is revoked: a member such as worker:1, or the file of a key; or show, renew, sign or "
                      "install");
    }
    if (needs_list && !command_value(call, "list")) {
        return misuse("name the file of the list, with --list=FILE");
    }
    if (!read_days(call, &days)) {
        return misuse("--days must be a whole number from 1 to 3650");
    }
    if (call->config->cluster.ps_hosts.count == 0) {
        return misuse("no cluster given: set ps_hosts and worker_hosts in config.json, or as flags");
    }
    if (call->config->security.insecure) {
        return misuse("a fleet with --insecure has no keys to revoke");
    }
    struct revocation_call *run = calloc(1, sizeof *run);
    if (!run) {
        log_error("out of memory");
        return COMMAND_FAILED;
    }
    run->command = call;
    const bool done = run_verb(run, days, &error);
    if (!done) {
        log_error("%s", error.text);
    }
    rollout_client_close(&run->client);
    free(run);
    return done ? COMMAND_DONE : COMMAND_FAILED;
}

static const struct command_flag flags[] = {
    {"key", "FILE", "the operator's secret key (operator.key beside config.json)"},
    {"reason", "TEXT", "why; shown to whoever is refused, and in the audit log"},
    {"days", "N", "after so long without a newer list members warn; it stays in force (90)"},
    {"restore", NULL, "take what is named off the list"},
    {"list", "FILE", "where several operators sign: write it there, or `sign` or `install` what is there"},
    {NULL, NULL, NULL},
};

const struct command command_revoke = {
    .name = "revoke",
    .operands = "WHAT...|VERB",
    .max_operands = MAX_OPERANDS,
    .summary = "lock out keys of a running cluster before they expire",
    .details = "WHAT is a member (worker:1, ps, operator): all its certificates that were issued up to now; or the "
               "file of a key, or its hash as in `trainer revoke show`: that key. The fleet's list of revoked keys, "
               "with these added, is signed with the operator's key and sent to ps 0. Every member takes it within "
               "seconds, closes the connections of those keys, and refuses new ones. Each list has a higher number "
               "than the one before it, and none is replaced by a lower one. A machine that can't reach ps 0 gets "
               "it as a copy of config.json.d/revoked.\n"
               "trainer revoke show\nThe list that the fleet has.\n"
               "trainer revoke renew\nThe same list with a new signature and date, before or after it has expired.\n"
               "trainer revoke sign --list=FILE\nAdd a second operator's signature to what the first one wrote there "
               "by --list.\n"
               "trainer revoke install --list=FILE\nSend ps 0 what enough operators have signed.",
    .flags = flags,
    .takes_config = true,
    .confine = CONFINE_CLIENT,
    .run = run_revoke,
};
