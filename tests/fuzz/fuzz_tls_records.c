/*
 * TLS after its handshake, with a peer that has the keys and sends anything: the input is a script of records
 * (encrypted, altered, in clear), of messages in them, and of reads and writes on our side. What is read must be what
 * was sent, to the byte, up to the first violation of the protocol; what we send must open under our keys.
 */
#include "tests/fuzz/fuzz.h"

#include <sys/socket.h>

#include "net/tls/gcm.h"
#include "net/tls/stream.h"
#include "net/tls/tls.h"
#include "net/transport.h"
#include "tests/net/writing.h"

FUZZ_MEMORY(16, 64 << 10)

enum { MOST = 1 << 17 };

struct play {
    struct input script; /* the unread rest */
    struct connection connection;
    struct tls tls;
    int socket; /* the peer's end */
    struct record_key out, in;
    uint8_t *sent; /* [MOST]: data that must be read */
    size_t sent_size, read_size;
    bool broken; /* the peer violated the protocol: no more is read from here on */
    bool unsure; /* it sent a message or an alert, which may be a violation, in pieces, or one that is ignored */
    bool done;
};

static uint8_t buffers[2][CONNECTION_BUFFER], sent[MOST], answer[CONNECTION_BUFFER];

static uint8_t next(struct play *play)
{
    return input_byte(&play->script);
}

static size_t next_size(struct play *play)
{
    size_t size = next(play);
    return size < 200 ? size : (size - 199) * 293; /* up to a full record, and just beyond */
}

static void to_socket(const struct play *play, const uint8_t *bytes, size_t size)
{
    while (size > 0) {
        ssize_t done = send(play->socket, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (done <= 0) {
            return;
        }
        bytes += done;
        size -= (size_t)done;
    }
}

/* A record of this type with `size` bytes of the script, repeated as needed; `padding` zeros after its type. */
static void send_sealed(struct play *play, uint8_t type, size_t size, size_t padding)
{
    static uint8_t record[RECORD_SEALED + 64];
    uint8_t *content = record + RECORD_HEADER, flip = next(play);
    size = size < RECORD_CONTENT ? size : RECORD_CONTENT;
    padding = padding < RECORD_CONTENT - size ? padding : RECORD_CONTENT - size;
    size_t drawn;
    const uint8_t *from = input_bytes(&play->script, size, &drawn);
    memcpy(content, from, drawn);
    memset(content + drawn, 'x', size - drawn);
    const bool is_message = flip <= 250 && (type == RECORD_HANDSHAKE || type == RECORD_ALERT);
    const bool is_data = flip <= 250 && type == RECORD_DATA;
    if (is_data && !play->broken && play->sent_size + size > MOST) {
        return;
    }
    if (is_data && !play->broken) {
        memcpy(play->sent + play->sent_size, content, size);
        play->sent_size += size;
    }
    play->unsure = play->unsure || is_message;
    play->broken = play->broken || !(is_data || is_message);
    if (padding > 0) {
        content[size] = type;
        memset(content + size + 1, 0, padding);
        type = 0;
        size += padding;
    }
    size_t sealed = record_seal(&play->out, type, record, size);
    record[flip > 250 ? flip % sealed : 0] ^= (uint8_t)(flip > 250);
    to_socket(play, record, sealed);
}

static void send_update(struct play *play)
{
    uint8_t record[RECORD_HEADER + 5 + 1 + RECORD_TAG] = {0, 0, 0, 0, 0, 24, 0, 0, 1, next(play) & 1};
    to_socket(play, record, record_seal(&play->out, RECORD_HANDSHAKE, record, 5));
    assert(record_key_next(&play->out));
}

static void read_some(struct play *play, size_t most)
{
    static uint8_t got[RECORD_SEALED];
    struct error error;
    ptrdiff_t count = transport_tls.read(&play->connection, got, most < sizeof got ? most : sizeof got, &error);
    if (count == TRANSPORT_FAILED || count == TRANSPORT_END) {
        assert((count == TRANSPORT_END) == play->tls.ended);
        assert(play->tls.ended || play->connection.state == CONNECTION_BROKEN);
        play->done = true;
    } else if (count > 0) {
        assert((size_t)count <= most && play->read_size + (size_t)count <= play->sent_size);
        assert(memcmp(got, play->sent + play->read_size, (size_t)count) == 0);
        play->read_size += (size_t)count;
    }
}

static void write_some(struct play *play, size_t size)
{
    const size_t left = input_left(&play->script);
    struct iovec part = {(void *)(uintptr_t)play->script.next, size < left ? size : left};
    struct error error;
    if (!write_now(&play->connection, &part, 1, 0.0, &error)) {
        play->done = true;
    }
}

/* Everything that we sent is records that open, with at most an alert at the end. */
static void check_answer(struct play *play)
{
    size_t size = 0, at = 0;
    for (ssize_t got; (got = recv(play->socket, answer + size, sizeof answer - size, MSG_DONTWAIT)) > 0;) {
        size += (size_t)got;
    }
    while (size - at >= RECORD_HEADER) {
        uint8_t *record = answer + at, type;
        size_t sealed = (size_t)record[3] << 8 | record[4];
        if (size - at < RECORD_HEADER + sealed) {
            return; /* a peer that does not read gets half of it */
        }
        ptrdiff_t content = record_open(&play->in, record, sealed, record + RECORD_HEADER, &type);
        assert(content >= 0 && (type == RECORD_DATA || type == RECORD_ALERT || type == RECORD_HANDSHAKE));
        if (type == RECORD_HANDSHAKE) {
            assert(content == 5 && record[RECORD_HEADER] == 24 && record[RECORD_HEADER + 4] == 0);
            assert(record_key_next(&play->in));
        }
        at += RECORD_HEADER + sealed;
    }
}

static void step(struct play *play)
{
    size_t count;
    uint8_t type;
    const uint8_t *from;
    switch (next(play) % 7) {
    case 0: /* as it is */
        count = next(play);
        from = input_bytes(&play->script, count, &count);
        play->broken = play->broken || count > 0;
        to_socket(play, from, count);
        return;
    case 1:
        count = next_size(play);
        send_sealed(play, RECORD_DATA, count, next(play) % 4 ? 0 : next_size(play));
        return;
    case 2:
        type = (uint8_t)(RECORD_CHANGE_CIPHER_SPEC + next(play) % 6);
        count = next(play) % 16;
        send_sealed(play, type, count, next(play) % 4 ? 0 : next_size(play));
        return;
    case 3:
        send_update(play);
        return;
    case 4:
    case 5:
        read_some(play, next_size(play));
        return;
    default:
        write_some(play, next_size(play));
        return;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const uint8_t secrets[2][RECORD_MOST_SECRET] = {"what the peer sends", "what we send"};
    static struct play play;
    struct error error;
    int sockets[2];
    if (size < 2 || !tls_start(&error) || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sockets) != 0) {
        return 0;
    }
    enum record_cipher cipher =
        bytes[0] % 2 && gcm_is_available() ? RECORD_AES_256_GCM_SHA384 : RECORD_CHACHA20_POLY1305_SHA256;
    play = (struct play){.script = input_of(bytes + 1, size - 1), .socket = sockets[1], .sent = sent};
    play.connection = (struct connection){.transport = &transport_tls,
                                          .fd = sockets[0],
                                          .tls = &play.tls,
                                          .in = buffers[0],
                                          .out = buffers[1],
                                          .bytes_in = 1,
                                          .in_due = {.deadline_s = 1e18},
                                          .name = "peer"};
    play.tls.established = true;
    play.tls.server = bytes[0] & 2;
    assert(record_key_set(&play.tls.in, cipher, secrets[0]) && record_key_set(&play.out, cipher, secrets[0]));
    assert(record_key_set(&play.tls.out, cipher, secrets[1]) && record_key_set(&play.in, cipher, secrets[1]));
    play.tls.out.limit = 3;
    while (input_left(&play.script) > 0 && !play.done) {
        step(&play);
    }
    for (int i = 0; i < 300 && !play.done; i++) {
        read_some(&play, RECORD_CONTENT);
    }
    assert(play.broken || play.unsure || play.done || play.read_size == play.sent_size);
    check_answer(&play);
    close(sockets[0]);
    close(sockets[1]);
    return 0;
}
