/* Looks only at files and the environment: loading the driver takes time and a separate process. */
#include "cuda/probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads the driver's version out of "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue ...". */
static bool driver_version(const char *root, char *version, size_t size)
{
    char path[512], line[256] = "";
    snprintf(path, sizeof path, "%s/proc/driver/nvidia/version", root);
    FILE *file = fopen(path, "re");
    if (!file) {
        return false;
    }
    bool any = fgets(line, sizeof line, file);
    fclose(file);
    snprintf(version, size, "of unknown version");
    char *rest = NULL;
    for (char *word = strtok_r(line, " \t\n", &rest); word; word = strtok_r(NULL, " \t\n", &rest)) {
        if (word[0] >= '0' && word[0] <= '9' && strchr(word, '.')) {
            snprintf(version, size, "%s", word);
            break;
        }
    }
    return any;
}

/* Device files are numbered from 0, but a container may be given any of them. */
static int count_devices(const char *root)
{
    enum { MAX_DEVICES = 32 };
    int count = 0;
    for (int i = 0; i < MAX_DEVICES; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/dev/nvidia%d", root, i);
        count += access(path, F_OK) == 0;
    }
    return count;
}

/* Drivers without the usual files: Jetson's, and that of Windows' Linux guests (WSL). */
static const char *other_driver(const char *root)
{
    static const char *const devices[][2] = {
        {"/dev/nvmap", "a Jetson's GPU driver is loaded"},
        {"/dev/dxg", "Windows provides its GPU driver"},
    };
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s%s", root, devices[i][0]);
        if (access(path, F_OK) == 0) {
            return devices[i][1];
        }
    }
    return NULL;
}

/* The first folder in the path with a driver library: it must have been put there on purpose. */
static bool find_library(const char *library_path, char *folder, size_t size)
{
    for (const char *at = library_path; at && *at != '\0';) {
        size_t length = strcspn(at, ":;");
        char path[512];
        snprintf(path, sizeof path, "%.*s/libcuda.so.1", (int)(length < 400 ? length : 400), at);
        if (length > 0 && access(path, R_OK) == 0) {
            snprintf(folder, size, "%.*s", (int)length, at);
            return true;
        }
        at += length + (at[length] != '\0');
    }
    return false;
}

void gpu_probe_at(struct gpu_probe *probe, const char *root, const char *visible_devices, const char *library_path)
{
    char folder[100];
    char version[64];
    *probe = (struct gpu_probe){0};
    if (visible_devices && (visible_devices[0] == '\0' || visible_devices[0] == '-')) {
        probe->hidden = true;
        snprintf(probe->reason, sizeof probe->reason, "CUDA_VISIBLE_DEVICES hides all GPUs");
    } else if (find_library(library_path, folder, sizeof folder)) {
        probe->usable = true;
        snprintf(probe->reason, sizeof probe->reason, "LD_LIBRARY_PATH has a GPU driver in %s", folder);
    } else if (other_driver(root)) {
        probe->usable = true;
        snprintf(probe->reason, sizeof probe->reason, "%s", other_driver(root));
    } else if (!driver_version(root, version, sizeof version)) {
        snprintf(probe->reason, sizeof probe->reason, "no NVIDIA driver is loaded");
    } else if (count_devices(root) == 0) {
        snprintf(probe->reason, sizeof probe->reason, "NVIDIA driver %s is loaded, but there is no /dev/nvidia*",
                 version);
    } else {
        probe->usable = true;
        snprintf(probe->reason, sizeof probe->reason, "NVIDIA driver %s, %d GPU%s", version, count_devices(root),
                 count_devices(root) == 1 ? "" : "s");
    }
}

void gpu_probe(struct gpu_probe *probe)
{
    gpu_probe_at(probe, "", getenv("CUDA_VISIBLE_DEVICES"), getenv("LD_LIBRARY_PATH"));
}
