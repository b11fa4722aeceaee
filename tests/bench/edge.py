#!/usr/bin/env python3
"""Rounds of many clients in one process compared with a plain loop in PyTorch; and a fleet over slow links.

    tests/bench/edge.py [--trainer=build/trainer] [--data=DIR] [--rounds=3] [PART ...]

PART: iid, shards, flwr, link, loss, unlike, slow; all of them by default. Prints one JSON line per figure. iid and
shards: the 2NN of McMahan et al. 2017 (784-200-200-10, 100 clients, a tenth in each round, an epoch of batches of 10),
to 97% of the validation images; the peer is tests/bench/peers/torch_fedavg.py, if PyTorch is installed, in turn with
ours. flwr: the same compared with Flower's simulation (tests/bench/peers/flwr_fedavg.py), if flwr, Ray and PyTorch are
installed. link: 8 workers, each behind 10 Mbit/s and a round trip of 100 ms, through a relay in Python, because kernels
seldom have netem: a push at every step against rounds. loss: the same fleet, as many local steps either way, and the
test accuracy that rounds cost. unlike: 8 clients of two classes each, with each outer optimizer. EDGE_EPOCHS sets how
long these two train; 2 is enough to see that they work. slow: 8 workers, one of which is ten times slower: rounds that
wait for it against asynchronous ones (buffer_size).
"""

import importlib.util
import json
import os
import pathlib
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from figures import ROOT, Cost, arguments, compare, run_parts, show

sys.path.insert(0, str(ROOT / "tests"))

from clusters import Cluster  # noqa: E402
from relay import Relay  # noqa: E402

PAPER = {"iid": 87, "shards": 664}  # rounds to 97%, Table 1
COMPARED = 5  # rounds of each run compared with the peer
LONGER = 10  # ours runs this many times longer, because it would take too little time
BYTES_PER_S, THERE_S = 10e6 / 8, 0.05
FLEET = ("--layers=784,500,10", "--optimizer=adam", "--learning_rate=0.001", "--batch_size=100", "--issync=1",
         "--data_source=idx", "--data_sharding=disjoint", "--validation_size=5000", "--lease_secs=60",
         "--min_workers=8", "--log_steps=0")
MESSAGES = {"float32": (), "bfloat16": ("--wire_dtype=bfloat16",), "int8": ("--wire_dtype=int8",),
            "a tenth as int8": ("--wire_dtype=int8", "--wire_top=0.1")}
OUTER_OPTIMIZERS = ("average", "momentum", "nesterov", "adam")
EPOCHS = int(os.environ.get("EDGE_EPOCHS", 20))
STEPS_PER_S = 20  # of a worker of the part `slow`
STEPS_SEEN = 8  # of those with a push at each


class ThinLink(Relay):
    """A relay that limits each connection's bytes per second and delays them."""

    passed = 0

    def pump(self, pair, source, sink):
        pieces = queue.Queue(maxsize=8)

        def deliver():
            try:
                while (piece := pieces.get()):
                    due_s, data = piece
                    time.sleep(max(0.0, due_s - time.monotonic()))
                    sink.sendall(data)
            except OSError:
                self.cut_pair(pair, count=False)

        thread = threading.Thread(target=deliver, daemon=True)
        thread.start()
        free_s = 0.0
        try:
            while (data := source.recv(16384)):
                free_s = max(free_s, time.monotonic()) + len(data) / BYTES_PER_S
                self.passed += len(data)
                pieces.put((free_s + THERE_S, data))
                time.sleep(max(0.0, free_s - time.monotonic()))
        except (OSError, ValueError):
            self.cut_pair(pair, count=False)
        pieces.put(None)


def events(text, name):
    found = (json.loads(line) for line in text.splitlines() if line.startswith("{"))
    return [event for event in found if event["event"] == name]


class Bench:
    def __init__(self, options):
        self.options = options
        self.trainer = str(pathlib.Path(options.trainer).resolve())
        self.data = str(pathlib.Path(options.data).resolve())
        self.has_torch = importlib.util.find_spec("torch")
        self.has_flwr = self.has_torch and importlib.util.find_spec("flwr") and importlib.util.find_spec("ray")

    def play(self, partition, steps, *flags):
        """Seconds, processor seconds and peak KiB of a process that plays 100 clients, and its output."""
        command = [self.trainer, "--layers=784,200,200,10", "--clients=100", "--participation=0.1",
                   f"--partition={partition}", "--local_epochs=1", "--batch_size=10", "--learning_rate=0.1",
                   "--data_source=idx", f"--data_dir={self.data}", f"--train_steps={steps}", "--log_format=json",
                   "--log_steps=0", "--progress=0", *flags]
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        text = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, text
        return Cost(time.perf_counter() - began, usage.ru_utime + usage.ru_stime), usage.ru_maxrss, text

    def peer(self, kind, script="torch_fedavg.py"):
        before = os.times()
        result = subprocess.run([sys.executable, ROOT / "tests/bench/peers" / script, self.data, kind, str(COMPARED)],
                                check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        found = json.loads(result.stdout.splitlines()[-1])
        after = os.times()
        return Cost(found["seconds"], after.children_user + after.children_system - before.children_user -
                    before.children_system), found["peak_kib"]

    def compared(self, partition):
        """The cost of COMPARED rounds, and peak memory. Runs of a single round give the cost of starting and of reading
        the data."""
        begin, _, _ = self.play(partition, 1, "--validate_steps=0")
        long, peak, _ = self.play(partition, 1 + LONGER * COMPARED, "--validate_steps=0")
        return Cost((long.clock - begin.clock) / LONGER, (long.processor - begin.processor) / LONGER), peak

    def rounds(self, kind, partition):
        cost, _, text = self.play(partition, 1000, "--target_accuracy=0.97", "--validate_steps=1")
        done = events(text, "done")[0]
        show(f"2NN, {kind}: rounds to 97%", done["steps"], unit="rounds", paper=PAPER[kind],
             seconds=round(cost.clock, 1), validation_accuracy=events(text, "validation")[-1]["validation_accuracy"])
        if not self.has_torch:
            return
        turns = [(*self.compared(partition), *self.peer(kind)) for _ in range(self.options.rounds)]
        ours, memory, theirs, peer_memory = zip(*turns)
        compare(f"2NN, {kind}: rounds per second, ours / a loop in PyTorch", ours, theirs,
                rounds_per_s=round(COMPARED / min(cost.clock for cost in ours), 2),
                peer_rounds_per_s=round(COMPARED / min(cost.clock for cost in theirs), 2))
        show(f"2NN, {kind}: memory of a client", round(min(memory) / 100), unit="KiB",
             peer=round(min(peer_memory) / 100), whole_MiB=round(min(memory) / 1024))

    def flwr(self):
        """By the clock only: Flower's processes are not children of its main one, and it uses all processors."""
        if not self.has_flwr:
            return
        turns = [(*self.compared("iid"), *self.peer("iid", "flwr_fedavg.py")) for _ in range(self.options.rounds)]
        ours, memory, theirs, peer_memory = zip(*turns)
        ratios = [b.clock / a.clock for a, b in zip(ours, theirs)]
        show("2NN, iid: rounds per second, ours in one process / Flower's simulation",
             round(statistics.median(ratios), 1), floor=10, aim=50, each=[round(ratio, 1) for ratio in ratios],
             rounds_per_s=round(COMPARED / min(cost.clock for cost in ours), 2),
             peer_rounds_per_s=round(COMPARED / min(cost.clock for cost in theirs), 2))
        show("2NN, iid: memory of a client, Flower's simulation / ours", round(min(peer_memory) / max(memory), 1),
             floor=10, aim=20, KiB=round(max(memory) / 100), peer_KiB=round(min(peer_memory) / 100))

    def link(self):
        """Only some of the pushes at every step are made over the link: clearly all of them would take as long."""
        with tempfile.TemporaryDirectory() as folder:
            alone = subprocess.run([self.trainer, *FLEET[:4], "--data_source=idx", f"--data_dir={self.data}",
                                    "--micro_batches=8", "--train_steps=5000", "--validation_size=5000",
                                    "--validate_steps=10", "--target_accuracy=0.97", "--log_format=json"], check=True,
                                   capture_output=True, text=True, cwd=folder).stdout
            steps = events(alone, "done")[0]["steps"]
            step_s, step_bytes, _ = self.fleet(folder, STEPS_SEEN, "--validate_steps=0", f"--train_steps={STEPS_SEEN}")
            each_s, each_bytes = steps * step_s / STEPS_SEEN, steps * step_bytes / STEPS_SEEN
            show("8 workers, 10 Mbit/s, 100 ms: to 97% with a push at every step", round(each_s), unit="s", steps=steps,
                 MB=round(each_bytes / 1e6), taken_from=f"{STEPS_SEEN} of these steps")
            for messages in MESSAGES:
                self.link_in_rounds(folder, messages, each_s, each_bytes)

    def link_in_rounds(self, folder, messages, each_s, each_bytes):
        seconds, passed, text = self.fleet(folder, 1, "--local_epochs=1", "--validate_steps=1", *MESSAGES[messages],
                                           "--target_accuracy=0.97", "--train_steps=100")
        done = events(text, "done")[0]
        bound = {"floor": 20, "aim": 50}, {"floor": 50, "aim": 300}
        if messages == "float32":
            bound = {}, {}
        show(f"8 workers, 10 Mbit/s, 100 ms: to 97% in rounds of an epoch, {messages}", round(seconds, 1), unit="s",
             rounds=done["steps"], MB=round(passed / 1e6), test_accuracy=round(done["test_accuracy"], 4))
        show(f"8 workers, 10 Mbit/s, 100 ms: time with a push at every step / in rounds, {messages}",
             round(each_s / seconds, 1), **bound[0])
        show(f"8 workers, 10 Mbit/s, 100 ms: bytes with a push at every step / in rounds, {messages}",
             round(each_bytes / passed, 1), **bound[1])

    def loss(self):
        """The result of a push at every step needs no link: one process averages 8 batches per step."""
        with tempfile.TemporaryDirectory() as folder:
            data = ("--data_source=idx", f"--data_dir={self.data}", "--validation_size=5000", "--validate_steps=0")
            alone = subprocess.run([self.trainer, *FLEET[:4], *data, "--micro_batches=8", f"--epochs={EPOCHS}",
                                    "--log_format=json", "--log_steps=0", "--progress=0"], check=True,
                                   capture_output=True, text=True, cwd=folder).stdout
            every = events(alone, "done")[0]["test_accuracy"]
            for dtype in ("float32", "int8"):
                _, passed, text = self.fleet(folder, EPOCHS, "--local_epochs=1", "--validate_steps=0",
                                             f"--wire_dtype={dtype}", f"--train_steps={EPOCHS}")
                rounds = events(text, "done")[0]["test_accuracy"]
                show(f"8 workers, 10 Mbit/s, 100 ms: accuracy lost in rounds of an epoch, {dtype}",
                     round(100 * (every - rounds), 2), most=0.2, unit="points", rounds=EPOCHS, MB=round(passed / 1e6),
                     test_accuracy=round(rounds, 4), at_every_step=round(every, 4))

    def unlike(self):
        """Two classes per client, and each outer optimizer at its own learning rate. No required minimum."""
        for name in OUTER_OPTIMIZERS:
            with tempfile.TemporaryDirectory() as folder:
                text = subprocess.run([self.trainer, "--layers=784,500,10", "--clients=8", "--partition=shards:2",
                                       "--local_epochs=1", "--batch_size=100", "--learning_rate=0.05",
                                       f"--outer_optimizer={name}", "--data_source=idx", f"--data_dir={self.data}",
                                       "--validation_size=5000", "--validate_steps=0",
                                       f"--train_steps={EPOCHS}", "--log_format=json", "--log_steps=0",
                                       "--progress=0"], check=True, capture_output=True, text=True,
                                      cwd=folder).stdout
                done = events(text, "done")[0]
                show(f"8 clients of two classes each: test accuracy, {name}", round(done["test_accuracy"], 4),
                     rounds=done["steps"])

    def slow(self):
        """The pace is set, so that this machine's processors are not what is measured. No required minimum."""
        seconds = {}
        for name, flags in (("synchronous", ("--issync=1",)), ("asynchronous", ("--buffer_size=4",))):
            with tempfile.TemporaryDirectory() as folder:
                common = [flag for flag in FLEET if flag != "--issync=1"]
                with Cluster(self.trainer, folder, workers=8,
                             flags=(*common, f"--data_dir={self.data}", "--local_steps=10", "--train_steps=10000",
                                    "--validate_steps=2", "--target_accuracy=0.95", *flags)) as cluster:
                    cluster.start("ps 0")
                    for i in range(8):
                        cluster.start(f"worker {i}", f"--max_steps_per_s={STEPS_PER_S / (10 if i == 7 else 1)}")
                    cluster.wait_all(600)
                    done = events(cluster.text("worker 0"), "done")[0]
                seconds[name] = done["seconds"]
                show(f"8 workers, one of them ten times slower: to 95% in {name} rounds", round(done["seconds"], 1),
                     unit="s", rounds=done["steps"], test_accuracy=round(done["test_accuracy"], 4))
        show("8 workers, one of them ten times slower: time in synchronous rounds / in asynchronous ones",
             round(seconds["synchronous"] / seconds["asynchronous"], 1))

    def fleet(self, folder, least, *flags):
        """Seconds of training, bytes sent and worker 0's output, for 8 workers behind slow links."""
        with Cluster(self.trainer, folder, workers=8, flags=(*FLEET, f"--data_dir={self.data}", *flags)) as cluster:
            port = int(cluster.ps_hosts[0].rpartition(":")[2])
            cluster.ps_hosts = [f"127.0.0.2:{port}"]
            with ThinLink(port) as relay:
                cluster.start_all("--bind=127.0.0.1")
                cluster.wait_all(3000)
                text = cluster.text("worker 0")
                assert events(text, "done")[0]["steps"] >= least
                return events(text, "done")[0]["seconds"], relay.passed, text


PARTS = {"iid": lambda bench: bench.rounds("iid", "iid"), "shards": lambda bench: bench.rounds("shards", "shards:2"),
         "flwr": Bench.flwr, "link": Bench.link, "loss": Bench.loss, "unlike": Bench.unlike,
         "slow": Bench.slow}

if __name__ == "__main__":
    run_parts(arguments(__doc__, rounds=3), PARTS, Bench)
