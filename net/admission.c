/* Budgets that refill with time, for all strangers and for each address, and the passes already seen. */
#include "net/admission.h"

#include <math.h>
#include <netinet/in.h>
#include <string.h>

static const double ADDRESS_PART = 0.5; /* of the budget of all strangers */

static void refill(struct admission_allowance *allowance, double part, double now_s)
{
    const double left_s = allowance->left_s + part * ADMISSION_SHARE * fmax(0, now_s - allowance->at_s);
    *allowance = (struct admission_allowance){fmin(left_s, part * ADMISSION_SAVED_S), now_s};
}

void admission_start(struct admission *admission, double now_s)
{
    memset(admission, 0, sizeof *admission);
    admission->all = (struct admission_allowance){ADMISSION_SAVED_S, now_s};
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
            if (admission->addresses[i].allowance.at_s < place->allowance.at_s) {
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
    refill(&address->allowance, ADDRESS_PART, now_s);
    if (admission->all.left_s < ADMISSION_LEAST_S || address->allowance.left_s < ADMISSION_LEAST_S) {
        return false;
    }
    admission->all.left_s -= ADMISSION_LEAST_S;
    address->allowance.left_s -= ADMISSION_LEAST_S;
    return true;
}

void admission_end(struct admission *admission, const struct admission_source *source, double cpu_s, double now_s)
{
    struct admission_address *address = find(admission, source);
    const double more_s = cpu_s > 0 ? fmax(0, cpu_s - ADMISSION_LEAST_S) : -ADMISSION_LEAST_S;
    refill(&admission->all, 1, now_s);
    admission->all.left_s -= more_s;
    if (address) {
        address->allowance.left_s -= more_s;
    }
}

bool admission_is_new(struct admission *admission, const uint8_t pass[PASS_SIZE])
{
    uint64_t number, place;
    memcpy(&number, pass, sizeof number);
    memcpy(&place, pass + sizeof number, sizeof place);
    uint64_t *seen = &admission->passes[place % ADMISSION_PASSES];
    const bool is_new = *seen != number;
    *seen = number;
    return is_new;
}
