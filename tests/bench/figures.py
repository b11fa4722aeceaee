"""What the benchmarks share: arguments, and figures with what they owe."""

import argparse
import json
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

missed = []


def mnist_folder():
    """What TRAINER_MNIST names, or where `make mnist` puts it, or a folder that several checkouts share."""
    own = ROOT / "data"
    found = own if list(own.glob("train-images*")) else ROOT.parent / "shared/data/mnist"
    return pathlib.Path(os.environ.get("TRAINER_MNIST", found))


def peer(script):
    """A script that runs another program: in the folder that TRAINER_PEERS names, or in a shared one; or None."""
    found = pathlib.Path(os.environ.get("TRAINER_PEERS", ROOT.parent / "shared/peers")) / script
    return found if found.exists() else None


def arguments(about, rounds=None, data=True, wrap=False):
    """A parser of what benchmarks have in common: how often each is run, MNIST, a command around measurements."""
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
    """Runs the methods of begin(options) that the arguments name, or all. Exits, with 1 if a figure missed."""
    parser.add_argument("parts", nargs="*", metavar="PART", help=" ".join(parts))
    options = parser.parse_args()
    if set(options.parts) - set(parts):
        parser.error(f"PART is one of {', '.join(parts)}")
    bench = begin(options)
    for part in options.parts or parts:
        parts[part](bench)
    sys.exit(1 if missed else 0)


def show(name, value, floor=None, most=None, **more):
    """Prints a figure as tests/bench/run reads it; notes its name in `missed` if it owes more, or less."""
    good = (floor is None or value >= floor) and (most is None or value <= most)
    bound = {"floor": floor} if floor is not None else {"most": most} if most is not None else {}
    print(json.dumps({"figure": name, "value": value, **bound, **({} if good else {"missed": True}), **more}),
          flush=True)
    if not good:
        missed.append(name)
