#!/usr/bin/env python3
"""Steps per second on real MNIST, compared with PyTorch in the same minutes, and with the limit of this CPU's
multipliers.

    tests/bench/speed.py [--trainer=build/trainer] [--engine=build/bench/engine_bench] [--data=DIR] [--peers=DIR]
                         [--rounds=3] [PART ...]

PART: steps, adam, dense; all of them by default. Prints one JSON line per figure, with its required minimum; the
exit status is 1 if a figure misses it. Runs alternate with the peer's, so that a slowdown of the machine affects
both; each figure is the median of its runs, and each ratio that of neighbouring runs, by the clock and by processor
time. --peers: the folder of torch_local.py; without it there are no ratios.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from figures import ROOT, Cost, Meter, arguments, compare, peer, run_parts, show, show_rate

TORCH_S = 6  # of the eight that torch_local.py measures for each line that it prints
MLP_FLOP = 100 * 2 * (784 * 500 * 2 + 500 * 10 * 3)  # of one step at batch 100: forward, weight gradients, one delta


class Bench:
    def __init__(self, options):
        self.options = options
        self.data = str(pathlib.Path(options.data).resolve())
        self.trainer = str(pathlib.Path(options.trainer).resolve())
        self.cores = len(os.sched_getaffinity(0))

    def step(self, threads, seconds, *flags):
        """The cost of a step, from a run of about that many seconds: a short run first determines the number of steps.
        """
        steps = 400
        for _ in range(2):
            command = [self.trainer, "--log_format=json", f"--data_dir={self.data}", f"--num_threads={threads}",
                       "--train_dir=", "--validate_steps=1000000000", f"--train_steps={steps}", *flags]
            with tempfile.TemporaryDirectory() as folder, Meter() as meter:
                output = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
            rate = json.loads(output.splitlines()[-1])["steps_per_s"]
            trained_s, steps = steps / rate, max(400, int(rate * seconds))
        return Cost.of_rate(rate, meter.processors(trained_s))

    def torch(self, threads, batch=100):
        """The cost of a step of each model, eager or compiled: {"mlp": ..., "softmax": ..., "mlp compiled": ...}"""
        command = [self.options.python, str(pathlib.Path(self.options.peers) / "torch_local.py"), self.data,
                   str(threads), str(batch)]
        costs = {}
        with Meter() as meter, subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            ends = {line: meter.clock() for line in process.stdout if line.startswith("{")}
        if process.returncode != 0:
            sys.exit(f"{' '.join(command)}: status {process.returncode}")
        for line, end in ends.items():
            found = json.loads(line)
            kind = found["kind"] + (" compiled" if found["compile"] else "")
            costs[kind] = Cost.of_rate(found["steps_per_s"], meter.processors(TORCH_S, end))
        return costs

    def beside(self, name, threads, floor, aim, flags, peers, batch=100, seconds=5):
        """Each of the peer's runs has one of ours before and after it, and each ratio is one of neighbours."""
        name = f"{name}, {threads} thread{'s' * (threads > 1)}"
        ours, theirs = [self.step(threads, seconds, *flags)], []
        for _ in range(self.options.rounds):
            if self.options.peers:
                costs = self.torch(threads, batch)
                theirs.append(min(costs[peer] for peer in peers if peer in costs))
            ours.append(self.step(threads, seconds, *flags))
        show_rate(name, ours, "steps/s")
        if theirs:
            compare(f"{name}, times PyTorch's best", ours, theirs, floor, aim=aim,
                    peer=[round(1 / peer.clock) for peer in theirs])

    def steps(self):
        sgd = ("--optimizer=sgd", "--learning_rate=0.1")
        mlp = ("--layers=784,500,10", "--batch_size=100", *sgd)
        both = ("mlp", "mlp compiled")
        self.beside("784-500-10, batch 100, SGD", 1, 4.5, 5.5, mlp, both)
        self.beside("784-500-10, batch 100, SGD", 2, 6, 8, mlp, both)
        self.beside("softmax regression, batch 100", 1, 9, 12, ("--layers=784,10", "--batch_size=100", *sgd),
                    ("softmax",))
        self.beside("784-500-10, batch 1,024", 2, 3.5, 5, ("--layers=784,500,10", "--batch_size=1024", *sgd),
                    ("mlp compiled",), batch=1024)

    def adam(self):
        for threads in range(1, min(self.cores, 2) + 1):
            costs = {"sgd": [], "adam": []}
            for _ in range(self.options.rounds):
                for optimizer, found in costs.items():
                    found.append(self.step(threads, 3, f"--optimizer={optimizer}", "--learning_rate=0.001"))
            compare(f"an Adam step, in SGD steps, {threads} thread{'s' * (threads > 1)}", costs["sgd"], costs["adam"],
                    most=1.5, steps_per_s={name: [round(1 / one.clock) for one in found]
                                           for name, found in costs.items()})

    def dense(self):
        """Images without zeros: the necessary multiplications, compared with a loop of nothing else just before and
        after."""
        output = subprocess.run([self.options.engine, "peak"], capture_output=True, text=True, check=True).stdout
        for kernels in (line.split()[0] for line in output.splitlines()):
            output = subprocess.run([self.options.engine, "train", "density=1", "threads=1", f"kernels={kernels}",
                                     "window=5", "seconds=6"],
                                    capture_output=True, text=True, check=True).stdout
            median, best = (float(re.search(rf"peak: .*{word} ([0-9.]+)", output)[1]) for word in ("median", "best"))
            show(f"dense 784-500-10, 1 thread, {kernels}: share of the FMA peak",
                 round(100 * median * MLP_FLOP * 1e-9, 1), 75, unit="%", best=round(100 * best * MLP_FLOP * 1e-9, 1),
                 steps_per_s=round(float(output.split()[0])))


def main():
    parser = arguments(__doc__, rounds=3)
    torch = peer("torch_local.py")
    parser.add_argument("--engine", default=ROOT / "build/bench/engine_bench")
    parser.add_argument("--peers", default=torch and torch.parent)
    parser.add_argument("--python", default=sys.executable, help="runs the peers")
    run_parts(parser, {"steps": Bench.steps, "adam": Bench.adam, "dense": Bench.dense}, Bench)


if __name__ == "__main__":
    main()
