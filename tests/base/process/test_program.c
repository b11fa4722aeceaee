/*
 * A machine's store of programs: each is received in full or not at all, by one process at a time, continuing from
 * where it stopped.
 */
#include <elf.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/file.h"
#include "base/process/program.h"
#include "base/process/restart.h"
#include "tests/check.h"

enum { SIZE = 300000, PIECE = 70000 };

static char folder[] = "/tmp/program-XXXXXX", config[64];
static struct programs programs;
static uint8_t bytes[SIZE];
static char digest[PROGRAM_DIGEST_HEX + 1];

/* Headers of a program, followed by noise. */
static void make_program(uint16_t machine, uint32_t seed)
{
    Elf64_Ehdr head = {.e_type = ET_DYN,
                       .e_machine = machine,
                       .e_phoff = sizeof head,
                       .e_phentsize = sizeof(Elf64_Phdr),
                       .e_phnum = 1};
    const Elf64_Phdr segment = {.p_type = PT_LOAD, .p_offset = 0, .p_filesz = SIZE};
    memcpy(head.e_ident, ELFMAG, SELFMAG);
    head.e_ident[EI_CLASS] = ELFCLASS64;
    head.e_ident[EI_DATA] = ELFDATA2LSB;
    for (size_t i = 0; i < SIZE; i++) {
        seed = seed * 1664525 + 1013904223;
        bytes[i] = (uint8_t)(seed >> 24);
    }
    memcpy(bytes, &head, sizeof head);
    memcpy(bytes + sizeof head, &segment, sizeof segment);
    checked_digest(bytes, SIZE, digest);
}

static int begin(void **state)
{
    struct error error;
    assert_non_null(mkdtemp(folder));
    snprintf(config, sizeof config, "%s/config.json", folder);
    assert_true(programs_name(&programs, config, &error));
    signal(SIGXFSZ, SIG_IGN);
    return 0;
}

static int end(void **state)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

/* Continues from where it is until this many bytes are there. */
static bool take(uint64_t until, struct error *error)
{
    struct program_intake intake;
    assert_int_equal(program_intake_open(&intake, &programs, digest, SIZE, error), INTAKE_OPEN);
    bool done = true;
    while (done && intake.there < until) {
        const uint64_t left = until - intake.there;
        done = program_intake_add(&intake, bytes + intake.there, left < PIECE ? (size_t)left : PIECE, error);
    }
    program_intake_close(&intake);
    return done;
}

TEST(is_taken_in_from_where_it_stopped)
{
    struct error error;
    struct program_intake intake;
    char path[VERSIONS_PATH];
    struct stat status;
    uint8_t got[100];
    size_t size;
    make_program(EM_X86_64, 1);
    assert_true(take(PIECE, &error));
    assert_false(programs_have(&programs, digest));
    assert_int_equal(program_intake_open(&intake, &programs, digest, SIZE, &error), INTAKE_OPEN);
    assert_int_equal(intake.there, PIECE);
    program_intake_close(&intake);
    assert_true(take(SIZE, &error));
    assert_true(programs_have(&programs, digest));
    assert_int_equal(program_intake_open(&intake, &programs, digest, SIZE, &error), INTAKE_WHOLE);
    assert_true(programs_path(&programs, digest, path, &error));
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0755);
    assert_int_equal(status.st_size, SIZE);
    assert_true(programs_read(&programs, digest, SIZE - 60, got, sizeof got, &size, &error));
    assert_int_equal(size, 60);
    assert_memory_equal(got, bytes + SIZE - 60, 60);
}

TEST(another_one_than_announced_is_removed)
{
    struct error error;
    make_program(EM_X86_64, 2);
    bytes[SIZE / 2] ^= 1;
    assert_false(take(SIZE, &error));
    assert_non_null(strstr(error.text, "is not the one that was announced"));
    assert_false(programs_have(&programs, digest));
    bytes[SIZE / 2] ^= 1; /* then the right one may be sent, from its start */
    assert_true(take(SIZE, &error));
    assert_true(programs_have(&programs, digest));
}

TEST(more_than_announced_is_refused)
{
    struct error error;
    struct program_intake intake;
    make_program(EM_X86_64, 3);
    assert_int_equal(program_intake_open(&intake, &programs, digest, SIZE - 1, &error), INTAKE_OPEN);
    assert_false(program_intake_add(&intake, bytes, SIZE, &error));
    assert_non_null(strstr(error.text, "received more bytes"));
    program_intake_close(&intake);
}

TEST(a_full_disk_costs_nothing_but_the_rest)
{
    struct error error;
    const struct rlimit full = {100000, RLIM_INFINITY}, free_again = {RLIM_INFINITY, RLIM_INFINITY};
    make_program(EM_X86_64, 4);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &full), 0);
    assert_false(take(SIZE, &error));
    assert_non_null(strstr(error.text, "cannot be written"));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &free_again), 0);
    assert_false(programs_have(&programs, digest));
    assert_true(take(SIZE, &error));
    assert_true(programs_have(&programs, digest));
}

TEST(one_that_no_disk_holds_is_not_begun)
{
    struct error error;
    struct program_intake intake;
    make_program(EM_X86_64, 5);
    assert_int_equal(program_intake_open(&intake, &programs, digest, UINT64_C(1) << 60, &error), INTAKE_FAILED);
    assert_non_null(strstr(error.text, "are free on that disk"));
}

/* Another process holds the lock and releases it by dying. */
TEST(one_process_takes_it_in)
{
    struct error error;
    struct program_intake intake;
    int ready[2], done[2];
    char byte = 0;
    make_program(EM_X86_64, 6);
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(pipe(done), 0);
    const pid_t child = fork();
    if (child == 0) {
        const bool open = program_intake_open(&intake, &programs, digest, SIZE, &error) == INTAKE_OPEN;
        const bool notified = program_intake_add(&intake, bytes, PIECE, &error) && write(ready[1], &byte, 1) == 1;
        _exit(read(done[0], &byte, 1) == 1 && open && notified ? 0 : 1);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(program_intake_open(&intake, &programs, digest, SIZE, &error), INTAKE_BUSY);
    assert_int_equal(write(done[1], &byte, 1), 1);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(program_intake_open(&intake, &programs, digest, SIZE, &error), INTAKE_OPEN);
    assert_int_equal(intake.there, PIECE);
    program_intake_close(&intake);
    close(ready[0]), close(ready[1]), close(done[0]), close(done[1]);
}

TEST(says_what_is_no_program)
{
    struct error error;
    char architecture[PROGRAM_ARCHITECTURE];
    make_program(EM_AARCH64, 7);
    assert_true(program_examine(bytes, SIZE, architecture, &error));
    assert_string_equal(architecture, "aarch64");
    for (size_t size = 0; size < SIZE; size = size * 2 + 1) {
        assert_false(program_examine(bytes, size, architecture, &error));
    }
    assert_non_null(strstr(error.text, "is truncated"));
    make_program(EM_S390, 8);
    assert_false(program_examine(bytes, SIZE, architecture, &error));
    assert_non_null(strstr(error.text, "does not support"));
    assert_false(
        program_examine((const uint8_t *)"#!/bin/sh\n................................................................",
                        70, architecture, &error));
    assert_non_null(strstr(error.text, "is not a program"));
    assert_int_equal(strlen(program_own_digest()), PROGRAM_DIGEST_HEX);
}

TEST(keeps_those_that_are_named)
{
    struct error error;
    char first[PROGRAM_DIGEST_HEX + 1];
    make_program(EM_X86_64, 9);
    assert_true(take(SIZE, &error));
    memcpy(first, digest, sizeof first);
    make_program(EM_X86_64, 10);
    assert_true(take(SIZE, &error));
    assert_true(programs_keep_own(&programs, &error));
    assert_true(programs_keep_own(&programs, &error));
    const char *const keep[] = {digest, ""};
    programs_prune(&programs, keep, 2);
    assert_true(programs_have(&programs, digest));
    assert_false(programs_have(&programs, first));
    assert_false(programs_have(&programs, program_own_digest()));
}

TEST(versions_name_their_programs)
{
    struct error error;
    struct versions versions;
    char found[PROGRAM_DIGEST_HEX + 1];
    make_program(EM_X86_64, 11);
    assert_true(versions_open(&versions, config, &error));
    assert_true(program_of_version(config, 5, found, &error));
    assert_string_equal(found, "");
    assert_true(program_set_version(config, 5, digest, &error));
    assert_true(program_of_version(config, 5, found, &error));
    assert_string_equal(found, digest);
    assert_false(program_prepare(config, 5, false, &error)); /* it is missing */
    char path[VERSIONS_PATH];
    snprintf(path, sizeof path, "%s.d/00000005.program", config);
    const int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && pwrite(fd, "zz", 2, 3) == 2);
    close(fd);
    assert_false(program_of_version(config, 5, found, &error));
    assert_non_null(strstr(error.text, "is damaged"));
}

static uint64_t version_in_force(void)
{
    bool there;
    uint64_t version;
    struct error error;
    assert_true(versions_current(config, &there, &version, &error) && there);
    return version;
}

/* Version 6 is about to start in the program made last, with version 4 as fallback. */
static void begin_version_6(void)
{
    struct versions versions;
    struct error error;
    assert_true(versions_open(&versions, config, &error));
    assert_true(versions_add(&versions, 4, "{}", 2, &error) && versions_add(&versions, 6, "{}", 2, &error));
    assert_true(program_set_version(config, 6, digest, &error));
    assert_true(probation_begin(config, 6, 4, &error) && versions_switch(&versions, 6, &error));
}

static bool it_is_signed(const char *config_path, uint64_t version, const char *which, struct error *error)
{
    assert_string_equal(config_path, config);
    return version == 6 && strcmp(which, digest) == 0;
}

static bool it_is_not(const char *config_path, uint64_t version, const char *which, struct error *error)
{
    return error_set(error, "nobody signed it");
}

/* A program that is whole, but that nothing vouches for, or that another user may have written, is not executed. */
TEST(a_program_without_a_signature_is_not_executed)
{
    struct error error;
    char path[VERSIONS_PATH];
    make_program(EM_AARCH64, 14); /* would count as failed if it were executed */
    assert_true(take(SIZE, &error));
    begin_version_6();
    program_launch(config, it_is_not);
    assert_int_equal(version_in_force(), 4);
    struct probation probation;
    assert_false(probation_read(config, &probation));

    assert_true(programs_path(&programs, digest, path, &error));
    assert_int_equal(chown(path, 12345, 0), 0);
    begin_version_6();
    program_launch(config, it_is_signed);
    assert_int_equal(version_in_force(), 4);
    assert_false(probation_read(config, &probation));
    assert_true(programs_have(&programs, digest)); /* nor is what others own removed */
    assert_int_equal(unlink(path), 0);
}

/* A program that no kernel starts has failed; one that the disk lost or changed has not, and is fetched again. */
TEST(a_damaged_program_did_not_fail)
{
    struct error error;
    struct probation probation;
    char path[VERSIONS_PATH];
    char name[] = "trainer", *arguments[] = {name, NULL};
    restart_remember(arguments);
    make_program(EM_AARCH64, 12);
    begin_version_6();
    program_launch(config, it_is_signed); /* it is missing */
    assert_int_equal(version_in_force(), 4);
    assert_false(probation_read(config, &probation));

    assert_true(take(SIZE, &error));
    assert_true(programs_path(&programs, digest, path, &error));
    begin_version_6();
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && pwrite(fd, "zz", 2, SIZE / 2) == 2);
    close(fd);
    program_launch(config, it_is_signed);
    assert_int_equal(version_in_force(), 4);
    assert_false(probation_read(config, &probation));
    assert_false(programs_have(&programs, digest));

    make_program(EM_S390, 13); /* execve refuses it on every machine that runs the tests */
    const struct file_part part = {bytes, SIZE};
    assert_true(programs_path(&programs, digest, path, &error));
    *strrchr(path, '/') = '\0';
    assert_true(file_make_folder(path, &error));
    assert_true(programs_path(&programs, digest, path, &error));
    assert_true(file_write_atomic(path, &part, 1, &error));
    assert_int_equal(chmod(path, 0755), 0);
    begin_version_6();
    program_launch(config, it_is_signed);
    assert_int_equal(version_in_force(), 4);
    assert_true(probation_read(config, &probation) && probation.failed);
}

int main(void)
{
    return check_run(begin, end);
}
