#!/usr/bin/env python3
"""Figures of what goes in and comes out: TFRecord files beside IDX files, and what summaries and profiles cost.

    tests/bench/data.py [--trainer=build/trainer] [--bench=build/bench/data_bench] [--data=DIR] [--rounds=5] [--before=TRAINER] [PART ...]

PART: read, epoch, stream, summaries, off; all of them by default. One JSON line for each figure, with the floor that it
owes; the exit status is 1 if one is missed. What is compared runs in turn, so that a machine that slows down does so for
both. --before (or BENCH_BEFORE): a build from before there were summaries and profiles, which `off` needs.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from figures import missed, show

MODEL = ("--layers=784,500,10", "--batch_size=100")


class Bench:
    def __init__(self, options):
        self.options = options
        self.trainer = str(pathlib.Path(options.trainer).resolve())
        self.temporary = tempfile.TemporaryDirectory(dir=options.scratch)
        self.folder = pathlib.Path(self.temporary.name)
        self.made = set()

    def set(self, name, *flags):
        """MNIST in another kind of files."""
        if name not in self.made:
            self.made.add(name)
            subprocess.run([self.trainer, "convert", f"--data_dir={self.options.data}", *flags, f"--out={self.folder / name}"],
                           check=True, capture_output=True, cwd=self.folder)
        return str(self.folder / name)

    def train(self, *flags, trainer=None):
        """The done event, and the wall time from exec to exit."""
        begun = time.monotonic()
        done = subprocess.run([trainer or self.trainer, "--log_format=json", *MODEL, *flags], cwd=self.folder,
                              capture_output=True, text=True, check=True)
        return json.loads(done.stdout.splitlines()[-1]), time.monotonic() - begun

    def read(self):
        records = pathlib.Path(self.set("tfrecord", "--to=tfrecord")) / "train.tfrecord"
        found = json.loads(subprocess.run([self.options.bench, records, "15"], check=True, capture_output=True, text=True).stdout)
        show("TFRecord read on one core, framing and CRCs checked", found["records"], 0.8, unit="GB/s")
        show("TFRecord read on one core, CRCs checked, Examples taken apart", found["examples"], 0.8, unit="GB/s")

    def both(self, one, other, measure):
        """[(a, b), ...]: pairs that ran one after the other, which of them first by turns."""
        pairs = []
        for number in range(self.options.rounds):
            first, second = (one, other) if number % 2 == 0 else (other, one)
            values = {first: measure(first)}
            values[second] = measure(second)
            pairs.append((values[one], values[other]))
        return pairs

    def ratio(self, name, pairs, most, **more):
        """Of the medians, the second to the first."""
        one, other = (statistics.median(values) for values in zip(*pairs))
        show(name, round(other / one, 3), most=most, each=[[round(value, 3) for value in pair] for pair in pairs], **more)

    def epoch(self):
        """The whole program, from exec to exit: reading, one epoch, the test set."""
        folders = {"idx": self.set("idx", "--to=idx"), "records": self.set("shards", "--to=tfrecord", "--shards=4")}
        flags = ("--epochs=1", "--train_dir=")
        pairs = self.both("idx", "records", lambda kind: self.train(*flags, f"--data_dir={folders[kind]}")[1])
        self.ratio("a run of one epoch from TFRecord, times one from IDX", pairs, 1.1)

    def stream(self):
        """Steps that wait for nothing: in memory, and from files with a third of the set in memory."""
        folder = self.set("shards", "--to=tfrecord", "--shards=4")
        flags = (f"--data_dir={folder}", "--epochs=4", "--train_dir=", "--validate_steps=1000000000")
        limits = {"memory": (), "files": ("--memory_mb=20", "--shuffle_buffer=6000")}
        pairs = self.both("files", "memory", lambda kind: self.train(*flags, *limits[kind])[0]["steps_per_s"])
        self.ratio("steps/s in memory, times those of the same set that streams from TFRecord files", pairs, 1.1)

    def cost(self, name, pairs, most):
        """Of what is second in each pair, in % of the first's steps/s."""
        one, other = (statistics.median(values) for values in zip(*pairs))
        show(name, round(100 * (1 - other / one), 2), most=most, unit="% of steps/s",
             steps_per_s=[[round(value) for value in pair] for pair in pairs])

    def summaries(self):
        flags = (f"--data_dir={self.set('idx', '--to=idx')}", "--train_steps=3000", "--validate_steps=1000000000",
                 "--save_model_secs=0", "--train_dir=")
        kinds = {"without": (), "with": (f"--summary_dir={self.folder}/summaries", "--save_summaries_steps=100")}
        pairs = self.both("without", "with", lambda kind: self.train(*flags, *kinds[kind])[0]["steps_per_s"])
        self.cost("summaries every 100 steps cost", pairs, 2.0)

    def off(self):
        if not self.options.before:
            print("off: --before names no build from before there were summaries and profiles", file=sys.stderr)
            return
        flags = (f"--data_dir={self.set('idx', '--to=idx')}", "--train_steps=3000", "--validate_steps=1000000000",
                 "--save_model_secs=0", "--train_dir=")
        programs = {"before": str(pathlib.Path(self.options.before).resolve()), "now": self.trainer}
        pairs = self.both("before", "now", lambda kind: self.train(*flags, trainer=programs[kind])[0]["steps_per_s"])
        self.cost("summaries and profiles that are off cost", pairs, 1.0)


def main():
    parts = ("read", "epoch", "stream", "summaries", "off")
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", default=root / "build/trainer")
    parser.add_argument("--bench", default=root / "build/bench/data_bench")
    parser.add_argument("--data", default=os.environ.get("TRAINER_MNIST", root.parent / "shared/data/mnist"))
    parser.add_argument("--rounds", type=int, default=int(os.environ.get("BENCH_ROUNDS", 5)))
    parser.add_argument("--before", default=os.environ.get("BENCH_BEFORE"))
    parser.add_argument("--scratch", default=os.environ.get("BENCH_SCRATCH"), help="folder for the files that are made")
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
