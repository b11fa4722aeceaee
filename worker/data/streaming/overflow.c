/* Limits held-out rows to a tenth: a large set's number would leave too little of a small one to train on. */
#include "worker/data/streaming/overflow.h"

void overflow_settle(struct overflow *overflow, int count)
{
    int more = overflow->is_at_most && count / 10 < overflow->held_out ? overflow->held_out - count / 10 : 0;
    overflow->held_out -= more;
    overflow->keep -= more;
    overflow->is_at_most = false;
}
