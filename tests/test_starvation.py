"""Strangers fill all places of each server, in each state in which they cost nothing more: health is answered, and who
belongs there is served."""

import contextlib
import http.client
import resource
import select
import socket
import threading
import time

import pytest

from attacks import client_hello
from fleets import Fleet
from ports import free_ports
from runs import LONG_S, wait_for
from served import Served

pytestmark = pytest.mark.alone

PLACES = 400  # descriptors of each process, so that few strangers fill it
STRANGERS = 600
HEALTH_S, SERVICE_S = 1, 2
ASKED = 9  # the median counts: the machine may be busy

REQUEST = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "


class Crowd:
    """Connections that come again when they are closed; they send nothing, a beginning, or one byte after another."""

    def __init__(self, port, state, beginning):
        self.port, self.state, self.beginning = port, state, beginning
        self.held, self.opened, self.closed, self.stop = {}, 0, 0, threading.Event()
        self.poll = select.poll()
        self.thread = threading.Thread(target=self.crowd)

    def join(self):
        peer = socket.socket()
        peer.settimeout(1)
        try:
            peer.bind(("127.0.0.2", 0))  # elsewhere: who shares an address with a crowd shares its places
            peer.connect(("127.0.0.1", self.port))
            peer.setblocking(False)
            if self.state != "idle":
                peer.send(self.beginning[:1] if self.state == "slow" else self.beginning[:-10])
        except OSError:
            peer.close()
            return
        self.held[peer.fileno()] = [peer, 1]
        self.poll.register(peer, select.POLLIN | select.POLLHUP)
        self.opened += 1

    def leave(self, number):
        self.poll.unregister(number)
        self.held.pop(number)[0].close()
        self.closed += 1

    def crowd(self):
        while not self.stop.is_set():
            for _ in range(min(20, STRANGERS - len(self.held))):
                self.join()
            for number, _ in self.poll.poll(10):
                with contextlib.suppress(OSError):
                    if self.held[number][0].recv(4096):
                        continue
                self.leave(number)
            for peer, sent in list(self.held.values()) if self.state == "slow" else ():
                with contextlib.suppress(OSError):
                    peer.send(self.beginning[sent:sent + 1] or b"a")
                self.held[peer.fileno()][1] += 1

    def __enter__(self):
        self.thread.start()
        wait_for(lambda: self.opened >= STRANGERS and self.closed > 0, "a crowd that fills all places")
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()
        for peer, _ in self.held.values():
            peer.close()


@pytest.fixture(scope="module")
def servers(trainer, tmp_path_factory):
    """By name: the port that strangers fill, how they begin, and what asks for health and for service."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    folder = tmp_path_factory.mktemp("starvation")
    ps_http, worker_http = free_ports(2)
    limited = folder / "trainer"
    limited.write_text(f'#!/bin/sh\nulimit -n {PLACES}\nexec {trainer} "$@"\n')
    limited.chmod(0o755)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4096, hard)), hard))
    with contextlib.ExitStack() as stack:
        fleet = stack.enter_context(Fleet(limited, folder / "fleet", ps=1, workers=1,
                                          flags=("--save_steps=20", "--max_to_keep=2")))
        fleet.start("ps 0", f"--http=127.0.0.1:{ps_http}")
        fleet.start("worker 0", f"--http=127.0.0.1:{worker_http}")
        wait_for(lambda: list((fleet.folder / "run").glob("model-*.safetensors")), "a checkpoint")
        served = stack.enter_context(Served(limited, "digits=run", cwd=fleet.folder))
        port = int(fleet.ps_hosts[0].split(":")[1])

        def operate():
            assert "worker 0" in fleet.status()[1]

        def ask(port, path):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONG_S)
            with contextlib.closing(connection):
                connection.request("GET", path)
                answer = connection.getresponse()
                assert answer.status == 200 and answer.read()

        def asked(port, path):
            return port, REQUEST, lambda: ask(port, "/healthz"), lambda: ask(port, path)

        yield {"ps": (port, client_hello(), lambda: ask(ps_http, "/healthz"), operate),
               "http of a ps": asked(ps_http, "/api/status"),
               "http of a worker": asked(worker_http, "/api/status"),
               "serve": asked(served.port, "/v2/models/digits")}
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def median_time(do):
    took = []
    for _ in range(ASKED):
        begun = time.monotonic()
        do()
        took.append(time.monotonic() - begun)
    return sorted(took)[ASKED // 2]


@pytest.mark.parametrize("state", ["idle", "half", "slow"])
@pytest.mark.parametrize("name", ["ps", "http of a ps", "http of a worker", "serve"])
def test_a_crowd_keeps_nobody_out(servers, name, state):
    port, beginning, health, serve = servers[name]
    with Crowd(port, state, beginning):
        assert median_time(health) < HEALTH_S
        assert median_time(serve) < SERVICE_S
    assert median_time(serve) < SERVICE_S
