"""Shared by the whole-program tests: starting the trainer, reading its output and its files."""

import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import time

# Generated digits, few enough to load instantly.
SMALL_DATA = ("--data_source=synthetic", "--synthetic_train=3000", "--synthetic_test=500", "--validation_size=500")
SMALL = SMALL_DATA + ("--layers=784,32,10", "--batch_size=50", "--num_threads=1")
# What takes milliseconds takes much longer where dozens of processes share two processors. Only a failure takes this
# long.
LONG_S = 240
TRAINING_S = 600  # the same for a whole run
ENDLESS_STEPS = 100000  # runs with this many are stopped by their test, or by a target
PACE = 200  # steps per second of such a process: the processors are left to other tests
ENDLESS = ("--train_steps=100000000", f"--max_steps_per_s={PACE}")


def seed_of_tests():
    """The seed of this test run's random numbers: TEST_SEED, printed, to reproduce a failure."""
    seed = int(os.environ.get("TEST_SEED") or random.randrange(1 << 30))
    print(f"TEST_SEED={seed}")
    return seed


class Result:
    """A finished run: its status, its lines, and with --log_format=json its events."""

    def __init__(self, status, stdout, stderr):
        self.status, self.stdout, self.stderr = status, stdout, stderr

    @property
    def events(self):
        return [json.loads(line) for line in self.stdout.splitlines()]

    def named(self, name):
        return [event for event in self.events if event["event"] == name]

    @property
    def done(self):
        last = self.events[-1]
        assert last["event"] == "done", self.stdout
        return last


def merged(flags):
    """The program refuses a repeated flag; here the later one counts, so that tests can vary a common list."""
    kept = {}
    for flag in map(str, flags):
        name = flag.split("=")[0]
        kept.pop(name, None)
        kept[name] = flag
    return list(kept.values())


def start(trainer, *flags, cwd, **options):
    """Starts it in its own folder: a stray config.json must not count."""
    return subprocess.Popen([trainer, *merged(flags)], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, **options)


def finish(process, status=0, timeout=TRAINING_S):
    stdout, stderr = process.communicate(timeout=timeout)
    assert status is None or process.returncode == status, f"status {process.returncode}\n{stdout}\n{stderr}"
    return Result(process.returncode, stdout, stderr)


def run(trainer, *flags, cwd, status=0, timeout=TRAINING_S, **options):
    return finish(start(trainer, *flags, cwd=cwd, **options), status, timeout)


def train(trainer, *flags, cwd, status=0, **options):
    return run(trainer, *flags, "--log_format=json", cwd=cwd, status=status, **options)


def checkpoints(folder):
    """Step -> file, of the numbered ones."""
    return {int(path.stem.split("-")[1]): path for path in sorted(pathlib.Path(folder).glob("model-*.safetensors"))}


def newest(folder):
    kept = checkpoints(folder)
    return kept[max(kept)]


def tensors(path):
    """Name -> (shape, bytes) of a safetensors file, and its metadata; parsed by hand, strictly by the format."""
    content = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    data = content[8 + length :]
    found = {}
    for name, tensor in header.items():
        begin, end = tensor["data_offsets"]
        found[name] = (tuple(tensor["shape"]), data[begin:end])
    return found, metadata


def same_tensors(one, other):
    a, b = tensors(one)[0], tensors(other)[0]
    assert a.keys() == b.keys()
    return [name for name in a if a[name] != b[name]]


def read_lines(process, count):
    """The first lines of a running process; unbuffered, so that `finish` gets all the rest."""
    text = b""
    while text.count(b"\n") < count:
        piece = os.read(process.stdout.fileno(), 1)
        if not piece:
            break
        text += piece
    return text.decode()


def read_until(process, text):
    """The lines of a running process up to one with that text. "loss=": it trains."""
    lines = ""
    while text not in lines:
        line = read_lines(process, 1)
        assert line, f"no {text!r} in:\n{lines}"
        lines += line
    return lines


def pause_after(took_s):
    """Sleeps between two checks, depending on how long the last one took. Checks that start a process, or query
    several, should not keep a processor busy while others work towards the result."""
    time.sleep(min(max(0.005, 3 * took_s), 0.1))


def wait_for(condition, what, timeout=LONG_S):
    deadline = time.monotonic() + timeout
    while True:
        begun = time.monotonic()
        if condition():
            return
        now = time.monotonic()
        assert now < deadline, f"no {what} within {timeout} s"
        pause_after(now - begun)


def best_seconds(action, limit_s, tries=300):
    """The least time of an action, without the influence of other load: it is repeated until it stays below the limit.
    """
    best_s = float("inf")
    for _ in range(tries):
        begun = time.perf_counter()
        action()
        best_s = min(best_s, time.perf_counter() - begun)
        if best_s < limit_s:
            break
    return best_s


def interrupt(process, number=signal.SIGTERM):
    os.kill(process.pid, number)
