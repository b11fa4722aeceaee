#!/usr/bin/env python3
"""Steps per second on real MNIST, beside PyTorch in the same minutes, and beside what this CPU's multipliers can do.

    tests/bench/speed.py [--trainer=build/trainer] [--engine=build/bench/engine_bench] [--data=DIR] [--peers=DIR] [--rounds=3] [PART ...]

PART: steps, adam, dense; all of them by default. One JSON line for each figure, with the floor that it owes; the exit
status is 1 if a floor is missed. Runs alternate with the peer's, so that a machine that slows down does so for both;
each figure is the median of its runs. --peers: the folder of torch_local.py; without it there are no ratios.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from figures import missed, show

MLP_FLOP = 100 * 2 * (784 * 500 * 2 + 500 * 10 * 3)  # of one step at batch 100: forward, weight gradients, one delta


class Bench:
    def __init__(self, options):
        self.options = options
        self.data = str(pathlib.Path(options.data).resolve())
        self.trainer = str(pathlib.Path(options.trainer).resolve())
        self.cores = len(os.sched_getaffinity(0))

    def steps_per_s(self, threads, seconds, *flags):
        """The rate of a run that lasts about so many seconds: a short one tells how many steps that is."""
        steps = 400
        for _ in range(2):
            command = [self.trainer, "--log_format=json", f"--data_dir={self.data}", f"--num_threads={threads}", "--train_dir=", "--validate_steps=1000000000", f"--train_steps={steps}",
                       *flags]
            with tempfile.TemporaryDirectory() as folder:
                output = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
            rate = json.loads(output.splitlines()[-1])["steps_per_s"]
            steps = max(400, int(rate * seconds))
        return rate

    def torch(self, threads, batch=100):
        """The best rate of each model, eager or compiled: {"mlp": ..., "softmax": ..., "mlp compiled": ...}"""
        command = [self.options.python, str(pathlib.Path(self.options.peers) / "torch_local.py"), self.data, str(threads),
                   str(batch)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        rates = {}
        for line in output.splitlines():
            if line.startswith("{"):
                found = json.loads(line)
                rates[found["kind"] + (" compiled" if found["compile"] else "")] = found["steps_per_s"]
        return rates

    def beside(self, name, threads, floor, aim, flags, peers, batch=100, seconds=5):
        ours, theirs = [], []
        for _ in range(self.options.rounds):
            ours.append(self.steps_per_s(threads, seconds, *flags))
            if self.options.peers:
                key = threads, batch
                theirs.append(self.torch(*key))
        rate = statistics.median(ours)
        show(f"{name}, {threads} thread{'s' * (threads > 1)}", round(rate, 1), unit="steps/s", each=[round(one) for one in ours])
        if theirs:
            best = max(statistics.median(one.get(peer, 0) for one in theirs) for peer in peers)
            show(f"{name}, {threads} thread{'s' * (threads > 1)}, times PyTorch's best", round(rate / best, 2), floor, aim=aim,
                 peer=round(best, 1))

    def steps(self):
        sgd = ("--optimizer=sgd", "--learning_rate=0.1")
        mlp = ("--layers=784,500,10", "--batch_size=100", *sgd)
        both = ("mlp", "mlp compiled")
        self.beside("784-500-10, batch 100, SGD", 1, 4, 4.5, mlp, both)
        self.beside("784-500-10, batch 100, SGD", 2, 5.5, 7, mlp, both)
        self.beside("softmax regression, batch 100", 1, 8, None, ("--layers=784,10", "--batch_size=100", *sgd), ("softmax",))
        self.beside("784-500-10, batch 1,024", 2, 3, None, ("--layers=784,500,10", "--batch_size=1024", *sgd), ("mlp compiled",),
                    batch=1024)

    def adam(self):
        for threads in range(1, min(self.cores, 2) + 1):
            pairs = [[self.steps_per_s(threads, 3, f"--optimizer={optimizer}", "--learning_rate=0.001")
                      for optimizer in ("sgd", "adam")] for _ in range(self.options.rounds)]
            ratio = statistics.median(sgd / adam for sgd, adam in pairs)
            show(f"an Adam step, in SGD steps, {threads} thread{'s' * (threads > 1)}", round(ratio, 2), most=1.5,
                 steps_per_s=[round(statistics.median(rates)) for rates in zip(*pairs)])

    def dense(self):
        """Images without zeros, and the multiplications that need doing beside a loop that does nothing else."""
        output = subprocess.run([self.options.engine, "peak"], capture_output=True, text=True, check=True).stdout
        peaks = {line.split()[0]: float(line.split()[1]) for line in output.splitlines()}
        for kernels, peak in peaks.items():
            output = subprocess.run([self.options.engine, "train", "density=1", "threads=1", f"kernels={kernels}",
                                     "seconds=4"],
                                    capture_output=True, text=True, check=True).stdout
            rate = float(output.split()[0])
            show(f"dense 784-500-10, 1 thread, {kernels}: share of the FMA peak", round(100 * rate * MLP_FLOP / (peak * 1e9), 1),
                 75, unit="%", steps_per_s=round(rate), peak_gflop_per_s=round(peak, 1))


def main():
    parts = ("steps", "adam", "dense")
    root = pathlib.Path(__file__).resolve().parents[2]
    peers = pathlib.Path(os.environ.get("TRAINER_PEERS", root.parent / "shared/peers"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", default=root / "build/trainer")
    parser.add_argument("--engine", default=root / "build/bench/engine_bench")
    parser.add_argument("--data", default=os.environ.get("TRAINER_MNIST", root.parent / "shared/data/mnist"))
    parser.add_argument("--peers", default=peers if (peers / "torch_local.py").exists() else None)
    parser.add_argument("--rounds", type=int, default=int(os.environ.get("BENCH_ROUNDS", 3)), help="runs of each")
    parser.add_argument("--python", default=sys.executable, help="runs the peers")
    parser.add_argument("parts", nargs="*", metavar="PART", help=" ".join(parts))
    options = parser.parse_args()
    if set(options.parts) - set(parts):
        parser.error(f"PART is one of {', '.join(parts)}")
    bench = Bench(options)
    for part in options.parts or parts:
        getattr(bench, part)()
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
