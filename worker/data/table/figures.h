/*
 * What a survey found, as JSON, so that rows which stay on several machines have the preprocessing that they would have
 * together: counts, extremes, means, deviations and categories are merged exactly, up to the rounding of sums. Only
 * quantiles can't be.
 *
 * Who reads the text learns every category of a column, and how often it occurs.
 */
#ifndef WORKER_DATA_TABLE_FIGURES_H
#define WORKER_DATA_TABLE_FIGURES_H

#include <stdbool.h>

#include "base/error.h"
#include "worker/data/table/survey.h"

/* Of a survey that is settled; the caller frees it. NULL: out of memory. */
char *figures_text(const struct survey *survey);

/*
 * Adds another survey's figures, from a text that need not be trusted, to one that is settled. Fails if its columns are
 * others, or of other kinds: the error names the column. After a failure the survey is good for nothing.
 */
bool figures_merge(struct survey *survey, const char *text, struct error *error);

#endif
