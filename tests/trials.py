"""Fleets of any size for tests of rollouts. Each member runs under the program's own supervisor, so that a killed one
comes back."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

from fleets import OpenFleet, supervise, text_of
from relay import Relay

TIMEOUT_S = 400  # on two busy cores, with 100 members


class Trial(OpenFleet):
    """ps 0 behind a relay, as seen by all. `elsewhere`: a command that runs the program on another kind of machine, and
    the distance between workers that do; the last one does."""

    def __init__(self, trainer, folder, members, elsewhere=None):
        ps = 2 if members < 40 else 3
        super().__init__(trainer, folder, ps=ps, workers=members - ps)
        self.elsewhere = {}
        if elsewhere:
            command, every = elsewhere
            self.elsewhere = {f"worker {i}": command for i in range(members - ps - 1, 0, -every)}
        port = self.ps_hosts[0].split(":")[1]
        self.ps_hosts[0] = f"127.0.0.2:{port}"
        self.relay = Relay(int(port))
        self.version = self.good = 1
        self.config["cluster"].update(ps_hosts=self.ps_hosts, lease_secs=10)
        self.config["model"]["layers"] = [784, 8, 10]
        self.config["train"].update(batch_size=20, max_steps_per_s=400 // members)
        self.config["data"].update(synthetic_train=400, synthetic_test=100)
        self.config["output"]["log_steps"] = 100
        (self.folder / "config.json").write_text(json.dumps(self.config))
        self.programs.update(self.elsewhere)

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
        if self.elsewhere:
            there = self.folder / "there"
            there.mkdir()
            for name in ("operator.pub", "fleet.key", "config.json"):
                shutil.copy2(self.folder / name, there / name)
        for name in self.names():
            supervise(self, name, *(["--bind=127.0.0.1"] if name == "ps 0" else []),
                      *(["--config=there/config.json"] if name in self.elsewhere else []))
        self.until("worker 0", lambda text: text.count('"event":"step"') >= 2, "steps", TIMEOUT_S)
        self.all_on(1)

    def leave_processors_to_others(self):
        """Workers other than worker 0 stand for machines with their own processors: here they get what nobody else
        uses."""
        for i in range(1, len(self.worker_hosts)):
            program = self.elsewhere.get(f"worker {i}", self.trainer)
            gently = self.folder / f"gently_{pathlib.Path(program).name}"
            gently.write_text(f'#!/bin/sh\nexec nice -n 19 "{program}" "$@"\n')
            gently.chmod(0o755)
            self.programs[f"worker {i}"] = gently

    def kill_child(self, name):
        """The member itself; its parent brings it back."""
        parent = self.members[name].pid
        children = pathlib.Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        for child in children:
            os.kill(int(child), signal.SIGKILL)

    def report(self):
        """The versions of the members present, by name, and who is missing."""
        try:
            members = self.status()[1]
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


def settle(fleet, operator, version):
    """The result: the fleet is on one version, all are connected, and training continues."""
    output, _ = operator.communicate(timeout=TIMEOUT_S)
    end = fleet.one_version(fleet.good, version)
    assert (operator.returncode == 0) <= (end == version), output
    fleet.good = end
    # The next candidate is compared with what is in force.
    if end == version:
        fleet.config = json.loads((fleet.folder / f"new{version}.json").read_text())
    fleet.goes_on(0, TIMEOUT_S)
    assert fleet.alive()
    return end == version, output


def bring(fleet, path, *flags, **sections):
    """The result of a new program. Without a bound on its speed, which on a busy machine depends on other load."""
    usual = {"--healthy_secs": "0.5", "--least_speed": "0%"} | dict(flag.split("=") for flag in flags)
    return settle(fleet, *fleet.begin(f"--binary={path}", *map("=".join, usual.items()), **sections))
