"""tests/bench/scores.py: how the runs on real tables are judged."""

import importlib
import json
import math

import pytest


@pytest.fixture
def scores(root, monkeypatch):
    monkeypatch.syspath_prepend(str(root / "tests/bench"))
    monkeypatch.setattr(importlib.import_module("figures"), "missed", [])
    return importlib.import_module("scores")


def shown(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.fixture
def run(scores):
    """A run of classes, with some facts replaced."""
    def make(**facts):
        fit = scores.Fit(0.9, 0.2, 1, 1)
        facts = {"name": "t", "seed": 0, "is_class": True, "trivial": scores.Score(0.5, 0.7), "best": math.inf,
                 "ours": fit, "failure": "", "boosting": fit, "is_timed": True, "mlp": [fit, fit], **facts}
        return scores.Run(**facts)
    return make


def test_errors_compare_by_their_geometric_mean(scores, run, capsys):
    """Twice theirs and half of theirs are as good as theirs, after the offset."""
    twice = run(ours=scores.Fit(0.81, 0.2, 1, 1), boosting=scores.Fit(0.91, 0.2, 1, 1))
    half = run(is_class=False, ours=scores.Fit(0.91, 0.2, 1, 1), boosting=scores.Fit(0.81, 0.2, 1, 1))
    scores.show_ratio([twice, half], 0.99)
    (figure,) = shown(capsys)
    assert (figure["value"], figure["classes"], figure["numbers"]) == (1.0, 2.0, 0.5) and figure["missed"]


def test_an_error_is_at_most_the_trivial_models(scores, run):
    worse = scores.Fit(-40, 1e9, 1, 1)
    assert run(ours=worse).log_ratio() == pytest.approx(math.log(0.51 / 0.11))
    assert run(ours=worse).normalised_loss(worse) == 1


def test_a_loss_lies_between_the_best_known_and_the_trivial_one(scores, run):
    ours, boosting = scores.Fit(0.9, 0.3, 1, 1), scores.Fit(0.9, 0.2, 1, 1)
    among_us = run(ours=ours, boosting=boosting)
    assert among_us.normalised_loss(ours) == pytest.approx(0.2) and among_us.normalised_loss(boosting) == 0
    known = run(ours=ours, boosting=boosting, best=0.1)
    assert known.normalised_loss(ours) == pytest.approx(2 / 6)
    assert known.normalised_loss(boosting) == pytest.approx(1 / 6)


def test_no_model_beats_the_trivial_one(scores, run):
    same = scores.Fit(0.5, 0.7, 1, 1)
    assert run(ours=same, boosting=same).normalised_loss(same) == 0


def test_a_table_is_below_by_the_mean_of_its_splits(scores, run, capsys):
    """The MLP's mean is 0.8, its standard deviation 0.1."""
    mlp = [scores.Fit(score, 0.2, 1, 1) for score in (0.7, 0.8, 0.9)]
    at, under, over = (run(ours=scores.Fit(score, 0.2, 1, 1), mlp=mlp) for score in (0.7, 0.68, 0.73))
    scores.show_below([at._replace(name="at"), under._replace(name="under"), under._replace(name="both"),
                       over._replace(name="both")], 0)
    (figure,) = shown(capsys)
    assert (figure["value"], figure["which"], figure["unit"]) == (1, ["under"], "of 3") and figure["missed"]


def test_failures_are_listed_with_their_cause(scores, run, capsys):
    runs = [run(), run(seed=1, failure="the loss is inf")]
    scores.show_table("t", runs)
    scores.show_failures(runs, 0)
    table, failures = shown(capsys)
    assert table["failed"] == ["seed 1: the loss is inf"]
    assert (failures["value"], failures["which"], failures["unit"]) == (1, ["t 1"], "of 2") and failures["missed"]
    assert "FAILED: the loss is inf" in str(runs[1])


def test_seconds_are_summed_over_all_runs(scores, run, capsys):
    """A table that takes long weighs more: 6 s by 4 s. On the clock of a crowded machine ours takes twice as long."""
    runs = [run(ours=scores.Fit(0.9, 0.2, 2, 1), boosting=scores.Fit(0.9, 0.2, 1, 1)),
            run(ours=scores.Fit(0.9, 0.2, 4, 2), boosting=scores.Fit(0.9, 0.2, 3, 3))]
    scores.show_seconds(runs, 1.2)
    (figure,) = shown(capsys)
    assert (figure["value"], figure["by_processor_time"], figure["seconds"], figure["peer"]) == (1.5, 0.75, 6, 4)
    assert figure["missed"] and figure["apart"]
