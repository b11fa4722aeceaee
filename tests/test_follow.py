"""trainer train --follow: files that arrive during the run are learnt once each, and only a better model is promoted.
"""

import http.client
import json
import os
import random
import signal
import subprocess

import pytest

from ports import free_ports
from runs import checkpoints, newest, run, same_tensors, tensors, wait_for

FLAGS = ("train", "--follow", "--data_dir=data", "--target=y", "--hidden=16", "--epochs=4", "--batch_size=32",
         "--best_metric=accuracy", "--train_dir=run", "--num_threads=1", "--log_format=json", "--log_steps=0")


class Feed:
    """A folder in which files arrive, and the process that follows it."""

    def __init__(self, trainer, folder):
        self.trainer, self.folder, self.process, self.starts = trainer, folder, None, 0
        (folder / "data").mkdir(parents=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def put(self, name, rows, seed, flipped=False):
        draw = random.Random(seed)
        lines = ["a,b,kind,y"]
        for _ in range(rows):
            a, b, kind = draw.gauss(0, 1), draw.gauss(3, 2), draw.choice("xyz")
            yes = (2 * a + b - 3 + (1 if kind == "x" else -1) + draw.gauss(0, 0.3) > 0) != flipped
            lines.append(f"{a:.4f},{b:.4f},{kind},{'yes' if yes else 'no'}")
        self.put_text(name, "\n".join(lines) + "\n")

    def put_text(self, name, text):
        """As a program should that others read from: complete as soon as its name appears."""
        part = self.folder / "data" / f"part.{name}"
        part.write_text(text)
        os.utime(part, (1, 1))  # nobody has written to it for a while
        part.rename(self.folder / "data" / name)

    def start(self, *flags):
        self.starts += 1
        with open(self.folder / f"out{self.starts}", "w") as out:
            self.process = subprocess.Popen([self.trainer, *FLAGS, *flags], cwd=self.folder, stdout=out,
                                            stderr=subprocess.STDOUT)

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(240)

    def text(self):
        return (self.folder / f"out{self.starts}").read_text()

    def until(self, condition, what):
        wait_for(lambda: condition() or self.process.poll() is not None, what)
        assert condition(), self.text()

    def rounds(self):
        events = [json.loads(line) for line in self.text().splitlines() if line.startswith("{") and line.endswith("}")]
        return [event for event in events if event["event"] == "round"]

    def until_round(self, number):
        self.until(lambda: any(event["round"] == number for event in self.rounds()), f"round {number}")
        self.until(lambda: not self.ledger()["now"], "its end")
        return self.rounds()[-1]

    def ledger(self):
        return json.loads((self.folder / "run" / "followed.json").read_text())

    def score(self):
        return json.loads(run(self.trainer, "eval", "--json", "run", "data/test.csv", cwd=self.folder).stdout)


@pytest.fixture
def feed(trainer, tmp_path):
    with Feed(trainer, tmp_path / "feed") as feed:
        yield feed


def test_better_models_are_promoted_and_worse_ones_are_not(feed):
    feed.put("train-0.csv", 300, 1)
    feed.start()
    first = feed.until_round(1)
    assert first["promoted"] and "served_score" not in first
    assert max(checkpoints(feed.folder / "run")) == first["global_step"]
    # More of the same: better, and of a later step.
    feed.put("train-1.csv", 3000, 2)
    second = feed.until_round(2)
    assert second["promoted"] and second["score"] > second["served_score"]
    assert second["global_step"] > first["global_step"]
    promoted = newest(feed.folder / "run")
    assert len(json.loads(tensors(promoted)[1]["kept_rows"])) == 1 + 4  # for the server to check the model
    # All answers wrong: it learns them, does worse on the held-out rows of all files, and is not promoted.
    feed.put("train-2.csv", 1500, 3, flipped=True)
    third = feed.until_round(3)
    assert not third["promoted"] and third["score"] < third["served_score"]
    assert newest(feed.folder / "run") == promoted
    feed.until(lambda: not (feed.folder / "run" / "round").exists(), "an end without leftovers")
    # One of two is unusable: it reports why, and the other is learnt. With fewer rows than a batch the batch is short.
    feed.put_text("train-3.csv", "a,b,kind,y\n1,2,x,yes\nfoo,2,x,yes\n")
    feed.put("train-4.csv", 20, 5)
    feed.until(lambda: len(feed.ledger()["done"]) == 4, "the good one")
    assert "train-3.csv:3:1: column a" in feed.text() and "train-3.csv is not used" in feed.text()
    ledger = feed.ledger()
    assert ledger["refused"] == ["train-3.csv"] and ledger["done"] == [f"train-{i}.csv" for i in (0, 1, 2, 4)]
    # Each once, however often it stops.
    assert feed.stop() == 143
    feed.start()
    feed.until(lambda: "waiting for new files" in feed.text(), "its readiness")
    feed.put("train-5.csv", 200, 6)
    feed.until(lambda: "train-5.csv" in feed.ledger()["done"], "the last")
    assert len(feed.rounds()) == 1 and feed.rounds()[0]["files"] == 1
    # A second one refuses to run.
    assert "in use by process" in run(feed.trainer, *FLAGS, cwd=feed.folder, status=1).stdout


def test_killed_in_a_round_it_goes_on_to_the_same_bits(trainer, tmp_path):
    with Feed(trainer, tmp_path / "whole") as whole, Feed(trainer, tmp_path / "killed") as killed:
        for feed in (whole, killed):
            feed.put("train-0.csv", 300, 1)
        whole.start()
        whole.until_round(1)
        whole.put("train-1.csv", 2000, 2)
        promoted = whole.until_round(2)
        assert promoted["promoted"]
        killed.start()
        killed.until_round(1)
        assert killed.stop(signal.SIGKILL) == -signal.SIGKILL
        killed.put("train-1.csv", 2000, 2)
        killed.start("--max_steps_per_s=20", "--save_steps=20")
        killed.until(lambda: killed.ledger()["now"] == ["train-1.csv"], "the second round")
        killed.until(lambda: checkpoints(killed.folder / "run" / "round"), "a checkpoint in the round")
        assert killed.stop(signal.SIGKILL) == -signal.SIGKILL
        assert killed.ledger()["now"] == ["train-1.csv"]
        killed.start("--save_steps=20")
        assert killed.until_round(2) == promoted
        assert '"restored_from":"run/round/' in killed.text()
        assert not same_tensors(newest(whole.folder / "run"), newest(killed.folder / "run"))


def test_new_rows_reach_who_is_served(feed):
    def version():
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/v1/models/plant")
        states = json.loads(connection.getresponse().read())["model_version_status"]
        connection.close()
        return [int(state["version"]) for state in states if state["state"] == "AVAILABLE"]

    (port,) = free_ports(1)
    feed.put("train-0.csv", 300, 1)
    feed.start()
    first = feed.until_round(1)["global_step"]
    with subprocess.Popen([feed.trainer, "serve", "plant=run", f"--http=127.0.0.1:{port}"], cwd=feed.folder,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            wait_for(lambda: "serving at" in server.stdout.readline(), "the server")
            assert version() == [first]
            feed.put("train-1.csv", 3000, 2)
            second = feed.until_round(2)["global_step"]
            wait_for(lambda: version() == [second], "the promoted model")
        finally:
            server.kill()


@pytest.mark.parametrize("flags, message", [
    (("--train_dir=",), "--follow needs --train_dir"),
    (("--epochs=0",), "--follow needs --epochs"),
    (("--target=",), "--follow is for tables"),
])
def test_what_it_needs(run, flags, message):
    kept = [flag for flag in FLAGS if flag.split("=")[0] not in {flag.split("=")[0] for flag in flags}]
    assert message in run(*kept, *flags, status=1).stdout


def test_a_damaged_list_is_named(feed):
    (feed.folder / "run").mkdir()
    (feed.folder / "run" / "followed.json").write_text('{"round": 1, "steps": -1, "now": [], "done": [1]}')
    result = run(feed.trainer, *FLAGS, cwd=feed.folder, status=1)
    assert "run/followed.json: is no list of files that were followed; restore it" in result.stdout + result.stderr
