/* A table's validation: its confusions, and a binary model's precision-recall curve. */
#ifndef WORKER_SUMMARY_CURVES_H
#define WORKER_SUMMARY_CURVES_H

#include "worker/evaluate.h"
#include "worker/summary/event.h"

/* Adds both to the event, as far as the evaluation has them. */
void curves_put(struct event *event, const struct evaluation *evaluation);

#endif
