"""Calibrated probabilities beside those of scikit-learn's CalibratedClassifierCV(method="temperature"), which gets the
same outputs of the same nets for the same validation rows."""

import csv
import io

import numpy
import pytest
from sklearn import datasets
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.metrics import log_loss

from runs import newest, run, same_tensors, train

SETS, SPLITS, VALIDATION = ("breast_cancer", "wine", "iris", "digits"), 2, .2


class Trained(ClassifierMixin, BaseEstimator):
    """A trained net: a row is what it said of it."""

    def __init__(self, classes=()):
        self.classes = classes

    def fit(self, rows, labels):
        """Nothing: it is trained."""
        self.classes_ = numpy.array(self.classes)
        return self

    def decision_function(self, rows):
        return rows[:, 1] - rows[:, 0] if rows.shape[1] == 2 else rows

    def predict(self, rows):
        return self.classes_[rows.argmax(1)]


def write(path, rows, labels, first):
    path.parent.mkdir(exist_ok=True)
    with open(path, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*(f"c{i}" for i in range(rows.shape[1])), "at", "kind"])
        table.writerows([*row, first + i, f"k{label}"] for i, (row, label) in enumerate(zip(rows.tolist(), labels)))


def said(trainer, folder, model, name, checkpoint):
    text = run(trainer, "predict", model, name, f"--checkpoint={checkpoint}", cwd=folder).stdout
    rows = list(csv.DictReader(io.StringIO(text)))
    names = [column for column in rows[0] if column.startswith("probability_")]
    return (numpy.array([[float(row[column]) for column in names] for row in rows]),
            [row["prediction"] for row in rows], [column.removeprefix("probability_") for column in names])


def scikit_learns(before, labels, classes, rows):
    """Its probabilities for rows; before: of the validation rows."""
    frozen = pytest.importorskip("sklearn.frozen", reason="scikit-learn 1.8 or later")
    methods = {each for one in CalibratedClassifierCV._parameter_constraints["method"]
               for each in getattr(one, "options", ())}
    if "temperature" not in methods:
        pytest.skip("scikit-learn 1.8 or later")
    model = frozen.FrozenEstimator(Trained(classes).fit(None, None))
    peer = CalibratedClassifierCV(model, method="temperature").fit(before, labels)
    assert list(peer.classes_) == list(classes)
    return peer.predict_proba(rows)


def train_twice(trainer, folder, name, split):
    """With calibration and without, for too long. The last rows by time are validation's, so the peer can have them."""
    rows, labels = getattr(datasets, f"load_{name}")(return_X_y=True)
    order = numpy.random.default_rng(split).permutation(len(rows))
    rows, labels = rows[order], labels[order]
    test, held_out = len(rows) * 2 // 5, int(len(rows) * VALIDATION)
    write(folder / "d/train.csv", rows[test:], labels[test:], 0)
    write(folder / "d/test.csv", rows[:test], labels[:test], len(rows))
    write(folder / "held.csv", rows[-held_out:], labels[-held_out:], 0)
    flags = ("--data_dir=d", "--target=kind", "--time=at", "--ignore=at", f"--validation_size={held_out}",
             "--hidden=64", "--epochs=100", "--final_test=newest", "--log_steps=0", "--save_summaries_steps=0")
    done = {model: train(trainer, *flags, f"--calibration={model}", f"--train_dir={model}", cwd=folder).done
            for model in ("none", "temperature")}
    assert same_tensors(newest(folder / "none"), newest(folder / "temperature")) == []
    assert done["none"]["test_accuracy"] == done["temperature"]["test_accuracy"]
    # Of two classes it ranks the same. Of more, rows that differ in their other classes may change places.
    assert done["temperature"]["test_roc_auc"] == pytest.approx(done["none"]["test_roc_auc"],
                                                                abs=0 if len(set(labels)) == 2 else 2e-3)
    return [[f"k{label}" for label in part] for part in (labels[-held_out:], labels[:test])]


def test_log_loss_is_no_worse_than_scikit_learns(trainer, tmp_path):
    losses = {(checkpoint, who): [] for checkpoint in ("newest", "best") for who in ("raw", "ours", "scikit-learn's")}
    for name, split in [(name, split) for name in SETS for split in range(SPLITS)]:
        folder = tmp_path / f"{name}{split}"
        folder.mkdir()
        held, truth = train_twice(trainer, folder, name, split)
        for checkpoint in ("newest", "best"):
            before, _, classes = said(trainer, folder, "none", "held.csv", checkpoint)
            plain, predictions, _ = said(trainer, folder, "none", "d/test.csv", checkpoint)
            mended, same_predictions, _ = said(trainer, folder, "temperature", "d/test.csv", checkpoint)
            assert predictions == same_predictions
            peer = scikit_learns(numpy.log(before + 1e-300), held, classes, numpy.log(plain + 1e-300))
            for who, shares in {"raw": plain, "ours": mended, "scikit-learn's": peer}.items():
                losses[checkpoint, who].append(log_loss(truth, shares / shares.sum(1, keepdims=True), labels=classes))
    mean = {key: numpy.mean(values) for key, values in losses.items()}
    print({" ".join(key): round(value, 4) for key, value in mean.items()})
    for checkpoint in ("newest", "best"):
        assert mean[checkpoint, "ours"] <= mean[checkpoint, "scikit-learn's"], losses
    assert mean["newest", "ours"] < .95 * mean["newest", "raw"]
    assert mean["best", "ours"] < 1.005 * mean["best", "raw"]
