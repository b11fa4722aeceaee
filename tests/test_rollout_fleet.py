"""A fleet of real processes, and good and bad rollouts: whatever happens in whichever phase, it reaches one version.

24 members, 100 in make test-full (or TRAINER_FLEET of them), each under the program's own supervisor, so that a killed
one comes back.
"""

import os
import re
import subprocess
import time

import pytest

import programs
import protocol
from fleets import make_digits, text_of
from trials import Trial, bring, settle

FULL = os.environ.get("TRAINER_TEST_FULL") == "1"

# A hundred members use the whole machine, and others would wait too long for it.
pytestmark = pytest.mark.alone if FULL else pytest.mark.xdist_group("fleet")


@pytest.fixture(scope="module")
def fleet(trainer, full, tmp_path_factory):
    members = int(os.environ.get("TRAINER_FLEET", 100 if full else 24))
    with Trial(trainer, tmp_path_factory.mktemp("fleet") / "north", members) as fleet:
        fleet.start_and_train()
        yield fleet


def test_good_ones(fleet):
    done, output = settle(fleet, *fleet.begin("--healthy_secs=1", train={"learning_rate": 0.04}))
    assert done, output
    done, output = settle(fleet, *fleet.begin("--healthy_secs=1", train={"batch_size": 25}))
    assert done, output
    # A rate that this many asynchronous workers tolerate: each gradient is dozens of steps old, and momentum adds to
    # that.
    momentum = {"optimizer": "momentum", "learning_rate": 0.001}
    done, output = settle(fleet, *fleet.begin("--healthy_secs=1", train=momentum))
    assert done, output


def test_bad_ones_change_nothing(fleet, trainer):
    starts = {name: len(fleet.events(name, "start")) for name in fleet.names()}
    (fleet.folder / "torn.json").write_text('{"fleet": {"version": 90}, "train": {')
    assert fleet.rollout("torn.json", "--yes").returncode == 2
    (fleet.folder / "unknown.json").write_text('{"fleet": {"version": 90}, "train": {"rate": 1}}')
    assert fleet.rollout("unknown.json", "--yes").returncode == 2
    subprocess.run([trainer, "keygen", "--operator=other.key"], cwd=fleet.folder, timeout=240)
    assert "is not signed" in text_of(fleet.rollout(fleet.next(train={"learning_rate": 0.5}), "--yes",
                                                    "--key=other.key"))
    assert "give it a higher one" in text_of(fleet.rollout(fleet.candidate(1, train={"learning_rate": 0.5}), "--yes"))
    # A manifest that was rolled out before, and a modified one.
    manifest = max((fleet.folder / "config.json.d").glob("*.manifest")).read_bytes()
    for name, wrong in (("again", manifest), ("changed", manifest[:60] + b"x" + manifest[61:]),
                        ("torn", manifest[:-9])):
        port = int(fleet.ps_hosts[0].split(":")[1])
        with protocol.Client(port, str(fleet.folder / "fleet.key")) as client:
            assert client.hello(role=3, index=-1, cluster="north")[0] == "welcome"
            client.send("propose", bulk=wrong, healthy_s=1.0)
            assert client.receive()[0] == "error", name
    done, output = settle(fleet, *fleet.begin("--healthy_secs=1", model={"layers": [784, 7, 10]}))
    assert not done and "it would lose layer0/weights" in output
    done, output = settle(fleet, *fleet.begin("--healthy_secs=1", data={"data_source": "idx"}))
    assert not done and "the trial failed" in output
    assert {name: len(fleet.events(name, "start")) for name in fleet.names()} == starts


def test_one_that_diverges_goes_back(fleet):
    done, output = settle(fleet, *fleet.begin("--healthy_secs=100", train={"learning_rate": 1e30}))
    # With this many workers a loss is seen before or after it overflows.
    assert not done and re.search(r"the loss is (no longer finite|[\d.e+]+, and was [\d.e+-]+ before)", output), output
    done, output = settle(fleet, *fleet.begin("--healthy_secs=100", train={"optimizer": "sgd", "learning_rate": 1e30}))
    assert not done


@pytest.mark.parametrize("phase", ["staging", "switching to", "watching"])
@pytest.mark.parametrize("who", ["worker 1", "worker 0", "ps 1", "ps 0"])
@pytest.mark.full(but=("ps 0-switching to", "worker 0-watching"))
def test_who_dies_in_a_live_one(fleet, who, phase):
    operator, version = fleet.begin("--healthy_secs=3", train={"learning_rate": 0.02 + fleet.version / 1000})
    fleet.in_phase(f"{phase} version {version}")
    fleet.kill_child(who)
    settle(fleet, operator, version)


@pytest.mark.parametrize("phase", ["staging", "worker 0 tries", "worker 0 saves the job before the restart in",
                                   "all restart in", "watching"])
@pytest.mark.parametrize("who", ["worker 1", "worker 0", "ps 1", "ps 0"])
@pytest.mark.full(but=("worker 0-worker 0 tries", "ps 0-all restart in", "ps 1-watching"))
def test_who_dies_in_one_of_the_whole_job(fleet, who, phase):
    operator, version = fleet.begin("--healthy_secs=3", train={"batch_size": 20 + fleet.version})
    fleet.in_phase(f"{phase} version {version}")
    fleet.kill_child(who)
    settle(fleet, operator, version)


def test_the_operator_dies(fleet):
    operator, version = fleet.begin("--healthy_secs=1", train={"batch_size": 20 + fleet.version})
    fleet.in_phase(f"staging version {version}")
    operator.kill()
    operator.wait(240)
    fleet.in_phase(f"version {version} is in force")
    assert settle(fleet, operator, version)[0]


def test_a_partition_while_it_switches(fleet, full):
    """In make test-full for longer than the idle timeout; then the fleet rolls back when it is whole again."""
    operator, version = fleet.begin("--healthy_secs=3", train={"learning_rate": 0.015})
    fleet.in_phase(f"switching to version {version}")
    fleet.relay.refuses = True
    fleet.relay.cut()
    time.sleep(14 if full else 4)
    fleet.relay.refuses = False
    settle(fleet, operator, version)


@pytest.mark.full
def test_keys_of_machines(fleet):
    """test_rollout.py has a smaller one for `make test`."""
    make_digits(fleet)
    done, output = settle(fleet, *fleet.begin("--healthy_secs=1", cluster={"recovery_wait_secs": 0.7}))
    assert done, output


def test_a_program_for_all(fleet, trainer):
    done, output = bring(fleet, programs.foreign(trainer, fleet.folder / "foreign"))
    assert not done and "no program for this machine" in output, output
    new = programs.variant(trainer, fleet.folder / "new")
    done, output = bring(fleet, new)
    assert done, output
    assert set(programs.builds(fleet).values()) == {programs.build_of(new)}


def test_programs_that_do_no_good(fleet, trainer, full):
    """They reach only the canary, or nobody; and the running members continue."""
    before = programs.builds(fleet)
    canary = f"worker {len(fleet.worker_hosts) - 1}"
    starts = {name: len(fleet.events(name, "start")) for name in fleet.names() if name != canary}
    cut = programs.variant(trainer, fleet.folder / "cut")
    cut.write_bytes(cut.read_bytes()[:1 << 20])
    good = programs.variant(trainer, fleet.folder / "good", b"one more")
    subprocess.run([trainer, "keygen", "--operator=nobody.key"], cwd=fleet.folder, check=True, timeout=240)
    for path, flags, message in (
        (cut, (), "is truncated"),
        # By ps 0, or by the command: the version in force has another operator's signature.
        (good, ("--key=nobody.key",), "is not signed|no manifest with your signature leads to it"),
        (programs.compile_program(fleet.folder, "crashes", programs.CRASHES), (), f"{canary}: it failed 2 times"),
    ):
        done, output = bring(fleet, path, *flags)
        assert not done and re.search(message, output), output
    if full:
        hangs = programs.compile_program(fleet.folder, "hangs", programs.HANGS)
        done, output = bring(fleet, hangs)
        assert not done and f"{canary}: it failed 2 times" in output, output
        # The canary's pace is that of a config in the same rollout: it depends on nothing else.
        done, output = bring(fleet, good, "--least_speed=50%", train={"max_steps_per_s": 1})
        assert not done and "in the new program, but made" in output, output
    assert programs.builds(fleet) == before
    assert {name: len(fleet.events(name, "start")) for name in starts} == starts
