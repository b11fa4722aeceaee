/* The probe on machines made of files. */
#include "cuda/probe.h"
#include "tests/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[] = "/tmp/test_probe.XXXXXX";

static void make(const char *name, const char *content)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, name);
    if (!content) {
        assert_int_equal(mkdir(path, 0777), 0);
        return;
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(content, file);
    fclose(file);
}

static void takes(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, name);
    assert_int_equal(remove(path), 0);
}

TEST(says_why_not)
{
    struct gpu_probe probe;
    assert_non_null(mkdtemp(root));
    gpu_probe_at(&probe, root, NULL, NULL);
    assert_false(probe.usable);
    assert_string_equal(probe.reason, "no NVIDIA driver is loaded");

    make("proc", NULL);
    make("proc/driver", NULL);
    make("proc/driver/nvidia", NULL);
    make("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\nGCC\n");
    make("dev", NULL);
    gpu_probe_at(&probe, root, NULL, NULL);
    assert_false(probe.usable);
    assert_non_null(strstr(probe.reason, "550.54.15"));
    assert_non_null(strstr(probe.reason, "/dev/nvidia"));

    make("dev/nvidia3", ""); /* a container's only device need not be number 0 */
    gpu_probe_at(&probe, root, NULL, NULL);
    assert_true(probe.usable);
    assert_string_equal(probe.reason, "NVIDIA driver 550.54.15, 1 GPU");
    make("dev/nvidia4", "");
    make("dev/nvidiactl", "");
    gpu_probe_at(&probe, root, "0,1", NULL);
    assert_true(probe.usable);
    assert_string_equal(probe.reason, "NVIDIA driver 550.54.15, 2 GPUs");

    const char *hidden[] = {"", "-1"};
    for (size_t i = 0; i < sizeof hidden / sizeof hidden[0]; i++) {
        gpu_probe_at(&probe, root, hidden[i], NULL);
        assert_true(probe.hidden);
        assert_false(probe.usable);
        assert_non_null(strstr(probe.reason, "CUDA_VISIBLE_DEVICES"));
    }
    const char *names[] = {"dev/nvidia3",        "dev/nvidia4", "dev/nvidiactl", "dev", "proc/driver/nvidia/version",
                           "proc/driver/nvidia", "proc/driver", "proc",          ""};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        takes(names[i]);
    }
}

int main(void)
{
    return check_run(NULL, NULL);
}
