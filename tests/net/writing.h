/* Sends raw bytes that are no message, all at once. */
#ifndef TESTS_NET_WRITING_H
#define TESTS_NET_WRITING_H

#include "net/connection.h"

static inline bool write_now(struct connection *connection, const struct iovec *parts, int count, double deadline_s,
                             struct error *error)
{
    return connection_write_more(connection, parts, count, deadline_s, error) &&
           connection_flush(connection, deadline_s, error);
}

#endif
