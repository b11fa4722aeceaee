"""Live keys during training, without restarts; and workers that move to another address."""

import json
import re
import time

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fleets import OpenFleet, text_of
from ports import free_ports
from relay import Relay
from runs import wait_for


def pids(fleet):
    return {name: process.pid for name, process in fleet.members.items()}


def told_steps(fleet, name, message):
    return [int(step) for step in re.findall(rf"from global step (\d+) on {message}", fleet.text(name))]


def switch_step(result):
    return int(re.search(r"is in force, since step (\d+)", text_of(result)).group(1))


def dropped(fleet):
    return sum(member["dropped"] for member in fleet.status()[1].values() if member["role"] == "worker")


def test_replicas_to_aggregate_change_at_one_step_and_back(trainer, tmp_path):
    """Two of three gradients make a step, from the agreed step on; no process is restarted."""
    with OpenFleet(trainer, tmp_path / "fleet", ps=2, workers=3, cluster={"issync": True, "lease_secs": 10}) as fleet:
        fleet.start_and_train()
        before = pids(fleet)
        fleet.goes_on()
        assert dropped(fleet) == 0
        result = fleet.rollout(fleet.candidate(2, cluster={"replicas_to_aggregate": 2, "min_replicas": 2}), "--yes",
                               "--healthy_secs=1")
        assert result.returncode == 0, text_of(result) + fleet.text("ps 0")
        said = " ".join(text_of(result).split())
        assert "cluster.replicas_to_aggregate 0 -> 2 (live)" in said and "cluster.min_replicas 1 -> 2 (live)" in said
        step = switch_step(result)
        for name in ("ps 0", "ps 1"):
            wait_for(lambda name=name: told_steps(fleet, name, r"a step takes 2 gradients \(before: 3\), at least 2")
                     == [step], f"the line of {name}")
        fleet.goes_on()
        wait_for(lambda: dropped(fleet) > 0, "gradients that are dropped")  # whichever comes last of three
        # One that is rolled back because of another key: back to two, with the former model.
        result = fleet.rollout(fleet.candidate(3, cluster={"replicas_to_aggregate": 3}, train={"learning_rate": 1e30}),
                               "--yes", "--healthy_secs=60")
        assert result.returncode == 1 and "went back from version 3 to version 2" in text_of(result), text_of(result)
        assert len(told_steps(fleet, "ps 0", r"a step takes 3 gradients \(before: 2\), at least 1")) == 1
        assert len(told_steps(fleet, "ps 0", r"a step takes 2 gradients \(before: 3\), at least 2")) == 2
        last = fleet.goes_on()
        assert last["loss"] < 3 and last["learning_rate"] == 0.05
        assert set(fleet.versions().values()) == {2} and fleet.current() == "2"
        # And all three again, by another rollout: none is dropped any more.
        assert fleet.rollout(fleet.candidate(4), "--yes", "--healthy_secs=0.5").returncode == 0
        seen = dropped(fleet)
        fleet.goes_on()
        assert dropped(fleet) == seen
        assert fleet.alive() and pids(fleet) == before
        assert all(len(fleet.events(f"worker {i}", "start")) == 1 for i in range(3))


def summaries(fleet):
    events = EventAccumulator(str(fleet.folder / "run" / "summaries"), size_guidance={"scalars": 0})
    events.Reload()
    return [event.step for event in events.Scalars("loss")]


def test_summaries_begin_and_change_their_interval(trainer, tmp_path):
    with OpenFleet(trainer, tmp_path / "fleet", ps=1, workers=1, output={"save_summaries_steps": 0}) as fleet:
        fleet.start_and_train()
        assert not (fleet.folder / "run" / "summaries").exists()
        result = fleet.rollout(fleet.candidate(2, output={"save_summaries_steps": 70}), "--yes", "--healthy_secs=1")
        assert result.returncode == 0 and "0 -> 70  (live)" in text_of(result), text_of(result)
        first = switch_step(result)
        fleet.goes_on(5)
        result = fleet.rollout(fleet.candidate(3, output={"save_summaries_steps": 90}), "--yes", "--healthy_secs=1")
        assert result.returncode == 0, text_of(result)
        second = switch_step(result)
        fleet.goes_on(10)
        steps = summaries(fleet)
        assert [step for step in steps if step < second] == list(range(-(-first // 70) * 70, second, 70))
        later = [step for step in steps if step >= second]
        assert later == list(range(-(-second // 90) * 90, later[-1] + 1, 90)) and len(later) > 1
        result = fleet.rollout(fleet.candidate(4, output={"save_summaries_steps": 0}), "--yes", "--healthy_secs=0.5")
        third = switch_step(result)
        fleet.goes_on(5)
        assert max(summaries(fleet)) < third and len(fleet.events("worker 0", "start")) == 1 and fleet.alive()


def test_the_end_of_a_job_moves(trainer, tmp_path):
    """By train_steps, and by epochs, whose length ps know although they have no data; also on a ps without parameters.
    A slow link delays the end until it is agreed on."""
    with OpenFleet(trainer, tmp_path / "fleet", ps=3, workers=1, cluster={"placement": "round_robin"},
                   model={"layers": [784, 10]}, train={"max_steps_per_s": 0}, data={"validation_size": 100},
                   output={"log_steps": 5}) as fleet:
        port = fleet.ps_hosts[0].split(":")[1]
        fleet.ps_hosts[0] = fleet.config["cluster"]["ps_hosts"][0] = f"127.0.0.2:{port}"
        (fleet.folder / "config.json").write_text(json.dumps(fleet.config))
        with Relay(int(port)) as relay:
            relay.delay_s = 0.02  # at most 25 steps a second
            fleet.start_and_train("--bind=127.0.0.1")
            result = fleet.rollout(fleet.candidate(2, train={"epochs": 100000}), "--yes", "--healthy_secs=0.5")
            assert result.returncode == 0, text_of(result) + fleet.text("ps 2")
            wait_for(lambda: told_steps(fleet, "ps 1", "the last step is 5800000") == [switch_step(result)],
                     "the line of ps 1")  # 2900 images by 50
            last = fleet.status()[1]["ps 0"]["global_step"] + 3000
            result = fleet.rollout(fleet.candidate(3, train={"train_steps": last, "patience": 1000000}), "--yes",
                                   "--healthy_secs=0.5")
            assert result.returncode == 0, text_of(result)
            relay.delay_s = 0
            for name in fleet.members:
                fleet.wait(name, 0)
            assert fleet.events("worker 0", "done")[-1]["steps"] == last


@pytest.mark.parametrize("keys, last", [({"train_steps": 30}, 30), ({"epochs": 0.5}, 30),
                                        ({"train_steps": 30, "batch_size": 40}, 30),
                                        ({"epochs": 0.5, "batch_size": 25}, 60)])
def test_an_end_that_has_been_passed_is_refused(trainer, tmp_path, keys, last):
    """However it is specified, and whether or not all restart for another key: the job continues."""
    with OpenFleet(trainer, tmp_path / "fleet", ps=1, workers=1) as fleet:
        if "epochs" in keys:
            del fleet.config["train"]["train_steps"]
            fleet.config["train"]["epochs"] = 1000000
            (fleet.folder / "config.json").write_text(json.dumps(fleet.config))
        fleet.start_and_train()
        result = fleet.rollout(fleet.candidate(2, train=keys), "--yes")
        text = text_of(result)
        assert result.returncode == 1 and "stop worker 0, which saves it" in text, text
        assert f"the job would be over after step {last}, by train.train_steps or train.epochs, and would be at step" \
            in text, text
        fleet.goes_on()
        assert set(fleet.versions().values()) == {1} and fleet.alive()
        assert len(fleet.events("worker 0", "start")) == 1


@pytest.mark.parametrize("sharding", ["shuffled", "chief"])
@pytest.mark.full(but=("chief",))
def test_workers_move_to_another_address(trainer, tmp_path, sharding):
    with OpenFleet(trainer, tmp_path / "fleet", ps=1, workers=3, data={"data_sharding": sharding}) as fleet:
        fleet.start_and_train()
        before = pids(fleet)
        ports = free_ports(2)
        moved = [f"127.0.0.1:{ports[0]}", fleet.worker_hosts[1], f"localhost:{ports[1]}"]
        result = fleet.rollout(fleet.candidate(2, cluster={"worker_hosts": moved}), "--yes", "--healthy_secs=2")
        assert result.returncode == 0, text_of(result) + fleet.text("worker 2")
        fleet.config["cluster"]["worker_hosts"] = fleet.worker_hosts = moved
        wait_for(lambda: set(fleet.versions().values()) == {2}, "version 2 everywhere")
        assert fleet.alive() and pids(fleet) == before
        for i in range(3):
            seen = fleet.text(f"worker {i}").count('"event":"step"')
            fleet.until(f"worker {i}", lambda text: text.count('"event":"step"') > seen, f"steps of worker {i}")
            assert [start["config_version"] for start in fleet.events(f"worker {i}", "start")] == [1, 2]
        assert [fleet.status()[1][f"worker {i}"]["address"] for i in range(3)] == moved
        # Impossible changes: a shifted list, an invalid address, and a ps elsewhere.
        fleet.config["cluster"]["lease_secs"] = 3
        for version, cluster, message in (
            (3, {"worker_hosts": [moved[0], moved[2]]},
             f"entry 1 is {moved[1]} and would be {moved[2]}, which is worker 2 now"),
            (4, {"worker_hosts": [*moved[:2], "nowhere.invalid:1"]}, "nowhere.invalid"),
            (5, {"ps_hosts": [f"127.0.0.2:{ports[0]}"]}, "the others find a ps by its address"),
        ):
            result = fleet.rollout(fleet.candidate(version, cluster=cluster), "--yes")
            assert result.returncode == 1 and message in text_of(result), text_of(result)
        fleet.goes_on()
