/*
 * Implements programs.h. A build is a few KiB: the headers of a program, the mark that operators look for, and noise.
 */
#include "tests/simulate/programs.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/process/program.h"
#include "base/process/restart.h"
#include "net/message.h"
#include "ps/rollout/manifest.h"
#include "tests/simulate/world.h"

enum { ARCHITECTURES = 2, MOST_BUILDS = 24, LEAST_BYTES = 200, MOST_BYTES = 5000, MOST_PATH = 200, SLOWER = 8 };

/* What it does. */
enum kind { WORKS, IS_SLOW, CRASHES, HANGS, IS_STARTED_BY_NO_KERNEL, KINDS };

static const char *const kind_names[] = {"works", "is slow", "crashes", "hangs", "is started by no kernel"};

static const struct {
    const char *name;
    uint16_t machine;
} architectures[ARCHITECTURES] = {{"x86_64", EM_X86_64}, {"aarch64", EM_AARCH64}};

struct build {
    enum kind kind;
    int architecture;
    uint8_t bytes[MOST_BYTES];
    size_t size;
    char digest[PROGRAM_DIGEST_HEX + 1];
};

struct process {
    int architecture; /* of its machine */
    int build;        /* its number */
    bool excused;
    bool was_executed;
    bool is_timed; /* the kernel kills it unless it arrives */
    char next[MOST_PATH];
    bool next_is_timed;
};

static struct {
    bool roll;
    struct build builds[MOST_BUILDS]; /* the first ones are installed */
    int build_count;
    int of[PROGRAMS_VERSIONS][ARCHITECTURES]; /* the build of each version; -1: it comes without one */
    struct process processes[WORLD_MAX_MACHINES];
    bool is_there[ARCHITECTURES];
    char flag[100];
} programs;

bool programs_roll(void)
{
    return programs.roll;
}

void programs_forget(void)
{
    programs.roll = false;
}

/* --- Builds --- */

static int make_build(enum kind kind, int architecture)
{
    static const struct {
        char text[24];
        uint16_t lowest, highest;
    } mark = {"trainer speaks protocol", PROTOCOL_VERSION_MIN, PROTOCOL_VERSION_MAX};
    struct build *build = &programs.builds[programs.build_count];
    *build = (struct build){
        .kind = kind, .architecture = architecture, .size = LEAST_BYTES + chance(MOST_BYTES - LEAST_BYTES)};
    Elf64_Ehdr head = {.e_type = ET_DYN,
                       .e_machine = architectures[architecture].machine,
                       .e_phoff = sizeof head,
                       .e_phentsize = sizeof(Elf64_Phdr),
                       .e_phnum = 1};
    const Elf64_Phdr segment = {.p_type = PT_LOAD, .p_filesz = build->size};
    memcpy(head.e_ident, ELFMAG, SELFMAG);
    head.e_ident[EI_CLASS] = ELFCLASS64;
    head.e_ident[EI_DATA] = ELFDATA2LSB;
    for (size_t i = 0; i < build->size; i++) {
        build->bytes[i] = (uint8_t)chance(256);
    }
    memcpy(build->bytes, &head, sizeof head);
    memcpy(build->bytes + sizeof head, &segment, sizeof segment);
    memcpy(build->bytes + sizeof head + sizeof segment, &mark, sizeof mark);
    checked_digest(build->bytes, build->size, build->digest);
    return programs.build_count++;
}

static int find_build(const char *digest)
{
    for (int i = 0; i < programs.build_count; i++) {
        if (strcmp(programs.builds[i].digest, digest) == 0) {
            return i;
        }
    }
    return -1;
}

static int by_bytes(const uint8_t *bytes, size_t size)
{
    char digest[PROGRAM_DIGEST_HEX + 1];
    checked_digest(bytes, size, digest);
    return find_build(digest);
}

void programs_begin(void)
{
    memset(&programs, 0, sizeof programs);
    programs.roll = true;
    const bool mixed = chance(3) == 0;
    for (int i = 0; i < ARCHITECTURES; i++) {
        programs.of[1][i] = make_build(WORKS, i);
    }
    for (int i = 0; i < WORLD_MAX_MACHINES; i++) {
        const int architecture = mixed ? (int)chance(ARCHITECTURES) : 0;
        programs.processes[i] = (struct process){.architecture = architecture, .build = architecture};
        programs.is_there[architecture] = programs.is_there[architecture] || i < world.machine_count;
    }
}

int programs_architectures(void)
{
    return programs.is_there[0] + programs.is_there[1];
}

/* Now and then the file is truncated, or there is none for machines of one architecture. */
const char *programs_draw(struct disk *disk, bool *good)
{
    const enum kind kind = chance(2) == 0 ? WORKS : (enum kind)chance(KINDS);
    const int only = chance(4) == 0 ? (int)chance(ARCHITECTURES) : -1; /* only on this one is it that bad */
    const int without = chance(10) == 0 ? (int)chance(ARCHITECTURES) : -1;
    const bool is_cut = chance(12) == 0;
    programs.flag[0] = '\0';
    *good = true;
    for (int i = 0; i < ARCHITECTURES; i++) {
        char path[MOST_PATH];
        if (i == without || (!programs.is_there[i] && chance(2) == 0)) {
            continue;
        }
        const enum kind here = only < 0 || only == i ? kind : WORKS;
        const struct build *build = &programs.builds[make_build(here, i)];
        *good = *good && (!programs.is_there[i] || here == WORKS || here == IS_SLOW);
        snprintf(path, sizeof path, "/new/trainer-%s", architectures[i].name);
        const size_t size = is_cut ? chance(build->size) : build->size;
        disk_put(disk, path, build->bytes, size);
        say("the new program for %s %s%s", architectures[i].name, kind_names[here], is_cut ? ", and is truncated" : "");
        const size_t used = strlen(programs.flag);
        snprintf(programs.flag + used, sizeof programs.flag - used, "%s%s", used > 0 ? "," : "", path);
    }
    return programs.flag[0] != '\0' ? programs.flag : NULL;
}

void programs_signed(uint64_t version, uint64_t fallback, const struct manifest_programs *signed_)
{
    for (int i = 0; version < PROGRAMS_VERSIONS && i < ARCHITECTURES; i++) {
        const struct manifest_program *program = manifest_program_for(signed_, architectures[i].name);
        programs.of[version][i] = program              ? find_build(program->digest)
                                  : signed_->count > 0 ? -1
                                                       : programs.of[fallback][i];
    }
}

void programs_forge(struct manifest_programs *forged)
{
    *forged = (struct manifest_programs){.count = 1, .protocol = PROTOCOL_VERSION_MIN};
    struct manifest_program *program = &forged->items[0];
    program->size = LEAST_BYTES;
    snprintf(program->architecture, sizeof program->architecture, "%s", architectures[0].name);
    memset(program->digest, 'a', PROGRAM_DIGEST_HEX);
}

/* --- Which one a process runs --- */

static int expected(const struct machine *machine, uint64_t version)
{
    return version < PROGRAMS_VERSIONS ? programs.of[version][programs.processes[machine->number].architecture] : -1;
}

bool programs_is_in(const struct machine *machine, uint64_t version)
{
    const struct process *process = &programs.processes[machine->number];
    return process->excused || process->build == expected(machine, version);
}

bool programs_has(const struct machine *machine, uint64_t version)
{
    const struct process *process = &programs.processes[machine->number];
    const int build = expected(machine, version);
    char path[MOST_PATH];
    size_t size;
    if (process->excused || build == process->build) {
        return true;
    }
    if (build < 0) {
        return false;
    }
    snprintf(path, sizeof path, "/etc/trainer.d/%.16s/trainer", programs.builds[build].digest);
    const uint8_t *bytes = disk_bytes(machine->disk, path, &size);
    return bytes && by_bytes(bytes, size) == build;
}

bool programs_works(const struct machine *machine, uint64_t version)
{
    const int build = expected(machine, version);
    return build >= 0 && (programs.builds[build].kind == WORKS || programs.builds[build].kind == IS_SLOW);
}

bool programs_differ(uint64_t version, uint64_t other)
{
    return memcmp(programs.of[version], programs.of[other], sizeof programs.of[0]) != 0;
}

void programs_excuse(const struct machine *machine)
{
    programs.processes[machine->number].excused = true;
}

const char *program_own_architecture(void)
{
    return architectures[programs.processes[world.here->number].architecture].name;
}

const char *program_own_digest(void)
{
    return programs.roll ? programs.builds[programs.processes[world.here->number].build].digest : "";
}

bool program_own_bytes(uint8_t **bytes, size_t *size, struct error *error)
{
    const struct build *build = &programs.builds[programs.processes[world.here->number].build];
    *bytes = malloc(build->size);
    *size = build->size;
    if (!*bytes) {
        return error_set(error, "out of memory");
    }
    memcpy(*bytes, build->bytes, build->size);
    return true;
}

/* --- Execution --- */

static uint64_t version_on_disk(const struct machine *machine)
{
    char text[64];
    const bool there = disk_get(machine->disk, "/etc/config.json.d/current", text, sizeof text);
    return there ? strtoull(text, NULL, 10) : 1;
}

/* The build that would run; -1: the kernel refuses it. */
static int look_at(const struct machine *machine, const char *path)
{
    const struct process *process = &programs.processes[machine->number];
    size_t size;
    const uint8_t *bytes = disk_bytes(machine->disk, path, &size);
    const int build = bytes ? by_bytes(bytes, size) : -1;
    if (bytes && build < 0) {
        fail("%s executes %s, which is damaged", machine->name, path);
    }
    if (build < 0 || programs.builds[build].architecture != process->architecture ||
        programs.builds[build].kind == IS_STARTED_BY_NO_KERNEL) {
        return -1;
    }
    if (build != expected(machine, version_on_disk(machine)) && !process->excused) {
        fail("%s executes %s, which is not what version %llu runs in", machine->name, path,
             (unsigned long long)version_on_disk(machine));
    }
    return build;
}

/* The kernel's alarm: it survives the call that executes a program. */
static void ring(void *context, uint64_t life)
{
    struct machine *machine = context;
    if (machine->runs && (uint64_t)machine->life == life && programs.processes[machine->number].is_timed) {
        world.here = machine;
        say("is killed by its alarm");
        machine_kill(machine);
        world.here = NULL;
    }
}

void programs_started(struct machine *machine, bool again)
{
    struct process *process = &programs.processes[machine->number];
    if (!programs.roll) {
        return;
    }
    const int build = again && process->next[0] != '\0' ? look_at(machine, process->next) : -1;
    process->was_executed = build >= 0;
    process->is_timed = build >= 0 && process->next_is_timed;
    process->next[0] = '\0';
    if (build >= 0) {
        process->build = build;
    } else if (!again) {
        process->build = process->architecture;
    }
    if (process->is_timed) {
        world_at(world.now_s + RESTART_ARRIVE_S, ring, machine, (uint64_t)machine->life + 1);
    }
}

int programs_live(struct machine *machine)
{
    const struct build *build = &programs.builds[programs.processes[machine->number].build];
    if (!programs.roll) {
        return 0;
    }
    if (build->kind == CRASHES) {
        say("error: it crashes in program %.16s", build->digest);
        return 1;
    }
    if (build->kind == HANGS) {
        say("hangs in program %.16s", build->digest);
        while (machine->signal == 0) {
            thread_block(machine, world.now_s + 1);
        }
        say("error: it was asked to leave");
        return 128 + machine->signal;
    }
    return 0;
}

double programs_slowness(const struct machine *machine)
{
    const bool is_slow = programs.roll && programs.builds[programs.processes[machine->number].build].kind == IS_SLOW;
    return is_slow ? SLOWER : 1;
}

bool programs_next(const char *path, bool on_probation, struct error *error)
{
    struct process *process = &programs.processes[world.here->number];
    if (!programs.roll) {
        return error_set(error, "no program is rolled out here");
    }
    snprintf(process->next, sizeof process->next, "%s", path);
    process->next_is_timed = on_probation;
    return true;
}

bool programs_execute(const char *path, bool on_probation, struct error *error)
{
    if (!programs_next(path, on_probation, error)) {
        return false;
    }
    if (look_at(world.here, path) < 0) {
        programs.processes[world.here->number].next[0] = '\0';
        return error_set(error, "%s: can't be executed", path);
    }
    machine_exit(RESTART_STATUS);
}

bool programs_was_executed(void)
{
    return programs.processes[world.here->number].was_executed;
}

void programs_arrived(void)
{
    programs.processes[world.here->number].is_timed = false;
}
