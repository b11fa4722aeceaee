/*
 * Scenarios: what happens to a state machine, and what it decides, as text. A driver (one C program) gives the words
 * their meaning; files of scenarios lie beside it.
 *
 *     # A comment.
 *     steps all staged by half a second      # used by several scenarios: `do all staged by half a second`
 *     begin live
 *     0.5 all staged; tick
 *
 *     scenario a member that can't stage it ends the rollout
 *     do all staged by half a second
 *     0.6 worker 2 failed; is idle "worker 2: can't"
 *     every 0.5 until 9: all staged; tick; is staging
 *
 * A line holds statements, separated by ';', each of words and "quoted texts". A number before them sets the clock,
 * and `every` repeats them while it moves on. Each scenario is a test of cmocka. What a driver doesn't know or doesn't
 * find ends the test with the file and the line.
 */
#ifndef TESTS_SCENARIO_H
#define TESTS_SCENARIO_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"

enum { SCENARIO_WORDS = 160, SCENARIO_LINE = 2048, SCENARIO_MAX = 400 };

struct scenario_block {
    const char *file;
    char *name;
    bool is_test;
    int line;         /* of its name */
    const char *text; /* the lines after that */
};

/* The statement that is read: from `next` on. */
struct scenario_words {
    const struct scenario_block *block;
    int line, count, next;
    char *word[SCENARIO_WORDS];
    bool is_text[SCENARIO_WORDS]; /* it was quoted */
    char store[SCENARIO_LINE];
};

static struct scenario_block scenario_blocks[SCENARIO_MAX];
static int scenario_block_count;
static double scenario_now_s;

/* Of the driver: before and after each scenario, and one statement, of which it takes all words. */
void scenario_enter(void);
void scenario_leave(void);
void scenario_statement(struct scenario_words *words);

__attribute__((format(printf, 2, 3), noreturn)) static inline void scenario_fail(const struct scenario_words *words,
                                                                                 const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    print_error("%s:%d: %s (at %g s)\n", words->block->file, words->line, text, scenario_now_s);
    _fail(words->block->file, words->line);
    abort();
}

/* --- Words --- */

static inline bool scenario_ends(const struct scenario_words *words)
{
    return words->next == words->count || (!words->is_text[words->next] && strcmp(words->word[words->next], ";") == 0);
}

static inline const char *scenario_word(struct scenario_words *words)
{
    if (scenario_ends(words)) {
        scenario_fail(words, "a word is missing");
    }
    return words->word[words->next++];
}

/* Takes the next word if it is this one. */
static inline bool scenario_has(struct scenario_words *words, const char *word)
{
    const bool has =
        !scenario_ends(words) && !words->is_text[words->next] && strcmp(words->word[words->next], word) == 0;
    words->next += has;
    return has;
}

/* Takes the next word if it is quoted; NULL: it is not. */
static inline const char *scenario_text(struct scenario_words *words)
{
    return !scenario_ends(words) && words->is_text[words->next] ? words->word[words->next++] : NULL;
}

static inline bool scenario_is_number(const char *word, double *number)
{
    char *end;
    *number = strtod(word, &end);
    return end != word && *end == '\0';
}

static inline double scenario_number(struct scenario_words *words)
{
    double number;
    const char *word = scenario_word(words);
    if (!scenario_is_number(word, &number)) {
        scenario_fail(words, "\"%s\" is no number", word);
    }
    return number;
}

/* The place of the next word in this list. */
static inline int scenario_choice(struct scenario_words *words, const char *const *names, int count, const char *what)
{
    const char *word = scenario_word(words);
    for (int i = 0; i < count; i++) {
        if (names[i] && strcmp(names[i], word) == 0) {
            return i;
        }
    }
    scenario_fail(words, "\"%s\" is no %s", word, what);
}

/* --- Expectations --- */

static inline void scenario_expect_number(const struct scenario_words *words, const char *what, double got,
                                          double wanted)
{
    if (!(got <= wanted && got >= wanted)) {
        scenario_fail(words, "%s: expected %.17g, got %.17g", what, wanted, got);
    }
}

/* wanted: "..." stands for any text. */
static inline bool scenario_fits(const char *got, const char *wanted)
{
    const char *dots = strstr(wanted, "...");
    const size_t length = dots ? (size_t)(dots - wanted) : strlen(wanted);
    if (strncmp(got, wanted, length) != 0 || (!dots && got[length] != '\0')) {
        return false;
    }
    for (const char *rest = got + length; dots; rest++) {
        if (scenario_fits(rest, dots + 3)) {
            return true;
        }
        if (*rest == '\0') {
            return false;
        }
    }
    return true;
}

static inline void scenario_expect_text(const struct scenario_words *words, const char *what, const char *got,
                                        const char *wanted)
{
    if (!scenario_fits(got, wanted)) {
        scenario_fail(words, "%s: expected \"%s\", got \"%s\"", what, wanted, got);
    }
}

/* --- Running --- */

static inline void scenario_run_block(const struct scenario_block *block);

static inline void scenario_split(struct scenario_words *words, const char *line, size_t size)
{
    char *to = words->store;
    words->count = words->next = 0;
    if (2 * size + 2 >= sizeof words->store) {
        scenario_fail(words, "the line is too long");
    }
    for (size_t i = 0; i < size && line[i] != '#';) {
        const char c = line[i];
        if (c == ' ') {
            i++;
            continue;
        }
        if (words->count == SCENARIO_WORDS) {
            scenario_fail(words, "the line has too many words");
        }
        words->is_text[words->count] = c == '"';
        words->word[words->count++] = to;
        if (c == '"') {
            for (i++; i < size && line[i] != '"'; i++) {
                *to++ = line[i];
            }
            if (i++ == size) {
                scenario_fail(words, "a text has no end");
            }
        } else if (c == ';') {
            *to++ = line[i++];
        } else {
            for (; i < size && !strchr(" ;#\"", line[i]); i++) {
                *to++ = line[i];
            }
        }
        *to++ = '\0';
    }
}

static inline void scenario_do(struct scenario_words *words)
{
    char name[256] = "";
    for (; !scenario_ends(words); words->next++) {
        const size_t used = strlen(name);
        snprintf(name + used, sizeof name - used, "%s%s", used > 0 ? " " : "", words->word[words->next]);
    }
    for (int i = 0; i < scenario_block_count; i++) {
        const struct scenario_block *block = &scenario_blocks[i];
        if (!block->is_test && block->file == words->block->file && strcmp(block->name, name) == 0) {
            scenario_run_block(block);
            return;
        }
    }
    scenario_fail(words, "there are no steps \"%s\"", name);
}

static inline void scenario_statements(struct scenario_words *words)
{
    while (words->next < words->count) {
        if (scenario_has(words, "do")) {
            scenario_do(words);
        } else {
            scenario_statement(words);
        }
        if (!scenario_ends(words)) {
            scenario_fail(words, "\"%s\" is too much", words->word[words->next]);
        }
        words->next += words->next < words->count;
    }
}

/* every SECONDS until TIME: statements; from now on, and at the end for the last time. */
static inline void scenario_every(struct scenario_words *words)
{
    const double step_s = scenario_number(words), from_s = scenario_now_s;
    if (!scenario_has(words, "until") || step_s <= 0) {
        scenario_fail(words, "expected: every SECONDS until TIME: ...");
    }
    char *colon = words->word[words->next];
    if (words->next == words->count || colon[strlen(colon) - 1] != ':') {
        scenario_fail(words, "expected TIME:");
    }
    const double end_s = strtod(colon, NULL);
    const int begin = ++words->next;
    for (int i = 1; from_s + i * step_s <= end_s; i++) {
        scenario_now_s = from_s + i * step_s;
        words->next = begin;
        scenario_statements(words);
    }
    words->next = words->count;
}

static inline void scenario_run_block(const struct scenario_block *block)
{
    struct scenario_words words = {.block = block, .line = block->line};
    const char *at = block->text;
    while (*at != '\0') {
        const size_t size = strcspn(at, "\n");
        double number;
        words.line++;
        if (strncmp(at, "scenario ", 9) == 0 || strncmp(at, "steps ", 6) == 0) {
            return;
        }
        scenario_split(&words, at, size);
        if (words.count > 0 && !words.is_text[0] && scenario_is_number(words.word[0], &number)) {
            scenario_now_s = number;
            words.next = 1;
        }
        if (scenario_has(&words, "every")) {
            scenario_every(&words);
        } else {
            scenario_statements(&words);
        }
        at += size + (at[size] != '\0');
    }
}

static inline void scenario_test(void **state)
{
    scenario_run_block(*state);
}

static inline int scenario_setup(void **state)
{
    scenario_now_s = 0;
    scenario_enter();
    return 0;
}

static inline int scenario_teardown(void **state)
{
    scenario_leave();
    return 0;
}

/* All scenarios of the file. Its text stays until the process ends. */
static inline bool scenario_load(const char *path)
{
    FILE *file = fopen(path, "r");
    static char *texts[8];
    static int count;
    size_t size = 0;
    if (!file || count == 8 || getdelim(&texts[count], &size, '\0', file) < 0) {
        print_error("%s: can't be read\n", path);
        return false;
    }
    fclose(file);
    int line = 1;
    for (char *at = texts[count++]; *at != '\0'; line++) {
        char *end = at + strcspn(at, "\n"), *name = strncmp(at, "scenario ", 9) == 0 ? at + 9 : at + 6;
        if (strncmp(at, "scenario ", 9) == 0 || strncmp(at, "steps ", 6) == 0) {
            const size_t length = strcspn(name, "#\n");
            char *copy = strndup(name, length);
            while (copy && strlen(copy) > 0 && copy[strlen(copy) - 1] == ' ') {
                copy[strlen(copy) - 1] = '\0';
            }
            if (scenario_block_count == SCENARIO_MAX || !copy) {
                print_error("%s:%d: there are too many scenarios\n", path, line);
                return false;
            }
            scenario_blocks[scenario_block_count++] = (struct scenario_block){
                .file = path, .name = copy, .is_test = name == at + 9, .line = line, .text = end + (*end != '\0')};
        }
        at = end + (*end != '\0');
    }
    return true;
}

/* Runs those of all files, the ones whose names contain argv[1] if given; a program's main returns it. */
static inline int scenario_main(const char *const *paths, int count, int argc, char **argv)
{
    static struct CMUnitTest tests[SCENARIO_MAX];
    int chosen = 0;
    for (int i = 0; i < count; i++) {
        if (!scenario_load(paths[i])) {
            return 1;
        }
    }
    for (int i = 0; i < scenario_block_count; i++) {
        struct scenario_block *block = &scenario_blocks[i];
        if (block->is_test && (argc < 2 || strstr(block->name, argv[1]))) {
            tests[chosen++] = (struct CMUnitTest){block->name, scenario_test, scenario_setup, scenario_teardown, block};
        }
    }
    const int failed = _cmocka_run_group_tests("scenarios", tests, (size_t)chosen, NULL, NULL);
    for (int i = 0; i < scenario_block_count; i++) {
        free(scenario_blocks[i].name);
    }
    return failed;
}

#endif
