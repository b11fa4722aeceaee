/* What must be on disk so that a member gets back whatever happens to its process: probation, programs, lineage. */
#include "ps/rollout/way_back.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/process/program.h"
#include "base/process/restart.h"
#include "ps/rollout/history.h"

bool way_back_keep(const struct config *config, const struct versions *versions, uint64_t version, struct error *error)
{
    struct error ignored;
    if (versions_verify(versions, version, &ignored)) {
        return true;
    }
    char *text = config_job_text(config);
    const bool done =
        text ? versions_add(versions, version, text, strlen(text), error) : error_set(error, "out of memory");
    free(text);
    return done;
}

bool way_back_begin(const char *config_path, uint64_t version, uint64_t fallback, struct error *error)
{
    return probation_begin(config_path, version, fallback, error) && program_prepare(config_path, version, true, error);
}

void way_back_go(const char *config_path, uint64_t version)
{
    struct error error;
    if (!program_prepare(config_path, version, false, &error)) {
        log_warning("%s; version %llu of the config continues in the current program", error.text,
                    (unsigned long long)version);
    }
}

bool way_back_was_taken(const char *config_path, uint64_t version, struct error *error)
{
    struct probation probation;
    if (!probation_read(config_path, &probation) || !probation.failed || probation.target != version) {
        return false;
    }
    error_set(error, "it failed %d times when started in version %llu", PROBATION_STARTS, (unsigned long long)version);
    return true;
}

bool way_back_is_open(const char *config_path, uint64_t version)
{
    struct probation probation;
    return probation_read(config_path, &probation) && !probation.failed && probation.target == version;
}

void way_back_end(const char *config_path, uint64_t version)
{
    if (way_back_is_open(config_path, version)) {
        probation_end(config_path);
    }
}

bool way_back_leads_to(const struct config *config, uint64_t version, const struct manifest *manifest)
{
    struct lineage own;
    return version == manifest->target.version ||
           (lineage_of(config, version, &own) && own.fallback == manifest->fallback.version &&
            strcmp(own.digests[1], manifest->fallback.digest) == 0);
}

bool way_back_find(const struct config *config, struct versions *versions, uint64_t version, uint64_t fallback,
                   uint64_t *to)
{
    struct lineage own;
    struct error ignored;
    *to = fallback;
    if (*to == 0 && lineage_of(config, version, &own)) {
        *to = own.fallback;
    }
    return *to > 0 && versions_open(versions, config->path, &ignored) && versions_verify(versions, *to, &ignored);
}
