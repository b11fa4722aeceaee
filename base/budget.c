/* A total and accounts of it, in atomics: a charge costs two additions. */
#include "base/budget.h"

#include <assert.h>

static const double mebibyte = 0x1p20;

bool budget_reserve(struct budget *budget, size_t bytes)
{
    size_t used = atomic_load_explicit(&budget->used, memory_order_relaxed);
    do {
        if (used > budget->most || bytes > budget->most - used) {
            return false;
        }
    } while (!atomic_compare_exchange_weak(&budget->used, &used, used + bytes));
    size_t peak = atomic_load_explicit(&budget->peak, memory_order_relaxed);
    while (used + bytes > peak && !atomic_compare_exchange_weak(&budget->peak, &peak, used + bytes)) {
    }
    return true;
}

void budget_return(struct budget *budget, size_t bytes)
{
    const size_t before = atomic_fetch_sub(&budget->used, bytes);
    assert(bytes <= before);
    (void)before;
}

static size_t most_of(const struct budget_account *account)
{
    const size_t all = account->budget->most;
    return account->most > 0 && account->most < all ? account->most : all;
}

void budget_explain(const struct budget_account *account, struct error *error)
{
    const struct budget *budget = account->budget;
    const char *open = budget->setting ? " (" : "", *close = budget->setting ? ")" : "";
    const char *setting = budget->setting ? budget->setting : "";
    switch (budget_refusal(account)) {
    case BUDGET_NEVER:
        error_set(error,
                  "needs more than the %.1f MiB of memory that this request may take%s%s%s; send fewer rows at a time, "
                  "or ask for fewer outputs",
                  (double)most_of(account) / mebibyte, open, setting, close);
        break;
    case BUDGET_LATER:
        error_set(error, "the %.1f MiB of memory for all requests%s%s%s are in use; try again",
                  (double)budget->most / mebibyte, open, setting, close);
        break;
    case BUDGET_GONE:
        error_set(error, "the client has gone");
        break;
    case BUDGET_FITS:
        error_set(error, "out of memory");
        break;
    }
}

static bool refuse(struct budget_account *account, enum budget_refusal why, struct error *error)
{
    atomic_store(&account->refusal, (int)why);
    if (why == BUDGET_NEVER) {
        atomic_fetch_add(&account->budget->never, 1);
    } else if (why == BUDGET_LATER) {
        atomic_fetch_add(&account->budget->later, 1);
    }
    if (error) {
        budget_explain(account, error);
    }
    return false;
}

static enum budget_refusal add(struct budget_account *account, size_t bytes)
{
    const size_t used = atomic_load(&account->used), most = most_of(account);
    if (budget_is_closed(account)) {
        return BUDGET_GONE;
    }
    if (used > most || bytes > most - used) {
        return BUDGET_NEVER;
    }
    if (!budget_reserve(account->budget, bytes)) {
        return BUDGET_LATER;
    }
    atomic_fetch_add(&account->used, bytes);
    return BUDGET_FITS;
}

bool budget_charge(struct budget_account *account, size_t bytes, struct error *error)
{
    const enum budget_refusal why = account ? add(account, bytes) : BUDGET_FITS;
    return why == BUDGET_FITS || refuse(account, why, error);
}

bool budget_charge_for(struct budget_account *account, struct budget_account *to, size_t bytes, struct error *error)
{
    const enum budget_refusal why = !account || !to             ? BUDGET_FITS
                                    : budget_is_closed(account) ? BUDGET_GONE
                                                                : add(to, bytes);
    return why == BUDGET_FITS || refuse(account, why == BUDGET_NEVER ? BUDGET_LATER : why, error);
}

bool budget_try(struct budget_account *account, size_t bytes)
{
    return !account || add(account, bytes) == BUDGET_FITS;
}

void budget_force(struct budget_account *account, size_t bytes)
{
    if (account) {
        atomic_fetch_add(&account->used, bytes);
        atomic_fetch_add(&account->budget->used, bytes);
    }
}

void budget_release(struct budget_account *account, size_t bytes)
{
    if (account && bytes > 0) {
        const size_t before = atomic_fetch_sub(&account->used, bytes);
        assert(bytes <= before);
        (void)before;
        budget_return(account->budget, bytes);
    }
}

void budget_move(struct budget_account *from, struct budget_account *to, size_t bytes)
{
    if (from && bytes > 0) {
        assert(to->budget == from->budget);
        const size_t before = atomic_fetch_sub(&from->used, bytes);
        assert(bytes <= before);
        (void)before;
        atomic_fetch_add(&to->used, bytes);
    }
}

void budget_forget(struct budget_account *account)
{
    atomic_store(&account->refusal, (int)BUDGET_FITS);
}

void budget_close(struct budget_account *account)
{
    atomic_store(&account->is_closed, true);
}

bool budget_is_closed(const struct budget_account *account)
{
    return account && atomic_load_explicit(&account->is_closed, memory_order_relaxed);
}

enum budget_refusal budget_refusal(const struct budget_account *account)
{
    return account ? (enum budget_refusal)atomic_load(&account->refusal) : BUDGET_FITS;
}
