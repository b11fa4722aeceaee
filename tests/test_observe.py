"""What a run shows over HTTP (observe.http): the API, metrics, security, and hostile clients."""

import base64
import contextlib
import gzip
import http.client
import json
import pathlib
import re
import resource
import shutil
import socket
import ssl
import subprocess
import time
import urllib.request

import jsonschema
import pytest

from clusters import Cluster
from fleets import Fleet
from ports import free_ports
from runs import ENDLESS, LONG_S, SMALL, finish, run, start

LONG = (*ENDLESS, "--log_steps=0", "--validate_steps=100")  # until it is stopped


class Watched:
    """A run that continues until the end of its `with`, and its port."""

    def __init__(self, trainer, folder, *flags, host="127.0.0.1"):
        self.port = free_ports(1)[0]
        self.process = start(trainer, "train", *SMALL, *LONG, f"--http={host}:{self.port}", *flags, cwd=folder)

    def __enter__(self):
        wait_until(lambda: self.get("/readyz")[0] == 200, self.process)
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
        self.process.communicate(timeout=240)

    def get(self, path, headers=None):
        return get(self.port, path, headers)

    def json(self, path, headers=None):
        status, _, body = self.get(path, headers)
        assert status == 200, body
        return json.loads(body)

    def say(self, request, timeout=60):
        """Sends bytes, and returns everything until the server closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(request)
            return read_all(connection)


def read_all(connection):
    answer = b""
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(65536):
            answer += piece
    return answer


def get(port, path, headers=None, method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    except OSError:
        return 0, {}, b""
    finally:
        connection.close()


def is_as_documented(status, root=pathlib.Path(__file__).resolve().parent.parent):
    """Does a status, or a named part of it, have the form given in docs/status.schema.json?"""
    schema = json.loads((root / "docs/status.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(status, schema, jsonschema.Draft202012Validator)
    return True


def wait_until(happened, process=None, seconds=LONG_S):
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        if process and process.poll() is not None:
            pytest.fail(f"it ended: {process.communicate()}")
        time.sleep(0.05)


@pytest.fixture(scope="module")
def watched(trainer, tmp_path_factory):
    with Watched(trainer, tmp_path_factory.mktemp("run"), "--train_dir=digits") as run_:
        wait_until(lambda: b"trainer_loss" in run_.get("/metrics")[2])
        yield run_


# --- What it shows ---


def test_the_status_names_the_run_and_how_far_it_is(watched):
    wait_until(lambda: (watched.json("/api/status")["progress"]["metrics"] or {"accuracy": 0})["accuracy"] > 0.5)
    wait_until(lambda: watched.json("/api/status")["progress"]["eta_s"])
    status = watched.json("/api/status")
    assert status["run"]["name"] == "digits" and status["run"]["role"] == "local"
    assert status["run"]["layers"] == [784, 32, 10] and status["run"]["metric"] == "accuracy"
    progress = status["progress"]
    assert progress["global_step"] > 0 and progress["last_step"] == 100000000 and progress["eta_s"] > 0
    assert progress["examples"] > 0 and 0 < progress["loss"] < 3 and 0.5 < progress["metrics"]["accuracy"] <= 1
    assert progress["best"]["value"] >= 0.5
    assert [member["role"] for member in status["members"]] == ["local"]
    assert status["members"][0]["memory_bytes"] > 1e6
    assert is_as_documented(status)


def test_history_has_seconds_and_the_whole_run(watched):
    wait_until(lambda: len(watched.json("/api/history")["recent"]["time"]) >= 3)
    history = watched.json("/api/history")
    for part in ("recent", "whole"):
        times = history[part]["time"]
        assert times == sorted(times) and len(times) == len(history[part]["global_step"])
        assert all(len(values) == len(times) for values in history[part]["values"].values())
    assert "metric:accuracy" in history["series"] or "loss" in history["series"]
    some = watched.json(f"/api/history?series=loss,cpu_percent&since={history['recent']['time'][1]}")
    assert set(some["recent"]["values"]) == {"loss", "cpu_percent"}
    assert len(some["recent"]["time"]) >= len(history["recent"]["time"]) - 2
    assert min(some["recent"]["time"]) > history["recent"]["time"][1]
    assert watched.get("/api/history?since=soon")[0] == 400


def test_first_layer_and_worst_mistakes_of_pictures(watched):
    wait_until(lambda: {"weights", "mistakes"} <= set(watched.json("/api/status")["run"]["extras"]))
    layer = watched.json("/api/weights")
    assert (layer["height"], layer["width"], len(layer["units"])) == (28, 28, 32)
    for unit in layer["units"]:
        assert len(unit["values"]) == 784 and any(unit["values"])
    told = watched.json("/api/mistakes")
    sure = [mistake["confidence"] for mistake in told["mistakes"]]
    assert sure == sorted(sure, reverse=True) and all(0.1 <= each <= 1 for each in sure) and len(sure) <= 24
    for mistake in told["mistakes"]:
        assert mistake["label"] != mistake["predicted"]
        assert {mistake["label"], mistake["predicted"]} <= set("0123456789")
        pixels = base64.b64decode(mistake["pixels"])
        assert len(pixels) == 784 and max(pixels) > 100
    assert watched.get("/api/columns")[0] == 404


def test_columns_of_a_table_by_what_they_weigh(trainer, tmp_path):
    rows = [(i * 37 % 101 / 50, i * 53 % 97 / 50, "red" if i % 3 else "blue") for i in range(400)]
    table = "".join(f"{a},{b},{c},{int(a > 1)}\n" for a, b, c in rows)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "train.csv").write_text("signal,noise,color,target\n" + table)
    port = free_ports(1)[0]
    process = start(trainer, "train", "--data_dir=d", "--target=target", "--hidden=16", "--num_threads=1",
                    "--batch_size=50", *LONG, f"--http=127.0.0.1:{port}", "--train_dir=run", cwd=tmp_path)
    try:
        def weighs():
            status, _, body = get(port, "/api/columns")
            columns = json.loads(body)["columns"] if status == 200 else []
            return {column["name"]: column["importance"] for column in columns}

        wait_until(lambda: weighs().get("signal", 0) > 0.4, process)
        assert set(weighs()) == {"signal", "noise", "color"} and abs(sum(weighs().values()) - 1) < 1e-6
        process.terminate()
        process.communicate(timeout=240)
        process = start(trainer, "dashboard", "run", f"--http=127.0.0.1:{port}", cwd=tmp_path)  # from its checkpoint
        wait_until(lambda: weighs().get("signal", 0) > 0.4, process)
    finally:
        process.terminate()
        process.communicate(timeout=240)


def test_events_are_numbered_and_are_told_once(watched):
    wait_until(lambda: len(watched.json("/api/events")["events"]) >= 2)
    events = watched.json("/api/events")["events"]
    assert events[0]["kind"] == "started" and [event["id"] for event in events] == list(range(1, len(events) + 1))
    later = watched.json("/api/events?since=1")["events"]
    assert later[0]["id"] == 2
    assert watched.json(f"/api/events?since={10**9}")["events"] == []


def test_a_stream_brings_the_status_each_second_and_events_since_the_last_one(watched):
    request = urllib.request.Request(f"http://127.0.0.1:{watched.port}/api/stream", headers={"Last-Event-ID": "0"})
    kinds = []
    with urllib.request.urlopen(request, timeout=60) as stream:
        assert stream.headers["Content-Type"] == "text/event-stream"
        while kinds.count("status") < 3:
            line = stream.readline().decode().rstrip("\n")
            if line.startswith("event: "):
                kinds.append(line[7:])
            elif line.startswith("data: "):
                about = json.loads(line[6:])
                assert ("run" in about) == (kinds[-1] == "status")
    assert "event" in kinds


def test_the_page_comes_compressed_and_is_not_sent_twice(watched):
    for path, kind in (("/", "text/html"), ("/app.js", "text/javascript"), ("/app.css", "text/css"),
                       ("/dygraph.js", "text/javascript")):
        status, headers, body = watched.get(path, {"Accept-Encoding": "gzip"})
        assert status == 200 and headers["Content-Type"].startswith(kind)
        packed = body
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "script-src 'self'" in policy
        status, _, body = watched.get(path, {"Accept-Encoding": "gzip", "If-None-Match": headers["ETag"]})
        assert (status, body) == (304, b"")
        status, headers, plain = watched.get(path)  # curl, say, which accepts no gzip
        assert status == 200 and headers["Content-Encoding"] is None and plain == gzip.decompress(packed)


def test_every_answer_has_the_headers_that_keep_browsers_safe(watched):
    for path in ("/api/status", "/metrics", "/healthz", "/nowhere"):
        _, headers, _ = watched.get(path)
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["X-Frame-Options"] == "DENY"
        assert headers["Referrer-Policy"] == "no-referrer" and "Date" in headers
        assert "Access-Control-Allow-Origin" not in headers


# --- Metrics ---


def families(text):
    return set(re.findall(r"^# TYPE (\S+)", text, re.M))


def test_metrics_are_what_promtool_wants_and_each_is_documented(watched, root):
    text = watched.get("/metrics")[2].decode()
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True, timeout=240)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
    documented = (root / "docs" / "metrics.md").read_text()
    assert [name for name in families(text) if f"`{name}`" not in documented] == []
    assert "trainer_step_seconds_bucket" in text and "trainer_loss" in text


def test_openmetrics_by_negotiation(watched):
    wanted = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
    _, headers, body = watched.get("/metrics", {"Accept": wanted})
    text = body.decode()
    assert headers["Content-Type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert text.endswith("# EOF\n") and "# TYPE trainer_steps counter\n" in text and "\ntrainer_steps_total " in text
    assert "# UNIT trainer_step_seconds seconds\n" in text
    for unit, name in re.findall(r"^# UNIT (\S+) (\S+)$", text, re.M):
        assert unit.endswith("_" + name)
    _, headers, _ = watched.get("/metrics", {"Accept": "application/openmetrics-text;q=0, text/plain"})
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")


@pytest.mark.skipif(not shutil.which("prometheus"), reason="no prometheus here")
def test_a_prometheus_scrapes_it_and_answers_queries(watched, tmp_path, root):
    port = free_ports(1)[0]
    config = (root / "deploy" / "prometheus" / "prometheus.yml").read_text()
    config = config.replace("127.0.0.1:9200", f"127.0.0.1:{watched.port}").replace("scrape_interval: 5s",
                                                                                  "scrape_interval: 1s")
    (tmp_path / "prometheus.yml").write_text(config)
    shutil.copy(root / "deploy" / "prometheus" / "alerts.yml", tmp_path)
    with subprocess.Popen(["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data",
                           f"--web.listen-address=127.0.0.1:{port}"], cwd=tmp_path, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL) as process:
        try:
            def step():
                body = get(port, "/api/v1/query?query=trainer_global_step")[2]
                found = json.loads(body)["data"]["result"] if body.startswith(b"{") else []
                return found and float(found[0]["value"][1]) > 0

            wait_until(step, process)
        finally:
            process.terminate()


def test_scrape_configuration_and_alerts_are_tested_by_promtool(root):
    folder = root / "deploy" / "prometheus"
    for command in (["check", "config", "prometheus.yml"], ["check", "rules", "alerts.yml"],
                    ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run(["promtool", *command], cwd=folder, text=True, capture_output=True, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_and_dashboard_name_metrics_that_exist(watched, root):
    folder = root / "deploy" / "prometheus"
    dashboard = json.loads((folder / "dashboard.json").read_text())
    used = " ".join(target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", []))
    used += (folder / "alerts.yml").read_text()
    documented = (root / "docs" / "metrics.md").read_text()
    for name in set(re.findall(r"\b(?:trainer|process)_[a-z_]+", used)):
        family = re.sub(r"_(bucket|sum|count)$", "", name)
        assert f"`{family}`" in documented, name


# --- Who may look ---


def make_certificate(folder):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                    "-keyout", "key.pem", "-out", "cert.pem", "-days", "2", "-subj", "/CN=localhost", "-addext",
                    "subjectAltName=DNS:localhost,IP:127.0.0.1"], cwd=folder, check=True, capture_output=True,
                   timeout=240)
    (folder / "key.pem").chmod(0o600)


def test_tls_and_a_token(trainer, tmp_path):
    make_certificate(tmp_path)
    (tmp_path / "token").write_text("a-token-of-this-test-alone\n")
    (tmp_path / "token").chmod(0o600)
    port = free_ports(1)[0]
    process = start(trainer, "train", *SMALL, *LONG, f"--http=127.0.0.1:{port}", "--http_cert=cert.pem",
                    "--http_key=key.pem", "--http_token_file=token", cwd=tmp_path)
    context = ssl.create_default_context(cafile=tmp_path / "cert.pem")

    def ask(path, token=None):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection = http.client.HTTPSConnection("localhost", port, timeout=60, context=context)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        except OSError as problem:
            assert not isinstance(problem, ssl.SSLError), problem
            return 0, {}, b""
        finally:
            connection.close()

    try:
        wait_until(lambda: ask("/healthz")[0] == 200, process)
        status, headers, _ = ask("/api/status")
        assert status == 401 and headers["WWW-Authenticate"].startswith("Bearer")
        for wrong in ("a-token-of-this-test-alon", "a-token-of-this-test-alone2", "x"):
            assert ask("/metrics", wrong)[0] == 401
        assert ask("/api/status", "a-token-of-this-test-alone")[0] == 200
        assert b"Bearer" in subprocess.run(
            ["curl", "-s", "--cacert", "cert.pem", "-i", f"https://localhost:{port}/metrics"], cwd=tmp_path,
            capture_output=True, timeout=240, check=True).stdout
        # Neither plain text, nor older protocols.
        with socket.create_connection(("127.0.0.1", port), timeout=60) as plain:
            plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"HTTP" not in read_all(plain)
        older = subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-tls1_2"], input=b"",
                               capture_output=True, timeout=240, check=False)
        assert older.returncode != 0
    finally:
        process.terminate()
        process.communicate(timeout=240)


def test_beyond_this_machine_it_wants_a_token_and_encryption(trainer, tmp_path):
    port = free_ports(1)[0]
    open_to_all = run(trainer, "train", *SMALL, f"--http=0.0.0.0:{port}", cwd=tmp_path, status=1)
    assert "--http_token_file" in open_to_all.stderr
    token = tmp_path / "token"
    token.write_text("a-token-of-this-test-alone\n")
    token.chmod(0o644)
    flags = ("train", *SMALL, f"--http=0.0.0.0:{port}", "--http_token_file=token")
    assert "chmod 600" in run(trainer, *flags, cwd=tmp_path, status=1).stderr
    token.chmod(0o600)
    assert "--http_cert" in run(trainer, *flags, cwd=tmp_path, status=1).stderr
    token.write_text("short\n")
    assert "at least 16" in run(trainer, *flags, cwd=tmp_path, status=1).stderr


def test_a_page_elsewhere_can_not_read_it_by_another_name(watched):
    assert watched.get("/api/status", {"Host": "evil.example"})[0] == 421
    assert watched.get("/api/status", {"Host": f"localhost:{watched.port}"})[0] == 200


# --- Hostile clients ---

HOST = b"Host: localhost\r\n"


@pytest.mark.parametrize("request_, status", [
    (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 400),
    (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: +3\r\n\r\nabc", 400),
    (b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip\r\n\r\n", (400, 501)),
    (b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked, identity\r\n\r\n", 400),
    (b"POST / HTTP/1.0\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\n" + HOST + b"X: a\r\n b\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\n" + HOST + b"X : a\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\n" + HOST + b"X: a\0b\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n", 400),
    (b"GET / HTTP/2.0\r\n" + HOST + b"\r\n", 505),
    (b"GET / HTTP/1.9\r\n" + HOST + b"\r\n", (400, 505)),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    (b"GET /\r\n\r\n", (400, 505)),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    (b"GET /%00 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    (b"GET /%ff%fe HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    (b"GET /%zz HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    (b"GET " + b"/" * 5000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414),
    (b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 20000 + b"\r\n\r\n", 431),
    (b"GET / HTTP/1.1\r\n" + HOST + b"X: a\r\n" * 70 + b"\r\n", 431),
    (b"POST /api/status HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nabc", (405, 413)),
    (b"GET /api/status HTTP/1.1\r\n" + HOST + b"Content-Length: 99999999999\r\n\r\n", 413),
    (b"GET /api/status HTTP/1.1\r\n" + HOST + b"Content-Length: 99999999999999999999999\r\n\r\n", 400),
    (b"GET /api/status HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 413),
])
def test_what_is_open_to_argument_is_refused_and_the_connection_ends(watched, request_, status):
    answer = watched.say(request_ + b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n" * 2)
    lines = re.findall(rb"^HTTP/1\.1 (\d+)", answer, re.M)
    assert int(lines[0]) in (status if isinstance(status, tuple) else (status,)), answer
    assert b"Connection: close" in answer and lines[1:] == []  # what followed was not parsed as a request
    assert b'{"error":"' in answer


@pytest.mark.parametrize("path", [
    "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/app.js/../history.bin", "//etc/passwd", "/app.js%2f..%2fx",
    "/api/status/", "/API/status", "/api/runs/../status"
])
def test_nothing_lies_beyond_the_table_of_routes(watched, path):
    assert watched.get(path, {"Accept-Encoding": "gzip"})[0] == 404


def test_methods(watched):
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"):
        status, headers, _ = get(watched.port, "/api/status", method=method)
        assert (status, headers.get("Allow")) == (405, "GET, HEAD")
    status, headers, body = get(watched.port, "/api/runs", method="HEAD")
    assert (status, body) == (200, b"") and int(headers["Content-Length"]) > 0
    assert get(watched.port, "/nowhere", method="DELETE")[0] == 404


def test_pipelined_requests_are_answered_in_order_however_they_are_cut(watched):
    paths = ("/healthz", "/api/runs", "/nowhere", "/readyz")
    requests = b"".join(f"GET {path} HTTP/1.1\r\n".encode() + HOST + b"\r\n" for path in paths)
    requests += b"GET /healthz HTTP/1.1\r\nConnection: close\r\n" + HOST + b"\r\n"
    for cut in (len(requests), 1, 7):
        with socket.create_connection(("127.0.0.1", watched.port), timeout=60) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for at in range(0, len(requests), cut):
                connection.sendall(requests[at:at + cut])
            statuses = re.findall(rb"HTTP/1\.1 (\d+)", read_all(connection))
        assert statuses == [b"200", b"200", b"404", b"200", b"200"]


def test_old_clients_and_proxies_are_understood(watched):
    answer = watched.say(b"GET /healthz HTTP/1.0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"\r\n\r\nok\n")
    answer = watched.say(b"GET http://localhost/healthz HTTP/1.1\r\nConnection: close\r\n" + HOST + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    upgrade = b"Connection: close, Upgrade\r\nUpgrade: h2c\r\n"
    answer = watched.say(b"\r\nGET /healthz HTTP/1.1\r\n" + upgrade + HOST + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 200")


def test_behind_an_offer_to_speak_something_else_nothing_is_read(watched):
    offer = b"GET /healthz HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n" + HOST + b"\r\n"
    answer = watched.say(offer * 3)
    assert re.findall(rb"^HTTP/1\.1 (\d+)", answer, re.M) == [b"200"] and b"Connection: close" in answer
    assert watched.get("/healthz")[0] == 200


def test_ten_thousand_idle_connections_cost_little_and_keep_nobody_out(trainer, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(10000, hard - 1000) if hard != resource.RLIM_INFINITY else 10000
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, count + 1000)), hard))
    idle = []
    try:
        with Watched(trainer, tmp_path) as run_:
            before = run_.json("/api/status")["members"][0]["memory_bytes"]
            for i in range(count):
                idle.append(socket.create_connection(("127.0.0.1", run_.port), timeout=60))
                if i % 3 == 0:
                    idle[-1].sendall(b"GET /api/sta")
            step = run_.json("/api/status")["progress"]["global_step"]
            wait_until(lambda: run_.json("/api/status")["progress"]["global_step"] > step)
            after = run_.json("/api/status")["members"][0]["memory_bytes"]
            assert after - before < 64 * 2**20
            assert run_.get("/healthz")[0] == 200
            metrics = run_.get("/metrics")[2].decode()
            assert int(re.search(r"^trainer_http_connections (\d+)", metrics, re.M).group(1)) <= 10240
    finally:
        for each in idle:
            each.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_slow_heads_time_out(watched):
    begun = time.monotonic()
    with socket.create_connection(("127.0.0.1", watched.port), timeout=60) as connection:
        connection.sendall(b"GET /api/status HTTP/1.1\r\n")
        assert read_all(connection).startswith(b"HTTP/1.1 408")
    assert time.monotonic() - begun < 50


# --- Roles, and restarts ---


def test_history_survives_a_restart(trainer, tmp_path):
    with Watched(trainer, tmp_path, "--train_dir=run") as run_:
        wait_until(lambda: len(run_.json("/api/history")["recent"]["time"]) >= 3)
        first = run_.json("/api/history")["recent"]["time"]
    assert (tmp_path / "run" / "history.bin").exists()
    with Watched(trainer, tmp_path, "--train_dir=run") as run_:
        assert set(first[:2]) <= set(run_.json("/api/history")["recent"]["time"])
    damaged = bytearray((tmp_path / "run" / "history.bin").read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (tmp_path / "run" / "history.bin").write_bytes(damaged)
    with Watched(trainer, tmp_path, "--train_dir=run") as run_:
        assert not set(first) & set(run_.json("/api/history")["recent"]["time"])


def test_a_ps_shows_the_fleet_and_who_comes_and_goes(trainer, tmp_path):
    ports = free_ports(2)
    with Cluster(trainer, tmp_path, ps=1, workers=2, flags=LONG) as cluster:
        cluster.start("ps 0", f"--http=127.0.0.1:{ports[0]}")
        wait_until(lambda: get(ports[0], "/healthz")[0] == 200)
        assert get(ports[0], "/readyz")[0] == 503
        cluster.start("worker 0", "--train_dir=run", f"--http=127.0.0.1:{ports[1]}")
        cluster.start("worker 1")

        def status(port):
            return json.loads(get(port, "/api/status")[2] or "{}")

        def states():
            return {f"{member['role']} {member['task']}": member["state"]
                    for member in status(ports[0]).get("members", [])}

        wait_until(lambda: states() == {"ps 0": "ready", "worker 0": "training", "worker 1": "training"})
        assert get(ports[0], "/readyz")[0] == 200
        wait_until(lambda: get(ports[1], "/readyz")[0] == 200)
        assert status(ports[1])["run"]["role"] == "worker"
        cluster.kill("worker 1")
        wait_until(lambda: states() == {"ps 0": "ready", "worker 0": "training", "worker 1": "lost"})
        wait_until(lambda: "lost" in [event["kind"] for event in json.loads(get(ports[0], "/api/events")[2])["events"]])
        wait_until(lambda: status(ports[0]).get("missing") == 1)
        assert is_as_documented(status(ports[0]))
        missing, told = cluster.status()
        assert missing == 1 and is_as_documented(dict(status(ports[0]), members=list(told.values())))


def test_the_chief_and_each_ps_show_everybody(trainer, tmp_path):
    ports = free_ports(3)
    with Cluster(trainer, tmp_path, ps=2, workers=2, flags=LONG) as cluster:
        cluster.start("ps 0", f"--http=127.0.0.1:{ports[0]}")
        cluster.start("ps 1", f"--http=127.0.0.1:{ports[1]}")
        cluster.start("worker 0", "--train_dir=run", f"--http=127.0.0.1:{ports[2]}")
        cluster.start("worker 1")

        def members(port):
            told = json.loads(get(port, "/api/status")[2] or '{"members": []}')["members"]
            return {f"{member['role']} {member['task']}": member for member in told}

        everybody = {"ps 0": "ready", "ps 1": "ready", "worker 0": "training", "worker 1": "training"}
        for port in ports:
            wait_until(lambda port=port: {name: m["state"] for name, m in members(port).items()} == everybody)
        for port in ports:  # each process's own use of resources
            wait_until(lambda port=port: (told := members(port)) and all(
                m["cpu_percent"] is not None for m in told.values()) and told["worker 1"]["cpu_percent"] > 0)
            assert all(1 << 20 < m["memory_bytes"] < 1 << 32 for m in members(port).values())
            assert all(m["gpu_percent"] is None for m in members(port).values())
        cluster.kill("ps 1")
        wait_until(lambda: members(ports[0])["ps 1"]["missing"] and members(ports[2])["ps 1"]["missing"])


def test_a_rollout_under_way_is_shown_with_its_diff(trainer, tmp_path):
    ports = free_ports(2)
    with Fleet(trainer, tmp_path, ps=1, workers=1, flags=("--log_steps=20",)) as fleet:
        fleet.start("ps 0", f"--http=127.0.0.1:{ports[0]}")
        fleet.start("worker 0", f"--http=127.0.0.1:{ports[1]}")
        fleet.until("worker 0", lambda text: text.count('"event":"step"') >= 2, "steps")
        rollout = subprocess.Popen([trainer, "rollout", fleet.candidate(2, learning_rate=0.05), "--yes",
                                    "--healthy_secs=30", *fleet.job_flags()], cwd=tmp_path, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT)

        def shown(port):
            return json.loads(get(port, "/api/status")[2] or "{}").get("rollout")

        for port in ports:
            wait_until(lambda port=port: shown(port) and shown(port)["diff"])
            assert is_as_documented(json.loads(get(port, "/api/status")[2]))
            told = shown(port)
            assert told["version"] == 2 and told["phase"] in ("staging", "switching", "watching"), told
            assert "train.learning_rate" in told["diff"][0] and "0.1 -> 0.05" in told["diff"][0]
        assert rollout.wait(timeout=240) == 0, rollout.communicate()
        for port in ports:
            wait_until(lambda port=port: shown(port) is None)


def test_a_page_hears_how_the_run_ended(trainer, tmp_path):
    (port,) = free_ports(1)
    process = start(trainer, "train", *SMALL, *LONG, f"--http=127.0.0.1:{port}", cwd=tmp_path)
    wait_until(lambda: get(port, "/readyz")[0] == 200, process)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/stream", timeout=60) as stream:
        stream.readline()
        process.terminate()
        told = stream.read().decode()  # http.client complains about a truncated stream
    finish(process, status=None)
    last = [line for line in told.splitlines() if line.startswith("data: ") and '"run"' in line][-1]
    assert json.loads(last[6:])["run"]["state"] in ("done", "failed") and '"kind":"done"' in told


def test_an_evaluator_shows_what_it_found(trainer, tmp_path):
    run(trainer, "train", *SMALL, "--train_steps=200", "--train_dir=run", cwd=tmp_path)
    port = free_ports(1)[0]
    process = start(trainer, "train", *SMALL, "--train_steps=0", "--job_name=evaluator", "--train_dir=run",
                    f"--http=127.0.0.1:{port}", cwd=tmp_path)
    try:
        wait_until(lambda: get(port, "/readyz")[0] == 200, process)
        assert json.loads(get(port, "/api/status")[2])["progress"]["metrics"]["accuracy"] > 0.3
    finally:
        process.terminate()
        finish(process, status=None)


# --- A probe from within, for a container without a shell ---


def test_a_probe_asks_the_member_itself(watched, trainer, run, tmp_path):
    assert run("health", f"--http=127.0.0.1:{watched.port}").stdout == "healthy\n"
    assert run("health", "--ready", f"--http=127.0.0.1:{watched.port}").stdout == "ready\n"
    port, peer = free_ports(2)
    result = run("health", f"--http=127.0.0.1:{port}", status=1)
    assert f"127.0.0.1:{port}" in result.stderr and result.stderr.count("\n") == 1 and result.stdout == ""
    assert "no member given" in run("health", status=2).stderr
    # A worker without its ps answers, and is not ready.
    run("keygen", "--out=fleet.key")
    waiting = start(trainer, "--job_name=worker", "--task_index=0", f"--ps_hosts=127.0.0.1:{peer}",
                    "--worker_hosts=127.0.0.1:1", f"--http=127.0.0.1:{port}", *SMALL, cwd=tmp_path)
    try:
        wait_until(lambda: get(port, "/healthz")[0] == 200, waiting)
        assert run("health", f"--http=127.0.0.1:{port}").stdout == "healthy\n"
        assert "503" in run("health", "--ready", f"--http=127.0.0.1:{port}", status=1).stderr
    finally:
        waiting.terminate()
        waiting.communicate(timeout=240)
