/* Operators' keys, what keygen makes and refuses to make, and which keys are rejected, with the reason. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

#include <mbedtls/oid.h>
#include <mbedtls/x509_crt.h>
#include <sodium.h>

#include "base/cli/commands.h"
#include "net/credentials.h"
#include "net/operator_key.h"
#include "tests/net/loopback.h"
#include "tests/system.h"

static char folder[64];

static const char *file(const char *name)
{
    return loopback_file(folder, name);
}

static int make_folder(void **state)
{
    loopback_make_folder(folder);
    return 0;
}

static int remove_folder(void **state)
{
    loopback_remove_folder(folder);
    return 0;
}

static size_t read_text(const char *path, char text[8192])
{
    FILE *stream = fopen(path, "r");
    assert_non_null(stream);
    size_t size = fread(text, 1, 8191, stream);
    fclose(stream);
    text[size] = '\0';
    return size;
}

static void write_text(const char *path, const char *text, size_t size)
{
    FILE *stream = fopen(path, "w");
    assert_non_null(stream);
    assert_int_equal(fwrite(text, 1, size, stream), size);
    fclose(stream);
    assert_int_equal(chmod(path, 0600), 0);
}

static mode_t mode_of(const char *path)
{
    struct stat status;
    assert_int_equal(stat(path, &status), 0);
    return status.st_mode & 0777;
}

static void says(const struct error *error, const char *first, const char *words)
{
    if (!strstr(error->text, first) || !strstr(error->text, words)) {
        fail_msg("\"%s\" instead of \"%s ... %s\"", error->text, first, words);
    }
}

/* What earlier calls leave on the stack is no zeros. */
static __attribute__((noinline)) void soil_stack(void)
{
    volatile uint8_t bytes[96 * 1024];
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = 0xa5;
    }
}

/* --- Operators --- */

static void a_pair_signs_and_checks(void **state)
{
    struct error error;
    uint8_t secret_key[OPERATOR_SECRET_KEY], public_key[OPERATOR_PUBLIC_KEY], signature[crypto_sign_BYTES];
    const uint8_t text[] = "roll it out";
    umask(0);
    assert_true(operator_key_create(file("op"), NULL, &error));
    umask(022);
    assert_int_equal(mode_of(file("op")), 0600);
    assert_int_equal(mode_of(file("op.pub")), 0644);
    assert_true(operator_key_read_secret(file("op"), secret_key, &error));
    assert_true(operator_key_read_public(file("op.pub"), public_key, &error));
    crypto_sign_detached(signature, NULL, text, sizeof text, secret_key);
    assert_int_equal(crypto_sign_verify_detached(signature, text, sizeof text, public_key), 0);
}

/* With a passphrase the file alone signs nothing; its public half is there without it. */
static void a_passphrase_locks_a_key(void **state)
{
    struct error error;
    char text[8192];
    uint8_t secret_key[OPERATOR_SECRET_KEY], public_key[OPERATOR_PUBLIC_KEY], own[OPERATOR_PUBLIC_KEY];
    assert_true(operator_key_create(file("locked"), "correct horse", &error));
    assert_int_equal(mode_of(file("locked")), 0600);
    assert_true(operator_key_read_public(file("locked.pub"), public_key, &error));
    assert_true(operator_key_read_own_public(file("locked"), own, &error));
    assert_memory_equal(own, public_key, sizeof own);
    setenv("TRAINER_OPERATOR_PASSPHRASE", "correct horse", 1);
    assert_true(operator_key_read_secret(file("locked"), secret_key, &error));
    assert_int_equal(crypto_sign_ed25519_sk_to_pk(own, secret_key), 0);
    assert_memory_equal(own, public_key, sizeof own);
    setenv("TRAINER_OPERATOR_PASSPHRASE", "correct house", 1);
    assert_false(operator_key_read_secret(file("locked"), secret_key, &error));
    says(&error, file("locked"), "the passphrase is another one, or the file is damaged");
    setenv("TRAINER_OPERATOR_PASSPHRASE", "correct horse", 1);
    const size_t size = read_text(file("locked"), text), head = strlen("trainer operator secret key 2\n");
    text[head] = text[head] == '0' ? '1' : '0'; /* another public key than the one in the box */
    write_text(file("swapped"), text, size);
    assert_false(operator_key_read_secret(file("swapped"), secret_key, &error));
    says(&error, file("swapped"), "the file is damaged");
    memset(text + head + 2 * OPERATOR_PUBLIC_KEY, 'f', 16); /* more work than anyone would wait for */
    write_text(file("endless"), text, size);
    assert_false(operator_key_read_secret(file("endless"), secret_key, &error));
    says(&error, file("endless"), "asks for too much work");
    unsetenv("TRAINER_OPERATOR_PASSPHRASE");
}

static void no_key_is_overwritten(void **state)
{
    struct error error;
    char before[8192], after[8192];
    assert_true(operator_key_create(file("kept"), NULL, &error));
    read_text(file("kept"), before);
    assert_false(operator_key_create(file("kept"), NULL, &error));
    says(&error, file("kept"), "already exists, and is not overwritten");
    read_text(file("kept"), after);
    assert_string_equal(before, after);
    /* Nor does half a pair remain if a file is in the way of the other half. */
    write_text(file("half.pub"), "mine", 4);
    assert_false(operator_key_create(file("half"), NULL, &error));
    says(&error, file("half.pub"), "already exists");
    assert_int_equal(access(file("half"), F_OK), -1);
    read_text(file("half.pub"), after);
    assert_string_equal(after, "mine");
    assert_false(operator_key_create(file("nowhere/op"), NULL, &error));
    says(&error, file("nowhere/op"), "No such file");
}

/* On a full disk no half of a key remains. */
static void a_full_disk_leaves_no_key(void **state)
{
    struct error error;
    struct rlimit before, small = {.rlim_cur = 40};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small.rlim_max = before.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    const bool made = operator_key_create(file("full"), NULL, &error);
    struct error other;
    const bool fleet_made = credentials_create_fleet_key(file("full.key"), &other);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_false(made);
    says(&error, file("full"), "File too large");
    assert_int_equal(access(file("full"), F_OK), -1);
    assert_int_equal(access(file("full.pub"), F_OK), -1);
    assert_false(fleet_made);
    says(&other, file("full.key"), "File too large");
    assert_int_equal(access(file("full.key"), F_OK), -1);
}

/* The next sync of a file fails. */
static bool disk_fails;

int fsync(int fd)
{
    if (disk_fails) {
        errno = EIO;
        return -1;
    }
    return SYSTEM(fsync)(fd);
}

/* A key that the next power cut may lose is no key; and the failure leaves no file open. */
static void a_key_is_on_disk(void **state)
{
    struct error error, other;
    const int unused = dup(0);
    close(unused);
    disk_fails = true;
    const bool made = operator_key_create(file("lost"), NULL, &error);
    const bool fleet_made = credentials_create_fleet_key(file("lost.key"), &other);
    disk_fails = false;
    assert_false(made);
    says(&error, file("lost"), "Input/output error");
    assert_int_equal(access(file("lost"), F_OK), -1);
    assert_int_equal(access(file("lost.pub"), F_OK), -1);
    assert_false(fleet_made);
    says(&other, file("lost.key"), "Input/output error");
    assert_int_equal(access(file("lost.key"), F_OK), -1);
    assert_true(operator_key_create(file("lost"), NULL, &error));
    assert_true(credentials_create_fleet_key(file("lost.key"), &error));
    const int next = dup(0);
    close(next);
    assert_int_equal(next, unused);
}

/* The names of both halves fit, or neither half is made. */
static void a_path_that_is_just_too_long(void **state)
{
    struct error error;
    for (size_t more = 0; more < 2; more++) {
        char path[PATH_MAX], half[PATH_MAX];
        const size_t length = sizeof path - 1 - strlen(".pub") + more;
        const size_t used = (size_t)snprintf(path, sizeof path, "%s/", file(""));
        for (size_t i = used; i < length - 4; i++) {
            path[i] = (i - used) % 2 == 0 ? '.' : '/';
        }
        snprintf(path + length - 4, 5, "/op%zu", more);
        assert_int_equal(operator_key_create(path, NULL, &error), more == 0);
        assert_int_equal(access(path, F_OK), more == 0 ? 0 : -1);
        snprintf(half, sizeof half, "%.*s.pu", (int)length, path); /* nor is what a name that was cut would be */
        assert_int_equal(access(half, F_OK), -1);
    }
}

static void a_key_with_another_head_or_size(void **state)
{
    struct error error;
    char text[8192];
    uint8_t key[OPERATOR_SECRET_KEY];
    assert_true(operator_key_create(file("true"), NULL, &error));
    assert_false(operator_key_read_secret(file("missing"), key, &error));
    says(&error, file("missing"), "make a pair of keys with: trainer keygen --operator=");
    assert_false(operator_key_read_public(file("missing.pub"), key, &error));
    assert_false(operator_key_read_public(file("true"), key, &error));
    says(&error, file("true"), "is not an operator's public key");
    assert_int_equal(chmod(file("true.pub"), 0600), 0);
    assert_false(operator_key_read_secret(file("true.pub"), key, &error));
    says(&error, file("true.pub"), "is not an operator's secret key");
    const size_t size = read_text(file("true.pub"), text);
    for (size_t at = 0; at < size; at++) { /* whichever byte is damaged */
        const char was = text[at];
        text[at] = was == '~' ? '!' : '~';
        write_text(file("bad.pub"), text, size);
        text[at] = was;
        assert_false(operator_key_read_public(file("bad.pub"), key, &error));
        says(&error, file("bad.pub"), "is not an operator's public key");
    }
    write_text(file("bad.pub"), text, size - 1);
    assert_false(operator_key_read_public(file("bad.pub"), key, &error));
    text[size] = '\n';
    write_text(file("bad.pub"), text, size + 1);
    assert_false(operator_key_read_public(file("bad.pub"), key, &error));
    write_text(file("bad.pub"), text, size);
    assert_true(operator_key_read_public(file("bad.pub"), key, &error));
}

static void others_may_not_read_or_replace_a_key(void **state)
{
    struct error error;
    uint8_t key[OPERATOR_SECRET_KEY];
    assert_true(operator_key_create(file("open"), NULL, &error));
    for (int bit = 1; bit <= 4; bit *= 2) {
        assert_int_equal(chmod(file("open"), (mode_t)(0600 | bit)), 0);
        assert_false(operator_key_read_secret(file("open"), key, &error));
        says(&error, file("open"),
             bit == 2 ? "can be written to by everybody" : "everybody on this machine can read this key");
    }
    assert_int_equal(chmod(file("open"), 0640), 0);
    assert_true(operator_key_read_secret(file("open"), key, &error));
    assert_int_equal(chmod(file("open.pub"), 0666), 0);
    assert_false(operator_key_read_public(file("open.pub"), key, &error));
    says(&error, file("open.pub"), "can be written to by everybody");
    assert_int_equal(chmod(file("open.pub"), 0664), 0);
    assert_false(operator_key_read_public(file("open.pub"), key, &error));
    says(&error, file("open.pub"), "can be written to by its group");
    assert_int_equal(chmod(file("open.pub"), 0644), 0);
    assert_true(operator_key_read_public(file("open.pub"), key, &error));
}

/* Writes these texts, one after the other. */
static void join(const char *path, const char *const *texts, int count)
{
    char all[8192] = "";
    for (int i = 0; i < count; i++) {
        strcat(all, texts[i]);
    }
    write_text(path, all, strlen(all));
}

static void several_keys_with_a_threshold(void **state)
{
    static const char *const names[] = {"anna", "bert", "cora"};
    static char texts[3][8192];
    struct error error;
    struct operator_keys keys;
    uint8_t key[OPERATOR_PUBLIC_KEY];
    char public[64];
    const char *const a = texts[0], *const b = texts[1], *const c = texts[2];
    for (int i = 0; i < 3; i++) {
        assert_true(operator_key_create(file(names[i]), NULL, &error));
        snprintf(public, sizeof public, "%s.pub", names[i]);
        read_text(file(public), texts[i]);
    }
    join(file("team.pub"), (const char *[]){a, b, c, "threshold 2\n"}, 4);
    assert_true(operator_keys_read(file("team.pub"), &keys, &error));
    assert_int_equal(keys.count, 3);
    assert_int_equal(keys.threshold, 2);
    assert_false(operator_key_read_public(file("team.pub"), key, &error));
    says(&error, file("team.pub"), "holds 3 keys, but one is needed here");
    join(file("team.pub"), (const char *[]){a, "threshold 1\n"}, 2);
    assert_true(operator_keys_read(file("team.pub"), &keys, &error));
    assert_int_equal(keys.threshold, 1);
    static const char *const wrong[] = {
        "", "threshold 0\n", "threshold 3\n", "threshold 2", "threshold 2\nx\n", "threshold 10\n", "threshold -1\n"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        join(file("team.pub"), (const char *[]){a, b, wrong[i]}, 3);
        assert_false(operator_keys_read(file("team.pub"), &keys, &error));
    }
    join(file("team.pub"), (const char *[]){a, b}, 2);
    assert_false(operator_keys_read(file("team.pub"), &keys, &error));
    says(&error, file("team.pub"), "holds 2 keys, so its last line must say how many of them must sign");
    join(file("team.pub"), (const char *[]){a, b, a, "threshold 2\n"}, 4); /* who is there twice could sign alone */
    assert_false(operator_keys_read(file("team.pub"), &keys, &error));
}

/* --- What a fleet's key must look like --- */

static void not_loaded(const char *path, const char *words)
{
    struct credentials *credentials;
    struct error error;
    assert_false(credentials_load(&credentials, path, &error));
    assert_null(credentials);
    says(&error, path, words);
}

/* The certificates or the private key of `name`, as text. */
static size_t part_of(const char *name, const char *head, char text[8192])
{
    char whole[8192];
    read_text(file(name), whole);
    const char *from = strstr(whole, head);
    assert_non_null(from);
    const char *to =
        strcmp(head, "-----BEGIN CERTIFICATE") == 0 ? whole + strlen(whole) : strstr(from, "-----BEGIN CERTIFICATE");
    memcpy(text, from, (size_t)(to - from));
    text[to - from] = '\0';
    return (size_t)(to - from);
}

static void keys_whose_parts_do_not_fit(void **state)
{
    struct error error;
    const struct member ps0 = {MEMBER_PS, 0};
    char text[16384], more[8192];
    assert_true(credentials_create_fleet_key(file("a.key"), &error));
    assert_true(credentials_create_fleet_key(file("b.key"), &error));
    assert_true(credentials_create_authority(file("ca"), &error));
    assert_true(credentials_create_member(file("ca"), &ps0, 1, file("ps0.key"), &error));
    size_t size = part_of("a.key", "-----BEGIN EC", text);
    size += part_of("b.key", "-----BEGIN CERTIFICATE", text + size);
    write_text(file("mixed.key"), text, size);
    not_loaded(file("mixed.key"), "the private key does not belong to the first certificate");
    size = read_text(file("a.key"), text);
    size += part_of("b.key", "-----BEGIN CERTIFICATE", text + size);
    write_text(file("two.key"), text, size);
    not_loaded(file("two.key"), "a fleet key has one certificate");
    read_text(file("ps0.key"), text);
    char *first = strstr(text, "-----BEGIN CERTIFICATE"), *second = strstr(first + 1, "-----BEGIN CERTIFICATE");
    assert_non_null(second);
    write_text(file("alone.key"), text, (size_t)(second - text));
    not_loaded(file("alone.key"), "the certificate of the authority that signed it is missing");
    /* Without the secret of handshake tokens, or with a part of it, it is not a key. */
    read_text(file("ps0.key"), text);
    char *secret = strstr(text, "-----BEGIN TRAINER"), *after = strstr(text, "-----BEGIN CERTIFICATE");
    assert_non_null(secret);
    assert_true(secret < after);
    memmove(strchr(secret, '\n') + 1, strchr(secret, '\n') + 5, strlen(strchr(secret, '\n') + 5) + 1);
    write_text(file("short.key"), text, strlen(text));
    not_loaded(file("short.key"), "holds no handshake secret, or a damaged one");
    memmove(secret, strstr(text, "-----BEGIN CERTIFICATE"), strlen(strstr(text, "-----BEGIN CERTIFICATE")) + 1);
    write_text(file("old.key"), text, strlen(text));
    not_loaded(file("old.key"), "make all keys of the fleet again with: trainer keygen");
    assert_int_equal(unlink(file("old.key")), 0);
    read_text(file("ps0.key"), text);
    /* What lies beside a fleet key must be a fleet key, too. */
    read_text(file("ps0.key"), more);
    write_text(file("a.key.next"), more, strlen(more));
    not_loaded(file("a.key"), "a.key.next: is not a fleet key");
    write_text(file("a.key.next"), text, (size_t)(second - text));
    not_loaded(file("a.key"), "a.key.next: is not a fleet key");
    size = read_text(file("b.key"), text);
    size += part_of("b.key", "-----BEGIN CERTIFICATE", text + size);
    write_text(file("a.key.next"), text, size);
    not_loaded(file("a.key"), "a.key.next: is not a fleet key");
    write_text(file("a.key.next"), "garbage", 7);
    not_loaded(file("a.key"), "a.key.next: holds no certificate");
    assert_int_equal(unlink(file("a.key.next")), 0);
    write_text(file("a.key.previous"), "garbage", 7);
    not_loaded(file("a.key"), "a.key.previous: holds no certificate");
    assert_int_equal(unlink(file("a.key.previous")), 0);
}

/* The public half of the next key is enough to trust it; only its owner can make tokens with it. */
static void a_next_key_without_its_private_half(void **state)
{
    struct error error;
    struct credentials *old, *new;
    uint8_t token[HANDSHAKE_TOKEN_SIZE];
    char text[8192];
    assert_true(credentials_create_fleet_key(file("old.key"), &error));
    assert_true(credentials_create_fleet_key(file("new.key"), &error));
    const size_t size = part_of("new.key", "-----BEGIN CERTIFICATE", text);
    write_text(file("old.key.next"), text, size);
    soil_stack();
    assert_true(credentials_load(&old, file("old.key"), &error));
    soil_stack();
    assert_true(credentials_load(&new, file("new.key"), &error));
    handshake_token_make(credentials_token_keys(new), token);
    assert_false(handshake_token_check(credentials_token_keys(old), token));
    handshake_token_make(credentials_token_keys(old), token);
    assert_true(handshake_token_check(credentials_token_keys(old), token));
    credentials_free(old);
    credentials_free(new);
    credentials_free(NULL);
}

/* What lies beside a key is only what has all of its name. */
static void a_key_of_a_long_name(void **state)
{
    struct error error;
    struct credentials *credentials;
    char path[PATH_MAX], beside[PATH_MAX];
    const size_t length = sizeof path - strlen(".next");
    const size_t used = (size_t)snprintf(path, sizeof path, "%s/", file(""));
    for (size_t i = used; i < length - 4; i++) {
        path[i] = (i - used) % 2 == 0 ? '.' : '/';
    }
    snprintf(path + length - 4, 5, "/far");
    assert_true(credentials_create_fleet_key(path, &error));
    snprintf(beside, sizeof beside, "%.*s.nex", (int)length, path);
    write_text(beside, "garbage", 7);
    assert_true(credentials_load(&credentials, path, &error));
    credentials_free(credentials);
}

/* --- Certificates --- */

static void parse(const char *name, mbedtls_x509_crt *certificate)
{
    char text[8192];
    const size_t size = read_text(file(name), text);
    mbedtls_x509_crt_init(certificate);
    assert_int_equal(mbedtls_x509_crt_parse(certificate, (const uint8_t *)text, size + 1), 0);
}

/* A date is so many days from `now` on, and made in the seconds since then. */
static void assert_days(const mbedtls_x509_time *date, time_t now, int days)
{
    struct tm parts = {.tm_year = date->year - 1900,
                       .tm_mon = date->mon - 1,
                       .tm_mday = date->day,
                       .tm_hour = date->hour,
                       .tm_min = date->min,
                       .tm_sec = date->sec};
    const double since_s = difftime(timegm(&parts), now) - 86400.0 * days;
    assert_true(since_s >= 0 && since_s <= difftime(time(NULL), now));
}

/* Permitted uses and dates: an authority signs, members sign nothing, a fleet key has no dates. */
static void what_certificates_are_good_for(void **state)
{
    struct error error;
    const struct member worker7 = {MEMBER_WORKER, 7};
    mbedtls_x509_crt authority, member, fleet;
    char subject[128], issuer[128];
    const time_t now = time(NULL);
    soil_stack();
    assert_true(credentials_create_authority(file("dates"), &error));
    soil_stack();
    assert_true(credentials_create_member(file("dates"), &worker7, 30, file("w7.key"), &error));
    soil_stack();
    assert_true(credentials_create_fleet_key(file("dates.key"), &error));
    parse("dates/ca.key", &authority);
    parse("w7.key", &member);
    parse("dates.key", &fleet);
    assert_int_equal(authority.MBEDTLS_PRIVATE(ca_istrue), 1);
    assert_int_equal(mbedtls_x509_crt_check_key_usage(&authority, MBEDTLS_X509_KU_KEY_CERT_SIGN), 0);
    assert_int_not_equal(mbedtls_x509_crt_check_key_usage(&authority, MBEDTLS_X509_KU_DIGITAL_SIGNATURE), 0);
    assert_days(&authority.valid_from, now, -1);
    assert_days(&authority.valid_to, now, 3650);
    assert_int_equal(member.MBEDTLS_PRIVATE(ca_istrue), 0);
    assert_true(mbedtls_x509_crt_has_ext_type(&member, MBEDTLS_X509_EXT_BASIC_CONSTRAINTS));
    assert_int_equal(mbedtls_x509_crt_check_key_usage(&member, MBEDTLS_X509_KU_DIGITAL_SIGNATURE), 0);
    assert_int_not_equal(mbedtls_x509_crt_check_key_usage(&member, MBEDTLS_X509_KU_KEY_CERT_SIGN), 0);
    assert_days(&member.valid_from, now, -1);
    assert_days(&member.valid_to, now, 30);
    assert_true(mbedtls_x509_dn_gets(subject, sizeof subject, &member.subject) > 0);
    assert_true(mbedtls_x509_dn_gets(issuer, sizeof issuer, &member.issuer) > 0);
    assert_string_equal(subject, "CN=worker:7");
    assert_string_equal(issuer, "CN=trainer authority");
    assert_non_null(member.next); /* the authority's, for peers that should trust it */
    assert_int_equal(member.next->raw.len, authority.raw.len);
    assert_int_equal(fleet.valid_from.year, 2020);
    assert_int_equal(fleet.valid_to.year, 9999);
    assert_int_equal(fleet.MBEDTLS_PRIVATE(ca_istrue), 0);
    for (int i = 0; i < 3; i++) {
        const mbedtls_x509_crt *one = i == 0 ? &authority : i == 1 ? &member : &fleet;
        assert_int_equal(one->serial.len, 16);
        assert_true(one->serial.p[0] >= 0x40 && one->serial.p[0] < 0x80);
        assert_int_equal(one->version, 3);
    }
    assert_memory_not_equal(authority.serial.p, member.serial.p, 16);
    assert_memory_not_equal(authority.serial.p, fleet.serial.p, 16);
    mbedtls_x509_crt_free(&authority);
    mbedtls_x509_crt_free(&member);
    mbedtls_x509_crt_free(&fleet);
    assert_false(credentials_create_member(file("nowhere"), &worker7, 30, file("w8.key"), &error));
    says(&error, file("nowhere/ca.key"), "does not exist; make it with: trainer keygen --ca=");
}

/* Where a program has closed its input, a key is written all the same. */
static void a_key_by_number_0(void **state)
{
    struct error error;
    const int input = dup(0);
    close(0);
    const bool made = credentials_create_fleet_key(file("zero.key"), &error);
    const bool made_too = operator_key_create(file("zero"), NULL, &error);
    if (input >= 0) {
        dup2(input, 0);
        close(input);
    }
    assert_true(made && made_too);
}

/* --- The command --- */

static int keygen(const char *out, const char *ca, const char *member, const char *operator_key, const char *days)
{
    const struct command_call call = {.command = &command_keygen, .values = {out, ca, member, operator_key, days}};
    return command_keygen.run(&call);
}

/* Its output: the file, and what to do with it. */
static void told(int status, const char *first, const char *words)
{
    char text[8192];
    assert_int_equal(status, COMMAND_DONE);
    fflush(stdout);
    read_text(file("told"), text);
    if (!strstr(text, first) || !strstr(text, words)) {
        fail_msg("\"%s\" instead of \"%s ... %s\"", text, first, words);
    }
    assert_int_equal(truncate(file("told"), 0), 0);
}

static void what_keygen_says(void **state)
{
    fflush(stdout);
    const int kept = dup(1), log = open(file("told"), O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0600);
    assert_true(kept >= 0 && log >= 0 && dup2(log, 1) == 1);
    told(keygen(file("s.key"), NULL, NULL, NULL, NULL), file("s.key; "), "copy it to every machine of the fleet");
    told(keygen(NULL, file("sca"), NULL, NULL, NULL), file("sca/ca.key; "), "next: trainer keygen --ca=");
    told(keygen(file("s0.key"), file("sca"), "ps:0", NULL, NULL), file("s0.key, the key of ps:0, valid for 365 days"),
         "start that member with --fleet_key=");
    told(keygen(file("s1.key"), file("sca"), "ps:1", NULL, "7"), file("s1.key"), "the key of ps:1, valid for 7 days");
    const int signs = keygen(NULL, NULL, NULL, file("sop"), NULL);
    struct minisign_key key;
    struct error error;
    uint8_t public_key[OPERATOR_PUBLIC_KEY];
    char known_as[MINISIGN_KEY_TEXT + 32] = "minisign knows it as ";
    assert_true(operator_key_read_public(file("sop.pub"), public_key, &error));
    minisign_key_of(&key, public_key);
    minisign_key_format(&key, known_as + strlen(known_as));
    told(signs, file("sop, which signs configs"), known_as);
    told(keygen(NULL, NULL, NULL, file("sop2"), NULL), file("sop2, which signs configs"), file("sop2.pub: copy it"));
    dup2(kept, 1);
    close(kept);
    close(log);
}

static void what_keygen_makes(void **state)
{
    struct error error;
    struct credentials *credentials;
    uint8_t key[OPERATOR_SECRET_KEY];
    assert_int_equal(keygen(file("made.key"), NULL, NULL, NULL, NULL), COMMAND_DONE);
    assert_true(credentials_load(&credentials, file("made.key"), &error));
    assert_int_equal(credentials_member(credentials).role, MEMBER_NONE);
    credentials_free(credentials);
    assert_int_equal(keygen(file("made.key"), NULL, NULL, NULL, NULL), COMMAND_FAILED);
    assert_int_equal(keygen(file("w1.key"), file("made"), "worker:1", NULL, NULL), COMMAND_FAILED); /* no authority */
    assert_int_equal(keygen(NULL, file("made"), NULL, NULL, NULL), COMMAND_DONE);
    assert_int_equal(mode_of(file("made/ca.key")), 0600);
    assert_int_equal(keygen(file("w1.key"), file("made"), "worker:1", NULL, "1"), COMMAND_DONE);
    assert_int_equal(keygen(file("ps.key"), file("made"), "ps", NULL, "36500"), COMMAND_DONE);
    assert_true(credentials_load(&credentials, file("w1.key"), &error));
    assert_int_equal(credentials_member(credentials).role, MEMBER_WORKER);
    assert_int_equal(credentials_member(credentials).index, 1);
    credentials_free(credentials);
    assert_int_equal(keygen(NULL, NULL, NULL, file("made.op"), NULL), COMMAND_DONE);
    assert_true(operator_key_read_secret(file("made.op"), key, &error));
}

static void what_keygen_refuses(void **state)
{
    const char *bad_days[] = {"0", "36501", "-1", "1x", "x", ""};
    assert_int_equal(keygen(NULL, file("ca2"), NULL, NULL, NULL), COMMAND_DONE);
    for (size_t i = 0; i < sizeof bad_days / sizeof *bad_days; i++) {
        assert_int_equal(keygen(file("no.key"), file("ca2"), "ps:0", NULL, bad_days[i]), COMMAND_MISUSED);
    }
    assert_int_equal(keygen(NULL, NULL, NULL, NULL, NULL), COMMAND_MISUSED);
    assert_int_equal(keygen(file("no.key"), NULL, NULL, file("no"), NULL), COMMAND_MISUSED);
    assert_int_equal(keygen(NULL, file("ca2"), NULL, file("no"), NULL), COMMAND_MISUSED);
    assert_int_equal(keygen(NULL, NULL, "ps:0", file("no"), NULL), COMMAND_MISUSED);
    assert_int_equal(keygen(NULL, NULL, NULL, file("no"), "3"), COMMAND_MISUSED);
    assert_int_equal(keygen(file("no.key"), NULL, "ps:0", NULL, NULL), COMMAND_MISUSED);
    assert_int_equal(keygen(file("no.key"), NULL, NULL, NULL, "3"), COMMAND_MISUSED);
    assert_int_equal(keygen(NULL, file("ca2"), "ps:0", NULL, NULL), COMMAND_MISUSED);
    assert_int_equal(keygen(file("no.key"), file("ca2"), NULL, NULL, NULL), COMMAND_MISUSED);
    assert_int_equal(keygen(file("no.key"), file("ca2"), "nobody:1", NULL, NULL), COMMAND_MISUSED);
    assert_int_equal(access(file("no.key"), F_OK), -1);
    assert_int_equal(access(file("no"), F_OK), -1);
    char long_name[5000];
    struct error error;
    memset(long_name, 'x', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    const struct member ps0 = {MEMBER_PS, 0};
    assert_false(credentials_create_member(long_name, &ps0, 1, file("no.key"), &error));
    assert_false(credentials_create_authority(long_name, &error));
    assert_false(operator_key_create(long_name, NULL, &error));
}

/* The flags of the mapping that holds this address: "rd wr mr ..."; "": there is none. */
static const char *flags_of(const void *address)
{
    static char line[512];
    FILE *maps = fopen("/proc/self/smaps", "r");
    unsigned long from, to;
    bool is_it = false;
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2) {
            is_it = (uintptr_t)address >= from && (uintptr_t)address < to;
        } else if (is_it && strncmp(line, "VmFlags:", 8) == 0) {
            fclose(maps);
            return line;
        }
    }
    fclose(maps);
    return "";
}

/* Not dumped while it is held, and gone afterwards. Sanitizers lock nothing: tests/test_confinement.py sees that. */
static void an_operators_secret_is_kept_apart(void **state)
{
    struct error error;
    const int was_dumpable = prctl(PR_GET_DUMPABLE);
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    assert_true(operator_key_create(file("held"), NULL, &error));
    assert_int_equal(prctl(PR_GET_DUMPABLE), 0); /* whoever makes one holds one */
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    uint8_t *key = secret_memory(OPERATOR_SECRET_KEY, &error);
    assert_true(key && operator_key_read_secret(file("held"), key, &error));
    assert_int_equal(prctl(PR_GET_DUMPABLE), 0);
    assert_non_null(strstr(flags_of(key), " dd ")); /* left out of dumps */
    secret_free(key, OPERATOR_SECRET_KEY);
    assert_string_equal(flags_of(key), "");
    prctl(PR_SET_DUMPABLE, was_dumpable, 0, 0, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_operators_secret_is_kept_apart),
        cmocka_unit_test(a_pair_signs_and_checks),
        cmocka_unit_test(a_passphrase_locks_a_key),
        cmocka_unit_test(no_key_is_overwritten),
        cmocka_unit_test(a_full_disk_leaves_no_key),
        cmocka_unit_test(a_key_is_on_disk),
        cmocka_unit_test(a_path_that_is_just_too_long),
        cmocka_unit_test(a_key_with_another_head_or_size),
        cmocka_unit_test(others_may_not_read_or_replace_a_key),
        cmocka_unit_test(several_keys_with_a_threshold),
        cmocka_unit_test(keys_whose_parts_do_not_fit),
        cmocka_unit_test(a_next_key_without_its_private_half),
        cmocka_unit_test(a_key_of_a_long_name),
        cmocka_unit_test(what_certificates_are_good_for),
        cmocka_unit_test(a_key_by_number_0),
        cmocka_unit_test(what_keygen_says),
        cmocka_unit_test(what_keygen_makes),
        cmocka_unit_test(what_keygen_refuses),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
