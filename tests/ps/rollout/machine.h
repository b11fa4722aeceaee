/* A member's machine in tests of rollouts: a folder with its config and operator.pub; and what the operator signs. */
#ifndef TESTS_PS_ROLLOUT_MACHINE_H
#define TESTS_PS_ROLLOUT_MACHINE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#include "base/file.h"
#include "ps/rollout/participant.h"
#include "tests/check.h"

static char folder[64], config_path[96];
static uint8_t public_key[OPERATOR_PUBLIC_KEY], secret_key[OPERATOR_SECRET_KEY];
static struct config config; /* of the test's process */

static inline void write_text(const char *name, const char *text)
{
    char path[128];
    struct error error;
    const struct file_part part = {text, strlen(text)};
    assert_true(file_join(path, sizeof path, folder, name, &error));
    assert_true(file_write_atomic(path, &part, 1, &error));
}

/* With a new operator's key; the test writes its config. */
static inline bool make_machine(void)
{
    char hex[2 * OPERATOR_PUBLIC_KEY + 1], key[200];
    strcpy(folder, "/tmp/machine-XXXXXX");
    if (sodium_init() < 0 || crypto_sign_keypair(public_key, secret_key) != 0 || !mkdtemp(folder)) {
        return false;
    }
    snprintf(config_path, sizeof config_path, "%s/config.json", folder);
    sodium_bin2hex(hex, sizeof hex, public_key, sizeof public_key);
    snprintf(key, sizeof key, "trainer operator public key 1\n%s\n", hex);
    write_text("operator.pub", key);
    return true;
}

static inline int remove_machine(void)
{
    char command[128];
    config_free(&config);
    memset(&config, 0, sizeof config);
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

static struct manifest_programs programs; /* to go with the next manifest */

/* A manifest's entry for a config, whose text the caller frees. */
static inline struct manifest_config signed_config(char *text, uint64_t version, const char *keys)
{
    struct config parsed;
    struct error error;
    assert_true(config_parse(&parsed, "signed", (uint8_t *)text, strlen(text), NULL, 0, &error));
    char *job = config_job_text(&parsed);
    config_free(&parsed);
    return (struct manifest_config){
        .version = version, .text = job, .text_size = strlen(job), .local = keys, .local_size = strlen(keys)};
}

static uint64_t expires_s; /* of manifests; 0: never */

/* An order with a manifest from one config to another, signed by this key. Valid until the next call but one. */
static inline struct participant_order order_signed(enum rollout_order what, const struct manifest_config *from,
                                                    const struct manifest_config *to, const uint8_t *key)
{
    static uint8_t *bytes, *before; /* a thread may still be copying the last one */
    size_t size;
    struct error error;
    struct manifest manifest = {.fleet = "north",
                                .expires_s = expires_s,
                                .author = "me@desk",
                                .programs = programs,
                                .target = *to,
                                .fallback = *from};
    free(before);
    before = bytes;
    assert_true(manifest_encode(&manifest, key, &bytes, &size, &error));
    free((void *)(uintptr_t)from->text);
    free((void *)(uintptr_t)to->text);
    return (struct participant_order){.order = what, .target = to->version, .manifest = bytes, .manifest_size = size};
}

#endif
