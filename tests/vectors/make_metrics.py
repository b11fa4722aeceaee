#!/usr/bin/env python3
"""Writes metrics_vectors.h: scikit-learn's metrics of small examples, for tests/worker/evaluation/test_metrics.c.

Needs scikit-learn, which `make test` does not: run it by `make vectors`. Both sides make the examples from integers
(see case_values() here and in the test), with ties among the scores and classes that never occur.
"""
import os
import subprocess
import warnings

import numpy as np
from sklearn import metrics

warnings.simplefilter("ignore")

SIZES = (2, 3, 10, 57, 400)
CLASSES = (2, 3, 7)


def case_values(count, salt):
    """Integers 0..999 that look random: the same as in the test."""
    values, state = [], 12345 + salt
    for _ in range(count):
        state = (state * 1103515245 + 12345) % 2**31
        values.append(state // 65536 % 1000)
    return np.array(values)


def of_scores(count):
    values, more = case_values(count, 1), case_values(count, 2)
    positive = (values + more // 2) % 1000 > 600
    positive[0], positive[1] = True, False
    scores = (values // 25) / 40.0
    return [metrics.roc_auc_score(positive, scores), metrics.average_precision_score(positive, scores)]


def of_labels(count, classes):
    label, predicted = case_values(count, 3) % classes, case_values(count, 4) % classes
    agree = case_values(count, 5) % 3 > 0
    predicted = np.where(agree, label, predicted)
    confusions = metrics.confusion_matrix(label, predicted, labels=range(classes))
    return [metrics.balanced_accuracy_score(label, predicted),
            metrics.f1_score(label, predicted, average="macro"), metrics.matthews_corrcoef(label, predicted),
            int(confusions[0, 0]), int(confusions[-1, 0])]


def of_numbers(count, mean):
    target, predicted = case_values(count, 6) / 100 + mean, case_values(count, 7) / 150 + mean
    return [metrics.mean_absolute_error(target, predicted), metrics.root_mean_squared_error(target, predicted),
            metrics.r2_score(target, predicted), metrics.mean_pinball_loss(target, predicted, alpha=0.8)]


def rows(values):
    return "{" + ", ".join(repr(value) if isinstance(value, int) else repr(float(value)) for value in values) + "}"


def main():
    lines = ["/* Made by make_metrics.py with scikit-learn: do not edit. */", "#ifndef TESTS_VECTORS_METRICS_VECTORS_H",
             "#define TESTS_VECTORS_METRICS_VECTORS_H", "",
             "static const struct { int count; double roc_auc, average_precision; } of_scores[] = {"]
    lines += [f"    {rows([n] + of_scores(n))}," for n in SIZES]
    lines += ["};", "static const struct { int count, classes; double balanced_accuracy, f1, mcc; "
              "int first, last; } of_labels[] = {"]
    lines += [f"    {rows([n, c] + of_labels(n, c))}," for n in SIZES for c in CLASSES]
    lines += ["};", "static const struct { int count; double mean, mae, rmse, r2, pinball; } of_numbers[] = {"]
    lines += [f"    {rows([n, float(m)] + of_numbers(n, m))}," for n in SIZES for m in (0, 1e6)]
    lines += ["};", "", "#endif", ""]
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "metrics_vectors.h")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines))
    subprocess.run(["clang-format", "-i", path], check=True)


if __name__ == "__main__":
    main()
