"""Output formats: inspect, diff, export and predict, checked with the programs that read them."""

import gzip
import hashlib
import io
import json
import pathlib
import signal

import numpy
import onnxruntime
import pytest
from PIL import Image
from safetensors import safe_open
from safetensors.numpy import load_file

from runs import SMALL, checkpoints, finish, interrupt, newest, read_lines, run, start, train

SUFFIX = {"raw": "", "averaged": "/ExponentialMovingAverage"}


def idx(folder, name, skip):
    path = pathlib.Path(folder) / name
    content = path.read_bytes() if path.exists() else gzip.decompress(path.with_name(name + ".gz").read_bytes())
    return numpy.frombuffer(content[skip:], numpy.uint8)


@pytest.fixture(scope="module")
def digits(trainer, tmp_path_factory):
    """A trained folder with averages, and the test set as arrays."""
    folder = tmp_path_factory.mktemp("digits")
    train(trainer, *SMALL, "--ema_decay=0.9", "--optimizer=adam", "--train_steps=200", "--save_steps=100",
          "--train_dir=t", cwd=folder)
    run(trainer, "data", "synth", "--out=set", "--synthetic_train=100", "--synthetic_test=500", cwd=folder)
    images = idx(folder / "set", "t10k-images-idx3-ubyte", 16).reshape(-1, 28, 28)
    return folder, images, idx(folder / "set", "t10k-labels-idx1-ubyte", 8)


def forward(weights, x, activation, layers, suffix=""):
    """In double precision, from the weights by name."""
    functions = {"relu": lambda v: numpy.maximum(v, 0), "tanh": numpy.tanh,
                 "sigmoid": lambda v: 1 / (1 + numpy.exp(-v)), "identity": lambda v: v}
    for layer in range(layers):
        x = x @ weights[f"layer{layer}/weights{suffix}"].astype(float) + weights[f"layer{layer}/biases{suffix}"]
        if layer < layers - 1:
            x = functions[activation](x)
    return x


# --- inspect and diff ---


def test_inspect_tells_what_numpy_finds(trainer, digits):
    folder, _, _ = digits
    (told,) = [json.loads(line) for line in run(trainer, "inspect", "--json", "t", cwd=folder).stdout.splitlines()]
    path = newest(folder / "t")
    assert folder / told["path"] == path and told["global_step"] == 200
    with safe_open(path, framework="numpy") as file:
        assert told["metadata"] == file.metadata()
    expected = load_file(path)
    assert {tensor["name"] for tensor in told["tensors"]} == set(expected)
    for tensor in told["tensors"]:
        values = expected[tensor["name"]].astype(float)
        assert tuple(tensor["shape"]) == values.shape and tensor["not_finite"] == 0
        assert tensor["l2_norm"] == pytest.approx(numpy.linalg.norm(values), rel=1e-12)
        assert tensor["mean"] == pytest.approx(values.mean(), rel=1e-9, abs=1e-15)
        assert tensor["stddev"] == pytest.approx(values.std(), rel=1e-6, abs=1e-12)
        assert [tensor["minimum"], tensor["maximum"]] == pytest.approx([values.min(), values.max()], rel=1e-14)
        assert tensor["zeros"] == (values == 0).sum()
    text = run(trainer, "inspect", path, cwd=folder).stdout
    for word in ("global_step          200", "layer0/weights ", "[784,32]", told["metadata"]["config_digest"]):
        assert word in text


def test_inspect_takes_no_damaged_one(trainer, digits, tmp_path):
    folder, _, _ = digits
    content = bytearray(newest(folder / "t").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "bad.safetensors").write_bytes(content)
    assert "does not match its digest" in run(trainer, "inspect", "bad.safetensors", cwd=tmp_path, status=1).stderr
    assert "inspect needs a checkpoint" in run(trainer, "inspect", cwd=tmp_path, status=2).stderr
    assert "no intact checkpoint" in run(trainer, "inspect", ".", cwd=tmp_path, status=1).stderr


def test_diff_tells_how_far_apart(trainer, digits):
    folder, _, _ = digits
    kept = checkpoints(folder / "t")
    assert run(trainer, "diff", kept[200], "t", cwd=folder).stdout.count("the same") == 16
    (told,) = [json.loads(line)
               for line in run(trainer, "diff", "--json", kept[100], kept[200], cwd=folder,
                               status=1).stdout.splitlines()]
    assert not told["same_tensors"]
    assert {"key": "global_step", "a": "100", "b": "200"} in told["metadata"]
    a, b = load_file(kept[100]), load_file(kept[200])
    assert len(told["tensors"]) == len(a)
    for tensor in told["tensors"]:
        left, right = a[tensor["name"]].astype(float), b[tensor["name"]].astype(float)
        assert tensor["unequal"] == (left.astype("f4").view("u4") != right.astype("f4").view("u4")).sum()
        assert tensor["largest_difference"] == pytest.approx(numpy.abs(left - right).max(), rel=1e-14)
        assert tensor["l2_difference"] == pytest.approx(numpy.linalg.norm(left - right), rel=1e-12)


def test_diff_of_other_models(trainer, digits, tmp_path):
    folder, _, _ = digits
    train(trainer, *SMALL, "--layers=784,24,10", "--train_steps=1", "--train_dir=t", cwd=tmp_path)
    text = run(trainer, "diff", folder / "t", "t", cwd=tmp_path, status=1).stdout
    assert "is [784,32] in A and [784,24] in B" in text
    assert "layer0/weights/ExponentialMovingAverage  only in A" in text
    assert "diff needs two checkpoints" in run(trainer, "diff", "t", cwd=tmp_path, status=2).stderr


def test_diff_shows_names_of_strangers(trainer, digits, tmp_path):
    """A crafted checkpoint. In the table nothing reaches the terminal that it would interpret."""
    folder, _, _ = digits
    name = "w\x9b2J\u202e\x7f the same"
    content = newest(folder / "t").read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8:8 + size])
    end = max(tensor["data_offsets"][1] for key, tensor in header.items() if key != "__metadata__")
    header[name] = {"dtype": "F32", "shape": [1], "data_offsets": [end, end + 4]}
    header["__metadata__"] |= {"key" + name: name, "digest": "0" * 64}
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    whole = len(text).to_bytes(8, "little") + text + content[8 + size:] + b"\0\0\0\0"
    digest = hashlib.blake2b(whole, digest_size=32).hexdigest().encode()
    (tmp_path / "made.safetensors").write_bytes(whole.replace(b"0" * 64, digest, 1))
    shown = run(trainer, "diff", "made.safetensors", folder / "t", cwd=tmp_path, status=1).stdout
    assert all(character.isprintable() for character in shown.replace("\n", "")), repr(shown)
    assert shown.count(r"w\u009b2J\u202e\x7f the same") == 3
    told = run(trainer, "diff", "--json", "made.safetensors", folder / "t", cwd=tmp_path, status=1).stdout
    assert {"name": name, "only_in": "A"} in json.loads(told)["tensors"]


# --- export ---


@pytest.mark.parametrize("weights", SUFFIX)
@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid", "identity"])
@pytest.mark.full(but=("relu-raw", "tanh-averaged", "sigmoid-raw", "identity-averaged"))
def test_onnxruntime_gives_the_same_logits(trainer, mnist, tmp_path, activation, weights):
    """On the whole test set, within 1e-5 of the double-precision result from the checkpoint's weights; and its classes
    are correct as often as `eval` says."""
    layers = "784,48,24,10"
    train(trainer, f"--layers={layers}", f"--activation={activation}", f"--data_dir={mnist}", "--ema_decay=0.9",
          "--optimizer=adam", "--train_steps=100", "--train_dir=t", cwd=tmp_path)
    run(trainer, "export", "t", "--out=m.onnx", f"--weights={weights}", cwd=tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    assert session.get_modelmeta().custom_metadata_map["weights"] == weights
    assert session.get_inputs()[0].shape == ["batch", 784]
    labels = idx(mnist, "t10k-labels-idx1-ubyte", 8)
    images = idx(mnist, "t10k-images-idx3-ubyte", 16).reshape(len(labels), 784).astype(numpy.float32) / 255
    logits, probabilities = session.run(["logits", "probabilities"], {"images": images})
    expected = forward(load_file(newest(tmp_path / "t")), images.astype(float), activation, 3, SUFFIX[weights])
    assert numpy.abs(logits - expected).max() < 1e-5
    assert numpy.abs(probabilities.sum(axis=1) - 1).max() < 1e-5
    if weights == "averaged":
        result = run(trainer, "eval", "t", "--json", f"--data_dir={mnist}", cwd=tmp_path)
        assert (logits.argmax(axis=1) == labels).sum() == round(result.events[0]["test_accuracy"] * len(labels))


def test_the_engine_gives_those_logits(trainer, digits):
    """predict's probabilities, which come from the engine, compared with onnxruntime's."""
    folder, images, _ = digits
    run(trainer, "export", "t", "--out=m.onnx", cwd=folder)
    (expected,) = onnxruntime.InferenceSession(folder / "m.onnx").run(
        ["probabilities"], {"images": images.reshape(-1, 784).astype(numpy.float32) / 255})
    result = run(trainer, "predict", "--train_dir=t", "--json", "--top_k=10", "set/t10k-images-idx3-ubyte", cwd=folder)
    assert [event["index"] for event in result.events] == list(range(len(images)))
    for event, row in zip(result.events, expected):
        found = {entry["class"]: entry["probability"] for entry in event["top"]}
        assert numpy.abs(numpy.array([found[c] for c in range(10)]) - row).max() < 1e-5
        assert [entry["probability"] for entry in event["top"]] == sorted(found.values(), reverse=True)
        assert event["class"] == event["top"][0]["class"]


@pytest.mark.parametrize("weights", SUFFIX)
def test_numpy_and_safetensors_read_it(trainer, digits, tmp_path, weights):
    folder, _, _ = digits
    expected = load_file(newest(folder / "t"))
    names = [f"layer{i}/{what}" for i in range(2) for what in ("weights", "biases")]
    for format in ("npz", "safetensors"):
        out = tmp_path / "m"
        run(trainer, "export", "t", f"--out={out}", f"--format={format}", f"--weights={weights}", cwd=folder)
        if format == "npz":
            with numpy.load(out) as file:
                found = {name: file[name] for name in file.files}
        else:
            found = load_file(out)
            with safe_open(out, framework="numpy") as file:
                assert file.metadata()["global_step"] == "200" and file.metadata()["weights"] == weights
        assert list(found) == names if format == "npz" else set(found) == set(names)
        for name in names:
            assert (found[name] == expected[name + SUFFIX[weights]]).all()
            assert found[name].shape == expected[name].shape and found[name].dtype == numpy.float32


def test_export_says_what_is_wrong(trainer, digits, tmp_path):
    folder, _, _ = digits
    for flags, message in [
        ([], "export needs --out=FILE"),
        (["--out=m"], "--format: must be onnx, safetensors or npz"),
        (["--out=m.onnx", "--weights=best"], '--weights: must be raw or averaged, not "best"'),
    ]:
        assert message in run(trainer, "export", "t", *flags, cwd=folder, status=2).stderr
    assert "no checkpoint given" in run(trainer, "export", "--out=m.npz", cwd=tmp_path, status=1).stderr
    train(trainer, *SMALL, "--train_steps=1", "--train_dir=t", cwd=tmp_path)
    told = run(trainer, "export", "t", "--out=m.npz", "--weights=averaged", cwd=tmp_path, status=1).stderr
    assert "has no moving averages" in told and not (tmp_path / "m.npz").exists()
    assert "nowhere/m.npz" in run(trainer, "export", "t", "--out=nowhere/m.npz", cwd=tmp_path, status=1).stderr


# --- predict ---


def predicted(result):
    return [event["class"] for event in result.named("prediction")]


def test_predict_is_right_as_often_as_eval(trainer, digits):
    folder, _, labels = digits
    classes = predicted(run(trainer, "predict", "--train_dir=t", "--json", "set/t10k-images-idx3-ubyte", cwd=folder))
    evaluated = run(trainer, "eval", "t", "--json", "--data_dir=set", cwd=folder).events[0]
    assert (numpy.array(classes) == labels).mean() == pytest.approx(evaluated["test_accuracy"])


MODES = {"png": ["L", "RGB", "RGBA", "P", "1", "I;16", "LA"], "bmp": ["L", "RGB", "P", "1"], "pgm": ["L"],
         "ppm": ["RGB"], "pbm": ["1"]}


@pytest.mark.parametrize("form, mode", [(form, mode) for form in MODES for mode in MODES[form]])
def test_pictures_are_what_pillow_says(trainer, digits, tmp_path, form, mode):
    """Images written by Pillow in every mode give the same as their pixels in an IDX file."""
    folder, images, _ = digits
    if mode == "1":
        images = (images >= 128).astype(numpy.uint8) * 255
    names = []
    for i in range(12):
        picture = Image.fromarray(images[i].astype(numpy.uint16) * 257 if mode == "I;16" else images[i])
        if mode not in ("L", "I;16"):
            picture = picture.convert(mode)
        picture.save(tmp_path / f"{i}.{form}", **({"optimize": True} if form == "png" else {}))
        names.append(tmp_path / f"{i}.{form}")
    header = bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in (12, 28, 28))
    (tmp_path / "images").write_bytes(header + images[:12].tobytes())
    model = f"--train_dir={folder / 't'}"
    by_file = run(trainer, "predict", model, "--json", "--top_k=10", *names, cwd=tmp_path)
    by_idx = run(trainer, "predict", model, "--json", "--top_k=10", "images", cwd=tmp_path)
    for one, other in zip(by_file.events, by_idx.events, strict=True):
        assert [t["class"] for t in one["top"]] == [t["class"] for t in other["top"]]
        assert [t["probability"] for t in one["top"]] == pytest.approx([t["probability"] for t in other["top"]],
                                                                       abs=1e-6)
    assert [e["file"] for e in by_file.events] == list(map(str, names)) and "index" not in by_file.events[0]


def test_pictures_of_any_size_light_or_dark(trainer, mnist, tmp_path):
    """Digits enlarged, moved into a corner and printed dark on light are recognised almost as well as the originals."""
    train(trainer, "--layers=784,100,10", f"--data_dir={mnist}", "--optimizer=adam", "--epochs=2", "--train_dir=t",
          cwd=tmp_path)
    labels = idx(mnist, "t10k-labels-idx1-ubyte", 8)
    images = idx(mnist, "t10k-images-idx3-ubyte", 16).reshape(-1, 28, 28)
    for i in range(200):
        page = Image.new("L", (300, 200), 255)
        page.paste(Image.fromarray(255 - images[i]).resize((112, 112), Image.BICUBIC), (5 + i % 100, 3 + i % 50))
        page.save(tmp_path / f"{i:03}.png")
    result = run(trainer, "predict", "--train_dir=t", "--json", *sorted(tmp_path.glob("*.png")), cwd=tmp_path)
    assert (numpy.array(predicted(result)) == labels[:200]).mean() > 0.93


def test_predict_from_standard_input(trainer, digits):
    folder, images, _ = digits
    content = io.BytesIO()
    Image.fromarray(images[0]).save(content, "png")
    for given in (content.getvalue(), gzip.compress((folder / "set" / "t10k-images-idx3-ubyte").read_bytes())):
        (folder / "piped").write_bytes(given)
        with open(folder / "piped", "rb") as file:
            result = finish(start(trainer, "predict", "--train_dir=t", "--top_k=1", "-", cwd=folder, stdin=file))
        direct = run(trainer, "predict", "--train_dir=t", "--top_k=1", "piped", cwd=folder)
        assert result.stdout == direct.stdout.replace("piped", "standard input")
        assert result.stdout.startswith("standard input")


def test_a_bad_picture_does_not_stop_the_others(trainer, digits, tmp_path):
    folder, images, _ = digits
    good = tmp_path / "good.png"
    Image.fromarray(images[0]).save(good)
    content = bytearray(good.read_bytes())
    content[50] ^= 1
    (tmp_path / "bad.png").write_bytes(content)
    (tmp_path / "cut.png").write_bytes(good.read_bytes()[:60])
    (tmp_path / "text").write_text("no image")
    result = run(trainer, "predict", f"--train_dir={folder / 't'}", "bad.png", "cut.png", "text", "missing", good,
                 cwd=tmp_path, status=1)
    assert result.stdout.count("\n") == 1 and str(good) in result.stdout
    model, *lines = result.stderr.splitlines()
    assert model.startswith("predicts by ") and len(lines) == 4 and "CRC is wrong" in lines[0] and "cut.png" in lines[1]
    assert "text: is not an IDX file" in lines[2] and "missing: cannot be opened" in lines[3]


def test_predict_says_what_came_before_the_damage(trainer, digits, tmp_path):
    """A gzip file has its checksum at the end, after everything that was predicted."""
    folder, images, _ = digits
    content = bytearray(gzip.compress((folder / "set" / "t10k-images-idx3-ubyte").read_bytes()))
    content[-8] ^= 1
    (tmp_path / "bad.gz").write_bytes(content)
    result = run(trainer, "predict", f"--train_dir={folder / 't'}", "bad.gz", cwd=tmp_path, status=1)
    told = result.stdout.count("\n")
    assert told > 0 and len(images) == 500
    assert f"; the {told} predictions before that are incomplete, and may be of damaged bytes\n" in result.stderr


def test_predict_wants_files(trainer, tmp_path):
    assert "predict needs images" in run(trainer, "predict", cwd=tmp_path, status=2).stderr
    assert "--top_k: must be" in run(trainer, "predict", "--top_k=0", "x", cwd=tmp_path, status=2).stderr


@pytest.mark.parametrize("command", ["predict", "eval", "explain"])
def test_a_model_is_a_folder_or_a_checkpoint(trainer, digits, tmp_path, command):
    """Named first. One that is missing is not taken for data."""
    folder, images, _ = digits
    told = run(trainer, command, "nowhere", "t.csv", cwd=tmp_path, status=1).stderr
    assert "nowhere: there is no such training folder or checkpoint" in told
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3,4\n5,6\n")
    assert "t.csv: is no safetensors file" in run(trainer, command, "t.csv", "u.csv", cwd=tmp_path, status=1).stderr
    if command == "predict":
        Image.fromarray(images[0]).save(tmp_path / "one.png")
        by_folder = run(trainer, "predict", folder / "t", "one.png", cwd=tmp_path)
        by_file = run(trainer, "predict", newest(folder / "t"), "one.png", cwd=tmp_path)
        assert by_folder.stdout == by_file.stdout != ""


# --- eval --interval_secs ---


def test_eval_follows_a_training_run(trainer, tmp_path):
    """Started before the folder exists, it evaluates every new checkpoint, the last one in any case, and ends by
    itself."""
    follower = start(trainer, "eval", "t", "--json", "--interval_secs=0.05", "--until_step=300", *SMALL, cwd=tmp_path)
    for last in (100, 200, 300):
        train(trainer, *SMALL, f"--train_steps={last}", "--train_dir=t", cwd=tmp_path)
        if last < 300:
            line = json.loads(read_lines(follower, 1))
            assert line["event"] == "evaluation" and line["global_step"] == last
    result = finish(follower)
    assert [event["global_step"] for event in result.events] == [300]
    direct = run(trainer, "eval", "t", "--json", "--checkpoint=newest", *SMALL, cwd=tmp_path).events[0]
    assert direct["test_accuracy"] == result.events[0]["test_accuracy"]


def test_eval_gives_up_and_leaves_when_asked(trainer, tmp_path):
    told = run(trainer, "eval", "t", "--interval_secs=0.05", "--timeout_secs=0.3", *SMALL, cwd=tmp_path,
               status=1).stderr
    assert "t: no new checkpoint within" in told
    assert "must be numbers above 0" in run(trainer, "eval", "t", "--interval_secs=x", cwd=tmp_path, status=2).stderr
    assert "follows a train_dir" in run(trainer, "eval", "--interval_secs=1", cwd=tmp_path, status=2).stderr
    train(trainer, *SMALL, "--train_steps=10", "--train_dir=t", cwd=tmp_path)
    follower = start(trainer, "eval", "t", "--json", "--interval_secs=3600", *SMALL, cwd=tmp_path)
    read_lines(follower, 1)
    interrupt(follower, signal.SIGTERM)
    assert finish(follower, status=143).stderr == ""
