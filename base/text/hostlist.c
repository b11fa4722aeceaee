/* One recursion per bracket of a name: for each of its numbers, writes it and recurses for the rest of the name. */
#include "base/text/hostlist.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DIGITS = 9 };

/* A list being expanded. */
struct expansion {
    char host[HOSTLIST_MAX_HOST + 1];
    int left; /* hosts that may still come */
    hostlist_add *add;
    void *context;
    struct error *error;
};

/* One range of numbers between brackets: "3-5", "08-11", "7". */
struct number_range {
    long first, last;
    int width; /* of the numbers, leading zeros included */
};

static bool expand(struct expansion *expansion, size_t used, const char *rest, const char *end, int brackets);

static bool append(struct expansion *expansion, size_t *used, const char *text, size_t size)
{
    if (size > HOSTLIST_MAX_HOST - *used) {
        return error_set(expansion->error, "a host has more than %d characters", HOSTLIST_MAX_HOST);
    }
    memcpy(expansion->host + *used, text, size);
    *used += size;
    return true;
}

static bool finish(struct expansion *expansion, size_t used)
{
    if (used == 0) {
        return error_set(expansion->error, "an empty name; write names separated by single commas");
    }
    if (expansion->left-- == 0) {
        return error_set(expansion->error, "too many hosts");
    }
    expansion->host[used] = '\0';
    return expansion->add(expansion->context, expansion->host, expansion->error);
}

static bool read_number(const char **text, long *number, int *width)
{
    size_t digits = strspn(*text, "0123456789");
    if (digits == 0 || digits > MAX_DIGITS) {
        return false;
    }
    *number = strtol(*text, NULL, 10);
    *width = (int)digits;
    *text += digits;
    return true;
}

/* Parses one range, from after the bracket or a comma to the next delimiter. */
static bool read_range(const char **text, struct number_range *range)
{
    int width;
    if (!read_number(text, &range->first, &range->width)) {
        return false;
    }
    range->last = range->first;
    if (**text != '-') {
        return true;
    }
    ++*text;
    return read_number(text, &range->last, &width) && range->last >= range->first;
}

static bool expand_range(struct expansion *expansion, size_t used, const struct number_range *range, const char *rest,
                         const char *end, int brackets)
{
    for (long number = range->first; number <= range->last; number++) {
        char text[MAX_DIGITS + 2];
        size_t all = used;
        const int size = snprintf(text, sizeof text, "%0*ld", range->width, number);
        if (!append(expansion, &all, text, (size_t)size) || !expand(expansion, all, rest, end, brackets)) {
            return false;
        }
    }
    return true;
}

/* host[0..used) is written; `rest` up to `end` is what follows in this name. */
static bool expand(struct expansion *expansion, size_t used, const char *rest, const char *end, int brackets)
{
    const char *open = memchr(rest, '[', (size_t)(end - rest));
    const size_t plain = (size_t)((open ? open : end) - rest);
    if (memchr(rest, ']', plain)) {
        return error_set(expansion->error, "a ']' without its '['");
    }
    if (!append(expansion, &used, rest, plain)) {
        return false;
    }
    if (!open) {
        return finish(expansion, used);
    }
    const char *close = memchr(open, ']', (size_t)(end - open));
    if (!close || brackets == HOSTLIST_MAX_BRACKETS) {
        return error_set(expansion->error, close ? "more than %d brackets in a name" : "a '[' without its ']'",
                         HOSTLIST_MAX_BRACKETS);
    }
    const char *text = open + 1;
    do {
        struct number_range range;
        if (!read_range(&text, &range) || (*text != ',' && *text != ']')) {
            return error_set(expansion->error, "brackets hold numbers and ranges of them, as in n[1,3-5]");
        }
        if (!expand_range(expansion, used, &range, close + 1, end, brackets + 1)) {
            return false;
        }
    } while (*text++ == ',');
    return true;
}

/* Where the name ends: at a comma outside brackets, or at the end of the text. */
static const char *end_of_name(const char *text)
{
    bool inside = false;
    for (; *text != '\0' && (inside || *text != ','); text++) {
        inside = *text == '[' || (inside && *text != ']');
    }
    return text;
}

bool hostlist_expand(const char *text, int most, hostlist_add *add, void *context, struct error *error)
{
    struct expansion expansion = {.left = most, .add = add, .context = context, .error = error};
    for (;;) {
        const char *end = end_of_name(text);
        if (!expand(&expansion, 0, text, end, 0)) {
            return false;
        }
        if (*end == '\0') {
            return true;
        }
        text = end + 1;
    }
}
