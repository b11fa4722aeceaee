"""Intervals around predicted numbers (--interval): their coverage, where they are stored, and who gives them."""

import csv
import io
import json
import random

import numpy
import onnxruntime
import pytest

from runs import newest, run, tensors, train
from served import Served

QUICK = ("--data_dir=d", "--log_steps=0", "--save_summaries_steps=0", "--epochs=60", "--train_dir=run")


def write(path, count, seed, targets=("y",)):
    """Noise that is skewed, and unequal on both sides: intervals are, too."""
    numbers = random.Random(seed)
    path.parent.mkdir(exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["a", "b", *targets])
        for _ in range(count):
            a, b = numbers.gauss(0, 1), numbers.gauss(5, 2)
            table.writerow([f"{a:.4f}", f"{b:.4f}", *(f"{(k + 1) * (3 * a + b + numbers.expovariate(1)):.4f}"
                                                      for k in range(len(targets)))])


def predicted(trainer, folder, *flags):
    return list(csv.DictReader(io.StringIO(run(trainer, "predict", "run", *flags, cwd=folder).stdout)))


def stored(folder):
    text = tensors(folder / "run/best.safetensors")[1]["interval"].split()
    return float(text[0]), [tuple(map(float, text[i:i + 2])) for i in range(1, len(text), 2)]


@pytest.mark.parametrize("coverage, targets, flags", [(.9, ("y",), ()), (.5, ("y", "z"), ()), (.8, ("y",), (
    "--loss=quantile", "--quantile=0.8", "--hidden=8"))])
def test_intervals_contain_what_they_promise(trainer, tmp_path, coverage, targets, flags):
    write(tmp_path / "d/train.csv", 3000, 1, targets)
    write(tmp_path / "d/test.csv", 4000, 2, targets)
    done = train(trainer, *QUICK, f"--target={','.join(targets)}", f"--interval={coverage}", *flags,
                 cwd=tmp_path).done
    told, bounds = stored(tmp_path)
    assert told == coverage and len(bounds) == len(targets)
    rows = predicted(trainer, tmp_path, "d/test.csv")
    inside = []
    for target, (low, high) in zip(targets, bounds):
        ending = f"_{target}" if len(targets) > 1 else ""
        of = {name: numpy.array([float(row[name + ending]) for row in rows])
              for name in ("prediction", "interval_low", "interval_high")}
        assert of["interval_low"] == pytest.approx(of["prediction"] + low, rel=1e-6, abs=1e-6)
        assert of["interval_high"] == pytest.approx(of["prediction"] + high, rel=1e-6, abs=1e-6)
        truth = numpy.array([float(row[target]) for row in rows])
        inside.append((truth >= of["interval_low"]) & (truth <= of["interval_high"]))
        # Of 4,000 rows chance moves the share by 0.8%, and of 450 rows for validation by 2.4%.
        assert abs(inside[-1].mean() - coverage) < .08
        above, below = (truth > of["interval_high"]).mean(), (truth < of["interval_low"]).mean()
        assert abs(above - below) < .06
    # The last lines, and eval of the best model, say the share on the test rows.
    assert done["interval"] == coverage and done["test_coverage"] == pytest.approx(numpy.mean(inside), abs=2e-3)
    (said,) = run(trainer, "eval", "run", "--data_dir=d", "--json", cwd=tmp_path).events
    for name in ("interval", "test_coverage", "interval_low", "interval_high"):
        assert said[name] == done[name], name
    assert numpy.allclose(list(zip(said["interval_low"], said["interval_high"])), bounds, rtol=1e-12)
    text = run(trainer, "eval", "run", "--data_dir=d", cwd=tmp_path).stdout
    assert f"intervals for {100 * coverage:g}% contain {100 * done['test_coverage']:.2f}% of the test's numbers" in text
    run(trainer, "predict", "run", "d/test.csv", "--out=once.csv", cwd=tmp_path)
    assert predicted(trainer, tmp_path, "once.csv") == rows  # columns of an earlier prediction are replaced


def test_every_server_route_and_onnx_give_them(trainer, tmp_path):
    for name, targets in (("one", ("y",)), ("two", ("y", "z"))):
        write(tmp_path / name / "train.csv", 600, 1, targets)
        train(trainer, f"--data_dir={name}", *QUICK[1:-1], f"--target={','.join(targets)}", "--interval=0.9",
              f"--train_dir=run_{name}", cwd=tmp_path)
    write(tmp_path / "few.csv", 5, 3, ())
    with Served(trainer, "one=run_one", "two=run_two", cwd=tmp_path) as server:
        for name, targets in (("one", 1), ("two", 2)):
            rows = list(csv.DictReader(io.StringIO(run(trainer, "predict", f"run_{name}", "few.csv",
                                                       cwd=tmp_path).stdout)))
            names = ["interval_low", "interval_high"] if targets == 1 else [
                "interval_low_y", "interval_high_y", "interval_low_z", "interval_high_z"]
            truth = [[float(row[column]) for column in names] for row in rows]
            body = {"instances": [[float(row["a"]), float(row["b"])] for row in rows]}
            answer = server.post(f"/v1/models/{name}:predict", body)
            assert [numpy.ravel(row).tolist() for row in answer["intervals"]] == [
                pytest.approx(row, rel=1e-6) for row in truth]
            assert numpy.shape(answer["intervals"]) == ((5, 2) if targets == 1 else (5, 2, 2))
            assert server.post(f"/v1/models/{name}:regress", {"examples": body["instances"]})["intervals"] == \
                answer["intervals"]
            inputs = [{"name": column, "datatype": "FP64", "shape": [5], "data": [float(row[column]) for row in rows]}
                      for column in "ab"]
            outputs = {output["name"]: output["data"] for output in
                       server.post(f"/v2/models/{name}/infer", {"inputs": inputs})["outputs"]}
            both = numpy.stack([numpy.reshape(outputs[column], (5, targets)) for column in
                                ("interval_low", "interval_high")], axis=2)
            assert numpy.allclose(both.reshape(5, -1), truth, rtol=1e-6)
            status, content, _ = server.ask("POST", f"/predict/{name}", (tmp_path / "few.csv").read_bytes())
            assert status == 200 and list(csv.DictReader(io.StringIO(content.decode()))) == rows
            run(trainer, "export", f"run_{name}", "--out=m.onnx", cwd=tmp_path)
            session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
            low, high = session.run(["interval_low", "interval_high"], {
                column: numpy.array([[float(row[column])] for row in rows]) for column in "ab"})
            assert numpy.allclose(numpy.stack([low, high], axis=2).reshape(5, -1), truth, atol=1e-5)
            assert json.loads(server.get(f"/v2/models/{name}")[1])["outputs"][1:3] == [
                {"name": column, "datatype": "FP64", "shape": [-1, targets]} for column in
                ("interval_low", "interval_high")]


def test_what_has_no_intervals(trainer, tmp_path):
    write(tmp_path / "d/train.csv", 200, 1)
    with open(tmp_path / "d/train.csv") as file:
        rows = list(csv.DictReader(file))
    (tmp_path / "c").mkdir()
    with open(tmp_path / "c/train.csv", "w") as file:
        file.write("a,kind\n" + "".join(f"{row['a']},{'yes' if float(row['y']) > 5 else 'no'}\n" for row in rows))
    few = train(trainer, *QUICK, "--target=y", "--interval=0.99", cwd=tmp_path).done
    assert "interval" not in few and "interval" not in tensors(tmp_path / "run/best.safetensors")[1]
    for flags, status, words in (
            (("--data_dir=c", "--target=kind", "--interval=0.9"), 1, "the data have classes to learn"),
            (("--data_dir=d", "--target=inputs", "--interval=0.9"), 2, "there is no such target"),
            (("--data_source=synthetic", "--interval=0.9"), 2, "there is no such target"),
            (("--data_dir=d", "--target=y", "--interval=1"), 2, "from 0 to less than 1")):
        result = run(trainer, *flags, "--train_dir=other", cwd=tmp_path, status=status)
        assert words in result.stdout + result.stderr, flags
    # Who goes on without has none; who goes on with one, has one.
    train(trainer, *QUICK, "--target=y", "--interval=0.8", "--epochs=3", "--train_dir=again", cwd=tmp_path)
    assert "test_coverage" in train(trainer, *QUICK, "--target=y", "--interval=0.8", "--epochs=4",
                                    "--train_dir=again", cwd=tmp_path).done
    assert "interval" in tensors(newest(tmp_path / "again"))[1]
    train(trainer, *QUICK, "--target=y", "--epochs=5", "--train_dir=again", cwd=tmp_path)
    assert "interval" not in tensors(newest(tmp_path / "again"))[1]


def test_the_best_model_has_its_own_temperature(trainer, tmp_path):
    """The file of the best model is written later than it was best: what came of later validations is not its own."""
    numbers = random.Random(4)
    (tmp_path / "d").mkdir()
    with open(tmp_path / "d/train.csv", "w") as file:
        file.write("a,b,kind\n")
        for _ in range(400):
            a, b = numbers.gauss(0, 1), numbers.gauss(0, 1)
            file.write(f"{a:.4f},{b:.4f},{'yes' if a * b + numbers.gauss(0, 1) > 0 else 'no'}\n")
    done = train(trainer, *QUICK, "--target=kind", "--calibration=temperature", cwd=tmp_path).done
    (said,) = run(trainer, "eval", "run", "--data_dir=d", "--json", cwd=tmp_path).events
    assert done["temperature"] == said["temperature"] and done["test_loss"] == pytest.approx(said["test_loss"])
