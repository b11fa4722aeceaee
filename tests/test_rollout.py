"""Rollouts: a cluster that trains is given a new config, and goes back by itself where that does no good."""

import json
import subprocess
import time

import pytest

import protocol
from clusters import Cluster

RATE = 0.1


class Fleet(Cluster):
    """A cluster with a config.json and the operator's keys."""

    def __init__(self, trainer, folder, name="north", rate=RATE, train_dir=True, ps=2, workers=2, flags=()):
        super().__init__(trainer, folder, ps=ps, workers=workers,
                         flags=("--train_steps=1000000", "--validation_size=0", *flags))
        self.config = {"fleet": {"name": name, "version": 1}, "train": {"learning_rate": rate}}
        if train_dir:
            self.flags.append("--train_dir=run")
        (self.folder / "config.json").write_text(json.dumps(self.config))
        if not (self.folder / "operator.key").exists():
            subprocess.run([trainer, "keygen", "--operator=operator.key"], cwd=self.folder, check=True,
                           capture_output=True, timeout=20)
            (self.folder / "operator.pub").write_bytes((self.folder / "operator.key.pub").read_bytes())

    def start_and_train(self):
        for name in [f"ps {i}" for i in range(len(self.ps_hosts))]:
            self.start(name)
        for i in range(len(self.worker_hosts)):
            self.start(f"worker {i}", *([] if i == 0 else ["--train_dir="]))
        self.until("worker 0", lambda text: text.count('"event":"step"') >= 2, "steps")

    def candidate(self, version, **train):
        path = self.folder / f"new{version}.json"
        config = {"fleet": dict(self.config["fleet"], version=version), "train": dict(self.config["train"], **train)}
        path.write_text(json.dumps(config))
        return path.name

    def job_flags(self):
        """The members' flags for keys that all share, and what the operator's machine has of its own."""
        return [*self.hosts, *{flag.split("=")[0]: flag for flag in self.flags}.values()]

    def rollout(self, *arguments, timeout=90):
        return subprocess.run([self.trainer, "rollout", *arguments, *self.job_flags()], cwd=self.folder,
                              capture_output=True, text=True, timeout=timeout)

    def versions(self):
        return {name: member["config_version"] for name, member in self.status()[1].items()}

    def rates(self):
        return [(event["global_step"], event["learning_rate"]) for event in self.events("worker 0", "step")]


@pytest.fixture
def fleet(trainer, tmp_path):
    with Fleet(trainer, tmp_path / "fleet") as fleet:
        yield fleet


def text_of(result):
    return result.stdout + result.stderr


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
    assert (fleet.folder / "config.json.d" / "current").read_text() == "2\n"
    audit = [json.loads(line) for line in (fleet.folder / "config.json.d" / "audit.log").read_text().splitlines()]
    assert {line["member"] for line in audit if line["what"] == "switch"} == {"ps 0", "ps 1", "worker 0", "worker 1"}
    # Members that have been here since version 1 and those that are started again know each other by the newest.
    assert fleet.rollout(fleet.candidate(3, learning_rate=0.2), "--yes", "--healthy_secs=0.5").returncode == 0
    assert fleet.rollout(fleet.candidate(4, learning_rate=0.05), "--yes", "--healthy_secs=0.5").returncode == 0
    fleet.kill("ps 1")
    fleet.start("ps 1")
    fleet.until("ps 1", lambda text: "training begins" in text or "is complete" in text, "the model", 60)
    fleet.kill("worker 1")
    fleet.start("worker 1", "--train_dir=")
    fleet.until("worker 1", lambda text: '"event":"step"' in text, "steps after its restart", 60)
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
    assert (fleet.folder / "config.json.d" / "current").read_text() == "1\n"
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
    for new, sentence in (
        (fleet.candidate(2), "nothing differs"),
        (fleet.candidate(1, learning_rate=0.05), "fleet.version is 1, and the fleet runs version 1"),
        (fleet.candidate(3, optimizer="adam"), "train.optimizer can't change while the job runs (its class is job)"),
        (fleet.candidate(5, num_threads=2), "train.num_threads is each machine's own"),
    ):
        # What is a flag of this machine would win over the file.
        flags = [flag for flag in fleet.job_flags() if not flag.startswith("--num_threads")]
        result = subprocess.run([trainer, "rollout", new, "--yes", *flags], cwd=fleet.folder, capture_output=True,
                                text=True, timeout=30)
        assert result.returncode == 1 and sentence in text_of(result), text_of(result)
    path = fleet.folder / "new8.json"
    path.write_text(json.dumps({**fleet.config, "fleet": {"name": "north", "version": 8}, "output": {"max_to_keep": 9}}))
    result = fleet.rollout(path.name, "--yes")
    assert result.returncode == 1 and "output.max_to_keep can't be changed by a rollout yet" in text_of(result)
    subprocess.run([trainer, "keygen", "--operator=other.key"], cwd=fleet.folder, check=True, timeout=20)
    good = fleet.candidate(6, learning_rate=0.05)
    result = fleet.rollout(good, "--yes", "--key=other.key")
    assert result.returncode == 1 and "is not signed by the operator key" in text_of(result)
    result = fleet.rollout(good)
    assert result.returncode == 1 and "--yes" in text_of(result)
    assert set(fleet.versions().values()) == {1}
    # A member that has no operator.pub, or a flag of its own for the key, says so before anything changes.
    assert fleet.rollout(good, "--yes", "--healthy_secs=0.5").returncode == 0
    (fleet.folder / "operator.pub").unlink()
    result = fleet.rollout(fleet.candidate(7, learning_rate=0.02), "--yes")
    assert result.returncode == 1 and "operator.pub" in text_of(result)
    assert set(fleet.versions().values()) == {6}
    history = subprocess.run([trainer, "rollout", "history"], cwd=fleet.folder, capture_output=True, text=True, timeout=20)
    outcomes = [json.loads(line) for line in history.stdout.splitlines()]
    assert any(line["what"] == "propose" and "not signed" in line["outcome"] for line in outcomes)
    assert any(line["what"] == "propose" and line["version"] == 6 and line["outcome"] == "begun" for line in outcomes)


def propose(fleet, manifest):
    """What ps 0 answers to these bytes."""
    port = int(fleet.ps_hosts[0].split(":")[1])
    with protocol.Client(port, str(fleet.folder / "fleet.key")) as client:
        name, fields = client.hello(role=3, index=-1, cluster=fleet.config["fleet"]["name"])
        assert name == "welcome", fields
        client.send("propose", bulk=manifest, healthy_s=1.0)
        name, fields, _ = client.receive()
        return name, fields.get("sentence", "")


def test_a_manifest_that_is_sent_again_or_elsewhere(trainer, tmp_path):
    with Fleet(trainer, tmp_path / "north") as north, Fleet(trainer, tmp_path / "south", name="south") as south:
        for name in ("operator.key", "operator.pub"):
            (south.folder / name).write_bytes((north.folder / name).read_bytes())
        north.start_and_train()
        south.start_and_train()
        result = north.rollout(north.candidate(2, learning_rate=0.05), "--yes", "--healthy_secs=0.5")
        assert result.returncode == 0, text_of(result)
        manifest = (north.folder / "config.json.d" / "manifest").read_bytes()
        name, sentence = propose(south, manifest)
        assert name == "error" and 'for fleet "north", and this is fleet "south"' in sentence
        name, sentence = propose(north, manifest)
        assert name == "error" and "the manifest is old" in sentence
        for torn in (manifest[:-1], manifest[:100], b"", bytes(manifest[:40]) + b"x" + bytes(manifest[41:])):
            name, sentence = propose(north, torn)
            assert name == "error" and sentence.startswith("the manifest"), sentence
        assert set(north.versions().values()) == {2} and set(south.versions().values()) == {1}


def test_without_a_checkpoint_to_go_back_to_nothing_is_begun(trainer, tmp_path):
    with Fleet(trainer, tmp_path, train_dir=False, ps=1, workers=1) as fleet:
        fleet.start_and_train()
        result = fleet.rollout(fleet.candidate(2, learning_rate=0.05), "--yes")
        assert result.returncode == 1
        assert "version 2 was not begun, version 1 stays: worker 0: worker 0 has no train_dir" in text_of(result)
        assert set(fleet.versions().values()) == {1}


def test_the_operator_may_vanish(fleet):
    fleet.start_and_train()
    operator = subprocess.Popen([fleet.trainer, "rollout", fleet.candidate(2, learning_rate=0.05), "--yes",
                                 "--healthy_secs=1", *fleet.job_flags()], cwd=fleet.folder, stdout=subprocess.DEVNULL)
    fleet.until("ps 0", lambda text: "staging version 2" in text, "a rollout")
    operator.kill()
    operator.wait(10)
    fleet.until("ps 0", lambda text: "version 2 is in force, since step" in text, "version 2")
    assert set(fleet.versions().values()) == {2}


def test_abort(fleet):
    fleet.start_and_train()
    operator = subprocess.Popen([fleet.trainer, "rollout", fleet.candidate(2, learning_rate=0.05), "--yes",
                                 "--healthy_secs=60", *fleet.job_flags()], cwd=fleet.folder, stdout=subprocess.PIPE, text=True)
    fleet.until("ps 0", lambda text: "watching version 2" in text, "version 2")
    assert "watching version 2" in text_of(fleet.rollout("status"))
    assert fleet.rollout("abort").returncode == 0
    output, _ = operator.communicate(timeout=60)
    assert operator.returncode == 1 and "went back from version 2 to version 1: the operator aborted it" in output
    assert set(fleet.versions().values()) == {1}
    assert fleet.rollout("abort").returncode == 1


@pytest.mark.parametrize("who", ["ps 0", "ps 1", "worker 0", "worker 1"])
def test_a_member_that_dies_while_it_is_watched(fleet, who):
    fleet.start_and_train()
    operator = subprocess.Popen([fleet.trainer, "rollout", fleet.candidate(2, learning_rate=0.05), "--yes",
                                 "--healthy_secs=8", *fleet.job_flags()], cwd=fleet.folder, stdout=subprocess.PIPE, text=True)
    fleet.until("ps 0", lambda text: "watching version 2" in text, "version 2")
    fleet.kill(who)
    fleet.start(who, *(["--train_dir="] if who == "worker 1" else []))
    output, _ = operator.communicate(timeout=90)
    assert operator.returncode in (0, 1), output
    deadline = time.monotonic() + 30
    expected = {2} if operator.returncode == 0 else {1}
    while set(fleet.versions().values()) != expected:
        assert time.monotonic() < deadline, (fleet.versions(), output)
        time.sleep(0.2)
    seen = fleet.text("worker 0").count('"event":"step"')
    fleet.until("worker 0", lambda text: text.count('"event":"step"') > seen + 1, "steps", 30)
    assert fleet.events("worker 0", "step")[-1]["learning_rate"] == (0.05 if expected == {2} else RATE)
