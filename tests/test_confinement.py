"""Every role runs behind a filter of system calls, with which all that it does works, and keeps its key out of swap.

What the filters refuse is in tests/base/process/test_confine.c. All other tests of whole programs run confined, too.
"""

import pathlib
import subprocess

import pytest

from clusters import Cluster
from fleets import OpenFleet, text_of
from ports import free_ports
from runs import SMALL, newest, start, train, wait_for
from served import Served


def status_of(process, name):
    lines = pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines()
    (text,) = [line.split(":")[1].strip() for line in lines if line.startswith(f"{name}:")]
    return text


def filters_of(process):
    return int(status_of(process, "Seccomp_filters"))


@pytest.fixture(scope="module")
def inherited():
    """Filters that a container has around the tests."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        count = filters_of(process)
        process.kill()
    return count


@pytest.fixture(scope="module")
def trained(trainer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("confined")
    train(trainer, *SMALL, "--train_steps=20", "--train_dir=run", cwd=folder)
    return folder


def test_each_role_is_confined(trainer, trained, inherited, tmp_path):
    with Cluster(trainer, tmp_path / "cluster", flags=("--train_steps=100000000",)) as cluster:
        cluster.start_all()
        cluster.until("worker 0", lambda text: '"event":"step"' in text, "steps")
        for name, process in cluster.members.items():
            assert status_of(process, "Seccomp") == "2", name
            assert status_of(process, "NoNewPrivs") == "1", name
            assert filters_of(process) == inherited + 1, name
            assert status_of(process, "VmLck") != "0 kB", name  # its key
    (port,) = free_ports(1)
    alone = start(trainer, *SMALL, "--train_steps=100000000", "--max_steps_per_s=50", f"--http=127.0.0.1:{port}",
                  cwd=tmp_path)
    wait_for(lambda: filters_of(alone) == inherited + 1, "the filter of a process that trains alone")
    alone.kill()
    alone.communicate()
    with Served(trainer, f"digits={trained / 'run'}", cwd=tmp_path) as served:
        assert filters_of(served.process) == inherited + 1


def test_restarts_in_place_add_none(trainer, inherited, tmp_path):
    with OpenFleet(trainer, tmp_path / "fleet", ps=1, workers=1) as fleet:
        fleet.start_and_train()
        for version, batch_size in ((2, 40), (3, 60)):
            result = fleet.rollout(fleet.candidate(version, train={"batch_size": batch_size}), "--yes",
                                   "--healthy_secs=0.5")
            assert result.returncode == 0, text_of(result)
        for process in fleet.members.values():
            assert filters_of(process) == inherited + 1
        assert newest(fleet.folder / "run")


def test_it_can_be_turned_off(trainer, inherited, tmp_path):
    process = start(trainer, *SMALL, "--train_steps=100000000", "--max_steps_per_s=50", "--seccomp=false",
                    "--log_format=json", cwd=tmp_path)
    assert "step" in "".join(process.stdout.readline() for _ in range(3))
    assert filters_of(process) == inherited
    process.kill()
    process.communicate()
