"""The same program for aarch64 (make ARCH=aarch64), run by qemu: its kernels, its bits, and fleets of both kinds."""

import struct
import subprocess

import numpy
import pytest

import emulated
from clusters import Cluster
from emulated import BINARY
from runs import SMALL, newest, same_tensors, tensors, train

# Few enough that an emulated processor is soon done.
FEW_DATA = ("--data_source=synthetic", "--synthetic_train=600", "--synthetic_test=60", "--validation_size=100")
FEW = SMALL + FEW_DATA


@pytest.fixture(scope="module")
def aarch64(tmp_path_factory):
    """A command that runs the program built for the other kind of processor."""
    binary, qemu = emulated.program()
    command = tmp_path_factory.mktemp("aarch64") / "trainer"
    command.write_text(f'#!/bin/sh\nexec {qemu} {binary} "$@"\n')
    command.chmod(0o755)
    return str(command)


def test_it_is_static_and_knows_itself(aarch64, tmp_path):
    header = BINARY.read_bytes()[:64]
    kind, machine = struct.unpack_from("<HH", header, 16)
    assert header[:5] == b"\x7fELF\x02" and kind == 3 and machine == 183, "a position-independent program for AArch64"
    programs, entry_size, count = struct.unpack_from("<Q", header, 32)[0], *struct.unpack_from("<HH", header, 54)
    content = BINARY.read_bytes()
    types = [struct.unpack_from("<I", content, programs + i * entry_size)[0] for i in range(count)]
    assert 3 not in types, "no interpreter is asked for"
    said = subprocess.run([aarch64, "version"], capture_output=True, text=True, timeout=240, check=True).stdout
    assert "kernels    neon (every aarch64 CPU has NEON)" in said and "features   neon" in said


def test_other_kernels_are_refused_in_one_line(aarch64, trainer, tmp_path):
    for program, kernels in ((aarch64, "avx2"), (aarch64, "avx512"), (trainer, "neon")):
        result = train(program, *FEW, f"--cpu_kernels={kernels}", cwd=tmp_path, status=1)
        assert f"--cpu_kernels={kernels}: this CPU has no" in result.stderr + result.stdout


@pytest.mark.parametrize("flags", (
    ("--layers=784,32,10", "--optimizer=adam", "--learning_rate=0.001", "--ema_decay=0.9", "--l2=0.001"),
    ("--layers=784,20,15,10", "--activation=tanh", "--dropout=0.3", "--micro_batches=2", "--batch_size=20"),
), ids=("adam", "deep"))
@pytest.mark.full(but=("deep",))
def test_the_reference_gives_the_same_bits_on_both(aarch64, trainer, tmp_path, flags):
    kept = []
    for name, program in (("here", trainer), ("there", aarch64)):
        train(program, *FEW, *flags, "--train_steps=40", "--cpu_kernels=reference", f"--train_dir={name}", cwd=tmp_path,
              timeout=1200)
        kept.append(newest(tmp_path / name))
    assert same_tensors(*kept) == []


@pytest.mark.parametrize("flags", (
    ("--layers=784,10", "--batch_size=33"),
    ("--layers=784,17,10", "--batch_size=7", "--activation=sigmoid"),
    ("--layers=784,100,50,10", "--activation=tanh", "--dropout=0.2", "--label_smoothing=0.1"),
    ("--layers=784,500,10", "--batch_size=100", "--train_steps=5"),  # an emulated processor takes a second for each
    ("--layers=784,65,33", "--batch_size=1"),
), ids=("regression", "narrow", "deep", "wide", "classes"))
@pytest.mark.full(but=("classes", "regression"))
def test_neon_computes_what_the_reference_does(aarch64, tmp_path, flags):
    """Up to the rounding of sums, which a few steps don't amplify."""
    values = []
    for kernels in ("reference", "neon"):
        train(aarch64, *FEW, "--train_steps=15", *flags, "--learning_rate=0.1", f"--cpu_kernels={kernels}",
              f"--train_dir={kernels}", cwd=tmp_path, timeout=1200)
        found, _ = tensors(newest(tmp_path / kernels))
        values.append({name: numpy.frombuffer(content, "<f4") for name, (_, content) in found.items()})
    for name in values[0]:
        numpy.testing.assert_allclose(values[0][name], values[1][name], atol=2e-4, rtol=1e-3, err_msg=name)
    assert any((values[0][name] != values[1][name]).any() for name in values[0]), "other kernels round otherwise"


def test_a_checkpoint_goes_on_on_the_other_kind(aarch64, trainer, tmp_path):
    flags = (*FEW, "--optimizer=momentum", "--learning_rate=0.05", "--cpu_kernels=reference")
    train(trainer, *flags, "--train_steps=80", "--train_dir=whole", cwd=tmp_path)
    train(trainer, *flags, "--train_steps=40", "--train_dir=parts", cwd=tmp_path)
    train(aarch64, *flags, "--train_steps=80", "--train_dir=parts", cwd=tmp_path, timeout=1200)
    assert same_tensors(newest(tmp_path / "whole"), newest(tmp_path / "parts")) == []


def test_a_fleet_of_both_kinds(aarch64, trainer, tmp_path):
    """The ps and the chief here, a worker there; over TLS, with whichever cipher suits both."""
    with Cluster(trainer, tmp_path, workers=2, flags=("--train_steps=400", "--learning_rate=0.1",
                                                      "--min_workers=2", "--lease_secs=30",
                                                      "--max_steps_per_s=50")) as cluster:
        cluster.start("ps 0")
        cluster.start("worker 0")
        cluster.trainer = aarch64
        cluster.start("worker 1")
        done = cluster.wait("worker 0", timeout=1200).done
        assert done["test_accuracy"] > 0.8
        cluster.wait_all()
        assert 0 < done["local_steps"] < 400, "the other one made some of them"
