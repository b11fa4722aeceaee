/* The list of revoked keys on this machine. */
#include "ps/rollout/revoked.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/config/versions.h"
#include "base/file.h"
#include "base/log.h"
#include "base/trust.h"
#include "net/operator_key.h"
#include "ps/rollout/history.h"

static bool name_list(const struct config *config, char path[VERSIONS_PATH], struct error *error)
{
    return config->path ? versions_path(config->path, "revoked", path, error)
                        : error_set(error, "this process runs without a config file, so there is no place to keep the "
                                           "list of revoked keys");
}

bool revoked_read(const struct config *config, uint8_t **bytes, size_t *size, struct error *error)
{
    char path[VERSIONS_PATH];
    *bytes = NULL;
    *size = 0;
    if (!config->path) {
        return true;
    }
    return name_list(config, path, error) &&
           (!file_exists(path) ||
            (trust_file(path, error) && file_read(path, REVOCATION_MAX_BYTES, bytes, size, error)));
}

/* previous: an operator's key that was replaced vouches for what is here already. */
static bool decode(const struct config *config, bool previous, struct revocation_list *list, const uint8_t *bytes,
                   size_t size, struct error *error)
{
    struct operators operators;
    struct error ignored;
    if (!operators_read(config->path, &operators, error)) {
        return false;
    }
    if (previous && operators.count > 1 && revocation_decode(list, bytes, size, &operators.sets[1], &ignored)) {
        return true;
    }
    return revocation_decode(list, bytes, size, &operators.sets[0], error) &&
           (strcmp(list->fleet, config->fleet.name) == 0 ||
            error_set(error, "the list of revoked keys is for fleet \"%s\", but this is fleet \"%s\"", list->fleet,
                      config->fleet.name));
}

/* The list on the disk; count 0 and number 0: there is none. */
static bool read_list(const struct config *config, struct revocation_list *list, struct error *error)
{
    uint8_t *bytes;
    size_t size;
    memset(list, 0, sizeof *list);
    if (!revoked_read(config, &bytes, &size, error)) {
        return false;
    }
    const bool done = !bytes || decode(config, true, list, bytes, size, error) ||
                      error_wrap(error,
                                 "%s.d/revoked; if the operators' keys were replaced, sign the list again (trainer "
                                 "revoke renew), or keep the old keys as operator.pub.previous",
                                 config->path);
    free(bytes);
    return done;
}

static bool names_us(const struct credentials *credentials, char *why, size_t size)
{
    struct revocation_peer self;
    credentials_describe(credentials, &self);
    return revocations_name(credentials_revocations(credentials), &self, why, size);
}

bool revoked_load(const struct config *config, const struct credentials *credentials, struct error *error)
{
    struct revocation_list *list = malloc(sizeof *list);
    struct error expired;
    char why[512];
    bool done = list ? read_list(config, list, error) : error_set(error, "out of memory");
    if (done && list->number > 0 && revocations_put(credentials_revocations(credentials), list) < 0) {
        done = error_set(error, "out of memory for the list of revoked keys");
    } else if (done && list->number > 0) {
        if (!revocation_is_current(list, clock_wall_s(), &expired)) {
            log_warning("%s; it stays in force", expired.text);
        }
        done = !names_us(credentials, why, sizeof why) || error_set(error, "this process can't take part: %s", why);
    }
    free(list);
    return done;
}

uint64_t revoked_number(const struct credentials *credentials)
{
    return credentials ? revocations_number(credentials_revocations(credentials), NULL) : 0;
}

/* Above the one in force here, and the one that another process of this machine may have stored. */
static bool is_newer(const struct config *config, const struct credentials *credentials,
                     const struct revocation_list *list, struct error *error)
{
    struct revocation_list *stored = malloc(sizeof *stored);
    struct error ignored;
    bool done = stored || error_set(error, "out of memory");
    if (done) {
        if (!read_list(config, stored, &ignored)) { /* signed by keys that count no more: a new one replaces it */
            stored->number = 0;
        }
        const uint64_t number = revoked_number(credentials);
        const uint64_t here = stored->number > number ? stored->number : number;
        const bool is_same = stored->number == list->number && number < list->number;
        const bool is_unkept = number == list->number && stored->number < list->number; /* the disk was full, say */
        done = list->number > here || is_same || is_unkept ||
               error_set(error,
                         "the list of revoked keys that was sent has number %" PRIu64 ", but number %" PRIu64
                         " is here: an older list never replaces a newer one",
                         list->number, here);
    }
    free(stored);
    return done;
}

static bool store(const struct config *config, const uint8_t *bytes, size_t size, struct error *error)
{
    char path[VERSIONS_PATH];
    struct versions versions;
    return versions_open(&versions, config->path, error) && name_list(config, path, error) &&
           file_write_atomic(path, &(struct file_part){bytes, size}, 1, error);
}

static void note(const struct config *config, const struct member *self, const struct revocation_list *list, int cut)
{
    char name[MEMBER_TEXT], outcome[64];
    struct versions versions;
    struct error error;
    member_format(self, ' ', name);
    snprintf(outcome, sizeof outcome, "%d revoked; %d connection%s cut", list->count, cut, cut == 1 ? "" : "s");
    log_info("list %" PRIu64 " of revoked keys, signed by %s, is in force: %s", list->number, list->author, outcome);
    if (versions_open(&versions, config->path, &error)) {
        audit_write(
            &versions,
            &(struct audit_entry){
                .member = name, .who = list->author, .what = "revoke", .version = list->number, .outcome = outcome});
    }
}

static bool take(const struct config *config, const struct credentials *credentials, const struct member *self,
                 enum revoked_origin origin, struct revocation_list *list, const uint8_t *bytes, size_t size,
                 struct error *error)
{
    char why[512];
    struct revocations *trial = revocations_create(), *in_force = credentials_revocations(credentials);
    struct revocation_peer us;
    credentials_describe(credentials, &us);
    bool done = trial ? decode(config, false, list, bytes, size, error) && is_newer(config, credentials, list, error)
                      : error_set(error, "out of memory");
    if (done && origin == REVOKED_BY_OPERATOR) {
        revocations_put(trial, list);
        done = revocation_is_current(list, clock_wall_s(), error) &&
               (!revocations_name(trial, &us, why, sizeof why) ||
                error_set(error, "the list of revoked keys names the key of ps 0 itself, from which all others learn "
                                 "of it: give ps 0 a new key first, and then revoke the old one"));
    }
    revocations_release(trial);
    if (!done) {
        return false;
    }
    const int cut = revocations_put(in_force, list);
    if (cut < 0) {
        return error_set(error, "out of memory for the list of revoked keys");
    }
    const bool is_kept = store(config, bytes, size, error);
    note(config, self, list, cut);
    if (names_us(credentials, why, sizeof why)) {
        log_error("this process is locked out: %s", why);
    }
    return is_kept ||
           error_wrap(error, "list %" PRIu64 " of revoked keys is in force only until this process ends", list->number);
}

bool revoked_take(const struct config *config, const struct credentials *credentials, const struct member *self,
                  enum revoked_origin origin, const uint8_t *bytes, size_t size, struct error *error)
{
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    if (!credentials) {
        return error_set(error, "this fleet runs with --insecure, and has no keys to revoke");
    }
    if (!config->path) {
        char path[VERSIONS_PATH];
        return name_list(config, path, error);
    }
    struct revocation_list *list = malloc(sizeof *list);
    pthread_mutex_lock(&one_at_a_time);
    const bool done =
        list ? take(config, credentials, self, origin, list, bytes, size, error) : error_set(error, "out of memory");
    pthread_mutex_unlock(&one_at_a_time);
    free(list);
    return done;
}

void revoked_warn_of_expiry(const struct credentials *credentials)
{
    uint64_t expires_s;
    const uint64_t number = revocations_number(credentials_revocations(credentials), &expires_s);
    if (number > 0 && clock_wall_s() >= (double)expires_s) {
        log_warning("list %" PRIu64 " of revoked keys has expired, and a newer one may have been kept from this "
                    "member; it stays in force; sign it again with: trainer revoke renew",
                    number);
    }
}
