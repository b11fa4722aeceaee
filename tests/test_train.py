"""Training from the command line to the last line of output."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest

from runs import SMALL, checkpoints, finish, merged, newest, run, same_tensors, start, tensors, train, wait_for

STEP_LINE = re.compile(
    r"worker=0,epoch=(\d+),global_step=(\d+),local_step=(\d+),loss=(\d+\.\d{4}) "
    r"\(\d+\.\d\d ms/batch, [\d,]+ examples/s\)"
)


def test_softmax_regression_on_mnist(trainer, mnist, tmp_path):
    result = train(trainer, f"--data_dir={mnist}", "--layers=784,10", "--optimizer=sgd", "--learning_rate=0.5",
                   "--batch_size=100", "--train_steps=3000", "--train_dir=", cwd=tmp_path)
    assert 0.915 < result.done["test_accuracy"] < 0.935


def test_mlp_on_mnist_within_three_epochs(trainer, mnist, tmp_path):
    result = train(trainer, f"--data_dir={mnist}", "--layers=784,500,10", "--optimizer=adam",
                   "--learning_rate=0.001", "--epochs=3", "--train_dir=", cwd=tmp_path)
    assert result.done["test_accuracy"] > 0.972
    assert result.done["steps"] == 3 * 550
    assert result.done["epochs"] == pytest.approx(3)


def test_a_pace_changes_time_alone(trainer, tmp_path):
    flags = (*SMALL, "--train_steps=60", "--validation_size=100", "--validate_steps=25")
    train(trainer, *flags, "--train_dir=free", cwd=tmp_path)
    begun = time.monotonic()
    paced = train(trainer, *flags, "--train_dir=paced", "--max_steps_per_s=50", cwd=tmp_path)
    # Ten steps begin at once, and each ten after them the same number of fiftieths of a second later.
    assert time.monotonic() - begun >= 50 / 50 and paced.done["seconds"] >= 50 / 50
    assert paced.done["steps_per_s"] <= 60
    assert not same_tensors(newest(tmp_path / "free"), newest(tmp_path / "paced"))


def test_a_slow_pace_hears_signals(trainer, tmp_path):
    process = start(trainer, *SMALL, "--max_steps_per_s=0.001", "--log_steps=1", "--log_format=json", cwd=tmp_path)
    wait_for(lambda: '"event":"step"' in process.stdout.readline(), "the first step")
    process.send_signal(signal.SIGTERM)
    assert finish(process, status=143).named("interrupted")[0]["global_step"] <= 2


def test_learns_its_own_digits(trainer, tmp_path):
    result = train(trainer, *SMALL, "--train_steps=600", "--optimizer=adam", "--train_dir=", cwd=tmp_path)
    assert result.done["test_accuracy"] > 0.7


def test_events_say_what_outside_checks_read(trainer, tmp_path):
    result = train(trainer, *SMALL, "--train_steps=250", "--log_steps=50", "--validate_steps=100", "--save_steps=100",
                   "--train_dir=kept", cwd=tmp_path)
    (begun,) = result.named("start")
    assert begun["parameters"] == 784 * 32 + 32 + 32 * 10 + 10
    assert begun["model"] == "784-32-10" and begun["train_dir"] == "kept" and "restored_from" not in begun
    steps = result.named("step")
    assert [step["global_step"] for step in steps] == [50, 100, 150, 200, 250]
    for step in steps:
        assert step["worker"] == 0 and step["local_step"] == step["global_step"]
        assert step["epoch"] == (step["global_step"] - 1) // 50 + 1
        assert step["loss"] > 0 and step["examples_per_s"] > 0 and step["ms_per_batch"] > 0
    assert [event["global_step"] for event in result.named("validation")] == [100, 200]
    regular = [event["global_step"] for event in result.named("checkpoint") if not event["best"]]
    assert {100, 200, 250} <= {event["global_step"] for event in result.named("checkpoint")}, regular
    done = result.done
    assert list(done)[:5] == ["event", "test_accuracy", "steps", "steps_per_s", "seconds"]
    assert done["steps"] == 250 and 0 < done["test_accuracy"] <= 1
    assert done["steps_per_s"] > 0 and 0 < done["seconds"] < 60
    assert len(done["class_accuracy"]) == 10


def test_plain_lines_where_there_is_no_terminal(trainer, tmp_path):
    result = run(trainer, *SMALL, "--train_steps=150", "--log_steps=50", "--train_dir=", cwd=tmp_path)
    lines = result.stdout.splitlines()
    found = [match for match in map(STEP_LINE.fullmatch, lines) if match]
    assert [int(match[2]) for match in found] == [50, 100, 150]
    assert "\x1b" not in result.stdout and "\r" not in result.stdout
    assert any(re.fullmatch(r"test accuracy \d+\.\d\d% \([\d,]+ of 500\), loss \d+\.\d+", line) for line in lines)
    assert sum(line.startswith("class ") for line in lines) == 10
    head = "\n".join(lines[:10])
    for word in ("784-32-10 (25,450 parameters)", "seed", "digest", "1 thread", "train_dir"):
        assert word in head, head


def test_first_line_of_a_batch_that_does_not_divide_the_data(trainer, tmp_path):
    """2,500 training images in batches of 64: 40 steps an epoch, the last one short."""
    result = train(trainer, *SMALL, "--batch_size=64", "--epochs=2", "--train_dir=", cwd=tmp_path)
    assert result.done["steps"] == 80
    assert [event["global_step"] for event in result.named("validation")] == [40, 80]


def test_target_accuracy_and_patience_end_a_run(trainer, tmp_path):
    result = train(trainer, *SMALL, "--train_steps=100000", "--optimizer=adam", "--target_accuracy=0.5",
                   "--validate_steps=20", "--train_dir=", cwd=tmp_path)
    last = result.named("validation")[-1]
    assert last["validation_accuracy"] >= 0.5 and result.done["steps"] == last["global_step"] < 5000
    assert all(event["validation_accuracy"] < 0.5 for event in result.named("validation")[:-1])

    result = train(trainer, *SMALL, "--train_steps=100000", "--optimizer=sgd", "--learning_rate=1e-30",
                   "--patience=3", "--validate_steps=20", "--train_dir=", cwd=tmp_path)
    assert result.done["steps"] == 20 + 3 * 20


def test_who_stops_early_needs_validation_examples(trainer, tmp_path):
    few = ("--data_source=synthetic", "--synthetic_train=9", "--synthetic_test=9", "--batch_size=2", "--patience=1",
           "--train_steps=2", "--train_dir=")
    result = run(trainer, *few, cwd=tmp_path, status=1)
    assert "of 9 examples (data.validation_size=auto) none are held out: set --validation_size to 1" in result.stderr
    run(trainer, *few, "--validation_size=1", cwd=tmp_path)


@pytest.mark.parametrize("threads", [2, 3])
def test_any_number_of_threads_gives_the_same_bits(trainer, tmp_path, threads):
    flags = (*SMALL, "--layers=784,100,30,10", "--optimizer=momentum", "--ema_decay=0.9", "--l2=1e-4",
             "--train_steps=120", "--micro_batches=2")
    train(trainer, *flags, "--train_dir=one", cwd=tmp_path)
    train(trainer, *flags, f"--num_threads={threads}", "--train_dir=more", cwd=tmp_path)
    assert same_tensors(newest(tmp_path / "one"), newest(tmp_path / "more")) == []


def test_another_seed_gives_other_bits(trainer, tmp_path):
    train(trainer, *SMALL, "--train_steps=20", "--seed=1", "--train_dir=one", cwd=tmp_path)
    train(trainer, *SMALL, "--train_steps=20", "--seed=2", "--train_dir=two", cwd=tmp_path)
    assert "layer0/weights" in same_tensors(newest(tmp_path / "one"), newest(tmp_path / "two"))


def test_micro_batches_see_more_data_per_step(trainer, tmp_path):
    result = train(trainer, *SMALL, "--epochs=4", "--micro_batches=4", "--train_dir=", cwd=tmp_path)
    assert result.done["steps"] == 50  # 4 epochs of 50 batches, 4 in each step
    assert result.done["epochs"] == pytest.approx(4)


def test_checkpoint_holds_plain_shapes(trainer, tmp_path):
    train(trainer, *SMALL, "--optimizer=adam", "--ema_decay=0.99", "--train_steps=10", "--train_dir=kept", cwd=tmp_path)
    found, metadata = tensors(newest(tmp_path / "kept"))
    assert found["layer0/weights"][0] == (784, 32) and len(found["layer0/weights"][1]) == 4 * 784 * 32
    assert len(found) == 4 * 4  # weights and biases of two layers: parameters, two slots, averages
    assert all(isinstance(value, str) for value in metadata.values())


def test_keeps_as_many_as_asked_and_the_best(trainer, tmp_path):
    train(trainer, *SMALL, "--optimizer=adam", "--train_steps=200", "--save_steps=20", "--max_to_keep=3",
          "--validate_steps=50", "--train_dir=kept", cwd=tmp_path)
    assert list(checkpoints(tmp_path / "kept")) == [160, 180, 200]
    assert (tmp_path / "kept" / "best.safetensors").exists()
    assert not list((tmp_path / "kept").glob("*.tmp*"))


def test_eval_measures_what_training_measured(trainer, tmp_path):
    flags = (*SMALL, "--optimizer=adam", "--ema_decay=0.9")
    done = train(trainer, *flags, "--train_steps=200", "--validate_steps=50", "--train_dir=kept", cwd=tmp_path).done
    evaluated = train(trainer, "eval", *flags, "kept", cwd=tmp_path).named("evaluation")[0]
    assert evaluated["test_accuracy"] == done["test_accuracy"]
    assert evaluated["class_accuracy"] == done["class_accuracy"]
    assert evaluated["global_step"] == 200
    assert all(pair["label"] != pair["predicted"] and pair["images"] > 0 for pair in evaluated["confusions"])
    named = train(trainer, "eval", *flags, f"--checkpoint={newest(tmp_path / 'kept')}", cwd=tmp_path)
    assert named.named("evaluation")[0]["test_accuracy"] == done["test_accuracy"]
    best = train(trainer, "eval", *flags, "--checkpoint=best", "kept", cwd=tmp_path).named("evaluation")[0]
    assert best["global_step"] == done["best_step"]
    alone = run(trainer, "eval", "--json", *flags, "kept", cwd=tmp_path).stdout
    assert json.loads(alone)["test_accuracy"] == done["test_accuracy"]
    text = run(trainer, "eval", *flags, "kept", cwd=tmp_path).stdout
    assert "test accuracy" in text and "taken for" in text


def test_eval_without_a_checkpoint_says_so(trainer, tmp_path):
    result = run(trainer, "eval", *SMALL, "nowhere", cwd=tmp_path, status=1)
    assert len(result.stderr.splitlines()) == 1 and "nowhere" in result.stderr
    result = run(trainer, "eval", *SMALL, "--checkpoint=missing.safetensors", cwd=tmp_path, status=1)
    assert "missing.safetensors" in result.stderr


def test_device(trainer, tmp_path):
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    result = run(trainer, *SMALL, "--train_steps=1", "--train_dir=", "--device=gpu", "--noallow_soft_placement",
                 cwd=tmp_path, status=1, env=hidden)
    assert len(result.stderr.splitlines()) == 1 and "--device=cpu" in result.stderr
    result = run(trainer, *SMALL, "--train_steps=1", "--train_dir=", "--device=gpu:1", cwd=tmp_path, env=hidden)
    assert len(result.stderr.splitlines()) == 1 and "CUDA_VISIBLE_DEVICES hides all GPUs" in result.stderr
    result = run(trainer, *SMALL, "--train_steps=1", "--train_dir=", "--device=auto", cwd=tmp_path, env=hidden)
    assert sum("CUDA_VISIBLE_DEVICES" in line for line in result.stdout.splitlines()) == 1
    result = run(trainer, *SMALL, "--train_steps=1", "--train_dir=", "--device=cpu", cwd=tmp_path, env=hidden)
    assert "CUDA" not in result.stdout


class Terminal:
    """A run on a pseudo-terminal, whose width can change."""

    def __init__(self, trainer, *flags, cwd, columns=100):
        self.master, slave = pty.openpty()
        self.resize(columns)
        self.process = subprocess.Popen([trainer, *merged(flags)], cwd=cwd, stdin=slave, stdout=slave, stderr=slave,
                                        env={**os.environ, "TERM": "xterm"}, close_fds=True)
        os.close(slave)
        self.output = b""

    def resize(self, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def read(self, until=lambda output: False, timeout=600):
        deadline = time.monotonic() + timeout
        while not until(self.output):
            assert time.monotonic() < deadline
            if not select.select([self.master], [], [], 1)[0]:
                continue
            try:
                piece = os.read(self.master, 65536)
            except OSError:  # the other end is closed: it has ended
                break
            if not piece:
                break
            self.output += piece
        return self.output.decode()

    def finish(self):
        text = self.read()
        status = self.process.wait(timeout=240)
        os.close(self.master)
        return status, text


def drawings(text):
    """The text of each redraw of the line."""
    return [piece.split("\x1b[K")[0] for piece in text.split("\r")[1:] if "\x1b[K" in piece and piece[0] != "\x1b"]


def test_a_bar_on_a_terminal(trainer, tmp_path):
    begun = time.monotonic()
    terminal = Terminal(trainer, *SMALL, "--layers=784,500,10", "--train_steps=3000", "--train_dir=", cwd=tmp_path)
    status, text = terminal.finish()
    seconds = time.monotonic() - begun
    assert status == 0
    bars = drawings(text)
    assert 3 <= len(bars) <= 10 * seconds + 2, text
    assert all(len(bar) < 100 for bar in bars)
    for piece in ("%  [", "ETA ", "loss ", "steps/s"):
        assert piece in bars[-1]
    assert any("valid." in bar for bar in bars)
    assert not STEP_LINE.search(text)
    assert "\x1b[Ktest of the best model" in text  # the bar is removed before the results are shown


def test_the_bar_follows_the_width(trainer, tmp_path):
    terminal = Terminal(trainer, *SMALL, "--layers=784,500,10", "--train_steps=1000000", "--train_dir=", cwd=tmp_path,
                        columns=120)
    terminal.read(lambda output: len(drawings(output.decode())) >= 3)
    terminal.resize(40)
    terminal.read(lambda output: sum(len(bar) < 40 for bar in drawings(output.decode())) >= 4)
    terminal.process.send_signal(signal.SIGINT)
    status, text = terminal.finish()
    assert status == 130
    bars = [len(bar) for bar in drawings(text)]
    wide = next(i for i, width in enumerate(bars) if width < 40)  # how many were drawn before
    assert wide >= 3 and max(bars[:wide]) > 60 and all(width < 40 for width in bars[wide:]), bars


def test_no_bar_when_unwanted(trainer, tmp_path):
    status, text = Terminal(trainer, *SMALL, "--train_steps=100", "--log_steps=50", "--noprogress", "--train_dir=",
                            cwd=tmp_path).finish()
    assert status == 0 and "\x1b" not in text and STEP_LINE.search(text)
    status, text = Terminal(trainer, *SMALL, "--train_steps=100", "--log_format=json", "--train_dir=",
                            cwd=tmp_path).finish()
    assert status == 0 and all(json.loads(line) for line in text.splitlines())


def test_memory_is_two_copies_of_the_state_and_little_else(trainer, tmp_path):
    """A new run, whose start once needed a third copy of the parameters."""
    if "TRAINER_BINARY" in os.environ:
        pytest.skip("a sanitizer build needs more")
    widths = (784, 2000, 2000, 10)
    parameters = sum((a + 1) * b for a, b in zip(widths, widths[1:]))
    flags = (*SMALL, "--layers=" + ",".join(map(str, widths)), "--optimizer=adam", "--train_steps=2",
             "--train_dir=kept")
    # Started from a small process: until a program is loaded, the memory of the process that starts it counts as its
    # own.
    small = ("import os, subprocess, sys; _, status, usage = os.wait4(subprocess.Popen(sys.argv[1:], "
             "stdout=subprocess.DEVNULL).pid, 0); print(status, usage.ru_maxrss)")
    measured = subprocess.run([sys.executable, "-c", small, trainer, *merged(flags)], cwd=tmp_path, capture_output=True,
                              text=True, check=True).stdout
    status, kib = map(int, measured.split())
    assert status == 0
    data_bytes = 3500 * (784 + 4)
    assert kib * 1024 <= data_bytes + 4 * parameters * 2 * (1 + 2) + 16 * 2**20


@pytest.mark.parametrize("optimizer", ["rmsprop", "ftrl"])
def test_resumed_with_slots_that_begin_above_zero(trainer, tmp_path, optimizer):
    """Their first slots start at 1 and 0.1: what a checkpoint contains of them gives the same bits, warm-up included.
    """
    flags = (*SMALL, f"--optimizer={optimizer}", "--lr_warmup_steps=30", "--lr_cosine_steps=60", "--lr_cosine_end=0.1")
    train(trainer, *flags, "--train_steps=60", "--train_dir=whole", cwd=tmp_path)
    for stop in (25, 60):
        result = train(trainer, *flags, f"--train_steps={stop}", "--train_dir=parts", cwd=tmp_path)
    assert same_tensors(newest(tmp_path / "whole"), newest(tmp_path / "parts")) == []
    assert result.done["test_accuracy"] > 0.15
    assert "falling to 0.1 of itself over 60 steps after a warm-up of 30 steps" in run(
        trainer, *flags, "--train_steps=1", cwd=tmp_path).stdout


def test_l1_makes_zeros(trainer, tmp_path):
    kept = {}
    for l1 in ("0", "2"):
        train(trainer, *SMALL, "--layers=784,10", "--optimizer=ftrl", f"--l1={l1}", "--train_steps=100",
              f"--train_dir=l1-{l1}", cwd=tmp_path)
        values = tensors(newest(tmp_path / f"l1-{l1}"))[0]["layer0/weights"][1]
        kept[l1] = sum(any(values[i : i + 4]) for i in range(0, len(values), 4))
    assert 0 < kept["2"] < 0.7 * kept["0"]
