"""A test's own `trainer serve`, and its client."""

import http.client
import json
import signal
import subprocess

from ports import free_ports
from runs import LONG_S, wait_for


class Served:
    """A server, and a client of it."""

    def __init__(self, trainer, *arguments, cwd, ready=True, context=None, token=None, port=None):
        """context: for a client's TLS. token: sent with each request."""
        self.context, self.token, self.before_it_stops = context, token, lambda: None
        (self.port,) = [port] if port else free_ports(1)
        self.log = open(cwd / f"serve.{self.port}.log", "w+")
        self.process = subprocess.Popen([trainer, "serve", *arguments, f"--http=127.0.0.1:{self.port}"], cwd=cwd,
                                        stdout=self.log, stderr=subprocess.STDOUT)
        wait_for(lambda: "serving at" in self.text() or self.process.poll() is not None, "the server")
        assert self.process.poll() is None, self.text()
        assert not ready or self.get("/readyz")[0] == 200

    def text(self):
        self.log.flush()
        with open(self.log.name) as file:
            return file.read()

    def connect(self):
        if self.context:
            return http.client.HTTPSConnection("localhost", self.port, timeout=LONG_S, context=self.context)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=LONG_S)

    def authorization(self):
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def ask(self, method, path, body=None, headers={}):
        connection = self.connect()
        connection.request(method, path, body, {**self.authorization(), **headers})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, content, answer.headers

    def get(self, path):
        return self.ask("GET", path)

    def post(self, path, value, status=200, **headers):
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        got, content, _ = self.ask("POST", path, body, {name.replace("_", "-"): text for name, text in headers.items()})
        assert got == status, content
        return json.loads(content)

    def error(self, path, value, **headers):
        return self.post(path, value, status=400, **headers)["error"]

    def metric(self, name):
        lines = self.get("/metrics")[1].decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.split("{")[0].split(" ")[0] == name)

    def stop(self):
        self.before_it_stops()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(LONG_S)
        self.log.close()
        return status

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
