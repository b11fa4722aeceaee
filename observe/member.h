/* A member as JSON, for `/api/status` and `trainer status --json`: the schema is docs/operations.md's. */
#ifndef OBSERVE_MEMBER_H
#define OBSERVE_MEMBER_H

#include "base/text/json_writer.h"
#include "observe/board.h"

void member_write(struct text_buffer *text, const struct board_member *member);

#endif
