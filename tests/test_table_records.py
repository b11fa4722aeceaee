"""TFRecord files as tables: any numeric features by name, and labels of every kind."""

import gzip

import numpy
import pytest
from sklearn import datasets

from runs import newest, run, same_tensors, train
from tfrecord_files import example, write

QUICK = ("--optimizer=adam", "--batch_size=32", "--log_steps=0", "--num_threads=1", "--save_summaries_steps=0",
         "--train_steps=20", "--target=y", "--test_share=0.2")
DTYPES = ("uint8", "int32", "int64", "float32", "float64")


@pytest.fixture(scope="module")
def iris():
    x, y = datasets.load_iris(return_X_y=True)
    return x.astype(numpy.float32), y


@pytest.fixture(scope="module")
def from_arrays(trainer, iris, tmp_path_factory):
    """A run on the same numbers in numpy arrays."""
    folder = tmp_path_factory.mktemp("arrays")
    (folder / "set").mkdir()
    numpy.savez(folder / "set" / "train.npz", X=iris[0], y=iris[1])
    train(trainer, "--data_dir=set", *QUICK, "--train_dir=run", cwd=folder)
    return newest(folder / "run")


def hot(label):
    return numpy.eye(3)[label]


LABELS = {"integer": int, "float": float, "one-hot": lambda label: hot(label).astype(int), "float one-hot": hot,
          **{f"raw {dtype}": lambda label, dtype=dtype: numpy.dtype(dtype).type(label).tobytes() for dtype in DTYPES},
          **{f"raw one-hot {dtype}": lambda label, dtype=dtype: hot(label).astype(dtype).tobytes()
             for dtype in DTYPES}}


@pytest.mark.parametrize("kind", LABELS)
def test_records_are_arrays_to_the_bit(trainer, iris, from_arrays, tmp_path, kind):
    write(tmp_path / "set", "train.tfrecord", [example(X=x, y=LABELS[kind](y)) for x, y in zip(*iris)])
    dtype = [f"--label_dtype={kind.split()[-1]}"] if "raw" in kind else []
    train(trainer, "--data_dir=set", *QUICK, *dtype, "--train_dir=run", cwd=tmp_path)
    assert same_tensors(newest(tmp_path / "run"), from_arrays) == []
    told = run(trainer, "eval", "run", "set/train.tfrecord", *dtype, cwd=tmp_path).stdout
    assert "150" in told and "accuracy" in told
    assert run(trainer, "predict", "run", "set/train.tfrecord", *dtype, cwd=tmp_path).stdout.count("\n") == 151


def test_raw_labels_of_a_type_that_nobody_says(trainer, iris, from_arrays, tmp_path):
    write(tmp_path / "set", "train.tfrecord", [example(X=x, y=numpy.int64(y).tobytes()) for x, y in zip(*iris)])
    train(trainer, "--data_dir=set", *QUICK, "--train_dir=run", cwd=tmp_path)
    assert same_tensors(newest(tmp_path / "run"), from_arrays) == []


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_features_of_raw_bytes(trainer, iris, from_arrays, tmp_path, dtype):
    records = [example(X=x.astype(dtype).tobytes(), y=int(y)) for x, y in zip(*iris)]
    write(tmp_path / "set", "train.tfrecord", records)
    train(trainer, "--data_dir=set", *QUICK, f"--feature_dtype={dtype}", "--train_dir=run", cwd=tmp_path)
    assert same_tensors(newest(tmp_path / "run"), from_arrays) == []


def test_what_a_record_lacks_is_missing_and_what_is_wrong_is_named(trainer, iris, tmp_path):
    def record(i, **others):
        return example(**{"a": iris[0][i, 0], "b": iris[0][i, 1:], "text": b"some", "y": int(iris[1][i]), **others})

    records = [record(i) for i in range(150)]
    records[7] = example(b=iris[0][7, 1:], y=int(iris[1][7]))
    write(tmp_path / "set", "train.tfrecord", records)
    told = run(trainer, "data", "info", "--data_dir=set", "--target=y", cwd=tmp_path)
    table = told.stdout.split("most frequent\n")[1]  # then what each column becomes, with examples of it
    columns = {}
    for line in table.splitlines():
        columns.setdefault(line.split()[0], line.split())
    assert columns["a"][3] == "1" and {"a", "b.0", "b.1", "b.2", "text", "y"} < columns.keys()

    records[9] = record(9, b=iris[0][9])
    write(tmp_path / "set", "train.tfrecord", records)
    flags = ("--data_dir=set", *QUICK)
    refused = run(trainer, "train", *flags, cwd=tmp_path, status=1)
    assert "set/train.tfrecord: record 9 at byte " in refused.stderr
    assert "its feature \"b\" is not 3 numbers, as in the first record" in refused.stderr
    assert "record 9" in run(trainer, "train", *flags, "--max_bad_records=1", cwd=tmp_path).stderr

    write(tmp_path / "none", "train.tfrecord", [b"no example", b"nor this", b"and not this"])
    refused = run(trainer, "data", "info", "--data_dir=none", "--target=y", cwd=tmp_path, status=1)
    assert "none/train.tfrecord: record 2 at byte 50: " in refused.stderr


def test_a_regression_from_packed_records_that_stream(trainer, iris, tmp_path):
    rows = numpy.tile(iris[0], (600, 1))
    write(tmp_path / "set", "train.tfrecord", [example(x=row[:3], y=row[3]) for row in rows])
    path = tmp_path / "set" / "train.tfrecord"
    (tmp_path / "set" / "train.tfrecord.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    numpy.savez(tmp_path / "arrays.npz", x=rows[:, :3], y=rows[:, 3])
    (tmp_path / "arrays").mkdir()
    (tmp_path / "arrays.npz").rename(tmp_path / "arrays" / "train.npz")
    for folder in ("set", "arrays"):
        train(trainer, f"--data_dir={folder}", *QUICK, "--loss=mse", "--validation_size=100", "--memory_mb=1",
              "--shuffle_buffer=1000", f"--train_dir=run-{folder}", cwd=tmp_path)
    assert same_tensors(newest(tmp_path / "run-set"), newest(tmp_path / "run-arrays")) == []
