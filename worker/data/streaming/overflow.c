/* Limits held-out rows to a tenth: a large set's number would leave too little of a small one to train on. */
#include "worker/data/streaming/overflow.h"

void overflow_settle(struct overflow *overflow, int count)
{
    const int share = (int)((int64_t)count * overflow->percent / 100);
    const int more = overflow->percent > 0 && share < overflow->held_out ? overflow->held_out - share : 0;
    overflow->held_out -= more;
    overflow->keep -= more;
    overflow->percent = 0;
}
