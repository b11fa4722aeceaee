"""A run goes on only with the data it was trained on, or by --new_data with others, which its checkpoints record."""

import gzip
import random
import shutil

import pytest

from clusters import Cluster
from runs import newest, run, same_tensors, tensors, train

FLAGS = ("--train_dir=run", "--num_threads=1", "--device=cpu", "--validate_steps=20", "--log_steps=0")
TABLE = (*FLAGS, "--data_dir=plant", "--target=y", "--hidden=8", "--batch_size=20")
PICTURES = (*FLAGS, "--data_dir=digits", "--layers=784,8,10", "--batch_size=20", "--validation_size=100")
COUNT = 600


def rows(count, seed=1):
    draw = random.Random(seed)
    lines = []
    for _ in range(count):
        a, b = draw.random(), draw.random()
        lines.append(f"{a:.4f},{b:.4f},{draw.choice('pqr')},{'yes' if a > b else 'no'}")
    return lines


def write(folder, lines, name="train.csv"):
    (folder / "plant").mkdir(exist_ok=True)
    (folder / "plant" / name).write_text("\n".join(["a,b,kind,y", *lines]) + "\n")


def refused(trainer, flags, folder):
    return run(trainer, *flags, cwd=folder, status=1).stderr


def recorded(folder):
    """What the newest checkpoint says of the data, and since which step."""
    metadata = tensors(newest(folder / "run"))[1]
    return dict(pair.split("=") for pair in metadata["data"].split()), int(metadata["data_since"])


@pytest.fixture
def plant(trainer, tmp_path):
    """A run of 40 steps on a table."""
    write(tmp_path, rows(COUNT))
    train(trainer, *TABLE, "--train_steps=40", cwd=tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def digits(trainer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    run(trainer, "data", "synth", "--out=digits", "--synthetic_train=1500", "--synthetic_test=50", cwd=folder)
    run(trainer, *PICTURES, "--train_steps=40", cwd=folder)
    return folder


def test_the_same_rows_in_other_files(trainer, plant):
    lines = rows(COUNT)
    assert recorded(plant)[0]["count"] == str(COUNT)
    (plant / "plant" / "train.csv").unlink()
    write(plant, lines[:250], "train1.csv")
    write(plant, lines[250:], "train2.csv")
    assert train(trainer, *TABLE, "--train_steps=60", cwd=plant).done["steps"] == 60


@pytest.mark.parametrize("change, difference", [
    (lambda lines: lines + rows(30, 3), "600 rows there, 630 here"),
    (lambda lines: lines[:-1], "600 rows there, 599 here"),
    (lambda lines: ["0.5000" + lines[0][6:], *lines[1:]], "as many rows, 600, of other content (digest "),
    (lambda lines: lines[:-1] + lines[:1], "as many rows, 600, of other content (digest "),
], ids=["more", "less", "cell", "twice"])
def test_other_rows_are_refused(trainer, plant, change, difference):
    write(plant, change(rows(COUNT)))
    before = newest(plant / "run").read_bytes()
    told = refused(trainer, (*TABLE, "--train_steps=60"), plant)
    assert "run/model-0000000040.safetensors was trained on other data than these, table in plant" in told
    assert difference in told
    assert "Rows held out here may be rows it has learnt" in told and "--new_data" in told
    assert newest(plant / "run").read_bytes() == before


def test_other_columns_are_named(trainer, plant):
    table = plant / "plant" / "train.csv"
    table.write_text(table.read_text().replace("kind", "sort", 1))
    assert "column kind there is sort here" in refused(trainer, (*TABLE, "--train_steps=60"), plant)


def test_new_rows_by_flag(trainer, plant):
    """They are encoded as the model knows them, the best score starts anew, and later runs need no flag."""
    columns = tensors(newest(plant / "run"))[1]["preprocessing"]
    write(plant, rows(COUNT) + rows(200, 4))
    result = train(trainer, *TABLE, "--train_steps=60", "--new_data", cwd=plant)
    assert result.done["steps"] == 60 and result.done["best_step"] > 40
    assert any("goes on with other data" in event.get("message", "") and "600 rows there, 800 here" in event["message"]
               for event in result.events), result.stdout
    told, since = recorded(plant)
    assert told["count"] == "800" and since == 40
    assert tensors(newest(plant / "run"))[1]["preprocessing"] == columns
    assert train(trainer, *TABLE, "--train_steps=80", cwd=plant).done["steps"] == 80
    assert recorded(plant)[1] == 40
    write(plant, rows(COUNT))  # what it began with is other data now
    assert "800 rows there, 600 here" in refused(trainer, (*TABLE, "--train_steps=100"), plant)


def test_more_rows_held_out_are_said(trainer, plant):
    result = train(trainer, *TABLE, "--validation_size=200", "--train_steps=60", cwd=plant)
    assert "held out 79 for validation, and this run 200: it was trained on the others" in result.stdout


def test_the_flag_changes_nothing_otherwise(trainer, tmp_path):
    write(tmp_path, rows(COUNT))
    train(trainer, *TABLE, "--train_steps=60", "--new_data", "--train_dir=whole", cwd=tmp_path)
    for steps in (20, 60):
        train(trainer, *TABLE, f"--train_steps={steps}", "--new_data", cwd=tmp_path)
    assert same_tensors(newest(tmp_path / "whole"), newest(tmp_path / "run")) == []
    assert recorded(tmp_path)[1] == 0


@pytest.mark.parametrize("kind", ["label", "pixel", "fewer", "other"])
def test_other_pictures_are_refused(trainer, digits, tmp_path, kind):
    shutil.copytree(digits, tmp_path, dirs_exist_ok=True)
    labels, images = (tmp_path / "digits" / f"train-{name}" for name in ("labels-idx1-ubyte", "images-idx3-ubyte"))
    if kind == "label":
        content = bytearray(labels.read_bytes())
        content[-1] = (content[-1] + 1) % 10
        labels.write_bytes(content)
    elif kind == "pixel":
        content = bytearray(images.read_bytes())
        content[-400] ^= 255
        images.write_bytes(content)
    else:
        shutil.rmtree(tmp_path / "digits")
        count = 1400 if kind == "fewer" else 1500
        run(trainer, "data", "synth", "--out=digits", "--seed=5", f"--synthetic_train={count}", "--synthetic_test=50",
            cwd=tmp_path)
    told = refused(trainer, (*PICTURES, "--train_steps=60"), tmp_path)
    assert ("1,500 images there, 1,400 here" if kind == "fewer" else "as many images, 1,500, of other content") in told
    assert train(trainer, *PICTURES, "--train_steps=60", "--new_data", cwd=tmp_path).done["steps"] == 60
    assert recorded(tmp_path)[1] == 40


def test_the_same_pictures_in_other_files(trainer, digits, tmp_path):
    """Packed, converted, streamed: the content counts."""
    shutil.copytree(digits, tmp_path, dirs_exist_ok=True)
    for path in (tmp_path / "digits").iterdir():
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert train(trainer, *PICTURES, "--train_steps=50", cwd=tmp_path).done["steps"] == 50
    run(trainer, "convert", "--to=tfrecord", "--out=records", "--data_dir=digits", cwd=tmp_path)
    records = (*PICTURES, "--data_dir=records")
    assert train(trainer, *records, "--train_steps=60", cwd=tmp_path).done["steps"] == 60
    streams = ("--memory_mb=1", "--shuffle_buffer=50")
    assert train(trainer, *records, *streams, "--train_steps=70", cwd=tmp_path).done["steps"] == 70


def test_a_run_is_not_resumed_without_its_data(trainer, plant):
    shutil.rmtree(plant / "plant")
    before = newest(plant / "run").read_bytes()
    assert "--data_dir: there is no folder plant in" in refused(trainer, (*TABLE, "--train_steps=60"), plant)
    told = refused(trainer, ("eval", "run", "--data_dir=plant"), plant)
    assert "there is no such folder of rows" in told
    assert newest(plant / "run").read_bytes() == before


@pytest.mark.parametrize("sharding", ["shuffled", "chief", "own"])
def test_a_chief_checks_its_data(trainer, digits, tmp_path, sharding):
    """Members that train on their own data may have other rows each time."""
    run(trainer, "data", "synth", "--out=others", "--seed=5", "--synthetic_train=1500", "--synthetic_test=50",
        cwd=tmp_path)
    flags = (*PICTURES[:-3], "--data_source=idx", "--layers=784,8,10", f"--data_sharding={sharding}", "--leave_secs=5")

    def job(steps, *more):
        with Cluster(trainer, tmp_path, workers=1, flags=(*flags, f"--train_steps={steps}", *more)) as cluster:
            cluster.start("ps 0")
            cluster.start("worker 0")
            status = cluster.members["worker 0"].wait(240)
            return status, cluster.text("worker 0")

    assert job(40, f"--data_dir={digits / 'digits'}")[0] == 0
    status, text = job(60, "--data_dir=others")
    if sharding == "own":
        assert status == 0 and "data" not in tensors(newest(tmp_path / "run"))[1]
        return
    assert status == 1 and "was trained on other data than these, IDX files in others" in text
    status, text = job(60, "--data_dir=others", "--new_data")
    assert status == 0 and "goes on with other data" in text
    assert recorded(tmp_path)[1] == 40


def test_a_cluster_goes_on_with_new_rows(trainer, tmp_path):
    """All workers encode them as the model knows them."""
    flags = ("--data_source=table", "--target=y", "--layers=6,8,2", "--batch_size=20", "--validation_size=auto",
             "--data_dir=plant", "--train_dir=run", "--issync=1", "--leave_secs=5")

    def job(steps, *more):
        with Cluster(trainer, tmp_path, workers=2, flags=(*flags, f"--train_steps={steps}", *more)) as cluster:
            cluster.start_all()
            return cluster.members["worker 0"].wait(240), cluster.text("worker 0")

    write(tmp_path, rows(COUNT))
    status, text = job(40)
    assert status == 0, text
    columns = tensors(newest(tmp_path / "run"))[1]["preprocessing"]
    write(tmp_path, rows(COUNT) + rows(200, 4))
    status, text = job(60)
    assert status == 1 and "600 rows there, 800 here" in text
    status, text = job(60, "--new_data")
    assert status == 0 and "goes on with other data" in text, text
    assert recorded(tmp_path)[1] == 40
    assert tensors(newest(tmp_path / "run"))[1]["preprocessing"] == columns
