"""Shared by the benchmarks: arguments, figures with their required minimum, and comparisons that are robust on a busy
machine.

A comparison runs both sides in turn, and takes the median of the ratios of neighbours. Other users of the machine still
take elapsed time from one side or the other; so next to each ratio by the clock there is the same by processor time,
over all processes of each side. If the two differ by more than APART, the machine was not the same for both, or one of
them waits where the other computes: the figure is marked.
"""

import argparse
import bisect
import ctypes
import json
import os
import pathlib
import resource
import statistics
import sys
import threading
import time
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
APART = 1.2  # factor from which clock and processor time disagree
TICKS = os.sysconf("SC_CLK_TCK")
PR_SET_CHILD_SUBREAPER = 36

missed = []

# --- Arguments ---


def mnist_folder():
    """The folder that TRAINER_MNIST names, or that `make mnist` fills, or one shared by several checkouts."""
    own = ROOT / "data"
    found = own if list(own.glob("train-images*")) else ROOT.parent / "shared/data/mnist"
    return pathlib.Path(os.environ.get("TRAINER_MNIST", found))


def peer(script):
    """A script that runs another program, from the folder that TRAINER_PEERS names or from a shared one; or None."""
    found = pathlib.Path(os.environ.get("TRAINER_PEERS", ROOT.parent / "shared/peers")) / script
    return found if found.exists() else None


def arguments(about, rounds=None, data=True, wrap=False):
    """A parser of the benchmarks' common arguments: number of runs, MNIST, a command around measurements."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", default=ROOT / "build/trainer")
    if data:
        parser.add_argument("--data", default=mnist_folder(), help="MNIST's; TRAINER_MNIST names it too")
    if rounds:
        parser.add_argument("--rounds", type=int, default=int(os.environ.get("BENCH_ROUNDS", rounds)),
                            help="runs of each")
    if wrap:
        parser.add_argument("--wrap", default=os.environ.get("BENCH_WRAP", ""),
                            help="a command to run each measurement under")
    return parser


def run_parts(parser, parts, begin):
    """Runs the methods of begin(options) that the arguments name, or all. Exits, with 1 if a figure missed its minimum.
    """
    parser.add_argument("parts", nargs="*", metavar="PART", help=" ".join(parts))
    options = parser.parse_args()
    if set(options.parts) - set(parts):
        parser.error(f"PART is one of {', '.join(parts)}")
    bench = begin(options)
    for part in options.parts or parts:
        parts[part](bench)
    sys.exit(1 if missed else 0)


# --- Processor time ---


def of_descendants():
    """Seconds of processor time of the descendants still running, and of the children that they waited for."""
    parents, took = {}, {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # gone by now
        parents[int(pid)], took[int(pid)] = int(fields[1]), sum(map(int, fields[11:15])) / TICKS
    ours, before = {os.getpid()}, 0
    while len(ours) > before:
        before = len(ours)
        ours |= {pid for pid, parent in parents.items() if parent in ours}
    return sum(took[pid] for pid in ours if pid in took and pid != os.getpid())


def processor_s():
    """Seconds of processor time, user and system, of this process and all its descendants, past and present."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + of_descendants()


def adopt_orphans(adopt):
    """Keeps the processor time of processes whose parents exit before them."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0)


class Meter:
    """`with Meter() as meter:` measures what runs within, in this process and in its descendants."""

    EVERY_S = 0.5

    def __init__(self, clock=time.monotonic, processor=processor_s):
        self.clock, self.processor = clock, processor
        self.times, self.used, self.looked_s = [], [], 0.0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)

    def look(self):
        began = time.thread_time()
        self.times.append(self.clock())
        self.used.append(self.processor() - self.looked_s)
        self.looked_s += time.thread_time() - began

    def watch(self):
        while not self.ended.wait(self.EVERY_S):
            self.look()

    def __enter__(self):
        adopt_orphans(True)
        self.look()
        self.thread.start()
        self.times[0] = self.clock()  # a look takes milliseconds, which are not counted
        return self

    def __exit__(self, *_):
        end = self.clock()
        self.ended.set()
        self.thread.join()
        self.look()
        self.times[-1] = max(end, *self.times[:-1])
        adopt_orphans(False)

    def used_until(self, moment):
        """Processor time until then, assuming an even use between two looks."""
        after = min(max(bisect.bisect_left(self.times, moment), 1), len(self.times) - 1)
        (begun, ended), (low, high) = self.times[after - 1:after + 1], self.used[after - 1:after + 1]
        share = min(max((moment - begun) / (ended - begun), 0), 1) if ended > begun else 1
        return low + share * (high - low)

    def took(self):
        """The Cost of everything within."""
        return Cost(self.times[-1] - self.times[0], self.used[-1] - self.used[0])

    def processors(self, seconds, until=None):
        """The number of busy processors, in the seconds before a moment or the end."""
        until = self.times[-1] if until is None else until
        begin = max(until - seconds, self.times[0])
        return (self.used_until(until) - self.used_until(begin)) / max(until - begin, 1e-9)


class Cost(NamedTuple):
    """The cost of something: seconds by the clock, and seconds of all processors."""
    clock: float
    processor: float

    @classmethod
    def of_rate(cls, rate, processors):
        """The cost of one unit, from a rate per second and a number of busy processors."""
        return cls(1 / rate, processors / rate)


# --- Comparisons ---


def between(before, after):
    """The cost at a time between two runs: from the mean of their rates."""
    return Cost(*(2 / (1 / one + 1 / other) if one > 0 and other > 0 else (one + other) / 2
                  for one, other in zip(before, after)))


def ratios(ours, theirs, by):
    """The cost of theirs relative to ours, run by run: each compared with its neighbours. ours: one for each of theirs,
    or one more, so that each of theirs has one before and one after it."""
    if len(ours) == len(theirs) + 1:
        ours = [between(before, after) for before, after in zip(ours, ours[1:])]
    # Too short for the processor clock to have ticked: unknown.
    return [getattr(peer, by) / getattr(own, by) for own, peer in zip(ours, theirs)
            if getattr(own, by) > 0 and getattr(peer, by) > 0]


def spread(values):
    """Half the range, in % of the median."""
    return round(50 * (max(values) - min(values)) / statistics.median(values), 1)


def beside(clock, processor, digits=2):
    """The median of ratios by the clock, and next to it the same by processor time, where that is known."""
    value = statistics.median(clock)
    found = {"each": [round(one, digits) for one in clock], "spread_%": spread(clock)}
    if processor:
        by_processor = statistics.median(processor)
        found |= {"by_processor_time": round(by_processor, digits), "its_spread_%": spread(processor)}
        if max(value / by_processor, by_processor / value) > APART:
            found["apart"] = True
    return round(value, digits), found


def compare(name, ours, theirs, floor=None, most=None, digits=2, **more):
    """Shows the cost of theirs relative to ours, which is how many times faster ours is."""
    value, found = beside(*(ratios(ours, theirs, by) for by in Cost._fields), digits)
    show(name, value, floor, most, **found, **more)


def compare_sets(name, sets, floor=None, digits=2, /, **more):
    """Shows the same for several comparisons (ours, theirs), weighted equally."""
    found = {by: [ratios(*one, by) for one in sets] for by in Cost._fields}
    value, found = beside(*([statistics.median(one) for one in of if one] for of in found.values()), digits)
    show(name, value, floor, **found, **more)


def overhead(name, without, with_it, most, **more):
    """Shows by what share something reduces the rate, in %."""
    value, found = beside(*(ratios(with_it, without, by) for by in Cost._fields), digits=4)
    for key in ("each", "by_processor_time"):
        if key in found:
            found[key] = ([round(100 * (1 - one), 1) for one in found[key]] if key == "each" else
                          round(100 * (1 - found[key]), 2))
    show(name, round(100 * (1 - value), 2), most=most, unit="% of the rate", **found, **more)


def show_rate(name, costs, unit, **more):
    """Shows the median rate of runs, by the clock and by processor time."""
    clock = [1 / cost.clock for cost in costs]
    processor = [1 / cost.processor for cost in costs if cost.processor > 0]
    by_processor = {"per_processor_s": round(statistics.median(processor), 1)} if processor else {}
    show(name, round(statistics.median(clock), 1), unit=unit, each=[round(one) for one in clock],
         **{"spread_%": spread(clock)}, **by_processor, **more)


def show_time(name, costs, **more):
    """Shows the median time of runs, by the clock and of all processors."""
    clock, processor = ([getattr(cost, by) for cost in costs] for by in ("clock", "processor"))
    show(name, round(statistics.median(clock), 3), unit="s", each=[round(one, 3) for one in clock],
         **{"spread_%": spread(clock)}, processor_s=round(statistics.median(processor), 3), **more)


# --- Figures ---


def show(name, value, floor=None, most=None, **more):
    """Prints a figure as tests/bench/run reads it; adds its name to `missed` if it misses its bound."""
    good = (floor is None or value >= floor) and (most is None or value <= most)
    bound = {"floor": floor} if floor is not None else {"most": most} if most is not None else {}
    print(json.dumps({"figure": name, "value": value, **bound, **({} if good else {"missed": True}), **more}),
          flush=True)
    if not good:
        missed.append(name)


def shortfalls(found):
    """A table, as text, of the figures that missed their bounds and of those that are marked. found: (bench, figure),
    as `show` prints them."""
    rows = [("bench", "figure", "value", "owed", "by processor time", "")]
    for bench, figure in found:
        if figure.get("missed") or figure.get("apart"):
            owed = f">= {figure['floor']}" if "floor" in figure else f"<= {figure['most']}" if "most" in figure else ""
            words = [word for key, word in (("missed", "missed"), ("apart", "clock and processor time differ"))
                     if figure.get(key)]
            rows.append((bench, figure["figure"], f"{figure['value']} {figure.get('unit', '')}".strip(), owed,
                         str(figure.get("by_processor_time", "")), ", ".join(words)))
    if len(rows) == 1:
        return "No figure missed what it owes.\n"
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() + "\n" for row in rows)
