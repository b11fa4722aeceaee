"""Summaries, read with TensorBoard's own package."""

import io
import json
import pathlib
import resource
import subprocess
import sys
import urllib.request

import numpy
import pytest
from PIL import Image
from safetensors.numpy import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.plugins.hparams import plugin_data_pb2

from clusters import Cluster
from ports import free_ports
from runs import SMALL, checkpoints, newest, run, same_tensors, train, wait_for

ALL = {"scalars": 0, "histograms": 0, "images": 0, "tensors": 0}


def read(folder):
    events = EventAccumulator(str(folder), size_guidance=ALL)
    events.Reload()
    return events


def scalars(events, tag):
    return {event.step: event.value for event in events.Scalars(tag)}


@pytest.fixture(scope="module")
def watched(trainer, tmp_path_factory):
    """A run whose log lines, checkpoints and summaries fall on the same steps."""
    folder = tmp_path_factory.mktemp("watched")
    result = train(trainer, *SMALL, "--layers=784,32,16,10", "--activation=tanh", "--l2=1e-3", "--lr_decay=0.5",
                   "--lr_decay_steps=100", "--train_steps=300", "--save_summaries_steps=50", "--log_steps=50",
                   "--validate_steps=100", "--save_steps=50", "--max_to_keep=0", "--train_dir=t", cwd=folder)
    return folder, result, read(folder / "t" / "summaries")


def test_scalars_are_what_the_log_says(watched):
    folder, result, events = watched
    steps = result.named("step")
    told = {event["global_step"]: event for event in steps}
    assert list(told) == [50, 100, 150, 200, 250, 300]
    for tag, key in (("cross_entropy", "loss"), ("learning_rate", "learning_rate")):
        assert scalars(events, tag) == pytest.approx({step: event[key] for step, event in told.items()}, rel=1e-6)
    validations = {event["global_step"]: event for event in result.named("validation")}
    for tag, key in (("validation/accuracy", "validation_accuracy"), ("validation/loss", "validation_loss")):
        expected = {step: event[key] for step, event in validations.items()}
        assert scalars(events, tag) == pytest.approx(expected, rel=1e-6)
    assert scalars(events, "test/accuracy") == pytest.approx({300: result.done["test_accuracy"]})
    accuracy = scalars(events, "train/accuracy")
    assert list(accuracy) == list(told) and all(0 < value <= 1 for value in accuracy.values())
    for tag in ("global_step/sec", "examples/sec", "sec/batch"):
        assert list(scalars(events, tag)) == list(told) and all(value > 0 for value in scalars(events, tag).values())
    rate, batch = scalars(events, "global_step/sec"), scalars(events, "sec/batch")
    assert [rate[step] * batch[step] for step in told] == pytest.approx([1] * 6, rel=1e-5)


def test_the_l2_part_is_that_of_the_weights(watched):
    folder, _, events = watched
    for step, path in checkpoints(folder / "t").items():
        weights = [value for name, value in load_file(path).items() if name.endswith("weights")]
        expected = 1e-3 / 2 * sum((w.astype(float) ** 2).sum() for w in weights)
        assert scalars(events, "l2_loss")[step] == pytest.approx(expected, rel=1e-5)
        assert scalars(events, "loss")[step] == pytest.approx(
            scalars(events, "cross_entropy")[step] + scalars(events, "l2_loss")[step], rel=1e-6)


def check_histogram(histogram, values):
    """Every bucket counts the values below its limit and not below the previous one."""
    values = numpy.asarray(values, numpy.float32).ravel()
    limits = numpy.array(histogram.bucket_limit)
    assert (numpy.diff(limits) > 0).all()
    below = numpy.searchsorted(limits, values.astype(float), side="right")
    found = numpy.array(histogram.bucket)
    expected = numpy.bincount(below, minlength=len(limits))
    # a negative value on a limit counts on its outer side
    assert numpy.abs(found - expected).sum() <= 2 * len(values) * 1e-4 and found.sum() == len(values)
    assert histogram.num == len(values)
    assert [histogram.min, histogram.max] == [values.min(), values.max()]
    assert histogram.sum == pytest.approx(values.astype(float).sum(), rel=1e-9, abs=1e-9)
    assert histogram.sum_squares == pytest.approx((values.astype(float) ** 2).sum(), rel=1e-9)


def test_histograms_are_those_of_the_weights(watched):
    folder, _, events = watched
    kept = checkpoints(folder / "t")
    for layer in range(3):
        for what in ("weights", "biases"):
            seen = {event.step: event.histogram_value for event in events.Histograms(f"layer{layer}/{what}")}
            assert list(seen) == [50, 300]  # the first summary, and the fifth after it
            for step, histogram in seen.items():
                check_histogram(histogram, load_file(kept[step])[f"layer{layer}/{what}"])


def dataset(trainer, folder, count):
    run(trainer, "data", "synth", "--out=set", f"--synthetic_train={count}", "--synthetic_test=10", cwd=folder)
    images = numpy.frombuffer((folder / "set" / "train-images-idx3-ubyte").read_bytes()[16:], numpy.uint8)
    labels = numpy.frombuffer((folder / "set" / "train-labels-idx1-ubyte").read_bytes()[8:], numpy.uint8)
    return images.reshape(count, 784), labels


def test_activations_gradients_and_images(trainer, tmp_path):
    """If one batch is the whole training set, all of them can be computed from the checkpoint."""
    images, labels = dataset(trainer, tmp_path, 120)
    train(trainer, "--data_dir=set", "--validation_size=20", "--batch_size=100", "--layers=784,24,10", "--seed=3",
          "--activation=sigmoid", "--train_steps=5", "--save_steps=5", "--save_summaries_steps=5", "--train_dir=t",
          "--num_threads=2", cwd=tmp_path)
    events = read(tmp_path / "t" / "summaries")
    w = {name: value.astype(float) for name, value in load_file(newest(tmp_path / "t")).items()}
    x, y = images[20:] / 255, labels[20:]
    hidden = 1 / (1 + numpy.exp(-(x @ w["layer0/weights"] + w["layer0/biases"])))
    logits = hidden @ w["layer1/weights"] + w["layer1/biases"]

    def close(tag, values):
        (event,) = events.Histograms(tag)
        found, values = event.histogram_value, numpy.asarray(values)
        assert event.step == 5 and found.num == values.size
        assert found.min == pytest.approx(values.min(), rel=1e-4, abs=1e-7)
        assert found.max == pytest.approx(values.max(), rel=1e-4, abs=1e-7)
        assert found.sum == pytest.approx(values.sum(), rel=1e-4, abs=1e-4)
        assert found.sum_squares == pytest.approx((values**2).sum(), rel=1e-4)

    close("layer0/activations", hidden[:32])
    close("logits", logits[:32])
    delta = numpy.exp(logits - logits.max(axis=1, keepdims=True))
    delta = (delta / delta.sum(axis=1, keepdims=True) - numpy.eye(10)[y]) / len(y)
    below = delta @ w["layer1/weights"].T * hidden * (1 - hidden)
    close("layer1/weights/gradient", hidden.T @ delta)
    close("layer1/biases/gradient", delta.sum(axis=0))
    close("layer0/weights/gradient", x.T @ below)
    close("layer0/biases/gradient", below.sum(axis=0))
    for i in range(3):
        (image,) = events.Images(f"input/image/{i}")
        pixels = numpy.array(Image.open(io.BytesIO(image.encoded_image_string)))
        assert (pixels == images[20 + i].reshape(28, 28)).all()


def test_graph_config_and_hyper_parameters(watched):
    _, _, events = watched
    graph = GraphDef.FromString(events.Graph().SerializeToString())
    nodes = {node.name: node for node in graph.node}
    for node in graph.node:
        for source in node.input:
            assert source in nodes, f"{node.name} takes {source}, which is not there"
    assert nodes["layer1/weights"].op == "VariableV2" and nodes["layer1/Tanh"].op == "Tanh"
    assert [d.size for d in nodes["layer0/weights"].attr["shape"].shape.dim] == [784, 32]
    assert nodes["train/layer2/biases"].op == "ApplyGradientDescent"
    (text,) = [event.tensor_proto.string_val[0].decode() for event in events.Tensors("config")]
    assert "| train.lr_decay | 0.5 |" in text and "| model.layers | 784,32,16,10 |" in text
    content = events.summary_metadata
    data = {tag: plugin_data_pb2.HParamsPluginData.FromString(content[f"_hparams_/{tag}"].plugin_data.content)
            for tag in ("experiment", "session_start_info", "session_end_info")}
    values = data["session_start_info"].session_start_info.hparams
    assert values["l2"].number_value == 1e-3 and values["activation"].string_value == "tanh"
    assert values["lr_staircase"].bool_value is True and values["layers"].string_value == "784,32,16,10"
    known = {info.name for info in data["experiment"].experiment.hparam_infos}
    assert known == set(values)
    assert {info.name.tag for info in data["experiment"].experiment.metric_infos} >= {"loss", "validation/accuracy"}
    assert data["session_end_info"].session_end_info.status == 1


def test_a_resumed_run_goes_on_where_it_stopped(trainer, tmp_path):
    """Steps that were taken twice, because the first process did not live to save them, appear once."""
    flags = [*SMALL, "--save_summaries_steps=20", "--save_steps=50", "--train_dir=t"]
    train(trainer, *flags, "--train_steps=100", cwd=tmp_path)
    checkpoints(tmp_path / "t")[100].unlink()
    train(trainer, *flags, "--train_steps=160", cwd=tmp_path)
    assert len(list((tmp_path / "t" / "summaries").iterdir())) == 2
    assert list(scalars(read(tmp_path / "t" / "summaries"), "loss")) == [20, 40, 60, 80, 100, 120, 140, 160]


def test_where_and_when(trainer, tmp_path):
    train(trainer, *SMALL, "--train_steps=120", "--summary_dir=here/s", cwd=tmp_path)
    assert list(scalars(read(tmp_path / "here" / "s"), "loss")) == [100]
    train(trainer, *SMALL, "--train_steps=120", "--save_summaries_steps=0", "--train_dir=t", cwd=tmp_path)
    assert not (tmp_path / "t" / "summaries").exists()
    train(trainer, *SMALL, "--train_steps=120", cwd=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"here", "t"}
    train(trainer, *SMALL, "--epochs=100", "--train_steps=0", "--save_summaries_steps=0", "--save_summaries_secs=0.05",
          "--summary_dir=timed", cwd=tmp_path)
    events = read(tmp_path / "timed")
    times = [event.wall_time for event in events.Scalars("loss")]
    assert len(times) > 1 and min(numpy.diff(times)) > 0.045
    assert len(events.Histograms("layer0/weights")) == len(times)


def test_watching_changes_nothing(trainer, tmp_path):
    flags = [*SMALL, "--optimizer=adam", "--ema_decay=0.9", "--micro_batches=2", "--train_steps=60"]
    train(trainer, *flags, "--train_dir=watched", "--save_summaries_steps=7", cwd=tmp_path)
    train(trainer, *flags, "--train_dir=alone", "--save_summaries_steps=0", cwd=tmp_path)
    assert same_tensors(newest(tmp_path / "watched"), newest(tmp_path / "alone")) == []


def test_a_folder_that_cannot_be_is_told_at_once(trainer, tmp_path):
    (tmp_path / "file").write_text("")
    result = run(trainer, *SMALL, "--summary_dir=file/s", cwd=tmp_path, status=1)
    assert "file" in result.stderr and len(result.stderr.splitlines()) == 1


def test_a_full_disk_does_not_end_training(trainer, tmp_path):
    """One warning, and the run continues."""
    result = train(trainer, *SMALL, "--train_steps=300", "--save_summaries_steps=10", "--summary_dir=s", cwd=tmp_path,
                   preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (60000, 60000)))
    assert result.done["steps"] == 300
    warnings = [event["message"] for event in result.events if event.get("level") == "warning"]
    assert len(warnings) == 1 and "training continues without summaries" in warnings[0]
    assert len(scalars(read(tmp_path / "s"), "loss")) > 1


@pytest.mark.parametrize("flags", [[], ["--issync=1"], ["--pipeline_depth=1"]], ids=["async", "sync", "pipelined"])
def test_a_clusters_summaries_come_from_the_chief(trainer, tmp_path, flags):
    with Cluster(trainer, tmp_path, flags=["--train_steps=600", "--learning_rate=0.1", "--validate_steps=200",
                                           "--save_summaries_steps=50", "--train_dir=t", "--max_steps_per_s=200",
                                           *flags]) as cluster:
        cluster.start_all()
        done = cluster.wait("worker 0").done
        validations = {event["global_step"]: event for event in cluster.events("worker 0", "validation")}
    (path,) = (tmp_path / "t" / "summaries").iterdir()
    events = read(path)
    loss = scalars(events, "loss")
    assert 1 < len(loss) <= 12 and max(loss) <= 600 and all(value > 0 for value in loss.values())
    assert scalars(events, "validation/accuracy") == pytest.approx(
        {step: event["validation_accuracy"] for step, event in validations.items()}, rel=1e-6)
    assert scalars(events, "test/accuracy") == pytest.approx({600: done["test_accuracy"]}, rel=1e-6)
    sent, received = (list(scalars(events, f"cluster/bytes_{way}").values()) for way in ("sent", "received"))
    assert sent == sorted(sent) and sent[-1] > sent[0] > 0 and received == sorted(received) and received[0] > 0
    assert set(scalars(events, "cluster/dropped_gradients")) == set(scalars(events, "cluster/staleness")) == set(loss)
    assert all(value >= 0 for value in scalars(events, "cluster/staleness").values())
    assert {"layer0/weights", "layer0/weights/gradient", "layer0/activations"} <= set(events.Tags()["histograms"])
    assert all(value > 0 for value in scalars(events, "global_step/sec").values())


def ask(port, path, **content):
    data = json.dumps(content).encode() if content else None
    request = urllib.request.Request(f"http://127.0.0.1:{port}/data/{path}", data=data,
                                     headers={"Content-Type": "application/json"} if content else {})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


def test_tensorboard_itself_serves_every_page(watched):
    """The server behind TensorBoard's pages: each finds its data, and HParams connects the run's values with its
    metrics."""
    folder, result, _ = watched
    (port,), tag = free_ports(1), "test/accuracy"
    server = subprocess.Popen([pathlib.Path(sys.executable).with_name("tensorboard"), f"--logdir={folder / 't'}",
                               f"--port={port}", "--host=127.0.0.1", "--load_fast=false"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        def groups():
            answer = ask(port, "plugin/hparams/session_groups", experimentName="", startIndex=0, sliceSize=10,
                         allowedStatuses=["STATUS_SUCCESS"], colParams=[{"metric": {"group": "", "tag": tag}}])
            return json.loads(answer)["sessionGroups"]

        def metrics_of(group):
            return {metric["name"]["tag"]: metric["value"] for metric in group.get("metricValues", [])}

        def loaded():  # to the end of the file, where the test's accuracy is
            try:
                return json.loads(ask(port, "plugin/scalars/tags")) != {} and any(map(metrics_of, groups()))
            except OSError:
                return False

        wait_for(loaded, "answer from TensorBoard")
        pages = {name for name, page in json.loads(ask(port, "plugins_listing")).items() if page["enabled"]}
        assert {"scalars", "images", "graphs", "distributions", "histograms", "text", "hparams"} <= pages
        (run_name,) = json.loads(ask(port, "plugin/scalars/tags"))
        assert b'name: "layer1/MatMul"' in ask(port, f"plugin/graphs/graph?run={run_name}")
        (group,) = groups()
        assert group["hparams"]["l2"] == 1e-3 and group["hparams"]["activation"] == "tanh"
        assert metrics_of(group)[tag] == pytest.approx(result.done["test_accuracy"])
    finally:
        server.terminate()
        server.wait(240)
