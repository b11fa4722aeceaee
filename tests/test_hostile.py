"""Hostile members with a valid key: whatever they send or withhold, they are dropped with a log line that names them,
and a cluster in training does not notice. The protocol's second implementation plays them.
"""

import json
import re
import socket
import ssl
import struct
import subprocess
import threading
import time

import protocol
import pytest

from attacks import ATTACKS, Attack
from clusters import Cluster
from runs import wait_for

pytestmark = pytest.mark.xdist_group("hostile")  # its fixtures are shared by all tests of the file

LEASE_S = 4
FLOATS = 784 * 16 + 16  # of layers 784,10: rows of 10 in strides of 16
MOST_KIB = 48 * 1024


class Fleet:
    """A cluster of one ps and two workers that trains for ever; places for worker 2 and more are left to the hostile.
    """

    def __init__(self, trainer, folder, workers=4):
        self.folder = folder
        self.cluster = Cluster(trainer, folder, ps=1, workers=workers, flags=(
            "--train_steps=100000000", f"--lease_secs={LEASE_S}", "--layers=784,10", "--learning_rate=0.001",
            "--min_workers=2", "--num_threads=1"))
        self.port = int(self.cluster.ps_hosts[0].split(":")[1])

    def __enter__(self):
        for name in ("ps 0", "worker 0", "worker 1"):
            self.cluster.start(name)
        wait_for(lambda: self.steps() > 20, "steps")
        self.digest = self.cluster.status()[1]["worker 0"]["config_digest"]
        return self

    def __exit__(self, *raised):
        self.cluster.__exit__(*raised)

    def steps(self):
        return self.cluster.status()[1]["ps 0"]["global_step"] or 0

    def client(self, index=2, incarnation=77, role=2, **options):
        client = protocol.Client(self.port, str(self.folder / "fleet.key"), **options)
        name, fields = client.hello(role=role, index=index, incarnation=incarnation, digest=self.digest)
        assert name == "welcome", fields
        client.generation = fields["generation"]
        client.step = None
        return client

    def memory(self):
        with open(f"/proc/{self.cluster.members['ps 0'].pid}/status") as status:
            return int(re.search(r"VmRSS:\s+(\d+)", status.read())[1])

    def assert_well(self):
        """All who were connected still are, nobody was lost, steps are made, memory is bounded."""
        before = self.steps()
        wait_for(lambda: self.steps() > before + 20, "steps of the others", 10)
        for name, process in self.cluster.members.items():
            assert process.poll() is None, self.cluster.text(name)
        for name in ("worker 0", "worker 1"):
            assert "connecting again" not in self.cluster.text(name), self.cluster.text(name)
        assert not re.search(r"worker [01] \([^)]*\) is lost", self.cluster.text("ps 0"))
        assert self.memory() < MOST_KIB

    def refusals(self):
        """Log lines about one peer each; those about many come once a minute."""
        lines = self.cluster.text("ps 0").splitlines()
        return [line for line in lines if "refused 127" in line and "more connections in" not in line]

    def lines_about(self, client):
        port = client.socket.getsockname()[1]
        return [line for line in self.cluster.text("ps 0").splitlines() if f"127.0.0.1:{port}" in line]


@pytest.fixture(scope="module")
def fleet(trainer, tmp_path_factory):
    with Fleet(trainer, tmp_path_factory.mktemp("hostile")) as running:
        yield running
        running.assert_well()


def ended(client, within=LEASE_S + 4):
    """Reads until the peer closes; the last error it sent, if any. Fails if it keeps the connection."""
    error, deadline = None, time.monotonic() + within
    client.socket.settimeout(within)
    try:
        while time.monotonic() < deadline:
            name, fields, _ = client.receive()
            error = fields["message"] if name == "error" else error
    except (EOFError, ConnectionError, ssl.SSLError):
        return error or ""
    raise AssertionError(f"it is still connected after {within} s")


# --- Texts ---


# A title, a cleared screen, a carriage return, C1 red, text that runs backwards.
HARMFUL = "\x1b]0;title\x07\x1b[2J\rforged\n\x9b31m \u202egpj.exe\u2066 \x7f"
SHOWN = r"\x1b]0;title\x07\x1b[2J forged \u009b31m \u202egpj.exe\u2066 \x7f"


def test_texts_of_members_are_shown_and_not_obeyed(fleet, trainer):
    """In the table, as JSON, and in the log of the ps."""
    client = fleet.client(incarnation=4321)
    client.send("heartbeat", state=3, host="host" + HARMFUL, device=HARMFUL, message=HARMFUL + "\u20ac" * 300)
    assert client.receive()[0] == "lease"
    for flags in ((), ("--log_format=json",)):
        text = subprocess.run([trainer, "status", *flags, *fleet.cluster.hosts], cwd=fleet.folder, capture_output=True,
                              timeout=30).stdout.decode()
        assert all(character.isprintable() for character in text.replace("\n", "")), repr(text)
        if flags:
            told = {member["task"]: member for member in json.loads(text)["members"] if member["role"] == "worker"}
            assert told[2]["device"] == HARMFUL and told[2]["message"].startswith(HARMFUL + "\u20ac")
        else:
            assert SHOWN in text
    assert client.call("leave", message=HARMFUL)[0] == "done"
    line = "left: " + json.dumps(SHOWN)[1:]  # to the end of it: members log JSON
    wait_for(lambda: line in fleet.cluster.text("ps 0"), "a line about who left")
    fleet.assert_well()


def test_texts_that_are_not_utf8(fleet):
    client = fleet.client(incarnation=4322)
    message = protocol.encode("leave", message="XX").replace(b"XX", b"\xe2\x82")
    client.socket.sendall(protocol.frame("leave", message, request=9, generation=client.generation))
    assert "leave message: message is not UTF-8" in ended(client)
    fleet.assert_well()


# --- Invalid frames ---


def header(magic=b"TRNR", version=1, number=16, request=9, generation=1, flags=1, size=0, bulk=0):
    return protocol.HEADER.pack(magic, version, number, request, generation, flags, size, bulk)


NOT_FRAMES = {
    "garbage": bytes(range(7, 107)),
    "another magic": header(magic=b"HTTP"),
    "another version": header(version=9, number=protocol.NUMBER["ping"], size=8) + bytes(8),
    "unknown type": header(number=4711),
    "message of 4 GiB": header(size=0xFFFFFFFF),
    "message above its limit": header(number=protocol.NUMBER["ping"], size=1 << 20),
    "bulk of 4 GiB": header(number=protocol.NUMBER["push"], size=60, bulk=0xFFFFFFFF),
    "bulk where there is none": header(number=protocol.NUMBER["ping"], size=8, bulk=1 << 20),
    "unknown flags": header(number=protocol.NUMBER["ping"], size=8, flags=0xFFFF) + bytes(8),
    "message too short": header(number=protocol.NUMBER["pull"], size=3) + bytes(3),
    "ranges that count past the message": header(number=protocol.NUMBER["read"], size=13) + bytes(9)
    + struct.pack("<I", 60000),
}


@pytest.mark.parametrize("what", NOT_FRAMES)
def test_frames_that_break_the_protocol(fleet, what):
    client = fleet.client()
    client.socket.sendall(NOT_FRAMES[what])
    error = ended(client)
    lines = fleet.lines_about(client)
    dropped = [line for line in lines if "dropped worker 2 (" in line]
    assert len(dropped) == 1 and error, (error, lines)
    fleet.assert_well()


# --- Lies ---


def push(client, **values):
    client.send("push", **{"sequence": 1, "base_version": 0, "base_step": 0, "token": -1, "examples": 50, "loss": 1.0,
                           **values})


LIES = {
    "beyond the model": {"ranges": [(FLOATS, 1)], "bulk": bytes(4)},
    "an index of 2^64": {"ranges": [(2**64 - 1, 1)], "bulk": bytes(4)},
    "a sum above 2^64": {"ranges": [(2**64 - 4, 8)], "bulk": bytes(32)},
    "descending": {"ranges": [(8, 1), (0, 1)], "bulk": bytes(8)},
    "overlapping": {"ranges": [(0, 4), (3, 4)], "bulk": bytes(32)},
    "of nothing": {"ranges": [(0, 0)]},
    "more floats than bytes": {"ranges": [(0, 8)], "bulk": bytes(4)},
    "more bytes than floats": {"ranges": [(0, 1)], "bulk": bytes(64)},
    "push 0": {"sequence": 0, "ranges": [(0, 1)], "bulk": bytes(4)},
    "a step that no number has": {"base_step": 2**63 - 1, "ranges": [(0, 1)], "bulk": bytes(4)},
    "a step below all": {"base_step": -(2**63), "ranges": [(0, 1)], "bulk": bytes(4)},
    "an unknown kind of number": {"dtype": 7, "ranges": [(0, 1)], "bulk": bytes(4)},
}


@pytest.mark.parametrize("lie", LIES)
def test_pushes_that_lie(fleet, lie):
    client = fleet.client()
    push(client, **LIES[lie])
    error = ended(client)
    dropped = [line for line in fleet.lines_about(client) if "dropped worker 2 (" in line]
    assert len(dropped) == 1 and error, (error, fleet.lines_about(client))
    fleet.assert_well()


def test_lies_that_are_refused_or_harm_only_the_liar(fleet):
    """Invalid generations, versions and steps; what only the chief may do; what only another ps may ask."""
    with fleet.client(index=3, incarnation=5) as client:
        generation = client.generation
        for other in (0, generation + 1, 0xFFFFFFFF):
            client.generation = other
            push(client, ranges=[(0, 1)], bulk=bytes(4))
            name, fields, _ = client.receive()
            assert (name, fields["code"]) == ("error", 4), fields
        client.generation = generation
        for name, values in {
            "begin_restore": {"source": "evil"}, "write": {}, "end_restore": {"global_step": 7},
            "snapshot": {"snapshot": 1}, "release": {"snapshot": 1}, "end_job": {"job_state": 3}, "staged": {},
            "get_aggregate": {}, "propose": {}, "abort_rollout": {},
        }.items():
            answer, fields, _ = client.call(name, **values)
            assert (answer, fields["code"]) == ("error", 2), (name, fields)
        before = fleet.steps()
        for sequence, base in ((2**63, 2**53), (2**64 - 1, -(2**53))):
            push(client, sequence=sequence, base_step=base, base_version=2**64 - 1, local_step=-5, ranges=[(0, 1)],
                 bulk=bytes(4))
            name, fields, _ = client.receive()
            assert name == "pushed" and fields["outcome"] in (0, 1), fields
        assert fleet.steps() < before + 1_000_000
    fleet.assert_well()


# --- Time ---


def test_frames_that_stand_still_and_answers_that_nobody_takes(fleet):
    """A header, a message, a bulk that begin and don't end; answers that are not read. All at the same time."""
    begun = []
    for part in (header()[:1], header(size=60), header(number=protocol.NUMBER["push"], size=60, bulk=1 << 20),
                 protocol.frame("push", protocol.encode("push", sequence=1, token=-1, examples=1, ranges=[(0, 8)]),
                                bulk=bytes(32), generation=1)[:-4]):
        begun.append(fleet.client(index=2))
        begun[-1].socket.sendall(part)
    deaf = fleet.client(index=3, incarnation=6)
    wish = protocol.frame("read", protocol.encode("read"), generation=deaf.generation)
    deaf.socket.settimeout(0.2)
    try:
        while True:
            deaf.socket.sendall(wish * 1000)
    except OSError:
        pass
    started = time.monotonic()
    for client in begun:
        ended(client, LEASE_S + 6)
    wait_for(lambda: any("has accepted no data" in line or "lost worker 3" in line for line in fleet.lines_about(deaf)),
             "line about the one that does not read", LEASE_S + 8)
    assert time.monotonic() - started < LEASE_S + 8
    named = [line for client in begun for line in fleet.lines_about(client) if "no answer from worker 2 (" in line]
    assert len(named) == len(begun), fleet.cluster.text("ps 0")
    fleet.assert_well()


# --- Floods ---


def test_connections_that_never_say_who_they_are(fleet):
    """Five hundred at once, again and again; meanwhile a new worker is admitted."""
    stop, opened = threading.Event(), []

    def flood():
        held = []
        while not stop.is_set():
            try:
                held.append(socket.create_connection(("127.0.0.1", fleet.port), timeout=1))
                opened.append(1)
            except OSError:
                pass
            if len(held) > 500:
                held.pop(0).close()
            time.sleep(0.001)
        for each in held:
            each.close()

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        wait_for(lambda: len(opened) > 300, "flood")
        fleet.cluster.start("worker 3")
        wait_for(lambda: fleet.cluster.status()[1]["worker 3"]["state"] == "training", "worker 3 at work", 20)
        fleet.assert_well()
        wait_for(lambda: len(opened) > 1500, "flood")
        fleet.assert_well()
    finally:
        stop.set()
        thread.join()
    assert "it sent no ClientHello" in fleet.cluster.text("ps 0")
    fleet.cluster.kill("worker 3")
    del fleet.cluster.members["worker 3"]


def test_connections_of_one_member_and_of_operators(fleet):
    """A member has room for a few; those that were silent for longest are dropped, of operators, too."""
    members = [fleet.client(index=2, incarnation=99) for _ in range(40)]
    alive = 0
    for client in members:
        client.socket.settimeout(0.5)
        try:
            alive += client.call("ping", nonce=1)[0] == "pong"
        except (OSError, EOFError, ssl.SSLError):
            pass
    assert 1 <= alive <= 8
    operators = []
    for i in range(50):
        client = protocol.Client(fleet.port, str(fleet.folder / "fleet.key"))
        assert client.hello(role=3, index=-1, incarnation=1000 + i)[0] == "welcome"
        operators.append(client)
    began = time.monotonic()
    assert "worker 0" in fleet.cluster.status()[1]  # silence keeps no operator out
    assert time.monotonic() - began < 5
    fleet.cluster.start("worker 3")
    wait_for(lambda: '"joined' in fleet.cluster.text("ps 0") or "worker 3" in fleet.cluster.text("ps 0"), "worker 3")
    for client in members + operators:
        client.socket.close()
    wait_for(lambda: fleet.cluster.status()[1]["worker 3"]["state"] == "training", "worker 3 at work", 20)
    fleet.assert_well()
    fleet.cluster.kill("worker 3")
    del fleet.cluster.members["worker 3"]


def test_processes_that_come_as_the_same_member_over_and_over(fleet):
    """Each new one takes over from the one before, which is first probed for life."""
    client = None
    for incarnation in range(200, 212):
        client = fleet.client(index=2, incarnation=incarnation)
        client.socket.close()
    fleet.assert_well()


def test_guests_that_no_list_has(fleet):
    """Members that connect without a config, to report, must be in ps_hosts or worker_hosts."""
    for role, index, welcome in ((2, 2, True), (2, 4, False), (1, 0, True), (1, 1, False), (2, 65535, False)):
        with protocol.Client(fleet.port, str(fleet.folder / "fleet.key")) as guest:
            name, fields = guest.hello(role=role, index=index, incarnation=9, digest="")
            assert name == ("welcome" if welcome else "refused"), (role, index, fields)
            assert welcome or "there is no " in fields["message"]


# --- Attacks that cost the attacker little: last, because then these tests' own clients, without tokens, must wait ---


@pytest.mark.parametrize("name", ATTACKS)
def test_members_work_and_join_under(fleet, trainer, name):
    """Nobody is lost, a new worker is admitted, and the log does not grow with what attackers do."""
    lines = len(fleet.refusals())
    try:
        with Attack(name, fleet.port, fleet.folder / "fleet.key", trainer, rate=0.25) as attack:
            fleet.assert_well()
            fleet.cluster.start("worker 3")
            fleet.cluster.until("worker 3", lambda text: '"event":"start"' in text, "start", 20)
            fleet.assert_well()
            attack.end()
    finally:
        fleet.cluster.kill("worker 3")
        del fleet.cluster.members["worker 3"]
    assert len(fleet.refusals()) - lines < 8, fleet.refusals()  # at most one for each cause


def test_a_silent_crowd_at_the_chief(trainer, tmp_path):
    """A worker that gets its batches from worker 0 gets through."""
    flags = ("--train_steps=100000000", "--lease_secs=2", "--layers=784,10", "--data_sharding=chief", "--train_dir=")
    with Cluster(trainer, tmp_path, ps=1, workers=2, flags=flags) as cluster:
        cluster.start("ps 0")
        cluster.start("worker 0")
        cluster.until("worker 0", lambda text: '"event":"start"' in text, "start")
        port = int(cluster.worker_hosts[0].split(":")[1])
        with Attack("silent", port, tmp_path / "fleet.key", trainer):
            cluster.start("worker 1")
            cluster.until("worker 1", lambda text: '"event":"start"' in text, "start", 20)
            cluster.until("worker 0", lambda text: "gets its batches from here" in text, "the line about it")
