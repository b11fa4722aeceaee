"""Rollouts to a cluster with unlisted workers: those present take part, those that leave delay nobody, and all reach
one version."""

import json
import shutil
import subprocess

import pytest

from fleets import OpenFleet, in_force, text_of
from runs import wait_for

JOINED = ("worker 2", "worker 5")


@pytest.fixture
def fleet(trainer, tmp_path):
    with OpenFleet(trainer, tmp_path / "fleet", ps=2, workers=2, cluster={"elastic": True}) as fleet:
        yield fleet


def begin(fleet, **cluster):
    fleet.config["cluster"].update(cluster)
    (fleet.folder / "config.json").write_text(json.dumps(fleet.config))
    fleet.start_and_train()
    for name in JOINED:
        join(fleet, name)


def join(fleet, name):
    """On its own machine: a folder with the fleet's first config.json."""
    folder = fleet.folder / name.replace(" ", "-")
    if not folder.exists():
        folder.mkdir()
        for file in ("config.json", "operator.pub", "fleet.key"):
            shutil.copy2(fleet.folder / file, folder / file)
    fleet.start(name, "--train_dir=", f"--config={folder.name}/config.json")
    fleet.until(name, lambda text: '"event":"step"' in text, f"steps of {name}")


def rolls(fleet, version, *arguments, **sections):
    result = fleet.rollout(fleet.candidate(version, **sections), "--yes", "--healthy_secs=1", *arguments)
    return result.returncode == 0, text_of(result)


def all_on(fleet, version, *names):
    wait_for(lambda: fleet.versions() == dict.fromkeys(["ps 0", "ps 1", "worker 0", "worker 1", *names], version),
             f"version {version} everywhere")


def kept(fleet, name):
    return in_force(fleet.folder / name.replace(" ", "-"))


def test_they_change_with_the_others(fleet):
    """Live, local, of the whole job, and back from a bad one."""
    begin(fleet)
    pids = {name: fleet.members[name].pid for name in JOINED}
    done, output = rolls(fleet, 2, train={"learning_rate": 0.04})
    assert done, output
    all_on(fleet, 2, *JOINED)
    # The canary is one of them: worker 5, whose machine lacks these data.
    done, output = rolls(fleet, 3, "--data_dir=digits", data={"data_source": "idx"})
    assert not done and "version 3 was not rolled out" in output, output
    done, output = rolls(fleet, 4, train={"learning_rate": 0.04, "num_threads": 2})
    assert done, output
    all_on(fleet, 4, *JOINED)
    assert [start["config_version"] for start in fleet.events("worker 5", "start")] == [1, 4]
    done, output = rolls(fleet, 5, train={"learning_rate": 0.04, "num_threads": 2, "batch_size": 40})
    assert done, output
    all_on(fleet, 5, *JOINED)
    result = fleet.rollout(fleet.candidate(6, train={"learning_rate": 1e30, "num_threads": 2, "batch_size": 40}),
                           "--yes", "--healthy_secs=60")
    assert result.returncode == 1 and "went back from version 6 to version 5" in text_of(result), text_of(result)
    all_on(fleet, 5, *JOINED)
    assert [kept(fleet, name) for name in JOINED] == ["5", "5"]
    for name in JOINED:
        seen = fleet.text(name).count('"event":"step"')
        fleet.until(name, lambda text: text.count('"event":"step"') > seen, f"steps of {name}")
        assert fleet.members[name].pid == pids[name]
    fleet.goes_on()
    # One of them is listed now, the other no longer has a place.
    done, output = rolls(fleet, 7, cluster={"elastic": False, "worker_hosts": [*fleet.worker_hosts, "localhost:1"]},
                         train={"num_threads": 2})
    assert done, output
    fleet.wait("worker 5", 0)
    assert "is no longer in it and exits" in fleet.text("worker 5")
    wait_for(lambda: fleet.versions()["ps 0"] == 7 and fleet.members["worker 2"].poll() is None, "version 7")


def test_one_that_can_not_says_why(fleet):
    begin(fleet)
    (fleet.folder / "worker-5" / "operator.pub").unlink()
    done, output = rolls(fleet, 2, train={"batch_size": 40})
    assert not done and "version 2 was not rolled out, version 1 stays in force: worker 5: " in output, output
    assert "operator.pub" in output, output
    # Its departure is nobody's fault: the next rollout is without it.
    fleet.kill("worker 5")
    wait_for(lambda: fleet.status()[1].get("worker 5", {"state": "lost"})["state"] == "lost", "loss of worker 5")
    done, output = rolls(fleet, 3, train={"batch_size": 40})
    assert done, output


@pytest.mark.parametrize("phase, sections",
                         [("staging", {"learning_rate": 0.04}), ("switching to", {"learning_rate": 0.04}),
                          ("watching", {"learning_rate": 0.04}), ("worker 0 tries", {"batch_size": 40}),
                          ("all restart in", {"batch_size": 40}), ("watching", {"batch_size": 40}),
                          ("restarting in", {"num_threads": 2})])
@pytest.mark.full(but=("switching to-sections1", "all restart in-sections4"))
def test_one_goes_and_one_comes_meanwhile(fleet, phase, sections):
    """One leaves for good, silently; and a new one has only the fleet's first config."""
    begin(fleet, issync=phase == "all restart in")
    operator = subprocess.Popen([fleet.trainer, "rollout", fleet.candidate(2, train=sections), "--yes",
                                 "--healthy_secs=3", *fleet.job_flags()],
                                cwd=fleet.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    fleet.until("ps 0", lambda text: f"{phase} version 2" in text, phase)
    fleet.kill("worker 5")
    join(fleet, "worker 7")
    output, _ = operator.communicate(timeout=240)
    assert operator.returncode == 0 and "version 2 is in force" in output, output
    wait_for(lambda: fleet.versions().get("worker 7") == 2, "version 2 of the newcomer")
    assert kept(fleet, "worker 7") == "2" and kept(fleet, "worker 2") == "2"
    for name in ("worker 2", "worker 7"):
        seen = fleet.text(name).count('"event":"step"')
        fleet.until(name, lambda text: text.count('"event":"step"') > seen, f"steps of {name}")
    # A worker that left catches up when it returns.
    join(fleet, "worker 5")
    all_on(fleet, 2, "worker 2", "worker 5", "worker 7")
    last = json.loads((fleet.folder / "worker-5" / "config.json.d" / "audit.log").read_text().splitlines()[-1])
    assert last["member"] == "worker 5" and fleet.current() == "2"
