"""trainer status: what a running cluster says of its members."""

import statistics
import subprocess
import time

import pytest

from clusters import Cluster


@pytest.fixture
def cluster(trainer, tmp_path):
    with Cluster(trainer, tmp_path, ps=2, flags=("--train_steps=100000000", "--log_steps=20")) as cluster:
        cluster.start_all()
        for name in ("worker 0", "worker 1"):
            cluster.until(name, lambda text: '"event":"step"' in text, "steps")
        yield cluster


def test_everybody_is_there(cluster):
    time.sleep(1.2)  # heartbeats come every two thirds of a second
    status, members = cluster.status()
    assert status == 0 and set(members) == {"ps 0", "ps 1", "worker 0", "worker 1"}
    for name, member in members.items():
        assert not member["missing"] and member["global_step"] > 0 and member["local_step"] > 0, (name, member)
        assert member["bytes_in"] > 0 and member["bytes_out"] > 0
        assert len(member["config_digest"]) == 64 and member["config_digest"] == members["ps 0"]["config_digest"]
        assert member["program"].startswith("trainer ") and member["host"]
    assert members["ps 0"]["state"] == "ready" and members["worker 1"]["state"] == "training"
    assert "kernels" in members["worker 0"]["device"]
    assert members["worker 0"]["steps_per_s"] > 0


def test_steps_go_up(cluster):
    before = cluster.status()[1]["ps 0"]["global_step"]
    time.sleep(0.3)
    assert cluster.status()[1]["ps 0"]["global_step"] > before


def test_a_dead_worker_is_missing(cluster):
    cluster.kill("worker 1")
    deadline = time.monotonic() + 10
    while True:
        status, members = cluster.status()
        if status == 1:
            break
        assert time.monotonic() < deadline, members
        time.sleep(0.1)
    assert members["worker 1"]["missing"] and members["worker 1"]["state"] == "lost"
    assert not members["worker 0"]["missing"]


def test_a_dead_ps_is_missing(cluster):
    cluster.kill("ps 1")
    status, members = cluster.status()
    assert status == 1 and members["ps 1"]["missing"] and members["ps 1"]["message"]
    assert members["ps 1"]["config_version"] is None  # not known, which is not version 0
    assert members["ps 0"]["config_version"] == 0
    assert not members["ps 0"]["missing"] and not members["worker 0"]["missing"]


def test_nobody_at_all(trainer, tmp_path):
    with Cluster(trainer, tmp_path) as cluster:
        status, members = cluster.status()
        assert status == 1 and all(member["missing"] for member in members.values())
        assert all(member["config_version"] is None for member in members.values())


def test_the_table(cluster, trainer):
    result = subprocess.run([trainer, "status", *cluster.hosts], cwd=cluster.folder, capture_output=True, text=True,
                            timeout=10)
    lines = [line for line in result.stdout.splitlines() if not line.startswith(" ")]  # but what members say
    assert lines[0].split()[:3] == ["MEMBER", "STATE", "STEP"]
    assert [" ".join(line.split()[:2]) for line in lines[1:5]] == ["ps 0", "ps 1", "worker 0", "worker 1"]


@pytest.mark.alone
def test_it_answers_while_training_runs(cluster, trainer):
    """100 ms is the promise on a machine that does nothing else; a test may share its machine."""
    times = []
    for _ in range(5):
        begun = time.monotonic()
        cluster.status()
        times.append(time.monotonic() - begun)
    print("seconds:", [round(each, 3) for each in times])
    assert min(times) < 0.5


def test_without_hosts_it_asks_which_cluster(run):
    assert "--ps_hosts" in run("status", status=2).stderr
