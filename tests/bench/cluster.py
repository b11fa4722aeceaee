#!/usr/bin/env python3
"""One ps and its workers on this machine, compared with TensorFlow in the same minutes; push and pull alone; TLS;
memory.

    tests/bench/cluster.py [--trainer=build/trainer] [--bench=build/bench] [--data=DIR] [--peers=DIR]
                           [--tf-python=PYTHON] [--rounds=3] [PART ...]

PART: async, softmax, sync, until, load, tls; all of them by default. Prints one JSON line per figure, with its
required minimum; the exit status is 1 if a figure misses it. Runs alternate with the peer's, so that a slowdown of
the machine affects both; each figure is the median of its runs, each ratio that of neighbouring runs, by the clock
and by the processor time of all processes. Clusters use TLS unless the figure says plain; TensorFlow's use plain
text. --peers: the folder of tf_run.sh and openssl_loop.py; without it, or without a PYTHON that has TensorFlow,
there are no ratios. --wrap: a command to run each measurement under, on a shared machine.
"""

import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from figures import ROOT, Cost, Meter, arguments, compare, peer, run_parts, show, show_rate, show_time

sys.path.insert(0, str(ROOT / "tests"))

from ports import free_ports  # noqa: E402

FLOATS = 397510  # of 784-500-10
PS_LITE = {1: 830, 2: 665}  # rounds per second of ps-lite with 1 and 2 workers, measured on another 2-core machine


class Bench:
    def __init__(self, options):
        self.options = options
        self.trainer = str(pathlib.Path(options.trainer).resolve())
        self.data = str(pathlib.Path(options.data).resolve())
        self.wrap = options.wrap.split()
        self.rounds = options.rounds
        self.folder = tempfile.TemporaryDirectory()
        self.tensorflow = options.peers and options.tf_python and pathlib.Path(options.tf_python).exists()
        self.key = f"{self.folder.name}/bench.key"
        subprocess.run([self.trainer, "keygen", f"--out={self.key}"], check=True, capture_output=True)

    # --- Ours ---

    def cluster(self, workers, *flags):
        """The chief's done event of a whole cluster; a meter of its run; its cost from start to end."""
        timed = 'begun=$(date +%s.%N); "$@"; status=$?; echo "wall $begun $(date +%s.%N)"; exit $status'
        command = [*self.wrap, "sh", "-c", timed, "sh", self.trainer, "cluster", "--ps=1", f"--workers={workers}",
                   "--log_format=json", f"--data_dir={self.data}", "--data_source=idx", "--train_dir=",
                   f"--min_workers={workers}", *flags]
        with Meter() as meter:
            result = subprocess.run(command, cwd=self.folder.name, capture_output=True, text=True)
        done = [json.loads(line) for line in result.stdout.splitlines() if '"event":"done"' in line]
        if result.returncode != 0 or not done:
            sys.exit(f"{' '.join(command)}: status {result.returncode}\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
        begun, ended = re.search(r"^wall (\S+) (\S+)$", result.stdout, flags=re.M).groups()
        return done[-1], meter, meter.took()._replace(clock=float(ended) - float(begun))

    def step(self, workers, seconds, *flags):
        """The cost of a global step, from a run of about that many seconds: a short run first determines the number of
        steps."""
        steps = 400
        for _ in range(2):
            done, meter, _ = self.cluster(workers, "--validation_size=0", "--log_steps=0", f"--train_steps={steps}",
                                          *flags)
            rate = done["global_steps_per_s"]
            trained_s, steps = steps / rate, max(400, int(rate * seconds))
        return Cost.of_rate(rate, meter.processors(trained_s))

    # --- TensorFlow's ---

    def tf(self, workers, model, sync=False):
        """The cost of a global step. A TensorFlow worker that starts after another one has ended waits for that one for
        ever: then it is run once more. So does a synchronous one when the first one ends, which has already printed
        everything."""
        for start_s in (25, 40, 60):
            found, processors = self.tf_once(workers, model, sync, start_s)
            if len(found) == workers or (sync and found):
                rate = max(one["global_steps_per_s"] for one in found) if sync else sum(one["local_steps_per_s"]
                                                                                        for one in found)
                return Cost.of_rate(rate, processors)
        sys.exit(f"TensorFlow with {workers} workers: some did not end")

    def tf_once(self, workers, model, sync, start_s, seconds=6):
        """The workers' output, all of which start measuring at the same moment, and the number of busy processors from
        then on; global steps per second are those of all."""
        start_at = int(time.time()) + start_s
        command = ["sh", str(pathlib.Path(self.options.peers) / "tf_run.sh"), self.options.tf_python, str(workers),
                   "--model", model, "--data", self.data, *(["--sync"] if sync else []), "--steps", "1000000",
                   "--seconds", str(seconds), "--start_at", str(start_at)]
        with Meter() as meter, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                                start_new_session=True,
                                                env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}) as process:
            to_wait = start_at - time.time()
            measured = meter.clock() + to_wait + seconds
            if self.wrap:
                time.sleep(max(0, start_at - time.time()))
                subprocess.run([*self.wrap, "sleep", str(seconds)], check=True)
            try:
                output, _ = process.communicate(timeout=max(0, start_at - time.time()) + seconds + 15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # its own session: only its processes
                output, _ = process.communicate()
        found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        return found, meter.processors(seconds, measured)

    def tf_until(self):
        command = ["sh", str(pathlib.Path(self.options.peers) / "tf_run.sh"), self.options.tf_python, "2", "--model",
                   "mlp", "--data", self.data, "--steps", "1000000", "--until", "0.97", "--opt", "adam", "--lr",
                   "0.001"]
        with Meter() as meter:
            subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True,
                           env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
        return meter.took()

    # --- Parts ---

    def beside(self, name, workers, model, goals, sync=False):
        """goals: (words, flags, floor, aim) for each kind of run that is compared with the peer's."""
        ours, theirs = {words: [] for words, *_ in goals}, []
        for _ in range(self.rounds):
            for words, flags, *_ in goals:
                ours[words].append(self.step(workers, 4, *flags))
            if self.tensorflow:
                theirs.append(self.tf(workers, model, sync))
        for words, _, floor, aim in goals:
            full = f"{name}{words}, 1 ps + {workers} worker{'s' * (workers > 1)}"
            show_rate(full, ours[words], "global steps/s")
            if theirs:
                compare(f"{full}, times TensorFlow's in plain text", ours[words], theirs, floor, aim=aim,
                        peer=[round(1 / cost.clock) for cost in theirs])

    def asynchronous(self):
        sgd = ("--issync=0", "--optimizer=sgd", "--learning_rate=0.1")
        self.beside("asynchronous, 784-500-10, batch 100", 2, "mlp",
                    [("", (*sgd, "--num_threads=1"), 5, None),
                     (", bfloat16", (*sgd, "--num_threads=1", "--wire_dtype=bfloat16"), 3.5, 5)])
        self.beside("asynchronous, 784-500-10, batch 100", 1, "mlp",
                    [("", sgd, 2.5, None), (", bfloat16", (*sgd, "--wire_dtype=bfloat16"), None, None)])

    def softmax(self):
        self.beside("asynchronous, softmax regression, batch 100", 2, "softmax",
                    [("", ("--issync=0", "--layers=784,10", "--optimizer=sgd", "--learning_rate=0.1",
                           "--num_threads=1"), 8, 12)])

    def sync(self):
        flags = ("--issync=1", "--layers=784,500,10", "--optimizer=sgd", "--learning_rate=0.1", "--num_threads=1")
        self.beside("synchronous, 784-500-10, batch 100", 2, "mlp",
                    [("", flags, 7, None), (", bfloat16", (*flags, "--wire_dtype=bfloat16"), 4, 6)], sync=True)

    def until(self):
        """Adam 0.001 from the start of all processes to a model with 97% on the test set. The run checks only the
        validation set, which is slightly easier: hence 97.7% there."""
        flags = ("--issync=0", "--layers=784,500,10", "--batch_size=100", "--optimizer=adam", "--learning_rate=0.001",
                 "--num_threads=1", "--target_accuracy=0.977", "--validate_steps=100")
        wires = {"": "float32", ", bfloat16": "bfloat16"}
        runs, peers = {words: [] for words in wires}, []
        for seed in range(1, self.rounds + 1):
            for words, wire in wires.items():
                done, _, cost = self.cluster(2, *flags, f"--seed={seed}", f"--wire_dtype={wire}")
                runs[words].append((done, cost))
            if self.tensorflow:
                peers.append(self.tf_until())
        for words in wires:
            accuracies = [round(100 * done["test_accuracy"], 2) for done, _ in runs[words]]
            name, costs = f"1 ps + 2 workers, Adam{words}", [cost for _, cost in runs[words]]
            show(f"{name}: final accuracy", min(accuracies), 97.0, each=accuracies)
            show_time(f"{name}: start to 97%", costs)
            if peers:
                compare(f"{name}: start to 97%, times faster than TensorFlow", costs, peers, 4, aim=10,
                        peer_s=[round(cost.clock, 1) for cost in peers])

    def push_pull(self, workers, *flags, seconds=4):
        """ps_load's report for a separate ps."""
        ports = free_ports(workers + 1)
        flags = [f"--ps_hosts=127.0.0.1:{ports[0]}", "--train_steps=0", "--learning_rate=0.01", "--min_workers=1",
                 "--worker_hosts=" + ",".join(f"127.0.0.1:{port}" for port in ports[1:]), *flags]
        with open(f"{self.folder.name}/ps.log", "wb") as log:
            ps = subprocess.Popen([self.trainer, "--job_name=ps", "--task_index=0", *flags], cwd=self.folder.name,
                                  stdout=log, stderr=log)
        try:
            load = str(pathlib.Path(self.options.bench).resolve() / "ps_load")
            output = subprocess.run([*self.wrap, load, f"--seconds={seconds}", f"--pid={ps.pid}", *flags], check=True,
                                    cwd=self.folder.name, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                    text=True).stdout
            return json.loads(output)
        finally:
            ps.kill()
            ps.wait()

    def load(self):
        for workers, peer in PS_LITE.items():
            found = [self.push_pull(workers, "--insecure", "--local=false")["rounds_per_s"]
                     for _ in range(self.rounds)]
            show(f"push + pull of {FLOATS:,} floats, plain text, {workers} worker{'s' * (workers > 1)}",
                 round(statistics.median(found), 1), peer, unit="rounds/s", each=[round(each) for each in found],
                 floor_is="ps-lite's on another machine")
        key = f"--fleet_key={self.key}"
        local = []
        found = []
        for _ in range(self.rounds):
            found.append(self.push_pull(2, key, "--local=false"))
            local.append(self.push_pull(2, key)["rounds_per_s"])
        tls = statistics.median(one["rounds_per_s"] for one in found)
        show(f"push + pull of {FLOATS:,} floats, TLS, 2 workers", round(tls, 1), unit="rounds/s")
        show(f"push + pull of {FLOATS:,} floats, shared memory, 2 workers", round(statistics.median(local), 1), 6000,
             aim=12000, unit="rounds/s", each=[round(each) for each in local],
             times_tls=round(statistics.median(local) / tls, 2))
        limit = (16 * 2**20 + 4 * FLOATS * (2 + 0 + 2 * 2)) / 2**20
        show("peak resident size of a ps with 2 workers, sgd", round(max(one["ps_peak_bytes"] for one in found) / 2**20,
                                                                     1),
             most=round(limit, 1), unit="MiB")
        # Over ten seconds this depends largely on where the scheduler first put 512 threads of two processes.
        many = self.push_pull(256, key, "--layers=784,16,10", "--local=false", seconds=30)
        show("256 workers on one ps, TLS, half a minute: fastest worker's rounds, times the slowest's",
             round(many["fastest"] / many["slowest"], 2), most=2, rounds_per_s=many["rounds_per_s"],
             ps_MiB=round(many["ps_peak_bytes"] / 2**20, 1))

    def tls_bench(self, mode, pattern):
        command = [*self.wrap, str(pathlib.Path(self.options.bench).resolve() / "tls_bench"), mode, "3"]
        return self.loop(command, pattern)

    def loop(self, command, pattern):
        """The output of a loop of a few seconds, and the number of busy processors."""
        with Meter() as meter:
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        cost = meter.took()
        return float(re.search(pattern, output)[1]), cost.processor / cost.clock

    def tls(self):
        ours, theirs, handshakes = [], [], []
        for _ in range(self.rounds):
            ours.append(self.tls_bench("bulk", r"([\d.]+) GB/s"))
            handshakes.append(self.tls_bench("handshake", r"([\d.]+) ms")[0])
            if self.options.peers:
                script = str(pathlib.Path(self.options.peers) / "openssl_loop.py")
                theirs.append(self.loop([*self.wrap, self.options.python, script], r"([\d.]+) GB/s"))
        name, rates = "one bulk stream through TLS over loopback", [rate for rate, _ in ours]
        show(name, statistics.median(rates), unit="GB/s", each=rates)
        show("a handshake, both ends on one machine", statistics.median(handshakes), unit="ms", each=handshakes)
        if theirs:
            compare(f"{name}, times OpenSSL", [Cost.of_rate(*one) for one in ours],
                    [Cost.of_rate(*one) for one in theirs], 1.0, aim=1.2, each_peer=[rate for rate, _ in theirs])


def main():
    parser = arguments(__doc__, rounds=3, wrap=True)
    tensorflow = peer("tf_run.sh")
    parser.add_argument("--bench", default=ROOT / "build/bench", help="the folder of ps_load and tls_bench")
    parser.add_argument("--peers", default=tensorflow and tensorflow.parent)
    parser.add_argument("--tf-python", default=os.environ.get("TRAINER_TF_PYTHON"), help="a Python that has TensorFlow")
    parser.add_argument("--python", default=sys.executable, help="runs openssl_loop.py")
    run_parts(parser, {"async": Bench.asynchronous, "softmax": Bench.softmax, "sync": Bench.sync, "until": Bench.until,
                       "load": Bench.load, "tls": Bench.tls}, Bench)


if __name__ == "__main__":
    main()
