"""trainer serve in operation: sockets passed by systemd's own program, and a rolling update behind HAProxy, with the
configuration in docs/serving.md."""

import http.client
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import threading

import pytest

from ports import free_ports
from runs import SMALL, run, train, wait_for
from served import Served

ROW = json.dumps({"instances": [[0] * 784]}).encode()
PATH = "/v1/models/model:predict"


@pytest.fixture(scope="module")
def model(trainer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    train(trainer, *SMALL, "--train_steps=50", "--train_dir=run", cwd=folder)
    return folder


def test_systemd_starts_it_for_the_first_who_connects(trainer, model):
    """systemd-socket-activate listens, like trainer-serve@.socket, and starts it for the first connection."""
    if not shutil.which("systemd-socket-activate"):
        pytest.skip("there is no systemd-socket-activate (apt install systemd)")
    (port,) = free_ports(1)
    with open(model / "activated.log", "w+") as log:
        process = subprocess.Popen(["systemd-socket-activate", f"--listen=127.0.0.1:{port}", trainer, "serve", "run",
                                    f"--http=127.0.0.1:{port}"], cwd=model, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_for(lambda: "Listening on" in (model / "activated.log").read_text(), "systemd-socket-activate")
            assert "serving at" not in (model / "activated.log").read_text()
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("POST", PATH, ROW)
            answer = connection.getresponse()
            assert answer.status == 200 and len(json.loads(answer.read())["predictions"][0]) == 10
            wait_for(lambda: "serving at" in (model / "activated.log").read_text(), "its log")
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(240) == 0


def test_the_health_check_of_a_container(trainer, root, model):
    """The command that docs/serving.md gives for Docker: it succeeds as long as the server is ready."""
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                    "-keyout", "key.pem", "-out", "cert.pem", "-days", "2", "-subj", "/CN=localhost", "-addext",
                    "subjectAltName=DNS:localhost,IP:127.0.0.1"], cwd=model, check=True, capture_output=True,
                   timeout=240)
    (model / "key.pem").chmod(0o600)
    line = re.search(r"test: \[CMD, /trainer, (.*)\]", (root / "docs/serving.md").read_text())[1]
    context = ssl.create_default_context(cafile=model / "cert.pem")
    with Served(trainer, "run", "--http_cert=cert.pem", "--http_key=key.pem", cwd=model, context=context) as server:
        command = line.replace("8500", str(server.port)).replace("/keys/", "").split(", ")
        run(trainer, *command, cwd=model)
    run(trainer, *command, cwd=model, status=1)


@pytest.fixture
def documented(root):
    """HAProxy's backend, from the document."""
    text = (root / "docs/serving.md").read_text()
    return re.search(r"(?m)^    backend models\n((?:        .*\n)+)", text)[0]


HOSTS = "--http_hosts=models.example"  # as the documents say, for clients that ask for the proxy
HAPROXY = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")


class Proxy:
    def __init__(self, folder, backend, ports):
        (self.port,) = free_ports(1)
        for name, port in zip((8501, 8502), ports):
            assert f"127.0.0.1:{name}" in backend
            backend = backend.replace(f"127.0.0.1:{name}", f"127.0.0.1:{port}")
        (folder / "haproxy.cfg").write_text(
            "defaults\n    mode http\n    timeout connect 5s\n    timeout client 60s\n    timeout server 60s\n"
            f"frontend all\n    bind 127.0.0.1:{self.port}\n    default_backend models\n{backend}")
        self.process = subprocess.Popen([HAPROXY, "-db", "-f", folder / "haproxy.cfg"], cwd=folder,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def ask(self, connection=None):
        connection = connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", PATH, ROW, {"Host": "models.example"})
        answer = connection.getresponse()
        answer.read()
        return answer.status

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def is_up(port):
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False


def test_a_rolling_update_behind_a_proxy(trainer, model, documented):
    """Two servers are replaced, one after the other, while four clients send requests: none fails."""
    if not HAPROXY:
        pytest.skip("there is no HAProxy (apt install haproxy)")
    servers = [Served(trainer, "run", HOSTS, cwd=model) for _ in range(2)]
    over, failures, asked = threading.Event(), [], [0] * 4
    with Proxy(model, documented, [server.port for server in servers]) as proxy:
        def client(i):
            connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)
            while not over.is_set():
                try:
                    status = proxy.ask(connection)
                except (OSError, http.client.HTTPException) as error:
                    status = repr(error)
                    connection.close()
                asked[i] += 1
                if status != 200:
                    failures.append(status)

        wait_for(lambda: is_up(proxy.port), "the proxy")
        threads = [threading.Thread(target=client, args=(i,)) for i in range(4)]
        try:
            for thread in threads:
                thread.start()
            for i, server in enumerate(servers):
                before = list(asked)
                wait_for(lambda: all(now > was + 20 for now, was in zip(asked, before)), "requests")
                assert server.stop() == 0
                servers[i] = Served(trainer, "run", HOSTS, cwd=model, port=server.port)
                before = servers[i].metric("trainer_serve_requests_total")
                wait_for(lambda: servers[i].metric("trainer_serve_requests_total") > before + 20, "its requests")
        finally:
            over.set()
            for thread in threads:
                thread.join()
            for server in servers:
                server.stop()
    assert failures == [] and min(asked) > 40
