/* The test set is read on a second thread: decompressing one set after the other would delay the start. */
#include "worker/load.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/profile.h"
#include "ps/checkpoint/folder.h"
#include "worker/data/table/schema.h"
#include "worker/export/trained.h"

struct test_loader {
    const struct config *config;
    struct examples *test;
    const struct schema *schema;
    bool loaded;
    struct error error;
};

static void *load_test(void *context)
{
    struct test_loader *loader = context;
    bool is_wanted;
    loader->loaded = dataset_wants_test(&is_wanted, loader->config, &loader->error) &&
                     (!is_wanted || dataset_load_test(loader->test, loader->config, loader->schema, &loader->error));
    return NULL;
}

/* The run's own checkpoint if it goes on with other data than it began with; NULL: not so. */
static bool find_own(struct checkpoint_file **file, const struct config *config, struct error *error)
{
    const char *train_dir = config->output.train_dir;
    *file = NULL;
    if (train_dir[0] == '\0' || !file_exists(train_dir)) {
        return true;
    }
    if (!checkpoint_folder_find(train_dir, file, error)) {
        return false;
    }
    if (*file && !config->data.new_data && checkpoint_file_info(*file)->data_since == 0) {
        checkpoint_close(*file);
        *file = NULL;
    }
    return true;
}

static bool find_before(struct checkpoint_file **file, const struct config *config, struct error *error)
{
    const char *start = config->train.warm_start;
    return find_own(file, config, error) &&
           (*file || start[0] == '\0' || trained_find(file, file_is_folder(start) ? "newest" : start, start, error) ||
            error_wrap(error, "train.warm_start"));
}

/*
 * A model continues with the columns and scales it was trained with: anything else would change what it has learnt.
 */
static bool take_over_schema(struct schema **schema, const struct config *config, struct error *error)
{
    struct checkpoint_file *file = NULL;
    bool is_table;
    if (*schema) {
        return true;
    }
    if (!dataset_is_table(&is_table, config, error)) {
        return false;
    }
    bool done = !is_table || find_before(&file, config, error);
    if (file && checkpoint_file_info(file)->preprocessing) {
        *schema = must_zero(1, sizeof **schema, "columns");
        done = schema_parse(*schema, checkpoint_file_info(file)->preprocessing, error) ||
               error_wrap(error, "%s", checkpoint_path(file));
    }
    checkpoint_close(file);
    return done;
}

bool load_data(struct dataset *dataset, struct examples *test, struct config *config, struct error *error)
{
    struct test_loader loader = {.config = config, .test = test, .loaded = !test};
    pthread_t thread;
    const bool data_first = dataset_is_needed_first(config);
    bool beside = test && !data_first && pthread_create(&thread, NULL, load_test, &loader) == 0;
    bool loaded = take_over_schema(&dataset->schema, config, error) &&
                  dataset_load(dataset, data_first ? test : NULL, config, error) &&
                  (!data_first || dataset_fit(config, dataset, error));
    if (loaded) {
        config->train.batch_size = dataset_batch(config, dataset->train.count);
    }
    if (beside) {
        pthread_join(thread, NULL);
    } else if (test && loaded && test->count == 0) {
        loader.schema = dataset->schema;
        load_test(&loader);
    }
    loader.loaded |= test && test->count > 0;
    if (loaded && !loader.loaded) {
        *error = loader.error;
    }
    return loaded && loader.loaded;
}
