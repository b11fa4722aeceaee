/* Secrets don't outlive their connection: after both ends are closed, none is left in this process's memory. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>

#include <mbedtls/ecp.h>
#include <sodium.h>

#include "net/operator_key.h"
#include "net/tls/stream.h"
#include "net/tls/tls.h"
#include "net/transport.h"
#include "tests/check.h"
#include "tests/net/fleet_key.h"
#include "tests/net/loopback.h"
#include "tests/net/writing.h"

enum { NEEDLE = 16, NEEDLES = 16, MASK = 0xa5, WINDOW = 1 << 20 };

/* First bytes of secrets, each flipped by MASK, so that the search does not find this copy. */
struct needles {
    int count;
    uint8_t masked[NEEDLES][NEEDLE];
    const char *names[NEEDLES];
};

static struct needles needles;

static void keep(const uint8_t *secret, const char *name)
{
    for (int i = 0; i < NEEDLE; i++) {
        needles.masked[needles.count][i] = secret[i] ^ MASK;
    }
    needles.names[needles.count++] = name;
}

static bool is_needle(const uint8_t *bytes, int which)
{
    for (int i = 0; i < NEEDLE; i++) {
        if ((bytes[i] ^ MASK) != needles.masked[which][i]) {
            return false;
        }
    }
    return true;
}

/* Searches bytes; returns the name of what it finds, or NULL. Sanitizers are too slow for hundreds of MiB. */
__attribute__((no_sanitize("address", "undefined"))) static const char *search(const uint8_t *bytes, size_t size)
{
    bool first[256] = {false};
    for (int i = 0; i < needles.count; i++) {
        first[needles.masked[i][0] ^ MASK] = true;
    }
    for (size_t at = 0; at + NEEDLE <= size; at++) {
        for (int i = 0; first[bytes[at]] && i < needles.count; i++) {
            if (is_needle(bytes + at, i)) {
                return needles.names[i];
            }
        }
    }
    return NULL;
}

static const char *search_range(int memory, uint64_t from, uint64_t to)
{
    static uint8_t window[WINDOW];
    const char *found = NULL;
    while (!found && from < to) {
        size_t size = to - from < WINDOW ? (size_t)(to - from) : WINDOW;
        ssize_t got = pread(memory, window, size, (off_t)from);
        if (got < NEEDLE) {
            break;
        }
        found = search(window, (size_t)got);
        from += (size_t)got == WINDOW ? WINDOW - NEEDLE : (size_t)got;
    }
    memset(window, 0, sizeof window); /* it will be searched as well */
    return found;
}

/* All writable memory of this process: heap (also freed blocks, which sanitizers keep for a while), stacks, data. */
static const char *search_memory(void)
{
    enum { HUGE_BYTES = 1 << 30 }; /* a sanitizer's shadow */
    char line[512];
    const char *found = NULL;
    FILE *maps = fopen("/proc/self/maps", "r");
    int memory = open("/proc/self/mem", O_RDONLY);
    assert_non_null(maps);
    assert_true(memory >= 0);
    while (!found && fgets(line, sizeof line, maps)) {
        uint64_t from, to;
        char mode[5];
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s", &from, &to, mode) == 3 && mode[0] == 'r' && mode[1] == 'w' &&
            to - from < HUGE_BYTES) {
            found = search_range(memory, from, to);
        }
    }
    close(memory);
    fclose(maps);
    return found;
}

static double soon(void)
{
    return clock_monotonic_s() + 60;
}

static void echo(struct connection **connection, void *context)
{
    uint8_t byte;
    struct iovec part = {&byte, 1};
    struct error error;
    while (connection_read(*connection, &byte, 1, soon(), &error) && write_now(*connection, &part, 1, soon(), &error)) {
    }
}

static void swap(struct connection *connection)
{
    uint8_t byte = 7;
    struct iovec part = {&byte, 1};
    struct error error;
    assert_true(write_now(connection, &part, 1, soon(), &error));
    assert_true(connection_read(connection, &byte, 1, soon(), &error));
}

static void keep_keys(const struct record_key *key)
{
    uint8_t bytes[32];
    assert_true(record_expand_label(key->cipher, key->secret, "key", bytes, sizeof bytes));
    keep(bytes, "a key");
    sodium_memzero(bytes, sizeof bytes);
    keep(key->secret, "a secret");
}

TEST(no_secret_is_left)
{
    struct loopback loopback = {.listener = -1};
    struct connection *connection;
    struct error error;
    loopback_start(&loopback, fleet_key, echo, NULL);
    assert_true(connection_connect(&connection, &loopback.address, NULL, fleet_key, NULL, soon(), &error));
    swap(connection);
    keep_keys(&connection->tls->in);
    keep_keys(&connection->tls->out);
    connection->tls->out.limit = 0; /* the next generation; the previous one is gone */
    swap(connection);
    keep_keys(&connection->tls->out);
    assert_non_null(search_memory()); /* secrets in use are found */
    connection_close(connection);
    loopback_end(&loopback);
    const char *found = search_memory();
    if (found) {
        fail_msg("%s is still in memory", found);
    }
}

/* A piece of the text of a key's file is looked for, too; what was read of it here is wiped. */
static void keep_text(const char *path)
{
    static char text[4096];
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    assert_true(size > 200);
    keep((const uint8_t *)strchr(text, '\n') + 50, "a private key's text");
    sodium_memzero(text, sizeof text);
}

/* The private key of a fleet key that was made, loaded and freed. */
TEST(no_private_key_is_left)
{
    char path[128];
    uint8_t bytes[32];
    size_t size = 0;
    struct credentials *credentials;
    struct error error;
    memset(&needles, 0, sizeof needles);
    snprintf(path, sizeof path, "%s/other.key", key_folder);
    assert_true(credentials_create_fleet_key(path, &error) && credentials_load(&credentials, path, &error));
    assert_int_equal(mbedtls_ecp_write_key_ext(mbedtls_pk_ec(credentials->key), &size, bytes, sizeof bytes), 0);
    keep(bytes, "a private key");
    sodium_memzero(bytes, sizeof bytes);
    keep_text(path);
    credentials_free(credentials);
    const char *found = search_memory();
    if (found) {
        fail_msg("%s is still in memory", found);
    }
}

/* The secret half of an operator's key that was made and read: as it is, and as the text that its file has. */
TEST(no_operators_key_is_left)
{
    char path[128], public_path[sizeof path + 4], text[2 * NEEDLE + 1];
    uint8_t secret[OPERATOR_SECRET_KEY];
    struct error error;
    memset(&needles, 0, sizeof needles);
    snprintf(path, sizeof path, "%s/operator", key_folder);
    snprintf(public_path, sizeof public_path, "%s.pub", path);
    assert_true(operator_key_create(path, NULL, &error) && operator_key_read_secret(path, secret, &error));
    keep(secret, "an operator's key");
    sodium_bin2hex(text, sizeof text, secret, NEEDLE);
    keep((const uint8_t *)text, "an operator's key in hex");
    sodium_memzero(secret, sizeof secret);
    sodium_memzero(text, sizeof text);
    const char *found = search_memory();
    unlink(path);
    unlink(public_path);
    if (found) {
        fail_msg("%s is still in memory", found);
    }
}

int main(void)
{
    return check_run(make_key, remove_key);
}
