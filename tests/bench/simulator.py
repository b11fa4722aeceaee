#!/usr/bin/env python3
"""The simulator's events per second, and the share of the roles' lines that its clusters run.

    tests/bench/simulator.py [--share=1] [PART ...]

PART: speed, coverage; both by default. Prints one JSON line per figure. share: of the seeds that `make test` runs.
Events are also counted per second of processor time, which other work on the machine affects less.
"""

import os
import re
import resource
import subprocess

from figures import ROOT, arguments, run_parts, show

# The kind of run, its option, how many of them `make test` runs, and the Makefile's variable for that.
MODES = (("faults", (), 10000, "SEEDS"), ("with rollouts", ("--rollout",), 400, "ROLLOUTS"),
         ("with failing system calls", ("--shortage",), 3440, "SHORTAGES"))
LINE = r"simulate: (\d+) clusters, (\d+) [a-z ]+, (\d+) events in [\d.]+ s \((\d+) events/s\)"


def processor_seconds():
    """Of all child processes waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Bench:
    def __init__(self, options):
        self.seeds = {name: max(1, int(seeds * options.share)) for _, _, seeds, name in MODES}

    def speed(self):
        for words, flags, _, name in MODES:
            command = [ROOT / "build/simulate/simulate", f"--seeds={self.seeds[name]}", *flags]
            before = processor_seconds()
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            used = processor_seconds() - before
            clusters, faults, events, rate = re.search(LINE, output).groups()
            show(f"simulated clusters: {words}", int(rate), unit="events/s", clusters=int(clusters), faults=int(faults),
                 events=int(events), per_processor_second=round(int(events) / used))

    def coverage(self):
        output = subprocess.run(["make", "simulate-coverage",
                                 *(f"{name}={count}" for name, count in self.seeds.items())],
                                cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for room, share, lines, files in re.findall(r"coverage: (\S+): ([\d.]+)% of (\d+) lines in (\d+) files",
                                                    output):
            show(f"line coverage of {room} by simulated clusters", float(share), unit="%", lines=int(lines),
                 files=int(files))


def main():
    parser = arguments(__doc__, data=False)
    parser.add_argument("--share", type=float, default=float(os.environ.get("BENCH_SHARE", 1)))
    run_parts(parser, {"speed": Bench.speed, "coverage": Bench.coverage}, Bench)


if __name__ == "__main__":
    main()
