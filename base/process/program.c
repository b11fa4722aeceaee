/*
 * Programs kept on disk. A program counts once it has its final name, which it gets only when complete: one process
 * appends the received bytes to one file, then verifies, syncs and renames it. So a power cut, a full disk or a lost
 * connection costs only what was not written yet.
 */
#include "base/process/program.h"

#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cJSON.h>

#include "base/checked.h"
#include "base/config/versions.h"
#include "base/file.h"
#include "base/log.h"
#include "base/process/restart.h"
#include "base/trust.h"

enum { PIECE = 64 << 10, SPARE_DISK = 4 << 20 /* bytes to leave free for others on that disk */ };

/* --- One program --- */

static const struct {
    const char *name;
    uint16_t machine;
} architectures[] = {{"x86_64", EM_X86_64}, {"aarch64", EM_AARCH64}};

enum { ARCHITECTURES = sizeof architectures / sizeof *architectures };

/* Do `count` entries of `each` bytes from `offset` on lie within the file? */
static bool lies_within(uint64_t offset, uint64_t count, uint64_t each, size_t size)
{
    return offset <= size && count * each <= size - offset;
}

/* Is the file as long as its segments and sections require? */
static bool is_whole(const uint8_t *bytes, size_t size, const Elf64_Ehdr *head)
{
    if (head->e_phentsize != sizeof(Elf64_Phdr) || head->e_phnum == 0 ||
        !lies_within(head->e_phoff, head->e_phnum, sizeof(Elf64_Phdr), size) ||
        !lies_within(head->e_shoff, head->e_shnum, head->e_shentsize, size)) {
        return false;
    }
    for (int i = 0; i < head->e_phnum; i++) {
        Elf64_Phdr segment;
        memcpy(&segment, bytes + head->e_phoff + (size_t)i * sizeof segment, sizeof segment);
        if (segment.p_type == PT_LOAD && !lies_within(segment.p_offset, 1, segment.p_filesz, size)) {
            return false;
        }
    }
    return true;
}

bool program_examine(const uint8_t *bytes, size_t size, char architecture[PROGRAM_ARCHITECTURE], struct error *error)
{
    Elf64_Ehdr head;
    if (size < sizeof head || memcmp(bytes, ELFMAG, SELFMAG) != 0) {
        return error_set(error, "is not a program: it does not begin like one");
    }
    memcpy(&head, bytes, sizeof head);
    if (head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_ident[EI_DATA] != ELFDATA2LSB ||
        (head.e_type != ET_EXEC && head.e_type != ET_DYN)) {
        return error_set(error, "is not a program for 64-bit Linux");
    }
    int found = 0;
    while (found < ARCHITECTURES && architectures[found].machine != head.e_machine) {
        found++;
    }
    if (found == ARCHITECTURES) {
        return error_set(error, "is for an architecture (ELF machine %u) that trainer does not support",
                         head.e_machine);
    }
    snprintf(architecture, PROGRAM_ARCHITECTURE, "%s", architectures[found].name);
    return is_whole(bytes, size, &head) || error_set(error, "is truncated: it ends before its last segment");
}

/* --- A machine's programs --- */

bool programs_name(struct programs *programs, const char *config_path, struct error *error)
{
    const char *slash = strrchr(config_path, '/');
    const int folder = slash ? (int)(slash - config_path) + 1 : 0;
    return (size_t)snprintf(programs->folder, sizeof programs->folder, "%.*strainer.d", folder, config_path) <
               sizeof programs->folder ||
           error_set(error, "%s: the path is too long", config_path);
}

static bool name_file(const struct programs *programs, const char *digest, const char *name, char path[VERSIONS_PATH],
                      struct error *error)
{
    if (strspn(digest, "0123456789abcdef") != PROGRAM_DIGEST_HEX || digest[PROGRAM_DIGEST_HEX] != '\0') {
        return error_set(error, "\"%.80s\" is not the digest of a program", digest);
    }
    return (size_t)snprintf(path, VERSIONS_PATH, "%s/%.*s%s%s", programs->folder, PROGRAM_ID_HEX, digest,
                            name[0] != '\0' ? "/" : "", name) < VERSIONS_PATH ||
           error_set(error, "%s: the path is too long", programs->folder);
}

bool programs_path(const struct programs *programs, const char *digest, char path[VERSIONS_PATH], struct error *error)
{
    return name_file(programs, digest, "trainer", path, error);
}

bool programs_have(const struct programs *programs, const char *digest)
{
    char path[VERSIONS_PATH];
    struct error ignored;
    return programs_path(programs, digest, path, &ignored) && file_exists(path);
}

bool programs_have_whole(const struct programs *programs, const char *digest)
{
    char path[VERSIONS_PATH], there[PROGRAM_DIGEST_HEX + 1];
    struct error damage, ignored;
    if (!programs_path(programs, digest, path, &ignored) || !checked_digest_file(path, there, &ignored)) {
        return false;
    }
    const bool whole = strcmp(there, digest) == 0;
    if (!whole) {
        error_set(&damage, "%s: is damaged: its digest is %.16s, not %.16s", path, there, digest);
        file_set_aside(path, damage.text);
    }
    return whole;
}

static bool has_room(const struct programs *programs, uint64_t size, struct error *error)
{
    struct statvfs disk;
    if (statvfs(programs->folder, &disk) != 0 || (uint64_t)disk.f_bavail * disk.f_frsize >= size + SPARE_DISK) {
        return true;
    }
    return error_set(error, "%s: a program needs %llu KiB there, but only %llu KiB are free on that disk",
                     programs->folder, (unsigned long long)(size >> 10),
                     (unsigned long long)((uint64_t)disk.f_bavail * disk.f_frsize >> 10));
}

bool programs_may_run(const struct programs *programs, struct error *error)
{
    struct statvfs disk;
    if (!file_make_folder(programs->folder, error)) {
        return false;
    }
    return statvfs(programs->folder, &disk) != 0 || !(disk.f_flag & ST_NOEXEC) ||
           error_set(error,
                     "%s is on a file system mounted noexec, so no program can be executed there: mount it with exec, "
                     "or move config.json, beside which programs are kept, to another one",
                     programs->folder);
}

/* Several members of a machine may do this at once: each writes the same bytes, and renames them into place. */
bool programs_keep_own(const struct programs *programs, struct error *error)
{
    char path[VERSIONS_PATH], folder[VERSIONS_PATH];
    struct file_part part;
    uint8_t *bytes = NULL;
    const char *digest = program_own_digest();
    if (!name_file(programs, digest, "", folder, error) || !programs_path(programs, digest, path, error)) {
        return false;
    }
    bool done = true;
    if (!programs_have_whole(programs, digest)) {
        done = file_make_folder(folder, error) && program_own_bytes(&bytes, &part.size, error);
        part.bytes = bytes;
        done = done && has_room(programs, part.size, error) && file_write_atomic(path, &part, 1, error);
        free(bytes);
    }
    return done && (chmod(path, 0755) == 0 || file_error(error, path, "cannot be made executable", errno));
}

bool programs_read(const struct programs *programs, const char *digest, uint64_t offset, void *bytes, size_t size,
                   size_t *got, struct error *error)
{
    char path[VERSIONS_PATH];
    *got = 0;
    if (!programs_path(programs, digest, path, error)) {
        return false;
    }
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
        return file_error(error, path, "cannot be opened", errno);
    }
    ssize_t more = 1;
    while (more > 0 && *got < size) {
        more = pread(fd, (uint8_t *)bytes + *got, size - *got, (off_t)(offset + *got));
        *got += more > 0 ? (size_t)more : 0;
    }
    const int reason = errno;
    close(fd);
    return more >= 0 || file_error(error, path, "cannot be read", reason);
}

static bool is_kept(const char *name, const char *const *digests, int count)
{
    for (int i = 0; i < count; i++) {
        if (strncmp(name, digests[i], PROGRAM_ID_HEX) == 0) { /* the digest "" matches nothing */
            return true;
        }
    }
    return false;
}

void programs_prune(const struct programs *programs, const char *const *digests, int count)
{
    static const char *const files[] = {"part", "lock", "trainer", "trainer.damaged"};
    DIR *directory = opendir(programs->folder);
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        const char *name = entry->d_name;
        char path[VERSIONS_PATH];
        if (strlen(name) != PROGRAM_ID_HEX || strspn(name, "0123456789abcdef") != PROGRAM_ID_HEX ||
            is_kept(name, digests, count)) {
            continue;
        }
        for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
            if ((size_t)snprintf(path, sizeof path, "%s/%s/%s", programs->folder, name, files[i]) < sizeof path) {
                unlink(path);
            }
        }
        if ((size_t)snprintf(path, sizeof path, "%s/%s", programs->folder, name) < sizeof path) {
            rmdir(path);
        }
    }
    if (directory) {
        closedir(directory);
    }
}

/* --- Receiving a program --- */

/* Continues a partial one that exists. */
static bool open_part(struct program_intake *intake, struct error *error)
{
    char path[VERSIONS_PATH];
    struct stat status;
    if (!name_file(&intake->programs, intake->digest, "part", path, error)) {
        return false;
    }
    intake->part = file_create(path, 0755, error);
    if (intake->part < 0 && errno == EEXIST) {
        intake->part = open(path, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    }
    if (intake->part < 0 || fstat(intake->part, &status) != 0) {
        return file_error(error, path, "cannot be created", errno);
    }
    intake->there = (uint64_t)status.st_size;
    if (intake->there >= intake->size) { /* complete but never installed: receive it again */
        intake->there = 0;
    }
    return ftruncate(intake->part, (off_t)intake->there) == 0 || file_error(error, path, "cannot be cut", errno);
}

enum intake_state program_intake_open(struct program_intake *intake, const struct programs *programs,
                                      const char *digest, uint64_t size, struct error *error)
{
    char path[VERSIONS_PATH];
    struct error busy;
    *intake = (struct program_intake){.programs = *programs, .size = size, .lock = -1, .part = -1};
    snprintf(intake->digest, sizeof intake->digest, "%s", digest);
    if (!name_file(programs, digest, "", path, error) || !file_make_folder(path, error) ||
        !name_file(programs, digest, "lock", path, error)) {
        return INTAKE_FAILED;
    }
    if (programs_have(programs, digest)) {
        return INTAKE_WHOLE;
    }
    if (!file_lock(path, "the program", &intake->lock, &busy)) {
        return INTAKE_BUSY;
    }
    if (programs_have(programs, digest)) { /* another process may have received it meanwhile */
        program_intake_close(intake);
        return INTAKE_WHOLE;
    }
    if (!open_part(intake, error) || !has_room(programs, size - intake->there, error)) {
        program_intake_close(intake);
        return INTAKE_FAILED;
    }
    return INTAKE_OPEN;
}

/* Is the received file what was announced? */
static bool verify(const struct program_intake *intake, const char *path, struct error *error)
{
    char digest[PROGRAM_DIGEST_HEX + 1], architecture[PROGRAM_ARCHITECTURE];
    uint8_t *bytes;
    size_t size;
    if (!file_read(path, PROGRAM_MAX_BYTES, &bytes, &size, error)) {
        return false;
    }
    checked_digest(bytes, size, digest);
    bool done =
        strcmp(digest, intake->digest) == 0 ||
        error_set(error, "the received program is not the one that was announced: its digest is %.16s, not %.16s",
                  digest, intake->digest);
    done = done && (program_examine(bytes, size, architecture, error) || error_wrap(error, "the received program"));
    free(bytes);
    return done;
}

static bool put_in_place(struct program_intake *intake, struct error *error)
{
    char part[VERSIONS_PATH], path[VERSIONS_PATH];
    if (!name_file(&intake->programs, intake->digest, "part", part, error) ||
        !programs_path(&intake->programs, intake->digest, path, error)) {
        return false;
    }
    if (fsync(intake->part) != 0 || fchmod(intake->part, 0755) != 0) {
        return file_error(error, part, "cannot be synced to disk", errno);
    }
    close(intake->part); /* an open file can't be executed */
    intake->part = -1;
    if (!verify(intake, part, error)) {
        unlink(part);
        return false;
    }
    return (rename(part, path) == 0 || file_error(error, path, "cannot be put in place", errno)) &&
           file_sync_folder_of(path, error);
}

bool program_intake_add(struct program_intake *intake, const void *bytes, size_t size, struct error *error)
{
    size_t done = 0;
    if (size > intake->size - intake->there) {
        return error_set(error, "received more bytes of the program than the %llu that were announced",
                         (unsigned long long)intake->size);
    }
    while (done < size) {
        const ssize_t more =
            pwrite(intake->part, (const uint8_t *)bytes + done, size - done, (off_t)(intake->there + done));
        if (more < 0 && errno != EINTR) {
            return file_error(error, intake->programs.folder, "the program cannot be written there", errno);
        }
        done += more > 0 ? (size_t)more : 0;
    }
    intake->there += size;
    return intake->there < intake->size || put_in_place(intake, error);
}

void program_intake_close(struct program_intake *intake)
{
    if (intake->part >= 0) {
        close(intake->part);
    }
    if (intake->lock >= 0) {
        close(intake->lock);
    }
    intake->part = intake->lock = -1;
}

/* --- Probation --- */

/*
 * Detects whether a new version kills this process. The count of starts is kept where the next start finds it before
 * the config is read: CONFIG.d/probation-ID, one for each process (restart_identity), "TARGET FALLBACK STARTS FAILED
 * #CHECKSUM\n". Four numbers and no JSON, which even a badly broken process can read. There are two copies: nothing
 * else rescues a process that hangs, so one corrupted file must not prevent that.
 */

enum { MAX_RECORD = 96, COPIES = 2 };

static bool name_record(const char *config_path, int copy, char path[VERSIONS_PATH], struct error *error)
{
    char id[RESTART_ID], name[RESTART_ID + 16];
    restart_identity(id);
    snprintf(name, sizeof name, "probation-%s%s", id, copy > 0 ? ".copy" : "");
    return versions_path(config_path, name, path, error);
}

static bool store(const char *config_path, const struct probation *probation, struct error *error)
{
    char path[VERSIONS_PATH], text[MAX_RECORD];
    snprintf(text, sizeof text, "%" PRIu64 " %" PRIu64 " %d %d", probation->target, probation->fallback,
             probation->starts, probation->failed);
    bool done = true;
    for (int i = 0; i < COPIES && done; i++) {
        done = name_record(config_path, i, path, error) && checked_line_write(path, text, error);
    }
    return done;
}

bool probation_begin(const char *config_path, uint64_t target, uint64_t fallback, struct error *error)
{
    return store(config_path, &(struct probation){.target = target, .fallback = fallback}, error);
}

/* Counts the next start in advance, since that process may not get far enough to count itself. */
static bool probation_count(const char *config_path, struct error *error)
{
    struct probation probation;
    if (!probation_read(config_path, &probation)) {
        return error_set(error, "%s.d: the count of starts is missing", config_path);
    }
    probation.starts++;
    return store(config_path, &probation, error);
}

/* An invalid record is ignored. */
static bool read_copy(const char *path, struct probation *probation, struct error *error)
{
    char line[CHECKED_LINE];
    int failed = 0;
    if (!checked_line_read(path, line, error)) {
        return false;
    }
    const bool done = sscanf(line, "%" SCNu64 " %" SCNu64 " %d %d", &probation->target, &probation->fallback,
                             &probation->starts, &failed) == 4 &&
                      probation->starts >= 0; /* otherwise it would take too long to go back */
    probation->failed = failed != 0;
    return done || error_set(error, "%s: is damaged: it is not a record of starts", path);
}

bool probation_read(const char *config_path, struct probation *probation)
{
    char path[VERSIONS_PATH];
    struct error damage = {""}, ignored;
    for (int i = 0; config_path && i < COPIES && name_record(config_path, i, path, &ignored); i++) {
        if (file_exists(path) && read_copy(path, probation, &damage)) {
            return true;
        }
    }
    if (damage.text[0] != '\0') {
        log_warning("%s; so it is unknown how often this process failed in a new version", damage.text);
    }
    return false;
}

static bool switch_back(const char *config_path, const struct probation *probation)
{
    struct versions versions;
    struct error error;
    if (!versions_open(&versions, config_path, &error) ||
        !versions_lower_floor(config_path, probation->fallback, &error) ||
        !versions_switch(&versions, probation->fallback, &error)) {
        log_error("%s", error.text);
        return false;
    }
    return true;
}

static void go_back(const char *config_path, struct probation *probation)
{
    if (!switch_back(config_path, probation)) {
        return;
    }
    probation->failed = true;
    log_error("this process failed %d times in version %" PRIu64 " of the config: going back to version %" PRIu64,
              probation->starts, probation->target, probation->fallback);
}

void probation_fail(const char *config_path)
{
    struct probation probation;
    struct error error;
    if (!probation_read(config_path, &probation) || probation.failed) {
        return;
    }
    go_back(config_path, &probation);
    if (!store(config_path, &probation, &error)) {
        log_warning("%s", error.text);
    }
}

/*
 * The target's files are corrupted, which is not the version's fault: falls back, but the version may be tried again.
 * damage: the reason, for users.
 */
static void probation_give_up(const char *config_path, const char *damage)
{
    struct probation probation;
    if (probation_read(config_path, &probation) && !probation.failed && switch_back(config_path, &probation)) {
        probation_end(config_path);
        log_warning("%s; going back to version %" PRIu64 " of the config, from where version %" PRIu64
                    " is taken again, whole",
                    damage, probation.fallback, probation.target);
    }
}

static bool is_sound(const char *config_path, uint64_t version, struct error *damage)
{
    struct versions versions;
    return versions_open(&versions, config_path, damage) && versions_verify(&versions, version, damage);
}

void probation_check(const char *config_path)
{
    struct probation probation;
    struct error error, damage;
    bool there;
    uint64_t current;
    if (restart_was_executed() || !probation_read(config_path, &probation) || probation.failed ||
        !versions_current(config_path, &there, &current, &error) || !there || current != probation.target) {
        return;
    }
    if (!is_sound(config_path, probation.target, &damage)) {
        if (is_sound(config_path, probation.fallback, &error)) { /* otherwise a person must intervene */
            probation_give_up(config_path, damage.text);
        }
        return;
    }
    if (probation.starts >= PROBATION_STARTS) {
        go_back(config_path, &probation);
    } else {
        probation.starts++;
    }
    if (!store(config_path, &probation, &error)) {
        log_warning("%s", error.text);
    }
}

void probation_end(const char *config_path)
{
    char path[VERSIONS_PATH];
    struct error ignored;
    for (int i = 0; config_path && i < COPIES && name_record(config_path, i, path, &ignored); i++) {
        if (file_exists(path)) {
            unlink(path);
        }
    }
}

/* --- Launch --- */

/*
 * Which program a process should run, and how it gets there. The digest is verified again before each start: the disk
 * may have changed the file, and once another program runs it is too late to check.
 */

enum { MAX_FILE = 1 << 20 /* bytes of config.json */ };

static bool name_version(const char *config_path, uint64_t version, char path[VERSIONS_PATH], struct error *error)
{
    char name[48];
    snprintf(name, sizeof name, "%08" PRIu64 ".program", version);
    return versions_path(config_path, name, path, error);
}

bool program_of_version(const char *config_path, uint64_t version, char digest[PROGRAM_DIGEST_HEX + 1],
                        struct error *error)
{
    char path[VERSIONS_PATH], line[CHECKED_LINE];
    digest[0] = '\0';
    if (!name_version(config_path, version, path, error)) {
        return false;
    }
    if (!file_exists(path)) {
        return true;
    }
    if (!checked_line_read(path, line, error)) {
        return false;
    }
    snprintf(digest, PROGRAM_DIGEST_HEX + 1, "%.64s", line);
    return true;
}

bool program_set_version(const char *config_path, uint64_t version, const char *digest, struct error *error)
{
    char path[VERSIONS_PATH];
    return name_version(config_path, version, path, error) && checked_line_write(path, digest, error);
}

/*
 * The program of that version, which nobody else can have put there, verified. *path "": it is the installed one, or
 * this one. *is_lost: its file is damaged or missing. vouches: may be NULL.
 */
static bool find_program(const char *config_path, uint64_t version, program_vouches *vouches, char path[VERSIONS_PATH],
                         bool *is_lost, struct error *error)
{
    struct programs programs;
    char digest[PROGRAM_DIGEST_HEX + 1];
    path[0] = '\0';
    *is_lost = false;
    if (!program_of_version(config_path, version, digest, error)) {
        return false;
    }
    if (digest[0] == '\0' || strcmp(digest, program_own_digest()) == 0) {
        return true;
    }
    if ((vouches && !vouches(config_path, version, digest, error)) || !programs_name(&programs, config_path, error) ||
        !programs_path(&programs, digest, path, error) || (file_exists(path) && !trust_file(path, error))) {
        return false;
    }
    *is_lost = !programs_have_whole(&programs, digest);
    return !*is_lost ? trust_file(path, error) /* it may have appeared only now */
                     : error_set(error, "%s: is damaged, or not there", path);
}

bool program_prepare(const char *config_path, uint64_t version, bool on_probation, struct error *error)
{
    char path[VERSIONS_PATH];
    bool is_lost;
    return find_program(config_path, version, NULL, path, &is_lost, error) && /* its manifest was verified on arrival */
           (path[0] == '\0' ||
            ((!on_probation || probation_count(config_path, error)) && restart_in(path, on_probation, error)));
}

/* The file's fleet.version, which takes precedence over what was rolled out unless it is lower. */
static uint64_t read_file_version(const char *config_path)
{
    uint8_t *bytes;
    size_t size;
    struct error ignored;
    if (!file_read(config_path, MAX_FILE, &bytes, &size, &ignored)) {
        return 0;
    }
    cJSON *root = cJSON_ParseWithLength((const char *)bytes, size);
    free(bytes);
    const cJSON *version = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(root, "fleet"), "version");
    const uint64_t number = cJSON_IsNumber(version) && version->valuedouble > 0 ? (uint64_t)version->valuedouble : 0;
    cJSON_Delete(root);
    return number;
}

/*
 * Without the program, this process would report a version that it does not run, and nobody would bring the program
 * again. So it goes back to a lower version, and the fleet brings this one.
 */
static bool step_back(const char *config_path, uint64_t version, const struct error *why)
{
    struct probation probation;
    struct error error;
    uint64_t lower;
    const bool has_failed = probation_read(config_path, &probation) && probation.failed;
    if (!versions_step_back(config_path, version, has_failed ? probation.target : 0, &lower, &error)) {
        log_error("%s", error.text);
        return false;
    }
    log_warning("%s: going back to version %" PRIu64 " of the config, until the fleet brings the program of version "
                "%" PRIu64 " again",
                why->text, lower > 0 ? lower : read_file_version(config_path), version);
    return true;
}

/* True: this process went back from that version. */
static bool launch(const char *config_path, uint64_t version, program_vouches *vouches)
{
    char path[VERSIONS_PATH];
    struct error error;
    struct probation probation;
    const bool on_probation =
        probation_read(config_path, &probation) && !probation.failed && probation.target == version;
    bool is_lost;
    const bool found = find_program(config_path, version, vouches, path, &is_lost, &error);
    if (found && (path[0] == '\0' || restart_at_once(path, on_probation, &error))) {
        return false;
    }
    if (is_lost && !on_probation && !versions_lead(config_path) && step_back(config_path, version, &error)) {
        return true;
    }
    log_error("the program of version %" PRIu64 " does not start, so this one continues: %s", version, error.text);
    if (on_probation && found) {
        probation_fail(config_path);
    } else if (on_probation) {
        probation_give_up(config_path, error.text);
    }
    return on_probation;
}

void program_launch(const char *config_path, program_vouches *vouches)
{
    uint64_t version, before = 0;
    struct error ignored;
    bool there, again = !restart_was_executed();
    while (again) {
        again = versions_current(config_path, &there, &version, &ignored) && there && version != before &&
                version > read_file_version(config_path) &&
                versions_check_start(config_path, true, version, &ignored) && launch(config_path, version, vouches);
        before = version;
    }
}
