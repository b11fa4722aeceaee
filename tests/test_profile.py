"""--profile and `trainer profile`: Chrome traces of real runs, parsed by Python's own JSON reader."""
import collections
import json

import pytest

from clusters import Cluster
from runs import SMALL


def events(path):
    """Checks what a reader of the Trace Event Format relies on; returns the spans by (process, thread)."""
    trace = json.loads(path.read_text())
    spans, processes = collections.defaultdict(list), {}
    for event in trace["traceEvents"]:
        assert event["ph"] in ("M", "X", "s", "f"), event
        assert isinstance(event["pid"], int)
        if event["ph"] == "M" and event["name"] == "process_name":
            processes[event["pid"]] = event["args"]["name"]
        if event["ph"] == "X":
            assert event["dur"] >= 0 and event["ts"] >= 0
            spans[event["pid"], event["tid"]].append(event)
    assert {pid for pid, _ in spans} == set(processes)
    return trace["traceEvents"], {key: sorted(of, key=lambda e: (e["ts"], -e["dur"])) for key, of in spans.items()}, \
        processes


def assert_nested(spans):
    """Within a thread spans are nested or disjoint; they never overlap partially (except for rounding)."""
    for of in spans.values():
        within = []
        for span in of:
            while within and within[-1] <= span["ts"] + 0.002:
                within.pop()
            end = span["ts"] + span["dur"]
            assert not within or end <= within[-1] + 0.002, span
            within.append(end)


def names(spans):
    return {span["name"] for of in spans.values() for span in of}


TWO_THREADS = tuple(flag for flag in SMALL if "threads" not in flag) + ("--num_threads=2",)


def test_a_local_run(run, tmp_path):
    run(*TWO_THREADS, "--train_steps=200", "--validate_steps=100", "--save_summaries_steps=0", "--train_dir=kept",
        "--profile=p.json")
    _, spans, processes = events(tmp_path / "p.json")
    assert list(processes.values()) == ["local"]
    assert_nested(spans)
    assert {"forward", "backward", "index batch", "validate", "evaluate", "write checkpoint", "train"} <= names(spans)
    assert sum(span["name"] == "backward" for of in spans.values() for span in of) == 400, "each step on each thread"
    assert not (tmp_path / "p.json.part").exists()


def test_without_the_flag_nothing_is_written(run, tmp_path):
    run(*SMALL, "--train_steps=5")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("issync", (0, 1))
@pytest.mark.full(but=("1",))
def test_a_cluster_is_one_trace(run, tmp_path, issync):
    slow = [flag for flag in SMALL if "batch_size" not in flag] + ["--batch_size=400"]
    run("cluster", "--ps=2", "--workers=2", f"--issync={issync}", *slow, "--train_steps=300", "--validate_steps=50",
        "--save_steps=50", "--train_dir=kept", "--learning_rate=0.05", "--profile=p.json", timeout=600)
    all_events, spans, processes = events(tmp_path / "p.json")
    assert sorted(processes.values()) == ["ps 0", "ps 1", "worker 0", "worker 1"]
    assert_nested(spans)
    assert {"compute", "send push", "wait for an answer", "receive answer", "push", "receive push", "send changes",
            "take snapshot", "write checkpoint", "validate", "wait for workers"} <= names(spans)
    starts = {event["id"]: event for event in all_events if event["ph"] == "s"}
    ends = {event["id"]: event for event in all_events if event["ph"] == "f"}
    assert set(starts) == set(ends) and len(starts) >= 300
    assert all(starts[i]["ts"] <= ends[i]["ts"] + 1000 for i in starts), "sent before it is served"
    assert any(span.get("args", {}).get("cipher_us", 0) > 0 for of in spans.values() for span in of), "TLS takes time"
    assert "several members" in run("profile", "p.json", status=1).stderr
    shares = json.loads(run("profile", "--json", *sorted(map(str, tmp_path.glob("p.json.*")))).stdout)
    assert [member["member"] for member in shares] == ["ps 0", "ps 1", "worker 0", "worker 1"]
    for member in shares:
        assert member["forgotten_spans"] == 0
        known = sum(span["self_us"] for span in member["spans"])
        assert 0 < known <= member["seconds"] * 1e6 * member["threads"] * 1.001


def test_clocks_that_disagree_are_aligned_by_pushes(trainer, run, tmp_path):
    """A worker's file as if its clock had been 90 seconds behind: the result is 90 seconds, and no push ends before it
    is served."""
    flags = ("--train_steps=400", "--log_steps=0", "--min_workers=2", "--max_steps_per_s=200")
    with Cluster(trainer, tmp_path, workers=2, flags=flags) as cluster:
        for name in ("ps 0", "worker 0", "worker 1"):
            cluster.start(name, f"--profile={name.replace(' ', '')}.json")
        cluster.wait_all()
    wrong = json.loads((tmp_path / "worker1.json").read_text())
    text = (tmp_path / "worker1.json").read_text()
    began = wrong["otherData"]["begin_us"]
    assert 1.6e15 < began and text.count(str(began)) == 1
    (tmp_path / "wrong.json").write_text(text.replace(str(began), str(began - 90_000_000)))
    shown = json.loads(run("profile", "--json", "--out=all.json", "ps0.json", "worker0.json", "wrong.json").stdout)
    behind = {member["member"]: (member["clock_behind_us"], member["clock_unsure_us"]) for member in shown}
    assert behind["ps 0"] == (0, 0)
    assert abs(behind["worker 0"][0]) <= behind["worker 0"][1] + 1000, "one machine has one clock"
    assert abs(behind["worker 1"][0] - 90e6) <= behind["worker 1"][1] + 1000
    all_events, spans, _ = events(tmp_path / "all.json")
    served = {(span["args"]["peer"], span["args"]["number"]): span for (pid, _), of in spans.items() if pid == 1
              for span in of if span["name"] == "push"}
    allowed_us = behind["worker 1"][1] + 1
    for (pid, _), of in spans.items():
        for span in of:
            if pid == 1002 and span["name"] == "send push":
                assert span["ts"] - allowed_us <= served["worker 1", span["args"]["number"]]["ts"] <= span["ts"] + 60e6


def test_names_of_strangers(run, tmp_path):
    """They are names, whatever they contain, and their numbers are numbers: the output is JSON again."""
    run(*SMALL, "--train_steps=5", "--profile=p.json")
    name = 'x"},\x1b[2J\u202e\x9b\n'
    told = [json.dumps({"ph": "X", "name": name, "pid": 1, "tid": 5, "ts": 7, "dur": 3}),
            '{"ph":"X","name":"late","pid":1,"tid":5,"ts":1e999,"dur":-1e999,"args":{"cipher_us":1e308}}',
            json.dumps({"ph": "M", "name": "thread_name", "pid": 1, "tid": 5, "args": {"name": name}})]
    text = (tmp_path / "p.json").read_text()
    (tmp_path / "p.json").write_text(text.replace("\n]}", "".join(",\n" + line for line in told) + "\n]}"))
    shown = run("profile", "--out=all.json", "p.json").stdout
    assert all(character.isprintable() for character in shown.replace("\n", "")), repr(shown)
    assert r'x"},\x1b[2J\u202e\u009b' in shown
    written = json.loads((tmp_path / "all.json").read_text(), parse_constant=pytest.fail)["traceEvents"]
    assert name in {event["name"] for event in written}
    assert name in {event["args"].get("name") for event in written if event["ph"] == "M"}
    assert name in {span["name"] for span in json.loads(run("profile", "--json", "p.json").stdout)[0]["spans"]}


def test_what_is_no_profile(run, tmp_path):
    run(*SMALL, "--train_steps=5", "--profile=p.json")
    (tmp_path / "other.json").write_text('{"traceEvents":[]}\n')
    text = (tmp_path / "p.json").read_text()
    (tmp_path / "torn.json").write_text(text[:len(text) * 2 // 3])
    for files, message in ((("nowhere.json",), "nowhere.json: cannot be opened"),
                            (("other.json",), "other.json: not a profile of one member"),
                            (("torn.json",), "torn.json:"),
                            (("p.json", "p.json"), "are both of local")):
        result = run("profile", *files, status=1)
        assert message in result.stderr, result.stderr
        assert result.stderr.count("\n") == 1
    run("profile", status=2)
    result = run(*SMALL, "--train_steps=5", "--profile=no/such/folder/p.json", status=1)
    assert "no/such/folder/p.json: cannot be created" in result.stderr
