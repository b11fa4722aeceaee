/* The client with a real process that has a stand-in of a device. */
#include "cuda/client.h"
#include "tests/check.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "tests/cuda/hung.h"
#include "tests/cuda/program.h"
#include "tests/cuda/standin.h"

enum { PIXELS = 9, CLASSES = 3, BATCH = 7 };

static uint8_t *program;
static size_t program_size;

static struct device_shape shape_with(uint64_t seed)
{
    return (struct device_shape){.layer_count = 1,
                                 .widths = {PIXELS, CLASSES},
                                 .optimizer = OPTIMIZER_ADAM,
                                 .averages = 1,
                                 .batch_size = BATCH,
                                 .micro_batches = 1,
                                 .seed = seed};
}

static struct gpu_client *start(double timeout_s)
{
    struct gpu_client *client = NULL;
    struct error error = {.text = ""};
    if (!gpu_client_start_program(&client, program, program_size, timeout_s, &error)) {
        fail_msg("%s", error.text);
    }
    return client;
}

static struct gpu_client *opened(uint64_t seed, double timeout_s)
{
    struct gpu_client *client = start(timeout_s);
    struct error error = {.text = ""};
    struct device_shape shape = shape_with(seed);
    if (!gpu_client_open_begin(client, 1, &shape, 1, STANDIN_FLOATS, &error) || !gpu_client_open_end(client, &error)) {
        fail_msg("%s", error.text);
    }
    return client;
}

static void assert_done(bool done, const struct error *error)
{
    if (!done) {
        fail_msg("%s", error->text);
    }
}

/* Is the process still running? A client that has failed for good has ended it. */
static bool is_there(void)
{
    return waitpid(-1, NULL, WNOHANG) == 0;
}

TEST(lists_devices)
{
    struct error error;
    struct gpu_list list;
    struct gpu_client *client = start(10);
    assert_done(gpu_client_list(client, &list, &error), &error);
    assert_int_equal(list.driver_version, 13000);
    assert_int_equal(list.count, 2);
    assert_string_equal(list.devices[1].name, "Stand-in 1");
    assert_string_equal(list.devices[1].uuid, "GPU-1");
    assert_int_equal(list.devices[1].minor, 1);
    gpu_client_stop(client);
}

TEST(a_missing_driver_is_one_error_message)
{
    struct error error;
    struct gpu_list list;
    setenv("PLAIN_NO_DRIVER", "1", 1);
    struct gpu_client *client = start(10);
    unsetenv("PLAIN_NO_DRIVER");
    assert_false(gpu_client_list(client, &list, &error));
    assert_string_equal(error.text, "there is no driver here");
    assert_true(is_there());
    gpu_client_stop(client);
}

TEST(a_missing_device_is_one_error_message)
{
    struct error error;
    struct gpu_client *client = start(10);
    struct device_shape shape = shape_with(STANDIN_WELL);
    assert_done(gpu_client_open_begin(client, 7, &shape, 1, STANDIN_FLOATS, &error), &error);
    assert_false(gpu_client_open_end(client, &error));
    assert_string_equal(error.text, "there is no device 7");
    gpu_client_stop(client);
}

TEST(moves_data_trains_and_reads)
{
    struct error error;
    struct gpu_client *client = opened(STANDIN_WELL, 60);
    const struct gpu_areas *areas = gpu_client_areas(client);
    enum { EXAMPLES = 100000 };
    uint8_t *images = calloc(EXAMPLES, PIXELS);
    int32_t *labels = calloc(EXAMPLES, sizeof *labels);
    for (int i = 0; i < EXAMPLES; i++) {
        images[i * PIXELS] = 2;
        labels[i] = 1;
    }
    assert_string_equal(gpu_client_description(client), "stand-in");
    const struct device_examples examples = {.arrays = {[DEVICE_IMAGES] = images, [DEVICE_LABELS] = labels},
                                             .count = EXAMPLES};
    assert_done(gpu_client_data(client, &examples, &error), &error);
    for (int i = 0; i < STANDIN_FLOATS; i++) {
        areas->vectors[0][STORE_PARAMETERS][i] = (float)i;
    }
    assert_done(gpu_client_write(client, 0, STORE_PARAMETERS, 0, STANDIN_FLOATS, &error), &error);
    struct update(*updates)[2] = gpu_client_updates(client);
    for (int i = 0; i < 10; i++) {
        updates[i][1].learning_rate = 0.5f;
    }
    struct device_outcome outcome;
    assert_done(gpu_client_train(client, 5, 10, &outcome, &error), &error);
    assert_int_equal(outcome.steps, 10);
    assert_int_equal(outcome.images, 10 * BATCH);
    assert_true(outcome.loss_sum == 10.0 * 3 * EXAMPLES);
    /* Into the other set; the first one is unchanged. */
    assert_done(gpu_client_read(client, 1, STORE_PARAMETERS, 16, 100, &error), &error);
    assert_true(areas->vectors[1][STORE_PARAMETERS][15] == 0);
    assert_true(areas->vectors[1][STORE_PARAMETERS][16] == 16 + 5);
    assert_true(areas->vectors[1][STORE_PARAMETERS][115] == 115 + 5);
    assert_true(areas->vectors[1][STORE_PARAMETERS][116] == 0);
    assert_true(areas->vectors[0][STORE_PARAMETERS][16] == 16);
    gpu_client_stop(client);
    free(images);
    free(labels);
}

TEST(classifies)
{
    struct error error;
    struct gpu_client *client = opened(STANDIN_WELL, 60);
    const struct gpu_areas *areas = gpu_client_areas(client);
    memset(areas->arrays[DEVICE_IMAGES], 1, (size_t)areas->most_examples * PIXELS);
    assert_done(gpu_client_forward(client, false, areas->most_examples, &error), &error);
    assert_true(areas->outputs[0] == PIXELS);
    assert_true(areas->outputs[CLASSES * areas->most_examples - 1] == PIXELS + CLASSES - 1);
    assert_done(gpu_client_forward(client, true, 1, &error), &error);
    assert_true(areas->outputs[0] == 1000 + PIXELS);
    gpu_client_stop(client);
}

struct growth {
    const float *gradient;
    size_t floats;
    int calls;
    bool wrong;
};

static void note_growth(void *context, size_t floats)
{
    struct growth *growth = context;
    growth->wrong |= floats <= growth->floats;
    for (size_t i = growth->floats; i < floats; i++) {
        growth->wrong |= growth->gradient[i] != (float)(40 + i);
    }
    growth->floats = floats;
    growth->calls++;
}

TEST(a_gradient_is_seen_as_it_grows)
{
    struct error error;
    struct gpu_client *client = opened(STANDIN_WELL, 60);
    const struct gpu_areas *areas = gpu_client_areas(client);
    struct device_outcome outcome;
    memset(areas->arrays[DEVICE_IMAGES], 40, PIXELS * BATCH);
    *(int32_t *)areas->arrays[DEVICE_LABELS] = 2;
    for (int i = 0; i < 200; i++) {
        struct growth growth = {.gradient = areas->gradient};
        memset(areas->gradient, 0xff, STANDIN_FLOATS * sizeof(float));
        int64_t step = i < STANDIN_FAULT_STEP ? i : i + 1;
        assert_done(gpu_client_step(client, BATCH, 1, step, note_growth, &growth, &outcome, &error), &error);
        assert_false(growth.wrong);
        assert_int_equal(growth.floats, STANDIN_FLOATS);
        assert_int_equal(outcome.images, BATCH);
        assert_int_equal(outcome.correct, 2);
    }
    gpu_client_stop(client);
}

/* Trains into the fault; returns the seconds until the failure was noticed, however the clock hurries. */
static double fail_to_train(struct gpu_client *client, struct error *error)
{
    struct device_outcome outcome;
    const int64_t begin_ns = real_ns();
    assert_false(gpu_client_train(client, STANDIN_FAULT_STEP - 5, 10, &outcome, error));
    return (double)(real_ns() - begin_ns) * 1e-9;
}

TEST(a_hung_kernel_ends_at_the_deadline)
{
    struct error error;
    struct gpu_list list;
    struct gpu_client *client = opened(STANDIN_HANGS, 2 * HURRY);
    next_hangs = true;
    double seconds = fail_to_train(client, &error);
    assert_in_range((int)(seconds * 1000), 1950, 30000);
    assert_string_equal(error.text, "the GPU engine did not train 10 steps from step 95 on within 50 s "
                                    "(train.gpu_timeout_secs), and was stopped");
    assert_false(is_there());
    assert_false(gpu_client_list(client, &list, &error));
    assert_non_null(strstr(error.text, "within 50 s"));
    gpu_client_stop(client);
}

TEST(a_crash_is_told_at_once)
{
    struct error error;
    struct gpu_client *client = opened(STANDIN_CRASHES, 60);
    double seconds = fail_to_train(client, &error);
    assert_true(seconds < 30);
    assert_non_null(strstr(error.text, "the GPU engine's process was killed by signal 11"));
    assert_non_null(strstr(error.text, "while asked to train 10 steps"));
    assert_false(is_there());
    gpu_client_stop(client);
}

TEST(a_process_that_leaves_is_told_at_once)
{
    struct error error;
    struct gpu_client *client = opened(STANDIN_LEAVES, 60);
    assert_true(fail_to_train(client, &error) < 30);
    assert_non_null(strstr(error.text, "ended with status 3"));
    gpu_client_stop(client);
}

TEST(a_lost_device_is_the_end_of_the_client)
{
    struct error error;
    struct gpu_client *client = opened(STANDIN_LOSES, 60);
    assert_true(fail_to_train(client, &error) < 30);
    assert_string_equal(error.text, "the device is lost");
    assert_false(is_there());
    gpu_client_stop(client);
}

TEST(a_failure_is_not_the_end_of_the_client)
{
    struct error error;
    struct device_outcome outcome;
    struct gpu_client *client = opened(STANDIN_FAILS, 60);
    fail_to_train(client, &error);
    assert_string_equal(error.text, "the device ran out of memory for that");
    assert_true(is_there());
    assert_done(gpu_client_train(client, 0, 1, &outcome, &error), &error);
    gpu_client_stop(client);
}

static void pid_of_child(pid_t *pid)
{
    FILE *list = popen("ps -o pid= -C trainer-gpu", "r");
    char line[64];
    *pid = 0;
    while (list && fgets(line, sizeof line, list)) {
        char path[64], text[256] = "";
        pid_t one = (pid_t)atoi(line);
        int parent = 0;
        snprintf(path, sizeof path, "/proc/%d/stat", (int)one);
        FILE *stat = fopen(path, "r");
        if (stat && fgets(text, sizeof text, stat) && sscanf(text, "%*d (%*[^)]) %*c %d", &parent) == 1 &&
            parent == (int)getpid()) {
            *pid = one;
        }
        if (stat) {
            fclose(stat);
        }
    }
    if (list) {
        pclose(list);
    }
}

TEST(killed_between_commands)
{
    struct error error;
    struct device_outcome outcome;
    pid_t pid;
    struct gpu_client *client = opened(STANDIN_WELL, 60);
    pid_of_child(&pid);
    assert_true(pid > 0);
    kill(pid, SIGKILL);
    double begin_s = clock_monotonic_s();
    assert_false(gpu_client_train(client, 0, 1, &outcome, &error));
    assert_true(clock_monotonic_s() - begin_s < 30);
    assert_non_null(strstr(error.text, "was killed by signal 9"));
    gpu_client_stop(client);
}

TEST(another_can_be_started_after_a_fault)
{
    struct error error;
    struct device_outcome outcome;
    struct gpu_client *client = opened(STANDIN_CRASHES, 60);
    fail_to_train(client, &error);
    gpu_client_stop(client);
    client = opened(STANDIN_WELL, 60);
    assert_done(gpu_client_train(client, STANDIN_FAULT_STEP, 1, &outcome, &error), &error);
    gpu_client_stop(client);
}

int main(void)
{
    program = program_read("standin", &program_size);
    if (!program) {
        return 1;
    }
    int failed = check_run(NULL, NULL);
    free(program);
    return failed;
}
