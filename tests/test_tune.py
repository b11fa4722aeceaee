"""train.time_limit, and `trainer tune`: trials as real processes, the same ones by seed, after a kill too."""

import json
import os
import pathlib
import random
import signal
import time
import urllib.request

import pytest

from clusters import Cluster
from ports import free_ports
from runs import SMALL, finish, newest, run, same_tensors, start, tensors, train, wait_for

TABLE = ("--data_dir=d", "--target=y")
SPACE = {"learning_rate": {"min": 1e-3, "max": 0.1, "log": True}, "hidden": [[4], [8], [8, 8]], "dropout": [0, 0.2]}
TUNE = ("tune", *TABLE, "--space=space.json", "--train_dir=run", "--epochs=9", "--trials=6", "--parallel=2")


def write_table(folder, rows=300, columns=3):
    numbers = random.Random(5)
    (folder / "d").mkdir(exist_ok=True)
    lines = [",".join([*(f"x{i}" for i in range(columns)), "y"])]
    for _ in range(rows):
        x = [numbers.gauss(0, 1) for _ in range(columns)]
        lines.append(",".join([*(f"{v:.3f}" for v in x), "up" if x[0] * x[1] + numbers.gauss(0, .3) > 0 else "down"]))
    (folder / "d/train.csv").write_text("\n".join(lines) + "\n")
    (folder / "space.json").write_text(json.dumps(SPACE))


def trials(folder):
    """What each trial came to, without its seconds."""
    found = [json.loads(line) for line in (folder / "run/trials.jsonl").read_text().splitlines()]
    for trial in found:
        for rung in trial["rungs"]:
            del rung["seconds"]
    return found


def tune(trainer, folder, *flags, **options):
    return train(trainer, *TUNE, *flags, cwd=folder, **options)


# --- time_limit ---

def test_training_ends_within_its_time(trainer, tmp_path):
    write_table(tmp_path, 20000)
    flags = (*TABLE, "--train_dir=run", "--epochs=0", "--patience=0", "--log_steps=0", "--num_threads=1")
    begun = time.monotonic()
    result = run(trainer, *flags, "--time_limit=6s", cwd=tmp_path)
    took = time.monotonic() - begun
    assert "; at most 6 s" in result.stdout
    (last,) = [line for line in result.stdout.splitlines() if line.startswith("stopped by time_limit ")]
    assert "best validation loss" in last and " after epoch " in last
    assert took < 6.5, result.stdout
    before = max(int(path.stem.split("-")[1]) for path in (tmp_path / "run").glob("model-*"))
    assert f"checkpoint at step {before:,}" in result.stdout and (tmp_path / "run/best.safetensors").exists()
    # Another run goes on from there, for as long as its own limit.
    done = train(trainer, *flags, "--time_limit=0.05m", cwd=tmp_path)
    assert done.named("start")[0]["global_step"] == before and done.named("start")[0]["time_limit"] == 3
    assert done.done["steps"] > before and done.done["reason"].startswith("stopped by time_limit after epoch")


def test_an_epoch_longer_than_the_limit_is_validated_and_tested(trainer, tmp_path):
    result = train(trainer, *SMALL, "--time_limit=3", "--train_steps=0", "--epochs=100000", "--max_steps_per_s=5",
                   "--train_dir=run", cwd=tmp_path)
    done = result.done
    assert done["reason"] == "stopped by time_limit in epoch 1" and done["best_step"] == done["steps"] < 50
    assert done["test_model"] == "best" and done["seconds"] < 3.5


@pytest.mark.parametrize("flags", [("--issync",), (), ("--issync", "--local_steps=4")])
def test_the_chief_ends_a_cluster_in_time(trainer, tmp_path, flags):
    with Cluster(trainer, tmp_path, ps=1, workers=2, flags=("--train_steps=100000000", *flags)) as cluster:
        cluster.start_all("--time_limit=8", "--train_dir=kept")
        cluster.wait_all()
        (done,) = cluster.events("worker 0", "done")
    assert done["reason"].startswith("stopped by time_limit") and done["seconds"] < 10
    assert newest(tmp_path / "kept")


def test_simulated_clients_end_in_time(trainer, tmp_path):
    done = train(trainer, *SMALL, "--clients=4", "--local_steps=5", "--train_steps=100000000", "--time_limit=4",
                 cwd=tmp_path).done
    assert done["reason"].startswith("stopped by time_limit") and done["seconds"] < 5


@pytest.mark.parametrize("text", ["1x", "-1s", "s", "1 m", "1e9d", "nan"])
def test_times_that_are_none(trainer, tmp_path, text):
    result = run(trainer, "config", "check", f"--time_limit={text}", cwd=tmp_path, status=2)
    assert "--time_limit: must be seconds from 0 to 31536000, or a number with a unit: 90s, 5m, 2h or 1d" \
        in result.stderr


def test_times_in_files(trainer, tmp_path):
    for text, seconds in (('"90s"', 90), ("90", 90), ('"1.5m"', 90), ('"2h"', 7200), ('"1d"', 86400)):
        (tmp_path / "config.json").write_text('{"train": {"time_limit": %s}}' % text)
        lines = run(trainer, "config", "show", cwd=tmp_path).stdout.splitlines()
        (line,) = [line.split() for line in lines if line.startswith("train.time_limit ")]
        assert float(line[1]) == seconds


# --- tune ---

def test_a_seed_gives_the_same_search_and_the_best_config_the_same_score(trainer, tmp_path):
    found = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        write_table(folder)
        result = tune(trainer, folder)
        found.append(trials(folder))
    assert found[0] == found[1]
    assert len(found[0]) == 6 and [trial["trial"] for trial in found[0] if trial["settings"] == ""] == [0]
    default = next(trial for trial in found[0] if trial["trial"] == 0)
    assert [rung["epochs"] for rung in default["rungs"]] == [1, 3, 9]  # always trained in full
    lowest = [min(rung["score"] for rung in trial["rungs"]) for trial in found[0]]
    assert lowest == sorted(lowest)  # the best first
    assert len([trial for trial in found[0] if len(trial["rungs"]) > 1]) < 6
    (tuned,) = result.named("tuned")
    assert tuned["best_trial"] == found[0][0]["trial"] and tuned["score"] == lowest[0] <= tuned["default_score"]
    # The config, trained as any other, and a plain run without the search.
    again = train(trainer, "--config=run/best.json", "--num_threads=1", cwd=folder).done
    assert again["best_loss"] == lowest[0]
    plain = train(trainer, *TABLE, "--epochs=9", "--patience=0", cwd=folder).done
    assert plain["best_loss"] == default["rungs"][-1]["score"]
    # The last run is of all rows, and an ordinary one.
    final = json.loads((folder / "run/final/config.json").read_text())
    assert final["data"]["validation_size"] == 0
    assert final["train"]["epochs"] == found[0][0]["rungs"][-1]["best_epochs"]
    assert run(trainer, "eval", "run/final", "--data_dir=d", cwd=folder).stdout


def test_another_seed_gives_other_trials(trainer, tmp_path):
    write_table(tmp_path)
    first = tune(trainer, tmp_path, "--trials=3", "--nofinal")
    assert not (tmp_path / "run/final").exists()
    other = tune(trainer, tmp_path, "--trials=3", "--nofinal", "--seed=2", "--train_dir=other")
    settings = [{event["trial"]: event["settings"] for event in result.named("trial")} for result in (first, other)]
    assert settings[0][0] == settings[1][0] == "" and settings[0][1] != settings[1][1]


def children_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []


def is_gone(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_killed_search_goes_on_where_it_stopped(trainer, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
        write_table(folder)
    tune(trainer, whole)
    for results in (1, 4, 7):
        process = start(trainer, *TUNE, "--log_format=json", cwd=killed)
        wait_for(lambda: process.poll() is not None or sum(
            len(json.loads(path.read_text())["rungs"]) for path in killed.glob("run/trials/*/trial.json")) >= results,
            "results")
        children = children_of(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        wait_for(lambda: all(map(is_gone, children)), "end of the children")
    result = tune(trainer, killed)
    assert trials(killed) == trials(whole)
    assert len(result.named("trial")) < len(tune(trainer, whole, "--train_dir=again").named("trial"))
    assert same_tensors(newest(killed / "run/final"), newest(whole / "run/final")) == []
    # Once it is done, nothing is left to train, and more trials can be added.
    assert tune(trainer, killed).named("trial") == []
    assert len({event["trial"] for event in tune(trainer, killed, "--trials=8").named("trial")} & {6, 7}) == 2


def test_ctrl_c_keeps_what_is_there(trainer, tmp_path):
    write_table(tmp_path)
    process = start(trainer, *TUNE, "--epochs=900", "--patience=0", "--log_format=json", cwd=tmp_path)
    wait_for(lambda: list(tmp_path.glob("run/trials/*/trial.json")), "a result")
    children = children_of(process.pid)
    assert len(children) <= 2  # --parallel
    process.send_signal(signal.SIGINT)
    result = finish(process, status=130)
    assert "the same command goes on from here" in result.stdout
    assert all(map(is_gone, children)) and not (tmp_path / "run/final").exists()
    assert (tmp_path / "run/best.json").exists() and (tmp_path / "run/trials.jsonl").exists()


def test_a_search_ends_within_its_time(trainer, tmp_path):
    write_table(tmp_path, 1000)
    begun = time.monotonic()
    result = run(trainer, "tune", *TABLE, "--train_dir=run", "--time_limit=20s", "--log_steps=0", cwd=tmp_path)
    assert time.monotonic() - begun < 22, result.stdout
    assert "at most 20 s" in result.stdout and list((tmp_path / "run/final").glob("model-*"))
    best = json.loads((tmp_path / "run/trials.jsonl").read_text().splitlines()[0])
    assert f"trial {best['trial']} is trained" in result.stdout
    # It goes on for as long again.
    shown = result.stdout.count("\ntrial ")
    again = run(trainer, "tune", *TABLE, "--train_dir=run", "--time_limit=10s", "--log_steps=0", cwd=tmp_path)
    assert "goes on with the search there" in again.stdout
    assert len((tmp_path / "run/trials.jsonl").read_text().splitlines()) >= shown // 4


def test_folds_score_by_every_row(trainer, tmp_path):
    write_table(tmp_path, 60)
    result = tune(trainer, tmp_path, "--folds=3", "--trials=2", "--epochs=3", "--batch_size=8")
    rows = [tensors(newest(tmp_path / f"run/trials/0000/fold-{i}"))[1] for i in (1, 2, 3)]
    assert len(rows) == 3
    held_out = 0
    for i in (1, 2, 3):
        start_of = [json.loads(line) for line in
                    (tmp_path / f"run/trials/0000/fold-{i}/log.jsonl").read_text().splitlines()]
        (begun,) = [event for event in start_of if event["event"] == "start"]
        held_out += int(begun["data"].split(" training, ")[1].split(" validation")[0])
    assert 45 <= held_out <= 60  # all but the test's, and but one row of each class in each part
    assert "default_score" in result.named("tuned")[0]
    for flags, why in ((("--folds=1",), "--folds must be an integer from 2 to 20"),
                       (("--folds=3", "--validation_size=10"), "--folds divides the rows of a table at random"),
                       (("--folds=100",), "--folds must be an integer from 2 to 20")):
        assert why in run(trainer, *TUNE, *flags, cwd=tmp_path, status=2).stderr


@pytest.mark.parametrize("flags, why", [
    (("--space=bad.json",), "bad.json:1:14: dropout: must be a number from 0 to less than 1, not 2"),
    (("--space=none.json",), "none.json: cannot be "),
    (("--train_dir=",), "trainer tune keeps its trials in a folder: name one with --train_dir"),
    (("--ps_hosts=a:1", "--worker_hosts=b:1"), "does not divide them among the members of a cluster"),
    (("--local_steps=4",), "does not simulate rounds"),
    (("--validation_size=0",), "compares trials on held-out examples: remove --validation_size"),
    (("--epochs=0",), "trials have no end: set --epochs or --train_steps"),
    (("--trials=0",), "--trials must be an integer from 1 to 10000, not 0"),
    (("--parallel=x",), "--parallel must be an integer from 1 to 256, not x"),
])
def test_what_is_refused(trainer, tmp_path, flags, why):
    write_table(tmp_path)
    (tmp_path / "bad.json").write_text('{"dropout": [2]}')
    result = run(trainer, *TUNE, *flags, cwd=tmp_path, status=2)
    assert why in result.stderr and len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_another_search_in_the_same_folder_is_refused(trainer, tmp_path):
    write_table(tmp_path)
    tune(trainer, tmp_path, "--trials=1")
    for flags, what in ((("--seed=2",), "config"), (("--parallel=1",), "parallel"), (("--space=other.json",), "space")):
        (tmp_path / "other.json").write_text('{"dropout": [0.5]}')
        result = run(trainer, *TUNE, *flags, cwd=tmp_path, status=1)
        assert f"run/tune.json: the trials here are of a search with another {what}" in result.stderr


def test_a_config_that_cannot_be_trained_ends_the_search(trainer, tmp_path):
    result = run(trainer, *TUNE[:3], "--train_dir=run", "--trials=3", "--epochs=1", cwd=tmp_path, status=1)
    assert "trial 0, the config as it is, failed, and so will others: " in result.stderr
    write_table(tmp_path)
    (tmp_path / "space.json").write_text('{"hidden": [[8]], "batch_size": [50000]}')
    run(trainer, *TUNE[:3], "--train_dir=run", "--trials=3", "--epochs=1", "--nofinal", cwd=tmp_path)
    result = run(trainer, *TUNE, "--train_dir=other", cwd=tmp_path)  # all others are wrong, and the table says why
    assert result.stdout.count("failed") >= 5 and "batch_size=50000 is more than the" in result.stdout


def test_a_table_without_numbers_has_no_trials_with_encoded_ones(trainer, tmp_path):
    (tmp_path / "d").mkdir()
    numbers = random.Random(4)
    rows = [[numbers.choice("abc") for _ in range(3)] for _ in range(200)]
    (tmp_path / "d/train.csv").write_text("p,q,r,y\n" + "".join(
        f"{','.join(row)},{'yes' if row[0] == row[1] else 'no'}\n" for row in rows))
    result = train(trainer, "tune", *TABLE, "--train_dir=run", "--trials=8", "--epochs=3", "--final=false",
                   cwd=tmp_path)
    found = trials(tmp_path)
    assert not [trial for trial in found if "error" in trial]
    settings = " ".join(trial["settings"] for trial in found)
    assert "ple" not in settings and "bins" not in settings and "ensemble=raw:" in settings
    assert len(result.named("trial")) >= 8


def test_pictures_and_the_usual_space(trainer, tmp_path):
    result = train(trainer, "tune", *SMALL[:4], "--train_steps=54", "--trials=4", "--train_dir=run", "--parallel=2",
                   cwd=tmp_path)
    settings = next(event["settings"] for event in result.named("trial") if event["trial"] == 1)
    assert [part.split("=")[0] for part in settings.split()] == ["learning_rate", "hidden", "batch_size", "dropout",
                                                                 "l2"]
    found = trials(tmp_path)
    assert {trial["metric"] for trial in found} == {"accuracy"}
    scores = [max(rung["score"] for rung in trial["rungs"]) for trial in found]
    assert scores == sorted(scores, reverse=True)
    assert [rung["steps"] for trial in found if trial["trial"] == 0 for rung in trial["rungs"]] == [2, 6, 18, 54]


def test_trials_on_the_dashboard(trainer, tmp_path):
    write_table(tmp_path)
    tune(trainer, tmp_path, "--trials=2", "--nofinal")
    (port,) = free_ports(1)
    process = start(trainer, "dashboard", "run/trials/0000", "run/trials/0001", f"--http=127.0.0.1:{port}",
                    cwd=tmp_path)
    try:
        def answers():
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/runs", timeout=10) as answer:
                    return [run["name"] for run in json.load(answer)["runs"]] == ["0000", "0001"]
            except OSError:
                return False
        wait_for(answers, "page of the trials")
    finally:
        process.kill()
        process.communicate()
