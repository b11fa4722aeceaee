/* Lists of revoked keys: whom they name, which one counts, and what happens to open connections. */
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sodium.h>

#include "net/revocation.h"
#include "tests/check.h"
#include "tests/one_operator.h"

static struct revocation_list list_of(uint64_t number, struct member member, uint64_t until_s, uint8_t key)
{
    struct revocation_list list = {.fleet = "north", .author = "me@here", .number = number, .count = 1};
    list.entries[0] = (struct revocation_entry){.member = member, .until_s = until_s, .reason = "lost"};
    memset(list.entries[0].key, key, REVOCATION_KEY);
    return list;
}

static struct revocation_peer peer_of(enum member_role role, int index, uint64_t issued_s, uint8_t key)
{
    struct revocation_peer peer = {.member = {role, index}, .issued_s = issued_s};
    memset(peer.key, key, REVOCATION_KEY);
    return peer;
}

static const struct member nobody = {MEMBER_NONE, MEMBER_ANY_INDEX};

TEST(whom_it_names)
{
    struct revocations *revocations = revocations_create();
    struct revocation_list list = list_of(1, (struct member){MEMBER_WORKER, 1}, 1000, 0);
    struct revocation_peer peer;
    char why[512];
    list.count = 3;
    list.entries[1] = list_of(1, nobody, 0, 7).entries[0];
    list.entries[2] = list_of(1, (struct member){MEMBER_PS, MEMBER_ANY_INDEX}, 500, 0).entries[0];
    peer = peer_of(MEMBER_WORKER, 1, 1000, 1);
    assert_false(revocations_name(revocations, &peer, why, sizeof why));
    revocations_put(revocations, &list);
    assert_true(revocations_name(revocations, &peer, why, sizeof why));
    assert_non_null(strstr(why,
                           "its key was revoked (list 1, signed on 1970-01-01 by me@here): lost; make it a new one: "
                           "trainer keygen --ca=DIR --member=worker:1"));
    const struct revocation_peer named[] = {peer_of(MEMBER_WORKER, 2, 1, 7), peer_of(MEMBER_NONE, -1, 1, 7),
                                            peer_of(MEMBER_PS, 3, 500, 1), peer_of(MEMBER_PS, MEMBER_ANY_INDEX, 1, 1)};
    const struct revocation_peer others[] = {peer_of(MEMBER_WORKER, 1, 1001, 1),
                                             peer_of(MEMBER_WORKER, 2, 1, 1),
                                             peer_of(MEMBER_PS, 0, 501, 1),
                                             peer_of(MEMBER_OPERATOR, -1, 1, 1),
                                             peer_of(MEMBER_NONE, -1, 1, 1), /* any worker's is another certificate: */
                                             peer_of(MEMBER_WORKER, MEMBER_ANY_INDEX, 1, 1)};
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++) {
        assert_true(revocations_name(revocations, &named[i], why, sizeof why));
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        assert_false(revocations_name(revocations, &others[i], why, sizeof why));
    }
    revocations_release(revocations);
}

TEST(an_older_one_is_not_put)
{
    struct revocations *revocations = revocations_create();
    const struct revocation_list newer = list_of(5, nobody, 0, 1), older = list_of(4, nobody, 0, 2);
    const struct revocation_peer peer = peer_of(MEMBER_NONE, -1, 0, 2);
    char why[512];
    revocations_put(revocations, &newer);
    revocations_put(revocations, &older);
    assert_int_equal(revocations_number(revocations, NULL), 5);
    assert_false(revocations_name(revocations, &peer, why, sizeof why));
    revocations_release(revocations);
}

/* Both ends of a socket see it at once; a connection that has ended is forgotten; watches outlive the credentials. */
TEST(open_connections_are_cut)
{
    struct revocations *revocations = revocations_create();
    struct revocation_watch watches[3] = {0};
    int pairs[3][2];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[i]), 0);
        watches[i].peer = peer_of(MEMBER_WORKER, i, 10, (uint8_t)(i + 1));
        assert_true(revocations_watch(revocations, &watches[i], &pairs[i][0]));
    }
    revocations_forget(&watches[1]);
    const struct revocation_list list = list_of(1, (struct member){MEMBER_WORKER, MEMBER_ANY_INDEX}, 10, 0);
    assert_int_equal(revocations_put(revocations, &list), 2);
    for (int i = 0; i < 3; i++) {
        struct pollfd other = {.fd = pairs[i][1], .events = POLLIN};
        assert_int_equal(atomic_load(&watches[i].is_cut), i != 1);
        assert_int_equal(poll(&other, 1, 0), i != 1);
    }
    assert_int_equal(revocations_put(revocations, &list), 0); /* once is enough */
    assert_false(revocations_watch(revocations, &watches[1], &pairs[1][0]));
    revocations_release(revocations);
    for (int i = 0; i < 3; i++) {
        revocations_forget(&watches[i]);
        close(pairs[i][0]);
        close(pairs[i][1]);
    }
}

TEST(signatures_count)
{
    static uint8_t bytes[REVOCATION_MAX_BYTES];
    struct revocation_list list = list_of(3, nobody, 0, 9), read;
    uint8_t public[3][OPERATOR_PUBLIC_KEY], secret[3][OPERATOR_SECRET_KEY];
    struct operator_keys keys = {.count = 2, .threshold = 2};
    struct error error;
    size_t size;
    for (int i = 0; i < 3; i++) {
        crypto_sign_keypair(public[i], secret[i]);
    }
    memcpy(keys.keys, public, sizeof keys.keys[0] * 2);
    list.expires_s = 100;
    assert_true(revocation_encode(&list, secret[0], bytes, &size, &error));
    assert_true(revocation_decode(&read, bytes, size, only(public[0]), &error));
    assert_int_equal(read.number, 3);
    assert_int_equal(read.entries[0].key[31], 9);
    assert_true(revocation_is_current(&read, 99, &error));
    assert_false(revocation_is_current(&read, 100, &error));
    assert_false(revocation_decode(&read, bytes, size, &keys, &error)); /* one too few */
    assert_false(revocation_decode(&read, bytes, size, only(public[2]), &error));
    for (size_t i = 0; i < size; i++) { /* no byte may change */
        bytes[i] ^= 1;
        assert_false(revocation_decode(&read, bytes, size, only(public[0]), &error));
        bytes[i] ^= 1;
    }
    size_t again = size;
    assert_true(revocation_decode_unsigned(&read, bytes, size, &error));
    assert_false(revocation_add_signature(&read, &keys, secret[0], bytes, &again, &error)); /* twice */
    again = size;
    assert_false(revocation_add_signature(&read, &keys, secret[2], bytes, &again, &error)); /* a stranger */
    again = size;
    assert_true(revocation_add_signature(&read, &keys, secret[1], bytes, &again, &error));
    assert_true(revocation_decode(&read, bytes, again, &keys, &error));
    assert_int_equal(read.signatures, 2);
    assert_false(revocation_add_signature(&read, &keys, secret[1], bytes, &again, &error)); /* it has what it needs */
}

/* An entry is a key or a member, whole, and nothing else. */
TEST(what_is_no_list)
{
    static uint8_t bytes[REVOCATION_MAX_BYTES];
    const uint8_t secret[OPERATOR_SECRET_KEY] = {1};
    struct revocation_list list = list_of(3, nobody, 0, 0), read;
    struct error error;
    size_t size;
    assert_true(revocation_encode(&list, secret, bytes, &size, &error));
    assert_false(revocation_decode_unsigned(&read, bytes, size, &error)); /* neither */
    list = list_of(3, (struct member){MEMBER_PS, 0}, 1, 1);
    assert_true(revocation_encode(&list, secret, bytes, &size, &error));
    assert_false(revocation_decode_unsigned(&read, bytes, size, &error)); /* both */
    list = list_of(0, nobody, 0, 1);
    assert_true(revocation_encode(&list, secret, bytes, &size, &error));
    assert_false(revocation_decode_unsigned(&read, bytes, size, &error)); /* number 0 is none */
    list = list_of(1, nobody, 0, 1);
    assert_true(revocation_encode(&list, secret, bytes, &size, &error));
    for (size_t i = 0; i < size; i++) {
        assert_false(revocation_decode_unsigned(&read, bytes, i, &error));
    }
    list.count = REVOCATION_MAX_ENTRIES + 1;
    assert_false(revocation_encode(&list, secret, bytes, &size, &error));
}

int main(void)
{
    return check_run(NULL, NULL);
}
