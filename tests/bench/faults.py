#!/usr/bin/env python3
"""The cost of faults to a cluster of real processes on this machine, over TLS.

    tests/bench/faults.py [--trainer=build/trainer] [--rounds=3] [PART ...]

PART: worker, ps, checkpoints; all of them by default. Prints one JSON line per figure. Every figure of a fault is the
worst of its rounds.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import time

from figures import ROOT, Cost, Meter, arguments, overhead, run_parts, show

sys.path.insert(0, str(ROOT / "tests"))

from clusters import Cluster  # noqa: E402
from runs import checkpoints, wait_for  # noqa: E402

LEASE_S = 2.0
STEPS = 1000
FOREVER = ("--train_steps=100000000", f"--lease_secs={LEASE_S}", "--learning_rate=0.02", "--issync=1")


class Bench:
    def __init__(self, options):
        self.options = options
        self.trainer = pathlib.Path(options.trainer).resolve()
        self.wrap = options.wrap.split()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="trainer-bench-"))
        self.clusters = 0

    def cluster(self, *flags, ps=2, workers=3):
        self.clusters += 1
        return Cluster(self.trainer, self.folder / str(self.clusters), ps=ps, workers=workers, flags=(*FOREVER, *flags))

    def worker(self):
        """From a worker's death to the first step without it."""
        stalls = []
        with self.cluster("--layers=784,10") as cluster:
            step = lambda: cluster.status()[1]["ps 0"]["global_step"] or 0
            cluster.start_all()
            for _ in range(self.options.rounds):
                wait_for(lambda: all(cluster.status()[1][name]["state"] == "training"
                                     for name in ("worker 1", "worker 2")),
                         "all workers")
                time.sleep(0.5)
                cluster.kill("worker 2")
                begun = time.monotonic()
                time.sleep(0.3)  # what was in flight when it died has ended
                last = step()
                wait_for(lambda: step() > last, "step without worker 2", 20)
                stalls.append(time.monotonic() - begun)
                cluster.start("worker 2")
        show(f"synchronous, one of three workers killed, lease {LEASE_S:g} s: longest time without a step",
             round(max(stalls), 2), most=LEASE_S + 1, unit="s", each=[round(each, 2) for each in stalls])

    def ps(self):
        """From the restart of a killed ps to steps of the new generation on all shards."""
        times = []
        with self.cluster("--train_dir=kept", "--save_model_secs=0.2", "--recovery_wait_secs=0.2",
                          workers=2) as cluster:
            cluster.start_all()
            kept = cluster.folder / "kept"
            wait_for(lambda: checkpoints(kept), "checkpoint")
            for _ in range(self.options.rounds):
                time.sleep(0.5)
                generation = cluster.status()[1]["ps 0"]["generation"]
                step = max(checkpoints(kept))
                cluster.kill("ps 1")
                time.sleep(1)
                cluster.start("ps 1")
                begun = time.monotonic()
                wait_for(lambda: all(member["generation"] > generation and (member["global_step"] or 0) > step
                                     for name, member in cluster.status()[1].items() if name.startswith("ps")),
                         "training", 20)
                times.append(time.monotonic() - begun)
        show("ps killed: from its restart until training resumes", round(max(times), 2), most=3, unit="s",
             each=[round(each, 2) for each in times])

    def step(self, *flags):
        """The cost of a global step of the bench's network, 1 ps and 2 workers."""
        command = [*self.wrap, self.trainer, "cluster", "--ps=1", "--workers=2", "--log_format=json", "--issync=1",
                   "--layers=784,500,10", "--batch_size=100", "--num_threads=1", "--min_workers=2",
                   "--validation_size=0", "--log_steps=0", "--learning_rate=0.1", "--data_source=synthetic",
                   f"--train_steps={STEPS}", *flags]
        with Meter() as meter:
            result = subprocess.run(command, cwd=self.folder, capture_output=True, text=True)
        found = re.search(r'"global_steps_per_s":([\d.]+)', result.stdout.splitlines()[-1] if result.stdout else "")
        if result.returncode != 0 or not found:
            sys.exit(f"{command}: status {result.returncode}\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
        return Cost(1 / float(found[1]), meter.took().processor / STEPS)

    def checkpoints(self):
        """With a checkpoint each second and without any: short pairs, in alternating order."""
        costs = {True: [], False: []}
        for i in range(4 * self.options.rounds + 1):
            kept = (f"--train_dir=kept{i}", "--save_model_secs=1")
            for keeps in (i % 2 == 0, i % 2 != 0):
                costs[keeps].append(self.step(*(kept if keeps else ("--train_dir=",))))
        overhead("1 ps + 2 workers, synchronous: cost of a checkpoint every second", costs[False], costs[True], most=5)


def main():
    run_parts(arguments(__doc__, rounds=3, data=False, wrap=True),
              {"worker": Bench.worker, "ps": Bench.ps, "checkpoints": Bench.checkpoints}, Bench)


if __name__ == "__main__":
    main()
