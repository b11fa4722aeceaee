/* The list of revoked keys: its bytes, and the connections that it cuts. */
#include "net/revocation.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include <sodium.h>

#include "net/bytes.h"

static const char magic[] = "trainer revocation list 1\n";

enum { MAGIC = sizeof magic - 1, HEX = 2 * REVOCATION_KEY + 1, DATE = 32 };

/* --- Decoding --- */

static bool is_zero(const uint8_t key[REVOCATION_KEY])
{
    return sodium_is_zero(key, REVOCATION_KEY) == 1;
}

/* Either a key or a member. */
static bool take_entry(struct unread *rest, struct revocation_entry *entry)
{
    uint32_t role, index;
    const uint8_t *key;
    if (!take_u32(rest, &role) || !take_u32(rest, &index) || !take_u64(rest, &entry->until_s) ||
        !(key = take_bytes(rest, REVOCATION_KEY)) || !take_text(rest, entry->reason, REVOCATION_REASON)) {
        return false;
    }
    memcpy(entry->key, key, REVOCATION_KEY);
    entry->member = (struct member){(enum member_role)role, (int32_t)index};
    return role <= MEMBER_OPERATOR && (index <= MEMBER_MAX_INDEX || index == (uint32_t)MEMBER_ANY_INDEX) &&
           (role == MEMBER_NONE) != is_zero(key);
}

bool revocation_decode_unsigned(struct revocation_list *list, const uint8_t *bytes, size_t size, struct error *error)
{
    struct unread rest = {bytes, size};
    uint32_t count = 0;
    memset(list, 0, sizeof *list);
    const uint8_t *head = take_bytes(&rest, MAGIC);
    if (!head || memcmp(head, magic, MAGIC) != 0) {
        return error_set(error, "the list of revoked keys is invalid: it does not begin like one");
    }
    bool done = take_text(&rest, list->fleet, REVOCATION_NAME) && take_text(&rest, list->author, REVOCATION_NAME) &&
                take_u64(&rest, &list->signed_s) && take_u64(&rest, &list->expires_s) &&
                take_u64(&rest, &list->number) && list->number > 0 && take_u32(&rest, &count) &&
                count <= REVOCATION_MAX_ENTRIES;
    for (uint32_t i = 0; i < count && done; i++) {
        done = take_entry(&rest, &list->entries[i]);
    }
    if (!done || rest.size == 0 || rest.size % OPERATOR_SIGNATURE != 0 ||
        rest.size > OPERATOR_MAX_KEYS * (size_t)OPERATOR_SIGNATURE) {
        return error_set(error, "the list of revoked keys is torn");
    }
    list->count = (int)count;
    list->signatures = (int)(rest.size / OPERATOR_SIGNATURE);
    return true;
}

bool revocation_decode(struct revocation_list *list, const uint8_t *bytes, size_t size,
                       const struct operator_keys *keys, struct error *error)
{
    const size_t signatures = (size_t)keys->threshold * OPERATOR_SIGNATURE, body = size - signatures;
    if (size < MAGIC + signatures || size > REVOCATION_MAX_BYTES ||
        !operator_keys_verify(keys, bytes, body, bytes + body, keys->threshold)) {
        return error_set(error,
                         "the list of revoked keys is not signed by %d of the %d operator keys that are trusted here "
                         "(operator.pub), or it is torn",
                         keys->threshold, keys->count);
    }
    return revocation_decode_unsigned(list, bytes, size, error);
}

/* --- Encoding --- */

static uint8_t *put_text(uint8_t *to, const char *text)
{
    return put_sized_text(to, text, strlen(text));
}

bool revocation_encode(const struct revocation_list *list, const uint8_t secret_key[OPERATOR_SECRET_KEY],
                       uint8_t *bytes, size_t *size, struct error *error)
{
    enum { ENTRY = 3 * sizeof(uint32_t) + sizeof(uint64_t) + REVOCATION_KEY + REVOCATION_REASON };
    _Static_assert(REVOCATION_MAX_ENTRIES * ENTRY + 4096 < REVOCATION_MAX_BYTES, "a full list fits");
    if (list->count > REVOCATION_MAX_ENTRIES) {
        return error_set(error,
                         "the list of revoked keys holds %d at most: make a new authority, and new keys for "
                         "those who remain, with trainer keygen --ca",
                         REVOCATION_MAX_ENTRIES);
    }
    uint8_t *end = put_text(put_text(put_bytes(bytes, magic, MAGIC), list->fleet), list->author);
    end = put_u64(put_u64(put_u64(end, list->signed_s), list->expires_s), list->number);
    end = put_u32(end, (uint32_t)list->count);
    for (int i = 0; i < list->count; i++) {
        const struct revocation_entry *entry = &list->entries[i];
        end = put_u32(put_u32(end, (uint32_t)entry->member.role), (uint32_t)entry->member.index);
        end = put_text(put_bytes(put_u64(end, entry->until_s), entry->key, REVOCATION_KEY), entry->reason);
    }
    crypto_sign_detached(end, NULL, bytes, (unsigned long long)(end - bytes), secret_key);
    *size = (size_t)(end - bytes) + OPERATOR_SIGNATURE;
    return true;
}

bool revocation_add_signature(const struct revocation_list *list, const struct operator_keys *keys,
                              const uint8_t secret_key[OPERATOR_SECRET_KEY], uint8_t *bytes, size_t *size,
                              struct error *error)
{
    const size_t body = *size - (size_t)list->signatures * OPERATOR_SIGNATURE;
    if (list->signatures >= keys->threshold) {
        return error_set(error, "the list of revoked keys has the %d signatures that it needs: install it",
                         list->signatures);
    }
    crypto_sign_detached(bytes + *size, NULL, bytes, body, secret_key);
    *size += OPERATOR_SIGNATURE;
    return operator_keys_verify(keys, bytes, body, bytes + body, list->signatures + 1) ||
           error_set(error, "the list of revoked keys is signed by a key twice, or by one that operator.pub here does "
                            "not have");
}

/* --- For people --- */

static void format_date(uint64_t when_s, const char *format, char text[DATE])
{
    const time_t when = (time_t)when_s;
    struct tm utc;
    if (!gmtime_r(&when, &utc) || strftime(text, DATE, format, &utc) == 0) {
        snprintf(text, DATE, "an unknown date");
    }
}

bool revocation_is_current(const struct revocation_list *list, double now_s, struct error *error)
{
    char date[DATE];
    if (now_s < (double)list->expires_s) {
        return true;
    }
    format_date(list->expires_s, "%Y-%m-%d %H:%M:%S UTC", date);
    return error_set(error,
                     "the list of revoked keys (number %llu) expired on %s, by this machine's clock; sign it again "
                     "with: trainer revoke renew",
                     (unsigned long long)list->number, date);
}

void revocation_describe(const struct revocation_entry *entry, char text[REVOCATION_TEXT])
{
    char name[MEMBER_TEXT], date[DATE], hex[HEX];
    if (entry->member.role == MEMBER_NONE) {
        sodium_bin2hex(hex, sizeof hex, entry->key, REVOCATION_KEY);
        snprintf(text, REVOCATION_TEXT, "the key %s", hex);
    } else {
        member_format(&entry->member, ':', name);
        format_date(entry->until_s, "%Y-%m-%d %H:%M:%S UTC", date);
        snprintf(text, REVOCATION_TEXT, "keys of %s that were issued until %s", name, date);
    }
}

/* --- In force --- */

struct revocations {
    pthread_mutex_t lock;
    int holders;
    struct revocation_list *list; /* NULL: none */
    struct revocation_watch *first;
};

struct revocations *revocations_create(void)
{
    struct revocations *revocations = calloc(1, sizeof *revocations);
    if (revocations) {
        pthread_mutex_init(&revocations->lock, NULL);
        revocations->holders = 1;
    }
    return revocations;
}

void revocations_release(struct revocations *revocations)
{
    if (!revocations) {
        return;
    }
    pthread_mutex_lock(&revocations->lock);
    const bool is_last = --revocations->holders == 0;
    pthread_mutex_unlock(&revocations->lock);
    if (is_last) {
        pthread_mutex_destroy(&revocations->lock);
        free(revocations->list);
        free(revocations);
    }
}

/* A certificate for any ps is another one than that for ps 0. */
static bool names_member(const struct revocation_entry *entry, const struct revocation_peer *peer)
{
    return entry->member.role != MEMBER_NONE && entry->member.role == peer->member.role &&
           (entry->member.index == peer->member.index || entry->member.index == MEMBER_ANY_INDEX) &&
           peer->issued_s <= entry->until_s;
}

/* The entry that names the peer; NULL: none does. Locked. */
static const struct revocation_entry *find(const struct revocations *revocations, const struct revocation_peer *peer)
{
    const int count = revocations->list ? revocations->list->count : 0;
    for (int i = 0; i < count; i++) {
        const struct revocation_entry *entry = &revocations->list->entries[i];
        if (names_member(entry, peer) ||
            (entry->member.role == MEMBER_NONE && memcmp(entry->key, peer->key, REVOCATION_KEY) == 0)) {
            return entry;
        }
    }
    return NULL;
}

int revocations_put(struct revocations *revocations, const struct revocation_list *list)
{
    struct revocation_list *copy = malloc(sizeof *copy);
    int cut = 0;
    if (!copy) {
        return -1;
    }
    *copy = *list;
    pthread_mutex_lock(&revocations->lock);
    if (!revocations->list || revocations->list->number < list->number) {
        free(revocations->list);
        revocations->list = copy;
        copy = NULL;
    }
    for (struct revocation_watch *watch = revocations->first; watch; watch = watch->next) {
        if (!atomic_load(&watch->is_cut) && find(revocations, &watch->peer)) {
            atomic_store(&watch->is_cut, true);
            shutdown(*watch->fd, SHUT_RDWR);
            cut++;
        }
    }
    pthread_mutex_unlock(&revocations->lock);
    free(copy);
    return cut;
}

uint64_t revocations_number(struct revocations *revocations, uint64_t *expires_s)
{
    pthread_mutex_lock(&revocations->lock);
    const struct revocation_list *list = revocations->list;
    const uint64_t number = list ? list->number : 0;
    if (expires_s) {
        *expires_s = list ? list->expires_s : 0;
    }
    pthread_mutex_unlock(&revocations->lock);
    return number;
}

/* With a fleet key there is no member to name, and all share what replaces it. */
static void describe_remedy(const struct member *member, char text[128])
{
    char name[MEMBER_TEXT];
    member_format(member, ':', name);
    if (member->role == MEMBER_NONE) {
        snprintf(text, 128, "give it the fleet's present key");
    } else {
        snprintf(text, 128, "make it a new one: trainer keygen --ca=DIR --member=%s --out=FILE", name);
    }
}

bool revocations_name(struct revocations *revocations, const struct revocation_peer *peer, char *why, size_t size)
{
    char date[DATE], remedy[128];
    pthread_mutex_lock(&revocations->lock);
    const struct revocation_entry *entry = find(revocations, peer);
    if (entry) {
        format_date(revocations->list->signed_s, "%Y-%m-%d", date);
        describe_remedy(&peer->member, remedy);
        snprintf(why, size, "its key was revoked (list %llu, signed on %s by %.64s)%s%s; %s",
                 (unsigned long long)revocations->list->number, date, revocations->list->author,
                 entry->reason[0] != '\0' ? ": " : "", entry->reason, remedy);
    }
    pthread_mutex_unlock(&revocations->lock);
    return entry;
}

bool revocations_watch(struct revocations *revocations, struct revocation_watch *watch, const int *fd)
{
    pthread_mutex_lock(&revocations->lock);
    const bool is_good = !find(revocations, &watch->peer);
    if (is_good) {
        watch->fd = fd;
        watch->revocations = revocations;
        watch->before = NULL;
        watch->next = revocations->first;
        if (watch->next) {
            watch->next->before = watch;
        }
        revocations->first = watch;
        revocations->holders++;
    }
    pthread_mutex_unlock(&revocations->lock);
    return is_good;
}

void revocations_forget(struct revocation_watch *watch)
{
    struct revocations *revocations = watch->revocations;
    if (!revocations) {
        return;
    }
    pthread_mutex_lock(&revocations->lock);
    if (watch->before) {
        watch->before->next = watch->next;
    } else {
        revocations->first = watch->next;
    }
    if (watch->next) {
        watch->next->before = watch->before;
    }
    pthread_mutex_unlock(&revocations->lock);
    watch->revocations = NULL;
    revocations_release(revocations);
}
