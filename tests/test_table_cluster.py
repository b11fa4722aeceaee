"""Clusters whose layers follow from worker 0's data, and whose rows worker 0 sends."""
import re

import numpy
import pytest

from clusters import Cluster
from runs import newest, run, same_tensors, train

TRAINED = ("--target=y", "--hidden=16", "--batch_size=50", "--num_threads=1", "--optimizer=adam",
           "--learning_rate=0.01", "--log_steps=0", "--validation_size=200", "--train_steps=120",
           "--class_weights=a:2,b:1")


@pytest.fixture(scope="module")
def plant(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plant")
    draw = numpy.random.default_rng(11)
    x, kind = draw.normal(size=(3000, 6)), draw.integers(0, 5, 3000)
    y = numpy.where(x[:, 0] + (kind == 2) > x[:, 1], "a", "b")
    rows = [",".join([*(f"{value:.4f}" for value in row), f"k{k}", label]) for row, k, label in zip(x, kind, y)]
    (folder / "train.csv").write_text("\n".join([",".join([*(f"x{i}" for i in range(6)), "kind", "y"]), *rows]) + "\n")
    return folder


def launch(trainer, plant, folder, *flags, ps=2):
    cluster = Cluster(trainer, folder, ps=ps, workers=2,
                      flags=(*TRAINED, "--data_source=auto", "--issync=1", "--lease_secs=30", "--min_workers=2",
                             "--train_dir=kept", *flags))
    cluster.flags = [flag for flag in cluster.flags if "synthetic" not in flag]
    return cluster


@pytest.fixture(scope="module")
def alone(trainer, plant, tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    train(trainer, f"--data_dir={plant}", *TRAINED, "--micro_batches=2", "--train_dir=one", cwd=folder)
    return newest(folder / "one")


def test_a_table_needs_no_model_on_a_cluster(trainer, plant, tmp_path):
    """Every member takes the usual one, also a ps, which sees no data."""
    done = run(trainer, "cluster", "--ps=1", "--workers=2", f"--data_dir={plant}", "--target=y", "--epochs=2",
               "--train_dir=kept", "--log_format=text", cwd=tmp_path)
    assert "12-256-2" in done.stdout and newest(tmp_path / "kept")


@pytest.mark.parametrize("sharding", ["shuffled", "chief"])
def test_layers_follow_from_the_chiefs_data(trainer, plant, alone, tmp_path, sharding):
    """The same bits as one process, though no ps has data, and with sharding chief worker 1 has none either."""
    with launch(trainer, plant, tmp_path, f"--data_sharding={sharding}") as cluster:
        for ps in ("ps 0", "ps 1"):
            cluster.start(ps, "--data_dir=nowhere")
        cluster.start("worker 1", f"--data_dir={'nowhere' if sharding == 'chief' else plant}")
        cluster.until("ps 1", lambda text: "is waiting for worker 0, whose data determine" in text, "waiting")
        cluster.start("worker 0", f"--data_dir={plant}")
        cluster.wait_all()
        assert "the layers are 12,16,2, by worker 0's data" in cluster.text("ps 0")
    assert same_tensors(alone, newest(tmp_path / "kept")) == []


@pytest.mark.parametrize("sharding", ["shuffled", "chief"])
def test_two_nets_train_on_a_cluster_as_in_one_process(trainer, plant, tmp_path, sharding):
    nets = ("--ensemble=raw:1,ple:1", "--ema_decay=0.99")
    train(trainer, f"--data_dir={plant}", *TRAINED, *nets, "--micro_batches=2", f"--train_dir={tmp_path}/one",
          cwd=tmp_path)
    with launch(trainer, plant, tmp_path / "many", *nets, f"--data_sharding={sharding}") as cluster:
        for ps in ("ps 0", "ps 1"):
            cluster.start(ps, "--data_dir=nowhere")
        cluster.start("worker 1", f"--data_dir={'nowhere' if sharding == 'chief' else plant}")
        cluster.start("worker 0", f"--data_dir={plant}")
        cluster.wait_all()
        assert "the layers are 12+102,16,2, by worker 0's data" in cluster.text("ps 0")
    assert same_tensors(newest(tmp_path / "one"), newest(tmp_path / "many/kept")) == []


def test_a_ps_that_was_lost_learns_its_layers_again(trainer, plant, tmp_path):
    with launch(trainer, plant, tmp_path, f"--data_dir={plant}", "--train_steps=1000000000", "--log_steps=20",
                "--save_steps=200", ps=1) as cluster:
        cluster.start_all()
        cluster.until("worker 0", lambda text: '"global_step":40,' in text, "step 40")
        cluster.kill("ps 0")
        cluster.start("ps 0")
        cluster.until("ps 0", lambda text: "the layers are 12,16,2" in text, "layers")
        restored = len(cluster.events("worker 1", "step"))
        cluster.until("worker 1", lambda _: len(cluster.events("worker 1", "step")) > restored + 1, "more steps")


def test_a_worker_whose_data_make_other_layers_is_refused(trainer, plant, tmp_path):
    (tmp_path / "other").mkdir()
    lines = (plant / "train.csv").read_text().splitlines()
    (tmp_path / "other/train.csv").write_text("\n".join(line.split(",", 1)[1] for line in lines) + "\n")
    with launch(trainer, plant, tmp_path, "--issync=0", "--min_workers=1", "--train_steps=1000000000", ps=1) as cluster:
        cluster.start("ps 0", "--data_dir=nowhere")
        cluster.start("worker 0", f"--data_dir={plant}")
        cluster.until("ps 0", lambda text: "the layers are 12,16,2" in text, "layers")
        cluster.start("worker 1", f"--data_dir={tmp_path / 'other'}")
        cluster.wait("worker 1", status=1)
        told = "has layers 12,16,2 from worker 0.s data, but the data here need 11,16,2|are worker 0.s data the same"
        assert re.search(told, cluster.text("worker 1")), cluster.text("worker 1")


def test_pictures_may_follow_from_the_chiefs_data_too(trainer, tmp_path):
    with Cluster(trainer, tmp_path, flags=("--hidden=8", "--data_sharding=chief", "--train_steps=20",
                                         "--min_workers=2")) as cluster:
        cluster.start_all()
        cluster.wait_all()
        assert "the layers are 784,8,10, by worker 0's data" in cluster.text("ps 0")


@pytest.mark.parametrize("sharding, awaited", [("chief", "worker 0"), ("own", "ps 0")])
def test_who_reaches_nobody_that_knows_the_layers_gives_up(trainer, plant, tmp_path, sharding, awaited):
    with launch(trainer, plant, tmp_path, f"--data_sharding={sharding}", "--join_secs=1") as cluster:
        if sharding == "own":  # takes all layers
            cluster.flags = [flag for flag in cluster.flags if "hidden" not in flag] + ["--layers=12,16,2"]
        cluster.start("worker 1", f"--data_dir={plant}")
        cluster.wait("worker 1", status=1)
        assert f"gave up waiting for {awaited} (" in cluster.text("worker 1"), cluster.text("worker 1")
