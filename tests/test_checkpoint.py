"""The files that training leaves: other programs can read them, damaged ones are skipped, mismatches are reported."""

import gzip
import json
import pathlib
import random

import numpy
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from runs import SMALL, checkpoints, newest, run, same_tensors, seed_of_tests, train

SHAPES = {"layer0/weights": (784, 32), "layer0/biases": (32,), "layer1/weights": (32, 10), "layer1/biases": (10,)}
SLOTS = {
    "sgd": [],
    "momentum": ["Momentum"],
    "adagrad": ["Adagrad"],
    "adadelta": ["Adadelta", "Adadelta_1"],
    "adam": ["Adam", "Adam_1"],
    "rmsprop": ["RMSProp", "RMSProp_1"],
    "ftrl": ["Ftrl", "Ftrl_1"],
}


@pytest.mark.parametrize("averages", [False, True], ids=["", "ema"])
@pytest.mark.parametrize("optimizer", SLOTS)
def test_the_safetensors_package_reads_it(trainer, tmp_path, optimizer, averages):
    flags = [*SMALL, f"--optimizer={optimizer}", "--seed=7"] + (["--ema_decay=0.9"] if averages else [])
    train(trainer, *flags, "--train_steps=20", "--train_dir=t", cwd=tmp_path)
    path = newest(tmp_path / "t")
    tensors = load_file(path)
    suffixes = ["", *(f"/{slot}" for slot in SLOTS[optimizer]), *(["/ExponentialMovingAverage"] if averages else [])]
    assert set(tensors) == {name + suffix for name in SHAPES for suffix in suffixes}
    for name, tensor in tensors.items():
        assert tensor.dtype == numpy.float32
        assert tensor.shape == SHAPES["/".join(name.split("/")[:2])]
        assert numpy.isfinite(tensor).all()
        assert tensor.any(), name
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    assert metadata["format"] == "trainer-checkpoint"
    assert metadata["global_step"] == "20"
    assert metadata["seed"] == "7"
    assert metadata["layers"] == "784,32,10"
    assert metadata["activation"] == "relu"
    assert metadata["optimizer"] == optimizer
    assert len(metadata["config_digest"]) == 64 and len(metadata["digest"]) == 64
    assert path.read_bytes().count(metadata["digest"].encode()) == 1


def idx(folder, name, skip):
    path = pathlib.Path(folder) / name
    content = path.read_bytes() if path.exists() else gzip.decompress(path.with_name(name + ".gz").read_bytes())
    return numpy.frombuffer(content[skip:], numpy.uint8)


@pytest.mark.parametrize("averages", [False, True], ids=["", "ema"])
def test_the_weights_are_the_models(trainer, mnist, tmp_path, averages):
    """Classes computed here from the tensors are correct as often as `eval` says."""
    flags = ["--layers=784,32,10", f"--data_dir={mnist}", "--ema_decay=0.9" if averages else "--ema_decay=0"]
    train(trainer, *flags, "--train_steps=60", "--train_dir=t", cwd=tmp_path)
    result = run(trainer, "eval", "--log_format=json", "--train_dir=t", *flags, cwd=tmp_path)
    (accuracy,) = [event["test_accuracy"] for event in result.events if "test_accuracy" in event]
    w = load_file(newest(tmp_path / "t"))
    suffix = "/ExponentialMovingAverage" if averages else ""
    labels = idx(mnist, "t10k-labels-idx1-ubyte", 8)
    x = idx(mnist, "t10k-images-idx3-ubyte", 16).reshape(len(labels), 784).astype(numpy.float32) / 255
    hidden = numpy.maximum(x @ w["layer0/weights" + suffix] + w["layer0/biases" + suffix], 0)
    classes = (hidden @ w["layer1/weights" + suffix] + w["layer1/biases" + suffix]).argmax(axis=1)
    assert abs((classes == labels).mean() - accuracy) < 1.5 / len(labels)


@pytest.fixture(scope="module")
def trained(trainer, tmp_path_factory):
    """A folder with checkpoints of steps 10, 20, 30, and the result of a run to 40 from there."""
    folder = tmp_path_factory.mktemp("trained")
    train(trainer, *SMALL, "--save_steps=10", "--train_steps=30", "--train_dir=t", cwd=folder)
    assert list(checkpoints(folder / "t")) == [10, 20, 30]
    return folder / "t"


def copy_of(trained, tmp_path):
    folder = tmp_path / "t"
    folder.mkdir()
    for path in trained.glob("*.safetensors"):
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.mark.parametrize("damage", ["cut", "empty", "bit", "longer", "foreign"])
def test_a_damaged_one_is_passed_over(trainer, tmp_path, trained, damage):
    seed = seed_of_tests()
    folder = copy_of(trained, tmp_path)
    path = folder / "model-0000000030.safetensors"
    content = bytearray(path.read_bytes())
    place = random.Random(seed).randrange(len(content))
    if damage == "cut":
        content = content[:place]
    elif damage == "empty":
        content = b""
    elif damage == "bit":
        content[place] ^= 1 << place % 8
    elif damage == "longer":
        content += b"\0"
    else:
        header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
        content = len(header).to_bytes(8, "little") + header + bytes(4)
    path.write_bytes(content)
    # A reader skips it and leaves it in place; training sets it aside, and reaches the same result.
    result = run(trainer, "eval", "--train_dir=t", *SMALL, cwd=tmp_path)
    assert path.name in result.stderr
    result = train(trainer, *SMALL, "--train_steps=30", "--train_dir=t", cwd=tmp_path)
    (begun,) = result.named("start")
    assert begun["global_step"] == 20
    warnings = [e for e in result.events if e.get("level") == "warning"]
    assert len(warnings) == 2 and all(path.name in warning["message"] for warning in warnings)
    assert "set aside" in warnings[1]["message"]
    assert (folder / (path.name + ".damaged")).exists()
    assert same_tensors(path, trained / path.name) == []


def test_none_that_is_good_is_no_reason_to_begin_anew(trainer, tmp_path, trained):
    folder = copy_of(trained, tmp_path)
    for path in checkpoints(folder).values():
        path.write_bytes(path.read_bytes()[:-1])
    result = run(trainer, *SMALL, "--train_steps=30", "--train_dir=t", cwd=tmp_path, status=1)
    assert "none of its 3 checkpoints can be used" in result.stderr


@pytest.mark.parametrize(
    "flag, message",
    [
        ("--layers=784,24,10", "layer0/weights is [784,32] there and [784,24] here"),
        ("--layers=784,32,32,10", "2 layers of weights there and 3 here"),
        ("--optimizer=adam", "the optimizer is sgd there and adam here"),
        ("--ema_decay=0.9", "no moving averages"),
        ("--activation=tanh", "activation is relu there and tanh here"),
    ],
)
def test_a_misfit_says_what_differs(trainer, tmp_path, trained, flag, message):
    folder = copy_of(trained, tmp_path)
    before = {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}
    others = [small for small in SMALL if small.split("=")[0] != flag.split("=")[0]]
    result = run(trainer, *others, flag, "--train_steps=40", "--train_dir=t", cwd=tmp_path, status=1)
    assert message in result.stderr and "model-0000000030.safetensors" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert {path.name: path.read_bytes() for path in folder.glob("*.safetensors")} == before


def test_old_ones_go_and_the_best_stays(trainer, tmp_path):
    train(trainer, *SMALL, "--save_steps=10", "--max_to_keep=2", "--validate_steps=10", "--train_steps=100",
          "--train_dir=t", cwd=tmp_path)
    assert list(checkpoints(tmp_path / "t")) == [90, 100]
    with safe_open(tmp_path / "t" / "best.safetensors", framework="numpy") as file:
        best = file.metadata()
    with safe_open(newest(tmp_path / "t"), framework="numpy") as file:
        last = file.metadata()
    assert best["global_step"] == best["best_step"] == last["best_step"]
    assert best["validation_accuracy"] == best["best_accuracy"] == last["best_accuracy"]
    assert sorted(p.name for p in (tmp_path / "t").iterdir() if p.suffix == ".tmp") == []


def modes(folder):
    return {oct(path.stat().st_mode & 0o777) for path in [folder, *folder.rglob("*")] if path.is_file()}, \
        {oct(path.stat().st_mode & 0o777) for path in [folder, *folder.rglob("*")] if path.is_dir()}


@pytest.mark.parametrize("shared, files, folders", [(False, "0o600", "0o700"), (True, "0o644", "0o755")])
def test_what_a_run_writes_is_for_its_own_user_unless_shared(trainer, tmp_path, shared, files, folders):
    flags = [*SMALL, "--train_steps=20", "--save_steps=5", "--train_dir=t", "--profile=profile.json",
             "--save_summaries_steps=5", *(["--shared_files"] if shared else [])]
    train(trainer, *flags, cwd=tmp_path, umask=0o022)
    assert modes(tmp_path / "t") == ({files}, {folders})
    assert len(list((tmp_path / "t").rglob("*"))) >= 5


def test_rows_of_groups_are_not_kept(trainer, tmp_path):
    draw = random.Random(seed_of_tests())
    rows = "".join(f"p{i // 4},{draw.random()},{i % 2}\n" for i in range(120))
    (tmp_path / "d").mkdir()
    (tmp_path / "d/train.csv").write_text("patient,x,y\n" + rows)
    for name, flags, kept in (("a", (), True), ("b", ("--group=patient",), False),
                              ("c", ("--group=patient", "--kept_rows=2"), True)):
        train(trainer, "--data_dir=d", "--target=y", "--epochs=2", f"--train_dir={name}", *flags, cwd=tmp_path)
        with safe_open(newest(tmp_path / name), "numpy") as file:
            assert ("kept_rows" in file.metadata()) == kept


def write_key(path, secret):
    path.write_text(secret + "\n")
    path.chmod(0o600)
    return f"--checkpoint_key={path}"


def test_with_a_key_only_checkpoints_made_with_it_are_used(trainer, tmp_path):
    """Whoever can write to the folder can make a digest, but not this one."""
    key, other = write_key(tmp_path / "key", "k" * 40), write_key(tmp_path / "other", "o" * 40)
    short = [*SMALL, "--train_steps=20"]
    train(trainer, *short, "--train_dir=own", key, cwd=tmp_path)
    train(trainer, *short, "--train_dir=foreign", cwd=tmp_path)
    with safe_open(newest(tmp_path / "own"), "numpy") as file:
        assert len(file.metadata()["digest_key"]) == 16 and "k" * 40 not in str(file.metadata())
    for command in (["eval"], ["predict", "-"], ["train", *short], ["export", "--out=m.onnx"]):
        for folder, flags, why in (("foreign", [key], "a digest without a key, so anyone may have written it"),
                                   ("own", [], "give --checkpoint_key"), ("own", [other], "made with another key")):
            result = run(trainer, *command, f"--train_dir={folder}", *flags, cwd=tmp_path, status=None)
            assert result.status == 1 and why in result.stderr + result.stdout, (command, folder, result.stderr)
    assert not list(tmp_path.rglob("*.damaged")), "the flag was wrong, not the file"
    run(trainer, "eval", *SMALL, "own", key, cwd=tmp_path)
    run(trainer, "inspect", "own", key, cwd=tmp_path)
    run(trainer, "diff", "own", str(newest(tmp_path / "own")), key, cwd=tmp_path)
    train(trainer, *SMALL, "--train_steps=30", "--train_dir=own", key, cwd=tmp_path)
    path = newest(tmp_path / "own")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert "is damaged" in train(trainer, *SMALL, "--train_steps=40", "--train_dir=own", key, cwd=tmp_path).stdout


@pytest.mark.parametrize("mode, secret, why", [(0o644, "k" * 40, "everybody on this machine can read this key"),
                                               (0o600, "short", "has at least 32 characters")])
def test_a_key_must_be_secret_and_long(trainer, tmp_path, mode, secret, why):
    flag = write_key(tmp_path / "key", secret)
    (tmp_path / "key").chmod(mode)
    assert why in run(trainer, *SMALL, "--train_steps=1", flag, cwd=tmp_path, status=1).stderr
