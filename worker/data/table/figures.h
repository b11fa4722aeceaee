/*
 * A survey's results as JSON, so that rows that stay on several machines get the preprocessing that they would get
 * together: counts, extremes, means, deviations and categories merge exactly, up to the rounding of sums. Only
 * quantiles can't be merged.
 *
 * The text reveals every category of a column, and how often it occurs.
 */
#ifndef WORKER_DATA_TABLE_FIGURES_H
#define WORKER_DATA_TABLE_FIGURES_H

#include <stdbool.h>

#include "base/error.h"
#include "worker/data/table/survey.h"

/* The survey must be settled; the caller frees the text. NULL: out of memory. */
char *figures_text(const struct survey *survey);

/*
 * Adds another survey's figures, from an untrusted text, to a settled survey. Fails if its columns or their kinds
 * differ: the error names the column. After a failure the survey is unusable.
 */
bool figures_merge(struct survey *survey, const char *text, struct error *error);

#endif
