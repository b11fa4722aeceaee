"""This program together with other builds, in one cluster and in rollouts: one with an additional key of the job, and
in make test-full an older one (tests/older)."""

import pathlib
import subprocess

import pytest

import programs
from fleets import OpenFleet, supervise, text_of
from programs import build_of
from runs import checkpoints, wait_for

BUILD = pathlib.Path(__file__).parent.parent / "build"
NEWER, OLDER = BUILD / "other" / "trainer", BUILD / "older" / "trainer"


@pytest.fixture(params=["newer", "older"])
def other(request, full):
    """Another build's path."""
    if request.param == "older" and not full:
        pytest.skip("in make test-full")
    return str(NEWER if request.param == "newer" else OLDER)


def is_training(fleet):
    wait_for(lambda: set(fleet.versions().values()) == {1}, "version of everybody")
    for i in range(len(fleet.worker_hosts)):
        fleet.until(f"worker {i}", lambda text: text.count('"event":"step"') >= 2, "steps")


def test_it_knows_a_key_more(trainer, tmp_path):
    said = [subprocess.run([program, "config", "show"], cwd=tmp_path, capture_output=True, text=True, check=True,
                           timeout=240).stdout for program in (str(NEWER), trainer)]
    assert "fleet.of_tests" in said[0] and "fleet.of_tests" not in said[1]
    assert said[0].splitlines()[-1] == said[1].splitlines()[-1]  # the digest


@pytest.mark.parametrize("leads", [True, False], ids=["the other leads", "this one leads"])
def test_they_train_together(trainer, other, tmp_path, leads):
    with OpenFleet(trainer, tmp_path / "fleet") as fleet:
        leaders, followers = ("ps 0", "worker 0"), ("ps 1", "worker 1")
        fleet.programs.update(dict.fromkeys(leaders if leads else followers, other))
        fleet.start_and_train()
        is_training(fleet)
        assert set(programs.builds(fleet).values()) == {build_of(pathlib.Path(path)) for path in (other, trainer)}
        fleet.kill("worker 0", 15)
        fleet.wait("worker 0", None)
        step, kept = max(checkpoints(fleet.folder / "run").items())
        for program in (other, trainer):
            said = subprocess.run([program, "inspect", kept], capture_output=True, text=True, check=True, timeout=240)
            assert "layer0/weights" in said.stdout
        # Now each in the other's place: either continues from what the other kind of chief has saved.
        for name in fleet.members:
            fleet.kill(name)
        fleet.programs = dict.fromkeys(followers if leads else leaders, other)
        fleet.start_and_train()
        is_training(fleet)
        assert kept.name in fleet.text("worker 0")
        assert fleet.events("worker 0", "step")[0]["global_step"] > step


def test_it_is_rolled_out_and_back(trainer, other, tmp_path):
    with OpenFleet(trainer, tmp_path / "fleet", ps=1, workers=3) as fleet:
        for name in ("ps 0", "worker 0", "worker 1", "worker 2"):
            supervise(fleet, name)
        is_training(fleet)
        for operator, path in ((trainer, other), (other, trainer)):
            result = subprocess.run([operator, "rollout", f"--binary={path}", "--yes", "--healthy_secs=1",
                                     "--least_speed=0%"], cwd=fleet.folder, capture_output=True, text=True, timeout=240)
            assert result.returncode == 0, text_of(result)
            assert set(programs.builds(fleet).values()) == {build_of(pathlib.Path(path))}
            fleet.goes_on()
        assert fleet.alive()
