/* TLS after its handshake: key changes in mid-stream, ends with and without a goodbye, and invalid records. */
#include "net/tls/stream.h"
#include "tests/check.h"

#include <errno.h>

#include <fcntl.h>
#include <sys/socket.h>

#include "tests/net/fleet_key.h"
#include "tests/net/loopback.h"
#include "tests/net/writing.h"

static double soon(void)
{
    return clock_monotonic_s() + 60;
}

/* What the serving end does after its handshake, and what it found. */
struct script {
    void (*play)(struct connection *connection, struct script *script);
    struct error error;
    uint64_t sequence;
};

static void play(struct connection **connection, void *context)
{
    struct script *script = context;
    script->play(*connection, script);
}

/* Connects to a server that plays its part; the caller closes, then calls loopback_end. */
static struct connection *meet(struct loopback *loopback, struct script *script)
{
    struct connection *connection;
    struct error error;
    *loopback = (struct loopback){.listener = -1};
    loopback_start(loopback, fleet_key, play, script);
    if (!connection_connect(&connection, &loopback->address, NULL, fleet_key, NULL, soon(), &error)) {
        fail_msg("%s", error.text);
    }
    return connection;
}

/* A peer that refused earlier data may have closed already; what both report later shows whether it should have. */
static void send_raw(struct connection *connection, const void *bytes, size_t size)
{
    const ssize_t sent = send(connection_fd(connection), bytes, size, MSG_NOSIGNAL);
    assert_true(sent == (ssize_t)size || (sent < 0 && (errno == EPIPE || errno == ECONNRESET)));
}

/* A record of our own making, under the current keys. */
static void send_record(struct connection *connection, uint8_t type, const void *content, size_t size)
{
    uint8_t record[RECORD_SEALED];
    memcpy(record + RECORD_HEADER, content, size);
    send_raw(connection, record, record_seal(&connection->tls->out, type, record, size));
}

/* --- New keys --- */

enum { ROUNDS = 40, BLOCK = 50000 };

static void echo_blocks(struct connection *connection, struct script *script)
{
    static uint8_t block[BLOCK];
    struct iovec part = {block, sizeof block};
    connection->tls->in.sequence = script->sequence;
    for (int i = 0; i < ROUNDS; i++) {
        if (!connection_read(connection, block, sizeof block, soon(), &script->error) ||
            !write_now(connection, &part, 1, soon(), &script->error)) {
            return;
        }
    }
}

static void swap_blocks(struct connection *connection, int round)
{
    static uint8_t block[BLOCK], back[BLOCK];
    struct iovec parts[] = {{block, 1}, {block + 1, sizeof block - 1}};
    struct error error;
    memset(block, round + 1, sizeof block);
    if (!write_now(connection, parts, 2, soon(), &error) ||
        !connection_read(connection, back, sizeof back, soon(), &error)) {
        fail_msg("round %d: %s", round, error.text);
    }
    assert_memory_equal(block, back, sizeof back);
}

/* A key that has reached its limit is replaced, and the connection's users don't notice. */
TEST(spent_keys_are_replaced)
{
    struct script script = {.play = echo_blocks, .sequence = ((uint64_t)1 << 24) - 10};
    struct loopback loopback;
    struct connection *connection = meet(&loopback, &script);
    connection->tls->out.sequence = script.sequence;
    for (int i = 0; i < ROUNDS; i++) {
        swap_blocks(connection, i);
    }
    assert_in_range(connection->tls->out.sequence, 100, 1000); /* counted from zero */
    connection_close(connection);
    loopback_end(&loopback);
}

/* The peer changes its keys and requests a change of ours. */
TEST(peer_asks_for_new_keys)
{
    static const uint8_t update[] = {24, 0, 0, 1, 1};
    struct script script = {.play = echo_blocks};
    struct loopback loopback;
    struct connection *connection = meet(&loopback, &script);
    for (int i = 0; i < ROUNDS; i++) {
        if (i % 8 == 3) {
            send_record(connection, RECORD_HANDSHAKE, update, sizeof update);
            assert_true(record_key_next(&connection->tls->out));
        }
        swap_blocks(connection, i);
    }
    assert_in_range(connection->tls->in.sequence, 1, 60);
    connection_close(connection);
    loopback_end(&loopback);
}

static void ask_and_read(struct connection *connection, struct script *script)
{
    static const uint8_t update[] = {24, 0, 0, 1, 1};
    char word[3] = "";
    send_record(connection, RECORD_HANDSHAKE, update, sizeof update);
    if (!record_key_next(&connection->tls->out)) {
        return;
    }
    send_record(connection, RECORD_DATA, "go", 2);
    if (connection_read(connection, word, 2, soon(), &script->error) && strcmp(word, "ab") == 0) {
        send_record(connection, RECORD_DATA, "!", 1);
    }
}

/* New keys wait for the record being filled: half of it is under the old ones. */
TEST(keys_change_between_records)
{
    struct script script = {.play = ask_and_read};
    struct loopback loopback;
    struct connection *connection = meet(&loopback, &script);
    struct iovec a = {(char[]){"a"}, 1}, b = {(char[]){"b"}, 1};
    struct error error;
    char word[3] = "";
    assert_true(connection_write_more(connection, &a, 1, soon(), &error));
    assert_true(connection_read(connection, word, 2, soon(), &error));
    assert_string_equal(word, "go");
    assert_true(connection_write_more(connection, &b, 1, soon(), &error));
    assert_true(connection_flush(connection, soon(), &error));
    if (!connection_read(connection, word, 1, soon(), &error)) {
        fail_msg("%s; the other side: %s", error.text, script.error.text);
    }
    assert_int_equal(word[0], '!');
    connection_close(connection);
    loopback_end(&loopback);
}

/* --- Ends --- */

static void half_a_word(struct connection *connection, struct script *script)
{
    struct iovec part = {(char[]){"half"}, 4};
    write_now(connection, &part, 1, soon(), &script->error);
}

static void half_a_word_and_gone(struct connection *connection, struct script *script)
{
    half_a_word(connection, script);
    shutdown(connection_fd(connection), SHUT_RDWR); /* like a killed process: without close_notify */
}

/* With or without TLS's goodbye: what had arrived is read, then the end is reported as one. */
TEST(ends_alike)
{
    uint64_t records[2];
    void (*ends[])(struct connection *, struct script *) = {half_a_word, half_a_word_and_gone};
    for (size_t i = 0; i < 2; i++) {
        struct script script = {.play = ends[i]};
        struct loopback loopback;
        struct connection *connection = meet(&loopback, &script);
        struct error error;
        char word[8];
        bool ready;
        assert_true(connection_read(connection, word, 4, soon(), &error));
        assert_memory_equal(word, "half", 4);
        assert_true(connection_wait(connection, soon(), &ready, &error));
        assert_true(ready);
        assert_int_equal(connection_state(connection), CONNECTION_OPEN);
        assert_false(connection_read(connection, word, 1, soon(), &error));
        assert_int_equal(connection_state(connection), CONNECTION_CLOSED);
        records[i] = connection->tls->in.sequence;
        assert_non_null(strstr(error.text, "closed the connection"));
        connection_close(connection);
        loopback_end(&loopback);
    }
    assert_int_equal(records[0], records[1] + 1); /* the goodbye */
}

/* Session tickets of several sizes, in pieces, each followed by a word. */
static const size_t ticket_sizes[] = {0, 1, 255, 256, 300, 70000, 1 << 17};

static void tickets(struct connection *connection, struct script *script)
{
    static uint8_t message[4 + (1 << 17)];
    for (size_t i = 0; i < sizeof ticket_sizes / sizeof *ticket_sizes; i++) {
        const size_t size = ticket_sizes[i];
        memset(message, 24, sizeof message); /* what a key update begins with */
        memcpy(message, (uint8_t[]){4, (uint8_t)(size >> 16), (uint8_t)(size >> 8), (uint8_t)size}, 4);
        for (size_t at = 0, piece = 3; at < 4 + size; at += piece, piece = 9000) {
            piece = piece < 4 + size - at ? piece : 4 + size - at;
            send_record(connection, RECORD_HANDSHAKE, message + at, piece);
        }
        send_record(connection, RECORD_DATA, "word", 4);
    }
}

TEST(tickets_are_passed_over)
{
    struct script script = {.play = tickets};
    struct loopback loopback;
    struct connection *connection = meet(&loopback, &script);
    struct error error;
    for (size_t i = 0; i < sizeof ticket_sizes / sizeof *ticket_sizes; i++) {
        char word[5] = "";
        if (!connection_read(connection, word, 4, soon(), &error)) {
            fail_msg("behind a ticket of %zu bytes: %s", ticket_sizes[i], error.text);
        }
        assert_string_equal(word, "word");
    }
    connection_close(connection);
    loopback_end(&loopback);
}

static void goodbye_and_more(struct connection *connection, struct script *script)
{
    send_record(connection, RECORD_ALERT, (uint8_t[]){1, 0}, 2); /* close_notify */
    send_record(connection, RECORD_DATA, "more", 4);
}

/* Data after the goodbye is ignored: anyone might have sent it. */
TEST(nothing_comes_behind_a_goodbye)
{
    struct script script = {.play = goodbye_and_more};
    struct loopback loopback;
    struct connection *connection = meet(&loopback, &script);
    struct error error;
    char word[8];
    bool ready = false;
    loopback_end(&loopback);
    for (int i = 0; i < 2; i++) {
        assert_true(connection_wait(connection, soon(), &ready, &error) && ready);
    }
    assert_false(connection_read(connection, word, 4, soon(), &error));
    assert_int_equal(connection_state(connection), CONNECTION_CLOSED);
    connection_close(connection);
}

/* What the serving end sends as an alert of its own. */
static uint8_t code;

static void one_alert(struct connection *connection, struct script *script)
{
    send_record(connection, RECORD_ALERT, (uint8_t[]){2, code}, 2);
}

/* What the other side has against us is told in words, where there are any. */
TEST(alerts_are_told)
{
    static const struct {
        uint8_t code;
        const char *words;
    } cases[] = {{42, "it does not accept our key: do both sides have the same fleet key"},
                 {48, "it does not accept our key: do both sides have the same fleet key"},
                 {45, "it says that our certificate is expired or not valid yet: is its clock right, and ours?"},
                 {46, "it does not accept our certificate for this role"},
                 {49, "it does not accept our certificate for this role"},
                 {116, "it requires a key from us"},
                 {70, "it does not speak TLS 1.3"},
                 {71, "it speaks plain text: was it started with --insecure?"},
                 {1, "TLS alert 1"},
                 {255, "TLS alert 255"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct script script = {.play = one_alert};
        struct loopback loopback;
        struct error error;
        char words[160], byte;
        code = cases[i].code;
        struct connection *connection = meet(&loopback, &script);
        assert_false(connection_read(connection, &byte, 1, soon(), &error));
        assert_int_equal(connection_state(connection), CONNECTION_BROKEN);
        snprintf(words, sizeof words, "%s refused us: %s", connection_name(connection), cases[i].words);
        assert_ptr_equal(strstr(error.text, words), error.text);
        connection_close(connection);
        loopback_end(&loopback);
    }
}

static void cancels_and_ends(struct connection *connection, struct script *script)
{
    send_record(connection, RECORD_ALERT, (uint8_t[]){1, 90}, 2); /* user_canceled */
    send_record(connection, RECORD_DATA, "last", 4);
    send_record(connection, RECORD_ALERT, (uint8_t[]){90, 0}, 2); /* the level means nothing in TLS 1.3 */
}

/* Who says that its user has had enough says goodbye in a moment. */
TEST(who_cancels_ends_in_order)
{
    struct script script = {.play = cancels_and_ends};
    struct loopback loopback;
    struct connection *connection = meet(&loopback, &script);
    struct error error;
    char word[5] = "";
    assert_true(connection_read(connection, word, 4, soon(), &error));
    assert_string_equal(word, "last");
    assert_false(connection_read(connection, word, 1, soon(), &error));
    assert_int_equal(connection_state(connection), CONNECTION_CLOSED);
    connection_close(connection);
    loopback_end(&loopback);
}

static void empty_records_and_words(struct connection *connection, struct script *script)
{
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 32 + (i == 2); k++) {
            send_record(connection, RECORD_DATA, "", 0);
        }
        send_record(connection, RECORD_DATA, "word", 4);
    }
    uint8_t byte;
    connection_read(connection, &byte, 1, soon(), &script->error);
}

/* A few records without data are fine, and the count starts again behind each that has some. */
TEST(a_few_empty_records)
{
    struct script script = {.play = empty_records_and_words};
    struct loopback loopback;
    struct connection *connection = meet(&loopback, &script);
    struct error error;
    char word[5] = "";
    for (int i = 0; i < 2; i++) {
        assert_true(connection_read(connection, word, 4, soon(), &error));
        assert_string_equal(word, "word");
    }
    assert_false(connection_read(connection, word, 4, soon(), &error));
    assert_non_null(strstr(error.text, "records without data, one after another"));
    connection_close(connection);
    loopback_end(&loopback);
    assert_non_null(strstr(script.error.text, "TLS alert 10"));
}

static void half_a_ticket(struct connection *connection, struct script *script)
{
    uint8_t byte;
    send_record(connection, RECORD_HANDSHAKE, (uint8_t[]){4, 0, 0, 2, 1}, 5);
    send_record(connection, RECORD_DATA, "word", 4);
    connection_read(connection, &byte, 1, soon(), &script->error);
}

/* A ticket is of no use, but all of it must come before anything else does. */
TEST(nothing_comes_amid_a_ticket)
{
    struct script script = {.play = half_a_ticket};
    struct loopback loopback;
    struct connection *connection = meet(&loopback, &script);
    struct error error;
    char word[5] = "";
    assert_false(connection_read(connection, word, 4, soon(), &error));
    assert_non_null(strstr(error.text, "a record amid a handshake message"));
    connection_close(connection);
    loopback_end(&loopback);
    assert_non_null(strstr(script.error.text, "TLS alert 10"));
}

static void rest_and_close(struct connection *connection, struct script *script)
{
    script->sequence = connection_park(connection); /* play's caller closes it */
}

/* Who rests says goodbye, too; and nothing that is under way is forgotten for a rest. */
TEST(rests_end_in_order)
{
    struct script script = {.play = rest_and_close};
    struct loopback loopback;
    struct connection *connection = meet(&loopback, &script);
    struct iovec part = {(char[]){"a"}, 1};
    struct error error;
    char byte;
    assert_true(connection_write_more(connection, &part, 1, soon(), &error));
    assert_false(connection_is_empty(connection)); /* it is in no record yet */
    assert_false(connection_park(connection));
    assert_false(connection_read(connection, &byte, 1, soon(), &error));
    assert_int_equal(connection_state(connection), CONNECTION_CLOSED);
    assert_int_equal(connection->tls->in.sequence, 1); /* the goodbye */
    connection_close(connection);
    loopback_end(&loopback);
    assert_int_equal(script.sequence, 1);
}

/* --- Records against the protocol --- */

static void read_one(struct connection *connection, struct script *script)
{
    uint8_t byte;
    connection_read(connection, &byte, 1, soon(), &script->error);
}

static void altered(struct connection *connection)
{
    uint8_t record[RECORD_SEALED] = {0};
    size_t size = record_seal(&connection->tls->out, RECORD_DATA, record, 100);
    record[50] ^= 1;
    send_raw(connection, record, size);
}

static void unencrypted(struct connection *connection)
{
    send_raw(connection, (uint8_t[]){0x16, 3, 3, 0, 4, 1, 0, 0, 0}, 9);
}

static void too_large(struct connection *connection)
{
    send_raw(connection, (uint8_t[]){23, 3, 3, 0x40, 0x12, 0}, 6);
}

static void too_small(struct connection *connection)
{
    send_raw(connection, (uint8_t[]){23, 3, 3, 0, 15, 0}, 6);
}

static void of_a_tag_alone(struct connection *connection)
{
    send_raw(connection, (uint8_t[5 + 16]){23, 3, 3, 0, 16}, 5 + 16);
}

static void of_no_type(struct connection *connection)
{
    send_record(connection, 99, "x", 1);
}

static void data_amid_a_message(struct connection *connection)
{
    send_record(connection, RECORD_HANDSHAKE, (uint8_t[]){24, 0, 0}, 3);
    send_record(connection, RECORD_DATA, "x", 1);
}

static void of_padding(struct connection *connection)
{
    send_record(connection, 0, "\0\0", 2);
}

static void update_of_another_kind(struct connection *connection)
{
    send_record(connection, RECORD_HANDSHAKE, (uint8_t[]){24, 0, 0, 1, 2}, 5);
}

static void update_that_is_long(struct connection *connection)
{
    send_record(connection, RECORD_HANDSHAKE, (uint8_t[]){24, 0, 0, 2, 0, 0}, 6);
}

static void two_updates_at_once(struct connection *connection)
{
    send_record(connection, RECORD_HANDSHAKE, (uint8_t[]){24, 0, 0, 1, 0, 24, 0, 0, 1, 0}, 10);
}

static void no_message(struct connection *connection)
{
    send_record(connection, RECORD_HANDSHAKE, "", 0);
}

static void no_alert(struct connection *connection)
{
    send_record(connection, RECORD_ALERT, "", 0);
}

static void a_long_alert(struct connection *connection)
{
    send_record(connection, RECORD_ALERT, (uint8_t[]){1, 0, 1, 0}, 4);
}

static void a_ticket_from_a_client(struct connection *connection)
{
    send_record(connection, RECORD_HANDSHAKE, (uint8_t[]){4, 0, 0, 3, 1, 2, 3}, 7);
}

static void a_change_of_ciphers(struct connection *connection)
{
    send_raw(connection, (uint8_t[]){20, 3, 3, 0, 1, 1}, 6);
}

static void another_hello(struct connection *connection)
{
    send_record(connection, RECORD_HANDSHAKE, (uint8_t[]){1, 0, 0, 0}, 4);
}

static void nothing_for_ever(struct connection *connection)
{
    for (int i = 0; i < 100; i++) {
        send_record(connection, RECORD_DATA, "", 0);
    }
}

TEST(refused_records)
{
    static const struct {
        void (*send)(struct connection *connection);
        const char *server_says, *client_says;
    } cases[] = {
        {altered, "a record was altered in transit", "TLS alert 20"},
        {unencrypted, "a record that is not encrypted", "TLS alert 10"},
        {too_large, "a record that is too large", "TLS alert 22"},
        {too_small, "a record that is too small", "TLS alert 20"},
        {of_a_tag_alone, "a record was altered in transit", "TLS alert 20"},
        {of_no_type, "a record of an unknown type", "TLS alert 10"},
        {data_amid_a_message, "a record amid a handshake message", "TLS alert 10"},
        {of_padding, "a record of padding only", "TLS alert 10"},
        {update_of_another_kind, "a key update that asks for nothing known", "TLS alert 47"},
        {update_that_is_long, "a key update of the wrong size", "TLS alert 50"},
        {two_updates_at_once, "a key update amid a record", "TLS alert 10"},
        {no_message, "an empty handshake record", "TLS alert 10"},
        {no_alert, "an empty alert", "TLS alert 10"},
        {a_long_alert, "an alert of the wrong size", "TLS alert 50"},
        {a_ticket_from_a_client, "a handshake message out of place", "TLS alert 10"},
        {a_change_of_ciphers, "a record that is not encrypted", "TLS alert 10"},
        {another_hello, "a handshake message out of place", "TLS alert 10"},
        {nothing_for_ever, "records without data", "TLS alert 10"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct script script = {.play = read_one};
        struct loopback loopback;
        struct connection *connection = meet(&loopback, &script);
        struct error error;
        uint8_t byte;
        cases[i].send(connection);
        assert_false(connection_read(connection, &byte, 1, soon(), &error));
        bool reset = strstr(error.text, "lost "); /* the server closed before it had read everything */
        if (!reset && !strstr(error.text, cases[i].client_says)) {
            fail_msg("the client says \"%s\", not \"%s\"", error.text, cases[i].client_says);
        }
        connection_close(connection);
        loopback_end(&loopback);
        if (!strstr(script.error.text, cases[i].server_says)) {
            fail_msg("the server says \"%s\", not \"%s\"", script.error.text, cases[i].server_says);
        }
    }
}

/* Plain text without end; the number of bytes that were taken of it. */
static void *flood(void *context)
{
    static char text[1 << 16];
    size_t *taken = malloc(sizeof *taken);
    ssize_t sent;
    *taken = 0;
    memset(text, 'x', sizeof text);
    while ((sent = send(*(int *)context, text, sizeof text, MSG_NOSIGNAL)) > 0) {
        *taken += (size_t)sent;
    }
    return taken;
}

/* Who is refused is heard out for a moment, but not for as long as it likes. */
TEST(who_is_refused_and_goes_on)
{
    struct connection *connection;
    struct error error;
    pthread_t thread;
    size_t *taken;
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    assert_int_equal(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(pthread_create(&thread, NULL, flood, &ends[1]), 0);
    assert_false(connection_serve(&connection, ends[0], "a peer", fleet_key, NULL, soon(), &error));
    connection_close(connection);
    pthread_join(thread, (void **)&taken);
    assert_in_range(*taken, CONNECTION_BUFFER, 8 * CONNECTION_BUFFER); /* with what the sockets hold */
    assert_non_null(strstr(error.text, "refused a peer: a peer speaks plain text"));
    free(taken);
    close(ends[1]);
}

static void tickets_and_echo(struct connection *connection, struct script *script)
{
    static uint8_t block[BLOCK];
    static const uint8_t ticket[] = {4, 0, 0, 3, 1, 2, 3, 4, 0, 0, 1, 9};
    struct iovec part = {block, sizeof block};
    for (int i = 0; i < ROUNDS; i++) {
        send_record(connection, RECORD_HANDSHAKE, ticket, (size_t)(1 + i % 11));
        send_record(connection, RECORD_HANDSHAKE, ticket + 1 + i % 11, sizeof ticket - (size_t)(1 + i % 11));
        send_record(connection, RECORD_DATA, "", 0);
        if (!connection_read(connection, block, sizeof block, soon(), &script->error) ||
            !write_now(connection, &part, 1, soon(), &script->error)) {
            return;
        }
    }
}

/* Tickets are not used here and skipped, whole or in two pieces; so are a few empty records. */
TEST(tickets_go_by)
{
    struct script script = {.play = tickets_and_echo};
    struct loopback loopback;
    struct connection *connection = meet(&loopback, &script);
    for (int i = 0; i < ROUNDS; i++) {
        swap_blocks(connection, i);
    }
    connection_close(connection);
    loopback_end(&loopback);
}

/* A key update in two pieces is valid. */
TEST(update_in_pieces)
{
    static const uint8_t update[] = {24, 0, 0, 1, 1};
    struct script script = {.play = echo_blocks};
    struct loopback loopback;
    struct connection *connection = meet(&loopback, &script);
    for (size_t i = 0; i < ROUNDS; i++) {
        size_t first = 1 + i % 4;
        send_record(connection, RECORD_HANDSHAKE, update, first);
        send_record(connection, RECORD_HANDSHAKE, update + first, sizeof update - first);
        assert_true(record_key_next(&connection->tls->out));
        swap_blocks(connection, (int)i);
    }
    connection_close(connection);
    loopback_end(&loopback);
}

int main(void)
{
    return check_run(make_key, remove_key);
}
