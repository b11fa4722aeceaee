#!/usr/bin/env python3
"""One ps with very many members, over TLS: rounds of a tenth of 1,000 real workers, and 10,000 idle members.

    tests/bench/members.py [--trainer=build/trainer] [--bench=build/bench] [PART ...]

PART: rounds, idle; both by default. Prints one JSON line per figure, with its bound; the exit status is 1 if a figure
misses it. rounds: 1,000 processes `trainer --job_name=worker`, of which each round selects 100; a tiny model of a
table, two steps per round. idle: the members are those of build/bench/members_load, which behave like real workers,
with all three connections of each, or with that for heartbeats only if this machine does not let a process open so
many; next to a real chief, in a round that never ends. Measures the ps's memory (VmRSS) and processor time.
MEMBERS_ROUNDS and MEMBERS_IDLE set the numbers; a few are enough to see that it works.
"""

import csv
import json
import os
import pathlib
import random
import resource
import subprocess
import sys
import tempfile
import time

from figures import ROOT, TICKS, arguments, run_parts, show

sys.path.insert(0, str(ROOT / "tests"))

from clusters import Cluster  # noqa: E402
from runs import merged, wait_for  # noqa: E402

MEMBERS = int(os.environ.get("MEMBERS_ROUNDS", 1000))
IDLE = int(os.environ.get("MEMBERS_IDLE", 10000))
AT_ONCE = 50  # processes started before waiting for them
MEASURED_S = 30
LEASE_S = 240
PER_PROCESS = 9000  # connections of one load process: limited by open files, and by ports of this machine
SPARE_FILES = 800   # of the ps


def spent_s(pid):
    """Seconds of processor time."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / TICKS


def resident_mib(pid):
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024


def own_mib(pid):
    """This process's private memory: pages of the program are shared."""
    text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(text.partition("Pss:")[2].split()[0]) / 1024


class Bench:
    def __init__(self, options):
        self.options = options
        self.trainer = str(pathlib.Path(options.trainer).resolve())
        self.load = str(pathlib.Path(options.bench).resolve() / "members_load")

    def table(self, folder):
        """Rows that a line separates."""
        draw = random.Random(1)
        data = pathlib.Path(folder) / "data"
        data.mkdir()
        with open(data / "train.csv", "w") as file:
            writer = csv.writer(file)
            writer.writerow(["a", "b", "class"])
            for _ in range(400):
                a, b = draw.gauss(0, 1), draw.gauss(0, 1)
                writer.writerow([f"{a:.4f}", f"{b:.4f}", "yes" if a > b else "no"])
        return data

    def rounds(self):
        with tempfile.TemporaryDirectory() as folder:
            flags = ("--data_source=table", f"--data_dir={self.table(folder)}", "--target=class", "--layers=2,4,2",
                     "--batch_size=10", "--local_steps=2", "--participation=0.1", "--issync=1", "--elastic=1",
                     f"--elastic_workers={MEMBERS}", "--min_workers=1", "--train_steps=100000000", "--log_steps=0",
                     "--validate_steps=0", "--lease_secs=60", "--max_steps_per_s=0", "--progress=0")
            with Cluster(self.trainer, folder, workers=1, flags=flags) as cluster:
                # The tests' shared settings are for their own data.
                cluster.flags = [flag for flag in cluster.flags if flag in flags or "threads" in flag]
                began = time.monotonic()
                cluster.start_all()
                for i in range(1, MEMBERS):
                    cluster.start(f"worker {i}")
                    if i % AT_ONCE == 0:
                        self.await_workers(cluster, i + 1 - AT_ONCE)
                self.await_workers(cluster, MEMBERS)
                joined_s = time.monotonic() - began
                self.watch_rounds(cluster, joined_s)

    @staticmethod
    def await_workers(cluster, least):
        def there():
            members = cluster.status(60)[1]
            return sum(member["state"] not in ("absent", "lost") for name, member in members.items()
                       if name != "ps 0") >= least
        wait_for(there, f"{least} workers", 600)

    @staticmethod
    def watch_rounds(cluster, joined_s):
        ps = cluster.members["ps 0"].pid
        workers = [process.pid for name, process in cluster.members.items() if name != "ps 0"]

        def look():
            status = cluster.status(60)[1]["ps 0"]
            return time.monotonic(), status["global_step"], spent_s(ps), sum(map(spent_s, workers))

        time.sleep(5)
        before = look()
        time.sleep(MEASURED_S)
        after = look()
        seconds, made, ours, theirs = (b - a for a, b in zip(before, after))
        show(f"{MEMBERS:,} real workers, rounds of {MEMBERS // 10}", round(made / seconds, 1), floor=20,
             unit="rounds/s", processes_s=f"ps {ours / seconds:.2f}, workers {theirs / seconds:.2f} a second",
             ps_MiB=round(resident_mib(ps), 1),
             worker_MiB=round(sum(map(own_mib, workers[::10])) / len(workers[::10]), 2),
             all_there_after_s=round(joined_s))

    # --- Idle members ---

    def idle(self):
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1] - SPARE_FILES
        self.idle_with(IDLE, "beat", 1) if IDLE <= most else None
        whole = min(IDLE, most // 3)
        self.idle_with(whole, "beat,wait,report", 3)

    def idle_with(self, members, links, each):
        with tempfile.TemporaryDirectory() as folder:
            flags = ("--issync=1", "--local_steps=2", "--participation=0.00001", "--elastic=1",
                     f"--elastic_workers={IDLE}", "--min_workers=1", "--train_steps=100000000", "--layers=784,10",
                     f"--lease_secs={LEASE_S}", "--log_steps=0", "--validate_steps=0")
            with Cluster(self.trainer, folder, workers=1, flags=flags) as cluster:
                cluster.start_all("--max_steps_per_s=5")
                ps = cluster.members["ps 0"].pid
                wait_for(lambda: (cluster.status()[1]["ps 0"]["global_step"] or 0) > 1, "rounds of the chief", 60)
                alone_mib = resident_mib(ps)
                began = time.monotonic()
                share = PER_PROCESS // each
                loads = [subprocess.Popen(
                    [self.load, f"--first={first}", f"--links={links}", f"--members={min(share, members + 1 - first)}",
                     *cluster.hosts, *merged(cluster.flags)], cwd=folder, stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE, text=True) for first in range(1, members + 1, share)]
                for load in loads:
                    line = load.stdout.readline()
                    assert line == "ready\n", line
                joined_s = time.monotonic() - began
                self.watch_idle(ps, loads, members, links, alone_mib, joined_s)

    @staticmethod
    def watch_idle(ps, loads, members, links, alone_mib, joined_s):
        time.sleep(12)  # until the threads that performed the handshakes have ended
        before = time.monotonic(), spent_s(ps)
        time.sleep(MEASURED_S)
        seconds, busy = time.monotonic() - before[0], spent_s(ps) - before[1]
        there_mib = resident_mib(ps)
        told = [json.loads(load.communicate("", timeout=120)[0]) for load in loads]
        assert all(load.returncode == 0 for load in loads)
        answers = {kind: round(sum(each[kind] for each in told) / told[0]["seconds"], 1)
                   for kind in ("beat", "wait", "report")}
        name = f"{members:,} idle members, {len(links.split(','))} connections each"
        whole = IDLE / members
        more = {"measured_with": f"{members:,} members, in proportion"} if members < IDLE else {}
        show(f"{name}: memory of a ps{f' with {IDLE:,}' if more else ''}",
             round(alone_mib + (there_mib - alone_mib) * whole, 1), most=256, unit="MiB",
             KiB_each=round((there_mib - alone_mib) * 1024 / members, 1), all_there_after_s=round(joined_s), **more)
        show(f"{name}: share of a core{f' with {IDLE:,}' if more else ''}", round(100 * busy / seconds * whole, 2),
             most=2, unit="%", answers_per_s=answers, us_each=round(busy / seconds * 1e6 / sum(answers.values()), 1),
             lease_s=LEASE_S, **more)


PARTS = {"rounds": Bench.rounds, "idle": Bench.idle}

if __name__ == "__main__":
    parser = arguments(__doc__, data=False)
    parser.add_argument("--bench", default=ROOT / "build/bench", help="folder of members_load")
    run_parts(parser, PARTS, Bench)
