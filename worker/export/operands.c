/* Opens the checkpoints that inspect and diff name. */
#include "worker/export/operands.h"

#include "base/log.h"
#include "worker/export/trained.h"

const struct command_flag checkpoint_flags[] = {
    {"json", NULL, "one JSON object"},
    {NULL, NULL, NULL},
};

int checkpoint_operands(const struct command_call *call, struct checkpoint_file **files, int count, const char *misuse)
{
    struct error error;
    if (command_switch(call, "json")) {
        log_setup(LOG_JSON, LOG_WARNING);
    }
    if (call->operand_count != count) {
        log_error("%s", misuse);
        return COMMAND_MISUSED;
    }
    for (int i = 0; i < count; i++) {
        if (!trained_find(&files[i], call->operands[i], ".", &error)) {
            log_error("%s", error.text);
            while (i > 0) {
                checkpoint_close(files[--i]);
            }
            return COMMAND_FAILED;
        }
    }
    return COMMAND_DONE;
}
