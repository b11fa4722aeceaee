"""A table's model in other programs: exported files compared with `trainer predict`, on raw columns with all their
difficulties, and which columns it relies on."""

import csv
import io
import json
import subprocess
import sys

import numpy
import onnxruntime
import pytest
import wcwidth
from safetensors import safe_open
from sklearn.inspection import permutation_importance
from sklearn.metrics import balanced_accuracy_score

from runs import SMALL, newest, run, tensors, train

QUICK = ("--data_dir=d", "--optimizer=adam", "--batch_size=32", "--log_steps=0", "--num_threads=1", "--hidden=16,8",
         "--validation_size=100", "--test_share=0.1", "--epochs=12", "--train_dir=run")
ANOMALY = ("--target=inputs", "--anomaly_quantile=0.95")
ROWS = 700


def table(seed):
    """Columns of all kinds, some with gaps: name -> (texts, kind), and the result."""
    random = numpy.random.default_rng(seed)
    size, place = random.normal(3, 2, ROWS), random.normal(1.7e9, 1e5, ROWS)  # float32 can't represent the second
    colour, code = random.choice(["red", "green", "blue; dark", 'say "grey"'], ROWS), random.integers(0, 5, ROWS)
    signal = (size - 3) / 2 + (place - 1.7e9) / 1e5 + (colour == "red") - (code == 3)
    columns = {
        "size": ["" if i % 9 == 0 else repr(v) for i, v in enumerate(size.tolist())],
        "place": [repr(v) for v in place.tolist()],
        "colour": ["NA" if i % 11 == 0 else v for i, v in enumerate(colour)],
        "code": [str(v) for v in code],
    }
    return columns, signal, random


def write(path, columns):
    path.parent.mkdir(exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([list(columns), *zip(*columns.values())])


def awkward(columns):
    """The first rows as they may come later: unseen categories, numbers far away, gaps where training had none."""
    rows = {name: values[:200] for name, values in columns.items()}
    rows["size"] = ["1e6" if i % 13 == 1 else "-77" if i % 13 == 2 else v for i, v in enumerate(rows["size"])]
    rows["colour"] = [["mauve", "", "None", "nAn", "?"][i % 5] if i % 4 == 0 else v
                      for i, v in enumerate(rows["colour"])]
    rows["code"] = ["77" if i % 6 == 0 else "" if i % 6 == 1 else v for i, v in enumerate(rows["code"])]
    rows["place"] = ["" if i % 7 == 0 else v for i, v in enumerate(rows["place"])]
    return rows


def predicted(trainer, folder):
    return list(csv.DictReader(io.StringIO(run(trainer, "predict", "run", "new.csv", cwd=folder).stdout)))


def session_of(trainer, folder):
    run(trainer, "export", "run", "--out=m.onnx", cwd=folder)
    return onnxruntime.InferenceSession(folder / "m.onnx")


def ask(session, rows):
    """All outputs, from columns as they are in the file."""
    feeds = {}
    for each in session.get_inputs():
        values = rows[each.name]
        is_text = each.type == "tensor(string)"
        feeds[each.name] = numpy.array([[v] for v in values], object) if is_text else numpy.array(
            [[float(v or "nan")] for v in values])
    return dict(zip([each.name for each in session.get_outputs()], session.run(None, feeds)))


def prepare(trainer, folder, targets, flags):
    columns, signal, random = table(5)
    write(folder / "d/train.csv", {**columns, **targets(signal, random)})
    train(trainer, *QUICK, "--categorical=code", *flags, cwd=folder)
    rows = awkward(columns)
    write(folder / "new.csv", rows)
    return rows


@pytest.mark.parametrize("classes, encoding", [(2, "none"), (3, "none"), (3, "ple")])
def test_classes_as_onnxruntime_has_them(trainer, tmp_path, classes, encoding):
    rows = prepare(trainer, tmp_path, lambda signal, random: {
        "kind": [f"kind {c}" for c in numpy.digitize(signal + random.normal(0, 0.5, ROWS), [0.5, 2][:classes - 1])]},
        ("--target=kind", "--threshold=auto", f"--encoding={encoding}"))
    session, answers = session_of(trainer, tmp_path), predicted(trainer, tmp_path)
    told = ask(session, rows)
    names = [f"kind {c}" for c in range(classes)]
    expected = numpy.array([[float(row[f"probability_{name}"]) for name in names] for row in answers])
    assert numpy.abs(told["probabilities"] - expected).max() < 1e-5
    assert list(told["prediction"][:, 0]) == [row["prediction"] for row in answers]
    assert len({row["prediction"] for row in answers}) == classes
    metadata = session.get_modelmeta().custom_metadata_map
    kept = tensors(tmp_path / "run" / "best.safetensors")[1]
    assert metadata.get("threshold") == kept.get("threshold") and ("threshold" in metadata) == (classes == 2)
    assert json.loads(metadata["preprocessing"])["task"] == "class" and metadata["loss"] == "softmax"
    assert {each.name: each.type for each in session.get_inputs()} == {
        "size": "tensor(double)", "place": "tensor(double)", "colour": "tensor(string)", "code": "tensor(string)"}


@pytest.mark.parametrize("loss", ["mse", "huber"])
@pytest.mark.parametrize("encoding", ["none", "ple"])
def test_numbers_as_onnxruntime_has_them(trainer, tmp_path, loss, encoding):
    rows = prepare(trainer, tmp_path, lambda signal, _: {"y": [repr(float(100 + 25 * s)) for s in signal],
                                                         "z": [repr(float(-s)) for s in signal]},
                   ("--target=y,z", f"--loss={loss}", f"--encoding={encoding}", "--bins=32"))
    answers = predicted(trainer, tmp_path)
    found = ask(session_of(trainer, tmp_path), rows)["prediction"]
    for i, (name, scale) in enumerate({"y": 25, "z": 1}.items()):
        expected = numpy.array([float(row[f"prediction_{name}"]) for row in answers])
        assert numpy.abs(found[:, i] - expected).max() < 1e-5 * scale and expected.std() > scale / 2


@pytest.mark.parametrize("targets", ["a,b,c", "a"])
def test_flags_as_onnxruntime_has_them(trainer, tmp_path, targets):
    rows = prepare(trainer, tmp_path, lambda signal, random: {
        name: (signal + random.normal(0, 1, ROWS) > limit).astype(int)
        for name, limit in zip(targets.split(","), [1.5, 0, -1])}, (f"--target={targets}", "--loss=sigmoid"))
    answers = predicted(trainer, tmp_path)
    told = ask(session_of(trainer, tmp_path), rows)
    for i, name in enumerate(targets.split(",")):
        expected = numpy.array([float(row[f"probability_{name}"]) for row in answers])
        assert numpy.abs(told["probabilities"][:, i] - expected).max() < 1e-5
        assert list(told["prediction"][:, i]) == [int(row[f"prediction_{name}"]) for row in answers]


@pytest.mark.parametrize("features", ["size,place,colour,code", "place", "colour,code"])
def test_anomalies_as_onnxruntime_has_them(trainer, tmp_path, features):
    rows = prepare(trainer, tmp_path, lambda signal, _: {}, ("--target=inputs", f"--features={features}"))
    answers = predicted(trainer, tmp_path)
    told = ask(session_of(trainer, tmp_path), rows)
    expected = numpy.array([float(row["error"]) for row in answers])
    assert numpy.abs(told["error"][:, 0] - expected).max() < 1e-5 * max(1, expected.max())
    assert list(told["flag"][:, 0]) == [int(row["flag"]) for row in answers]


def test_a_single_layer_and_one_kind_of_column(trainer, tmp_path):
    for features in ("place", "size", "colour"):
        rows = prepare(trainer, tmp_path, lambda signal, _: {"y": [repr(float(s)) for s in signal]},
                       ("--target=y", "--hidden=", f"--features={features}", f"--train_dir=run-{features}"))
        run(trainer, "export", f"run-{features}", "--out=m.onnx", cwd=tmp_path)
        text = run(trainer, "predict", f"run-{features}", "new.csv", cwd=tmp_path).stdout
        expected = [float(row["prediction"]) for row in csv.DictReader(io.StringIO(text))]
        found = ask(onnxruntime.InferenceSession(tmp_path / "m.onnx"), rows)["prediction"][:, 0]
        assert numpy.abs(found - expected).max() < 1e-5


def test_other_formats_carry_the_preprocessing(trainer, tmp_path):
    columns, signal, _ = table(5)
    write(tmp_path / "d/train.csv", {**columns, "kind": ["yes" if s > 1 else "no" for s in signal]})
    train(trainer, *QUICK, "--target=kind", "--threshold=auto", cwd=tmp_path)
    expected = json.loads(tensors(newest(tmp_path / "run"))[1]["preprocessing"])
    run(trainer, "export", "run", "--out=m.npz", cwd=tmp_path)
    with numpy.load(tmp_path / "m.npz") as arrays:
        assert json.loads(arrays["preprocessing"].item()) == expected
        assert set(arrays) == {*(f"layer{i}/{kind}" for i in range(3) for kind in ("weights", "biases")),
                               "preprocessing"}
    run(trainer, "export", "run", "--out=m.safetensors", cwd=tmp_path)
    with safe_open(tmp_path / "m.safetensors", "numpy") as file:
        assert json.loads(file.metadata()["preprocessing"]) == expected
        assert file.metadata()["loss"] == "softmax" and 0 < float(file.metadata()["threshold"]) < 1


def test_a_column_that_is_called_as_an_output(trainer, tmp_path):
    columns, signal, _ = table(5)
    write(tmp_path / "d/train.csv", {"prediction": columns["size"], "y": [repr(float(s)) for s in signal]})
    train(trainer, *QUICK, "--target=y", "--epochs=1", cwd=tmp_path)
    run(trainer, "export", "run", "--out=m.onnx", cwd=tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    assert [one.name for one in session.get_inputs()] == ["prediction"]
    assert [one.name for one in session.get_outputs()] == ["prediction_"]  # the user's names win
    (tmp_path / "new.csv").write_text("prediction\n1.5\n")
    said = list(csv.reader(io.StringIO(run(trainer, "predict", "run", "new.csv", cwd=tmp_path).stdout)))
    got = session.run(None, {"prediction": numpy.array([[1.5]])})[0]
    assert float(said[1][-1]) == pytest.approx(got[0, 0], rel=1e-6)


@pytest.mark.parametrize("names", [["flag", "error", "probabilities"], ["trainer/one", "layer0/sums", "softmax"],
                                   ["prediction", "prediction_", "id"]])
@pytest.mark.full(but=("names0",))
def test_whatever_columns_are_called(trainer, tmp_path, names):
    """Names are the user's, whatever a graph calls its own values; no initializer is there for nothing."""
    columns, signal, _ = table(5)
    values = [columns["size"], [repr(float(s)) for s in signal], ["a" if s > 0 else "b" for s in signal]]
    write(tmp_path / "d/train.csv", {**dict(zip(names, values)), "y": ["no" if s > 1 else "yes" for s in signal]})
    for i, options in enumerate((["--target=y"], ["--target=y", "--threshold=auto"], [*ANOMALY, "--ignore=y"],
                                 [*ANOMALY, f"--ignore=y,{names[2]}"], ["--target=y", f"--ignore={names[2]}"])):
        train(trainer, *QUICK[:-2], *options, "--epochs=1", f"--train_dir=run{i}", cwd=tmp_path)
        run(trainer, "export", f"run{i}", f"--out=m{i}.onnx", cwd=tmp_path)
        done = subprocess.run([sys.executable, "-c", "import sys, onnxruntime as o; o.set_default_logger_severity(0)\n"
                               "s = o.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])\n"
                               "print(*[i.name for i in s.get_inputs()])", tmp_path / f"m{i}.onnx"],
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert set(done.stdout.split()) <= set(names), done.stdout
        assert "not used by any node" not in done.stderr.replace("It is no longer used", ""), done.stderr


def test_a_column_that_is_called_as_a_part_of_a_date(trainer, tmp_path):
    columns, signal, random = table(5)
    months = random.integers(1, 13, size=len(signal)).tolist()
    write(tmp_path / "d/train.csv", {"when": [f"2024-{month:02}-01" for month in months], "when.month": columns["size"],
                                     "y": ["no" if s > 1 else "yes" for s in signal]})
    train(trainer, *QUICK[:-2], "--target=y", "--epochs=1", "--train_dir=run", cwd=tmp_path)
    names = [each.name for each in session_of(trainer, tmp_path).get_inputs()]
    assert {"when.month", "when.month_"} < set(names) and len(set(names)) == len(names)


# --- explain ---


class Onnx:
    """The exported model with scikit-learn's interface."""

    def __init__(self, session, names):
        self.session, self.names = session, names

    def fit(self):
        """scikit-learn looks for it."""

    def predict(self, rows):
        return ask(self.session, dict(zip(self.names, rows.T)))["prediction"][:, 0]


def explained(trainer, folder, *flags):
    (told,) = run(trainer, "explain", "run", *flags, "--json", cwd=folder).events
    return told, {column["column"]: column for column in told["columns"]}


def test_importance_is_scikit_learns(trainer, tmp_path):
    columns, signal, random = table(5)
    columns["noise"] = [repr(v) for v in random.normal(size=ROWS).tolist()]
    kinds = [str(kind) for kind in numpy.where(signal > 1, "yes", "no")]
    write(tmp_path / "d/train.csv", {**columns, "kind": kinds})
    train(trainer, *QUICK, "--categorical=code", "--target=kind", "--best_metric=balanced_accuracy", "--epochs=30",
          cwd=tmp_path)
    told, found = explained(trainer, tmp_path, "d/train.csv", "--repeats=30")
    model = Onnx(session_of(trainer, tmp_path), list(columns))
    rows = numpy.array([*columns.values()], object).T
    peer = permutation_importance(model, rows, kinds, n_repeats=30, random_state=1,
                                  scoring=lambda m, x, y: balanced_accuracy_score(y, m.predict(x)))
    assert told["metric"] == "balanced_accuracy" and told["rows"] == ROWS and told["repeats"] == 30
    assert told["score"] == pytest.approx(balanced_accuracy_score(kinds, model.predict(rows)), abs=1e-9)
    for name, mean, spread in zip(columns, peer.importances_mean, peer.importances_std):
        # Means of 30 shuffles each: they differ by their own errors alone.
        assert found[name]["importance"] == pytest.approx(mean, abs=5 * (spread / 30**0.5) * 2**0.5 + 1e-3), name
        assert found[name]["spread"] == pytest.approx(spread, rel=0.8, abs=1e-3), name
    ranked = [column["column"] for column in told["columns"]]
    assert ranked[-1] == "noise" and set(ranked[:2]) == {"size", "place"}

    # The same seed gives the same shuffles, another one others.
    assert explained(trainer, tmp_path, "d/train.csv", "--repeats=3") == \
        explained(trainer, tmp_path, "d/train.csv", "--repeats=3")
    assert explained(trainer, tmp_path, "--data_dir=d", "--seed=2")[1]["size"] != \
        explained(trainer, tmp_path, "--data_dir=d")[1]["size"]
    text = run(trainer, "explain", "run", "d/train.csv", cwd=tmp_path).stdout
    assert "balanced_accuracy 0." in text and "on 700 rows; how much worse it gets" in text and "noise " in text


def test_explain_aligns_by_columns_of_a_terminal(trainer, tmp_path):
    names = ["größe", "身長", "x" * 60, "y"]
    write(tmp_path / "d/train.csv", {**{name: [str(i % (k + 2)) for i in range(200)] for k, name in enumerate(names)},
                                     "kind": ["ab"[i % 2] for i in range(200)]})
    train(trainer, "--data_dir=d", "--target=kind", "--epochs=2", "--train_dir=run", cwd=tmp_path)
    lines = run(trainer, "explain", "run", "d/train.csv", cwd=tmp_path).stdout.splitlines()[-4:]
    assert len({wcwidth.wcswidth(line[:line.index("+-")]) for line in lines}) == 1, lines


def test_what_cannot_be_explained(trainer, tmp_path):
    columns, signal, _ = table(5)
    write(tmp_path / "d/train.csv", {**columns, "y": [repr(float(s)) for s in signal]})
    train(trainer, *QUICK, "--target=y", "--epochs=20", cwd=tmp_path)
    told, found = explained(trainer, tmp_path, "--data_dir=d")  # for numbers a lower error is better
    assert told["metric"] == "rmse" and found["place"]["importance"] > 0.2 > told["score"] / 10
    assert "must be an integer from 1 to 1000" in run(trainer, "explain", "run", "--repeats=0", cwd=tmp_path,
                                                      status=2).stderr
    train(trainer, *SMALL, "--train_steps=1", "--train_dir=digits", cwd=tmp_path)
    assert "is a model of pictures" in run(trainer, "explain", "digits", cwd=tmp_path, status=1).stderr
