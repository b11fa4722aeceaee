/* `trainer health` with a member that says what the test wants: the request, and the meaning of the answer. */
#include <fcntl.h>
#include <pthread.h>

#include "base/cli/commands.h"
#include "tests/check.h"
#include "tests/net/accepting.h"
#include "tests/worker/remote/story.h"
#include "base/clock.h"
#include "net/socket.h"

/* A member's HTTP server, for one request. */
static struct member {
    int listener;
    char address[32];
    const char *status; /* of its answer, including the number */
    pthread_t thread;
} member;

static void *answer_one(void *context)
{
    char request[4096] = "", answer[128], name[ENDPOINT_TEXT];
    size_t size = 0;
    int fd;
    struct error error;
    if (!accept_in_time(member.listener, &fd, name, clock_monotonic_s() + 60, &error)) {
        return NULL;
    }
    fcntl(fd, F_SETFL, 0); /* blocking */
    while (!strstr(request, "\r\n\r\n") && size < sizeof request - 1) {
        const ssize_t got = read(fd, request + size, sizeof request - 1 - size);
        if (got <= 0) {
            break;
        }
        size += (size_t)got;
        request[size] = '\0';
    }
    tell("%.*s\n", (int)strcspn(request, "\r"), request);
    snprintf(answer, sizeof answer, "HTTP/1.1 %s\r\nContent-Length: 3\r\n\r\nyes", member.status);
    if (write(fd, answer, strlen(answer)) < 0) {
        tell("no answer\n");
    }
    close(fd);
    return NULL;
}

/* status: NULL if nobody listens. */
static int run(const char *status, bool ready, const char **text)
{
    const struct config_setting settings[] = {{"http", member.address}};
    struct config config;
    struct error error;
    assert_true(socket_listen(&member.listener, "127.0.0.1", 0, &error));
    snprintf(member.address, sizeof member.address, "127.0.0.1:%d", socket_port(member.listener));
    member.status = status;
    told();
    if (!config_load(&config, NULL, settings, 1, &error)) {
        fail_msg("%s", error.text);
    }
    if (!status) {
        close(member.listener);
    } else {
        assert_int_equal(pthread_create(&member.thread, NULL, answer_one, NULL), 0);
    }
    const struct command_call call = {.command = &command_health, .config = &config, .values = {ready ? "true" : NULL}};
    listen_in();
    const int result = command_health.run(&call);
    *text = heard();
    if (status) {
        pthread_join(member.thread, NULL);
        close(member.listener);
    }
    config_free(&config);
    return result;
}

/* A member that answers is healthy; readiness is a separate question. */
TEST(members_that_are_well)
{
    const char *text;
    assert_int_equal(run("200 OK", false, &text), COMMAND_DONE);
    assert_string_equal(told(), "GET /healthz HTTP/1.1\n");
    assert_string_equal(text, "healthy\n");
    assert_int_equal(run("200 OK", true, &text), COMMAND_DONE);
    assert_string_equal(told(), "GET /readyz HTTP/1.1\n");
    assert_string_equal(text, "ready\n");
}

/* One that refuses, or is absent, is not healthy; the log says why. */
TEST(members_that_are_not_well)
{
    const char *text;
    assert_int_equal(run("503 Service Unavailable", true, &text), COMMAND_FAILED);
    assert_string_equal(told(), "GET /readyz HTTP/1.1\n");
    assert_non_null(strstr(text, "503"));
    assert_null(strstr(text, "ready\n"));
    assert_int_equal(run(NULL, false, &text), COMMAND_FAILED);
    assert_non_null(strstr(text, "onnection refused"));
}

/* Without an address there is nothing to query. */
TEST(no_address)
{
    struct config config;
    struct error error;
    assert_true(config_load(&config, NULL, NULL, 0, &error));
    const struct command_call call = {.command = &command_health, .config = &config};
    listen_in();
    const int result = command_health.run(&call);
    const char *text = heard();
    assert_int_equal(result, COMMAND_MISUSED);
    assert_int_equal(times(text, "no member given: set its address"), 1);
    assert_int_equal(times(text, "\n"), 1);
    config_free(&config);
}

int main(void)
{
    return check_run(NULL, NULL);
}
