/* The linked libraries report their own versions, where they can: what runs is what counts. */

#include <stdio.h>
#include <sys/utsname.h>

#include <cJSON.h>
#include <stddef.h>
#include <jpeglib.h>
#include <mbedtls/version.h>
#include <sodium.h>
#include <spng.h>
#include <zlib.h>

#include "base/cli/commands.h"
#include "base/cpu.h"
#include "base/log.h"
#include "base/version.h"
#include "cuda/device/driver.h"
#include "cuda/payload.h"
#include "net/tls/gcm.h"
#include "base/kernels.h"
#include "worker/release.h"

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
    char *text = cJSON_PrintUnformatted(root);
    cJSON_Delete(root);
    if (!text) {
        log_error("out of memory");
        return COMMAND_FAILED;
    }
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
    .run = run,
};
