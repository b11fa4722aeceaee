/*
 * config.json as arbitrary bytes: refused with a one-line message, or loaded so that it can be shown, hashed and read
 * back unchanged.
 */
#include "tests/fuzz/fuzz.h"

#include "base/config.h"
#include "base/config/keys.h"

FUZZ_MEMORY(32, 64 << 10)

static void check_reads_back(const struct config *config)
{
    struct config copy;
    struct error error;
    char digest[CONFIG_DIGEST_HEX + 1], copy_digest[CONFIG_DIGEST_HEX + 1];
    char *text = config_job_text(config);
    assert(text);
    if (!config_parse(&copy, "copy", (const uint8_t *)text, strlen(text), NULL, 0, &error)) {
        /* Checkpoint keys are the job's, their folder is the machine's: without a folder they are refused. */
        assert(config->output.train_dir[0] != '\0');
    } else {
        config_digest(config, digest);
        config_digest(&copy, copy_digest);
        assert(strcmp(digest, copy_digest) == 0);
        config_free(&copy);
    }
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct config config;
    struct error error = {""};
    if (!config_parse(&config, "config.json", bytes, size, NULL, 0, &error)) {
        check_beginning(&error, "config.json:");
        assert(!config.origins);
        return 0;
    }
    assert(config.model.layer_count >= 2 && config.model.layer_count <= CONFIG_MAX_LAYERS);
    assert(config.train.batch_size >= 1 && config.train.learning_rate >= 0);
    check_reads_back(&config);
    for (const struct config_key *key = config_keys; key->section; key++) {
        free(config_key_text(key, &config));
    }
    config_free(&config);
    return 0;
}
