"""Rounds: workers take their own steps between exchanges, on ps, in one process, and on their own data."""

import array
import json
import re
import shutil
import shlex
import signal
import struct
import subprocess

import pytest

from clusters import Cluster
from field.pictures import of_sides
from field.readings import dated
from ports import free_ports
from runs import SMALL, SMALL_DATA, checkpoints, merged, newest, run, same_tensors, tensors, train, wait_for
from test_docs import parts
from test_observe import get, is_as_documented

ROUNDS = ("--issync=1", "--min_workers=1", "--lease_secs=30")
SMALL_MESSAGES = ("--wire_dtype=int8", "--wire_top=0.02")


def in_one_process(trainer, folder, clients, *flags):
    """The newest checkpoint of one process that plays all workers, several at a time."""
    train(trainer, *SMALL, *flags, f"--clients={clients}", "--num_threads=2", "--train_dir=played", cwd=folder)
    return newest(folder / "played")


def floats(path):
    """The parameters of a checkpoint, by name."""
    return {name: array.array("f", content) for name, (_, content) in tensors(path)[0].items() if "layer" in name}


@pytest.mark.parametrize("ps, flags", [
    (1, ("--local_steps=5", "--learning_rate=0.2")),
    (2, ("--local_epochs=1", "--data_sharding=disjoint", "--outer_optimizer=nesterov", "--optimizer=adam",
         "--proximal_mu=0.1", "--ema_decay=0.9")),
    (1, ("--local_steps=3", "--outer_optimizer=adam", "--round_weights=equal", "--optimizer=momentum", "--l2=0.001",
         "--dropout=0.2", "--lr_decay=0.9", "--lr_decay_steps=2")),
    (2, ("--local_steps=3", "--aggregate=median", "--learning_rate=0.2", "--outer_optimizer=momentum")),
    (1, ("--local_steps=3", "--aggregate=trimmed_mean", "--trim=0.34", "--clip_difference_norm=0.5")),
    (1, ("--local_epochs=1", "--data_sharding=disjoint", "--clip_difference_norm=0.3", "--batch_size=50")),
])
@pytest.mark.full(but=("1-flags0", "2-flags1", "2-flags3"))
def test_a_cluster_gives_the_bits_of_one_process_that_plays_it(trainer, tmp_path, ps, flags):
    flags = ("--train_steps=6", *flags)
    with Cluster(trainer, tmp_path, ps=ps, workers=3, flags=(*ROUNDS, *flags, "--train_dir=kept")) as cluster:
        cluster.start_all()
        cluster.wait_all()
        played = in_one_process(trainer, tmp_path, 3, *flags)
        assert same_tensors(newest(tmp_path / "kept"), played) == []


@pytest.mark.parametrize("ps, flags", [
    (1, ()),
    (2, ("--round_deadline_secs=60", "--outer_optimizer=momentum", "--data_sharding=disjoint")),
])
def test_rounds_of_some_give_the_bits_of_one_process_that_plays_them(trainer, tmp_path, ps, flags):
    """None is late: who takes part in a round follows from the seed and its number. The chief sits out some rounds, and
    still validates and saves what is due."""
    flags = ("--train_steps=12", "--local_steps=4", "--learning_rate=0.1", "--participation=0.4", "--validate_steps=3",
             "--save_steps=1", "--max_to_keep=20", *flags)
    with Cluster(trainer, tmp_path, ps=ps, workers=5,
                 flags=(*ROUNDS, *flags, "--min_workers=5", "--train_dir=kept")) as cluster:
        cluster.start_all()
        cluster.wait_all()
        validations = [event["global_step"] for event in cluster.events("worker 0", "validation")]
        assert len(validations) > 1 and validations[-1] == 12, "others may have gone on when it looks"
        played = in_one_process(trainer, tmp_path, 5, *flags)
        kept, alike = checkpoints(tmp_path / "kept"), checkpoints(played.parent)
        assert sorted(kept) == sorted(alike) == list(range(1, 13))
        assert all(same_tensors(kept[step], alike[step]) == [] for step in kept)


@pytest.mark.parametrize("workers, flags", [
    (3, ("--wire_dtype=int8", "--local_steps=5", "--aggregate=median", "--clip_difference_norm=0.5")),
    (3, (*SMALL_MESSAGES, "--local_epochs=1", "--data_sharding=disjoint", "--optimizer=adam", "--ema_decay=0.9",
         "--outer_optimizer=momentum")),
    (4, ("--wire_dtype=bfloat16", "--wire_top=0.1", "--local_steps=4", "--participation=0.5", "--min_workers=4")),
])
def test_small_messages_give_the_bits_of_one_process_that_plays_them(trainer, tmp_path, workers, flags):
    """In both directions, with each worker's residual, and with workers that were not selected."""
    flags = ("--train_steps=8", "--learning_rate=0.02", "--validate_steps=3", *flags)
    with Cluster(trainer, tmp_path, workers=workers,
                 flags=(*ROUNDS, f"--min_replicas={workers}", *flags, "--train_dir=kept")) as cluster:
        cluster.start_all()
        cluster.wait_all()
        played = in_one_process(trainer, tmp_path, workers, *flags)
        assert same_tensors(newest(tmp_path / "kept"), played) == []
    whole = in_one_process(trainer, tmp_path / "kept", workers, *flags, "--wire_dtype=float32", "--wire_top=1")
    assert same_tensors(whole, played), "small messages are not what large ones are"


def test_a_box_that_stands_still_costs_nothing(trainer, tmp_path):
    """Nor does it end the others' round if it is selected: rounds select one more than they need. Its lease is longer
    than the test may last."""
    flags = ("--train_steps=100000", "--local_steps=2", "--participation=0.5", "--over_selection=1.5",
             "--min_workers=4", "--lease_secs=300", "--round_deadline_secs=100", "--log_steps=0", "--validate_steps=0")
    with Cluster(trainer, tmp_path, workers=4, flags=("--issync=1", *flags)) as cluster:
        port = free_ports(1)[0]
        cluster.start("ps 0", f"--http=127.0.0.1:{port}")
        for i in range(4):
            cluster.start(f"worker {i}")

        def rounds():
            return cluster.status()[1]["worker 3"].get("rounds", {"asked": 0})

        wait_for(lambda: rounds()["asked"] > 5, "some rounds")
        cluster.kill("worker 3", signal.SIGSTOP)
        before = rounds()
        wait_for(lambda: rounds()["asked"] >= before["asked"] + 20, "many rounds without it")
        after = rounds()
        assert after["missed"] >= before["missed"] + 18 and after["counted"] <= before["counted"] + 2
        cluster.kill("worker 3", signal.SIGCONT)
        wait_for(lambda: rounds()["counted"] > after["counted"] + 5, "its return")
        wait_for(lambda: b'trainer_worker_rounds_missed_total{role="worker",task="3"}' in get(port, "/metrics")[2],
                 "its rounds among the metrics")

        def seen():
            return json.loads(get(port, "/api/status")[2])

        wait_for(lambda: seen()["members"][4].get("rounds", {"missed": 0})["missed"] >= after["missed"], "them")
        assert is_as_documented(seen())
        assert rounds()["late"] >= before["late"] and rounds()["norm"] > 0 and -1 <= rounds()["cosine"] <= 1


def test_a_round_of_one_step_is_a_synchronous_step(trainer, tmp_path):
    """local_steps=1 is not a round at all. A round of an epoch that is one batch is computed as a round: the same
    except for rounding, because the learning rate is multiplied before taking the mean and not after."""
    flags = ("--train_steps=20", "--batch_size=500", "--synthetic_train=1000", "--learning_rate=0.1",
             "--data_sharding=disjoint", "--validation_size=0")
    train(trainer, *SMALL, *flags, "--data_sharding=shuffled", "--train_dir=plain", cwd=tmp_path)
    train(trainer, *SMALL, *flags, "--data_sharding=shuffled", "--local_steps=1", "--outer_optimizer=average",
          "--train_dir=shared", cwd=tmp_path)
    assert same_tensors(newest(tmp_path / "plain"), newest(tmp_path / "shared")) == []
    with Cluster(trainer, tmp_path, ps=1, workers=2, flags=(*ROUNDS, *SMALL, *flags, "--train_dir=kept")) as cluster:
        cluster.start_all()
        cluster.wait_all()
    rounds = in_one_process(trainer, tmp_path, 2, *flags, "--local_epochs=1")
    shared, averaged = floats(newest(tmp_path / "kept")), floats(rounds)
    assert shared.keys() == averaged.keys()
    for name, values in shared.items():
        assert max(abs(a - b) for a, b in zip(values, averaged[name])) < 1e-5, name


def test_kills_cost_no_more_than_a_round(trainer, tmp_path):
    """A worker and then the ps are killed: the job continues, and ends with the bits of an undisturbed one."""
    flags = ("--train_steps=40", "--local_steps=20", "--outer_optimizer=momentum", "--outer_learning_rate=0.3",
             "--optimizer=adam", "--save_steps=5")
    with Cluster(trainer, tmp_path, workers=2, flags=(*ROUNDS, *flags, "--train_dir=kept", "--min_replicas=2",
                                                      "--validate_steps=1000", "--max_steps_per_s=100")) as cluster:
        cluster.start_all()
        wait_for(lambda: len(checkpoints(tmp_path / "kept")) > 0, "a checkpoint")
        cluster.kill("worker 1")
        cluster.start("worker 1")
        reached = len(cluster.events("worker 0", "checkpoint"))
        wait_for(lambda: len(cluster.events("worker 0", "checkpoint")) > reached, "another checkpoint")
        cluster.kill("ps 0")
        cluster.start("ps 0")
        cluster.wait_all()
        played = in_one_process(trainer, tmp_path, 2, *flags)
        assert same_tensors(newest(tmp_path / "kept"), played) == []


@pytest.mark.parametrize("flags", [(), SMALL_MESSAGES])
def test_a_played_fleet_resumes_where_it_was(trainer, tmp_path, flags):
    flags = ("--clients=12", "--participation=0.3", "--partition=dirichlet:0.5", "--local_epochs=1",
             "--outer_optimizer=adam", "--ema_decay=0.9", *flags)
    train(trainer, *SMALL, *flags, "--train_steps=20", "--train_dir=whole", cwd=tmp_path)
    for steps in (7, 20):
        train(trainer, *SMALL, *flags, f"--train_steps={steps}", "--train_dir=halves", cwd=tmp_path)
    assert same_tensors(newest(tmp_path / "whole"), newest(tmp_path / "halves")) == []


@pytest.mark.parametrize("flags", [
    ("--partition=dirichlet:0.3", "--local_epochs=1", "--ema_decay=0.9", "--dropout=0.3"),
    ("--local_steps=3", "--optimizer=adam", "--aggregate=trimmed_mean", *SMALL_MESSAGES),
])
def test_a_played_fleet_has_the_same_bits_with_any_number_of_threads(trainer, tmp_path, flags):
    """Clients are played side by side; with more threads than clients they share each step."""
    runs = {threads: tmp_path / f"threads{threads}" for threads in (1, 2, 5, 6)}
    for threads, folder in runs.items():
        train(trainer, *SMALL, *flags, "--clients=10", "--participation=0.5", "--train_steps=6",
              f"--num_threads={threads}", f"--train_dir={folder}", cwd=tmp_path)
    assert all(same_tensors(newest(runs[1]), newest(folder)) == [] for folder in runs.values())


@pytest.mark.parametrize("threads", [1, 3])
def test_a_round_that_diverges_is_given_up(run, threads):
    flags = (*SMALL, "--clients=9", "--local_steps=20", "--learning_rate=1e30", "--train_steps=5", "--train_dir=",
             f"--num_threads={threads}")
    result = run(*merged(flags), status=1)
    assert "loss is" in result.stderr and "lower --learning_rate" in result.stderr


@pytest.mark.parametrize("flags, words", [
    (("--local_steps=4", "--local_epochs=2"), "both set the length of a round"),
    (("--outer_optimizer=adam",), "has no effect while every step is shared"),
    (("--proximal_mu=0.1",), "has no effect while every step is shared"),
    (("--local_steps=4", "--ps_hosts=a:1", "--worker_hosts=b:1"), "set issync=1"),
    (("--local_steps=4", "--data_sharding=chief"), "use disjoint or own"),
    (("--local_steps=4", "--micro_batches=2"), "raise batch_size instead"),
    (("--data_sharding=own", "--epochs=3", "--ps_hosts=a:1", "--worker_hosts=b:1"), "set train_steps"),
    (("--data_sharding=own", "--lr_decay=0.9", "--ps_hosts=a:1", "--worker_hosts=b:1"), "lr_decay_steps: must be set"),
    (("--clients=3",), "--clients needs rounds"),
    (("--participation=0.5",), "has no effect while every step is shared"),
    (("--local_steps=4", "--participation=0.5"), "add --clients"),
    (("--local_steps=4", "--over_selection=1.2"), "has no effect while all workers are selected"),
    (("--aggregate=median",), "has no effect while every step is shared"),
    (("--local_steps=4", "--trim=0.2"), "has no effect without aggregate=trimmed_mean"),
    (("--local_steps=4", "--clip_difference_norm=1", "--issync=1", "--ps_hosts=a:1,c:1", "--worker_hosts=b:1"),
     "needs whole differences on one ps"),
    (("--local_steps=4", "--participation=0.5", "--issync=1", "--ps_hosts=a:1", "--worker_hosts=b:1",
      "--replicas_to_aggregate=1"), "use over_selection for backups"),
    (("--validate_by=workers",), "set data_sharding=own, or use auto"),
    (("--validate_by=workers", "--data_sharding=own", "--issync=1", "--ps_hosts=a:1", "--worker_hosts=b:1"),
     "set validate_steps"),
    (("--clients=0", "--local_steps=2"), "must be an integer from 1"),
    (("--clients=3", "--local_steps=2", "--participation=0"), "above 0 and at most 1"),
])
def test_what_makes_no_sense_is_refused(run, flags, words):
    result = run(*flags, status=2)
    assert words in result.stdout + result.stderr


def write_idx(folder, name, examples):
    """A stroke whose position gives the class, in 28 x 28 pixels."""
    images, labels = bytearray(), bytearray()
    for number, label in enumerate(examples):
        image = bytearray(784)
        for k in range(20):
            image[(label * 2 + 3) * 28 + 4 + k] = 200 + (number * 7 + k) % 56
        images += image
        labels.append(label)
    (folder / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, len(labels), 28, 28) + images)
    (folder / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, len(labels)) + labels)


def test_each_worker_trains_on_what_it_has(trainer, tmp_path):
    """No worker has all classes, and their numbers of examples differ; the model learns them all."""
    own = [[0, 1, 2, 3] * 50, [4, 5, 6] * 100, [7, 8, 9] * 20]
    for index, examples in enumerate(own):
        (tmp_path / f"data{index}").mkdir()
        write_idx(tmp_path / f"data{index}", "train", examples)
        write_idx(tmp_path / f"data{index}", "t10k", list(range(10)) * 10)
    flags = (*ROUNDS, "--data_source=idx", "--data_sharding=own", "--local_epochs=2", "--batch_size=10",
             "--layers=784,16,10", "--learning_rate=0.1", "--train_steps=40", "--validation_size=0",
             "--round_weights=equal")
    with Cluster(trainer, tmp_path, workers=3, flags=flags) as cluster:
        cluster.start("ps 0", "--data_dir=data0")
        for i in range(3):
            cluster.start(f"worker {i}", f"--data_dir=data{i}")
        cluster.wait_all()
        assert cluster.events("worker 0", "done")[0]["test_accuracy"] > 0.95


def write_table(path, rows, first, colours):
    """The class is whether the number is above 50, or the colour red."""
    lines = ["number,colour,class"]
    for i in range(rows):
        number, colour = first + i % 40 + i / 1000, colours[i % len(colours)]
        lines.append(f"{number},{colour},{'yes' if number > 50 or colour == 'red' else 'no'}")
    path.write_text("\n".join(lines) + "\n")


def preprocessing_in(folder):
    return json.loads(tensors(newest(folder))[1]["preprocessing"])


def same_preprocessing(one, other):
    """Up to the rounding of sums."""
    for a, b in zip(one["columns"], other["columns"], strict=True):
        for key in {*a, *b}:
            if a[key] != b[key] and not (isinstance(a[key], float) and abs(a[key] - b[key]) < 1e-9 * abs(a[key])):
                return False
    return True


def test_rows_that_stay_apart_are_preprocessed_as_if_they_were_together(trainer, tmp_path):
    """The workers have different numbers, and one of them has a single class and a colour that the chief never saw. A
    chief that restarts with more rows continues with the model's preprocessing."""
    parts = [(200, 20, ["red", "green"]), (90, 60, ["blue", "green"]), (50, -7, ["green", "red", "blue"])]
    for index, part in enumerate(parts):
        (tmp_path / f"data{index}").mkdir()
        write_table(tmp_path / f"data{index}" / "train.csv", *part)
    (tmp_path / "all").mkdir()
    for index in range(3):
        shutil.copy(tmp_path / f"data{index}" / "train.csv", tmp_path / "all" / f"train{index}.csv")
    table = ("--data_source=table", "--target=class", "--batch_size=10", "--layers=5,8,2", "--validation_size=auto",
             "--optimizer=sgd", "--learning_rate=0.5")
    train(trainer, *SMALL, *table, "--data_dir=all", "--train_steps=10", "--train_dir=together", cwd=tmp_path)
    flags = (*ROUNDS, *table, "--data_sharding=own", "--local_steps=4", "--save_model_secs=0", "--save_steps=10")
    for steps in (20, 30):
        with Cluster(trainer, tmp_path, workers=3, flags=(*flags, f"--train_steps={steps}")) as cluster:
            for name in ("worker 1", "ps 0", "worker 0", "worker 2"):
                kept = ("--train_dir=kept",) if name == "worker 0" else ()
                cluster.start(name, f"--data_dir=data{name.split()[1]}", *kept)
            cluster.wait_all()
            done = cluster.events("worker 0", "done")[0]
            assert done["steps"] == steps and done["test_accuracy"] > 0.8
        assert same_preprocessing(preprocessing_in(tmp_path / "kept"), preprocessing_in(tmp_path / "together"))
        held_out = [tensors(newest(tmp_path / name))[1].get("kept_rows") for name in ("kept", "together")]
        assert held_out[0] is None and held_out[1], "rows of one's own go into no checkpoint"
        write_table(tmp_path / "data0" / "train.csv", 333, 20, ["red", "green", "black"])


@pytest.mark.parametrize("changed", [False, True], ids=["the same rows", "other rows"])
def test_a_job_that_begins_anew_before_its_first_checkpoint(trainer, tmp_path, changed):
    """ps 0 and the chief are lost at once, and with them the preprocessing. The other workers report their rows again:
    so the chief derives the same from the same rows; other rows give other inputs, which all adopt."""
    for index, colours in enumerate((["red", "green"], ["blue", "green"], ["green", "red", "blue"])):
        (tmp_path / f"data{index}").mkdir()
        write_table(tmp_path / f"data{index}" / "train.csv", 100, 20 * index, colours)
    flags = (*ROUNDS, "--data_source=table", "--target=class", "--batch_size=10", "--layers=5,8,2",
             "--validation_size=0", "--data_sharding=own", "--local_steps=4", "--lease_secs=30", "--min_workers=3",
             "--train_steps=1000000000", "--log_steps=1")

    def steps(name):
        return len(cluster.events(name, "step"))

    with Cluster(trainer, tmp_path, workers=3, flags=flags) as cluster:
        for name in ("ps 0", "worker 0", "worker 1", "worker 2"):
            cluster.start(name, f"--data_dir=data{name.split()[1]}")
        wait_for(lambda: all(steps(f"worker {i}") > 2 for i in range(3)), "steps of all")
        cluster.kill("ps 0")
        cluster.kill("worker 0")
        if changed:
            write_table(tmp_path / "data0" / "train.csv", 100, 500, ["red", "green"])
        before = [steps(f"worker {i}") for i in (1, 2)]
        cluster.start("ps 0", "--data_dir=data0")
        cluster.start("worker 0", "--data_dir=data0")
        wait_for(lambda: steps("worker 0") > 2 and all(steps(f"worker {i}") > before[i - 1] + 2 for i in (1, 2)),
                 "steps of all, again")
        for name in ("worker 1", "worker 2"):
            assert "sending the statistics of the rows here to ps 0 again" in cluster.text(name)
            assert ("restarting, to encode its rows by the model's preprocessing" in cluster.text(name)) == changed


def test_workers_validate_on_their_own_rows(trainer, tmp_path):
    """All have the same results if their rows are the same: so the sum is what the chief finds alone, but over more
    rows. Worker 2's rows are the opposite: it is named as the worst."""
    for index in range(3):
        (tmp_path / f"data{index}").mkdir()
        write_table(tmp_path / f"data{index}" / "train.csv", 300, 20, ["red", "green", "blue"])
    text = (tmp_path / "data2" / "train.csv").read_text()
    flags = (*ROUNDS, "--data_source=table", "--target=class", "--batch_size=10", "--layers=5,8,2",
             "--validation_size=60", "--data_sharding=own", "--local_steps=4", "--min_workers=3",
             "--validate_steps=10", "--train_steps=30", "--num_threads=1", "--optimizer=adam", "--learning_rate=0.01",
             "--best_metric=accuracy")
    found = {}
    for name in ("chief", "workers", "odd"):
        (tmp_path / name).mkdir()
        if name == "odd":
            opposite = {"yes": "no", "no": "yes"}
            lines = [line.rsplit(",", 1) for line in text.splitlines()[1:]]
            (tmp_path / "data2" / "train.csv").write_text(
                "number,colour,class\n" + "".join(f"{rest},{opposite[label]}\n" for rest, label in lines))
        by = "chief" if name == "chief" else "auto"
        with Cluster(trainer, tmp_path / name, workers=3, flags=(*flags, f"--validate_by={by}")) as cluster:
            port = free_ports(1)[0]
            cluster.start("ps 0", f"--data_dir={tmp_path / 'data0'}", f"--http=127.0.0.1:{port}", "--serve_forever=1")
            for i in range(3):
                cluster.start(f"worker {i}", f"--data_dir={tmp_path / f'data{i}'}")
            for i in range(3):
                cluster.wait(f"worker {i}")
            found[name] = cluster.events("worker 0", "validation")
            status = cluster.status()[1]
            if name != "chief":
                wait_for(lambda port=port: b'trainer_worker_validation_score{role="worker",task="2"}'
                         in get(port, "/metrics")[2], "scores among the metrics")
            assert is_as_documented(json.loads(get(port, "/api/status")[2]))
        own = [status[f"worker {i}"].get("validation") for i in range(3)]
        if name == "chief":
            assert own == [None] * 3
            continue
        assert [each["step"] for each in own] == [30] * 3
        assert [each["is_worst"] for each in own] == ([False, False, True] if name == "odd" else [True, False, False])
        assert [(event["validators"], event["validators_missing"]) for event in found[name]] == [(3, 0)] * 3
        assert found[name][-1]["validation_examples"] == sum(each["examples"] for each in own)
        assert [each["worker"] for each in found[name][-1]["worst_tenth"]] == [2 if name == "odd" else 0]
    assert [event["global_step"] for event in found["workers"]] == [10, 20, 30]
    for one, other in zip(found["chief"], found["workers"], strict=True):
        assert one["validation_accuracy"] == pytest.approx(other["validation_accuracy"], abs=1e-12)
        assert one["validation_loss"] == pytest.approx(other["validation_loss"], abs=1e-9)
        assert one["validation_roc_auc"] == pytest.approx(other["validation_roc_auc"], abs=0.02)
    right = sum(each["score"] * each["examples"] for each in own) / sum(each["examples"] for each in own)
    assert found["odd"][-1]["validation_accuracy"] == pytest.approx(right, abs=1e-6)


def join_idx(folder, parts):
    """The files of several folders as one, in order."""
    for name, head in (("images-idx3", 16), ("labels-idx1", 8)):
        contents = [(part / f"train-{name}-ubyte").read_bytes() for part in parts]
        count = sum(struct.unpack(">I", content[4:8])[0] for content in contents)
        whole = contents[0][:4] + struct.pack(">I", count) + contents[0][8:head]
        (folder / f"train-{name}-ubyte").write_bytes(whole + b"".join(content[head:] for content in contents))


@pytest.mark.parametrize("flags", [(), ("--participation=0.5", "--min_workers=4", *SMALL_MESSAGES)])
def test_own_rows_give_the_bits_of_one_process_that_plays_them(trainer, tmp_path, flags):
    """Each client holds out rows of its own, and those of a round validate on them, as do the workers of a cluster
    whose folders have the clients' parts."""
    folders = [tmp_path / f"data{index}" for index in range(4)]
    (tmp_path / "all").mkdir()
    for index, folder in enumerate([*folders, tmp_path / "all"]):
        folder.mkdir(exist_ok=True)
        write_idx(folder, "train", [(index + i) % 4 + 2 * index for i in range(120)])
        write_idx(folder, "t10k", list(range(10)) * 5)
    join_idx(tmp_path / "all", folders)
    of_some = flags
    flags = ("--data_source=idx", "--data_sharding=own", "--local_steps=6", "--batch_size=10", "--layers=784,16,10",
             "--learning_rate=0.1", "--train_steps=12", "--validation_size=20", "--validate_steps=3", *flags)
    with Cluster(trainer, tmp_path, workers=4,
                 flags=(*ROUNDS, "--min_replicas=4", *flags, "--train_dir=kept")) as cluster:
        cluster.start("ps 0", "--data_dir=data0")
        for index in range(4):
            cluster.start(f"worker {index}", f"--data_dir=data{index}")
        cluster.wait_all()
        real = cluster.events("worker 0", "validation")
    played = train(trainer, *SMALL, *flags, "--clients=4", "--partition=order", "--data_dir=all",
                   "--train_dir=played", cwd=tmp_path).named("validation")
    assert same_tensors(newest(tmp_path / "kept"), newest(tmp_path / "played")) == []
    assert [event["global_step"] for event in played] == [3, 6, 9, 12]
    known = ("global_step", "validation_accuracy", "validation_examples", "validators", "validators_missing",
             "worst_tenth", "best_score")
    steps = {event["global_step"]: event for event in real}
    if not of_some:  # all take part in each round: worker 0 sees every step
        assert list(steps) == [3, 6, 9, 12]
    met = [event for event in played if event["global_step"] in steps]
    assert met  # a round without worker 0 may be over before it looks, and then it validates at the next
    if len(met) < len(played):
        known = known[:-1]  # it may be better
    for other in met:
        one = steps[other["global_step"]]
        assert {key: one.get(key) for key in known} == {key: other.get(key) for key in known}
        assert one["validation_loss"] == pytest.approx(other["validation_loss"], abs=1e-12)
        assert len(one["worst_tenth"]) == 1 and one["validation_examples"] == 20 * one["validators"]


def test_clients_hold_out_rows_of_tables(trainer, tmp_path):
    """Parts of any size; a client with too few to hold some out is named."""
    write_table(tmp_path / "train.csv", 500, 20, ["red", "green", "blue"])
    flags = ("--data_source=table", "--target=class", "--data_dir=.", "--batch_size=10", "--layers=5,8,2",
             "--data_sharding=own", "--local_steps=4", "--clients=7", "--validate_steps=5", "--train_steps=10",
             "--optimizer=adam")
    found = train(trainer, *SMALL, *flags, "--partition=dirichlet:1", "--validation_size=auto",
                  cwd=tmp_path).named("validation")
    assert [event["validators"] for event in found] == [7, 7] and 0 < found[0]["validation_roc_auc"] <= 1
    assert sum(each["examples"] for each in found[0]["worst_tenth"]) < found[0]["validation_examples"] < 70
    alone = train(trainer, *SMALL, *flags, "--partition=iid", "--validation_size=5", "--validate_by=chief",
                  cwd=tmp_path).named("validation")
    assert "validators" not in alone[0]
    refused = train(trainer, *SMALL, *flags, "--partition=iid", "--validation_size=70", cwd=tmp_path, status=1)
    assert "would leave it none to train on" in refused.stdout


def test_columns_that_do_not_go_together_are_named(trainer, tmp_path):
    """And left out: what one worker sends ends no other process."""
    for index in range(2):
        (tmp_path / f"data{index}").mkdir()
        write_table(tmp_path / f"data{index}" / "train.csv", 60, 20, [["red", "blue"], ["3", "4"]][index])
    flags = (*ROUNDS, "--data_source=table", "--target=class", "--data_sharding=own", "--batch_size=10",
             "--layers=4,8,2", "--validation_size=auto")
    with Cluster(trainer, tmp_path, workers=2, flags=flags) as cluster:
        for name in ("ps 0", "worker 1", "worker 0"):
            cluster.start(name, f"--data_dir=data{name.split()[1]}")
        cluster.until("worker 0", lambda text: "column colour has texts on some workers" in text, "the warning")
        assert "the rows of worker 1 do not fit" in cluster.text("worker 0")
        assert "the preprocessing is computed without them" in cluster.text("worker 0")


@pytest.mark.parametrize("flags", [
    (*SMALL_MESSAGES, "--local_steps=20", "--optimizer=adam", "--train_steps=40", "--save_steps=5"),
    ("--wire_dtype=int8", "--train_steps=400", "--save_steps=50"),
])
@pytest.mark.full(but=("flags1",))
def test_what_small_messages_leave_behind_survives_kills(trainer, tmp_path, flags):
    """Killed again and again, workers and all, a job ends with the bits of an undisturbed one."""
    flags = (*ROUNDS, "--min_replicas=2", "--validate_steps=1000", *flags)
    for folder in ("whole", "killed"):
        (tmp_path / folder).mkdir()
        with Cluster(trainer, tmp_path / folder, workers=2, flags=(*flags, "--train_dir=kept")) as cluster:
            pace = ("--max_steps_per_s=100",) if folder == "killed" else ()  # so that it is killed before its end
            cluster.start_all(*pace)
            if folder == "killed":
                kept = tmp_path / folder / "kept"
                wait_for(lambda kept=kept: len(checkpoints(kept)) > 1, "a second checkpoint")
                if "--local_steps=20" in flags:
                    cluster.kill("worker 1")
                    cluster.start("worker 1", *pace)
                    reached = len(cluster.events("worker 0", "checkpoint"))
                    wait_for(lambda: len(cluster.events("worker 0", "checkpoint")) > reached, "another checkpoint")
                for name in ("ps 0", "worker 0", "worker 1"):
                    cluster.kill(name)
                assert list(kept.glob("residual-worker0-*")) and list(kept.glob("residual-worker1-*"))
                cluster.start_all()
            cluster.wait_all()
    assert same_tensors(newest(tmp_path / "whole" / "kept"), newest(tmp_path / "killed" / "kept")) == []
    assert "with the unsent parts of pushes at step" in cluster.text("worker 1")


def test_small_messages_learn_as_well_in_far_fewer_bytes(trainer, tmp_path):
    """Rounds of ten steps, of whose difference 2% are pushed as int8: a step costs a hundredth of the bytes or less."""
    bytes_of, accuracy = {}, {}
    for name, steps, flags in (("each", 200, ()), ("small", 20, ("--local_steps=10", *SMALL_MESSAGES))):
        (tmp_path / name).mkdir()
        with Cluster(trainer, tmp_path / name, workers=2,
                     flags=(*ROUNDS, "--learning_rate=0.2", f"--train_steps={steps}", *flags)) as cluster:
            cluster.start_all("--serve_forever=1")
            for worker in ("worker 0", "worker 1"):
                cluster.wait(worker)
            accuracy[name] = cluster.events("worker 0", "done")[0]["test_accuracy"]
            bytes_of[name] = cluster.status()[1]["ps 0"]["bytes_in"]
    assert accuracy["small"] > accuracy["each"] - 0.03
    assert bytes_of["small"] * 60 < bytes_of["each"]


def test_small_messages_go_both_ways(trainer, tmp_path):
    """A round's answer to a worker is no larger than the worker's push, and the same in every run."""
    floats, rounds = 784 * 100 + 100 + 100 * 10 + 10, 60
    flags = (*ROUNDS, *SMALL_MESSAGES, "--layers=784,100,10", "--local_steps=2", f"--train_steps={rounds}",
             "--train_dir=kept", "--min_replicas=2", "--validate_steps=1000")
    for name in ("one", "again"):
        with Cluster(trainer, tmp_path / name, workers=2, flags=flags) as cluster:
            cluster.start_all("--serve_forever=1")
            for worker in ("worker 0", "worker 1"):
                cluster.wait(worker)
            told = cluster.status()[1]["ps 0"]["bytes_out"]
        begin_and_end = 4 * (2 + 2) * floats  # each worker gets all once; the chief saves that and the sent model
        assert told - begin_and_end < rounds * 2 * 0.1 * floats, told
    assert same_tensors(newest(tmp_path / "one" / "kept"), newest(tmp_path / "again" / "kept")) == []


def test_a_round_of_some_is_told_what_they_missed(trainer, tmp_path):
    """A worker that is selected now and then gets the changes of all rounds since, and not the whole model."""
    floats, rounds = 784 * 100 + 100 + 100 * 10 + 10, 60
    flags = (*ROUNDS, *SMALL_MESSAGES, "--layers=784,100,10", "--local_steps=2", f"--train_steps={rounds}",
             "--participation=0.4", "--min_workers=3", "--validate_steps=1000")
    with Cluster(trainer, tmp_path, workers=3, flags=flags) as cluster:
        cluster.start_all("--serve_forever=1")
        for worker in ("worker 0", "worker 1", "worker 2"):
            cluster.wait(worker)
        told = cluster.status()[1]["ps 0"]["bytes_out"]
    assert told < 4 * (3 + 2) * floats + rounds * 3 * 0.1 * floats, told


def test_clients_do_not_round_to_halves(run):
    result = run("--clients=3", "--local_steps=2", "--wire_dtype=bfloat16", status=2)
    assert "use int8, or wire_top" in result.stdout + result.stderr


def documented(word):
    """The commands of the document's only block with this word, with continued lines joined."""
    (found,) = [block for block in parts("docs/edge-fleet.md")[0] if any(word in line for line in block)]
    return "\n".join(found).replace("\\\n", " ")


@pytest.mark.parametrize("word, said", [("--participation=0.1", "validation"), ("--partition=shards:2", "worst tenth")])
def test_a_desk_simulation_runs_as_documented(trainer, tmp_path, word, said):
    (command,) = documented(word).splitlines()
    assert command.startswith("trainer ")
    result = subprocess.run([trainer, *shlex.split(command)[1:], *SMALL_DATA[:3], "--num_threads=1", "--progress=0"],
                            cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0 and said in result.stdout, result.stdout + result.stderr


def test_a_fleet_runs_as_documented(trainer, tmp_path):
    """Its machines are folders, each with its own data."""
    block = documented("--job_name=ps")
    ports = free_ports(4)
    for name, port in zip("hub a b c".split(), ports):
        block = block.replace(f"{name}:2222", f"127.0.0.1:{port}")
    settings = [line for line in block.splitlines() if not line.startswith("trainer ")]
    commands = [line.partition("#")[0].strip() for line in block.splitlines() if line.startswith("trainer ")]
    commands.append(commands[-1].replace("--task_index=1", "--task_index=2"))  # "and 2 on c"
    subprocess.run([trainer, "keygen", f"--out={tmp_path / 'fleet.key'}"], check=True, capture_output=True, timeout=240)
    members = []
    try:
        for index, command in enumerate(commands):
            machine = tmp_path / f"machine{index}"
            (machine / "data").mkdir(parents=True)
            shutil.copy(tmp_path / "fleet.key", machine)
            write_idx(machine / "data", "train", [(index + i) % 5 for i in range(150)])
            write_idx(machine / "data", "t10k", list(range(5)) * 10)
            command = command.replace("=/data", "=data").replace("=/model", "=model")
            script = "\n".join([*settings, f"exec {command.replace('trainer', shlex.quote(str(trainer)), 1)}"])
            members.append(subprocess.Popen(["bash", "-c", script], cwd=machine, stdout=subprocess.PIPE,
                                            stderr=subprocess.STDOUT, text=True))
        for member in members:
            text, _ = member.communicate(timeout=600)
            assert member.returncode == 0, text
    finally:
        for member in members:
            member.kill()
            member.wait()
    assert max(checkpoints(tmp_path / "machine1" / "model")) == 200


def test_own_rows_with_dates_and_pictures_of_their_own_size(trainer, tmp_path):
    """Workers agree on the parts of dates, and on the size of pictures, as on all preprocessing."""
    own = ("--data_sharding=own", "--num_threads=1", "--issync", "--batch_size=10", "--optimizer=adam",
           "--train_steps=600", "--log_steps=0")
    for path, content in {**dated(lambda day: day.isoformat()), **of_sides(size=(20, 16))}.items():
        file = tmp_path / ("dates" if path.endswith("csv") else "pictures") / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    for data, flags in (("dates", ("--target=y", "--layers=7,32,2")), ("pictures", ("--layers=320,16,2",))):
        said = run(trainer, "cluster", f"--data_dir={data}/d", *own, *flags, cwd=tmp_path).stdout
        assert float(re.search(r"worker 0  \| test accuracy ([0-9.]+)%", said)[1]) > 90, said
