/* Arbitrary Slurm variables, one per line: refused with a message, or a role with its lists of hosts. */
#include "tests/fuzz/fuzz.h"

#include "base/config/scheduler.h"

FUZZ_MEMORY(64, 2 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct error error = {""};
    struct assignment assignment;
    char *text = text_of(bytes, size), *rest = text;
    const char *variables[5] = {NULL};
    for (int i = 0; i < 5 && rest; i++) {
        variables[i] = strsep(&rest, "\n");
    }
    const struct slurm_task task = {.procid = variables[0],
                                    .nodeid = variables[1],
                                    .localid = variables[2],
                                    .tasks_per_node = variables[3],
                                    .nodelist = variables[4]};
    if (slurm_parse(&assignment, &task, 1, 65535, &error)) {
        assert(assignment.count == ASSIGNMENT_SETTINGS && assignment.worker_hosts[0] != '\0');
    } else {
        assert(error.text[0] != '\0');
    }
    assignment_free(&assignment);
    free(text);
    return 0;
}
