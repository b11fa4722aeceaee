/* The one thing that every source of examples and every user of them does with them as a whole. */
#include "worker/data/examples.h"

#include <stdlib.h>
#include <string.h>

void examples_free(struct examples *examples)
{
    free(examples->images);
    free(examples->labels);
    memset(examples, 0, sizeof *examples);
}
