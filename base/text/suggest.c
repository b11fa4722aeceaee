/* Nearest names by edit distance (optimal string alignment); three rows of the table suffice. */
#include "base/text/suggest.h"

#include <string.h>

enum { SUGGEST_MAX_WORD = 64, SUGGEST_FAR = 1000 };

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

int suggest_distance(const char *a, const char *b)
{
    size_t a_length = strlen(a), b_length = strlen(b);
    if (a_length > SUGGEST_MAX_WORD || b_length > SUGGEST_MAX_WORD) {
        return SUGGEST_FAR;
    }
    int rows[3][SUGGEST_MAX_WORD + 1];
    for (size_t j = 0; j <= b_length; j++) {
        rows[0][j] = (int)j;
    }
    for (size_t i = 1; i <= a_length; i++) {
        int *row = rows[i % 3];
        const int *above = rows[(i + 2) % 3], *two_above = rows[(i + 1) % 3];
        row[0] = (int)i;
        for (size_t j = 1; j <= b_length; j++) {
            int replaced = above[j - 1] + (a[i - 1] != b[j - 1]);
            row[j] = smaller(replaced, 1 + smaller(above[j], row[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                row[j] = smaller(row[j], two_above[j - 2] + 1);
            }
        }
    }
    return rows[a_length % 3][b_length];
}

void suggest_offer(struct suggestion *suggestion, const char *name)
{
    /* Up to a third of the word may be wrong; beyond that a suggestion confuses more than it helps. */
    size_t length = strlen(suggestion->word);
    int limit = length < 3 ? 1 : (int)(length / 3);
    int distance = suggest_distance(suggestion->word, name);
    if (distance <= limit && (!suggestion->best || distance < suggestion->distance)) {
        suggestion->best = name;
        suggestion->distance = distance;
    }
}
