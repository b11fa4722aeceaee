/* The progress line: its content, that it never wraps, and what it drops first. */
#include "base/progress.h"
#include "tests/check.h"

#include <math.h>
#include <string.h>

static const struct progress_view half_way = {
    .step = 15000, .last_step = 30000, .steps_per_s = 2500, .loss = 0.1234, .validation = 0.9812};

TEST(says_all_on_a_wide_terminal)
{
    char text[PROGRESS_MAX_TEXT];
    progress_format(text, sizeof text, 200, &half_way);
    assert_string_equal(text, " 50%  [====================>                   ]  ETA 0:06  loss 0.1234  valid. 98.12%  "
                              "2500 steps/s  step 15000/30000");
}

TEST(keeps_the_bar_on_80_columns)
{
    char text[PROGRESS_MAX_TEXT];
    progress_format(text, sizeof text, 80, &half_way);
    assert_non_null(strstr(text, "[========"));
    assert_non_null(strstr(text, "ETA 0:06"));
    assert_non_null(strstr(text, "98.12%"));
    assert_non_null(strstr(text, "2500 steps/s"));
}

TEST(never_wraps)
{
    struct progress_view views[] = {
        half_way,
        {.step = 0, .last_step = 1, .loss = NAN, .validation = -1},
        {.step = 30001, .last_step = 30000, .steps_per_s = 0.5, .loss = 1e30, .validation = 1},
        {.step = INT64_MAX / 2, .last_step = INT64_MAX, .steps_per_s = 1e9, .loss = 2.3, .validation = 0.1},
        {.step = 5, .last_step = INT64_MAX - 1, .steps_per_s = 1e-9, .loss = 2.3, .validation = 0.1},
    };
    for (size_t v = 0; v < sizeof views / sizeof views[0]; v++) {
        for (int columns = 0; columns < 400; columns++) {
            char text[PROGRESS_MAX_TEXT];
            progress_format(text, sizeof text, columns, &views[v]);
            assert_true(strlen(text) <= (size_t)(columns > 1 ? columns - 1 : 0));
        }
    }
}

TEST(without_an_end_there_is_no_bar)
{
    char text[PROGRESS_MAX_TEXT];
    struct progress_view view = half_way;
    view.last_step = INT64_MAX;
    progress_format(text, sizeof text, 100, &view);
    assert_string_equal(text, "step 15000  loss 0.1234  valid. 98.12%  2500 steps/s");
}

TEST(says_durations)
{
    struct {
        double seconds;
        const char *text;
    } cases[] = {{0, "0:00"},    {59.4, "0:59"},     {59.6, "1:00"},
                 {245, "4:05"},  {3723, "1:02:03"},  {3 * 86400.0 + 14700, "3d 04:05"},
                 {1e12, ">99d"}, {INFINITY, ">99d"}, {NAN, "0:00"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[24];
        progress_format_duration(text, sizeof text, cases[i].seconds);
        assert_string_equal(text, cases[i].text);
    }
}

int main(void)
{
    return check_run(NULL, NULL);
}
