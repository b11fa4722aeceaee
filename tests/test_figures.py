"""tests/bench/figures.py: the arithmetic of comparisons, and which processes' time counts."""

import importlib
import json
import os
import subprocess
import sys
import time

import pytest


@pytest.fixture
def figures(root, monkeypatch):
    monkeypatch.syspath_prepend(str(root / "tests/bench"))
    module = importlib.import_module("figures")
    monkeypatch.setattr(module, "missed", [])
    return module


def shown(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_ratio_is_the_median_of_neighbours(figures, capsys):
    """The machine slows down by half in the middle, for both sides: no ratio shows it. Processor time advances as
    before, on two processors of theirs and one of ours."""
    ours = [figures.Cost(clock, 1.0) for clock in (1.0, 1.0, 2.0, 2.0)]
    theirs = [figures.Cost(clock, 8.0) for clock in (4.0, 8.0, 8.0)]
    figures.compare("steps", ours, theirs, 4.5, aim=6)
    (figure,) = shown(capsys)
    # Between one step per second and half a step per second lies three quarters of one: the mean of rates.
    assert figure["each"] == [4.0, 6.0, 4.0]
    assert (figure["value"], figure["spread_%"], figure["floor"], figure["aim"]) == (4.0, 25.0, 4.5, 6)
    assert (figure["by_processor_time"], figure["its_spread_%"]) == (8.0, 0.0)
    assert figure["missed"] and figure["apart"] and figures.missed == ["steps"]


@pytest.mark.parametrize("processor, apart", [(5.0, False), (4.2, False), (4.1, True), (5.9, False), (6.1, True)])
def test_a_figure_is_marked_where_clock_and_processor_time_differ_by_a_fifth(figures, capsys, processor, apart):
    figures.compare("x", [figures.Cost(1.0, 1.0)] * 2, [figures.Cost(5.0, processor)] * 2)
    (figure,) = shown(capsys)
    assert figure.get("apart", False) is apart and "missed" not in figure


def test_as_many_runs_of_ours_stand_beside_their_own_neighbour(figures):
    ours = [figures.Cost(1.0, 2.0), figures.Cost(2.0, 2.0)]
    theirs = [figures.Cost(3.0, 8.0), figures.Cost(8.0, 6.0)]
    assert figures.ratios(ours, theirs, "clock") == [3.0, 4.0]
    assert figures.ratios(ours, theirs, "processor") == [4.0, 3.0]


def test_what_is_too_short_for_the_processors_clock_has_no_ratio_by_it(figures, capsys):
    figures.compare("x", [figures.Cost(1.0, 0.0)], [figures.Cost(2.0, 1.0)])
    (figure,) = shown(capsys)
    assert figure["value"] == 2.0 and "by_processor_time" not in figure and "apart" not in figure


def test_sets_count_alike(figures, capsys):
    one = figures.Cost(1.0, 1.0)
    sets = [([one] * 3, [figures.Cost(times, times)] * 3) for times in (2.0, 3.0, 10.0)]
    figures.compare_sets("x", sets, 5, sets=len(sets))
    (figure,) = shown(capsys)
    assert (figure["value"], figure["by_processor_time"], figure["missed"]) == (3.0, 3.0, True)


def test_an_overhead_is_a_part_of_the_rate(figures, capsys):
    figures.overhead("x", [figures.Cost(1.0, 1.0)] * 3, [figures.Cost(1.25, 1.0)] * 3, most=2)
    (figure,) = shown(capsys)
    assert (figure["value"], figure["each"], figure["by_processor_time"]) == (20.0, [20.0] * 3, 0.0)
    assert figure["missed"] and figure["apart"]


def test_rates_and_times_have_their_spread(figures, capsys):
    costs = [figures.Cost.of_rate(rate, 2.0) for rate in (90, 100, 120)]
    figures.show_rate("rate", costs, "steps/s")
    figures.show_time("time", [figures.Cost(2.0, 3.0), figures.Cost(3.0, 4.0), figures.Cost(4.0, 5.0)])
    rate, seconds = shown(capsys)
    assert (rate["value"], rate["spread_%"], rate["per_processor_s"]) == (100.0, 15.0, 50.0)
    assert (seconds["value"], seconds["spread_%"], seconds["processor_s"]) == (3.0, 33.3, 4.0)


def test_a_meter_counts_between_two_looks(figures):
    """A fake clock: two processors busy for ten seconds, none for ten, one for ten."""
    meter = figures.Meter(clock=iter([0.0, 10.0, 20.0, 30.0]).__next__,
                          processor=iter([5.0, 25.0, 25.0, 35.0]).__next__)
    for _ in range(4):
        meter.look()
        meter.looked_s = 0.0
    assert meter.took() == (30.0, 30.0)
    assert meter.processors(10) == 1.0
    assert meter.processors(10, until=10) == 2.0
    assert meter.processors(10, until=15) == 1.0
    assert meter.processors(100) == 1.0  # no more than it saw


def test_what_a_look_takes_is_nobodys(figures):
    """A fake clock on which each look at the processes takes ten seconds."""
    now = [0.0]

    def processor():
        now[0] += 10
        return 1.0

    with figures.Meter(clock=lambda: now[0], processor=processor) as meter:
        now[0] += 2
    assert meter.took().clock == 2


def test_processor_time_of_orphans_counts(figures):
    """What a shell leaves behind when it ends. It holds the pipe, and so is waited for."""
    code = "import time\nwhile time.process_time() < 0.5: pass"
    with figures.Meter() as meter:
        output = subprocess.run(["sh", "-c", f"'{sys.executable}' -c '{code}' & echo $!"], stdout=subprocess.PIPE,
                                check=True).stdout
    os.waitpid(int(output), 0)
    assert meter.took().processor >= 0.45


def test_processor_time_of_this_process_and_its_children_counts(figures):
    code = "import time\nwhile time.process_time() < 0.3: pass"
    with figures.Meter() as meter:
        subprocess.run([sys.executable, "-c", code], check=True)
        begun = time.thread_time()  # without the meter's own thread, which does not count
        while time.thread_time() - begun < 0.3:
            pass
    assert 0.55 <= meter.took().processor < 3


def test_the_table_of_what_was_missed(figures):
    good = {"figure": "good", "value": 5, "floor": 4}
    bad = {"figure": "steps", "value": 3, "floor": 4, "missed": True, "by_processor_time": 3.1}
    bent = {"figure": "time", "value": 7, "unit": "s", "most": 9, "by_processor_time": 5, "apart": True}
    assert figures.shortfalls([("a", good)]) == "No figure missed what it owes.\n"
    lines = figures.shortfalls([("a", good), ("speed", bad), ("cluster", bent)]).splitlines()
    assert [line.split() for line in lines] == [
        ["bench", "figure", "value", "owed", "by", "processor", "time"],
        ["speed", "steps", "3", ">=", "4", "3.1", "missed"],
        ["cluster", "time", "7", "s", "<=", "9", "5", "clock", "and", "processor", "time", "differ"]]
