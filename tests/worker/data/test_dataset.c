/* Loading what a config names: which data it reads, what it holds out, and what it refuses. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/config.h"
#include "tests/check.h"
#include "worker/data/dataset.h"
#include "worker/data/idx.h"
#include "worker/data/synth.h"

static char folder[64];

static void path_of(char path[256], const char *name)
{
    snprintf(path, 256, "%s/%s", folder, name);
}

static void write_file(const char *name, const void *header, size_t header_size, const void *bytes, size_t size)
{
    char path[256];
    path_of(path, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(header, 1, header_size, file), header_size);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

/* Image i of a set is filled with first + i; its label is i % classes. */
static void write_set(const char *images, const char *labels, int count, int classes, uint8_t first)
{
    uint8_t header[IDX_MAX_HEADER], pixels[64 * 35], classes_of[64];
    uint32_t sizes[] = {(uint32_t)count, 5, 7};
    for (int i = 0; i < count; i++) {
        memset(pixels + (size_t)35 * (size_t)i, first + i, 35);
        classes_of[i] = (uint8_t)(i % classes);
    }
    write_file(images, header, idx_write_header(header, 3, sizes), pixels, (size_t)count * 35);
    write_file(labels, header, idx_write_header(header, 1, sizes), classes_of, (size_t)count);
}

static void write_all(void)
{
    write_set("train-images-idx3-ubyte", "train-labels-idx1-ubyte", 20, 3, 100);
    write_set("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte", 6, 3, 200);
}

static int begin(void **state)
{
    snprintf(folder, sizeof folder, "/tmp/test_dataset_XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int end(void **state)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    return system(command);
}

/* A config for 5x7 images of 3 classes, with further settings; ends with NULL. */
static void make_config(struct config *config, const char *const *more)
{
    struct config_setting settings[16] = {
        {"layers", "35,3"}, {"batch_size", "4"}, {"validation_size", "5"}, {"data_dir", folder}, {"seed", "3"}};
    int count = 5;
    for (int i = 0; more && more[i]; i += 2) {
        int at = 0;
        while (at < count && strcmp(settings[at].flag, more[i]) != 0) {
            at++;
        }
        settings[at] = (struct config_setting){more[i], more[i + 1]};
        count += at == count;
    }
    struct error error;
    if (!config_parse(config, "none", NULL, 0, settings, count, &error)) {
        fail_msg("%s", error.text);
    }
}

#define WITH(...) ((const char *const[]){__VA_ARGS__, NULL})

static void expect_refused(const char *const *settings, const char *why)
{
    struct config config;
    struct dataset dataset;
    struct error error = {""};
    make_config(&config, settings);
    bool loaded = dataset_load(&dataset, NULL, &config, &error);
    config_free(&config);
    if (loaded) {
        dataset_free(&dataset);
        fail_msg("was loaded, though: %s", why);
    }
    if (!strstr(error.text, why)) {
        fail_msg("\"%s\" does not say \"%s\"", error.text, why);
    }
}

static void test_loads(void **state)
{
    write_all();
    struct config config;
    struct dataset dataset;
    struct examples test;
    struct error error;
    make_config(&config, NULL);
    assert_true(dataset_load(&dataset, NULL, &config, &error));
    assert_int_equal(dataset.validation.count, 5);
    assert_int_equal(dataset.train.count, 15);
    assert_int_equal(dataset.train.height, 5);
    assert_int_equal(dataset.train.width, 7);
    assert_int_equal(dataset.train.classes, 3);
    assert_int_equal(dataset.bytes, 20 * (35 + 4));
    assert_int_equal(dataset.validation.images[0], 100); /* the first ones of the file are held out */
    assert_int_equal(dataset.validation.labels[4], 1);
    assert_int_equal(dataset.train.images[0], 105);
    assert_int_equal(dataset.train.images[15 * 35 - 1], 119);
    assert_int_equal(dataset.train.labels[0], 2);
    assert_int_equal(dataset.train.images[15 * 35 + 63], 0); /* readable */
    char description[256];
    snprintf(description, sizeof description, "IDX files in %s: 15 training, 5 validation images, 5x7, 3 classes",
             folder);
    assert_string_equal(dataset.description, description);
    dataset_free(&dataset);
    dataset_free(&dataset);
    assert_true(dataset_load_test(&test, &config, NULL, &error));
    assert_int_equal(test.count, 6);
    assert_int_equal(test.images[0], 200);
    assert_int_equal(test.labels[5], 2);
    examples_free(&test);
    config_free(&config);
}

/* Of 20 images a tenth is 2; of MNIST's 60,000 it would exceed the 5,000 that are enough. */
static void test_a_tenth_is_held_out(void **state)
{
    static const struct {
        const char *count;
        int held_out;
        const char *says;
    } cases[] = {{"9", 0, "9 training, 0 validation images (a tenth),"},
                 {"19", 1, "18 training, 1 validation images (a tenth),"},
                 {"49999", 4999, "45,000 training, 4,999 validation images (a tenth),"},
                 {"50000", 5000, "45,000 training, 5,000 validation images,"},
                 {"60000", 5000, "55,000 training, 5,000 validation images,"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct config config;
        struct dataset dataset;
        struct error error;
        make_config(&config, WITH("data_source", "synthetic", "validation_size", "auto", "layers", "784,10",
                                  "synthetic_train", cases[i].count, "num_threads", "2"));
        assert_true(dataset_load(&dataset, NULL, &config, &error));
        assert_int_equal(dataset.validation.count, cases[i].held_out);
        assert_int_equal(dataset.train.count + dataset.validation.count, atoi(cases[i].count));
        assert_non_null(strstr(dataset.description, cases[i].says));
        dataset_free(&dataset);
        config_free(&config);
    }
}

static void test_nothing_held_out(void **state)
{
    write_all();
    struct config config;
    struct dataset dataset;
    struct error error;
    make_config(&config, WITH("validation_size", "0", "batch_size", "20"));
    assert_true(dataset_load(&dataset, NULL, &config, &error));
    assert_int_equal(dataset.validation.count, 0);
    assert_int_equal(dataset.train.count, 20);
    assert_int_equal(dataset.train.images[0], 100);
    dataset_free(&dataset);
    config_free(&config);
}

static void rename_file(const char *from, const char *to)
{
    char from_path[256], to_path[256];
    path_of(from_path, from);
    path_of(to_path, to);
    assert_int_equal(rename(from_path, to_path), 0);
}

static void test_names_with_dots(void **state)
{
    write_all();
    rename_file("train-images-idx3-ubyte", "train-images.idx3-ubyte");
    rename_file("t10k-labels-idx1-ubyte", "t10k-labels.idx1-ubyte.gz"); /* plain in spite of its name */
    struct config config;
    struct dataset dataset;
    struct error error;
    make_config(&config, NULL);
    assert_true(dataset_load(&dataset, NULL, &config, &error));
    dataset_free(&dataset);
    config_free(&config);
}

static void test_missing_files(void **state)
{
    static const char *const names[] = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte",
                                        "t10k-labels-idx1-ubyte"};
    char why[256];
    for (int i = 0; i < 4; i++) {
        write_all();
        rename_file(names[i], "elsewhere");
        snprintf(why, sizeof why, "%s/%s: missing", folder, names[i]);
        expect_refused(NULL, why);
    }
}

static void test_sources(void **state)
{
    expect_refused(NULL, "--data_dir: /tmp/test_dataset_");
    expect_refused(NULL, " is empty, and has no data set of a known kind: the IDX files of MNIST, a table");
    expect_refused(WITH("data_dir", "/nonexistent"), "--data_dir: there is no folder /nonexistent; name the one");
    expect_refused(WITH("data_source", "idx"), " is empty, and has no IDX files; it needs train-images-idx3-ubyte");
    write_all();
    expect_refused(WITH("data_source", "synthetic"), "synthetic digits: images of 28x28 = 784 pixels do not fit");
    expect_refused(WITH("data_source", "synthetic", "layers", "784,9", "synthetic_train", "100"),
                   "is 9, but model.layers ends with 9 outputs (labels 0 to 8); end it with at least 10");
}

static void test_synthetic(void **state)
{
    struct config config;
    struct dataset dataset;
    struct examples test;
    struct error error;
    uint8_t image[SYNTH_PIXELS];
    make_config(&config, WITH("data_source", "synthetic", "layers", "784,10", "synthetic_train", "1234",
                              "synthetic_test", "56"));
    assert_true(dataset_load(&dataset, NULL, &config, &error));
    assert_string_equal(dataset.description,
                        "synthetic digits of seed 3: 1,229 training, 5 validation images, 28x28, 10 classes");
    assert_int_equal(synth_draw(3, SYNTH_TRAIN, 5, image), dataset.train.labels[0]);
    assert_memory_equal(image, dataset.train.images, sizeof image);
    dataset_free(&dataset);
    assert_true(dataset_load_test(&test, &config, NULL, &error));
    assert_int_equal(test.count, 56);
    assert_int_equal(synth_draw(3, SYNTH_TEST, 55, image), test.labels[55]);
    examples_free(&test);
    config_free(&config);
}

static void test_relations(void **state)
{
    write_all();
    expect_refused(WITH("layers", "784,500,3"),
                   "train-images-idx3-ubyte: images of 5x7 = 35 pixels do not fit model.layers, which begins with 784");
    expect_refused(WITH("layers", "35,2"),
                   "train-labels-idx1-ubyte: the label of image 2 is 2, but model.layers ends with 2 outputs (labels 0 "
                   "to 1); end it with at least 3");
    expect_refused(WITH("validation_size", "20"), "has 20 images, and data.validation_size=20 would leave none");
    expect_refused(WITH("batch_size", "16"), "train.batch_size=16 is more than the 15 images to train on");
    write_set("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte", 6, 4, 0);
    struct config config;
    struct examples test;
    struct error error;
    make_config(&config, NULL);
    assert_false(dataset_load_test(&test, &config, NULL, &error));
    assert_non_null(strstr(error.text, "t10k-labels-idx1-ubyte: the label of image 3 is 3"));
    config_free(&config);
}

static void test_files_that_do_not_belong_together(void **state)
{
    write_all();
    write_set("other", "train-labels-idx1-ubyte", 19, 3, 0);
    expect_refused(NULL, "train-labels-idx1-ubyte: has 19 labels for the 20 images of");
    write_all();
    write_set("other", "t10k-labels-idx1-ubyte", 7, 3, 0);
    expect_refused(NULL, "t10k-labels-idx1-ubyte: has 7 labels for the 6 images of");
    write_all();
    uint8_t header[IDX_MAX_HEADER], bytes[60] = {0};
    uint32_t sizes[] = {2, 5, 6};
    write_file("t10k-images-idx3-ubyte", header, idx_write_header(header, 3, sizes), bytes, 60);
    expect_refused(NULL, "has images of 5x6, but");
    write_all();
    rename_file("train-labels-idx1-ubyte", "train-images-idx3-ubyte");
    write_set("other", "train-labels-idx1-ubyte", 20, 3, 0);
    expect_refused(NULL, "train-images-idx3-ubyte: has type 0x08 in 1 dimensions; images need uint8");
    write_all();
    rename_file("train-images-idx3-ubyte", "train-labels-idx1-ubyte");
    write_set("train-images-idx3-ubyte", "other", 20, 3, 0);
    expect_refused(NULL, "train-labels-idx1-ubyte: has type 0x08 in 3 dimensions; labels need uint8");
}

/* Labels of 32 bits, big-endian; negative and enormous ones are refused. */
static void test_int32_labels(void **state)
{
    write_all();
    uint8_t header[IDX_MAX_HEADER], labels[80] = {0};
    uint32_t sizes[] = {20};
    size_t size = idx_write_header(header, 1, sizes);
    header[2] = IDX_INT32;
    labels[4 * 6 + 3] = 2;
    write_file("train-labels-idx1-ubyte", header, size, labels, sizeof labels);
    struct config config;
    struct dataset dataset;
    struct error error;
    make_config(&config, NULL);
    assert_true(dataset_load(&dataset, NULL, &config, &error));
    assert_int_equal(dataset.train.labels[1], 2);
    assert_int_equal(dataset.train.classes, 3);
    dataset_free(&dataset);
    config_free(&config);
    memset(labels + 8, 0xFF, 4);
    write_file("train-labels-idx1-ubyte", header, size, labels, sizeof labels);
    expect_refused(NULL, "the label of image 2 is -1; expected 0 to 65535");
}

/* [count, pixels] are rows; colours, [count, height, width, 3], are more columns. */
static void test_other_shapes(void **state)
{
    static const uint32_t shapes[][4] = {{20, 35, 1, 1}, {20, 1, 5, 7}, {20, 5, 1, 7}};
    static const int dimensions[] = {2, 4, 4}, heights[] = {1, 1, 5};
    for (int i = 0; i < 3; i++) {
        write_all();
        uint8_t header[IDX_MAX_HEADER], bytes[20 * 35] = {0};
        struct config config;
        struct examples train;
        struct dataset_origin origin;
        struct error error;
        size_t size = idx_write_header(header, dimensions[i], shapes[i]);
        write_file("train-images-idx3-ubyte", header, size, bytes, sizeof bytes);
        make_config(&config, NULL);
        assert_true(dataset_read(&train, &origin, DATASET_TRAIN, &config, &error));
        assert_int_equal(train.height, heights[i]);
        assert_int_equal(train.width * train.height, 35);
        examples_free(&train);
        config_free(&config);
    }
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        CASE(test_loads),           CASE(test_nothing_held_out), CASE(test_a_tenth_is_held_out),
        CASE(test_names_with_dots), CASE(test_missing_files),    CASE(test_sources),
        CASE(test_synthetic),       CASE(test_relations),        CASE(test_files_that_do_not_belong_together),
        CASE(test_int32_labels),    CASE(test_other_shapes),
    };
    return cmocka_run_group_tests_name("dataset", tests, NULL, NULL);
}
