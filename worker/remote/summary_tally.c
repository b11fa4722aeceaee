#include "worker/remote/summary_tally.h"

#include <math.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/log.h"

static void begin(struct summary_tally *watch, int64_t step)
{
    watch->begun_s = clock_monotonic_s();
    watch->begun_step = step;
    watch->steps = watch->images = watch->correct = 0;
    watch->loss_sum = watch->staleness_sum = 0;
}

bool summary_tally_open(struct summary_tally *watch, const struct summary_options *options,
                        const struct traffic *traffic, struct error *error)
{
    watch->traffic = traffic;
    begin(watch, options->global_step);
    return summary_open(&watch->summary, options, error);
}

void summary_tally_retime(struct summary_tally *watch, const struct summary_options *options)
{
    struct error error;
    if (watch->summary) {
        summary_retime(watch->summary, &options->config->output);
    } else if (!summary_tally_open(watch, options, watch->traffic, &error)) {
        log_warning("%s; training goes on without summaries", error.text);
    }
}

void summary_tally_count(struct summary_tally *watch, const struct train_result *done, uint32_t staleness)
{
    watch->steps++;
    watch->images += done->images;
    watch->correct += done->correct;
    watch->loss_sum += done->last_loss;
    watch->staleness_sum += staleness;
}

void summary_tally_look(struct summary_tally *watch, int64_t before, int64_t step, int64_t dropped)
{
    double now_s = watch->summary ? clock_monotonic_s() : 0;
    if (watch->steps == 0 || !summary_is_due(watch->summary, before, step, now_s)) {
        return;
    }
    double seconds = fmax(now_s - watch->begun_s, 1e-9), steps = (double)watch->steps;
    struct summary_cluster cluster = {.staleness = watch->staleness_sum / steps,
                                      .dropped_gradients = dropped,
                                      .bytes_sent = atomic_load(&watch->traffic->bytes_out),
                                      .bytes_received = atomic_load(&watch->traffic->bytes_in)};
    summary_write(watch->summary, &(struct summary_step){
                                      .global_step = step,
                                      .cross_entropy = watch->loss_sum / steps,
                                      .accuracy = (double)watch->correct / fmax(1, (double)watch->images),
                                      .steps_per_s = (double)(step - watch->begun_step) / seconds,
                                      .examples_per_s = (double)watch->images / seconds,
                                      .seconds_per_batch = seconds / steps,
                                      .cluster = &cluster,
                                  });
    begin(watch, step);
}

void summary_tally_close(struct summary_tally *watch, bool succeeded)
{
    summary_close(watch->summary, succeeded);
    watch->summary = NULL;
}
