/*
 * The model as the store, the wire and the engines see it: one flat vector of float32 that holds named variables one
 * after another, each row-major with a padded row stride.
 *
 * Layer l has "layer<l>/weights" [in, out] and "layer<l>/biases" [1, out]; of several nets (model.ensemble), net n has
 * "net<n>/layer<l>/weights" and so on, one net after another. The stride of a variable is its columns
 * rounded up to ROW_ALIGN floats (one cache line), then to an odd number of cache lines, so that adjacent rows do not
 * map to the same cache sets. Padding is always zero: its gradient is zero, so no optimizer moves it. Checkpoints and
 * summaries leave it out.
 */
#ifndef PS_STORE_MODEL_H
#define PS_STORE_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "ps/store/optimizer.h"

enum {
    MODEL_ROW_ALIGN = 16, /* floats */
    MODEL_MAX_VARIABLES = 2 * CONFIG_MAX_WEIGHTS,
};

struct variable {
    char name[24];
    int rows, cols;
    int stride;      /* floats from one row to the next */
    size_t offset;   /* of its first float in the flat vector; a multiple of MODEL_ROW_ALIGN */
    bool is_weights; /* L2 applies to weights, not to biases */
    enum update_kind update;
    int panels; /* 1, except in the CPU engine's own layout: see model_set_panels */
    int lanes;  /* floats kept together: a panel's width is a multiple */
};

struct model {
    int net_count;   /* at least 1 */
    int layer_count; /* weight layers of a net: one less than config's entries */
    enum number_view views[CONFIG_MAX_NETS];
    int widths[CONFIG_MAX_LAYERS]; /* of the first net; those of the others differ at most in their inputs */
    enum activation activation;
    struct variable variables[MODEL_MAX_VARIABLES]; /* of a net, weights of layer l at 2l, biases at 2l+1 */
    int variable_count;
    size_t float_count;     /* of the flat vector, padding included; a multiple of MODEL_ROW_ALIGN */
    size_t parameter_count; /* without padding */
};

/* Lays out the model that the (valid) config describes. */
void model_layout(struct model *model, const struct config_model *config);

/*
 * One of its nets as a model of its own, whose vector is the part of the whole one from the float on that is returned.
 * Variable v of it is variable 2 x net x layer_count + v of the whole.
 */
size_t model_net(const struct model *model, int net, struct model *one);

/*
 * Cuts the columns of one variable into consecutive panels, each [rows, its columns] with the same stride. So threads
 * that own different panels touch different pages, and prefetching within a page takes nothing from another core's
 * cache. Panel p begins at column variable_panel_col(p); widths are multiples of `lanes` floats, as even as possible.
 * Later variables move. Everything else (stores, wire, checkpoints, GPU) uses a single panel.
 */
void model_set_panels(struct model *model, int variable, int panels, int lanes);

/* First column of panel `panel`; for panel == panels: the end of the last one, its padding lanes included. */
static inline int variable_panel_col(const struct variable *variable, int panel)
{
    int vectors = (variable->cols + variable->lanes - 1) / variable->lanes;
    return (int)((int64_t)panel * vectors / variable->panels) * variable->lanes;
}

/* The panel that column `col` lies in. */
static inline int variable_panel(const struct variable *variable, int col)
{
    int vectors = (variable->cols + variable->lanes - 1) / variable->lanes;
    return (int)((((int64_t)(col / variable->lanes) + 1) * variable->panels - 1) / vectors);
}

/*
 * The index of an element in the flat vector. Elements to its right follow up to its panel's end, those below by
 * strides.
 */
static inline size_t variable_at(const struct variable *variable, int row, int col)
{
    int panel = variable_panel(variable, col);
    size_t line = (size_t)panel * (size_t)variable->rows + (size_t)row;
    return variable->offset + line * (size_t)variable->stride + (size_t)(col - variable_panel_col(variable, panel));
}

/* Units of all layers, as in model.layers: "784,100,10"; "9+40,100,10" if two nets have different inputs. */
enum { MODEL_UNITS_TEXT = (CONFIG_MAX_LAYERS + CONFIG_MAX_NETS) * 8 };
void model_units_text(const struct config_model *config, char text[MODEL_UNITS_TEXT]);

/* The nets of a model, as in model.ensemble: "raw:2,ple:1". */
void model_ensemble_text(const struct model *model, char *text, size_t size);

/* Reads such a text into the layers of a config that has its nets. False: it is none. */
bool model_parse_units(struct config_model *config, const char *text);

/*
 * Fills in the layers of a config that gives only hidden layers, from the text, whose hidden layers must match.
 * hidden_count still says that the layers follow from the data.
 */
bool model_take_units(struct config_model *config, const char *text, struct error *error);

/* If a model gives only hidden layers, returns it with the inputs and outputs of `ends`; otherwise unchanged. */
struct config_model model_with_ends(const struct config_model *model, const struct config_model *ends);

/*
 * Sets every parameter to its initial value, a function of (config, seed) alone. parameters: [float_count]; padding
 * becomes zero. Weights as TensorFlow's truncated_normal(stddev), glorot_uniform and variance_scaling(2, fan_in,
 * truncated_normal); biases are init_bias.
 */
void model_initialise(const struct model *model, const struct config_model *config, int64_t seed, float *parameters);

/* --- Placement on several ps --- */

/*
 * Which ps holds what: a pure function of the model, the number of ps and the policy, so that every member computes it
 * for itself and all agree.
 *
 *  - ranges: one contiguous part of the flat vector each, equal in bytes except that cuts lie between rows; a model
 *    with fewer rows than ps leaves some of them empty;
 *  - round_robin: whole variables in turn, as tf.train.replica_device_setter places them;
 *  - greedy: each variable, in order, goes to the first of the ps that hold the fewest bytes so far, as in tf.contrib's
 *    GreedyLoadBalancingStrategy.
 */

enum { PLACEMENT_MAX_SPANS = MODEL_MAX_VARIABLES };

/* A part of the flat vector: whole rows of variables, padding included. */
struct span {
    size_t first, count; /* floats; count > 0 */
};

/*
 * The spans of ps number `ps` of `ps_count`, ascending; adjacent spans are merged. Returns how many: 0 if it holds
 * nothing. Together the spans of all ps cover every float of the model exactly once.
 */
int placement_spans(const struct model *model, enum placement_policy policy, int ps_count, int ps,
                    struct span spans[PLACEMENT_MAX_SPANS]);

/* The first ps that holds anything: every worker pushes to it. 0 if none does. */
int placement_first(const struct model *model, enum placement_policy policy, int ps_count);

#endif
