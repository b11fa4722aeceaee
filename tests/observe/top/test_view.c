/* What `trainer top` draws, at any size, of a run with any contents. */
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"

#include "base/text/json.h"
#include "observe/top/terminal.h"
#include "observe/top/top.h"
#include "tests/random.h"

enum { MEMBERS = 40 };

struct world {
    struct view_run run;
    struct view view;
    struct screen screen;
};

static void begin(struct world *world, int width, int height)
{
    *world = (struct world){.view = {.source = "127.0.0.1:9200", .trouble = ""}};
    board_create(&world->run.board, "top", 0, "");
    world->screen.has_unicode = true;
    screen_resize(&world->screen, width, height);
}

static void end(struct world *world)
{
    board_destroy(&world->run.board);
    screen_free(&world->screen);
}

static void read_text(const char *json, void (*take)(const cJSON *, struct world *), struct world *world)
{
    cJSON *tree = json_build(json, strlen(json));
    assert_non_null(tree);
    take(tree, world);
    cJSON_Delete(tree);
}

static void take_status(const cJSON *tree, struct world *world)
{
    read_status(tree, &world->run);
}

static void take_history(const cJSON *tree, struct world *world)
{
    read_history(tree, &world->run.board);
}

static void take_events(const cJSON *tree, struct world *world)
{
    int64_t last = 0;
    read_events(tree, &world->run.board, &last);
}

static const char status[] =
    "{\"time\":2000,\"started\":1000,\"missing\":1,\"run\":{\"name\":\"digits\",\"role\":\"ps\",\"task\":0,"
    "\"state\":\"training\",\"waiting_for\":\"worker 1 (b:2222), 12 s\",\"metric\":\"accuracy\"},"
    "\"progress\":{\"global_step\":1200,\"last_step\":5000,\"steps_per_s\":900.1,\"loss\":0.12,\"eta_s\":125,"
    "\"learning_rate\":0.5,\"metrics\":{\"accuracy\":0.97},\"best\":{\"step\":1000,\"value\":0.971}},"
    "\"members\":[{\"role\":\"ps\",\"task\":0,\"state\":\"ready\",\"global_step\":1200},"
    "{\"role\":\"worker\",\"task\":10,\"state\":\"training\",\"loss\":0.5,\"steps_per_s\":3,\"host\":\"beta\"},"
    "{\"role\":\"worker\",\"task\":2,\"state\":\"lost\",\"missing\":true,\"loss\":0.1,\"steps_per_s\":7,"
    "\"host\":\"alpha\"}],\"rollout\":{\"version\":4,\"phase\":\"watching\",\"text\":\"all is well\","
    "\"diff\":[\"train.learning_rate: 0.1 -> 0.01\"]},\"drift\":[\"worker 2: digest differs\"],"
    "\"checkpoints\":{\"last_step\":1000,\"last_time\":1940,\"failed\":0}}";

static const char *drawn(struct world *world, char text[65536])
{
    struct text_buffer lines = {.bytes = NULL};
    size_t size;
    view_draw(&world->screen, &world->view, &world->run);
    screen_print(&world->screen, &lines);
    char *bytes = text_buffer_take(&lines, &size);
    snprintf(text, 65536, "%.*s", (int)size, bytes ? bytes : "");
    free(bytes);
    return text;
}

TEST(test_a_status_is_shown)
{
    struct world world;
    char text[65536];
    (void)state;
    begin(&world, 100, 30);
    read_text(status, take_status, &world);
    drawn(&world, text);
    static const char *const parts[] = {
        "digits  ps 0  training",
        "step 1,200 of 5,000 (24.0%)",
        "2 min 5 s left",
        "accuracy 97.00%",
        "(best 97.10% at 1,000)",
        "checkpoint at 1,000, 1 min 0 s ago",
        "waiting for worker 1 (b:2222)",
        "1 of 3 members missing",
        "rollout of version 4, watching",
        "learning_rate: 0.1 -> 0.01",
        "drift: worker 2: digest",
        "worker 10   training",
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (!strstr(text, parts[i])) {
            fail_msg("no \"%s\" in:\n%s", parts[i], text);
        }
    }
    end(&world);
}

/* In the table of members. */
static bool comes_before(const char *text, const char *one, const char *other)
{
    const char *table = strstr(text, "MEMBER ");
    const char *a = table ? strstr(table, one) : NULL, *b = table ? strstr(table, other) : NULL;
    return a && b && a < b;
}

TEST(test_members_are_sorted_and_filtered)
{
    struct world world;
    char text[65536];
    (void)state;
    begin(&world, 120, 40);
    read_text(status, take_status, &world);
    assert_true(comes_before(drawn(&world, text), "worker 2 ", "worker 10 ")); /* by number, not by text */
    for (int i = 0; i < 4; i++) {
        view_press(&world.view, 's'); /* state, step, steps/s, loss */
    }
    assert_true(comes_before(drawn(&world, text), "worker 2 ", "worker 10 "));
    assert_true(comes_before(text, "worker 10 ", "ps 0 ")); /* unknown values come last */
    view_press(&world.view, 'r');
    assert_true(comes_before(drawn(&world, text), "worker 10 ", "worker 2 "));
    view_press(&world.view, '/');
    for (const char *at = "BETa"; *at; at++) {
        assert_true(view_press(&world.view, *at));
    }
    view_press(&world.view, 'x');
    view_press(&world.view, KEY_BACKSPACE);
    view_press(&world.view, KEY_ENTER);
    drawn(&world, text);
    assert_true(strstr(text, "worker 10 ") && !strstr(text, "worker 2 ") && !strstr(text, "ps 0   "));
    view_press(&world.view, KEY_ESCAPE);
    assert_non_null(strstr(drawn(&world, text), "worker 2 "));
    end(&world);
}

TEST(test_curves_and_events)
{
    struct world world;
    char text[65536];
    (void)state;
    begin(&world, 70, 30);
    read_text(status, take_status, &world);
    read_text("{\"recent\":{\"time\":[1800,1900,2000],\"global_step\":[1,2,3],\"values\":{\"loss\":[1,0.75,0.5],"
              "\"metric:accuracy\":[null,null,0.9]}},\"whole\":{\"time\":[100,1800],\"global_step\":[0,1],"
              "\"values\":{\"loss\":[4,1]}}}",
              take_history, &world);
    read_text("{\"events\":[{\"id\":5,\"time\":1990,\"kind\":\"lost\",\"member\":\"worker 2\",\"step\":7,"
              "\"text\":\"worker 2 is \\u001b[31mlost\"}]}",
              take_events, &world);
    assert_int_equal(world.run.board.history.recent.count, 4); /* what precedes the seconds counts, too */
    world.view.span = VIEW_MINUTES;
    drawn(&world, text);
    static const char *const ticks[] = {"  1┤", "0.5┤", "90.00%┤", "5 min 0 s ago", " now"};
    for (size_t i = 0; i < sizeof ticks / sizeof *ticks; i++) {
        if (!strstr(text, ticks[i])) {
            fail_msg("no \"%s\" in:\n%s", ticks[i], text);
        }
    }
    assert_non_null(strstr(text, "worker 2 is \\x1b[31mlost"));
    assert_null(strchr(text, 0x1b)); /* foreign text can't move the cursor */
    world.view.span = VIEW_WHOLE;
    assert_non_null(strstr(drawn(&world, text), "  4┤"));
    world.screen.has_unicode = false;
    for (const char *at = drawn(&world, text); *at; at++) {
        assert_true(*at > 0);
    }
    end(&world);
}

/* A screen of random size, with random keys, of members with random texts: the sanitizers watch. */
TEST(test_any_size_and_any_key)
{
    static const int keys[] = {KEY_TAB, KEY_UP, KEY_DOWN, KEY_PAGE_DOWN, KEY_END,      KEY_HOME,  's',
                               'S',     'r',    't',      '/',           'a',          KEY_ENTER, KEY_ESCAPE,
                               'p',     '?',    '1',      '3',           KEY_BACKSPACE};
    struct test_random random = test_random_begin("any size and any key");
    (void)state;
    for (int round = 0; round < 150; round++) {
        struct world world;
        char text[65536];
        begin(&world, 1 + test_random_below(&random, 200), 1 + test_random_below(&random, 60));
        world.screen.has_unicode = test_random_below(&random, 2) == 0;
        read_text(status, take_status, &world);
        assert_true(board_begin_members(&world.run.board, MEMBERS));
        for (int i = 0; i < MEMBERS; i++) {
            struct board_member *member = &world.run.board.members[i];
            strcpy(member->role, "worker");
            for (size_t k = 0; k < sizeof member->message - 1; k++) {
                member->message[k] = (char)(1 + test_random_below(&random, 255));
            }
            member->loss = test_random_below(&random, 3) == 0 ? (double)NAN : (double)test_random_below(&random, 1000);
            member->global_step = (int64_t)test_random_below(&random, 1 << 30) << 22;
        }
        for (int i = 0; i < 40; i++) {
            float values[HISTORY_SERIES];
            for (int k = 0; k < HISTORY_SERIES; k++) {
                values[k] = test_random_below(&random, 2) == 0 ? NAN : (float)test_random_below(&random, 10);
            }
            history_add(&world.run.board.history, 1950 + i, i, values);
            board_event(&world.run.board, "lost", NULL, i, "gone");
        }
        for (int i = 0; i < 12; i++) {
            view_press(&world.view, keys[test_random_below(&random, sizeof keys / sizeof keys[0])]);
            drawn(&world, text);
        }
        end(&world);
    }
}

/* A wide and high terminal: curves over two rows, a bar, and no blank lines. */
TEST(test_all_lines_are_used)
{
    struct world world;
    char text[65536];
    float values[HISTORY_SERIES];
    (void)state;
    begin(&world, 200, 50);
    read_text(status, take_status, &world);
    for (int i = 0; i < 60; i++) {
        for (int k = 0; k < HISTORY_SERIES; k++) {
            values[k] = (float)i;
        }
        history_add(&world.run.board.history, 1940 + i, i, values);
    }
    board_event(&world.run.board, "lost", NULL, 7, "gone");
    drawn(&world, text);
    assert_non_null(strstr(text, "(24.0%)  ███████░░"));
    int lines = 0, blank = 0;
    for (char *rest = text, *line; (line = strsep(&rest, "\n"));) {
        lines++;
        blank += line[strspn(line, " ")] == '\0';
    }
    assert_in_range(lines, 48, 51);
    assert_in_range(blank, 0, 3);
    end(&world);
}

TEST(test_texts_are_cut_between_words)
{
    struct world world;
    char text[65536];
    (void)state;
    begin(&world, 60, 24);
    read_text(status, take_status, &world);
    board_event(&world.run.board, "error", NULL, 7, "the checkpoint could not be written");
    drawn(&world, text);
    if (!strstr(text, "the checkpoint could not…\n")) {
        fail_msg("not cut between words:\n%s", text);
    }
    end(&world);
}

static size_t sent(struct screen *screen)
{
    struct text_buffer text = {.bytes = NULL};
    size_t size;
    screen_send(screen, &text);
    free(text_buffer_take(&text, &size));
    return size;
}

TEST(test_only_what_changed_is_sent)
{
    struct screen screen = {.has_unicode = true};
    (void)state;
    screen_resize(&screen, 80, 24);
    screen_put(&screen, 3, 0, 80, PLAIN, "step 1,000");
    assert_true(sent(&screen) > 10);
    assert_int_equal(sent(&screen), 0);
    screen_put(&screen, 3, 0, 80, PLAIN, "step 1,001");
    const size_t size = sent(&screen);
    assert_in_range(size, 1, 10); /* one cell, one character */
    screen_free(&screen);
}

TEST(test_odd_answers)
{
    static const char *const odd[] = {"{}", "[]", "3",
                                      "{\"run\":3,\"members\":{\"a\":1},\"progress\":[],\"drift\":[3]}",
                                      "{\"time\":1e300,\"members\":[1,null,{\"task\":-1e300,\"global_step\":1e300}]}"};
    (void)state;
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        struct world world;
        char text[65536];
        begin(&world, 80, 24);
        read_text(odd[i], take_status, &world);
        read_text(odd[i], take_history, &world);
        read_text(odd[i], take_events, &world);
        read_text("{\"recent\":{\"time\":[1,\"x\"],\"global_step\":[1],\"values\":{\"loss\":3,\"\\u0001\":[1]}}}",
                  take_history, &world);
        drawn(&world, text);
        end(&world);
    }
}

int main(void)
{
    setlocale(LC_ALL, "C.UTF-8");
    return check_run(NULL, NULL);
}
