"""Tables larger than their memory limit: preprocessed once, then read again and again."""

import os
import re
import resource
import signal

import numpy
import pytest

from clusters import Cluster
from runs import finish, newest, read_lines, run, same_tensors, start, train

# A row of 10 numbers and a class takes 44 bytes: all of them don't fit into 1 MiB, a window of 2,000 does.
ROWS = 30000
FLAGS = ("--target=y", "--memory_mb=1", "--shuffle_buffer=2000", "--validation_size=500", "--test_share=0.1",
         "--batch_size=50", "--num_threads=1", "--optimizer=adam", "--hidden=16", "--log_steps=0",
         "--save_summaries_steps=0")


def table(rows, seed=1):
    random = numpy.random.default_rng(seed)
    x = random.normal(size=(rows, 9)).round(3)
    kind = random.integers(0, 5, rows)
    y = (x[:, 0] * x[:, 1] + x[:, 2] + (kind - 2) > 0).astype(int)
    return x, kind, y


@pytest.fixture(scope="module")
def plant(tmp_path_factory):
    """The same rows as CSV in two files, and as a numpy array."""
    folder = tmp_path_factory.mktemp("plant")
    x, kind, y = table(ROWS)
    (folder / "csv").mkdir()
    (folder / "npy").mkdir()
    names = [*(f"c{i}" for i in range(10)), "y"]
    lines = [",".join([*map(repr, map(float, row)), f"{k}", f"{label}"]) for row, k, label in zip(x, kind, y)]
    for number, part in enumerate((lines[:20000], lines[20000:])):
        (folder / f"csv/train-{number}.csv").write_text("\n".join([",".join(names), *part]) + "\n")
    numpy.save(folder / "npy/train.npy", numpy.column_stack([x, kind, y]))
    return folder


def data_of(result):
    return result.named("start")[0]["data"]


def test_rows_larger_than_memory(trainer, plant, tmp_path):
    result = train(trainer, f"--data_dir={plant / 'csv'}", *FLAGS, "--epochs=6", "--train_dir=run", cwd=tmp_path)
    assert data_of(result).endswith("; streams")
    counts = re.search(r"([\d,]+) training, ([\d,]+) validation", data_of(result)).groups()
    training, validation = (int(count.replace(",", "")) for count in counts)
    assert validation == 500 and training + validation + result.done["test_rows"] == ROWS
    assert result.done["test_accuracy"] > 0.93 and result.done["epochs"] == 6
    assert result.done["steps"] == 6 * -(-training // 50)
    # The temporary file has no name: only the run's own files are there.
    assert not [name for name in os.listdir(tmp_path / "run") if "rows" in name or name.endswith(".tmp")]
    # The result is that of rows in memory: the same preprocessing, as good a model.
    whole = train(trainer, f"--data_dir={plant / 'csv'}", *FLAGS, "--memory_mb=100", "--epochs=6", "--train_dir=whole",
                  cwd=tmp_path)
    assert "streams" not in data_of(whole)
    assert whole.done["test_accuracy"] == pytest.approx(result.done["test_accuracy"], abs=0.03)
    again = run(trainer, "eval", "run", f"--data_dir={plant / 'csv'}", "--json", cwd=tmp_path).events[-1]
    assert again["test_accuracy"] == result.done["test_accuracy"]


def test_a_resumed_run_gives_the_same_bits(trainer, plant, tmp_path):
    flags = (f"--data_dir={plant / 'csv'}", *FLAGS, "--micro_batches=2", "--class_weights=balanced", "--weight=c8",
             "--validate_steps=100")
    refused = train(trainer, *flags, "--train_steps=10", cwd=tmp_path, status=1)
    assert "is no weight; weights are 0 or more" in refused.stdout + refused.stderr
    flags = tuple("--weight=c9" if flag == "--weight=c8" else flag for flag in flags)
    train(trainer, *flags, "--train_steps=700", "--train_dir=whole", "--num_threads=2", cwd=tmp_path)
    for stop in (1, 530, 531, 700):  # in the first epoch, around its end, in the second one
        train(trainer, *flags, f"--train_steps={stop}", "--train_dir=pieces", cwd=tmp_path)
    assert same_tensors(newest(tmp_path / "whole"), newest(tmp_path / "pieces")) == []


def test_a_killed_run_leaves_nothing_and_continues_to_the_bit(trainer, plant, tmp_path):
    (tmp_path / "cache").mkdir()
    flags = (f"--data_dir={plant / 'csv'}", *FLAGS, "--cache_dir=cache", "--save_steps=100", "--train_steps=1500",
             "--log_format=json", "--log_steps=50")
    run(trainer, "train", *flags, "--train_dir=whole", cwd=tmp_path)
    killed = start(trainer, "train", *flags, "--train_dir=killed", cwd=tmp_path)
    read_lines(killed, 8)
    killed.send_signal(signal.SIGKILL)
    finish(killed, status=-signal.SIGKILL)
    assert os.listdir(tmp_path / "cache") == []
    run(trainer, "train", *flags, "--train_dir=killed", cwd=tmp_path)
    assert same_tensors(newest(tmp_path / "whole"), newest(tmp_path / "killed")) == []


def test_the_format_does_not_matter(trainer, plant, tmp_path):
    """Once rows are preprocessed, only their order and values matter."""
    shared = ("--target=10", "--loss=softmax", *FLAGS[1:], "--train_steps=600", "--validation_size=0", "--test_share=0")
    (tmp_path / "csv").mkdir()
    (tmp_path / "npy").mkdir()
    array = numpy.load(plant / "npy/train.npy")
    numpy.savetxt(tmp_path / "csv/train.csv", array, fmt="%.17g", delimiter=",")
    numpy.save(tmp_path / "npy/train.npy", numpy.asfortranarray(array))
    for name in ("csv", "npy"):
        (tmp_path / name / "test.csv").write_text(",".join(["1"] * 10 + ["0"]) + "\n")
        result = train(trainer, f"--data_dir={name}", *shared, f"--train_dir=run-{name}", cwd=tmp_path)
        assert data_of(result).endswith("; streams")
    assert same_tensors(newest(tmp_path / "run-csv"), newest(tmp_path / "run-npy")) == []


def test_memory_stays_within_its_limit(trainer, tmp_path):
    """92 MiB of CSV, 40 MiB of rows, train in 40 MiB of address space."""
    x, kind, y = table(20000)
    lines = "".join(f"{','.join(map(repr, map(float, row)))},k{k},{label}\n" for row, k, label in zip(x, kind, y))
    (tmp_path / "d").mkdir()
    with open(tmp_path / "d/train.csv", "w", encoding="ascii") as file:
        file.write(",".join([*(f"x{i}" for i in range(9)), "kind", "y"]) + "\n")
        for number in range(75):
            file.write(lines.replace("k", f"m{number % 7}k"))
    size = 40 << 20
    flags = ("--data_dir=d", "--target=y", "--epochs=1", "--num_threads=2", "--shuffle_buffer=5000", "--hidden=8",
             "--optimizer=adam", "--test_share=0.01")
    result = train(trainer, *flags, "--memory_mb=8", cwd=tmp_path,
                   preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (size, size)))
    assert data_of(result).endswith("; streams") and result.done["test_accuracy"] > 0.85


@pytest.mark.parametrize("flags, words", [
    (["--shuffle_buffer=20000"], ["data.shuffle_buffer: two windows of 20000 rows", "lower --shuffle_buffer to"]),
    (["--test_share=0.9"], ["the rows to test with do not fit into 1 MiB", "--test_share"]),
    (["--cache_dir=/proc"], ["/proc: cannot hold rows", "(data.cache_dir)"]),
])
def test_what_does_not_fit_is_told(trainer, plant, tmp_path, flags, words):
    told = run(trainer, "train", f"--data_dir={plant / 'csv'}", *FLAGS, *flags, "--epochs=1", cwd=tmp_path,
               status=1).stderr
    assert all(word in told for word in words), told


def test_a_synchronous_cluster_gives_one_processs_bits(trainer, plant, tmp_path):
    flags = (f"--data_dir={plant / 'csv'}", *FLAGS, "--layers=10,16,2", "--train_steps=400")
    train(trainer, *[flag for flag in flags if "hidden" not in flag], "--micro_batches=2", "--train_dir=one",
          cwd=tmp_path)
    with Cluster(trainer, tmp_path / "both", workers=2,
                 flags=(*[flag for flag in flags if "hidden" not in flag], "--data_source=auto", "--issync=1",
                        "--lease_secs=30", "--min_workers=2", "--train_dir=kept")) as cluster:
        cluster.flags = [flag for flag in cluster.flags if "synthetic" not in flag]
        cluster.start_all()
        cluster.wait_all()
        assert cluster.events("worker 1", "start")[0]["data"].endswith("; streams")
    assert same_tensors(newest(tmp_path / "one"), newest(tmp_path / "both/kept")) == []


def test_workers_whose_rows_mean_something_else_are_refused(trainer, tmp_path):
    """The same columns, categories and layers, but other scales: undetected, both would train on nonsense."""
    for name, shift in (("here", 0), ("there", 5)):
        x, kind, y = table(2000)
        lines = [f"{a + shift},{b},k{k},{label}" for a, b, k, label in zip(x[:, 0], x[:, 1], kind, y)]
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.csv").write_text("\n".join(["a,b,kind,y", *lines]) + "\n")
        if name == "there":
            (tmp_path / "same").mkdir()
            (tmp_path / "same/train.csv").write_text((tmp_path / "here/train.csv").read_text())
    flags = ("--target=y", "--layers=8,16,2", "--batch_size=50", "--train_steps=1000000000", "--data_source=auto",
             "--validation_size=200")
    with Cluster(trainer, tmp_path / "fleet", workers=3, flags=flags) as cluster:
        cluster.flags = [flag for flag in cluster.flags if "synthetic" not in flag]
        cluster.start("ps 0")
        cluster.start("worker 0", f"--data_dir={tmp_path / 'here'}")
        cluster.start("worker 1", f"--data_dir={tmp_path / 'same'}")
        cluster.start("worker 2", f"--data_dir={tmp_path / 'there'}")
        cluster.wait("worker 2", status=1)
        assert "of this worker (here) differs" in cluster.text("worker 2")
        assert re.search(r"column a has centre -?[\d.e-]+ and scale [\d.]+ there, [\d.]+ and [\d.]+ here",
                         cluster.text("worker 2")), cluster.text("worker 2")
        cluster.until("worker 1", lambda text: '"step"' in text, "a step")
        # So is a chief that restarts with other files, though there is no checkpoint to compare with.
        cluster.kill("worker 0")
        cluster.start("worker 0", f"--data_dir={tmp_path / 'there'}")
        cluster.wait("worker 0", status=1)
        assert "of the running model (there)" in cluster.text("worker 0")
        assert "column a has centre" in cluster.text("worker 0")
        cluster.start("worker 0", f"--data_dir={tmp_path / 'here'}")
        cluster.until("worker 0", lambda text: '"step"' in text, "a step of the chief's")
        # The same after a lost ps has come back.
        cluster.kill("ps 0")
        cluster.start("ps 0")
        cluster.start("worker 2", f"--data_dir={tmp_path / 'there'}")
        cluster.wait("worker 2", status=1)
        assert "of this worker (here) differs" in cluster.text("worker 2")
