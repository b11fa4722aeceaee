"""Tables: CSV files from scikit-learn's data sets and awkward ones, for training, evaluation and prediction."""

import contextlib
import csv
import datetime
import gzip
import io
import json
import math
import os
import pathlib
import platform
import re
import subprocess
import sys
import time

import numpy
import pytest
from safetensors import safe_open
from sklearn import datasets
from sklearn.metrics import balanced_accuracy_score, mean_absolute_error, r2_score
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import OneHotEncoder, RobustScaler, StandardScaler

from conftest import ROOT
from runs import newest, run, same_tensors, tensors, train

SYS_WRITE = {"x86_64": 1, "aarch64": 64}.get(platform.machine())
QUICK = ("--optimizer=adam", "--batch_size=32", "--log_steps=0", "--num_threads=1", "--save_summaries_steps=0",
         "--validate_steps=1000000")


def write(path, header, rows, delimiter=",", opener=open):
    path.parent.mkdir(parents=True, exist_ok=True)
    with opener(path, "wt", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        if header:
            writer.writerow(header)
        writer.writerows(rows)


def predictions(trainer, *flags, cwd):
    result = run(trainer, "predict", *flags, cwd=cwd)
    return list(csv.DictReader(io.StringIO(result.stdout)))


def preprocessing(train_dir):
    with safe_open(newest(train_dir), "numpy") as file:
        return json.loads(file.metadata()["preprocessing"])


@pytest.fixture(scope="module")
def cancer():
    data = datasets.load_breast_cancer()
    labels = data.target_names[data.target]
    x_train, x_test, y_train, y_test = train_test_split(data.data, labels, test_size=0.25, random_state=1,
                                                        stratify=labels)
    return list(data.feature_names), x_train, x_test, y_train, y_test


def test_a_classification_from_csv(trainer, cancer, tmp_path):
    names, x_train, x_test, y_train, y_test = cancer
    for part, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
        write(tmp_path / f"d/{part}.csv", [*names, "kind"], [[*map(repr, map(float, row)), k] for row, k in zip(x, y)])
    result = train(trainer, "--data_dir=d", "--target=kind", *QUICK, "--epochs=40", "--threshold=auto",
                   "--train_dir=run", cwd=tmp_path)
    done = result.done
    threshold = done["threshold"]
    kept = float(tensors(newest(tmp_path / "run"))[1]["threshold"])
    assert math.isclose(threshold, kept, rel_tol=1e-15) and 0 < threshold < 1  # JSON has 15 digits of it
    assert done["classes"] == ["benign", "malignant"]

    scaler = StandardScaler().fit(x_train)
    schema = preprocessing(tmp_path / "run")
    columns = {column["name"]: column for column in schema["columns"]}
    assert schema["task"] == "class" and columns["kind"]["categories"] == ["benign", "malignant"]
    assert [columns[name]["center"] for name in names] == pytest.approx(list(scaler.mean_), rel=1e-12)
    assert [columns[name]["scale"] for name in names] == pytest.approx(list(scaler.scale_), rel=1e-12)

    peer = MLPClassifier((100,), batch_size=32, max_iter=40, random_state=1, tol=0)
    peer.fit(scaler.transform(x_train), y_train)
    assert done["test_accuracy"] > peer.score(scaler.transform(x_test), y_test) - 0.03

    assert run(trainer, "eval", "run", "--data_dir=d", "--json", cwd=tmp_path).events[-1]["test_accuracy"] == \
        done["test_accuracy"]
    told = run(trainer, "eval", "run", "--data_dir=d", cwd=tmp_path)
    assert re.search(r"class benign +\d", told.stdout) and re.search(r"class malignant +\d", told.stdout)
    assert f"predicts malignant from a probability of {threshold:.4f} on" in told.stdout

    # Columns are found by name, in any order; other columns are copied to the output unchanged.
    order = numpy.random.default_rng(1).permutation(len(names))
    write(tmp_path / "new.csv", ["id", *[names[i] for i in order]],
          [[f"row {i}", *[repr(float(x[j])) for j in order]] for i, x in enumerate(x_test)])
    rows = predictions(trainer, "run", "new.csv", cwd=tmp_path)
    assert [row["id"] for row in rows] == [f"row {i}" for i in range(len(x_test))]
    right = sum(row["prediction"] == y for row, y in zip(rows, y_test))
    assert right / len(y_test) == pytest.approx(done["test_accuracy"])
    for row in rows:
        both = [float(row["probability_benign"]), float(row["probability_malignant"])]
        assert sum(both) == pytest.approx(1, abs=1e-5)
        assert row["prediction"] == ["benign", "malignant"][both[1] >= threshold]


def test_categories_missing_values_and_dialects(trainer, tmp_path):
    random = numpy.random.default_rng(3)
    colours = ["red", "green", "blue; dark", 'say "grey"']
    rows = []
    for i in range(600):
        colour, size = colours[random.integers(4)], random.normal()
        kind = "yes" if (colour in ("red", "blue; dark")) == (size > 0) else "no"
        rows.append([colour if i % 50 else "", f"{size:.6g}" if i % 20 else "NA", i, kind])
    rows[7][0] = "seen once"
    write(tmp_path / "d/train-1.csv.gz", ["colour", "size", "number", "kind"], rows[:300], ";", gzip.open)
    write(tmp_path / "d/train-2.csv", ["colour", "size", "number", "kind"], rows[300:], ";")
    text = (tmp_path / "d/train-2.csv").read_bytes()
    (tmp_path / "d/train-2.csv").write_bytes(b"\xef\xbb\xbf" + text)
    result = train(trainer, "--data_dir=d", "--target=kind", "--ignore=number", "--test_share=0.2", *QUICK,
                   "--epochs=60", "--train_dir=run", cwd=tmp_path)
    assert result.done["test_accuracy"] > 0.9
    colour, size = preprocessing(tmp_path / "run")["columns"][:2]
    assert colour["categories"] == sorted(colours) and colour["may_miss"]
    assert size["kind"] == "number" and size["may_miss"]
    start = result.named("start")[0]
    assert "8 inputs of 2 columns, 2 classes" in json.dumps(start)  # size, 4 + rare + missing, missing

    told = run(trainer, "data", "info", "--data_dir=d", "--log_format=json", cwd=tmp_path).events[0]
    assert told["rows"] == 600 and told["files"] == 2
    by_name = {column["name"]: column for column in told["columns"]}
    assert by_name["colour"]["missing"] == 12 and by_name["colour"]["distinct"] == 5
    sizes = [float(row[1]) for row in rows if row[1] != "NA"]
    assert by_name["size"]["mean"] == pytest.approx(numpy.mean(sizes)) and by_name["size"]["missing"] == 30
    assert by_name["size"]["std"] == pytest.approx(numpy.std(sizes)) and by_name["number"]["type"] == "integer"

    rows = predictions(trainer, "run", write_new(tmp_path, ["size;colour", "1.5;never seen", ";red"]), cwd=tmp_path)
    assert len(rows) == 2


def write_new(tmp_path, lines):
    (tmp_path / "new.csv").write_text("\n".join(lines) + "\n")
    return "new.csv"


def test_one_hot_columns_are_scikit_learns(trainer, tmp_path):
    random = numpy.random.default_rng(4)
    letters = random.choice(list("abcde"), 300)
    numbers = random.integers(0, 3, 300)
    write(tmp_path / "d/train.csv", ["letter", "n", "y"], list(zip(letters, numbers, random.integers(0, 2, 300))))
    train(trainer, "--data_dir=d", "--target=y", "--categorical=n", *QUICK, "--epochs=1", "--train_dir=run",
          "--test_share=0.1", cwd=tmp_path)
    encoder = OneHotEncoder().fit(numpy.stack([letters, numbers.astype(str)], 1))
    letter, n, y = preprocessing(tmp_path / "run")["columns"]
    assert letter["categories"] == list(encoder.categories_[0]) and n["categories"] == list(encoder.categories_[1])
    assert y["categories"] == ["0", "1"]


def test_a_resumed_run_is_the_same_and_other_data_are_refused(trainer, cancer, tmp_path):
    names, x_train, _, y_train, _ = cancer
    rows = [[*x, y] for x, y in zip(x_train, y_train)]
    write(tmp_path / "d/train.csv", [*names, "kind"], rows)
    flags = ("--data_dir=d", "--target=kind", *QUICK)
    train(trainer, *flags, "--train_steps=60", "--train_dir=whole", cwd=tmp_path)
    train(trainer, *flags, "--train_steps=25", "--train_dir=parts", cwd=tmp_path)
    train(trainer, *flags, "--train_steps=60", "--train_dir=parts", cwd=tmp_path)
    assert same_tensors(newest(tmp_path / "whole"), newest(tmp_path / "parts")) == []
    write(tmp_path / "d/train.csv", [*names, "kind"], rows[:-5])
    result = run(trainer, "train", *flags, "--train_steps=80", "--train_dir=parts", cwd=tmp_path, status=1)
    assert "was trained on other data than these" in result.stderr and "column mean radius has centre" in result.stderr


@pytest.mark.parametrize("lines, flags, said", [
    (["a,y", "1,0", "2,1,3", "4,0"], (), "train.csv:3:5: has 3 fields where the first row has 2"),
    (["a,y", "1,0", "2"], (), "train.csv:3:2: has 1 fields where the first row has 2"),
    (["a,y", *["1.5,0", "2.5,1"] * 20, "oops,1"], (), 'train.csv:42:1: column a: "oops" is not a number'),
    (["a,y", *["1.5,0", "2.5,1"] * 20, "inf,1"], (), "train.csv:42:1: column a: inf is not finite"),
    (["a,y", *["1.5,0", "2.5,1"] * 20, "1e39,1"], (), "train.csv:42:1: column a: 1e39 is beyond float32"),
    (["a,y", "1,0", "2,"], (), "train.csv:3:3: column y: is empty; a row needs its target"),
    (["a,y", "1,0", '2,"1'], (), "train.csv:3: ends inside a quoted field"),
    (["a,y", "1,0", "2,\0"], (), "train.csv:3:3: has a zero byte"),
    (["a,y", "1,0", "2,0"], (), "the target y has 1 value;"),
    (["a,b", "1,0", "2,1"], (), "data.target: d/train.csv has no column y among its 2"),
    (["a,y", "1,0", "2,1"], ("--features=aa",), "data.features: d/train.csv has no column aa"),
    (["a,a,y", "1,2,0"], (), "train.csv:1:3: has two columns called a"),
    ([""], (), "train.csv: is empty"),
])
def test_bad_tables_are_refused_with_the_place(trainer, tmp_path, lines, flags, said):
    (tmp_path / "d").mkdir()
    (tmp_path / "d/train.csv").write_text("\n".join(lines) + "\n")
    result = run(trainer, "train", "--data_dir=d", "--target=y", *flags, cwd=tmp_path, status=1)
    assert said in result.stderr, result.stderr


def test_files_as_other_programs_write_them(trainer, tmp_path):
    """R writes row names without a name for their column; a European spreadsheet writes 1,5; archives have various
    contents."""
    rows = [f'"{i}"\t{i / 2}\t"{"ab"[i % 2]}"\n' for i in range(300)]
    (tmp_path / "r").mkdir()
    (tmp_path / "r/train.tsv").write_text('"x"\t"y"\n' + "".join(rows))
    told = run(trainer, "data", "info", "--data_dir=r", "--log_format=json", cwd=tmp_path).events[0]
    assert [column["becomes"] for column in told["columns"]] == ["left out: it only identifies the rows", "number",
                                                                  "category of 2"]
    (tmp_path / "r/train.tsv").write_text('"row"\t"x"\t"y"\n' + "".join(rows))
    assert run(trainer, "data", "info", "--data_dir=r", "--log_format=json", cwd=tmp_path).events[0]["rows"] == 300

    write(tmp_path / "e/train.csv", ["x", "code", "y"], [[f"-{i},5", f"x{i},{i}", i % 2] for i in range(300)], ";")
    train(trainer, "--data_dir=e", "--target=y", *QUICK, "--epochs=1", "--train_dir=e/run", cwd=tmp_path)
    x, code = preprocessing(tmp_path / "e/run")["columns"][:2]
    assert x["notation"]["decimal"] == "," and x["center"] == pytest.approx(-150, abs=5)
    assert code["kind"] == "category"

    (tmp_path / "z").mkdir()
    arrays = {"X": numpy.arange(600.).reshape(300, 2), "y": numpy.arange(300) % 2, "when": numpy.array("today"),
              "names": numpy.array(["left", "right"]), "pictures": numpy.zeros((300, 2, 2))}
    numpy.savez(tmp_path / "z/train.npz", **arrays)
    result = train(trainer, "--data_dir=z", "--target=y", *QUICK, "--epochs=1", cwd=tmp_path)
    assert "rows, 2 inputs of 2 columns, 2 classes" in result.named("start")[0]["data"]
    assert "it is left out" in json.dumps(result.events)
    arrays = {"X": arrays["X"], "y": numpy.array(["no", "yes"] * 150)}
    numpy.savez(tmp_path / "z/train.npz", **arrays)
    said = run(trainer, "train", "--data_dir=z", "--target=y", cwd=tmp_path, status=1).stderr
    assert "z/train.npz: y: its elements are text" in said and "has no column y among its 2" in said
    numpy.savez(tmp_path / "z/train.npz", y=arrays["y"])
    assert "y: its elements are text" in run(trainer, "data", "info", "--data_dir=z", cwd=tmp_path,
                                                    status=1).stderr
    structured = numpy.zeros(9, [("a", "f4"), ("b", "i2")])
    numpy.save(tmp_path / "z/train.npy", structured)
    (tmp_path / "z/train.npz").unlink()
    assert "structured_to_unstructured" in run(trainer, "data", "info", "--data_dir=z", cwd=tmp_path, status=1).stderr


def test_bad_rows_are_counted_and_skipped(trainer, tmp_path):
    lines = ["a,y", *[f"{i / 4},{i % 2}" for i in range(200)]]
    lines.insert(50, "oops,1")
    lines.insert(70, "1,2,3")
    (tmp_path / "d").mkdir()
    (tmp_path / "d/train.csv").write_text("\n".join(lines) + "\n")
    flags = ("--data_dir=d", "--target=y", *QUICK, "--epochs=1", "--train_dir=run", "--test_share=0.1")
    assert "has 3 fields" in run(trainer, "train", *flags, "--max_bad_records=1", cwd=tmp_path, status=1).stderr
    train(trainer, *flags, "--max_bad_records=2", cwd=tmp_path)
    assert preprocessing(tmp_path / "run")["columns"][0]["center"] == pytest.approx(25, abs=2)


def wait_for_write(process, fd):
    """Until it blocks because nobody reads its output."""
    while not pathlib.Path(f"/proc/{process.pid}/syscall").read_text().startswith(f"{SYS_WRITE} {hex(fd)} "):
        assert process.poll() is None
        time.sleep(0.01)


@pytest.mark.skipif(not os.access("/proc/self/syscall", os.R_OK), reason="no telling what others wait for")
@pytest.mark.parametrize("ending", ["csv", "npy"])
@pytest.mark.parametrize("change", ["grows", "is cut"])
def test_a_file_that_changes_meanwhile(trainer, tmp_path, ending, change):
    """Between its two readings: the warning in between blocks, because nobody reads it."""
    (tmp_path / "d").mkdir()
    file = tmp_path / f"d/train.{ending}"
    rows = numpy.column_stack([numpy.arange(3000), numpy.full(3000, 5), numpy.arange(3000) % 2])
    if ending == "csv":
        numpy.savetxt(file, rows, "%d", ",")
    else:
        numpy.save(file, rows)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(writing, b"." * 4096):
            pass
    os.set_blocking(writing, True)
    with subprocess.Popen([trainer, "--data_dir=d", "--data_source=table", "--target=2", "--train_steps=10"],
                          cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=writing) as process:
        os.close(writing)
        wait_for_write(process, 2)
        if change == "grows":
            with open(file, "ab") as more:
                more.write(b"1,5,1\n" if ending == "csv" else bytes(24))
        else:
            os.truncate(file, file.read_bytes().rindex(b"\n", 0, 20000) + 1 if ending == "csv" else 20000)
        with open(reading, encoding="utf-8") as said:
            text = said.read().lstrip(".")
    if (ending, change) == ("npy", "grows"):
        assert process.returncode == 0, text  # its header says how many complete rows there are
    else:
        assert process.returncode == 1 and re.search("changed while|was it cut", text), text


def test_files_with_other_columns_are_refused(trainer, tmp_path):
    write(tmp_path / "d/train-1.csv", ["a", "y"], [[1, 0], [2, 1]])
    write(tmp_path / "d/train-2.csv", ["b", "y"], [[1, 0], [2, 1]])
    result = run(trainer, "train", "--data_dir=d", "--target=y", cwd=tmp_path, status=1)
    assert "train-2.csv: its column 1 is b, and a in the files before it" in result.stderr


def test_what_cannot_be_predicted_is_named(trainer, tmp_path):
    write(tmp_path / "d/train.csv", ["height", "y"], [[i, i % 2] for i in range(200)])
    train(trainer, "--data_dir=d", "--target=y", *QUICK, "--epochs=1", "--train_dir=run", cwd=tmp_path)
    renamed = run(trainer, "predict", "run", write_new(tmp_path, ["heigth,z", "1,2"]), cwd=tmp_path, status=1)
    assert "has no column height, which the model was trained on; was it renamed to heigth?" in renamed.stderr
    text = run(trainer, "predict", "run", write_new(tmp_path, ["height", "1", "tall"]), cwd=tmp_path, status=1)
    assert 'new.csv:3:1: column height: "tall" is not a number, as it was in training' in text.stderr
    unseen = run(trainer, "eval", "run", write_new(tmp_path, ["height,y", "1,1", "2,7"]), cwd=tmp_path, status=1)
    assert 'new.csv:3:3: column y: "7" is a class that training never saw' in unseen.stderr
    assert run(trainer, "predict", "run", "new.csv", "--out=out.csv", cwd=tmp_path).stdout == ""
    assert (tmp_path / "out.csv").read_text().startswith("height,y,prediction,probability_0,probability_1\n1,1,")
    nothing = run(trainer, "eval", "run", cwd=tmp_path, status=1)
    assert "data: there is no such folder of rows; name their folder with --data_dir, or one file" in nothing.stderr
    (tmp_path / "data").mkdir()
    nothing = run(trainer, "eval", "run", cwd=tmp_path, status=1)
    assert "data: holds no files of rows; name their folder with --data_dir, or one file" in nothing.stderr
    piped = subprocess.run([trainer, "predict", "run", "-"], input="height\n5\n", capture_output=True, text=True,
                           cwd=tmp_path, check=True)
    assert piped.stdout.startswith("height,prediction,")


def test_groups_stay_together(trainer, tmp_path):
    # The groups have equal rows, so a split by rows would put rows of one group on both sides.
    rows = [[group, row, (group * 7 + row) % 2] for group in range(60) for row in range(10)]
    write(tmp_path / "d/train.csv", ["group", "x", "y"], rows)
    result = train(trainer, "--data_dir=d", "--target=y", "--group=group", "--test_share=0.2", *QUICK, "--epochs=1",
                   cwd=tmp_path)
    found = re.search(r"(\d+) training, (\d+) validation rows", result.named("start")[0]["data"])
    training, validation = map(int, found.groups())
    assert training % 10 == 0 and validation % 10 == 0 and 0 < validation < training < 600
    again = run(trainer, "train", "--data_dir=d", "--target=y", "--group=group", "--test_share=0.2", *QUICK,
                "--epochs=1", "--train_dir=run", cwd=tmp_path)
    assert again.status == 0
    # The model knows which rows it was not trained on, unless a flag holds out others.
    told = run(trainer, "eval", "run", "--data_dir=d", "--json", cwd=tmp_path)
    assert told.events[-1]["test_rows"] == 600 - training - validation
    other = run(trainer, "eval", "run", "--data_dir=d", "--test_share=0.5", "--json", cwd=tmp_path).events[-1]
    assert other["test_rows"] > told.events[-1]["test_rows"] and other["test_rows"] % 10 == 0
    other = run(trainer, "eval", "run", "--data_dir=d", "--group=", "--json", cwd=tmp_path).events[-1]
    assert other["test_rows"] % 10 != 0


@pytest.mark.parametrize("kind", ["numbers", "dates"])
def test_the_latest_rows_are_held_out(trainer, tmp_path, kind):
    """The relation of y to x changes near the end: a model of earlier rows knows nothing of it."""
    random = numpy.random.default_rng(5)
    order = random.permutation(1000)
    rows = []
    for day in order:
        time = float(day) - 500 if kind == "numbers" else datetime.date.fromordinal(737000 + int(day)).isoformat()
        x = random.normal()
        rows.append([time, f"{x:.4f}", int((x > 0) == (day < 800))])
    write(tmp_path / "d/train.csv", ["when", "x", "y"], rows)
    flags = ("--data_dir=d", "--target=y", "--time=when", "--test_share=0.2", "--validation_size=100")
    result = train(trainer, *flags, *QUICK, "--validate_steps=100", "--epochs=30", "--best_metric=accuracy",
                   "--train_dir=run", cwd=tmp_path)
    assert "700 training, 100 validation rows, 1 inputs" in result.named("start")[0]["data"]
    assert result.done["test_rows"] == 200 and result.done["test_accuracy"] < 0.1
    assert result.done["best_accuracy"] > 0.9
    told = run(trainer, "eval", "run", "--data_dir=d", "--json", cwd=tmp_path).events[-1]
    assert told["test_rows"] == 200 and told["test_accuracy"] == result.done["test_accuracy"]
    write(tmp_path / "d/train.csv", ["when", "x", "y"], [*rows, ["soon", 1, 1]])
    wrong = run(trainer, "train", *flags, cwd=tmp_path, status=1)
    assert 'train.csv:1002:1: column when: "soon" is no time' in wrong.stderr
    both = run(trainer, "train", *flags, "--group=x", cwd=tmp_path, status=1)
    assert "data.time and data.group are two ways" in both.stderr


def test_robust_scaling_is_scikit_learns(trainer, tmp_path):
    x = numpy.random.default_rng(6).standard_cauchy((500, 3)).round(3)
    x[:, 2] = x[:, 2] > 5  # its quartiles are equal
    write(tmp_path / "d/train.csv", [*"abc", "y"], [[*map(repr, map(float, row)), i % 2] for i, row in enumerate(x)])
    write(tmp_path / "d/test.csv", [*"abc", "y"], [[0, 0, 0, 0]])
    train(trainer, "--data_dir=d", "--target=y", "--scaling=robust", *QUICK, "--epochs=1", "--train_dir=run",
          cwd=tmp_path)
    scaler = RobustScaler().fit(x)
    columns = preprocessing(tmp_path / "run")["columns"][:3]
    assert [column["center"] for column in columns] == pytest.approx(list(scaler.center_), rel=1e-12)
    assert [column["scale"] for column in columns] == pytest.approx(list(scaler.scale_), rel=1e-12)


def edges_of(x, bins):
    values = numpy.unique(x)
    return values if len(values) <= bins + 1 else numpy.unique(numpy.quantile(x, numpy.linspace(0, 1, bins + 1)))


def test_bins_are_quantiles_of_training_rows(trainer, tmp_path):
    random = numpy.random.default_rng(16)
    x = random.standard_cauchy((600, 5)).round(3)
    x[:, 1] = numpy.maximum(x[:, 1], 0)  # half of it is the same
    x[:, 2], x[:, 3] = random.integers(0, 4, 600), 7
    rows = [[*map(repr, map(float, row)), "" if i % 5 == 0 else i % 3, i % 2] for i, row in enumerate(x)]
    header = [*"abcde", "f", "y"]
    write(tmp_path / "d/train.csv", header, rows)
    write(tmp_path / "d/test.csv", header, [[1e9] * 6 + [1], [-1e9] * 6 + [0], rows[7]])
    flags = ("--data_dir=d", "--target=y", "--encoding=ple", "--bins=8", "--categorical=f", *QUICK)
    result = train(trainer, *flags, "--validation_size=0", "--epochs=2", "--train_dir=run", cwd=tmp_path)
    schema = preprocessing(tmp_path / "run")
    assert schema["encoding"] == "ple"
    expected = [edges_of(x[:, i], 8) for i in range(5)]
    for column, edges in zip(schema["columns"], expected):
        assert column.get("edges", [7]) == pytest.approx(list(edges), rel=1e-12)
    inputs = sum(len(edges) - 1 for edges in expected) + 5
    assert f"{inputs} inputs of 6 columns" in result.named("start")[0]["data"]
    assert len(expected[1]) < 9 and [len(expected[i]) for i in (0, 2, 3)] == [9, 4, 1]
    told = run(trainer, "data", "info", *flags, "--log_format=json", cwd=tmp_path).named("data")[0]["columns"]
    assert [column["becomes"] for column in told[:5]] == [f"number in {len(edges) - 1} bins" for edges in expected]

    given = numpy.array([[1e9] * 5, [-1e9] * 5, x[7]])  # encoded as in the paper
    bins = [numpy.clip((given[:, [i]] - e[:-1]) / numpy.diff(e), 0, 1) for i, e in enumerate(expected)]
    places = numpy.eye(5)[[0, 0, 2]]  # unseen, unseen, "1"
    layer = numpy.hstack([*bins, places])
    found, _ = tensors(newest(tmp_path / "run"))
    for i in range(2):
        (rows, columns), raw = found[f"layer{i}/weights"]
        weights = numpy.frombuffer(raw, numpy.float32).reshape(rows, columns)
        layer = layer @ weights + numpy.frombuffer(found[f"layer{i}/biases"][1], numpy.float32)
        layer = numpy.maximum(layer, 0) if i == 0 else layer
    probabilities = numpy.exp(layer) / numpy.exp(layer).sum(1, keepdims=True)
    answers = predictions(trainer, "run", "d/test.csv", "--checkpoint=newest", cwd=tmp_path)
    assert [float(row["probability_1"]) for row in answers] == pytest.approx(list(probabilities[:, 1]), abs=1e-5)


def test_an_encoded_run_resumes_to_the_bit_with_any_threads(trainer, cancer, tmp_path):
    names, x_train, x_test, y_train, y_test = cancer
    for part, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
        write(tmp_path / f"d/{part}.csv", [*names, "kind"], [[*map(repr, map(float, row)), k] for row, k in zip(x, y)])
    flags = ("--data_dir=d", "--target=kind", "--encoding=ple", "--hidden=128,16", *QUICK)
    whole = train(trainer, *flags, "--train_steps=60", "--num_threads=3", "--train_dir=whole", cwd=tmp_path)
    train(trainer, *flags, "--train_steps=25", "--train_dir=parts", cwd=tmp_path)
    train(trainer, *flags, "--train_steps=60", "--train_dir=parts", cwd=tmp_path)
    assert same_tensors(newest(tmp_path / "whole"), newest(tmp_path / "parts")) == []
    told = run(trainer, "eval", "whole", "--data_dir=d", "--json", cwd=tmp_path).events[-1]
    assert told["test_accuracy"] == whole.done["test_accuracy"] > 0.93
    answers = predictions(trainer, "whole", "d/test.csv", cwd=tmp_path)
    assert numpy.mean([row["prediction"] == kind for row, kind in zip(answers, y_test)]) == pytest.approx(
        whole.done["test_accuracy"])
    told = run(trainer, "explain", "whole", "--data_dir=d", "--json", cwd=tmp_path).events[-1]
    assert len(told["columns"]) == len(names) and max(column["importance"] for column in told["columns"]) > 0
    other = run(trainer, "train", *flags, "--encoding=none", "--train_steps=70", "--train_dir=parts", cwd=tmp_path,
                status=1)
    assert "data.encoding is ple there and none here" in other.stderr
    inputs = run(trainer, "train", "--data_dir=d", "--target=inputs", "--encoding=ple", cwd=tmp_path, status=1)
    assert "data.encoding: ple has no numbers that --target=inputs could learn; use none" in inputs.stderr


def test_columns_that_teach_too_much_or_nothing_are_named(trainer, tmp_path):
    rows = [[i, 7, f"{i % 2}.0", f"{i % 2}", i % 2] for i in range(300)]
    write(tmp_path / "d/train.csv", ["x", "same", "copy", "half", "y"], [*rows, [1, 7, "1.0", "0", 1]])
    result = run(trainer, "train", "--data_dir=d", "--target=y", *QUICK, "--epochs=1", cwd=tmp_path)
    assert "column copy equals the target y in every row, which the model will copy" in result.stderr
    assert "column same has only one value and teaches nothing" in result.stderr
    assert "column half" not in result.stderr and "column x" not in result.stderr


def test_rows_count_by_their_weight(trainer, tmp_path):
    """As if the row were repeated, except for held-out rows, of which there are none."""
    random = numpy.random.default_rng(7)
    x = random.normal(size=(400, 2)).round(4)
    y = ((x[:, 0] > 0) ^ (random.random(400) < 0.3)).astype(int)
    weight = numpy.where(y == (x[:, 0] > 0), 1, 0)  # noise has weight zero
    rows = [[*map(repr, map(float, row)), w, label] for row, w, label in zip(x, weight, y)]
    write(tmp_path / "d/train.csv", ["a", "b", "w", "y"], rows)
    write(tmp_path / "d/test.csv", ["a", "b", "w", "y"], [row for row, w in zip(rows, weight) if w])
    flags = ("--data_dir=d", "--target=y", "--validation_size=0", *QUICK, "--epochs=200", "--hidden=64")
    noisy = train(trainer, *flags, "--ignore=w", cwd=tmp_path).done
    weighed = train(trainer, *flags, "--weight=w", cwd=tmp_path).done
    assert weighed["test_loss"] < 0.5 * noisy["test_loss"] and weighed["test_accuracy"] > 0.97
    write(tmp_path / "d/train.csv", ["a", "b", "w", "y"], [[*row[:2], -1, row[3]] for row in rows])
    wrong = run(trainer, "train", *flags, "--weight=w", cwd=tmp_path, status=1)
    assert "column w: \"-1\" is no weight; weights are 0 or more" in wrong.stderr


@pytest.mark.parametrize("dtype", "? i1 u1 <i2 >i2 <u2 >u4 <i4 >i8 <u8 <f2 >f2 <f4 >f4 <f8 >f8".split())
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_all_types(trainer, tmp_path, dtype, order):
    array = numpy.random.default_rng(2).integers(0 if dtype[0] in "?u" or "u" in dtype else -100, 100, (7, 3))
    array = numpy.array(array, dtype=dtype, order=order)
    (tmp_path / "d").mkdir()
    numpy.save(tmp_path / "d/train.npy", array)
    told = run(trainer, "data", "info", "--data_dir=d", "--log_format=json", cwd=tmp_path).events[0]
    assert told["rows"] == 7
    for column, values in zip(told["columns"], array.astype(float).T):
        assert column["min"] == values.min() and column["max"] == values.max()
        assert column["mean"] == pytest.approx(values.mean(), abs=1e-12)


def test_a_regression_from_npz(trainer, tmp_path):
    data = datasets.load_diabetes()
    x_train, x_test, y_train, y_test = train_test_split(data.data, data.target, random_state=1)
    (tmp_path / "d").mkdir()
    numpy.savez(tmp_path / "d/train.npz", X=x_train, y=y_train)
    numpy.savez_compressed(tmp_path / "d/test.npz", X=numpy.asfortranarray(x_test, dtype=numpy.float32), y=y_test)
    result = train(trainer, "--data_dir=d", "--target=y", *QUICK, "--epochs=20", "--train_dir=run", cwd=tmp_path)
    target = preprocessing(tmp_path / "run")["columns"][-1]
    assert target["center"] == pytest.approx(y_train.mean()) and target["scale"] == pytest.approx(y_train.std())
    found = [float(row["prediction"]) for row in predictions(trainer, "run", "d/test.npz", cwd=tmp_path)]
    assert r2_score(y_test, found) > 0.3
    assert result.done["test_mae"] == pytest.approx(mean_absolute_error(y_test, found), rel=1e-5)
    assert result.done["test_r2"] == pytest.approx(r2_score(y_test, found), rel=1e-5)


@pytest.mark.parametrize("name, content, said", [
    ("train.npy", b"\x93NUMPY\x01\x00\x10\x00{'descr': '<c16'", "its elements are not numbers"),
    ("train.npy", b"\x93NUMPY\x09\x00", "is no numpy array of format 1 to 3"),
    ("train.npz", b"PK\x03\x04 and no more", "has no directory"),
])
def test_damaged_arrays_are_refused(trainer, tmp_path, name, content, said):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / name).write_bytes(content.ljust(64))
    assert said in run(trainer, "data", "info", "--data_dir=d", cwd=tmp_path, status=1).stderr
    numpy.save(tmp_path / "d/train.npy", numpy.zeros((100, 4)))
    (tmp_path / "d/train.npz").unlink(missing_ok=True)
    (tmp_path / "d/train.npy").write_bytes((tmp_path / "d/train.npy").read_bytes()[:-8])
    assert "was it cut?" in run(trainer, "data", "info", "--data_dir=d", cwd=tmp_path, status=1).stderr


def test_several_labels_at_once(trainer, tmp_path):
    x, y = datasets.make_multilabel_classification(600, 12, n_classes=4, random_state=1)
    write(tmp_path / "d/train.csv", [*(f"x{i}" for i in range(12)), *"abcd"], numpy.hstack([x, y]).astype(int))
    train(trainer, "--data_dir=d", "--target=a,b,c,d", *QUICK, "--epochs=40", "--train_dir=run", cwd=tmp_path)
    assert preprocessing(tmp_path / "run")["task"] == "flags"
    rows = predictions(trainer, "run", "d/train.csv", cwd=tmp_path)
    found = numpy.array([[int(row[f"prediction_{label}"]) for label in "abcd"] for row in rows])
    assert (found == y).mean() > 0.85
    for row in rows[:20]:
        assert (float(row["probability_a"]) >= 0.5) == (row["prediction_a"] == "1")


def test_an_anomaly_detector(trainer, tmp_path):
    digits = datasets.load_digits()
    usual, strange = digits.data[digits.target < 5], digits.data[digits.target == 8]
    write(tmp_path / "d/train.csv", [f"p{i}" for i in range(64)], usual.astype(int))
    write(tmp_path / "strange.csv", [f"p{i}" for i in range(64)], strange.astype(int))
    flags = ("--data_dir=d", "--target=inputs", "--hidden=12", *QUICK, "--epochs=60")
    train(trainer, *flags, "--anomaly_quantile=0.9", "--train_dir=run", cwd=tmp_path)
    usual = predictions(trainer, "run", "d/train.csv", cwd=tmp_path)
    odd = predictions(trainer, "run", "strange.csv", cwd=tmp_path)
    low, high = ([float(row["error"]) for row in rows] for rows in (usual, odd))
    assert numpy.median(high) > 1.4 * numpy.median(low)
    threshold = float(tensors(newest(tmp_path / "run"))[1]["threshold"])
    for row in [*usual, *odd]:
        assert row["flag"] == str(int(float(row["error"]) > threshold))
    told = run(trainer, "eval", "run", "strange.csv", "--json", cwd=tmp_path).events[-1]
    assert told["threshold"] == threshold
    assert told["test_flagged"] == sum(row["flag"] == "1" for row in odd)
    assert told["test_flagged"] > 2 * (1 - 0.9) * len(odd)
    plain = run(trainer, "eval", "run", "strange.csv", cwd=tmp_path).stdout
    assert f"anomalies (error above {threshold:.6g}): {told['test_flagged']} of {len(odd)} rows" in plain

    train(trainer, *flags, "--anomaly_quantile=0.5", "--train_dir=lower", cwd=tmp_path)
    assert float(tensors(newest(tmp_path / "lower"))[1]["threshold"]) < threshold


def test_class_weights_balance_what_is_rare(trainer, tmp_path):
    x, y = datasets.make_classification(2000, 8, weights=[0.95], class_sep=0.6, random_state=1)
    write(tmp_path / "d/train.csv", [*(f"x{i}" for i in range(8)), "y"],
          [[*(f"{v:.6g}" for v in row), label] for row, label in zip(x, y)])
    scores = []
    for weights in ("", "balanced", "1:19"):
        train(trainer, "--data_dir=d", "--target=y", "--hidden=16", *QUICK, "--epochs=15", f"--train_dir=run{weights}",
              f"--class_weights={weights}", cwd=tmp_path)
        rows = predictions(trainer, f"run{weights}", "d/train.csv", cwd=tmp_path)
        scores.append(balanced_accuracy_score(y, [int(row["prediction"]) for row in rows]))
    assert scores[1] > scores[0] + 0.05 and scores[2] > scores[0] + 0.05
    wrong = run(trainer, "train", "--data_dir=d", "--target=y", "--class_weights=2:1", cwd=tmp_path, status=1)
    assert "train.class_weights: the target has no class 2" in wrong.stderr


def test_a_config_file_may_list_the_usual_patterns(trainer, tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d/train.csv").write_text("x,y\n" + "".join(f"{i % 7},{'ab'[i % 7 > 3]}\n" for i in range(200)))
    usual = {"data": {"train_files": "train*.tfrecord*", "test_files": "test*.tfrecord*"}}
    (tmp_path / "config.json").write_text(json.dumps(usual))
    result = train(trainer, "--config=config.json", "--data_dir=d", "--target=y", "--test_share=0.2", "--epochs=1",
                   "--batch_size=20", cwd=tmp_path)
    assert result.done["steps"] > 0


def test_a_hundred_thousand_categories(trainer, tmp_path):
    """Wider than any other layer may be; the checkpoint, evaluation and predictions know the width, too."""
    (tmp_path / "d").mkdir()
    rows = [f"a{i % 50000},b{i * 7 % 50021},{'yes' if i % 3 else 'no'}" for i in range(100042)]
    (tmp_path / "d/train.csv").write_text("\n".join(["one,two,y", *rows]) + "\n")
    result = train(trainer, "--data_dir=d", "--target=y", "--categorical=one,two", "--category_min=1", "--hidden=4",
                   "--test_share=0.01", "--optimizer=sgd", "--train_steps=20", "--log_steps=0", "--train_dir=run",
                   cwd=tmp_path)
    assert int(re.search(r"(\d+) inputs of 2 columns", result.named("start")[0]["data"])[1]) > 95000
    (tmp_path / "new.csv").write_text("two,one\nb7,a1\nb1,never\n")
    assert len(predictions(trainer, "run", "new.csv", cwd=tmp_path)) == 2


def example(title):
    """The commands of an example in docs/data.md."""
    text = (ROOT / "docs/data.md").read_text()
    section = text[text.index("### Examples"):text.index("## Validation and test")]
    after = section[section.index(f"**{title}**"):]
    return re.sub("^    ", "", re.search(r"\n\n((?:    .*\n)+)", after)[1], flags=re.M)


@pytest.mark.parametrize("title, file, check", [
    ("Classification", "kinds.csv", lambda rows: numpy.mean([row["prediction"] == row["kind"] for row in rows]) > 0.95),
    ("Regression", None, lambda _: True),
    ("Anomalies", "flags.csv", lambda rows: numpy.mean([row["flag"] == "1" for row in rows]) > 0.5),
    ("Multi-label classification", "labels.csv",
     lambda rows: numpy.mean([row["prediction_prime"] == row["prime"] for row in rows]) > 0.95),
])
def test_examples_run_as_they_are_written(trainer, tmp_path, title, file, check):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/trainer").symlink_to(trainer)
    path = f"{tmp_path}/bin:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(["bash", "-euc", example(title)], cwd=tmp_path, env={**os.environ, "PATH": path}, check=True,
                   timeout=600)
    with open(tmp_path / file if file else os.devnull, newline="", encoding="utf-8") as found:
        assert check(list(csv.DictReader(found)))
    assert title != "Numbers" or (tmp_path / "diabetes.onnx").stat().st_size > 1000


@pytest.mark.parametrize("flags", [(), ("--validation_size=0",), ("--memory_mb=1", "--shuffle_buffer=100")],
                         ids=["validated", "all", "streamed"])
def test_all_rows_may_be_for_training(trainer, tmp_path, flags):
    """The last model before it goes into service: no test, and none is made up."""
    draw = numpy.random.default_rng(3)
    rows = [[*(f"{value:.5f}" for value in x), int(x[0] > x[1])] for x in draw.normal(size=(20000, 12))]
    write(tmp_path / "d" / "train.csv", [*(f"x{i}" for i in range(12)), "y"], rows)
    known = ("--data_dir=d", "--target=y", "--test_share=0", "--train_dir=run", *QUICK, *flags)
    done = train(trainer, *known, "--train_steps=20", cwd=tmp_path).done
    assert done["steps"] == 20 and "test_accuracy" not in done and "loss" not in done
    assert "no test: all rows are for training" in run(trainer, *known, "--train_steps=30", cwd=tmp_path).stdout
    assert "count=20000 " in tensors(newest(tmp_path / "run"))[1]["data"]
    assert "has no rows to test with" in run(trainer, "eval", "run", "--data_dir=d", cwd=tmp_path, status=1).stderr
    write(tmp_path / "d" / "test.csv", [*(f"x{i}" for i in range(12)), "y"], rows[:50])
    assert train(trainer, *known, "--train_steps=40", cwd=tmp_path).done["test_accuracy"] > 0.5
