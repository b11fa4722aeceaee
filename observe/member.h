/* A member as JSON, for `/api/status` and `trainer status --json`: the schema is docs/operations.md's. */
#ifndef OBSERVE_MEMBER_H
#define OBSERVE_MEMBER_H

#include "observe/board.h"
#include "observe/text.h"

void member_write(struct text *text, const struct board_member *member);

#endif
