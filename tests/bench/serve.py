#!/usr/bin/env python3
"""trainer serve under load by wrk, beside FastAPI under uvicorn with onnxruntime: requests of one picture each on
connections that stay open, batches as binary tensors, start and memory.

    tests/bench/serve.py [--trainer=build/trainer] [--rounds=5] [--seconds=5] [PART ...]

PART: rows, batches, start, connections; all by default. One JSON line for each figure, with what it owes; the exit
status is 1 if one is missed. Requests are counted by processor time of the server, which a busy machine disturbs less
than the clock; the two servers take turns. --rounds (or BENCH_ROUNDS): runs of each.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

import numpy

from figures import arguments, run_parts, show

HERE = pathlib.Path(__file__).resolve().parent
LAYERS, BATCH, CONNECTIONS = "784,500,10", 256, 32
TICKS = os.sysconf("SC_CLK_TCK")
MIB = 1 << 20


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
        self.run("train", "--data_source=synthetic", "--synthetic_train=3000", "--validate_steps=0",
                 f"--layers={LAYERS}", "--train_steps=200", "--train_dir=run", "--batch_size=50")
        self.run("export", "--format=onnx", "--out=model.onnx", "--train_dir=run")
        pictures = numpy.random.default_rng(1).integers(0, 256, (BATCH, 784), numpy.uint8)
        head = json.dumps({"inputs": [{"name": "images", "datatype": "UINT8", "shape": [BATCH, 784],
                                       "parameters": {"binary_data_size": pictures.size}}],
                           "outputs": [{"name": "probabilities", "parameters": {"binary_data": True}}]})
        self.write("rows", json.dumps({"instances": pictures[:1].tolist()}).encode(), {})
        self.write("batches", head.encode() + pictures.tobytes(), {"Inference-Header-Content-Length": str(len(head))})

    def run(self, *command):
        subprocess.run([self.options.trainer, *command], cwd=self.folder, check=True, stdout=subprocess.DEVNULL)

    def write(self, name, body, headers):
        """A script for wrk that posts this body."""
        (self.folder / f"{name}.body").write_bytes(body)
        lines = [f'wrk.headers["{key}"] = "{value}"' for key, value in {"Content-Type": "application/json",
                                                                        **headers}.items()]
        (self.folder / f"{name}.lua").write_text("\n".join(
            ['wrk.method = "POST"', f'wrk.body = io.open("{self.folder}/{name}.body", "rb"):read("*a")', *lines]))

    @contextlib.contextmanager
    def server(self, kind):
        port = free_port()
        command = {"trainer": [self.options.trainer, "serve", "run", f"--http=127.0.0.1:{port}", "--workers=1"],
                   "fastapi": [sys.executable, "-m", "uvicorn", "--port", str(port), "--log-level=warning",
                               "--app-dir", HERE / "peers", "fastapi_app:app"]}[kind]
        began = time.monotonic()
        process = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   env={**os.environ, "MODEL": str(self.folder / "model.onnx")})
        try:
            while True:
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5).read()
                    break
                if process.poll() is not None or time.monotonic() > began + 60:
                    raise SystemExit(f"{kind}: no server")
                time.sleep(0.001)
            yield port, process.pid, time.monotonic() - began
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()

    def load(self, kind, path, script):
        """Requests per second of the server's processor time; milliseconds of the 99th percentile."""
        with self.server(kind) as (port, pid, _):
            before = processor_s(pid)
            result = subprocess.run(["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{self.options.seconds}s", "--latency", "-s",
                                     self.folder / f"{script}.lua", f"http://127.0.0.1:{port}{path}"],
                                    capture_output=True, text=True, check=True)
            took = processor_s(pid) - before
        if re.search(r"Non-2xx|Socket errors", result.stdout):
            raise SystemExit(f"{kind}: {result.stdout}")
        requests = int(re.search(r"(\d+) requests in", result.stdout)[1])
        value, unit = re.search(r"99%\s+([\d.]+)(us|ms|s)\b", result.stdout).groups()
        return requests / took, float(value) * {"us": 1e-3, "ms": 1, "s": 1e3}[unit]

    def rows(self):
        found = {"trainer": [], "fastapi": []}
        for _ in range(self.options.rounds):
            found["trainer"].append(self.load("trainer", "/v1/models/model:predict", "rows"))
            found["fastapi"].append(self.load("fastapi", "/predict", "rows"))
        ours, theirs = (statistics.median(rate for rate, _ in found[kind]) for kind in ("trainer", "fastapi"))
        show("serve: requests of one picture per core second, FastAPI = 1", round(ours / theirs, 1), floor=10, aim=30,
             trainer=round(ours), fastapi=round(theirs),
             p99_ms=round(statistics.median(p99 for _, p99 in found["trainer"]), 2))

    def batches(self):
        rates = [self.load("trainer", "/v2/models/model/infer", "batches")[0] for _ in range(self.options.rounds)]
        show(f"serve: pictures per core second, {BATCH} as a binary tensor", round(statistics.median(rates) * BATCH),
             unit="pictures/s")

    def start(self):
        times, memory = [], []
        for _ in range(self.options.rounds):
            with self.server("trainer") as (_, pid, took):
                times.append(took * 1e3)
                memory.append(resident(pid) / MIB)
        widths = [int(width) for width in LAYERS.split(",")]
        model = sum(a * b + b for a, b in zip(widths, widths[1:])) * 4 / MIB
        show("serve: from start to ready", round(statistics.median(times), 1), unit="ms", most=50)
        show("serve: memory beyond the model", round(statistics.median(memory) - model, 1), unit="MiB", most=8,
             model_mib=round(model, 1))

    def connections(self):
        count = 10000
        with self.server("trainer") as (port, pid, _):
            before, peers = resident(pid), []
            try:
                for _ in range(count):
                    peers.append(socket.create_connection(("127.0.0.1", port)))
            except OSError as error:
                raise SystemExit(f"{len(peers)} connections: {error}; raise `ulimit -n`") from error
            urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=30).read()
            show("serve: memory of 10,000 connections", round((resident(pid) - before) / MIB, 1), unit="MiB", most=64)
            for peer in peers:
                peer.close()


if __name__ == "__main__":
    parser = arguments(__doc__, rounds=5, data=False)
    parser.add_argument("--seconds", type=int, default=5, help="of each load")
    run_parts(parser, {"rows": Bench.rows, "batches": Bench.batches, "start": Bench.start,
                       "connections": Bench.connections}, Bench)
