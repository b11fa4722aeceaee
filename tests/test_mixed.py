"""This program beside another build, which knows a key of the job more: in one cluster, and rolled out over it."""

import os
import pathlib
import subprocess

import pytest

import programs
from fleets import OpenFleet, supervise, text_of
from programs import build_of
from runs import wait_for

OTHER = pathlib.Path(__file__).parent.parent / "build" / "other" / "trainer"


def is_training(fleet):
    wait_for(lambda: set(fleet.versions().values()) == {1}, "version of everybody", 60)
    for i in range(len(fleet.worker_hosts)):
        fleet.until(f"worker {i}", lambda text: text.count('"event":"step"') >= 2, "steps", 60)


def test_it_knows_a_key_more(trainer, tmp_path):
    said = [subprocess.run([program, "config", "show"], cwd=tmp_path, capture_output=True, text=True, check=True,
                           timeout=30).stdout for program in (str(OTHER), trainer)]
    assert "fleet.of_tests" in said[0] and "fleet.of_tests" not in said[1]
    assert said[0].splitlines()[-1] == said[1].splitlines()[-1]  # the digest


@pytest.mark.parametrize("leads", [True, False], ids=["new leads", "old leads"])
def test_they_train_together(trainer, tmp_path, leads):
    with OpenFleet(trainer, tmp_path / "fleet") as fleet:
        fleet.programs.update({name: str(OTHER) for name in (("ps 0", "worker 1") if leads else ("ps 1", "worker 0"))})
        fleet.start_and_train()
        is_training(fleet)
        assert set(programs.builds(fleet).values()) == {build_of(OTHER), build_of(pathlib.Path(trainer))}
        # Either reads what the chief of the other kind saves.
        fleet.kill("worker 0", 15)
        fleet.wait("worker 0", None)
        newest = max((fleet.folder / "run").glob("model-*.safetensors"), key=os.path.getmtime)
        for program in (str(OTHER), trainer):
            said = subprocess.run([program, "inspect", newest], capture_output=True, text=True, check=True, timeout=30)
            assert "layer0/weights" in said.stdout


def test_it_is_rolled_out_and_back(trainer, tmp_path):
    with OpenFleet(trainer, tmp_path / "fleet", ps=1, workers=3) as fleet:
        for name in ("ps 0", "worker 0", "worker 1", "worker 2"):
            supervise(fleet, name)
        is_training(fleet)
        for operator, path in ((trainer, str(OTHER)), (str(OTHER), trainer)):
            result = subprocess.run([operator, "rollout", f"--binary={path}", "--yes", "--healthy_secs=1",
                                     "--least_speed=0%"], cwd=fleet.folder, capture_output=True, text=True, timeout=120)
            assert result.returncode == 0, text_of(result)
            assert set(programs.builds(fleet).values()) == {build_of(pathlib.Path(path))}
            fleet.goes_on()
        assert fleet.alive()
