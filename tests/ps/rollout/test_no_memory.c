/* Memory that runs short while a rollout is decided on, signed or written down: nothing is kept by halves. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#include "base/file.h"
#include "base/log.h"
#include "ps/rollout/history.h"
#include "ps/rollout/manifest.h"
#include "tests/check.h"
#include "tests/no_memory.h"

static struct versions versions;
static char log_path[VERSIONS_PATH];
static struct error error;

static int enter(void **state)
{
    log_setup(LOG_TEXT, (enum log_level)(LOG_ERROR + 1)); /* nothing */
    strcpy(versions.folder, "/tmp/no-memory-XXXXXX");
    return sodium_init() < 0 || !mkdtemp(versions.folder) ||
           !file_join(log_path, sizeof log_path, versions.folder, "audit.log", &error);
}

static int leave(void **state)
{
    char command[VERSIONS_PATH + 16];
    snprintf(command, sizeof command, "rm -r %s", versions.folder);
    return system(command);
}

/* A leader that is started again reads the state before, or the new one, whole. */
TEST_WITH(the_state_is_stored_whole_or_not_at_all, enter, leave)
{
    struct record record = {.state = ROLLOUT_STAGING,
                            .plan = {.target = 2, .fallback = 1, .kind = ROLLOUT_JOB, .healthy_s = 5},
                            .loss_before = 0.5,
                            .highest = 2,
                            .reason = "before"},
                  read;
    int failures = 0;
    bool there;
    assert_true(record_store(&versions, &record, &error));
    record.state = ROLLOUT_SWITCHING;
    record.plan.absent = (struct rollout_absent){{6}};
    strcpy(record.reason, "after");
    for (bool stored = false; !stored; failures += !stored) {
        no_memory_from(failures + 1, 1);
        stored = record_store(&versions, &record, &error);
        no_memory_end();
        assert_true(stored || (strstr(error.text, "out of memory") && strstr(error.text, versions.folder)));
        if (!record_read(&versions, &there, &read, &error)) {
            fail_msg("%s", error.text);
        }
        assert_int_equal(read.state, stored ? ROLLOUT_SWITCHING : ROLLOUT_STAGING);
        assert_string_equal(read.reason, stored ? "after" : "before");
        assert_memory_equal(&read.plan.absent, &(struct rollout_absent){{stored ? 6 : 0}}, sizeof read.plan.absent);
    }
    assert_true(failures > 20); /* names and values of ten members */
}

/* How many bytes the audit log has. */
static size_t audited(void)
{
    uint8_t *bytes;
    size_t size = 0;
    if (file_exists(log_path)) {
        assert_true(file_read(log_path, 1 << 16, &bytes, &size, &error));
        assert_true(size > 0 && bytes[size - 1] == '\n');
        assert_non_null(strstr((char *)bytes, "\"outcome\":\"done\",\"left_out\":3,\"prev\":\"00000000"));
        free(bytes);
    }
    return size;
}

TEST_WITH(a_line_of_the_audit_log_is_whole_or_missing, enter, leave)
{
    static char quotes[1500];
    struct audit_entry entry = {"ps 0", "me@desk", "propose", 5, "done", 3};
    int failures = 0;
    for (; audited() == 0; failures++) {
        no_memory_from(failures + 1, 1);
        audit_write(&versions, &entry);
        no_memory_end();
    }
    assert_true(failures > 14);
    const size_t size = audited();
    memset(quotes, '"', sizeof quotes - 1); /* twice as many characters of JSON, more than a line has */
    entry.outcome = quotes;
    audit_write(&versions, &entry);
    assert_int_equal(audited(), size);
}

TEST_WITH(a_manifest_is_signed_or_not, enter, leave)
{
    uint8_t public_key[OPERATOR_PUBLIC_KEY], secret_key[OPERATOR_SECRET_KEY], *bytes;
    size_t size;
    struct manifest manifest = {.fleet = "north",
                                .author = "me@desk",
                                .target = {.version = 5, .text = "{\"a\":1}", .text_size = 7},
                                .fallback = {.version = 4, .text = "{\"a\":2}", .text_size = 7}};
    crypto_sign_keypair(public_key, secret_key);
    no_memory_from(1, 1);
    const bool encoded = manifest_encode(&manifest, secret_key, &bytes, &size, &error);
    no_memory_end();
    assert_false(encoded);
    assert_string_equal(error.text, "out of memory");
}

TEST_WITH(a_fleet_may_be_too_large, enter, leave)
{
    struct rollout rollout;
    no_memory_from(1, 1);
    const bool created = rollout_create(&rollout, 2, 3, 3);
    no_memory_end();
    assert_false(created);
    rollout_destroy(&rollout);
}

int main(void)
{
    return check_run(NULL, NULL);
}
