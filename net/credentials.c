/* Loading and making keys. Private keys pass through our own buffers only here, and each is wiped on every path. */
#include "net/credentials.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include <mbedtls/pem.h>
#include <sodium.h>

#include "base/file.h"
#include "base/log.h"
#include "base/trust.h"
#include "net/admission.h"
#include "net/tls/tls.h"

enum {
    PEM_BYTES = 4096, /* room for one of our keys or certificates as PEM */
    SERIAL_BYTES = 16,
    AUTHORITY_DAYS = 3650,
    TOKEN_SECRET = 32,
};

/* In a fleet key, and in the keys of an authority and of all its members: the secret of their handshake tokens. */
#define TOKEN_HEAD "-----BEGIN TRAINER HANDSHAKE SECRET-----"
#define TOKEN_FOOT "-----END TRAINER HANDSHAKE SECRET-----"

static bool check_key(const char *path, struct error *error)
{
    struct stat status;
    if (stat(path, &status) != 0) {
        return error_set(error, "%s: %s; make one with: trainer keygen --out=%s", path, strerror(errno), path);
    }
    return trust_secret(path, "key", error);
}

/* What a key file holds besides certificates; the owner wipes the secret. */
struct private_part {
    mbedtls_pk_context key;
    uint8_t secret[TOKEN_SECRET];
};

static void free_private(struct private_part *part)
{
    mbedtls_pk_free(&part->key);
    sodium_memzero(part->secret, sizeof part->secret);
}

static bool parse_secret(const uint8_t *text, uint8_t secret[TOKEN_SECRET])
{
    mbedtls_pem_context pem;
    size_t used;
    mbedtls_pem_init(&pem);
    const bool done = mbedtls_pem_read_buffer(&pem, TOKEN_HEAD, TOKEN_FOOT, text, NULL, 0, &used) == 0 &&
                      pem.MBEDTLS_PRIVATE(buflen) == TOKEN_SECRET;
    if (done) {
        memcpy(secret, pem.MBEDTLS_PRIVATE(buf), TOKEN_SECRET);
    }
    mbedtls_pem_free(&pem); /* which wipes it */
    return done;
}

/* Reads all certificates of a PEM file and, if `private` is not NULL, its private key and secret. */
static bool read_pem(const char *path, mbedtls_x509_crt *certificates, struct private_part *private,
                     struct error *error)
{
    uint8_t *bytes = NULL;
    size_t size = 0;
    char text[128];
    bool done = false;
    if (!check_key(path, error) || !file_read(path, CREDENTIALS_MAX_FILE, &bytes, &size, error)) {
        return false;
    }
    int result = mbedtls_x509_crt_parse(certificates, bytes, size + 1); /* with the zero byte that file_read adds */
    if (result != 0) {
        tls_describe(result, text);
        error_set(error, "%s: holds no certificate, or a damaged one (%s)", path, text);
        goto out;
    }
    result = private ? mbedtls_pk_parse_key(&private->key, bytes, size + 1, NULL, 0, tls_random, NULL) : 0;
    if (result != 0) {
        tls_describe(result, text);
        error_set(error, "%s: holds no private key, or a damaged one (%s)", path, text);
        goto out;
    }
    if (private && !parse_secret(bytes, private->secret)) {
        error_set(error,
                  "%s: holds no handshake secret, or a damaged one; make all keys of the fleet again with: "
                  "trainer keygen",
                  path);
        goto out;
    }
    done = true;
out:
    sodium_memzero(bytes, size);
    free(bytes);
    return done;
}

const struct handshake_token_keys *credentials_token_keys(const struct credentials *credentials)
{
    return &credentials->token_keys;
}

/* --- Loading --- */

static bool append(mbedtls_x509_crt *chain, const mbedtls_x509_crt *certificate, struct error *error)
{
    return mbedtls_x509_crt_parse_der(chain, certificate->raw.p, certificate->raw.len) == 0 ||
           error_set(error, "out of memory for a certificate");
}

static bool is_self_signed(const mbedtls_x509_crt *certificate)
{
    return certificate->issuer_raw.len == certificate->subject_raw.len &&
           memcmp(certificate->issuer_raw.p, certificate->subject_raw.p, certificate->issuer_raw.len) == 0;
}

/* Trusts the certificate of `path` + suffix as well, if that file exists. */
static bool trust_beside(struct credentials *credentials, const char *path, const char *suffix, struct error *error)
{
    char beside[4096];
    mbedtls_x509_crt certificates, again;
    struct private_part private = {.secret = {0}};
    struct error ignored;
    int length = snprintf(beside, sizeof beside, "%s%s", path, suffix);
    if (length >= (int)sizeof beside || !file_exists(beside)) {
        return true;
    }
    mbedtls_x509_crt_init(&certificates);
    mbedtls_x509_crt_init(&again);
    mbedtls_pk_init(&private.key);
    bool done = read_pem(beside, &certificates, NULL, error);
    if (done && (certificates.next || !is_self_signed(&certificates))) {
        done = error_set(error, "%s: is not a fleet key", beside);
    }
    done = done && append(&credentials->trusted, &certificates, error);
    if (done && read_pem(beside, &again, &private, &ignored)) { /* only tokens need what is secret in it */
        handshake_token_add_key(&credentials->token_keys, private.secret, TOKEN_SECRET);
    }
    free_private(&private);
    mbedtls_x509_crt_free(&again);
    mbedtls_x509_crt_free(&certificates);
    return done;
}

/* Distinguishes the two kinds of key and fills in everything but the TLS configurations. */
static bool sort_out(struct credentials *credentials, const mbedtls_x509_crt *found, const char *path,
                     struct error *error)
{
    char name[64];
    if (!append(&credentials->own, found, error)) {
        return false;
    }
    if (mbedtls_pk_check_pair(&credentials->own.pk, &credentials->key, tls_random, NULL) != 0) {
        return error_set(error, "%s: the private key does not belong to the first certificate", path);
    }
    credentials->pinned = is_self_signed(found);
    if (credentials->pinned) {
        if (found->next) {
            return error_set(error, "%s: a fleet key has one certificate; for a second one see `trainer help keygen`",
                             path);
        }
        return append(&credentials->trusted, found, error) && trust_beside(credentials, path, ".next", error) &&
               trust_beside(credentials, path, ".previous", error);
    }
    if (!found->next) {
        return error_set(error, "%s: the certificate of the authority that signed it is missing; append it", path);
    }
    for (const mbedtls_x509_crt *next = found->next; next; next = next->next) {
        if (!append(&credentials->trusted, next, error)) {
            return false;
        }
    }
    if (!tls_common_name(found, name, sizeof name)) {
        return error_set(error, "%s: the certificate has no common name", path);
    }
    return member_parse(name, &credentials->member, error) || error_wrap(error, "%s: common name", path);
}

/* sodium_mlock, or sodium_munlock, which wipes, for the secrets that stay for as long as this process does. */
static bool for_secrets(struct credentials *credentials, int (*call)(void *, size_t))
{
    const mbedtls_ecp_keypair *pair = mbedtls_pk_ec(credentials->key);
    const mbedtls_mpi *secret = pair ? &pair->MBEDTLS_PRIVATE(d) : NULL;
    return call(&credentials->token_keys, sizeof credentials->token_keys) == 0 &&
           (!secret ||
            call(secret->MBEDTLS_PRIVATE(p), secret->MBEDTLS_PRIVATE(n) * sizeof *secret->MBEDTLS_PRIVATE(p)) == 0);
}

bool credentials_load(struct credentials **credentials, const char *path, struct error *error)
{
    mbedtls_x509_crt found;
    struct private_part private = {.secret = {0}};
    *credentials = NULL;
    if (!tls_start(error)) {
        return false;
    }
    struct credentials *new = calloc(1, sizeof *new);
    if (!new) {
        return error_set(error, "out of memory for the key in %s", path);
    }
    new->revocations = revocations_create();
    new->member.index = MEMBER_ANY_INDEX;
    mbedtls_pk_init(&private.key);
    mbedtls_x509_crt_init(&new->own);
    mbedtls_x509_crt_init(&new->trusted);
    mbedtls_ssl_config_init(&new->client);
    mbedtls_ssl_config_init(&new->server);
    mbedtls_x509_crt_init(&found);
    bool done = new->revocations ? read_pem(path, &found, &private, error)
                                 : error_set(error, "out of memory for the key in %s", path);
    new->key = private.key; /* moved */
    if (done) {
        handshake_token_add_key(&new->token_keys, private.secret, TOKEN_SECRET);
    }
    sodium_memzero(&private, sizeof private);
    done = done && sort_out(new, &found, path, error) && tls_configure(new, error);
    mbedtls_x509_crt_free(&found);
    if (!done) {
        credentials_free(new);
        return false;
    }
    if (!for_secrets(new, sodium_mlock)) {
        log_warning("%s: the key may be swapped to disk, because it can't be locked in memory: %s; raise ulimit -l "
                    "(LimitMEMLOCK=), or encrypt swap",
                    path, strerror(errno));
    }
    *credentials = new;
    return true;
}

void credentials_free(struct credentials *credentials)
{
    if (!credentials) {
        return;
    }
    mbedtls_ssl_config_free(&credentials->client);
    mbedtls_ssl_config_free(&credentials->server);
    mbedtls_x509_crt_free(&credentials->own);
    mbedtls_x509_crt_free(&credentials->trusted);
    for_secrets(credentials, sodium_munlock);
    mbedtls_pk_free(&credentials->key);
    sodium_memzero(&credentials->token_keys, sizeof credentials->token_keys);
    revocations_release(credentials->revocations);
    free(credentials);
}

uint64_t credentials_identity(const struct credentials *credentials)
{
    uint8_t hash[crypto_generichash_BYTES_MIN];
    uint64_t identity = 0;
    if (credentials->member.role != MEMBER_NONE) {
        const mbedtls_x509_buf *public_key = &credentials->own.pk_raw;
        crypto_generichash(hash, sizeof hash, public_key->p, public_key->len, NULL, 0);
        memcpy(&identity, hash, sizeof identity);
    }
    return identity;
}

int64_t credentials_valid_until(const struct credentials *credentials)
{
    return credentials->member.role == MEMBER_NONE ? 0 : tls_seconds(&credentials->own.valid_to);
}

void credentials_describe(const struct credentials *credentials, struct revocation_peer *self)
{
    const mbedtls_x509_buf *key = &credentials->own.pk_raw;
    self->member = credentials->member;
    self->issued_s = tls_issued_s(&credentials->own);
    crypto_generichash(self->key, sizeof self->key, key->p, key->len, NULL, 0);
}

struct revocations *credentials_revocations(const struct credentials *credentials)
{
    return credentials->revocations;
}

bool credentials_public_hash(const char *path, uint8_t hash[REVOCATION_KEY], struct member *member, struct error *error)
{
    char text[128], name[64];
    uint8_t *bytes = NULL;
    size_t size = 0;
    mbedtls_x509_crt found;
    struct error ignored;
    *member = (struct member){MEMBER_NONE, MEMBER_ANY_INDEX};
    if (!tls_start(error) || !file_read(path, CREDENTIALS_MAX_FILE, &bytes, &size, error)) {
        return false;
    }
    mbedtls_x509_crt_init(&found);
    const int result = mbedtls_x509_crt_parse(&found, bytes, size + 1); /* with the zero byte that file_read adds */
    if (result == 0) {
        crypto_generichash(hash, REVOCATION_KEY, found.pk_raw.p, found.pk_raw.len, NULL, 0);
        (void)(tls_common_name(&found, name, sizeof name) && member_parse(name, member, &ignored));
    } else {
        tls_describe(result, text);
        error_set(error, "%s: holds no certificate, or a damaged one (%s)", path, text);
    }
    mbedtls_x509_crt_free(&found);
    sodium_memzero(bytes, size);
    free(bytes);
    return result == 0;
}

struct member credentials_member(const struct credentials *credentials)
{
    return credentials->member;
}

/* The contents of a new certificate. */
struct draft {
    const char *subject; /* "CN=..." */
    const char *issuer;
    mbedtls_pk_context *subject_key, *issuer_key;
    char from[16], to[16]; /* "20260101000000" */
    bool authority;        /* may sign others */
    const uint8_t *secret; /* [TOKEN_SECRET], of the authority; NULL: a new one */
};

static void format_date(time_t when, char text[16])
{
    struct tm parts;
    gmtime_r(&when, &parts);
    strftime(text, 16, "%Y%m%d%H%M%S", &parts);
}

static int write_certificate(const struct draft *draft, unsigned char pem[PEM_BYTES])
{
    unsigned char serial[SERIAL_BYTES];
    mbedtls_x509write_cert writer;
    mbedtls_x509write_crt_init(&writer);
    randombytes_buf(serial, sizeof serial);
    serial[0] = (serial[0] & 0x7f) | 0x40; /* a positive number of full length */
    mbedtls_x509write_crt_set_version(&writer, MBEDTLS_X509_CRT_VERSION_3);
    mbedtls_x509write_crt_set_md_alg(&writer, MBEDTLS_MD_SHA256);
    mbedtls_x509write_crt_set_subject_key(&writer, draft->subject_key);
    mbedtls_x509write_crt_set_issuer_key(&writer, draft->issuer_key);
    int result = mbedtls_x509write_crt_set_serial_raw(&writer, serial, sizeof serial);
    result = result ? result : mbedtls_x509write_crt_set_subject_name(&writer, draft->subject);
    result = result ? result : mbedtls_x509write_crt_set_issuer_name(&writer, draft->issuer);
    result = result ? result : mbedtls_x509write_crt_set_validity(&writer, draft->from, draft->to);
    result = result ? result : mbedtls_x509write_crt_set_basic_constraints(&writer, draft->authority, -1);
    result = result
                 ? result
                 : mbedtls_x509write_crt_set_key_usage(&writer, draft->authority ? MBEDTLS_X509_KU_KEY_CERT_SIGN
                                                                                 : MBEDTLS_X509_KU_DIGITAL_SIGNATURE);
    result = result ? result : mbedtls_x509write_crt_pem(&writer, pem, PEM_BYTES, tls_random, NULL);
    mbedtls_x509write_crt_free(&writer);
    return result;
}

static int generate_key(mbedtls_pk_context *key)
{
    int result = mbedtls_pk_setup(key, mbedtls_pk_info_from_type(MBEDTLS_PK_ECKEY));
    return result ? result : mbedtls_ecp_gen_key(MBEDTLS_ECP_DP_SECP256R1, mbedtls_pk_ec(*key), tls_random, NULL);
}

static int write_secret(const uint8_t *secret, unsigned char pem[PEM_BYTES])
{
    uint8_t bytes[TOKEN_SECRET];
    size_t size;
    if (secret) {
        memcpy(bytes, secret, sizeof bytes);
    } else {
        randombytes_buf(bytes, sizeof bytes);
    }
    const int result =
        mbedtls_pem_write_buffer(TOKEN_HEAD "\n", TOKEN_FOOT "\n", bytes, sizeof bytes, pem, PEM_BYTES, &size);
    sodium_memzero(bytes, sizeof bytes);
    return result;
}

/* Makes a key, gets `wanted` signed for it, and writes key, secret, certificate and, if given, the authority's. */
static bool create(const struct draft *wanted, const unsigned char *authority, const char *path, struct error *error)
{
    mbedtls_pk_context key;
    trust_hide_memory();
    unsigned char key_pem[PEM_BYTES], secret_pem[PEM_BYTES], certificate_pem[PEM_BYTES];
    char text[128];
    mbedtls_pk_init(&key);
    struct draft draft = *wanted;
    draft.subject_key = &key;
    if (!draft.issuer_key) {
        draft.issuer_key = &key;
    }
    bool done = false;
    int result = generate_key(&key);
    result = result ? result : mbedtls_pk_write_key_pem(&key, key_pem, sizeof key_pem);
    result = result ? result : write_secret(draft.secret, secret_pem);
    result = result ? result : write_certificate(&draft, certificate_pem);
    if (result != 0) {
        tls_describe(result, text);
        error_set(error, "can't make the key for %s: %s", path, text);
        goto out;
    }
    const struct file_part parts[] = {{key_pem, strlen((const char *)key_pem)},
                                      {secret_pem, strlen((const char *)secret_pem)},
                                      {certificate_pem, strlen((const char *)certificate_pem)},
                                      {authority, authority ? strlen((const char *)authority) : 0}};
    done = file_write_new(path, 0600, parts, authority ? 4 : 3, error);
out:
    mbedtls_pk_free(&key);
    sodium_memzero(key_pem, sizeof key_pem);
    sodium_memzero(secret_pem, sizeof secret_pem);
    return done;
}

bool credentials_create_fleet_key(const char *path, struct error *error)
{
    struct draft draft = {.subject = "CN=trainer fleet key", .issuer = "CN=trainer fleet key"};
    snprintf(draft.from, sizeof draft.from, "20200101000000");
    snprintf(draft.to, sizeof draft.to, "99991231235959"); /* "no expiry" by RFC 5280; members don't check it */
    return tls_start(error) && create(&draft, NULL, path, error);
}

bool credentials_create_authority(const char *folder, struct error *error)
{
    char path[4096];
    struct draft draft = {.subject = "CN=trainer authority", .issuer = "CN=trainer authority", .authority = true};
    format_date(time(NULL) - TLS_TOLERANCE_S, draft.from);
    format_date(time(NULL) + (time_t)AUTHORITY_DAYS * 86400, draft.to);
    return tls_start(error) && file_make_folder(folder, error) &&
           file_join(path, sizeof path, folder, "ca.key", error) && create(&draft, NULL, path, error);
}

bool credentials_create_member(const char *folder, const struct member *member, int days, const char *path,
                               struct error *error)
{
    char authority_path[4096], name[MEMBER_TEXT], subject[MEMBER_TEXT + 4], issuer[512];
    mbedtls_x509_crt authority;
    struct private_part private = {.secret = {0}};
    unsigned char pem[PEM_BYTES];
    size_t pem_size = 0;
    if (!tls_start(error) || !file_join(authority_path, sizeof authority_path, folder, "ca.key", error)) {
        return false;
    }
    mbedtls_x509_crt_init(&authority);
    mbedtls_pk_init(&private.key);
    member_format(member, ':', name);
    snprintf(subject, sizeof subject, "CN=%s", name);
    struct draft draft = {.subject = subject, .issuer = issuer, .issuer_key = &private.key, .secret = private.secret};
    format_date(time(NULL) - TLS_TOLERANCE_S, draft.from);
    format_date(time(NULL) + (time_t)days * 86400, draft.to);
    bool done = false;
    if (!file_exists(authority_path)) {
        error_set(error, "%s: does not exist; make it with: trainer keygen --ca=%s", authority_path, folder);
        goto out;
    }
    if (!read_pem(authority_path, &authority, &private, error)) {
        goto out;
    }
    if (mbedtls_x509_dn_gets(issuer, sizeof issuer, &authority.subject) < 0 ||
        mbedtls_pem_write_buffer("-----BEGIN CERTIFICATE-----\n", "-----END CERTIFICATE-----\n", authority.raw.p,
                                 authority.raw.len, pem, sizeof pem, &pem_size) != 0) {
        error_set(error, "%s: its certificate is too large", authority_path);
        goto out;
    }
    done = create(&draft, pem, path, error);
out:
    free_private(&private);
    mbedtls_x509_crt_free(&authority);
    return done;
}
