/* A member as JSON, for `/api/status` and `trainer status --json`: the schema is docs/operations.md's. */
#ifndef OBSERVE_MEMBER_H
#define OBSERVE_MEMBER_H

#include "observe/board.h"
#include "observe/text.h"

/* with_use: also what its process takes of its machine, which nobody but itself knows. */
void member_write(struct text *text, const struct board_member *member, bool with_use);

#endif
