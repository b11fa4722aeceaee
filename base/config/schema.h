/* The table of keys as a JSON Schema (draft 2020-12), for editors and validators. */
#ifndef BASE_CONFIG_SCHEMA_H
#define BASE_CONFIG_SCHEMA_H

#include <cJSON.h>

/*
 * Accepts everything that config_parse accepts. It does not check what a schema cannot express: relations between keys,
 * a string's length in bytes, whether an address is valid. "x-scope" and "x-change" give each key's scope and change
 * class (base/config/keys.h). The caller deletes it.
 */
cJSON *config_schema(void);

#endif
