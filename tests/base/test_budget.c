/* Charges against a budget: what fits, who is refused and why, and that nothing is lost between threads. */
#include <pthread.h>
#include <string.h>

#include "base/budget.h"
#include "tests/check.h"

TEST(test_limits)
{
    struct budget budget = {.most = 3 << 20, .setting = "--flag"};
    struct budget_account one = {.budget = &budget, .most = 2 << 20}, other = {.budget = &budget};
    struct error error;
    assert_true(budget_charge(NULL, SIZE_MAX, &error));
    assert_true(budget_charge(&one, 2 << 20, &error));
    assert_false(budget_charge(&one, 1, &error)); /* whatever the others do */
    assert_int_equal(budget_refusal(&one), BUDGET_NEVER);
    assert_non_null(strstr(error.text, "2.0 MiB"));
    assert_non_null(strstr(error.text, "--flag"));
    assert_false(budget_charge(&other, 2 << 20, &error));
    assert_int_equal(budget_refusal(&other), BUDGET_LATER);
    assert_false(budget_charge(&other, SIZE_MAX, NULL));
    assert_int_equal(budget_refusal(&other), BUDGET_NEVER);
    assert_true(budget_charge(&other, 1 << 20, &error));
    budget_release(&one, 2 << 20);
    budget_move(&other, &one, 1 << 20);
    assert_int_equal(atomic_load(&other.used), 0);
    assert_int_equal(atomic_load(&budget.used), 1 << 20);
    budget_force(&one, 4 << 20);
    assert_false(budget_charge(&other, 1, &error));
    budget_release(&one, 5 << 20);
    assert_int_equal(atomic_load(&budget.used), 0);
    assert_int_equal(atomic_load(&budget.peak), 3 << 20);
    assert_int_equal(atomic_load(&budget.never), 2);
    assert_int_equal(atomic_load(&budget.later), 2);
}

TEST(test_a_closed_account_gets_nothing)
{
    struct budget budget = {.most = 100};
    struct budget_account account = {.budget = &budget};
    struct error error;
    assert_false(budget_is_closed(NULL));
    assert_true(budget_charge(&account, 10, &error));
    budget_close(&account);
    assert_true(budget_is_closed(&account));
    assert_false(budget_charge(&account, 1, &error));
    assert_int_equal(budget_refusal(&account), BUDGET_GONE);
    budget_release(&account, 10);
    assert_int_equal(atomic_load(&budget.used), 0);
}

TEST(test_refusals_that_do_not_count)
{
    struct budget budget = {.most = 100};
    struct budget_account account = {.budget = &budget};
    struct error error;
    assert_true(budget_try(NULL, 1));
    assert_false(budget_try(&account, 101));
    assert_int_equal(budget_refusal(&account), BUDGET_FITS);
    assert_false(budget_charge(&account, 101, &error));
    budget_forget(&account);
    assert_int_equal(budget_refusal(&account), BUDGET_FITS);
    assert_true(budget_try(&account, 100));
    budget_release(&account, 100);
}

TEST(test_a_shared_charge_is_refused_to_who_asks)
{
    struct budget budget = {.most = 100};
    struct budget_account account = {.budget = &budget, .most = 1}, shared = {.budget = &budget};
    struct error error;
    assert_true(budget_charge_for(NULL, NULL, 101, &error));
    assert_true(budget_charge_for(&account, &shared, 100, &error));
    assert_int_equal(atomic_load(&account.used), 0);
    assert_false(budget_charge_for(&account, &shared, 1, &error));
    assert_int_equal(budget_refusal(&account), BUDGET_LATER);
    assert_int_equal(budget_refusal(&shared), BUDGET_FITS);
    budget_release(&shared, 100);
    budget_close(&account);
    assert_false(budget_charge_for(&account, &shared, 1, &error));
    assert_int_equal(budget_refusal(&account), BUDGET_GONE);
}

enum { THREADS = 4, ROUNDS = 20000 };

static struct budget shared = {.most = 1000};

static void *charge_and_release(void *context)
{
    struct budget_account account = {.budget = &shared};
    struct error error;
    for (int i = 0; i < ROUNDS; i++) {
        const size_t bytes = (size_t)(i % 700);
        if (budget_charge(&account, bytes, &error)) {
            assert_true(atomic_load(&shared.used) <= shared.most);
            budget_release(&account, bytes);
        }
    }
    return NULL;
}

TEST(test_threads)
{
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, charge_and_release, NULL), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_int_equal(atomic_load(&shared.used), 0);
    assert_true(atomic_load(&shared.peak) <= shared.most);
}

int main(void)
{
    return check_run(NULL, NULL);
}
