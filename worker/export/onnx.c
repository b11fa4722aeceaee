/* A trained model as an ONNX file. */
#include "worker/export/onnx.h"

#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/encoding/proto.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/version.h"
#include "ps/store/model.h"
#include "worker/data/table/number.h"
#include "worker/data/table/schema.h"
#include "worker/evaluation/calibration.h"

/* --- Parts of a graph --- */

/*
 * The parts of an ONNX graph as messages: nodes with attributes, constants, inputs and outputs. Each is appended to
 * `graph`, a GraphProto being written. The order is free, except that a node must precede those that use its value.
 *
 * Field numbers are those of onnx.proto, named where they are used.
 */

/* TensorProto.DataType */
enum onnx_type { ONNX_FLOAT = 1, ONNX_INT64 = 7, ONNX_STRING = 8, ONNX_DOUBLE = 11 };

/* GraphProto's field for onnx_value. */
enum { ONNX_INPUT = 11, ONNX_OUTPUT = 12 };

#define ONNX_ML "ai.onnx.ml" /* the operators of classical machine learning */

/* The names of a node's inputs, ending with NULL. */
#define ONNX_NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})

/* GraphProto, NodeProto, AttributeProto and its types, TensorProto */
enum { GRAPH_NODE = 1, GRAPH_TENSOR = 5 };
enum { NODE_INPUT = 1, NODE_OUTPUT = 2, NODE_NAME = 3, NODE_OP = 4, NODE_ATTRIBUTE = 5, NODE_DOMAIN = 7 };
enum { ATTRIBUTE_NAME = 1, ATTRIBUTE_I = 3, ATTRIBUTE_INTS = 8, ATTRIBUTE_STRINGS = 9, ATTRIBUTE_TYPE = 20 };
enum { TYPE_INT = 2, TYPE_INTS = 7, TYPE_STRINGS = 8 };
enum { TENSOR_DIMS = 1, TENSOR_TYPE = 2, TENSOR_NAME = 8, TENSOR_RAW = 9 };

/* A graph being written. */
struct graph {
    struct proto *proto;
    char **inputs; /* of a table, what its inputs are called: the columns' names, and those of dates' parts */
    int input_count;
    const char *net;  /* the prefix of what belongs to one of several nets; "" otherwise */
    char own[16][64]; /* the last names with it */
    int own_count;
};

/* The name of a value that each net has, to be used soon. */
static const char *own(struct graph *graph, const char *name)
{
    enum { KEPT = sizeof graph->own / sizeof graph->own[0] };
    if (graph->net[0] == '\0') {
        return name;
    }
    char *text = graph->own[graph->own_count++ % KEPT];
    snprintf(text, sizeof graph->own[0], "%s%s", graph->net, name);
    return text;
}

static bool is_input_name(const struct graph *graph, const char *name)
{
    for (int i = 0; i < graph->input_count; i++) {
        if (graph->inputs[i] && strcmp(graph->inputs[i], name) == 0) {
            return true;
        }
    }
    return false;
}

/*
 * The name of a value. Inputs keep theirs, passed as the graph's own pointer; another value that is called as an input
 * gets an underscore more.
 */
static void put_name(struct graph *graph, int field, const char *name)
{
    char other[128]; /* the graph's own names are short */
    bool is_input = false;
    for (int i = 0; i < graph->input_count; i++) {
        is_input = is_input || graph->inputs[i] == name;
    }
    if (is_input || !is_input_name(graph, name)) {
        proto_text(graph->proto, field, name);
        return;
    }
    size_t size = (size_t)snprintf(other, sizeof other - 1, "%s", name);
    do {
        other[size++] = '_';
        other[size] = '\0';
    } while (size + 2 < sizeof other && is_input_name(graph, other));
    proto_text(graph->proto, field, other);
}

static size_t begin_node(struct graph *graph, const char *const *inputs, const char *output)
{
    size_t node = proto_begin(graph->proto, GRAPH_NODE);
    for (; *inputs; inputs++) {
        put_name(graph, NODE_INPUT, *inputs);
    }
    put_name(graph, NODE_OUTPUT, output);
    return node;
}

/* A node without attributes. */
static void onnx_node(struct graph *graph, const char *op, const char *name, const char *const *inputs,
                      const char *output)
{
    size_t node = begin_node(graph, inputs, output);
    put_name(graph, NODE_NAME, name);
    proto_text(graph->proto, NODE_OP, op);
    proto_end(graph->proto, node);
}

/*
 * A node with attributes, which are added until onnx_node_end; domain NULL: ONNX's own. It is named after its output.
 */
static size_t onnx_node_begin(struct graph *graph, const char *op, const char *domain, const char *const *inputs,
                              const char *output)
{
    size_t node = begin_node(graph, inputs, output);
    put_name(graph, NODE_NAME, output);
    proto_text(graph->proto, NODE_OP, op);
    if (domain) {
        proto_text(graph->proto, NODE_DOMAIN, domain);
    }
    return node;
}

static void onnx_node_end(struct graph *graph, size_t begun)
{
    proto_end(graph->proto, begun);
}

static size_t begin_attribute(struct graph *graph, const char *name, int type)
{
    size_t attribute = proto_begin(graph->proto, NODE_ATTRIBUTE);
    proto_text(graph->proto, ATTRIBUTE_NAME, name);
    proto_integer(graph->proto, ATTRIBUTE_TYPE, type);
    return attribute;
}

static void onnx_attribute(struct graph *graph, const char *name, int64_t value)
{
    size_t attribute = begin_attribute(graph, name, TYPE_INT);
    proto_integer(graph->proto, ATTRIBUTE_I, value);
    proto_end(graph->proto, attribute);
}

static void onnx_attribute_list(struct graph *graph, const char *name, const int64_t *values, size_t count)
{
    size_t attribute = begin_attribute(graph, name, TYPE_INTS);
    proto_packed_integers(graph->proto, ATTRIBUTE_INTS, values, count);
    proto_end(graph->proto, attribute);
}

static size_t onnx_attribute_texts_begin(struct graph *graph, const char *name)
{
    return begin_attribute(graph, name, TYPE_STRINGS);
}

static void onnx_attribute_text(struct graph *graph, const char *text)
{
    proto_text(graph->proto, ATTRIBUTE_STRINGS, text);
}

static void onnx_attribute_end(struct graph *graph, size_t begun)
{
    proto_end(graph->proto, begun);
}

/* Begins a constant; after its little-endian bytes (proto_raw), onnx_tensor_end ends it. */
static size_t onnx_tensor_begin(struct graph *graph, const char *name, enum onnx_type type, const int64_t *sizes,
                                int dimensions, size_t *raw)
{
    size_t tensor = proto_begin(graph->proto, GRAPH_TENSOR);
    proto_packed_integers(graph->proto, TENSOR_DIMS, sizes, (size_t)dimensions);
    proto_integer(graph->proto, TENSOR_TYPE, type);
    put_name(graph, TENSOR_NAME, name);
    *raw = proto_begin(graph->proto, TENSOR_RAW);
    return tensor;
}

static void onnx_tensor_end(struct graph *graph, size_t begun, size_t raw)
{
    proto_end(graph->proto, raw);
    proto_end(graph->proto, begun);
}

static void put_list(struct graph *graph, const char *name, enum onnx_type type, const void *values, int count)
{
    const int64_t length = count;
    size_t raw;
    const size_t tensor = onnx_tensor_begin(graph, name, type, &length, 1, &raw);
    proto_raw(graph->proto, values, (size_t)count * 8);
    onnx_tensor_end(graph, tensor, raw);
}

/* Constants of one dimension. */
static void onnx_integers(struct graph *graph, const char *name, const int64_t *values, int count)
{
    put_list(graph, name, ONNX_INT64, values, count);
}

static void onnx_doubles(struct graph *graph, const char *name, const double *values, int count)
{
    put_list(graph, name, ONNX_DOUBLE, values, count);
}

/*
 * An input or output [batch, width] of the graph.
 *
 * ValueInfoProto: name, type.tensor_type with its elem_type and shape, whose dims are a name and a number.
 */
static void onnx_value(struct graph *graph, int field, const char *name, enum onnx_type type, int width)
{
    size_t value = proto_begin(graph->proto, field);
    put_name(graph, 1, name);
    size_t type_proto = proto_begin(graph->proto, 2), tensor = proto_begin(graph->proto, 1); /* TypeProto.tensor_type */
    proto_integer(graph->proto, 1, type);
    size_t shape = proto_begin(graph->proto, 2), batch = proto_begin(graph->proto, 1);
    proto_text(graph->proto, 2, "batch"); /* dim_param */
    proto_end(graph->proto, batch);
    size_t dimension = proto_begin(graph->proto, 1);
    proto_integer(graph->proto, 1, width); /* dim_value */
    proto_end(graph->proto, dimension);
    proto_end(graph->proto, shape);
    proto_end(graph->proto, tensor);
    proto_end(graph->proto, type_proto);
    proto_end(graph->proto, value);
}

/* --- Tables --- */

/*
 * The ends of a table model's ONNX graph: from raw columns to the first layer, and from the last layer to predictions,
 * with the inputs and outputs of `trainer predict`.
 *
 * Inputs, [batch, 1], named as the columns: float64 for a number (NaN: missing; arithmetic is in double as in
 * training) and for each part of a date (when.month), text for a category, without surrounding blanks ("", "NA" and
 * the like: missing). Outputs:
 *
 *     classes      prediction, text [batch, 1]; probabilities, float32 [batch, classes]
 *     flags        prediction, int64 [batch, targets]; probabilities, float32 [batch, targets]
 *     numbers      prediction, float64 [batch, targets], in the units of the table
 *     the inputs   error, float64 [batch, 1]; flag, int64 [batch, 1], if the model has a threshold
 *
 * Each category costs one look-up of its weights, however many there are.
 *
 * Columns of numbers are concatenated first, so that a table with many of them needs no more nodes than one with few.
 */

#define ONNX_TABLE_OUTPUTS "trainer/outputs" /* the name of the last layer's output */

/* Values of the graph. */
#define NUMBERS    "trainer/numbers"    /* float32 [batch, numbers], scaled: the raw view of them */
#define BINS       "trainer/bins"       /* float32 [batch, bins]: the encoded view */
#define MISSING    "trainer/missing"    /* bool [batch, numbers] */
#define INDICATORS "trainer/indicators" /* float32 [batch, indicators] */
#define PLACES     "trainer/places"     /* int64 [batch, columns of categories], counted from the first place */

enum { TO_FLOAT = ONNX_FLOAT, TO_INTEGER = ONNX_INT64, TO_DOUBLE = ONNX_DOUBLE };

static bool is_number(const struct schema_column *column)
{
    return column->role == SCHEMA_FEATURE && column->kind != SCHEMA_CATEGORY;
}

static bool is_category(const struct schema_column *column)
{
    return column->role == SCHEMA_FEATURE && column->kind == SCHEMA_CATEGORY;
}

static bool is_indicated(const struct schema_column *column)
{
    return is_number(column) && column->code >= 0;
}

typedef bool column_test(const struct schema_column *column);

static int count_columns(const struct schema *schema, column_test *test)
{
    int count = 0;
    for (int i = 0; i < schema->count; i++) {
        count += test(&schema->columns[i]);
    }
    return count;
}

static void cast(struct graph *graph, const char *input, int type, const char *output)
{
    size_t node = onnx_node_begin(graph, "Cast", NULL, ONNX_NAMES(input), output);
    onnx_attribute(graph, "to", type);
    onnx_node_end(graph, node);
}

/* One integer, as the operators expect it. */
static void put_integer(struct graph *graph, const char *name, int64_t value)
{
    onnx_integers(graph, name, &value, 1);
}

/* --- names of the inputs --- */

static char *copy_name(const char *name)
{
    const size_t size = strlen(name) + 1;
    return memcpy(must_alloc(size, "a graph"), name, size);
}

/* The name of a date's part is its column's and the part's, and an underscore more while an input is called so. */
static char *part_name(const struct graph *graph, const struct schema_column *column, int part)
{
    const char *suffix = date_part_names[column->parts[part].part];
    const size_t size = strlen(column->name) + strlen(suffix) + 2 + (size_t)graph->input_count;
    char *name = must_alloc(size, "a graph");
    size_t length = (size_t)snprintf(name, size, "%s.%s", column->name, suffix);
    while (is_input_name(graph, name)) {
        name[length++] = '_';
        name[length] = '\0';
    }
    return name;
}

/* The numbers in the order of the model's inputs, then the categories in that of the columns. */
static void name_inputs(struct graph *graph, const struct schema *schema)
{
    int categories = 0;
    graph->input_count = schema->numbers + count_columns(schema, is_category);
    graph->inputs = must_zero((size_t)graph->input_count + 1, sizeof *graph->inputs, "a graph");
    for (int i = 0; i < schema->count; i++) {
        const struct schema_column *column = &schema->columns[i];
        if (is_category(column)) {
            graph->inputs[schema->numbers + categories++] = copy_name(column->name);
        } else if (is_number(column) && column->kind != SCHEMA_DATE) {
            graph->inputs[column->input] = copy_name(column->name);
        }
    }
    for (int i = 0; i < schema->count; i++) {
        const struct schema_column *column = &schema->columns[i];
        for (int part = 0; is_number(column) && column->kind == SCHEMA_DATE && part < column->part_count; part++) {
            graph->inputs[column->input + part] = part_name(graph, column, part);
        }
    }
}

static void free_names(struct graph *graph)
{
    for (int i = 0; i < graph->input_count; i++) {
        free(graph->inputs[i]);
    }
    free(graph->inputs);
}

/* --- numbers --- */

enum figure { FILL, CENTER, SCALE, LOW, HIGH };

static double figure_of(const struct schema_column *column, int part, enum figure figure)
{
    const double number[] = {column->fill, column->center, column->scale, column->low, column->high};
    const double date[] = {column->parts[part].fill, column->parts[part].center, column->parts[part].scale, -INFINITY,
                           INFINITY};
    return column->kind == SCHEMA_DATE ? date[figure] : number[figure];
}

/* One figure for every number, in the order of the inputs. */
static void put_statistics(struct graph *graph, const struct schema *schema, const char *name, enum figure figure)
{
    const int64_t length = schema->numbers;
    size_t raw;
    const size_t tensor = onnx_tensor_begin(graph, name, ONNX_DOUBLE, &length, 1, &raw);
    for (int i = 0; i < schema->count; i++) {
        for (int part = 0; is_number(&schema->columns[i]) && part < schema_numbers(&schema->columns[i]); part++) {
            const double value = figure_of(&schema->columns[i], part, figure);
            proto_raw(graph->proto, &value, sizeof value);
        }
    }
    onnx_tensor_end(graph, tensor, raw);
}

static void put_numbers(struct graph *graph, const struct schema *schema)
{
    const char **names = must_zero((size_t)schema->numbers + 1, sizeof *names, "a graph");
    for (int i = 0; i < schema->numbers; i++) {
        names[i] = graph->inputs[i];
        onnx_value(graph, ONNX_INPUT, names[i], ONNX_DOUBLE, 1);
    }
    size_t node = onnx_node_begin(graph, "Concat", NULL, names, "trainer/raw");
    onnx_attribute(graph, "axis", 1);
    onnx_node_end(graph, node);
    free(names);
    put_statistics(graph, schema, "trainer/fill", FILL);
    put_statistics(graph, schema, "trainer/low", LOW);
    put_statistics(graph, schema, "trainer/high", HIGH);
    onnx_node(graph, "IsNaN", MISSING, ONNX_NAMES("trainer/raw"), MISSING);
    onnx_node(graph, "Where", "trainer/filled", ONNX_NAMES(MISSING, "trainer/fill", "trainer/raw"), "trainer/filled");
    onnx_node(graph, "Max", "trainer/raised", ONNX_NAMES("trainer/filled", "trainer/low"), "trainer/raised");
    onnx_node(graph, "Min", "trainer/bounded", ONNX_NAMES("trainer/raised", "trainer/high"), "trainer/bounded");
}

static void put_scaled(struct graph *graph, const struct schema *schema)
{
    put_statistics(graph, schema, "trainer/center", CENTER);
    put_statistics(graph, schema, "trainer/scale", SCALE);
    onnx_node(graph, "Sub", "trainer/centered", ONNX_NAMES("trainer/bounded", "trainer/center"), "trainer/centered");
    onnx_node(graph, "Div", "trainer/scaled", ONNX_NAMES("trainer/centered", "trainer/scale"), "trainer/scaled");
    cast(graph, "trainer/scaled", TO_FLOAT, NUMBERS);
}

static int count_bins(const struct schema *schema)
{
    int count = 0;
    for (int i = 0; i < schema->piecewise; i++) {
        count += schema->bins[i];
    }
    return count;
}

/* Of every bin of every number: its lower edge, or its width. */
static void put_bins(struct graph *graph, const struct schema *schema, const char *name, bool are_widths)
{
    const int64_t length = count_bins(schema);
    size_t raw;
    const size_t tensor = onnx_tensor_begin(graph, name, ONNX_DOUBLE, &length, 1, &raw);
    for (int i = 0; i < schema->count; i++) {
        const struct schema_column *column = &schema->columns[i];
        for (int part = 0; column->piece >= 0 && part < schema_pieces(column); part++) {
            double of_part[2];
            int count;
            const double *edges = schema_edges(column, part, of_part, &count);
            for (int bin = 0; bin + 1 < count; bin++) {
                const double value = are_widths ? edges[bin + 1] - edges[bin] : edges[bin];
                proto_raw(graph->proto, &value, sizeof value);
            }
        }
    }
    onnx_tensor_end(graph, tensor, raw);
}

/* Each bin takes the number that it is of, and is filled from its lower edge to its upper one. */
static void put_encoded(struct graph *graph, const struct schema *schema)
{
    static const double least = 0, most = 1;
    const int bins = count_bins(schema);
    int64_t *sources = must_zero((size_t)bins + 1, sizeof *sources, "a graph");
    for (int i = 0, next = 0; i < schema->count; i++) {
        const struct schema_column *column = &schema->columns[i];
        for (int part = 0; column->piece >= 0 && part < schema_pieces(column); part++) {
            for (int bin = 0; bin < schema->bins[column->piece + part]; bin++) {
                sources[next++] = column->input + part;
            }
        }
    }
    onnx_integers(graph, "trainer/bin_columns", sources, bins);
    free(sources);
    put_bins(graph, schema, "trainer/bin_edges", false);
    put_bins(graph, schema, "trainer/bin_widths", true);
    onnx_doubles(graph, "trainer/bin_empty", &least, 1);
    onnx_doubles(graph, "trainer/bin_full", &most, 1);
    size_t node = onnx_node_begin(graph, "Gather", NULL, ONNX_NAMES("trainer/bounded", "trainer/bin_columns"),
                                  "trainer/bin_numbers");
    onnx_attribute(graph, "axis", 1);
    onnx_node_end(graph, node);
    onnx_node(graph, "Sub", "trainer/bin_above", ONNX_NAMES("trainer/bin_numbers", "trainer/bin_edges"),
              "trainer/bin_above");
    onnx_node(graph, "Div", "trainer/bin_shares", ONNX_NAMES("trainer/bin_above", "trainer/bin_widths"),
              "trainer/bin_shares");
    onnx_node(graph, "Max", "trainer/bin_raised", ONNX_NAMES("trainer/bin_shares", "trainer/bin_empty"),
              "trainer/bin_raised");
    onnx_node(graph, "Min", "trainer/bin_bounded", ONNX_NAMES("trainer/bin_raised", "trainer/bin_full"),
              "trainer/bin_bounded");
    cast(graph, "trainer/bin_bounded", TO_FLOAT, BINS);
}

/* The indicators of missing numbers; their positions are another constant. Nothing if there are none. */
static void put_indicators(struct graph *graph, const struct schema *schema, int count)
{
    int64_t *columns = must_zero((size_t)count + 1, sizeof *columns, "a graph");
    int64_t *places = must_zero((size_t)count + 1, sizeof *places, "a graph");
    for (int i = 0, next = 0; i < schema->count; i++) {
        if (is_indicated(&schema->columns[i])) {
            columns[next] = schema->columns[i].input;
            places[next++] = schema->columns[i].place;
        }
    }
    onnx_integers(graph, "trainer/indicator_columns", columns, count);
    onnx_integers(graph, "trainer/indicator_places", places, count);
    size_t node = onnx_node_begin(graph, "Gather", NULL, ONNX_NAMES(MISSING, "trainer/indicator_columns"),
                                  "trainer/indicator_flags");
    onnx_attribute(graph, "axis", 1);
    onnx_node_end(graph, node);
    cast(graph, "trainer/indicator_flags", TO_FLOAT, INDICATORS);
    free(columns);
    free(places);
}

/* --- categories --- */

static size_t count_letters(const char *mark)
{
    size_t letters = 0;
    for (; *mark; mark++) {
        letters += isalpha((unsigned char)*mark) != 0;
    }
    return letters;
}

/* All ways to write the marks of missing values in capitals and small letters. */
static int64_t count_spellings(void)
{
    int64_t count = 0;
    for (const char *const *mark = number_missing_marks; *mark; mark++) {
        count += (int64_t)1 << count_letters(*mark);
    }
    return count;
}

static void put_spellings(struct graph *graph, const char *mark)
{
    char text[NUMBER_MARK];
    const size_t length = strlen(mark);
    for (unsigned capitals = 0; capitals < 1u << length; capitals++) {
        bool is_another = true;
        for (size_t i = 0; i <= length; i++) {
            const bool is_capital = capitals >> i & 1;
            text[i] = is_capital ? (char)toupper((unsigned char)mark[i]) : mark[i];
            is_another = is_another && (!is_capital || text[i] != mark[i]);
        }
        if (is_another) {
            onnx_attribute_text(graph, text);
        }
    }
}

/* Texts to positions: the categories, then the one for a missing value. */
static void put_column_of_categories(struct graph *graph, const struct schema *schema,
                                     const struct schema_column *column, const char *input, const char *output)
{
    const struct string_list *missing = &schema->missing;
    const int64_t marks = column->may_miss ? count_spellings() + missing->count : 0;
    const int first = column->place, count = column->categories.count;
    int64_t *places = must_zero((size_t)(count + marks) + 1, sizeof *places, "a graph");
    for (int64_t i = 0; i < count + marks; i++) {
        places[i] = first + 1 + (i < count ? i : count);
    }
    size_t node = onnx_node_begin(graph, "LabelEncoder", ONNX_ML, ONNX_NAMES(input), output);
    size_t keys = onnx_attribute_texts_begin(graph, "keys_strings");
    for (int i = 0; i < count; i++) {
        onnx_attribute_text(graph, dictionary_text(&column->categories, i));
    }
    for (const char *const *mark = number_missing_marks; column->may_miss && *mark; mark++) {
        put_spellings(graph, *mark);
    }
    for (int i = 0; column->may_miss && i < missing->count; i++) {
        onnx_attribute_text(graph, missing->items[i]);
    }
    onnx_attribute_end(graph, keys);
    onnx_attribute_list(graph, "values_int64s", places, (size_t)(count + marks));
    onnx_attribute(graph, "default_int64", first);
    onnx_node_end(graph, node);
    free(places);
}

static void put_categories(struct graph *graph, const struct schema *schema, int count)
{
    enum { NAME = 40 };
    char *texts = must_zero((size_t)count, NAME, "a graph");
    const char **names = must_zero((size_t)count + 1, sizeof *names, "a graph");
    for (int i = 0, next = 0; i < schema->count; i++) {
        const struct schema_column *column = &schema->columns[i];
        if (is_category(column)) {
            char *name = texts + (size_t)next * NAME;
            snprintf(name, NAME, "trainer/place_%d", next);
            const char *input = graph->inputs[schema->numbers + next];
            onnx_value(graph, ONNX_INPUT, input, ONNX_STRING, 1);
            put_column_of_categories(graph, schema, column, input, name);
            names[next++] = name;
        }
    }
    size_t node = onnx_node_begin(graph, "Concat", NULL, names, PLACES);
    onnx_attribute(graph, "axis", 1);
    onnx_node_end(graph, node);
    free(texts);
    free(names);
}

/* --- the first layer --- */

static void sum_over(struct graph *graph, const char *input, const char *output)
{
    size_t node = onnx_node_begin(graph, "ReduceSum", NULL, ONNX_NAMES(input, "trainer/one"), output);
    onnx_attribute(graph, "keepdims", 0);
    onnx_node_end(graph, node);
}

/* Rows [first, end) of a net's first weights. */
static const char *slice(struct graph *graph, const char *weights, int first, int end, const char *name)
{
    const char *from = own(graph, "trainer/from"), *to = own(graph, "trainer/to"), *rows = own(graph, name);
    char named[2][64];
    snprintf(named[0], sizeof named[0], "%s_%d", from, first);
    snprintf(named[1], sizeof named[1], "%s_%d", to, end);
    put_integer(graph, named[0], first);
    put_integer(graph, named[1], end);
    onnx_node(graph, "Slice", rows, ONNX_NAMES(weights, named[0], named[1]), rows);
    return rows;
}

/*
 * One net's first layer, its sums under the name `sums`: they are its biases, the numbers or bins times their weights,
 * and the weights at the places that are 1.
 */
static void put_first_layer(struct graph *graph, const struct schema *schema, const struct model *model,
                            const char *sums)
{
    const bool takes_bins = schema->encoding == ENCODING_PLE || model->views[0] == VIEW_PIECEWISE;
    const int inputs = model->widths[0], dense = takes_bins ? count_bins(schema) : schema->numbers;
    const char *weights = model->variables[0].name, *biases = model->variables[1].name, *so_far = biases;
    const bool indicates = count_columns(schema, is_indicated) > 0, classifies = count_columns(schema, is_category) > 0;
    if (dense > 0) {
        const char *rows = slice(graph, weights, 0, dense, "trainer/weights");
        so_far = indicates || classifies ? own(graph, "trainer/sums") : sums;
        onnx_node(graph, "Gemm", own(graph, "trainer/gemm"), ONNX_NAMES(takes_bins ? BINS : NUMBERS, rows, biases),
                  so_far);
    }
    if (indicates || classifies) {
        weights = slice(graph, weights, dense, inputs, "trainer/place_weights");
    }
    if (indicates) {
        const char *indicating = own(graph, "trainer/indicator_weights"), *sum = own(graph, "trainer/indicated");
        onnx_node(graph, "Gather", indicating, ONNX_NAMES(weights, "trainer/indicator_places"), indicating);
        onnx_node(graph, "MatMul", sum, ONNX_NAMES(INDICATORS, indicating), sum);
        const char *output = classifies ? own(graph, "trainer/sums_indicated") : sums;
        onnx_node(graph, "Add", output, ONNX_NAMES(so_far, sum), output);
        so_far = output;
    }
    if (classifies) {
        const char *chosen = own(graph, "trainer/chosen"), *coded = own(graph, "trainer/coded");
        onnx_node(graph, "Gather", chosen, ONNX_NAMES(weights, PLACES), chosen);
        sum_over(graph, chosen, coded);
        onnx_node(graph, "Add", sums, ONNX_NAMES(coded, so_far), sums);
    }
}

/* Ones at the positions, [batch, positions], from `indexes` [batch, n], or [n] if there is one row of each. */
static void put_ones(struct graph *graph, const char *indexes, const char *output)
{
    onnx_node(graph, "OneHot", output, ONNX_NAMES(indexes, "trainer/places_count", "trainer/off_and_on"), output);
}

/* The inputs as the first layer sees them, with which an anomaly detector compares its outputs. */
static void put_dense_inputs(struct graph *graph, const struct schema *schema, int indicators, int categories)
{
    static const float off_and_on[] = {0, 1};
    const char *ones = NULL;
    if (categories > 0 || indicators > 0) {
        const int64_t length = 2;
        size_t raw;
        const size_t tensor = onnx_tensor_begin(graph, "trainer/off_and_on", ONNX_FLOAT, &length, 1, &raw);
        proto_raw(graph->proto, off_and_on, sizeof off_and_on);
        onnx_tensor_end(graph, tensor, raw);
        put_integer(graph, "trainer/places_count", schema->inputs - schema->numbers);
    }
    if (categories > 0) {
        put_ones(graph, PLACES, "trainer/hot");
        ones = "trainer/ones";
        sum_over(graph, "trainer/hot", ones);
    }
    if (indicators > 0) {
        put_ones(graph, "trainer/indicator_places", "trainer/hot_indicators");
        onnx_node(graph, "MatMul", "trainer/indicator_ones", ONNX_NAMES(INDICATORS, "trainer/hot_indicators"),
                  "trainer/indicator_ones");
        if (ones) {
            onnx_node(graph, "Add", "trainer/all_ones", ONNX_NAMES(ones, "trainer/indicator_ones"), "trainer/all_ones");
        }
        ones = ones ? "trainer/all_ones" : "trainer/indicator_ones";
    }
    const char *const parts[] = {schema->numbers > 0 ? NUMBERS : ones, schema->numbers > 0 ? ones : NULL, NULL};
    size_t node = onnx_node_begin(graph, "Concat", NULL, parts, "trainer/inputs");
    onnx_attribute(graph, "axis", 1);
    onnx_node_end(graph, node);
}

/* From the columns to what the first layers of all nets take. */
static void onnx_table_inputs(struct graph *graph, const struct schema *schema)
{
    const int indicators = count_columns(schema, is_indicated), categories = count_columns(schema, is_category);
    if (schema->numbers > 0) {
        put_numbers(graph, schema);
    }
    if (schema->numbers > 0 && schema->encoding != ENCODING_PLE) {
        put_scaled(graph, schema);
    }
    if (schema->piecewise > 0) {
        put_encoded(graph, schema);
    }
    if (indicators > 0) {
        put_indicators(graph, schema, indicators);
    }
    if (categories > 0) {
        put_integer(graph, "trainer/one", 1);
        put_categories(graph, schema, categories);
    }
    if (schema->task == TASK_INPUTS) {
        put_dense_inputs(graph, schema, indicators, categories);
    }
}

/* --- answers --- */

/* 1 where a value is at least the threshold (or, if strict, above it), 0 elsewhere. */
static void put_decision(struct graph *graph, const char *value, const char *op, double threshold, const char *output)
{
    onnx_doubles(graph, "trainer/threshold", &threshold, 1);
    onnx_node(graph, op, "trainer/decided", ONNX_NAMES(value, "trainer/threshold"), "trainer/decided");
    cast(graph, "trainer/decided", TO_INTEGER, output);
}

/* The outputs of which probabilities are made: multiplied, if the model is calibrated. */
static const char *put_calibrated(struct graph *graph, double temperature)
{
    const float factor = (float)calibration_factor(temperature);
    const int64_t length = 1;
    size_t raw = 0;
    if (temperature == 0) {
        return ONNX_TABLE_OUTPUTS;
    }
    const size_t tensor = onnx_tensor_begin(graph, "trainer/calibration", ONNX_FLOAT, &length, 1, &raw);
    proto_raw(graph->proto, &factor, sizeof factor);
    onnx_tensor_end(graph, tensor, raw);
    onnx_node(graph, "Mul", "trainer/calibrated", ONNX_NAMES(ONNX_TABLE_OUTPUTS, "trainer/calibration"),
              "trainer/calibrated");
    return "trainer/calibrated";
}

static void put_class(struct graph *graph, const struct schema *schema, double threshold, double temperature)
{
    const char *chosen = "trainer/chosen_class";
    const char *outputs = put_calibrated(graph, temperature);
    onnx_node(graph, "Softmax", "softmax", ONNX_NAMES(outputs), "probabilities");
    if (schema->classes == 2 && !isnan(threshold)) {
        if (count_columns(schema, is_category) == 0) {
            put_integer(graph, "trainer/one", 1);
        }
        size_t node =
            onnx_node_begin(graph, "Gather", NULL, ONNX_NAMES("probabilities", "trainer/one"), "trainer/second");
        onnx_attribute(graph, "axis", 1);
        onnx_node_end(graph, node);
        cast(graph, "trainer/second", TO_DOUBLE, "trainer/score");
        put_decision(graph, "trainer/score", "GreaterOrEqual", threshold, chosen);
    } else {
        size_t node = onnx_node_begin(graph, "ArgMax", NULL, ONNX_NAMES(ONNX_TABLE_OUTPUTS), chosen);
        onnx_attribute(graph, "axis", 1);
        onnx_node_end(graph, node);
    }
    int64_t *keys = must_zero((size_t)schema->classes, sizeof *keys, "a graph");
    for (int i = 0; i < schema->classes; i++) {
        keys[i] = i;
    }
    size_t node = onnx_node_begin(graph, "LabelEncoder", ONNX_ML, ONNX_NAMES(chosen), "prediction");
    onnx_attribute_list(graph, "keys_int64s", keys, (size_t)schema->classes);
    size_t values = onnx_attribute_texts_begin(graph, "values_strings");
    for (int i = 0; i < schema->classes; i++) {
        onnx_attribute_text(graph, schema_output_name(schema, i));
    }
    onnx_attribute_end(graph, values);
    onnx_node_end(graph, node);
    free(keys);
    onnx_value(graph, ONNX_OUTPUT, "prediction", ONNX_STRING, 1);
    onnx_value(graph, ONNX_OUTPUT, "probabilities", ONNX_FLOAT, schema->classes);
}

static void put_flags(struct graph *graph, const struct schema *schema, double threshold, double temperature)
{
    const char *outputs = put_calibrated(graph, temperature);
    onnx_node(graph, "Sigmoid", "sigmoid", ONNX_NAMES(outputs), "probabilities");
    cast(graph, "probabilities", TO_DOUBLE, "trainer/score");
    put_decision(graph, "trainer/score", "GreaterOrEqual", schema->targets == 1 && !isnan(threshold) ? threshold : 0.5,
                 "prediction");
    onnx_value(graph, ONNX_OUTPUT, "prediction", ONNX_INT64, schema->targets);
    onnx_value(graph, ONNX_OUTPUT, "probabilities", ONNX_FLOAT, schema->targets);
}

static void put_bound(struct graph *graph, const char *name, const char *constant, const double *bounds, int targets)
{
    onnx_doubles(graph, constant, bounds, targets);
    onnx_node(graph, "Add", name, ONNX_NAMES("prediction", constant), name);
    onnx_value(graph, ONNX_OUTPUT, name, ONNX_DOUBLE, targets);
}

static void put_target_numbers(struct graph *graph, const struct schema *schema, const struct interval *interval)
{
    onnx_doubles(graph, "trainer/target_scales", schema->target_scales, schema->targets);
    onnx_doubles(graph, "trainer/target_means", schema->target_means, schema->targets);
    cast(graph, ONNX_TABLE_OUTPUTS, TO_DOUBLE, "trainer/exact");
    onnx_node(graph, "Mul", "trainer/spread", ONNX_NAMES("trainer/exact", "trainer/target_scales"), "trainer/spread");
    onnx_node(graph, "Add", "prediction", ONNX_NAMES("trainer/spread", "trainer/target_means"), "prediction");
    onnx_value(graph, ONNX_OUTPUT, "prediction", ONNX_DOUBLE, schema->targets);
    if (interval && interval->coverage > 0) {
        put_bound(graph, "interval_low", "trainer/interval_low", interval->low, schema->targets);
        put_bound(graph, "interval_high", "trainer/interval_high", interval->high, schema->targets);
    }
}

static void put_error(struct graph *graph, double threshold)
{
    cast(graph, "trainer/inputs", TO_DOUBLE, "trainer/wanted");
    cast(graph, ONNX_TABLE_OUTPUTS, TO_DOUBLE, "trainer/exact");
    onnx_node(graph, "Sub", "trainer/difference", ONNX_NAMES("trainer/exact", "trainer/wanted"), "trainer/difference");
    onnx_node(graph, "Mul", "trainer/squares", ONNX_NAMES("trainer/difference", "trainer/difference"),
              "trainer/squares");
    size_t node = onnx_node_begin(graph, "ReduceMean", NULL, ONNX_NAMES("trainer/squares"), "error");
    onnx_attribute_list(graph, "axes", &(int64_t){1}, 1);
    onnx_node_end(graph, node);
    onnx_value(graph, ONNX_OUTPUT, "error", ONNX_DOUBLE, 1);
    if (!isnan(threshold)) {
        put_decision(graph, "error", "Greater", threshold, "flag");
        onnx_value(graph, ONNX_OUTPUT, "flag", ONNX_INT64, 1);
    }
}

/* From the outputs of the last layer to the predictions. */
static void onnx_table_outputs(struct graph *graph, const struct onnx_model *model)
{
    const struct schema *schema = model->schema;
    switch (schema->task) {
    case TASK_CLASS:
        put_class(graph, schema, model->threshold, model->temperature);
        break;
    case TASK_FLAGS:
        put_flags(graph, schema, model->threshold, model->temperature);
        break;
    case TASK_NUMBERS:
        put_target_numbers(graph, schema, model->interval);
        break;
    case TASK_INPUTS:
        put_error(graph, model->threshold);
        break;
    }
}

/* --- The file --- */

/* The file around the graph, and the layers within it. */

enum {
    IR_VERSION = 7, /* the version of operator set 13; supported by onnxruntime since 1.6 */
    OPSET = 13,
    ML_OPSET = 2,
    MOST_BYTES = 0x7FF00000, /* protobuf's limit of 2 GiB, with room for names */
};

/* ModelProto, GraphProto; OperatorSetIdProto */
enum {
    MODEL_IR = 1,
    MODEL_PRODUCER = 2,
    MODEL_VERSION = 3,
    MODEL_DOC = 6,
    MODEL_GRAPH = 7,
    MODEL_OPSET = 8,
    MODEL_META = 14
};
enum { GRAPH_NAME = 2 };
enum { OPSET_DOMAIN = 1, OPSET_VERSION = 2 };

static void put_variable(struct graph *graph, const struct variable *variable, const float *values)
{
    int64_t shape[2] = {variable->is_weights ? variable->rows : variable->cols, variable->cols};
    size_t raw,
        tensor = onnx_tensor_begin(graph, variable->name, ONNX_FLOAT, shape, variable->is_weights ? 2 : 1, &raw);
    for (int row = 0; row < variable->rows; row++) {
        proto_raw(graph->proto, values + variable->offset + (size_t)row * (size_t)variable->stride,
                  (size_t)variable->cols * sizeof *values);
    }
    onnx_tensor_end(graph, tensor, raw);
}

/* From the first layer's input on; or, for a table, from its sums, which are there already. */
static void put_layers(struct graph *graph, const struct model *model, const char *logits, bool has_first)
{
    static const char *const operators[] = {[ACTIVATION_RELU] = "Relu",
                                            [ACTIVATION_SIGMOID] = "Sigmoid",
                                            [ACTIVATION_TANH] = "Tanh",
                                            [ACTIVATION_IDENTITY] = "Identity"};
    char input[48] = "images", sums[48], name[48], output[48];
    for (int layer = 0; layer < model->layer_count; layer++) {
        bool last = layer == model->layer_count - 1;
        snprintf(sums, sizeof sums, "%slayer%d/sums", graph->net, layer);
        snprintf(name, sizeof name, "%slayer%d/gemm", graph->net, layer);
        if (layer > 0 || !has_first) {
            onnx_node(graph, "Gemm", name,
                      ONNX_NAMES(input, model->variables[2 * layer].name, model->variables[2 * layer + 1].name),
                      last ? logits : sums);
        }
        if (last) {
            break;
        }
        snprintf(name, sizeof name, "%slayer%d/activation", graph->net, layer);
        snprintf(output, sizeof output, "%slayer%d/activations", graph->net, layer);
        onnx_node(graph, operators[model->activation], name, ONNX_NAMES(sums), output);
        snprintf(input, sizeof input, "%s", output);
    }
}

/* From a net's inputs to `logits`. */
static void put_net(struct graph *graph, const struct onnx_model *model, const struct model *net, const char *logits)
{
    if (model->schema) {
        put_first_layer(graph, model->schema, net, net->layer_count > 1 ? own(graph, "layer0/sums") : logits);
    }
    put_layers(graph, net, logits, model->schema);
}

/* Such logits as mean the average of the nets' probabilities, or the average of their numbers. */
static void put_average(struct graph *graph, const char *const *outputs, const char *op, const char *logits)
{
    const char *averages[CONFIG_MAX_NETS + 1] = {NULL};
    char names[CONFIG_MAX_NETS][48];
    if (!op) {
        onnx_node(graph, "Mean", "nets/mean", outputs, logits);
        return;
    }
    for (int net = 0; outputs[net]; net++) {
        snprintf(names[net], sizeof names[net], "net%d/probabilities", net);
        averages[net] = names[net];
        onnx_node(graph, op, names[net], ONNX_NAMES(outputs[net]), names[net]);
    }
    onnx_node(graph, "Mean", "nets/mean", averages, "nets/mean");
    if (strcmp(op, "Softmax") == 0) {
        onnx_node(graph, "Log", "nets/logits", ONNX_NAMES("nets/mean"), logits);
        return;
    }
    static const float one = 1;
    const int64_t length = 1;
    size_t raw = 0;
    const size_t tensor = onnx_tensor_begin(graph, "nets/one", ONNX_FLOAT, &length, 1, &raw);
    proto_raw(graph->proto, &one, sizeof one);
    onnx_tensor_end(graph, tensor, raw);
    onnx_node(graph, "Sub", "nets/complement", ONNX_NAMES("nets/one", "nets/mean"), "nets/complement");
    onnx_node(graph, "Div", "nets/odds", ONNX_NAMES("nets/mean", "nets/complement"), "nets/odds");
    onnx_node(graph, "Log", "nets/logits", ONNX_NAMES("nets/odds"), logits);
}

/* All nets, from their inputs to `logits`. */
static void put_nets(struct graph *graph, const struct onnx_model *model, const char *logits)
{
    const struct model *whole = model->model;
    const char *outputs[CONFIG_MAX_NETS + 1] = {NULL};
    char prefixes[CONFIG_MAX_NETS][16], names[CONFIG_MAX_NETS][48];
    if (whole->net_count == 1) {
        put_net(graph, model, whole, logits);
        return;
    }
    for (int net = 0; net < whole->net_count; net++) {
        struct model one;
        model_net(whole, net, &one);
        snprintf(prefixes[net], sizeof prefixes[net], "net%d/", net);
        snprintf(names[net], sizeof names[net], "net%d/outputs", net);
        outputs[net] = names[net];
        graph->net = prefixes[net];
        put_net(graph, model, &one, names[net]);
    }
    graph->net = "";
    put_average(graph, outputs,
                !model->schema || model->schema->task == TASK_CLASS ? "Softmax"
                : model->schema->task == TASK_FLAGS                 ? "Sigmoid"
                                                                    : NULL,
                logits);
}

static void put_picture_graph(struct graph *graph, const struct onnx_model *model)
{
    const int classes = model->model->widths[model->model->layer_count];
    put_nets(graph, model, "logits");
    onnx_node(graph, "Softmax", "softmax", ONNX_NAMES("logits"), "probabilities");
    onnx_value(graph, ONNX_INPUT, "images", ONNX_FLOAT, model->model->widths[0]);
    onnx_value(graph, ONNX_OUTPUT, "logits", ONNX_FLOAT, classes);
    onnx_value(graph, ONNX_OUTPUT, "probabilities", ONNX_FLOAT, classes);
}

static void put_table_graph(struct graph *graph, const struct onnx_model *model)
{
    onnx_table_inputs(graph, model->schema);
    put_nets(graph, model, ONNX_TABLE_OUTPUTS);
    onnx_table_outputs(graph, model);
}

static void put_opset(struct proto *proto, const char *domain, int version)
{
    size_t opset = proto_begin(proto, MODEL_OPSET);
    proto_text(proto, OPSET_DOMAIN, domain);
    proto_integer(proto, OPSET_VERSION, version);
    proto_end(proto, opset);
}

bool onnx_encode(struct proto *proto, const struct onnx_model *model, struct error *error)
{
    const struct model *layers = model->model;
    struct graph graph = {.proto = proto, .net = ""};
    *proto = (struct proto){0};
    if (layers->parameter_count * sizeof *model->parameters > MOST_BYTES) {
        return error_set(
            error,
            "the model has %zu MiB of parameters, but an ONNX file holds at most 2 GiB; use --format=safetensors",
            layers->parameter_count * sizeof *model->parameters >> 20);
    }
    proto_integer(proto, MODEL_IR, IR_VERSION);
    proto_text(proto, MODEL_PRODUCER, "trainer");
    proto_text(proto, MODEL_VERSION, version_trainer());
    proto_text(proto, MODEL_DOC,
               model->schema
                   ? "one input [batch, 1] per column: float64 for numbers (NaN: missing), text for categories"
                   : "images: float32 [batch, inputs], pixels divided by 255");
    const size_t begun = proto_begin(proto, MODEL_GRAPH);
    if (model->schema) {
        name_inputs(&graph, model->schema);
        put_table_graph(&graph, model);
    } else {
        put_picture_graph(&graph, model);
    }
    proto_text(proto, GRAPH_NAME, "trainer");
    for (int i = 0; i < layers->variable_count; i++) {
        put_variable(&graph, &layers->variables[i], model->parameters);
    }
    proto_end(proto, begun);
    free_names(&graph);
    put_opset(proto, "", OPSET);
    if (model->schema) {
        put_opset(proto, ONNX_ML, ML_OPSET);
    }
    for (int i = 0; i < model->property_count; i++) {
        size_t property = proto_begin(proto, MODEL_META);
        proto_text(proto, 1, model->properties[i].key);
        proto_text(proto, 2, model->properties[i].value);
        proto_end(proto, property);
    }
    return true;
}
