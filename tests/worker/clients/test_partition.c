/* Every example has one owner, every client has one, and the kinds differ as much as documented. */
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "tests/random.h"
#include "worker/clients/partition.h"

enum { EXAMPLES = 6000, CLASSES = 10, MOST = 400 };

static int32_t labels[EXAMPLES];
static struct examples set = {.count = EXAMPLES, .labels = labels, .classes = CLASSES};

static struct partition divide(const char *kind, int clients, int64_t seed)
{
    struct partition partition;
    struct error error;
    struct config config = {.train.seed = seed, .data.data_sharding = SHARDING_DISJOINT};
    if (!partition_create(&partition, kind, clients, &set, &config, &error)) {
        fail_msg("%s", error.text);
    }
    return partition;
}

static void check_owners(const struct partition *partition)
{
    unsigned char seen[EXAMPLES] = {0};
    assert_int_equal(partition->first[0], 0);
    assert_int_equal(partition->first[partition->clients], EXAMPLES);
    for (int client = 0; client < partition->clients; client++) {
        assert_true(partition_count(partition, client) > 0);
        for (int i = partition->first[client]; i < partition->first[client + 1]; i++) {
            assert_int_equal(seen[partition->order[i]]++, 0);
            assert_true(i == partition->first[client] || partition->order[i] > partition->order[i - 1]);
        }
    }
}

/* The mean over the clients of the number of classes that they see. */
static double classes_seen(const struct partition *partition)
{
    int sum = 0;
    for (int client = 0; client < partition->clients; client++) {
        bool seen[CLASSES] = {false};
        for (int i = partition->first[client]; i < partition->first[client + 1]; i++) {
            sum += !seen[labels[partition->order[i]]];
            seen[labels[partition->order[i]]] = true;
        }
    }
    return (double)sum / partition->clients;
}

TEST(every_example_has_one_owner)
{
    static const char *const kinds[] = {NULL, "iid", "shards:1", "shards:2", "dirichlet:0.001", "dirichlet:100"};
    struct test_random random = test_random_begin("partition");
    for (int i = 0; i < EXAMPLES; i++) {
        labels[i] = test_random_below(&random, CLASSES);
    }
    for (int i = 0; i < 60; i++) {
        const char *kind = kinds[i % 6];
        const int clients = 1 + test_random_below(&random, MOST);
        const int64_t seed = test_random_below(&random, 1000);
        struct partition one = divide(kind, clients, seed), again = divide(kind, clients, seed);
        check_owners(&one);
        assert_memory_equal(one.order, again.order, sizeof labels);
        partition_destroy(&one);
        partition_destroy(&again);
    }
}

TEST(kinds_are_as_unlike_as_they_say)
{
    for (int i = 0; i < EXAMPLES; i++) {
        labels[i] = i % CLASSES;
    }
    struct partition iid = divide("iid", 100, 1), shards = divide("shards:2", 100, 1);
    struct partition unlike = divide("dirichlet:0.01", 100, 1), alike = divide("dirichlet:1000", 100, 1);
    assert_true(classes_seen(&iid) > 9.5);
    assert_true(classes_seen(&shards) <= 2.0 && classes_seen(&shards) > 1.5);
    assert_true(classes_seen(&unlike) < 3 && classes_seen(&alike) > 9.5);
    for (int client = 0; client < 100; client++) {
        assert_int_equal(partition_count(&iid, client), EXAMPLES / 100);
        assert_int_equal(partition_count(&shards, client), EXAMPLES / 100);
        assert_in_range(partition_count(&alike, client), 30, 90);
    }
    partition_destroy(&iid);
    partition_destroy(&shards);
    partition_destroy(&unlike);
    partition_destroy(&alike);
}

/* As worker_take_share divides them. */
TEST(disjoint_parts_are_those_of_workers)
{
    struct partition parts = divide(NULL, 7, 1);
    for (int client = 0; client <= 7; client++) {
        assert_int_equal(parts.first[client], (int64_t)EXAMPLES * client / 7);
    }
    for (int i = 0; i < EXAMPLES; i++) {
        assert_int_equal(parts.order[i], i);
    }
    partition_destroy(&parts);
}

TEST(what_makes_no_sense_is_refused)
{
    static const char *const kinds[] = {"", "shards", "shards:0", "shards:1.5", "shards:2x", "dirichlet:-1", "even"};
    const struct config config = {.train.seed = 1};
    struct partition partition;
    struct error error;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        assert_false(partition_create(&partition, kinds[i], 10, &set, &config, &error));
        assert_non_null(strstr(error.text, "--partition must be iid, order, shards:N or dirichlet:A"));
    }
    assert_false(partition_create(&partition, "shards:1000", 10, &set, &config, &error));
    assert_non_null(strstr(error.text, "too few"));
    assert_false(partition_create(&partition, NULL, EXAMPLES + 1, &set, &config, &error));
    set.labels = NULL;
    assert_false(partition_create(&partition, "shards:2", 10, &set, &config, &error));
    assert_non_null(strstr(error.text, "goes by classes"));
    set.labels = labels;
}

int main(void)
{
    return check_run(NULL, NULL);
}
