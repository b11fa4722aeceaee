"""Shared by tests of rollouts: clusters with a config.json and an operator's keys."""

import json
import subprocess

from clusters import Cluster
from runs import LONG_S, wait_for

RATE = 0.1
PACE = 50  # steps per second of a worker: the tested code waits, and leaves the processors to other tests


def in_force(folder):
    """The number of the version in force, from its file, where a checksum follows it."""
    number, checksum = (folder / "config.json.d" / "current").read_text().split()
    assert checksum[0] == "#" and len(checksum) == 9
    return number


class Fleet(Cluster):
    """A cluster with a config.json and the operator's keys."""

    def __init__(self, trainer, folder, name="north", rate=RATE, train_dir=True, ps=2, workers=2, flags=()):
        super().__init__(trainer, folder, ps=ps, workers=workers,
                         flags=("--train_steps=1000000", "--validation_size=0", f"--max_steps_per_s={PACE}", *flags))
        self.config = {"fleet": {"name": name, "version": 1}, "train": {"learning_rate": rate}}
        if train_dir:
            self.flags.append("--train_dir=run")
        (self.folder / "config.json").write_text(json.dumps(self.config))
        if not (self.folder / "operator.key").exists():
            subprocess.run([trainer, "keygen", "--operator=operator.key"], cwd=self.folder, check=True,
                           capture_output=True, timeout=LONG_S)
            (self.folder / "operator.pub").write_bytes((self.folder / "operator.key.pub").read_bytes())

    def start_and_train(self, *ps_flags):
        for name in [f"ps {i}" for i in range(len(self.ps_hosts))]:
            self.start(name, *ps_flags)
        for i in range(len(self.worker_hosts)):
            self.start(f"worker {i}", *([] if i == 0 else ["--train_dir="]))
        self.until("worker 0", lambda text: text.count('"event":"step"') >= 2, "steps")
        # Training begins before all have joined; until then a worker's version is unknown.
        wait_for(lambda: 0 not in self.versions().values(), "version of everybody")

    def candidate(self, version, **train):
        path = self.folder / f"new{version}.json"
        config = {"fleet": dict(self.config["fleet"], version=version), "train": dict(self.config["train"], **train)}
        path.write_text(json.dumps(config))
        return path.name

    def job_flags(self):
        """The members' flags for shared keys, and the operator's machine's own settings."""
        return [*self.hosts, *{flag.split("=")[0]: flag for flag in self.flags}.values()]

    def rollout(self, *arguments, timeout=LONG_S):
        return subprocess.run([self.trainer, "rollout", *arguments, *self.job_flags()], cwd=self.folder,
                              capture_output=True, text=True, timeout=timeout)

    def versions(self):
        return {name: member["config_version"] for name, member in self.status()[1].items()}

    def rates(self):
        return [(event["global_step"], event["learning_rate"]) for event in self.events("worker 0", "step")]


def text_of(result):
    return result.stdout + result.stderr


class OpenFleet(Fleet):
    """A fleet whose flags only identify a member, so that every key of the file can be rolled out."""

    def __init__(self, trainer, folder, ps=2, workers=2, flags=(), **sections):
        super().__init__(trainer, folder, ps=ps, workers=workers)
        self.flags = ["--train_dir=run", *flags]
        self.config = {
            "fleet": {"name": "north", "version": 1},
            "cluster": {"ps_hosts": self.ps_hosts, "worker_hosts": self.worker_hosts, "lease_secs": 2},
            "model": {"layers": [784, 32, 10]},
            "train": {"learning_rate": 0.05, "batch_size": 50, "num_threads": 1, "train_steps": 10000000,
                      "max_steps_per_s": PACE},
            "data": {"data_source": "synthetic", "synthetic_train": 3000, "synthetic_test": 500,
                     "validation_size": 0},
            "output": {"log_steps": 20},
        }
        for name, section in sections.items():
            self.config[name].update(section)
        (self.folder / "config.json").write_text(json.dumps(self.config))

    @property
    def hosts(self):
        return []

    def candidate(self, version, **sections):
        path = self.folder / f"new{version}.json"
        config = {name: dict(section, **sections.get(name, {})) for name, section in self.config.items()}
        config["fleet"]["version"] = version
        path.write_text(json.dumps(config))
        return path.name

    def current(self):
        return in_force(self.folder)

    def goes_on(self, more=2, timeout=LONG_S):
        """Waits for further steps, and returns the last."""
        seen = len(self.events("worker 0", "step"))
        self.until("worker 0", lambda text: len(self.events("worker 0", "step")) > seen + more, "steps", timeout)
        return self.events("worker 0", "step")[-1]

    def alive(self):
        return all(process.poll() is None for process in self.members.values())


def supervise(fleet, name, *flags):
    """Starts a member under the program's own supervisor."""
    fleet.start(name, "--supervise", *flags, *(["--train_dir="] if name.startswith("worker") and name != "worker 0"
                                               else []))


def make_digits(fleet):
    subprocess.run([fleet.trainer, "data", "synth", "--out=digits", "--synthetic_train=3000", "--synthetic_test=500"],
                   cwd=fleet.folder, check=True, capture_output=True, timeout=LONG_S)
