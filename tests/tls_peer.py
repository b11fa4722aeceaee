"""TLS 1.3 (RFC 8446) as a client and as a server that can do everything wrong: messages are bytes that tests write
themselves, and records are sent as told. Ciphers, hashes and curves are tlslite-ng's and ecdsa's, in Python.

    with Client(port, key) as client:
        client.shake_hands()
        client.send(DATA, b"hello")
"""

import hashlib
import itertools
import os
import socket
import ssl
import struct

import ecdsa
from tlslite.utils import cipherfactory, cryptomath, x25519

CHANGE_CIPHER_SPEC, ALERT, HANDSHAKE, DATA = 20, 21, 22, 23
CLIENT_HELLO, SERVER_HELLO, NEW_SESSION_TICKET, ENCRYPTED_EXTENSIONS = 1, 2, 4, 8
CERTIFICATE, CERTIFICATE_REQUEST, CERTIFICATE_VERIFY, FINISHED, KEY_UPDATE = 11, 13, 15, 20, 24
AES, CHACHA = 0x1302, 0x1303
X25519, P256 = 29, 23
CLOSE_NOTIFY, UNEXPECTED_MESSAGE, BAD_RECORD_MAC, RECORD_OVERFLOW, HANDSHAKE_FAILURE = 0, 10, 20, 22, 40
BAD_CERTIFICATE, ILLEGAL_PARAMETER, UNKNOWN_CA, DECODE_ERROR, DECRYPT_ERROR, PROTOCOL_VERSION = 42, 47, 48, 50, 51, 70
USER_CANCELED, MISSING_EXTENSION, UNSUPPORTED_EXTENSION, CERTIFICATE_REQUIRED = 90, 109, 110, 116
RETRY = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
ECDSA_P256 = 0x0403


class Alert(Exception):
    """The peer's alert. sealed: it was encrypted, under the keys that it should use at that point."""

    def __init__(self, number, sealed):
        super().__init__(f"alert {number}, {'encrypted' if sealed else 'in clear'}")
        self.number, self.sealed = number, sealed


class Closed(Exception):
    """The peer closed the connection, or reset it."""


def vector(size, data):
    """A vector of TLS: its length in `size` bytes, and its bytes."""
    return len(data).to_bytes(size, "big") + data


def message(kind, body):
    return bytes([kind]) + vector(3, body)


def extension(kind, data):
    return struct.pack(">H", kind) + vector(2, data)


def record(kind, content, version=(3, 3)):
    """In clear."""
    return bytes([kind, *version]) + vector(2, content)


class Keys:
    """The protection of one direction's records, from a traffic secret."""

    def __init__(self, cipher, secret):
        self.cipher, self.secret = cipher, secret
        self.hash = "sha384" if cipher == AES else "sha256"
        make = cipherfactory.createAESGCM if cipher == AES else cipherfactory.createCHACHA20
        self.aead = make(self.expand(b"key", 32), ["python"])
        self.iv = self.expand(b"iv", 12)
        self.number = 0

    def expand(self, label, size):
        return cryptomath.HKDF_expand_label(bytearray(self.secret), label, b"", size, self.hash)

    def nonce(self):
        number = bytes(4) + self.number.to_bytes(8, "big")
        self.number += 1
        return bytearray(a ^ b for a, b in zip(self.iv, number))

    def seal(self, plain):
        header = bytes([DATA, 3, 3]) + struct.pack(">H", len(plain) + 16)
        return header + bytes(self.aead.seal(self.nonce(), bytearray(plain), bytearray(header)))

    def open(self, header, sealed):
        """The content's type and the content; None if it is not the peer's."""
        plain = self.aead.open(self.nonce(), bytearray(sealed), bytearray(header))
        if plain is None:
            return None
        plain = bytes(plain).rstrip(b"\0")
        return plain[-1], plain[:-1]

    def next(self):
        return Keys(self.cipher, self.expand(b"traffic upd", 48 if self.cipher == AES else 32))


def read_key(path):
    """A fleet key's private part, and its certificate as bytes."""
    with open(path, encoding="ascii") as file:
        text = file.read()
    certificate = text[text.index("-----BEGIN CERT") :]
    private = text[: text.index("-----BEGIN CERT")] or certificate[certificate.index("-----END CERT") :]
    private = private[private.index("-----BEGIN EC") : private.index("-----END EC")] + "-----END EC PRIVATE KEY-----\n"
    return ecdsa.SigningKey.from_pem(private), ssl.PEM_cert_to_DER_cert(
        certificate[: certificate.index("-----END CERT")] + "-----END CERTIFICATE-----\n"
    )


class Share:
    """One side's part of a key exchange."""

    def __init__(self, group):
        self.group = group
        if group == X25519:
            self.private = bytearray(os.urandom(32))
            self.public = bytes(x25519.x25519(self.private, bytearray(x25519.X25519_G)))
        else:
            self.private = ecdsa.SigningKey.generate(ecdsa.NIST256p)
            self.public = self.private.verifying_key.to_string("uncompressed")

    def shared(self, public):
        if self.group == X25519:
            return bytes(x25519.x25519(self.private, bytearray(public)))
        point = ecdsa.VerifyingKey.from_string(public, ecdsa.NIST256p).pubkey.point
        return int((point * self.private.privkey.secret_multiplier).x()).to_bytes(32, "big")


class Peer:
    """Common to both sides: records, the transcript, the key schedule."""

    own, other = b"client", b"server"

    def __init__(self, connected, key=None, cipher=None):
        self.socket = connected
        self.socket.settimeout(60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.key, self.certificate = read_key(key) if key else (None, None)
        self.cipher = cipher
        self.transcript = b""
        self.out = self.into = None
        self.left = b""  # of handshake messages received
        self.updates = 0  # how often it changed its keys

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    # Records

    def send_bytes(self, data):
        try:
            self.socket.sendall(data)
        except ConnectionError:
            pass  # it has refused us meanwhile, and its message is still to be read

    def seal(self, kind, content, padding=0):
        """A valid record: encrypted if there are keys."""
        if self.out is None:
            return record(kind, content)
        return self.out.seal(bytes(content) + bytes([kind]) + bytes(padding))

    def send(self, kind, content, padding=0):
        self.send_bytes(self.seal(kind, content, padding))

    def read_bytes(self, size):
        data = b""
        while len(data) < size:
            try:
                part = self.socket.recv(size - len(data))
            except ConnectionError as reset:
                raise Closed from reset
            if not part:
                raise Closed
            data += part
        return data

    def receive(self):
        """The next record's type and content. Alerts are raised."""
        header = self.read_bytes(5)
        content = self.read_bytes(int.from_bytes(header[3:], "big"))
        kind, sealed = header[0], self.into is not None and header[0] == DATA
        if sealed:
            opened = self.into.open(header, content)
            assert opened, "a record that is not under these keys"
            kind, content = opened
        if kind == ALERT:
            assert len(content) == 2
            raise Alert(content[1], sealed)
        return kind, content

    def receive_message(self, kind=None):
        """The next handshake message, with its header, which goes into the transcript."""
        while len(self.left) < 4 or len(self.left) < 4 + int.from_bytes(self.left[1:4], "big"):
            record_kind, content = self.receive()
            if record_kind == CHANGE_CIPHER_SPEC:
                continue
            assert record_kind == HANDSHAKE, record_kind
            self.left += content
        size = 4 + int.from_bytes(self.left[1:4], "big")
        found, self.left = self.left[:size], self.left[size:]
        assert kind is None or found[0] == kind, f"message {found[0]}, not {kind}"
        self.transcript += found
        return found

    def echo(self, data, padding=0):
        """Sends data, and expects it back: true on success. Follows the peer's key changes."""
        self.send(DATA, data, padding)
        return self.receive_data(len(data)) == data

    def receive_data(self, size):
        data = b""
        while len(data) < size:
            kind, content = self.receive()
            if kind == HANDSHAKE and content[0] == KEY_UPDATE:
                self.updates += 1
                self.into = self.into.next()
                if content[4]:
                    self.update_keys(0)
                continue
            assert kind == DATA
            data += content
        return data

    def update_keys(self, request):
        self.send(HANDSHAKE, message(KEY_UPDATE, bytes([request])))
        self.out = self.out.next()

    def refusal(self):
        """The alert that ends the connection; skips everything before it."""
        try:
            while True:
                kind, content = self.receive()
                if kind == HANDSHAKE and content[:1] == bytes([KEY_UPDATE]):  # the alert is under the new ones
                    self.into = self.into.next()
        except Alert as alert:
            try:
                self.read_bytes(1)
            except Closed:
                return alert
            raise AssertionError(f"{alert}, and the connection goes on") from alert

    # Key schedule

    def hash(self, data):
        return bytes(cryptomath.secureHash(bytearray(data), self.hash_name))

    def mac(self, key, data):
        return bytes(cryptomath.secureHMAC(bytearray(key), bytearray(data), self.hash_name))

    def derive(self, secret, label, transcript):
        return bytes(
            cryptomath.HKDF_expand_label(
                bytearray(secret), label, bytearray(self.hash(transcript)), self.hash_size, self.hash_name
            )
        )

    def agree(self, cipher, shared):
        """After ServerHello: secrets of the handshake."""
        self.cipher = cipher
        self.hash_name, self.hash_size = ("sha384", 48) if cipher == AES else ("sha256", 32)
        zeros = bytes(self.hash_size)
        secret = self.mac(self.derive(self.mac(zeros, zeros), b"derived", b""), shared)
        self.handshake = {
            side: Keys(cipher, self.derive(secret, b"%c hs traffic" % side[0], self.transcript))
            for side in (b"client", b"server")
        }
        self.master = self.mac(self.derive(secret, b"derived", b""), zeros)

    def agree_on_data(self):
        """After the server's Finished: secrets of what follows."""
        self.data = {
            side: Keys(self.cipher, self.derive(self.master, b"%c ap traffic" % side[0], self.transcript))
            for side in (b"client", b"server")
        }

    def verify_data(self, side):
        key = self.handshake[side].expand(b"finished", self.hash_size)
        return self.mac(key, self.hash(self.transcript))

    def signed(self, side):
        return b" " * 64 + b"TLS 1.3, %s CertificateVerify\0" % side + self.hash(self.transcript)

    # Our messages. Each goes into the transcript as it is made.

    def put(self, kind, body):
        made = message(kind, body)
        self.transcript += made
        return made

    def certificate_message(self, certificate=None):
        certificate = self.certificate if certificate is None else certificate
        entry = vector(3, certificate) + vector(2, b"") if certificate else b""
        return self.put(CERTIFICATE, vector(1, b"") + vector(3, entry))

    def verify_message(self, scheme=ECDSA_P256, spoil=False):
        data = self.signed(self.own)
        signature = self.key.sign(data + b"x" * spoil, hashfunc=hashlib.sha256, sigencode=ecdsa.util.sigencode_der)
        return self.put(CERTIFICATE_VERIFY, struct.pack(">H", scheme) + vector(2, signature))

    def finished_message(self, spoil=False):
        data = bytearray(self.verify_data(self.own))
        data[0] ^= spoil
        return self.put(FINISHED, bytes(data))

    def take_verify(self):
        """The other side's CertificateVerify, which must verify: its key is ours."""
        signed = self.signed(self.other)
        body = self.receive_message(CERTIFICATE_VERIFY)[4:]
        assert body[:2] == struct.pack(">H", ECDSA_P256)
        assert self.key.verifying_key.verify(
            body[4:], signed, hashfunc=hashlib.sha256, sigdecode=ecdsa.util.sigdecode_der
        )

    def take_finished(self):
        expected = self.verify_data(self.other)
        assert self.receive_message(FINISHED)[4:] == expected


class Client(Peer):
    numbers = itertools.count(1)

    def __init__(self, port, key=None, cipher=None, source_port=0):
        number = next(self.numbers)
        self.source = f"127.{1 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"  # of this client alone
        source = (self.source, source_port)
        super().__init__(socket.create_connection(("127.0.0.1", port), source_address=source), key, cipher)

    def hello(
        self,
        *,
        group=X25519,
        groups=(X25519, P256),
        ciphers=None,
        versions=(0x0304,),
        session=b"",
        share=None,
        version=b"\3\3",
        compression=b"\0",
        more=b"",
        without=(),
        tail=b"",
        schemes=(ECDSA_P256,),
    ):
        """The message; into the transcript."""
        self.share = Share(group)
        ciphers = ciphers or ([self.cipher] if self.cipher else [AES, CHACHA])
        offered = share if share is not None else struct.pack(">H", group) + vector(2, self.share.public)
        extensions = {
            43: vector(1, b"".join(struct.pack(">H", number) for number in versions)),
            10: vector(2, b"".join(struct.pack(">H", number) for number in groups)),
            13: vector(2, b"".join(struct.pack(">H", number) for number in schemes)),
            51: vector(2, offered),
        }
        block = b"".join(extension(kind, data) for kind, data in extensions.items() if kind not in without) + more
        self.session = session
        return self.put(
            CLIENT_HELLO,
            version
            + os.urandom(32)
            + vector(1, session)
            + vector(2, b"".join(struct.pack(">H", number) for number in ciphers))
            + vector(1, compression)
            + vector(2, block)
            + tail,
        )

    def read_server_hello(self):
        """Agrees on keys; returns the requested group instead, if that is the server's answer."""
        body = self.receive_message(SERVER_HELLO)[4:]
        assert body[:2] == b"\3\3" and body[34] == len(self.session)
        at = 35 + len(self.session)
        cipher, at, shared, wanted = int.from_bytes(body[at : at + 2], "big"), at + 5, None, None
        retry = body[2:34] == RETRY
        while at < len(body):
            kind, size = struct.unpack(">HH", body[at : at + 4])
            data, at = body[at + 4 : at + 4 + size], at + 4 + size
            if kind == 51 and retry:
                wanted = int.from_bytes(data, "big")
            elif kind == 51:
                assert int.from_bytes(data[:2], "big") == self.share.group
                shared = self.share.shared(data[4:])
        if retry:
            self.hash_name = "sha384" if cipher == AES else "sha256"
            hello, rest = self.transcript[: -len(body) - 4], self.transcript[-len(body) - 4 :]
            self.transcript = message(254, self.hash(hello)) + rest
            return wanted
        assert not self.left
        self.agree(cipher, shared)
        self.into = self.handshake[b"server"]
        return None

    def read_server_flight(self):
        self.receive_message(ENCRYPTED_EXTENSIONS)
        self.receive_message(CERTIFICATE_REQUEST)
        self.receive_message(CERTIFICATE)
        self.take_verify()
        self.take_finished()
        self.agree_on_data()
        self.out, self.into = self.handshake[b"client"], self.data[b"server"]

    def flight(self):
        """Valid Certificate, CertificateVerify and Finished."""
        return [self.certificate_message(), self.verify_message(), self.finished_message()]

    def send_flight(self):
        self.send(HANDSHAKE, b"".join(self.flight()))
        self.out = self.data[b"client"]

    def until_flight(self, **options):
        """The whole handshake except our last flight."""
        self.send(HANDSHAKE, self.hello(**options))
        self.read_server_hello()
        self.read_server_flight()

    def shake_hands(self, **options):
        self.until_flight(**options)
        self.send_flight()


class Server(Peer):
    own, other = b"server", b"client"

    def __init__(self, listener, key=None, cipher=CHACHA):
        super().__init__(listener.accept()[0], key, cipher)

    def read_hello(self):
        """Reads the client's share for X25519."""
        body = self.receive_message(CLIENT_HELLO)[4:]
        at = 35 + body[34]
        self.session = body[35:at]
        at += 2 + int.from_bytes(body[at : at + 2], "big")
        at += 1 + body[at] + 2
        while at < len(body):
            kind, size = struct.unpack(">HH", body[at : at + 4])
            data, at = body[at + 4 : at + 4 + size], at + 4 + size
            if kind == 51:
                self.share = Share(int.from_bytes(data[2:4], "big"))
                self.public = data[6 : 6 + int.from_bytes(data[4:6], "big")]

    def server_hello(self, *, version=b"\3\3", chosen=b"\3\4", cipher=None, session=None, share=None, random=None):
        share = share if share is not None else struct.pack(">H", self.share.group) + vector(2, self.share.public)
        block = extension(43, chosen) + extension(51, share)
        return self.put(
            SERVER_HELLO,
            version
            + (random or os.urandom(32))
            + vector(1, self.session if session is None else session)
            + struct.pack(">H", cipher or self.cipher)
            + b"\0"
            + vector(2, block),
        )

    def agree_on_handshake(self):
        self.agree(self.cipher, self.share.shared(self.public))
        self.out, self.into = self.handshake[b"server"], self.handshake[b"client"]

    def flight(self):
        """Everything after ServerHello."""
        request = vector(1, b"") + vector(2, extension(13, vector(2, struct.pack(">H", ECDSA_P256))))
        return [
            self.put(ENCRYPTED_EXTENSIONS, vector(2, b"")),
            self.put(CERTIFICATE_REQUEST, request),
            self.certificate_message(),
            self.verify_message(),
            self.finished_message(),
        ]

    def until_flight(self):
        self.read_hello()
        self.send(HANDSHAKE, self.server_hello())
        self.agree_on_handshake()

    def finish(self):
        """After our Finished: reads the client's flight."""
        self.agree_on_data()
        self.out = self.data[b"server"]
        self.receive_message(CERTIFICATE)
        self.take_verify()
        self.take_finished()
        self.into = self.data[b"client"]

    def shake_hands(self):
        self.until_flight()
        self.send(HANDSHAKE, b"".join(self.flight()))
        self.finish()

    def echo_for(self, size):
        """Echoes that many bytes, record by record."""
        done = 0
        while done < size:
            data = self.receive_data(1)
            self.send(DATA, data)
            done += len(data)
