/* A machine's record of rollouts, beside its config: the manifests, the leader's state, and the audit log. */
#include "ps/rollout/history.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cJSON.h>
#include <sodium.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text/json.h"
#include "base/trust.h"
#include "net/operator_key.h"
#include "ps/rollout/manifest.h"

/* --- Where this process's config comes from --- */

static bool find_kind(const struct manifest *manifest, enum rollout_kind *kind)
{
    const struct manifest_config *from = &manifest->fallback, *to = &manifest->target;
    struct config before, after = {.path = NULL};
    struct error ignored;
    if (!config_parse(&before, "fallback", (const uint8_t *)from->text, from->text_size, NULL, 0, &ignored)) {
        return false;
    }
    bool done = config_parse(&after, "target", (const uint8_t *)to->text, to->text_size, NULL, 0, &ignored) &&
                manifest_kind(manifest, &before, &after, kind, &ignored);
    config_free(&after);
    config_free(&before);
    return done;
}

bool lineage_load(const struct config *config, uint64_t version, uint8_t **bytes, size_t *size, struct error *error)
{
    char path[VERSIONS_PATH];
    *bytes = NULL;
    if (version == 0 && !versions_last(config->path, &version, error)) {
        return false;
    }
    if (!lineage_path(config, version, path, error)) {
        return false;
    }
    return version == 0 || !file_exists(path) || checked_read(path, MANIFEST_MAX_BYTES, bytes, size, error) ||
           ((*bytes = NULL), false);
}

static bool read_lineage(const struct config *config, uint64_t version, struct lineage *lineage)
{
    struct manifest manifest;
    struct error error;
    uint8_t *bytes;
    size_t size;
    if (!config->path) {
        return false;
    }
    if (!lineage_load(config, version, &bytes, &size, &error)) {
        log_warning("%s", error.text);
        return false;
    }
    if (!bytes) {
        return false;
    }
    *lineage = (struct lineage){.target = 0};
    bool done = manifest_decode_unsigned(&manifest, bytes, size, &error) && find_kind(&manifest, &lineage->kind);
    if (done) {
        lineage->target = manifest.target.version;
        lineage->fallback = manifest.fallback.version;
        lineage->may_lose = manifest.may_lose;
        memcpy(lineage->digests[0], manifest.target.digest, sizeof lineage->digests[0]);
        memcpy(lineage->digests[1], manifest.fallback.digest, sizeof lineage->digests[1]);
    }
    free(bytes);
    return done;
}

bool lineage_read(const struct config *config, struct lineage *lineage)
{
    return read_lineage(config, 0, lineage);
}

bool lineage_path(const struct config *config, uint64_t version, char path[VERSIONS_PATH], struct error *error)
{
    char name[48];
    snprintf(name, sizeof name, "%08" PRIu64 ".manifest", version);
    return versions_path(config->path, name, path, error);
}

bool lineage_is_fresh(const struct config *config)
{
    const uint64_t version = (uint64_t)config->fleet.version;
    struct lineage lineage;
    return lineage_read(config, &lineage) && (lineage.target == version || lineage.fallback == version);
}

bool lineage_of(const struct config *config, uint64_t version, struct lineage *lineage)
{
    return version > 0 && read_lineage(config, version, lineage) && lineage->target == version;
}

/* Goes back from here, from each version to the one before it. Versions only decrease, so it terminates. */
static bool leads_here(const struct config *config, const char *digest, bool *may_lose)
{
    struct lineage step;
    uint64_t version = (uint64_t)config->fleet.version;
    while (lineage_of(config, version, &step) && step.fallback < version) {
        *may_lose = *may_lose || step.may_lose;
        if (strcmp(digest, step.digests[1]) == 0) {
            return true;
        }
        version = step.fallback;
    }
    return false;
}

bool lineage_adopts(const struct config *config, const char *digest, bool *may_lose)
{
    struct lineage last;
    *may_lose = false;
    if (!config->path) {
        return false;
    }
    if (lineage_read(config, &last) && (uint64_t)config->fleet.version == last.fallback &&
        strcmp(digest, last.digests[0]) == 0) {
        *may_lose = last.may_lose;
        return true;
    }
    return leads_here(config, digest, may_lose);
}

/* --- The program of a version --- */

enum { SETS = 2 };

bool operators_read(const char *config_path, struct operators *operators, struct error *error)
{
    static const char *const names[SETS] = {"operator.pub", "operator.pub.previous"};
    const char *slash = strrchr(config_path, '/');
    operators->count = 0;
    for (int i = 0; i < SETS; i++) {
        char path[VERSIONS_PATH];
        const int folder = slash ? (int)(slash - config_path) + 1 : 0;
        if ((size_t)snprintf(path, sizeof path, "%.*s%s", folder, config_path, names[i]) >= sizeof path) {
            return error_set(error, "%s: the path is too long", config_path);
        }
        if (i > 0 && !file_exists(path)) {
            continue;
        }
        if (!operator_keys_read(path, &operators->sets[operators->count], error)) {
            return false;
        }
        operators->count++;
    }
    return true;
}

static bool decode_signed(struct manifest *manifest, const uint8_t *bytes, size_t size,
                          const struct operators *operators)
{
    struct error ignored;
    for (int i = 0; i < operators->count; i++) {
        if (manifest_decode(manifest, bytes, size, &operators->sets[i], &ignored)) {
            return true;
        }
    }
    return false;
}

/* *version: if the manifest says that it runs in the program of an earlier one, that one. */
static bool names_program(const struct manifest *manifest, const char *digest, uint64_t *version)
{
    const struct manifest_program *program = manifest_program_for(&manifest->programs, program_own_architecture());
    if (manifest->target.version == *version && manifest->programs.count == 0) {
        *version = manifest->fallback.version;
        return false;
    }
    return program && ((manifest->target.version == *version && strcmp(program->digest, digest) == 0) ||
                       (manifest->fallback.version == *version && strcmp(program->fallback, digest) == 0));
}

/* The manifest that brought *version (`of`), or the last one (0). */
static bool manifest_vouches(const struct config *config, uint64_t of, const struct operators *operators,
                             const char *digest, uint64_t *version)
{
    struct manifest manifest;
    struct error error;
    uint8_t *bytes;
    size_t size;
    if (!lineage_load(config, of, &bytes, &size, &error)) {
        log_warning("%s", error.text);
        return false;
    }
    const bool done =
        bytes && decode_signed(&manifest, bytes, size, operators) && names_program(&manifest, digest, version);
    free(bytes);
    return done;
}

bool lineage_vouches(const char *config_path, uint64_t version, const char *digest, struct error *error)
{
    char path[VERSIONS_PATH];
    struct operators operators;
    const struct config config = {.path = path};
    if (!operators_read(config_path, &operators, error)) {
        return false;
    }
    snprintf(path, sizeof path, "%s", config_path);
    for (uint64_t at = version, next = at; at > 0; at = next) { /* a fallback is below its target */
        if (manifest_vouches(&config, at, &operators, digest, &next)) {
            return true;
        }
        if (next == at) {
            uint64_t same = at;
            if (manifest_vouches(&config, 0, &operators, digest, &same)) {
                return true;
            }
            break;
        }
    }
    return error_set(error,
                     "%s.d: no manifest signed by the operator whose key is operator.pub says that version %" PRIu64
                     " runs in the program %.16s; if the key was replaced, keep the old one as operator.pub.previous "
                     "until the next program is rolled out",
                     config_path, version, digest);
}

/* --- The leader's state --- */

enum { MAX_RECORD = 16 << 10 };

static const char *const kind_names[] = {"live", "local", "job"}; /* by enum rollout_kind */

static bool name_record(const struct versions *versions, char path[VERSIONS_PATH], struct error *error)
{
    return file_join(path, VERSIONS_PATH, versions->folder, "rollout.json", error);
}

/* cJSON itself writes numbers with 15 digits only. */
static bool put_number(cJSON *root, const char *name, double number)
{
    char text[40];
    snprintf(text, sizeof text, "%.17g", number);
    return json_put(root, name, cJSON_CreateRaw(isfinite(number) ? text : "null"));
}

static bool put_absent(cJSON *root, const struct rollout_absent *absent)
{
    cJSON *list = cJSON_CreateArray();
    bool done = true;
    for (int i = 0; i < ROLLOUT_MAX_LISTED && done; i++) {
        done =
            !rollout_is_absent(absent, (struct member){MEMBER_WORKER, i}) || json_append(list, cJSON_CreateNumber(i));
    }
    if (!done) {
        cJSON_Delete(list);
        return false;
    }
    return json_put(root, "absent_workers", list);
}

/* False if out of memory. A loss_before of null was not finite. */
static bool put_record(cJSON *root, const struct record *record)
{
    const struct rollout_plan *plan = &record->plan;
    return json_put(root, "state", cJSON_CreateString(rollout_state_name(record->state))) &&
           json_put(root, "kind", cJSON_CreateString(kind_names[plan->kind])) &&
           put_number(root, "target", (double)plan->target) && put_number(root, "fallback", (double)plan->fallback) &&
           put_number(root, "highest", (double)record->highest) && put_number(root, "healthy_s", plan->healthy_s) &&
           put_number(root, "loss_before", record->loss_before) &&
           json_put(root, "job_waited", cJSON_CreateBool(plan->waited)) && put_absent(root, &plan->absent) &&
           put_number(root, "resumed_s", (double)record->resumed_s) &&
           json_put(root, "reason", cJSON_CreateString(record->reason));
}

/* The last member covers all before it; a reason can't look like it, because JSON escapes line ends. */
static const char CHECKSUM[] = ",\n\t\"checksum\":\t\"";

enum { CHECKSUM_END = sizeof "12345678\"\n}\n" };

static void end_record(const char *path, const char *text, size_t size, char end[CHECKSUM_END])
{
    snprintf(end, CHECKSUM_END, "%08" PRIx32 "\"\n}\n", checked_sum(path, text, size));
}

static bool is_sound(const char *path, const char *text, size_t size)
{
    char end[CHECKSUM_END];
    const char *at = strstr(text, CHECKSUM);
    if (strlen(text) != size || !at) {
        return false;
    }
    end_record(path, text, (size_t)(at - text), end);
    return strcmp(at + sizeof CHECKSUM - 1, end) == 0;
}

bool record_store(const struct versions *versions, const struct record *record, struct error *error)
{
    char path[VERSIONS_PATH], end[CHECKSUM_END];
    cJSON *root = cJSON_CreateObject();
    char *text = put_record(root, record) ? cJSON_Print(root) : NULL;
    cJSON_Delete(root);
    if (!text) {
        return error_set(error, "%s: out of memory for the state of the rollout", versions->folder);
    }
    const size_t size = strlen(text) - 2; /* without its "\n}" */
    bool done = name_record(versions, path, error);
    if (done) {
        end_record(path, text, size, end);
        const struct file_part parts[] = {{text, size}, {CHECKSUM, sizeof CHECKSUM - 1}, {end, strlen(end)}};
        done = file_write_atomic(path, parts, 3, error);
    }
    cJSON_free(text);
    return done;
}

/* The largest whole number that a double represents exactly. */
static const uint64_t MOST_COUNT = UINT64_C(1) << 53;

static bool get_count(const cJSON *root, const char *name, uint64_t *count)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, name);
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble <= (double)MOST_COUNT) ||
        floor(item->valuedouble) != item->valuedouble) { /* NOLINT: exactly */
        return false;
    }
    *count = (uint64_t)item->valuedouble;
    return true;
}

static bool get_real(const cJSON *root, const char *name, double *number)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, name);
    *number = cJSON_IsNumber(item) ? item->valuedouble : NAN;
    return cJSON_IsNumber(item) || cJSON_IsNull(item);
}

static bool get_kind(const cJSON *root, enum rollout_kind *kind)
{
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(root, "kind"));
    for (int i = 0; name && i <= ROLLOUT_JOB; i++) {
        if (strcmp(name, kind_names[i]) == 0) {
            *kind = (enum rollout_kind)i;
            return true;
        }
    }
    return false;
}

static bool get_absent(const cJSON *root, struct rollout_absent *absent)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(root, "absent_workers"), *item;
    bool done = cJSON_IsArray(list);
    cJSON_ArrayForEach(item, list)
    {
        const int worker = cJSON_IsNumber(item) ? item->valueint : 0;
        done = done && worker > 0 && worker < ROLLOUT_MAX_LISTED; /* the chief is never omitted */
        if (done) {
            absent->bits[worker / 8] |= (uint8_t)(1 << worker % 8);
        }
    }
    return done;
}

/* Without base/text/json.h: a reason may be cut in the middle of a character, and must not keep ps 0 from starting. */
static bool parse_record(const char *text, struct record *record)
{
    struct rollout_plan *plan = &record->plan;
    cJSON *root = cJSON_ParseWithOpts(text, NULL, true);
    const char *state = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(root, "state"));
    const char *reason = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(root, "reason"));
    const cJSON *waited = cJSON_GetObjectItemCaseSensitive(root, "job_waited");
    const bool done = state && rollout_state_by_name(state, &record->state) && get_kind(root, &plan->kind) &&
                      get_count(root, "target", &plan->target) && get_count(root, "fallback", &plan->fallback) &&
                      get_count(root, "highest", &record->highest) &&
                      get_count(root, "resumed_s", &record->resumed_s) &&
                      get_real(root, "healthy_s", &plan->healthy_s) && isfinite(plan->healthy_s) &&
                      get_real(root, "loss_before", &record->loss_before) && cJSON_IsBool(waited) &&
                      get_absent(root, &plan->absent) && reason;
    plan->waited = cJSON_IsTrue(waited);
    snprintf(record->reason, sizeof record->reason, "%s", done ? reason : "");
    cJSON_Delete(root);
    return done;
}

bool record_read(const struct versions *versions, bool *there, struct record *record, struct error *error)
{
    char path[VERSIONS_PATH];
    uint8_t *bytes;
    size_t size;
    *there = false;
    if (!name_record(versions, path, error)) {
        return false;
    }
    *there = file_exists(path);
    if (!*there) {
        return true;
    }
    *record = (struct record){.state = ROLLOUT_IDLE};
    if (!trust_file(path, error) || !file_read(path, MAX_RECORD, &bytes, &size, error)) {
        return false;
    }
    const bool done = is_sound(path, (char *)bytes, size) && parse_record((char *)bytes, record);
    free(bytes);
    return done || error_set(error, "%s: is damaged; remove it if no rollout was under way", path);
}

/* --- The audit log --- */

static const double AUDIT_MINUTE_S = 60;
#define AUDIT_MENDED "mended" /* what a line does that stands for an unfinished one */
enum { AUDIT_BURST = 10, AUDIT_LINE = 2048, AUDIT_PREV = sizeof ",\"prev\":\"\"}" - 1 + AUDIT_HASH_HEX };

bool audit_may_write(struct audit_meter *meter, double now_s, uint64_t *left_out)
{
    const double minutes = floor((now_s - meter->since_s) / AUDIT_MINUTE_S);
    if (minutes >= meter->lines) {
        meter->lines = 0;
        meter->since_s = now_s;
    } else {
        meter->lines -= (int)minutes;
        meter->since_s += minutes * AUDIT_MINUTE_S;
    }
    if (meter->lines >= AUDIT_BURST) {
        meter->left_out++;
        return false;
    }
    meter->lines++;
    *left_out = meter->left_out;
    meter->left_out = 0;
    return true;
}

/* Of a line, without its end. */
static void hash_line(const char *line, size_t size, char hex[AUDIT_HASH_HEX + 1])
{
    uint8_t hash[AUDIT_HASH_HEX / 2];
    crypto_generichash(hash, sizeof hash, (const uint8_t *)line, size, NULL, 0);
    sodium_bin2hex(hex, AUDIT_HASH_HEX + 1, hash, sizeof hash);
}

/* The end of a file. */
struct audit_tail {
    char last[AUDIT_HASH_HEX + 1], before[AUDIT_HASH_HEX + 1]; /* of its last two whole lines; zeros: there is none */
    off_t size;
    size_t torn; /* bytes after its last whole line */
    char text[4 * AUDIT_LINE + 1];
    const char *torn_text; /* in `text`; at most its size */
};

static void no_hash(char hex[AUDIT_HASH_HEX + 1])
{
    memset(hex, '0', AUDIT_HASH_HEX);
    hex[AUDIT_HASH_HEX] = '\0';
}

static bool read_tail(const char *path, struct audit_tail *tail, struct error *error)
{
    struct stat status;
    ssize_t got = -1;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    no_hash(tail->last);
    no_hash(tail->before);
    if (fd >= 0 && fstat(fd, &status) == 0) {
        const off_t most = sizeof tail->text - 1;
        tail->size = status.st_size;
        got = pread(fd, tail->text, (size_t)most, tail->size > most ? tail->size - most : 0);
    }
    if (got < 0) {
        file_error(error, path, "cannot be read", errno);
    }
    if (fd >= 0) {
        close(fd);
    }
    const char *end = got > 0 ? memrchr(tail->text, '\n', (size_t)got) : NULL; /* of the last whole line */
    tail->torn_text = end ? end + 1 : tail->text;
    tail->torn = got > 0 ? (size_t)(tail->text + got - tail->torn_text) : 0;
    for (int i = 0; i < 2 && end; i++) {
        const char *newline = end > tail->text ? memrchr(tail->text, '\n', (size_t)(end - tail->text)) : NULL;
        const char *line = newline ? newline + 1 : tail->text;
        hash_line(line, (size_t)(end - line), i == 0 ? tail->last : tail->before);
        end = newline;
    }
    return got >= 0;
}

enum { LOCK_WAIT_S = 5 };

/* Who may read the file can lock it as well. Without locks in its file system, two processes may break the chain. */
static bool lock_log(int fd)
{
    const double deadline_s = clock_monotonic_s() + LOCK_WAIT_S;
    while (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        if (clock_monotonic_s() >= deadline_s) {
            return false;
        }
        clock_pause(clock_monotonic_s() + 0.02);
    }
    return true;
}

/*
 * Opens and locks the file that is in place: several processes of one machine write to it, and one of them may start a
 * new file meanwhile. -1, with an error.
 */
static int open_log(const char *path, struct error *error)
{
    for (;;) {
        struct stat open_one, there;
        const int fd = file_append(path, 0666, false, error);
        if (fd < 0) {
            return -1;
        }
        if (!lock_log(fd)) {
            close(fd);
            error_set(error, "%s: another process has locked it for %d s", path, LOCK_WAIT_S);
            return -1;
        }
        if (fstat(fd, &open_one) != 0 ||
            (stat(path, &there) == 0 ? open_one.st_ino == there.st_ino : errno != ENOENT)) {
            return fd;
        }
        close(fd); /* another process has begun a new file, or is about to */
    }
}

/* Starts a new file in place of one that is full, open and locked; the chain goes on. */
static int begin_new_log(const char *path, int fd, struct error *error)
{
    char former[VERSIONS_PATH + 4];
    snprintf(former, sizeof former, "%s.1", path);
    if (rename(path, former) != 0) {
        return fd;
    }
    close(fd);
    return open_log(path, error);
}

static void name_head(const char *path, char head[VERSIONS_PATH])
{
    snprintf(head, VERSIONS_PATH, "%.*shead", (int)(strlen(path) - strlen("log")), path);
}

/* The line, which ends in a brace, linked to the one before it; prev: its hash, and then that of this one. */
static bool write_linked(const char *path, int fd, const char *line, char prev[AUDIT_HASH_HEX + 1], bool ends_torn,
                         struct error *error)
{
    char head[VERSIONS_PATH], text[AUDIT_LINE + 2];
    const int size = snprintf(text, sizeof text, "%s%.*s,\"prev\":\"%s\"}\n", ends_torn ? "\n" : "",
                              (int)strlen(line) - 1, line, prev);
    const size_t skipped = ends_torn ? 1 : 0;
    hash_line(text + skipped, (size_t)size - skipped - 1, prev);
    if (write(fd, text, (size_t)size) != size || fsync(fd) != 0) {
        return file_error(error, path, "cannot be written", errno);
    }
    name_head(path, head);
    return checked_line_write(head, prev, error);
}

/* What audit.head names; zeros: it is not there, or damaged. */
static void read_head(const char *path, char named[AUDIT_HASH_HEX + 1])
{
    char head[VERSIONS_PATH], line[CHECKED_LINE];
    struct error ignored;
    name_head(path, head);
    no_hash(named);
    if (file_exists(head) && checked_line_read(head, line, &ignored) && strlen(line) == AUDIT_HASH_HEX) {
        memcpy(named, line, AUDIT_HASH_HEX);
    }
}

/*
 * Is what follows the last whole line the beginning of one that was being written when the power failed? Then
 * audit.head does not name it yet, but the line before it, or the one before that. Had a whole line been cut,
 * audit.head would name that one.
 */
static bool is_unfinished(const struct audit_tail *tail, const char named[AUDIT_HASH_HEX + 1])
{
    char none[AUDIT_HASH_HEX + 1];
    no_hash(none);
    const bool is_second = strcmp(named, none) != 0 && strcmp(named, tail->before) == 0;
    return tail->torn > 0 && tail->torn < AUDIT_LINE && (strcmp(named, tail->last) == 0 || is_second);
}

/*
 * The hash that the next line names. A process may have died between a full file's rename and the new one's first whole
 * line: then the chain goes on from the former file, if audit.head names its last line. An empty file is no such sign.
 */
static bool find_tail(const char *path, struct audit_tail *tail, char named[AUDIT_HASH_HEX + 1], struct error *error)
{
    char former[VERSIONS_PATH + 4];
    struct error ignored;
    snprintf(former, sizeof former, "%s.1", path);
    read_head(path, named);
    if (!read_tail(path, tail, error)) {
        return false;
    }
    struct audit_tail *before = (off_t)tail->torn == tail->size && file_exists(former) ? malloc(sizeof *before) : NULL;
    if (before && read_tail(former, before, &ignored) && before->torn == 0 && strcmp(named, before->last) == 0) {
        memcpy(tail->last, before->last, sizeof tail->last);
    }
    free(before);
    return true;
}

/* What a line that says so keeps of one that is unfinished. */
static void describe_unfinished(const struct audit_tail *tail, char text[AUDIT_LINE])
{
    enum { SHOWN = 256 };
    char shown[SHOWN + 1];
    size_t size = 0;
    for (; size < tail->torn && size < SHOWN; size++) {
        const char byte = tail->torn_text[size];
        shown[size] = (char)(byte >= ' ' && byte <= '~' && byte != '"' && byte != '\\' ? byte
                             : byte == '"'                                             ? '\''
                                                                                       : '?');
    }
    shown[size] = '\0';
    snprintf(text, AUDIT_LINE,
             "{\"what\":\"" AUDIT_MENDED "\",\"outcome\":\"the process ended while it wrote the line that began here, "
             "of which there were %zu bytes: %s\"}",
             tail->torn, shown);
}

/* Ends what a power cut left of a line: it is replaced by a whole one, in the chain, that quotes it. */
static bool mend(const char *path, int fd, struct audit_tail *tail, char prev[AUDIT_HASH_HEX + 1], struct error *error)
{
    char line[AUDIT_LINE];
    describe_unfinished(tail, line);
    if (ftruncate(fd, tail->size - (off_t)tail->torn) != 0) {
        return file_error(error, path, "cannot be mended", errno);
    }
    tail->torn = 0;
    log_warning("%s: its last line was unfinished; a line that says so is in its place", path);
    return write_linked(path, fd, line, prev, false, error);
}

/* line: NULL if only what is unfinished is to be mended. */
static bool append_to(const char *path, int *fd, const char *line, struct audit_tail *tail, struct error *error)
{
    char prev[AUDIT_HASH_HEX + 1], named[AUDIT_HASH_HEX + 1];
    struct stat status;
    if (!find_tail(path, tail, named, error)) {
        return false;
    }
    memcpy(prev, tail->last, sizeof prev);
    if (is_unfinished(tail, named) && !mend(path, *fd, tail, prev, error)) {
        return false;
    }
    if (!line) {
        return true;
    }
    if (tail->torn > 0) { /* no power cut: it stays, and does not verify */
        hash_line(tail->torn_text, tail->torn, prev);
    }
    bool ends_torn = tail->torn > 0;
    if (fstat(*fd, &status) == 0 && status.st_size >= AUDIT_MAX_BYTES) {
        *fd = begin_new_log(path, *fd, error);
        ends_torn = false;
        if (*fd >= 0 && read_tail(path, tail, error) && tail->size > 0) { /* another process was there first */
            memcpy(prev, tail->last, sizeof prev);
        }
    }
    return *fd >= 0 && write_linked(path, *fd, line, prev, ends_torn, error);
}

static void append(const char *path, const char *line)
{
    struct error error;
    struct audit_tail *tail = malloc(sizeof *tail);
    int fd = tail ? open_log(path, &error) : -1;
    if (!tail) {
        error_set(&error, "out of memory");
    }
    if (fd < 0 || !append_to(path, &fd, line, tail, &error)) {
        log_warning("can't append to the audit log: %s", error.text);
    }
    if (fd >= 0) {
        close(fd);
    }
    free(tail);
}

void audit_mend(const char *config_path)
{
    char path[VERSIONS_PATH];
    struct error ignored;
    struct stat status;
    if (versions_path(config_path, "audit.log", path, &ignored) && stat(path, &status) == 0 && status.st_size > 0) {
        append(path, NULL);
    }
}

/* False if out of memory. */
static bool put_entry(cJSON *line, const struct audit_entry *entry)
{
    char when[32];
    struct tm date;
    time_t now = time(NULL);
    gmtime_r(&now, &date);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &date);
    return json_put(line, "when", cJSON_CreateString(when)) &&
           json_put(line, "member", cJSON_CreateString(entry->member)) &&
           json_put(line, "who", cJSON_CreateString(entry->who)) &&
           json_put(line, "what", cJSON_CreateString(entry->what)) &&
           json_put(line, "version", cJSON_CreateNumber((double)entry->version)) &&
           json_put(line, "outcome", cJSON_CreateString(entry->outcome)) &&
           (entry->left_out == 0 || json_put(line, "left_out", cJSON_CreateNumber((double)entry->left_out)));
}

void audit_write(const struct versions *versions, const struct audit_entry *entry)
{
    char path[VERSIONS_PATH], text[AUDIT_LINE];
    struct error error;
    cJSON *line = cJSON_CreateObject();
    const bool printed =
        put_entry(line, entry) && cJSON_PrintPreallocated(line, text, sizeof text - AUDIT_PREV - 1, false);
    cJSON_Delete(line);
    if (!printed) {
        log_warning("%s: a line of the audit log is lost: it is too long, or memory ran out", versions->folder);
    } else if (file_join(path, sizeof path, versions->folder, "audit.log", &error)) {
        append(path, text);
    }
}

/* Lines read so far, and the hashes of the last two. */
struct audit_chain {
    size_t lines, mended;
    char before[AUDIT_HASH_HEX + 1], last[AUDIT_HASH_HEX + 1];
};

/* The hash in a line; NULL: there is none. */
static const char *find_prev(const char *line, size_t size)
{
    static const char member[] = ",\"prev\":\"";
    const char *at = size > AUDIT_PREV ? line + size - AUDIT_PREV : NULL;
    return at && memcmp(at, member, sizeof member - 1) == 0 ? at + sizeof member - 1 : NULL;
}

static bool check_line(struct audit_chain *chain, const char *line, size_t size, bool may_begin)
{
    static const char mended[] = "{\"what\":\"" AUDIT_MENDED "\"";
    const char *prev = find_prev(line, size);
    chain->mended += size > sizeof mended && memcmp(line, mended, sizeof mended - 1) == 0;
    const bool follows = prev && (memcmp(prev, chain->last, AUDIT_HASH_HEX) == 0 || (may_begin && chain->lines == 0));
    memcpy(chain->before, chain->last, sizeof chain->before);
    hash_line(line, size, chain->last);
    chain->lines++;
    return follows;
}

/*
 * may_begin: lines before the first one of this file were dropped when it became too large. unfinished: how many bytes
 * of a last line may be left out, because its writer was interrupted.
 */
static bool check_log(struct audit_chain *chain, const char *path, bool may_begin, size_t unfinished,
                      struct error *error)
{
    uint8_t *bytes;
    size_t size, number = 0;
    bool done = true;
    if (!file_read(path, 2 * AUDIT_MAX_BYTES, &bytes, &size, error)) {
        return false;
    }
    const char *at = (const char *)bytes, *end = at + size - (unfinished < size ? unfinished : size);
    while (at < end && done) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        number++;
        done = newline && check_line(chain, at, (size_t)(newline - at), may_begin);
        at = newline ? newline + 1 : end;
    }
    free(bytes);
    return done || error_set(error,
                             "%s:%zu: this line is torn, or does not follow the one before it: one of the two was "
                             "changed, or lines between them were removed, added or moved",
                             path, number);
}

bool audit_verify(const struct versions *versions, struct audit_state *state, struct error *error)
{
    struct audit_chain chain = {.lines = 0};
    char path[VERSIONS_PATH], former[VERSIONS_PATH], head[VERSIONS_PATH], line[CHECKED_LINE];
    char named[AUDIT_HASH_HEX + 1];
    struct audit_tail *tail = malloc(sizeof *tail);
    no_hash(chain.last);
    bool done = (tail || error_set(error, "out of memory")) &&
                file_join(path, sizeof path, versions->folder, "audit.log", error) &&
                file_join(former, sizeof former, versions->folder, "audit.log.1", error) &&
                file_join(head, sizeof head, versions->folder, "audit.head", error) &&
                find_tail(path, tail, named, error);
    const size_t unfinished = done && is_unfinished(tail, named) ? tail->torn : 0;
    free(tail);
    done = done && (!file_exists(former) || check_log(&chain, former, true, 0, error)) &&
           check_log(&chain, path, false, unfinished, error) && checked_line_read(head, line, error);
    if (!done) {
        return false;
    }
    state->lines = chain.lines;
    state->mended = chain.mended;
    state->unfinished = unfinished;
    memcpy(state->last, chain.last, sizeof chain.last);
    /* A power cut may have come between the two. */
    return strcmp(line, chain.last) == 0 || (chain.lines > 1 && strcmp(line, chain.before) == 0) ||
           error_set(error, "%s: its last line is not the one that %s names: lines at its end were removed or changed",
                     path, head);
}
