/*
 * Manifests: their bytes, and which config may follow which.
 *
 * Bytes are signed, so bytes are checked: first the signature, over all of them, and only then is any of them
 * interpreted. Decoding must consume exactly all bytes; the encoding is unique, and no other is accepted.
 */
#include "ps/rollout/manifest.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <sodium.h>

#include "base/config/keys.h"
#include "net/bytes.h"

static const char magic[] = "trainer rollout manifest 3\n";
static const char abort_magic[] = "trainer rollout abort 1\n", resume_magic[] = "trainer rollout resume 1\n";

enum {
    MAGIC = sizeof magic - 1,
    ABORT_MAGIC = sizeof abort_magic - 1,
    RESUME_MAGIC = sizeof resume_magic - 1,
    DIGEST = CONFIG_DIGEST_HEX / 2,
    FLAG_MAY_LOSE = 1,
    FLAG_PROGRAMS = 2,
    DAY_S = 86400
};

/* --- Decoding --- */

static void digest_of(const char *text, size_t size, uint8_t digest[DIGEST])
{
    crypto_generichash(digest, DIGEST, (const uint8_t *)text, size, NULL, 0);
}

static bool take_config(struct unread *rest, struct manifest_config *config, const char *what, struct error *error)
{
    uint8_t computed[DIGEST];
    const uint8_t *digest = NULL;
    if (take_u64(rest, &config->version)) {
        digest = take_bytes(rest, DIGEST);
    }
    config->text = digest ? take_sized_text(rest, MANIFEST_MAX_CONFIG, &config->text_size) : NULL;
    if (!config->text) {
        return error_set(error, "the manifest is torn: it ends in its %s, or that is too large", what);
    }
    digest_of(config->text, config->text_size, computed);
    if (memcmp(computed, digest, DIGEST) != 0) {
        return error_set(error, "the manifest is damaged: its %s is not what its digest says", what);
    }
    sodium_bin2hex(config->digest, sizeof config->digest, digest, DIGEST);
    config->local = take_sized_text(rest, MANIFEST_MAX_LOCAL, &config->local_size);
    return config->local || error_set(error, "the manifest is torn: it ends in its %s, or that is too large", what);
}

/* zeros: "" */
static bool take_digest(struct unread *rest, char digest[PROGRAM_DIGEST_HEX + 1])
{
    static const uint8_t zeros[PROGRAM_HASH];
    const uint8_t *bytes = take_bytes(rest, PROGRAM_HASH);
    digest[0] = '\0';
    if (bytes && memcmp(bytes, zeros, PROGRAM_HASH) != 0) {
        sodium_bin2hex(digest, PROGRAM_DIGEST_HEX + 1, bytes, PROGRAM_HASH);
    }
    return bytes;
}

static bool take_program(struct unread *rest, struct manifest_program *program)
{
    size_t size;
    const char *name = take_sized_text(rest, PROGRAM_ARCHITECTURE - 1, &size);
    if (!name || !take_u64(rest, &program->size) || !take_digest(rest, program->digest) ||
        !take_digest(rest, program->fallback)) {
        return false;
    }
    memcpy(program->architecture, name, size);
    return program->size > 0 && program->size <= PROGRAM_MAX_BYTES && program->digest[0] != '\0';
}

static bool take_programs(struct unread *rest, struct manifest_programs *programs, struct error *error)
{
    uint32_t waves = 0, count = 0;
    bool done = take_u32(rest, &programs->protocol) && take_u32(rest, &programs->rate_kib) && take_u32(rest, &waves) &&
                waves <= ROLLOUT_MAX_WAVES;
    for (uint32_t i = 0; i < waves && done; i++) {
        done = take_u32(rest, &programs->waves.items[i]);
    }
    done = done && take_u32(rest, &programs->waves.budget) && take_u32(rest, &programs->waves.least_speed) &&
           programs->waves.least_speed <= 100 && take_u32(rest, &count) && count > 0 && count <= MANIFEST_MAX_PROGRAMS;
    for (uint32_t i = 0; i < count && done; i++) {
        done =
            take_program(rest, &programs->items[i]) && !manifest_program_for(programs, programs->items[i].architecture);
        programs->count += done;
    }
    programs->waves.count = (int)waves;
    return done || error_set(error, "the manifest is torn: it ends in its programs, or they make no sense");
}

bool manifest_decode_unsigned(struct manifest *manifest, const uint8_t *bytes, size_t size, struct error *error)
{
    struct unread rest = {bytes, size};
    memset(manifest, 0, sizeof *manifest);
    const uint8_t *head = take_bytes(&rest, MAGIC);
    if (!head || memcmp(head, magic, MAGIC) != 0) {
        return error_set(error, "the manifest is invalid: it does not begin like one");
    }
    if (!take_text(&rest, manifest->fleet, MANIFEST_MAX_NAME) ||
        !take_text(&rest, manifest->author, MANIFEST_MAX_NAME) || !take_u64(&rest, &manifest->signed_s) ||
        !take_u64(&rest, &manifest->expires_s) || !(head = take_bytes(&rest, sizeof(uint32_t)))) {
        return error_set(error, "the manifest is torn: it ends in its head");
    }
    const uint32_t flags = get_le32(head);
    if ((flags & ~(uint32_t)(FLAG_MAY_LOSE | FLAG_PROGRAMS)) != 0) {
        return error_set(error, "the manifest has flags %u, which this program does not know: is the program too old?",
                         flags);
    }
    manifest->may_lose = (flags & FLAG_MAY_LOSE) != 0;
    if (!take_config(&rest, &manifest->target, "target", error) ||
        !take_config(&rest, &manifest->fallback, "fallback", error) ||
        ((flags & FLAG_PROGRAMS) != 0 && !take_programs(&rest, &manifest->programs, error))) {
        return false;
    }
    if (rest.size == 0 || rest.size % MANIFEST_SIGNATURE != 0 ||
        rest.size > OPERATOR_MAX_KEYS * (size_t)MANIFEST_SIGNATURE) {
        return error_set(error, "the manifest is torn: %zu bytes where a signature of %d should be", rest.size,
                         MANIFEST_SIGNATURE);
    }
    manifest->signatures = (int)(rest.size / MANIFEST_SIGNATURE);
    if (manifest->target.version <= manifest->fallback.version) {
        return error_set(error, "the manifest leads from version %llu to version %llu, but versions only go up",
                         (unsigned long long)manifest->fallback.version, (unsigned long long)manifest->target.version);
    }
    return true;
}

bool manifest_decode(struct manifest *manifest, const uint8_t *bytes, size_t size, const struct operator_keys *keys,
                     struct error *error)
{
    const size_t signatures = (size_t)keys->threshold * MANIFEST_SIGNATURE, signed_bytes = size - signatures;
    if (size < MAGIC + signatures) {
        return error_set(error, "the manifest is torn: %zu bytes are too few for one", size);
    }
    if (size > MANIFEST_MAX_BYTES) {
        return error_set(error, "the manifest is too large: %zu bytes, at most %d are allowed", size,
                         MANIFEST_MAX_BYTES);
    }
    if (!operator_keys_verify(keys, bytes, signed_bytes, bytes + signed_bytes, keys->threshold)) {
        return keys->threshold == 1
                   ? error_set(error, "the manifest is not signed by the operator key that this member trusts, or it "
                                      "is torn")
                   : error_set(error,
                               "the manifest is not signed by %d of the %d operator keys that this member trusts, or "
                               "it is torn",
                               keys->threshold, keys->count);
    }
    return manifest_decode_unsigned(manifest, bytes, size, error);
}

/* --- Encoding --- */

static uint8_t *put_config(uint8_t *to, struct manifest_config *config)
{
    uint8_t digest[DIGEST];
    digest_of(config->text, config->text_size, digest);
    sodium_bin2hex(config->digest, sizeof config->digest, digest, DIGEST);
    to = put_sized_text(put_bytes(put_u64(to, config->version), digest, DIGEST), config->text, config->text_size);
    return put_sized_text(to, config->local, config->local_size);
}

static uint8_t *put_digest(uint8_t *to, const char *digest)
{
    size_t size = 0;
    memset(to, 0, PROGRAM_HASH);
    sodium_hex2bin(to, PROGRAM_HASH, digest, strlen(digest), NULL, &size, NULL);
    return to + PROGRAM_HASH;
}

static uint8_t *put_programs(uint8_t *to, const struct manifest_programs *programs)
{
    to = put_u32(put_u32(put_u32(to, programs->protocol), programs->rate_kib), (uint32_t)programs->waves.count);
    for (int i = 0; i < programs->waves.count; i++) {
        to = put_u32(to, programs->waves.items[i]);
    }
    to = put_u32(put_u32(to, programs->waves.budget), programs->waves.least_speed);
    to = put_u32(to, (uint32_t)programs->count);
    for (int i = 0; i < programs->count; i++) {
        const struct manifest_program *program = &programs->items[i];
        to = put_u64(put_sized_text(to, program->architecture, strlen(program->architecture)), program->size);
        to = put_digest(put_digest(to, program->digest), program->fallback);
    }
    return to;
}

bool manifest_encode(struct manifest *manifest, const uint8_t secret_key[OPERATOR_SECRET_KEY], uint8_t **bytes,
                     size_t *size, struct error *error)
{
    if (manifest->target.text_size > MANIFEST_MAX_CONFIG || manifest->fallback.text_size > MANIFEST_MAX_CONFIG) {
        return error_set(error, "the job's config is larger than %d bytes: it can't be rolled out",
                         MANIFEST_MAX_CONFIG);
    }
    if (manifest->target.local_size > MANIFEST_MAX_LOCAL || manifest->fallback.local_size > MANIFEST_MAX_LOCAL) {
        return error_set(error, "the keys of single machines take more than %d bytes: they can't be rolled out",
                         MANIFEST_MAX_LOCAL);
    }
    uint8_t *start = malloc(MANIFEST_MAX_BYTES);
    if (!start) {
        return error_set(error, "out of memory");
    }
    uint8_t *end = put_bytes(start, magic, MAGIC);
    end = put_sized_text(end, manifest->fleet, strlen(manifest->fleet));
    end = put_sized_text(end, manifest->author, strlen(manifest->author));
    end = put_u64(put_u64(end, manifest->signed_s), manifest->expires_s);
    const bool programs = manifest->programs.count > 0;
    end = put_u32(end, (manifest->may_lose ? FLAG_MAY_LOSE : 0) | (programs ? FLAG_PROGRAMS : 0));
    end = put_config(put_config(end, &manifest->target), &manifest->fallback);
    end = programs ? put_programs(end, &manifest->programs) : end;
    crypto_sign_detached(end, NULL, start, (unsigned long long)(end - start), secret_key);
    *bytes = start;
    *size = (size_t)(end - start) + MANIFEST_SIGNATURE;
    return true;
}

bool manifest_add_signature(const struct manifest *manifest, const struct operator_keys *keys,
                            const uint8_t secret_key[OPERATOR_SECRET_KEY], uint8_t **bytes, size_t *size,
                            struct error *error)
{
    const size_t signed_bytes = *size - (size_t)manifest->signatures * MANIFEST_SIGNATURE;
    if (keys->threshold > 1 && manifest->signatures >= keys->threshold) {
        return error_set(error, "the manifest has the %d signatures that it needs: propose it", manifest->signatures);
    }
    uint8_t *more = realloc(*bytes, *size + MANIFEST_SIGNATURE);
    if (!more) {
        return error_set(error, "out of memory");
    }
    *bytes = more;
    crypto_sign_detached(more + *size, NULL, more, signed_bytes, secret_key);
    *size += MANIFEST_SIGNATURE;
    return operator_keys_verify(keys, more, signed_bytes, more + signed_bytes, manifest->signatures + 1) ||
           error_set(error, "the manifest is signed by a key twice, or by one that operator.pub here does not have");
}

bool manifest_fits(const struct manifest *manifest, const char *fleet, uint64_t version, uint64_t highest,
                   struct error *error)
{
    if (strcmp(manifest->fleet, fleet) != 0) {
        return error_set(error, "the manifest is for fleet \"%s\", but this is fleet \"%s\"", manifest->fleet, fleet);
    }
    if (manifest->target.version <= version || manifest->target.version <= highest) {
        return error_set(error,
                         "the manifest is old: it leads to version %llu, but version %llu was here already; give the "
                         "new config a higher fleet.version",
                         (unsigned long long)manifest->target.version,
                         (unsigned long long)(version > highest ? version : highest));
    }
    if (manifest->fallback.version != version) {
        return error_set(error, "the manifest goes back to version %llu, but this fleet runs version %llu",
                         (unsigned long long)manifest->fallback.version, (unsigned long long)version);
    }
    return true;
}

static void date_text(double seconds, char text[32])
{
    const time_t when = (time_t)seconds;
    struct tm parts;
    text[0] = '\0';
    if (gmtime_r(&when, &parts)) {
        strftime(text, 32, "%Y-%m-%dT%H:%M:%SZ", &parts);
    }
}

bool manifest_is_current(const struct manifest *manifest, bool has_begun, double now_s, struct error *error)
{
    const double expires_s = (double)manifest->expires_s + (has_begun ? DAY_S : 0);
    char expired[32], now[32];
    if (manifest->expires_s == 0 || now_s < expires_s) {
        return true;
    }
    date_text((double)manifest->expires_s, expired);
    date_text(now_s, now);
    return error_set(error,
                     "the manifest expired at %s, and this machine's clock says %s: roll the config out again, or set "
                     "the clock",
                     expired, now);
}

/* Of one of its two configs. */
static bool is_portable(const struct manifest_config *config, const char *what, struct error *error)
{
    struct config parsed;
    char path[CONFIG_PATH_SIZE];
    bool done = true;
    if (config->local_size == 0) {
        return true;
    }
    if (!config_parse(&parsed, what, (const uint8_t *)config->local, config->local_size, NULL, 0, error)) {
        return error_wrap(error, "the manifest's keys of machines");
    }
    for (const struct config_key *key = config_keys; key->section && done; key++) {
        if (config_origin_of(&parsed, key)->source == SOURCE_FILE && !change_goes_to_machines(key)) {
            config_key_path(key, path);
            done = error_set(error, "the manifest's %s sets %s, which belongs to each machine and can't be rolled out",
                             what, path);
        }
    }
    config_free(&parsed);
    return done;
}

bool manifest_is_portable(const struct manifest *manifest, struct error *error)
{
    return is_portable(&manifest->target, "target", error) && is_portable(&manifest->fallback, "fallback", error);
}

/* --- Abort and resume --- */

void manifest_hash(const uint8_t *bytes, size_t size, uint8_t hash[MANIFEST_HASH])
{
    crypto_generichash(hash, MANIFEST_HASH, bytes, size, NULL, 0);
}

size_t manifest_abort_encode(const struct manifest_abort *abort, const uint8_t secret_key[OPERATOR_SECRET_KEY],
                             uint8_t bytes[MANIFEST_ABORT_BYTES])
{
    uint8_t *end =
        abort->resumes ? put_bytes(bytes, resume_magic, RESUME_MAGIC) : put_bytes(bytes, abort_magic, ABORT_MAGIC);
    end = put_sized_text(end, abort->fleet, strlen(abort->fleet));
    end = put_sized_text(end, abort->author, strlen(abort->author));
    end = put_u64(put_u64(end, abort->signed_s), abort->target);
    end = put_bytes(end, abort->hash, MANIFEST_HASH);
    crypto_sign_detached(end, NULL, bytes, (unsigned long long)(end - bytes), secret_key);
    return (size_t)(end - bytes) + MANIFEST_SIGNATURE;
}

bool manifest_abort_decode(struct manifest_abort *abort, const uint8_t *bytes, size_t size,
                           const struct operator_keys *keys, struct error *error)
{
    memset(abort, 0, sizeof *abort);
    if (size == 0) {
        return error_set(error,
                         "the abort is not signed: give it up with a program that signs, and the operator's key");
    }
    if (size < ABORT_MAGIC + MANIFEST_SIGNATURE || size > MANIFEST_ABORT_BYTES) {
        return error_set(error, "the abort is torn: it can't have %zu bytes", size);
    }
    struct unread rest = {bytes, size - MANIFEST_SIGNATURE};
    if (!operator_keys_verify(keys, bytes, rest.size, bytes + rest.size, 1)) {
        return error_set(error, "the abort is not signed by the operator key that ps 0 trusts, or it is torn");
    }
    const uint8_t *hash = NULL;
    abort->resumes = rest.size >= RESUME_MAGIC && memcmp(rest.bytes, resume_magic, RESUME_MAGIC) == 0;
    const size_t head = abort->resumes ? RESUME_MAGIC : ABORT_MAGIC;
    if (memcmp(take_bytes(&rest, head), abort->resumes ? resume_magic : abort_magic, head) == 0 &&
        take_text(&rest, abort->fleet, MANIFEST_MAX_NAME) && take_text(&rest, abort->author, MANIFEST_MAX_NAME) &&
        take_u64(&rest, &abort->signed_s) && take_u64(&rest, &abort->target)) {
        hash = take_bytes(&rest, MANIFEST_HASH);
    }
    if (!hash || rest.size != 0) {
        return error_set(error, "the abort is invalid: it does not read like one");
    }
    memcpy(abort->hash, hash, MANIFEST_HASH);
    return true;
}

/* --- Programs --- */

const struct manifest_program *manifest_program_by_digest(const struct manifest_programs *programs, const char *digest)
{
    for (int i = 0; i < programs->count; i++) {
        if (strcmp(programs->items[i].digest, digest) == 0) {
            return &programs->items[i];
        }
    }
    return NULL;
}

const struct manifest_program *manifest_program_for(const struct manifest_programs *programs, const char *architecture)
{
    for (int i = 0; i < programs->count; i++) {
        if (strcmp(programs->items[i].architecture, architecture) == 0) {
            return &programs->items[i];
        }
    }
    return NULL;
}

bool manifest_brings_programs(const struct manifest *manifest)
{
    bool differs = false;
    for (int i = 0; i < manifest->programs.count; i++) {
        differs = differs || strcmp(manifest->programs.items[i].digest, manifest->programs.items[i].fallback) != 0;
    }
    return differs;
}

bool manifest_kind(const struct manifest *manifest, const struct config *fallback, const struct config *target,
                   enum rollout_kind *kind, struct error *error)
{
    const struct manifest_config *from = &manifest->fallback, *to = &manifest->target;
    const bool local = from->local_size != to->local_size ||
                       (to->local_size > 0 && memcmp(from->local, to->local, to->local_size) != 0);
    const bool programs = manifest_brings_programs(manifest);
    return change_kind(fallback, target, local || programs, kind, error) &&
           (!programs || *kind == ROLLOUT_LOCAL ||
            error_set(error, "a new program can't come with keys of the job, which all members must change at once: "
                             "roll out the program first, and then the config"));
}

/* --- Kinds of change --- */

static bool is_one_of(const struct config_key *key, const char *const *names, size_t count)
{
    bool found = false;
    for (size_t i = 0; i < count && !found; i++) {
        found = strcmp(key->name, names[i]) == 0;
    }
    return found;
}

bool change_goes_to_machines(const struct config_key *key)
{
    static const char *const names[] = {
        "recovery_wait_secs", "num_threads", "max_steps_per_s", "device",  "cpu_kernels",
        "data_dir",           "memory_mb",   "log_format",      "progress"};
    return key->scope == SCOPE_MACHINE && is_one_of(key, names, sizeof names / sizeof *names);
}

static int find_host(const struct string_list *hosts, const char *host)
{
    for (int i = 0; i < hosts->count; i++) {
        if (strcmp(hosts->items[i], host) == 0) {
            return i;
        }
    }
    return -1;
}

/*
 * Members find each other, and learn of rollouts and of going back, by the addresses of the ps: one that missed a move
 * would look in the wrong place.
 */
static bool check_ps(const struct string_list *before, const struct string_list *after, struct error *error)
{
    int common = before->count < after->count ? before->count : after->count;
    for (int i = 0; i < common; i++) {
        if (strcmp(before->items[i], after->items[i]) != 0) {
            return error_set(
                error,
                "cluster.ps_hosts: entry %d is %s and would be %s: the others find a ps by its address, so a "
                "rollout can only add or remove ps at the end of the list; to move one, stop the job and start it "
                "again (it resumes from its checkpoint), or give the new machine the old name",
                i, before->items[i], after->items[i]);
        }
    }
    return common > 0 || before->count == 0 || error_set(error, "cluster.ps_hosts: would be empty");
}

/*
 * A worker is its index, and its address little more than a name: under another address the same process continues. But
 * if another worker's address moves into an entry, one was removed from the middle of the list, and the process that
 * would continue under that index is not the one meant.
 */
static bool check_workers(const struct string_list *before, const struct string_list *after, struct error *error)
{
    for (int i = 0; i < before->count && i < after->count; i++) {
        int other = find_host(before, after->items[i]);
        if (other >= 0 && other != i) {
            return error_set(
                error,
                "cluster.worker_hosts: entry %d is %s and would be %s, which is worker %d now: a worker is "
                "known by its place in the list, so none can be taken out before the end; put another address "
                "there, or stop the job and start it again",
                i, before->items[i], after->items[i], other);
        }
    }
    return after->count > 0 || before->count == 0 || error_set(error, "cluster.worker_hosts: would be empty");
}

static bool check_key(const struct config_change *change, const struct config *before, const struct config *after,
                      struct error *error)
{
    static const char *const fixed[] = {"name", "insecure"};
    char path[CONFIG_PATH_SIZE];
    config_key_path(change->key, path);
    if (is_one_of(change->key, fixed, sizeof fixed / sizeof *fixed)) {
        return error_set(error, "%s can't be changed by a rollout: stop the job and start it again", path);
    }
    if (strcmp(change->key->name, "ps_hosts") == 0) {
        return check_ps(&before->cluster.ps_hosts, &after->cluster.ps_hosts, error);
    }
    if (strcmp(change->key->name, "worker_hosts") == 0) {
        return check_workers(&before->cluster.worker_hosts, &after->cluster.worker_hosts, error);
    }
    return true;
}

bool change_kind(const struct config *before, const struct config *after, bool local_differs, enum rollout_kind *kind,
                 struct error *error)
{
    struct config_diff diff;
    config_diff(&diff, before, after, SCOPE_JOB);
    bool can = true;
    *kind = local_differs ? ROLLOUT_LOCAL : ROLLOUT_LIVE;
    for (int i = 0; i < diff.count && can; i++) {
        can = check_key(&diff.changes[i], before, after, error);
        if (local_differs || diff.changes[i].key->change != CHANGE_LIVE) {
            *kind = ROLLOUT_JOB;
        }
    }
    config_diff_free(&diff);
    return can;
}

bool change_is_free(const struct config *here, const struct config *after, struct error *error)
{
    struct config_diff diff;
    config_diff(&diff, here, after, SCOPE_JOB);
    bool can = true;
    for (int i = 0; i < diff.count && can; i++) {
        char path[CONFIG_PATH_SIZE];
        config_key_path(diff.changes[i].key, path);
        can = config_origin_of(here, diff.changes[i].key)->source <= SOURCE_VERSION ||
              error_set(error,
                        "%s is set by a flag or the environment here, which would override the rollout at the next "
                        "start: remove that first",
                        path);
    }
    config_diff_free(&diff);
    return can;
}

char *manifest_copy_text(const char *text, size_t size)
{
    char *copy = malloc(size + 1);
    if (copy) {
        memcpy(copy, text, size);
        copy[size] = '\0';
    }
    return copy;
}

bool change_has_member(const struct config *config, struct member who)
{
    const struct config_cluster *cluster = &config->cluster;
    return who.index < (who.role == MEMBER_PS ? cluster->ps_hosts.count : config_worker_room(cluster));
}
