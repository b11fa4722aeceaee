/* Unknown values are null. */
#include "observe/member.h"

#include <math.h>

static double known(int64_t value)
{
    return value < 0 ? (double)NAN : (double)value;
}

void member_write(struct text *text, const struct board_member *member)
{
    json_open(text, NULL, '{');
    json_string(text, "role", member->role);
    json_integer(text, "task", member->task);
    json_string(text, "address", member->address);
    json_string(text, "host", member->host);
    json_string(text, "state", member->state);
    json_bool(text, "missing", member->is_missing);
    json_number(text, "silent_ms", known(member->silent_ms));
    json_integer(text, "generation", member->generation);
    json_number(text, "global_step", known(member->global_step));
    json_number(text, "local_step", known(member->local_step));
    json_number(text, "steps_per_s", member->steps_per_s);
    json_number(text, "loss", member->loss);
    json_integer(text, "staleness", member->staleness);
    json_integer(text, "dropped", (int64_t)member->dropped);
    json_integer(text, "retries", (int64_t)member->retries);
    json_integer(text, "bytes_in", (int64_t)member->bytes_in);
    json_integer(text, "bytes_out", (int64_t)member->bytes_out);
    json_string(text, "device", member->device);
    json_string(text, "program", member->program);
    json_number(text, "config_version", member->has_version ? known(member->config_version) : (double)NAN);
    json_string(text, "config_digest", member->digest);
    json_string(text, "message", member->message);
    if (member->rounds.asked > 0) {
        const struct board_rounds *rounds = &member->rounds;
        json_open(text, "rounds", '{');
        json_bool(text, "is_asked", rounds->is_asked);
        json_integer(text, "asked", rounds->asked);
        json_integer(text, "counted", rounds->counted);
        json_integer(text, "late", rounds->late);
        json_integer(text, "missed", rounds->missed);
        json_number(text, "cosine", rounds->cosine);
        json_number(text, "norm", rounds->norm);
        json_close(text, '}');
    }
    if (member->own.examples > 0) {
        json_open(text, "validation", '{');
        json_integer(text, "examples", member->own.examples);
        json_integer(text, "step", member->own.step);
        json_number(text, "score", member->own.score);
        json_bool(text, "is_worst", member->own.is_worst);
        json_close(text, '}');
    }
    json_number(text, "memory_bytes", member->memory_bytes);
    json_number(text, "cpu_percent", member->cpu_percent);
    json_number(text, "gpu_percent", member->gpu_percent);
    json_close(text, '}');
}
