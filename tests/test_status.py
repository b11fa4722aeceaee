"""trainer status: a running cluster's reports about its members."""

import subprocess

import pexpect
import pytest

from clusters import Cluster
from runs import wait_for


@pytest.fixture
def cluster(trainer, tmp_path):
    with Cluster(trainer, tmp_path, ps=2, flags=("--train_steps=100000000", "--log_steps=20")) as cluster:
        cluster.start_all()
        for name in ("worker 0", "worker 1"):
            cluster.until(name, lambda text: '"event":"step"' in text, "steps")
        yield cluster


def test_everybody_is_there(cluster):
    told = []

    def all_told():  # from heartbeats, which come every two thirds of a second
        told[:] = cluster.status()
        return told[0] == 0 and told[1]["worker 0"]["steps_per_s"] and all(
            member["global_step"] and member["local_step"] and member["steps_per_s"] is not None
            for member in told[1].values())

    wait_for(all_told, "heartbeat of everybody")
    status, members = told
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
    def reached():
        return cluster.status()[1]["ps 0"]["global_step"] or 0

    before = reached()
    wait_for(lambda: reached() > before, "further steps")


def test_a_dead_worker_is_missing(cluster):
    cluster.kill("worker 1")

    def missing():
        status, members = cluster.status()
        assert (status == 1) == any(member["missing"] for member in members.values())
        assert members["worker 1"]["missing"] == (members["worker 1"]["state"] == "lost")
        return [name for name, member in members.items() if member["missing"]]

    wait_for(lambda: missing() == ["worker 1"], "loss of worker 1 alone")


def test_a_dead_ps_is_missing(cluster):
    cluster.kill("ps 1")
    members = {}

    def missing():
        status, told = cluster.status()
        assert status == 1 and told["ps 1"]["missing"]
        members.update(told)
        return [name for name, member in told.items() if member["missing"]]

    wait_for(lambda: missing() == ["ps 1"], "loss of ps 1 alone")
    assert members["ps 1"]["message"]
    assert members["ps 1"]["config_version"] is None  # unknown, which is not version 0
    assert members["ps 0"]["config_version"] == 0


def test_nobody_at_all(trainer, tmp_path):
    with Cluster(trainer, tmp_path) as cluster:
        status, members = cluster.status()
        assert status == 1 and all(member["missing"] for member in members.values())
        assert all(member["config_version"] is None for member in members.values())


def test_the_table(cluster, trainer):
    result = subprocess.run([trainer, "status", *cluster.hosts], cwd=cluster.folder, capture_output=True, text=True,
                            timeout=240)
    lines = [line for line in result.stdout.splitlines() if not line.startswith(" ")]  # not in members' messages
    assert lines[0].split()[:3] == ["MEMBER", "STATE", "STEP"]
    assert [" ".join(line.split()[:2]) for line in lines[1:5]] == ["ps 0", "ps 1", "worker 0", "worker 1"]


def test_rows_fit_the_terminal(cluster, trainer):
    for columns in (60, 80, 120, 200):
        process = pexpect.spawn(trainer, ["status", *cluster.hosts], cwd=str(cluster.folder), dimensions=(30, columns),
                                encoding="utf-8", timeout=240)
        process.expect(pexpect.EOF)
        rows = [line for line in process.before.splitlines() if line.startswith(("MEMBER", "ps ", "worker "))]
        assert len(rows) == 5 and max(map(len, rows)) <= columns, process.before
        assert ("DEVICE" in rows[0]) == (columns == 200) and "STEPS/S" in rows[0], rows[0]


def test_without_hosts_it_says_what_to_give(run):
    assert "no cluster given: set ps_hosts" in run("status", status=2).stderr
    assert "--ps_hosts" in run("status", status=2).stderr
