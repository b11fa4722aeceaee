/* The keys for tests of TLS, in their own folder: setup and teardown of a group. */
#ifndef TESTS_NET_KEYS_H
#define TESTS_NET_KEYS_H

#include "net/credentials.h"
#include "tests/check.h"
#include "tests/net/loopback.h"

static char folder[64];

static const char *file(const char *name)
{
    return loopback_file(folder, name);
}

static int make_keys(void **state)
{
    struct error error = {""};
    struct member ps0 = {MEMBER_PS, 0}, worker1 = {MEMBER_WORKER, 1}, any_worker = {MEMBER_WORKER, MEMBER_ANY_INDEX};
    struct member operator= {MEMBER_OPERATOR, MEMBER_ANY_INDEX};
    loopback_make_folder(folder);
    bool made =
        credentials_create_fleet_key(file("a.key"), &error) && credentials_create_fleet_key(file("b.key"), &error) &&
        credentials_create_authority(file("ca"), &error) && credentials_create_authority(file("other"), &error) &&
        credentials_create_member(file("ca"), &ps0, 365, file("ps0.key"), &error) &&
        credentials_create_member(file("ca"), &worker1, 365, file("worker1.key"), &error) &&
        credentials_create_member(file("ca"), &any_worker, 365, file("worker.key"), &error) &&
        credentials_create_member(file("ca"), &operator, 365, file("operator.key"), &error) &&
        credentials_create_member(file("ca"), &ps0, -1, file("expired.key"), &error) &&
        credentials_create_member(file("other"), &worker1, 365, file("stranger.key"), &error);
    if (!made) {
        fail_msg("%s", error.text);
    }
    return 0;
}

static int remove_keys(void **state)
{
    loopback_remove_folder(folder);
    return 0;
}

#endif
