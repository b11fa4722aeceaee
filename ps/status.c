/* Shared by pages and commands, so that they say the same. */
#include "ps/status.h"

#include <math.h>
#include <stdio.h>

#include "net/member.h"

void status_show(struct board_member *member, const struct message_status *status, const char *address)
{
    *member =
        (struct board_member){.task = status->index,
                              .is_missing = status->state == STATE_ABSENT || status->state == STATE_LOST,
                              .has_version = status->digest[0] != '\0',
                              .silent_ms = status->silent_ms == UINT32_MAX ? -1 : (int64_t)status->silent_ms,
                              .global_step = status->global_step,
                              .local_step = status->local_step,
                              .config_version = (int64_t)status->fleet_version,
                              .generation = (int)status->generation,
                              .staleness = (int)status->staleness,
                              .steps_per_s = (double)status->steps_per_s,
                              .loss = (double)status->loss,
                              .dropped = status->dropped,
                              .retries = status->retries,
                              .bytes_in = status->bytes_in,
                              .bytes_out = status->bytes_out,
                              .memory_bytes = status->memory_bytes > 0 ? (double)status->memory_bytes : (double)NAN,
                              .cpu_percent = (double)status->cpu_percent,
                              .gpu_percent = (double)status->gpu_percent};
    snprintf(member->role, sizeof member->role, "%s", status->role == MEMBER_PS ? "ps" : "worker");
    snprintf(member->address, sizeof member->address, "%s", address);
    snprintf(member->host, sizeof member->host, "%s", status->host);
    snprintf(member->state, sizeof member->state, "%s", member_state_name((enum member_state)status->state));
    snprintf(member->device, sizeof member->device, "%s", status->device);
    snprintf(member->program, sizeof member->program, "%.64s", status->program);
    snprintf(member->digest, sizeof member->digest, "%.64s", status->digest);
    snprintf(member->message, sizeof member->message, "%.255s", status->message);
}

void status_show_rounds(struct board_member *member, const struct message_rounds *rounds)
{
    if (rounds->asked > 0) {
        member->rounds = (struct board_rounds){.is_asked = rounds->is_asked == 1,
                                               .asked = (int64_t)rounds->asked,
                                               .counted = (int64_t)rounds->counted,
                                               .late = (int64_t)rounds->late,
                                               .missed = (int64_t)rounds->missed,
                                               .cosine = (double)rounds->cosine,
                                               .norm = (double)rounds->norm};
    }
    if (rounds->validated > 0) {
        member->own = (struct board_own){.examples = (int64_t)rounds->validated,
                                         .step = rounds->validated_step,
                                         .score = (double)rounds->score,
                                         .is_worst = rounds->is_worst == 1};
    }
}
