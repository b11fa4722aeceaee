"""data info and data synth on the real binary, with files that numpy wrote."""

import gzip
import hashlib
import json
import os
import struct

import numpy as np
import pytest

NAMES = {
    ("train", "images"): "train-images-idx3-ubyte",
    ("train", "labels"): "train-labels-idx1-ubyte",
    ("test", "images"): "t10k-images-idx3-ubyte",
    ("test", "labels"): "t10k-labels-idx1-ubyte",
}
TYPES = {"uint8": 8, "int8": 9, "int16": 11, "int32": 12, "float32": 13, "float64": 14}


def idx(array):
    """An array as the bytes of an IDX file."""
    header = bytes([0, 0, TYPES[array.dtype.name], array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def read_idx(path):
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    assert content[:3] == b"\0\0\x08"
    shape = struct.unpack_from(f">{content[3]}I", content, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)


def write_set(folder, size=(28, 28), classes=10, train=300, test=50, packed=False, label_type=np.uint8):
    """A data set of random images; returns its arrays by (part, kind)."""
    random = np.random.default_rng(1)
    arrays = {}
    folder.mkdir(exist_ok=True)
    for part, count in (("train", train), ("test", test)):
        arrays[part, "images"] = random.integers(0, 256, (count, *size), np.uint8)
        arrays[part, "images"][random.random((count, *size)) < 0.5] = 0
        arrays[part, "labels"] = (np.arange(count) % classes).astype(label_type)
    for key, array in arrays.items():
        content = idx(array)
        if packed:
            (folder / f"{NAMES[key]}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / NAMES[key]).write_bytes(content)
    return arrays


def info(run, *flags):
    """The output of `data info`, by part."""
    lines = run("data", "info", "--log_format=json", *flags).stdout.splitlines()
    told = [json.loads(line) for line in lines]
    assert [line["part"] for line in told] == ["training", "test"]
    assert all(line["event"] == "data" for line in told)
    return {"train": told[0], "test": told[1]}


def error_line(result):
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("trainer: error: ")
    return lines[0].removeprefix("trainer: error: ")


def refusal(run, *arguments):
    return error_line(run(*arguments, status=1))


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
@pytest.mark.parametrize(
    "size, classes, label_type",
    [((28, 28), 10, np.uint8), ((5, 7), 3, np.uint8), ((1, 1), 2, np.int32), ((33, 65), 256, np.uint8),
     ((3, 5, 3), 300, np.int32)],
    ids=str,
)
def test_info_tells_what_is_in_the_files(run, tmp_path, packed, size, classes, label_type):
    arrays = write_set(tmp_path / "set", size, classes, packed=packed, label_type=label_type)
    told = info(run, "--data_dir=set")
    for part in ("train", "test"):
        images, labels = arrays[part, "images"], arrays[part, "labels"]
        assert told[part]["source"] == "idx"
        assert told[part]["images"] == len(images)
        assert told[part]["height"] == size[0]
        assert told[part]["width"] == size[1]
        assert told[part]["channels"] == (size[2] if len(size) > 2 else 1)  # [..., 3]: pictures in colour
        assert told[part]["classes"] == int(labels.max()) + 1
        assert told[part]["images_per_class"] == np.bincount(labels).tolist()
        assert told[part]["zeros"] == pytest.approx((images == 0).mean(), abs=1e-12)
        assert told[part]["mean_pixel"] == pytest.approx(images.mean(), abs=1e-9)
        for kind in ("images", "labels"):
            assert told[part][f"{kind}_file"] == f"set/{NAMES[part, kind]}{'.gz' * packed}"
            assert told[part][f"{kind}_sha256"] == hashlib.sha256(idx(arrays[part, kind])).hexdigest()


def test_info_of_mnist(run, mnist):
    told = info(run, f"--data_dir={mnist}")
    assert told["train"]["images"] == 60000 and told["test"]["images"] == 10000
    assert told["train"]["images_per_class"] == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert told["test"]["images_per_class"] == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert told["train"]["zeros"] == pytest.approx(0.8088, abs=1e-4)
    assert told["train"]["images_sha256"] == "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"
    assert told["train"]["labels_sha256"] == "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"
    assert told["test"]["images_sha256"] == "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"
    assert told["test"]["labels_sha256"] == "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"


def test_info_as_text(run, tmp_path):
    write_set(tmp_path / "set", classes=7)
    text = run("data", "info", "--data_dir=set").stdout
    assert "training: 300 images of 28x28, 7 classes" in text
    assert "test: 50 images of 28x28, 7 classes" in text
    assert f"set/{NAMES['test', 'labels']}" in text
    assert max(map(len, text.splitlines())) <= 100


def test_auto_takes_files_if_there_are_any(run, tmp_path):
    small = ["--synthetic_train=100", "--synthetic_test=10"]
    assert "there is no folder data in " in refusal(run, "data", "info", *small)
    write_set(tmp_path / "data")
    assert info(run, *small)["train"]["source"] == "idx"
    assert info(run, *small, "--data_source=synthetic")["train"]["source"] == "synthetic"


@pytest.mark.parametrize("command", [
    (), ("--clients=3", "--local_steps=2"), ("data", "info"), ("convert", "--to=tfrecord", "--out=records"),
    ("--job_name=worker", "--task_index=0", "--ps_hosts=127.0.0.1:1", "--worker_hosts=127.0.0.1:2", "--insecure=true"),
    ("train", "--follow", "--target=y", "--epochs=1", "--train_dir=run"),
])
def test_nothing_is_made_up(run, tmp_path, command):
    def refused(*flags):
        return run(*command, *flags, status=1).stderr

    assert f"data.data_dir: there is no folder data in {tmp_path}. To begin, name the folder" in refused()
    assert "--data_dir: there is no folder missing in" in refused("--data_dir=missing")
    (tmp_path / "config.json").write_text('{\n  "data": {"data_dir": "/nonexistent/plant"}\n}')
    told = refused()
    assert "config.json:2:24: data.data_dir: there is no folder /nonexistent/plant; name the one with the data" in told
    assert "--data_source=synthetic" in told


def test_a_folder_must_hold_data(run, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "junk").mkdir()
    for name in ("a.txt", "b.jpg", "c.doc", "z"):
        (tmp_path / "junk" / name).touch()
    assert "--data_dir: empty is empty, and has no data set of a known kind: the IDX files of MNIST, a table" in \
        refusal(run, "--data_dir=empty")
    assert "junk holds a.txt, b.jpg, c.doc and 1 more, and has no" in refusal(run, "--data_dir=junk")
    assert "has no table, a file with the ending .csv" in refusal(run, "--data_dir=junk", "--target=y")
    assert "junk/z is a file; name the folder that it is in: --data_dir=junk --train_files=z" in \
        refusal(run, "--data_dir=junk/z")
    (tmp_path / "closed").mkdir(mode=0)
    if os.geteuid() != 0:
        assert "closed: cannot be read: Permission denied" in refusal(run, "--data_dir=closed")
    info(run, "--data_dir=missing", "--data_source=synthetic", "--synthetic_train=10", "--synthetic_test=10")


@pytest.mark.parametrize("name, content, told", [
    ("a.parquet", b"PAR1" + bytes(60), "is a Parquet file; save it as CSV"),
    ("a.jsonl", b'{"a": 1, "y": 0}\n{"a": 2, "y": 1}\n', "is JSON; save it as CSV"),
    ("a.json", b'[{"a": 1, "y": 0}]', "is JSON; save it as CSV"),
    ("a.libsvm", b"1 1:0.5 7:2\n0 2:1e-3\n", "is in LIBSVM's format"),
    ("a.db", b"SQLite format 3\0" + bytes(60), "is an SQLite database; export its table"),
])
def test_a_file_of_another_kind_is_named_as_what_it_is(run, tmp_path, name, content, told):
    """Also where its ending is none of a table, and where it is named."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / name).write_bytes(content)
    for flags in ((), ("--target=y",), ("--target=y", f"--train_files={name}")):
        assert f"d/{name}: {told}" in refusal(run, "--data_dir=d", *flags)


def test_a_table_that_is_named_may_have_any_ending(run, tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "export.dat").write_text("a,y\n" + "".join(f"{i},{i % 2}\n" for i in range(40)))
    assert "rename it, or name it with --train_files" in refusal(run, "--data_dir=d", "--target=y")
    told = run("data", "info", "--data_dir=d", "--target=y", "--train_files=export.dat").stdout
    assert "40 rows of 2 columns" in told


def damaged(content, how):
    """Content of a .gz file, damaged."""
    middle = len(content) // 2
    return {
        "cut": content[:middle],
        "bit": content[:middle] + bytes([content[middle] ^ 0x10]) + content[middle + 1 :],
        "checksum": content[:-8] + bytes([content[-8] ^ 1]) + content[-7:],
        "garbage": content + b"garbage",
        "not gzip": b"<html>" + content,
        "empty": b"",
    }[how]


@pytest.mark.parametrize("how", ["cut", "bit", "checksum", "garbage", "not gzip", "empty"])
@pytest.mark.parametrize("key", NAMES, ids="-".join)
def test_damaged_files_are_refused_by_name(run, tmp_path, key, how):
    write_set(tmp_path / "set", packed=True)
    path = tmp_path / "set" / f"{NAMES[key]}.gz"
    path.write_bytes(damaged(path.read_bytes(), how))
    assert refusal(run, "data", "info", "--data_dir=set").startswith(f"set/{path.name}: ")


@pytest.mark.parametrize("key", NAMES, ids="-".join)
def test_a_missing_file_is_named(run, tmp_path, key):
    write_set(tmp_path / "set")
    (tmp_path / "set" / NAMES[key]).unlink()
    assert refusal(run, "data", "info", "--data_dir=set").startswith(f"set/{NAMES[key]}: missing")


@pytest.mark.parametrize(
    "array, why",
    [
        (np.zeros((300, 28, 28), np.float32), "has type 0x0d in 3 dimensions; images need uint8"),
        (np.zeros((300, 28, 28), np.int16), "has type 0x0b"),
        (np.zeros(300, np.uint8), "in 1 dimensions; images need uint8"),
        (np.zeros((2, 300, 300), np.uint8), "its images have 90000 pixels; the limit is 65536"),
        (np.zeros((299, 28, 28), np.uint8), "has 300 labels for the 299 images of"),
    ],
    ids=str,
)
def test_files_of_another_kind_are_refused(run, tmp_path, array, why):
    write_set(tmp_path / "set")
    (tmp_path / "set" / NAMES["train", "images"]).write_bytes(idx(array))
    assert why in refusal(run, "data", "info", "--data_dir=set")


@pytest.mark.parametrize("gz", [False, True], ids=["plain", "gz"])
def test_synth_writes_what_synthetic_draws(run, tmp_path, gz):
    flags = ["--seed=7", "--synthetic_train=2000", "--synthetic_test=300"]
    run("data", "synth", "--out=made/here", *flags, *["--gzip"] * gz)
    names = {f"{name}{'.gz' * gz}" for name in NAMES.values()}
    assert {path.name for path in (tmp_path / "made" / "here").iterdir()} == names
    from_files = info(run, "--data_dir=made/here")
    drawn = info(run, "--data_source=synthetic", *flags)
    for part in ("train", "test"):
        for field in ("images", "height", "width", "images_per_class", "zeros", "mean_pixel"):
            assert from_files[part][field] == drawn[part][field]
    suffix = ".gz" * gz
    images = read_idx(tmp_path / "made" / "here" / f"{NAMES['train', 'images']}{suffix}")
    assert images.shape == (2000, 28, 28)
    assert 0.75 < (images == 0).mean() < 0.82
    assert len({image.tobytes() for image in images}) == 2000
    assert read_idx(tmp_path / "made" / "here" / f"{NAMES['test', 'labels']}{suffix}").max() == 9


def synth(run, tmp_path, out, *flags):
    run("data", "synth", f"--out={out}", "--synthetic_train=500", "--synthetic_test=50", *flags)
    return (tmp_path / out / NAMES["train", "images"]).read_bytes()


def test_synth_depends_on_the_seed_alone(run, tmp_path):
    first = synth(run, tmp_path, "a", "--seed=1", "--num_threads=1")
    assert synth(run, tmp_path, "b", "--seed=1", "--num_threads=3") == first
    assert synth(run, tmp_path, "c", "--seed=2") != first


def test_synth_overwrites_nothing(run, tmp_path):
    write_set(tmp_path / "set", packed=True)
    before = {path: path.read_bytes() for path in (tmp_path / "set").iterdir()}
    assert "already exists; choose another folder" in refusal(run, "data", "synth", "--out=set")
    assert {path: path.read_bytes() for path in (tmp_path / "set").iterdir()} == before
    assert "needs --out=DIR" in error_line(run("data", "synth", status=2))
    (tmp_path / "file").write_text("")
    assert "file" in refusal(run, "data", "synth", "--out=file")


def accuracy(run, *flags):
    result = run("--data_source=synthetic", "--log_format=json", *flags, timeout=300)
    done = json.loads(result.stdout.splitlines()[-1])
    assert done["event"] == "done"
    return done["test_accuracy"]


def test_synthetic_digits_need_a_hidden_layer(run):
    assert 0.90 < accuracy(run, "--layers=784,10", "--train_steps=3000") < 0.97
    assert accuracy(run, "--layers=784,500,10", "--train_steps=2000", "--optimizer=adam") > 0.98
