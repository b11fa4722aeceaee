/*
 * One pass over a buffer of whole rows. The scanner marks special bytes (delimiter, quote, end of line, zero) 64 at a
 * time; rows are split at those marks, and bytes between them are never examined.
 */
#include "worker/data/table/csv.h"

#include <stdlib.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "base/text/text.h"
#include "worker/data/stream.h"

enum {
    BLOCK = 64,               /* bytes marked at once; that many are readable after the buffer's content */
    FIRST_CAPACITY = 1 << 18, /* of the buffer: more than the first lines, from which the delimiter is guessed */
    LOOKED_AT = 1 << 16,      /* bytes from which the delimiter is guessed */
    FIRST_FIELDS = 64,
};

/* Which of the 64 bytes at `block` are marked, from the byte at `at` on. */
struct csv_scanner {
    const char *block;
    uint64_t marks;
};

struct csv_reader {
    struct stream *stream;
    char *buffer; /* [capacity + BLOCK] */
    size_t capacity;
    size_t begin, end; /* of what has not been delivered; end: of the content */
    bool ended;        /* nothing follows `end` */
    struct csv_scanner scanner;
    uint64_t line; /* of the byte at `begin` */
    char delimiter;
    struct csv_field *fields;
    int field_count, field_capacity;
    int columns;       /* of a row; 0: not known yet */
    bool looks;        /* csv_look: nothing is read, and nothing is bad */
    bool has_comments; /* lines that begin with # are comments, if they are no rows */
    bool has_blanks;   /* fields are separated by runs of blanks */
    bool has_returns;  /* lines end with CR alone */
    bool has_high;     /* some bytes of the buffer are not ASCII */
    size_t first;      /* where csv_rewind goes */
    uint64_t first_line;
    int64_t longer; /* rows with empty fields too many */
    char *scratch;  /* fields with unescaped quotes */
    size_t scratch_capacity;
};

/* --- scanning --- */

#ifdef __SSE2__

static uint64_t marks_of_block(const char *block, char delimiter)
{
    const __m128i delimiters = _mm_set1_epi8(delimiter), newlines = _mm_set1_epi8('\n');
    const __m128i quotes = _mm_set1_epi8('"'), zeros = _mm_setzero_si128();
    uint64_t marks = 0;
    for (int i = 0; i < BLOCK; i += 16) {
        const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)(block + i));
        const __m128i found =
            _mm_or_si128(_mm_or_si128(_mm_cmpeq_epi8(bytes, delimiters), _mm_cmpeq_epi8(bytes, newlines)),
                         _mm_or_si128(_mm_cmpeq_epi8(bytes, quotes), _mm_cmpeq_epi8(bytes, zeros)));
        marks |= (uint64_t)(uint32_t)_mm_movemask_epi8(found) << i;
    }
    return marks;
}

#else

static uint64_t marks_of_block(const char *block, char delimiter)
{
    uint64_t marks = 0;
    for (int i = 0; i < BLOCK; i++) {
        const char c = block[i];
        marks |= (uint64_t)(c == delimiter || c == '\n' || c == '"' || c == '\0') << i;
    }
    return marks;
}

#endif

/* Restarts the marks at `at`. */
static void scan_from(struct csv_reader *reader, size_t at)
{
    reader->scanner.block = reader->buffer + at;
    reader->scanner.marks = marks_of_block(reader->scanner.block, reader->delimiter);
}

/* The next marked byte; NULL at the end of the content. */
static inline const char *scan_next(struct csv_reader *reader)
{
    struct csv_scanner *scanner = &reader->scanner;
    const char *end = reader->buffer + reader->end;
    while (scanner->marks == 0) {
        if (end - scanner->block <= BLOCK) {
            return NULL;
        }
        scanner->block += BLOCK;
        scanner->marks = marks_of_block(scanner->block, reader->delimiter);
    }
    const char *found = scanner->block + __builtin_ctzll(scanner->marks);
    if (found >= end) {
        return NULL;
    }
    scanner->marks &= scanner->marks - 1;
    return found;
}

/* --- the buffer --- */

/* Looks at bytes just read: are all of them ASCII? */
static void adapt(struct csv_reader *reader, char *bytes, size_t size)
{
    unsigned char all = 0;
    for (size_t i = 0; i < size; i++) {
        all |= (unsigned char)bytes[i];
    }
    reader->has_high |= all >= 0x80;
    for (size_t i = 0; reader->has_blanks && i < size; i++) {
        bytes[i] = bytes[i] == '\t' ? ' ' : bytes[i];
    }
    for (size_t i = 0; reader->has_returns && i < size; i++) {
        bytes[i] = bytes[i] == '\r' ? '\n' : bytes[i];
    }
}

/* Moves the current row to the front and reads on after it. */
static bool refill(struct csv_reader *reader, struct error *error)
{
    const size_t kept = reader->end - reader->begin;
    if (kept == reader->capacity) {
        if (kept >= CSV_MAX_LINE) {
            return error_set(error,
                             "%s:%llu: has a line of more than %d MiB; is this a CSV file, and is a closing quote "
                             "missing?",
                             stream_name(reader->stream), (unsigned long long)reader->line, CSV_MAX_LINE >> 20);
        }
        if (!stream_charge(reader->stream, reader->capacity, error)) {
            return false;
        }
        char *larger = realloc(reader->buffer, 2 * reader->capacity + BLOCK);
        if (!larger) {
            return error_set(error, "%s: out of memory for a line of %zu bytes", stream_name(reader->stream), kept);
        }
        reader->buffer = larger;
        reader->capacity *= 2;
    }
    memmove(reader->buffer, reader->buffer + reader->begin, kept);
    size_t got;
    if (!stream_read(reader->stream, reader->buffer + kept, reader->capacity - kept, &got, error)) {
        return false;
    }
    reader->ended = got < reader->capacity - kept;
    reader->begin = 0;
    reader->end = kept + got;
    reader->end -= reader->ended && got > 0 && reader->buffer[reader->end - 1] == '\x1A'; /* the end of a file of DOS */
    adapt(reader, reader->buffer + kept, reader->end - kept);
    memset(reader->buffer + reader->end, ' ', BLOCK);
    scan_from(reader, 0);
    return true;
}

static bool add_field(struct csv_reader *reader, const char *text, const char *end)
{
    if (reader->has_blanks && text == end && (text == reader->buffer || text[-1] != '"')) {
        return true; /* between two blanks */
    }
    if (reader->field_count == reader->field_capacity) {
        const int capacity = reader->field_capacity > 0 ? 2 * reader->field_capacity : FIRST_FIELDS;
        const size_t growth = (size_t)(capacity - reader->field_capacity) * sizeof(struct csv_field);
        struct error ignored;
        struct csv_field *larger = stream_charge(reader->stream, growth, &ignored)
                                       ? realloc(reader->fields, (size_t)capacity * sizeof *larger)
                                       : NULL;
        if (!larger) {
            return false;
        }
        reader->fields = larger;
        reader->field_capacity = capacity;
    }
    reader->fields[reader->field_count++] =
        (struct csv_field){.text = text,
                           .size = (uint32_t)(end - text),
                           .column = (uint32_t)(text - (reader->buffer + reader->begin)) + 1};
    return true;
}

/* --- rows --- */

/* The result of trying to cut a row off the buffer. */
enum cut {
    CUT_WHOLE,
    CUT_UNFINISHED,
    CUT_NO_MEMORY,
    CUT_ZERO_BYTE,
    CUT_BEHIND_QUOTE,
    CUT_OPEN_QUOTE,
    CUT_TOO_MANY,
    CUT_OTHER_TEXT,
};

/* The current row. */
struct cutter {
    const char *field; /* start of its last field */
    const char *end;   /* end of the row once it is cut; otherwise the position of a problem */
    uint64_t lines;    /* newlines inside quotes */
    bool has_doubled;  /* quotes to unescape */
};

/*
 * `open` is the quote that begins the field. Sets *close to the one that ends it; what follows must be a delimiter or
 * the end of the line.
 */
static enum cut cut_quoted(struct csv_reader *reader, struct cutter *cutter, const char **close)
{
    const char *end = reader->buffer + reader->end;
    for (;;) {
        const char *mark = scan_next(reader);
        if (!mark) {
            return reader->ended ? CUT_OPEN_QUOTE : CUT_UNFINISHED;
        }
        cutter->lines += *mark == '\n';
        if (*mark == '\0') {
            cutter->end = mark;
            return CUT_ZERO_BYTE;
        }
        if (*mark != '"') {
            continue;
        }
        if (mark + 1 == end) {
            *close = mark;
            return reader->ended ? CUT_WHOLE : CUT_UNFINISHED;
        }
        if (mark[1] == '"') {
            cutter->has_doubled = true;
            scan_next(reader);
            continue;
        }
        *close = mark;
        cutter->end = mark + 1;
        if (mark[1] == '\r' && mark + 2 == end) {
            return reader->ended ? CUT_WHOLE : CUT_UNFINISHED;
        }
        const bool ends = mark[1] == reader->delimiter || mark[1] == '\n' || (mark[1] == '\r' && mark[2] == '\n');
        return ends ? CUT_WHOLE : CUT_BEHIND_QUOTE;
    }
}

/* Starts at the scanner's position, the beginning of the row. */
static enum cut cut_row(struct csv_reader *reader, struct cutter *cutter)
{
    const char *quoted_end = NULL; /* of the current field, if it is quoted: the position of its closing quote */
    reader->field_count = 0;
    cutter->field = reader->buffer + reader->begin;
    for (;;) {
        const char *mark = scan_next(reader);
        if (!mark && !reader->ended) {
            return CUT_UNFINISHED;
        }
        const char *end = mark ? mark : reader->buffer + reader->end;
        if (mark && *mark == '"') {
            if (mark == cutter->field) {
                const enum cut cut = cut_quoted(reader, cutter, &quoted_end);
                if (cut != CUT_WHOLE) {
                    return cut;
                }
            }
            continue;
        }
        cutter->end = end;
        if (mark && *mark == '\0') {
            return CUT_ZERO_BYTE;
        }
        const bool is_last = !mark || *mark == '\n';
        const char *text_end = end;
        if (quoted_end) {
            text_end = quoted_end;
        } else if (is_last && end > cutter->field && end[-1] == '\r') {
            text_end--;
        }
        if (!add_field(reader, cutter->field + (quoted_end ? 1 : 0), text_end)) {
            return CUT_NO_MEMORY;
        }
        if (is_last) {
            return CUT_WHOLE;
        }
        if (reader->field_count == CSV_MAX_COLUMNS) {
            return CUT_TOO_MANY;
        }
        cutter->field = end + 1;
        quoted_end = NULL;
    }
}

/* Copies the fields with doubled quotes and leaves one of each pair. */
static bool undo_doubled(struct csv_reader *reader)
{
    size_t needed = 0;
    for (int i = 0; i < reader->field_count; i++) {
        needed += reader->fields[i].size;
    }
    if (needed > reader->scratch_capacity) {
        struct error ignored;
        char *larger = stream_charge(reader->stream, needed - reader->scratch_capacity, &ignored)
                           ? realloc(reader->scratch, needed)
                           : NULL;
        if (!larger) {
            return false;
        }
        reader->scratch = larger;
        reader->scratch_capacity = needed;
    }
    char *out = reader->scratch;
    for (int i = 0; i < reader->field_count; i++) {
        struct csv_field *field = &reader->fields[i];
        const char *text = field->text, *end = text + field->size;
        const bool is_quoted = field->column > 1 && text[-1] == '"';
        if (!is_quoted || !memchr(text, '"', field->size)) {
            continue;
        }
        field->text = out;
        for (; text < end; text++) {
            *out++ = *text;
            text += *text == '"';
        }
        field->size = (uint32_t)(out - field->text);
    }
    return true;
}

/* Sets the error about a row to skip; returns its status. */
static enum csv_status say_bad(const struct csv_reader *reader, const struct cutter *cutter, enum cut cut,
                               struct error *error)
{
    const char *name = stream_name(reader->stream);
    const unsigned long long line = reader->line;
    const size_t column = (size_t)(cutter->end - (reader->buffer + reader->begin)) + 1;
    if (cut == CUT_ZERO_BYTE) {
        error_set(error,
                  "%s:%llu:%zu: has a zero byte; is this a text file, in UTF-8? If it is UTF-16: iconv -f utf-16 -t "
                  "utf-8 FILE",
                  name, line, column);
    } else if (cut == CUT_OTHER_TEXT) {
        const unsigned byte = *(const unsigned char *)cutter->end;
        error_set(error, "%s:%llu:%zu: byte 0x%02x is not UTF-8, as text must be; if it is %s -t utf-8 FILE", name,
                  line, column, byte, byte < 0xA0 ? "of Windows: iconv -f cp1252" : "Latin-1: iconv -f latin1");
    } else if (cut == CUT_BEHIND_QUOTE) {
        error_set(error, "%s:%llu:%zu: has text behind a closing quote; double a quote that belongs to the field", name,
                  line, column);
    } else if (cut == CUT_OPEN_QUOTE) {
        error_set(error, "%s:%llu: ends inside a quoted field; close it, or was the file cut?", name, line);
    } else {
        error_set(error, "%s:%llu: has more than %d fields", name, line, CSV_MAX_COLUMNS);
    }
    return CSV_BAD;
}

/* Continues after the next end of line after the problem. */
static bool skip_line(struct csv_reader *reader, const struct cutter *cutter, struct error *error)
{
    size_t at = (size_t)(cutter->end - reader->buffer);
    for (;;) {
        const char *newline = memchr(reader->buffer + at, '\n', reader->end - at);
        if (newline) {
            reader->line += cutter->lines + 1;
            reader->begin = (size_t)(newline - reader->buffer) + 1;
            scan_from(reader, reader->begin);
            return true;
        }
        reader->begin = reader->end;
        if (reader->ended) {
            return true;
        }
        if (!refill(reader, error)) {
            return false;
        }
        at = 0;
    }
}

/* What follows the row that was cut is next. */
static void leave_row(struct csv_reader *reader, const struct cutter *cutter)
{
    const size_t next = (size_t)(cutter->end - reader->buffer) + 1;
    reader->line += cutter->lines + 1;
    reader->begin = next < reader->end ? next : reader->end;
}

/* Fields too many do no harm if they are empty: a delimiter that ends the line, or columns that nobody filled in. */
static bool drop_empty(struct csv_reader *reader, struct csv_row *row)
{
    for (int i = reader->columns; i < row->count; i++) {
        size_t size = row->fields[i].size;
        csv_trim(row->fields[i].text, &size);
        if (size > 0) {
            return false;
        }
    }
    reader->longer += row->count > reader->columns;
    row->count = row->count < reader->columns ? row->count : reader->columns;
    return row->count == reader->columns;
}

static bool is_comment(const struct csv_row *row)
{
    return row->raw_size > 0 && row->raw[0] == '#';
}

static enum csv_status say_ragged(const struct csv_reader *reader, const struct csv_row *row, struct error *error)
{
    const bool is_short = row->count < reader->columns;
    const unsigned column = is_short ? (unsigned)row->raw_size + 1 : row->fields[reader->columns].column;
    error_set(error, "%s:%llu:%u: has %d fields where the first row has %d; %s", stream_name(reader->stream),
              (unsigned long long)row->line, column, row->count, reader->columns,
              reader->has_blanks ? "fields are separated by blanks here: put one with a blank in it into quotes, and "
                                   "NA where one is missing"
              : is_short         ? "add what is missing, or remove the row; --max_bad_records=N skips N such rows"
                                 : "put a field with a delimiter in it into quotes");
    return CSV_BAD;
}

/* Delivers the row that was cut. *skips: it is a comment. */
static enum csv_status finish_row(struct csv_reader *reader, struct csv_row *row, struct cutter *cutter, bool *skips,
                                  struct error *error)
{
    const char *raw = reader->buffer + reader->begin;
    size_t raw_size = (size_t)(cutter->end - raw);
    raw_size -= raw_size > 0 && raw[raw_size - 1] == '\r';
    *row = (struct csv_row){
        .fields = reader->fields, .count = reader->field_count, .line = reader->line, .raw = raw, .raw_size = raw_size};
    if (reader->has_high && !utf8_check(raw, raw_size)) {
        const uint8_t *at = (const uint8_t *)raw, *end = at + raw_size;
        for (size_t length; (length = utf8_length(at, end)) > 0; at += length) {
        }
        cutter->end = (const char *)at;
        const enum csv_status status = say_bad(reader, cutter, CUT_OTHER_TEXT, error);
        cutter->end = raw + raw_size;
        leave_row(reader, cutter);
        return status;
    }
    leave_row(reader, cutter);
    if (cutter->has_doubled && !undo_doubled(reader)) {
        error_set(error, "%s: out of memory for a row of %zu bytes", stream_name(reader->stream), raw_size);
        return CSV_FAILED;
    }
    if (reader->looks) {
        return CSV_ROW;
    }
    if (reader->columns == 0) {
        reader->columns = row->count;
    }
    if (row->count == reader->columns || drop_empty(reader, row)) {
        return CSV_ROW;
    }
    *skips = reader->has_comments && is_comment(row);
    return say_ragged(reader, row, error);
}

/* Has the line nothing but blanks? In a table of one column an empty line is a row. */
static bool is_blank_line(const struct csv_reader *reader, const struct cutter *cutter)
{
    if (reader->field_count == 0) {
        return true; /* fields are separated by blanks */
    }
    const struct csv_field *field = &reader->fields[0];
    size_t size = field->size;
    const char *text = field->text;
    for (; size > 0 && (*text == ' ' || *text == '\t'); text++, size--) {
    }
    return reader->field_count == 1 && size == 0 && field->column == 1 && reader->columns != 1 && cutter->lines == 0;
}

enum csv_status csv_next(struct csv_reader *reader, struct csv_row *row, struct error *error)
{
    for (;;) {
        if (reader->begin == reader->end && reader->ended) {
            return CSV_END;
        }
        struct cutter cutter = {.has_doubled = false};
        const enum cut cut = cut_row(reader, &cutter);
        if (cut == CUT_UNFINISHED) {
            const bool is_first = reader->begin == reader->first;
            if (reader->looks && !is_first) {
                return CSV_END;
            }
            if (!refill(reader, error)) {
                return CSV_FAILED;
            }
            reader->first = reader->looks ? reader->begin : reader->first;
            continue;
        }
        if (cut == CUT_NO_MEMORY) {
            error_set(error, "%s: out of memory for a row of fields", stream_name(reader->stream));
            return CSV_FAILED;
        }
        if (cut != CUT_WHOLE) {
            if (reader->looks) {
                return CSV_END;
            }
            if (cut == CUT_OPEN_QUOTE) {
                cutter.end = reader->buffer + reader->end;
            }
            const enum csv_status status = say_bad(reader, &cutter, cut, error);
            return skip_line(reader, &cutter, error) ? status : CSV_FAILED;
        }
        if (is_blank_line(reader, &cutter)) {
            leave_row(reader, &cutter);
            continue;
        }
        bool skips = false;
        const enum csv_status status = finish_row(reader, row, &cutter, &skips, error);
        if (!skips) {
            return status;
        }
    }
}

enum csv_status csv_look(struct csv_reader *reader, struct csv_row *row, struct error *error)
{
    reader->looks = true;
    return csv_next(reader, row, error);
}

void csv_rewind(struct csv_reader *reader)
{
    reader->begin = reader->first;
    reader->line = reader->first_line;
    scan_from(reader, reader->begin);
}

void csv_begin(struct csv_reader *reader, int columns, bool has_comments)
{
    reader->looks = false;
    reader->columns = columns;
    reader->has_comments = has_comments;
    scan_from(reader, reader->begin);
}

const char *csv_rest(const struct csv_reader *reader, size_t *size)
{
    const char *rest = reader->buffer + reader->begin;
    *size = reader->end - reader->begin;
    if (!reader->ended || *size > CSV_REST) {
        return NULL;
    }
    for (; *size > 0; --*size) {
        const char last = rest[*size - 1];
        if (last != ' ' && last != '\t' && last != '\r' && last != '\n' && last != reader->delimiter) {
            break;
        }
    }
    return rest;
}

int64_t csv_longer_rows(const struct csv_reader *reader)
{
    return reader->longer;
}

/* --- opening --- */

enum { LINES = 1024, MOST_TITLES = 32, BLANKS = ' ' };

/* Fields of each of the first lines, without comments and blank lines; returns how many lines there are. */
static int count_fields(const struct csv_reader *reader, char delimiter, int counts[LINES])
{
    const char *end = reader->buffer + (reader->end < LOOKED_AT ? reader->end : LOOKED_AT);
    const char *start = reader->buffer + reader->begin;
    int lines = 0, count = 0;
    bool quoted = false, between = true;
    for (const char *at = start; at <= end && lines < LINES; at++) {
        const bool is_last = at == end;
        const bool is_whole = reader->ended && at == reader->buffer + reader->end;
        if (is_last && (at == start || (lines > 0 && !is_whole))) {
            break;
        }
        quoted ^= !is_last && *at == '"';
        const bool is_end = is_last || (*at == '\n' && !quoted);
        const bool is_delimiter = !is_end && !quoted && (*at == delimiter || (delimiter == BLANKS && *at == '\t'));
        if (delimiter == BLANKS) {
            const bool is_blank = is_end || is_delimiter || (*at == '\r' && !quoted);
            count += between && !is_blank;
            between = is_blank;
        } else {
            count += is_delimiter;
        }
        if (is_end) {
            const bool is_empty = at == start || (at == start + 1 && *start == '\r');
            if (*start != '#' && !is_empty) {
                counts[lines] = count + (delimiter != BLANKS);
                lines += counts[lines] > 0; /* a line of blanks is none */
            }
            start = at + 1;
            count = 0;
        }
    }
    return lines;
}

/* The usual count; *first: the first line that has it. */
static int usual_count(const int counts[LINES], int lines, int *first)
{
    int best = 0, most = 0;
    for (int i = 0; i < lines && i < MOST_TITLES; i++) {
        int alike = 0;
        for (int j = i; j < lines; j++) {
            alike += counts[j] == counts[i];
        }
        if (alike > most) {
            most = alike;
            best = i;
        }
    }
    *first = best;
    return lines > 0 ? counts[best] : 0;
}

/*
 * The number of fields of a line with this delimiter, provided that nearly all lines from the first such one on have as
 * many, or one more, as where one ends the line, or R names rows but not their column; otherwise 1. *first_line: its
 * number; titles may precede it.
 */
static int fields_by(const struct csv_reader *reader, char delimiter, int *first_line)
{
    int counts[LINES], first, alike = 0;
    const int lines = count_fields(reader, delimiter, counts), usual = usual_count(counts, lines, &first);
    *first_line = first;
    if (first == 1 && counts[0] == usual - 1 && counts[0] > 1) {
        *first_line = first = 0; /* R's names, or a delimiter that ends the other lines */
        alike++;
    }
    for (int i = first; i < lines; i++) {
        const int difference = counts[i] - usual;
        alike += difference == 0 || (difference == 1 && delimiter != BLANKS);
    }
    const bool is_regular = delimiter == BLANKS ? alike == lines - first : 10 * alike >= 9 * (lines - first);
    return is_regular && (first == 0 || lines - first > 1) ? usual : 1;
}

static void find_delimiter(struct csv_reader *reader)
{
    static const char candidates[] = {',', ';', '\t', '|'};
    int most = 1, counts[LINES], first;
    for (int titles = 0; titles < 2 && most == 1; titles++) {
        for (size_t i = 0; i < sizeof candidates; i++) {
            const int fields = fields_by(reader, candidates[i], &first);
            if (fields > most && (first == 0 || titles > 0)) {
                most = fields;
                reader->delimiter = candidates[i];
            }
        }
    }
    if (most == 1 && count_fields(reader, BLANKS, counts) > 1 && fields_by(reader, BLANKS, &first) > 1) {
        reader->delimiter = BLANKS;
        reader->has_blanks = true;
        adapt(reader, reader->buffer + reader->begin, reader->end - reader->begin);
    }
}

/* A mark at the beginning that says how text is encoded. */
static bool check_encoding(struct csv_reader *reader, struct error *error)
{
    const char *bytes = reader->buffer;
    if (reader->end >= 2 && (memcmp(bytes, "\xFF\xFE", 2) == 0 || memcmp(bytes, "\xFE\xFF", 2) == 0)) {
        return error_set(error, "%s: is UTF-16, and text must be UTF-8: iconv -f utf-16 -t utf-8 FILE",
                         stream_name(reader->stream));
    }
    if (reader->end >= 3 && memcmp(bytes, "\xEF\xBB\xBF", 3) == 0) {
        reader->begin = reader->first = 3;
    }
    return true;
}

/* Takes ownership of the stream. */
bool csv_open(struct csv_reader **result, struct stream *stream, struct error *error)
{
    struct csv_reader *reader = calloc(1, sizeof *reader);
    char *buffer = malloc((size_t)FIRST_CAPACITY + BLOCK);
    if (!reader || !buffer) {
        error_set(error, "%s: out of memory while reading it", stream_name(stream));
        free(reader);
        free(buffer);
        stream_close(stream);
        return false;
    }
    *reader = (struct csv_reader){
        .stream = stream, .buffer = buffer, .capacity = FIRST_CAPACITY, .line = 1, .first_line = 1, .delimiter = ','};
    if (!refill(reader, error) || !check_encoding(reader, error)) {
        csv_close(reader);
        return false;
    }
    reader->has_returns = memchr(reader->buffer, '\r', reader->end) && !memchr(reader->buffer, '\n', reader->end);
    adapt(reader, reader->buffer, reader->end);
    find_delimiter(reader);
    scan_from(reader, reader->begin);
    *result = reader;
    return true;
}

void csv_close(struct csv_reader *reader)
{
    if (reader) {
        stream_close(reader->stream);
        free(reader->buffer);
        free(reader->fields);
        free(reader->scratch);
        free(reader);
    }
}

char csv_delimiter(const struct csv_reader *reader)
{
    return reader->has_blanks ? ',' : reader->delimiter;
}

bool csv_has_blanks(const struct csv_reader *reader)
{
    return reader->has_blanks;
}

const char *csv_name(const struct csv_reader *reader)
{
    return stream_name(reader->stream);
}
