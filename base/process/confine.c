/* The filter is a program for the kernel's packet filter (BPF), which runs at every system call. */
#include "base/process/confine.h"

#include <assert.h>
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"

#if defined __x86_64__
enum { ARCHITECTURE = AUDIT_ARCH_X86_64 };
#elif defined __aarch64__
enum { ARCHITECTURE = AUDIT_ARCH_AARCH64 };
#endif

enum {
    LOAD = BPF_LD | BPF_W | BPF_ABS, /* a part of the call's description, by its offset */
    IF_EQUAL = BPF_JMP | BPF_JEQ | BPF_K,
    IF_ABOVE = BPF_JMP | BPF_JGT | BPF_K,
    IF_ANY_BIT = BPF_JMP | BPF_JSET | BPF_K,
    ANSWER = BPF_RET | BPF_K,
};

static const uint32_t ALLOW = SECCOMP_RET_ALLOW, REFUSE = SECCOMP_RET_ERRNO | EPERM,
                      UNKNOWN = SECCOMP_RET_ERRNO | ENOSYS;

enum {
    NEWEST = 450, /* of the calls that the list was made from */
    NAMESPACES =
        CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET,
};

/* --- What is allowed --- */

enum {
    LAUNCH = 1 << CONFINE_LAUNCHER,
    SERVE = 1 << CONFINE_SERVER | 1 << CONFINE_PS | LAUNCH,
    CONNECT = 1 << CONFINE_CLIENT | SERVE,
    EVERY = 1 << CONFINE_READER | CONNECT,
};

struct allowed {
    uint16_t number, roles;
};

/* clang-format off */
static const struct allowed allowed[] = {
    /* files */
    {SYS_read, EVERY}, {SYS_write, EVERY}, {SYS_readv, EVERY}, {SYS_writev, EVERY}, {SYS_pread64, EVERY},
    {SYS_pwrite64, EVERY}, {SYS_preadv, EVERY}, {SYS_pwritev, EVERY}, {SYS_lseek, EVERY}, {SYS_openat, EVERY},
    {SYS_close, EVERY}, {SYS_close_range, EVERY}, {SYS_fstat, EVERY}, {SYS_newfstatat, EVERY}, {SYS_statx, EVERY},
    {SYS_statfs, EVERY}, {SYS_fstatfs, EVERY}, {SYS_faccessat, EVERY}, {SYS_faccessat2, EVERY}, {SYS_fcntl, EVERY},
    {SYS_flock, EVERY}, {SYS_fsync, EVERY}, {SYS_fdatasync, EVERY}, {SYS_sync_file_range, EVERY},
    {SYS_ftruncate, EVERY}, {SYS_fallocate, EVERY}, {SYS_fadvise64, EVERY}, {SYS_copy_file_range, EVERY},
    {SYS_sendfile, EVERY}, {SYS_getdents64, EVERY}, {SYS_getcwd, EVERY}, {SYS_chdir, EVERY}, {SYS_fchdir, EVERY},
    {SYS_mkdirat, EVERY}, {SYS_unlinkat, EVERY}, {SYS_renameat, EVERY}, {SYS_renameat2, EVERY}, {SYS_linkat, EVERY},
    {SYS_symlinkat, EVERY}, {SYS_readlinkat, EVERY}, {SYS_fchmod, EVERY}, {SYS_fchmodat, EVERY}, {SYS_umask, EVERY},
    {SYS_utimensat, EVERY}, {SYS_lgetxattr, EVERY}, {SYS_getxattr, EVERY}, {SYS_fgetxattr, EVERY}, {SYS_dup, EVERY},
    {SYS_dup3, EVERY}, {SYS_pipe2, EVERY}, {SYS_memfd_create, EVERY}, {SYS_eventfd2, EVERY},
#ifdef SYS_open /* older calls, which aarch64 never had */
    {SYS_open, EVERY}, {SYS_stat, EVERY}, {SYS_lstat, EVERY}, {SYS_access, EVERY}, {SYS_readlink, EVERY},
    {SYS_mkdir, EVERY}, {SYS_rmdir, EVERY}, {SYS_unlink, EVERY}, {SYS_rename, EVERY}, {SYS_link, EVERY},
    {SYS_symlink, EVERY}, {SYS_chmod, EVERY}, {SYS_dup2, EVERY}, {SYS_pipe, EVERY}, {SYS_poll, EVERY},
    {SYS_select, EVERY}, {SYS_epoll_create, EVERY}, {SYS_epoll_wait, EVERY}, {SYS_eventfd, EVERY},
    {SYS_getrlimit, EVERY}, {SYS_setrlimit, EVERY}, {SYS_alarm, EVERY}, {SYS_pause, EVERY}, {SYS_time, EVERY},
    {SYS_arch_prctl, EVERY}, {SYS_getpgrp, EVERY},
#endif
    /* sockets, and waiting; who asks for an address binds a socket as well */
    {SYS_bind, CONNECT}, {SYS_listen, SERVE}, {SYS_accept, SERVE}, {SYS_accept4, SERVE}, {SYS_connect, CONNECT},
    {SYS_shutdown, CONNECT}, {SYS_sendto, CONNECT}, {SYS_recvfrom, CONNECT}, {SYS_sendmsg, CONNECT},
    {SYS_recvmsg, CONNECT}, {SYS_sendmmsg, CONNECT}, {SYS_recvmmsg, CONNECT}, {SYS_getsockname, CONNECT},
    {SYS_getpeername, CONNECT},
    {SYS_getsockopt, CONNECT}, {SYS_setsockopt, CONNECT}, {SYS_socketpair, CONNECT}, {SYS_ppoll, EVERY},
    {SYS_pselect6, EVERY}, {SYS_epoll_create1, EVERY}, {SYS_epoll_ctl, EVERY}, {SYS_epoll_pwait, EVERY},
    {SYS_epoll_pwait2, EVERY},
    /* memory, threads, time, signals */
    {SYS_munmap, EVERY}, {SYS_mremap, EVERY}, {SYS_madvise, EVERY}, {SYS_msync, EVERY}, {SYS_mincore, EVERY},
    {SYS_mlock, EVERY}, {SYS_mlock2, EVERY}, {SYS_munlock, EVERY}, {SYS_brk, EVERY}, {SYS_futex, EVERY},
    {SYS_futex_waitv, EVERY}, {SYS_membarrier, EVERY}, {SYS_rseq, EVERY}, {SYS_set_tid_address, EVERY},
    {SYS_set_robust_list, EVERY}, {SYS_get_robust_list, EVERY}, {SYS_sched_yield, EVERY}, {SYS_getcpu, EVERY},
    {SYS_sched_getaffinity, EVERY}, {SYS_sched_setaffinity, EVERY}, {SYS_sched_getattr, EVERY},
    {SYS_sched_setattr, EVERY}, {SYS_sched_getparam, EVERY}, {SYS_sched_setparam, EVERY},
    {SYS_sched_getscheduler, EVERY}, {SYS_sched_setscheduler, EVERY}, {SYS_sched_get_priority_max, EVERY},
    {SYS_sched_get_priority_min, EVERY}, {SYS_getpriority, EVERY}, {SYS_setpriority, EVERY}, {SYS_ioprio_set, EVERY},
    {SYS_clock_gettime, EVERY}, {SYS_clock_getres, EVERY}, {SYS_clock_nanosleep, EVERY}, {SYS_nanosleep, EVERY},
    {SYS_gettimeofday, EVERY}, {SYS_setitimer, EVERY}, {SYS_getitimer, EVERY}, {SYS_timerfd_create, EVERY},
    {SYS_timerfd_settime, EVERY}, {SYS_rt_sigaction, EVERY}, {SYS_rt_sigprocmask, EVERY}, {SYS_rt_sigreturn, EVERY},
    {SYS_rt_sigpending, EVERY}, {SYS_rt_sigsuspend, EVERY}, {SYS_rt_sigtimedwait, EVERY}, {SYS_sigaltstack, EVERY},
    {SYS_restart_syscall, EVERY}, {SYS_kill, EVERY}, {SYS_tkill, EVERY}, {SYS_tgkill, EVERY}, {SYS_exit, EVERY},
    {SYS_exit_group, EVERY},
    /* what the process is, and may use */
    {SYS_getpid, EVERY}, {SYS_getppid, EVERY}, {SYS_gettid, EVERY}, {SYS_getuid, EVERY}, {SYS_geteuid, EVERY},
    {SYS_getgid, EVERY}, {SYS_getegid, EVERY}, {SYS_getgroups, EVERY}, {SYS_getpgid, EVERY}, {SYS_getsid, EVERY},
    {SYS_getresuid, EVERY}, {SYS_getresgid, EVERY}, {SYS_capget, EVERY}, {SYS_prctl, EVERY}, {SYS_seccomp, EVERY},
    {SYS_prlimit64, EVERY}, {SYS_getrusage, EVERY}, {SYS_sysinfo, EVERY}, {SYS_times, EVERY}, {SYS_uname, EVERY},
    {SYS_getrandom, EVERY},
    /* programs */
    {SYS_execve, 1 << CONFINE_PS | LAUNCH}, {SYS_execveat, LAUNCH}, {SYS_wait4, LAUNCH}, {SYS_waitid, LAUNCH},
    {SYS_setpgid, LAUNCH}, {SYS_setsid, LAUNCH}, {SYS_pidfd_open, LAUNCH}, {SYS_pidfd_send_signal, LAUNCH},
    /* also glibc and drivers */
    {SYS_mmap, LAUNCH}, {SYS_mprotect, LAUNCH}, {SYS_openat2, LAUNCH}, {SYS_truncate, LAUNCH},
    {SYS_inotify_init1, LAUNCH}, {SYS_inotify_add_watch, LAUNCH}, {SYS_inotify_rm_watch, LAUNCH},
    {SYS_timer_create, LAUNCH}, {SYS_timer_settime, LAUNCH}, {SYS_timer_gettime, LAUNCH}, {SYS_timer_delete, LAUNCH},
    {SYS_timer_getoverrun, LAUNCH}, {SYS_timerfd_gettime, LAUNCH}, {SYS_signalfd4, LAUNCH}, {SYS_mlockall, LAUNCH},
    {SYS_munlockall, LAUNCH}, {SYS_shmget, LAUNCH}, {SYS_shmat, LAUNCH}, {SYS_shmctl, LAUNCH}, {SYS_shmdt, LAUNCH},
    {SYS_semget, LAUNCH}, {SYS_semop, LAUNCH}, {SYS_semctl, LAUNCH}, {SYS_get_mempolicy, LAUNCH},
    {SYS_set_mempolicy, LAUNCH}, {SYS_mbind, LAUNCH}, {SYS_rt_sigqueueinfo, LAUNCH}, {SYS_rt_tgsigqueueinfo, LAUNCH},
    {SYS_ioprio_get, LAUNCH}, {SYS_sched_rr_get_interval, LAUNCH}, {SYS_splice, LAUNCH}, {SYS_tee, LAUNCH},
    {SYS_pkey_alloc, LAUNCH}, {SYS_pkey_free, LAUNCH}, {SYS_pkey_mprotect, LAUNCH},
#ifdef SYS_fork
    {SYS_fork, LAUNCH}, {SYS_vfork, LAUNCH}, {SYS_inotify_init, LAUNCH}, {SYS_getdents, LAUNCH}, {SYS_creat, LAUNCH},
#endif
};
/* clang-format on */

/* --- The filter --- */

struct filter {
    struct sock_filter code[2 * sizeof allowed / sizeof allowed[0] + 64];
    unsigned short count;
};

static void add(struct filter *filter, unsigned code, unsigned yes, unsigned no, uint32_t number)
{
    assert(filter->count < sizeof filter->code / sizeof filter->code[0]);
    filter->code[filter->count++] = (struct sock_filter){(uint16_t)code, (uint8_t)yes, (uint8_t)no, number};
}

/* The test of what was loaded, and the answer if it holds. */
static void answer_if(struct filter *filter, unsigned test, uint32_t number, uint32_t answer)
{
    add(filter, test, 0, 1, number);
    add(filter, ANSWER, 0, 0, answer);
}

/* What follows, `length` instructions that end in an answer, is about this call and the argument, which is loaded. */
static void about(struct filter *filter, unsigned call, unsigned argument, unsigned length)
{
    add(filter, IF_EQUAL, 0, length + 1, call);
    add(filter, LOAD, 0, 0, (uint32_t)offsetof(struct seccomp_data, args[argument]));
}

static void refuse_others(struct filter *filter)
{
    add(filter, ANSWER, 0, 0, REFUSE);
}

/* mmap or mprotect. */
static void allow_memory(struct filter *filter, unsigned call)
{
    about(filter, call, 2, 3);
    answer_if(filter, IF_ANY_BIT, PROT_EXEC, REFUSE);
    add(filter, ANSWER, 0, 0, ALLOW);
}

static void look_at_arguments(struct filter *filter, enum confine_role role)
{
    if (role != CONFINE_READER) {
        about(filter, SYS_socket, 0, 7);
        answer_if(filter, IF_EQUAL, AF_UNIX, ALLOW);
        answer_if(filter, IF_EQUAL, AF_INET, ALLOW);
        answer_if(filter, IF_EQUAL, AF_INET6, ALLOW);
        refuse_others(filter);
    }
    about(filter, SYS_ioctl, 1, 3);
    answer_if(filter, IF_EQUAL, TIOCSTI, REFUSE); /* types into the terminal that it was started from */
    add(filter, ANSWER, 0, 0, ALLOW);
    about(filter, SYS_clone, 0, 5);
    answer_if(filter, IF_ANY_BIT, NAMESPACES, REFUSE);
    answer_if(filter, IF_ANY_BIT, role == CONFINE_LAUNCHER ? ~0u : CLONE_THREAD, ALLOW);
    refuse_others(filter);
    if (role != CONFINE_LAUNCHER) {
        allow_memory(filter, SYS_mmap);
        allow_memory(filter, SYS_mprotect);
    }
    answer_if(filter, IF_EQUAL, SYS_clone3, UNKNOWN); /* its arguments are out of sight; libraries use clone */
}

/* A question that only the filter answers, with an error that is no other's. */
enum { ASK = 0x74726e00, FIRST_ANSWER = 1000, ANSWERS = 1000 };

/* The same for the same filter. */
static uint32_t answer_of(const struct filter *filter)
{
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < filter->count * sizeof filter->code[0]; i++) {
        hash = (hash ^ ((const uint8_t *)filter->code)[i]) * 16777619u;
    }
    return FIRST_ANSWER + hash % ANSWERS;
}

/* Returns the answer by which it is known. */
static uint32_t compile(struct filter *filter, enum confine_role role)
{
    filter->count = 0;
    add(filter, LOAD, 0, 0, offsetof(struct seccomp_data, arch));
    add(filter, IF_EQUAL, 1, 0, ARCHITECTURE);
    add(filter, ANSWER, 0, 0, SECCOMP_RET_KILL_PROCESS); /* nothing of ours: the 32-bit calls have other numbers */
    add(filter, LOAD, 0, 0, offsetof(struct seccomp_data, nr));
    answer_if(filter, IF_ABOVE, NEWEST, UNKNOWN);
    look_at_arguments(filter, role);
    for (size_t i = 0; i < sizeof allowed / sizeof allowed[0]; i++) {
        if (allowed[i].number != SYS_prctl && allowed[i].roles >> role & 1) {
            answer_if(filter, IF_EQUAL, allowed[i].number, ALLOW);
        }
    }
    about(filter, SYS_prctl, 0, 3);
    const uint32_t answer = answer_of(filter);
    answer_if(filter, IF_EQUAL, ASK, SECCOMP_RET_ERRNO | answer);
    add(filter, ANSWER, 0, 0, ALLOW);
    refuse_others(filter);
    return answer;
}

bool confine(enum confine_role role, struct error *error)
{
    struct filter filter;
    if (role == CONFINE_NOT) {
        return true;
    }
    const uint32_t answer = compile(&filter, role);
    if (prctl(ASK, 0, 0, 0, 0) != 0 && errno == (int)answer) {
        return true;
    }
    const struct sock_fprog program = {filter.count, filter.code};
    const long result = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
    return result == 0 || error_set(error, "%s", result > 0 ? "a thread has another filter" : strerror(errno));
}

void confine_if_possible(enum confine_role role)
{
#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
    struct error ignored;
    confine(role, &ignored);
#else
    (void)role;
#endif
}

void confine_or_warn(enum confine_role role)
{
#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
    struct error error;
    if (!confine(role, &error)) {
        log_warning("this process may use all system calls, because the kernel takes no filter (seccomp): %s; if it is "
                    "confined otherwise, set security.seccomp to false",
                    error.text);
    }
#else
    (void)role;
#endif
}
