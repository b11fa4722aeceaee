"""net/PROTOCOL.md as a specification: it is sufficient for talking to the program."""

import os
import pathlib
import re
import shutil
import socket
import ssl
import subprocess

import protocol
import pytest

SERVER = pathlib.Path(__file__).resolve().parent.parent / "build" / "san" / "tests" / "net" / "server"


@pytest.fixture
def key(run, tmp_path):
    """A fresh fleet key."""
    run("keygen", "--out=fleet.key")
    return str(tmp_path / "fleet.key")


class Served:
    """A running test server: its port, and its output once it has ended."""

    def __init__(self, key):
        self.process = subprocess.Popen(
            [SERVER, key], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.port = int(self.process.stdout.readline())

    def refusals(self, count):
        """Its output: waits for exactly `count` lines."""
        lines = [self.process.stdout.readline() for _ in range(count)]
        rest = self.end()
        assert rest == "", rest
        return "".join(lines)

    def end(self):
        self.process.terminate()
        return self.process.communicate(timeout=240)[0]


@pytest.fixture
def serve():
    """serve(key): starts a server with this key ("-": plain text)."""
    started = []

    def start(key):
        served = Served(key)
        started.append(served)
        return served

    yield start
    for served in started:
        if served.process.poll() is None:
            served.end()


def test_vectors():
    vectors = protocol.read_vectors(protocol.DOCUMENT.read_text())
    assert len(vectors) >= 5
    for name, data, expected in vectors:
        header = protocol.HEADER.unpack(data[: protocol.HEADER.size])
        assert header[0] == b"TRNR" and protocol.SCHEMA[header[2]][0] == name
        size = header[6]
        message = data[protocol.HEADER.size : protocol.HEADER.size + size]
        fields = protocol.decode(name, message)
        assert {field: str(value) for field, value in fields.items()} == expected
        assert protocol.encode(name, **fields) == message
        assert len(data) == protocol.HEADER.size + size + header[7]


def test_python_speaks_to_it(key, serve):
    served = serve(key)
    with protocol.Client(served.port, key) as client:
        assert client.socket.version() == "TLSv1.3"
        assert client.socket.cipher()[0] in ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
        name, fields = client.hello(index=3, cluster="test", digest="d")
        assert name == "welcome" and fields["role"] == 1 and fields["version"] == 1
        for nonce in (0, 7, 2**64 - 1):
            name, fields, _ = client.call("ping", nonce=nonce)
            assert name == "pong" and fields["nonce"] == nonce and fields["request"] == client.request
        floats = bytes(range(256)) * 4096
        name, fields, bulk = client.call(
            "push", bulk=floats, sequence=1, ranges=[(0, 1000), (5000, len(floats) // 4 - 1000)]
        )
        assert name == "pushed" and fields["last"] and bulk == floats
        name, fields, _ = client.call("get_model")
        assert name == "error" and fields["code"] == 3


def test_refusals_name_the_reason(key, serve, run, tmp_path):
    served = serve(key)
    with protocol.Client(served.port, key) as client:
        name, fields = client.hello(cluster="other", digest="d")
        assert name == "refused" and fields["reason"] == 2 and 'cluster "other"' in fields["message"]
    with protocol.Client(served.port, key) as client:
        name, fields = client.hello(cluster="test", digest="e", job='{"model":{"layers":[784,300,10]}}')
        assert name == "refused" and fields["reason"] == 4
        assert "worker 0 has model.layers=[784,300,10], ps 0 has [784,500,10]" in fields["message"]
    with protocol.Client(served.port, key) as client:
        name, fields = client.hello(version_min=5, version_max=6, cluster="test")
        assert name == "refused" and fields["reason"] == 1 and "upgrade the older one" in fields["message"]
    output = served.refusals(3)
    assert len(re.findall(r"^refused 127\.0\.0\.1:\d+: ", output, flags=re.M)) == 3, output


def test_tls_refuses(key, serve, run, tmp_path):
    run("keygen", "--out=other.key")
    served = serve(key)
    # No key, another key, TLS 1.2, plain text: one line each.
    for made in (protocol.context(), protocol.context(str(tmp_path / "other.key"), key)):
        with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):
            with made.wrap_socket(socket.create_connection(("127.0.0.1", served.port), timeout=60)) as tls:
                tls.sendall(b"x")
                if not tls.recv(1):
                    raise EOFError
    old = protocol.context(maximum=ssl.TLSVersion.TLSv1_2)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        old.wrap_socket(socket.create_connection(("127.0.0.1", served.port), timeout=60))
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as plain:
        plain.sendall(protocol.frame("ping", protocol.encode("ping")))
        assert plain.recv(100)[:1] in (b"\x15", b"")
    output = served.refusals(4)
    for reason in (
        "it presents no key",
        "its fleet key differs from this side's",
        "does not speak TLS 1.3",
        "speaks plain text, but this side TLS",
    ):
        assert len(re.findall(r"^refused 127\.0\.0\.1:\d+: 127.*" + reason, output, flags=re.M)) == 1, output


def test_certificates_of_an_authority(run, serve, tmp_path):
    """A member's key made here, and one signed by openssl with the same authority."""
    run("keygen", "--ca=ca")
    run("keygen", "--ca=ca", "--member=ps:0", "--out=ps0.key")
    run("keygen", "--ca=ca", "--member=worker:1", "--out=worker1.key")
    served = serve(str(tmp_path / "ps0.key"))
    authority = str(tmp_path / "ca" / "ca.key")
    with protocol.Client(served.port, str(tmp_path / "worker1.key"), authority) as client:
        assert client.hello(index=1, cluster="test", digest="d")[0] == "welcome"
    with protocol.Client(served.port, str(tmp_path / "worker1.key"), authority) as client:
        name, fields = client.hello(index=2, cluster="test", digest="d")
        assert name == "refused"
        assert "it claims to be worker 2, but its certificate is for worker:1" in fields["message"]


@pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl command here")
def test_openssl_s_client(key, serve):
    served = serve(key)
    result = subprocess.run(
        ["openssl", "s_client", "-connect", f"127.0.0.1:{served.port}", "-cert", key, "-key", key, "-CAfile", key]
        + ["-tls1_3", "-verify_return_error", "-brief"],
        input="",
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stderr
    assert "Protocol version: TLSv1.3" in result.stderr and "Verification: OK" in result.stderr


@pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl command here")
def test_openssl_changes_keys(key, serve):
    """OpenSSL changes its keys and requests a change of ours; both ends continue."""
    served = serve(key)
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{served.port}", "-cert", key, "-key", key, "-CAfile", key]
    client = subprocess.Popen(
        command + ["-tls1_3", "-verify_return_error", "-brief"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        hello = protocol.frame("hello", protocol.encode("hello", **protocol.HELLO, cluster="test", digest="d"))
        for line in (b"K\n", hello, b"K\n", protocol.frame("ping", protocol.encode("ping", nonce=9), request=2)):
            os.write(client.stdin.fileno(), line)
            if line != b"K\n":
                header = protocol.HEADER.unpack(client.stdout.read(protocol.HEADER.size))
                assert header[0] == b"TRNR", header
                client.stdout.read(header[6])
            else:  # s_client only reads a command that stands alone, and says when it has read one
                assert any(b"KEYUPDATE" in said for said in iter(client.stderr.readline, b""))
        assert protocol.SCHEMA[header[2]][0] == "pong"
    finally:
        client.kill()
        client.communicate()


def test_plain_text(serve):
    served = serve("-")
    with protocol.Client(served.port, insecure=True) as client:
        assert client.hello(cluster="test", digest="d")[0] == "welcome"
    with pytest.raises((ssl.SSLError, ConnectionError)):
        protocol.Client(served.port)
    assert "speaks TLS, but this side was started with --insecure" in served.refusals(1)


def test_slow_peers_hold_up_nobody(key, serve):
    """Connections that send nothing, or half a hello, do not delay others."""
    served = serve(key)
    idle = [socket.create_connection(("127.0.0.1", served.port), timeout=60) for _ in range(20)]
    for each in idle[::2]:
        each.sendall(b"\x16\x03\x01")
    with protocol.Client(served.port, key, timeout=8) as client:
        assert client.hello(cluster="test", digest="d")[0] == "welcome"
    for each in idle:
        each.close()


def test_keygen(run, tmp_path):
    assert "create the keys" in run("help").stdout
    result = run("keygen", "--out=fleet.key")
    assert "copy it to every machine" in result.stdout
    path = tmp_path / "fleet.key"
    assert path.stat().st_mode & 0o777 == 0o600
    content = path.read_bytes()
    assert b"PRIVATE KEY" in content and content.count(b"BEGIN CERTIFICATE") == 1
    assert "already exists, and is not overwritten" in run("keygen", "--out=fleet.key", status=1).stderr
    assert path.read_bytes() == content
    for wrong in ([], ["--member=ps:0"], ["--ca=ca", "--member=chief", "--out=x"], ["--ca=ca", "--member=ps:0"]):
        assert "keygen" in run("keygen", *wrong, status=2).stderr
    assert "trainer keygen --ca=ca" in run("keygen", "--ca=ca", "--member=ps:0", "--out=x.key", status=1).stderr
