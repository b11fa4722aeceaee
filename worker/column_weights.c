/* Inputs are scaled alike, so that their weights can be compared; of a column's categories one is set at a time. */
#include "worker/column_weights.h"

#include <math.h>
#include <stdio.h>

double column_weights_square(const float *row, int units)
{
    double sum = 0;
    for (int i = 0; i < units; i++) {
        sum += (double)row[i] * (double)row[i];
    }
    return sum / units;
}

static double weight_of(const struct schema *schema, const struct schema_column *column, const double *squares)
{
    const int places = column->categories.count;
    double sum = 0;
    if (column->kind != SCHEMA_CATEGORY) {
        const bool is_encoded = schema->encoding == ENCODING_PLE;
        const int numbers = !is_encoded                                               ? schema_numbers(column)
                            : column->kind == SCHEMA_NUMBER && column->edge_count > 0 ? column->edge_count - 1
                                                                                      : schema_pieces(column);
        const int input = is_encoded ? column->bin : column->input;
        for (int i = 0; i < numbers && input >= 0 && input + i < schema->inputs; i++) {
            sum += squares[input + i];
        }
        return numbers > 0 ? sqrt(sum / numbers) : 0;
    }
    const int first = schema->dense + column->place;
    for (int i = 0; i < places && column->place >= 0 && first + i < schema->inputs; i++) {
        sum += squares[first + i];
    }
    return places > 0 ? sqrt(sum / places) : 0;
}

int column_weights(struct weighed_column *columns, const struct schema *schema, const double *squares)
{
    double all = 0;
    int count = 0;
    for (int i = 0; i < schema->count && count < COLUMN_WEIGHTS_MOST; i++) {
        if (schema->columns[i].role == SCHEMA_FEATURE) {
            snprintf(columns[count].name, sizeof columns[count].name, "%.63s", schema->columns[i].name);
            columns[count].share = weight_of(schema, &schema->columns[i], squares);
            all += columns[count++].share;
        }
    }
    for (int i = 0; i < count && all > 0; i++) {
        columns[i].share /= all;
    }
    return count;
}

void column_weights_write(struct text_buffer *text, const struct weighed_column *columns, int count)
{
    json_write_open(text, NULL, '{');
    json_write_open(text, "columns", '[');
    for (int i = 0; i < count; i++) {
        json_write_open(text, NULL, '{');
        json_write_string(text, "name", columns[i].name);
        json_write_number(text, "importance", columns[i].share);
        json_write_close(text, '}');
    }
    json_write_close(text, ']');
    json_write_close(text, '}');
}
