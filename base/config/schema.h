/* The table of keys as a JSON Schema (draft 2020-12), for editors and other people's checks. */
#ifndef BASE_CONFIG_SCHEMA_H
#define BASE_CONFIG_SCHEMA_H

#include <cJSON.h>

/*
 * Accepts all that config_parse accepts. What a schema can't say it lets pass: relations between keys, how long a string
 * is in bytes, whether an address is one. "x-scope" and "x-change" say of each key what base/config/keys.h says. The
 * caller deletes it; NULL without memory.
 */
cJSON *config_schema(void);

#endif
