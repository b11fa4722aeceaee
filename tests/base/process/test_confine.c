/* The filter of system calls: each test is a process that confines itself and then tries. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/process/confine.h"

enum { CONFINED_NOT = 200, AS_IT_SHOULD = 0 };

/* The exit status of a process that was confined, once for each role given, before it called `tries`. */
static int confined(const enum confine_role *roles, int count, int (*tries)(void))
{
    int status;
    struct error error;
    const pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        for (int i = 0; i < count; i++) {
            if (!confine(roles[i], &error)) {
                _exit(CONFINED_NOT);
            }
        }
        _exit(tries());
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static int in_role(enum confine_role role, int (*tries)(void))
{
    return confined(&role, 1, tries);
}

/* Calls that no role needs, with arguments that would do no harm; the index of one that was not refused, plus 1. */
static int try_what_nobody_needs(void)
{
    static const struct {
        long number, arguments[3];
    } calls[] = {
        {SYS_ptrace, {PTRACE_TRACEME, 0, 0}},
        {SYS_process_vm_readv, {0, 0, 0}},
        {SYS_process_vm_writev, {0, 0, 0}},
        {SYS_bpf, {0, 0, 0}},
        {SYS_perf_event_open, {0, 0, 0}},
        {SYS_mount, {0, 0, 0}},
        {SYS_umount2, {0, 0, 0}},
        {SYS_pivot_root, {0, 0, 0}},
        {SYS_chroot, {(long)"/", 0, 0}},
        {SYS_unshare, {0, 0, 0}},
        {SYS_setns, {-1, 0, 0}},
        {SYS_setuid, {0, 0, 0}},
        {SYS_setgid, {0, 0, 0}},
        {SYS_capset, {0, 0, 0}},
        {SYS_keyctl, {0, 0, 0}},
        {SYS_add_key, {0, 0, 0}},
        {SYS_init_module, {0, 0, 0}},
        {SYS_kexec_load, {0, 0, 0}},
        {SYS_reboot, {0, 0, 0}},
        {SYS_userfaultfd, {0, 0, 0}},
        {SYS_io_uring_setup, {0, 0, 0}},
        {SYS_open_by_handle_at, {-1, 0, 0}},
        {SYS_personality, {-1, 0, 0}},
        {SYS_swapon, {0, 0, 0}},
        {SYS_settimeofday, {0, 0, 0}},
        {SYS_mknodat, {AT_FDCWD, (long)"", 0}},
        {SYS_pidfd_getfd, {-1, 0, 0}},
        {SYS_socket, {AF_PACKET, SOCK_RAW, 0}},
        {SYS_socket, {AF_NETLINK, SOCK_RAW, 0}},
        {SYS_socket, {AF_VSOCK, SOCK_STREAM, 0}},
        {SYS_ioctl, {0, TIOCSTI, (long)"x"}},
        {SYS_clone, {CLONE_NEWUSER | SIGCHLD, 0, 0}},
    };
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        errno = 0;
        if (syscall(calls[i].number, calls[i].arguments[0], calls[i].arguments[1], calls[i].arguments[2], 0, 0, 0) !=
                -1 ||
            errno != EPERM) {
            return (int)i + 1;
        }
    }
    return AS_IT_SHOULD;
}

static void what_nobody_needs_is_refused(void **state)
{
    assert_int_equal(in_role(CONFINE_READER, try_what_nobody_needs), AS_IT_SHOULD);
    assert_int_equal(in_role(CONFINE_CLIENT, try_what_nobody_needs), AS_IT_SHOULD);
    assert_int_equal(in_role(CONFINE_SERVER, try_what_nobody_needs), AS_IT_SHOULD);
    assert_int_equal(in_role(CONFINE_PS, try_what_nobody_needs), AS_IT_SHOULD);
    assert_int_equal(in_role(CONFINE_LAUNCHER, try_what_nobody_needs), AS_IT_SHOULD);
}

static int try_new_calls(void)
{
    errno = 0;
    if (syscall(SYS_clone3, NULL, 0) != -1 || errno != ENOSYS) {
        return 1;
    }
    errno = 0;
    return syscall(1000) == -1 && errno == ENOSYS ? AS_IT_SHOULD : 2;
}

/* Libraries then do without. */
static void new_calls_do_not_exist(void **state)
{
    assert_int_equal(in_role(CONFINE_LAUNCHER, try_new_calls), AS_IT_SHOULD);
}

/* Bits of what a process could do. */
enum { EXECUTED = 1, FORKED = 2, MADE_CODE = 4 };

static int try_to_start(void)
{
    int could = 0;
    void *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    could |= memory != MAP_FAILED && mprotect(memory, 4096, PROT_READ | PROT_EXEC) == 0 ? MADE_CODE : 0;
    could |= mmap(NULL, 4096, PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED ? MADE_CODE : 0;
    const long child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        _exit(0);
    }
    could |= child > 0 ? FORKED : 0;
    errno = 0;
    char name[] = "nowhere";
    execve("/nowhere", (char *[]){name, NULL}, (char *[]){NULL});
    return could | (errno == ENOENT ? EXECUTED : 0);
}

static void only_who_must_starts_programs(void **state)
{
    assert_int_equal(in_role(CONFINE_READER, try_to_start), 0);
    assert_int_equal(in_role(CONFINE_CLIENT, try_to_start), 0);
    assert_int_equal(in_role(CONFINE_SERVER, try_to_start), 0);
    assert_int_equal(in_role(CONFINE_PS, try_to_start), EXECUTED);
    assert_int_equal(in_role(CONFINE_LAUNCHER, try_to_start), EXECUTED | FORKED | MADE_CODE);
}

static void *nothing(void *context)
{
    return context;
}

static int filters_of_this(void)
{
    char text[8192];
    const int fd = open("/proc/self/status", O_RDONLY);
    const ssize_t size = read(fd, text, sizeof text - 1);
    text[size > 0 ? size : 0] = '\0';
    const char *line = strstr(text, "Seccomp_filters:\t");
    return line ? line[strlen("Seccomp_filters:\t")] - '0' : -1;
}

enum { OPENED = 1, CONNECTED = 2, LISTENED = 4 };

static int try_to_talk(void)
{
    int could = 0;
    const struct sockaddr_in anywhere = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    const struct sockaddr *address = (const struct sockaddr *)(const void *)&anywhere;
    int given[2];
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    could |= fd >= 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, given) == 0 ? OPENED : 0;
    errno = 0;
    const bool connects = connect(fd >= 0 ? fd : 0, address, sizeof anywhere) == 0; /* nobody listens at port 0 */
    could |= connects || errno != EPERM ? CONNECTED : 0;
    return could | (bind(fd, address, sizeof anywhere) == 0 && listen(fd, 1) == 0 ? LISTENED : 0);
}

/* A command that reads files talks to nobody, not even by a socket that it was started with. */
static void who_reads_does_not_talk(void **state)
{
    assert_int_equal(in_role(CONFINE_READER, try_to_talk), 0);
    assert_int_equal(in_role(CONFINE_CLIENT, try_to_talk), OPENED | CONNECTED);
    assert_int_equal(in_role(CONFINE_SERVER, try_to_talk), OPENED | CONNECTED | LISTENED);
}

static int try_to_read(void)
{
    pthread_t thread;
    struct pollfd none = {.fd = -1};
    const int file = open("/dev/null", O_RDWR);
    return file < 0 || write(file, "x", 1) != 1                ? 1
           : pthread_create(&thread, NULL, nothing, NULL) != 0 ? 2
           : pthread_join(thread, NULL) != 0                   ? 3
           : poll(&none, 1, 0) != 0                            ? 4
                                                               : AS_IT_SHOULD;
}

static void who_reads_can(void **state)
{
    assert_int_equal(in_role(CONFINE_READER, try_to_read), AS_IT_SHOULD);
    assert_int_equal(in_role(CONFINE_NOT, filters_of_this), filters_of_this());
}

static int try_what_is_needed(void)
{
    pthread_t thread;
    int fds[2];
    char byte = 'x';
    const int socket_fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), file = open("/dev/null", O_RDWR);
    return socket_fd < 0 || file < 0                                                       ? 1
           : pipe2(fds, O_CLOEXEC) != 0 || write(fds[1], &byte, 1) != 1                    ? 2
           : pthread_create(&thread, NULL, nothing, NULL) != 0                             ? 3
           : pthread_join(thread, NULL) != 0                                               ? 4
           : mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED ? 5
                                                                                           : AS_IT_SHOULD;
}

static void what_is_needed_works(void **state)
{
    assert_int_equal(in_role(CONFINE_SERVER, try_what_is_needed), AS_IT_SHOULD);
}

/* As a process that restarts in place does every time. */
static void one_filter_is_enough(void **state)
{
    static const enum confine_role same[] = {CONFINE_PS, CONFINE_PS, CONFINE_PS};
    static const enum confine_role different[] = {CONFINE_LAUNCHER, CONFINE_SERVER, CONFINE_SERVER};
    const int before = filters_of_this();
    assert_int_equal(confined(same, 3, filters_of_this), before + 1);
    assert_int_equal(confined(different, 3, filters_of_this), before + 2);
}

static void *try_in_thread(void *context)
{
    pthread_barrier_t *both = context;
    pthread_barrier_wait(both);
    pthread_barrier_wait(both);
    errno = 0;
    return syscall(SYS_unshare, 0) == -1 && errno == EPERM ? NULL : context;
}

/* A thread from before. */
static void every_thread_is_confined(void **state)
{
    int status;
    struct error error;
    const pid_t child = fork();
    if (child == 0) {
        pthread_t thread;
        pthread_barrier_t both;
        void *result = NULL;
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        pthread_barrier_init(&both, NULL, 2);
        pthread_create(&thread, NULL, try_in_thread, &both);
        pthread_barrier_wait(&both);
        const bool is_confined = confine(CONFINE_SERVER, &error);
        pthread_barrier_wait(&both);
        pthread_join(thread, &result);
        _exit(is_confined && !result ? AS_IT_SHOULD : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), AS_IT_SHOULD);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_nobody_needs_is_refused),  cmocka_unit_test(new_calls_do_not_exist),
        cmocka_unit_test(only_who_must_starts_programs), cmocka_unit_test(what_is_needed_works),
        cmocka_unit_test(who_reads_does_not_talk),       cmocka_unit_test(who_reads_can),
        cmocka_unit_test(one_filter_is_enough),          cmocka_unit_test(every_thread_is_confined),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
