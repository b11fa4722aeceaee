/*
 * Fields of the usual form, digits with or without a point, are read eight digits at a time; all others, and those of
 * fewer than eight bytes, byte by byte. Both produce the same two integers.
 *
 * A decimal m x 10^e, with m below 2^64 and |e| at most 27, is a product or a quotient of integers below 2^128:
 * computed exactly, it is rounded once. That covers 19 digits; longer ones, or those with a larger exponent, go to
 * strtod.
 */
#include "worker/data/table/number.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "worker/data/table/wide.h"

enum {
    EXACT_POWER = 22,   /* 10^22 is exact in a double */
    INTEGER_POWER = 27, /* 5^27 < 2^63 */
    MOST_DIGITS = 19,   /* that certainly fit into 64 bits */
    MOST_COPIED = 1100, /* a double's decimal expansion has at most 767 significant digits */
};

static const double powers_of_ten[EXACT_POWER + 1] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                                      1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                                      1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

static const uint64_t powers_of_five[INTEGER_POWER + 1] = {
    1u,
    5u,
    25u,
    125u,
    625u,
    3125u,
    15625u,
    78125u,
    390625u,
    1953125u,
    9765625u,
    48828125u,
    244140625u,
    1220703125u,
    6103515625u,
    30517578125u,
    152587890625u,
    762939453125u,
    3814697265625u,
    19073486328125u,
    95367431640625u,
    476837158203125u,
    2384185791015625u,
    11920928955078125u,
    59604644775390625u,
    298023223876953125u,
    1490116119384765625u,
    7450580596923828125u,
};

/* The parts of a number as written. */
struct decimal {
    uint64_t digits; /* the first MOST_DIGITS significant ones */
    int count;       /* of significant digits */
    int64_t power;   /* of ten, for the digits kept */
    bool negative;
};

/* Scales to a quotient of more than 64 bits; a remainder only matters as "more than that", in the lowest bit. */
static double divide_exactly(uint64_t digits, int power)
{
    const int shift = __builtin_clzll(digits) + 63;
    const wide numerator = (wide)digits << shift;
    wide quotient = numerator / powers_of_five[power];
    quotient |= quotient * powers_of_five[power] != numerator;
    return ldexp((double)quotient, -shift - power);
}

/* False if exact integers can't represent the number. */
static bool compose(const struct decimal *decimal, double *value)
{
    const uint64_t digits = decimal->digits;
    const int64_t power = decimal->power;
    if (decimal->count == 0) {
        *value = 0;
        return true;
    }
    if (decimal->count > MOST_DIGITS || power > INTEGER_POWER || power < -INTEGER_POWER) {
        return false;
    }
    if (digits <= (uint64_t)1 << 53 && power <= EXACT_POWER && power >= -EXACT_POWER) {
        *value = power < 0 ? (double)digits / powers_of_ten[-power] : (double)digits * powers_of_ten[power];
    } else if (power >= 0) {
        *value = ldexp((double)((wide)digits * powers_of_five[power]), (int)power);
    } else {
        *value = divide_exactly(digits, (int)-power);
    }
    return true;
}

/* The digits at `at`, which are after the point or not. */
static const char *read_digits(struct decimal *decimal, const char *at, const char *end, bool behind)
{
    for (; at < end && (unsigned)(*at - '0') < 10; at++) {
        const unsigned digit = (unsigned)(*at - '0');
        if (decimal->count < MOST_DIGITS) {
            decimal->digits = decimal->digits * 10 + digit;
            decimal->count += decimal->digits != 0;
            decimal->power -= behind;
        } else {
            decimal->count++;
            decimal->power += !behind;
        }
    }
    return at;
}

#if defined __BYTE_ORDER__ && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__

enum { WORD = 8 /* bytes, one digit each */ };

/* The bytes at `at`, and zeros from `end` on. At least eight bytes precede the end. */
static inline uint64_t load_word(const char *at, const char *end)
{
    int64_t missing = WORD - (end - at);
    missing &= ~(missing >> 63); /* none is 0; a branch would be unpredictable */
    uint64_t word;
    memcpy(&word, at - missing, WORD);
    return word >> (4 * missing) >> (4 * missing); /* possibly by all 64 bits */
}

/* The number of leading digits in the word. */
static inline int count_digits(uint64_t word)
{
    const uint64_t distance = word ^ 0x3030303030303030; /* below 10 for digits */
    const uint64_t others = (distance | (distance + 0x7676767676767676)) & 0x8080808080808080;
    return others == 0 ? WORD : __builtin_ctzll(others) / 8;
}

/* The value of the first `count` bytes, all digits. */
static inline uint64_t word_value(uint64_t word, int count)
{
    const int half = 4 * (WORD - count);
    word = (word & 0x0F0F0F0F0F0F0F0F) << half << half; /* leading zeros */
    word = word * 10 + (word >> 8);                     /* pairs, in every other byte */
    return ((word & 0x000000FF000000FF) * (100 + (1000000ull << 32)) +
            ((word >> 16) & 0x000000FF000000FF) * (1 + (10000ull << 32))) >>
           32;
}

/* Digits at `at`, as many as there are; at most 24. */
static inline const char *read_words(uint64_t *digits, const char *at, const char *end)
{
    static const uint64_t powers[WORD + 1] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};
    for (int i = 0; i < 3; i++) {
        const uint64_t word = load_word(at, end);
        const int count = count_digits(word);
        *digits = *digits * powers[count] + word_value(word, count);
        at += count;
        if (count < WORD) {
            break;
        }
    }
    return at;
}

/* More digits than a double represents. */
__attribute__((noinline)) static double compose_long(uint64_t digits, ptrdiff_t behind)
{
    double number = 0;
    const struct decimal decimal = {.digits = digits, .count = 1, .power = -(int64_t)behind};
    compose(&decimal, &number);
    return number;
}

/* Digits, with or without a point and a sign. */
static inline bool parse_usual(const char *text, const char *end, double *value)
{
    const bool negative = *text == '-';
    const char *at = text + negative, *const first = at;
    uint64_t digits = 0;
    at = read_words(&digits, at, end);
    ptrdiff_t count = at - first, behind = 0;
    if (at < end && *at == '.') {
        const char *point = at++;
        at = read_words(&digits, at, end);
        behind = at - point - 1;
        count += behind;
    }
    if (at != end || count == 0 || count > MOST_DIGITS) {
        return false;
    }
    const double number =
        digits <= (uint64_t)1 << 53 ? (double)(int64_t)digits / powers_of_ten[behind] : compose_long(digits, behind);
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    bits |= (uint64_t)negative << 63;
    memcpy(value, &bits, sizeof bits);
    return true;
}

#else

enum { WORD = 8 };

static inline bool parse_usual(const char *text, const char *end, double *value)
{
    (void)text;
    (void)end;
    (void)value;
    return false;
}

#endif

static const char *read_exponent(struct decimal *decimal, const char *at, const char *end)
{
    const char *start = at++;
    const bool negative = at < end && *at == '-';
    at += at < end && (*at == '-' || *at == '+');
    int64_t power = 0;
    const char *digits = at;
    for (; at < end && (unsigned)(*at - '0') < 10; at++) {
        power = power < 100000 ? power * 10 + (*at - '0') : power;
    }
    decimal->power += negative ? -power : power;
    return at > digits ? at : start;
}

static bool equals(const char *text, size_t size, const char *word)
{
    for (size_t i = 0; i < size; i++) {
        const char c = text[i] >= 'A' && text[i] <= 'Z' ? (char)(text[i] | 0x20) : text[i];
        if (word[i] == '\0' || c != word[i]) {
            return false;
        }
    }
    return word[size] == '\0';
}

static bool is_one_of(const char *text, size_t size, const char *const *words)
{
    for (; *words; words++) {
        if (equals(text, size, *words)) {
            return true;
        }
    }
    return false;
}

static void trim(const char **text, size_t *size)
{
    while (*size > 0 && (**text == ' ' || **text == '\t')) {
        (*text)++;
        (*size)--;
    }
    while (*size > 0 && ((*text)[*size - 1] == ' ' || (*text)[*size - 1] == '\t')) {
        (*size)--;
    }
}

const char *const number_missing_marks[] = {"", "na", "n/a", "nan", "-nan", "null", "none", "?", "#n/a", "<na>", NULL};

bool number_is_missing(const char *text, size_t size)
{
    trim(&text, &size);
    return size == 0 || (size <= 4 && is_one_of(text, size, number_missing_marks));
}

bool number_is_mark(const char *text, size_t size)
{
    static const char *const marks[] = {"-",
                                        "--",
                                        "---",
                                        ".",
                                        "..",
                                        "...",
                                        "\u2013",
                                        "\u2014",
                                        "\u2026",
                                        "\\n",
                                        "n.a.",
                                        "n.a",
                                        "n.d.",
                                        "nd",
                                        "nil",
                                        "(null)",
                                        "nat",
                                        "missing",
                                        "unknown",
                                        "not available",
                                        "-na-",
                                        "#n/a n/a",
                                        "#div/0!",
                                        "#ref!",
                                        "#value!",
                                        "#num!",
                                        "#name?",
                                        "#null!",
                                        "#na",
                                        "1.#ind",
                                        "-1.#ind",
                                        "1.#qnan",
                                        "-1.#qnan",
                                        "undef",
                                        "undefined",
                                        "0000-00-00",
                                        "0000-00-00 00:00:00",
                                        NULL};
    trim(&text, &size);
    return number_is_missing(text, size) || (size <= 19 && is_one_of(text, size, marks));
}

static enum number_kind parse_word(const char *text, size_t size)
{
    static const char *const infinities[] = {"inf", "infinity", NULL};
    if (number_is_missing(text, size)) {
        return NUMBER_MISSING;
    }
    const bool is_signed = size > 0 && (*text == '-' || *text == '+');
    return is_one_of(text + is_signed, size - is_signed, infinities) ? NUMBER_INFINITE : NUMBER_TEXT;
}

/* The syntax is known to be strtod's. */
static bool parse_slowly(const char *text, size_t size, double *value)
{
    char copy[MOST_COPIED];
    if (size >= sizeof copy) {
        return false;
    }
    memcpy(copy, text, size);
    copy[size] = '\0';
    *value = strtod(copy, NULL);
    return true;
}

/* Separate from the usual case, so that that needs no stack frame. */
__attribute__((noinline)) static enum number_kind parse_in_full(const char *text, size_t size, double *value)
{
    trim(&text, &size);
    struct decimal decimal = {.count = 0};
    const char *at = text, *const end = text + size;
    if (at < end && (*at == '-' || *at == '+')) {
        decimal.negative = *at++ == '-';
    }
    const char *first = at;
    at = read_digits(&decimal, at, end, false);
    ptrdiff_t digits = at - first;
    if (at < end && *at == '.') {
        first = ++at;
        at = read_digits(&decimal, at, end, true);
        digits += at - first;
    }
    if (digits == 0) {
        return parse_word(text, size);
    }
    if (at < end && (*at == 'e' || *at == 'E')) {
        at = read_exponent(&decimal, at, end);
    }
    if (at < end) {
        return NUMBER_TEXT;
    }
    double number;
    if (compose(&decimal, &number)) {
        *value = decimal.negative ? -number : number;
        return NUMBER_FINITE;
    }
    if (!parse_slowly(text, size, value)) {
        return NUMBER_TEXT;
    }
    return isfinite(*value) ? NUMBER_FINITE : NUMBER_INFINITE;
}

enum number_kind number_parse(const char *text, size_t size, double *value)
{
    if (size >= WORD && parse_usual(text, text + size, value)) {
        return NUMBER_FINITE;
    }
    return parse_in_full(text, size, value);
}
