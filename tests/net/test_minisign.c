/* Signatures in minisign's format: one made by minisign, ours, and what is refused. */
#include <stdio.h>
#include <string.h>

#include <sodium.h>

#include "net/operator_key.h"
#include "tests/check.h"
#include "tests/net/loopback.h"

/* `minisign -G -W` and `minisign -S -m vector -t 'trainer 0.1.0'` (0.11), of "released\n". */
static const char key_text[] = "RWRLVrnUhih0M2hMDtRgbnWjXqBbOW4FWVOgYJV7t26fwMjUn74/7Ff7";
static const char key_file[] = "untrusted comment: minisign public key 33742886D4B9564B\n"
                               "RWRLVrnUhih0M2hMDtRgbnWjXqBbOW4FWVOgYJV7t26fwMjUn74/7Ff7\n";
static const char theirs[] =
    "untrusted comment: signature from minisign secret key\n"
    "RURLVrnUhih0M1Vl0Id4MzeeOG6N1LxfIZp4txmt1ww+HnyBORkeBTJn02OhoLfRLI6PO0zQg4a2XRycr7uyHb75RvbD4ENaxQg=\n"
    "trusted comment: trainer 0.1.0\n"
    "eLbvjTs9xJckZ7fFQDcEaTfGsKNss9jC2y9B1St0qbtKrYByZqbjD9xmADCdHTeJmGwkdJ4eYYlGH1WAIqaLCw==\n";
/* The same with -l. */
static const char old[] =
    "untrusted comment: signature from minisign secret key\n"
    "RWRLVrnUhih0MwkFhyNsUeax5LSQn13Y+YOHqsCMBIxN6vHZ4WWMlPZZC1+MDEjcaqltj6Wn2Q3ovShg+SSBlA48KOlh+okjAwo=\n"
    "trusted comment: trainer 0.1.0\n"
    "t8gdkpks6ZpMU1Vj7VeQaQA9he5KrXWtOJYxBV8Pg4r+89ZFaaLWWOKpiF4iLi97HbMxwmoGc0AZ0kmfu6HJBw==\n";

static void digest_of(const char *text, uint8_t digest[MINISIGN_DIGEST])
{
    crypto_generichash(digest, MINISIGN_DIGEST, (const uint8_t *)text, strlen(text), NULL, 0);
}

TEST(minisigns_own_verify)
{
    struct error error = {""};
    struct minisign_key key, same;
    struct minisign signature;
    uint8_t digest[MINISIGN_DIGEST];
    char text[MINISIGN_KEY_TEXT];
    assert_true(minisign_key_parse(&key, key_text, &error));
    assert_true(minisign_key_parse(&same, key_file, &error));
    assert_memory_equal(&key, &same, sizeof key);
    minisign_key_format(&key, text);
    assert_string_equal(text, key_text);
    memset(&signature, 'x', sizeof signature);
    assert_true(minisign_parse(&signature, theirs, &error));
    assert_string_equal(signature.comment, "trainer 0.1.0");
    digest_of("released\n", digest);
    assert_true(minisign_verify(&signature, &key, digest, &error));
    assert_false(minisign_parse(&signature, old, &error));
    assert_non_null(strstr(error.text, "legacy format"));
}

TEST(ours_verify)
{
    struct error error = {""};
    struct minisign_key key;
    struct minisign signature;
    uint8_t public_key[OPERATOR_PUBLIC_KEY], secret_key[OPERATOR_SECRET_KEY], digest[MINISIGN_DIGEST];
    char text[MINISIGN_MAX_FILE], again[MINISIGN_MAX_FILE], key_of_it[MINISIGN_KEY_TEXT];
    crypto_sign_keypair(public_key, secret_key);
    minisign_key_of(&key, public_key);
    minisign_key_format(&key, key_of_it);
    digest_of("list", digest);
    assert_true(minisign_sign(secret_key, digest, "trainer 0.1.0", text, &error));
    assert_true(minisign_sign(secret_key, digest, "trainer 0.1.0", again, &error));
    assert_string_equal(text, again);
    assert_non_null(strstr(text, key_of_it));
    assert_true(minisign_parse(&signature, text, &error));
    assert_true(minisign_verify(&signature, &key, digest, &error));
}

/* Each thing that a signature covers, altered by itself. */
TEST(what_was_altered_is_refused)
{
    struct error error = {""};
    struct minisign_key key;
    struct minisign signature, whole;
    uint8_t digest[MINISIGN_DIGEST];
    assert_true(minisign_key_parse(&key, key_text, &error) && minisign_parse(&whole, theirs, &error));
    digest_of("released", digest);
    assert_false(minisign_verify(&whole, &key, digest, &error));
    assert_non_null(strstr(error.text, "differs from what was signed by the key RWRLVr"));
    digest_of("released\n", digest);
    signature = whole;
    signature.signature[63] ^= 1;
    assert_false(minisign_verify(&signature, &key, digest, &error));
    signature = whole;
    signature.comment[8] = '9';
    assert_false(minisign_verify(&signature, &key, digest, &error));
    assert_non_null(strstr(error.text, "a comment that was not signed"));
    signature = whole;
    signature.id[0] ^= 1;
    assert_false(minisign_verify(&signature, &key, digest, &error));
    assert_non_null(strstr(error.text, "was not signed by the key"));
    key.id[0] ^= 1; /* another key under this id */
    key.key[0] ^= 1;
    assert_false(minisign_verify(&signature, &key, digest, &error));
}

/* Whoever signed it, a comment goes to terminals. */
TEST(a_comment_that_is_not_printable_is_refused)
{
    static const char *const comments[] = {"trainer\x1b[2J", "trainer\t0.1.0", "trainer \xc3\xa9", "trainer\x7f"};
    struct error error = {""};
    struct minisign signature;
    const char *const begin = strstr(theirs, "trainer 0.1.0"), *const rest = begin + strlen("trainer 0.1.0");
    for (size_t i = 0; i < sizeof comments / sizeof *comments; i++) {
        char text[sizeof theirs + 16];
        snprintf(text, sizeof text, "%.*s%s%s", (int)(begin - theirs), theirs, comments[i], rest);
        assert_false(minisign_parse(&signature, text, &error));
        assert_string_equal(error.text, "is not a minisign signature");
    }
}

/* Cut anywhere, or with any character replaced: it never verifies. */
TEST(torn_texts_are_refused)
{
    struct error error;
    struct minisign signature, whole;
    struct minisign_key key, other;
    uint8_t digest[MINISIGN_DIGEST];
    char text[sizeof theirs];
    assert_true(minisign_key_parse(&key, key_text, &error) && minisign_parse(&whole, theirs, &error));
    digest_of("released\n", digest);
    for (size_t length = 0; length < strlen(theirs) - 1; length++) {
        memcpy(text, theirs, length);
        text[length] = '\0';
        assert_false(minisign_parse(&signature, text, &error));
    }
    for (size_t at = strlen("untrusted comment: signature from minisign secret key\n"); at < strlen(theirs) - 1; at++) {
        memcpy(text, theirs, sizeof text);
        text[at] = text[at] == 'x' ? 'y' : 'x';
        assert_false(minisign_parse(&signature, text, &error) && minisign_verify(&signature, &key, digest, &error));
    }
    for (size_t length = 0; length < strlen(key_text); length++) {
        memcpy(text, key_text, length);
        text[length] = '\0';
        assert_false(minisign_key_parse(&other, text, &error));
    }
    assert_false(minisign_key_parse(&other, theirs, &error));
}

/* A text with `from`, which it has, replaced by `to`. */
static const char *changed(const char *text, const char *from, const char *to)
{
    static char other[4096];
    const char *const at = strstr(text, from);
    assert_non_null(at);
    snprintf(other, sizeof other, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    return other;
}

/* The ends of lines may be of another system, and the last one may be missing. */
TEST(lines_end_somehow)
{
    struct error error;
    struct minisign_key key, same;
    struct minisign signature;
    uint8_t digest[MINISIGN_DIGEST];
    char text[2 * sizeof theirs];
    size_t size = 0;
    for (const char *at = theirs; *at; at++) {
        size += (size_t)snprintf(text + size, sizeof text - size, *at == '\n' ? "\r\n" : "%c", *at);
    }
    digest_of("released\n", digest);
    assert_true(minisign_key_parse(&key, key_text, &error));
    for (int cut = 0; cut < 3; cut++) {
        text[size - (size_t)cut] = '\0';
        memset(&signature, 'x', sizeof signature);
        assert_true(minisign_parse(&signature, text, &error));
        assert_true(minisign_verify(&signature, &key, digest, &error));
    }
    assert_true(minisign_key_parse(&same, changed(key_file, "4B\n", "4B\r\n"), &error));
    assert_memory_equal(&key, &same, sizeof key);
}

/* What is valid but for one thing more, less, or else is refused. */
TEST(no_word_too_many)
{
    static const struct {
        const char *from, *to;
    } keys[] = {{"7Ff7\n", "7Ff7\n\n"},   {"7Ff7\n", "7Ff7\nmore\n"}, {"7Ff7\n", "7Ff7 \n"},   {"7Ff7\n", "7Ff7!\n"},
                {"7Ff7\n", "7Ff77Ff7\n"}, {"4B\n", "4B\n\n"},         {"comment:", "remark:"}, {"RWRL", "RWVL"}},
      signatures[] = {{"LCw==\n", "LCw==\n\n"},     {"LCw==\n", "LCw==\nmore"},
                      {"LCw==\n", "LCw==!\n"},      {"untrusted comment:", "untrusted remark:"},
                      {"xQg=\n", "xQg= \n"},        {"key\n", "key\n\n"},
                      {"trainer 0.1.0\n", "\n"},    {"\ntrusted comment: trainer", "\ntrusted remark:: trainer"},
                      {"trainer 0.1.0\n", "t\n\n"}, {"RURL", "RUVL"}};
    struct error error;
    struct minisign_key key;
    struct minisign signature;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        assert_false(minisign_key_parse(&key, changed(key_file, keys[i].from, keys[i].to), &error));
        assert_string_equal(error.text, "is not a minisign public key, which begins with RW");
    }
    for (size_t i = 0; i < sizeof signatures / sizeof *signatures; i++) {
        assert_false(minisign_parse(&signature, changed(theirs, signatures[i].from, signatures[i].to), &error));
        assert_string_equal(error.text, "is not a minisign signature");
    }
    for (size_t length = 0; length < 150; length++) { /* nor is half of an old one an old one */
        char text[sizeof old];
        snprintf(text, sizeof text, "%.*s", (int)length, old);
        assert_false(minisign_parse(&signature, text, &error));
        assert_string_equal(error.text, "is not a minisign signature");
    }
}

/* A comment that nobody has signed may be long, but not for ever. */
TEST(lines_have_bounds)
{
    enum { LONGEST = 1024 + 19 };
    struct error error;
    struct minisign signature;
    struct minisign_key key;
    char line[LONGEST + 2];
    for (int more = 0; more < 2; more++) {
        memset(line, 'c', sizeof line);
        line[LONGEST + more] = '\0';
        memcpy(line, "untrusted comment: ", 19);
        const char *const head = "untrusted comment: minisign public key 33742886D4B9564B";
        assert_int_equal(minisign_key_parse(&key, changed(key_file, head, line), &error), more == 0);
        const char *const other = "untrusted comment: signature from minisign secret key";
        assert_int_equal(minisign_parse(&signature, changed(theirs, other, line), &error), more == 0);
    }
}

TEST(a_comment_is_one_printable_line)
{
    static const uint8_t secret_key[OPERATOR_SECRET_KEY], digest[MINISIGN_DIGEST];
    struct error error = {""};
    char text[MINISIGN_MAX_FILE], longest[MINISIGN_COMMENT + 1];
    memset(longest, 'c', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_false(minisign_sign(secret_key, digest, "", text, &error));
    assert_false(minisign_sign(secret_key, digest, "two\nlines", text, &error));
    assert_false(minisign_sign(secret_key, digest, "\033[1m", text, &error));
    assert_false(minisign_sign(secret_key, digest, longest, text, &error));
    assert_non_null(strstr(error.text, "at most 255 characters"));
    longest[MINISIGN_COMMENT - 1] = '\0';
    longest[0] = ' '; /* the first and the last that can be printed */
    longest[1] = '~';
    assert_true(minisign_sign(secret_key, digest, longest, text, &error));
    assert_non_null(strstr(text, longest));
    struct minisign signature;
    assert_true(minisign_parse(&signature, text, &error));
    assert_string_equal(signature.comment, longest);
}

TEST(a_file_is_read_in_pieces)
{
    enum { SIZE = 200 * 1000 };
    static uint8_t bytes[SIZE];
    char folder[64];
    struct error error = {""};
    uint8_t digest[MINISIGN_DIGEST], expected[MINISIGN_DIGEST];
    loopback_make_folder(folder);
    const char *path = loopback_file(folder, "large");
    randombytes_buf(bytes, sizeof bytes);
    FILE *file = fopen(path, "wb");
    assert_true(file && fwrite(bytes, 1, sizeof bytes, file) == sizeof bytes && fclose(file) == 0);
    crypto_generichash(expected, sizeof expected, bytes, sizeof bytes, NULL, 0);
    const int before = dup(0);
    close(before);
    assert_true(minisign_digest(path, digest, &error));
    assert_memory_equal(digest, expected, sizeof digest);
    assert_false(minisign_digest(folder, digest, &error)); /* a folder */
    assert_non_null(strstr(error.text, "cannot be read: Is a directory"));
    const int after = dup(0);
    close(after);
    assert_int_equal(after, before); /* nothing is left open */
    assert_int_equal(remove(path), 0);
    assert_false(minisign_digest(path, digest, &error));
    assert_non_null(strstr(error.text, "cannot be opened"));
    loopback_remove_folder(folder);
}

int main(void)
{
    return sodium_init() < 0 ? 1 : check_run(NULL, NULL);
}
