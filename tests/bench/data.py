#!/usr/bin/env python3
"""Input and output: TFRecord files compared with IDX files, and the cost of summaries and profiles.

    tests/bench/data.py [--trainer=build/trainer] [--bench=build/bench/data_bench] [--data=DIR] [--rounds=5]
                        [--before=TRAINER] [PART ...]

PART: read, epoch, stream, summaries, off; all of them by default. Prints one JSON line per figure, with its required
minimum; the exit status is 1 if a figure misses it. Compared programs run in turn, so that a slowdown of the machine
affects both. --before (or BENCH_BEFORE): a build without profiles (base/profile.h's PROFILE_PEER empty), which `off`
needs.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from figures import ROOT, Cost, Meter, arguments, compare, overhead, run_parts, show

MODEL = ("--layers=784,500,10", "--batch_size=100")


class Bench:
    def __init__(self, options):
        self.options = options
        self.trainer = str(pathlib.Path(options.trainer).resolve())
        self.temporary = tempfile.TemporaryDirectory(dir=options.scratch)
        self.folder = pathlib.Path(self.temporary.name)
        self.made = set()

    def set(self, name, *flags):
        """MNIST in another file format."""
        if name not in self.made:
            self.made.add(name)
            subprocess.run([self.trainer, "convert", f"--data_dir={self.options.data}", *flags,
                            f"--out={self.folder / name}"],
                           check=True, capture_output=True, cwd=self.folder)
        return str(self.folder / name)

    def train(self, *flags, trainer=None):
        """The done event, and the cost from exec to exit."""
        with Meter() as meter:
            done = subprocess.run([trainer or self.trainer, "--log_format=json", *MODEL, *flags], cwd=self.folder,
                                  capture_output=True, text=True, check=True)
        return json.loads(done.stdout.splitlines()[-1]), meter.took()

    def step(self, *flags, trainer=None):
        """The cost of a step; its processor time includes a share of start and end."""
        done, cost = self.train(*flags, trainer=trainer)
        return Cost(1 / done["steps_per_s"], cost.processor / done["steps"])

    def read(self):
        records = pathlib.Path(self.set("tfrecord", "--to=tfrecord")) / "train.tfrecord"
        found = json.loads(subprocess.run([self.options.bench, records, "15"], check=True, capture_output=True,
                                          text=True).stdout)
        show("TFRecord read on one core, framing and CRCs checked", found["records"], 0.8, unit="GB/s")
        show("TFRecord read on one core, CRCs checked, Examples parsed", found["examples"], 0.8, unit="GB/s")
        show("TFRecord read on one core, CRCs checked, Examples like the previous one", found["alike"], 0.8,
             unit="GB/s")

    def both(self, one, other, measure):
        """The costs of both, run one after the other, with the order alternating."""
        costs = {one: [], other: []}
        for number in range(self.options.rounds):
            for kind in (one, other) if number % 2 == 0 else (other, one):
                costs[kind].append(measure(kind))
        return costs[one], costs[other]

    def epoch(self):
        """The whole program, from exec to exit: reading, one epoch, the test set."""
        folders = {"idx": self.set("idx", "--to=idx"), "records": self.set("shards", "--to=tfrecord", "--shards=4")}
        flags = ("--epochs=1", "--train_dir=")
        costs = self.both("idx", "records", lambda kind: self.train(*flags, f"--data_dir={folders[kind]}")[1])
        compare("one epoch from TFRecord, times one from IDX", *costs, most=1.1, digits=3)

    def stream(self):
        """Steps without other waits, with a spare core for reading: in memory, and from files with a third of the set
        in memory. With a thread on every core, reading takes time from computing, and there is no required minimum."""
        folder = self.set("shards", "--to=tfrecord", "--shards=4")
        cores = len(os.sched_getaffinity(0))
        limits = {"memory": (), "files": ("--memory_mb=20", "--shuffle_buffer=6000")}
        for threads, most in ((max(1, cores - 1), 1.1), (cores, None)):
            flags = (f"--data_dir={folder}", "--epochs=4", "--train_dir=", "--validate_steps=1000000000",
                     f"--num_threads={threads}")
            costs = self.both("memory", "files", lambda kind: self.step(*flags, *limits[kind]))
            compare(f"steps/s in memory, times streaming from TFRecord files, {threads} of {cores} cores", *costs,
                    most=most, digits=3)

    def summaries(self):
        """By the program's own profile: the share of training time spent on summaries. Other load slows both equally,
        and would hide the difference between rates."""
        flags = (f"--data_dir={self.set('idx', '--to=idx')}", "--train_steps=1500", "--num_threads=1",
                 "--validate_steps=1000000000", "--save_model_secs=0", "--train_dir=", "--log_steps=1500")
        trace = self.folder / "trace.json"
        shares = []
        for number in range(self.options.rounds):
            self.train(*flags, f"--summary_dir={self.folder}/summaries{number}", "--save_summaries_steps=100",
                       f"--profile={trace}")
            events = json.loads(trace.read_text())
            events = events if isinstance(events, list) else events["traceEvents"]
            spans = {name: sum(event["dur"] for event in events if event.get("name") == name)
                     for name in ("write summary", "train")}
            shares.append(100 * spans["write summary"] / (spans["write summary"] + spans["train"]))
        show("cost of summaries every 100 steps", round(statistics.median(shares), 2), most=2.0, unit="% of the time",
             each=[round(share, 2) for share in shares])

    def off(self):
        if not self.options.before:
            print("off: --before names no build without profiles", file=sys.stderr)
            return
        flags = (f"--data_dir={self.set('idx', '--to=idx')}", "--train_steps=600", "--num_threads=1",
                 "--validate_steps=1000000000", "--save_model_secs=0", "--train_dir=")
        programs = {"before": str(pathlib.Path(self.options.before).resolve()), "now": self.trainer}
        costs = self.both("before", "now", lambda kind: self.step(*flags, trainer=programs[kind]))
        overhead("cost of disabled profiling, without summaries", *costs, most=1.0)


def main():
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--bench", default=ROOT / "build/bench/data_bench")
    parser.add_argument("--before", default=os.environ.get("BENCH_BEFORE"))
    parser.add_argument("--scratch", default=os.environ.get("BENCH_SCRATCH"), help="folder for the files that are made")
    run_parts(parser, {"read": Bench.read, "epoch": Bench.epoch, "stream": Bench.stream, "summaries": Bench.summaries,
                       "off": Bench.off}, Bench)


if __name__ == "__main__":
    main()
