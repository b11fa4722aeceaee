"""trainer serve with clients that are slow, impatient, careless or hostile, in plain text and over TLS."""

import concurrent.futures
import gzip
import json
import socket
import ssl
import subprocess
import time

import numpy
import pytest
import tritonclient.http as triton

from ports import free_ports
from runs import SMALL, run, train
from served import Served

TOKEN = "a-token-of-this-test-alone"
ROW = json.dumps({"instances": [[0] * 784]}).encode()


@pytest.fixture(scope="module")
def model(trainer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    train(trainer, *SMALL, "--train_steps=50", "--train_dir=run", cwd=folder)
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                    "-keyout", "key.pem", "-out", "cert.pem", "-days", "2", "-subj", "/CN=localhost", "-addext",
                    "subjectAltName=DNS:localhost,IP:127.0.0.1"], cwd=folder, check=True, capture_output=True,
                   timeout=240)
    (folder / "token").write_text(TOKEN + "\n")
    for name in ("key.pem", "token"):
        (folder / name).chmod(0o600)
    return folder


@pytest.fixture(scope="module")
def plain(trainer, model):
    with Served(trainer, "digits=run", "--max_body_mb=1", cwd=model) as server:
        yield server


@pytest.fixture(scope="module")
def secured(trainer, model):
    context = ssl.create_default_context(cafile=model / "cert.pem")
    with Served(trainer, "digits=run", "--max_body_mb=1", "--http_cert=cert.pem", "--http_key=key.pem",
                "--http_token_file=token", cwd=model, context=context, token=TOKEN) as server:
        yield server


@pytest.fixture(params=["plain", "secured"])
def served(request):
    return request.getfixturevalue(request.param)


def open_socket(server):
    peer = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    return server.context.wrap_socket(peer, server_hostname="localhost") if server.context else peer


def head(server, path, *lines, method="POST"):
    more = [f"{name}: {value}" for name, value in server.authorization().items()]
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *more, *lines, "", ""]).encode()


def post(server, path, body, *lines):
    return head(server, path, f"Content-Length: {len(body)}", *lines) + body


def answers(file, count):
    """Status and body of that many answers, in order; fewer, if the connection ends."""
    found = []
    for _ in range(count):
        first = file.readline()
        if not first:
            break
        length = 0
        while (line := file.readline().rstrip()):
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        found.append((int(first.split()[1]), file.read(length)))
    return found


# --- over TLS, with a token ---


def test_every_protocol_over_tls_with_a_token(secured):
    pictures = numpy.arange(2 * 784, dtype=numpy.uint32).reshape(2, 784).astype(numpy.uint8)
    by_row = secured.post("/v1/models/digits:predict", {"instances": pictures.tolist()})["predictions"]
    with triton.InferenceServerClient(f"localhost:{secured.port}", ssl=True,
                                      ssl_context_factory=lambda **_: secured.context) as client:
        tensor = triton.InferInput("images", [2, 784], "UINT8")
        tensor.set_data_from_numpy(pictures)
        answer = client.infer("digits", [tensor], headers=secured.authorization())
        numpy.testing.assert_allclose(answer.as_numpy("probabilities"), by_row, atol=1e-7)
        with pytest.raises(triton.InferenceServerException):
            client.infer("digits", [tensor])
        assert client.is_server_ready()  # for load balancers, which have none
    for wrong in (None, "x", TOKEN[:-1], TOKEN + "x"):
        headers = {"Authorization": f"Bearer {wrong}"} if wrong else {"Authorization": ""}
        assert secured.ask("POST", "/v1/models/digits:predict", ROW, headers)[0] == 401
        assert secured.ask("GET", "/metrics", None, headers)[0] == 401


def test_plain_text_gets_nothing_where_tls_is_spoken(secured):
    with socket.create_connection(("127.0.0.1", secured.port), timeout=60) as peer:
        peer.sendall(post(secured, "/v1/models/digits:predict", ROW))
        try:
            assert b"HTTP/1.1" not in peer.makefile("rb").read()
        except ConnectionResetError:
            pass


def test_health_is_asked_by_the_program_itself(trainer, model, plain, secured):
    """A container's health check: there is no shell and no curl."""
    for server in (plain, secured):
        where = f"--http=127.0.0.1:{server.port}"
        trust = ["--http_cert=cert.pem"] if server.context else []
        run(trainer, "health", "--ready", where, *trust, cwd=model)
    run(trainer, "health", "--ready", f"--http=127.0.0.1:{free_ports(1)[0]}", cwd=model, status=1)


# --- many requests at once, and slow ones ---


def test_requests_on_one_connection_are_answered_in_their_order(served):
    """Forty sent at once, every third one faulty: each gets its own answer, and none ends the connection."""
    bodies = [json.dumps({"instances": [[0] * (784 if i % 3 else i)]}).encode() for i in range(40)]
    with open_socket(served) as peer, peer.makefile("rb") as file:
        peer.sendall(b"".join(post(served, "/v1/models/digits:predict", body) for body in bodies))
        found = answers(file, len(bodies))
    assert [status for status, _ in found] == [200 if i % 3 else 400 for i in range(40)]
    assert all(f"has {i} values".encode() in found[i][1] for i in range(0, 40, 3))


def test_who_sends_slowly_keeps_nobody_waiting(served):
    """Thirty clients send a byte now and then, while others are answered; then they are answered, too."""
    whole = post(served, "/v1/models/digits:predict", ROW)
    peers = [open_socket(served) for _ in range(30)]
    try:
        for at in range(20):
            for i, peer in enumerate(peers):
                first = (i * 37) % 60
                peer.sendall(whole[first + at:first + at + 1] if at else whole[:first + 1])
            assert served.ask("POST", "/v1/models/digits:predict", ROW)[0] == 200
        for i, peer in enumerate(peers):
            peer.sendall(whole[(i * 37) % 60 + 20:])
        for peer in peers:
            with peer.makefile("rb") as file:
                assert answers(file, 1)[0][0] == 200
    finally:
        for peer in peers:
            peer.close()


def test_who_does_not_read_keeps_nobody_waiting(served):
    """Unread answers wait within their bounds, and are freed with their connection."""
    body = json.dumps({"instances": [[0] * 784] * 200}).encode()
    peers = [open_socket(served) for _ in range(8)]
    for peer in peers:
        peer.settimeout(0.2)
        try:
            for _ in range(20):
                peer.sendall(post(served, "/v1/models/digits:predict", body))
        except (TimeoutError, ssl.SSLError):
            pass  # the server reads no more from a client to which it owes an answer
    for _ in range(5):
        assert served.ask("POST", "/v1/models/digits:predict", ROW)[0] == 200
    for peer in peers:
        peer.close()
    assert served.get("/readyz")[0] == 200


def test_who_leaves_before_the_answer_harms_nobody(served):
    def leave(i):
        peer = open_socket(served)
        peer.sendall(post(served, "/v1/models/digits:predict", ROW)[:None if i % 2 else -1])
        if i % 3 == 0:  # not with a FIN, but with a reset
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        peer.close()

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(leave, range(80)))
    assert served.ask("POST", "/v1/models/digits:predict", ROW)[0] == 200


# --- other uses of HTTP ---


@pytest.mark.parametrize("path", ["/v1/models/digits:predict", "/v2/models/digits/infer", "/predict/digits"])
@pytest.mark.parametrize("lines, body, status", [
    (["Content-Length: 5", "Transfer-Encoding: chunked"], b"0\r\n\r\n", 400),
    (["Transfer-Encoding: chunked", "Content-Length: 5"], b"0\r\n\r\n", 400),
    (["Content-Length: 5", "Content-Length: 6"], b"hello!", 400),
    (["Content-Length: +5"], b"hello", 400),
    (["Content-Length: 5, 5"], b"hello", 400),
    (["Content-Length: 0x5"], b"hello", 400),
    (["Content-Length : 5"], b"hello", 400),
    (["Content-Length: 99999999999999999999"], b"hello", 400),
    (["Transfer-Encoding: identity, chunked, identity"], b"0\r\n\r\n", None),
    (["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"], b"0\r\n\r\n", 400),
    (["Transfer-Encoding: xchunked"], b"0\r\n\r\n", None),
    (["Transfer-Encoding: chunked"], b"5;\n\r\nhello\r\n0\r\n\r\n", 400),
    (["Transfer-Encoding: chunked"], b"-1\r\nhello\r\n0\r\n\r\n", 400),
    (["Transfer-Encoding: chunked"], b"fffffffffffffffff\r\nhello\r\n0\r\n\r\n", 400),
    (["X: 1", " folded: 2", "Content-Length: 5"], b"hello", 400),
])
def test_no_request_is_smuggled_behind_another(plain, path, lines, body, status):
    """What two programs could parse in two ways is refused, and nothing after it is read as a request."""
    with open_socket(plain) as peer, peer.makefile("rb") as file:
        peer.sendall(head(plain, path, *lines) + body + head(plain, "/smuggled", method="GET"))
        found = answers(file, 3)
        assert len(found) == 1 and file.read() == b""
        assert found[0][0] == status if status else found[0][0] in (400, 501)


@pytest.fixture(scope="module")
def bomb():
    return gzip.compress(b" " * (128 << 20), 9)


@pytest.mark.parametrize("path", ["/v1/models/digits:predict", "/v2/models/digits/infer", "/predict/digits"])
def test_bodies_that_unpack_without_end(served, bomb, path):
    """The limit here is a megabyte, compressed or not, however small the bomb; memory does not grow with it."""
    assert len(bomb) < 1 << 18
    for _ in range(3):
        status, content, _ = served.ask("POST", path, bomb, {"Content-Encoding": "gzip"})
        assert status == 413 and b"1048576 bytes unpacked; send fewer rows" in content and b"--max_body_mb" in content
    twice = gzip.compress(bomb)
    assert served.ask("POST", path, twice, {"Content-Encoding": "gzip"})[0] == 400
    assert served.ask("POST", path, twice, {"Content-Encoding": "gzip, gzip"})[0] == 415
    with open(f"/proc/{served.process.pid}/status") as file:
        peak = next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
    assert peak < 64 << 10  # KiB


def test_a_body_in_chunks(served):
    with open_socket(served) as peer, peer.makefile("rb") as file:
        peer.sendall(head(served, "/v1/models/digits:predict", "Transfer-Encoding: chunked"))
        for at in range(0, len(ROW), 97):
            piece = ROW[at:at + 97]
            peer.sendall(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        peer.sendall(b"0\r\n\r\n" + post(served, "/v1/models/digits:predict", ROW))
        assert [status for status, _ in answers(file, 2)] == [200, 200]


def test_a_client_that_expects_to_be_asked(served):
    """Expect: 100-continue, twice on one connection; other expectations, and bodies too long, are refused unsent."""
    with open_socket(served) as peer, peer.makefile("rb") as file:
        for _ in range(2):
            peer.sendall(head(served, "/v1/models/digits:predict", f"Content-Length: {len(ROW)}",
                              "Expect: 100-continue"))
            assert answers(file, 1) == [(100, b"")]
            peer.sendall(ROW)
            assert answers(file, 1)[0][0] == 200
        peer.sendall(head(served, "/v1/models/digits:predict", "Content-Length: 2000000", "Expect: 100-continue"))
        assert answers(file, 1)[0][0] == 413
    with open_socket(served) as peer, peer.makefile("rb") as file:
        peer.sendall(head(served, "/v1/models/digits:predict", "Content-Length: 5", "Expect: tea"))
        assert answers(file, 1)[0][0] in (413, 417)


def test_a_thousand_connections_that_say_nothing(plain):
    began = time.monotonic()
    peers = [socket.create_connection(("127.0.0.1", plain.port), timeout=60) for _ in range(1000)]
    assert plain.ask("POST", "/v1/models/digits:predict", ROW)[0] == 200
    assert time.monotonic() - began < 60
    for peer in peers:
        peer.close()
