/* Budgets refill with time: token buckets, in seconds of CPU time. */
#include "net/admission.h"

#include <math.h>
#include <netinet/in.h>
#include <string.h>

#include <sodium.h>

static const double ADDRESS_PART = 0.5; /* of the budget of all unauthenticated peers */

/* --- Handshake tokens: 16 random bytes and as many of a keyed BLAKE2b hash of them --- */

enum { HALF = HANDSHAKE_TOKEN_SIZE / 2 };

void handshake_token_add_key(struct handshake_token_keys *keys, const uint8_t *secret, size_t size)
{
    static const char purpose[] = "trainer: key of handshake tokens"; /* net/PROTOCOL.md */
    if (keys->count < HANDSHAKE_TOKEN_KEYS) {
        crypto_generichash(keys->keys[keys->count++], sizeof keys->keys[0], secret, size, (const uint8_t *)purpose,
                           sizeof purpose - 1);
    }
}

void handshake_token_make(const struct handshake_token_keys *keys, uint8_t token[HANDSHAKE_TOKEN_SIZE])
{
    randombytes_buf(token, HANDSHAKE_TOKEN_SIZE);
    if (keys->count > 0) {
        crypto_generichash(token + HALF, HALF, token, HALF, keys->keys[0], sizeof keys->keys[0]);
    }
}

bool handshake_token_check(const struct handshake_token_keys *keys, const uint8_t token[HANDSHAKE_TOKEN_SIZE])
{
    bool good = false;
    for (int i = 0; i < keys->count; i++) {
        uint8_t mac[HALF];
        crypto_generichash(mac, HALF, token, HALF, keys->keys[i], sizeof keys->keys[i]);
        good |= sodium_memcmp(mac, token + HALF, HALF) == 0;
    }
    return good;
}

/* --- Rate limit --- */

static void refill(struct admission_budget *budget, double part, double now_s)
{
    const double left_s = budget->left_s + part * ADMISSION_SHARE * fmax(0, now_s - budget->at_s);
    *budget = (struct admission_budget){fmin(left_s, part * ADMISSION_SAVED_S), now_s};
}

void admission_start(struct admission *admission, double now_s)
{
    memset(admission, 0, sizeof *admission);
    admission->all = (struct admission_budget){ADMISSION_SAVED_S, now_s};
}

struct admission_source admission_source(const struct endpoint *endpoint)
{
    struct admission_source source = {{0}};
    if (endpoint->address.ss_family == AF_INET6) {
        struct sockaddr_in6 six;
        memcpy(&six, &endpoint->address, sizeof six);
        memcpy(source.bytes, six.sin6_addr.s6_addr, IN6_IS_ADDR_V4MAPPED(&six.sin6_addr) ? 16 : 8);
    } else {
        struct sockaddr_in four;
        memcpy(&four, &endpoint->address, sizeof four);
        source.bytes[10] = source.bytes[11] = 0xff;
        memcpy(source.bytes + 12, &four.sin_addr, 4);
    }
    return source;
}

static struct admission_address *find(struct admission *admission, const struct admission_source *source)
{
    for (int i = 0; i < admission->address_count; i++) {
        if (memcmp(&admission->addresses[i].source, source, sizeof *source) == 0) {
            return &admission->addresses[i];
        }
    }
    return NULL;
}

/* Uses a free entry, or that of the address that came least recently. */
static struct admission_address *remember(struct admission *admission, const struct admission_source *source,
                                          double now_s)
{
    struct admission_address *place = admission->addresses;
    if (admission->address_count < ADMISSION_ADDRESSES) {
        place = &admission->addresses[admission->address_count++];
    } else {
        for (int i = 1; i < ADMISSION_ADDRESSES; i++) {
            if (admission->addresses[i].budget.at_s < place->budget.at_s) {
                place = &admission->addresses[i];
            }
        }
    }
    *place = (struct admission_address){*source, {ADDRESS_PART * ADMISSION_SAVED_S, now_s}};
    return place;
}

bool admission_begin(struct admission *admission, const struct admission_source *source, double now_s)
{
    struct admission_address *address = find(admission, source);
    if (!address) {
        address = remember(admission, source, now_s);
    }
    refill(&admission->all, 1, now_s);
    refill(&address->budget, ADDRESS_PART, now_s);
    if (admission->all.left_s < ADMISSION_LEAST_S || address->budget.left_s < ADMISSION_LEAST_S) {
        return false;
    }
    admission->all.left_s -= ADMISSION_LEAST_S;
    address->budget.left_s -= ADMISSION_LEAST_S;
    return true;
}

void admission_end(struct admission *admission, const struct admission_source *source, double cpu_s, double now_s)
{
    struct admission_address *address = find(admission, source);
    const double more_s = cpu_s > 0 ? fmax(0, cpu_s - ADMISSION_LEAST_S) : -ADMISSION_LEAST_S;
    refill(&admission->all, 1, now_s);
    admission->all.left_s -= more_s;
    if (address) {
        address->budget.left_s -= more_s;
    }
}

bool admission_is_new(struct admission *admission, const uint8_t token[HANDSHAKE_TOKEN_SIZE])
{
    uint64_t number, place;
    memcpy(&number, token, sizeof number);
    memcpy(&place, token + sizeof number, sizeof place);
    uint64_t *seen = &admission->tokens[place % ADMISSION_TOKENS];
    const bool is_new = *seen != number;
    *seen = number;
    return is_new;
}

/* --- The log of rejections --- */

static const char *const descriptions[REJECT_REASONS] = {
    [REJECT_SILENT] = "sent no ClientHello in time",
    [REJECT_PLAIN] = "did not speak TLS",
    [REJECT_RATE] = "had no valid handshake token while unauthenticated handshakes had used up their CPU time",
    [REJECT_TLS] = "failed in the TLS handshake",
    [REJECT_HELLO] = "were refused at their first message",
    [REJECT_LOAD] = "exceeded the limit of handshakes",
    [REJECT_ACCEPT] = "could not be accepted",
};

bool reject_log_add(struct reject_log *log, enum reject_reason reason, const struct error *text, double now_s)
{
    const double logged_s = log->of[reason].logged_s;
    if (log->of[reason].suppressed == 0 && (logged_s <= 0 || now_s >= logged_s + REJECT_LOG_EVERY_S)) {
        log->of[reason].logged_s = now_s;
        return true;
    }
    log->of[reason].suppressed++;
    log->of[reason].latest = *text;
    return false;
}

bool reject_log_next(struct reject_log *log, double now_s, bool last, struct error *line)
{
    for (int i = 0; i < REJECT_REASONS; i++) {
        const double passed_s = now_s - log->of[i].logged_s;
        if (log->of[i].suppressed > 0 && (last || passed_s >= REJECT_LOG_EVERY_S)) {
            *line = log->of[i].latest;
            error_wrap(line, "%llu more connections in %.0f s %s; the latest",
                       (unsigned long long)log->of[i].suppressed, passed_s, descriptions[i]);
            log->of[i].logged_s = now_s;
            log->of[i].suppressed = 0;
            return true;
        }
    }
    return false;
}
