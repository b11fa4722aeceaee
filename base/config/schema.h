/* The table of keys as a JSON Schema (draft 2020-12), for editors and other people's checks. */
#ifndef BASE_CONFIG_SCHEMA_H
#define BASE_CONFIG_SCHEMA_H

#include <cJSON.h>

/*
 * Accepts what config_parse accepts, but for relations between keys. "x-scope" and "x-change" say of each key what
 * base/config/keys.h says. The caller deletes it; NULL without memory.
 */
cJSON *config_schema(void);

#endif
