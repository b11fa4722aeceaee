"""A real ps process and the Python client: what workers of any kind can rely on."""

import contextlib
import json
import math
import random
import signal
import struct
import subprocess
import time

import protocol
import pytest
from ports import free_ports
from runs import best_seconds, seed_of_tests

WORKERS = ["127.0.0.1:1000", "127.0.0.1:1001"]  # never contacted; not among the ports of free_ports
FLOATS = 112  # of layers 6,3: weights [6, 3] and biases [1, 3], rows of 16
LR = 0.5


class Ps:
    """A running single ps; .identity has the `hello` fields that fit its job."""

    def __init__(self, trainer, folder, *flags, layers="6,3"):
        (self.port,) = free_ports(1)
        flags = [
            f"--layers={layers}",
            "--optimizer=sgd",
            f"--learning_rate={LR}",
            f"--ps_hosts=127.0.0.1:{self.port}",
            f"--worker_hosts={','.join(WORKERS)}",
            *flags,
        ]
        shown = subprocess.run(
            [trainer, "config", "show", "--json", *flags], cwd=folder, capture_output=True, text=True, check=True
        )
        self.identity = {"digest": json.loads(shown.stdout)["digest"]}
        self.key = str(folder / "fleet.key")
        subprocess.run([trainer, "keygen", f"--out={self.key}"], check=True, capture_output=True)
        self.process = subprocess.Popen(
            [trainer, "--job_name=ps", f"--fleet_key={self.key}", *flags],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines = [self.process.stdout.readline()]
        assert "listens on port" in self.lines[0], self.lines[0] + self.process.stdout.read()

    def client(self, index=0, incarnation=None, **values):
        client = protocol.Client(self.port, self.key)
        hello = {"incarnation": incarnation or 1000 + index, **self.identity, **values}
        name, fields = client.hello(role=2, index=index, **hello)
        assert name == "welcome", fields
        client.generation = fields["generation"]
        return client

    def end(self, status=0, timeout=60):
        self.lines += self.process.communicate(timeout=timeout)[0].splitlines()
        assert self.process.returncode == status, self.lines
        return "\n".join(self.lines)


@pytest.fixture
def ps(trainer, tmp_path):
    started = []

    def start(*flags, **options):
        started.append(Ps(trainer, tmp_path, *flags, **options))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()


def floats(*values):
    return struct.pack(f"<{len(values)}f", *values)


def restore(chief, generation=1, step=0, values=None):
    chief.generation = generation
    assert chief.call("begin_restore", source="test")[0] == "done"
    values = values or [0.0] * FLOATS
    assert chief.call("write", vector=0, dtype=0, ranges=[(0, len(values))], bulk=floats(*values))[0] == "done"
    name, fields, _ = chief.call("end_restore", global_step=step, epoch_batches=10)
    assert name == "done", fields


def push(client, sequence, values, first=0, base_version=1, **fields):
    """(fields of the answer, {index: value} of what changed)"""
    client.send(
        "push",
        sequence=sequence,
        base_version=base_version,
        token=-1,
        ranges=[(first, len(values))],
        bulk=floats(*values),
        **fields,
    )
    return answer(client)


def answer(client):
    changed = {}
    while True:
        name, fields, bulk = client.receive()
        if fields["request"] != client.request:
            continue
        if name != "pushed":
            return fields, changed
        values = list(struct.unpack(f"<{len(bulk) // 4}f", bulk))
        for first, count in fields["ranges"]:
            changed.update(zip(range(first, first + count), values[:count]))
            del values[:count]
        if fields["last"]:
            return fields, changed


def test_push_and_pull(ps):
    served = ps()
    with served.client(0) as chief, served.client(1) as worker:
        name, model, _ = worker.call("get_model", wait_ms=0)
        assert (name, model["state"], model["global_step"]) == ("model", 0, -1)
        assert f"waiting for worker 0 ({WORKERS[0]}) to initialise the model" in model["message"]
        restore(chief)
        name, model, _ = worker.call("get_model", wait_ms=5000)
        assert (model["state"], model["message"], model["ranges"]) == (2, "", [(0, FLOATS)])
        worker.generation = model["generation"]
        fields, changed = push(worker, 1, [1.0, 2.0, 3.0], first=16)
        assert (fields["outcome"], fields["version"], fields["global_step"]) == (0, 2, 1)
        assert [changed[16], changed[17], changed[18]] == [-LR * 1, -LR * 2, -LR * 3]
        # A repeated push counts once; the chief sees it.
        fields, again = push(worker, 1, [1.0, 2.0, 3.0], first=16)
        assert (fields["outcome"], fields["global_step"]) == (1, 1) and again == changed
        fields, changed = push(chief, 1, [1.0], first=17)
        assert fields["global_step"] == 2 and changed[17] == -LR * 3
        # NaN is refused, and the worker stays.
        fields, changed = push(worker, 2, [math.nan])
        assert (fields["outcome"], fields["global_step"]) == (4, 2)


def rounded(value):
    """A float32 as the integer of its bfloat16, rounded to nearest even."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def told(client, known):
    """(fields of the last frame, bytes of bulk) of an answer in differences, which update known."""
    size = 0
    while True:
        name, fields, bulk = client.receive()
        if fields["request"] != client.request:
            continue
        assert name in ("pushed", "values") and fields["dtype"] == 2, (name, fields)
        protocol.learn(known, fields["ranges"], bulk)
        size += len(bulk)
        if fields["last"]:
            return fields, size


def test_differences(ps):
    """Parameters as differences from what the connection brought before: the same bits as float32 that is rounded here.
    """
    seed = seed_of_tests()
    dice = random.Random(seed)
    served = ps("--wire_dtype=bfloat16")
    with served.client(0) as chief, served.client(1) as worker:
        restore(chief, values=[dice.uniform(-1, 1) for _ in range(FLOATS)])
        worker.generation = 1
        known, sizes, version = {}, [], 1
        for sequence in range(1, 60):
            scale = 10.0 ** -dice.randrange(0, 7)
            gradient = [dice.uniform(-scale, scale) * dice.randrange(2) for _ in range(dice.randrange(1, FLOATS))]
            if dice.randrange(3) == 0:
                fields, _ = push(chief, sequence, gradient)
            worker.send("push", sequence=sequence, base_version=version, token=-1, answer_dtype=2,
                        ranges=[(0, len(gradient))], bulk=floats(*gradient))
            fields, size = told(worker, known)
            version = fields["version"]
            sizes.append(size)
            if dice.randrange(5) == 0:
                worker.send("pull", dtype=2, since_version=dice.choice([0, version]), after_step=-1)
                told(worker, known)
            if dice.randrange(10) == 0:  # a new connection gets everything, and so does the next
                worker.socket.close()
                worker = served.client(1, incarnation=1001)
                worker.generation, known = 1, {}
            else:
                name, _, bulk = chief.call("read", vector=0)
                assert name == "values"
                exact = struct.unpack(f"<{FLOATS}f", bulk)
                assert len(known) >= 6 * 3 + 3 and known == {i: rounded(exact[i]) for i in known}
        assert max(sizes) > 2 * 6 * 16 and min(sizes) < 6 * 16  # all of it; differences
        worker.socket.close()


def told_packed(client, known, dtype):
    """(fields of the last frame, dtypes of all) of an answer, packed or whole, that updates known."""
    dtypes = set()
    while True:
        name, fields, bulk = client.receive()
        if fields["request"] != client.request:
            continue
        assert name in ("pushed", "values"), (name, fields)
        dtypes.add(fields["dtype"])
        if fields["dtype"] == 0:
            places = [i for first, count in fields["ranges"] for i in range(first, first + count)]
            known.update(zip(places, struct.unpack(f"<{len(places)}f", bulk), strict=True))
        else:
            assert fields["dtype"] == dtype
            protocol.add_packed(known, fields["ranges"], bulk, dtype)
        if fields["last"]:
            return fields, dtypes


@pytest.mark.parametrize("flags, dtype", [
    (("--wire_dtype=int8",), 3),
    (("--wire_top=0.2",), 4),
    (("--wire_dtype=bfloat16", "--wire_top=0.2"), 5),
    (("--wire_dtype=int8", "--wire_top=0.2"), 6),
])
def test_what_workers_are_told(ps, flags, dtype):
    """Packed answers lead from any version to the same sent model, by this client's own arithmetic."""
    dice = random.Random(seed_of_tests())
    served = ps("--issync=1", "--replicas_to_aggregate=1", *flags)
    with served.client(0) as chief:
        restore(chief, values=[dice.uniform(-1, 1) for _ in range(FLOATS)])
        known, late, exact = (dict.fromkeys(range(FLOATS), 0.0) for _ in range(3))  # padding may be sent, too
        seen = set()
        chief.send("pull", dtype=dtype, since_version=0, after_step=-1)
        fields, dtypes = told_packed(chief, known, dtype)
        assert dtypes == {0}
        version, late_version = fields["version"], 0
        for step in range(40):
            scale = 10.0 ** -dice.randrange(0, 4)
            gradient = [dice.uniform(-scale, scale) for _ in range(dice.randrange(1, FLOATS))]
            chief.send("push", sequence=step + 1, base_version=version, base_step=step, token=step, examples=1,
                       answer_dtype=dtype, ranges=[(0, len(gradient))], bulk=floats(*gradient))
            fields, dtypes = told_packed(chief, known, dtype)
            assert (fields["outcome"], fields["global_step"], dtypes) == (0, step + 1, {dtype})
            version = fields["version"]
            _, _, bulk = chief.call("read", vector=4)
            assert list(known.values()) == list(struct.unpack(f"<{FLOATS}f", bulk))
            if step in (20, 21) or dice.randrange(4) == 0:  # behind by one step at least once
                chief.send("pull", dtype=dtype, since_version=late_version, after_step=-1)
                fields, dtypes = told_packed(chief, late, dtype)
                late_version, seen = fields["version"], seen | dtypes
                assert late == known
        assert dtype in seen and 0 in seen
        chief.send("pull", dtype=0, since_version=0, after_step=-1)  # the parameters themselves
        told_packed(chief, exact, dtype)
        assert exact != known


def test_differences_are_not_for_float32(ps):
    """A ps that keeps nothing for its workers answers with bfloat16, and with what changed."""
    served = ps()
    with served.client(0) as chief:
        restore(chief, values=[0.5] * FLOATS)
        name, fields, bulk = chief.call("pull", dtype=2, since_version=1, after_step=-1)
        assert (name, fields["dtype"], fields["ranges"], bulk) == ("values", 1, [], b"")
        chief.send("push", sequence=1, base_version=1, token=-1, answer_dtype=2, ranges=[(0, 3)], bulk=floats(1, 1, 1))
        name, fields, bulk = chief.receive()
        assert (fields["dtype"], fields["ranges"][0][0], bulk[:2]) == (1, 0, struct.pack("<H", rounded(0.5 - LR)))
        assert len(bulk) < 2 * FLOATS


def test_a_push_cut_in_the_middle_never_happened(ps):
    served = ps()
    with served.client(0) as chief:
        restore(chief)
        with served.client(1) as worker:
            worker.generation = 1
            worker.send("push", flags=0, sequence=1, base_version=1, ranges=[(0, 1)], bulk=floats(8.0))
        with served.client(1) as worker:
            worker.generation = 1
            fields, changed = push(worker, 1, [1.0], first=1)
            assert fields["outcome"] == 0 and changed[0] == 0.0 and changed[1] == -LR


def test_answers_of_many_frames(ps):
    """784 rows of 528 floats lie without padding between them: one range, larger than a frame."""
    floats_in_all = 784 * 528 + 528
    served = ps(layers="784,528")
    with served.client(0) as chief:
        restore(chief, values=[float(i) for i in range(floats_in_all)])
        fields, changed = push(chief, 1, [2.0], first=300000, base_version=0)
        assert fields["outcome"] == 0 and len(changed) == floats_in_all
        assert all(value == i for i, value in changed.items() if i != 300000)
        assert changed[300000] == 300000 - 2 * LR


def test_old_generations_and_strange_ranges(ps):
    served = ps()
    with served.client(0) as chief, served.client(1) as worker:
        restore(chief, generation=4)
        worker.generation = 3
        fields, _ = push(worker, 1, [1.0])
        assert fields["code"] == 4
        name, fields, _ = worker.call("end_job", job_state=3)
        assert (name, fields["code"]) == ("error", 2)
        worker.generation = 4
        fields, _ = push(worker, 1, [1.0], first=FLOATS)
        assert fields["code"] == 1 and "not all held here" in fields["message"]
        with pytest.raises((EOFError, OSError)):  # a member that lies about ranges is dropped
            worker.call("ping")
        assert chief.call("ping", nonce=5)[1]["nonce"] == 5


def test_the_chief_reads_a_snapshot_while_training_goes_on(ps):
    served = ps()
    with served.client(0) as chief, served.client(1) as worker:
        restore(chief)
        worker.generation = 1
        push(worker, 1, [1.0])
        assert chief.call("snapshot", snapshot=9, at_step=-1)[1]["global_step"] == 1
        push(worker, 2, [1.0])
        name, fields, bulk = chief.call("read", vector=0, snapshot=9)
        assert (name, fields["global_step"], fields["ranges"]) == ("values", 1, [(0, FLOATS)])
        assert struct.unpack_from("<f", bulk)[0] == -LR
        name, fields, bulk = chief.call("read", vector=0, ranges=[(0, 1)])
        assert struct.unpack("<f", bulk)[0] == -2 * LR


def test_a_second_worker_of_the_same_index(ps):
    served = ps("--lease_secs=3600")
    with served.client(0) as chief:
        restore(chief)
        with served.client(1, incarnation=7) as frozen:
            started = time.monotonic()
            # 7 has a second to answer the ping, which it never does; its lease is longer than this client waits.
            with served.client(1, incarnation=8) as newcomer:
                assert time.monotonic() - started > 0.9
                newcomer.generation = 1
                assert push(newcomer, 1, [1.0])[0]["outcome"] == 0
                with pytest.raises((EOFError, OSError)):
                    while True:
                        frozen.receive()
                with protocol.Client(served.port, served.key) as fenced:
                    name, fields = fenced.hello(role=2, index=1, incarnation=7, **served.identity)
                    assert (name, fields["reason"]) == ("refused", 6)


def test_a_frame_that_drips(ps):
    """A byte now and then is a sign of life, but the frame must end within SERVER_FRAME_S of its first byte."""
    served = ps("--lease_secs=3600")
    push_frame = protocol.frame("push", protocol.encode("push", sequence=1, examples=1, ranges=[(0, 8)]),
                                bulk=bytes(32), generation=1)
    with served.client(0) as chief, served.client(1) as slow:
        restore(chief)
        assert len(push_frame) > 60
        started = time.monotonic()
        slow.socket.settimeout(1)
        with pytest.raises((EOFError, ConnectionError)):  # by one thread: OpenSSL's connections are not for two
            for byte in push_frame:
                slow.socket.sendall(bytes([byte]))
                with contextlib.suppress(TimeoutError):
                    slow.receive()
        assert time.monotonic() - started > 29
        assert chief.call("ping", nonce=1)[0] == "pong"


def test_the_end(ps):
    served = ps("--train_steps=2", "--lease_secs=60")
    with served.client(0) as chief, served.client(1) as worker:
        restore(chief)
        worker.generation = 1
        assert push(worker, 1, [1.0])[0]["outcome"] == 0
        assert push(worker, 2, [1.0])[0]["outcome"] == 0
        assert push(worker, 3, [1.0])[0]["outcome"] == 5
        ended = time.monotonic()
        assert chief.call("end_job", job_state=3, global_step=2, test_accuracy=0.5)[0] == "done"
        name, lease, _ = worker.call("heartbeat")
        assert (name, lease["job_state"], lease["test_accuracy"]) == ("lease", 3, 0.5)
        log = served.end()  # the workers neither leave nor hang up, and have JOB_END_MS to do so
        assert time.monotonic() - ended > 3.9
    assert "training is over at global step 2" in log


def test_status(ps):
    served = ps()
    with served.client(0) as chief:
        restore(chief)

        def ask():
            chief.send("get_status", members=1)
            return [chief.receive()[1] for _ in range(3)]

        members = ask()
        assert best_seconds(ask, 0.1) < 0.1
    assert [(m["role"], m["index"], m["state"]) for m in members] == [(1, 0, 2), (2, 0, 1), (2, 1, 0)]
    assert members[0]["bytes_in"] > 0 and members[2]["host"] == WORKERS[1]
    assert members[0]["memory_bytes"] > 0


def test_leaves_in_order_when_asked(ps):
    served = ps()
    with served.client(0) as chief:
        served.process.send_signal(signal.SIGTERM)
        name, fields, _ = chief.receive()
        assert name == "leave" and "SIGTERM" in fields["message"]
        served.end(status=143)


def test_without_a_key_it_says_which_command_makes_one(run):
    result = run("--job_name=ps", "--ps_hosts=a:1", "--worker_hosts=b:1", status=1)
    assert "trainer keygen --out=fleet.key" in result.stderr


def int8(scales, values):
    return struct.pack(f"<{len(scales)}f{len(values)}b", *scales, *values)


def largest(gaps, values, count=None):
    return struct.pack("<HH", len(values) if count is None else count, len(gaps)) + bytes(gaps) + floats(*values)


def packed(client, sequence, dtype, bulk, count=3):
    """(fields of the answer, {index: value} of all parameters) for a push to floats from 16 on."""
    client.send("push", sequence=sequence, token=-1, dtype=dtype, ranges=[(16, count)], bulk=bulk)
    return answer(client)


def test_packed_pushes(ps):
    served = ps()
    with served.client(0) as chief:
        restore(chief)
        before = {at: 0.0 for at in range(FLOATS)}
        for sequence, (dtype, bulk, moved) in enumerate([
            (3, int8([0.5], [2, -4, 0]), {16: -0.5, 17: 1.0}),
            (4, largest([1, 0], [1.0, -2.0]), {17: -0.5, 18: 1.0}),
            (5, struct.pack("<HHB", 1, 1, 2) + b"\x80\x3f", {18: -0.5}),
            (6, struct.pack("<HHB", 1, 1, 0) + int8([0.25], [4]), {16: -0.5}),
            (4, largest([], []), {}),
        ], start=1):
            fields, after = packed(chief, sequence, dtype, bulk)
            assert fields["outcome"] == 0
            assert all(after[at] == before[at] + moved.get(at, 0) for at in after)
            before = after
        # A value that is not finite is not an error: a worker that diverged sends it.
        assert packed(chief, 6, 3, int8([math.nan], [0, 0, 0]))[0]["outcome"] == 4
        assert packed(chief, 7, 4, largest([2], [math.inf]))[0]["outcome"] == 4


@pytest.mark.parametrize("dtype, count, bulk, words", [
    (2, 3, b"", "differences are for parameters"),
    (3, 3, int8([-1.0], [1, 1, 1]), "scale is negative or infinite"),
    (3, 3, int8([math.inf], [1, 1, 1]), "scale is negative or infinite"),
    (3, 3, int8([1.0], [1, 1]), "its ranges take 7 bytes of bulk, and it has 6"),
    (3, 8193, b"", "at most 8192 are allowed"),
    (4, 3, largest([3], [1.0]), "not all positions of 1 floats are within their range of 3"),
    (4, 3, largest([1, 1], [1.0, 1.0]), "not all positions of 2 floats are within their range of 3"),
    (4, 3, largest([0x80], [1.0]), "not all positions of 1 floats are within their range of 3"),
    (4, 3, largest([0, 0, 0, 0], [1.0] * 4), "4 of 3 floats in 4 bytes is impossible"),
    (4, 3, largest([0], [], count=1), "its bulk ends within packed floats"),
    (4, 3, largest([0], [1.0, 2.0], count=1), "4 bytes more than its floats take"),
    (4, 3, b"\1\0", "its bulk ends within packed floats"),
    (6, 3, struct.pack("<HHB", 1, 1, 0) + int8([-0.5], [4]), "scale is negative or infinite"),
])
def test_packed_pushes_that_make_no_sense(ps, dtype, count, bulk, words):
    served = ps(layers="6,3" if count < 100 else "6000,3")
    with served.client(0) as chief:
        restore(chief, values=[0.0] * (FLOATS if count < 100 else 16 * 6001))
        fields, _ = packed(chief, 1, dtype, bulk, count)
        assert fields["code"] == 1 and words in fields["message"]
    with served.client(1) as worker:  # others continue
        worker.generation = 1
        assert push(worker, 1, [1.0])[0]["outcome"] == 0
