/*
 * The list of revoked keys on this machine: CONFIG.d/revoked, as the operators signed it (net/revocation.h). ps 0 gets
 * it from an operator, every other member from ps 0, and a machine that ps 0 can't reach by a copy of the file. Any
 * thread.
 */
#ifndef PS_ROLLOUT_REVOKED_H
#define PS_ROLLOUT_REVOKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "net/credentials.h"
#include "net/revocation.h"

/*
 * At the start of a process: puts the list in force, if there is one; one that has expired is a warning. Fails if it is
 * damaged or not signed by those whom this machine trusts (operator.pub, or operator.pub.previous), or if it names this
 * process's own key.
 */
bool revoked_load(const struct config *config, const struct credentials *credentials, struct error *error);

/* Where a list comes from. */
enum revoked_origin {
    REVOKED_BY_OPERATOR, /* to ps 0: it must not have expired, nor name ps 0's own key, from which others learn of it */
    REVOKED_BY_PS_0,
};

/*
 * Stores a list and puts it in force, at once for open connections too. Refuses one that is not signed by enough
 * operators, of another fleet, or not above the one that is here. It is noted in the log and in the audit log. self:
 * for the latter.
 */
bool revoked_take(const struct config *config, const struct credentials *credentials, const struct member *self,
                  enum revoked_origin origin, const uint8_t *bytes, size_t size, struct error *error);

/* The list here, as signed; the caller frees *bytes. NULL: there is none. */
bool revoked_read(const struct config *config, uint8_t **bytes, size_t *size, struct error *error);

/* The number of the list in force; 0: none, or no credentials. */
uint64_t revoked_number(const struct credentials *credentials);

/* Warns if the list in force has expired. */
void revoked_warn_of_expiry(const struct credentials *credentials);

#endif
