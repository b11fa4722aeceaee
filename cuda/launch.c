/* Three ways to run a program from memory, tried in turn, because hardened systems forbid some of them. */
#include "cuda/launch.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"

/* Newer than the headers of some build systems. */
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U
#endif

enum {
    PROGRAM_FD = 3,  /* the descriptor passed to the program */
    FIRST_OTHER = 4, /* from here on closed */
    KILL_WAIT_MS = 1000,
};

/* What a child reports over its pipe if exec failed; if it succeeds, the pipe just closes. */
struct failure {
    int reason; /* errno */
};

static bool write_all(int fd, const void *bytes, size_t size)
{
    const char *at = bytes;
    while (size > 0) {
        ssize_t done = write(fd, at, size);
        if (done <= 0) {
            if (done < 0 && errno == EINTR) {
                continue;
            }
            return false;
        }
        at += done;
        size -= (size_t)done;
    }
    return true;
}

/* --- The program as a descriptor --- */

/* Kernels before 6.3 do not know the flag, and allow any memfd to be executed. */
static int memory_file(const char *name, unsigned flag)
{
    int fd = (int)syscall(SYS_memfd_create, name, MFD_CLOEXEC | flag);
    return fd < 0 && errno == EINVAL ? (int)syscall(SYS_memfd_create, name, MFD_CLOEXEC) : fd;
}

/* A file open for writing cannot be executed. */
static int reopen_read_only(int fd)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int again = open(path, O_RDONLY | O_CLOEXEC);
    int reason = errno;
    close(fd);
    errno = reason;
    return again;
}

/* The dynamic loader named in the program's header, within its bytes; NULL: none. */
static const char *loader_of(const struct launch_program *program)
{
    const Elf64_Ehdr *file = program->bytes;
    const char *bytes = program->bytes;
    if (program->size < sizeof *file || memcmp(file->e_ident, ELFMAG, SELFMAG) != 0 || file->e_phoff > program->size ||
        file->e_phnum > (program->size - file->e_phoff) / sizeof(Elf64_Phdr)) {
        return NULL;
    }
    for (int i = 0; i < file->e_phnum; i++) {
        Elf64_Phdr part;
        memcpy(&part, bytes + file->e_phoff + (size_t)i * sizeof part, sizeof part);
        if (part.p_type == PT_INTERP && part.p_offset < program->size && part.p_filesz > 0 &&
            part.p_filesz <= program->size - part.p_offset && bytes[part.p_offset + part.p_filesz - 1] == '\0') {
            return bytes + part.p_offset;
        }
    }
    return NULL;
}

/* --- The child --- */

struct child {
    enum launch_way way;
    const struct launch_program *program;
    const char *loader;
    int executable;
    int report; /* its end of the pipe */
    pid_t parent;
};

/*
 * The terminal sends signals to the parent and this process alike. The parent decides when to end: it may still need
 * parameters from here for a last checkpoint.
 */
static void leave_signals_to_parent(void)
{
    static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGUSR1, SIGUSR2};
    sigset_t none;
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++) {
        signal(ignored[i], SIG_IGN);
    }
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Sets up descriptors 0, 1, 2 and PROGRAM_FD; no other survives the exec. False: errno. */
static bool arrange_descriptors(struct child *child)
{
    /* Move them away first: any of them may occupy a wanted number. */
    int shared = fcntl(child->program->fd, F_DUPFD_CLOEXEC, 16);
    child->executable = fcntl(child->executable, F_DUPFD_CLOEXEC, 16);
    child->report = fcntl(child->report, F_DUPFD_CLOEXEC, 16);
    int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (shared < 0 || child->executable < 0 || child->report < 0 || dup2(shared, PROGRAM_FD) < 0) {
        return false;
    }
    if (nothing >= 0) {
        dup2(nothing, 0);
    }
    dup2(2, 1);
    return child->way != LAUNCH_LOADER || fcntl(child->executable, F_SETFD, 0) == 0;
}

static void close_other_files(const struct child *child)
{
    /* Our own descriptors close on exec; inherited ones may not. */
    for (int fd = FIRST_OTHER; fd < 64; fd++) {
        if (fd != child->executable && fd != child->report) {
            close(fd);
        }
    }
}

static void exec_helper(struct child *child)
{
    char path[32], number[8];
    snprintf(path, sizeof path, "/proc/self/fd/%d", child->executable);
    snprintf(number, sizeof number, "%d", PROGRAM_FD);
    if (child->way == LAUNCH_LOADER) {
        execve(child->loader, (char *[]){path, path, number, NULL}, environ);
    } else {
        syscall(SYS_execveat, child->executable, "", (char *[]){path, number, NULL}, environ, AT_EMPTY_PATH);
    }
}

_Noreturn static void run_child(struct child *child)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == child->parent) {
        leave_signals_to_parent();
        if (arrange_descriptors(child)) {
            close_other_files(child);
            exec_helper(child);
        }
    }
    struct failure failure = {.reason = errno};
    (void)!write(child->report, &failure, sizeof failure);
    _exit(127);
}

/* --- The parent --- */

/* Waits until the child has executed the program, which closes the pipe, or has reported an error. */
static bool await_exec(int report, struct failure *failure)
{
    ssize_t got;
    do {
        got = read(report, failure, sizeof *failure);
    } while (got < 0 && errno == EINTR);
    return got == 0;
}

static bool start(struct child *child, pid_t *pid, int *reason)
{
    int ends[2];
    struct failure failure = {0};
    if (pipe2(ends, O_CLOEXEC) != 0) {
        *reason = errno;
        return false;
    }
    child->report = ends[1];
    child->parent = getpid();
    *pid = fork();
    if (*pid == 0) {
        run_child(child);
    }
    *reason = errno;
    close(ends[1]);
    bool done = *pid > 0 && await_exec(ends[0], &failure);
    close(ends[0]);
    if (*pid > 0 && !done) {
        waitpid(*pid, NULL, 0);
        *reason = failure.reason;
    }
    return done;
}

static bool start_from(int fd, struct child *child, pid_t *pid, int *reason)
{
    if (fd < 0) {
        *reason = errno;
        return false;
    }
    child->executable = fd;
    bool written = write_all(fd, child->program->bytes, child->program->size);
    *reason = errno;
    if (written && child->way == LAUNCH_FILE) {
        child->executable = fd = reopen_read_only(fd);
        written = fd >= 0;
        *reason = errno;
    }
    bool done = written && start(child, pid, reason);
    if (fd >= 0) {
        close(fd);
    }
    return done;
}

static bool start_from_file(struct child *child, pid_t *pid, int *reason)
{
    const char *const folders[] = {getenv("XDG_RUNTIME_DIR"), "/dev/shm", getenv("TMPDIR"), "/tmp", "/var/tmp", "."};
    *reason = ENOENT;
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        if (folders[i] && folders[i][0] != '\0' &&
            start_from(file_create_nameless(folders[i], 0700), child, pid, reason)) {
            return true;
        }
    }
    return false;
}

bool launch_by(enum launch_way way, pid_t *pid, const struct launch_program *program, struct error *error)
{
    static const char *const names[] = {"from memory", "by the system's loader", "from an unnamed file"};
    struct child child = {.way = way, .program = program, .loader = loader_of(program)};
    int reason = 0;
    bool done = false;
    if (!child.loader) {
        return error_set(error, "%s is not a program for this system", program->name);
    }
    switch (way) {
    case LAUNCH_MEMORY:
        done = start_from(memory_file(program->name, MFD_EXEC), &child, pid, &reason);
        break;
    case LAUNCH_LOADER:
        done = start_from(memory_file(program->name, MFD_NOEXEC_SEAL), &child, pid, &reason);
        break;
    default:
        done = start_from_file(&child, pid, &reason);
        break;
    }
    if (done) {
        return true;
    }
    /* The loader is the only file the program may be missing. */
    if (access(child.loader, F_OK) != 0) {
        return error_set(error, "this system has no glibc (%s), which NVIDIA's driver needs", child.loader);
    }
    return error_set(error, "%s cannot be started %s: %s", program->name, names[way], strerror(reason));
}

bool launch(pid_t *pid, const struct launch_program *program, struct error *error)
{
    struct error first;
    for (int way = 0; way < LAUNCH_WAYS; way++) {
        if (launch_by((enum launch_way)way, pid, program, way == 0 ? &first : error)) {
            return true;
        }
    }
    *error = first; /* the error of the usual way says most */
    return false;
}

bool launch_ended(pid_t pid, char *how, size_t size)
{
    int status = 0;
    pid_t got = waitpid(pid, &status, WNOHANG);
    if (got == 0 || (got < 0 && errno == EINTR)) {
        return false;
    }
    if (got == pid && WIFSIGNALED(status)) {
        snprintf(how, size, "was killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    } else if (got == pid) {
        snprintf(how, size, "ended with status %d", WEXITSTATUS(status));
    } else {
        snprintf(how, size, "is gone");
    }
    return true;
}

void launch_kill(pid_t pid)
{
    char how[64];
    kill(pid, SIGKILL);
    for (int ms = 0; ms < KILL_WAIT_MS && !launch_ended(pid, how, sizeof how); ms++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}
