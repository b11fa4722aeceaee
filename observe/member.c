/* Unknown values are null. */
#include "observe/member.h"

#include <math.h>

static double known(int64_t value)
{
    return value < 0 ? (double)NAN : (double)value;
}

void member_write(struct text_buffer *text, const struct board_member *member)
{
    json_write_open(text, NULL, '{');
    json_write_string(text, "role", member->role);
    json_write_integer(text, "task", member->task);
    json_write_string(text, "address", member->address);
    json_write_string(text, "host", member->host);
    json_write_string(text, "state", member->state);
    json_write_bool(text, "missing", member->is_missing);
    json_write_number(text, "silent_ms", known(member->silent_ms));
    json_write_integer(text, "generation", member->generation);
    json_write_number(text, "global_step", known(member->global_step));
    json_write_number(text, "local_step", known(member->local_step));
    json_write_number(text, "steps_per_s", member->steps_per_s);
    json_write_number(text, "loss", member->loss);
    json_write_integer(text, "staleness", member->staleness);
    json_write_integer(text, "dropped", (int64_t)member->dropped);
    json_write_integer(text, "retries", (int64_t)member->retries);
    json_write_integer(text, "bytes_in", (int64_t)member->bytes_in);
    json_write_integer(text, "bytes_out", (int64_t)member->bytes_out);
    json_write_string(text, "device", member->device);
    json_write_string(text, "program", member->program);
    json_write_number(text, "config_version", member->has_version ? known(member->config_version) : (double)NAN);
    json_write_string(text, "config_digest", member->digest);
    json_write_string(text, "message", member->message);
    if (member->rounds.asked > 0) {
        const struct board_rounds *rounds = &member->rounds;
        json_write_open(text, "rounds", '{');
        json_write_bool(text, "is_asked", rounds->is_asked);
        json_write_integer(text, "asked", rounds->asked);
        json_write_integer(text, "counted", rounds->counted);
        json_write_integer(text, "late", rounds->late);
        json_write_integer(text, "missed", rounds->missed);
        json_write_number(text, "cosine", rounds->cosine);
        json_write_number(text, "norm", rounds->norm);
        json_write_close(text, '}');
    }
    if (member->own.examples > 0) {
        json_write_open(text, "validation", '{');
        json_write_integer(text, "examples", member->own.examples);
        json_write_integer(text, "step", member->own.step);
        json_write_number(text, "score", member->own.score);
        json_write_bool(text, "is_worst", member->own.is_worst);
        json_write_close(text, '}');
    }
    json_write_number(text, "memory_bytes", member->memory_bytes);
    json_write_number(text, "cpu_percent", member->cpu_percent);
    json_write_number(text, "gpu_percent", member->gpu_percent);
    json_write_close(text, '}');
}
