/*
 * A machine's records of versions and rollouts, damaged or foreign: config.json, the version in force with its local
 * keys, `current`, manifests, ps 0's record, the count of a process on probation. Every reader refuses
 * with a one-line message, or understands something that can be written and read back.
 */
#include "tests/fuzz/fuzz.h"

#include <math.h>

#include "base/config/versions.h"
#include "base/process/restart.h"
#include "ps/rollout/history.h"

FUZZ_MEMORY(16, 128 << 10)

/* In the order of the input's parts; an empty part is no file. */
static const char *const names[] = {"current",      "00000002.json", "00000002.local.json", "last", "00000002.manifest",
                                    "rollout.json", "probation"};

static char config_path[300], folder[310];

static void write_part(struct input *input, const char *path)
{
    size_t size;
    const uint8_t *part = input_part(input, &size);
    if (size > 0) {
        fuzz_write(path, part, size);
    }
}

static void write_files(struct input *input)
{
    static char process[RESTART_ID];
    char path[400];
    if (config_path[0] == '\0') {
        static char program[] = "trainer", *arguments[] = {program, NULL};
        restart_remember(arguments);
        restart_identity(process);
        snprintf(config_path, sizeof config_path, "%s/config.json", fuzz_folder());
        snprintf(folder, sizeof folder, "%s.d", config_path);
        mkdir(folder, 0700);
        be_silent();
    }
    fuzz_empty(folder);
    fuzz_write(config_path, (const uint8_t *)"{}", 2);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const bool is_last = i + 1 == sizeof names / sizeof *names;
        snprintf(path, sizeof path, "%s/%s%s%s", folder, names[i], is_last ? "-" : "", is_last ? process : "");
        write_part(input, path);
    }
}

static bool same_number(double a, double b)
{
    return a == b || (!isfinite(a) && !isfinite(b)); /* NOLINT: exactly */
}

/* What was read is written, and reads back the same. */
static void check_record(void)
{
    struct versions versions;
    struct record record, again;
    struct error error = {""};
    bool there;
    assert(versions_open(&versions, config_path, &error));
    if (!record_read(&versions, &there, &record, &error)) {
        check_beginning(&error, folder);
        return;
    }
    if (!there) {
        return;
    }
    assert(record.plan.target <= UINT64_C(1) << 53 && record.plan.fallback <= UINT64_C(1) << 53);
    assert(isfinite(record.plan.healthy_s));
    assert(record_store(&versions, &record, &error));
    assert(record_read(&versions, &there, &again, &error) && there);
    assert(record.state == again.state && record.highest == again.highest && record.plan.kind == again.plan.kind &&
           record.plan.target == again.plan.target && record.plan.fallback == again.plan.fallback &&
           record.plan.waited == again.plan.waited && same_number(record.loss_before, again.loss_before) &&
           same_number(record.plan.healthy_s, again.plan.healthy_s) &&
           memcmp(&record.plan.absent, &again.plan.absent, sizeof again.plan.absent) == 0);
}

static bool is_sound(uint64_t version)
{
    struct versions versions;
    struct error error;
    return versions_open(&versions, config_path, &error) && versions_verify(&versions, version, &error);
}

/* A process that has died this often goes back, whatever else its record says; nothing counts in a damaged version. */
static void check_probation(void)
{
    struct probation before, after;
    struct error error;
    uint64_t current;
    bool there;
    if (!probation_read(config_path, &before) || !is_sound(before.target)) {
        probation_check(config_path);
        return;
    }
    assert(before.starts >= 0);
    const bool counts =
        !before.failed && versions_current(config_path, &there, &current, &error) && there && current == before.target;
    probation_check(config_path);
    assert(probation_read(config_path, &after));
    assert(after.target == before.target && after.fallback == before.fallback);
    assert(!counts || after.failed || after.starts == before.starts + 1 || before.starts >= PROBATION_STARTS);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct input input = input_of(bytes, size);
    struct error error = {""};
    struct config config;
    struct lineage lineage;
    bool there, may_lose;
    uint64_t number;
    write_files(&input);
    if (!versions_current(config_path, &there, &number, &error)) {
        check_beginning(&error, folder);
    }
    assert(!there || number <= VERSIONS_MAX_NUMBER);
    if (config_load(&config, config_path, NULL, 0, &error)) {
        char digest[CONFIG_DIGEST_HEX + 1];
        config_digest(&config, digest);
        if (lineage_read(&config, &lineage)) {
            assert(lineage.target > lineage.fallback);
            lineage_adopts(&config, lineage.digests[1], &may_lose);
        }
        lineage_adopts(&config, digest, &may_lose);
        lineage_of(&config, 2, &lineage);
        config_free(&config);
    } else {
        check_beginning(&error, config_path);
    }
    check_record();
    check_probation();
    return 0;
}
