/*
 * How a column writes its numbers, where that is not as in a program: 1,234.50 or 1.234,50, 1 234, 1'234, $5, 65.6%,
 * (12.50), 5-, 0.17D+02, 12 kg, with a minus or blanks of Unicode. A column has one notation, found from all its texts.
 */
#ifndef WORKER_DATA_TABLE_NOTATION_H
#define WORKER_DATA_TABLE_NOTATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "worker/data/table/number.h"

enum { NOTATION_UNIT = 16 };

/* All zeros: plain numbers, as number_parse reads them. */
struct notation {
    char decimal; /* '.' or ','; 0: plain */
    char group;   /* between groups of digits: '.', ',', ' ' (any blank) or '\''; 0: none */
    char unit
        [NOTATION_UNIT]; /* the sign of a currency, or of percent, beside the number, or a word behind it; "": none */
};

/* What the texts of a column that are no plain numbers say of its notation. */
struct notation_clues {
    int64_t points, commas;               /* texts in which the decimal sign is certain */
    int64_t unsure_points, unsure_commas; /* texts such as 1,234 */
    int64_t groups[4];                    /* texts with that sign between groups: . , blank ' */
    int64_t units;                        /* texts with a unit */
    char unit[NOTATION_UNIT];             /* the first one */
    int64_t words, other_words;           /* texts with a word as unit; of these, those with another than the first */
    char word[NOTATION_UNIT];             /* the first one */
};

/* What the plain numbers of the column, and its file, say. */
struct notation_hints {
    int64_t plain;              /* their count */
    bool has_fractions;         /* not all are integers */
    double largest;             /* magnitude */
    char delimiter;             /* of the file */
    enum table_decimal decimal; /* by the config */
};

/*
 * True if a text is a number in some notation, not with another word as unit than earlier ones; adds what it says to
 * the clues.
 */
bool notation_look(struct notation_clues *clues, const char *text, size_t size);

/* The notation that suits most texts, without a word as unit. *is_unsure: 1,234 may be read either way. */
struct notation notation_choose(const struct notation_clues *clues, const struct notation_hints *hints,
                                bool *is_unsure);

/* Reads a field, as number_parse does if the notation is plain. */
enum number_kind notation_read(const struct notation *notation, const char *text, size_t size, double *value);

static inline bool notation_is_plain(const struct notation *notation)
{
    return notation->decimal == '\0';
}

/* Is its unit a word, as in 12 kg? */
bool notation_has_word(const struct notation *notation);

/* From what a checkpoint says, which need not be trusted. */
bool notation_is_valid(const struct notation *notation);

/* For people: "decimal comma, groups by points, unit %". */
enum { NOTATION_TEXT = 96 };
void notation_text(const struct notation *notation, char text[NOTATION_TEXT]);

#endif
