/*
 * "Did you mean": the known name nearest to a mistyped word.
 */
#ifndef BASE_TEXT_SUGGEST_H
#define BASE_TEXT_SUGGEST_H

/*
 * Edits (insert, delete, replace, swap two neighbours) that turn one word into the other: the restricted
 * Damerau-Levenshtein distance. Words longer than 64 bytes count as far from everything: 1000.
 */
int suggest_distance(const char *a, const char *b);

/* A search over names, one at a time: begin with {.word = word}, offer each, and read `best`. */
struct suggestion {
    const char *word;
    const char *best; /* NULL: nothing is near enough */
    int distance;
};

void suggest_offer(struct suggestion *suggestion, const char *name);

#endif
