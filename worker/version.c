/* What this program is: its version and libraries, and whether a file is the released one. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <mbedtls/version.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cJSON.h>
#include <jpeglib.h>
#include <sodium.h>
#include <spng.h>
#include <zlib.h>

#include "base/cli/commands.h"
#include "base/cpu.h"
#include "base/file.h"
#include "base/kernels.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/trust.h"
#include "base/version.h"
#include "cuda/device/driver.h"
#include "cuda/launch.h"
#include "net/operator_key.h"
#include "net/tls/gcm.h"

/* --- Verification of a released file --- */

/* Who signed it. */
struct release_proof {
    char key[MINISIGN_KEY_TEXT];
    char comment[MINISIGN_COMMENT]; /* the signed comment: usually the version */
};

/* Verifies a released file: first the signature of the list of digests, then the list, then the file's digest. */

enum { MAX_LIST = 1 << 20, PIECE = 64 * 1024, HEX = 2 * crypto_hash_sha256_BYTES };

static bool read_text(const char *path, size_t limit, char **text, struct error *error)
{
    uint8_t *bytes;
    size_t size;
    if (!file_read(path, limit, &bytes, &size, error)) {
        return false;
    }
    *text = (char *)bytes;
    if (strlen(*text) == size) {
        return true;
    }
    free(bytes);
    return error_set(error, "%s: is no text", path);
}

/* --- Trusted keys --- */

static bool own_key_path(char path[PATH_MAX], struct error *error)
{
    char program[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(program, '/');
    if (slash) {
        *slash = '\0';
        if ((size_t)snprintf(path, PATH_MAX, "%s/../share/trainer/release.pub", program) < PATH_MAX &&
            file_exists(path)) {
            return true;
        }
    }
    return error_set(error,
                     "no key was installed with this program; name one that you trust: --key=RW... or --key=FILE");
}

static bool read_key(const char *path, struct minisign_key *key, struct error *error)
{
    static const char operators[] = "trainer operator ";
    uint8_t public_key[OPERATOR_PUBLIC_KEY];
    char *text;
    if (!trust_public_key(path, error) || !read_text(path, MINISIGN_MAX_FILE, &text, error)) {
        return false;
    }
    bool is_operators = strncmp(text, operators, strlen(operators)) == 0;
    bool done = is_operators ? operator_key_read_public(path, public_key, error)
                             : minisign_key_parse(key, text, error) || error_wrap(error, "%s", path);
    free(text);
    if (done && is_operators) {
        minisign_key_of(key, public_key);
    }
    return done;
}

static bool find_key(const char *given, struct minisign_key *key, struct error *error)
{
    char path[PATH_MAX];
    if (!given) {
        return own_key_path(path, error) && read_key(path, key, error);
    }
    if (strncmp(given, "RW", 2) == 0 && !file_exists(given)) {
        return minisign_key_parse(key, given, error) || error_wrap(error, "--key=%s", given);
    }
    return read_key(given, key, error);
}

/* --- The signed list --- */

static bool verify_list(const char *list, const struct minisign_key *key, struct release_proof *proof,
                        struct error *error)
{
    char path[PATH_MAX], *text;
    uint8_t digest[MINISIGN_DIGEST];
    struct minisign signature;
    if ((size_t)snprintf(path, sizeof path, "%s.minisig", list) >= sizeof path) {
        return error_set(error, "%s: the path is too long", list);
    }
    if (!minisign_digest(list, digest, error) || !read_text(path, MINISIGN_MAX_FILE, &text, error)) {
        return false;
    }
    bool parsed = minisign_parse(&signature, text, error) || error_wrap(error, "%s", path);
    free(text);
    if (!parsed) {
        return false;
    }
    if (!minisign_verify(&signature, key, digest, error)) {
        return error_wrap(error, "%s", list);
    }
    minisign_key_format(key, proof->key);
    snprintf(proof->comment, sizeof proof->comment, "%s", signature.comment);
    return true;
}

/* A line is the digest in hex, two blanks (or a blank and an asterisk), and the name. */
static bool find_digest(const char *list, const char *name, char digest[HEX + 1])
{
    size_t length = strlen(name);
    for (const char *line = list; *line != '\0';) {
        size_t size = strcspn(line, "\n");
        if (size == HEX + 2 + length && memcmp(line + HEX + 2, name, length) == 0 && line[HEX] == ' ' &&
            strspn(line, "0123456789abcdef") == HEX) {
            memcpy(digest, line, HEX);
            digest[HEX] = '\0';
            return true;
        }
        line += size + (line[size] == '\n');
    }
    return false;
}

static bool digest_of(const char *path, char digest[HEX + 1], struct error *error)
{
    uint8_t piece[PIECE], bytes[crypto_hash_sha256_BYTES];
    crypto_hash_sha256_state state;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return file_error(error, path, "cannot be opened", errno);
    }
    crypto_hash_sha256_init(&state);
    ssize_t got;
    while ((got = read(fd, piece, sizeof piece)) > 0) {
        crypto_hash_sha256_update(&state, piece, (size_t)got);
    }
    int reason = errno;
    close(fd);
    crypto_hash_sha256_final(&state, bytes);
    sodium_bin2hex(digest, HEX + 1, bytes, sizeof bytes);
    return got == 0 || file_error(error, path, "cannot be read", reason);
}

static bool compare(const char *path, const char *list, struct error *error)
{
    char wanted[HEX + 1], found[HEX + 1], *text;
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (!read_text(list, MAX_LIST, &text, error)) {
        return false;
    }
    bool is_listed = find_digest(text, name, wanted);
    free(text);
    if (!is_listed) {
        return error_set(error, "%s: is not part of the release, whose files %s lists", path, list);
    }
    if (!digest_of(path, found, error)) {
        return false;
    }
    return strcmp(found, wanted) == 0 ||
           error_set(error,
                     "%s: is damaged or was altered: its SHA-256 begins with %.8s, that of the released file with "
                     "%.8s; download it again",
                     path, found, wanted);
}

static bool release_verify(const char *path, const char *key_text, struct release_proof *proof, struct error *error)
{
    char list[PATH_MAX];
    struct minisign_key key;
    const char *slash = strrchr(path, '/');
    int folder = slash ? (int)(slash - path) + 1 : 0;
    if ((size_t)snprintf(list, sizeof list, "%.*sSHA256SUMS", folder, path) >= sizeof list) {
        return error_set(error, "%s: the path is too long", path);
    }
    return find_key(key_text, &key, error) && verify_list(list, &key, proof, error) && compare(path, list, error);
}

/* --- The command version --- */

/* The linked libraries report their own versions, where they can: what runs is what counts. */

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

#define TEXT_OF(tokens)      #tokens
#define TEXT_OF_MACRO(macro) TEXT_OF(macro)
#define JPEG_VERSION         TEXT_OF_MACRO(LIBJPEG_TURBO_VERSION)

struct version_facts {
    char linked[256];
    char processor[256];
    char features[128];
    char kernels[128];
    const char *engines;
    char gpu[192];
};

/* As training on this machine would choose them. */
static void collect_kernels(struct version_facts *facts)
{
    const struct kernels *kernels;
    const char *why;
    struct error error;
    if (kernels_choose(&kernels, &why, CPU_KERNELS_AUTO, &error)) {
        snprintf(facts->kernels, sizeof facts->kernels, "%s (%s)", kernels->name, why);
    } else {
        snprintf(facts->kernels, sizeof facts->kernels, "none: %.100s", error.text);
    }
}

/* Starts nothing for this: this machine's devices are listed by `trainer devices`. */
static void collect_gpu(struct version_facts *facts)
{
    const char *architectures = payload_architectures();
    facts->engines = architectures[0] != '\0' ? "cpu, gpu" : "cpu";
    if (architectures[0] == '\0') {
        snprintf(facts->gpu, sizeof facts->gpu, "not in this build (built without nvcc)");
    } else {
        snprintf(facts->gpu, sizeof facts->gpu, "%s and PTX; NVIDIA driver " DRIVER_NEEDED " or newer (CUDA %d.%d)",
                 architectures, DRIVER_NEEDED_CUDA / 1000, DRIVER_NEEDED_CUDA % 1000 / 10);
    }
}

static void collect(struct version_facts *facts)
{
    char mbedtls[18];
    const struct cpu_features *cpu = cpu_features_get();
    mbedtls_version_get_string_full(mbedtls);
    snprintf(facts->linked, sizeof facts->linked,
             "%s, %s, cJSON %s, libsodium %s, zlib %s, libspng %s, libjpeg-turbo %s%s", version_libc(), mbedtls,
             cJSON_Version(), sodium_version_string(), zlibVersion(), spng_version_string(), JPEG_VERSION,
             gcm_vaes_library());
    snprintf(facts->processor, sizeof facts->processor, "%s", cpu->model[0] != '\0' ? cpu->model : "unknown");
    cpu_features_text(cpu, facts->features, sizeof facts->features);
    collect_kernels(facts);
    collect_gpu(facts);
}

static int verify(const char *path, const char *key)
{
    struct release_proof proof;
    struct error error;
    if (!release_verify(path, key, &proof, &error)) {
        log_error("%s", error.text);
        return COMMAND_FAILED;
    }
    printf("%s is as released: \"%s\", signed by the key %s\n", path, proof.comment, proof.key);
    return COMMAND_DONE;
}

static int run(const struct command_call *call)
{
    const char *released = command_value(call, "verify"), *key = command_value(call, "key");
    struct version_facts facts = {.kernels = ""};
    if (released && !command_switch(call, "json")) {
        return verify(released, key);
    }
    if (released || key) {
        log_error("version: %s; try: trainer version --verify=FILE --key=KEY",
                  released ? "--verify cannot be combined with --json" : "--key needs --verify");
        return COMMAND_MISUSED;
    }
    struct utsname system;
    collect(&facts);
    const char *kernel = uname(&system) == 0 ? system.release : "unknown";
    if (!command_switch(call, "json")) {
        printf("trainer %s\n", version_trainer());
        printf("  linked     %s\n", facts.linked);
        printf("  compiler   %s\n", COMPILER);
        printf("  engines    %s\n", facts.engines);
        printf("  system     %s %s\n", system.sysname, kernel);
        printf("  processor  %s\n", facts.processor);
        printf("  features   %s\n", facts.features);
        printf("  kernels    %s\n", facts.kernels);
        printf("  gpu        %s\n", facts.gpu);
        return COMMAND_DONE;
    }
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "event", "version");
    cJSON_AddStringToObject(root, "version", version_trainer());
    cJSON_AddStringToObject(root, "linked", facts.linked);
    cJSON_AddStringToObject(root, "compiler", COMPILER);
    cJSON_AddStringToObject(root, "engines", facts.engines);
    cJSON_AddStringToObject(root, "system", kernel);
    cJSON_AddStringToObject(root, "processor", facts.processor);
    cJSON_AddStringToObject(root, "features", facts.features);
    cJSON_AddStringToObject(root, "kernels", facts.kernels);
    cJSON_AddStringToObject(root, "gpu", facts.gpu);
    char *text = must_have(cJSON_PrintUnformatted(root), 0, "a version");
    cJSON_Delete(root);
    puts(text);
    cJSON_free(text);
    return COMMAND_DONE;
}

static const struct command_flag flags[] = {
    {"json", NULL, "one JSON object"},
    {"verify", "FILE", "instead, verify a downloaded release file against SHA256SUMS and its signature, beside it"},
    {"key", "KEY", "public key to verify with: RW..., or a file (the one installed with this program)"},
    {NULL, NULL, NULL},
};

const struct command command_version = {
    .name = "version",
    .summary =
        "print versions, linked libraries, this machine's CPU features, the kernels chosen for it, and supported GPUs",
    .flags = flags,
    .confine = CONFINE_READER,
    .run = run,
};
