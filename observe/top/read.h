/* Reads a member's HTTP answers (docs/operations.md) into a board; missing or invalid values count as unknown. */
#ifndef OBSERVE_TOP_READ_H
#define OBSERVE_TOP_READ_H

#include <cJSON.h>

#include "observe/top/shown.h"

void read_status(const cJSON *status, struct view_run *run);
void read_history(const cJSON *history, struct board *board);
void read_events(const cJSON *events, struct board *board, int64_t *last_id);

#endif
