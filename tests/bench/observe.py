#!/usr/bin/env python3
"""The cost of being observed: training with a scrape each second and an open page, compared with training without, in
processor time and memory; and a page of 1,000 members.

    tests/bench/observe.py [--trainer=build/trainer] [--rounds=7] [--steps=60000] [--members=1000] [PART ...]

PART: cost, members; both by default. Prints one JSON line per figure, with its bound; the exit status is 1 if a figure
misses it. Runs with and without are neighbours in alternating order; each is measured by the processor time of the
whole process, which a busy machine affects less than elapsed time. --rounds (or BENCH_ROUNDS): pairs.
"""

import contextlib
import json
import os
import pathlib
import socket
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request

from figures import arguments, run_parts, show

PAGE = ("/", "/app.js", "/app.css", "/dygraph.js", "/api/runs", "/api/status", "/api/history", "/api/events")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
LOOK_S = 10  # how long a page of many members is kept open


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def get(port, path):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read()


class Looker:
    """A client that scrapes each second and keeps a page open, until the server is gone."""

    def __init__(self, port):
        self.port, self.ends, self.scrapes, self.streamed = port, threading.Event(), 0, 0
        self.threads = [threading.Thread(target=each, daemon=True) for each in (self.scrape, self.watch)]
        for thread in self.threads:
            thread.start()

    def scrape(self):
        while not self.ends.wait(1):
            with contextlib.suppress(OSError):
                get(self.port, "/metrics")
                self.scrapes += 1

    def watch(self):
        while not self.ends.is_set():
            with contextlib.suppress(OSError, ValueError):
                for path in PAGE:
                    get(self.port, path)
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/stream", timeout=30) as stream:
                    while line := stream.readline():
                        self.streamed += line.startswith(b"event: status")
            self.ends.wait(0.2)

    def end(self):
        self.ends.set()
        for thread in self.threads:
            thread.join(timeout=35)


def threads_cpu_s(pid):
    """Processor time by thread, in seconds, to the nanosecond."""
    return {int(task.name): int((task / "schedstat").read_text().split()[0]) * 1e-9
            for task in pathlib.Path(f"/proc/{pid}/task").iterdir()}


def nice_threads(pid):
    """The HTTP server's thread runs at a lower priority than the rest."""
    return [int(task.name) for task in pathlib.Path(f"/proc/{pid}/task").iterdir()
            if int((task / "stat").read_text().rpartition(")")[2].split()[16]) > 0]


class Bench:

    def __init__(self, options):
        self.options = options
        self.scratch = tempfile.TemporaryDirectory()

    def train(self, is_watched):
        """Seconds of processor time, the server's share of them, and memory in use near the end, in bytes."""
        port = free_port()
        command = [self.options.trainer, "train", "--data_source=synthetic", "--synthetic_train=6000",
                   "--layers=784,100,10", "--batch_size=100", "--num_threads=1", "--log_steps=0", "--validate_steps=0",
                   f"--train_steps={self.options.steps}"]
        process = subprocess.Popen(command + [f"--http=127.0.0.1:{port}"] * is_watched, cwd=self.scratch.name,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        looker = Looker(port) if is_watched else None
        server_s = memory = 0
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            with contextlib.suppress(OSError, ValueError, IndexError):
                memory = int(pathlib.Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * PAGE_BYTES or memory
                if is_watched:
                    took = threads_cpu_s(process.pid)
                    server_s = sum(took[thread] for thread in nice_threads(process.pid)) or server_s
            time.sleep(0.25)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = status
        if looker:
            looker.end()
        if status != 0 or (looker and looker.streamed == 0):
            raise SystemExit(f"{command}: status {status}, {looker and looker.streamed} statuses streamed")
        return usage.ru_utime + usage.ru_stime, server_s, memory

    def cost(self):
        times, shares, memory = [], [], []
        for i in range(self.options.rounds):
            found = {watched: self.train(watched) for watched in ((False, True) if i % 2 else (True, False))}
            times.append(found[True][0] / found[False][0])
            shares.append(found[True][1] / found[True][0])
            memory.append((found[True][2] - found[False][2]) / 2**20)
        show("watched: processor time of a step, times that of one unwatched", round(statistics.median(times), 4),
             most=1.005, each=[round(each, 4) for each in times])
        show("watched: the server's share of processor time", round(100 * statistics.median(shares), 3), most=0.5,
             unit="%", each=[round(100 * each, 3) for each in shares])
        show("watched: more memory", round(statistics.median(memory), 2), most=2, unit="MiB",
             each=[round(each, 2) for each in memory])

    def members(self):
        port, count = free_port(), self.options.members
        hosts = ",".join(f"10.{i >> 8 & 255}.{i & 255}.1:2222" for i in range(count))
        process = subprocess.Popen([self.options.trainer, "--job_name=ps", "--insecure", "--layers=784,10",
                                    f"--ps_hosts=127.0.0.1:{free_port()}", f"--worker_hosts={hosts}",
                                    f"--http=127.0.0.1:{port}"], cwd=self.scratch.name, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        try:
            until = time.monotonic() + 30
            while time.monotonic() < until:
                with contextlib.suppress(urllib.error.URLError):
                    if len(json.loads(get(port, "/api/status"))["members"]) > count:
                        break
                time.sleep(0.2)
            began = time.monotonic()
            sizes = [len(get(port, path)) for path in PAGE]
            took_s = time.monotonic() - began
            looker = Looker(port)
            time.sleep(1.5)
            thread = max(nice_threads(process.pid))
            before, began = threads_cpu_s(process.pid)[thread], time.monotonic()
            time.sleep(LOOK_S)
            used = (threads_cpu_s(process.pid)[thread] - before) / (time.monotonic() - began)
        finally:
            process.kill()
            process.wait()
        looker.end()
        show(f"a page of {count:,} members: all that it asks for", round(took_s, 3), most=1, unit="s",
             bytes=sum(sizes))
        show(f"a page of {count:,} members, live, and a scrape each second: the server's share of a core",
             round(100 * used, 2), most=5, unit="%", statuses=looker.streamed, scrapes=looker.scrapes)


def main():
    parser = arguments(__doc__, rounds=7, data=False)
    parser.add_argument("--steps", type=int, default=60000, help="of each run")
    parser.add_argument("--members", type=int, default=1000, help="of the page with many")
    run_parts(parser, {"cost": Bench.cost, "members": Bench.members}, Bench)


if __name__ == "__main__":
    main()
