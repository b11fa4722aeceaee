/*
 * Rows of a CSV file, by RFC 4180: fields between delimiters, in double quotes if they hold a delimiter, a quote (then
 * doubled) or the end of a line. Lines may end with CRLF, or all with CR; a byte order mark and blank lines are
 * skipped; gzip is unpacked. A quote inside an unquoted field is an ordinary character, as in most readers. Fields may
 * also be separated by runs of blanks, if all of the first lines have as many.
 *
 * Texts are UTF-8: a row that is not is bad.
 *
 * A bad row (a ragged one, say) does not end the file: the reader goes on with the next line. Memory is bounded by
 * CSV_MAX_LINE, whatever the file holds.
 */
#ifndef WORKER_DATA_TABLE_CSV_H
#define WORKER_DATA_TABLE_CSV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum {
    CSV_MAX_LINE = 1 << 24,    /* bytes of a row */
    CSV_MAX_COLUMNS = 1 << 17, /* fields of a row */
};

enum csv_status {
    CSV_ROW,
    CSV_END,
    CSV_BAD,    /* one row; the error says "FILE:LINE:COLUMN: ...". The next call continues after it */
    CSV_FAILED, /* the file cannot be read or unpacked, or a line is longer than CSV_MAX_LINE */
};

/* No terminating zero; quotes are removed. */
struct csv_field {
    const char *text;
    uint32_t size;
    uint32_t column; /* of its first byte in the row, from 1; 0: a number of a request, as a program writes it */
};

/* A field's text without spaces at its ends. */
static inline const char *csv_trim(const char *text, size_t *size)
{
    while (*size > 0 && *text == ' ') {
        text++;
        (*size)--;
    }
    while (*size > 0 && text[*size - 1] == ' ') {
        (*size)--;
    }
    return text;
}

struct csv_row {
    const struct csv_field *fields; /* [count]; they and their texts are valid until the next call */
    int count;
    uint64_t line;   /* of its first byte, from 1 */
    const char *raw; /* [raw_size]: the row as in the file, without the end of the line */
    size_t raw_size;
};

struct csv_reader;
struct stream;

/*
 * Detects the delimiter (one of , ; tab | or blanks) from the first lines. Takes ownership of the stream, even on
 * failure; long lines are charged to its account.
 */
bool csv_open(struct csv_reader **reader, struct stream *stream, struct error *error);
void csv_close(struct csv_reader *reader); /* safe on NULL */

/*
 * Rows with another number of fields than csv_begin says, or else the first one, are bad, unless those that are too
 * many are empty, or the line is a comment (#) of a file that begins with comments.
 */
enum csv_status csv_next(struct csv_reader *reader, struct csv_row *row, struct error *error);

/*
 * Looks at the next row, whatever its number of fields, and however often: csv_rewind goes back to the first one. Ends
 * before rows that are not in memory yet.
 */
enum csv_status csv_look(struct csv_reader *reader, struct csv_row *row, struct error *error);
void csv_rewind(struct csv_reader *reader);

/* Ends looking: csv_next returns what follows the row looked at last, in rows of that many fields. */
void csv_begin(struct csv_reader *reader, int columns, bool has_comments);

/*
 * What follows the row that csv_next gave last, if that is the end of the file and no longer than CSV_REST, without
 * blanks and delimiters at its end; else NULL.
 */
enum { CSV_REST = 4096 };
const char *csv_rest(const struct csv_reader *reader, size_t *size);

/* Rows so far that had empty fields in addition to their columns. */
int64_t csv_longer_rows(const struct csv_reader *reader);

char csv_delimiter(const struct csv_reader *reader); /* a comma instead of blanks */
bool csv_has_blanks(const struct csv_reader *reader);
const char *csv_name(const struct csv_reader *reader);

#endif
