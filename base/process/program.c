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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <sodium.h>

#include "base/file.h"

enum { PIECE = 64 << 10, SPARE_DISK = 4 << 20 /* bytes to leave free for others on that disk */ };

/* --- One program --- */

static const struct {
    const char *name;
    uint16_t machine;
} architectures[] = {{"x86_64", EM_X86_64}, {"aarch64", EM_AARCH64}};

enum { ARCHITECTURES = sizeof architectures / sizeof *architectures };

static void hash_begin(crypto_generichash_state *hash)
{
    if (sodium_init() >= 0) { /* it selects the fastest implementation */
        crypto_generichash_init(hash, NULL, 0, PROGRAM_HASH);
    }
}

static void hash_end(crypto_generichash_state *hash, char digest[PROGRAM_DIGEST_HEX + 1])
{
    uint8_t bytes[PROGRAM_HASH];
    crypto_generichash_final(hash, bytes, sizeof bytes);
    sodium_bin2hex(digest, PROGRAM_DIGEST_HEX + 1, bytes, sizeof bytes);
}

void program_digest(const uint8_t *bytes, size_t size, char digest[PROGRAM_DIGEST_HEX + 1])
{
    crypto_generichash_state hash;
    hash_begin(&hash);
    crypto_generichash_update(&hash, bytes, size);
    hash_end(&hash, digest);
}

bool program_digest_file(const char *path, char digest[PROGRAM_DIGEST_HEX + 1], struct error *error)
{
    crypto_generichash_state hash;
    uint8_t piece[PIECE];
    ssize_t got = -1;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return file_error(error, path, "cannot be opened", errno);
    }
    hash_begin(&hash);
    while ((got = read(fd, piece, sizeof piece)) > 0) {
        crypto_generichash_update(&hash, piece, (size_t)got);
    }
    const int reason = errno;
    close(fd);
    hash_end(&hash, digest);
    return got == 0 || file_error(error, path, "cannot be read", reason);
}

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
    if (!programs_path(programs, digest, path, &ignored) || !program_digest_file(path, there, &ignored)) {
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
    program_digest(bytes, size, digest);
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
