/* Converts a ps's status of a member for display. */
#ifndef PS_STATUS_H
#define PS_STATUS_H

#include "net/message.h"
#include "observe/board.h"

/* address: as in the config. What the message does not report stays unknown. */
void status_show(struct board_member *member, const struct message_status *status, const char *address);

/* For a worker, after its status. Ignored if the ps does not decide on rounds. */
void status_show_rounds(struct board_member *member, const struct message_rounds *rounds);

#endif
