#!/usr/bin/env python3
"""What unauthenticated peers cost a fleet: the rate of an honest job under each attack of tests/attacks.py, over TLS.

    tests/bench/hostile.py [--trainer=build/trainer] [--rounds=12] [PART ...]

PART: an attack, or chief, which is silent connections to the chief's data listener; all of them by default. Attacker
and job share this machine, and the attacker's own use of it is not the job's fault: so the rate under attack is divided
by that next to a plain loop that uses as much processor time, in turns; "steps per s" has the rates before, under
attack, next to the loop, and after. *joins*: from the start of another worker's process until it has the model, and its
batches from the chief.
"""

import multiprocessing
import os
import pathlib
import statistics
import sys
import tempfile
import time

from figures import ROOT, arguments, run_parts, show

sys.path.insert(0, str(ROOT / "tests"))

import protocol  # noqa: E402
from attacks import ATTACKS, Attack  # noqa: E402
from clusters import Cluster  # noqa: E402
from runs import wait_for  # noqa: E402

SLICE_S = 1.0  # of an attack, then of a loop, in turns: a slowdown of the machine affects both
ALONE_S = 2.0  # before and after
SETTLED_S = 1.0  # until unauthenticated peers have used up their saved budget
JOINS = 3
JOB = ("--train_steps=100000000", "--lease_secs=2", "--layers=784,10", "--learning_rate=0.001", "--min_workers=2",
       "--num_threads=1", "--issync=0", "--data_sharding=chief", "--train_dir=")


def burn(share):
    """A plain loop that uses this share of a processor."""
    while True:
        begun, used, wanted = time.monotonic(), time.thread_time(), 0.01 * share.value
        while time.thread_time() - used < wanted:
            pass
        time.sleep(max(0.0, 0.01 - (time.monotonic() - begun)))


class Loop:
    """Loops on every processor, scheduled like an attacker; together they use that many processors."""

    def __init__(self):
        self.share = multiprocessing.Value("d", 0.0)
        self.count = os.cpu_count()
        self.processes = [multiprocessing.Process(target=burn, args=(self.share,), daemon=True)
                          for _ in range(self.count)]

    def __enter__(self):
        for process in self.processes:
            process.start()
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.join()

    def take(self, processors):
        self.share.value = processors / self.count


class Bench:
    def __init__(self, options):
        self.options = options
        self.trainer = pathlib.Path(options.trainer).resolve()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="trainer-bench-"))
        self.fleets = 0

    def fleet(self):
        self.fleets += 1
        return Fleet(self.trainer, self.folder / str(self.fleets))

    def attack(self, name, words=None, port_of="ps 0"):
        under, beside, shares, joins = [], [], [], []
        with self.fleet() as fleet, Loop() as loop:
            before = fleet.rate(ALONE_S)
            with Attack(name, fleet.port(port_of), fleet.key, self.trainer) as attack:
                time.sleep(SETTLED_S)
                for _ in range(self.options.rounds):
                    used = attack.processor_s()
                    under.append(fleet.rate(SLICE_S))
                    shares.append((attack.processor_s() - used) / SLICE_S)
                    with attack.paused():
                        loop.take(shares[-1])
                        beside.append(fleet.rate(SLICE_S))
                        loop.take(0)
                for _ in range(JOINS):
                    joins.append(fleet.joins())
                found = attack.end()
            after = fleet.rate(ALONE_S)
            lines = fleet.refusals(port_of)
        words = words or name.replace("_", " ")
        show(f"{words}: rate, times that beside a plain loop", round(sum(under) / sum(beside), 2), floor=0.8,
             steps_per_s=[round(each) for each in (before, statistics.mean(under), statistics.mean(beside), after)],
             slices=[round(a / b, 2) for a, b in zip(under, beside)], connections=found["count"],
             processors=round(statistics.mean(shares), 2), lines_of_log=lines)
        show(f"{words}: another worker joins", round(max(joins), 2), most=2, unit="s",
             each=[round(each, 2) for each in joins])


class Fleet:
    def __init__(self, trainer, folder):
        self.cluster = Cluster(trainer, folder, ps=1, workers=3, flags=JOB)
        self.key = str(self.cluster.folder / "fleet.key")

    def __enter__(self):
        for name in ("ps 0", "worker 0", "worker 1"):
            self.cluster.start(name)
        wait_for(lambda: (self.cluster.status()[1]["ps 0"]["global_step"] or 0) > 20, "steps")
        self.operator = protocol.Client(self.port("ps 0"), self.key)
        name, fields = self.operator.hello(role=3, index=-1)
        assert name == "welcome", fields
        return self

    def __exit__(self, *raised):
        self.operator.socket.close()
        self.cluster.__exit__(*raised)

    def port(self, name):
        hosts = self.cluster.ps_hosts if name == "ps 0" else self.cluster.worker_hosts
        return int(hosts[0].split(":")[1])

    def step(self):
        self.operator.send("get_status")
        step, last = 0, False
        while not last:
            _, fields, _ = self.operator.receive()
            step, last = max(step, fields["global_step"]), fields["last"]
        return step

    def rate(self, seconds):
        begun, first = time.monotonic(), self.step()
        time.sleep(seconds)
        return (self.step() - first) / (time.monotonic() - begun)

    def joins(self):
        """Seconds from the start of worker 2's process until it is about to take its first step."""
        begun = time.monotonic()
        self.cluster.start("worker 2")
        self.cluster.until("worker 2", lambda text: '"event":"start"' in text, "start")
        took = time.monotonic() - begun
        self.cluster.kill("worker 2")
        wait_for(lambda: "worker 2" in self.cluster.text("ps 0").rsplit("is lost", 1)[0].splitlines()[-1], "end of it")
        return took

    def refusals(self, port_of):
        who = "ps 0" if port_of == "ps 0" else "worker 0"
        return sum("refused 127" in line for line in self.cluster.text(who).splitlines())


def main():
    parts = {name: lambda bench, name=name: bench.attack(name) for name in ATTACKS}
    parts["chief"] = lambda bench: bench.attack("silent", "silent, to the chief", "worker 0")
    run_parts(arguments(__doc__, rounds=12, data=False), parts, Bench)


if __name__ == "__main__":
    main()
