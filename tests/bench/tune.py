#!/usr/bin/env python3
"""`trainer tune` on real tables (real_tables.py): what a minute's search makes of a run without flags, on test rows.

    tests/bench/tune.py [--trainer=build/trainer] [--tables=vehicle,credit] [--seeds=0] [--time_limit=60s]
                        [--flags=FLAGS]

Both sides use all processors that this process may use (taskset -c 0,1 for two). `trainer tune` trains the best config
on all rows within its time limit; `trainer` alone trains as long as it wants. What counts is the test's loss (log loss,
or mean squared error) and error (1 - accuracy, 1 - R2). Prints one JSON line per figure: ratios, below 1 where the
search helps, and their geometric mean.
"""

import pathlib
import shlex
import statistics
import sys
import tempfile

import figures
from defaults import predictions, timed
from figures import arguments, show
from real_tables import TABLES, Table
from scores import ERROR_OFFSET

USUAL = "vehicle,credit,churn,phoneme,concrete,chicago"  # of classes and of numbers, 846 to 5,698 rows


def measure(trainer, table, folder, run, command):
    """The Score of a model in `run`, which the command trains."""
    status, last, cost = timed([trainer, *command, "--data_dir=data", f"--target={table.target}", "--log_steps=0"],
                               folder)
    assert status == 0, last
    status, last, _ = timed([trainer, "predict", run, "data/test.csv", "--out=predictions.csv"], folder)
    assert status == 0, last
    return table.judge(*predictions(table, folder / "predictions.csv")), cost


def compare(options, name, seed):
    """The ratios of loss and of error."""
    table = Table(name, seed)
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        table.write(folder / "data")
        plain, took = measure(options.trainer, table, folder, "run", ["train", "--train_dir=run"])
        tuned, tuning = measure(options.trainer, table, folder, "search/final",
                                ["tune", "--train_dir=search", f"--time_limit={options.time_limit}",
                                 *shlex.split(options.flags)])
    ratios = tuned.loss / plain.loss, (1 - tuned.score + ERROR_OFFSET) / (1 - plain.score + ERROR_OFFSET)
    print(f"{name} {seed}: loss {plain.loss:.4g} -> {tuned.loss:.4g}, score {plain.score:.4f} -> {tuned.score:.4f}, "
          f"{took.clock:.1f} s and {tuning.clock:.1f} s", file=sys.stderr, flush=True)
    return ratios


def show_ratio(name, ratios):
    show(name, round(statistics.geometric_mean(ratios), 3), unit="x")


def main():
    parser = arguments(__doc__, data=False)
    parser.add_argument("--tables", default=USUAL, help="tables, with commas")
    parser.add_argument("--seeds", default="0", help="seeds of the splits, with commas")
    parser.add_argument("--time_limit", default="60s", help="of each search")
    parser.add_argument("--flags", default="", help="more flags for `trainer tune`")
    options = parser.parse_args()
    options.trainer = str(pathlib.Path(options.trainer).resolve())
    names = options.tables.split(",")
    unknown = set(names) - set(TABLES)
    if unknown:
        parser.error(f"no table {', '.join(sorted(unknown))}: there are {', '.join(TABLES)}")
    found = {}
    for name in names:
        found[name] = [compare(options, name, int(seed)) for seed in options.seeds.split(",")]
        show_ratio(f"{name}: loss of a search by that of a run without flags", [loss for loss, _ in found[name]])
    every = [ratios for some in found.values() for ratios in some]
    show_ratio(f"{len(names)} tables: loss of a search of {options.time_limit} by that of a run without flags",
               [loss for loss, _ in every])
    show_ratio(f"{len(names)} tables: the same, error", [error for _, error in every])
    sys.exit(1 if figures.missed else 0)


if __name__ == "__main__":
    main()
