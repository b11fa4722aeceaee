/* The list itself; whoever intercepts a call fills in what belongs to it. */
#include "tests/simulate/records.h"

#include "tests/simulate/world.h"

struct ps_record records[PS_MAX_SIMULATED];

/* Everything but the pushes, of which there are none yet: runs are many, and the list is long. */
void records_begin(struct job *job)
{
    struct ps_record *record = records_here();
    record->job = job;
    record->generation = 0;
    record->restored = false;
    record->restored_step = record->seen_step = record->applied = 0;
    record->push_count = 0;
}

const struct job *records_job(int ps)
{
    return records[ps].job;
}

void records_forget(const struct machine *machine)
{
    if (machine->number < setup.ps) {
        records[machine->number].job = NULL;
    }
}

struct ps_record *records_here(void)
{
    return &records[world.here->number];
}
