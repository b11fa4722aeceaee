/*
 * A checkpoint's preprocessing as arbitrary text: refused with a one-line message, or columns within the inputs that
 * are written again as they were understood.
 */
#include "tests/fuzz/fuzz.h"

#include <math.h>

#include "worker/data/table/schema.h"

/* Read in place: a category takes at least four bytes of the text. The text is written again, and parsed again. */
FUZZ_MEMORY(256, 1 << 20)

static void check_columns(const struct schema *schema)
{
    int features = 0;
    for (int i = 0; i < schema->count; i++) {
        const struct schema_column *column = &schema->columns[i];
        assert(column->name && column->role >= SCHEMA_FEATURE && column->role <= SCHEMA_WEIGHT);
        assert(column->place == -1 || (column->place >= 0 && column->place < schema->inputs - schema->dense));
        assert(column->kind != SCHEMA_NUMBER || (isfinite(column->scale) && isfinite(column->center)));
        features += column->role == SCHEMA_FEATURE;
    }
    assert(features == schema_features(schema) && schema_outputs(schema) > 0);
    for (int i = 0; i < schema_outputs(schema); i++) {
        assert(schema->task == TASK_INPUTS || schema_output_name(schema, i));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct schema schema, again;
    struct error error = {""};
    char *text = text_of(bytes, size);
    if (schema_parse(&schema, text, &error)) {
        check_columns(&schema);
        assert(schema_parse(&again, schema.text, &error) && strcmp(again.text, schema.text) == 0);
        assert(schema_same(&schema, &again, &error));
        schema_free(&again);
        schema_free(&schema);
    } else {
        check_beginning(&error, "");
    }
    free(text);
    return 0;
}
