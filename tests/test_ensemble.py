"""Several nets in one model (--ensemble): trained, resumed, shared by a cluster, exported, and their spread."""

import csv
import io
import math
import random

import numpy
import onnxruntime
import pytest

from clusters import Cluster
from runs import SMALL, newest, run, same_tensors, tensors, train

QUICK = ("--data_dir=d", "--target=y", "--train_dir=run", "--hidden=16", "--epochs=8", "--log_steps=0",
         "--save_summaries_steps=0")
ROWS = 400


def write_table(folder, task):
    numbers = random.Random(3)
    folder.mkdir()
    with open(folder / "train.csv", "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["a", "b", "c", "y"])
        for _ in range(ROWS):
            a, b, c = numbers.gauss(0, 1), numbers.gauss(5, 2), numbers.choice("xyz")
            signal = a * (b - 5) + (c == "x") + numbers.gauss(0, .3)
            table.writerow([f"{a:.4f}", f"{b:.4f}", c, f"{signal:.4f}" if task == "number" else
                            "high" if signal > 1 else "mid" if signal > -.5 or task == "binary" else "low"])


def predicted(trainer, folder, *flags):
    result = run(trainer, "predict", "run", "d/train.csv", *flags, cwd=folder)
    return list(csv.DictReader(io.StringIO(result.stdout)))


def test_threads_and_a_resumed_run_give_the_same_bits(trainer, tmp_path):
    write_table(tmp_path / "d", "classes")
    flags = (*QUICK, "--ensemble=raw:3", "--dropout=0.2")
    train(trainer, *flags, "--num_threads=1", "--train_dir=one", cwd=tmp_path)
    train(trainer, *flags, "--num_threads=3", "--train_dir=three", cwd=tmp_path)
    train(trainer, *flags, "--epochs=3", "--train_dir=parts", cwd=tmp_path)
    train(trainer, *flags, "--train_dir=parts", cwd=tmp_path)
    assert same_tensors(newest(tmp_path / "one"), newest(tmp_path / "three")) == []
    assert same_tensors(newest(tmp_path / "one"), newest(tmp_path / "parts")) == []
    names = [name for name in tensors(newest(tmp_path / "one"))[0] if name.count("/") == 2]
    assert sorted(name for name in names if name.endswith("layer0/weights")) == [
        f"net{net}/layer0/weights" for net in range(3)]


def test_a_cluster_computes_what_one_process_does(trainer, tmp_path):
    flags = ("--train_steps=40", "--optimizer=momentum", "--validate_steps=0", "--ensemble=raw:2")
    train(trainer, *SMALL, *flags, f"--train_dir={tmp_path}/local", cwd=tmp_path)
    with Cluster(trainer, tmp_path / "cluster", ps=2, workers=1, flags=flags) as cluster:
        cluster.start_all("--train_dir=kept")
        cluster.wait_all()
    assert same_tensors(newest(tmp_path / "local"), newest(tmp_path / "cluster/kept")) == []
    flags = (*flags, "--batch_size=20")
    train(trainer, *SMALL, *flags, "--micro_batches=2", f"--train_dir={tmp_path}/local2", cwd=tmp_path)
    with Cluster(trainer, tmp_path / "two", ps=1, workers=2, flags=(*flags, "--issync=true")) as cluster:
        cluster.start_all("--train_dir=kept")
        cluster.wait_all()
    assert same_tensors(newest(tmp_path / "local2"), newest(tmp_path / "two/kept")) == []


@pytest.mark.parametrize("task", ["classes", "binary", "number"])
def test_exported_graph_answers_with_the_average(trainer, tmp_path, task):
    write_table(tmp_path / "d", task)
    train(trainer, *QUICK, "--ensemble=raw:2", cwd=tmp_path)
    run(trainer, "export", "run", "--out=m.onnx", cwd=tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    rows = predicted(trainer, tmp_path)
    feeds = {each.name: numpy.array([[row[each.name] if each.type == "tensor(string)" else float(row[each.name])]
                                     for row in rows], object if each.type == "tensor(string)" else None)
             for each in session.get_inputs()}
    answers = dict(zip([each.name for each in session.get_outputs()], session.run(None, feeds)))
    if task == "number":
        assert numpy.allclose(answers["prediction"][:, 0], [float(row["prediction"]) for row in rows], atol=1e-5)
        return
    names = [name for name in rows[0] if name.startswith("probability_")]
    assert numpy.allclose(answers["probabilities"], [[float(row[name]) for name in names] for row in rows], atol=1e-5)
    assert [answer[0] for answer in answers["prediction"]] == [row["prediction"] for row in rows]


@pytest.mark.parametrize("task", ["classes", "number"])
def test_spread_is_large_where_training_saw_nothing(trainer, tmp_path, task):
    write_table(tmp_path / "d", task)
    train(trainer, *QUICK, "--ensemble=raw:4", cwd=tmp_path)
    rows = predicted(trainer, tmp_path, "--spread")
    assert list(rows[0])[-1] == "spread"
    assert all(0 <= float(row["spread"]) < math.inf for row in rows)
    assert any(float(row["spread"]) > 0 for row in rows)
    assert [row["prediction"] for row in rows] == [row["prediction"] for row in predicted(trainer, tmp_path)]
    train(trainer, *QUICK, "--ensemble=raw:1", "--train_dir=single", cwd=tmp_path)
    refused = run(trainer, "predict", "single", "d/train.csv", "--spread", cwd=tmp_path, status=1)
    assert "single net" in refused.stderr + refused.stdout


@pytest.mark.parametrize("flags, words", [
    (("--ensemble=raw",), "no view:count"), (("--ensemble=raw:0",), "no view:count"),
    (("--ensemble=raw:17",), "at most 16"), (("--ensemble=tree:2",), "no view:count"),
    (("--ensemble=raw:1,ple:1", "--encoding=none"), "data.encoding says otherwise"),
    (("--ensemble=raw:2", "--encoding=ple"), "data.encoding says otherwise"),
    (("--ensemble=raw:1,ple:1", "--data_sharding=own", "--ps_hosts=127.0.0.1:1", "--worker_hosts=127.0.0.1:2",
      "--job_name=worker", "--insecure", "--train_steps=5", "--epochs=0"), "use raw nets"),
    (("--ensemble=raw:2,",), "no view:count"), (("--ensemble=raw:16", "--hidden=8,8,8,8"), "together the most is 64"),
    (("--ensemble=raw:2", "--device=gpu", "--allow_soft_placement=false"), "--device=cpu"),
])
def test_what_is_no_ensemble_is_refused(trainer, tmp_path, flags, words):
    write_table(tmp_path / "d", "binary")
    result = run(trainer, *QUICK, *flags, cwd=tmp_path, status=None)
    assert result.status != 0 and words in result.stdout + result.stderr


def test_a_model_of_other_nets_does_not_fit(trainer, tmp_path):
    write_table(tmp_path / "d", "binary")
    train(trainer, *QUICK, "--ensemble=raw:2", cwd=tmp_path)
    result = run(trainer, *QUICK, "--ensemble=raw:3", cwd=tmp_path, status=None)
    assert result.status != 0 and "2 nets there and 3 here" in result.stdout + result.stderr
