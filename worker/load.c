/* The test set is read on a second thread: decompressing one set after the other would delay the start. */
#include "worker/load.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/profile.h"
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
    loader->loaded = dataset_load_test(loader->test, loader->config, loader->schema, &loader->error);
    return NULL;
}

/*
 * A model continues with the columns and scales it was trained with: anything else would change what it has learnt.
 */
static bool take_over_schema(struct schema **schema, const struct config *config, struct error *error)
{
    struct checkpoint_file *file = NULL;
    bool is_table;
    if (*schema || config->train.warm_start[0] == '\0') {
        return true;
    }
    if (!dataset_is_table(&is_table, config, error)) {
        return false;
    }
    if (!is_table) {
        return true;
    }
    const char *source = config->train.warm_start;
    bool done = trained_find(&file, file_is_folder(source) ? "newest" : source, source, error);
    if (done && checkpoint_file_info(file)->preprocessing) {
        *schema = calloc(1, sizeof **schema);
        done = *schema ? schema_parse(*schema, checkpoint_file_info(file)->preprocessing, error)
                       : error_set(error, "out of memory for its columns");
    }
    checkpoint_close(file);
    return done || error_wrap(error, "train.warm_start");
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
