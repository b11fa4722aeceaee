/* A fleet key that a group of tests makes before its first test and removes after its last. */
#ifndef TESTS_NET_FLEET_KEY_H
#define TESTS_NET_FLEET_KEY_H

#include "net/credentials.h"
#include "tests/check.h"
#include "tests/net/loopback.h"

static char key_folder[64];
static struct credentials *fleet_key;

static inline int make_key(void **state)
{
    char path[128];
    struct error error;
    loopback_make_folder(key_folder);
    snprintf(path, sizeof path, "%s/fleet.key", key_folder);
    assert_true(credentials_create_fleet_key(path, &error));
    if (!credentials_load(&fleet_key, path, &error)) {
        fail_msg("%s", error.text);
    }
    return 0;
}

static inline int remove_key(void **state)
{
    credentials_free(fleet_key);
    loopback_remove_folder(key_folder);
    return 0;
}

#endif
