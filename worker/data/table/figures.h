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

/* FIGURES_REFUSED: the survey is as it was. FIGURES_NO_MEMORY: it is unusable. */
enum figures_result { FIGURES_MERGED, FIGURES_REFUSED, FIGURES_NO_MEMORY };

/*
 * Adds another survey's figures, from an untrusted text, to a settled survey. Refuses them if they are damaged, or if
 * the columns or their kinds differ: the error names the column. The text is read in place, and what it may add to the
 * survey is bounded as for rows (survey_count).
 */
enum figures_result figures_merge(struct survey *survey, const char *text, struct error *error);

#endif
