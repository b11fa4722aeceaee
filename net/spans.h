/*
 * Names of the spans by which `trainer profile` pairs a worker's requests with a ps's answers, and so aligns their
 * clocks (worker/export/profile.c). Members' profile files contain them: renaming one makes older profiles unalignable.
 */
#ifndef NET_SPANS_H
#define NET_SPANS_H

#include "net/message.h"

/* On the worker. */
#define SPAN_SEND_PUSH      "send push"
#define SPAN_RECEIVE_ANSWER "receive answer"

/* On the ps: a request is named after its message, and the answer to a push or pull lies within it. */
#define SPAN_PUSH         message_name(MESSAGE_push)
#define SPAN_SEND_CHANGES "send changes"

#endif
