/*
 * No input may keep a processor busy for long: that would be a denial of service. libFuzzer's own -timeout measures
 * elapsed time, so that a busy machine would make a target fail; this measures the target's processor time. Linked with
 * --wrap=LLVMFuzzerTestOneInput.
 */
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

enum { MOST_S = 5 };

int __real_LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);
int __wrap_LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* libFuzzer keeps the input of a target that aborts. */
static void give_up(int number)
{
    static const char text[] = "fuzz: an input takes more than 5 s of processor time\n";
    (void)number;
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    abort();
}

int __wrap_LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    const struct itimerval most = {.it_value = {.tv_sec = MOST_S}}, none = {.it_value = {.tv_sec = 0}};
    const struct sigaction at_the_limit = {.sa_handler = give_up};
    sigaction(SIGPROF, &at_the_limit, NULL);
    setitimer(ITIMER_PROF, &most, NULL);
    const int result = __real_LLVMFuzzerTestOneInput(bytes, size);
    setitimer(ITIMER_PROF, &none, NULL);
    return result;
}
