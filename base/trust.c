/*
 * Owners and modes along a path. The walk holds a handle of each folder and looks up the next name in it, so that what
 * is checked is what the path leads to, whatever others rename meanwhile. The first fault is kept while the walk goes
 * on: a folder named by --trust_folder may lie below it.
 */
#include "base/trust.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <pthread.h>
#include <pwd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/file.h"

enum {
    MOST_FOLDERS = 32,
    MOST_LINKS = 40, /* as in the kernel */
    NAME_TEXT = 80,  /* of a user or group, with its number */
    PROC_FILES = 0x9fa0,
    OVERFLOW_ID = 65534, /* unless the kernel says otherwise */
};

enum trust_kind { KIND_FILE, KIND_KEY, KIND_FOLDER };

static struct {
    bool is_everything;
    const char *given;
    int count;
    struct {
        dev_t device;
        ino_t inode;
    } folders[MOST_FOLDERS];
} exempt;

/* --- Users and groups --- */

/* The C library's functions for users and groups share their memory among threads. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void name_user(uid_t user, char name[NAME_TEXT])
{
    pthread_mutex_lock(&mutex);
    const struct passwd *entry = getpwuid(user);
    snprintf(name, NAME_TEXT, entry ? "%.40s (%u)" : "%.0suser %u", entry ? entry->pw_name : "", user);
    pthread_mutex_unlock(&mutex);
}

static void name_group(gid_t group, char name[NAME_TEXT])
{
    pthread_mutex_lock(&mutex);
    const struct group *entry = getgrgid(group);
    snprintf(name, NAME_TEXT, entry ? "%.40s (%u)" : "%.0s%u", entry ? entry->gr_name : "", group);
    pthread_mutex_unlock(&mutex);
}

/* Does another user have this as the first group? */
static bool is_first_of_others(gid_t group, uid_t user)
{
    bool found = false;
    setpwent();
    for (const struct passwd *entry; !found && (entry = getpwent());) {
        found = entry->pw_gid == group && entry->pw_uid != user;
    }
    endpwent();
    return found;
}

/* This user's own group: it has the user's name or number, and no other members that this machine knows. */
static bool is_private(gid_t group)
{
    char name[64] = "";
    const uid_t user = geteuid();
    gid_t first = getegid();
    pthread_mutex_lock(&mutex);
    const struct passwd *own = getpwuid(user);
    if (own) {
        snprintf(name, sizeof name, "%s", own->pw_name);
        first = own->pw_gid;
    }
    const struct group *entry = getgrgid(group);
    const bool is_named = entry && name[0] != '\0' && strcmp(entry->gr_name, name) == 0;
    bool own_alone = group == first && (group == user || is_named);
    for (int i = 0; entry && entry->gr_mem[i]; i++) {
        own_alone = own_alone && strcmp(entry->gr_mem[i], name) == 0;
    }
    own_alone = own_alone && !is_first_of_others(group, user);
    pthread_mutex_unlock(&mutex);
    return own_alone;
}

static unsigned overflow_id(void)
{
    unsigned id = OVERFLOW_ID;
    FILE *file = fopen("/proc/sys/kernel/overflowuid", "re");
    if (file) {
        (void)!fscanf(file, "%u", &id); /* NOLINT: it stays as it is */
        fclose(file);
    }
    return id;
}

/* In some user namespaces not all users have a number. */
static bool has_everybody(void)
{
    unsigned inside, outside, count = 0;
    FILE *file = fopen("/proc/self/uid_map", "re");
    const bool is_map = file && fscanf(file, "%u %u %u", &inside, &outside, &count) == 3; /* NOLINT: of the kernel */
    if (file) {
        fclose(file);
    }
    return !file || (is_map && count == UINT_MAX);
}

/* Files of all users without a number have the same owner. */
static bool is_unknown(uid_t owner)
{
    return owner == overflow_id() && !has_everybody();
}

static bool is_ours(uid_t owner)
{
    return (owner == geteuid() || owner == 0) && !is_unknown(owner);
}

/* --- What is wrong with one file or folder --- */

struct fault {
    char what[NAME_TEXT * 2 + 100]; /* "belongs to mallory (1001), ..." */
    char remedy[NAME_TEXT];         /* a command, to be followed by the path */
};

static void belongs_to_another(const struct stat *status, struct fault *fault)
{
    char owner[NAME_TEXT], own[NAME_TEXT];
    name_user(status->st_uid, owner);
    name_user(geteuid(), own);
    snprintf(fault->what, sizeof fault->what, "belongs to %s%s, and this process runs as %s", owner,
             is_unknown(status->st_uid) ? ", which is whoever has no number in this user namespace" : "", own);
    snprintf(fault->remedy, sizeof fault->remedy, "chown %u", geteuid());
}

/* Group bits are then those of its list, too. */
static bool has_access_list(const char *path)
{
    return lgetxattr(path, "system.posix_acl_access", NULL, 0) > 0;
}

static bool is_fault_of_group(const char *path, const struct stat *status, enum trust_kind kind, struct fault *fault)
{
    char group[NAME_TEXT];
    if ((status->st_mode & S_IWGRP) == 0) {
        return false;
    }
    if (has_access_list(path)) {
        snprintf(fault->what, sizeof fault->what, "can be written to by whom its access control list names");
        snprintf(fault->remedy, sizeof fault->remedy, "setfacl -b");
        return true;
    }
    if (is_private(status->st_gid) && (kind != KIND_KEY || S_ISDIR(status->st_mode))) {
        return false;
    }
    name_group(status->st_gid, group);
    snprintf(fault->what, sizeof fault->what, "can be written to by its group, %s", group);
    snprintf(fault->remedy, sizeof fault->remedy, "chmod g-w");
    return true;
}

/* is_last: it is what was asked for, and not a folder above it. path: for looking up its list. */
static bool is_fault(const char *path, const struct stat *status, enum trust_kind kind, bool is_last,
                     struct fault *fault)
{
    const bool is_folder = S_ISDIR(status->st_mode);
    if (!is_ours(status->st_uid)) {
        belongs_to_another(status, fault);
        return true;
    }
    if (S_ISLNK(status->st_mode) || S_ISCHR(status->st_mode) ||
        (is_folder && !is_last && (status->st_mode & S_ISVTX))) {
        return false;
    }
    if (status->st_mode & S_IWOTH) {
        snprintf(fault->what, sizeof fault->what, "can be written to by everybody");
        snprintf(fault->remedy, sizeof fault->remedy, "chmod %so-w", status->st_mode & S_IWGRP ? "g" : "");
        return true;
    }
    return is_fault_of_group(path, status, kind, fault);
}

/* --- The walk --- */

struct path_walk {
    const char *asked;
    enum trust_kind kind;
    int fd; /* of the folder reached */
    int links;
    char here[PATH_MAX]; /* its absolute path; "": the root */
    char rest[PATH_MAX]; /* what remains to be looked up in it */
    char link[PATH_MAX];
    bool is_faulty;
    struct fault fault;
    char faulty[PATH_MAX];
};

static bool fail(const struct path_walk *walk, int reason, struct error *error)
{
    return file_error(error, walk->asked, "cannot be opened", reason);
}

static bool is_exempt(const struct stat *status)
{
    for (int i = 0; i < exempt.count; i++) {
        if (exempt.folders[i].device == status->st_dev && exempt.folders[i].inode == status->st_ino) {
            return true;
        }
    }
    return false;
}

static void examine(struct path_walk *walk, const struct stat *status)
{
    const bool is_last = walk->rest[strspn(walk->rest, "./")] == '\0';
    if (!walk->is_faulty && is_fault(walk->here[0] ? walk->here : "/", status, walk->kind, is_last, &walk->fault)) {
        walk->is_faulty = true;
        snprintf(walk->faulty, sizeof walk->faulty, "%s", walk->here[0] ? walk->here : "/");
    }
}

/* Continues from the root. */
static bool go_to_root(struct path_walk *walk, struct error *error)
{
    if (walk->fd >= 0) {
        close(walk->fd);
    }
    walk->here[0] = '\0';
    walk->fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    return walk->fd >= 0 || file_error(error, "/", "cannot be opened", errno);
}

/* O_DIRECTORY mounts what is mounted on demand. */
static int open_entry(int folder, const char *name)
{
    const int fd = openat(folder, name, O_PATH | O_NOFOLLOW | O_DIRECTORY | O_CLOEXEC);
    return fd >= 0 || errno != ENOTDIR ? fd : openat(folder, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
}

/* Is it a descriptor, which only looks like a link: /proc/123/fd/4? */
static bool is_descriptor(const struct path_walk *walk)
{
    struct statfs system;
    const char *slash = strrchr(walk->here, '/');
    return fstatfs(walk->fd, &system) == 0 && system.f_type == PROC_FILES && slash - walk->here >= 3 &&
           strncmp(slash - 3, "/fd", 3) == 0;
}

/* Puts where the link leads before the rest. */
static bool follow(struct path_walk *walk, int link, struct error *error)
{
    const ssize_t length = readlinkat(link, "", walk->link, sizeof walk->link);
    const int reason = errno;
    const size_t rest = strlen(walk->rest);
    if (length < 0) {
        return fail(walk, reason, error);
    }
    if (++walk->links > MOST_LINKS) {
        return fail(walk, ELOOP, error);
    }
    if ((size_t)length + 1 + rest + 1 > sizeof walk->rest) {
        return fail(walk, ENAMETOOLONG, error);
    }
    memmove(walk->rest + length + 1, walk->rest, rest + 1);
    memcpy(walk->rest, walk->link, (size_t)length);
    walk->rest[length] = rest > 0 ? '/' : '\0';
    if (walk->link[0] == '/') {
        return go_to_root(walk, error);
    }
    *strrchr(walk->here, '/') = '\0';
    return true;
}

/* Takes the first name off the rest, and appends it to where the walk is. "": there is none. */
static bool take_name(struct path_walk *walk, char name[NAME_MAX + 1], struct error *error)
{
    const char *begin = walk->rest + strspn(walk->rest, "/");
    const size_t length = strcspn(begin, "/"), here = strlen(walk->here);
    if (length > NAME_MAX || here + 1 + length >= sizeof walk->here) {
        return fail(walk, ENAMETOOLONG, error);
    }
    memcpy(name, begin, length);
    name[length] = '\0';
    begin += length;
    begin += strspn(begin, "/");
    memmove(walk->rest, begin, strlen(begin) + 1);
    if (strcmp(name, "..") == 0) {
        char *slash = strrchr(walk->here, '/');
        if (slash) {
            *slash = '\0';
        }
    } else if (length > 0 && strcmp(name, ".") != 0) {
        snprintf(walk->here + here, sizeof walk->here - here, "/%s", name);
    }
    return true;
}

/* *done: nothing more has to be examined. */
static bool step(struct path_walk *walk, bool *done, struct error *error)
{
    char name[NAME_MAX + 1];
    struct stat status;
    if (!take_name(walk, name, error)) {
        return false;
    }
    *done = name[0] == '\0';
    if (*done || strcmp(name, ".") == 0) {
        return true;
    }
    const int fd = open_entry(walk->fd, name);
    if (fd < 0 || fstat(fd, &status) != 0) {
        const int reason = errno;
        if (fd >= 0) {
            close(fd);
        }
        return fail(walk, reason, error);
    }
    examine(walk, &status);
    if (S_ISLNK(status.st_mode)) {
        *done = is_descriptor(walk);
        const bool followed = *done || follow(walk, fd, error);
        close(fd);
        return followed;
    }
    *done = is_exempt(&status);
    walk->is_faulty = walk->is_faulty && !*done;
    close(walk->fd);
    walk->fd = fd;
    return true;
}

/* *done: as in step. */
static bool begin(struct path_walk *walk, bool *done, struct error *error)
{
    struct stat status;
    const size_t length = strlen(walk->asked);
    size_t here = 0;
    if (walk->asked[0] != '/') {
        if (!getcwd(walk->rest, sizeof walk->rest)) {
            return file_error(error, ".", "the current folder cannot be found", errno);
        }
        here = strlen(walk->rest);
        walk->rest[here++] = '/';
    }
    if (here + length >= sizeof walk->rest) {
        return fail(walk, ENAMETOOLONG, error);
    }
    memcpy(walk->rest + here, walk->asked, length + 1);
    if (!go_to_root(walk, error)) {
        return false;
    }
    if (fstat(walk->fd, &status) == 0) {
        examine(walk, &status);
        *done = is_exempt(&status);
        walk->is_faulty = walk->is_faulty && !*done;
    }
    return true;
}

/* The folder to exempt, so that what was asked for is trusted. */
static void name_folder(const struct path_walk *walk, char folder[PATH_MAX])
{
    const char *slash = strrchr(walk->asked, '/');
    if (walk->kind == KIND_FOLDER) {
        snprintf(folder, PATH_MAX, "%s", walk->asked);
    } else if (slash) {
        snprintf(folder, PATH_MAX, "%.*s", slash == walk->asked ? 1 : (int)(slash - walk->asked), walk->asked);
    } else {
        snprintf(folder, PATH_MAX, ".");
    }
}

static bool refuse(struct path_walk *walk, struct error *error)
{
    name_folder(walk, walk->link);
    return error_set(error,
                     "%.200s: is not trusted, because %.250s %s; run: %s %.250s, or give --trust_folder=%.200s if that "
                     "is intended",
                     walk->asked, walk->faulty, walk->fault.what, walk->fault.remedy, walk->faulty, walk->link);
}

static bool check(const char *path, enum trust_kind kind, struct error *error)
{
    if (exempt.is_everything) {
        return true;
    }
    struct path_walk *walk = calloc(1, sizeof *walk);
    if (!walk) {
        return error_set(error, "%s: out of memory while checking whose it is", path);
    }
    bool done = false;
    walk->asked = path;
    walk->kind = kind;
    walk->fd = -1;
    bool good = begin(walk, &done, error);
    while (good && !done) {
        good = step(walk, &done, error);
    }
    if (walk->is_faulty) {
        good = refuse(walk, error);
    }
    if (walk->fd >= 0) {
        close(walk->fd);
    }
    free(walk);
    return good;
}

bool trust_file(const char *path, struct error *error)
{
    return check(path, KIND_FILE, error);
}

bool trust_folder(const char *path, struct error *error)
{
    return check(path, KIND_FOLDER, error);
}

bool trust_public_key(const char *path, struct error *error)
{
    return check(path, KIND_KEY, error);
}

void trust_hide_memory(void)
{
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

bool trust_secret(const char *path, const char *what, struct error *error)
{
    struct stat status;
    if (!check(path, KIND_KEY, error)) {
        return false;
    }
    if (stat(path, &status) == 0 && S_ISREG(status.st_mode) && (status.st_mode & S_IRWXO)) {
        return error_set(error, "%s: everybody on this machine can read this %s; run: chmod 600 %s", path, what, path);
    }
    trust_hide_memory();
    return true;
}

/* --- At the start --- */

bool trust_folders(const char *list, struct error *error)
{
    char path[PATH_MAX];
    struct stat status;
    exempt.given = list;
    exempt.count = 0;
    for (const char *at = list; at && *at != '\0';) {
        const size_t length = strcspn(at, ":");
        snprintf(path, sizeof path, "%.*s", (int)length, at);
        at += length + (at[length] == ':');
        if (length == 0 || length >= sizeof path || exempt.count == MOST_FOLDERS) {
            return error_set(error, "--trust_folder: expected up to %d folders, separated by colons", MOST_FOLDERS);
        }
        if (stat(path, &status) != 0) {
            return file_error(error, "--trust_folder", path, errno);
        }
        if (!S_ISDIR(status.st_mode)) {
            return error_set(error, "--trust_folder: %s is not a folder", path);
        }
        exempt.folders[exempt.count].device = status.st_dev;
        exempt.folders[exempt.count++].inode = status.st_ino;
    }
    return true;
}

void trust_everything(void)
{
    exempt.is_everything = true;
}

const char *trust_given(void)
{
    return exempt.given;
}

/* As the kernel has them (linux/capability.h), which the C library does not declare. */
enum { CAPABILITIES = 64, CAPABILITY_VERSION = 0x20080522 };

struct capability_head {
    uint32_t version;
    int pid; /* 0: this one */
};

struct capability_words {
    uint32_t effective, permitted, inheritable;
};

/* Has it capabilities that its caller did not give it? Security modules set AT_SECURE, too, and give none. */
static bool has_gained_capabilities(void)
{
    struct capability_head head = {.version = CAPABILITY_VERSION};
    struct capability_words words[CAPABILITIES / 32] = {{0}};
    if (!getauxval(AT_SECURE) || geteuid() == 0 || syscall(SYS_capget, &head, words) != 0) {
        return false;
    }
    for (unsigned i = 0; i < CAPABILITIES; i++) {
        const bool is_permitted = words[i / 32].permitted >> i % 32 & 1;
        if (is_permitted && prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, i, 0, 0) != 1) {
            return true;
        }
    }
    return false;
}

bool trust_begin(struct error *error)
{
    char program[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = '\0';
    if (getuid() != geteuid() || getgid() != getegid()) {
        return error_set(error,
                         "%s is setuid or setgid: its config would lend these rights to whoever starts it; run: chmod "
                         "ug-s %s",
                         program, program);
    }
    if (has_gained_capabilities()) {
        return error_set(error,
                         "%s has file capabilities: its config would lend them to whoever starts it; run: setcap -r "
                         "%s, and have the service manager give them (AmbientCapabilities), or pass a socket",
                         program, program);
    }
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); /* nor does anything that it starts gain any */
    return true;
}
