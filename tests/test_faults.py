"""A run on a machine that does its worst: kills, full disks, a second process, numbers that explode."""

import json
import os
import random
import re
import resource
import signal
import subprocess
import time

import pytest

from runs import (SMALL, checkpoints, finish, interrupt, merged, newest, read_lines, read_until, run,
                  same_tensors, seed_of_tests, start, tensors, train, wait_for)

BUSY = (*SMALL, "--layers=784,300,10", "--optimizer=adam", "--ema_decay=0.99")


def repeats(short, full):
    return full if os.environ.get("TRAINER_TEST_FULL") else short


def killed_after_a_checkpoint(process, folder, reached, generator):
    """Killed suddenly, soon after it wrote one of a step after `reached`. The newest step that is there."""
    wait_for(lambda: max(checkpoints(folder), default=0) > reached, "checkpoint")
    time.sleep(generator.random() * 0.05)
    process.kill()
    process.communicate()
    return max(checkpoints(folder))


def test_killed_at_random_moments(trainer, tmp_path):
    """kill -9, again and again: every checkpoint loads, none is half-written, and the bits are right."""
    seed = seed_of_tests()
    generator = random.Random(seed)
    flags = (*BUSY, "--save_steps=7", "--max_to_keep=3", "--validate_steps=50")
    steps, reached = 2000, 0
    for _ in range(repeats(20, 100)):
        process = start(trainer, *flags, "--train_steps=1000000", "--train_dir=kept", cwd=tmp_path)
        now = killed_after_a_checkpoint(process, tmp_path / "kept", reached, generator)
        assert now > reached
        assert len(tensors(newest(tmp_path / "kept"))[0]) == 16
        reached = now
    steps = reached + 50
    result = train(trainer, *flags, f"--train_steps={steps}", "--train_dir=kept", cwd=tmp_path)
    assert result.named("start")[0]["global_step"] >= reached and result.stderr == ""
    train(trainer, *flags, f"--train_steps={steps}", "--train_dir=whole", cwd=tmp_path)
    assert same_tensors(newest(tmp_path / "kept"), newest(tmp_path / "whole")) == []
    assert sorted(path.name for path in (tmp_path / "kept").glob("*.tmp*")) == []


@pytest.mark.parametrize("memory", [(), ("--memory_mb=1", "--shuffle_buffer=2000")], ids=["in memory", "streaming"])
def test_a_table_killed_at_random_moments(trainer, tmp_path, memory):
    """Also while it reads: the rows, their preprocessing and the bits are as if nothing had happened."""
    seed = seed_of_tests()
    generator = random.Random(seed)
    (tmp_path / "d").mkdir()
    rows = [(generator.gauss(0, 1), generator.choice(["red", "green", "blue", ""]), i % 3) for i in range(60000)]
    text = "\n".join(f"{x:.4f},{color},{y}" for x, color, y in rows)
    (tmp_path / "d/train.csv").write_text(f"x,color,y\n{text}\n")
    flags = ("--data_dir=d", "--target=y", "--test_share=0.05", "--optimizer=adam", "--hidden=20", "--log_steps=0",
             "--num_threads=1", "--save_summaries_steps=0", "--save_steps=7", "--max_to_keep=3", *memory)
    reached = 0
    for _ in range(repeats(4, 20)):
        process = start(trainer, *flags, "--train_steps=1000000", "--train_dir=kept", cwd=tmp_path)
        reached = killed_after_a_checkpoint(process, tmp_path / "kept", reached, generator)
        process = start(trainer, *flags, "--train_steps=1000000", "--train_dir=kept", cwd=tmp_path)
        time.sleep(generator.random() * 0.1)  # most likely while it reads the table
        process.kill()
        process.communicate()
        reached = max(checkpoints(tmp_path / "kept"))
    for folder in ("kept", "whole"):
        train(trainer, *flags, f"--train_steps={reached + 30}", f"--train_dir={folder}", cwd=tmp_path)
    assert same_tensors(newest(tmp_path / "kept"), newest(tmp_path / "whole")) == []
    assert sorted(path.name for path in (tmp_path / "kept").glob("*.tmp*")) == []


def test_save_model_secs_bounds_the_loss(trainer, tmp_path):
    """By the program's own clock: from one checkpoint's step to the next one's, and to the step at which it is killed,
    it takes save_model_secs, or as long as the previous one is still being written; and the newest file is as new as
    the log says."""
    every_s, said = 0.3, tmp_path / "said"
    with open(said, "wb") as output:
        process = subprocess.Popen([trainer, *merged((*BUSY, "--validation_size=0", f"--save_model_secs={every_s}",
                                                      "--log_steps=1", "--log_format=json", "--train_steps=100000000",
                                                      "--train_dir=kept"))],
                                   cwd=tmp_path, stdout=output)
    wait_for(lambda: said.read_text().count('"event":"checkpoint"') >= 6, "checkpoints by time")
    time.sleep(random.random() * every_s)
    process.kill()
    process.communicate()
    now_s, longest_s, at_s, saved = 0.0, 0.0, {}, []
    for event in (json.loads(line) for line in said.read_text().splitlines() if line.endswith("}")):
        if event["event"] == "step":
            took_s = event["ms_per_batch"] / 1000
            now_s, longest_s = now_s + took_s, max(longest_s, took_s)
            at_s[event["global_step"]] = now_s
        elif event["event"] == "checkpoint":
            saved.append((event["global_step"], now_s))  # and when that was known
    slack_s = 2 * longest_s + 0.02
    for (step, known_s), (following, _) in zip(saved, saved[1:]):
        assert at_s[following] <= max(at_s[step] + every_s, known_s) + slack_s, (step, following, saved)
    writing_s = max(known_s - at_s[step] for step, known_s in saved)
    kept = max(checkpoints(tmp_path / "kept"))
    assert kept >= saved[-1][0]
    unfinished = [int(re.search(r"model-(\d+)", path.name)[1]) for path in (tmp_path / "kept").glob("model-*.tmp")]
    # The loss: an interval, and what is computed while a file is being written. A write that was cut off has no known
    # duration: then only its start is checked.
    if unfinished:
        known_s, begun_s = dict(saved)[kept], at_s.get(unfinished[0], now_s)
        assert begun_s <= max(at_s[kept] + every_s, known_s) + slack_s, (unfinished, kept, saved)
    else:
        assert now_s - at_s[kept] <= every_s + 2 * writing_s + slack_s, (now_s, at_s[kept], writing_s)


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
@pytest.mark.alone
def test_a_signal_keeps_a_checkpoint(trainer, tmp_path, number, status):
    """The tests may themselves run under nohup, which their children would inherit."""
    process = start(trainer, *BUSY, "--train_steps=100000000", "--train_dir=kept", cwd=tmp_path,
                    preexec_fn=lambda: signal.signal(number, signal.SIG_DFL))
    read_until(process, "loss=")
    begun = time.monotonic()
    interrupt(process, number)
    result = finish(process, status=status)
    assert time.monotonic() - begun < 3
    assert len(checkpoints(tmp_path / "kept")) == 1
    assert newest(tmp_path / "kept").name in result.stdout.splitlines()[-1]


def test_nohup_is_respected(trainer, tmp_path):
    process = start(trainer, *BUSY, "--train_steps=100000000", "--train_dir=kept", cwd=tmp_path,
                    preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    read_lines(process, 1)
    interrupt(process, signal.SIGHUP)
    time.sleep(0.3)
    assert process.poll() is None
    interrupt(process, signal.SIGTERM)
    finish(process, status=143)


def test_interrupted_without_a_folder(trainer, tmp_path):
    process = start(trainer, *BUSY, "--train_steps=100000000", "--train_dir=", cwd=tmp_path)
    read_until(process, "loss=")
    interrupt(process, signal.SIGINT)
    assert "not saved" in finish(process, status=130).stdout


def test_a_second_signal_ends_it_at_once(trainer, tmp_path):
    """Stopped in between, so that the second signal arrives before the first one's work is done."""
    process = start(trainer, *BUSY, "--train_steps=100000000", "--train_dir=kept", cwd=tmp_path)
    read_until(process, "loss=")
    interrupt(process, signal.SIGSTOP)
    interrupt(process, signal.SIGINT)
    interrupt(process, signal.SIGTERM)
    interrupt(process, signal.SIGCONT)
    assert finish(process, status=None).status in (130, 143)
    assert not checkpoints(tmp_path / "kept")


def test_a_second_process_is_told(trainer, tmp_path):
    first = start(trainer, *BUSY, "--train_steps=100000000", "--train_dir=kept", cwd=tmp_path)
    read_until(first, "loss=")
    second = run(trainer, *BUSY, "--train_steps=10", "--train_dir=kept", cwd=tmp_path, status=1)
    assert len(second.stderr.splitlines()) == 1
    assert "kept" in second.stderr and str(first.pid) in second.stderr
    assert first.poll() is None
    interrupt(first)
    finish(first, status=143)
    again = max(checkpoints(tmp_path / "kept")) + 10
    train(trainer, *BUSY, f"--train_steps={again}", "--train_dir=kept", cwd=tmp_path)


def test_a_loss_that_explodes(trainer, tmp_path):
    flags = (*BUSY, "--optimizer=sgd", "--save_steps=20", "--train_dir=kept")
    train(trainer, *flags, "--train_steps=40", cwd=tmp_path)
    result = run(trainer, *flags, "--learning_rate=1e30", "--train_steps=100", cwd=tmp_path, status=1)
    *warnings, refusal = result.stderr.splitlines()
    assert len(warnings) == 3 and all("training goes back to step 40" in line for line in warnings)
    assert "error: " in refusal and "which was lowered 3 times" in refusal
    for word in ("step 4", "1e+30", checkpoints(tmp_path / "kept")[40].name, "--learning_rate"):
        assert word in result.stderr, result.stderr
    assert list(checkpoints(tmp_path / "kept")) == [20, 40]
    # What is left is good: with a sensible rate training continues from it.
    train(trainer, *flags, "--learning_rate=0.1", "--train_steps=60", cwd=tmp_path)


def test_the_last_good_checkpoint_is_named(trainer, tmp_path):
    """L2 makes the weights 99 times larger in each step; the last checkpoint may still be on its way to the disk."""
    result = run(trainer, *SMALL, "--layers=784,10", "--optimizer=sgd", "--save_steps=1", "--max_to_keep=0",
                 "--train_steps=1000", "--learning_rate=100", "--l2=1", "--train_dir=kept", cwd=tmp_path, status=1)
    assert len(checkpoints(tmp_path / "kept")) > 5
    assert newest(tmp_path / "kept").name in result.stderr


def test_a_loss_that_explodes_before_any_checkpoint(trainer, tmp_path):
    result = run(trainer, *BUSY, "--optimizer=sgd", "--learning_rate=1e30", "--save_steps=1", "--train_steps=100",
                 "--train_dir=kept", cwd=tmp_path, status=1)
    assert "the loss is nan " in result.stderr or "the loss is inf " in result.stderr
    assert "--learning_rate" in result.stderr and not checkpoints(tmp_path / "kept")
    result = train(trainer, *BUSY, "--optimizer=sgd", "--learning_rate=1e30", "--train_steps=100", "--train_dir=",
                   cwd=tmp_path, status=1)
    assert all(event["event"] != "done" for event in result.events)


def test_train_dir_that_is_a_file(trainer, tmp_path):
    (tmp_path / "kept").write_text("not a folder")
    result = run(trainer, *SMALL, "--train_steps=10", "--train_dir=kept", cwd=tmp_path, status=1)
    assert len(result.stderr.splitlines()) == 1 and "kept" in result.stderr


def test_no_room_for_a_checkpoint(trainer, tmp_path):
    """A limit on file sizes simulates a full disk: reported, but no reason to discard the training."""
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))

    result = train(trainer, *BUSY, "--save_steps=50", "--train_steps=200", "--train_dir=kept", cwd=tmp_path, status=1,
                   preexec_fn=limit)
    assert result.done["steps"] == 200 and result.done["test_accuracy"] > 0
    errors = [line for line in result.stderr.splitlines() if "model-" in line or "best" in line]
    assert len(errors) >= 4 and all("File too large" in line for line in errors)
    assert os.listdir(tmp_path / "kept") == ["lock"] or not list((tmp_path / "kept").glob("*.safetensors*"))


def test_interrupted_without_room_for_a_checkpoint(trainer, tmp_path):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))

    process = start(trainer, *BUSY, "--train_steps=100000000", "--train_dir=kept", cwd=tmp_path, preexec_fn=limit)
    read_until(process, "loss=")
    interrupt(process)
    result = finish(process, status=1)
    assert "not saved" in result.stdout and "File too large" in result.stderr


def test_disk_that_fills_up_keeps_the_old_checkpoint(trainer, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"can't mount a small tmpfs here: {mounted.stderr.strip()}")
    try:
        flags = (*BUSY, "--save_steps=50", "--max_to_keep=1", "--validation_size=0", f"--train_dir={disk}/kept")
        train(trainer, *flags, "--train_steps=50", cwd=tmp_path)
        before = newest(disk / "kept").read_bytes()
        with open(disk / "ballast", "wb", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(bytes(65536))
            except OSError:
                pass
        result = train(trainer, *flags, "--train_steps=200", cwd=tmp_path, status=1)
        assert result.done["steps"] == 200
        assert "No space left on device" in result.stderr
        assert list(checkpoints(disk / "kept")) == [50] and newest(disk / "kept").read_bytes() == before
        (disk / "ballast").unlink()
        result = train(trainer, *flags, "--train_steps=200", cwd=tmp_path)
        assert result.named("start")[0]["global_step"] == 50 and list(checkpoints(disk / "kept")) == [200]
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_reader_that_goes_away(trainer, tmp_path):
    process = start(trainer, *SMALL, "--train_steps=2000", "--log_steps=10", "--train_dir=kept", cwd=tmp_path)
    read_lines(process, 1)
    process.stdout.close()
    assert process.wait(timeout=240) == 0
    process.stderr.close()
    assert list(checkpoints(tmp_path / "kept")) == [2000]


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_streams_put_no_words_into_files(trainer, tmp_path, closed):
    """The first files opened would get the numbers of the standard streams."""
    flags = " ".join((*SMALL, "--train_steps=20", "--train_dir=kept"))
    shell = subprocess.run(["sh", "-c", f"{trainer} {flags} {closed}"], cwd=tmp_path, capture_output=True, text=True)
    assert shell.returncode == 0
    words = subprocess.run(["sh", "-c", f"{trainer} {flags} --optimizer=adam {closed}"], cwd=tmp_path,
                           capture_output=True, text=True)
    assert words.returncode == 1
    assert "error" in words.stderr or "2>&-" in closed
    assert (tmp_path / "kept" / "trainer.lock").read_text().strip().isdigit()
    assert list(checkpoints(tmp_path / "kept")) == [20]
    assert run(trainer, "eval", *SMALL, "kept", cwd=tmp_path).stderr == ""


def test_results_that_a_full_disk_swallows_are_a_failure(trainer, tmp_path):
    """Training continues without its log, but a missing last line must not pass for a successful run."""
    with open("/dev/full", "w") as full:
        for arguments in ([*SMALL, "--train_steps=20", "--train_dir=kept"], ["eval", *SMALL, "kept"]):
            result = subprocess.run([trainer, *arguments], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True)
            assert result.returncode == 1 and "No space left" in result.stderr
    assert list(checkpoints(tmp_path / "kept")) == [20]


def test_a_reader_that_has_seen_enough_is_no_failure(trainer, tmp_path):
    process = start(trainer, *SMALL, "--train_steps=200", "--log_steps=1", "--train_dir=kept", cwd=tmp_path)
    assert process.stdout.readline()
    process.stdout.close()
    assert process.wait(240) == 0
    assert list(checkpoints(tmp_path / "kept")) == [200]
