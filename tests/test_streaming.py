"""Training sets larger than their memory limit: read from their files again and again, block by block."""

import resource
import shutil

import pytest

from clusters import Cluster
from runs import finish, newest, read_lines, run, same_tensors, start, train

# 3.1 MiB of images; 2 MiB are enough for the held-out ones, the sample, and two windows of 300 images for each of two
# tasks.
FLAGS = ("--memory_mb=2", "--shuffle_buffer=300", "--validation_size=100", "--layers=784,256,10", "--batch_size=50",
         "--num_threads=1", "--optimizer=adam")
FORMATS = {
    "tfrecord": ["--to=tfrecord", "--shards=3"],
    "gzip": ["--to=tfrecord", "--shards=2", "--compression=gzip"],
    "zlib": ["--to=tfrecord", "--compression=zlib"],
    "folders": ["--to=folders"],
    "idx": ["--to=idx"],
    "idx.gz": ["--to=idx", "--compression=gzip"],
}


@pytest.fixture(scope="module")
def sets(trainer, tmp_path_factory):
    """A folder with the same digits in every format."""
    folder = tmp_path_factory.mktemp("sets")
    for name, flags in FORMATS.items():
        run(trainer, "convert", "--data_source=synthetic", "--synthetic_train=4000", "--synthetic_test=500", *flags,
            f"--out={name}", cwd=folder)
    return folder


@pytest.mark.parametrize("name", FORMATS)
def test_it_learns_from_every_record(trainer, tmp_path, sets, name):
    result = train(trainer, *FLAGS, f"--data_dir={sets / name}", "--epochs=6", cwd=tmp_path)
    (begun,) = result.named("start")
    assert "3,900 training, 100 validation images, 28x28, 10 classes; streams" in begun["data"]
    assert result.done["steps"] == 6 * 78 and result.done["test_accuracy"] > 0.8
    assert result.done["test_images"] == 500


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.full(but=("idx", "tfrecord"))
def test_a_resumed_run_gives_the_same_bits(trainer, tmp_path, sets, name):
    """Stopped in the first window, in the middle of one, where an epoch ends; with other numbers of threads."""
    flags = (*FLAGS, f"--data_dir={sets / name}", "--micro_batches=2", "--validate_steps=30")
    train(trainer, *flags, "--train_steps=200", "--train_dir=whole", "--num_threads=2", cwd=tmp_path)
    for stop in (1, 77, 78, 145, 200):
        train(trainer, *flags, f"--train_steps={stop}", "--train_dir=pieces", cwd=tmp_path)
    assert same_tensors(newest(tmp_path / "whole"), newest(tmp_path / "pieces")) == []


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.full(but=("idx", "tfrecord"))
def test_a_tenth_is_held_out(trainer, tmp_path, sets, name):
    """A reader may know the total only at the end; a streaming set is the same as if it had been known."""
    flags = [flag for flag in FLAGS
             if "validation_size" not in flag] + [f"--data_dir={sets / name}", "--train_steps=150"]
    result = train(trainer, *flags, "--train_dir=auto", cwd=tmp_path)
    assert "3,600 training, 400 validation images (a tenth), 28x28, 10 classes; streams" in result.named("start")[0][
        "data"]
    train(trainer, *flags, "--validation_size=400", "--train_dir=told", cwd=tmp_path)
    assert same_tensors(newest(tmp_path / "auto"), newest(tmp_path / "told")) == []


def test_what_fits_is_as_it_was(trainer, tmp_path, sets):
    """In memory, every format gives the same bits; the limit changes nothing until it is reached."""
    flags = (*FLAGS[2:], "--train_steps=60")
    for number, (name, limit) in enumerate((("idx", 0), ("tfrecord", 4), ("folders", 4), ("idx.gz", 1000))):
        result = train(trainer, *flags, f"--data_dir={sets / name}", f"--memory_mb={limit}", f"--train_dir={number}",
                       cwd=tmp_path)
        assert "streams" not in result.named("start")[0]["data"]
    train(trainer, *FLAGS, f"--data_dir={sets / 'idx'}", "--train_steps=60", "--train_dir=streamed", cwd=tmp_path)
    kept = newest(tmp_path / "0")
    assert same_tensors(kept, newest(tmp_path / "3")) == []
    assert same_tensors(kept, newest(tmp_path / "2")) == []
    assert same_tensors(kept, newest(tmp_path / "1")) == []
    assert same_tensors(kept, newest(tmp_path / "streamed")) != []


def test_memory_stays_within_its_limit(trainer, tmp_path):
    """118 MiB of images train in 56 MiB of address space, which is too little for a run that reads them whole."""
    run(trainer, "convert", "--data_source=synthetic", "--synthetic_train=150000", "--synthetic_test=1000",
        "--to=tfrecord", "--shards=5", "--out=large", cwd=tmp_path)

    def confined():
        resource.setrlimit(resource.RLIMIT_AS, (56 << 20, 56 << 20))

    flags = ("--data_dir=large", "--validation_size=1000", "--layers=784,32,10", "--optimizer=adam", "--epochs=1",
             "--num_threads=2")
    whole = run(trainer, *flags, "--memory_mb=1000", cwd=tmp_path, preexec_fn=confined, status=1)
    assert "out of memory for more than" in whole.stderr
    for limit in ("--memory_mb=16", "--memory_mb=0"):  # 0: half of the available memory
        result = train(trainer, *flags, limit, "--shuffle_buffer=5000", cwd=tmp_path, preexec_fn=confined)
        assert "149,000 training, 1,000 validation images, 28x28, 10 classes; streams" in result.named("start")[0][
            "data"]
        assert result.done["steps"] == 1490 and result.done["test_accuracy"] > 0.9


def damage(path, byte):
    content = bytearray(path.read_bytes())
    content[byte] ^= 1
    path.write_bytes(content)


def test_damaged_records_are_counted_before_training(trainer, tmp_path, sets):
    shutil.copytree(sets / "tfrecord", tmp_path / "set")
    for byte, name in ((600000, "train-00001-of-00003.tfrecord"), (1000000, "train-00002-of-00003.tfrecord")):
        damage(tmp_path / "set" / name, byte)
    flags = (*FLAGS, "--data_dir=set", "--epochs=2", "--train_dir=kept")
    refused = train(trainer, *flags, cwd=tmp_path, status=1)
    assert "damaged data (raise --max_bad_records to skip it)" in refused.stdout + refused.stderr
    assert "train-00001-of-00003.tfrecord: the record at byte" in refused.stdout + refused.stderr
    result = train(trainer, *flags, "--max_bad_records=2", cwd=tmp_path)
    assert "3,898 training, 100 validation images" in result.named("start")[0]["data"]
    assert result.done["epochs"] == 2


def test_a_picture_that_is_none_ends_the_run(trainer, tmp_path, sets):
    shutil.copytree(sets / "folders", tmp_path / "set")
    victim = sorted((tmp_path / "set" / "train").glob("*/*2345.png"))[0]
    victim.write_bytes(b"no picture at all")
    result = train(trainer, *FLAGS, "--data_dir=set", "--epochs=2", "--train_dir=kept", cwd=tmp_path, status=1)
    said = result.stdout + result.stderr
    assert str(victim.relative_to(tmp_path)) in said and "raise --max_bad_records to leave it out" in said


def test_pictures_that_are_none_are_left_out_before_training(trainer, tmp_path, sets):
    """As of a set in memory: the others train as if they had never been there."""
    shutil.copytree(sets / "folders", tmp_path / "set")
    victims = sorted((tmp_path / "set" / "train").glob("*/*2345.png"))[:1]
    victims += sorted((tmp_path / "set" / "train").glob("*/*00012.png"))[:1]  # one that is held out
    for victim in victims:
        victim.write_bytes(b"no picture at all")
    flags = (*FLAGS, "--data_dir=set", "--train_steps=150")
    one = train(trainer, *flags, "--max_bad_records=1", "--train_dir=one", cwd=tmp_path, status=1)
    assert "more pictures than --max_bad_records cannot be read" in one.stdout + one.stderr
    result = train(trainer, *flags, "--max_bad_records=2", "--train_dir=kept", cwd=tmp_path)
    assert "3,898 training, 100 validation images" in result.named("start")[0]["data"]
    assert sum("left out" in event["message"] for event in result.named("log")) == 2
    for victim in victims:
        victim.unlink()
    train(trainer, *flags, "--train_dir=without", cwd=tmp_path)
    assert same_tensors(newest(tmp_path / "kept"), newest(tmp_path / "without")) == []


@pytest.mark.parametrize("name", ["tfrecord", "gzip", "idx"])
def test_files_that_change_meanwhile_end_the_run(trainer, tmp_path, sets, name):
    shutil.copytree(sets / name, tmp_path / "set")
    process = start(trainer, "--log_format=json", *FLAGS, "--data_dir=set", "--train_steps=1000000", "--log_steps=100",
                    "--save_steps=100", "--train_dir=kept", cwd=tmp_path)
    lines = read_lines(process, 6)
    for path in (tmp_path / "set").glob("train*"):
        if "labels" not in path.name:
            path.write_bytes(path.read_bytes()[:60000])
    result = finish(process, status=1)
    text = result.stderr + result.stdout
    assert "tfrecord: " in text or "ubyte: shorter than when" in text, lines
    good = newest(tmp_path / "kept")
    run(trainer, "inspect", good, cwd=tmp_path)


@pytest.mark.parametrize("flags, words", [
    (["--shuffle_buffer=3000"], ["data.shuffle_buffer: two windows of 3000 images", "lower --shuffle_buffer to"]),
    (["--validation_size=2500"], ["do not fit into 2 MiB", "--validation_size"]),
    (["--validation_size=4000"], ["lower --validation_size"]),
    (["--batch_size=3950", "--shuffle_buffer=1"], ["lower --batch_size"]),
    (["--data_source=synthetic", "--synthetic_train=5000"], ["5000 synthetic images do not fit into 2 MiB"]),
])
def test_what_does_not_fit_is_told(trainer, tmp_path, sets, flags, words):
    given = {flag.split("=")[0]: flag for flag in (*FLAGS, f"--data_dir={sets / 'tfrecord'}", *flags)}
    told = run(trainer, *given.values(), cwd=tmp_path, status=1).stderr
    assert len(told.splitlines()) == 1 and all(word in told for word in words), told


def test_a_label_beyond_the_model_is_told(trainer, tmp_path, sets):
    shutil.copytree(sets / "idx", tmp_path / "set")
    labels = tmp_path / "set" / "train-labels-idx1-ubyte"
    content = bytearray(labels.read_bytes())
    content[8 + 3500] = 11
    labels.write_bytes(content)
    run(trainer, "convert", "--data_dir=set", "--to=tfrecord", "--out=records", "--memory_mb=100", cwd=tmp_path)
    for name in ("set", "records"):
        told = run(trainer, *FLAGS, f"--data_dir={name}", cwd=tmp_path, status=1).stderr
        assert "an image has the label 11, but model.layers ends with 10 outputs" in told and "at least 12" in told


def test_the_number_it_names_works(trainer, tmp_path, sets):
    flags = (*FLAGS, f"--data_dir={sets / 'tfrecord'}", "--train_steps=10")
    told = run(trainer, *flags, "--shuffle_buffer=3000", cwd=tmp_path, status=1).stderr
    number = int(told.split("lower --shuffle_buffer to ")[1].split()[0])
    run(trainer, *flags, f"--shuffle_buffer={number}", cwd=tmp_path)


def test_a_test_set_must_fit(trainer, tmp_path, sets):
    shutil.copytree(sets / "idx", tmp_path / "set")
    for kind in ("images-idx3", "labels-idx1"):
        shutil.copy(tmp_path / "set" / f"train-{kind}-ubyte", tmp_path / "set" / f"t10k-{kind}-ubyte")
    told = run(trainer, *FLAGS, "--data_dir=set", cwd=tmp_path, status=1).stderr
    assert "t10k-images-idx3-ubyte: its images do not fit into 2 MiB (data.memory_mb); raise --memory_mb" in told


# --- clusters ---

SYNC = ("--issync=1", "--train_steps=120", "--train_dir=kept", "--min_workers=2", "--lease_secs=30")


@pytest.mark.parametrize("name, flags", [("tfrecord", ()), ("gzip", ("--data_sharding=chief",)),
                                         ("idx", ("--data_sharding=chief", "--wire_dtype=float32"))])
@pytest.mark.full(but=("tfrecord-flags0",))
def test_workers_give_the_bits_of_one_process(trainer, tmp_path, sets, name, flags):
    common = (*FLAGS, "--data_source=auto", f"--data_dir={sets / name}")
    with Cluster(trainer, tmp_path / "many", workers=2, flags=(*common, *SYNC, *flags)) as cluster:
        cluster.start_all()
        cluster.wait_all()
        assert "streams" in cluster.events("worker 1", "start")[0]["data"]
    train(trainer, *common, "--micro_batches=2", "--train_steps=120", "--train_dir=one", cwd=tmp_path)
    assert same_tensors(newest(tmp_path / "many/kept"), newest(tmp_path / "one")) == []


def test_disjoint_shares(trainer, tmp_path, sets):
    """Asynchronous, each worker with half of the records, and summaries by the chief."""
    flags = (*FLAGS, "--data_source=auto", f"--data_dir={sets / 'tfrecord'}", "--data_sharding=disjoint",
             "--train_steps=400", "--min_workers=2", "--train_dir=kept")
    with Cluster(trainer, tmp_path, workers=2, flags=flags) as cluster:
        cluster.start_all()
        cluster.wait_all()
        done = cluster.events("worker 0", "done")[0]
        assert done["steps"] >= 400 and done["test_accuracy"] > 0.8


def test_towers_give_the_same_bits(trainer, tmp_path, sets):
    flags = (*FLAGS, f"--data_dir={sets / 'tfrecord'}", "--micro_batches=2", "--train_steps=100")
    train(trainer, *flags, "--train_dir=one", cwd=tmp_path)
    train(trainer, *flags, "--towers=cpu,cpu", "--train_dir=two", cwd=tmp_path)
    assert same_tensors(newest(tmp_path / "one"), newest(tmp_path / "two")) == []
