/*
 * TF_CONFIG, the environment variable that tells TensorFlow's Estimators about their cluster; controllers such as
 * Kubeflow's TFJob set it:
 *
 *     {"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}, "task": {"type": "worker", "index": 0}}
 *
 * It is translated to job_name, task_index, ps_hosts and worker_hosts. The chief (or master) becomes worker 0, and the
 * workers come after it. An evaluator follows train_dir. A single process without a ps trains locally. Everything else
 * (environment, rpc_layer, hosts of evaluators) is ignored.
 */
#ifndef BASE_CONFIG_TF_CONFIG_H
#define BASE_CONFIG_TF_CONFIG_H

#include <stdbool.h>

#include "base/config/assignment.h"
#include "base/error.h"

enum { TF_CONFIG_MAX_TEXT = 1 << 16 };

/*
 * A pure function of the text. NULL, "" and "{}" mean no cluster: nothing is assigned. The caller calls
 * assignment_free, also after a failure.
 */
bool tf_config_parse(struct assignment *assignment, const char *text, struct error *error);

#endif
