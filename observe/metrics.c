/* The two formats differ in counters' names of families, in units and in how they end. */
#include "observe/metrics.h"

#include <math.h>

#include "base/clock.h"
#include "base/version.h"

struct writer {
    struct text *text;
    bool open;
};

enum kind { GAUGE, COUNTER };

/* name: without "_total". unit: what the name ends in, "" for none. */
static void declare(const struct writer *to, const char *name, const char *unit, const char *type, const char *help)
{
    const bool total = !to->open && type[0] == 'c';
    text_add(to->text, "# TYPE %s%s %s\n", name, total ? "_total" : "", type);
    if (to->open && unit[0] != '\0') {
        text_add(to->text, "# UNIT %s %s\n", name, unit);
    }
    text_add(to->text, "# HELP %s%s %s\n", name, total ? "_total" : "", help);
}

static void add_value(const struct writer *to, double value)
{
    if (isnan(value)) {
        text_add(to->text, " NaN\n");
    } else if (isinf(value)) {
        text_add(to->text, value > 0 ? " +Inf\n" : " -Inf\n");
    } else {
        text_add(to->text, " %.15g\n", value);
    }
}

static void one(const struct writer *to, enum kind kind, const char *name, const char *unit, const char *help,
                double value)
{
    declare(to, name, unit, kind == COUNTER ? "counter" : "gauge", help);
    text_add(to->text, "%s%s", name, kind == COUNTER ? "_total" : "");
    add_value(to, value);
}

void metrics_write(struct text *text, struct board *board, const struct http_server *server, bool open)
{
    const struct writer to = {text, open};
    struct board_numbers numbers;
    struct http_counts counts = {.requests = 0};
    board_copy(board, &numbers);
    if (server) {
        http_server_counts(server, &counts);
    }
    one(&to, GAUGE, "trainer_global_step", "", "Global step of the model.", (double)numbers.global_step);
    one(&to, COUNTER, "trainer_http_requests", "", "Requests that this server has answered.", (double)counts.requests);
    if (open) {
        text_add(text, "# EOF\n");
    }
}
