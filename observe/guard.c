/* Whatever is missing is reported before anything listens. */
#include "observe/guard.h"

#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/trust.h"
#include "net/tls/web.h"

enum { MOST_TOKEN_FILE = 4096, LEAST_TOKEN = 16, MOST_ORIGIN = 256 };

static bool is_loopback(const char *host)
{
    return strcmp(host, "localhost") == 0 || strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0;
}

static bool read_token(const char *path, char **token, struct error *error)
{
    uint8_t *bytes;
    size_t size;
    if (!trust_secret(path, "token", error) || !file_read(path, MOST_TOKEN_FILE, &bytes, &size, error)) {
        return false;
    }
    while (size > 0 && isspace(bytes[size - 1])) {
        bytes[--size] = '\0';
    }
    for (size_t i = 0; i < size; i++) {
        if (bytes[i] <= ' ' || bytes[i] > '~') {
            size = 0; /* no header can contain it */
        }
    }
    if (size < LEAST_TOKEN) {
        free(bytes);
        return error_set(error,
                         "%s: a token is one word of at least %d characters; make one with: openssl rand -hex 32", path,
                         LEAST_TOKEN);
    }
    *token = (char *)bytes;
    return true;
}

/* Beyond this machine: encrypted, and with a token. */
static bool check_safety(const struct config_observe *observe, const struct guard *guard, struct error *error)
{
    if (is_loopback(guard->address.host) || observe->http_insecure) {
        return true;
    }
    return guard->token || error_set(error,
                                     "observe.http %s can be reached from other machines, so it needs access control: "
                                     "give --http_token_file, listen on 127.0.0.1, or allow it with --http_insecure",
                                     observe->http);
}

/* Names as in Host, without a port: a colon is one of an IPv6 address. */
static bool check_hosts(const char *hosts, struct error *error)
{
    bool good = !strpbrk(hosts, " /\"*");
    for (const char *at = hosts; *at != '\0';) {
        const size_t size = strcspn(at, ",");
        const char *colon = memchr(at, ':', size);
        good &= size > 0 && (at[0] == '[' ? at[size - 1] == ']'
                                          : !colon || memchr(colon + 1, ':', size - (size_t)(colon + 1 - at)));
        at += size + (at[size] == ',');
    }
    return good || error_set(error,
                             "observe.http_hosts %s: wants names as in a Host header, without a port, separated by "
                             "commas: models.example,10.0.0.7,[fd00::7]",
                             hosts);
}

/* Each as browsers write it: a scheme, a host, perhaps a port. */
static bool check_origins(const char *origins, struct error *error)
{
    for (const char *at = origins; *at != '\0';) {
        const size_t size = strcspn(at, ",");
        const size_t scheme = strncmp(at, "http://", 7) == 0 ? 7 : strncmp(at, "https://", 8) == 0 ? 8 : 0;
        if (scheme == 0 || size <= scheme || size > MOST_ORIGIN || strcspn(at + scheme, "/*? \"") < size - scheme) {
            return error_set(error,
                             "observe.http_cors %s: wants origins as browsers write them, separated by commas: "
                             "https://app.example,http://localhost:3000",
                             origins);
        }
        at += size + (at[size] == ',');
    }
    return true;
}

static bool prepare_keys(const struct config_observe *observe, struct guard *guard, const char *fleet_key,
                         struct error *error)
{
    if (observe->http_cert[0] != '\0') {
        const char *key = observe->http_key[0] != '\0' ? observe->http_key : observe->http_cert;
        return web_keys_load(&guard->keys, observe->http_cert, key, error);
    }
    if (is_loopback(guard->address.host) || observe->http_insecure) {
        return true;
    }
    if (!fleet_key || !file_exists(fleet_key)) {
        return error_set(
            error,
            "observe.http %s can be reached from other machines, so it must be encrypted: give --http_cert "
            "and --http_key, or a key for this member by `trainer keygen --out=fleet.key`",
            observe->http);
    }
    return web_keys_load(&guard->keys, fleet_key, fleet_key, error);
}

bool guard_prepare(struct guard *guard, const struct config_observe *observe, const char *fleet_key,
                   struct error *error)
{
    *guard = (struct guard){.keys = NULL};
    if (!address_parse(observe->http, &guard->address, error)) {
        return error_wrap(error, "observe.http");
    }
    guard->hosts = observe->http_hosts;
    guard->cors = observe->http_cors;
    return check_hosts(observe->http_hosts, error) && check_origins(observe->http_cors, error) &&
           (observe->http_token_file[0] == '\0' || read_token(observe->http_token_file, &guard->token, error)) &&
           check_safety(observe, guard, error) && prepare_keys(observe, guard, fleet_key, error);
}

static bool prepare_trust(const struct config_observe *observe, struct guard *guard, const char *fleet_key,
                          struct error *error)
{
    if (observe->http_cert[0] != '\0') {
        return web_keys_trust(&guard->keys, observe->http_cert, error);
    }
    if (is_loopback(guard->address.host) || observe->http_insecure) {
        return true;
    }
    if (!fleet_key || !file_exists(fleet_key)) {
        return error_set(
            error,
            "observe.http %s is on another machine, and no certificate to trust is given: give --http_cert (its own or "
            "its authority's), or the --fleet_key of its fleet; or --http_insecure for one without encryption",
            observe->http);
    }
    return web_keys_trust(&guard->keys, fleet_key, error);
}

bool guard_visit(struct guard *guard, const struct config_observe *observe, const char *fleet_key, struct error *error)
{
    *guard = (struct guard){.keys = NULL};
    if (!address_parse(observe->http, &guard->address, error)) {
        return error_wrap(error, "observe.http");
    }
    return (observe->http_token_file[0] == '\0' || read_token(observe->http_token_file, &guard->token, error)) &&
           prepare_trust(observe, guard, fleet_key, error);
}

void guard_free(struct guard *guard)
{
    web_keys_free(guard->keys);
    free(guard->token);
    *guard = (struct guard){.keys = NULL};
}

void guard_apply(const struct guard *guard, struct http_options *options)
{
    options->host = guard->address.host;
    options->port = (uint16_t)guard->address.port;
    options->keys = guard->keys;
    options->token = guard->token;
    options->only_host = guard->keys ? NULL : guard->address.host;
    options->hosts = guard->hosts;
    options->cors = guard->cors && guard->cors[0] != '\0' ? guard->cors : NULL;
}
