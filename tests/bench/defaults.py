#!/usr/bin/env python3
"""Tables without any flag, on 38 real tables (real_tables.py): scores, losses and seconds beside scikit-learn's
HistGradientBoosting and MLP with their defaults.

    tests/bench/defaults.py [--trainer=build/trainer] [--tables=wine,boston] [--seeds=0,1] [--jobs=1] [--states=3]
                            [--peers=timed|fresh|cached] [--cache=FILE] [--flags=FLAGS] [--predict_flags=FLAGS]

Each seed splits each table again. `trainer --data_dir=D --target=T --train_dir=R` trains on train.csv (--flags adds
flags, for experiments), and `trainer predict R D/test.csv` gives the predictions that count. A run that fails counts as
the trivial model. Everything runs on one processor, `jobs` tables at a time. In --flags, {rows/32} is a whole number
that follows from the rows of train.csv, and {rows/32:16:256} the same, at least 16 and at most 256.

Ours is timed from exec to exit, including reading, tests and checkpoints; for the others only the fit counts. The
peers' fits are kept in the cache by split, random state and version. --peers=timed: HistGradientBoosting is fitted
again in turn with ours, so that the seconds compare, and the MLP, whose seconds don't count, is taken from the cache;
fresh: both are fitted; cached: neither is if it is known, and the seconds are not compared. The MLP's spread is the
standard deviation over `states` values of random_state.

Prints one JSON line per figure, with its bound; the exit status is 1 if a figure misses it. Standard error shows each
run as it ends.

- error: 1 - accuracy or 1 - R2, at most the trivial model's; its ratio to HistGradientBoosting's is the geometric mean
  of (ours + 0.01) / (theirs + 0.01).
- normalised loss: the mean of (ours - best) / (trivial - best), of log loss or mean squared error; best is the lowest
  known of any model (real_tables_best.csv).
"""

import argparse
import concurrent.futures
import hashlib
import json
import multiprocessing
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time
import warnings

import numpy
import pandas
import sklearn
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import figures
from figures import ROOT, Cost, arguments
from real_tables import TABLES, Table
from scores import Fit, Run, by_table, show_below, show_failures, show_loss, show_ratio, show_seconds, show_table

MOST_RATIO, MOST_NORMALISED_LOSS, MOST_TIME = .95, 4.1, 4


# --- Ours ---


def timed(command, folder):
    """The exit status, the last line printed, and the cost."""
    with open(folder / "log", "w+", encoding="utf-8") as log:
        begun = time.monotonic()
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        cost = Cost(time.monotonic() - begun, usage.ru_utime + usage.ru_stime)
        process.returncode = os.waitstatus_to_exitcode(status)
        log.seek(0)
        return process.returncode, (log.read().splitlines() or [""])[-1], cost


def predictions(table, file):
    """Probabilities or numbers, and the labels."""
    found = pandas.read_csv(file, dtype={"prediction": str}, keep_default_na=False, na_values=[""])
    if not table.is_class:
        return found["prediction"].astype(float).to_numpy(), None
    shares = found[[f"probability_{kind}" for kind in table.classes]].to_numpy(float)
    return shares, found["prediction"].to_numpy()


def flags_for(flags, rows):
    def share(found):
        divisor, least, most = found.groups()
        return str(min(max(int(rows / float(divisor)), int(least or 1)), int(most or rows)))
    return shlex.split(re.sub(r"\{rows/([\d.]+)(?::(\d+):(\d+))?\}", share, flags))


def train(options, table, folder):
    """Our Fit, and why it failed."""
    command = [options.trainer, f"--data_dir={folder / 'data'}", f"--target={table.target}",
               f"--train_dir={folder / 'run'}", *flags_for(options.flags, len(table.train))]
    status, last, cost = timed(command, folder)
    failed = Fit(*table.trivial(), *cost)
    if status:
        return failed, last
    status, last, _ = timed([options.trainer, "predict", folder / "run", folder / "data/test.csv",
                             f"--out={folder / 'predictions.csv'}", *shlex.split(options.predict_flags)], folder)
    if status:
        return failed, last
    try:
        predicted, labels = predictions(table, folder / "predictions.csv")
    except (KeyError, ValueError) as error:  # for example classes where numbers are due
        return failed, f"predictions of another kind: {error}"
    if not numpy.isfinite(predicted).all():
        return failed, "predictions that are not finite"
    return Fit(*table.judge(predicted, labels), *cost), ""


# --- The peers ---


def boosting(table, state):
    kind = HistGradientBoostingClassifier if table.is_class else HistGradientBoostingRegressor
    return kind(categorical_features="from_dtype", random_state=state), *table.features("category")


def mlp(table, state):
    train_rows, test_rows = table.features("text")
    numbers = [column for column in train_rows if column not in table.categorical]
    model = make_pipeline(make_column_transformer((make_pipeline(SimpleImputer(), StandardScaler()), numbers),
                                                  (OneHotEncoder(handle_unknown="ignore"), table.categorical)),
                          (MLPClassifier if table.is_class else MLPRegressor)(random_state=state))
    return model, train_rows, test_rows


PEERS = {"boosting": boosting, "mlp": mlp}


def fit_peer(peer, table, state):
    model, rows, test_rows = PEERS[peer](table, state)
    targets = table.targets()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the MLP's, that it could train longer
        begun, used = time.monotonic(), time.process_time()
        model.fit(rows, targets)
        cost = Cost(time.monotonic() - begun, time.process_time() - used)
        predicted = model.predict_proba(test_rows) if table.is_class else model.predict(test_rows)
    return Fit(*table.judge(predicted), *cost)


class Cache:
    """The peers' fits, a JSON line each."""

    def __init__(self, file):
        self.file, self.fits = pathlib.Path(file), {}
        if self.file.exists():
            for line in self.file.read_text(encoding="utf-8").splitlines():
                key, fit = json.loads(line)
                self.fits[tuple(key)] = Fit(*fit)

    def fit(self, peer, table, digest, state, again):
        """From the cache unless `again`, or again."""
        key = (table.name, table.seed, digest, peer, state, sklearn.__version__)
        if key in self.fits and not again:
            return self.fits[key]
        fit = fit_peer(peer, table, state)
        if key not in self.fits:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with open(self.file, "a", encoding="utf-8") as file:
                file.write(json.dumps([key, fit]) + "\n")
            self.fits[key] = fit
        return fit


# --- A table's split ---


def begin(processors):
    """In each process of the pool: one processor for all that it runs."""
    os.sched_setaffinity(0, {processors.get()})


def measure(options, name, seed):
    table, cache = Table(name, seed), Cache(options.cache)
    with tempfile.TemporaryDirectory(dir=options.scratch) as temporary:
        folder = pathlib.Path(temporary)
        table.write(folder / "data")
        digest = hashlib.sha256(b"".join((folder / "data" / f"{part}.csv").read_bytes() for part in ("train", "test")))
        ours, failure = train(options, table, folder)
    digest = digest.hexdigest()[:16]
    is_timed = options.peers != "cached"
    return Run(name, seed, table.is_class, table.trivial(), table.best_known(), ours, failure,
               cache.fit("boosting", table, digest, seed, is_timed), is_timed,
               [cache.fit("mlp", table, digest, state, options.peers == "fresh") for state in range(options.states)])


def measure_all(options):
    """The Runs, by table and seed."""
    # One thread for the peers, and the kernels that OpenBLAS itself chooses for this processor.
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    for variable in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        os.environ.pop(variable, None)
    context = multiprocessing.get_context("spawn")  # reads the environment again
    processors = context.Queue()
    for processor in sorted(os.sched_getaffinity(0))[:options.jobs]:
        processors.put(processor)
    with concurrent.futures.ProcessPoolExecutor(options.jobs, context, begin, (processors,)) as pool:
        waiting = [pool.submit(measure, options, name, seed) for name in options.tables for seed in options.seeds]
        for done in concurrent.futures.as_completed(waiting):
            print(done.result(), file=sys.stderr, flush=True)
    return [done.result() for done in waiting]


# --- All ---


def show_all(runs):
    for name, some in by_table(runs).items():
        show_table(name, some)
    show_failures(runs, 0)
    show_ratio(runs, MOST_RATIO)
    show_loss(runs, MOST_NORMALISED_LOSS)
    show_below(runs, 0)
    if all(run.is_timed for run in runs):
        show_seconds(runs, MOST_TIME)


def parsed():
    parser = arguments(__doc__, data=False)
    parser.add_argument("--program", dest="trainer", default=argparse.SUPPRESS, help="the same as --trainer")
    parser.add_argument("--flags", default="", help="more flags for our program")
    parser.add_argument("--predict_flags", default="", help="more flags for our `predict`")
    parser.add_argument("--tables", default=",".join(TABLES), help="tables, with commas")
    parser.add_argument("--seeds", default="0,1", help="seeds of the splits, with commas")
    parser.add_argument("--jobs", type=int, default=1, help="tables at a time, each on one processor")
    parser.add_argument("--states", type=int, default=3, help="fits of the MLP for each split, at least 2")
    parser.add_argument("--peers", choices=("timed", "fresh", "cached"), default="timed", help="which are fitted again")
    parser.add_argument("--cache", default=os.environ.get("BENCH_CACHE", ROOT / "build/bench/peers.jsonl"),
                        help="file with the peers' fits; BENCH_CACHE names it too")
    parser.add_argument("--scratch", default=os.environ.get("BENCH_SCRATCH"), help="folder for the files")
    options = parser.parse_args()
    options.tables, options.seeds = options.tables.split(","), [int(seed) for seed in options.seeds.split(",")]
    unknown = set(options.tables) - set(TABLES)
    if unknown:
        parser.error(f"no table {', '.join(sorted(unknown))}: there are {', '.join(TABLES)}")
    if not 1 <= options.jobs <= len(os.sched_getaffinity(0)):
        parser.error(f"--jobs={options.jobs}: this process may use {len(os.sched_getaffinity(0))} processors")
    if options.states < 2:
        parser.error(f"--states={options.states}: a spread needs at least 2")
    options.trainer = str(pathlib.Path(options.trainer).resolve())
    return options


def main():
    show_all(measure_all(parsed()))
    sys.exit(1 if figures.missed else 0)


if __name__ == "__main__":
    main()
