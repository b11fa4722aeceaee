"""Every state of a TLS connection, by conversations with tls_peer.py, which sends what no honest peer would: the
program's side must continue, or end the connection with the alert that RFC 8446 requires, under keys with which the
peer can read it.
"""

import os
import socket
import struct
import subprocess

import pytest
import tls_peer as tls
from tls_peer import (
    ALERT,
    CERTIFICATE,
    CERTIFICATE_REQUEST,
    CHANGE_CIPHER_SPEC,
    CHACHA,
    AES,
    DATA,
    HANDSHAKE,
    KEY_UPDATE,
    NEW_SESSION_TICKET,
    P256,
    X25519,
    Client,
    Server,
    message,
    record,
    vector,
)

PEER = ["build/san/tests/net/tls/peer"]
CHANGE = record(CHANGE_CIPHER_SPEC, b"\1")
FINE = "fine"
CLOSES = "closes"  # silently, because the peer has sent the reason itself
CLEAR, SEALED = False, True

pytestmark = pytest.mark.xdist_group("tls")  # they share one server


class Echo:
    """An echo server. Built with sanitizers: any error ends it."""

    def __init__(self, root, key, limit=0):
        self.key = key
        self.process = subprocess.Popen(
            [root / PEER[0], "serve", key, str(limit)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.port = int(self.process.stdout.readline())
        self.ends = {}

    def end_of(self, client):
        """The log line about that client's connection. By its address, for ports are used again."""
        while client.source not in self.ends:
            line = self.process.stdout.readline()
            assert line, f"the server is gone: {self.process.wait(timeout=240)}"
            peer, _, text = line.partition(": ")
            assert peer.startswith("127."), line + self.process.stdout.read()
            self.ends[peer.partition(":")[0]] = text.strip()
        return self.ends[client.source]

    def stop(self):
        assert self.process.poll() is None, self.process.stdout.read()
        self.process.terminate()
        self.process.communicate(timeout=240)


@pytest.fixture(scope="module")
def keys(trainer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    for name in ("fleet.key", "other.key"):
        subprocess.run([trainer, "keygen", f"--out={folder / name}"], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def echo(root, keys):
    server = Echo(root, str(keys / "fleet.key"))
    yield server
    server.stop()


def check(peer, play, expected):
    """Plays it; `expected` is FINE, CLOSES, or an alert and whether it is encrypted."""
    if expected == FINE:
        play(peer)
        return
    try:
        play(peer)
        alert = peer.refusal()
    except tls.Alert as found:
        alert = found
    except tls.Closed:
        alert = None
    if expected == CLOSES:
        assert alert is None or alert.number == tls.CLOSE_NOTIFY, alert
    else:
        assert alert, "it closed without an alert"
        assert (alert.number, alert.sealed) == expected


def cases(table):
    return pytest.mark.parametrize("play, expected", table.values(), ids=table.keys())


def hello(**options):
    """Sends a hello of this kind."""
    return lambda peer: peer.send(HANDSHAKE, peer.hello(**options))


def in_pieces(data, *sizes):
    """data cut after that many bytes, then repeatedly after as many as the last one says."""
    at, pieces, sizes = 0, [], list(sizes)
    while at < len(data):
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        pieces.append(data[at : at + size])
        at += size
    return pieces


# --- The server, before it knows the client ---


def hello_in_pieces(*sizes, between=b""):
    def play(client):
        pieces = in_pieces(client.hello(), *sizes)
        client.send_bytes(
            record(HANDSHAKE, pieces[0]) + between + b"".join(record(HANDSHAKE, piece) for piece in pieces[1:])
        )
        client.read_server_hello()
        client.read_server_flight()
        client.send_flight()
        assert client.echo(b"hello")

    return play


def hello_then(data):
    def play(client):
        client.send_bytes(record(HANDSHAKE, client.hello()) + data)
        client.read_server_hello()
        client.read_server_flight()
        client.send_flight()
        assert client.echo(b"hello")

    return play


def retried(second=X25519):
    """A share that the server can't use: it requests another one."""

    def play(client):
        client.send(
            HANDSHAKE, client.hello(groups=(30, X25519, P256), share=struct.pack(">H", 30) + vector(2, bytes(56)))
        )
        assert client.read_server_hello() in (X25519, P256)
        client.send_bytes(CHANGE)
        if second != X25519:
            client.send(
                HANDSHAKE, client.hello(groups=(30, X25519, P256), share=struct.pack(">H", 30) + vector(2, bytes(56)))
            )
            return
        client.send(HANDSHAKE, client.hello(groups=(30, X25519, P256)))
        client.read_server_hello()
        client.read_server_flight()
        client.send_flight()
        assert client.echo(b"hello")

    return play


def share(group, data):
    return hello(share=struct.pack(">H", group) + vector(2, data))


def spoilt_hello(spoil):
    """A hello whose body was modified by spoil(bytearray)."""

    def play(client):
        body = bytearray(client.hello()[4:])
        client.send(HANDSHAKE, message(1, bytes(spoil(body) or body)))

    return play


def longer_last_extension(body):
    body[-4 - 2 - 32 - 1] += 1


def no_signature_in_common(client):
    """Detected when the server looks for a certificate, after ServerHello."""
    hello(schemes=(0x0807,))(client)
    client.read_server_hello()
    client.receive_message(tls.ENCRYPTED_EXTENSIONS)
    client.receive_message(CERTIFICATE_REQUEST)


# mbedTLS is lenient here: it accepts a repeated extension, and ignores bytes after the last extension. It also sends
# other alerts than RFC 8446: handshake_failure for a second unusable share, decrypt_error for a signature scheme that
# was not offered, decode_error for an invalid certificate.
HELLOS = {
    "plain data": (lambda peer: peer.send(DATA, b"x"), (71, CLEAR)),
    "a ChangeCipherSpec": (lambda peer: peer.send_bytes(CHANGE), (71, CLEAR)),
    "an alert": (lambda peer: peer.send(ALERT, b"\2\50"), CLOSES),
    "close_notify": (lambda peer: peer.send(ALERT, b"\1\0"), CLOSES),
    "an empty record": (lambda peer: peer.send(HANDSHAKE, b""), (tls.UNEXPECTED_MESSAGE, CLEAR)),
    "too large a record": (
        lambda peer: peer.send(HANDSHAKE, b"\1\0\x50\0" + bytes(16381)),
        (tls.RECORD_OVERFLOW, CLEAR),
    ),
    "too large a message": (
        lambda peer: peer.send_bytes(record(HANDSHAKE, b"\1\0\x50\0" + bytes(16380)) * 2),
        (tls.ILLEGAL_PARAMETER, CLEAR),
    ),
    "another message": (
        lambda peer: peer.send(HANDSHAKE, message(tls.FINISHED, bytes(32))),
        (tls.UNEXPECTED_MESSAGE, CLEAR),
    ),
    "hello": (hello_then(b""), FINE),
    "hello in two pieces": (hello_in_pieces(100), FINE),
    "hello in small pieces": (hello_in_pieces(4, 1), FINE),
    "three bytes of hello": (hello_in_pieces(3), (tls.UNEXPECTED_MESSAGE, CLEAR)),
    "a ChangeCipherSpec amid hello": (hello_in_pieces(50, between=CHANGE), (tls.UNEXPECTED_MESSAGE, CLEAR)),
    "data amid hello": (hello_in_pieces(50, between=record(DATA, b"x")), (tls.UNEXPECTED_MESSAGE, CLEAR)),
    "an alert amid hello": (hello_in_pieces(50, between=record(ALERT, b"\1\132")), (tls.UNEXPECTED_MESSAGE, CLEAR)),
    "an empty record amid hello": (
        hello_in_pieces(50, between=record(HANDSHAKE, b"")),
        (tls.UNEXPECTED_MESSAGE, CLEAR),
    ),
    "an unknown record amid hello": (hello_in_pieces(50, between=record(24, b"x")), (tls.UNEXPECTED_MESSAGE, CLEAR)),
    "hello and ChangeCipherSpec": (hello_then(CHANGE), FINE),
    "a warning": (lambda peer: (peer.send(ALERT, b"\1\132"), hello_then(b"")(peer)), FINE),
    "a session to imitate": (lambda peer: peer.shake_hands(session=os.urandom(32)), FINE),
    "P-256": (lambda peer: peer.shake_hands(group=P256), FINE),
    "another share": (retried(), FINE),
    "another share that is the same": (retried(second=30), (tls.HANDSHAKE_FAILURE, CLEAR)),
    "AES": (lambda peer: peer.shake_hands(ciphers=[AES]), FINE),
    "ChaCha20": (lambda peer: peer.shake_hands(ciphers=[CHACHA]), FINE),
    "AES-128": (hello(ciphers=[0x1301]), (tls.HANDSHAKE_FAILURE, CLEAR)),
    "an old version": (hello(version=b"\3\1"), (tls.PROTOCOL_VERSION, CLEAR)),
    "TLS 1.2": (hello(versions=(0x0303,)), (tls.PROTOCOL_VERSION, CLEAR)),
    "no version": (hello(without=(43,)), (tls.PROTOCOL_VERSION, CLEAR)),
    "compression": (hello(compression=b"\1"), (tls.ILLEGAL_PARAMETER, CLEAR)),
    "two compressions": (hello(compression=b"\1\0"), (tls.ILLEGAL_PARAMETER, CLEAR)),
    "no groups": (hello(without=(10,)), (tls.MISSING_EXTENSION, CLEAR)),
    "no shares": (hello(without=(51,)), (tls.MISSING_EXTENSION, CLEAR)),
    "no signature algorithms": (hello(without=(13,)), (tls.MISSING_EXTENSION, CLEAR)),
    "other groups": (hello(groups=(30,), share=b""), (tls.HANDSHAKE_FAILURE, CLEAR)),
    "other signatures": (no_signature_in_common, (tls.HANDSHAKE_FAILURE, SEALED)),
    "a long session": (hello(session=bytes(33)), (tls.DECODE_ERROR, CLEAR)),
    "a cut hello": (spoilt_hello(lambda body: body[:60]), (tls.DECODE_ERROR, CLEAR)),
    "an extension beyond its end": (spoilt_hello(longer_last_extension), (tls.DECODE_ERROR, CLEAR)),
    "a share of zeros": (share(X25519, bytes(32)), (tls.ILLEGAL_PARAMETER, CLEAR)),
    "a share of order 8": (
        share(X25519, bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800")),
        (tls.ILLEGAL_PARAMETER, CLEAR),
    ),
    "a short share": (share(X25519, bytes([9] + [0] * 30)), (tls.ILLEGAL_PARAMETER, CLEAR)),
    "no point of the curve": (share(P256, b"\4" + bytes([1] * 64)), (tls.ILLEGAL_PARAMETER, CLEAR)),
    "a compressed point": (share(P256, b"\2" + bytes([1] * 32)), (tls.ILLEGAL_PARAMETER, CLEAR)),
}


@cases(HELLOS)
def test_hello(echo, play, expected):
    with Client(echo.port, echo.key) as client:
        check(client, play, expected)


# --- The server, waiting for the client's flight ---


def flight(*steps):
    """Sends records: each step is bytes, or a function that makes them from the client."""

    def play(client):
        for step in steps:
            client.send_bytes(step(client) if callable(step) else step)

    return play


def sealed(kind, content, padding=0):
    return lambda peer: peer.seal(kind, content(peer) if callable(content) else content, padding)


def whole(client):
    return b"".join(client.flight())


def then_echo(*steps):
    def play(client):
        flight(*steps)(client)
        client.out = client.data[b"client"]
        assert client.echo(b"hello")

    return play


def altered(kind=HANDSHAKE, content=b"x" * 50, at=20):
    def make(peer):
        data = bytearray(peer.seal(kind, content(peer) if callable(content) else content))
        data[at] ^= 1
        return bytes(data)

    return make


def each(client):
    return b"".join(client.seal(HANDSHAKE, part) for part in client.flight())


def cut(*sizes):
    return lambda client: b"".join(client.seal(HANDSHAKE, piece) for piece in in_pieces(whole(client), *sizes))


def without_verify(client):
    return client.certificate_message() + client.finished_message()


def with_certificate(certificate):
    def make(client):
        if certificate == b"":
            return client.certificate_message(b"") + client.finished_message()
        return client.certificate_message(certificate) + client.verify_message() + client.finished_message()

    return make


def all_padding(peer):
    return peer.out.seal(bytes(20))


FLIGHTS = {
    "as it should be": (then_echo(sealed(HANDSHAKE, whole)), FINE),
    "a record for each": (then_echo(each), FINE),
    "in pieces": (then_echo(cut(100)), FINE),
    "with padding": (then_echo(sealed(HANDSHAKE, whole, 9000)), FINE),
    "behind a ChangeCipherSpec": (then_echo(CHANGE, sealed(HANDSHAKE, whole)), FINE),
    "behind two of them": (flight(CHANGE, CHANGE, sealed(HANDSHAKE, whole)), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "ChangeCipherSpec of another kind": (flight(record(CHANGE_CIPHER_SPEC, b"\2")), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "ChangeCipherSpec of two bytes": (flight(record(CHANGE_CIPHER_SPEC, b"\1\1")), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "an encrypted ChangeCipherSpec": (flight(sealed(CHANGE_CIPHER_SPEC, b"\1")), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "a ChangeCipherSpec amid a message": (
        flight(lambda peer: peer.seal(HANDSHAKE, whole(peer)[:50]), CHANGE),
        (tls.UNEXPECTED_MESSAGE, SEALED),
    ),
    "in clear": (flight(lambda peer: record(HANDSHAKE, whole(peer))), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "another hello": (flight(sealed(HANDSHAKE, Client.hello)), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "no CertificateVerify": (flight(sealed(HANDSHAKE, without_verify)), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "CertificateVerify first": (flight(sealed(HANDSHAKE, Client.verify_message)), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "Finished first": (flight(sealed(HANDSHAKE, Client.finished_message)), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "data first": (flight(sealed(DATA, b"x")), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "empty data first": (flight(sealed(DATA, b"")), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "new keys first": (flight(sealed(HANDSHAKE, message(KEY_UPDATE, b"\0"))), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "an unknown record": (flight(sealed(24, b"x")), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "a record of padding": (flight(all_padding), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "an empty record": (flight(record(DATA, b"")), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "an empty message": (flight(sealed(HANDSHAKE, b"")), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "an empty alert": (flight(sealed(ALERT, b"")), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "a record without a tag": (flight(record(DATA, bytes(15))), (tls.BAD_RECORD_MAC, SEALED)),
    "an altered record": (flight(altered()), (tls.BAD_RECORD_MAC, SEALED)),
    "an altered header": (flight(altered(at=2)), (tls.BAD_RECORD_MAC, SEALED)),
    "another tag": (flight(altered(at=-1)), (tls.BAD_RECORD_MAC, SEALED)),
    "the wrong keys": (
        flight(lambda peer: peer.data[b"client"].seal(whole(peer) + b"\26")),
        (tls.BAD_RECORD_MAC, SEALED),
    ),
    "too large a record": (flight(sealed(HANDSHAKE, bytes(16385))), (tls.RECORD_OVERFLOW, SEALED)),
    "a record larger than any": (flight(record(DATA, bytes(16384 + 257))), (tls.RECORD_OVERFLOW, SEALED)),
    "another signature": (
        flight(sealed(HANDSHAKE, lambda peer: peer.certificate_message() + peer.verify_message(spoil=True))),
        (tls.DECRYPT_ERROR, SEALED),
    ),
    "a scheme not offered": (
        flight(sealed(HANDSHAKE, lambda peer: peer.certificate_message() + peer.verify_message(0x0804))),
        (tls.DECRYPT_ERROR, SEALED),
    ),
    "another Finished": (
        flight(
            sealed(
                HANDSHAKE,
                lambda peer: peer.certificate_message() + peer.verify_message() + peer.finished_message(spoil=True),
            )
        ),
        (tls.DECRYPT_ERROR, SEALED),
    ),
    "a short Finished": (
        flight(
            sealed(
                HANDSHAKE,
                lambda peer: peer.certificate_message() + peer.verify_message() + message(tls.FINISHED, bytes(20)),
            )
        ),
        (tls.DECODE_ERROR, SEALED),
    ),
    "no certificate": (flight(sealed(HANDSHAKE, with_certificate(b""))), (tls.CERTIFICATE_REQUIRED, SEALED)),
    "no certificate at all": (flight(sealed(HANDSHAKE, with_certificate(b"x" * 100))), (tls.DECODE_ERROR, SEALED)),
    "bytes behind Finished": (
        flight(sealed(HANDSHAKE, lambda peer: whole(peer) + b"\24\0\0")),
        (tls.UNEXPECTED_MESSAGE, SEALED),
    ),
    "an alert": (flight(sealed(ALERT, b"\2\60")), CLOSES),
    "an alert in clear": (flight(record(ALERT, b"\2\60")), CLOSES),
}


@cases(FLIGHTS)
def test_flight(echo, play, expected):
    with Client(echo.port, echo.key, CHACHA) as client:
        client.until_flight()
        check(client, play, expected)


def test_flight_of_another_key(echo, keys):
    with Client(echo.port, echo.key) as client:
        client.until_flight()
        client.key, client.certificate = tls.read_key(keys / "other.key")
        check(client, Client.send_flight, (tls.UNKNOWN_CA, SEALED))


def test_bytes_behind_the_hello_are_no_message(echo):
    """Plain bytes after ClientHello in its record would count as encrypted."""
    with Client(echo.port, echo.key) as client:
        client.send(HANDSHAKE, client.hello() + message(CERTIFICATE, bytes(4)))
        client.read_server_hello()
        client.read_server_flight()
        check(client, lambda _: None, (tls.UNEXPECTED_MESSAGE, SEALED))


def test_a_handshake_ends_though_bytes_keep_coming(echo):
    """Warnings, which mbedTLS ignores without limit."""
    with Client(echo.port, echo.key) as client:
        client.send_bytes(record(HANDSHAKE, client.hello()[:10]) + record(ALERT, b"\1\132") * 40000)
        assert client.refusal().number == tls.UNEXPECTED_MESSAGE
    with Client(echo.port, echo.key) as client:
        client.until_flight()
        client.send_bytes(b"".join(client.seal(ALERT, b"\1\132", 16000) for _ in range(12)))
        assert client.refusal().number == tls.UNEXPECTED_MESSAGE


def test_change_cipher_spec_without_end(echo):
    """A peer without a key can't keep a server busy with them: the connection ends at the second one."""
    with Client(echo.port, echo.key) as client:
        client.until_flight()
        client.send_bytes(CHANGE * 40000)
        assert client.refusal().number == tls.UNEXPECTED_MESSAGE
    assert "more than one ChangeCipherSpec" in echo.end_of(client)


def test_the_log_tells_clients_with_the_same_port_apart(echo):
    with Client(echo.port, echo.key) as first:
        port = first.socket.getsockname()[1]
        first.send_bytes(b"GET / HTTP/1.1")
    with Client(echo.port, echo.key, source_port=port) as second:
        second.send_bytes(record(HANDSHAKE, b""))
    assert "speaks plain text" in echo.end_of(first)
    assert "an empty record" in echo.end_of(second)


# --- Either side, after the handshake ---


def many(*steps):
    return lambda peer: [step(peer) for step in steps]


def sends(kind, content, padding=0):
    return lambda peer: peer.send(kind, content, padding)


def raw(data):
    return lambda peer: peer.send_bytes(data)


def swaps(data=b"hello", padding=0):
    def play(peer):
        assert peer.echo(data, padding)

    return play


def answers(size):
    def play(peer):
        assert len(peer.receive_data(size)) == size

    return play


def updates(request, *sizes):
    """Changes our keys, by a message in pieces of these sizes."""

    def play(peer):
        for piece in in_pieces(message(KEY_UPDATE, bytes([request])), *(sizes or (5,))):
            peer.send(HANDSHAKE, piece)
        peer.out = peer.out.next()

    return play


def twice(peer):
    data = peer.seal(DATA, b"")
    peer.send_bytes(data * 2)


def swapped(peer):
    first, second = peer.seal(DATA, b"x"), peer.seal(DATA, b"y")
    peer.send_bytes(second + first)


def left_out(peer):
    peer.seal(DATA, b"x")
    peer.send(DATA, b"y")


def old_keys(peer):
    peer.send(HANDSHAKE, message(KEY_UPDATE, b"\0"))
    peer.send(DATA, b"x")


def has_new_keys(count):
    def play(peer):
        assert peer.updates == count

    return play


def byte_by_byte(peer):
    for byte in peer.seal(DATA, b"hello"):
        peer.send_bytes(bytes([byte]))
    assert peer.receive_data(5) == b"hello"


def coalesced(peer):
    peer.send_bytes(b"".join(peer.seal(DATA, b"abc", i % 3) for i in range(200)))
    assert peer.receive_data(600) == b"abc" * 200


UPDATE = message(KEY_UPDATE, b"\0")
DATA_PHASE = {
    "data": (swaps(), FINE),
    "a full record": (swaps(bytes(16384)), FINE),
    "a full record of padding": (swaps(b"x", 16384 - 1), FINE),
    "byte by byte": (byte_by_byte, FINE),
    "many records at once": (coalesced, FINE),
    "a few empty records": (many(*[sends(DATA, b"")] * 32, swaps()), FINE),
    "a few empty records with padding": (many(*[sends(DATA, b"", 100)] * 32, swaps()), FINE),
    "empty records without end": (many(*[sends(DATA, b"")] * 33), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "too much": (sends(DATA, bytes(16385)), (tls.RECORD_OVERFLOW, SEALED)),
    "too much padding": (sends(DATA, b"x", 16384), (tls.RECORD_OVERFLOW, SEALED)),
    "more than a record may hold": (raw(record(DATA, bytes(16384 + 257))), (tls.RECORD_OVERFLOW, SEALED)),
    "less than a tag": (raw(record(DATA, bytes(15))), (tls.BAD_RECORD_MAC, SEALED)),
    "nothing": (raw(record(DATA, b"")), (tls.BAD_RECORD_MAC, SEALED)),
    "a tag alone": (raw(record(DATA, bytes(16))), (tls.BAD_RECORD_MAC, SEALED)),
    "a record of nothing": (lambda peer: peer.send_bytes(peer.out.seal(b"")), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "a record of padding": (lambda peer: peer.send_bytes(all_padding(peer)), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "an altered record": (lambda peer: peer.send_bytes(altered(DATA)(peer)), (tls.BAD_RECORD_MAC, SEALED)),
    "an altered header": (lambda peer: peer.send_bytes(altered(DATA, at=1)(peer)), (tls.BAD_RECORD_MAC, SEALED)),
    "an altered tag": (lambda peer: peer.send_bytes(altered(DATA, at=-1)(peer)), (tls.BAD_RECORD_MAC, SEALED)),
    "a record twice": (twice, (tls.BAD_RECORD_MAC, SEALED)),
    "records swapped": (swapped, (tls.BAD_RECORD_MAC, SEALED)),
    "a record left out": (left_out, (tls.BAD_RECORD_MAC, SEALED)),
    "an unknown record": (sends(24, b"x"), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "an encrypted ChangeCipherSpec": (sends(CHANGE_CIPHER_SPEC, b"\1"), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "a ChangeCipherSpec": (raw(CHANGE), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "data in clear": (raw(record(24, b"x")), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "a message in clear": (raw(record(HANDSHAKE, UPDATE)), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "an alert in clear": (raw(record(ALERT, b"\1\0")), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "new keys": (many(updates(0), swaps(), has_new_keys(0)), FINE),
    "new keys for both": (many(updates(1), swaps(), has_new_keys(1), swaps()), FINE),
    "new keys for both, many times": (many(*[updates(1)] * 32, swaps(), has_new_keys(1)), FINE),
    "new keys without end": (many(*[updates(0)] * 33), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "new keys in pieces": (many(updates(1, 1), swaps(), updates(0, 4), swaps(), updates(0, 2, 3), swaps()), FINE),
    "new keys amid data": (
        many(sends(DATA, b"ab"), updates(1), sends(DATA, b"cd"), answers(4), has_new_keys(1), swaps()),
        FINE,
    ),
    "new keys of another kind": (sends(HANDSHAKE, message(KEY_UPDATE, b"\2")), (tls.ILLEGAL_PARAMETER, SEALED)),
    "new keys of no kind": (sends(HANDSHAKE, message(KEY_UPDATE, b"")), (tls.DECODE_ERROR, SEALED)),
    "new keys of two kinds": (sends(HANDSHAKE, message(KEY_UPDATE, b"\0\0")), (tls.DECODE_ERROR, SEALED)),
    "new keys of 16 MiB": (sends(HANDSHAKE, bytes([KEY_UPDATE, 255, 255, 255])), (tls.DECODE_ERROR, SEALED)),
    "new keys twice in a record": (sends(HANDSHAKE, UPDATE * 2), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "new keys and half a message": (sends(HANDSHAKE, UPDATE + b"\30"), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "data amid new keys": (many(sends(HANDSHAKE, UPDATE[:3]), sends(DATA, b"x")), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "empty data amid new keys": (
        many(sends(HANDSHAKE, UPDATE[:3]), sends(DATA, b"")),
        (tls.UNEXPECTED_MESSAGE, SEALED),
    ),
    "an alert amid new keys": (
        many(sends(HANDSHAKE, UPDATE[:3]), sends(ALERT, b"\1\0")),
        (tls.UNEXPECTED_MESSAGE, SEALED),
    ),
    "old keys behind new ones": (old_keys, (tls.BAD_RECORD_MAC, SEALED)),
    "an empty message": (sends(HANDSHAKE, b""), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "an empty message with padding": (sends(HANDSHAKE, b"", 50), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "a hello": (sends(HANDSHAKE, message(1, bytes(60))), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "a hello's request": (sends(HANDSHAKE, message(0, b"")), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "a certificate": (sends(HANDSHAKE, message(CERTIFICATE, bytes(4))), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "a certificate's request": (
        sends(HANDSHAKE, message(CERTIFICATE_REQUEST, bytes(3))),
        (tls.UNEXPECTED_MESSAGE, SEALED),
    ),
    "Finished": (sends(HANDSHAKE, message(tls.FINISHED, bytes(32))), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "an unknown message": (sends(HANDSHAKE, message(99, b"")), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "an empty alert": (sends(ALERT, b""), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "half an alert": (sends(ALERT, b"\1"), (tls.DECODE_ERROR, SEALED)),
    "two alerts in a record": (sends(ALERT, b"\1\0\1\0"), (tls.DECODE_ERROR, SEALED)),
    "user_canceled": (many(sends(ALERT, b"\1\132"), swaps()), FINE),
    "close_notify": (sends(ALERT, b"\1\0"), CLOSES),
    "close_notify, fatal": (sends(ALERT, b"\2\0"), CLOSES),
    "an alert": (sends(ALERT, b"\2\24"), CLOSES),
    "data behind close_notify": (many(sends(ALERT, b"\1\0"), raw(b"x" * 1000)), CLOSES),
}


@cases(
    DATA_PHASE
    | {"a ticket": (sends(HANDSHAKE, message(NEW_SESSION_TICKET, bytes(13))), (tls.UNEXPECTED_MESSAGE, SEALED))}
)
def test_server_in_data(echo, play, expected):
    with Client(echo.port, echo.key, CHACHA) as client:
        client.shake_hands()
        check(client, play, expected)


@pytest.mark.parametrize("cipher", (AES, CHACHA))
def test_server_changes_keys_in_time(root, keys, cipher):
    """A server that changes its keys after 5 records."""
    echo = Echo(root, str(keys / "fleet.key"), limit=5)
    with Client(echo.port, echo.key, cipher) as client:
        client.shake_hands()
        for number in range(40):
            assert client.echo(b"%d" % number * (1 + number % 7))
            if number % 9 == 4:
                client.update_keys(number % 2)
        assert client.updates >= 40 // 5
        assert client.into.number <= 5
    echo.stop()


# --- The client ---


class Visit:
    """A program that connects here and expects its bytes back."""

    def __init__(self, root, keys, limit=0, most=100000):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.process = subprocess.Popen(
            [root / PEER[0], "connect", keys / "fleet.key", str(self.listener.getsockname()[1]), str(limit), str(most)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()
        self.process.kill()
        self.process.wait()

    def says(self):
        return self.process.communicate(timeout=240)[0].strip()


BYTES = 1 + 16384 + 16385 + 3 + 100000 + 1  # sent by a client


@pytest.fixture
def visit(root, keys):
    with Visit(root, keys) as visit:
        yield visit


def answers_hello(**options):
    def play(server):
        server.read_hello()
        server.send(HANDSHAKE, server.server_hello(**options))

    return play


def goes_on(server, data):
    server.send_bytes(data)
    server.finish()
    server.echo_for(BYTES)


def hello_in_two(server):
    server.read_hello()
    made = server.server_hello()
    server.send_bytes(record(HANDSHAKE, made[:20]) + record(HANDSHAKE, made[20:]))
    server.agree_on_handshake()
    goes_on(server, each(server))


def behind_hello(data):
    def play(server):
        server.read_hello()
        server.send(HANDSHAKE, server.server_hello())
        server.send_bytes(data)
        server.agree_on_handshake()
        goes_on(server, each(server))

    return play


def stray_behind_hello(server):
    server.read_hello()
    server.send(HANDSHAKE, server.server_hello() + message(tls.ENCRYPTED_EXTENSIONS, b"\0\0"))
    server.agree_on_handshake()


def retry(group, times=1, cipher=None):
    def play(server):
        for _ in range(times):
            server.read_hello()
            server.send(HANDSHAKE, server.server_hello(random=tls.RETRY, share=struct.pack(">H", group), cipher=cipher))

    return play


SERVER_HELLOS = {
    "as it should be": (behind_hello(b""), FINE),
    "in two pieces": (hello_in_two, FINE),
    "a ChangeCipherSpec behind it": (behind_hello(CHANGE), FINE),
    "two of them": (behind_hello(CHANGE * 2), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "a message behind it": (stray_behind_hello, (tls.UNEXPECTED_MESSAGE, SEALED)),
    "plain data": (many(Server.read_hello, raw(record(DATA, b"x"))), (71, CLEAR)),
    "an alert": (many(Server.read_hello, raw(record(ALERT, b"\2\50"))), CLOSES),
    "another message": (
        many(Server.read_hello, raw(record(HANDSHAKE, message(tls.FINISHED, bytes(32))))),
        (tls.UNEXPECTED_MESSAGE, CLEAR),
    ),
    "too large a record": (
        many(Server.read_hello, raw(record(HANDSHAKE, b"\2\0\x50\0" + bytes(16381)))),
        (tls.RECORD_OVERFLOW, CLEAR),
    ),
    "an old version": (answers_hello(version=b"\3\1"), (tls.PROTOCOL_VERSION, CLEAR)),
    "TLS 1.2": (answers_hello(chosen=b"\3\3"), (tls.ILLEGAL_PARAMETER, CLEAR)),
    "a version that is none": (answers_hello(chosen=b"\3"), (tls.DECODE_ERROR, CLEAR)),
    "another session": (answers_hello(session=bytes(16)), (tls.ILLEGAL_PARAMETER, CLEAR)),
    "a cipher not offered": (answers_hello(cipher=0x1301), (tls.ILLEGAL_PARAMETER, CLEAR)),
    "a group not offered": (
        answers_hello(share=struct.pack(">H", 30) + vector(2, bytes(56))),
        (tls.HANDSHAKE_FAILURE, CLEAR),
    ),
    "a share of zeros": (
        answers_hello(share=struct.pack(">H", X25519) + vector(2, bytes(32))),
        (tls.HANDSHAKE_FAILURE, CLEAR),
    ),
    "the same share again": (retry(X25519), (tls.ILLEGAL_PARAMETER, CLEAR)),
    "another share twice": (retry(P256, 2), (tls.UNEXPECTED_MESSAGE, CLEAR)),
}


@cases(SERVER_HELLOS)
def test_server_hello(visit, keys, play, expected):
    with Server(visit.listener, keys / "fleet.key") as server:
        check(server, play, expected)
        said = visit.says()
        assert (said == "well") == (expected == FINE), said


def spoilt(*order, **spoil):
    """The server's flight with only these messages (0: EncryptedExtensions ... 4: Finished)."""

    def make(server):
        request = vector(1, b"") + vector(2, tls.extension(13, vector(2, struct.pack(">H", tls.ECDSA_P256))))
        makers = [
            lambda: server.put(tls.ENCRYPTED_EXTENSIONS, spoil.get("extensions", vector(2, b""))),
            lambda: server.put(CERTIFICATE_REQUEST, request),
            lambda: server.certificate_message(spoil.get("certificate")),
            lambda: server.verify_message(spoil.get("scheme", tls.ECDSA_P256), spoil.get("verify", False)),
            lambda: server.finished_message(spoil.get("finished", False)),
        ]
        return b"".join(makers[i]() for i in order or range(5))

    return sealed(HANDSHAKE, make)


SERVER_FLIGHTS = {
    "in clear": (flight(lambda server: record(HANDSHAKE, b"".join(server.flight()))), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "an altered record": (
        flight(altered(content=lambda server: b"".join(server.flight()))),
        (tls.BAD_RECORD_MAC, SEALED),
    ),
    "too large a record": (flight(sealed(HANDSHAKE, bytes(16385))), (tls.RECORD_OVERFLOW, SEALED)),
    "a record of padding": (flight(all_padding), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "data first": (flight(sealed(DATA, b"x")), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "an empty message": (flight(sealed(HANDSHAKE, b"")), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "no extensions": (flight(spoilt(1, 2, 3, 4)), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "an extension not asked for": (
        flight(spoilt(extensions=vector(2, tls.extension(16, b"\0\3\2h2")))),
        (tls.UNSUPPORTED_EXTENSION, SEALED),
    ),
    "no certificate message": (flight(spoilt(0, 3, 4)), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "no CertificateVerify": (flight(spoilt(0, 2, 4)), (tls.UNEXPECTED_MESSAGE, SEALED)),
    "no certificate": (flight(spoilt(certificate=b"")), (tls.DECODE_ERROR, SEALED)),
    "no certificate at all": (flight(spoilt(certificate=b"x" * 100)), (tls.DECODE_ERROR, SEALED)),
    "another signature": (flight(spoilt(verify=True)), (tls.DECRYPT_ERROR, SEALED)),
    "a scheme not offered": (flight(spoilt(scheme=0x0201)), (tls.DECRYPT_ERROR, SEALED)),
    "another Finished": (flight(spoilt(finished=True)), (tls.DECRYPT_ERROR, SEALED)),
    "an alert": (flight(sealed(ALERT, b"\2\60")), CLOSES),
    "an alert in clear": (flight(record(ALERT, b"\2\60")), CLOSES),
}


@cases(SERVER_FLIGHTS)
def test_server_flight(visit, keys, play, expected):
    with Server(visit.listener, keys / "fleet.key") as server:
        server.until_flight()
        check(server, play, expected)
        assert visit.says() != "well"


def test_server_of_another_key(visit, keys):
    with Server(visit.listener, keys / "fleet.key") as server:
        server.until_flight()
        server.key, server.certificate = tls.read_key(keys / "other.key")
        server.send(HANDSHAKE, b"".join(server.flight()))
        server.key, _ = tls.read_key(keys / "fleet.key")
        server.finish()
        check(server, lambda _: None, (tls.UNKNOWN_CA, SEALED))
        assert "its fleet key differs from this side's" in visit.says()


@cases({name: case for name, case in DATA_PHASE.items() if case[1] not in (FINE, CLOSES)})
def test_client_in_data(visit, keys, play, expected):
    with Server(visit.listener, keys / "fleet.key") as server:
        server.shake_hands()
        check(server, play, expected)
        assert "TLS with" in visit.says()


def test_client_takes_tickets_and_new_keys(root, keys):
    """Between its bytes and amid them; it changes its own keys after 3 records."""
    with Visit(root, keys, limit=3) as visit, Server(visit.listener, keys / "fleet.key") as server:
        server.shake_hands()
        done = 0
        while done < BYTES:
            data = server.receive_data(1)
            half = len(data) // 2
            server.send(DATA, data[:half])
            server.send(HANDSHAKE, message(NEW_SESSION_TICKET, bytes(100)))
            server.update_keys(done % 2)
            server.send(DATA, data[half:], 50)
            done += len(data)
        assert visit.says() == "well"
        assert server.updates >= 3
