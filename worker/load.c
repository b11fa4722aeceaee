/* The test set is read on a second thread: decompressing one set after the other would delay the start. */
#include "worker/load.h"

#include <pthread.h>

#include "base/profile.h"

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

bool load_data(struct dataset *dataset, struct examples *test, struct config *config, struct error *error)
{
    struct test_loader loader = {.config = config, .test = test, .loaded = !test};
    pthread_t thread;
    const bool data_first = dataset_is_needed_first(config);
    bool beside = test && !data_first && pthread_create(&thread, NULL, load_test, &loader) == 0;
    bool loaded = dataset_load(dataset, data_first ? test : NULL, config, error) &&
                  (!data_first || dataset_fit(config, dataset, error));
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
