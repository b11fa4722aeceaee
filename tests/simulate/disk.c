/*
 * Files of one machine. The disk holds what was written and, separately, what is certain to survive: a file's content
 * as of its last fsync, a folder's names as of its own. A killed process loses nothing of it; a power cut keeps a
 * random part of what is not certain: single names, contents up to some byte followed by zeros.
 *
 * A disk may also break its promises: synced data rots, or was never made durable.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "tests/simulate/world.h"

enum { MOST_NAMES = 128, MOST_TEXT = 200 };

struct inode {
    int refs;
    uint8_t *bytes, *certain;
    size_t size, certain_size, capacity;
    uint8_t *healthy; /* [healthy_size] the content before it rotted */
    size_t healthy_size;
    bool is_folder, is_synced;
    bool rotten; /* not what was written, though it should be durable */
    bool lied;   /* reported as durable, and is not */
    double written_s;
    struct machine *locked_by;
    int locked_life;
};

struct name {
    char text[MOST_TEXT];
    struct inode *inode, *certain; /* NULL: not there */
};

struct disk {
    struct name names[MOST_NAMES];
    int count;
    bool full;
    int lies; /* number of fsync calls to come that do nothing */
};

struct disk *disk_new(void)
{
    return world_alloc(sizeof(struct disk));
}

static void release(struct inode *inode)
{
    if (inode && --inode->refs == 0) {
        free(inode->bytes);
        free(inode->certain);
        free(inode->healthy);
        free(inode);
    }
}

static void put(struct inode **place, struct inode *inode)
{
    if (inode) {
        inode->refs++;
    }
    release(*place);
    *place = inode;
}

void disk_free(struct disk *disk)
{
    for (int i = 0; i < disk->count; i++) {
        release(disk->names[i].inode);
        release(disk->names[i].certain);
    }
    free(disk);
}

void disk_fill(struct disk *disk, bool full)
{
    disk->full = full;
}

bool disk_is_full(const struct disk *disk)
{
    return disk->full;
}

static void forget_unused(struct disk *disk)
{
    for (int i = disk->count - 1; i >= 0; i--) {
        if (!disk->names[i].inode && !disk->names[i].certain) {
            disk->names[i] = disk->names[--disk->count];
        }
    }
}

static void tear(struct inode *inode)
{
    if (inode->is_folder || inode->is_synced) {
        return;
    }
    size_t kept = inode->size > 0 ? chance(inode->size + 1) : 0;
    inode->rotten = inode->rotten || (inode->lied && kept < inode->size);
    memset(inode->bytes + kept, 0, inode->size - kept);
    if (chance(2) == 0) {
        inode->size = kept;
    }
    inode->is_synced = true;
}

void disk_lose_power(struct disk *disk)
{
    for (int i = 0; i < disk->count; i++) {
        struct name *name = &disk->names[i];
        if (name->inode != name->certain) {
            if (chance(2) == 0) {
                put(&name->certain, name->inode);
            } else {
                put(&name->inode, name->certain);
            }
        }
    }
    for (int i = 0; i < disk->count; i++) {
        if (disk->names[i].inode) {
            tear(disk->names[i].inode);
        }
    }
    forget_unused(disk);
}

/* --- Broken promises --- */

void disk_lie(struct disk *disk)
{
    disk->lies = 2; /* for the file and for its folder, as file_write_atomic syncs both */
}

static bool is_sound(const struct name *name)
{
    const struct inode *inode = name->inode;
    return inode && inode == name->certain && inode->is_synced && !inode->rotten;
}

int disk_sound(const struct disk *disk, bool (*may)(const char *path), const char **last)
{
    int count = 0;
    *last = NULL;
    for (int i = 0; i < disk->count; i++) {
        const struct name *name = &disk->names[i];
        if (may(name->text) && is_sound(name)) {
            count++;
            *last = !*last || strcmp(name->text, *last) > 0 ? name->text : *last;
        }
    }
    return count;
}

/* Another file of the disk, whose bytes replace this one's; NULL: there is none. */
static const struct inode *another(const struct disk *disk, const struct inode *inode)
{
    const struct inode *other = disk->names[chance((uint64_t)disk->count)].inode;
    return other != inode && other && other->size > 0 ? other : NULL;
}

static void spoil(const struct disk *disk, struct inode *inode)
{
    enum { SECTOR = 64 }; /* files are small here */
    size_t at = chance(inode->size);
    const size_t left = inode->size - at, size = left < SECTOR ? left : SECTOR;
    const struct inode *other = another(disk, inode);
    inode->healthy = world_alloc(inode->size);
    inode->healthy_size = inode->size;
    memcpy(inode->healthy, inode->bytes, inode->size);
    const uint64_t how = chance(6);
    if (how >= 3) { /* the smallest damage: one digit becomes another */
        const uint8_t *digit = inode->bytes + (chance(2) == 0 ? at : 0);
        while (digit < inode->bytes + inode->size && (*digit < '0' || *digit > '9')) {
            digit++;
        }
        at = digit < inode->bytes + inode->size ? (size_t)(digit - inode->bytes) : at;
        inode->bytes[at] ^= 1;
    } else if (how == 1) {
        memset(inode->bytes + at, 0, size);
    } else if (how == 2 && other) {
        memcpy(inode->bytes + at, other->bytes, size < other->size ? size : other->size);
    }
    if (memcmp(inode->bytes, inode->healthy, inode->size) == 0) {
        inode->bytes[at] ^= (uint8_t)(1 << chance(8));
    }
    inode->rotten = true;
}

bool disk_rot(struct disk *disk, bool (*may)(const char *path))
{
    const char *last;
    int left = disk_sound(disk, may, &last);
    left = left > 0 ? 1 + (int)chance((uint64_t)left) : 0;
    for (int i = 0; i < disk->count && left > 0; i++) {
        struct name *name = &disk->names[i];
        if (may(name->text) && is_sound(name) && --left == 0 && name->inode->size > 0) {
            say("%s rots", name->text);
            spoil(disk, name->inode);
            return true;
        }
    }
    return false;
}

bool disk_is_rotten(const struct disk *disk)
{
    bool rotten = false;
    for (int i = 0; i < disk->count; i++) {
        rotten = rotten || (disk->names[i].inode && disk->names[i].inode->rotten);
    }
    return rotten;
}

void disk_heal(struct disk *disk)
{
    for (int i = 0; i < disk->count; i++) {
        struct inode *inode = disk->names[i].inode;
        if (inode && inode->rotten && inode->healthy && inode->healthy_size == inode->size) {
            memcpy(inode->bytes, inode->healthy, inode->size);
            free(inode->healthy);
            inode->healthy = NULL;
            inode->rotten = false;
        }
    }
}

/* --- Replacements of system calls --- */

static struct name *find(const char *path, bool make)
{
    struct disk *disk = world.here->disk;
    for (int i = 0; i < disk->count; i++) {
        if (strcmp(disk->names[i].text, path) == 0) {
            return &disk->names[i];
        }
    }
    if (!make) {
        return NULL;
    }
    if (disk->count == MOST_NAMES) {
        fail("%s has more than %d files", world.here->name, MOST_NAMES);
        return NULL;
    }
    struct name *name = &disk->names[disk->count++];
    memset(name, 0, sizeof *name);
    snprintf(name->text, sizeof name->text, "%s", path);
    return name;
}

static struct inode *lookup(const char *path)
{
    struct name *name = find(path, false);
    return name ? name->inode : NULL;
}

void disk_close(struct file *file)
{
    if (file->data.inode->locked_by == file->machine && file->data.inode->locked_life == file->machine->life) {
        file->data.inode->locked_by = NULL;
    }
    release(file->data.inode);
}

#define WRAP(type, name, ...)                                                                                          \
    type __wrap_##name(__VA_ARGS__);                                                                                   \
    type __wrap_##name(__VA_ARGS__)

static int wrong(int reason)
{
    errno = reason;
    return -1;
}

static struct inode *inode_new(bool is_folder)
{
    struct inode *inode = world_alloc(sizeof *inode);
    inode->is_folder = is_folder;
    return inode;
}

void disk_put(struct disk *disk, const char *path, const void *bytes, size_t size)
{
    struct name *name = &disk->names[0];
    while (name < &disk->names[disk->count] && strcmp(name->text, path) != 0) {
        name++;
    }
    if (name == &disk->names[disk->count]) {
        disk->count++;
        memset(name, 0, sizeof *name);
        snprintf(name->text, sizeof name->text, "%s", path);
    }
    put(&name->inode, inode_new(!bytes));
    put(&name->certain, name->inode);
    name->inode->is_synced = true;
    if (bytes) {
        name->inode->bytes = world_alloc(size + 1);
        memcpy(name->inode->bytes, bytes, size);
        name->inode->size = size;
        name->inode->capacity = size + 1;
    }
}

bool disk_get(const struct disk *disk, const char *path, char *text, size_t size)
{
    for (int i = 0; i < disk->count; i++) {
        const struct inode *inode = disk->names[i].inode;
        if (inode && strcmp(disk->names[i].text, path) == 0) {
            snprintf(text, size, "%.*s", (int)inode->size, (const char *)inode->bytes);
            return true;
        }
    }
    return false;
}

const uint8_t *disk_bytes(const struct disk *disk, const char *path, size_t *size)
{
    for (int i = 0; i < disk->count; i++) {
        const struct inode *inode = disk->names[i].inode;
        if (inode && !inode->is_folder && strcmp(disk->names[i].text, path) == 0) {
            *size = inode->size;
            return inode->bytes;
        }
    }
    return NULL;
}

WRAP(int, open, const char *path, int flags, ...)
{
    int reason;
    if (!world.here) {
        return wrong(ENOENT);
    }
    if ((reason = falls_short(SHORT_OPEN)) != 0) {
        return wrong(reason);
    }
    struct name *name = find(path, (flags & O_CREAT) != 0);
    if (!name || (!name->inode && (flags & O_CREAT) == 0)) {
        return wrong(ENOENT);
    }
    if (!name->inode) {
        put(&name->inode, inode_new(false));
    } else if (flags & O_EXCL) {
        return wrong(EEXIST);
    }
    if (flags & O_TRUNC) {
        name->inode->size = 0;
        name->inode->is_synced = false;
    }
    struct file *file = file_new(name->inode->is_folder ? FILE_FOLDER : FILE_DATA);
    file->data.append = (flags & O_APPEND) != 0;
    put(&file->data.inode, name->inode);
    return file->fd;
}

static ssize_t read_at(const struct inode *inode, void *bytes, size_t size, size_t at)
{
    size_t left = at < inode->size ? inode->size - at : 0;
    size = size < left ? size : left;
    if (size > 0) {
        memcpy(bytes, inode->bytes + at, size);
    }
    return (ssize_t)size;
}

WRAP(ssize_t, read, int fd, void *bytes, size_t size)
{
    struct file *file = file_of(fd);
    int reason = falls_short(SHORT_READ);
    if (reason != 0) {
        return wrong(reason);
    }
    ssize_t got = read_at(file->data.inode, bytes, size, file->data.at);
    file->data.at += (size_t)got;
    return got;
}

WRAP(ssize_t, pread, int fd, void *bytes, size_t size, off_t at)
{
    int reason = falls_short(SHORT_READ);
    return reason != 0 ? wrong(reason) : read_at(file_of(fd)->data.inode, bytes, size, (size_t)at);
}

static ssize_t write_at(struct inode *inode, const void *bytes, size_t size, size_t at)
{
    int reason = world.here->disk->full ? ENOSPC : falls_short(SHORT_WRITE);
    if (reason != 0) {
        return wrong(reason);
    }
    if (at + size > inode->capacity) {
        uint8_t *larger = world_alloc(2 * (at + size));
        memcpy(larger, inode->bytes ? inode->bytes : larger, inode->size);
        free(inode->bytes);
        inode->bytes = larger;
        inode->capacity = 2 * (at + size);
    }
    memcpy(inode->bytes + at, bytes, size);
    inode->size = at + size > inode->size ? at + size : inode->size;
    inode->is_synced = false;
    inode->written_s = world.now_s + world.here->wall_ahead_s;
    return (ssize_t)size;
}

WRAP(ssize_t, pwrite, int fd, const void *bytes, size_t size, off_t at)
{
    return write_at(file_of(fd)->data.inode, bytes, size, (size_t)at);
}

WRAP(ssize_t, write, int fd, const void *bytes, size_t size)
{
    if (fd == STDOUT_FILENO || fd == STDERR_FILENO) {
        say("%.*s", (int)size - 1, (const char *)bytes);
        world.here->complained = world.here->complained || memmem(bytes, size, "error", 5);
        return (ssize_t)size;
    }
    struct file *file = file_of(fd);
    ssize_t written =
        write_at(file->data.inode, bytes, size, file->data.append ? file->data.inode->size : file->data.at);
    file->data.at += written > 0 ? (size_t)written : 0;
    return written;
}

WRAP(ssize_t, writev, int fd, const struct iovec *parts, int count)
{
    ssize_t written = 0;
    for (int i = 0; i < count; i++) {
        ssize_t part = __wrap_write(fd, parts[i].iov_base, parts[i].iov_len);
        if (part < 0) {
            return written > 0 ? written : part;
        }
        written += part;
        if (chance(64) == 0) { /* the process may be killed in between */
            struct timespec pause = {.tv_nsec = 1000000};
            nanosleep(&pause, NULL);
        }
    }
    return written;
}

static bool is_in(const char *path, const char *folder)
{
    size_t length = strlen(folder);
    return strncmp(path, folder, length) == 0 && path[length] == '/' && !strchr(path + length + 1, '/');
}

WRAP(int, fsync, int fd)
{
    struct file *file = file_of(fd);
    struct disk *disk = world.here->disk;
    struct inode *inode = file->data.inode;
    struct timespec pause = {.tv_nsec = (long)chance(5000000)};
    nanosleep(&pause, NULL);
    int reason = falls_short(SHORT_FSYNC);
    if (reason != 0) {
        return wrong(reason);
    }
    if (disk->lies > 0) {
        disk->lies--;
        inode->lied = true;
        return 0;
    }
    if (!inode->is_folder) {
        inode->is_synced = true;
        return 0;
    }
    for (int i = 0; i < disk->count; i++) {
        if (disk->names[i].inode == inode) {
            for (int k = 0; k < disk->count; k++) {
                if (is_in(disk->names[k].text, disk->names[i].text)) {
                    put(&disk->names[k].certain, disk->names[k].inode);
                }
            }
        }
    }
    forget_unused(disk);
    return 0;
}

WRAP(int, rename, const char *from, const char *to)
{
    struct inode *inode = lookup(from);
    int reason = !inode ? ENOENT : falls_short(SHORT_RENAME);
    if (reason != 0) {
        return wrong(reason);
    }
    inode->refs++;
    struct name *target = find(to, true);
    put(&target->inode, inode);
    put(&find(from, false)->inode, NULL);
    release(inode);
    forget_unused(world.here->disk);
    return 0;
}

WRAP(int, unlink, const char *path)
{
    if (!lookup(path)) {
        return wrong(ENOENT);
    }
    put(&find(path, false)->inode, NULL);
    forget_unused(world.here->disk);
    return 0;
}

/* Permissions are not simulated. */
WRAP(int, chmod, const char *path, mode_t mode)
{
    return lookup(path) ? 0 : wrong(ENOENT);
}

WRAP(int, fchmod, int fd, mode_t mode)
{
    return 0;
}

WRAP(int, rmdir, const char *path)
{
    const struct disk *disk = world.here->disk;
    for (int i = 0; i < disk->count; i++) {
        if (disk->names[i].inode && is_in(disk->names[i].text, path)) {
            return wrong(ENOTEMPTY);
        }
    }
    return __wrap_unlink(path);
}

WRAP(int, mkdir, const char *path, mode_t mode)
{
    if (lookup(path)) {
        return wrong(EEXIST);
    }
    struct name *name = find(path, true);
    put(&name->inode, inode_new(true));
    put(&name->certain, name->inode);
    return 0;
}

static int tell(const struct inode *inode, struct stat *status)
{
    if (!inode) {
        return wrong(ENOENT);
    }
    memset(status, 0, sizeof *status);
    status->st_mode = (inode->is_folder ? S_IFDIR : S_IFREG) | 0600;
    status->st_size = (off_t)inode->size;
    status->st_mtim.tv_sec = 1700000000 + (time_t)inode->written_s;
    return 0;
}

WRAP(int, stat, const char *path, struct stat *status)
{
    return tell(lookup(path), status);
}

WRAP(int, fstat, int fd, struct stat *status)
{
    return tell(file_of(fd)->data.inode, status);
}

WRAP(int, access, const char *path, int mode)
{
    return lookup(path) ? 0 : wrong(ENOENT);
}

WRAP(int, ftruncate, int fd, off_t size)
{
    file_of(fd)->data.inode->size = (size_t)size;
    return 0;
}

WRAP(int, fcntl, int fd, int command, ...)
{
    struct inode *inode = file_of(fd)->data.inode;
    if (command == F_SETLK) {
        if (inode->locked_by && inode->locked_by->runs && inode->locked_by->life == inode->locked_life &&
            inode->locked_life != world.here->life) {
            return wrong(EAGAIN);
        }
        inode->locked_by = world.here;
        inode->locked_life = world.here->life;
    }
    return 0;
}

/* --- Folders --- */

struct listing {
    char folder[MOST_TEXT];
    char names[MOST_NAMES][MOST_TEXT];
    int count, next;
    struct dirent entry;
};

WRAP(DIR *, opendir, const char *path)
{
    const struct disk *disk = world.here->disk;
    struct inode *inode = lookup(path);
    if (!inode || !inode->is_folder) {
        wrong(ENOENT);
        return NULL;
    }
    int reason = falls_short(SHORT_OPEN);
    struct listing *listing = reason == 0 ? calloc(1, sizeof *listing) : NULL;
    if (!listing) {
        wrong(reason != 0 ? reason : ENOMEM);
        return NULL;
    }
    snprintf(listing->folder, sizeof listing->folder, "%s", path);
    for (int i = 0; i < disk->count; i++) {
        if (disk->names[i].inode && is_in(disk->names[i].text, path)) {
            memcpy(listing->names[listing->count++], disk->names[i].text, MOST_TEXT);
        }
    }
    return (DIR *)listing;
}

static struct listing *opened; /* dirfd can't return a number: the last folder opened is meant */

WRAP(struct dirent *, readdir, DIR *directory)
{
    struct listing *listing = (struct listing *)directory;
    opened = listing;
    if (listing->next == listing->count) {
        return NULL;
    }
    const char *name = listing->names[listing->next++] + strlen(listing->folder) + 1;
    snprintf(listing->entry.d_name, sizeof listing->entry.d_name, "%s", name);
    return &listing->entry;
}

WRAP(int, closedir, DIR *directory)
{
    free(directory);
    return 0;
}

WRAP(int, dirfd, DIR *directory)
{
    opened = (struct listing *)directory;
    return -77;
}

WRAP(int, fstatat, int fd, const char *name, struct stat *status, int flags)
{
    char path[2 * MOST_TEXT];
    snprintf(path, sizeof path, "%s/%s", opened->folder, name);
    return tell(lookup(path), status);
}

WRAP(int, unlinkat, int fd, const char *name, int flags)
{
    char path[2 * MOST_TEXT];
    snprintf(path, sizeof path, "%s/%s", opened->folder, name);
    return __wrap_unlink(path);
}
