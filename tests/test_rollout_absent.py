"""Changes of the whole job while a worker is off: nobody waits for it, and whenever it returns, it reaches the others'
version."""

import shutil
import subprocess
import time

import pytest

from fleets import OpenFleet, in_force, text_of
from runs import wait_for

OFF_S = 11  # by then it counts as off, and not as restarting
AWAY = "worker 2"


class Absent(OpenFleet):
    """Worker 2 has its own machine, that is, a folder."""

    def __init__(self, trainer, folder, **sections):
        super().__init__(trainer, folder, ps=2, workers=3, **sections)
        self.machine(AWAY, self.folder / "config.json")

    def machine(self, name, config):
        folder = self.folder / name.replace(" ", "-")
        folder.mkdir()
        for file in ("operator.pub", "fleet.key"):
            shutil.copy2(self.folder / file, folder / file)
        shutil.copy2(config, folder / "config.json")

    def come(self, name=AWAY):
        self.start(name, "--train_dir=", f"--config={name.replace(' ', '-')}/config.json")

    def switch_off(self):
        for name in ("ps 0", "ps 1"):
            self.start(name)
        self.start("worker 0")
        self.start("worker 1", "--train_dir=")
        self.come()
        self.until(AWAY, lambda text: '"event":"step"' in text, "steps")
        self.kill(AWAY)
        self.members[AWAY].wait(240)
        time.sleep(OFF_S)

    def begin(self, version, *arguments, **sections):
        return subprocess.Popen([self.trainer, "rollout", self.candidate(version, **sections), "--yes", *arguments,
                                 *self.job_flags()],
                                cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def in_phase(self, phase):
        self.until("ps 0", lambda text: phase in text, phase)

    def kept(self, name=AWAY):
        folder = self.folder / name.replace(" ", "-")
        return int(in_force(folder)) if (folder / "config.json.d" / "current").exists() else 1

    def all_on(self, version):
        """All are on, including worker 2, and train."""
        seen = self.text(AWAY).count('"event":"step"')
        self.until(AWAY, lambda text: text.count('"event":"step"') > seen, "steps of worker 2")
        wait_for(lambda: set(self.versions().values()) == {version}, f"version {version} everywhere")
        assert self.kept() == version and self.current() == str(version)
        assert self.events(AWAY, "start")[-1]["config_version"] == version
        self.goes_on()
        assert self.alive()


@pytest.fixture
def fleet(trainer, tmp_path):
    with Absent(trainer, tmp_path / "fleet") as fleet:
        fleet.switch_off()
        yield fleet


def ends(operator, timeout=240):
    output, _ = operator.communicate(timeout=timeout)
    return operator.returncode == 0, output


@pytest.mark.parametrize("issync", [False, True])
@pytest.mark.full(but=("False",))
def test_the_others_change_without_it(trainer, tmp_path, issync):
    with Absent(trainer, tmp_path / "fleet", cluster={"issync": issync}) as fleet:
        fleet.switch_off()
        done, output = ends(fleet.begin(2, "--healthy_secs=1", train={"batch_size": 40}))
        assert done and "by a checkpoint and a restart of the whole job" in output, output + fleet.text("ps 0")
        assert "staging version 2" in output and "; without worker 2, which is off" in output, output
        assert fleet.kept() == 1
        fleet.come()
        fleet.all_on(2)
        assert "the fleet is at version 2 of the config: this process restarts in it" in fleet.text(AWAY)
        # It is on, so that the next rollout includes it.
        done, output = ends(fleet.begin(3, "--healthy_secs=1", train={"batch_size": 30}))
        assert done and "which is off" not in output, output
        fleet.all_on(3)


@pytest.mark.parametrize("phase", ["staging", "worker 0 tries", "all restart in", "watching"])
@pytest.mark.full(but=("worker 0 tries", "all restart in"))
def test_it_comes_back_meanwhile(fleet, phase):
    operator = fleet.begin(2, "--healthy_secs=5", train={"batch_size": 40})
    fleet.in_phase(f"{phase} version 2")
    fleet.come()
    done, output = ends(operator)
    assert done, output
    fleet.all_on(2)


def test_all_go_back_without_it(fleet):
    done, output = ends(fleet.begin(2, "--healthy_secs=60", train={"optimizer": "momentum", "learning_rate": 50.0}))
    assert not done and "went back from version 2 to version 1: the loss is" in output, output
    # The next one is aborted while it is on, and in the new version.
    operator = fleet.begin(3, "--healthy_secs=100", train={"batch_size": 40})
    fleet.in_phase("watching version 3")
    fleet.come()
    wait_for(lambda: fleet.kept() == 3 and fleet.versions()[AWAY] == 3, "version 3 of worker 2")
    assert fleet.rollout("abort").returncode == 0
    done, output = ends(operator)
    assert not done and "went back from version 3 to version 1: the operator aborted it" in output, output
    fleet.all_on(1)


@pytest.mark.parametrize("phase, version", [("staging", 1), ("all restart in", 2), ("watching", 1)])
@pytest.mark.full(but=("all restart in-2", "watching-1"))
def test_the_leader_dies_meanwhile(fleet, phase, version):
    """The next leader knows who was off, and continues without it, or rolls back."""
    operator = fleet.begin(2, "--healthy_secs=5", train={"batch_size": 40})
    fleet.in_phase(f"{phase} version 2")
    fleet.kill("ps 0")
    fleet.members["ps 0"].wait(240)
    fleet.start("ps 0")
    done, output = ends(operator)
    assert done == (version == 2), output
    assert "worker 2 did not" not in output and "worker 2 was not heard from" not in output, output
    wait_for(lambda: fleet.current() == str(version), f"version {version}")
    fleet.come()
    fleet.all_on(version)


def test_lists_of_workers_change_meanwhile(trainer, tmp_path):
    with Absent(trainer, tmp_path / "fleet") as fleet:
        hosts = fleet.worker_hosts
        fleet.switch_off()
        # One more, which does need it.
        longer = {"worker_hosts": [*hosts, "localhost:1"]}
        fleet.machine("worker 3", fleet.folder / fleet.candidate(2, cluster=longer))
        fleet.come("worker 3")
        done, output = ends(fleet.begin(2, "--healthy_secs=1", cluster=longer))
        assert done and "without worker 2, which is off" in output, output
        fleet.until("worker 3", lambda text: '"event":"step"' in text, "steps of worker 3")
        fleet.come()
        fleet.all_on(2)
        # Both are removed from the list, and one of them is off.
        fleet.kill(AWAY)
        fleet.members[AWAY].wait(240)
        time.sleep(OFF_S)
        done, output = ends(fleet.begin(3, "--healthy_secs=1", cluster={"worker_hosts": hosts[:2]}))
        assert done, output
        fleet.come()
        fleet.wait(AWAY, 0)
        assert "is no longer in it and exits" in fleet.text(AWAY)
        fleet.goes_on()


def test_a_job_that_would_wait_for_it(trainer, tmp_path):
    """Steps are made with two of three, but could not start again."""
    with Absent(trainer, tmp_path / "fleet", cluster={"min_workers": 3}) as fleet:
        fleet.switch_off()
        done, output = ends(fleet.begin(2, "--healthy_secs=1", train={"batch_size": 40}))
        assert not done and "worker 2 is off, and the job would restart and wait for 3 workers" in output, output
        fleet.goes_on()
        for version, sections in ((3, {"cluster": {"min_workers": 2}}), (4, {"train": {"batch_size": 40}})):
            done, output = ends(fleet.begin(version, "--healthy_secs=1", **sections))
            assert done, output
            for name, section in sections.items():
                fleet.config[name].update(section)
        fleet.come()
        fleet.all_on(4)

