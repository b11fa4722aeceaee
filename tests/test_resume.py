"""A run that was stopped and resumed is, bit for bit, the run that was never stopped."""

import random
import signal

import pytest

from runs import (SMALL, checkpoints, finish, interrupt, newest, read_lines, run, same_tensors, seed_of_tests, start,
                  tensors, train)

STEPS = 400

RECIPES = {
    "plain": ("--optimizer=sgd",),
    "book": ("--optimizer=sgd", "--learning_rate=0.5", "--lr_decay=0.9", "--l2=1e-4", "--ema_decay=0.99"),
    "momentum": ("--optimizer=momentum", "--nesterov", "--lr_decay=0.5", "--nolr_staircase", "--lr_decay_steps=30"),
    "adagrad": ("--optimizer=adagrad", "--ema_decay=0.9"),
    "adadelta": ("--optimizer=adadelta", "--micro_batches=3"),
    "adam": ("--optimizer=adam", "--batch_size=64", "--l2=1e-3", "--num_threads=2"),
}


@pytest.fixture(scope="module")
def seed():
    return seed_of_tests()


@pytest.mark.parametrize("recipe", RECIPES)
def test_resumed_at_any_step(trainer, tmp_path, recipe, seed):
    flags = (*SMALL, *RECIPES[recipe], "--validate_steps=60", "--log_steps=7")
    stops = sorted(random.Random(f"{seed} {recipe}").sample(range(1, STEPS), 3)) + [STEPS]
    train(trainer, *flags, f"--train_steps={STEPS}", "--train_dir=whole", cwd=tmp_path)
    for number, stop in enumerate(stops):
        result = train(trainer, *flags, f"--train_steps={stop}", "--train_dir=pieces", cwd=tmp_path)
        (begun,) = result.named("start")
        assert begun["global_step"] == (stops[number - 1] if number else 0)
        assert ("restored_from" in begun) == (number > 0)
        assert result.done["steps"] == stop
    assert same_tensors(newest(tmp_path / "whole"), newest(tmp_path / "pieces")) == [], stops


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.full(but=("15-143",))
def test_interrupted_runs_go_on_where_they_were(trainer, tmp_path, number, status, seed):
    flags = (*SMALL, "--layers=784,200,10", "--optimizer=adam", "--ema_decay=0.99", "--log_steps=50",
             "--validate_steps=130")
    generator = random.Random(seed)
    interrupted = 0
    steps = 1500
    train(trainer, *flags, f"--train_steps={steps}", "--train_dir=whole", cwd=tmp_path)
    while True:
        process = start(trainer, "--log_format=json", *flags, f"--train_steps={steps}", "--train_dir=pieces",
                        cwd=tmp_path)
        lines = read_lines(process, generator.randrange(4, 20))
        if process.poll() is None:
            interrupt(process, number)
        result = finish(process, status=None)
        result.stdout = lines + result.stdout
        if result.status == 0:
            break
        assert result.status == status and result.stderr == ""
        last = result.events[-1]
        assert last["event"] == "interrupted"
        assert max(checkpoints(tmp_path / "pieces")) == last["global_step"]
        interrupted += 1
        assert interrupted < 100
    assert interrupted > 0
    assert same_tensors(newest(tmp_path / "whole"), newest(tmp_path / "pieces")) == []


def test_patience_counts_across_runs(trainer, tmp_path):
    """A rate so small that nothing ever improves: the fourth validation is the third without a new best."""
    flags = (*SMALL, "--optimizer=sgd", "--learning_rate=1e-30", "--patience=3", "--validate_steps=20")
    for stop, reached in ((30, 30), (59, 59), (1000, 80)):
        result = train(trainer, *flags, f"--train_steps={stop}", "--train_dir=kept", cwd=tmp_path)
        assert result.done["steps"] == reached
        assert result.done["best_step"] == 20
    again = train(trainer, *flags, "--train_steps=1000", "--train_dir=kept", cwd=tmp_path)
    assert again.done["local_steps"] == 0 and again.done["steps"] == 80


def test_nothing_left_to_train(trainer, tmp_path):
    flags = (*SMALL, "--train_steps=50", "--train_dir=kept")
    first = train(trainer, *flags, cwd=tmp_path).done
    content = newest(tmp_path / "kept").read_bytes()
    again = train(trainer, *flags, cwd=tmp_path).done
    assert again["local_steps"] == 0 and again["test_accuracy"] == first["test_accuracy"]
    assert newest(tmp_path / "kept").read_bytes() == content
    assert "nothing left to train" in run(trainer, *flags, cwd=tmp_path).stdout


def test_another_seed_is_said(trainer, tmp_path):
    """With files it is another order; synthetic digits are other data."""
    run(trainer, "data", "synth", "--out=digits", "--synthetic_train=600", "--synthetic_test=50", cwd=tmp_path)
    flags = (*SMALL, "--data_source=idx", "--data_dir=digits", "--validation_size=100", "--train_dir=kept")
    train(trainer, *flags, "--train_steps=10", cwd=tmp_path)
    assert "seed 77" in run(trainer, *flags, "--seed=77", "--train_steps=20", cwd=tmp_path).stderr
    drawn = (*SMALL, "--train_dir=drawn")
    train(trainer, *drawn, "--train_steps=10", cwd=tmp_path)
    told = run(trainer, *drawn, "--seed=77", "--train_steps=20", cwd=tmp_path, status=1).stderr
    assert "was trained on other data than these, synthetic digits of seed 77" in told


@pytest.mark.parametrize(
    "change, said",
    [
        ("--layers=784,30,10", ("layer0/weights", "[784,32]", "[784,30]")),
        ("--layers=784,32,32,10", ("784,32,10", "784,32,32,10")),
        ("--optimizer=adam", ("sgd", "adam")),
        ("--ema_decay=0.99", ("verag",)),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(trainer, tmp_path, change, said):
    train(trainer, *SMALL, "--optimizer=sgd", "--train_steps=10", "--train_dir=kept", cwd=tmp_path)
    before = newest(tmp_path / "kept").read_bytes()
    result = run(trainer, *SMALL, "--optimizer=sgd", change, "--train_steps=20", "--train_dir=kept", cwd=tmp_path,
                 status=1)
    assert len(result.stderr.splitlines()) == 1
    for word in ("kept", *said):
        assert word in result.stderr
    assert newest(tmp_path / "kept").read_bytes() == before and list(checkpoints(tmp_path / "kept")) == [10]


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(trainer, tmp_path, damage, seed):
    flags = (*SMALL, "--save_steps=20", "--train_dir=kept")
    train(trainer, *flags, "--train_steps=60", cwd=tmp_path)
    broken = newest(tmp_path / "kept")
    whole = checkpoints(tmp_path / "kept")
    content = bytearray(broken.read_bytes())
    place = random.Random(seed).randrange(len(content))
    if damage == "cut":
        del content[place:]
    elif damage == "flip":
        content[place] ^= 1 << random.Random(seed + 1).randrange(8)
    else:
        content.clear()
    broken.write_bytes(content)
    result = train(trainer, *flags, "--train_steps=80", cwd=tmp_path)
    assert result.named("start")[0]["restored_from"].endswith(whole[40].name)
    assert broken.name in result.stdout
    train(trainer, *SMALL, "--train_steps=80", "--train_dir=fresh", cwd=tmp_path)
    assert same_tensors(newest(tmp_path / "kept"), newest(tmp_path / "fresh")) == []


def test_metadata_says_where_it_is(trainer, tmp_path):
    train(trainer, *SMALL, "--train_steps=10", "--seed=5", "--train_dir=kept", cwd=tmp_path)
    metadata = tensors(newest(tmp_path / "kept"))[1]
    assert "10" in metadata.values() and "5" in metadata.values()
