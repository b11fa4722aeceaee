"""What each column contributes to a prediction, against all subsets of columns, by the command and by the server; and
the spread of an ensemble in each of the server's routes."""

import csv
import io
import itertools
import json
import math
import random

import pytest

from runs import SMALL, run, train, wait_for
from served import Served

QUICK = ("--data_dir=d", "--log_steps=0", "--save_summaries_steps=0", "--epochs=20", "--train_dir=run")
COLUMNS = ("a", "b", "c", "when")


def rows_of(count, seed=3):
    numbers, made = random.Random(seed), []
    for _ in range(count):
        a, b, c = numbers.gauss(0, 1), numbers.gauss(5, 2), numbers.choice("xyz")
        signal = a * (b - 5) + 2 * (c == "x") * a + numbers.gauss(0, .2)
        made.append({"a": f"{a:.4f}" if numbers.random() < .9 else "", "b": f"{b:.4f}", "c": c,
                     "when": f"2024-{numbers.randint(1, 12):02}-{numbers.randint(1, 28):02}", "y": f"{signal:.4f}",
                     "z": f"{signal + a:.4f}", "kind": "high" if signal > 1 else "mid" if signal > -.5 else "low"})
    return made


def write(path, rows, columns):
    path.parent.mkdir(exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, columns, extrasaction="ignore")
        table.writeheader()
        table.writerows(rows)


def predicted(trainer, folder, *flags):
    return list(csv.DictReader(io.StringIO(run(trainer, "predict", "run", *flags, cwd=folder).stdout)))


def explained(trainer, folder, *flags):
    (told,) = run(trainer, "explain", "run", *flags, "--json", cwd=folder).events
    return told


def exact(trainer, folder, row, background, names):
    """Shapley values by all subsets of columns. names: of the prediction columns; returns values and means by name."""
    subsets = [subset for size in range(len(COLUMNS) + 1) for subset in itertools.combinations(COLUMNS, size)]
    write(folder / "mixed.csv", [{**other, **{name: row[name] for name in subset}} for subset in subsets
                                 for other in background], COLUMNS)
    answers = iter(predicted(trainer, folder, "mixed.csv"))
    worth = {subset: {name: 0 for name in names} for subset in subsets}
    for subset in subsets:
        for _ in background:
            answer = next(answers)
            for name in names:
                worth[subset][name] += float(answer[name]) / len(background)
    found = {name: {} for name in names}
    for name, column in itertools.product(names, COLUMNS):
        total = 0
        for subset in subsets:
            if column not in subset:
                larger = tuple(each for each in COLUMNS if each in subset or each == column)
                weight = math.factorial(len(subset)) * math.factorial(len(COLUMNS) - len(subset) - 1)
                total += weight / math.factorial(len(COLUMNS)) * (worth[larger][name] - worth[subset][name])
        found[name][column] = total
    return found, worth[()]


@pytest.mark.parametrize("target, flags", [("kind", ()), ("y", ()), ("y,z", ()), ("kind", ("--calibration=temperature",
                                                                                          "--hidden=8"))])
def test_contributions_are_those_of_all_subsets(trainer, tmp_path, target, flags):
    rows = rows_of(400)
    write(tmp_path / "d/train.csv", rows, (*COLUMNS, *target.split(",")))
    write(tmp_path / "few.csv", rows[:12], COLUMNS)
    train(trainer, *QUICK, f"--target={target}", *flags, cwd=tmp_path)
    kind = predicted(trainer, tmp_path, "few.csv")[4]
    told = explained(trainer, tmp_path, "few.csv", "--row=5", "--samples=2000")
    assert told["row"] == 5 and told["background_rows"] == 12 and 2000 <= told["samples"] < 2024
    names = [f"probability_{kind['prediction']}"] if target == "kind" else \
        ["prediction"] if target == "y" else ["prediction_y", "prediction_z"]
    truth, means = exact(trainer, tmp_path, rows[4], rows[:12], names)
    assert len(told["outputs"]) == len(names)
    for output, name in zip(told["outputs"], names):
        assert (output["class"] == kind["prediction"]) if target == "kind" else output["target"] in name + "y"
        value = output["probability" if target == "kind" else "prediction"]
        assert value == pytest.approx(float(kind[name]), abs=1e-6)
        assert output["mean"] == pytest.approx(means[name], abs=1e-6)
        found = {column["column"]: column for column in output["columns"]}
        assert set(found) == set(COLUMNS)
        assert sum(column["contribution"] for column in found.values()) == pytest.approx(value - output["mean"],
                                                                                        abs=1e-6)
        largest = max(map(abs, truth[name].values()))
        for column in COLUMNS:
            error = found[column]["error"]
            assert abs(found[column]["contribution"] - truth[name][column]) <= 5 * error + 1e-6, (column, truth)
            assert error <= .05 * largest
        order = [abs(column["contribution"]) for column in output["columns"]]
        assert order == sorted(order, reverse=True)


def test_a_sum_of_columns_is_explained_exactly(trainer, tmp_path):
    rows = rows_of(300)
    write(tmp_path / "d/train.csv", rows, (*COLUMNS, "y"))
    write(tmp_path / "few.csv", rows[:9], COLUMNS)
    train(trainer, *QUICK, "--target=y", "--hidden=", "--optimizer=sgd", cwd=tmp_path)
    (output,) = explained(trainer, tmp_path, "few.csv", "--row=2", "--samples=1")["outputs"]
    for column in output["columns"]:
        write(tmp_path / "own.csv", [{**other, column["column"]: rows[1][column["column"]]} for other in rows[:9]],
              COLUMNS)
        with_own, without = (sum(float(row["prediction"]) for row in predicted(trainer, tmp_path, name)) / 9
                             for name in ("own.csv", "few.csv"))
        assert column["contribution"] == pytest.approx(with_own - without, abs=2e-6)
        assert column["error"] < 1e-6


def test_rows_of_a_file_and_seeds(trainer, tmp_path):
    rows = rows_of(400)
    write(tmp_path / "d/train.csv", rows, (*COLUMNS, "kind"))
    write(tmp_path / "few.csv", rows[:30], COLUMNS)
    train(trainer, *QUICK, "--target=kind", "--test_share=0.2", cwd=tmp_path)
    answers = predicted(trainer, tmp_path, "few.csv", "--explain", "--background=few.csv")
    assert list(answers[0])[-6:] == ["explanation_mean", *(f"contribution_{name}" for name in COLUMNS),
                                     "explanation_error"]
    for answer in answers:
        parts = float(answer["explanation_mean"]) + sum(float(answer[f"contribution_{name}"]) for name in COLUMNS)
        assert parts == pytest.approx(float(answer[f"probability_{answer['prediction']}"]), abs=1e-6)
        assert 0 <= float(answer["explanation_error"]) < .1
    # The same as for the row alone; another seed draws other orders; more of them tell more.
    (one,) = explained(trainer, tmp_path, "few.csv", "--row=7")["outputs"]
    assert {column["column"]: pytest.approx(column["contribution"], rel=1e-6, abs=1e-9) for column in one["columns"]
            } == {name: float(answers[6][f"contribution_{name}"]) for name in COLUMNS}
    assert explained(trainer, tmp_path, "few.csv", "--row=7")["outputs"] == [one]
    assert explained(trainer, tmp_path, "few.csv", "--row=7", "--seed=2")["outputs"] != [one]
    (more,) = explained(trainer, tmp_path, "few.csv", "--row=7", "--samples=8000")["outputs"]
    assert max(column["error"] for column in more["columns"]) < max(column["error"] for column in one["columns"]) / 2
    # An earlier explanation is replaced; without --background the rows kept in the model are compared with.
    (tmp_path / "again.csv").write_text(run(trainer, "predict", "run", "few.csv", "--explain", "--background=few.csv",
                                            cwd=tmp_path).stdout)
    again = predicted(trainer, tmp_path, "again.csv", "--explain", "--background=few.csv")
    assert again == answers
    kept = run(trainer, "predict", "run", "few.csv", "--explain", cwd=tmp_path)
    assert "only 4 rows" in kept.stderr and "contribution_when" in kept.stdout
    # The test rows, as for the importance of columns; as text.
    text = run(trainer, "explain", "run", "--data_dir=d", "--row=3", cwd=tmp_path).stdout
    assert "row 3: the probability of " in text and "the mean over " in text and "when " in text


def test_rows_kept_in_the_model_are_those_of_a_file(trainer, tmp_path):
    """A column that may be missing comes before the category, and has no place of its own in most rows."""
    rows = [{**row, "when": f"2024-01-01 {i // 60:02}:{i % 60:02}:00", "c": row["c"] if i % 20 == 0 else "x"}
            for i, row in enumerate(rows_of(400))]
    write(tmp_path / "d/train.csv", rows, (*COLUMNS, "y"))
    write(tmp_path / "kept.csv", rows[-8:], COLUMNS)
    write(tmp_path / "few.csv", rows[:30], COLUMNS)
    train(trainer, *QUICK, "--target=y", "--hidden=", "--optimizer=sgd", "--time=when", "--test_share=0",
          "--validation_size=8", "--kept_rows=8", cwd=tmp_path)
    kept = predicted(trainer, tmp_path, "few.csv", "--explain")
    file = predicted(trainer, tmp_path, "few.csv", "--explain", "--background=kept.csv")
    of_c = [float(row["contribution_c"]) for row in kept]
    assert all(abs(value) < 1e-6 for value, row in zip(of_c, rows) if row["c"] == "x") and max(map(abs, of_c)) > 1e-3
    for here, there in zip(kept, file):
        for name in ("explanation_mean", *(f"contribution_{column}" for column in "abc")):
            assert float(here[name]) == pytest.approx(float(there[name]), abs=1e-5), name
    with Served(trainer, "run", cwd=tmp_path) as server:
        answer = server.post("/v1/models/model:explain", {"instances": [
            {**row, "when": rows[i]["when"]} for i, row in enumerate(instances(rows[:30]))]})
        assert answer["background_rows"] == 8
        assert [one["contributions"]["c"] for one in answer["explanations"]] == pytest.approx(of_c, abs=1e-5)


def test_a_file_keeps_columns_that_only_look_like_an_explanation(trainer, tmp_path):
    own = ("contribution_margin", "contribution_total", "explanation_error_of_mine", "explanation_mean_")
    rows = [{**row, "contribution_total": row["y"], **{name: str(i) for name in (own[0], *own[2:])}}
            for i, row in enumerate(rows_of(200))]
    for name, targets in (("one", "contribution_total"), ("two", "y,contribution_total")):
        write(tmp_path / name / "train.csv", rows, (*COLUMNS, *targets.split(",")))
        train(trainer, *QUICK[1:-1], f"--data_dir={name}", "--epochs=1", f"--target={targets}", f"--train_dir={name}",
              cwd=tmp_path)
        write(tmp_path / "few.csv", rows[:3], (*COLUMNS, *own))
        first = run(trainer, "predict", name, "few.csv", "--explain", cwd=tmp_path).stdout
        header = next(csv.reader(io.StringIO(first)))
        assert header[:len(COLUMNS) + len(own)] == [*COLUMNS, *own]
        assert ("contribution_y_c" if name == "two" else "contribution_c") in header
        (tmp_path / "again.csv").write_text(first)
        assert run(trainer, "predict", name, "again.csv", "--explain", cwd=tmp_path).stdout == first


def test_the_background_is_of_the_whole_file(trainer, tmp_path):
    write(tmp_path / "d/train.csv", [{"a": i % 2, "y": 10 * (i % 2) + .01 * i} for i in range(200)], ("a", "y"))
    (tmp_path / "many.csv").write_text("a\n" + "0\n" * 1000000 + "1\n" * 1000000)
    (tmp_path / "one.csv").write_text("a\n1\n")
    train(trainer, *QUICK, "--target=y", "--hidden=", cwd=tmp_path)
    (output,) = explained(trainer, tmp_path, "one.csv", "--row=1", "--background=many.csv")["outputs"]
    low, high = (float(row["prediction"]) for row in (run_on(trainer, tmp_path, "0"), run_on(trainer, tmp_path, "1")))
    assert .25 < (output["mean"] - low) / (high - low) < .75


def run_on(trainer, folder, value):
    (folder / "value.csv").write_text(f"a\n{value}\n")
    return predicted(trainer, folder, "value.csv")[0]


def test_what_is_not_explained(trainer, tmp_path):
    rows = rows_of(200)
    write(tmp_path / "d/train.csv", rows, (*COLUMNS, "kind"))
    write(tmp_path / "one.csv", rows[:1], COLUMNS)
    train(trainer, *QUICK, "--target=kind", "--kept_rows=0", cwd=tmp_path)
    train(trainer, *QUICK, "--target=inputs", "--hidden=2", "--ignore=kind", "--train_dir=same", cwd=tmp_path)
    train(trainer, *SMALL, "--train_steps=1", "--train_dir=digits", cwd=tmp_path)
    for arguments, status, words in (
            (("explain", "run", "one.csv", "--row=2"), 1, "has 1 rows, and --row=2"),
            (("explain", "run", "one.csv", "--row=1"), 1, "give --background=FILE"),
            (("explain", "run", "--data_dir=d", "--row=99999"), 1, "and --row=99999"),
            (("explain", "run", "one.csv", "--row=0"), 2, "the number of a row, from 1"),
            (("explain", "run", "one.csv", "--samples=5"), 2, "add --row=N"),
            (("explain", "run", "one.csv", "--row=1", "--repeats=5"), 2, "use --samples"),
            (("explain", "run", "one.csv", "--row=1", "--samples=0"), 2, "from 1 to 1000000"),
            (("explain", "same", "one.csv", "--row=1"), 1, "learns its inputs"),
            (("explain", "digits", "--row=1"), 1, "is a model of pictures"),
            (("predict", "run", "one.csv", "--explain"), 1, "keeps no rows to compare with"),
            (("predict", "run", "one.csv", "--samples=5"), 2, "add --explain"),
            (("predict", "same", "one.csv", "--explain"), 1, "learns its inputs"),
            (("predict", "digits", "one.csv", "--explain"), 1, "is a model of pictures")):
        result = run(trainer, *arguments, cwd=tmp_path, status=status)
        assert words in result.stdout + result.stderr, arguments


# --- the server ---


@pytest.fixture(scope="module")
def models(trainer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    rows = rows_of(400)
    for name, target in (("kind", "kind"), ("y", "y"), ("both", "y,z")):
        write(folder / name / "train.csv", rows, (*COLUMNS, *target.split(",")))
        train(trainer, f"--data_dir={name}", *QUICK[1:-1], f"--target={target}", f"--train_dir=run_{name}", cwd=folder)
    train(trainer, "--data_dir=kind", *QUICK[1:-1], "--target=kind", "--hidden=4", "--kept_rows=0",
          "--train_dir=single", cwd=folder)
    train(trainer, *SMALL, "--train_steps=20", "--ensemble=raw:2", "--train_dir=digits", cwd=folder)
    write(folder / "few.csv", rows[:30], COLUMNS)
    return folder


@pytest.fixture(scope="module")
def served(trainer, models):
    with Served(trainer, "kind=run_kind", "y=run_y", "both=run_both", "single=single", "digits=digits",
                "--reference=kind=few.csv,y=few.csv,both=few.csv", cwd=models) as server:
        yield server


def instances(rows):
    return [{name: float(row[name]) if name in "ab" and row[name] else row[name] or None for name in COLUMNS}
            for row in rows]


def test_the_server_explains_as_the_command_does(trainer, models, served):
    rows = rows_of(3)
    for name in ("kind", "y", "both"):
        answer = served.post(f"/v1/models/{name}:explain", {"instances": instances(rows)})
        assert answer["predictions"] == served.post(f"/v1/models/{name}:predict",
                                                    {"instances": instances(rows)})["predictions"]
        assert (answer["background_rows"], answer["samples"]) == (30, 420)
        by_column = served.post(f"/v1/models/{name}:explain",
                                {"inputs": {column: [row[column] for row in instances(rows)] for column in COLUMNS}})
        assert by_column == answer
        for number, explanations in enumerate(answer["explanations"], 1):
            told = run(trainer, "explain", f"run_{name}", "few.csv", f"--row={number}", "--json", cwd=models).events[0]
            one = explanations if isinstance(explanations, list) else [explanations]
            assert len(one) == len(told["outputs"]) == (2 if name == "both" else 1)
            for here, there in zip(one, told["outputs"]):
                assert {key: here[key] for key in here if key in ("class", "target")} == {
                    key: there[key] for key in there if key in ("class", "target")}
                for column in there["columns"]:
                    assert here["contributions"][column["column"]] == pytest.approx(column["contribution"], rel=1e-5,
                                                                                    abs=1e-7)
                    assert here["errors"][column["column"]] == pytest.approx(column["error"], rel=1e-3, abs=1e-6)
                value = here["probability" if name == "kind" else "prediction"]
                assert sum(here["contributions"].values()) == pytest.approx(value - here["mean"], abs=1e-5)


def test_the_server_counts_and_limits_explanations(served):
    before = served.metric("trainer_serve_explained_rows_total")
    served.post("/v1/models/y:explain", {"instances": instances(rows_of(2))}, Trainer_Try="1")
    assert served.metric("trainer_serve_explained_rows_total") == before
    served.post("/v1/models/y:explain", {"instances": instances(rows_of(2))})
    assert served.metric("trainer_serve_explained_rows_total") == before + 2
    assert served.post("/v1/models/y:explain", {"instances": []})["explanations"] == []
    most = (1 << 20) // (420 * len(COLUMNS))
    error = served.post("/v1/models/y:explain", {"instances": instances(rows_of(most + 1))}, status=413)["error"]
    assert "weights, send at most" in error and f"send at most {most} at a time" in error
    assert "--reference=FILE" in served.error("/v1/models/single:explain", {"instances": instances(rows_of(1))})
    assert "model of pictures" in served.error("/v1/models/digits:explain", {"instances": [[0] * 784]})
    assert "column" in served.error("/v1/models/y:explain", {"instances": [{"a": 1}]})


def test_explanations_are_charged_to_the_request(trainer, tmp_path):
    """One request may take a quarter of --max_memory_mb: the way from row to row takes more with 2,500 columns."""
    numbers, names = random.Random(5), [f"c{i}" for i in range(2500)]
    write(tmp_path / "d/train.csv", [{name: f"{numbers.random():.2f}" for name in (*names, "y")} for _ in range(40)],
          (*names, "y"))
    train(trainer, *QUICK, "--epochs=1", "--target=y", cwd=tmp_path)
    with Served(trainer, "run", "--max_memory_mb=16", "--max_body_mb=4", cwd=tmp_path) as server:
        body = {"instances": [[.5] * 2500]}
        server.post("/v1/models/model:predict", body)
        assert "--max_memory_mb" in server.post("/v1/models/model:explain", body, status=413)["error"]
        assert "at most 1 at a time" in server.post("/v1/models/model:explain", {"instances": [[.5] * 2500] * 2},
                                                    status=413)["error"]
        server.post("/v1/models/model:predict", body)


def test_rows_to_compare_with_belong_to_the_models_memory(trainer, tmp_path):
    numbers, names = random.Random(5), [f"c{i}" for i in range(2500)]
    write(tmp_path / "d/train.csv", [{name: f"{numbers.random():.2f}" for name in (*names, "y")} for _ in range(120)],
          (*names, "y"))
    train(trainer, *QUICK, "--epochs=1", "--target=y", "--hidden=", "--encoding=none", "--kept_rows=0", cwd=tmp_path)
    flags = ("--workers=1", "--max_models_mb=1")
    with Served(trainer, "run", *flags, cwd=tmp_path):
        pass
    refused = run(trainer, "serve", "run", *flags, "--reference=d/train.csv", "--http=127.0.0.1:0", cwd=tmp_path,
                  status=1)
    assert "raise --max_models_mb" in refused.stderr


def test_explanations_wait_for_predictions(trainer, tmp_path):
    rows = rows_of(100)
    write(tmp_path / "d/train.csv", rows, (*COLUMNS, "y"))
    train(trainer, *QUICK, "--epochs=1", "--target=y", "--hidden=2048,2048", cwd=tmp_path)
    with Served(trainer, "run", "--reference=d/train.csv", "--workers=2", cwd=tmp_path) as server:
        assert "send at most " in server.post("/v1/models/model:explain", {"instances": instances(rows_of(200))},
                                              status=413)["error"]
        body = json.dumps({"instances": instances(rows[:20])})
        asked = [server.connect() for _ in range(5)]
        for connection in asked:
            connection.request("POST", "/v1/models/model:explain", body)
        wait_for(lambda: server.metric("trainer_serve_queue_requests") == 4, "all but one to wait")
        for _ in range(10):
            server.post("/v1/models/model:predict", {"instances": instances(rows[:1])})
        assert server.metric("trainer_serve_explained_rows_total") <= 20
        for connection in asked:
            connection.close()
        wait_for(lambda: server.metric("trainer_serve_queue_requests") == 0, "the queue to be empty")
        assert server.metric("trainer_serve_explained_rows_total") <= 40


@pytest.mark.parametrize("name", ["kind", "y", "both"])
def test_every_route_has_the_spread_if_asked(trainer, models, served, name):
    rows = rows_of(30)[:3]
    write(models / "three.csv", rows, COLUMNS)
    told = list(csv.DictReader(io.StringIO(
        run(trainer, "predict", f"run_{name}", "three.csv", "--spread", cwd=models).stdout)))
    names = [column for column in told[0] if column.startswith("spread")]
    truth = [[float(row[column]) for column in names] for row in told]
    assert len(names) == (2 if name == "both" else 1) and all(value > 0 for row in truth for value in row)

    def same(values):
        flat = [value if isinstance(value, list) else [value] for value in values]
        assert [pytest.approx(row, rel=2e-3) for row in truth] == flat

    ask = {"instances": instances(rows), "parameters": {"spread": True}}
    answer = served.post(f"/v1/models/{name}:predict", ask)
    same(answer["spread"])
    same(served.post(f"/v1/models/{name}:explain", ask)["spread"])
    verb, key = ("classify", "examples") if name == "kind" else ("regress", "examples")
    same(served.post(f"/v1/models/{name}:{verb}", {key: ask["instances"], "parameters": {"spread": True}})["spread"])
    assert set(served.post(f"/v1/models/{name}:predict", {"instances": instances(rows)})) == {"predictions"}
    status, content, _ = served.ask("POST", f"/predict/{name}?spread=true", (models / "three.csv").read_bytes())
    assert status == 200 and list(csv.DictReader(io.StringIO(content.decode()))) == told
    inputs = [{"name": column, "datatype": "BYTES", "shape": [3], "data": [row[column] for row in rows]}
              for column in COLUMNS]
    for extra in ({"parameters": {"spread": True}}, {"outputs": [{"name": "spread"}]}):
        answer = served.post(f"/v2/models/{name}/infer", {"inputs": inputs, **extra})
        (spread,) = [output for output in answer["outputs"] if output["name"] == "spread"]
        width = len(names)
        same([spread["data"][i:i + width] for i in range(0, len(spread["data"]), width)])
        assert spread["shape"] == ([3, 2] if name == "both" else [3] if name == "kind" else [3, 1])
        assert len(answer["outputs"]) == (1 if "outputs" in extra else 4 if name == "kind" else 2)
    plain = served.post(f"/v2/models/{name}/infer", {"inputs": inputs})
    assert "spread" not in [output["name"] for output in plain["outputs"]]
    outputs = json.loads(served.get(f"/v2/models/{name}")[1])["outputs"]
    assert outputs[-1]["name"] == "spread" and outputs[-1]["datatype"] == "FP64"


def test_the_spread_of_pictures(models, served):
    pixels = [[(i * 7 + row) % 256 for i in range(784)] for row in range(70)]  # 64 are a batch of their own
    whole = served.post("/v1/models/digits:predict", {"instances": pixels, "parameters": {"spread": True}})
    parts = served.post("/v1/models/digits:predict", {"instances": [[value / 255 + (i == 0) * .001 for i, value in
                                                                     enumerate(row)] for row in pixels],
                                                      "parameters": {"spread": True}})
    head = json.dumps({"inputs": [{"name": "images", "datatype": "UINT8", "shape": [70, 784],
                                   "parameters": {"binary_data_size": 70 * 784}}],
                       "parameters": {"spread": True}}).encode()
    lent = served.post("/v2/models/digits/infer", head + b"".join(map(bytes, pixels)),
                       Inference_Header_Content_Length=str(len(head)))
    (spread,) = [output["data"] for output in lent["outputs"] if output["name"] == "spread"]
    assert len(whole["spread"]) == 70 and max(whole["spread"]) > 0
    assert spread == pytest.approx(whole["spread"], rel=1e-3, abs=1e-7)
    assert parts["spread"] == pytest.approx(whole["spread"], rel=.1, abs=1e-3)
    picture = b"P5 28 28 255\n" + bytes(pixels[0])
    assert served.post("/predict/digits?spread=true", picture)["spread"] == pytest.approx(whole["spread"][0], rel=1e-3,
                                                                                         abs=1e-7)


def test_what_has_no_spread(served):
    for path, body in (("/v1/models/single:predict", {"instances": instances(rows_of(1)),
                                                      "parameters": {"spread": True}}),
                       ("/predict/single?spread=true", b"a,b,c,when\n1,2,x,2024-01-01\n"),
                       ("/v2/models/single/infer", {"inputs": [], "parameters": {"spread": True}})):
        assert "is a single net" in served.error(path, body)
    assert "not true or false" in served.error("/v1/models/kind:predict",
                                               {"instances": instances(rows_of(1)), "parameters": {"spread": "yes"}})
    assert "not true or false" in served.error("/predict/kind?spread=maybe", b"a,b,c,when\n1,2,x,2024-01-01\n")
