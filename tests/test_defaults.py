"""What follows from the data where no flag says otherwise: a table trains well, small ones and hard ones too, the best
model counts, and a divergence mends itself."""

import csv
import io
import json
import math
import re

import numpy
import onnxruntime
import pytest
from sklearn import datasets

from runs import checkpoints, newest, run, same_tensors, tensors, train

ONE = ("--num_threads=1", "--data_dir=d", "--target=y")


def write(folder, header, rows, part="train"):
    (folder / "d").mkdir(exist_ok=True)
    with open(folder / "d" / f"{part}.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


def correlated(folder, rows, seed=1, part="train"):
    """Numbers that say nearly the same, on which a rate for pictures diverges, and a number that depends on them."""
    draw = numpy.random.default_rng(seed)
    common = draw.normal(size=(rows, 1))
    x = 5 + 3 * common + 0.3 * draw.normal(size=(rows, 12))
    y = 100 + 20 * common[:, 0] + 4 * (x[:, 0] - x[:, 1]) + 0.1 * draw.normal(size=rows)
    write(folder, [*(f"x{i}" for i in range(12)), "y"], [[*map(float, row), float(v)] for row, v in zip(x, y)], part)


@pytest.mark.parametrize("optimizer", [(), ("--optimizer=sgd",), ("--optimizer=momentum",)])
def test_a_regression_of_correlated_columns_does_not_diverge(trainer, tmp_path, optimizer):
    correlated(tmp_path, 400)
    result = train(trainer, *ONE, *optimizer, cwd=tmp_path)
    assert result.done["test_r2"] > 0.9
    assert "goes back" not in result.stdout + result.stderr


@pytest.mark.parametrize("source, kind", [(datasets.load_iris, "class"), (datasets.load_diabetes, "number")])
def test_real_tables_without_flags(trainer, tmp_path, source, kind):
    data = source()
    order = numpy.random.default_rng(2).permutation(len(data.target))
    rows = [[*map(float, data.data[i]), f"c{data.target[i]}" if kind == "class" else float(data.target[i])]
            for i in order]
    header = [*(f"x{i}" for i in range(data.data.shape[1])), "y"]
    write(tmp_path, header, rows[len(rows) // 4:])
    write(tmp_path, header, rows[:len(rows) // 4], "test")
    done = train(trainer, *ONE, cwd=tmp_path).done
    assert done["test_accuracy"] > 0.9 if kind == "class" else done["test_r2"] > 0.35


@pytest.mark.parametrize("rows", [20, 40, 100])
def test_a_table_smaller_than_a_usual_batch(trainer, tmp_path, rows):
    correlated(tmp_path, rows)
    correlated(tmp_path, 10, part="test")
    held_out = rows * 15 // 100
    assert train(trainer, *ONE, cwd=tmp_path).named("start")[0]["batch_size"] == min(16, rows - held_out)
    few = train(trainer, *ONE, f"--validation_size={rows - 5}", cwd=tmp_path).named("start")[0]
    assert few["batch_size"] == 5


def test_the_first_lines_show_what_was_chosen(trainer, tmp_path):
    correlated(tmp_path, 2000)
    lines = run(trainer, "train", *ONE, "--test_share=0.1", "--log_steps=0", cwd=tmp_path).stdout.splitlines()
    (optimizer,) = [line for line in lines if line.startswith("optimizer ")]
    assert optimizer.startswith("optimizer  adam, learning rate 0.002, moving averages 0.99; batch 4"), optimizer
    (length,) = [line for line in lines if line.startswith("length ")]
    assert "(300.0 epochs), fewer after 30 validations without a better rmse" in length
    (auto,) = [line for line in lines if line.startswith("auto ")]
    assert ("ensemble, ema_decay, optimizer, learning_rate, batch_size, train_steps, epochs, patience (for a table)"
            in auto)
    lines = run(trainer, "train", *ONE, "--optimizer=sgd", "--batch_size=20", "--epochs=1", "--log_steps=0",
                cwd=tmp_path).stdout.splitlines()
    assert "auto       ensemble, ema_decay, learning_rate, train_steps, patience (for a table)" in lines, lines
    (length,) = [line for line in lines if line.startswith("length ")]
    assert "(1.0 epochs)" in length and "fewer" not in length


def test_config_show_says_auto_and_what_it_means(run):
    shown = json.loads(run("config", "show", "--json", "--target=y").stdout)["keys"]
    assert shown["train.optimizer"]["value"] == "auto" and shown["train.optimizer"]["chosen"] == "adam"
    assert shown["train.learning_rate"]["chosen"] == "0.002" and shown["train.epochs"]["chosen"] == "300"
    assert shown["train.batch_size"]["value"] == "auto" and "chosen" not in shown["train.batch_size"]
    shown = json.loads(run("config", "show", "--json").stdout)["keys"]
    assert shown["train.optimizer"]["chosen"] == "sgd" and shown["train.train_steps"]["chosen"] == "10000"
    lines = run("config", "show", "--target=y", "--optimizer=sgd").stdout.splitlines()
    assert any(line.split()[:2] == ["train.optimizer", "sgd"] for line in lines)
    assert any(line.split()[:3] == ["train.learning_rate", "auto:", "0.02"] for line in lines)


def noisy(folder, rows=300):
    """Two classes that overlap: training on gets worse soon."""
    draw = numpy.random.default_rng(3)
    x = draw.normal(size=(rows, 6))
    y = x[:, 0] + 1.5 * draw.normal(size=rows) > 0
    write(folder, [*"abcdef", "y"], [[*map(float, row), "yes" if yes else "no"] for row, yes in zip(x, y)])


def test_the_best_model_is_tested_and_used(trainer, tmp_path):
    noisy(tmp_path)
    flags = (*ONE, "--epochs=60", "--save_summaries_steps=0")
    done = train(trainer, *flags, "--train_dir=run", cwd=tmp_path).done
    assert done["test_model"] == "best" and done["test_step"] == done["best_step"] < done["steps"]
    assert done["best_loss"] > 0

    def evaluated(*more):
        return json.loads(run(trainer, "eval", "run", "--json", "--data_dir=d", *more, cwd=tmp_path).stdout)

    best, last = evaluated(), evaluated("--checkpoint=newest")
    assert best["checkpoint"] == "run/best.safetensors" and best["global_step"] == done["best_step"]
    assert best["test_loss"] == done["test_loss"] != last["test_loss"] and last["global_step"] == done["steps"]
    again = train(trainer, *flags, "--train_dir=", cwd=tmp_path).done  # nothing is saved, and yet it is kept
    assert (again["test_loss"], again["test_step"]) == (done["test_loss"], done["best_step"])
    newest_one = train(trainer, *flags, "--train_dir=", "--final_test=newest", cwd=tmp_path).done
    assert newest_one["test_model"] == "newest" and newest_one["test_loss"] == last["test_loss"]
    # A run that had ended is tested again by the best model, which another process found.
    resumed = train(trainer, *flags, "--train_dir=run", cwd=tmp_path).done
    assert resumed["test_loss"] == done["test_loss"] and resumed["test_model"] == "best"
    for kept, (command, *more) in {"best": ["predict"], "newest": ["predict", "--checkpoint=newest"]}.items():
        said = run(trainer, command, "run", "d/train.csv", *more, cwd=tmp_path).stderr
        assert f"run/{'best' if kept == 'best' else 'model-'}" in said


def test_a_threshold_is_looked_for_only_where_asked(trainer, tmp_path):
    noisy(tmp_path)
    flags = (*ONE, "--epochs=5", "--train_dir=run")
    assert "threshold" not in train(trainer, *flags, cwd=tmp_path).done
    assert "threshold" not in tensors(newest(tmp_path / "run"))[1]
    found = train(trainer, *flags, "--train_dir=auto", "--threshold=auto", "--best_metric=f1", cwd=tmp_path).done
    assert 0 < found["threshold"] < 1
    fixed = train(trainer, *flags, "--train_dir=fixed", "--threshold=0.9", cwd=tmp_path).done
    assert fixed["threshold"] == 0.9
    rows = list(csv.DictReader(io.StringIO(run(trainer, "predict", "fixed", "d/train.csv", cwd=tmp_path).stdout)))
    assert {row["prediction"] == "yes" for row in rows if float(row["probability_yes"]) < 0.9} == {False}


DIVERGES = ("--optimizer=sgd", "--learning_rate=1", "--epochs=6", "--batch_size=16", "--log_steps=0")


def test_a_divergence_goes_back_by_itself(trainer, tmp_path):
    correlated(tmp_path, 400)
    result = train(trainer, *ONE, *DIVERGES, "--train_dir=run", cwd=tmp_path)
    said = [event["message"] for event in result.named("log") if "training goes back to step" in event["message"]]
    assert 1 <= len(said) <= 3, said
    assert "at 0.3 times that rate (1 of at most 3 times)" in said[0]
    assert int(tensors(newest(tmp_path / "run"))[1]["retries"]) >= 1
    assert result.done["test_r2"] > -1
    refused = train(trainer, *ONE, *DIVERGES, "--divergence_retries=0", "--train_dir=none", cwd=tmp_path, status=1)
    said = refused.stdout + refused.stderr
    assert "training stops here and saves nothing of it" in said
    assert "lower --learning_rate of optimizer sgd, or choose --optimizer=adam, and start again" in said
    hopeless = train(trainer, *ONE, *DIVERGES, "--learning_rate=1e30", cwd=tmp_path, status=1)
    assert "which was lowered 3 times: training stops here" in hopeless.stdout + hopeless.stderr


def test_simulated_workers_go_back_too(trainer, tmp_path):
    correlated(tmp_path, 400)
    rounds = ("--clients=3", "--local_steps=4", "--train_dir=run")
    result = train(trainer, *ONE, *DIVERGES, *rounds, cwd=tmp_path)
    said = [event["message"] for event in result.named("log") if "training goes back to step" in event["message"]]
    assert 1 <= len(said) <= 3, said
    assert int(tensors(newest(tmp_path / "run"))[1]["retries"]) == len(said)
    assert result.done["test_r2"] > 0.9


@pytest.mark.parametrize("flags", [(), ("--issync", "--ps=2"), ("--issync", "--local_steps=4", "--train_dir=run"),
                                   ("--ps=2", "--train_dir=run")], ids=" ".join)
def test_a_cluster_goes_back_too(trainer, tmp_path, flags):
    correlated(tmp_path, 400)
    common = ("cluster", *ONE, *[flag for flag in DIVERGES if "--epochs" not in flag], "--hidden=64", *flags)
    done = run(trainer, *common, "--epochs=12", cwd=tmp_path)
    said = re.findall(r"training goes back to step \d+ and continues at 0.3 times that rate \(", done.stderr)
    assert 1 <= len(said) <= 3, done.stderr
    assert float(re.search(r"\| test mae .* r2 ([-0-9.]+)", done.stdout)[1]) > 0.9, done.stdout
    if "--train_dir=run" not in flags:
        return
    retries = int(tensors(newest(tmp_path / "run"))[1]["retries"])
    assert retries == len(said)
    lowered = f"learning rate {0.3 ** retries:g}"
    again = run(trainer, *common, "--epochs=14", cwd=tmp_path)
    assert f"worker 0  | optimizer  sgd, {lowered}" in again.stdout and "goes back" not in again.stderr
    if "--local_steps=4" not in flags:
        alone = run(trainer, *common[1:-2], "--train_dir=run", "--epochs=16", cwd=tmp_path)
        assert lowered in alone.stdout and "goes back" not in alone.stderr
    anew = run(trainer, *common, "--epochs=18", "--learning_rate=0.01", cwd=tmp_path)
    assert "optimizer  sgd, learning rate 0.01;" in anew.stdout


def test_a_cluster_without_a_folder_goes_back_to_the_same_state(trainer, tmp_path):
    """With the optimizer's slots, as the best checkpoint would have them."""
    correlated(tmp_path, 400)
    flags = ("cluster", *ONE, *[flag for flag in DIVERGES if "--epochs" not in flag], "--optimizer=momentum",
             "--learning_rate=0.1", "--batch_size=32", "--hidden=64", "--issync", "--ps=2", "--epochs=12",
             "--validate_steps=3")
    ends = []
    for more in ((), ("--train_dir=run",)):
        done = run(trainer, *flags, *more, cwd=tmp_path)
        back = re.findall(r"training goes back to step (\d+)", done.stderr)
        assert back and int(back[0]) > 0, done.stderr
        ends.append((back, re.search(r"\| (test mae .*)", done.stdout)[1]))
    assert ends[0] == ends[1]


def test_a_resumed_run_continues_at_the_lower_rate(trainer, tmp_path):
    correlated(tmp_path, 400)
    flags = (*ONE, *DIVERGES, "--save_steps=5", "--max_to_keep=0", "--validate_steps=7")
    train(trainer, *flags, "--train_dir=whole", cwd=tmp_path)
    assert int(tensors(newest(tmp_path / "whole"))[1]["retries"]) >= 1
    steps = list(checkpoints(tmp_path / "whole"))
    (tmp_path / "parts").mkdir()
    for end in (*range(steps[0], steps[-1], 20), steps[-1]):
        train(trainer, *[flag for flag in flags if "--epochs" not in flag], f"--train_steps={end}", "--train_dir=parts",
              cwd=tmp_path)
    assert same_tensors(newest(tmp_path / "whole"), newest(tmp_path / "parts")) == []


def test_a_learning_rate_set_anew_is_used_as_it_is(trainer, tmp_path):
    correlated(tmp_path, 400)
    train(trainer, *ONE, *DIVERGES, "--train_dir=run", cwd=tmp_path)
    retries = int(tensors(newest(tmp_path / "run"))[1]["retries"])
    on = [flag for flag in DIVERGES if "--epochs" not in flag]
    lowered = train(trainer, *ONE, *on, "--epochs=7", "--train_dir=run", cwd=tmp_path).named("start")[0]
    assert lowered["learning_rate"] == pytest.approx(0.3 ** retries)
    anew = train(trainer, *ONE, *on, "--epochs=8", "--learning_rate=0.01", "--train_dir=run", cwd=tmp_path)
    assert anew.named("start")[0]["learning_rate"] == 0.01
    assert "retries" not in tensors(newest(tmp_path / "run"))[1]


def test_given_up_the_newest_model_is_the_best(trainer, tmp_path):
    correlated(tmp_path, 400)
    train(trainer, *ONE, "--epochs=3", "--train_dir=run", "--optimizer=sgd", "--learning_rate=0.01", cwd=tmp_path)
    best = int(tensors(tmp_path / "run" / "best.safetensors")[1]["global_step"])
    result = train(trainer, *ONE, "--epochs=30", "--optimizer=sgd", "--learning_rate=1e30", "--save_steps=1",
                   "--train_dir=run", cwd=tmp_path, status=1)
    assert f"the newest checkpoint is of the best model, at step {best}" in result.stdout + result.stderr
    assert int(tensors(newest(tmp_path / "run"))[1]["global_step"]) == best


def test_epochs_0_of_a_table_is_no_limit(trainer, tmp_path):
    correlated(tmp_path, 60)
    lines = run(trainer, "train", *ONE, "--epochs=0", "--patience=2", "--log_steps=0", cwd=tmp_path).stdout.splitlines()
    (length,) = [line for line in lines if line.startswith("length ")]
    assert "no limit of steps, fewer after 2 validations" in length


def test_a_threshold_needs_two_classes(trainer, tmp_path):
    correlated(tmp_path, 60)
    refused = train(trainer, *ONE, "--threshold=0.7", cwd=tmp_path, status=1)
    assert "train.threshold=0.7 is between two classes, and the data have 1 targets" in refused.stdout + refused.stderr


def test_so_few_rows_that_none_validate(trainer, tmp_path):
    correlated(tmp_path, 6)
    correlated(tmp_path, 6, part="test")
    assert train(trainer, *ONE, cwd=tmp_path).named("start")[0]["last_step"] == 100


def test_another_test_share_is_said(trainer, tmp_path):
    correlated(tmp_path, 100)
    train(trainer, *ONE, "--test_share=0.1", "--epochs=2", "--train_dir=run", cwd=tmp_path)
    refused = train(trainer, *ONE, "--test_share=0.2", "--epochs=4", "--train_dir=run", cwd=tmp_path, status=1)
    assert "held out other rows for its test (test_share 0.1" in refused.stdout + refused.stderr


def test_new_data_are_trained_on_as_long_and_have_their_own_best(trainer, tmp_path):
    correlated(tmp_path, 100)
    correlated(tmp_path, 20, part="test")
    first = train(trainer, *ONE, "--patience=0", "--train_dir=run", cwd=tmp_path).done["steps"]
    correlated(tmp_path, 120, seed=2)
    second = train(trainer, *ONE, "--patience=0", "--train_dir=run", "--new_data", cwd=tmp_path)
    assert second.named("start")[0]["last_step"] == first + 300 * -(-102 // 16)
    best = tensors(tmp_path / "run" / "best.safetensors")[1]
    assert int(best["data_since"]) == first and int(best["global_step"]) > first


def test_pictures_in_small_numbers(trainer, tmp_path):
    few = ("--data_source=synthetic", "--synthetic_train=60", "--synthetic_test=20", "--train_steps=5",
           "--num_threads=1")
    start = train(trainer, *few, cwd=tmp_path).named("start")[0]
    assert (start["optimizer"], start["learning_rate"], start["batch_size"]) == ("sgd", 0.5, 54)


def nets(events):
    """What the first line says of them: "raw:1,ple:1", or nothing."""
    return events[0]["model"].partition(", nets ")[2]


def mixed(folder, rows=300, part="train"):
    """Numbers, a number of few values, categories, a date and gaps; three classes."""
    draw = numpy.random.default_rng(5)
    lines = []
    for i in range(rows):
        a, b, kind = draw.normal(), draw.integers(0, 4), "xyz"[draw.integers(0, 3)]
        score = a + (b == 2) + (kind == "x") + 0.3 * draw.normal()
        lines.append(["" if i % 17 == 3 else f"{a:.4f}", int(b), kind, f"2024-{1 + i % 12:02}-{1 + i % 28:02}",
                      "high" if score > 1 else "mid" if score > 0 else "low"])
    write(folder, ["a", "b", "kind", "day", "y"], lines, part)


@pytest.mark.parametrize("flags, expected", [
    ((), "raw:1,ple:1"), (("--features=kind",), "raw:2"), (("--hidden=32",), ""), (("--encoding=none",), ""),
    (("--encoding=ple",), ""), (("--ensemble=raw:3",), "raw:3"), (("--ensemble=raw:1",), ""),
    (("--target=inputs",), ""), (("--local_steps=2", "--clients=2"), ""), (("--device=gpu",), "")])
def test_a_table_gets_two_views_where_nobody_describes_its_model(trainer, tmp_path, flags, expected):
    mixed(tmp_path)
    result = train(trainer, *ONE, "--epochs=2", *flags, cwd=tmp_path)
    assert nets(result.named("start")) == expected
    assert ("ensemble" in result.named("start")[0]["chosen"]) == ("--ensemble" not in " ".join(flags))
    assert result.done["steps"] > 0


def test_rows_that_stream_and_very_many_bins_get_one_net(trainer, tmp_path):
    draw = numpy.random.default_rng(1)
    x = draw.normal(size=(5200, 66)).round(4)
    write(tmp_path, [*(f"x{i}" for i in range(66)), "y"], [[*map(float, row), float(row[0])] for row in x])
    flags = (*ONE, "--epochs=1", "--validation_size=100", "--shuffle_buffer=200")
    whole = train(trainer, *flags, cwd=tmp_path)
    assert nets(whole.named("start")) == "raw:1,ple:1"
    streams = train(trainer, *flags, "--memory_mb=1", cwd=tmp_path)
    assert streams.named("start")[0]["data"].endswith("; streams") and nets(streams.named("start")) == ""
    fits = train(trainer, *flags, "--memory_mb=2", cwd=tmp_path)  # without the encoded numbers
    assert not fits.named("start")[0]["data"].endswith("; streams") and nets(fits.named("start")) == ""
    refused = run(trainer, *flags, "--memory_mb=1", "--ensemble=raw:1,ple:1", cwd=tmp_path, status=1)
    assert "larger than data.memory_mb" in refused.stdout + refused.stderr
    assert nets(train(trainer, *flags, "--bins=64", cwd=tmp_path).named("start")) == ""


def test_what_is_chosen_for_the_model_is_shown(run):
    def chosen(*flags):
        keys = json.loads(run("config", "show", "--json", *flags).stdout)["keys"]
        both = (keys["model.ensemble"], keys["train.ema_decay"])
        assert [key["value"] for key in both] == ["auto", "auto"]
        return tuple(key["chosen"] for key in both)

    assert chosen("--target=y") == ("raw:1,ple:1", "0.99")
    for flags in ((), ("--target=y", "--layers=4,8,2"), ("--target=y", "--hidden=8"), ("--target=y", "--device=gpu:0"),
                  ("--target=y", "--encoding=none"), ("--target=y", "--local_steps=5"),
                  ("--target=y", "--precision=tf32")):
        assert chosen(*flags) == ("raw:1", "0"), flags
    assert chosen("--target=y", "--encoding=ple") == ("ple:1", "0")
    digests = {run("config", "check", "--target=y", *flags).stdout.split()[-1]
               for flags in ((), ("--ensemble=auto",), ("--ema_decay=auto",))}
    assert len(digests) == 1


@pytest.mark.parametrize("task", ["class", "number"])
def test_the_default_of_a_table_serves_all_commands(trainer, tmp_path, task):
    if task == "class":
        mixed(tmp_path)
    else:
        correlated(tmp_path, 300)
    flags = (*ONE, "--train_dir=run", "--epochs=6", "--ignore=day" if task == "class" else "--ignore=x11")
    train(trainer, *flags, "--train_dir=whole", cwd=tmp_path)
    train(trainer, *flags, "--epochs=3", cwd=tmp_path)
    resumed = train(trainer, *flags, cwd=tmp_path)
    assert same_tensors(newest(tmp_path / "whole"), newest(tmp_path / "run")) == []
    evaluated = json.loads(run(trainer, "eval", "run", "d/train.csv", "--json", cwd=tmp_path).stdout)
    rows = list(csv.DictReader(io.StringIO(run(trainer, "predict", "run", "d/train.csv", "--spread",
                                               cwd=tmp_path).stdout)))
    if task == "class":
        right = sum(row["prediction"] == row["y"] for row in rows)
        assert right == round(evaluated["test_accuracy"] * len(rows)) and resumed.done["test_model"] == "best"
    assert any(float(row["spread"]) > 0 for row in rows)
    run(trainer, "export", "run", "--out=m.onnx", cwd=tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    feeds = {}
    for each in session.get_inputs():
        is_text = each.type == "tensor(string)"
        feeds[each.name] = numpy.array([[row[each.name] if is_text else float(row[each.name] or "nan")]
                                        for row in rows], object if is_text else None)
        feeds[each.name] = feeds[each.name] if is_text or each.type == "tensor(double)" else feeds[each.name].astype(
            numpy.float32)
    answers = dict(zip([each.name for each in session.get_outputs()], session.run(None, feeds)))
    if task == "class":
        names = [name for name in rows[0] if name.startswith("probability_")]
        assert numpy.allclose(answers["probabilities"], [[float(row[name]) for name in names] for row in rows],
                              atol=1e-5)
    else:
        said = numpy.array([float(row["prediction"]) for row in rows])
        assert numpy.allclose(answers["prediction"][:, 0], said, rtol=1e-5, atol=1e-5 * numpy.abs(said).max())
    ranked = run(trainer, "explain", "run", "d/train.csv", cwd=tmp_path).stdout
    assert ranked.split()


def log_loss(rows, names, temperature=1):
    """Of rows of probabilities, whose logits are divided by a temperature."""
    losses = []
    for row in rows:
        powers = [float(row[f"probability_{name}"]) ** (1 / temperature) for name in names]
        losses.append(-math.log(powers[names.index(row["y"])] / sum(powers)))
    return sum(losses) / len(losses)


def test_probabilities_are_calibrated(trainer, tmp_path):
    """Of a model that was trained for too long, and of which --final_test and --checkpoint take the last."""
    noisy(tmp_path, 800)
    flags = (*ONE, "--epochs=80", "--final_test=newest", "--test_share=0.4", "--threshold=auto",
             "--validation_size=160")
    done = {}
    for name, more in {"run": ("--calibration=temperature",), "none": ()}.items():
        done[name] = train(trainer, *flags, f"--train_dir={name}", *more, cwd=tmp_path).done
    assert same_tensors(newest(tmp_path / "run"), newest(tmp_path / "none")) == []
    metadata = tensors(newest(tmp_path / "run"))[1]
    temperature = float(metadata["temperature"])
    assert temperature > 1.15 and "temperature" not in tensors(newest(tmp_path / "none"))[1]
    assert math.isclose(done["run"]["temperature"], temperature, rel_tol=1e-12) and "temperature" not in done["none"]
    assert done["run"]["test_loss"] < 0.95 * done["none"]["test_loss"]
    for same in ("test_accuracy", "test_roc_auc", "test_f1"):
        assert done["run"][same] == done["none"][same]

    def predicted(folder):
        text = run(trainer, "predict", folder, "d/train.csv", "--checkpoint=newest", cwd=tmp_path).stdout
        return list(csv.DictReader(io.StringIO(text)))

    rows, raw = predicted("run"), predicted("none")
    assert [row["prediction"] for row in rows] == [row["prediction"] for row in raw]
    assert math.isclose(log_loss(rows, ["no", "yes"]), log_loss(raw, ["no", "yes"], temperature), rel_tol=1e-4)
    evaluated = json.loads(run(trainer, "eval", "run", "d/train.csv", "--json", "--checkpoint=newest",
                               cwd=tmp_path).stdout)
    assert math.isclose(evaluated["test_loss"], log_loss(rows, ["no", "yes"]), rel_tol=1e-4)
    run(trainer, "export", newest(tmp_path / "run"), "--out=m.onnx", cwd=tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    inputs = session.get_inputs()
    feeds = {each.name: numpy.array([[float(row[each.name])] for row in rows],
                                    numpy.float64 if each.type == "tensor(double)" else numpy.float32)
             for each in inputs}
    answers = dict(zip([each.name for each in session.get_outputs()], session.run(None, feeds)))
    assert numpy.allclose(answers["probabilities"][:, 1], [float(row["probability_yes"]) for row in rows], atol=1e-5)
    assert [row["prediction"] for row in rows] == [answer[0] for answer in answers["prediction"]]
    # Who goes on without calibration has a model without a temperature.
    train(trainer, *flags, "--train_dir=run", "--epochs=81", cwd=tmp_path)
    assert "temperature" not in tensors(newest(tmp_path / "run"))[1]


def test_what_has_no_probabilities_is_not_calibrated(trainer, tmp_path):
    correlated(tmp_path, 200)
    assert "temperature" not in train(trainer, *ONE, "--epochs=2", "--train_dir=run", "--calibration=temperature",
                                      cwd=tmp_path).done
    assert "temperature" not in tensors(newest(tmp_path / "run"))[1]
    refused = run(trainer, "config", "check", "--calibration=temperature", cwd=tmp_path, status=None)
    assert refused.status != 0 and "there is no target" in refused.stdout + refused.stderr
