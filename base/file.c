/*
 * Writes go to a temporary file in the same folder, so that the rename stays within one file system; then the folder is
 * synced, because the rename changes the folder. The temporary name ends in ".tmp", so what a killed process leaves
 * behind is never mistaken for the real file. It is unpredictable, and an existing file or link is never opened, so
 * that in a folder writable by others nobody can make us write elsewhere.
 */
#include "base/file.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <sodium.h>

#include "base/clock.h"
#include "base/log.h"

enum {
    NAME_HEX = 16,      /* of a temporary name */
    PIPES = 0x50495045, /* the file system of pipes without a name */
};

static const double LEFTOVER_S = 3600; /* no write takes that long */

/* Remedies for common errors. */
static const char *remedy(int reason)
{
    switch (reason) {
    case ENOENT:
        return "; check the path";
    case ENOTDIR:
        return "; part of the path is a file";
    case EACCES:
    case EPERM:
        return "; grant this user access, or choose another path";
    case EROFS:
        return "; choose a writable path";
    case ENOSPC:
    case EDQUOT:
        return "; free some space, or choose another path";
    case EMFILE:
    case ENFILE:
        return "; raise the limit on open files (ulimit -n)";
    case ELOOP:
        return "; a symbolic link is in its place: remove that";
    case EIO:
        return "; the disk is failing, see the kernel log (dmesg)";
    default:
        return "";
    }
}

bool file_error(struct error *error, const char *path, const char *what, int reason)
{
    return error_set(error, "%s: %s: %s%s", path, what, strerror(reason), remedy(reason));
}

static bool read_open_file(int fd, const char *path, size_t limit, uint8_t **bytes, size_t *size, struct error *error)
{
    struct stat status;
    if (fstat(fd, &status) != 0) {
        return file_error(error, path, "cannot be examined", errno);
    }
    if (S_ISDIR(status.st_mode)) {
        return error_set(error, "%s: is a folder, expected a file", path);
    }
    size_t capacity = S_ISREG(status.st_mode) && status.st_size >= 0 ? (size_t)status.st_size : 4096;
    if (capacity > limit) {
        return error_set(error, "%s: larger than %zu bytes, the limit for such a file", path, limit);
    }
    uint8_t *content = malloc(capacity + 1);
    size_t used = 0;
    for (;;) {
        if (!content) {
            return error_set(error, "%s: out of memory for its %zu bytes", path, capacity);
        }
        /* Ask for one byte more than expected, to see the end of the file and to notice one that grows. */
        ssize_t got = read(fd, content + used, capacity + 1 - used);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            file_error(error, path, "cannot be read", errno);
            free(content);
            return false;
        }
        if (got == 0) {
            break;
        }
        used += (size_t)got;
        if (used > limit) {
            free(content);
            return error_set(error, "%s: larger than %zu bytes, the limit for such a file", path, limit);
        }
        if (used > capacity) {
            capacity = used * 2 + 4096 < limit ? used * 2 + 4096 : limit;
            uint8_t *larger = realloc(content, capacity + 1);
            if (!larger) {
                free(content);
            }
            content = larger;
        }
    }
    content[used] = 0;
    *bytes = content;
    *size = used;
    return true;
}

bool file_read(const char *path, size_t limit, uint8_t **bytes, size_t *size, struct error *error)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return file_error(error, path, "cannot be opened", errno);
    }
    bool done = read_open_file(fd, path, limit, bytes, size, error);
    close(fd);
    return done;
}

/* Removes `written` bytes from the front of the pieces; returns the number of pieces finished. */
static int advance(struct iovec *pieces, int count, size_t written)
{
    int done = 0;
    while (done < count && written >= pieces[done].iov_len) {
        written -= pieces[done++].iov_len;
    }
    if (done < count) {
        pieces[done].iov_base = (uint8_t *)pieces[done].iov_base + written;
        pieces[done].iov_len -= written;
    }
    return done;
}

/* Many small parts (such as the rows of a matrix) are written by one call. */
static bool write_parts(int fd, const char *path, const struct file_part *parts, int count, struct error *error)
{
    struct iovec pieces[256];
    for (int first = 0; first < count;) {
        int filled = 0;
        for (; filled < (int)(sizeof pieces / sizeof *pieces) && first + filled < count; filled++) {
            pieces[filled] = (struct iovec){(void *)(uintptr_t)parts[first + filled].bytes, parts[first + filled].size};
        }
        for (int done = 0; done < filled;) {
            ssize_t written = writev(fd, pieces + done, filled - done);
            if (written < 0 && errno == EINTR) {
                continue;
            }
            if (written < 0) {
                return file_error(error, path, "cannot be written", errno);
            }
            done += advance(pieces + done, filled - done, (size_t)written);
        }
        first += filled;
    }
    return true;
}

bool file_sync_folder_of(const char *path, struct error *error)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    if (!slash) {
        snprintf(folder, sizeof folder, ".");
    } else {
        snprintf(folder, sizeof folder, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    }
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return file_error(error, folder, "cannot be opened", errno);
    }
    /* Some file systems cannot sync a folder and return EINVAL; nothing more can be done. */
    bool synced = fsync(fd) == 0 || errno == EINVAL || errno == EROFS;
    int reason = errno;
    close(fd);
    return synced || file_error(error, folder, "cannot be synced to disk", reason);
}

bool file_temporary_name(char *name, size_t size, const char *path, struct error *error)
{
    const uint64_t number = (uint64_t)randombytes_random() << 32 | randombytes_random();
    const int length = snprintf(name, size, "%s.%0*" PRIx64 ".tmp", path, NAME_HEX, number);
    return (length > 0 && (size_t)length < size) || error_set(error, "%s: the path is too long", path);
}

/* --- Drafts --- */

bool file_draft_begin(struct file_draft *draft, const char *path, unsigned mode, struct error *error)
{
    draft->fd = -1;
    draft->stream = NULL;
    if ((size_t)snprintf(draft->path, sizeof draft->path, "%s", path) >= sizeof draft->path) {
        return error_set(error, "%.200s: the path is too long", path);
    }
    if (!file_temporary_name(draft->temporary, sizeof draft->temporary, path, error)) {
        return false;
    }
    draft->fd = open(draft->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    return draft->fd >= 0 || file_error(error, path, "cannot be created", errno);
}

/* A standard stream by its name, which is a link; -1: it is none. */
static int stream_of(const char *path)
{
    if (strcmp(path, "/dev/stdout") == 0) {
        return STDOUT_FILENO;
    }
    if (strcmp(path, "/dev/stderr") == 0) {
        return STDERR_FILENO;
    }
    char *end = NULL;
    const long number = strncmp(path, "/dev/fd/", 8) == 0 ? strtol(path + 8, &end, 10) : -1;
    return end && end > path + 8 && *end == '\0' && number >= 0 && number < INT_MAX ? (int)number : -1;
}

bool file_output_begin(struct file_draft *draft, const char *path, unsigned mode, struct error *error)
{
    struct stat status;
    const int stream = stream_of(path);
    const bool is_there = lstat(path, &status) == 0;
    if (stream < 0 && !(is_there && (S_ISCHR(status.st_mode) || S_ISFIFO(status.st_mode)))) {
        return file_draft_begin(draft, path, mode, error);
    }
    draft->stream = NULL;
    draft->temporary[0] = '\0';
    snprintf(draft->path, sizeof draft->path, "%s", path);
    draft->fd =
        stream >= 0 ? fcntl(stream, F_DUPFD_CLOEXEC, 0) : open(path, O_WRONLY | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC);
    return draft->fd >= 0 || file_error(error, path, "cannot be written", errno);
}

bool file_draft_stream(struct file_draft *draft, struct error *error)
{
    draft->stream = fdopen(draft->fd, "w");
    if (!draft->stream) {
        file_draft_drop(draft);
        return error_set(error, "%s: out of memory", draft->path);
    }
    return true;
}

static bool close_draft(struct file_draft *draft, struct error *error)
{
    const int result = draft->stream ? fclose(draft->stream) : close(draft->fd);
    draft->stream = NULL;
    draft->fd = -1;
    return result == 0 || file_error(error, draft->path, "cannot be closed", errno);
}

void file_draft_drop(struct file_draft *draft)
{
    struct error ignored;
    if (draft->fd >= 0) {
        close_draft(draft, &ignored);
    }
    if (draft->temporary[0] != '\0') {
        unlink(draft->temporary);
    }
}

bool file_draft_end(struct file_draft *draft, bool sync, struct error *error)
{
    const bool is_direct = draft->temporary[0] == '\0';
    bool done = !draft->stream || (fflush(draft->stream) == 0 && !ferror(draft->stream)) ||
                file_error(error, draft->path, "cannot be written", errno);
    if (done && sync && !is_direct && fsync(draft->fd) != 0) {
        done = file_error(error, draft->path, "cannot be synced to disk", errno);
    }
    if (done) {
        done = close_draft(draft, error);
    }
    if (done && !is_direct && rename(draft->temporary, draft->path) != 0) {
        done = file_error(error, draft->path, "cannot be put in place", errno);
    }
    if (!done) {
        file_draft_drop(draft);
    }
    return done && (!sync || is_direct || file_sync_folder_of(draft->path, error));
}

bool file_write_atomic(const char *path, const struct file_part *parts, int count, struct error *error)
{
    struct file_draft draft;
    if (!file_draft_begin(&draft, path, 0666, error)) {
        return false;
    }
    if (!write_parts(draft.fd, path, parts, count, error)) {
        file_draft_drop(&draft);
        return false;
    }
    return file_draft_end(&draft, true, error);
}

/* --- New files --- */

int file_create(const char *path, unsigned mode, struct error *error)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    const int reason = errno;
    if (fd < 0 && reason == EEXIST) {
        error_set(error, "%s: already exists, and is not overwritten", path);
    } else if (fd < 0) {
        file_error(error, path, "cannot be created", reason);
    }
    errno = reason;
    return fd;
}

bool file_write_new(const char *path, unsigned mode, const struct file_part *parts, int count, struct error *error)
{
    const int fd = file_create(path, mode, error);
    if (fd < 0) {
        return false;
    }
    bool done = write_parts(fd, path, parts, count, error);
    if (done && fsync(fd) != 0) {
        done = file_error(error, path, "cannot be synced to disk", errno);
    }
    close(fd);
    if (!done) {
        unlink(path);
    }
    return done;
}

/* Why another user may have a hand in an open file that is written to by its name; NULL: none has. */
static const char *foreign(int fd)
{
    struct stat status;
    struct statfs system;
    if (fstat(fd, &status) != 0) {
        return "cannot be examined";
    }
    const bool is_ours = status.st_uid == geteuid() || status.st_uid == 0;
    if (S_ISFIFO(status.st_mode)) { /* one without a name was handed to this process */
        const bool is_named = fstatfs(fd, &system) != 0 || system.f_type != PIPES;
        return is_named && !is_ours ? "belongs to another user" : NULL;
    }
    return !S_ISREG(status.st_mode) ? NULL
           : status.st_nlink > 1    ? "has a second name (a hard link)"
           : !is_ours               ? "belongs to another user"
                                    : NULL;
}

/* Does not wait for somebody to read from a named pipe. */
int file_append(const char *path, unsigned mode, bool follow, struct error *error)
{
    const int flags = O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC | (follow ? 0 : O_NOFOLLOW);
    const int fd = open(path, flags, mode);
    if (fd < 0) {
        const int reason = errno;
        if (reason == ENXIO) {
            error_set(error, "%s: is a socket, or a named pipe that nobody reads; start its reader first", path);
        } else {
            file_error(error, path, "cannot be written", reason);
        }
        errno = reason;
        return -1;
    }
    const char *why = foreign(fd);
    if (why) {
        close(fd);
        error_set(error, "%s: %s, so nothing is appended to it; remove it, or choose another path", path, why);
        errno = EPERM;
        return -1;
    }
    fcntl(fd, F_SETFL, O_APPEND); /* writes wait */
    return fd;
}

int file_create_nameless(const char *folder, unsigned mode)
{
    char path[PATH_MAX], name[PATH_MAX];
    struct error ignored;
    int fd = open(folder, O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, mode); /* O_EXCL: it never gets a name */
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) {
        return fd;
    }
    if (!file_join(path, sizeof path, folder, "nameless", &ignored) ||
        !file_temporary_name(name, sizeof name, path, &ignored)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    fd = open(name, O_CREAT | O_EXCL | O_NOFOLLOW | O_RDWR | O_CLOEXEC, mode);
    if (fd >= 0) {
        unlink(name);
    }
    return fd;
}

/* --- Leftovers --- */

/* A name made by file_temporary_name. */
static bool is_temporary(const char *name)
{
    static const char suffix[] = ".tmp";
    const size_t length = strlen(name), end = length - (sizeof suffix - 1);
    if (length < sizeof suffix || strcmp(name + end, suffix) != 0) {
        return false;
    }
    size_t first = end;
    while (first > 0 && isxdigit((unsigned char)name[first - 1])) {
        first--;
    }
    return first > 1 && name[first - 1] == '.' && end - first == NAME_HEX;
}

void file_remove_leftovers(const char *folder)
{
    DIR *directory = opendir(folder);
    if (!directory) {
        return;
    }
    for (struct dirent *entry; (entry = readdir(directory));) {
        struct stat status;
        if (is_temporary(entry->d_name) &&
            fstatat(dirfd(directory), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(status.st_mode) &&
            clock_wall_s() - (double)status.st_mtim.tv_sec >= LEFTOVER_S) {
            unlinkat(dirfd(directory), entry->d_name, 0); /* if that fails: it does no harm */
        }
    }
    closedir(directory);
}

/* Its writer may have died before syncing the folder. */
bool file_keep(const char *path, const void *bytes, size_t size, struct error *error)
{
    const struct file_part part = {bytes, size};
    uint8_t *there;
    size_t there_size;
    struct error ignored;
    bool same = false;
    if (file_exists(path) && file_read(path, size, &there, &there_size, &ignored)) {
        same = there_size == size && memcmp(there, bytes, size) == 0;
        free(there);
    }
    return same ? file_sync_folder_of(path, error) : file_write_atomic(path, &part, 1, error);
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *place)
{
    (void)status;
    (void)kind;
    (void)place;
    return remove(path);
}

bool file_remove_folder(const char *path, struct error *error)
{
    enum { MOST_DESCRIPTORS = 16 };
    return nftw(path, remove_one, MOST_DESCRIPTORS, FTW_DEPTH | FTW_PHYS) == 0 || errno == ENOENT ||
           file_error(error, path, "cannot be removed", errno);
}

void file_keep_private(void)
{
    (void)umask(S_IRWXG | S_IRWXO);
}

bool file_make_folder(const char *path, struct error *error)
{
    char partial[PATH_MAX];
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof partial) {
        return error_set(error, "\"%s\" is not a valid folder name", path);
    }
    memcpy(partial, path, length + 1);
    for (size_t i = 1; i <= length; i++) {
        if (partial[i] != '/' && partial[i] != '\0') {
            continue;
        }
        partial[i] = '\0';
        if (mkdir(partial, 0777) != 0 && errno != EEXIST) {
            return file_error(error, partial, "the folder cannot be created", errno);
        }
        partial[i] = path[i];
    }
    struct stat status;
    if (stat(path, &status) != 0 || !S_ISDIR(status.st_mode)) {
        return error_set(error, "%s: exists, but is not a folder", path);
    }
    return true;
}

bool file_lock(const char *path, const char *purpose, int *fd, struct error *error)
{
    int lock = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    if (lock < 0) {
        return file_error(error, path, "cannot be created", errno);
    }
    struct stat status;
    const char *why = foreign(lock);
    if (!why && (fstat(lock, &status) != 0 || !S_ISREG(status.st_mode))) {
        why = "is no regular file";
    }
    if (why) {
        close(lock);
        return error_set(error, "%s: %s, so it is no lock; remove it, or choose another folder", path, why);
    }
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fcntl(lock, F_SETLK, &whole) != 0) {
        int reason = errno;
        if (reason == EACCES || reason == EAGAIN) {
            if (fcntl(lock, F_GETLK, &whole) == 0 && whole.l_type != F_UNLCK && whole.l_pid > 0) {
                error_set(error, "%s is in use by process %ld; wait for it, stop it, or choose another folder", purpose,
                          (long)whole.l_pid);
            } else {
                error_set(error, "%s is in use by another process; stop it, or choose another folder", purpose);
            }
        } else {
            file_error(error, path, "cannot be locked", reason);
        }
        close(lock);
        return false;
    }
    char text[32];
    int length = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    if (ftruncate(lock, 0) != 0 || pwrite(lock, text, (size_t)length, 0) != length) {
        /* The process id is only informative; the lock does not depend on it. */
    }
    *fd = lock;
    return true;
}

bool file_join(char *buffer, size_t size, const char *folder, const char *name, struct error *error)
{
    size_t length = strlen(folder);
    const char *separator = length > 0 && folder[length - 1] == '/' ? "" : "/";
    int used = snprintf(buffer, size, "%s%s%s", folder, separator, name);
    if (used < 0 || (size_t)used >= size) {
        return error_set(error, "%s/%s: the path is too long", folder, name);
    }
    return true;
}

bool file_is_folder(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

size_t file_head(const char *path, uint8_t *head, size_t size)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const ssize_t got = fd >= 0 ? read(fd, head, size) : 0;
    if (fd >= 0) {
        close(fd);
    }
    return got > 0 ? (size_t)got : 0;
}

bool file_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

void file_set_aside(const char *path, const char *reason)
{
    char aside[PATH_MAX + 16];
    if (reason) {
        log_warning("%s", reason);
    }
    if ((size_t)snprintf(aside, sizeof aside, "%s.damaged", path) >= sizeof aside || rename(path, aside) != 0) {
        log_warning("%s: cannot be renamed to end in \".damaged\": %s", path, strerror(errno));
    } else {
        log_warning("%s: set aside with \".damaged\" after its name", path);
    }
}
