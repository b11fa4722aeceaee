"""A fleet of real processes, and rollouts good and bad: whatever happens in whichever phase, it ends on one version.

40 members, 100 in make test-full (or TRAINER_FLEET of them), each under the program's own small parent, so that whoever
is killed comes back.
"""

import json
import os
import re
import pathlib
import signal
import subprocess
import time

import pytest

import programs
import protocol
from fleets import OpenFleet, make_digits, supervise, text_of
from relay import Relay

FULL = os.environ.get("TRAINER_TEST_FULL") == "1"

# A hundred members take all of the machine, and others would wait too long for it.
pytestmark = pytest.mark.alone if FULL else pytest.mark.xdist_group("fleet")

TIMEOUT_S = 180  # on two busy cores, with 100 members


class Trial(OpenFleet):
    """ps 0 behind a relay, as seen by all."""

    def __init__(self, trainer, folder, members):
        ps = 2 if members < 40 else 3
        super().__init__(trainer, folder, ps=ps, workers=members - ps)
        port = self.ps_hosts[0].split(":")[1]
        self.ps_hosts[0] = f"127.0.0.2:{port}"
        self.relay = Relay(int(port))
        self.version = 1
        self.config["cluster"].update(ps_hosts=self.ps_hosts, lease_secs=10)
        self.config["model"]["layers"] = [784, 8, 10]
        self.config["train"].update(batch_size=20, max_steps_per_s=800 // members)
        self.config["data"].update(synthetic_train=400, synthetic_test=100)
        self.config["output"]["log_steps"] = 100
        (self.folder / "config.json").write_text(json.dumps(self.config))

    def __enter__(self):
        self.relay.__enter__()
        return super().__enter__()

    def __exit__(self, *arguments):
        super().__exit__(*arguments)
        self.relay.__exit__()

    def names(self):
        return [*(f"ps {i}" for i in range(len(self.ps_hosts))),
                *(f"worker {i}" for i in range(len(self.worker_hosts)))]

    def start_and_train(self):
        if len(self.names()) > 40:
            self.leave_processors_to_others()
        for name in self.names():
            supervise(self, name, *(["--bind=127.0.0.1"] if name == "ps 0" else []))
        self.until("worker 0", lambda text: text.count('"event":"step"') >= 2, "steps", TIMEOUT_S)
        self.all_on(1)

    def leave_processors_to_others(self):
        """Workers but for worker 0 stand for machines that have some of their own: here they get what nobody else
        wants."""
        gently = self.folder / "gently"
        gently.write_text(f'#!/bin/sh\nexec nice -n 19 "{self.trainer}" "$@"\n')
        gently.chmod(0o755)
        self.programs.update({f"worker {i}": gently for i in range(1, len(self.worker_hosts))})

    def kill_child(self, name):
        """The member itself; its parent brings it back."""
        parent = self.members[name].pid
        children = pathlib.Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        for child in children:
            os.kill(int(child), signal.SIGKILL)

    def report(self):
        """Versions by name, of those that are there, and who is missing."""
        try:
            members = self.status(timeout=60)[1]
        except (subprocess.TimeoutExpired, AssertionError, json.JSONDecodeError):
            return {}, self.names()
        missing = [name for name, member in members.items() if member["missing"]
                   or member["state"] not in ("training", "ready")]
        return {name: member["config_version"] for name, member in members.items()}, missing

    def all_on(self, version, timeout=TIMEOUT_S):
        deadline = time.monotonic() + timeout
        while True:
            versions, missing = self.report()
            if not missing and set(versions.values()) == {version}:
                break
            assert time.monotonic() < deadline, (version, versions, missing, text_of(self.rollout("status")))
            time.sleep(0.5)

    def one_version(self, *allowed):
        """Waits until the whole fleet is on one of these, and returns which."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            versions, missing = self.report()
            found = set(versions.values())
            if not missing and len(found) == 1 and found <= set(allowed) and self.is_idle():
                return found.pop()
            assert time.monotonic() < deadline, (allowed, versions, missing, text_of(self.rollout("status")))
            time.sleep(0.5)

    def is_idle(self):
        text = text_of(self.rollout("status"))
        return any(text.startswith(start) or f"\n{start}" in text for start in
                   ("no rollout since", *(f"version {v} is in force" for v in range(99)),
                    *(f"version {v} was not rolled out" for v in range(99)), "went back from"))

    def next(self, **sections):
        self.version += 1
        return self.candidate(self.version, **sections)

    def begin(self, *arguments, **sections):
        """An operator who waits, and the candidate's version."""
        new = self.next(**sections)
        operator = subprocess.Popen([self.trainer, "rollout", new, "--yes", *arguments, *self.job_flags()],
                                    cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return operator, self.version

    def in_phase(self, text):
        self.until("ps 0", lambda log: text in log, text, TIMEOUT_S)


@pytest.fixture(scope="module")
def fleet(trainer, full, tmp_path_factory):
    members = int(os.environ.get("TRAINER_FLEET", 100 if full else 40))
    with Trial(trainer, tmp_path_factory.mktemp("fleet") / "north", members) as fleet:
        fleet.start_and_train()
        fleet.good = 1
        yield fleet


def settle(fleet, operator, version):
    """What became of it: the fleet is on one version, everybody is there, and training goes on."""
    output, _ = operator.communicate(timeout=TIMEOUT_S)
    end = fleet.one_version(fleet.good, version)
    assert (operator.returncode == 0) <= (end == version), output
    fleet.good = end
    # What is in force is what the next candidate is compared with.
    if end == version:
        fleet.config = json.loads((fleet.folder / f"new{version}.json").read_text())
    fleet.goes_on(0, TIMEOUT_S)
    assert fleet.alive()
    return end == version, output


def test_good_ones(fleet):
    done, output = settle(fleet, *fleet.begin("--healthy_secs=1", train={"learning_rate": 0.04}))
    assert done, output
    done, output = settle(fleet, *fleet.begin("--healthy_secs=1", train={"batch_size": 25}))
    assert done, output
    # A rate that so many asynchronous workers bear: each gradient is dozens of steps old, and momentum adds to that.
    momentum = {"optimizer": "momentum", "learning_rate": 0.001}
    done, output = settle(fleet, *fleet.begin("--healthy_secs=1", train=momentum))
    assert done, output


def test_bad_ones_change_nothing(fleet, trainer):
    starts = {name: len(fleet.events(name, "start")) for name in fleet.names()}
    (fleet.folder / "torn.json").write_text('{"fleet": {"version": 90}, "train": {')
    assert fleet.rollout("torn.json", "--yes").returncode == 2
    (fleet.folder / "unknown.json").write_text('{"fleet": {"version": 90}, "train": {"rate": 1}}')
    assert fleet.rollout("unknown.json", "--yes").returncode == 2
    subprocess.run([trainer, "keygen", "--operator=other.key"], cwd=fleet.folder, timeout=20)
    assert "is not signed" in text_of(fleet.rollout(fleet.next(train={"learning_rate": 0.5}), "--yes",
                                                    "--key=other.key"))
    assert "give it a higher one" in text_of(fleet.rollout(fleet.candidate(1, train={"learning_rate": 0.5}), "--yes"))
    # A manifest that was rolled out before, and one that was changed.
    manifest = (fleet.folder / "config.json.d" / "manifest").read_bytes()
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
    # A loss of so many workers is seen before or after it overflows.
    assert not done and re.search(r"the loss is (no longer finite|[\d.e+]+, and was [\d.e+-]+ before)", output), output
    done, output = settle(fleet, *fleet.begin("--healthy_secs=100", train={"optimizer": "sgd", "learning_rate": 1e30}))
    assert not done


@pytest.mark.parametrize("phase", ["staging", "switching to", "watching"])
@pytest.mark.parametrize("who", ["worker 1", "worker 0", "ps 1", "ps 0"])
def test_who_dies_in_a_live_one(fleet, full, who, phase):
    if not full and (who, phase) not in (("ps 0", "switching to"), ("worker 0", "watching")):
        pytest.skip("in make test-full")
    operator, version = fleet.begin("--healthy_secs=3", train={"learning_rate": 0.02 + fleet.version / 1000})
    fleet.in_phase(f"{phase} version {version}")
    fleet.kill_child(who)
    settle(fleet, operator, version)


@pytest.mark.parametrize("phase", ["staging", "worker 0 tries", "worker 0 saves the job before the restart in",
                                   "all restart in", "watching"])
@pytest.mark.parametrize("who", ["worker 1", "worker 0", "ps 1", "ps 0"])
def test_who_dies_in_one_of_the_whole_job(fleet, full, who, phase):
    if not full and (who, phase) not in (("worker 0", "worker 0 tries"), ("ps 0", "all restart in"),
                                         ("ps 1", "watching")):
        pytest.skip("in make test-full")
    operator, version = fleet.begin("--healthy_secs=3", train={"batch_size": 20 + fleet.version})
    fleet.in_phase(f"{phase} version {version}")
    fleet.kill_child(who)
    settle(fleet, operator, version)


def test_the_operator_dies(fleet):
    operator, version = fleet.begin("--healthy_secs=1", train={"batch_size": 20 + fleet.version})
    fleet.in_phase(f"staging version {version}")
    operator.kill()
    operator.wait(10)
    fleet.in_phase(f"version {version} is in force")
    assert settle(fleet, operator, version)[0]


def test_a_partition_while_it_switches(fleet, full):
    """For longer than a member may be silent, in make test-full; then the fleet goes back when it is whole again."""
    operator, version = fleet.begin("--healthy_secs=3", train={"learning_rate": 0.015})
    fleet.in_phase(f"switching to version {version}")
    fleet.relay.refuses = True
    fleet.relay.cut()
    time.sleep(14 if full else 4)
    fleet.relay.refuses = False
    settle(fleet, operator, version)


def test_keys_of_machines(fleet, full):
    if not full:
        pytest.skip("in make test-full; test_rollout.py has a smaller one")
    make_digits(fleet)
    done, output = settle(fleet, *fleet.begin("--healthy_secs=1", cluster={"recovery_wait_secs": 0.7}))
    assert done, output


def bring(fleet, path, *flags, **sections):
    """What became of a new program. Without a bound on its speed, which on a busy machine depends on what else runs."""
    usual = {"--healthy_secs": "0.5", "--least_speed": "0%"} | dict(flag.split("=") for flag in flags)
    return settle(fleet, *fleet.begin(f"--binary={path}", *map("=".join, usual.items()), **sections))


def test_a_program_for_all(fleet, trainer):
    done, output = bring(fleet, programs.foreign(trainer, fleet.folder / "foreign"))
    assert not done and "no program for this machine" in output, output
    new = programs.variant(trainer, fleet.folder / "new")
    done, output = bring(fleet, new)
    assert done, output
    assert set(programs.builds(fleet).values()) == {programs.build_of(new)}


def test_programs_that_do_no_good(fleet, trainer, full):
    """They reach the canary and no more, or nobody; and those that run go on."""
    before = programs.builds(fleet)
    canary = f"worker {len(fleet.worker_hosts) - 1}"
    starts = {name: len(fleet.events(name, "start")) for name in fleet.names() if name != canary}
    cut = programs.variant(trainer, fleet.folder / "cut")
    cut.write_bytes(cut.read_bytes()[:1 << 20])
    good = programs.variant(trainer, fleet.folder / "good", b"one more")
    subprocess.run([trainer, "keygen", "--operator=nobody.key"], cwd=fleet.folder, check=True, timeout=20)
    for path, flags, message in (
        (cut, (), "is truncated"),
        (good, ("--key=nobody.key",), "is not signed"),
        (programs.compile_program(fleet.folder, "crashes", programs.CRASHES), (), f"{canary}: it failed 2 times"),
    ):
        done, output = bring(fleet, path, *flags)
        assert not done and message in output, output
    if full:
        hangs = programs.compile_program(fleet.folder, "hangs", programs.HANGS)
        done, output = bring(fleet, hangs)
        assert not done and f"{canary}: it failed 2 times" in output, output
        # The canary's pace is that of a config that comes along: it depends on nothing else.
        done, output = bring(fleet, good, "--least_speed=50%", train={"max_steps_per_s": 1})
        assert not done and "in the new program, and made" in output, output
    assert programs.builds(fleet) == before
    assert {name: len(fleet.events(name, "start")) for name in starts} == starts
