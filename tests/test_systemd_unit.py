"""deploy/trainer@.service unchanged, under a systemd that runs as process 1 of its own namespaces: readiness,
hardening, the watchdog, and the way back from a config that kills a member."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

import pytest

from fleets import OpenFleet, make_digits, text_of
from runs import wait_for

pytestmark = pytest.mark.alone

SYSTEMD = "/lib/systemd/systemd"
TARGET = "[Unit]\nDefaultDependencies=no\n"
# Timeouts for the tests, and logs that can be read without a journal. Nothing else of the unit changes.
DROP_IN = """[Service]
WatchdogSec=15
TimeoutAbortSec=2
StandardOutput=append:/run/logs/%i
StandardError=inherit
"""


class Machine:
    """A systemd, and the members that it runs."""

    def __init__(self, fleet, root, members):
        self.folder = fleet.folder
        for path in ("changed", "units/trainer@.service.d", "members", "home"):
            (self.folder / path).mkdir(parents=True)
        shutil.copy2(root / "deploy" / "trainer@.service", self.folder / "units")
        (self.folder / "units/trainer@.service.d/test.conf").write_text(DROP_IN)
        for name in ("idle", "sysinit", "basic", "shutdown", "network-online", "multi-user"):
            (self.folder / f"units/{name}.target").write_text(TARGET)
        for name in ("config.json", "operator.pub", "fleet.key", "digits"):
            (shutil.copytree if (self.folder / name).is_dir()
             else shutil.copy2)(self.folder / name, self.folder / "home" / name)
        for name, flags in members.items():
            role, index = name.split("-")
            (self.folder / f"members/{name}.conf").write_text(
                f"MEMBER=--job_name={role} --task_index={index} {flags}\n")
        shutil.copy2(fleet.trainer, self.folder / "trainer")

    def __enter__(self):
        script = pathlib.Path(__file__).parent / "systemd_of_its_own.sh"
        self.log = open(self.folder / "systemd.log", "w+")
        self.outer = subprocess.Popen(["unshare", "--fork", "--pid", "--mount", "--uts", "--ipc", "--mount-proc",
                                       "--kill-child=SIGKILL", str(script), str(self.folder)],
                                      stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT,
                                      start_new_session=True)
        try:
            wait_for(lambda: self.outer.poll() is not None or "running" in self.systemctl("is-system-running").stdout,
                     "systemd", 15)
        except AssertionError:
            pass
        if "running" not in self.systemctl("is-system-running").stdout:
            said = (self.folder / "systemd.log").read_text()
            self.__exit__()
            pytest.skip(f"no systemd can be started here: {said[-300:]}")
        return self

    def __exit__(self, *arguments):
        self.outer.kill()
        self.outer.wait(10)
        group = self.folder / "group"
        for _ in range(50):
            if not group.exists() or not os.path.isdir(group.read_text().strip()):
                break
            subprocess.run(["find", group.read_text().strip(), "-depth", "-type", "d", "-exec", "rmdir", "{}", ";"],
                           capture_output=True)
            time.sleep(0.1)

    def inside(self, *command, timeout=60):
        children = pathlib.Path(f"/proc/{self.outer.pid}/task/{self.outer.pid}/children").read_text().split()
        return subprocess.run(["nsenter", "--target", (children or ["0"])[0], "--mount", "--pid", "--uts", "--ipc",
                               "--cgroup", *command], capture_output=True, text=True, timeout=timeout)

    def systemctl(self, *arguments):
        return self.inside("systemctl", *arguments)

    def show(self, member, name):
        return self.systemctl("show", "--value", f"--property={name}", f"trainer@{member}").stdout.strip()

    def said(self, member):
        return self.inside("cat", f"/run/logs/{member}").stdout


@pytest.fixture
def machine(trainer, tmp_path, root, full):
    if not full:
        pytest.skip("in make test-full")
    if os.geteuid() != 0 or not os.path.exists(SYSTEMD) or not shutil.which("nsenter"):
        pytest.skip("that takes root and systemd")
    with OpenFleet(trainer, tmp_path / "fleet", ps=1, workers=2, output={"log_format": "json"}) as fleet:
        make_digits(fleet)
        members = {"ps-0": "", "worker-0": "--train_dir=run --data_dir=digits", "worker-1": "--data_dir=nowhere"}
        with Machine(fleet, root, members) as machine:
            machine.fleet = fleet
            started = machine.systemctl("start", *(f"trainer@{name}" for name in members))
            assert started.returncode == 0, text_of(started) + machine.said("ps-0") + machine.log.read()
            yield machine


def steps(machine, member):
    return machine.said(member).count('"event":"step"')


def go_on(machine, member):
    seen = steps(machine, member)
    wait_for(lambda: steps(machine, member) > seen + 1, f"steps of {member}", 60)


def test_the_unit_under_systemd(machine):
    port = machine.fleet.ps_hosts[0].split(":")[1]
    assert machine.show("ps-0", "StatusText") == f"ps 0 listens on port {port}"
    assert machine.show("worker-1", "StatusText") == "worker 1 is running"
    assert machine.show("worker-0", "SubState") == "running" and machine.show("worker-0", "WatchdogUSec") == "15s"
    assert '"worker 1 is running"' in machine.systemctl("status", "trainer@worker-1").stdout
    go_on(machine, "worker-0")
    # A stopped member is killed and restarted, and joins again.
    machine.systemctl("kill", "--signal=STOP", "--kill-whom=main", "trainer@worker-1")
    wait_for(lambda: machine.show("worker-1", "NRestarts") == "1", "the watchdog", 60)
    go_on(machine, "worker-1")
    # A config that kills worker 1: systemd restarts it, twice, and then it is back on the previous version.
    result = machine.fleet.rollout(machine.fleet.candidate(2, data={"data_source": "idx"}), "--yes", "--healthy_secs=5",
                                   "--data_dir=digits")
    assert result.returncode == 1 and "worker 1: it failed 2 times when started in version 2" in text_of(result), \
        text_of(result) + machine.said("worker-1")
    go_on(machine, "worker-1")
    assert [int(machine.show(name, "NRestarts")) for name in ("ps-0", "worker-0", "worker-1")] == [0, 0, 3]
    # And a good one, for which every process restarts itself in place, without systemd.
    pid = machine.show("worker-0", "MainPID")
    result = machine.fleet.rollout(machine.fleet.candidate(3, train={"batch_size": 40}), "--yes", "--healthy_secs=1")
    assert result.returncode == 0, text_of(result)
    assert machine.show("worker-0", "MainPID") == pid, machine.said("worker-0")
    assert machine.show("ps-0", "NRestarts") == "0", machine.said("ps-0")
    current = machine.inside("cat", "/var/lib/trainer/config.json.d/current").stdout
    assert current.split()[0] == "3"
    stopped = machine.systemctl("stop", "trainer@worker-0", "trainer@worker-1", "trainer@ps-0")
    assert stopped.returncode == 0 and machine.show("worker-0", "Result") == "success"
    assert machine.inside("ls", "/var/lib/trainer/run").stdout.count("model-") > 0
