/* From what a ps says of a member to what is shown of it. */
#ifndef PS_STATUS_H
#define PS_STATUS_H

#include "net/message.h"
#include "observe/board.h"

/* address: as the config has it. What a process takes of its machine no message tells: it stays unknown. */
void status_show(struct board_member *member, const struct message_status *status, const char *address);

/* Of a worker, after its status. What a ps tells who does not decide on rounds changes nothing. */
void status_show_rounds(struct board_member *member, const struct message_rounds *rounds);

#endif
