"""The field cases: see tests/field/README.md."""

import importlib
import pathlib

import pytest

from field.case import run_case

MODULES = sorted(file.stem for file in (pathlib.Path(__file__).parent / "field").glob("*.py") if file.stem != "case")
CASES = [case for module in MODULES for case in importlib.import_module(f"field.{module}").CASES]


def test_each_case_has_a_name_of_its_own_and_a_source():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names), sorted(name for name in names if names.count(name) > 1)
    assert all(len(case.source) > 10 and case.holds for case in CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case, trainer, tmp_path):
    run_case(case, trainer, tmp_path)
