/* Which rows are held out: always the same, of every kind of row, and of no class all. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/check.h"
#include "worker/data/table/dictionary.h"
#include "worker/data/table/split.h"

enum { MOST = 4000, LINE = 64 };

static char lines[MOST][LINE];
static int line_count;

static struct config config;
static int fold, folds; /* 0: none */

static void add(const char *class, int a, int b)
{
    assert_true(line_count < MOST);
    snprintf(lines[line_count++], LINE, "%d,%d,%s", a, b, class);
}

/* The rows of a table, in the given order, to a pass. */
static void pass(struct split *split, const int *order, bool shows, enum dataset_part *parts)
{
    static char text[MOST * LINE];
    size_t used = (size_t)snprintf(text, sizeof text, "a,b,y\n");
    struct rows *rows;
    struct row row;
    struct error error;
    for (int i = 0; i < line_count; i++) {
        used += (size_t)snprintf(text + used, sizeof text - used, "%s\n", lines[order ? order[i] : i]);
    }
    assert_true(rows_open_bytes(&rows, "rows", text, used, NULL, NULL, &error));
    assert_true(split_find_column(split, rows, &config, &error));
    for (int i = 0; rows_next(rows, &row, &error) == CSV_ROW; i++) {
        uint64_t key;
        assert_true(split_key(split, rows, &row, &key, &error));
        if (shows) {
            assert_true(split_show(split, &row, key, &error));
        } else {
            parts[order ? order[i] : i] = split_part(split, key);
        }
    }
    rows_close(rows);
}

/* What a table is divided into; returns how often the rows were shown. */
static int divide(double share, int validation, bool has_classes, const int *order, enum dataset_part *parts)
{
    static char target[] = "y", none[] = "", *names[] = {target};
    struct split split = {.column = -1, .test_share = share, .most = validation, .fold = fold, .folds = folds};
    struct error error;
    bool again = true;
    int passes = 0;
    config = (struct config){.data.target = {.items = names, .count = 1}, .data.group = none, .data.time = none};
    while (again) {
        assert_true(++passes <= 3);
        split_begin(&split);
        pass(&split, order, true, NULL);
        assert_true(split_revise(&split, has_classes, &again, &error));
    }
    assert_true(split_settle(&split, &error));
    split_rewind(&split);
    pass(&split, order, false, parts);
    split_free(&split);
    return passes;
}

static int count(const enum dataset_part *parts, enum dataset_part part)
{
    int found = 0;
    for (int i = 0; i < line_count; i++) {
        found += parts[i] == part;
    }
    return found;
}

/* Runs that began with earlier programs go on with the same rows. */
TEST(different_rows_by_their_content)
{
    enum dataset_part parts[MOST];
    line_count = 0;
    for (int i = 0; i < 1000; i++) {
        add(i % 2 ? "yes" : "no", i, i % 7);
    }
    assert_int_equal(divide(0.1, 100, true, NULL, parts), 1);
    for (int i = 0; i < line_count; i++) {
        const bool is_test = dictionary_hash(lines[i], strlen(lines[i])) < (uint64_t)(0.1 * 0x1p64);
        assert_int_equal(parts[i] == DATASET_TEST, is_test);
    }
    assert_int_equal(count(parts, DATASET_VALIDATION), 100);
}

/* Every row that is not for the test is held out once, but for one of each class, whatever the order of rows. */
TEST(folds_hold_out_every_row_once)
{
    enum dataset_part parts[MOST];
    int order[MOST], held_out[MOST] = {0}, never[2] = {0};
    line_count = 0;
    for (int i = 0; i < 1000; i++) {
        add(i % 10 ? "yes" : "no", i, i % 7);
        order[i] = 999 - i;
    }
    folds = 5;
    for (fold = 1; fold <= folds; fold++) {
        divide(0.1, MOST, true, fold % 2 ? order : NULL, parts);
        assert_in_range(count(parts, DATASET_VALIDATION), 130, 230);
        for (int i = 0; i < line_count; i++) {
            held_out[i] += parts[i] == DATASET_VALIDATION;
            never[i % 10 == 0] += fold == 1 && parts[i] == DATASET_TEST;
        }
    }
    const int tested = never[0] + never[1];
    for (int i = 0; i < line_count; i++) {
        assert_in_range(held_out[i], 0, 1);
        never[i % 10 == 0] += held_out[i] == 0;
    }
    assert_int_equal(never[0] + never[1], 2 * tested + 2);
    fold = folds = 0;
}

TEST(equal_rows_one_by_one)
{
    enum dataset_part parts[MOST], others[MOST];
    int order[MOST], tested[8] = {0};
    line_count = 0;
    for (int i = 0; i < 1600; i++) {
        add(i % 2 ? "yes" : "no", i % 8, 1);
        order[i] = 1599 - i;
    }
    assert_int_equal(divide(0.1, 100, true, NULL, parts), 2);
    assert_in_range(count(parts, DATASET_TEST), 110, 210);
    assert_int_equal(count(parts, DATASET_VALIDATION), 100);
    for (int i = 0; i < line_count; i++) {
        tested[i % 8] += parts[i] == DATASET_TEST;
    }
    for (int kind = 0; kind < 8; kind++) {
        assert_in_range(tested[kind], 5, 45); /* of 200 */
    }
    divide(0.1, 100, true, order, others); /* the order of rows counts only among equal ones */
    assert_int_equal(count(others, DATASET_TEST), count(parts, DATASET_TEST));
    assert_int_equal(count(others, DATASET_VALIDATION), 100);
}

TEST(one_kind_of_many_rows)
{
    enum dataset_part parts[MOST];
    line_count = 0;
    for (int i = 0; i < 500; i++) {
        add("no", 0, 0);
        add(i % 2 ? "yes" : "no", i, 1);
    }
    divide(0.1, 100, true, NULL, parts);
    assert_in_range(count(parts, DATASET_TEST), 60, 140);
}

TEST(the_last_row_of_a_class)
{
    enum dataset_part parts[MOST];
    line_count = 0;
    for (int i = 0; i < 300; i++) {
        char name[16];
        snprintf(name, sizeof name, "rare%d", i / 2);
        add(i < 100 ? name : "often", i, 1);
    }
    divide(0.5, 60, true, NULL, parts);
    for (int class = 0; class < 50; class ++) {
        assert_true(parts[2 * class] == DATASET_TRAIN || parts[2 * class + 1] == DATASET_TRAIN);
    }
    assert_true(count(parts, DATASET_TEST) > 80);
    assert_in_range(count(parts, DATASET_VALIDATION), 20, 60);
}

TEST(classes_do_not_count_of_numbers)
{
    enum dataset_part parts[MOST];
    line_count = 0;
    for (int i = 0; i < 200; i++) {
        char number[16];
        snprintf(number, sizeof number, "%d.5", i);
        add(number, i, 1);
    }
    assert_int_equal(divide(0.5, 0, false, NULL, parts), 1);
}

TEST(a_few_rows_have_a_test)
{
    enum dataset_part parts[MOST];
    for (int rows = 3; rows < 30; rows++) {
        line_count = 0;
        for (int i = 0; i < rows; i++) {
            add(i % 2 ? "yes" : "no", i, rows);
        }
        divide(0.1, 0, true, NULL, parts);
        assert_in_range(count(parts, DATASET_TEST), 1, rows / 2);
        assert_true(count(parts, DATASET_TRAIN) >= 2);
    }
}

TEST(no_test_at_all)
{
    enum dataset_part parts[MOST];
    line_count = 0;
    for (int i = 0; i < 20; i++) {
        add(i % 2 ? "yes" : "no", i, 0);
    }
    divide(0, 3, true, NULL, parts);
    assert_int_equal(count(parts, DATASET_TEST), 0);
    assert_int_equal(count(parts, DATASET_VALIDATION), 3);
}

int main(void)
{
    return check_run(NULL, NULL);
}
