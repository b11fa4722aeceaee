/* Fleets with one operator. */
#ifndef TESTS_ONE_OPERATOR_H
#define TESTS_ONE_OPERATOR_H

#include "net/operator_key.h"

/* Valid until the next call. */
static inline const struct operator_keys *only(const uint8_t key[OPERATOR_PUBLIC_KEY])
{
    static struct operator_keys keys;
    keys = operator_keys_of(key);
    return &keys;
}

#endif
