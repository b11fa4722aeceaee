/* What comes of a settled survey: a schema for the table's columns, and its figures as JSON for other machines. */
#ifndef WORKER_DATA_TABLE_SURVEY_SCHEMA_H
#define WORKER_DATA_TABLE_SURVEY_SCHEMA_H

#include <stdbool.h>

#include "base/config.h"
#include "base/error.h"
#include "worker/data/table/schema.h"
#include "worker/data/table/survey.h"

/*
 * The schema for a table's columns, from a settled survey and the config: what the model learns, and how each column
 * becomes inputs or targets.
 *
 * name: of the data, for errors. Moves the categories' values from the survey to the schema, so call it once. Logs
 * warnings about columns that carry no information. False, with an empty schema, if the config and the data don't fit
 * together or if out of memory; otherwise the caller calls schema_free.
 */
bool survey_schema(struct survey *survey, const struct config *config, const char *name, struct schema *schema,
                   struct error *error);

/* True if what is learned of these columns is classes, because the config says so, or else the data. */
bool survey_has_classes(const struct survey *survey, const struct config *config);

/* --- Figures --- */

/*
 * A survey's results as JSON, so that rows that stay on several machines get the preprocessing that they would get
 * together: counts, extremes, means, deviations and categories merge exactly, up to the rounding of sums. Only
 * quantiles can't be merged.
 *
 * The text reveals every category of a column, and how often it occurs.
 */

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
