"""All faults at one cluster, again and again, at random moments and in combination: real processes, links, clocks and
disk.

A process that ends is restarted, as a service manager would. Every step has one gradient of both workers
(min_replicas), so the last checkpoint has the bits of one local process, or an update was lost or counted twice. A
third worker's gradients are never finite.
"""

import collections
import itertools
import os
import random
import re
import signal
import subprocess
import threading
import time
import warnings

import pytest

from clocks import Clocks
from clusters import Cluster
from diverging import INFINITY, NAN, NOT_FINITE, ONE, STALE, DivergingWorker
from relay import Relay
from runs import LONG_S, SMALL, checkpoints, newest, same_tensors, seed_of_tests, train, wait_for

FULL = os.environ.get("TRAINER_TEST_FULL") == "1"
EACH = 100 if FULL else 20
CLUSTERS = 2  # running at once, each with its share of the faults
FLAGS = ("--optimizer=adam", "--learning_rate=0.002")


class Disk:
    """A small file system for train_dir, which can be full or read-only; .there: it could be mounted."""

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
        """Puts a read-only view over the folder: files opened from now on can't be written."""
        deadline = time.monotonic() + LONG_S
        assert self.mount("--bind", kept, kept)
        while not self.mount("-o", "remount,bind,ro", kept):
            # A process may just have opened a file in this view to write, perhaps permanently: one that starts, its
            # lock.
            assert time.monotonic() < deadline
            self.set_writable(kept)
            assert self.mount("--bind", kept, kept)

    @staticmethod
    def set_writable(kept):
        subprocess.run(["umount", "--lazy", kept], check=True)


class Slow:
    """A process that is stopped nine tenths of the time, for that many seconds."""

    def __init__(self, process, seconds):
        self.process, self.until = process, time.monotonic() + seconds
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while time.monotonic() < self.until:
            self.process.send_signal(signal.SIGSTOP)
            time.sleep(0.018)
            self.process.send_signal(signal.SIGCONT)
            time.sleep(0.002)


class Chaos:
    def __init__(self, cluster, relays, disk, clocks, dice):
        self.cluster, self.relays, self.disk, self.clocks, self.dice = cluster, relays, disk, clocks, dice
        self.counts = collections.Counter()
        self.later = []  # (time, action)
        self.starts = {}  # of those that ended: when
        self.threads, self.failures = [], []
        self.one_diverges = threading.Lock()
        self.ends = collections.Counter()
        self.outcomes = collections.Counter()  # of gradients that are not finite, or not on all ps
        self.divergence = itertools.cycle(  # each kind occurs
            dice.sample([(NAN, NAN), (INFINITY, NAN), (NAN, ONE), (ONE, INFINITY)], 4))
        self.digest = ""
        self.kept = disk.folder / "kept"

    def after(self, seconds, action, *arguments):
        self.later.append((time.monotonic() + seconds, action, arguments))

    def kill(self, *names, away_s=0.0):
        """They are restarted after that long, or sooner, so in any order."""
        for name in names:
            self.cluster.kill(name)
            self.starts[name] = time.monotonic() + self.dice.uniform(away_s / 2, away_s)

    def freeze(self, name, seconds):
        process = self.cluster.members[name]
        process.send_signal(signal.SIGSTOP)
        self.after(seconds, process.send_signal, signal.SIGCONT)

    def slow_worker(self):
        self.threads.append(Slow(self.cluster.members["worker 1"], self.dice.uniform(0.1, 0.4)).thread)

    def diverge(self):
        """Worker 2 joins with gradients that one ps or all can see are not finite, and leaves."""
        values = next(self.divergence)
        worker = DivergingWorker(self.cluster.ps_hosts, self.cluster.folder / "fleet.key", values, index=2,
                                 incarnation=self.dice.randrange(1, 1 << 63), digest=self.digest)
        self.threads.append(threading.Thread(target=self.run_diverging, args=(worker, self.dice.randint(1, 20))))
        self.threads[-1].start()

    def run_diverging(self, worker, refusals):
        try:
            with self.one_diverges:  # they join as the same worker
                worker.run(refusals, within=60)
        except Exception as error:  # pytest does not see threads' failures
            self.failures.append(error)
        self.outcomes.update(worker.outcomes)

    def set_clocks(self):
        """Usually back, by a second or by days, for one member or more; nobody corrects them."""
        for name in self.dice.sample(list(self.cluster.members), self.dice.randint(1, 4)):
            by_s = self.dice.choice([-1, -3600, -5 * 86400, 5 * 86400, self.dice.uniform(-1e6, 0)])
            self.clocks.set(name, self.clocks.ahead(name) + by_s)

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
            "worker 10 times slower": self.slow_worker,
            "worker that sends NaN": self.diverge,
            "ps killed": lambda: self.kill(self.dice.choice(["ps 0", "ps 1"])),
            "ps away past its lease": lambda: self.kill(self.dice.choice(["ps 0", "ps 1"]), away_s=2.0),
            "ps frozen": lambda: self.freeze(self.dice.choice(["ps 0", "ps 1"]), self.dice.uniform(0.05, 0.5)),
            "all ps killed": lambda: self.kill("ps 0", "ps 1", away_s=0.2),
            "all killed": lambda: self.kill(*self.dice.sample(list(self.cluster.members), 4), away_s=0.2),
            "links cut": lambda: self.all_links("cut"),
            "links half-open": lambda: self.dice.choice(self.relays).stall(),
            "links 200 ms late": self.slow_down,
            "links of 1 Mbit/s": self.narrow,
        }
        if self.clocks:
            faults["clocks set"] = self.set_clocks
        if self.disk.there:
            faults.update({"disk full": self.fill, "disk read-only": self.read_only})
        else:
            warnings.warn("no tmpfs can be mounted here, which takes root: the disk is never full or read-only")
        return faults

    def look_after(self):
        """Restarts what has ended, and takes the actions that are due."""
        now = time.monotonic()
        assert not self.failures, self.failures
        for due in [each for each in self.later if each[0] <= now]:
            self.later.remove(due)
            due[1](*due[2])
        for name, process in list(self.cluster.members.items()):
            status = process.poll()
            if status is not None and now >= self.starts.get(name, 0):
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

    def wait_for_a_checkpoint(self):
        before, deadline = self.newest(), time.monotonic() + LONG_S
        while self.newest() <= before:
            self.look_after()
            assert time.monotonic() < deadline, "no checkpoint\n" + "\n".join(
                f"{name}: {self.cluster.text(name)[-1500:]}" for name in self.cluster.members)
            time.sleep(0.02)


@pytest.mark.parametrize("part", range(CLUSTERS))
@pytest.mark.full(but=("0",))
def test_every_fault_over_and_over(trainer, clocked, tmp_path, part):
    dice = random.Random(seed_of_tests() + part)
    each = EACH // CLUSTERS
    flags = ("--issync=1", "--replicas_to_aggregate=2", "--min_replicas=2", "--min_workers=2",
             "--train_steps=100000000", "--lease_secs=1", "--recovery_wait_secs=0.1", "--save_model_secs=0.1",
             "--max_to_keep=3", "--validation_size=0", *FLAGS)
    with Disk(tmp_path / "disk") as disk, Cluster(trainer, tmp_path, ps=2, workers=3, flags=(
            *flags, f"--train_dir={disk.folder}/kept")) as cluster:
        members = ["ps 0", "ps 1", "worker 0", "worker 1"]
        clocks = Clocks(clocked, cluster, members) if clocked else None
        ports = [int(host.split(":")[1]) for host in cluster.ps_hosts]
        cluster.ps_hosts = [f"127.0.0.2:{port}" for port in ports]
        relays = [Relay(port, dice.randrange(1 << 30)) for port in ports]
        chaos = Chaos(cluster, relays, disk, clocks, dice)
        for name in members:
            cluster.start(name, "--bind=127.0.0.1")
        chaos.wait_for_a_checkpoint()
        wait_for(lambda: cluster.status()[1]["worker 0"]["config_digest"], "the config's digest")
        chaos.digest = cluster.status()[1]["worker 0"]["config_digest"]
        assert not clocks or all(clocks.is_read_by(name, cluster.members[name]) for name in members)
        begun = time.monotonic()
        faults = chaos.faults()
        schedule = [name for name in faults for _ in range(each)]
        dice.shuffle(schedule)
        for i, name in enumerate(schedule):
            print(f"{time.monotonic() - begun:6.2f} s: {name}", flush=True)
            faults[name]()
            chaos.counts[name] += 1
            chaos.pause(dice.uniform(0, 0.3))
            if i % 20 == 19:
                chaos.wait_for_a_checkpoint()
        chaos.pause(2)  # whatever has begun ends
        while chaos.later or any(thread.is_alive() for thread in chaos.threads):
            chaos.pause(0.1)  # bounded by the threads' own deadlines
        assert not chaos.failures
        chaos.wait_for_a_checkpoint()
        chaos.wait_for_a_checkpoint()
        print(f"{len(schedule)} faults in {time.monotonic() - begun:.0f} s: {dict(chaos.counts)}; "
              f"ends: {dict(chaos.ends)}; outcomes of pushes that were not finite: {dict(chaos.outcomes)}")
        assert min(chaos.counts.values()) == each
        assert set(chaos.outcomes) == {STALE, NOT_FINITE} and chaos.outcomes[NOT_FINITE] >= each
        named = [line for path in tmp_path.glob("ps*.out") for line in path.read_text().splitlines()
                 if re.search(r"worker \d \(.*sent a gradient that is not finite", line)]
        assert named and all("worker 2 (127.0.0.1:" in line for line in named)
        cluster.kill("worker 0", signal.SIGTERM)
        cluster.wait("worker 0", status=None)
        assert cluster.members["worker 0"].returncode in (1, 143)
        for relay in relays:
            relay.__exit__()
        step = chaos.newest()
        train(trainer, *SMALL, *FLAGS, "--validation_size=0", "--micro_batches=2", f"--train_steps={step}",
              "--train_dir=local", cwd=tmp_path)
        assert same_tensors(newest(chaos.kept), newest(tmp_path / "local")) == []


@pytest.mark.full
def test_backups_hide_slow_workers_over_and_over(trainer, tmp_path):
    """Any two of three gradients make a step. All workers draw the same image, so that the bits are those of one
    process whichever two count, and at any moment one of the three, possibly the chief, is ten times slower than the
    others."""
    seed = seed_of_tests()
    dice = random.Random(seed)
    data = ("--synthetic_train=1", "--validation_size=0", "--batch_size=1")
    steps, seconds = collections.Counter(), collections.Counter()
    with Cluster(trainer, tmp_path, ps=1, workers=3, flags=(
            "--issync=1", "--replicas_to_aggregate=2", "--min_workers=3", "--train_steps=100000000", "--lease_secs=30",
            "--save_model_secs=1", "--train_dir=kept", *FLAGS, *data)) as cluster:
        cluster.start_all()
        workers = [name for name in cluster.members if name.startswith("worker")]
        wait_for(lambda: (cluster.status()[1]["ps 0"]["global_step"] or 0) > 20, "step 20")
        dropped = collections.Counter()
        for i in range(EACH):
            for how in ("normal", "slow"):
                before = cluster.status()[1]
                begun = time.monotonic()
                if how == "slow":
                    name = workers[i % len(workers)]
                    Slow(cluster.members[name], 0.5).thread.join()
                else:
                    time.sleep(dice.uniform(0.1, 0.4))
                after = cluster.status()[1]
                seconds[how] += time.monotonic() - begun
                steps[how] += after["ps 0"]["global_step"] - before["ps 0"]["global_step"]
                if how == "slow":
                    dropped[name] += after[name]["dropped"] - before[name]["dropped"]
                    assert not after[name]["missing"] and after["ps 0"]["generation"] == 1
        rate = {how: steps[how] / seconds[how] for how in steps}
        print(f"steps per second {rate}, gradients of the slow one dropped {dict(dropped)}")
        assert rate["slow"] > 0.5 * rate["normal"]
        assert all(dropped[name] > 0 for name in workers)
        cluster.kill("worker 0", signal.SIGTERM)
        cluster.wait("worker 0", status=143)
    train(trainer, *SMALL, *FLAGS, *data, "--micro_batches=2", f"--train_steps={max(checkpoints(tmp_path / 'kept'))}",
          "--train_dir=local", cwd=tmp_path)
    assert same_tensors(newest(tmp_path / "kept"), newest(tmp_path / "local")) == []
