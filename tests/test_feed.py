"""data_sharding chief: workers without data on disk get from worker 0 the batches that they would have drawn."""

import json
import socket
import subprocess
import time

import protocol
import pytest
import runs
from clusters import Cluster
from test_data import write_set

# There are no data there; the chief gets another folder.
NOWHERE = ("--data_source=idx", "--data_dir=nowhere", "--validation_size=60", "--batch_size=35")


@pytest.fixture
def data(tmp_path):
    write_set(tmp_path / "digits", train=400, test=60)
    return f"--data_dir={tmp_path}/digits"


def start_all(cluster, data):
    """The ps, the chief with its data, the others without."""
    cluster.start("ps 0")
    for i in range(len(cluster.worker_hosts)):
        cluster.start(f"worker {i}", *([data] if i == 0 else []))


@pytest.mark.parametrize("flags", [(), ("--layers=784,10", "--optimizer=adam", "--batch_size=340"),
                                   ("--batch_size=7",)])
def test_the_same_bits_as_with_data_of_ones_own(trainer, tmp_path, data, flags):
    """Synchronous training depends only on its batches: short last ones, whole epochs in one, many epochs."""
    common = (*NOWHERE, "--issync=1", "--train_steps=50", "--lease_secs=30", "--train_dir=kept", *flags)
    with Cluster(trainer, tmp_path / "fed", workers=3,
                 flags=(*common, "--data_sharding=chief", "--min_workers=3")) as cluster:
        start_all(cluster, data)
        cluster.wait_all()
        assert "from worker 0" in cluster.events("worker 1", "start")[0]["data"]
    with Cluster(trainer, tmp_path / "own", workers=3, flags=(*common, data, "--min_workers=3")) as cluster:
        cluster.start_all()
        cluster.wait_all()
    assert runs.same_tensors(runs.newest(tmp_path / "fed/kept"), runs.newest(tmp_path / "own/kept")) == []


@pytest.mark.parametrize("flags", [("--issync=0",), ("--issync=0", "--pipeline_depth=2", "--insecure")])
def test_asynchronous(trainer, tmp_path, data, flags):
    with Cluster(trainer, tmp_path, workers=2, flags=(*NOWHERE, "--data_sharding=chief", "--train_steps=400",
                                                      "--min_workers=2", "--learning_rate=0.1",
                                                      "--max_steps_per_s=100", *flags)) as cluster:
        start_all(cluster, data)
        cluster.wait_all()
        assert cluster.events("worker 0", "done")[0]["steps"] == 400
        assert cluster.events("worker 1", "step"), cluster.text("worker 1")


def test_worker_that_waits_says_for_whom(trainer, tmp_path, data):
    with Cluster(trainer, tmp_path, workers=2,
                 flags=(*NOWHERE, "--data_sharding=chief", "--train_steps=100")) as cluster:
        cluster.start("ps 0")
        cluster.start("worker 1")
        cluster.until("worker 1", lambda text: "waiting for worker 0 (127.0.0.1:" in text, "the line about waiting")
        runs.wait_for(lambda: "which has the data" in (cluster.status()[1]["worker 1"]["message"] or ""), "its status")
        cluster.start("worker 0", data)
        cluster.wait_all()


def test_either_side_may_be_started_again(trainer, tmp_path, data):
    flags = (*NOWHERE, "--data_sharding=chief", "--issync=0", "--min_workers=1", "--learning_rate=0.05",
             "--train_dir=kept", "--log_steps=50", "--max_steps_per_s=200")
    with Cluster(trainer, tmp_path, workers=2, flags=(*flags, "--train_steps=3000")) as cluster:
        start_all(cluster, data)
        cluster.until("worker 1", lambda text: '"event":"step"' in text, "steps")
        cluster.kill("worker 1")
        cluster.start("worker 1")
        cluster.until("worker 1", lambda text: '"event":"step"' in text, "steps after its new start")
        cluster.kill("worker 0")
        cluster.start("worker 0", data)
        cluster.wait_all()
        assert cluster.events("worker 0", "done")[0]["steps"] == 3000
        assert "connecting again" in cluster.text("worker 1")


class DataClient(protocol.Client):
    """A worker played by this test, at the chief of a cluster in training."""

    def __init__(self, cluster, index, **hello):
        super().__init__(int(cluster.worker_hosts[0].split(":")[1]), str(cluster.folder / "fleet.key"))
        shown = subprocess.run([cluster.trainer, "config", "show", "--json", *cluster.hosts, *cluster.flags],
                               capture_output=True, text=True, check=True, cwd=cluster.folder)
        digest = json.loads(shown.stdout)["digest"]
        self.welcome = self.hello(index=index, incarnation=77, digest=digest, **hello)


@pytest.fixture
def chief(trainer, tmp_path, data):
    """A cluster whose chief trains without worker 2, which it does not need."""
    flags = (*NOWHERE, "--data_sharding=chief", "--issync=0", "--min_workers=1", "--learning_rate=0.01",
             "--log_steps=20")
    given = {flag.split("=")[0]: flag for flag in (*flags, "--train_steps=100000000")}.values()
    with Cluster(trainer, tmp_path, workers=3, flags=given) as cluster:
        cluster.flags = list({flag.split("=")[0]: flag for flag in cluster.flags}.values())
        cluster.start("ps 0")
        cluster.start("worker 0", data)
        cluster.until("worker 0", lambda text: '"event":"step"' in text, "steps")
        yield cluster


def steps_of(cluster):
    return cluster.events("worker 0", "step")[-1]["global_step"]


def goes_on(cluster):
    before = steps_of(cluster)
    runs.wait_for(lambda: steps_of(cluster) > before + 100, "steps of the chief", timeout=20)


def test_batches_are_a_function_of_their_number(chief):
    with DataClient(chief, 1) as one, DataClient(chief, 2) as two:
        assert one.welcome[0] == "welcome", one.welcome
        name, facts, _ = one.call("get_batches", first=0, count=0)
        assert (name, facts["total"], facts["validation"], facts["pixels"]) == ("batch", 340, 60, 784)
        seen = {}
        for client, first, count in ((one, 0, 10), (two, 0, 10), (one, 3, 2), (one, 9, 1)):
            client.send("get_batches", first=first, count=count)
            for number in range(first, first + count):
                name, fields, bulk = client.receive()
                assert name == "batch" and fields["number"] == number and fields["last"] == (number == first
                                                                                             + count - 1)
                assert fields["examples"] == (25 if number % 10 == 9 else 35)  # 340 in batches of 35
                assert len(bulk) == fields["examples"] * (2 + 784)
                assert seen.setdefault((client, number), bulk) == bulk
        assert seen[one, 0] != seen[two, 0]
        # An epoch is every image once.
        images = [bulk[2 * n + 784 * i : 2 * n + 784 * (i + 1)] for (client, _), bulk in seen.items() if client is one
                  for n in [len(bulk) // 786] for i in range(n)]
        assert len(images) == len(set(images)) == 340


def test_who_asks_for_what_is_not_there_is_refused(chief):
    with DataClient(chief, 1) as client:
        client.send("get_batches", first=-1, count=1)
        name, fields, _ = client.receive()
        assert name == "error" and fields["code"] == 1
    with DataClient(chief, 1) as client:
        client.send("pull")
        name, fields, _ = client.receive()
        assert name == "error" and fields["code"] == 2 and "for a ps" in fields["message"]
    for index, role in ((0, 2), (0, 1), (-1, 3)):
        with DataClient(chief, index, role=role) as client:
            assert client.welcome[0] == "refused" and " only" in client.welcome[1][
                "message"], client.welcome
    goes_on(chief)


def test_nobody_holds_up_the_chief(chief):
    """Clients that request a lot and read nothing, that are silent, that come in crowds: it trains, in bounded memory.
    """
    port = int(chief.worker_hosts[0].split(":")[1])
    silent = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(50)]
    with DataClient(chief, 1) as greedy:
        for _ in range(200):
            greedy.request += 1
            greedy.socket.settimeout(1)
            try:
                greedy.send("get_batches", first=0, count=64)
            except OSError:
                break
        goes_on(chief)
        resident = int(next(line.split()[1] for line in open(f"/proc/{chief.members['worker 0'].pid}/status")
                            if line.startswith("VmRSS")))
        assert resident < 64 * 1024
    for each in silent:
        each.close()
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:  # places become free
        try:
            with DataClient(chief, 2) as client:
                assert client.call("get_batches", first=0, count=1)[0] == "batch"
                break
        except (OSError, EOFError):
            time.sleep(0.2)
    else:
        raise AssertionError("no place for a worker that behaves")
