"""Data in TFRecord files and in folders of images: read, written, converted, damaged."""

import gzip
import json
import os
import pathlib
import random
import resource
import shutil
import struct
import subprocess
import zlib

import numpy
import onnxruntime
import pytest
from PIL import Image
from safetensors import safe_open
from tfrecord import example_pb2
from tfrecord.reader import tfrecord_loader

from runs import newest, run, same_tensors, seed_of_tests, train
from served import Served
from tfrecord_files import example, frame, write

NAMES = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]


@pytest.fixture(scope="module")
def digits(trainer, tmp_path_factory):
    """A folder `set` of IDX files, and its images and labels."""
    folder = tmp_path_factory.mktemp("digits")
    run(trainer, "data", "synth", "--out=set", "--synthetic_train=300", "--synthetic_test=50", cwd=folder)
    return folder, *read_set(folder / "set")


def read_set(folder):
    content = [(folder / name).read_bytes() for name in NAMES]
    arrays = [numpy.frombuffer(data[16:] if i % 2 == 0 else data[8:], numpy.uint8) for i, data in enumerate(content)]
    return [arrays[i].reshape(-1, 28, 28) if i % 2 == 0 else arrays[i] for i in range(4)]


def records_of(images, labels):
    return [example(image_raw=image.tobytes(), label=int(label)) for image, label in zip(images, labels)]


def write_records(folder, digits, name="{}.tfrecord"):
    _, images, labels, test_images, test_labels = digits
    write(folder, name.format("train"), records_of(images, labels))
    write(folder, name.format("test"), records_of(test_images, test_labels))


def same_set(one, other):
    return all((a == b).all() for a, b in zip(read_set(one), read_set(other), strict=True))


# --- conversion ---


@pytest.mark.parametrize("flags", [["--to=tfrecord"], ["--to=tfrecord", "--shards=7"],
                                   ["--to=tfrecord", "--compression=gzip", "--shards=2"],
                                   ["--to=tfrecord", "--compression=zlib"], ["--to=folders"],
                                   ["--to=tfrecord", "--image_feature=i", "--label_feature=l"],
                                   ["--to=idx", "--compression=gzip"]], ids=" ".join)
def test_there_and_back_is_the_same(trainer, digits, tmp_path, flags):
    folder = digits[0]
    told = run(trainer, "convert", f"--data_dir={folder / 'set'}", *flags, "--out=there", cwd=tmp_path).stdout
    assert "training: 300 of 300 images" in told and "there: 300 training and 50 test images" in told
    names = [flag for flag in flags if "feature" in flag]
    run(trainer, "convert", "--data_dir=there", "--to=idx", "--out=back", *names, cwd=tmp_path)
    assert same_set(folder / "set", tmp_path / "back")


def test_the_tfrecord_package_reads_it(trainer, digits, tmp_path):
    folder, images, labels, _, _ = digits
    run(trainer, "convert", f"--data_dir={folder / 'set'}", "--to=tfrecord", "--out=there", cwd=tmp_path)
    fields = {"image_raw": "byte", "label": "int", "height": "int", "width": "int"}
    found = list(tfrecord_loader(str(tmp_path / "there" / "train.tfrecord"), None, fields))
    assert len(found) == 300
    for record, image, label in zip(found, images, labels):
        assert bytes(record["image_raw"]) == image.tobytes() and record["label"] == [label]
        assert record["height"] == [28] and record["width"] == [28]
    content = (tmp_path / "there" / "train.tfrecord").read_bytes()
    record = content[12 : 12 + struct.unpack("<Q", content[:8])[0]]
    assert content.startswith(frame(record))  # its CRCs too, which the package does not check
    assert example_pb2.Example.FromString(record).features.feature["label"].int64_list.value == [labels[0]]


def test_tensorflow_reads_what_is_written_and_the_other_way_round(trainer, digits, tmp_path):
    """TRAINER_TENSORFLOW: a Python that has TensorFlow."""
    python = os.environ.get("TRAINER_TENSORFLOW")
    if not python:
        pytest.skip("TRAINER_TENSORFLOW names no Python that has TensorFlow")
    shutil.copytree(digits[0] / "set", tmp_path / "set")
    for packing in ("none", "gzip", "zlib"):
        run(trainer, "convert", "--data_dir=set", "--to=tfrecord", f"--compression={packing}", f"--out={packing}",
            cwd=tmp_path)
    script = pathlib.Path(__file__).with_name("tensorflow_records.py")
    subprocess.run([python, script, tmp_path], check=True, timeout=300)
    for packing in ("none", "gzip", "zlib"):
        run(trainer, "convert", f"--data_dir=by-{packing}", "--to=idx", f"--out=back-{packing}", cwd=tmp_path)
        assert same_set(tmp_path / "set", tmp_path / f"back-{packing}")


def test_convert_overwrites_nothing_and_says_what_is_wrong(trainer, digits, tmp_path):
    data = f"--data_dir={digits[0] / 'set'}"
    for kind in ("idx", "tfrecord", "folders"):
        run(trainer, "convert", data, f"--to={kind}", "--out=there", cwd=tmp_path)
        again = run(trainer, "convert", data, f"--to={kind}", "--out=there", cwd=tmp_path, status=1)
        assert "already exists" in again.stderr
    for flags in ([], ["--to=idx"], ["--to=png", "--out=x"], ["--to=idx", "--out=x", "--compression=zlib"],
                  ["--to=tfrecord", "--out=x", "--shards=0"], ["--to=folders", "--out=x", "--compression=gzip"]):
        assert len(run(trainer, "convert", data, *flags, cwd=tmp_path, status=2).stderr.splitlines()) == 1


# --- TFRecord ---


def test_training_from_records_is_training_from_idx(trainer, digits, tmp_path):
    """The same images in the same order: the same bits, however they are divided among files."""
    folder = digits[0]
    flags = ["--layers=784,16,10", "--validation_size=60", "--batch_size=32", "--train_steps=20", "--num_threads=1"]
    train(trainer, f"--data_dir={folder / 'set'}", *flags, "--train_dir=idx", cwd=tmp_path)
    run(trainer, "convert", f"--data_dir={folder / 'set'}", "--to=tfrecord", "--shards=3", "--out=r", cwd=tmp_path)
    result = train(trainer, "--data_dir=r", *flags, "--train_dir=records", cwd=tmp_path)
    assert "TFRecord files in r: 240 training, 60 validation images" in result.named("start")[0]["data"]
    assert same_tensors(newest(tmp_path / "idx"), newest(tmp_path / "records")) == []


@pytest.mark.parametrize("kind", ["float", "float 255", "png", "one-hot", "float one-hot", "unpacked", "gzip", "zlib"])
def test_records_of_others(trainer, digits, tmp_path, kind):
    _, images, labels, test_images, test_labels = digits
    for part, pixels, classes in (("train", images, labels), ("test", test_images, test_labels)):
        records = []
        for i, (image, label) in enumerate(zip(pixels, classes)):
            values = {"image_raw": image.tobytes(), "label": int(label)}
            if kind == "float":
                values["image_raw"] = image.astype(numpy.float32) / 255
            elif kind == "float 255":
                values["image_raw"] = image.astype(numpy.float32)
            elif kind == "png":
                Image.fromarray(image).save(tmp_path / "one.png")
                values["image_raw"] = (tmp_path / "one.png").read_bytes()
            elif kind == "one-hot":
                values["label"] = numpy.eye(10, dtype=int)[label]
            elif kind == "float one-hot":
                values["label"] = numpy.eye(10)[label]
            record = example(**values)
            if kind == "unpacked":  # proto2's encoding, which readers must know
                record = record.replace(b"\x1a\x03\x0a\x01" + bytes([label]), b"\x1a\x02\x08" + bytes([label]))
                inner = {"image_raw": image.tobytes()}
                record = example(**inner)
                number = b"\x1a\x02\x08" + bytes([label])
                entry = b"\x0a\x05label\x12" + bytes([len(number)]) + number
                record += b"\x0a" + bytes([len(entry) + 2]) + b"\x0a" + bytes([len(entry)]) + entry
            records.append(record)
        write(tmp_path / "r", f"{part}.tfrecord", records)
        if kind in ("gzip", "zlib"):
            path = tmp_path / "r" / f"{part}.tfrecord"
            path.write_bytes({"gzip": gzip, "zlib": zlib}[kind].compress(path.read_bytes()))
    run(trainer, "convert", "--data_dir=r", "--to=idx", "--out=back", cwd=tmp_path)
    assert same_set(digits[0] / "set", tmp_path / "back")


def damage(path, seed, how):
    """Damages one record of a file; returns its offset, and its number."""
    content = bytearray(path.read_bytes())
    starts = [0]
    while starts[-1] < len(content):
        starts.append(starts[-1] + 16 + struct.unpack("<Q", content[starts[-1] : starts[-1] + 8])[0])
    number = random.Random(seed).randrange(len(starts) - 1)
    start = starts[number]
    if how == "data":
        content[start + 12 + random.Random(seed).randrange(starts[number + 1] - start - 16)] ^= 4
    elif how == "length":
        content[start + 1] ^= 4
    elif how == "not an example":
        record = b"no example"
        content[start : starts[number + 1]] = frame(record)
    elif how == "cut":
        number = len(starts) - 2
        start = starts[number]
        content = content[: start + 30]
    path.write_bytes(content)
    return start, number


@pytest.mark.parametrize("how", ["data", "length", "cut", "not an example"])
def test_damaged_records_are_named_and_counted(trainer, digits, tmp_path, how):
    seed = seed_of_tests()
    write_records(tmp_path / "r", digits)
    start, number = damage(tmp_path / "r" / "train.tfrecord", seed, how)
    convert = ["convert", "--data_dir=r", "--to=idx"]
    error = run(trainer, *convert, "--out=refused", cwd=tmp_path, status=1).stderr
    assert len(error.splitlines()) == 1
    assert f"r/train.tfrecord: the record at byte {start}" in error and "--max_bad_records" in error
    result = run(trainer, *convert, "--out=kept", "--max_bad_records=1", cwd=tmp_path)
    assert result.stderr.count("skipping it") == 1 and f"byte {start}" in result.stderr
    _, images, labels, _, _ = digits
    kept_images, kept_labels, _, _ = read_set(tmp_path / "kept")
    assert (kept_images == numpy.delete(images, number, axis=0)).all()
    assert (kept_labels == numpy.delete(labels, number)).all()


def test_one_more_bad_record_than_allowed(trainer, digits, tmp_path):
    write_records(tmp_path / "r", digits)
    path = tmp_path / "r" / "train.tfrecord"
    content = bytearray(path.read_bytes())
    size = len(frame(records_of(digits[1][:1], digits[2][:1])[0]))
    for record in (3, 10, 20):
        content[record * size + 20] ^= 1
    path.write_bytes(content)
    info = ["data", "info", "--data_dir=r", "--log_format=json"]
    error = run(trainer, *info, "--max_bad_records=2", cwd=tmp_path, status=1).stderr
    assert "more damaged data than --max_bad_records" in error
    told = json.loads(run(trainer, *info, "--max_bad_records=3", cwd=tmp_path).stdout.splitlines()[-2])
    assert told["images"] == 297 and told["source"] == "tfrecord"


def test_which_files_and_features(trainer, digits, tmp_path):
    _, images, labels, test_images, test_labels = digits
    write_records(tmp_path / "r", digits, "mnist_{}-of-1")
    info = ["data", "info", "--data_dir=r", "--log_format=json"]
    assert "has no data set of a known kind" in run(trainer, *info, cwd=tmp_path, status=1).stderr
    assert "has no files train*.tfrecord*" in run(trainer, *info, "--data_source=tfrecord", cwd=tmp_path,
                                                  status=1).stderr
    names = ["--train_files=mnist_train*", "--test_files=mnist_test*"]
    told = [json.loads(line) for line in run(trainer, *info, *names, cwd=tmp_path).stdout.splitlines()]
    assert [part["images"] for part in told] == [300, 50]
    assert told[0]["images_per_class"] == numpy.bincount(labels, minlength=10).tolist()
    error = run(trainer, *info, *names, "--image_feature=x", cwd=tmp_path, status=1).stderr
    assert 'it has no feature "x" for its image' in error
    (tmp_path / "r" / "mnist_test-of-1").unlink()
    error = run(trainer, "--data_dir=r", *names, "--validation_size=0", cwd=tmp_path, status=1).stderr
    assert "has no files mnist_test*" in error


def processor_seconds():
    """Of all child processes waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_an_epoch_from_records_costs_little_more(trainer, digits, tmp_path):
    """Once loaded, the data are the same in memory; loading 20,000 images may take at most half a second of processor
    time more."""
    run(trainer, "data", "synth", "--out=set", "--synthetic_train=20000", "--synthetic_test=100", cwd=tmp_path)
    run(trainer, "convert", "--data_dir=set", "--to=tfrecord", "--out=r", cwd=tmp_path)
    seconds = {}
    for source in ("set", "r"):
        times = []
        for _ in range(3):
            before = processor_seconds()
            run(trainer, f"--data_dir={source}", "--layers=784,10", "--train_steps=1", cwd=tmp_path)
            times.append(processor_seconds() - before)
        seconds[source] = min(times)
    assert seconds["r"] < seconds["set"] + 0.5, seconds


# --- folders of pictures ---


def test_pictures_of_any_size_and_class_name(trainer, digits, tmp_path):
    """Classes by name, files by name: labels in the order of the names, every class among the first images."""
    _, images, labels, _, _ = digits
    for part in ("training", "testing"):
        for i, (image, label) in enumerate(zip(images, labels)):
            folder = tmp_path / "p" / part / f"digit-{label}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / f"scan-{label}-{i}.{['png', 'bmp', 'pgm'][i % 3]}")
    info = run(trainer, "data", "info", "--data_dir=p", "--log_format=json", cwd=tmp_path)
    told = json.loads(info.stdout.splitlines()[0])
    assert told["source"] == "folders" and told["images_per_class"] == numpy.bincount(labels, minlength=10).tolist()
    run(trainer, "convert", "--data_dir=p", "--to=idx", "--out=back", cwd=tmp_path)
    back_images, back_labels, _, _ = read_set(tmp_path / "back")
    assert {(i.tobytes(), l) for i,
            l in zip(back_images, back_labels)} == {(i.tobytes(), l) for i, l in zip(images, labels)}
    assert len(set(back_labels[:60])) == 10


def write_classes(folder, digits, parts):
    """Digits in folders with other names: {part: {name: digit}}."""
    _, images, labels, _, _ = digits
    for part, classes in parts.items():
        for name, digit in classes.items():
            (folder / part / name).mkdir(parents=True)
            for i in numpy.flatnonzero(labels == digit)[:20]:
                Image.fromarray(images[i]).save(folder / part / name / f"scan-{i}.png")


def test_names_of_classes_go_with_the_model(trainer, digits, tmp_path):
    """The test set lacks a class, which must not shift the labels after it; and the model's answers have names."""
    names = ["Käse & \"Brot\"", "ones", "seven"]
    parts = {"train": dict(zip(names, (0, 1, 7))), "test": {"ones": 1, "seven": 7}}
    write_classes(tmp_path / "p", digits, parts)
    done = train(trainer, "--data_dir=p", "--layers=784,30,3", "--optimizer=adam", "--learning_rate=0.01",
                 "--batch_size=20", "--epochs=60", "--train_dir=t", cwd=tmp_path)
    assert done.events[-1]["test_accuracy"] > 0.9
    pictures = [next((tmp_path / "p/train" / name).iterdir()) for name in names]
    told = run(trainer, "predict", "t", *pictures, cwd=tmp_path).stdout.splitlines()
    assert [line.split(": ")[1].startswith(name + " (") for line, name in zip(told, names)] == [True] * 3
    events = run(trainer, "predict", "t", "--json", "--top_k=1", *pictures, cwd=tmp_path).events
    assert [(event["class"], event["label"], event["top"][0]["label"]) for event in events] == [
        (label, name, name) for label, name in enumerate(names)]
    (told,) = run(trainer, "inspect", "--json", "t", cwd=tmp_path).events
    assert json.loads(told["metadata"]["class_names"]) == names
    with Served(trainer, "t", cwd=tmp_path) as served:
        answer = served.post("/predict", pictures[0].read_bytes(), content_type="image/png")
        assert (answer["class"], answer["label"]) == (0, names[0])
    for form in ("onnx", "safetensors"):
        run(trainer, "export", "t", f"--out=m.{form}", cwd=tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    assert json.loads(session.get_modelmeta().custom_metadata_map["class_names"]) == names
    with safe_open(tmp_path / "m.safetensors", framework="numpy") as file:
        assert json.loads(file.metadata()["class_names"]) == names


def test_labels_must_go_on_to_mean_the_same(trainer, digits, tmp_path):
    flags = ["--data_dir=p", "--layers=784,3", "--batch_size=20", "--train_dir=t"]
    write_classes(tmp_path / "p", digits, {part: {"b": 0, "c": 1} for part in ("train", "test")})
    train(trainer, *flags, "--train_steps=2", cwd=tmp_path)
    (tmp_path / "p/test/new").mkdir()
    told = run(trainer, *flags, "--train_steps=4", cwd=tmp_path, status=1).stderr
    assert "p/test/new: is of a class that p/train has not" in told
    write_classes(tmp_path / "p", digits, {"train": {"a": 7}})
    shutil.rmtree(tmp_path / "p/test/new")
    told = run(trainer, *flags, "--train_steps=4", cwd=tmp_path, status=1).stderr
    assert 'its classes are ["b","c"], and the data\'s folders ["a","b","c"]' in told
    write_classes(tmp_path / "q", digits, {part: {"x": 0, "y": 1} for part in ("train", "test")})
    told = run(trainer, "eval", "t", "--data_dir=q", cwd=tmp_path, status=1).stderr
    assert 'its classes are ["b","c"], and the data\'s folders ["x","y"]' in told and "--data_dir" in told
    for part in ("train", "test"):
        (tmp_path / "q" / part / "x").rename(tmp_path / "q" / part / "b")
        (tmp_path / "q" / part / "y").rename(tmp_path / "q" / part / "c")
    run(trainer, "eval", "t", "--data_dir=q", cwd=tmp_path)


def test_pictures_are_normalised_as_digits_where_asked(trainer, digits, tmp_path):
    _, images, labels, _, _ = digits
    for i in range(40):
        for part in ("train", "test"):
            folder = tmp_path / "p" / part / str(labels[i])
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(255 - images[i]).resize((90 + i, 120)).save(folder / f"{i}.png")
    run(trainer, "convert", "--data_dir=p", "--to=idx", "--out=back", "--image_fit=digits", cwd=tmp_path)
    back, back_labels, _, _ = read_set(tmp_path / "back")
    assert back.shape == (40, 28, 28) and (back_labels == labels[:40]).all()
    assert (back[:, 0] == 0).all() and (back.max(axis=(1, 2)) > 150).all()
    for image in back:
        rows, columns = (numpy.flatnonzero(image.max(axis=axis)) for axis in (1, 0))
        assert 18 <= max(rows[-1] - rows[0], columns[-1] - columns[0]) + 1 <= 20


def test_a_file_that_is_no_picture_is_named(trainer, digits, tmp_path):
    run(trainer, "convert", f"--data_dir={digits[0] / 'set'}", "--to=folders", "--out=p", cwd=tmp_path)
    bad = next((tmp_path / "p" / "train").glob("*/*.png"))
    bad.write_bytes(b"hello")
    error = run(trainer, "data", "info", "--data_dir=p", cwd=tmp_path, status=1).stderr
    assert f"{bad.relative_to(tmp_path)}: is not a JPEG, PNG, BMP or PGM picture" in error
    for path in (tmp_path / "p" / "test").glob("*/*"):
        path.unlink()
    for path in (tmp_path / "p" / "test").glob("*"):
        path.rmdir()
    bad.unlink()
    told = run(trainer, "--data_dir=p", "--validation_size=0", cwd=tmp_path, status=1).stderr
    assert "p holds test and train, and has no folder test with folders of pictures in it" in told


def test_a_large_set_of_bad_names_is_no_trouble(trainer, tmp_path):
    (tmp_path / "p" / "train" / "0").mkdir(parents=True)
    assert "p/train: holds no images" in run(trainer, "data", "info", "--data_dir=p", "--data_source=folders",
                                             cwd=tmp_path, status=1).stderr
