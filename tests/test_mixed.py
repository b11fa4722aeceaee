"""This program together with its next version, in one cluster and in rollouts: that one has a key of the job and a
protocol version more, which brings a field (build/other/trainer, tests/test.mk)."""

import pathlib
import struct
import subprocess

import protocol
import pytest

import programs
from fleets import OpenFleet, supervise, text_of
from programs import build_of
from runs import checkpoints, wait_for

NEXT = pathlib.Path(__file__).parent.parent / "build" / "other" / "trainer"


@pytest.fixture
def other():
    """The next version's path."""
    return str(NEXT)


def is_training(fleet):
    wait_for(lambda: set(fleet.versions().values()) == {1}, "version of everybody")
    for i in range(len(fleet.worker_hosts)):
        fleet.until(f"worker {i}", lambda text: text.count('"event":"step"') >= 2, "steps")


def test_it_knows_a_key_more(trainer, tmp_path):
    said = [subprocess.run([program, "config", "show"], cwd=tmp_path, capture_output=True, text=True, check=True,
                           timeout=240).stdout for program in (str(NEXT), trainer)]
    assert "fleet.of_tests" in said[0] and "fleet.of_tests" not in said[1]
    assert said[0].splitlines()[-1] == said[1].splitlines()[-1]  # the digest


@pytest.mark.parametrize("leads", [True, False], ids=["the other leads", "this one leads"])
@pytest.mark.full(but=("the other leads",))
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


@pytest.mark.parametrize("is_next, versions, agreed, extra", [
    (False, (1, 1), 1, 0), (False, (1, 2), 1, 0), (True, (1, 1), 1, 0), (True, (1, 2), 2, 8), (True, (1, 3), 2, 8),
    (True, (2, 2), 2, 8)])
def test_each_connection_speaks_the_highest_version_of_both(trainer, other, tmp_path, is_next, versions, agreed, extra):
    """A frame of the agreed version, with the field that came with it or without, is read to its end."""
    with OpenFleet(trainer, tmp_path / "fleet", ps=1) as fleet:
        fleet.programs["ps 0"] = other if is_next else trainer
        fleet.start_and_train()
        is_training(fleet)
        digest = fleet.status()[1]["worker 1"]["config_digest"]
        fleet.kill("worker 1")
        with protocol.Client(int(fleet.ps_hosts[0].split(":")[1]), str(fleet.folder / "fleet.key")) as client:
            name, fields = client.hello(version_min=versions[0], version_max=versions[1], cluster="north", index=1,
                                        digest=digest, fleet_version=1, incarnation=77)
            assert (name, fields.get("version")) == ("welcome", agreed), fields
            beat = protocol.encode("heartbeat", state=3)
            for size, wanted in ((extra, "lease"), (8 - extra, "error")):
                client.socket.sendall(protocol.frame("heartbeat", beat + struct.pack("<Q", 5)[:size], request=9,
                                                     version=agreed))
                assert client.receive()[0] == wanted


def test_versions_without_a_common_one_are_refused(trainer, tmp_path):
    with OpenFleet(trainer, tmp_path / "fleet", ps=1) as fleet:
        fleet.start_and_train()
        with protocol.Client(int(fleet.ps_hosts[0].split(":")[1]), str(fleet.folder / "fleet.key")) as client:
            name, fields = client.hello(version_min=2, version_max=3, cluster="north", index=1, incarnation=77)
            assert (name, fields["reason"]) == ("refused", 1) and "upgrade the older one" in fields["message"]
