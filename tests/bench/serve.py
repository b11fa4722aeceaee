#!/usr/bin/env python3
"""trainer serve under load by wrk, by Triton's client and by tests/bench/http_load.c, compared with FastAPI under
uvicorn with onnxruntime, and with mlserver with the same: requests of one row on persistent connections, batches as
binary tensors, a swap under load, start, memory.

    tests/bench/serve.py [--trainer=build/trainer] [--rounds=5] [--seconds=5] [--wrap='chrt -f 50'] [PART ...]

PART: rows, table, half, batches, swap, start, connections; all by default. Prints one JSON line per figure, with its
bound; the exit status is 1 if a figure misses it. Requests are counted per processor time of the server, which a
busy machine affects less than elapsed time; servers take turns. A server has one processor, and its load another
one, if there are two: clients usually run elsewhere. Delays need an otherwise idle machine, or --wrap (or
BENCH_WRAP), under which both run. --rounds (or BENCH_ROUNDS), --seconds (or BENCH_SECONDS): runs of each, and length
of each load.
"""

import collections
import contextlib
import itertools
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import numpy
import tritonclient.http

from figures import ROOT, arguments, run_parts, show

HERE = pathlib.Path(__file__).resolve().parent
LAYERS, BATCH, CONNECTIONS = "784,500,10", 256, 32
TICKS = os.sysconf("SC_CLK_TCK")
MIB = 1 << 20
Delays = collections.namedtuple("Delays", "rate median p99 lag")  # requests per second; milliseconds


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def processor_s(pid):
    """Of a process, and of the children that it waited for."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS


def resident(pid):
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Bench:

    def __init__(self, options):
        self.options = options
        self.scratch = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.scratch.name)
        if not shutil.which("wrk"):
            raise SystemExit("wrk is not here; it is a package of that name")
        processors = sorted(os.sched_getaffinity(0))
        self.apart = ["taskset", "-c", processors[0]] if len(processors) > 1 else []
        os.sched_setaffinity(0, processors[-1:])
        self.random = numpy.random.default_rng(1)
        self.run("train", "--data_source=synthetic", "--synthetic_train=3000", "--validate_steps=0",
                 f"--layers={LAYERS}", "--train_steps=200", "--train_dir=run", "--batch_size=50")
        self.run("export", "--format=onnx", "--out=model.onnx", "--train_dir=run")
        pictures = self.random.integers(0, 256, (BATCH, 784), numpy.uint8)
        head = json.dumps({"inputs": [{"name": "images", "datatype": "UINT8", "shape": [BATCH, 784],
                                       "parameters": {"binary_data_size": pictures.size}}],
                           "outputs": [{"name": "probabilities", "parameters": {"binary_data": True}}]})
        one = {"name": "images", "datatype": "UINT8", "shape": [1, 784], "data": pictures[0].tolist()}
        self.write("rows", json.dumps({"instances": pictures[:1].tolist()}).encode())
        self.write("infer", json.dumps({"inputs": [one]}).encode())
        self.write("batches", head.encode() + pictures.tobytes(), {"Inference-Header-Content-Length": str(len(head))})

    def run(self, *command):
        subprocess.run([self.options.trainer, *command], cwd=self.folder, check=True, stdout=subprocess.DEVNULL)

    def write(self, name, body, headers={}):
        """A script for wrk that posts this body."""
        (self.folder / f"{name}.body").write_bytes(body)
        lines = [f'wrk.headers["{key}"] = "{value}"' for key, value in {"Content-Type": "application/json",
                                                                        **headers}.items()]
        (self.folder / f"{name}.lua").write_text("\n".join(
            ['wrk.method = "POST"', f'wrk.body = io.open("{self.folder}/{name}.body", "rb"):read("*a")', *lines]))

    def wrapped(self, *command):
        return [*shlex.split(self.options.wrap), *map(str, command)]

    def command(self, kind, port, model):
        if kind == "trainer":
            return [self.options.trainer, "serve", model, f"--http=127.0.0.1:{port}", "--workers=1",
                    "--interval_secs=0.1"]
        if kind == "fastapi":
            return [sys.executable, "-m", "uvicorn", "--port", port, "--log-level=warning", "--app-dir",
                    HERE / "peers", "fastapi_app:app"]
        folder = self.folder / "mlserver"
        (folder / "model").mkdir(parents=True, exist_ok=True)
        (folder / "settings.json").write_text(json.dumps(
            {"http_port": port, "grpc_port": free_port(), "metrics_port": free_port(), "parallel_workers": 0,
             "debug": False}))
        (folder / "model/model-settings.json").write_text(json.dumps(
            {"name": "model", "implementation": "mlserver_onnx.Model"}))
        return [pathlib.Path(sys.executable).with_name("mlserver"), "start", folder]

    @contextlib.contextmanager
    def server(self, kind, model="run"):
        port = free_port()
        ready = "/v2/models/model/ready" if kind == "mlserver" else "/readyz"
        began = time.monotonic()
        process = subprocess.Popen(
            self.wrapped(*self.apart, *self.command(kind, port, model)), cwd=self.folder, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "MODEL": str(self.folder / "model.onnx"), "PYTHONPATH": str(HERE / "peers")})
        try:
            while True:
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}{ready}", timeout=5).read()
                    break
                if process.poll() is not None or time.monotonic() > began + 60:
                    raise SystemExit(f"{kind}: no server")
                time.sleep(0.001)
            yield port, process.pid, time.monotonic() - began
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()

    def wrk(self, port, path, script, connections=CONNECTIONS):
        """Requests, and milliseconds of the 99th percentile."""
        result = subprocess.run(
            self.wrapped("wrk", "-t1", f"-c{connections}", f"-d{self.options.seconds}s", "--latency", "-s",
                         self.folder / f"{script}.lua", f"http://127.0.0.1:{port}{path}"),
            capture_output=True, text=True, check=True)
        if re.search(r"Non-2xx|Socket errors", result.stdout):
            raise SystemExit(f"{path}: {result.stdout}")
        value, unit = re.search(r"99%\s+([\d.]+)(us|ms|s)\b", result.stdout).groups()
        requests = int(re.search(r"(\d+) requests in", result.stdout)[1])
        return requests, float(value) * {"us": 1e-3, "ms": 1, "s": 1e3}[unit]

    def load(self, kind, path, script, model="run"):
        """Requests per second of the server's processor time."""
        with self.server(kind, model) as (port, pid, _):
            before = processor_s(pid)
            requests, _ = self.wrk(port, path, script)
            return requests / (processor_s(pid) - before)

    def rows(self):
        paths = {"trainer": ("/v1/models/model:predict", "rows"), "fastapi": ("/predict", "rows"),
                 "mlserver": ("/v2/models/model/infer", "infer")}
        found = {kind: [] for kind in paths}
        for _ in range(self.options.rounds):
            for kind, (path, script) in paths.items():
                found[kind].append(self.load(kind, path, script))
        rates = {kind: statistics.median(each) for kind, each in found.items()}
        for kind, name in (("fastapi", "FastAPI"), ("mlserver", "mlserver")):
            show(f"serve: requests of one picture per core second, {name} = 1",
                 round(rates["trainer"] / rates[kind], 1), floor=10, aim=30, trainer=round(rates["trainer"]),
                 **{kind: round(rates[kind])})

    def table(self):
        """A table model of 9 columns, hidden layers of 64 and 64; on 2 cores compared with twice one."""
        values = self.random.normal(size=(3000, 8))
        soils = self.random.choice(["clay", "sand", "loam"], 3000)
        lines = [",".join([*(f"x{i}" for i in range(8)), "soil", "kind"])] + [
            ",".join([*(f"{v:.3f}" for v in row), soil, "yes" if row[0] + row[1] > 0 else "no"])
            for row, soil in zip(values, soils)]
        (self.folder / "table").mkdir(exist_ok=True)
        (self.folder / "table/train.csv").write_text("\n".join(lines) + "\n")
        self.run("train", "--data_dir=table", "--target=kind", "--hidden=64,64", "--optimizer=adam", "--epochs=3",
                 "--train_dir=kinds")
        self.write("row", json.dumps({"instances": [[*(round(v, 3) for v in values[0]), "clay"]]}).encode())
        rates = [self.load("trainer", "/v1/models/model:predict", "row", model="kinds")
                 for _ in range(self.options.rounds)]
        show("serve: requests of one row of a table, 64-64, on 2 cores", round(2 * statistics.median(rates)),
             unit="req/s", floor=40000)

    def half_load(self, port, rate=None):
        """Delays at half of what one core can answer, or at this rate, and the rate used."""
        path = "/v1/models/model:predict"
        if not rate:
            rate = self.wrk(port, path, "rows")[0] / self.options.seconds / 2
            time.sleep(1)  # under chrt Linux throttles a process that used a whole processor for up to a second
        said = subprocess.run(self.wrapped(ROOT / "build/bench/http_load", port, path, self.folder / "rows.body", rate,
                                           self.options.seconds), capture_output=True, text=True, check=True).stdout
        count, failures, median, p99, lag = map(float, said.split())
        if failures:
            raise SystemExit(f"{failures:.0f} of {count:.0f} requests failed")
        return Delays(rate, median, p99, lag)

    def half(self):
        with self.server("trainer") as (port, _, _):
            found = [self.half_load(port) for _ in range(self.options.rounds)]
        rate, median, p99, lag = (statistics.median(each) for each in zip(*found))
        show("serve: 99th percentile at half load, one picture a request", round(p99, 2), unit="ms", most=1,
             median_ms=round(median, 2), late_by_the_load_itself_ms=round(lag, 2), rate=round(rate))

    def ask_by_triton(self):
        """Images per second of the server's processor time, where Triton's own client sends BATCH at once."""
        pictures = self.random.integers(0, 256, (BATCH, 784), numpy.uint8)
        tensor = tritonclient.http.InferInput("images", pictures.shape, "UINT8")
        tensor.set_data_from_numpy(pictures)
        count = 0
        with self.server("trainer") as (port, pid, _), tritonclient.http.InferenceServerClient(
                f"127.0.0.1:{port}", concurrency=4) as client:
            before, end = processor_s(pid), time.monotonic() + self.options.seconds
            while time.monotonic() < end:
                for answer in [client.async_infer("model", [tensor]) for _ in range(4)]:
                    assert answer.get_result().as_numpy("probabilities").shape == (BATCH, 10)
                    count += BATCH
            return count / (processor_s(pid) - before)

    def batches(self):
        ours, asked, engine = [], [], []
        for _ in range(self.options.rounds):
            ours.append(BATCH * self.load("trainer", "/v2/models/model/infer", "batches"))
            asked.append(self.ask_by_triton())
            said = subprocess.run(
                self.wrapped(*self.apart, ROOT / "build/bench/engine_bench", "forward", f"layers={LAYERS}",
                             f"batch={BATCH}", "threads=1", f"seconds={self.options.seconds}"),
                capture_output=True, text=True, check=True)
            engine.append(float(said.stdout.split()[0]))
        alone = statistics.median(engine)
        for client, found in (("wrk", ours), ("tritonclient", asked)):
            pictures = statistics.median(found)
            show(f"serve: pictures per core second, {BATCH} as a binary tensor by {client}, the engine alone = 1",
                 round(pictures / alone, 3), floor=0.6, aim=0.85, pictures=round(pictures), engine=round(alone))

    def swap(self):
        """A new checkpoint every 0.2 s during requests; wrk stops at the first that fails."""
        self.run("train", "--data_source=synthetic", "--synthetic_train=3000", "--validate_steps=0",
                 f"--layers={LAYERS}", "--train_steps=210", "--train_dir=run2", "--batch_size=50")
        models = [next((self.folder / name).glob("model-*.safetensors")) for name in ("run", "run2")]
        served, over = self.folder / "served.safetensors", threading.Event()
        shutil.copy(models[0], served)

        def go_on():
            while not over.wait(0.2):
                os.link(next(others), self.folder / "next")  # meanwhile the benchmark writes nothing
                (self.folder / "next").rename(served)

        quiet, busy, others = [], [], itertools.cycle(reversed(models))
        with self.server("trainer", f"{served}") as (port, _, _):
            for _ in range(self.options.rounds):
                quiet.append(self.half_load(port))
                over.clear()
                thread = threading.Thread(target=go_on)
                thread.start()
                busy.append(self.half_load(port, quiet[-1].rate))
                over.set()
                thread.join()
            metrics = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
            swaps = int(re.search(r"trainer_serve_model_swaps_total\S* (\d+)", metrics)[1])
            failed = sum(int(value) for value in re.findall(r'outcome="(?:faulty|refused)"\} (\d+)', metrics))
        show("serve: requests that failed while models were swapped", failed, most=0, swaps=swaps)
        show("serve: 99th percentile at half load while models are swapped, without swaps = 1",
             round(statistics.median(two.p99 / one.p99 for one, two in zip(quiet, busy)), 2), most=2,
             ms=round(statistics.median(each.p99 for each in busy), 2),
             without_ms=round(statistics.median(each.p99 for each in quiet), 2))

    def start(self):
        times, memory = [], []
        for _ in range(self.options.rounds):
            with self.server("trainer") as (port, pid, took):
                times.append(took * 1e3)
                self.wrk(port, "/v1/models/model:predict", "rows")
                memory.append(resident(pid) / MIB)
        widths = [int(width) for width in LAYERS.split(",")]
        model = sum(a * b + b for a, b in zip(widths, widths[1:])) * 4 / MIB
        show("serve: from start to ready", round(statistics.median(times), 1), unit="ms", most=50)
        show("serve: memory beyond the model, after a load", round(statistics.median(memory) - model, 1), unit="MiB",
             most=8, model_mib=round(model, 1))

    def connections(self):
        count = 10000
        with self.server("trainer") as (port, pid, _):
            peers = []
            try:
                for _ in range(count):
                    peers.append(socket.create_connection(("127.0.0.1", port)))
            except OSError as error:
                raise SystemExit(f"{len(peers)} connections: {error}; raise `ulimit -n`") from error
            urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=30).read()
            show("serve: memory with 10,000 connections", round(resident(pid) / MIB, 1), unit="MiB", most=64)
            for peer in peers:
                peer.close()


if __name__ == "__main__":
    parser = arguments(__doc__, rounds=5, data=False, wrap=True)
    parser.add_argument("--seconds", type=int, default=int(os.environ.get("BENCH_SECONDS", 5)), help="of each load")
    run_parts(parser, {"rows": Bench.rows, "table": Bench.table, "half": Bench.half, "batches": Bench.batches,
                       "swap": Bench.swap, "start": Bench.start, "connections": Bench.connections}, Bench)
