"""Rollouts: a cluster in training is given a new config, and rolls back by itself if that does harm."""

import contextlib
import json
import math
import os
import pathlib
import pty
import re
import resource
import shutil
import signal
import subprocess
import time

import pytest

import protocol
from runs import checkpoints, read_lines, wait_for
from fleets import RATE, Fleet, OpenFleet, in_force, make_digits, supervise, text_of


@pytest.fixture
def fleet(trainer, tmp_path):
    with Fleet(trainer, tmp_path / "fleet") as fleet:
        yield fleet


def test_a_learning_rate_changes_while_training_goes_on(fleet):
    fleet.start_and_train()
    new = fleet.candidate(2, learning_rate=0.05)
    result = fleet.rollout(new, "--dry-run")
    assert result.returncode == 0, text_of(result)
    assert "0.1 -> 0.05  (live)" in text_of(result)
    assert set(fleet.versions().values()) == {1}
    result = fleet.rollout(new, "--yes", "--healthy_secs=1")
    assert result.returncode == 0, text_of(result) + fleet.text("ps 0") + fleet.text("worker 0")
    assert "version 2 is in force, since step" in text_of(result)
    assert set(fleet.versions().values()) == {2}
    seen = len(fleet.events("worker 0", "step"))
    fleet.until("worker 0", lambda text: len(fleet.events("worker 0", "step")) > seen + 1, "steps with the new rate")
    rates = fleet.rates()
    assert rates[0][1] == RATE and rates[-1][1] == 0.05
    assert all(process.poll() is None for process in fleet.members.values())
    assert in_force(fleet.folder) == "2"
    audit = [json.loads(line) for line in (fleet.folder / "config.json.d" / "audit.log").read_text().splitlines()]
    assert {line["member"] for line in audit if line["what"] == "switch"} == {"ps 0", "ps 1", "worker 0", "worker 1"}
    # Members running since version 1 and restarted ones recognise each other by the newest.
    assert fleet.rollout(fleet.candidate(3, learning_rate=0.2), "--yes", "--healthy_secs=0.5").returncode == 0
    assert fleet.rollout(fleet.candidate(4, learning_rate=0.05), "--yes", "--healthy_secs=0.5").returncode == 0
    fleet.kill("ps 1")
    fleet.start("ps 1")
    fleet.until("ps 1", lambda text: "training begins" in text or "is complete" in text, "the model")
    fleet.kill("worker 1")
    fleet.start("worker 1", "--train_dir=")
    fleet.until("worker 1", lambda text: '"event":"step"' in text, "steps after its restart")
    assert fleet.events("worker 1", "start")[0]["config_version"] == 4
    assert fleet.events("worker 1", "step")[0]["learning_rate"] == 0.05


def test_a_diverging_learning_rate_goes_back(fleet):
    fleet.start_and_train()
    began = time.monotonic()
    result = fleet.rollout(fleet.candidate(2, learning_rate=1e30), "--yes", "--healthy_secs=60")
    assert result.returncode == 1, text_of(result)
    assert "went back from version 2 to version 1" in text_of(result)
    assert time.monotonic() - began < 60
    assert set(fleet.versions().values()) == {1}
    assert in_force(fleet.folder) == "1"
    seen = len(fleet.events("worker 0", "step"))
    fleet.until("worker 0", lambda text: len(fleet.events("worker 0", "step")) > seen + 2, "steps after going back")
    last = fleet.events("worker 0", "step")[-1]
    assert last["learning_rate"] == RATE and last["loss"] < 3
    assert all(process.poll() is None for process in fleet.members.values())
    result = fleet.rollout(fleet.candidate(2, learning_rate=0.05), "--yes")
    assert result.returncode == 1 and "version 2 was here already" in text_of(result)
    result = fleet.rollout(fleet.candidate(3, learning_rate=0.05), "--yes", "--healthy_secs=1")
    assert result.returncode == 0, text_of(result)
    assert set(fleet.versions().values()) == {3}


def test_what_is_refused(fleet, trainer):
    fleet.start_and_train()
    (fleet.folder / "torn.json").write_text('{"fleet": {"version": 2}, "train": {"learning_rate": ')
    result = fleet.rollout("torn.json", "--yes")
    assert result.returncode == 2 and "torn.json:1:" in text_of(result)
    (fleet.folder / "unknown.json").write_text('{"fleet": {"version": 2}, "train": {"learning_rte": 1}}')
    result = fleet.rollout("unknown.json", "--yes")
    assert result.returncode == 2 and "did you mean train.learning_rate?" in text_of(result)
    for new, message in (
        (fleet.candidate(2), "nothing differs"),
        (fleet.candidate(1, learning_rate=0.05), "fleet.version is 1, but the fleet runs version 1"),
        (fleet.candidate(3, warm_start="elsewhere"),
         "train.warm_start belongs to each machine and can't be rolled out"),
    ):
        result = fleet.rollout(new, "--yes")
        assert result.returncode == 1 and message in text_of(result), text_of(result)
    path = fleet.folder / "new5.json"
    path.write_text(json.dumps({**fleet.config, "fleet": {"name": "south", "version": 5}}))
    result = fleet.rollout(path.name, "--yes")
    assert result.returncode == 1, text_of(result)
    assert "fleet.name can't be changed by a rollout" in text_of(result) or 'cluster "north"' in text_of(result)
    subprocess.run([trainer, "keygen", "--operator=other.key"], cwd=fleet.folder, check=True, timeout=240)
    good = fleet.candidate(6, learning_rate=0.05)
    result = fleet.rollout(good, "--yes", "--key=other.key")
    assert result.returncode == 1 and "is not signed by the operator key" in text_of(result)
    result = fleet.rollout(good)
    assert result.returncode == 1 and "--yes" in text_of(result)
    assert set(fleet.versions().values()) == {1}
    # A member without operator.pub, or with a flag of its own for the key, reports that before anything changes.
    assert fleet.rollout(good, "--yes", "--healthy_secs=0.5").returncode == 0
    # A flag of the operator's machine overrides the file, too.
    flags = [flag for flag in fleet.job_flags() if not flag.startswith("--train_steps")]
    result = subprocess.run([trainer, "rollout", fleet.candidate(7, train_steps=2000000), "--yes", *flags],
                            cwd=fleet.folder, capture_output=True, text=True, timeout=240)
    assert result.returncode == 1 and "train.train_steps is set by a flag or the environment here" in text_of(result)
    (fleet.folder / "operator.pub").unlink()
    result = fleet.rollout(fleet.candidate(8, learning_rate=0.02), "--yes")
    assert result.returncode == 1 and "operator.pub" in text_of(result)
    assert set(fleet.versions().values()) == {6}
    history = subprocess.run([trainer, "rollout", "history"], cwd=fleet.folder, capture_output=True, text=True,
                             timeout=240)
    outcomes = [json.loads(line) for line in history.stdout.splitlines()]
    assert any(line["what"] == "propose" and "not signed" in line["outcome"] for line in outcomes)
    assert any(line["what"] == "propose" and line["version"] == 6 and line["outcome"] == "begun" for line in outcomes)


def propose(fleet, manifest):
    """ps 0's answer to these bytes."""
    port = int(fleet.ps_hosts[0].split(":")[1])
    with protocol.Client(port, str(fleet.folder / "fleet.key")) as client:
        name, fields = client.hello(role=3, index=-1, cluster=fleet.config["fleet"]["name"])
        assert name == "welcome", fields
        client.send("propose", bulk=manifest, healthy_s=1.0)
        name, fields, _ = client.receive()
        return name, fields.get("message", "")


def test_a_manifest_that_is_sent_again_or_elsewhere(trainer, tmp_path):
    with Fleet(trainer, tmp_path / "north") as north, Fleet(trainer, tmp_path / "south", name="south") as south:
        for name in ("operator.key", "operator.pub"):
            (south.folder / name).write_bytes((north.folder / name).read_bytes())
        north.start_and_train()
        south.start_and_train()
        result = north.rollout(north.candidate(2, learning_rate=0.05), "--yes", "--healthy_secs=0.5")
        assert result.returncode == 0, text_of(result)
        manifest = (north.folder / "config.json.d" / "00000002.manifest").read_bytes()
        name, message = propose(south, manifest)
        assert name == "error" and 'for fleet "north", but this is fleet "south"' in message
        name, message = propose(north, manifest)
        assert name == "error" and "the manifest is old" in message
        for torn in (manifest[:-1], manifest[:100], b"", bytes(manifest[:40]) + b"x" + bytes(manifest[41:])):
            name, message = propose(north, torn)
            assert name == "error" and message.startswith("the manifest"), message
        assert set(north.versions().values()) == {2} and set(south.versions().values()) == {1}


def test_without_a_checkpoint_to_go_back_to_nothing_is_begun(trainer, tmp_path):
    with Fleet(trainer, tmp_path, train_dir=False, ps=1, workers=1) as fleet:
        fleet.start_and_train()
        result = fleet.rollout(fleet.candidate(2, learning_rate=0.05), "--yes")
        assert result.returncode == 1
        assert "version 2 was not rolled out, version 1 stays in force: worker 0: worker 0 has no train_dir" in \
            text_of(result)
        assert set(fleet.versions().values()) == {1}


def test_the_operator_may_vanish(fleet):
    fleet.start_and_train()
    operator = subprocess.Popen([fleet.trainer, "rollout", fleet.candidate(2, learning_rate=0.05), "--yes",
                                 "--healthy_secs=1", *fleet.job_flags()], cwd=fleet.folder, stdout=subprocess.DEVNULL)
    fleet.until("ps 0", lambda text: "staging version 2" in text, "a rollout")
    operator.kill()
    operator.wait(240)
    fleet.until("ps 0", lambda text: "version 2 is in force, since step" in text, "version 2")
    assert set(fleet.versions().values()) == {2}


def test_the_operator_waits_for_a_busy_ps(fleet):
    """ps 0 is stopped for longer than one answer may take: before it is asked anything, and with a proposal in flight.
    """
    fleet.start_and_train()
    new, status = fleet.candidate(2, learning_rate=0.05), {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT,
                                                           "text": True}
    fleet.kill("ps 0", signal.SIGSTOP)
    asks = subprocess.Popen([fleet.trainer, "rollout", "status", *fleet.job_flags()], cwd=fleet.folder, **status)
    assert "waiting for ps 0" in read_lines(asks, 1)
    fleet.kill("ps 0", signal.SIGCONT)
    output, _ = asks.communicate(timeout=240)
    assert asks.returncode == 0 and "no rollout since" in output, output

    terminal, slave = pty.openpty()
    operator = subprocess.Popen([fleet.trainer, "rollout", new, "--healthy_secs=1", *fleet.job_flags()],
                                cwd=fleet.folder, stdin=slave, **status)
    os.close(slave)
    told = ""
    while "[y/N]" not in told:
        told += operator.stdout.read(1)
    fleet.kill("ps 0", signal.SIGSTOP)
    os.write(terminal, b"y\n")
    assert "asking ps 0 whether it has version 2" in operator.stdout.readline()
    fleet.kill("ps 0", signal.SIGCONT)
    output, _ = operator.communicate(timeout=240)
    os.close(terminal)
    assert operator.returncode == 0 and "version 2 is in force, since step" in output, output
    audit = (fleet.folder / "config.json.d" / "audit.log").read_text().splitlines()
    assert [json.loads(line)["outcome"] for line in audit if '"propose"' in line] == ["begun"]


def test_abort(fleet):
    fleet.start_and_train()
    operator = subprocess.Popen([fleet.trainer, "rollout", fleet.candidate(2, learning_rate=0.05), "--yes",
                                 "--healthy_secs=60", *fleet.job_flags()], cwd=fleet.folder, stdout=subprocess.PIPE,
                                text=True)
    fleet.until("ps 0", lambda text: "watching version 2" in text, "version 2")
    assert "watching version 2" in text_of(fleet.rollout("status"))
    assert fleet.rollout("abort").returncode == 0
    output, _ = operator.communicate(timeout=240)
    assert operator.returncode == 1 and "went back from version 2 to version 1: the operator aborted it" in output
    assert set(fleet.versions().values()) == {1}
    assert fleet.rollout("abort").returncode == 1


@pytest.mark.parametrize("who", ["ps 0", "ps 1", "worker 0", "worker 1"])
@pytest.mark.full(but=("ps 0", "worker 1"))
def test_a_member_that_dies_while_it_is_watched(fleet, who):
    fleet.start_and_train()
    operator = subprocess.Popen([fleet.trainer, "rollout", fleet.candidate(2, learning_rate=0.05), "--yes",
                                 "--healthy_secs=8", *fleet.job_flags()], cwd=fleet.folder, stdout=subprocess.PIPE,
                                text=True)
    fleet.until("ps 0", lambda text: "watching version 2" in text, "version 2")
    fleet.kill(who)
    fleet.start(who, *(["--train_dir="] if who == "worker 1" else []))
    output, _ = operator.communicate(timeout=240)
    assert operator.returncode in (0, 1), output
    expected = {2} if operator.returncode == 0 else {1}
    wait_for(lambda: set(fleet.versions().values()) == expected, f"one version; {output}")
    seen = fleet.text("worker 0").count('"event":"step"')
    fleet.until("worker 0", lambda text: text.count('"event":"step"') > seen + 1, "steps")
    assert fleet.events("worker 0", "step")[-1]["learning_rate"] == (0.05 if expected == {2} else RATE)


@pytest.fixture
def open_fleet(trainer, tmp_path):
    with OpenFleet(trainer, tmp_path / "fleet") as fleet:
        yield fleet


def test_intervals_are_taken_up_between_two_steps(open_fleet):
    """New steps of checkpoints, and new rules of what to keep, without a restart."""
    fleet = open_fleet
    fleet.start_and_train()
    processes = {name: process.pid for name, process in fleet.members.items()}
    result = fleet.rollout(fleet.candidate(2, output={"save_steps": 400, "max_to_keep": 2, "validate_steps": 300},
                                           train={"learning_rate": 0.04}), "--yes", "--healthy_secs=1")
    assert result.returncode == 0, text_of(result) + fleet.text("worker 0")
    for change in ("output.save_steps 0 -> 400 (live)", "output.max_to_keep 5 -> 2 (live)",
                   "output.validate_steps 0 -> 300 (live)"):
        assert change in " ".join(text_of(result).split()), text_of(result)
    kept = lambda: checkpoints(fleet.folder / "run")
    new = lambda: {step for step in kept() if step % 400 == 0}
    wait_for(lambda: len(new()) == 2 and len(kept()) == 2, "two checkpoints of the new kind")
    assert fleet.goes_on()["learning_rate"] == 0.04
    assert fleet.alive() and {name: process.pid for name, process in fleet.members.items()} == processes
    assert len(fleet.events("worker 0", "start")) == 1
    # And back, by another rollout.
    result = fleet.rollout(fleet.candidate(3, output={"save_steps": 0, "max_to_keep": 3}), "--yes", "--healthy_secs=1")
    assert result.returncode == 0, text_of(result)
    fleet.goes_on()
    before = max(kept())
    fleet.goes_on(10)
    assert max(kept()) == before


@pytest.mark.parametrize("dtype, bytes_each", [("float32", 24), ("bfloat16", 26)])
def test_a_worker_without_the_memory_says_so(open_fleet, dtype, bytes_each):
    """Parameters and gradients three times each, and once more in two bytes if parameters are sent as differences."""
    fleet = open_fleet
    fleet.start_and_train()
    limit = 64 << 20
    resource.prlimit(fleet.members["worker 1"].pid, resource.RLIMIT_AS, (limit, limit))
    layers = [784, 8192, 10]
    result = fleet.rollout(fleet.candidate(2, model={"layers": layers}, cluster={"wire_dtype": dtype}), "--yes")
    floats = sum((a + 1) * b for a, b in zip(layers, layers[1:]))
    wanted = (floats * bytes_each + 12 * sum(layers) * 50) >> 20
    refusal = re.search(r"worker 1: it would need about (\d+) MiB of memory here, but there are (\d+)", text_of(result))
    assert result.returncode == 1 and refusal, text_of(result)
    assert 0 <= int(refusal[1]) - wanted <= 2 and int(refusal[2]) == 64  # rows are padded
    fleet.goes_on()


def test_another_optimizer_by_a_restart_of_the_whole_job(open_fleet):
    fleet = open_fleet
    fleet.start_and_train()
    processes = {name: process.pid for name, process in fleet.members.items()}
    before = fleet.goes_on()["global_step"]
    result = fleet.rollout(fleet.candidate(2, train={"optimizer": "momentum", "batch_size": 40, "learning_rate": 0.01}),
                           "--yes", "--healthy_secs=1")
    assert result.returncode == 0, text_of(result) + fleet.text("worker 0") + fleet.text("ps 0")
    assert "version 2 would follow version 1, by a checkpoint and a restart of the whole job" in text_of(result)
    assert set(fleet.versions().values()) == {2} and in_force(fleet.folder) == "2"
    starts = fleet.events("worker 0", "start")
    assert [start["config_version"] for start in starts] == [1, 2]
    assert starts[1]["global_step"] >= before and "run/model-" in starts[1]["restored_from"]
    last = fleet.goes_on()
    assert last["loss"] < 1.5 and last["learning_rate"] == 0.01
    # The same processes, restarted in place.
    assert fleet.alive() and {name: process.pid for name, process in fleet.members.items()} == processes
    assert "is used as far as it fits" in fleet.text("worker 0")


def nices(pid):
    """Of the main thread, and of each of the others."""
    found = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it may just have ended
            found[int(task.name)] = int((task / "stat").read_text().rsplit(")", 1)[1].split()[16])
    return found.pop(pid), set(found.values())


def quota():
    """Limits the CPUs that this cgroup may use."""
    try:
        most, period = pathlib.Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (FileNotFoundError, ValueError):
        return math.inf
    return math.inf if most == "max" else int(most) / int(period)


def is_gone(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize("crowded", (True, False))
@pytest.mark.full(but=("True",))
def test_on_a_crowded_machine_training_gives_way(trainer, tmp_path, crowded):
    """4 members on 1 CPU: computing threads are nicer than answering ones, and a restart does not inherit that. A
    member that has restarted is still its parent's child."""
    cpus, own = os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)
    if own >= 5 or len(cpus) < 2 or quota() < 2:
        pytest.skip("needs two CPUs, and to be less nice")
    os.sched_setaffinity(0, set(sorted(cpus)[:1 if crowded else len(cpus)]))
    try:
        with OpenFleet(trainer, tmp_path / "fleet") as fleet:
            fleet.start_and_train()
            fleet.kill("worker 1")
            supervise(fleet, "worker 1")
            fleet.until("worker 1", lambda text: '"event":"step"' in text, "steps")
            parent = fleet.members["worker 1"].pid
            worker = int(pathlib.Path(f"/proc/{parent}/task/{parent}/children").read_text())
            for version in (1, 2):
                assert nices(fleet.members["ps 0"].pid) == (own, {own})
                wait_for(lambda: nices(worker)[0] == (5 if crowded else own), "training")
                assert own in nices(worker)[1]
                if version == 1:
                    result = fleet.rollout(fleet.candidate(2, train={"batch_size": 20}), "--yes", "--healthy_secs=0.5")
                    assert result.returncode == 0, text_of(result)
                    fleet.goes_on()
            fleet.kill("worker 1")
            wait_for(lambda: is_gone(worker), "end of a worker whose parent has died")
    finally:
        os.sched_setaffinity(0, cpus)


def test_a_job_config_that_does_no_good_goes_back(open_fleet):
    fleet = open_fleet
    fleet.start_and_train()
    before = fleet.goes_on()["global_step"]
    result = fleet.rollout(fleet.candidate(2, train={"optimizer": "momentum", "learning_rate": 50.0}), "--yes",
                           "--healthy_secs=60")
    assert result.returncode == 1, text_of(result)
    assert "went back from version 2 to version 1: the loss is" in text_of(result)
    assert set(fleet.versions().values()) == {1} and in_force(fleet.folder) == "1"
    last = fleet.goes_on()
    assert last["global_step"] > before and last["loss"] < 1.5 and last["learning_rate"] == 0.05
    assert fleet.events("worker 0", "start")[-1]["global_step"] >= before


def test_layers_that_lose_something_need_a_word(open_fleet):
    fleet = open_fleet
    fleet.start_and_train()
    result = fleet.rollout(fleet.candidate(2, model={"layers": [784, 24, 10]}), "--yes", "--healthy_secs=1")
    assert result.returncode == 1, text_of(result)
    assert "version 2 was not rolled out, version 1 stays in force: worker 0: it would lose layer0/weights [784,32], " \
           "which would be [784,24]" in text_of(result)
    fleet.goes_on()
    assert set(fleet.versions().values()) == {1} and len(fleet.events("worker 0", "start")) == 1
    # A trial that fails: only worker 0 has noticed.
    result = fleet.rollout(fleet.candidate(3, data={"data_source": "idx"}), "--yes")
    assert result.returncode == 1 and "the trial failed" in text_of(result), text_of(result)
    result = fleet.rollout(fleet.candidate(4, model={"layers": [784, 24, 10]}), "--yes", "--healthy_secs=1",
                           "--may_lose")
    assert result.returncode == 0, text_of(result)
    assert fleet.goes_on()["loss"] < 2.5
    assert fleet.events("worker 0", "start")[-1]["global_step"] > 0
    assert "dropped: layer0/weights [784,32], which would be [784,24]" in fleet.text("worker 0")


def test_another_proposal_meanwhile(open_fleet):
    """It is refused, and after a restart the leader finds the rollout under way on its disk."""
    fleet = open_fleet
    fleet.start_and_train()
    operator = subprocess.Popen([fleet.trainer, "rollout", fleet.candidate(2, train={"batch_size": 40}), "--yes",
                                 "--healthy_secs=8", *fleet.job_flags()], cwd=fleet.folder, stdout=subprocess.PIPE,
                                text=True)
    fleet.until("ps 0", lambda text: "worker 0 tries version 2" in text, "a trial")
    result = fleet.rollout(fleet.candidate(3, train={"batch_size": 30}), "--yes")
    assert result.returncode == 1 and "only one can be at a time" in text_of(result), text_of(result)
    output, _ = operator.communicate(timeout=240)
    assert operator.returncode == 0 and "version 2 is in force" in output, output
    assert set(fleet.versions().values()) == {2}
    fleet.goes_on()


def test_revert(open_fleet):
    fleet = open_fleet
    fleet.start_and_train()
    assert fleet.rollout("revert", "--yes").returncode == 1
    result = fleet.rollout(fleet.candidate(2, train={"batch_size": 40}), "--yes", "--healthy_secs=0.5")
    assert result.returncode == 0, text_of(result)
    result = fleet.rollout("revert", "--yes", "--healthy_secs=0.5")
    assert result.returncode == 0 and "train.batch_size             40 -> 50" in text_of(result), text_of(result)
    assert set(fleet.versions().values()) == {3}
    fleet.goes_on()


# --- Members that die, come late, or were edited by hand ---


def test_a_config_that_is_the_death_of_a_member(open_fleet):
    """worker 1's data folder is missing, so that it can't start in version 2: its parent brings it back on the
    fallback."""
    fleet = open_fleet
    make_digits(fleet)
    for name in ("ps 0", "ps 1", "worker 0"):
        supervise(fleet, name, "--data_dir=digits")
    supervise(fleet, "worker 1", "--data_dir=nowhere")
    fleet.until("worker 0", lambda text: text.count('"event":"step"') >= 2, "steps")
    fleet.until("worker 1", lambda text: '"event":"step"' in text, "steps of worker 1")
    before = fleet.goes_on()["global_step"]
    result = fleet.rollout(fleet.candidate(2, data={"data_source": "idx"}), "--yes", "--healthy_secs=5",
                           "--data_dir=digits")
    assert result.returncode == 1, text_of(result)
    assert "went back from version 2 to version 1: worker 1: it failed 2 times when started in version 2" \
        in text_of(result)
    assert set(fleet.versions().values()) == {1} and fleet.alive()
    assert fleet.goes_on()["global_step"] >= before
    assert fleet.text("worker 1").count("restarting it in") == 2
    seen = fleet.text("worker 1").count('"event":"step"')
    fleet.until("worker 1", lambda text: text.count('"event":"step"') > seen, "steps of worker 1 in version 1")
    # The parent passes on the signal to stop, and its child's last message.
    fleet.kill("worker 0", signal.SIGTERM)
    fleet.wait("worker 0", 143)


def test_a_member_that_was_away_catches_up(open_fleet):
    fleet = open_fleet
    fleet.start_and_train()
    for version, batch in ((2, 40), (3, 30)):
        result = fleet.rollout(fleet.candidate(version, train={"batch_size": batch}), "--yes", "--healthy_secs=0.5")
        assert result.returncode == 0, text_of(result)
    # A machine that slept through both, or was set up from the first config.json: its own folder.
    fleet.kill("worker 1", signal.SIGTERM)
    fleet.members["worker 1"].wait(240)
    old = fleet.folder / "old"
    old.mkdir()
    for name in ("config.json", "operator.pub", "fleet.key"):
        shutil.copy2(fleet.folder / name, old / name)
    fleet.start("worker 1", "--train_dir=", "--config=old/config.json")
    fleet.until("worker 1", lambda text: text.count('"event":"step"') > 1, "steps in version 3")
    text = fleet.text("worker 1")
    assert "the fleet is at version 3 of the config: this process restarts in it" in text
    assert fleet.events("worker 1", "start")[-1]["config_version"] == 3
    assert in_force(old) == "3"
    # Without the operator's key it does not believe that, and says so.
    fleet.kill("worker 1", signal.SIGTERM)
    fleet.members["worker 1"].wait(240)
    shutil.rmtree(old / "config.json.d")
    subprocess.run([fleet.trainer, "keygen", "--operator=old/other.key"], cwd=fleet.folder, check=True, timeout=240)
    (old / "operator.pub").write_bytes((old / "other.key.pub").read_bytes())
    fleet.start("worker 1", "--train_dir=", "--config=old/config.json")
    fleet.until("worker 1", lambda text: "it can't follow: the manifest is not signed by the operator key" in text,
                "no")
    assert '"event":"step"' not in fleet.text("worker 1")
    fleet.kill("worker 1")
    # A newer one waits, and is admitted once that version is rolled out.
    newer = json.loads((old / "config.json").read_text())
    newer["fleet"]["version"], newer["train"]["batch_size"] = 4, 20
    (old / "config.json").write_text(json.dumps(newer))
    fleet.start("worker 1", "--train_dir=", "--config=old/config.json")
    fleet.until("worker 1",
                lambda text: "worker 1 has version 4 of the config, ps 0 has version 3; it waits until that is "
                                         "rolled out" in text, "a word")
    assert fleet.members["worker 1"].poll() is None


def test_a_worker_that_is_off_holds_nothing_up(open_fleet):
    """A dead machine must not keep the others from live and local changes; it catches up when it is back."""
    fleet = open_fleet
    old = fleet.folder / "old"  # another machine has its own folder
    old.mkdir()
    for name in ("config.json", "operator.pub", "fleet.key"):
        shutil.copy2(fleet.folder / name, old / name)
    fleet.start_and_train()
    fleet.kill("worker 1")
    fleet.members["worker 1"].wait(240)
    time.sleep(11)  # by then it counts as off, and not as restarting
    for version, train in ((2, {"learning_rate": 0.02}), (3, {"learning_rate": 0.02, "num_threads": 2})):
        result = fleet.rollout(fleet.candidate(version, train=train), "--yes", "--healthy_secs=0.5")
        assert result.returncode == 0, text_of(result)
    fleet.start("worker 1", "--train_dir=", "--config=old/config.json")
    fleet.until("worker 1", lambda text: '"event":"step"' in text, "steps")
    assert in_force(old) == "3"
    assert fleet.events("worker 1", "step")[-1]["learning_rate"] == pytest.approx(0.02)


def test_what_is_edited_by_hand_shows_as_drift(open_fleet):
    fleet = open_fleet
    fleet.start_and_train()
    assert not any("drift" in member["message"] for member in fleet.status()[1].values())
    path = fleet.folder / "config.json"
    shutil.copy2(path, fleet.folder / "own.json")  # the operator's copy is unchanged
    edited = json.loads(path.read_text())
    edited["train"]["learning_rate"] = 7
    path.write_text(json.dumps(edited, indent=1))
    wait_for(lambda: all("drift: config.json was edited by hand" in member["message"]
                         for member in fleet.status()[1].values()), "drift of everybody")
    result = fleet.rollout(fleet.candidate(2, train={"batch_size": 40}), "--yes", "--healthy_secs=0.5",
                           "--config=own.json")
    assert result.returncode == 0, text_of(result)
    # After a restart they run what was rolled out, still report the drift, and have left the file alone.
    wait_for(lambda: all("drift" in member["message"] for member in fleet.status()[1].values()), "the same drift")
    assert fleet.goes_on()["learning_rate"] == 0.05
    assert json.loads(path.read_text()) == edited


# --- Local keys ---


def test_local_keys_change_in_waves_without_a_pause(trainer, tmp_path):
    with OpenFleet(trainer, tmp_path / "fleet", ps=1, workers=4) as fleet:
        fleet.start_and_train()
        result = fleet.rollout(fleet.candidate(2, train={"num_threads": 2}), "--yes", "--healthy_secs=1")
        assert result.returncode == 0, text_of(result) + fleet.text("worker 3")
        assert "train.num_threads            each machine's own -> 2  (local)" in text_of(result)
        assert "by restarting machines one after the other" in text_of(result)
        assert "the canary first" in text_of(result) and "the canary is well" in text_of(result)
        assert set(fleet.versions().values()) == {2} and fleet.alive()
        for i in range(4):
            fleet.until(f"worker {i}", lambda text: text.count('"event":"start"') == 2, "a second start")
            assert fleet.events(f"worker {i}", "start")[-1]["config_version"] == 2
        assert "2 threads" in json.dumps(fleet.events("worker 3", "start")[-1])
        assert len(fleet.events("ps 0", "start")) <= 1
        # ps 0 kept serving: there is only the first generation.
        assert "generation 2" not in fleet.text("worker 0")
        audit = [json.loads(line) for line in (fleet.folder / "config.json.d" / "audit.log").read_text().splitlines()]
        order = [line["member"] for line in audit if line["what"] in ("start again", "switch")]
        assert order[0] == "worker 3" and order[-1] in ("ps 0", "worker 0", "worker 1", "worker 2")
        result = fleet.rollout("revert", "--yes", "--healthy_secs=0.5")
        assert result.returncode == 0 and set(fleet.versions().values()) == {3}, text_of(result)


def test_a_bad_local_version_reaches_the_canary_only(trainer, tmp_path):
    with OpenFleet(trainer, tmp_path / "fleet", ps=1, workers=3, data={"data_source": "idx"}) as fleet:
        make_digits(fleet)
        fleet.config["data"]["data_dir"] = "digits"
        (fleet.folder / "config.json").write_text(json.dumps(fleet.config))
        for name in ("ps 0", "worker 0", "worker 1", "worker 2"):
            supervise(fleet, name)
        fleet.until("worker 0", lambda text: text.count('"event":"step"') >= 2, "steps")
        wait_for(lambda: set(fleet.versions().values()) == {1}, "version of everybody")
        result = fleet.rollout(fleet.candidate(2, data={"data_dir": "nowhere"}), "--yes", "--healthy_secs=1")
        assert result.returncode == 1, text_of(result)
        assert "went back from version 2 to version 1: worker 2: it failed 2 times" in text_of(result)
        assert set(fleet.versions().values()) == {1}
        fleet.goes_on()
        for name in ("worker 0", "worker 1"):
            assert len(fleet.events(name, "start")) == 1, name
        assert fleet.alive() and "restarting it in" in fleet.text("worker 2")
        assert [start["config_version"] for start in fleet.events("worker 2", "start")] == [1, 1]


def test_synchronous_training_takes_a_live_change(trainer, tmp_path):
    with OpenFleet(trainer, tmp_path / "fleet", ps=2, workers=2, cluster={"issync": True}) as fleet:
        fleet.start_and_train()
        result = fleet.rollout(fleet.candidate(2, train={"learning_rate": 0.02}), "--yes", "--healthy_secs=1")
        assert result.returncode == 0, text_of(result)
        assert fleet.goes_on()["learning_rate"] == 0.02
        result = fleet.rollout(fleet.candidate(3, train={"learning_rate": 1e30}), "--yes", "--healthy_secs=60")
        assert result.returncode == 1 and "went back from version 3 to version 2" in text_of(result), text_of(result)
        last = fleet.goes_on()
        assert last["learning_rate"] == 0.02 and last["loss"] < 3
        result = fleet.rollout(fleet.candidate(4, train={"optimizer": "adam", "learning_rate": 0.001}), "--yes",
                               "--healthy_secs=1")
        assert result.returncode == 0, text_of(result)
        assert fleet.goes_on()["loss"] < 3 and set(fleet.versions().values()) == {4} and fleet.alive()


# --- Permissions ---


def test_a_member_without_a_config_may_report_and_no_more(open_fleet):
    fleet = open_fleet
    fleet.start_and_train()
    port = int(fleet.ps_hosts[0].split(":")[1])
    key = str(fleet.folder / "fleet.key")
    report = {"version": 1, "target": 0, "phase": 0, "ready": 0, "loss": -1.0, "digest": "", "message": ""}
    with protocol.Client(port, key) as client:
        assert client.hello(role=2, index=1, digest="", job="", cluster="north")[0] == "welcome"
        name, fields, _ = client.call("report", **report)
        assert name == "rollout" and fields["order"] == 0 and fields["job"] == ""
        # The real worker 1 is connected, and only its own report counts.
        before = fleet.status()[1]["worker 1"]
        assert client.call("report", **{**report, "digest": "0" * 64})[0] == "rollout"
        after = fleet.status()[1]["worker 1"]
        assert after["config_digest"] == before["config_digest"] and after["config_version"] == 1
        for request, values in (("get_model", {"wait_ms": 0}), ("abort_rollout", {"who": "me"}),
                                ("snapshot", {"snapshot": 1, "at_step": -1, "wait_ms": 0}),
                                ("pull", {"dtype": 0, "since_version": 0, "after_step": -1, "wait_ms": 0,
                                          "ranges": []})):
            name, fields, _ = client.call(request, **values)
            assert name == "error" and fields["code"] == 2, (request, name, fields)
        client.send("propose", bulk=b"x", healthy_s=1.0)
        name, fields, _ = client.receive()
        assert name == "error" and fields["code"] == 2
    # The real worker 1 was not affected, and an unknown member gets no place.
    with protocol.Client(port, key) as client:
        name, fields = client.hello(role=2, index=60000, digest="", job="", cluster="north")
        assert name == "refused" and "there is no worker 60000" in fields["message"], fields
    fleet.until("worker 1", lambda text: '"event":"step"' in text, "steps of worker 1")
    assert set(fleet.versions().values()) == {1}
    assert fleet.alive()


def test_hosts_are_added_at_the_end(trainer, tmp_path):
    """An additional worker: started with the new file, it learns that it is ahead, and joins with the rollout."""
    with OpenFleet(trainer, tmp_path / "fleet", ps=1, workers=3) as fleet:
        everybody = fleet.worker_hosts
        fleet.config["cluster"]["worker_hosts"] = everybody[:2]
        (fleet.folder / "config.json").write_text(json.dumps(fleet.config))
        for name in ("ps 0", "worker 0", "worker 1"):
            fleet.start(name, *(["--train_dir="] if name == "worker 1" else []))
        fleet.until("worker 0", lambda text: text.count('"event":"step"') >= 2, "steps")
        wait_for(lambda: set(fleet.versions().values()) == {1}, "version of everybody")
        new = fleet.candidate(2, cluster={"worker_hosts": everybody})
        newcomer = fleet.folder / "newcomer"
        newcomer.mkdir()
        for name in ("operator.pub", "fleet.key"):
            shutil.copy2(fleet.folder / name, newcomer / name)
        shutil.copy2(fleet.folder / new, newcomer / "config.json")
        fleet.start("worker 2", "--train_dir=", "--config=newcomer/config.json")
        fleet.until("worker 2",
                    lambda text: "worker 2 has version 2 of the config, ps 0 has version 1; it waits until that "
                                             "is rolled out" in text, "a word")
        result = fleet.rollout(new, "--yes", "--healthy_secs=1")
        assert result.returncode == 0, text_of(result)
        fleet.until("worker 2", lambda text: '"event":"step"' in text, "steps of worker 2")
        wait_for(lambda: set(fleet.versions().values()) == {2}, "version 2 of everybody")
        # And removed again: the one that is not part of version 3 ends.
        fleet.config["cluster"]["worker_hosts"] = everybody
        result = fleet.rollout(fleet.candidate(3, cluster={"worker_hosts": everybody[:2]}), "--yes", "--healthy_secs=1")
        assert result.returncode == 0, text_of(result)
        fleet.wait("worker 2", 0)
        assert "is no longer in it and exits" in fleet.text("worker 2")
        fleet.goes_on()


@pytest.mark.parametrize("name", ["current", "00000002.json"])
@pytest.mark.full(but=("current",))
def test_a_damaged_record_of_versions_heals(open_fleet, name):
    """As after a power cut: what is whole comes into force, and the fleet brings the rest."""
    fleet = open_fleet
    other = fleet.folder / "other"
    other.mkdir()
    for file in ("operator.pub", "fleet.key", "config.json"):
        shutil.copy2(fleet.folder / file, other / file)
    fleet.start("ps 0")
    fleet.start("ps 1")
    fleet.start("worker 0")
    fleet.start("worker 1", "--config=other/config.json", "--train_dir=")
    wait_for(lambda: 0 not in fleet.versions().values() and len(fleet.events("worker 0", "step")) > 1, "all at work")
    result = fleet.rollout(fleet.candidate(2, train={"learning_rate": 0.04}), "--yes", "--healthy_secs=0.5")
    assert result.returncode == 0, text_of(result)
    fleet.kill("worker 1", signal.SIGTERM)
    fleet.wait("worker 1", status=None)
    (other / "config.json.d" / name).write_bytes(b"")
    fleet.start("worker 1", "--config=other/config.json", "--train_dir=")
    fleet.until("worker 1", lambda text: f"{name}: set aside" in text, "word of the damage")
    wait_for(lambda: (other / "config.json.d" / "current").exists() and in_force(other) == "2", "version 2")
    fleet.until("worker 1", lambda text: fleet.events("worker 1", "step"), "steps")
