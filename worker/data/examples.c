/* What every source of examples and every user of them does with them as a whole. */
#include "worker/data/examples.h"

#include <stdlib.h>
#include <string.h>

struct examples examples_part(const struct examples *examples, int first, int count)
{
    struct examples part = *examples;
    size_t skip = (size_t)first;
    part.count = count;
    part.images = part.images ? part.images + skip * (size_t)part.height * (size_t)part.width : NULL;
    part.values = part.values ? part.values + skip * (size_t)part.numbers : NULL;
    part.places = part.places ? part.places + skip * (size_t)part.codes : NULL;
    part.labels = part.labels ? part.labels + skip : NULL;
    part.target_values = part.target_values ? part.target_values + skip * (size_t)part.targets : NULL;
    part.weights = part.weights ? part.weights + skip : NULL;
    return part;
}

void examples_free(struct examples *examples)
{
    free(examples->images);
    free(examples->values);
    free(examples->places);
    free(examples->labels);
    free(examples->target_values);
    free(examples->weights);
    memset(examples, 0, sizeof *examples);
}
