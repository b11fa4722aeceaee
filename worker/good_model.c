/* The copy has the vectors of a checkpoint, in the same layout. */
#include "worker/good_model.h"

#include <string.h>

#include "base/file.h"
#include "ps/checkpoint/folder.h"
#include "ps/store/rounds.h"
#include "ps/store/store.h"

enum { SMALL_BYTES = 8 << 20 };

bool good_model_is_small(const struct model *model, const struct config_train *train)
{
    const struct config_train kept = outer_train(train);
    size_t vectors = 0;
    for (int v = 0; v < STORE_VECTORS; v++) {
        vectors += store_has_vector(&kept, (enum store_vector)v);
    }
    return vectors * model->float_count * sizeof(float) <= SMALL_BYTES;
}

void good_model_create(struct good_model *good, const struct model *model, const struct config_train *train, bool whole)
{
    good->train = outer_train(train);
    if (!whole) {
        good->train.optimizer = OPTIMIZER_SGD; /* which has no slots */
    }
    checkpoint_state_create(&good->state, model, &good->train);
}

void good_model_destroy(struct good_model *good)
{
    checkpoint_state_destroy(&good->state);
    *good = (struct good_model){.is_there = false};
}

bool good_model_keep(struct good_model *good, struct engine *engine, const struct checkpoint_info *record,
                     int64_t global_step, bool is_best, struct error *error)
{
    for (int v = 0; v < STORE_VECTORS; v++) {
        float *values = good->state.vectors[v];
        if (values &&
            !engine->table->read(engine, (enum store_vector)v, 0, good->state.model->float_count, values, error)) {
            return false;
        }
    }
    good->record = *record;
    good->global_step = global_step;
    good->is_there = true;
    good->is_best = is_best;
    return true;
}

static bool load(struct good_model *good, struct checkpoint_file *file, struct error *error)
{
    float *averages = good->state.vectors[STORE_AVERAGES];
    if (good->train.optimizer == OPTIMIZER_SGD) { /* whatever slots the file has */
        return checkpoint_load_parameters(file, good->state.model, CHECKPOINT_RAW,
                                          good->state.vectors[STORE_PARAMETERS], NULL, error) &&
               (!averages ||
                checkpoint_load_parameters(file, good->state.model, CHECKPOINT_AVERAGED, averages, NULL, error));
    }
    return checkpoint_load(file, &good->state, error);
}

void good_model_recall(struct good_model *good, const struct checkpoint_info *record, const char *train_dir)
{
    char path[CHECKPOINT_MAX_PATH];
    struct checkpoint_file *file;
    struct error error;
    if (!file_join(path, sizeof path, train_dir, CHECKPOINT_BEST_NAME, &error) || !file_exists(path) ||
        checkpoint_open(&file, path, &error) != CHECKPOINT_OPENED) {
        return;
    }
    const struct checkpoint_info *info = checkpoint_file_info(file);
    const bool in_memory = good->state.memory;
    if (info->global_step == record->best_step && info->best_score == record->best_score) {
        /* A state that could be read only in part is none. */
        good->is_there = good->is_best = !in_memory || load(good, file, &error);
        good->record = *info;
        good->global_step = info->global_step;
    }
    checkpoint_close(file);
}

void good_model_copy(const struct good_model *good, struct checkpoint_state *state)
{
    for (int v = 0; v < STORE_VECTORS; v++) {
        if (good->state.vectors[v]) {
            memcpy(state->vectors[v], good->state.vectors[v], good->state.model->float_count * sizeof(float));
        }
    }
}

bool good_model_put(const struct good_model *good, struct engine *engine, struct error *error)
{
    return engine_put_vectors(engine, good->state.vectors, good->state.model->float_count, error);
}
