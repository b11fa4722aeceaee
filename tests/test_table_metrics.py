"""Losses and metrics of tables: as scikit-learn computes them from the program's own predictions, on one machine and on
a cluster."""

import csv
import io
import json

import numpy
import pytest
from sklearn import datasets, metrics
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from clusters import Cluster
from runs import SMALL, newest, run, same_tensors, tensors, train

QUICK = ("--optimizer=adam", "--batch_size=32", "--log_steps=0", "--num_threads=1", "--train_steps=150", "--hidden=16",
         "--validation_size=100", "--data_dir=d")


def write(folder, header, rows, part="train"):
    (folder / "d").mkdir(exist_ok=True)
    with open(folder / "d" / f"{part}.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


def split(folder, header, rows):
    write(folder, header, rows[:-100])
    write(folder, header, rows[-100:], "test")
    return rows[-100:]


def evaluation(trainer, folder, *flags):
    result = run(trainer, "eval", "run", "--json", "--data_dir=d", *flags, cwd=folder)
    return json.loads(result.stdout.splitlines()[-1])


def predicted(trainer, folder):
    return list(csv.DictReader(io.StringIO(run(trainer, "predict", "run", "d/test.csv", cwd=folder).stdout)))


def agree(event, expected):
    for name, value in expected.items():
        assert event[f"test_{name}"] == pytest.approx(value, abs=2e-6), name


def shuffled(data, seed):
    order = numpy.random.default_rng(seed).permutation(len(data.target))
    return data.data[order], data.target[order]


@pytest.mark.parametrize("source, loss", [(datasets.load_breast_cancer, "auto"), (datasets.load_wine, "softmax")])
def test_metrics_of_classes(trainer, tmp_path, source, loss):
    values, labels = shuffled(source(), 1)
    header = [*(f"x{i}" for i in range(values.shape[1])), "y"]
    # Noise: a model that is always right would prove little.
    values = values + numpy.random.default_rng(2).normal(size=values.shape) * values.std(axis=0)
    tests = split(tmp_path, header, [[*map(float, row), f"c{label}"] for row, label in zip(values, labels)])
    done = train(trainer, *QUICK, "--validation_size=20", "--target=y", f"--loss={loss}", "--best_metric=roc_auc",
                 "--threshold=auto", "--validate_steps=50", "--train_dir=run", cwd=tmp_path).done
    truth = [row[-1] for row in tests]
    answers = predicted(trainer, tmp_path)
    classes = sorted(set(truth))
    scores = numpy.array([[float(row[f"probability_{c}"]) for c in classes] for row in answers])
    binary = len(classes) == 2
    information = tensors(tmp_path / "run" / "best.safetensors")[1]
    guesses = [row["prediction"] for row in answers]
    assert guesses == [classes[int(score[1] >= float(information["threshold"])) if binary else score.argmax()]
                       for score in scores]
    hot = numpy.array([[t == c for c in classes] for t in truth])
    agree(evaluation(trainer, tmp_path), {
        "accuracy": metrics.accuracy_score(truth, guesses),
        "balanced_accuracy": metrics.balanced_accuracy_score(truth, guesses),
        "f1": metrics.f1_score(truth, guesses, average="macro"),
        "mcc": metrics.matthews_corrcoef(truth, guesses),
        "log_loss": metrics.log_loss(truth, scores),
        "roc_auc": metrics.roc_auc_score(hot[:, 1], scores[:, 1]) if binary
                   else metrics.roc_auc_score(truth, scores, multi_class="ovr"),
        "average_precision": metrics.average_precision_score(hot[:, 1], scores[:, 1]) if binary
                             else metrics.average_precision_score(hot, scores),
    })
    assert 0.5 < done["best_roc_auc"] <= 1 and done["best_step"] in (50, 100, 150)
    assert information["best_metric"] == "roc_auc" and ("threshold" in information) == binary


@pytest.mark.parametrize("loss", ["mse", "mae", "huber", "quantile"])
def test_metrics_of_numbers(trainer, tmp_path, loss):
    values, target = shuffled(datasets.load_diabetes(), 3)
    header = [*(f"x{i}" for i in range(values.shape[1])), "y"]
    tests = split(tmp_path, header, [[*map(float, row), float(y)] for row, y in zip(values, target)])
    train(trainer, *QUICK, "--target=y", f"--loss={loss}", "--quantile=0.7", "--train_dir=run", cwd=tmp_path)
    truth = [row[-1] for row in tests]
    got = [float(row["prediction"]) for row in predicted(trainer, tmp_path)]
    event = evaluation(trainer, tmp_path)  # the loss and its values are the model's own
    scale = numpy.std(truth)
    for name, value in {"mae": metrics.mean_absolute_error(truth, got),
                        "rmse": metrics.root_mean_squared_error(truth, got),
                        "pinball": metrics.mean_pinball_loss(truth, got, alpha=0.7)}.items():
        assert event[f"test_{name}"] == pytest.approx(value, abs=2e-6 * scale), name
    agree(event, {"r2": metrics.r2_score(truth, got)})
    assert event["test_r2"] > 0.2 and "test_accuracy" not in event


def test_several_yes_and_no(trainer, tmp_path):
    values, labels = datasets.make_multilabel_classification(400, 12, n_classes=3, random_state=4)
    header = [*(f"x{i}" for i in range(12)), "a", "b", "c"]
    tests = split(tmp_path, header, [[*map(float, row), *map(int, label)] for row, label in zip(values, labels)])
    train(trainer, *QUICK, "--target=a,b,c", "--train_dir=run", cwd=tmp_path)
    truth = numpy.array([row[-3:] for row in tests])
    answers = predicted(trainer, tmp_path)
    scores = numpy.array([[float(row[f"probability_{name}"]) for name in "abc"] for row in answers])
    agree(evaluation(trainer, tmp_path), {
        "accuracy": metrics.accuracy_score(truth, scores > 0.5),
        "f1": metrics.f1_score(truth, scores > 0.5, average="macro"),
        "roc_auc": metrics.roc_auc_score(truth, scores),
        "average_precision": metrics.average_precision_score(truth, scores),
    })


def test_a_target_metric_ends_training(trainer, tmp_path):
    values, target = shuffled(datasets.load_diabetes(), 3)
    write(tmp_path, [*(f"x{i}" for i in range(10)), "y"],
          [[*map(float, row), float(y)] for row, y in zip(values, target)])
    flags = (*QUICK, "--target=y", "--train_steps=20000", "--validate_steps=20", "--train_dir=run")
    done = train(trainer, *flags, "--best_metric=r2", "--target_metric=0.3", cwd=tmp_path).done
    assert done["reason"] == "validation r2 0.3 reached" and done["best_r2"] >= 0.3 and done["steps"] < 20000
    done = train(trainer, *flags, "--best_metric=mae", "--target_metric=60", cwd=tmp_path).done
    assert done["reason"] == "validation mae 60 reached" and done["best_mae"] <= 60
    refused = train(trainer, *flags, "--best_metric=roc_auc", cwd=tmp_path, status=1)
    assert "best_metric roc_auc is not defined for loss mse" in refused.stdout + refused.stderr


def test_tensorboard_gets_the_curve_and_the_confusions(trainer, tmp_path):
    values, labels = shuffled(datasets.load_breast_cancer(), 1)
    write(tmp_path, [*(f"x{i}" for i in range(30)), "y"],
          [[*map(float, row), ["mild", "so_so|*bad*"][label]] for row, label in zip(values, labels)])
    train(trainer, *QUICK, "--target=y", "--validate_steps=150", "--train_dir=run", cwd=tmp_path)
    file = next((tmp_path / "run").rglob("*tfevents*"))
    found = {value.tag: value for event in EventFileLoader(str(file)).Load() for value in event.summary.value}
    curve = found["validation/pr_curve"]
    assert curve.metadata.plugin_data.plugin_name == "pr_curves"
    rows = numpy.frombuffer(curve.tensor.tensor_content, "<f4").reshape(6, 101)
    assert (rows[:4].sum(axis=0) == 100).all() and rows[5, 0] == 1
    assert numpy.allclose(rows[4], rows[0] / numpy.maximum(rows[0] + rows[1], 1e-9), atol=1e-6) or rows[0, -1] == 0
    head, _, *lines = found["validation/confusions"].tensor.string_val[0].decode().splitlines()
    assert head == r"| of a row, taken for a column | **mild** | **so\_so\|\*bad\*** |"
    assert [line.split(" | ")[1] for line in lines] == ["**mild**", r"**so\_so\|\*bad\***"]
    cells = [[int(cell.strip(" |")) for cell in line.split(" | ")[2:]] for line in lines]
    assert sum(map(sum, cells)) == rows[:4, 0].sum() and min(cells[0][0], cells[1][1]) > 0
    assert {"validation/confusion", "validation/roc_auc", "validation/f1", "test/mcc"} <= set(found)


@pytest.mark.parametrize("flags, layers", [(("--loss=huber", "--weight=w"), "14,16,1"), (("--loss=mse",), "15,16,1")])
def test_a_synchronous_cluster_gives_the_bits_of_one_process(trainer, tmp_path, flags, layers):
    values, target = shuffled(datasets.load_diabetes(), 3)
    rng = numpy.random.default_rng(5)
    write(tmp_path, [*(f"x{i}" for i in range(10)), "kind", "w", "y"],
          [[*map(float, row), f"k{rng.integers(3)}", rng.integers(1, 4), float(y)] for row, y in zip(values, target)])
    quick = [flag for flag in QUICK if not flag.startswith("--hidden")]
    flags = (*quick, "--target=y", *flags, f"--layers={layers}", "--train_steps=60", "--data_source=table")
    with Cluster(trainer, tmp_path, ps=2, workers=2,
                 flags=("--issync=1", "--lease_secs=30", *flags, "--train_dir=kept")) as cluster:
        cluster.start_all()
        cluster.wait_all()
        assert cluster.events("worker 0", "done")[0]["test_r2"] > 0.1
    train(trainer, *SMALL, *flags, "--micro_batches=2", "--train_dir=local", cwd=tmp_path)
    assert same_tensors(newest(tmp_path / "kept"), newest(tmp_path / "local")) == []
