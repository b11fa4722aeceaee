"""Rollouts to a job that waits for workers (min_workers): what lets it continue, what leaves it waiting, and who joins
later."""

import subprocess

import pytest

from fleets import OpenFleet, text_of
from runs import wait_for

LISTED, HERE = 4, 2


@pytest.fixture(params=["async", "sync"])
def fleet(trainer, tmp_path, request):
    """Two of four workers are connected, and all four are required."""
    with OpenFleet(trainer, tmp_path / "fleet", ps=2, workers=LISTED,
                   cluster={"min_workers": LISTED, "issync": request.param == "sync"}) as fleet:
        for name in ("ps 0", "ps 1"):
            fleet.start(name)
        for i in range(HERE):
            fleet.start(f"worker {i}", *([] if i == 0 else ["--train_dir="]))
        wait_for(lambda: "waiting for 2 more workers" in fleet.status()[1]["ps 0"]["message"], "a job that waits")
        yield fleet


def rolls(fleet, version, *arguments, **sections):
    result = fleet.rollout(fleet.candidate(version, **sections), "--yes", "--healthy_secs=1", *arguments)
    assert result.returncode == 0, text_of(result) + fleet.text("ps 0") + fleet.text("worker 0")
    for name, section in sections.items():
        fleet.config[name].update(section)
    wait_for(lambda: {fleet.versions()[name] for name in fleet.members} == {version}, f"version {version}")
    return text_of(result)


def trains(fleet):
    fleet.until("worker 0", lambda text: text.count('"event":"step"') > 1, "steps")
    assert fleet.alive()


def come_later(fleet, version, *names):
    for name in names:
        fleet.start(name, "--train_dir=")
        fleet.until(name, lambda text: '"event":"step"' in text, f"steps of {name}")
        assert fleet.events(name, "start")[-1]["config_version"] == version


@pytest.mark.full(but=("sync",))
def test_fewer_are_enough(fleet):
    """At once, with a learning rate that applies from the first step."""
    output = rolls(fleet, 2, cluster={"min_workers": 2}, train={"learning_rate": 0.02})
    assert "version 2 is in force, since step 0" in output
    trains(fleet)
    assert {rate for _, rate in fleet.rates()} == {0.02}
    come_later(fleet, 2, "worker 3")


def begin(fleet, version, **sections):
    """An operator who also waits until the job trains."""
    operator = subprocess.Popen([fleet.trainer, "rollout", fleet.candidate(version, **sections), "--yes",
                                 "--healthy_secs=1", *fleet.job_flags()],
                                cwd=fleet.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    fleet.until("ps 0", lambda text: f"watching version {version} for 1 s, once enough workers are present" in text,
                "a rollout that waits")
    return operator


@pytest.mark.parametrize("section, keys", [("cluster", {"min_workers": 3}), ("train", {"num_threads": 2}),
                                           ("train", {"batch_size": 40})])
@pytest.mark.full(but=("sync-cluster-keys0", "async-train-keys2"))
def test_it_waits_on_and_is_watched_once_it_trains(fleet, section, keys):
    """Live, local, of the whole job: none is rolled back for lack of steps, of which there were none before."""
    missing = 1 if section == "cluster" else 2
    operator = begin(fleet, 2, **{section: keys})
    wait_for(lambda: f"waiting for {missing} more worker" in fleet.status()[1]["ps 0"]["message"],
             "who is there to be back")
    # The operator has second thoughts, and requires fewer workers the third time.
    assert fleet.rollout("abort").returncode == 0
    output, _ = operator.communicate(timeout=240)
    assert operator.returncode == 1, output
    assert "went back from version 2 to version 1: the operator aborted it" in output, output
    operator = begin(fleet, 3, **{section: keys})
    assert operator.poll() is None and not fleet.events("worker 0", "step") and fleet.alive()
    # The absent one has missed it, and the job has waited for it.
    for i in range(HERE, HERE + missing):
        fleet.start(f"worker {i}", "--train_dir=")
    output, _ = operator.communicate(timeout=240)
    assert operator.returncode == 0 and "version 3 is in force" in output, output
    trains(fleet)
    for i in range(HERE, HERE + missing):
        fleet.until(f"worker {i}", lambda text: '"event":"step"' in text, f"steps of worker {i}")
    wait_for(lambda: {fleet.versions()[name] for name in fleet.members} == {3}, "version 3 everywhere")


@pytest.mark.full(but=("sync",))
def test_a_list_without_those_who_never_came(fleet):
    rolls(fleet, 2, cluster={"min_workers": 2, "worker_hosts": fleet.worker_hosts[:HERE]})
    trains(fleet)


def test_what_does_no_good_is_taken_back(fleet):
    result = fleet.rollout(fleet.candidate(2, cluster={"min_workers": 2}, train={"learning_rate": 1e30}), "--yes",
                           "--healthy_secs=60")
    assert result.returncode == 1 and "went back from version 2 to version 1: the loss is no longer finite" in text_of(
        result), \
        text_of(result)
    # It has begun to train, and continues; a worker that joins is in the previous version.
    trains(fleet)
    come_later(fleet, 1, "worker 2")
