/*
 * Memory that others may make this process take: charged before it is allocated, released after it is freed.
 *
 * A budget bounds a process (or a server in it) as a whole, an account what one connection takes of it: bodies,
 * unpacked arrays, rows, outputs, answers. An account is handed down to what reads and answers the connection's
 * requests; a NULL account is of a caller who trusts its input, and counts nothing.
 *
 * Any thread may call these functions; the owner of an account sets its limit while nobody else uses it.
 */
#ifndef BASE_BUDGET_H
#define BASE_BUDGET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Why a charge was refused. */
enum budget_refusal {
    BUDGET_FITS,  /* it was not */
    BUDGET_NEVER, /* more than the account may ever take */
    BUDGET_LATER, /* others use too much at this moment */
    BUDGET_GONE,  /* the account was closed: nobody waits for the result */
};

struct budget {
    size_t most;         /* bytes */
    const char *setting; /* the flag that sets it, for errors; NULL: none */
    atomic_size_t used, peak;
    atomic_uint_fast64_t never, later; /* charges refused for each reason */
};

/* Adds to the total without an account. False: it does not fit, and nothing was added. */
bool budget_reserve(struct budget *budget, size_t bytes);
void budget_return(struct budget *budget, size_t bytes);

struct budget_account {
    struct budget *budget; /* borrowed */
    size_t most;           /* bytes; 0: as many as the budget has */
    atomic_size_t used;
    atomic_int refusal; /* enum budget_refusal, of the last charge that was refused */
    atomic_bool is_closed;
};

/* False: nothing was charged, and the error (NULL: not wanted) says which limit it would exceed. */
bool budget_charge(struct budget_account *account, size_t bytes, struct error *error);

/*
 * Charges `to` for what several requests need, of which this one is the first; a refusal is this one's, and never
 * BUDGET_NEVER. An account that is NULL counts nothing.
 */
bool budget_charge_for(struct budget_account *account, struct budget_account *to, size_t bytes, struct error *error);

/* As budget_charge, for what can be done without, such as compression: a refusal is not remembered. */
bool budget_try(struct budget_account *account, size_t bytes);

/* Charges what can't be refused, such as a short error message, even beyond the limits. */
void budget_force(struct budget_account *account, size_t bytes);
void budget_release(struct budget_account *account, size_t bytes);

/* Moves a charge to another account of the same budget, whose limit does not matter. */
void budget_move(struct budget_account *from, struct budget_account *to, size_t bytes);

/* Another request begins: what was refused before has nothing to do with it. */
void budget_forget(struct budget_account *account);

/* From now on every charge is refused, so that work whose result nobody awaits ends. */
void budget_close(struct budget_account *account);
bool budget_is_closed(const struct budget_account *account);

enum budget_refusal budget_refusal(const struct budget_account *account);       /* of NULL: BUDGET_FITS */
void budget_explain(const struct budget_account *account, struct error *error); /* why the last one was refused */

#endif
