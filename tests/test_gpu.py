"""The GPU engine in the real binary.

Without a GPU the driver is the tests' own (tests/cuda/fake), which runs the real kernels on the CPU and fails on
demand. TRAINER_TEST_GPU=1 (make test-gpu) uses the machine's driver instead, and leaves out what only the fake one can
do.
"""

import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
import urllib.request

import pytest

import runs
from clusters import Cluster
from ports import free_ports
from runs import checkpoints, newest, same_tensors, tensors, train, wait_for
from served import Served

ROOT = pathlib.Path(__file__).resolve().parent.parent
REAL = os.environ.get("TRAINER_TEST_GPU") == "1"
FAKE = ROOT / "build" / "fake"

# Small enough for a GPU that is one thread of a CPU.
NET = runs.SMALL_DATA + ("--layers=784,24,10", "--batch_size=20", "--num_threads=1", "--optimizer=adam", "--train_dir=",
                         "--learning_rate=0.002")
SOFT = NET + ("--device=gpu",)
GPU = SOFT + ("--noallow_soft_placement",)

only_fake = pytest.mark.skipif(REAL, reason="the machine's own driver does not fail on demand")


@pytest.fixture(scope="module", autouse=True)
def built(trainer):
    engines = json.loads(subprocess.run([trainer, "version", "--json"], capture_output=True,
                                        text=True).stdout)["engines"]
    if "gpu" not in engines:
        pytest.skip("this build has no GPU engine (no nvcc)")
    if not REAL and not (FAKE / "libcuda.so.1").exists():
        pytest.skip("no fake driver: make fake")


@pytest.fixture
def gpu(monkeypatch):
    """Sets the driver and its options: gpu(DEVICES=2) is FAKE_CUDA_DEVICES=2."""

    def tell(**options):
        for name, value in options.items():
            monkeypatch.setenv(f"FAKE_CUDA_{name}", str(value))

    if not REAL:
        monkeypatch.setenv("LD_LIBRARY_PATH", str(FAKE))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        tell(MULTIPROCESSORS=2)
    return tell


def devices(trainer, **environment):
    result = subprocess.run([trainer, "devices", "--json"], capture_output=True, text=True, timeout=240,
                            env={**os.environ, **environment})
    assert result.returncode == 0 and result.stderr == "", result.stderr
    return json.loads(result.stdout)


def engine_of(result):
    (start,) = result.named("start")
    return start["engine"]


def children(pid):
    """Running processes that this one started."""
    text = subprocess.run(["ps", "-o", "pid=,comm=", "--ppid", str(pid)], capture_output=True, text=True).stdout
    return {name: int(number) for number, name in (line.split(None, 1) for line in text.splitlines())}


# --- The build ---


def test_the_process_needs_no_more_than_glibc_2_17(root):
    text = subprocess.run(["readelf", "-VdW", root / "build/gpu/trainer-gpu"], capture_output=True, text=True).stdout
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", text))
    assert needed <= {"libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0"}, "no libcuda, no CUDA runtime"
    versions = re.findall(r"Name: GLIBC_([0-9.]+)", text)
    assert versions and all(tuple(map(int, version.split("."))) <= (2, 17) for version in versions), versions


def test_the_payload_is_small(root, trainer):
    payload = (root / "build/gpu/trainer-gpu").stat().st_size
    assert payload <= 1 << 20


def test_version_tells_architectures_and_driver(run):
    text = run("version").stdout
    line = next(line for line in text.splitlines() if line.startswith("  gpu "))
    for architecture in (75, 80, 86, 87, 89, 90, 100, 120):
        assert f"sm_{architecture}" in line
    assert "PTX" in line and "NVIDIA driver 580" in line


ARCHITECTURES = {75, 80, 86, 87, 89, 90, 100, 120}


def test_it_holds_code_for_every_architecture_it_names(root):
    """From the headers of the file's entries: 16 bytes of its own, then for each a kind (1: PTX, 2: machine code), the
    header's and the content's size, and 28 bytes further the architecture."""
    data = (root / "build/gpu/kernels.fatbin").read_bytes()
    magic, _, header, size = struct.unpack_from("<IHHQ", data)
    assert (magic, header + size) == (0xBA55ED50, len(data))
    found, at = [], header
    while at < len(data):
        kind, _, entry, content = struct.unpack_from("<HHIQ", data, at)
        found.append((kind, *struct.unpack_from("<I", data, at + 28)))
        at += entry + content
    assert sorted(found) == [(1, 90)] + [(2, architecture) for architecture in sorted(ARCHITECTURES)]


def test_cuobjdump_finds_the_same(root):
    cuobjdump = shutil.which("cuobjdump", path=f"{os.environ['PATH']}:/usr/local/cuda/bin")
    if not cuobjdump:
        pytest.skip("this CUDA toolkit has no cuobjdump")
    text = subprocess.run([cuobjdump, "--list-elf", "--list-ptx", root / "build/gpu/kernels.fatbin"],
                          capture_output=True, text=True).stdout
    assert {int(arch) for arch in re.findall(r"sm_(\d+)\.cubin", text)} == ARCHITECTURES
    assert re.findall(r"sm_(\d+)\.ptx", text) == ["90"]


def test_without_a_gpu_its_tests_and_its_bench_say_so(root):
    none = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run([root / "tests/cuda/run"], capture_output=True, text=True, cwd=root, env=none)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "make test-gpu: CUDA_VISIBLE_DEVICES hides all GPUs\n"
    result = subprocess.run([sys.executable, root / "tests/bench/gpu.py"], capture_output=True, text=True, cwd=root,
                            env=none)
    assert (result.returncode, result.stdout) == (0, "")
    assert result.stderr == "gpu: nothing is measured, CUDA_VISIBLE_DEVICES hides all GPUs\n"


@pytest.mark.skipif(REAL, reason="is called by that script")
def test_a_kits_tests_end_in_time(root, gpu):
    """What can't begin in the time given is named."""
    result = subprocess.run([root / "tests/cuda/run", "--seconds=0", "--bench"], capture_output=True, text=True,
                            cwd=root, env={**os.environ, "TRAINER_MNIST": str(root)})
    assert result.returncode == 0, result.stdout + result.stderr
    assert "left out: units, " in result.stdout and "bench steps, bench worker" in result.stdout


def test_without_glibc_it_says_so(trainer, tmp_path, gpu):
    if os.geteuid() != 0:
        pytest.skip("chroot needs root")
    shutil.copy(trainer, tmp_path / "trainer")
    result = subprocess.run(["chroot", tmp_path, "/trainer", "devices", "--json"], capture_output=True, text=True)
    found = json.loads(result.stdout)
    assert found["devices"] == [] and "this system has no glibc (/lib64/ld-linux-x86-64.so.2)" in found["no_gpu"]


@only_fake
@pytest.mark.full
def test_every_part_of_its_bench_runs(root, gpu, mnist):
    """What it would measure on a GPU; here with a network and a time that suit a CPU."""
    step = root / "build/bench/gpu_bench"
    if not step.exists():
        pytest.skip("no build/bench/gpu_bench: make bench")
    result = subprocess.run([sys.executable, root / "tests/bench/gpu.py", "--layers=784,8,10", "--steps=20",
                             "--rounds=1", "--seconds=0.5", f"--data={mnist}", "worker", "until"], capture_output=True,
                            text=True, timeout=240)
    figures = [json.loads(line)["figure"] for line in result.stdout.splitlines()]
    assert len(figures) == 4 and figures[1] == "as a worker over loopback TLS with one ps", result.stderr


# --- Devices ---


def test_devices_are_listed(trainer, gpu):
    gpu(DEVICES=2)
    found = devices(trainer)
    assert float(found["driver_cuda"]) >= 13 and "no_gpu" not in found
    for i, device in enumerate(found["devices"]):
        assert device["device"] == f"gpu:{i}" and device["name"] and device["memory_bytes"] > 1 << 28
        assert re.fullmatch(r"\d+\.\d", device["compute_capability"]) and device["multiprocessors"] > 0
        assert re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", device["uuid"])
    assert REAL or len(found["devices"]) == 2
    text = subprocess.run([trainer, "devices"], capture_output=True, text=True).stdout
    assert found["devices"][0]["name"] in text and "compute capability" in text and "driver CUDA" in text


def test_visible_devices(trainer, gpu):
    gpu(DEVICES=3)
    all_of_them = devices(trainer)["devices"]
    last = all_of_them[-1]
    for named in (str(len(all_of_them) - 1), last["uuid"]):
        (device,) = devices(trainer, CUDA_VISIBLE_DEVICES=named)["devices"]
        assert device["uuid"] == last["uuid"] and device["device"] == "gpu:0"
    for nothing in ("", "-1"):
        found = devices(trainer, CUDA_VISIBLE_DEVICES=nothing)
        assert found["devices"] == [] and "CUDA_VISIBLE_DEVICES" in found["no_gpu"]


@only_fake
@pytest.mark.parametrize("told, reason", [
    ({"DRIVER": 12040}, r"CUDA 12\.4.*CUDA 13\.0.*580.*--device=cpu"),
    ({"DEVICES": 0}, r"finds no GPU"),
    ({"INIT": 999}, r"cuInit"),
])
def test_why_there_is_none(trainer, gpu, tmp_path, told, reason):
    gpu(**told)
    found = devices(trainer)
    assert found["devices"] == [] and re.search(reason, found["no_gpu"]), found
    result = train(trainer, *GPU, "--train_steps=1", cwd=tmp_path, status=1)
    assert re.search(reason, result.stderr) and len(result.stderr.splitlines()) == 1
    result = train(trainer, *SOFT, "--train_steps=1", cwd=tmp_path)
    assert re.search(reason, warning_of(result)) and engine_of(result).startswith("CPU")
    result = train(trainer, *NET, "--device=auto", "--train_steps=1", cwd=tmp_path)
    assert result.stderr == "" and engine_of(result).startswith("CPU")


def test_who_watches_sees_how_busy_gpus_are(trainer, gpu, tmp_path):
    gpu(DEVICES=2)
    towers = [device["device"] for device in devices(trainer)["devices"][:2]]
    (port,) = free_ports(1)
    training = subprocess.Popen([trainer, "train", *GPU, f"--towers={','.join(towers)}",
                                 f"--micro_batches={len(towers)}", f"--http=127.0.0.1:{port}", "--log_steps=0"],
                                cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def get(path):
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
                return answer.read().decode()
        assert training.poll() is None, training.stderr.read()
        return ""

    try:
        def share():
            told = json.loads(get("/api/status") or '{"members": [{}]}')
            return told["members"][0].get("gpu_percent") or 0

        wait_for(lambda: share() > 0, "share of a GPU's time")
        assert share() <= 100
        metrics = get("/metrics")
        assert f"\ntrainer_gpus {len(towers)}\n" in metrics
        assert float(re.search(r"^trainer_gpu_busy_seconds_total (\S+)", metrics, flags=re.M)[1]) > 0
        assert "gpu_percent" in json.loads(get("/api/history"))["series"]
    finally:
        training.kill()
        training.wait()


@only_fake
def test_no_driver(trainer, tmp_path, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has a driver")
    assert "libcuda.so.1" in devices(trainer)["no_gpu"]
    result = train(trainer, *NET, "--device=auto", "--train_steps=1", cwd=tmp_path)
    assert engine_of(result).startswith("CPU")
    told = [event["message"] for event in result.named("log") if "device " in event["message"]]
    assert told == ["device     cpu: no NVIDIA driver is loaded"]


def test_a_device_that_is_not_there(trainer, gpu, tmp_path):
    result = train(trainer, *NET, "--device=gpu:63", "--noallow_soft_placement", cwd=tmp_path, status=1)
    assert "--device=gpu:63 can't be used" in result.stderr and "there is no gpu:63" in result.stderr


def test_memory_fraction(trainer, gpu, tmp_path):
    result = train(trainer, *GPU, "--gpu_memory_fraction=1e-9", "--train_steps=5", cwd=tmp_path, status=1)
    assert "memory" in result.stderr and len(result.stderr.splitlines()) == 1
    train(trainer, *GPU, "--gpu_memory_fraction=0.5", "--train_steps=5", cwd=tmp_path)


def test_auto_takes_the_gpu(trainer, gpu, tmp_path):
    assert engine_of(train(trainer, *NET, "--device=auto", "--train_steps=3", cwd=tmp_path)).startswith("gpu:0")
    assert engine_of(train(trainer, *NET, "--device=cpu", "--train_steps=3", cwd=tmp_path)).startswith("CPU")


def test_a_second_device(trainer, gpu, tmp_path):
    gpu(DEVICES=2)
    if len(devices(trainer)["devices"]) < 2:
        pytest.skip("one GPU")
    result = train(trainer, *NET, "--device=gpu:1", "--noallow_soft_placement", "--train_steps=3", cwd=tmp_path)
    assert engine_of(result).startswith("gpu:1")


def test_towers_follow_the_cpu(trainer, gpu, tmp_path):
    gpu(DEVICES=2)
    if len(devices(trainer)["devices"]) < 2:
        pytest.skip("one GPU")
    flags = ("--micro_batches=2", "--ema_decay=0.9", "--train_steps=30", "--log_steps=5")
    towers = train(trainer, *NET, *flags, "--towers=gpu:0,gpu:1", "--noallow_soft_placement", cwd=tmp_path)
    assert re.match(r"2 towers: gpu:0: .*; gpu:1: ", engine_of(towers))
    on_cpu = train(trainer, *NET, *flags, "--device=cpu", cwd=tmp_path)
    assert curve(towers) == pytest.approx(curve(on_cpu), rel=2e-3)
    assert towers.done["test_accuracy"] == pytest.approx(on_cpu.done["test_accuracy"], abs=0.012)


def test_placement_is_logged(trainer, gpu, tmp_path):
    result = train(trainer, *GPU, "--log_device_placement", "--train_steps=1", cwd=tmp_path)
    placed = {(event["name"], event["operation"]): event for event in result.named("placement")}
    for name, operation in [("layer0/weights", "Variable"), ("layer1/MatMul", "MatMul"),
                            ("loss", "SparseSoftmaxCrossEntropy"), ("layer1/biases/update", "ApplyGradient")]:
        event = placed[name, operation]
        assert (event["job"], event["task"], event["device"]) == ("local", 0, "gpu:0")
    assert train(trainer, *GPU, "--train_steps=1", cwd=tmp_path).named("placement") == []


# --- Layers placed by hand ---


def place(tmp_path, layers, **train):
    (tmp_path / "config.json").write_text(json.dumps({"train": {"placement": layers, **train}}))


@pytest.mark.parametrize("layer", ["layer0", "layer1"])
def test_a_layer_on_the_cpu(trainer, gpu, tmp_path, layer):
    place(tmp_path, {layer: "cpu:0"})
    flags = ("--train_steps=40", "--log_steps=10", "--log_device_placement")
    placed = train(trainer, *GPU, *flags, "--train_dir=placed", cwd=tmp_path)
    assert "with layers on the CPU" in engine_of(placed)
    devices = {event["name"]: event["device"] for event in placed.named("placement")}
    for name in ("layer0", "layer1"):
        for what in (f"{name}/weights", f"{name}/MatMul", f"gradients/{name}/MatMul", f"{name}/biases/update"):
            assert devices[what] == ("cpu:0" if name == layer else "gpu:0"), what
    assert devices["loss"] == "gpu:0"
    (tmp_path / "config.json").unlink()
    on_cpu = train(trainer, *NET, "--train_steps=80", "--log_steps=10", "--device=cpu", cwd=tmp_path)
    assert curve(placed) == pytest.approx(curve(on_cpu)[:4], rel=2e-3)
    after = train(trainer, *NET, "--device=cpu", "--train_steps=60", "--log_steps=10", "--train_dir=placed",
                  cwd=tmp_path)
    assert curve(after) == pytest.approx(curve(on_cpu)[4:6], rel=2e-3)
    place(tmp_path, {layer: "cpu:0"})
    after = train(trainer, *GPU, "--train_steps=80", "--log_steps=10", "--train_dir=placed", cwd=tmp_path)
    assert after.named("start")[0]["restored_from"].endswith("model-0000000060.safetensors")
    assert curve(after) == pytest.approx(curve(on_cpu)[6:], rel=2e-3)


def test_a_layer_on_the_gpu(trainer, gpu, tmp_path):
    """And all others on the CPU."""
    place(tmp_path, {"layer1": "gpu:0"}, device="cpu")
    flags = ("--train_steps=20", "--log_steps=10", "--log_device_placement")
    placed = train(trainer, *NET, *flags, "--noallow_soft_placement", cwd=tmp_path)
    assert engine_of(placed).startswith("gpu:0")
    devices = {event["name"]: event["device"] for event in placed.named("placement")}
    assert (devices["layer0/MatMul"], devices["layer1/MatMul"]) == ("cpu:0", "gpu:0")
    (tmp_path / "config.json").unlink()
    on_cpu = train(trainer, *NET, *flags, "--device=cpu", cwd=tmp_path)
    assert curve(placed) == pytest.approx(curve(on_cpu), rel=2e-3)


def test_placement_where_there_is_no_gpu(trainer, tmp_path, gpu, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    flags = (*NET, "--train_steps=5", "--log_device_placement")
    place(tmp_path, {"layer0": "cpu:0", "layer1": "cpu:0"})
    result = train(trainer, *flags, "--device=gpu", "--noallow_soft_placement", cwd=tmp_path)
    assert engine_of(result).startswith("CPU") and result.stderr == ""
    place(tmp_path, {"layer1": "gpu:0"})
    result = train(trainer, *flags, "--device=cpu", cwd=tmp_path)
    assert warning_of(result).startswith(
        "using the CPU, since gpu:0 of train.placement can't be used: CUDA_VISIBLE_DEVICES")
    assert {event["device"] for event in result.named("placement")} == {"cpu:0"}
    result = train(trainer, *flags, "--device=cpu", "--noallow_soft_placement", cwd=tmp_path, status=1)
    assert "gpu:0 of train.placement can't be used: CUDA_VISIBLE_DEVICES hides all GPUs" in result.stderr


@pytest.mark.parametrize("layers, train_keys, message", [
    ({"layer2": "cpu:0"}, {}, 'names layer2, but model.layers makes layer0 to layer1'),
    ({"hidden": "cpu:0"}, {}, '"hidden" is not a layer; expected layer0'),
    ({"layer1": "tpu:0"}, {}, 'layer1 must be on cpu:0 or gpu:N with N from 0 to 63, not "tpu:0"'),
    ({"layer0": "gpu:0", "layer1": "gpu:1"}, {}, "puts layer1 on gpu:1 and others on gpu:0; a model uses one GPU"),
    ({"layer1": "cpu:0"}, {"towers": ["gpu:0", "gpu:1"], "micro_batches": 2}, "cannot be combined with train.towers"),
])
def test_placements_that_make_no_sense(trainer, tmp_path, layers, train_keys, message):
    place(tmp_path, layers, **train_keys)
    result = subprocess.run([trainer, "--layers=784,24,10"], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
    assert re.search(r"config\.json:1:\d+: train\.placement: ",
                     result.stderr) and message in result.stderr, result.stderr


# --- Training ---


def curve(result):
    return [event["loss"] for event in result.named("step")]


def test_it_learns_as_the_cpu_does(trainer, gpu, tmp_path):
    flags = ("--train_steps=600", "--log_steps=20")
    on_gpu = train(trainer, *GPU, *flags, cwd=tmp_path)
    on_cpu = train(trainer, *NET, *flags, "--device=cpu", cwd=tmp_path)
    assert on_gpu.done["steps"] == 600
    assert curve(on_gpu) == pytest.approx(curve(on_cpu), rel=2e-3)
    assert on_gpu.done["test_accuracy"] == pytest.approx(on_cpu.done["test_accuracy"], abs=0.012)
    assert on_gpu.done["test_accuracy"] > 0.6


@pytest.mark.parametrize("flags", [
    ("--optimizer=momentum", "--nesterov", "--clip_norm=0.5", "--learning_rate=0.02", "--layers=784,8,10"),
    ("--optimizer=sgd", "--layers=784,17,9,10", "--activation=tanh", "--dropout=0.3", "--learning_rate=0.1"),
    ("--layers=784,10", "--micro_batches=3", "--label_smoothing=0.1", "--ema_decay=0.9", "--weight_decay=0.01"),
], ids=["clipped", "deep", "regression"])
@pytest.mark.full(but=("deep", "regression"))
def test_other_networks_follow_the_cpu(trainer, gpu, tmp_path, flags):
    flags = (*flags, "--train_steps=20", "--log_steps=5")
    on_gpu = train(trainer, *GPU, *flags, cwd=tmp_path)
    on_cpu = train(trainer, *NET, *flags, "--device=cpu", cwd=tmp_path)
    assert curve(on_gpu) == pytest.approx(curve(on_cpu), rel=2e-3)


@pytest.mark.parametrize("first, then", [("gpu", "cpu"), ("cpu", "gpu")])
def test_checkpoints_move_between_engines(trainer, gpu, tmp_path, first, then):
    flags = (*NET, "--noallow_soft_placement", "--ema_decay=0.9", "--log_steps=10")
    train(trainer, *flags, f"--device={first}", "--train_steps=60", "--train_dir=moved", cwd=tmp_path)
    moved = train(trainer, *flags, f"--device={then}", "--train_steps=120", "--train_dir=moved", cwd=tmp_path)
    stayed = train(trainer, *flags, "--device=cpu", "--train_steps=120", "--train_dir=stayed", cwd=tmp_path)
    assert moved.named("start")[0]["restored_from"].endswith("model-0000000060.safetensors")
    assert curve(moved) == pytest.approx(curve(stayed)[6:], rel=2e-3)
    one, other = tensors(newest(tmp_path / "moved"))[0], tensors(newest(tmp_path / "stayed"))[0]
    assert one.keys() == other.keys() and any("Adam_1" in name for name in one)


def test_the_same_seed_gives_the_same_bits(trainer, gpu, tmp_path):
    flags = (*GPU, "--dropout=0.2", "--micro_batches=2", "--train_steps=40")
    gpu(SEED=1)
    train(trainer, *flags, "--train_dir=one", cwd=tmp_path)
    gpu(SEED=2)
    train(trainer, *flags, "--train_dir=two", cwd=tmp_path)
    assert same_tensors(newest(tmp_path / "one"), newest(tmp_path / "two")) == []


def test_an_interrupted_run_goes_on_with_the_same_bits(trainer, gpu, tmp_path):
    train(trainer, *GPU, "--train_steps=90", "--train_dir=whole", cwd=tmp_path)
    train(trainer, *GPU, "--train_steps=30", "--train_dir=parts", cwd=tmp_path)
    train(trainer, *GPU, "--train_steps=90", "--train_dir=parts", cwd=tmp_path)
    assert same_tensors(newest(tmp_path / "whole"), newest(tmp_path / "parts")) == []


@pytest.mark.parametrize("precision, close", [("tf32", 5e-3), ("bfloat16", 5e-2)])
@pytest.mark.full(but=("bfloat16-0.05",))
def test_precision_is_what_was_asked_for(trainer, gpu, tmp_path, precision, close):
    """A short training, its checkpoint, the evaluation of that, and float32 going on from there."""
    if REAL and float(devices(trainer)["devices"][0]["compute_capability"]) < 8:
        pytest.skip("a GPU without tensor cores for that")
    flags = ("--log_steps=10", "--train_dir=kept")
    result = train(trainer, *GPU, f"--precision={precision}", "--train_steps=60", *flags, cwd=tmp_path)
    assert engine_of(result).endswith(f"for its precision), {precision}")
    on_cpu = train(trainer, *NET, "--train_steps=120", "--log_steps=10", "--device=cpu", cwd=tmp_path)
    assert curve(result) == pytest.approx(curve(on_cpu)[:6], rel=close)
    assert curve(result) != pytest.approx(curve(on_cpu)[:6], rel=1e-6)

    def accuracy(*flags):
        found = subprocess.run([trainer, "eval", "kept", *NET, *flags, "--log_format=json"], cwd=tmp_path,
                               capture_output=True, text=True, check=True)
        return json.loads(found.stdout.splitlines()[-1])["test_accuracy"]

    assert accuracy("--device=gpu", f"--precision={precision}") == pytest.approx(accuracy("--device=cpu"), abs=0.02)
    after = train(trainer, *GPU, "--train_steps=120", *flags, cwd=tmp_path)
    assert curve(after) == pytest.approx(curve(on_cpu)[6:], rel=2 * close)


@only_fake
def test_precision_where_there_are_no_tensor_cores_for_it(trainer, gpu, tmp_path):
    gpu(CAPABILITY=75)
    flags = ("--precision=tf32", "--train_steps=10")
    result = train(trainer, *GPU, *flags, cwd=tmp_path, status=1)
    assert "compute capability 7.5, and precision tf32 needs 8.0" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    result = train(trainer, *SOFT, *flags, cwd=tmp_path)
    assert warning_of(result) == "gpu:0 computes in float32: it has no tensor cores for --precision=tf32"
    assert engine_of(result).endswith("float32")


def test_precision_without_a_gpu(trainer, tmp_path, gpu, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    flags = (*NET, "--precision=bfloat16", "--train_steps=3")
    result = train(trainer, *flags, "--device=cpu", cwd=tmp_path, status=2)
    assert "--precision: bfloat16 needs a GPU's tensor cores, but device is cpu" in result.stderr
    result = train(trainer, *flags, "--device=gpu", cwd=tmp_path)
    assert warning_of(result).startswith(
        "using the CPU, in float32 and not bfloat16, since --device=gpu:0 can't be used")
    result = train(trainer, *flags, "--device=auto", "--noallow_soft_placement", cwd=tmp_path, status=1)
    assert "--precision=bfloat16 is not available: CUDA_VISIBLE_DEVICES hides all GPUs" in result.stderr


@pytest.mark.parametrize("batch", [1, 33, 257])
@pytest.mark.full(but=("33",))
def test_batches_that_divide_nothing(trainer, gpu, tmp_path, batch):
    flags = (f"--batch_size={batch}", "--train_steps=30", "--log_steps=5", "--optimizer=sgd", "--learning_rate=0.05")
    on_gpu = train(trainer, *GPU, *flags, cwd=tmp_path)
    on_cpu = train(trainer, *NET, *flags, "--device=cpu", cwd=tmp_path)
    assert curve(on_gpu) == pytest.approx(curve(on_cpu), rel=2e-3)


def test_a_signal_leaves_a_checkpoint_and_no_process(trainer, gpu, tmp_path):
    process = runs.start(trainer, *GPU, "--train_steps=0", "--train_dir=kept", "--log_steps=20", "--log_format=json",
                         cwd=tmp_path, start_new_session=True)
    runs.wait_for(lambda: "trainer-gpu" in children(process.pid), "process of the GPU engine")
    helper = children(process.pid)["trainer-gpu"]
    runs.read_until(process, '"event":"step"')
    os.killpg(process.pid, signal.SIGINT)  # like a terminal: to the whole group
    result = runs.finish(process, status=130)
    assert "interrupted" in result.stdout and checkpoints(tmp_path / "kept")
    assert not pathlib.Path(f"/proc/{helper}").exists()


def test_a_killed_trainer_takes_its_process_with_it(trainer, gpu, tmp_path):
    process = runs.start(trainer, *GPU, "--train_steps=0", cwd=tmp_path)
    runs.wait_for(lambda: "trainer-gpu" in children(process.pid), "process of the GPU engine")
    helper = children(process.pid)["trainer-gpu"]
    process.kill()
    process.communicate()
    runs.wait_for(lambda: not pathlib.Path(f"/proc/{helper}").exists(), "end of the GPU engine's process", timeout=5)


def test_on_one_processor(trainer, gpu, tmp_path):
    """Neither side may spin while the other one needs the processor."""
    cpu = min(os.sched_getaffinity(0))
    train(trainer, *GPU, "--train_steps=50", cwd=tmp_path, preexec_fn=lambda: os.sched_setaffinity(0, {cpu}))


def test_a_worker_computes_on_the_gpu_and_a_ps_does_not(trainer, gpu, tmp_path):
    flags = ("--layers=784,24,10", "--batch_size=20", "--device=gpu", "--noallow_soft_placement", "--train_steps=300",
             "--learning_rate=0.2", "--log_device_placement", "--lease_secs=5",
             "--max_steps_per_s=30")  # a real GPU would be done before anybody looks
    with Cluster(trainer, tmp_path, workers=1, flags=flags) as cluster:
        cluster.start_all()
        cluster.until("worker 0", lambda text: '"step"' in text, "first line of a step")
        assert "trainer-gpu" in children(cluster.members["worker 0"].pid)
        assert children(cluster.members["ps 0"].pid) == {}
        runs.wait_for(lambda: cluster.status()[1]["worker 0"]["device"].startswith("gpu:0"),
                      "device in the worker's report")
        done = cluster.wait("worker 0").done
        assert done["steps"] == 300 and done["test_accuracy"] > 0.6
        placed = {event["name"]: (event["job"], event["device"]) for event in cluster.events("worker 0", "placement")}
        assert placed["layer0/weights"] == ("ps", "cpu:0") and placed["layer0/MatMul"] == ("worker", "gpu:0")


# --- Tables ---

TABLE = ("--data_dir=d", "--features=shaking,heat,colour", "--test_share=0.2", "--validation_size=60",
         "--batch_size=20", "--hidden=8", "--optimizer=adam", "--epochs=3", "--log_steps=6", "--save_summaries_steps=0",
         "--num_threads=1")
TABLE_GPU = (*TABLE, "--device=gpu", "--noallow_soft_placement")


def write_table(folder, rows=400):
    """Machines' sensor readings, with gaps, and everything that can be learnt from them."""
    draw = random.Random(5)
    lines = ["shaking,heat,colour,count,kind,cost,delay,loud,hot"]
    for i in range(rows):
        shaking, heat, colour = draw.gauss(0, 1), draw.gauss(50, 9), draw.choice(["red", "green", "blue", "grey"])
        bad = shaking * (1 if colour in ("red", "blue") else -1) + draw.gauss(0, 0.3)
        kind = "fails" if bad > 0.8 else "wears" if bad > 0 else "works"
        lines.append(f"{shaking:.4f},{heat if i % 9 else ''},{colour if i % 11 else ''},{draw.randint(1, 4)},{kind},"
                     f"{30 * bad + heat:.3f},{heat * bad:.3f},{int(shaking > 0)},{int(heat > 55)}")
    folder.mkdir()
    (folder / "train.csv").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("flags", [
    ("--target=kind", "--class_weights=balanced", "--label_smoothing=0.1", "--dropout=0.2"),
    ("--target=loud,hot", "--weight=count"),
    ("--target=cost", "--features=shaking,heat", "--clip_norm=1"),
    ("--target=cost,delay", "--weight=count", "--micro_batches=2"),
    ("--target=cost", "--loss=mae", "--weight=count", "--lazy_updates"),
    ("--target=cost,delay", "--loss=huber", "--huber_delta=0.5", "--hidden=8,6", "--activation=tanh"),
    ("--target=delay", "--loss=quantile", "--quantile=0.9", "--features=colour", "--ema_decay=0.9"),
    ("--target=inputs", "--hidden="),
])
def test_tables_are_learnt_as_on_the_cpu(trainer, gpu, tmp_path, flags):
    write_table(tmp_path / "d")
    on_gpu = train(trainer, *TABLE_GPU, *flags, cwd=tmp_path)
    on_cpu = train(trainer, *TABLE, *flags, "--device=cpu", cwd=tmp_path)
    assert engine_of(on_gpu).startswith("gpu:0") and "for rows of a table" in engine_of(on_gpu)
    assert len(curve(on_cpu)) > 2 and curve(on_gpu) == pytest.approx(curve(on_cpu), rel=2e-3)
    metrics = [name for name, value in on_cpu.done.items() if name.startswith("test_") and isinstance(value, float)]
    assert metrics
    for name in metrics:
        assert on_gpu.done[name] == pytest.approx(on_cpu.done[name], rel=5e-3, abs=0.02), name


def test_a_table_is_evaluated_and_predicted_on_the_gpu(trainer, gpu, tmp_path):
    write_table(tmp_path / "d")
    train(trainer, *TABLE, "--target=cost,delay", "--train_dir=run", "--device=cpu", cwd=tmp_path)
    evaluated, predicted = [], []
    for flags in (("--device=cpu",), ("--device=gpu", "--noallow_soft_placement")):
        evaluated.append(runs.run(trainer, "eval", "run", "d/train.csv", "--json", *flags, cwd=tmp_path).events[-1])
        text = runs.run(trainer, "predict", "run", "d/train.csv", *flags, cwd=tmp_path).stdout
        names, *rows = [line.split(",") for line in text.splitlines()]
        predicted.append([float(row[i]) for row in rows for i, name in enumerate(names) if "prediction" in name])
    assert evaluated[1]["test_rmse"] == pytest.approx(evaluated[0]["test_rmse"], rel=1e-4)
    assert len(predicted[0]) == 800 and predicted[1] == pytest.approx(predicted[0], rel=1e-4, abs=1e-3)


def test_a_table_that_does_not_fit_into_memory(trainer, gpu, tmp_path):
    """Then the GPU receives each batch as it is drawn."""
    write_table(tmp_path / "d", rows=40000)
    flags = ("--target=cost", "--features=", "--memory_mb=1", "--shuffle_buffer=2000", "--test_share=0.02",
             "--train_steps=40", "--log_steps=10")
    on_gpu = train(trainer, *TABLE_GPU, *flags, cwd=tmp_path)
    assert on_gpu.named("start")[0]["data"].endswith("; streams") and "gpu:0" in engine_of(on_gpu)
    on_cpu = train(trainer, *TABLE, *flags, "--device=cpu", cwd=tmp_path)
    assert curve(on_gpu) == pytest.approx(curve(on_cpu), rel=2e-3)


@only_fake
def test_the_cpu_takes_a_table_over(trainer, gpu, tmp_path):
    write_table(tmp_path / "d")
    gpu(LOSE_AT=200)
    flags = ("--target=cost,delay", "--weight=count")
    result = train(trainer, *TABLE, *flags, "--device=gpu", cwd=tmp_path)
    assert "continuing on the CPU" in warning_of(result)
    on_cpu = train(trainer, *TABLE, *flags, "--device=cpu", cwd=tmp_path)
    assert curve(result) == pytest.approx(curve(on_cpu), rel=2e-3)


# --- Faults ---


def warning_of(result):
    (warning,) = [event["message"] for event in result.named("log") if event["level"] == "warning"]
    return warning


@only_fake
@pytest.mark.parametrize("told, reason", [
    ({"LOSE_AT": 60}, "lost|CUDA_ERROR"),
    ({"HANG_AT": 60}, "did not (train|classify|give|take).*within"),
    ({"FAIL_ALLOC": 2}, "memory"),
])
def test_a_device_that_fails(trainer, gpu, tmp_path, told, reason):
    gpu(**told)
    # Only one that hangs may seem to.
    flags = (*SOFT, "--train_steps=120", "--log_steps=10", f"--gpu_timeout_secs={1 if 'HANG_AT' in told else 60}")
    result = train(trainer, *flags, "--noallow_soft_placement", cwd=tmp_path, status=1)
    assert len(result.stderr.splitlines()) == 1 and re.search(reason, result.stderr), result.stderr
    result = train(trainer, *flags, cwd=tmp_path)
    assert re.search(reason, warning_of(result)), warning_of(result)
    on_cpu = train(trainer, *flags, "--device=cpu", cwd=tmp_path)
    assert result.done["steps"] == 120
    assert curve(result) == pytest.approx(curve(on_cpu), rel=2e-3)


@only_fake
def test_a_device_that_fails_with_a_layer_on_the_cpu(trainer, gpu, tmp_path):
    gpu(LOSE_AT=200)
    place(tmp_path, {"layer1": "cpu:0"})
    flags = ("--train_steps=60", "--log_steps=10", "--log_device_placement")
    result = train(trainer, *SOFT, *flags, cwd=tmp_path)
    assert re.search("gpu:0 failed at step .*CUDA_ERROR_LAUNCH_FAILED", warning_of(result))
    placed = [event["device"] for event in result.named("placement") if event["name"] == "layer0/MatMul"]
    assert placed == ["gpu:0", "cpu:0"]  # and after the CPU has taken over
    on_cpu = train(trainer, *NET, *flags, "--device=cpu", cwd=tmp_path)
    assert curve(result) == pytest.approx(curve(on_cpu), rel=2e-3)
    result = train(trainer, *GPU, *flags, cwd=tmp_path, status=1)
    assert "gpu:0 failed at step" in result.stderr and len(result.stderr.splitlines()) == 1


@only_fake
def test_a_tower_that_fails(trainer, gpu, tmp_path):
    gpu(DEVICES=2, LOSE_AT=100)
    flags = ("--micro_batches=2", "--train_steps=30", "--log_steps=10")
    result = train(trainer, *NET, *flags, "--towers=gpu:0,gpu:1", cwd=tmp_path)
    warnings = [event["message"] for event in result.named("log") if event["level"] == "warning"]
    assert len(warnings) == 2 and all("continuing on the CPU" in warning for warning in warnings), warnings
    on_cpu = train(trainer, *NET, *flags, "--device=cpu", cwd=tmp_path)
    assert curve(result) == pytest.approx(curve(on_cpu), rel=2e-3)


@pytest.mark.alone
def test_a_killed_process(trainer, gpu, tmp_path):
    def kill_it(*flags, status):
        process = runs.start(trainer, *SOFT, *flags, "--train_steps=0", "--log_format=json", "--log_steps=1",
                             "--gpu_timeout_secs=3600", "--train_dir=kept" + str(status), cwd=tmp_path)
        runs.wait_for(lambda: "trainer-gpu" in children(process.pid), "process of the GPU engine")
        text = ""
        while '"global_step":5,' not in text:
            text += runs.read_lines(process, 1)
        killed_at = time.monotonic()
        os.kill(children(process.pid)["trainer-gpu"], signal.SIGKILL)
        if status == 1:
            result = runs.finish(process, status=1)
            assert time.monotonic() - killed_at < 5
            return result
        text = ""
        while "continuing on the CPU" not in text:
            text += runs.read_lines(process, 1)
            assert time.monotonic() - killed_at < 20
        for _ in range(3):
            text = runs.read_lines(process, 1)
        runs.interrupt(process)
        runs.finish(process, status=143)
        return text

    result = kill_it("--noallow_soft_placement", status=1)
    assert "killed by signal 9" in result.stderr and len(result.stderr.splitlines()) == 1
    assert '"step"' in kill_it(status=143)


def test_a_gpu_answers_requests(trainer, tmp_path, gpu):
    """trainer serve computes there, one request and many at once, and after a swap; within float32 of the CPU."""
    gpu()
    runs.train(trainer, *NET, "--train_steps=20", "--train_dir=run", "--device=cpu", cwd=tmp_path)
    pictures = [[(i * 37 + j) % 256 for j in range(784)] for i in range(70)]
    said = {}
    for flags in (("--device=cpu",), ("--device=gpu", "--noallow_soft_placement")):
        with Served(trainer, "run", *flags, "--interval_secs=0.05", cwd=tmp_path) as server:
            path = "/v1/models/model:predict"
            said[flags] = server.post(path, {"instances": pictures})["predictions"]
            assert server.post(path, {"instances": pictures[:1]})["predictions"][0] == pytest.approx(
                said[flags][0], abs=1e-5)
            assert bool(children(server.process.pid)) == (flags != ("--device=cpu",))
    for one, other in zip(*said.values()):
        assert one == pytest.approx(other, abs=1e-5)
    with Served(trainer, "run", *flags, "--interval_secs=0.05", cwd=tmp_path) as server:
        runs.train(trainer, *NET, "--train_steps=40", "--train_dir=run", "--device=cpu", cwd=tmp_path)
        runs.wait_for(lambda: server.metric("trainer_serve_model_version") == 40, "the swap")
        assert len(server.post(path, {"instances": pictures})["predictions"]) == 70
