/*
 * The schema for a table's columns, from a settled survey and the config: what the model learns, and how each column
 * becomes inputs or targets.
 */
#ifndef WORKER_DATA_TABLE_SURVEY_SCHEMA_H
#define WORKER_DATA_TABLE_SURVEY_SCHEMA_H

#include <stdbool.h>

#include "base/config.h"
#include "base/error.h"
#include "worker/data/table/schema.h"
#include "worker/data/table/survey.h"

/*
 * name: of the data, for errors. Moves the categories' values from the survey to the schema, so call it once. Logs
 * warnings about columns that carry no information. False, with an empty schema, if the config and the data don't fit
 * together or if out of memory; otherwise the caller calls schema_free.
 */
bool survey_schema(struct survey *survey, const struct config *config, const char *name, struct schema *schema,
                   struct error *error);

/* True if what is learned of these columns is classes, because the config says so, or else the data. */
bool survey_has_classes(const struct survey *survey, const struct config *config);

#endif
