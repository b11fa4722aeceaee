/*
 * Before any member restarts, its next process must find on disk which program each version runs in, and that program.
 * One member of each machine receives it; the others check whether it has arrived.
 */
#include "ps/rollout/target_program.h"

#include <stdio.h>
#include <string.h>

#include "net/message.h"

/* A target without a program runs in its fallback's. */
static bool keep_program(const char *path, const struct manifest *manifest, struct error *error)
{
    char digest[PROGRAM_DIGEST_HEX + 1];
    return program_of_version(path, manifest->fallback.version, digest, error) &&
           (digest[0] == '\0' || program_set_version(path, manifest->target.version, digest, error));
}

/* Can this machine, which runs the fallback, switch to that program and back? */
static bool may_change_program(const struct manifest *manifest, const struct manifest_program *coming, bool follows,
                               struct error *error)
{
    const char *own = program_own_digest();
    if (manifest->programs.protocol > PROTOCOL_VERSION_MAX) {
        return error_set(error,
                         "the new program speaks protocol versions from %u on, and this one up to %d: they could not "
                         "train together; roll out one between them first",
                         manifest->programs.protocol, PROTOCOL_VERSION_MAX);
    }
    return follows || coming->fallback[0] == '\0' || strcmp(coming->fallback, own) == 0 ||
           error_set(error, "this machine runs another program (%.16s) than the one to go back to (%.16s)", own,
                     coming->fallback);
}

/* is_behind: this process is in the fallback, so the program to go back to is the running one. */
static bool note_programs(const struct target_program *program, const char *path, bool is_behind,
                          const struct manifest *manifest, const struct manifest_program *coming, bool follows,
                          struct error *error)
{
    const char *former = coming->fallback;
    if (is_behind && program->is_new) {
        if (!may_change_program(manifest, coming, follows, error) || !programs_keep_own(&program->programs, error)) {
            return false;
        }
        former = program_own_digest();
    }
    return (former[0] == '\0' || program_set_version(path, manifest->fallback.version, former, error)) &&
           program_set_version(path, manifest->target.version, coming->digest, error);
}

static void prune_programs(const struct target_program *program, const char *path, const struct manifest *manifest)
{
    char before[PROGRAM_DIGEST_HEX + 1];
    const char *keep[2 * MANIFEST_MAX_PROGRAMS + 2] = {program_own_digest(), before};
    struct error ignored;
    int count = 2;
    if (!program_of_version(path, manifest->fallback.version, before, &ignored)) {
        return; /* the file is damaged: keep whatever it may have named */
    }
    for (int i = 0; i < manifest->programs.count; i++) {
        keep[count++] = manifest->programs.items[i].digest;
        if (manifest->programs.items[i].fallback[0] != '\0') {
            keep[count++] = manifest->programs.items[i].fallback;
        }
    }
    programs_prune(&program->programs, keep, count);
}

bool target_program_stage(struct target_program *program, const char *config_path, uint64_t version,
                          const struct manifest *manifest, bool follows, struct error *error)
{
    const struct manifest_program *coming = manifest_program_for(&manifest->programs, program_own_architecture());
    const bool is_behind = version == manifest->fallback.version;
    program->is_new = manifest_brings_programs(manifest);
    if (manifest->programs.count == 0) {
        return keep_program(config_path, manifest, error);
    }
    if (!coming) {
        return error_set(
            error, "it includes no program for this machine's architecture, %s: roll out one for each architecture",
            program_own_architecture());
    }
    if (!programs_name(&program->programs, config_path, error) ||
        !note_programs(program, config_path, is_behind, manifest, coming, follows, error)) {
        return false;
    }
    prune_programs(program, config_path, manifest);
    snprintf(program->digest, sizeof program->digest, "%s", coming->digest);
    program->size = coming->size;
    program->is_due = !programs_have_whole(&program->programs, coming->digest);
    return true;
}

bool target_program_find_former(struct target_program *program, const char *config_path, uint64_t version,
                                const struct manifest *manifest, struct error *error)
{
    const uint64_t former = manifest->fallback.version;
    const struct manifest_program *coming = manifest_program_for(&manifest->programs, program_own_architecture());
    if (!coming || coming->fallback[0] == '\0' || version > former) {
        return true;
    }
    if (!programs_name(&program->programs, config_path, error)) {
        return false;
    }
    return strcmp(coming->fallback, program_own_digest()) == 0 ||
                   programs_have_whole(&program->programs, coming->fallback)
               ? program_set_version(config_path, former, coming->fallback, error)
               : error_set(error, "the program of version %llu (%.16s) is not on this machine",
                           (unsigned long long)former, coming->fallback);
}

enum intake_state target_program_look(struct target_program *program, struct error *error)
{
    if (!program->is_due || program->is_open) {
        return program->is_due ? INTAKE_OPEN : INTAKE_WHOLE;
    }
    const enum intake_state state =
        program_intake_open(&program->intake, &program->programs, program->digest, program->size, error);
    program->is_due = state != INTAKE_WHOLE;
    program->is_open = state == INTAKE_OPEN;
    return state;
}

bool target_program_wants(const struct target_program *program, const char **digest, uint64_t *offset)
{
    *digest = program->digest;
    *offset = program->intake.there;
    return program->is_open;
}

enum intake_state target_program_add(struct target_program *program, const void *bytes, size_t size,
                                     struct error *error)
{
    if (!program_intake_add(&program->intake, bytes, size, error)) {
        target_program_stop(program);
        return INTAKE_FAILED;
    }
    if (program->intake.there < program->size) {
        return INTAKE_OPEN;
    }
    program_intake_close(&program->intake);
    program->is_open = false; /* still due, until target_program_look finds it */
    return INTAKE_WHOLE;
}

void target_program_stop(struct target_program *program)
{
    if (program->is_open) {
        program_intake_close(&program->intake);
    }
    program->is_open = program->is_due = false;
}
