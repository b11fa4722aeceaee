/* The last values measured stand for the run's result: a history records no other. */
#include "worker/dashboard/past_run.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "ps/checkpoint/checkpoint.h"
#include "ps/checkpoint/folder.h"
#include "worker/dashboard/curves.h"
#include "worker/data/names.h"
#include "worker/metrics.h"

/* Does a process write there? Tests its lock without taking it. */
static bool is_in_use(const char *folder)
{
    char path[CHECKPOINT_MAX_PATH];
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    struct error error;
    const int fd = file_join(path, sizeof path, folder, "trainer.lock", &error)
                       ? open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC)
                       : -1;
    if (fd < 0) {
        return false;
    }
    const bool held = fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
    close(fd);
    return held;
}

/* The last known value of a series; NaN: none. */
static double last_of(const struct history *history, int series)
{
    for (int i = history->whole.count - 1; i >= 0; i--) {
        const float value = history_at(&history->whole, i)->values[series];
        if (!isnan(value)) {
            return (double)value;
        }
    }
    return (double)NAN;
}

static void end_numbers(struct board *board)
{
    const struct history *history = &board->history;
    struct board_numbers *numbers = &board->numbers;
    static const char prefix[] = "metric:";
    for (int i = 0; i < history->series; i++) {
        const char *name = history->names[i];
        const double value = last_of(history, i);
        if (isnan(value)) {
            continue;
        }
        if (strcmp(name, "loss") == 0) {
            board->loss = value;
        } else if (strcmp(name, "learning_rate") == 0) {
            numbers->learning_rate = value;
        } else if (strcmp(name, "steps_per_s") == 0) {
            board->steps_per_s = value;
        } else if (strcmp(name, "examples_per_s") == 0) {
            board->examples_per_s = value;
        } else if (strncmp(name, prefix, strlen(prefix)) == 0 && numbers->metric_count < BOARD_METRICS) {
            struct board_metric *metric = &numbers->metrics[numbers->metric_count++];
            snprintf(metric->name, sizeof metric->name, "%.23s", name + strlen(prefix));
            metric->value = value;
        }
    }
    if (history->whole.count > 0) {
        board->started_s = history_at(&history->whole, 0)->time_s;
        numbers->global_step = history_at(&history->whole, history->whole.count - 1)->step;
    }
}

static double written_s(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 ? (double)status.st_mtim.tv_sec : 0;
}

static void newest_checkpoint(struct board *board, const struct checkpoint_file *file)
{
    const struct checkpoint_info *info = checkpoint_file_info(file);
    struct board_numbers *numbers = &board->numbers;
    struct config_model model = {.layer_count = 0};
    const enum metric metric = info->metric == METRIC_AUTO ? METRIC_ACCURACY : info->metric;
    checkpoint_file_model(file, &model);
    numbers->layer_count = model.layer_count;
    memcpy(numbers->layers, model.layers, sizeof numbers->layers);
    snprintf(numbers->digest, sizeof numbers->digest, "%s", info->config_digest);
    snprintf(numbers->metric, sizeof numbers->metric, "%s", config_metric_name(metric));
    numbers->metric_rises = metric_rises(metric);
    numbers->config_version = info->fleet_version > 0 ? info->fleet_version : -1;
    numbers->best_step = isnan(info->best_score) ? -1 : info->best_step;
    numbers->best_value = info->best_score;
    numbers->saved_step = info->global_step;
    numbers->saved_time_s = written_s(checkpoint_path(file));
    snprintf(numbers->saved_path, sizeof numbers->saved_path, "%s", checkpoint_path(file));
    if (numbers->global_step < info->global_step) {
        numbers->global_step = info->global_step;
    }
}

/* One event for each checkpoint that still exists. */
static bool list_checkpoints(struct board *board, const char *folder, struct error *error)
{
    struct names names = {.items = NULL};
    char path[CHECKPOINT_MAX_PATH];
    bool done = names_list(&names, folder, "model-*.safetensors", error);
    for (int i = 0; i < names.count && done; i++) {
        long long step = -1;
        done = file_join(path, sizeof path, folder, names.items[i], error);
        if (done && sscanf(names.items[i], "model-%lld.", &step) == 1) {
            board_event_at(board, written_s(path), "checkpoint", NULL, step, path);
        }
    }
    board->numbers.saved = (uint64_t)(names.count > 0 ? names.count : 0);
    names_free(&names);
    return done;
}

/* A run of less than a second leaves an empty history. */
static bool knows_losses(struct history *history)
{
    const int loss = history_series(history, "loss");
    return loss >= 0 && !isnan(last_of(history, loss));
}

static bool read_curves(struct board *board, const char *folder, struct error *error)
{
    char path[CHECKPOINT_MAX_PATH];
    bool damaged;
    if (!file_join(path, sizeof path, folder, "history.bin", error)) {
        return false;
    }
    if (history_load(&board->history, path, &damaged, error) && knows_losses(&board->history)) {
        return true;
    }
    if (damaged) {
        log_warning("%s; its event files are read instead", error->text);
    }
    history_destroy(&board->history);
    if (!history_create(&board->history, error)) {
        return false;
    }
    return file_join(path, sizeof path, folder, "summaries", error) && curves_read(&board->history, path, error);
}

static bool fill(struct board *board, const char *folder, struct error *error)
{
    struct checkpoint_file *file = NULL;
    board->numbers.state = is_in_use(folder) ? BOARD_TRAINING : BOARD_DONE;
    if (!read_curves(board, folder, error) || !list_checkpoints(board, folder, error)) {
        return false;
    }
    end_numbers(board);
    if (!checkpoint_folder_find(folder, &file, error)) {
        return false;
    }
    if (file) {
        newest_checkpoint(board, file);
        checkpoint_close(file);
    }
    return file || board->history.whole.count > 0 ||
           error_set(error, "%s holds no run: neither a checkpoint nor history.bin nor summaries", folder);
}

bool past_run_read(struct board *board, const char *folder, struct error *error)
{
    char name[CHECKPOINT_MAX_PATH];
    size_t size = strlen(folder);
    while (size > 1 && folder[size - 1] == '/') {
        size--;
    }
    snprintf(name, sizeof name, "%.*s", (int)size, folder);
    if (!board_create(board, "dashboard", 0, name, error)) {
        return false;
    }
    if (!fill(board, name, error)) {
        board_destroy(board);
        return false;
    }
    return true;
}
