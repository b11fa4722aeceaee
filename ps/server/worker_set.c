/* Sets of workers: a follower reports whose gradients it has, and the coordinator of which ones a step is made. */
#include "ps/server/worker_set.h"

#include <string.h>

void worker_set_put(struct ranges *set, uint8_t *bytes, int worker)
{
    struct range last = set->count > 0 ? range_get(set, set->count - 1) : (struct range){0};
    if (set->count > 0 && last.first + last.count == (uint64_t)worker) {
        range_put(bytes, set->count - 1, (struct range){last.first, last.count + 1});
    } else {
        range_put(bytes, set->count++, (struct range){(uint64_t)worker, 1});
    }
}

bool worker_set_read(const struct ranges *set, bool *has, int workers)
{
    memset(has, 0, (size_t)workers * sizeof *has);
    for (uint32_t i = 0; i < set->count; i++) {
        struct range range = range_get(set, i);
        if (range.first >= (uint64_t)workers || range.count > (uint64_t)workers - range.first) {
            return false;
        }
        for (uint32_t k = 0; k < range.count; k++) {
            has[range.first + k] = true;
        }
    }
    return true;
}
