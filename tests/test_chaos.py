"""All faults at one cluster, over and over, at random moments and on top of one another: real processes, links and disk.

Whoever ends is started again, as a service manager would. Every step has one gradient of every worker (min_replicas), so
the last checkpoint has the bits of one local process, or an update was lost or counted twice.
"""

import collections
import os
import random
import signal
import subprocess
import time

import pytest

from clusters import Cluster
from relay import Relay
from runs import SMALL, checkpoints, newest, same_tensors, train, wait_for

FULL = os.environ.get("TRAINER_TEST_FULL") == "1"
EACH = 100 if FULL else 20
FLAGS = ("--optimizer=adam", "--learning_rate=0.002")


class Disk:
    """A small file system of its own for train_dir, which can be full or read-only; .there: it could be mounted."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        self.there = self.mount("-t", "tmpfs", "-o", "size=8m", "tmpfs", folder)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.there:
            subprocess.run(["umount", "--lazy", self.folder], check=True)

    @staticmethod
    def mount(*arguments):
        return subprocess.run(["mount", *arguments], capture_output=True).returncode == 0

    def fill(self):
        try:
            with open(self.folder / "ballast", "wb", buffering=0) as ballast:
                while True:
                    ballast.write(bytes(4096))
        except OSError:
            pass

    def free(self):
        (self.folder / "ballast").unlink(missing_ok=True)

    def set_read_only(self, kept):
        """A read-only view lies over the folder: what is opened from now on can't be written."""
        assert self.mount("--bind", kept, kept)
        deadline = time.monotonic() + 10
        while not self.mount("-o", "remount,bind,ro", kept):  # somebody has just begun to write
            assert time.monotonic() < deadline

    @staticmethod
    def set_writable(kept):
        subprocess.run(["umount", "--lazy", kept], check=True)


class Chaos:
    def __init__(self, cluster, relays, disk, dice):
        self.cluster, self.relays, self.disk, self.dice = cluster, relays, disk, dice
        self.counts = collections.Counter()
        self.later = []  # (when, what to do then)
        self.ends = collections.Counter()
        self.kept = disk.folder / "kept"

    def after(self, seconds, action, *arguments):
        self.later.append((time.monotonic() + seconds, action, arguments))

    def kill(self, *names):
        for name in names:
            self.cluster.kill(name)

    def freeze(self, name, seconds):
        process = self.cluster.members[name]
        process.send_signal(signal.SIGSTOP)
        self.after(seconds, process.send_signal, signal.SIGCONT)

    def slow_down(self):
        for relay in self.relays:
            relay.delay_s = 0.1
        self.after(self.dice.uniform(0.1, 0.4), self.speed_up)

    def speed_up(self):
        for relay in self.relays:
            relay.delay_s = 0

    def narrow(self):
        for relay in self.relays:
            relay.bytes_per_s = 125_000
        self.after(self.dice.uniform(0.1, 0.4), self.widen)

    def widen(self):
        for relay in self.relays:
            relay.bytes_per_s = 0

    def fill(self):
        self.disk.fill()
        self.after(self.dice.uniform(0.1, 0.5), self.disk.free)

    def read_only(self):
        self.disk.set_read_only(self.kept)
        self.after(self.dice.uniform(0.1, 0.5), self.disk.set_writable, self.kept)

    def all_links(self, what):
        for relay in self.relays:
            getattr(relay, what)()

    def faults(self):
        faults = {
            "worker killed": lambda: self.kill("worker 1"),
            "worker frozen": lambda: self.freeze("worker 1", self.dice.uniform(0.05, 0.5)),
            "worker frozen past its lease": lambda: self.freeze("worker 1", 1.3),
            "chief killed": lambda: self.kill("worker 0"),
            "ps killed": lambda: self.kill(self.dice.choice(["ps 0", "ps 1"])),
            "ps frozen": lambda: self.freeze(self.dice.choice(["ps 0", "ps 1"]), self.dice.uniform(0.05, 0.5)),
            "all ps killed": lambda: self.kill("ps 0", "ps 1"),
            "all killed": lambda: self.kill(*self.dice.sample(list(self.cluster.members), 4)),
            "links cut": lambda: self.all_links("cut"),
            "links half-open": lambda: self.dice.choice(self.relays).stall(),
            "links 200 ms late": self.slow_down,
            "links of 1 Mbit/s": self.narrow,
        }
        if self.disk.there:
            faults.update({"disk full": self.fill, "disk read-only": self.read_only})
        return faults

    def look_after(self):
        """Whoever ended is started again; what was to be done later is done."""
        now = time.monotonic()
        for due in [each for each in self.later if each[0] <= now]:
            self.later.remove(due)
            due[1](*due[2])
        for name, process in list(self.cluster.members.items()):
            status = process.poll()
            if status is not None:
                self.ends[name, status] += 1
                assert status in (-signal.SIGKILL, 1), self.cluster.text(name)[-2000:]
                said = self.cluster.text(name)
                assert status != 1 or "Read-only file system" in said or "No space left" in said, (name, said[-2000:])
                process.output.close()
                self.cluster.start(name, "--bind=127.0.0.1")

    def pause(self, seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.look_after()
            time.sleep(0.01)

    def newest(self):
        return max(checkpoints(self.kept), default=0)

    def wait_for_a_checkpoint(self, seconds):
        before, deadline = self.newest(), time.monotonic() + seconds
        while self.newest() <= before:
            self.look_after()
            assert time.monotonic() < deadline, "no checkpoint\n" + "\n".join(
                f"{name}: {self.cluster.text(name)[-1500:]}" for name in self.cluster.members)
            time.sleep(0.02)


def test_every_fault_over_and_over(trainer, tmp_path):
    seed = int(os.environ.get("TRAINER_TEST_SEED", random.randrange(1 << 30)))
    print(f"TRAINER_TEST_SEED={seed}")
    dice = random.Random(seed)
    flags = ("--issync=1", "--min_replicas=2", "--min_workers=2", "--train_steps=100000000", "--lease_secs=1",
             "--recovery_wait_secs=0.1", "--save_model_secs=0.1", "--max_to_keep=3", "--validation_size=0", *FLAGS)
    with Disk(tmp_path / "disk") as disk, Cluster(trainer, tmp_path, ps=2, workers=2, flags=(
            *flags, f"--train_dir={disk.folder}/kept")) as cluster:
        ports = [int(host.split(":")[1]) for host in cluster.ps_hosts]
        cluster.ps_hosts = [f"127.0.0.2:{port}" for port in ports]
        relays = [Relay(port, dice.randrange(1 << 30)) for port in ports]
        chaos = Chaos(cluster, relays, disk, dice)
        cluster.start_all("--bind=127.0.0.1")
        chaos.wait_for_a_checkpoint(30)
        begun = time.monotonic()
        faults = chaos.faults()
        schedule = [name for name in faults for _ in range(EACH)]
        dice.shuffle(schedule)
        for i, name in enumerate(schedule):
            print(f"{time.monotonic() - begun:6.2f} s: {name}", flush=True)
            faults[name]()
            chaos.counts[name] += 1
            chaos.pause(dice.uniform(0, 0.4))
            if i % 20 == 19:
                chaos.wait_for_a_checkpoint(60)
        chaos.pause(2)  # what was begun ends
        assert not chaos.later
        chaos.wait_for_a_checkpoint(60)
        chaos.wait_for_a_checkpoint(60)
        print(f"{len(schedule)} faults in {time.monotonic() - begun:.0f} s: {dict(chaos.counts)}; ends: {dict(chaos.ends)}")
        assert min(chaos.counts.values()) == EACH
        cluster.kill("worker 0", signal.SIGTERM)
        cluster.wait("worker 0", status=None)
        assert cluster.members["worker 0"].returncode in (1, 143)
        for relay in relays:
            relay.__exit__()
        step = chaos.newest()
        train(trainer, *SMALL, *FLAGS, "--validation_size=0", "--micro_batches=2", f"--train_steps={step}",
              "--train_dir=local", cwd=tmp_path)
        assert same_tensors(newest(chaos.kept), newest(tmp_path / "local")) == []
