"""Every role runs behind a filter of system calls, with which all that it does works, and keeps its key out of swap.

What the filters refuse is in tests/base/process/test_confine.c. All other tests of whole programs run confined, too.
"""

import os
import pathlib
import re
import socket
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


def test_commands_are_confined(trainer, trained, inherited, tmp_path):
    """Those that read other people's files: no sockets, no programs. Those that ask a cluster only connect. What that
    means is in tests/base/process/test_confine.c."""
    (port,) = free_ports(1)
    waits = tmp_path / "waits"
    os.mkfifo(waits)
    network = ("--insecure", f"--ps_hosts=127.0.0.1:{port}", "--worker_hosts=127.0.0.1:1")
    long = ("--data_source=synthetic", "--synthetic_train=5000000", "--synthetic_test=5000000")
    assert subprocess.run([trainer, "keygen", "--operator=operator.key"], cwd=tmp_path, timeout=240).returncode == 0
    commands = (("eval", *long, str(trained / "run")), ("data", "synth", *long[1:], "--out=digits"),
                ("convert", *long, "--to=tfrecord", "--out=records"), ("profile", str(waits)),
                ("sign", "--key=operator.key", str(waits)), ("health", f"--http=127.0.0.1:{port}"),
                ("status", *network), ("top", *network), ("rollout", "status", *network))
    with socket.create_server(("127.0.0.1", port)):  # which answers nobody
        for arguments in commands:
            with subprocess.Popen([trainer, *arguments], cwd=tmp_path, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True) as process:
                wait_for(lambda: process.poll() is not None or filters_of(process) > inherited, "a filter")
                ended = process.poll() is not None
                process.kill()
                assert not ended, (arguments, process.stdout.read())


def test_an_operators_key_is_not_swapped(trainer, tmp_path):
    """It is in memory that is locked, of a process that is neither dumped nor traced."""
    waits = tmp_path / "waits"
    os.mkfifo(waits)
    assert subprocess.run([trainer, "keygen", "--operator=operator.key"], cwd=tmp_path, timeout=240).returncode == 0
    with subprocess.Popen([trainer, "sign", "--key=operator.key", str(waits)], cwd=tmp_path) as process:
        wait_for(lambda: status_of(process, "VmLck") != "0 kB", "a key in memory that is locked")
        process.kill()


def test_no_command_is_forgotten():
    """The rest start processes, are confined by what they become, or only print what is in the program."""
    root = pathlib.Path(__file__).resolve().parent.parent
    found = {}
    for file in (file for room in ("base", "net", "worker", "serve") for file in (root / room).rglob("*.c")):
        for name, body in re.findall(r"^const struct command command_(\w+) = \{\n(.*?)^\};", file.read_text(),
                                     re.M | re.S):
            found[name] = ".confine = CONFINE_" in body
    assert len(found) > 20 and {name for name, is_confined in found.items() if not is_confined} <= {
        "train", "tune", "serve", "cluster", "devices", "help", "completion", "manual"}
