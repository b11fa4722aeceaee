"""Shared by the benchmarks on real tables: what a fit reached, and a run of ours compared with its peers'."""

import math
import statistics
from typing import NamedTuple

from figures import APART, Cost, show

ERROR_OFFSET = 0.01  # an error near 0 is not divided by


class Score(NamedTuple):
    """score: accuracy or R2; loss: log loss or mean squared error."""
    score: float
    loss: float


class Fit(NamedTuple):
    """A Score and its Cost."""
    score: float
    loss: float
    clock: float
    processor: float


class Run(NamedTuple):
    """What one split of one table gave."""
    name: str
    seed: int
    is_class: bool
    trivial: Score     # of the model that knows only the shares of the classes, or the mean
    best: float        # the lowest loss that is known of any model; infinite where none is
    ours: Fit
    failure: str       # why ours failed, whose scores are then the trivial model's; else empty
    boosting: Fit
    is_timed: bool     # the costs of ours and of boosting are of the same minutes
    mlp: list          # Fits that differ only in their random state

    def error(self, fit):
        """1 - accuracy or 1 - R2, at most the trivial model's."""
        return 1 - max(fit.score, self.trivial.score)

    def log_ratio(self):
        """Of our error to boosting's."""
        return math.log((self.error(self.ours) + ERROR_OFFSET) / (self.error(self.boosting) + ERROR_OFFSET))

    def normalised_loss(self, fit):
        """0 for the best known model, 1 for the trivial one and all that are worse."""
        best = min(self.best, self.ours.loss, self.boosting.loss)
        span = self.trivial.loss - best
        return min((fit.loss - best) / span, 1) if span > 0 else 0

    def mlp_score(self):
        return statistics.fmean(fit.score for fit in self.mlp)

    def mlp_spread(self):
        """The standard deviation of its scores."""
        return statistics.stdev(fit.score for fit in self.mlp)

    def margin(self):
        """Our score above the MLP's less its spread."""
        return self.ours.score - self.mlp_score() + self.mlp_spread()

    def __str__(self):
        loss, theirs = (100 * self.normalised_loss(fit) for fit in (self.ours, self.boosting))
        text = (f"{self.name:10} {self.seed}: {self.ours.score:7.4f}, boosting {self.boosting.score:7.4f}, "
                f"MLP {self.mlp_score():7.4f} +- {self.mlp_spread():.4f}; normalised loss {loss:5.1f}%, "
                f"boosting {theirs:5.1f}%; {self.ours.clock:6.2f} s, boosting {self.boosting.clock:6.2f} s")
        if self.failure:
            return f"{text}; FAILED: {self.failure}"
        return f"{text}; BELOW the MLP" if is_below([self]) else text


def mean(value, runs, digits):
    return round(statistics.fmean(map(value, runs)), digits)


def is_below(runs):
    """Whether our score is below the MLP's less its spread, in the mean of the runs."""
    return statistics.fmean(map(Run.margin, runs)) < -1e-9  # equal scores differ by rounding


def by_table(runs):
    return {name: [run for run in runs if run.name == name] for name in dict.fromkeys(run.name for run in runs)}


def show_table(name, runs):
    """The means over the splits."""
    failures = [f"seed {run.seed}: {run.failure}" for run in runs if run.failure]
    show(name, mean(lambda run: run.ours.score, runs, 4), unit="accuracy" if runs[0].is_class else "R2",
         boosting=mean(lambda run: run.boosting.score, runs, 4), mlp=mean(Run.mlp_score, runs, 4),
         mlp_spread=mean(Run.mlp_spread, runs, 4),
         normalised_loss=mean(lambda run: run.normalised_loss(run.ours), runs, 4),
         seconds=mean(lambda run: run.ours.clock, runs, 2), boosting_s=mean(lambda run: run.boosting.clock, runs, 2),
         mlp_s=mean(lambda run: statistics.fmean(fit.clock for fit in run.mlp), runs, 2),
         **({"failed": failures} if failures else {}))


def show_failures(runs, most):
    failed = [f"{run.name} {run.seed}" for run in runs if run.failure]
    show("runs that diverged or failed", len(failed), most=most, unit=f"of {len(runs)}", which=failed)


def show_ratio(runs, most):
    def ratio(some):
        return round(math.exp(statistics.fmean(map(Run.log_ratio, some))), 3)
    kinds = {kind: [run for run in runs if run.is_class == is_class] for kind, is_class in
             (("classes", True), ("numbers", False))}
    show("error by HistGradientBoosting's, geometric mean", ratio(runs), most=most, unit="times",
         **{kind: ratio(some) for kind, some in kinds.items() if some})


def show_loss(runs, most):
    ours, theirs = (mean(lambda run, side=side: 100 * run.normalised_loss(getattr(run, side)), runs, 1)
                    for side in ("ours", "boosting"))
    show("normalised loss", ours, most=most, unit="%", boosting=theirs)


def show_below(runs, most):
    tables = by_table(runs)
    below = [name for name, some in tables.items() if is_below(some)]
    show("tables with a score below scikit-learn's MLP's less its spread", len(below), most=most,
         unit=f"of {len(tables)}", which=below)


def show_seconds(runs, most):
    """Of all runs together."""
    sums = [Cost(*(sum(getattr(getattr(run, side), by) for run in runs) for by in Cost._fields))
            for side in ("ours", "boosting")]
    clock, processor = (ours / theirs for ours, theirs in zip(*sums))
    show("seconds in all by HistGradientBoosting's", round(clock, 2), most=most, unit="times",
         by_processor_time=round(processor, 2), seconds=round(sums[0].clock, 1), peer=round(sums[1].clock, 1),
         **({"apart": True} if max(clock / processor, processor / clock) > APART else {}))
