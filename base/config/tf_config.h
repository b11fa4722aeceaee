/*
 * TF_CONFIG, the environment variable by which TensorFlow's Estimators learn of their cluster, and which controllers such
 * as Kubeflow's TFJob set:
 *
 *     {"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}, "task": {"type": "worker", "index": 0}}
 *
 * It becomes settings of job_name, task_index, ps_hosts and worker_hosts. The chief (or master) is worker 0, and workers
 * follow it. An evaluator follows train_dir. One process alone, without a ps, trains locally. What else the text holds
 * (environment, rpc_layer, hosts of evaluators) is not looked at.
 */
#ifndef BASE_CONFIG_TF_CONFIG_H
#define BASE_CONFIG_TF_CONFIG_H

#include <stdbool.h>
#include <stddef.h>

#include "base/config.h"
#include "base/error.h"

enum { TF_CONFIG_SETTINGS = 4, TF_CONFIG_MAX_TEXT = 1 << 16 };

struct tf_config {
    struct config_setting settings[TF_CONFIG_SETTINGS];
    int count; /* 0: it says nothing of a cluster */
    char *texts[2];
    char index[16];
};

/* A pure function of the text. NULL, "" and "{}" say nothing. tf_config_free is the caller's, also after a failure. */
bool tf_config_parse(struct tf_config *parsed, const char *text, struct error *error);
void tf_config_free(struct tf_config *parsed);

#endif
