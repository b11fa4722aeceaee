"""Clusters of processes built with ThreadSanitizer (make test-threads): whatever happens to them, there are no data
races. Each process leaves its reports beside its output, because killed ones can't report otherwise."""

import os
import pathlib
import signal
import time

import pytest

from fleets import OpenFleet, text_of
from runs import wait_for

pytestmark = pytest.mark.races

ROOT = pathlib.Path(__file__).resolve().parent.parent
TIMEOUT_S = 180  # it is slow, and slows down what runs beside it


@pytest.fixture
def racing(tmp_path, monkeypatch):
    """The binary; at the end, checks that there are no reports."""
    path = ROOT / "build" / "tsan" / "trainer"
    if not path.exists():
        pytest.skip(f"{path} is missing: make test-threads builds it")
    reports = tmp_path / "reports"
    reports.mkdir()
    monkeypatch.setenv("TSAN_OPTIONS", f"suppressions={ROOT}/tests/races.supp:log_path={reports}/race:history_size=4")
    yield str(path)
    found = [report.read_text() for report in sorted(reports.iterdir())]
    assert not found, "\n".join(found)


def reached(fleet):
    return max([event["global_step"] for event in fleet.events("worker 0", "step")], default=0)


def goes_on(fleet):
    before = reached(fleet)
    wait_for(lambda: reached(fleet) > before, f"step after {before}\n{fleet.text('worker 0')[-2000:]}", TIMEOUT_S)


def start_again(fleet, name):
    fleet.kill(name)
    goes_on(fleet) if name.startswith("worker") and name != "worker 0" else time.sleep(0.2)
    fleet.start(name, *([] if name in ("worker 0", "ps 0", "ps 1") else ["--train_dir="]))


@pytest.mark.parametrize("cluster, data, train", [
    ({"pipeline_depth": 2, "wire_dtype": "bfloat16"}, {"data_sharding": "chief"}, {}),
    ({"max_staleness": 3}, {}, {}),
    ({"issync": True}, {"data_sharding": "chief"}, {}),
    ({"issync": True, "replicas_to_aggregate": 2}, {}, {}),
    ({}, {}, {"local_steps": 2, "buffer_size": 2}),
    ({"issync": True, "wire_dtype": "int8", "wire_top": 0.1}, {}, {"local_steps": 2}),
], ids=["pipelined", "stale", "sync", "backups", "buffered rounds", "told rounds"])
def test_no_thread_races_with_another(racing, tmp_path, cluster, data, train):
    """Members are killed, frozen and restarted, and a rate and an optimizer rolled out, while checkpoints are saved."""
    keys = {"lease_secs": 5, "recovery_wait_secs": 1, **cluster}
    with OpenFleet(racing, tmp_path / "fleet", ps=2, workers=3, cluster=keys, data={"validation_size": 100, **data},
                   train={"batch_size": 20, "num_threads": 2, **train}, model={"layers": [784, 8, 10]},
                   output={"log_steps": 5, "save_steps": 20, "save_model_secs": 1}) as fleet:
        for name in ("ps 0", "ps 1", "worker 0"):
            fleet.start(name)
        for name in ("worker 1", "worker 2"):
            fleet.start(name, "--train_dir=")
        goes_on(fleet)
        wait_for(lambda: 0 not in fleet.versions().values(), "version of everybody", TIMEOUT_S)
        for version, change in enumerate(({"learning_rate": 0.02}, {"optimizer": "momentum"}), 2):
            result = fleet.rollout(fleet.candidate(version, train=change), "--yes", "--healthy_secs=1",
                                   timeout=TIMEOUT_S)
            assert result.returncode == 0, text_of(result)
            goes_on(fleet)
        for name in ("worker 2", "ps 1", "worker 0", "ps 0"):
            start_again(fleet, name)
            goes_on(fleet)
        fleet.kill("worker 1", signal.SIGSTOP)
        time.sleep(0.5)
        fleet.kill("worker 1", signal.SIGCONT)
        goes_on(fleet)
        for name in ("worker 0", "worker 1", "worker 2", "ps 0", "ps 1"):
            fleet.kill(name, signal.SIGTERM)
            fleet.wait(name, status=None, timeout=TIMEOUT_S)
