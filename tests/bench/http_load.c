/*
 * Posts a file to a server on loopback at a steady average rate, however long answers take, as many clients together
 * would: times between requests are exponential, and a delay counts from when its request was due.
 *
 *     http_load PORT PATH FILE RATE SECONDS    requests, failures, median and 99th percentile in milliseconds; and the
 *                                              99th percentile of how late this program sent what it could have sent
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/threads.h"

enum { CONNECTIONS = 64, MOST_ANSWER = 1 << 16, MOST_REQUEST = 1 << 20, MOST_DELAYS = 1 << 24 };

struct connection {
    int fd;
    double due_s; /* of the current request */
    size_t size;  /* of its answer so far */
    char answer[MOST_ANSWER + 1];
};

struct load {
    struct connection connections[CONNECTIONS];
    struct connection *idle[CONNECTIONS];
    int idle_count, poll_fd;
    size_t size; /* of the request */
    char request[MOST_REQUEST];
    float *delays; /* [count], in milliseconds */
    float *lags;   /* [sent] */
    int count, sent, failures;
    double
        freed_s; /* when an answer came while all connections were busy: requests due before are late by the server */
    uint64_t random;
};

static void fail(const char *what)
{
    fprintf(stderr, "http_load: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void make_request(struct load *load, const char *path, const char *name)
{
    static char body[MOST_REQUEST / 2];
    FILE *file = fopen(name, "rb");
    const size_t size = file ? fread(body, 1, sizeof body, file) : 0;
    if (size == 0 || fclose(file) != 0) {
        fail(name);
    }
    load->size = (size_t)snprintf(load->request, sizeof load->request,
                                  "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                                  "Content-Length: %zu\r\n\r\n",
                                  path, size);
    memcpy(load->request + load->size, body, size);
    load->size += size;
}

static void connect_all(struct load *load, int port)
{
    const struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    load->poll_fd = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < CONNECTIONS; i++) {
        struct connection *connection = &load->connections[i];
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
        const int on = 1;
        connection->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connection->fd < 0 || connect(connection->fd, (const struct sockaddr *)&address, sizeof address) != 0 ||
            setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0 ||
            fcntl(connection->fd, F_SETFL, O_NONBLOCK) != 0 ||
            epoll_ctl(load->poll_fd, EPOLL_CTL_ADD, connection->fd, &event) != 0) {
            fail("connect");
        }
        load->idle[load->idle_count++] = connection;
    }
}

/* Seconds until the next request is due. */
static double draw_pause(struct load *load, double rate)
{
    load->random = load->random * 6364136223846793005u + 1442695040888963407u;
    return -log(((double)(load->random >> 11) + 1) * 0x1p-53) / rate;
}

static void send_request(struct load *load, double due_s)
{
    struct connection *connection = load->idle[--load->idle_count];
    if (load->sent < MOST_DELAYS) {
        load->lags[load->sent++] = (float)((clock_monotonic_s() - fmax(due_s, load->freed_s)) * 1e3);
    }
    connection->due_s = due_s;
    connection->size = 0;
    if (write(connection->fd, load->request, load->size) != (ssize_t)load->size) {
        fail("write");
    }
}

/* Is the answer complete? Its head gives the length. */
static bool is_whole(struct connection *connection)
{
    connection->answer[connection->size] = '\0';
    const char *end = strstr(connection->answer, "\r\n\r\n");
    const char *length = strstr(connection->answer, "Content-Length: ");
    return end && length && length < end &&
           connection->size >= (size_t)(end + 4 - connection->answer) + strtoul(length + 16, NULL, 10);
}

static void read_answer(struct load *load, struct connection *connection)
{
    const ssize_t n = read(connection->fd, connection->answer + connection->size, MOST_ANSWER - connection->size);
    if (n <= 0) {
        fail("read");
    }
    connection->size += (size_t)n;
    if (is_whole(connection)) {
        if (load->count < MOST_DELAYS) {
            load->delays[load->count++] = (float)((clock_monotonic_s() - connection->due_s) * 1e3);
        }
        load->failures += strncmp(connection->answer, "HTTP/1.1 200 ", 13) != 0;
        load->freed_s = load->idle_count == 0 ? clock_monotonic_s() : load->freed_s;
        load->idle[load->idle_count++] = connection;
    }
}

/* Waits until then or until an answer arrives. */
static void sleep_until(struct load *load, double until_s)
{
    struct pollfd wait = {.fd = load->poll_fd, .events = POLLIN};
    const double left_s = fmax(0, until_s - clock_monotonic_s());
    const struct timespec time = {(time_t)left_s, (long)(fmod(left_s, 1) * 1e9)};
    ppoll(&wait, 1, &time, NULL);
}

static void run(struct load *load, double rate, double seconds)
{
    const double end_s = clock_monotonic_s() + seconds;
    double due_s = clock_monotonic_s();
    while (due_s < end_s || load->idle_count < CONNECTIONS) {
        struct epoll_event events[CONNECTIONS];
        while (load->idle_count > 0 && due_s < end_s && due_s <= clock_monotonic_s()) {
            send_request(load, due_s);
            due_s += draw_pause(load, rate);
        }
        sleep_until(load, due_s < end_s && load->idle_count > 0 ? due_s : end_s + 60);
        const int count = epoll_wait(load->poll_fd, events, CONNECTIONS, 0);
        for (int i = 0; i < count; i++) {
            read_answer(load, events[i].data.ptr);
        }
    }
}

static int by_size(const void *one, const void *other)
{
    const float a = *(const float *)one, b = *(const float *)other;
    return (a > b) - (a < b);
}

static double percentile(float *values, int count, double share)
{
    qsort(values, (size_t)count, sizeof *values, by_size);
    return count > 0 ? (double)values[(int)((double)count * share)] : 0;
}

int main(int count, char **arguments)
{
    struct load *load = calloc(1, sizeof *load);
    if (count != 6 || !load || !(load->delays = malloc(MOST_DELAYS * sizeof *load->delays)) ||
        !(load->lags = malloc(MOST_DELAYS * sizeof *load->lags))) {
        fprintf(stderr, "http_load PORT PATH FILE RATE SECONDS\n");
        return 2;
    }
    prctl(PR_SET_TIMERSLACK, 1);
    threads_run_soon();
    make_request(load, arguments[2], arguments[3]);
    connect_all(load, atoi(arguments[1]));
    run(load, strtod(arguments[4], NULL), strtod(arguments[5], NULL));
    printf("%d %d %.3f %.3f %.3f\n", load->count, load->failures, percentile(load->delays, load->count, 0.5),
           percentile(load->delays, load->count, 0.99), percentile(load->lags, load->sent, 0.99));
    free(load->delays);
    free(load->lags);
    free(load);
    return 0;
}
