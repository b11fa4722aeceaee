"""A new run that starts with the parameters of another one: locally and on a cluster."""

from clusters import Cluster
from runs import SMALL, checkpoints, newest, run, same_tensors, tensors, train

STILL = ("--learning_rate=1e-30", "--train_steps=1")  # one step that changes nothing


def weights(path):
    return {name: tensor for name, tensor in tensors(path)[0].items() if name.count("/") == 1}


def test_it_takes_the_parameters_and_nothing_else(trainer, tmp_path):
    train(trainer, *SMALL, "--optimizer=adam", "--train_steps=100", "--train_dir=first", cwd=tmp_path)
    for source in (newest(tmp_path / "first"), "first"):  # a file, or a folder
        kept = tmp_path / f"second{len(str(source))}"
        result = train(trainer, *SMALL, *STILL, "--optimizer=momentum", f"--warm_start={source}", f"--train_dir={kept}",
                       cwd=tmp_path)
        assert result.named("start")[0]["global_step"] == 0
        named = "first/" if source == "first" else source
        assert f"begins with the parameters of {named}" in result.stdout
        assert weights(newest(kept)) == weights(newest(tmp_path / "first"))
        assert list(checkpoints(kept)) == [1]


def test_a_run_that_resumes_does_not_begin_again(trainer, tmp_path):
    train(trainer, *SMALL, "--train_steps=50", "--train_dir=first", cwd=tmp_path)
    train(trainer, *SMALL, "--train_steps=80", "--seed=5", "--train_dir=second", cwd=tmp_path)
    before = weights(newest(tmp_path / "second"))
    train(trainer, *SMALL, "--learning_rate=1e-30", "--train_steps=81", "--seed=5", "--train_dir=second",
          "--warm_start=first", cwd=tmp_path)
    assert weights(newest(tmp_path / "second")) == before


def test_what_differs_is_said(trainer, tmp_path):
    train(trainer, *SMALL, "--train_steps=10", "--train_dir=first", cwd=tmp_path)
    result = run(trainer, *SMALL, *STILL, "--layers=784,40,10", "--warm_start=first", cwd=tmp_path, status=1)
    assert "train.warm_start: " in result.stderr
    assert "layer0/weights is [784,32] there and [784,40] here" in result.stderr
    result = run(trainer, *SMALL, *STILL, "--layers=784,10", "--warm_start=first", cwd=tmp_path, status=1)
    assert len(result.stderr.splitlines()) == 1 and "layer" in result.stderr
    result = run(trainer, *SMALL, *STILL, "--warm_start=nowhere.safetensors", cwd=tmp_path, status=1)
    assert len(result.stderr.splitlines()) == 1 and "nowhere.safetensors" in result.stderr
    result = run(trainer, *SMALL, *STILL, "--activation=tanh", "--warm_start=first", cwd=tmp_path, status=1)
    assert "activation is relu there and tanh here" in result.stderr


def test_a_cluster_begins_with_them_too(trainer, tmp_path):
    train(trainer, *SMALL, "--train_steps=100", "--train_dir=first", cwd=tmp_path)
    flags = ("--optimizer=momentum", "--train_steps=30", "--ema_decay=0.9")
    with Cluster(trainer, tmp_path, ps=2, workers=2, flags=("--issync=1", *flags, "--train_dir=kept",
                                                           "--lease_secs=30")) as cluster:
        for name in ("ps 0", "ps 1", "worker 1"):
            cluster.start(name)
        cluster.start("worker 0", "--warm_start=first")  # only the chief needs it
        cluster.wait_all()
        assert "with the parameters of first/model-" in cluster.text("ps 0")
    train(trainer, *SMALL, *flags, "--micro_batches=2", "--warm_start=first", "--train_dir=local", cwd=tmp_path)
    assert same_tensors(newest(tmp_path / "kept"), newest(tmp_path / "local")) == []


def test_a_table_keeps_the_scales_that_were_learnt(trainer, tmp_path):
    """Other rows have other means and categories: with new scales the parameters would be meaningless."""
    for name, offset, kinds in (("old", 0, "xy"), ("new", 100, "yz")):
        (tmp_path / name).mkdir()
        rows = [f"{i % 17 + offset},{kinds[i % 2]},{'ab'[i % 3 == 0]}" for i in range(200)]
        (tmp_path / name / "train.csv").write_text("\n".join(["number,kind,y", *rows]) + "\n")
    flags = ("--target=y", "--hidden=4", "--batch_size=20")
    train(trainer, *flags, "--data_dir=old", "--train_steps=30", "--train_dir=first", cwd=tmp_path)
    train(trainer, *flags, *STILL, "--data_dir=new", "--warm_start=first", "--train_dir=second", cwd=tmp_path)
    first, second = newest(tmp_path / "first"), newest(tmp_path / "second")
    assert weights(first) == weights(second)
    assert tensors(first)[1]["preprocessing"] == tensors(second)[1]["preprocessing"]
