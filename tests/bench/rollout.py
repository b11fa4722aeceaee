#!/usr/bin/env python3
"""How long rollouts take on a fleet of real processes on this machine, according to their logs, read every 2 ms.

    tests/bench/rollout.py [--trainer=build/trainer] [PART ...]

PART: 12, 40, 100, program, thin; 12, program and thin by default.

A number: configs, with that many members, one ps for about every ten, and a network of 784-8-10. Live: from the first
member with the new version in force to the last. Job: from the proposal to the end, without --healthy_secs, and the
pause, from worker 0's last step before to its first one after. Local: also from the proposal to the end.

program: a hundred members under the program's own supervisor, the workers at 8 steps a second, since two processors
stand for all their machines. Builds that crash, hang, or make a quarter of the steps, from the canary's restart until
all is as before; then a good one. Training pauses when none of five observed workers makes a step.

thin: two workers of one machine behind a link of 1 Mbit/s, which training fills; the program is sent at an eighth of
that. The rate of training until the canary restarts, compared with that before and after the rollout.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import programs  # noqa: E402
from figures import arguments, run_parts, show  # noqa: E402
from fleets import OpenFleet, supervise  # noqa: E402
from relay import Relay  # noqa: E402

HEALTHY_S = 2.0
MANY, STEPS_PER_S, WATCHED = 100, 8, 5
PAUSE_S = 0.25  # without a step of any observed worker: many times the usual interval
LINK_BYTES_PER_S, HANDED_ON = 1e6 / 8, 1 / 8
RATED_S = 60
SMALL_DATA = {"synthetic_train": 400, "synthetic_test": 100}


class Tail:
    """New lines of a member's log since the last read."""

    def __init__(self, fleet, name):
        self.fd = fleet.members[name].output.fileno()
        self.offset = os.fstat(self.fd).st_size

    def look(self):
        text = os.pread(self.fd, 1 << 20, self.offset)
        self.offset += len(text)
        return text.decode(errors="replace")


class Watch:
    """Runs a rollout, and records when lines appeared: {name: [time]} for each of the lines."""

    def __init__(self, fleet, names, **lines):
        self.fleet, self.lines = fleet, lines
        self.tails = {name: Tail(fleet, name) for name in names}
        self.seen = {key: {name: [] for name in names} for key in lines}
        self.began = self.seconds = None

    def look(self):
        now = time.monotonic()
        for name, tail in self.tails.items():
            text = tail.look()
            for key, line in self.lines.items():
                if line in text:
                    self.seen[key][name].append(now)

    def rest(self, seconds):
        """Only watches, for that long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.look()
            time.sleep(0.002)
        return self

    def run(self, *arguments, status=0):
        self.began = time.monotonic()
        operator = subprocess.Popen([self.fleet.trainer, "rollout", *arguments, "--yes", f"--healthy_secs={HEALTHY_S}",
                                     *self.fleet.job_flags()],
                                    cwd=self.fleet.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        while operator.poll() is None:
            self.look()
            time.sleep(0.002)
        self.seconds = time.monotonic() - self.began
        output = operator.communicate()[0]
        assert operator.returncode == status, output
        return self

    def times(self, key):
        return sorted(moment for moments in self.seen[key].values() for moment in moments)

    def first(self, key):
        return min(self.times(key))


STEP = '"event":"step"'


def gaps(times):
    return [after - before for before, after in zip(times, times[1:])]


def processor_seconds(fleet):
    """Processor time used by all members so far: a machine with more processors would not wait for it."""
    ticks = 0
    for member in fleet.members.values():
        fields = pathlib.Path(f"/proc/{member.pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def all_train(fleet, timeout=180):
    deadline = time.monotonic() + timeout
    while not all(member["state"] in ("training", "ready") for member in fleet.status(60)[1].values()):
        assert time.monotonic() < deadline, fleet.status(60)
        time.sleep(0.5)


# --- Configs ---


def configs(trainer, members):
    ps = 1 if members < 6 else 2 if members < 40 else 3
    train = {"learning_rate": 0.04}
    with tempfile.TemporaryDirectory() as folder:
        with OpenFleet(trainer, folder, ps=ps, workers=members - ps, model={"layers": [784, 8, 10]},
                       cluster={"lease_secs": 10}, data=SMALL_DATA, output={"log_steps": 1}) as fleet:
            fleet.start_and_train()
            all_train(fleet)
            of = f"{members} members on one machine, "
            watch = Watch(fleet, fleet.members, switch="version 2 of the config is in force", step=STEP)
            watch.run(fleet.candidate(2, train=train))
            switches = watch.times("switch")
            assert len(switches) == members
            show(f"{of}live: from the first switch to the last", round(switches[-1] - switches[0], 2), most=1, unit="s")
            show(f"{of}live: longest time without a step of worker 0",
                 round(max(gaps(watch.seen["step"]["worker 0"])), 2), unit="s")
            train["batch_size"] = 40
            used = processor_seconds(fleet)
            watch = Watch(fleet, ["worker 0"], step=STEP).run(fleet.candidate(3, train=train))
            used = processor_seconds(fleet) - used
            show(f"{of}job: total without healthy_secs", round(watch.seconds - HEALTHY_S, 2), most=10, unit="s")
            show(f"{of}job: processor time, training included", round(used, 1), unit="s")
            show(f"{of}job: training pause", round(max(gaps(watch.times("step"))), 2), most=2, unit="s")
            watch = Watch(fleet, []).run(fleet.candidate(4, train=train, cluster={"recovery_wait_secs": 0.5}))
            show(f"{of}local: total without the healthy_secs of fleet and canary",
                 round(watch.seconds - 2 * HEALTHY_S, 2), unit="s")


# --- Programs ---


def went_over(fleet, version):
    """The members that restarted in that version."""
    lines = (fleet.folder / "config.json.d" / "audit.log").read_text().splitlines()
    return {line["member"] for line in map(json.loads, lines)
            if line["what"] == "start again" and line["version"] == version}


def bring_bad(fleet, of, what, version, *arguments):
    canary = f"worker {len(fleet.worker_hosts) - 1}"
    before = programs.builds(fleet)
    watch = Watch(fleet, [canary], restart="restarting in version").run(*arguments, status=1)
    ended = watch.began + watch.seconds
    show(f"{of}{what}: from the canary's restart until all is as before", round(ended - watch.first("restart"), 2),
         most=30, unit="s")
    show(f"{of}{what}: members that went over to it", len(went_over(fleet, version)), most=1)
    assert programs.builds(fleet) == before


def bring_good(fleet, of, new):
    workers = len(fleet.worker_hosts)
    watched = {f"worker {i * (workers - 1) // (WATCHED - 1)}" for i in range(WATCHED)}
    ps = [name for name in fleet.members if name.startswith("ps")]
    watch = Watch(fleet, [*watched, *ps], step=STEP, restart='"restarting in version')  # not ps 0 on others
    watch.run(f"--binary={new}", "--least_speed=0%")
    assert set(programs.builds(fleet).values()) == {programs.build_of(new)}
    turn = min(moment for name in ps for moment in watch.seen["restart"][name])
    steps = watch.times("step")
    waves = gaps([moment for moment in steps if moment < turn])
    show(f"{of}program of {new.stat().st_size / 1e6:.1f} MB: total without the healthy_secs of fleet and canary",
         round(watch.seconds - 2 * HEALTHY_S, 2), most=60, unit="s")
    show(f"{of}program: training pauses in all as workers restart",
         round(sum(gap for gap in waves if gap > PAUSE_S), 2), most=2, unit="s")
    last = max(moment for moment in steps if moment < turn)
    pauses = [round(gap, 2) for gap in gaps([last, *(moment for moment in steps if moment >= turn)]) if gap > PAUSE_S]
    show(f"{of}program: training's longest pause as every ps restarts", max(pauses), most=2, unit="s",
         ps=len(ps), pauses=pauses, in_all=round(sum(pauses), 2))


def program(trainer):
    with tempfile.TemporaryDirectory() as folder:
        with OpenFleet(trainer, folder, ps=3, workers=MANY - 3, model={"layers": [784, 8, 10]}, data=SMALL_DATA,
                       cluster={"lease_secs": 10}, train={"max_steps_per_s": STEPS_PER_S, "batch_size": 20},
                       output={"log_steps": 1}) as fleet:
            for i in range(3):
                supervise(fleet, f"ps {i}")
            for i in range(MANY - 3):
                supervise(fleet, f"worker {i}")
            fleet.until("worker 0", lambda text: STEP in text, "steps", 180)
            all_train(fleet)
            time.sleep(5)  # so that ps 0 knows how fast each is
            of = f"{MANY} members on one machine, "
            new = programs.variant(fleet.trainer, fleet.folder / "new")
            for version, (what, source) in enumerate((("build that crashes", programs.CRASHES),
                                                      ("build that hangs", programs.HANGS)), 2):
                bad = programs.compile_program(fleet.folder, f"bad{version}", source)
                bring_bad(fleet, of, what, version, f"--binary={bad}", "--least_speed=0%")
            slower = {"max_steps_per_s": STEPS_PER_S / 4, "batch_size": 20}
            bring_bad(fleet, of, "build that is slower", 4, fleet.candidate(4, train=slower), f"--binary={new}")
            fleet.goes_on()
            bring_good(fleet, of, programs.variant(fleet.trainer, fleet.folder / "newer", b"a third build"))


# --- A slow link ---


class ThinLink(Relay):
    """One link for all connections, of that bandwidth in either direction; but the next one after operator_comes()
    bypasses it, because operators are elsewhere."""

    def __init__(self, port):
        self.turn, self.free_s = threading.Lock(), [0.0, 0.0]
        self.operator_is_next, self.operator = False, None
        super().__init__(port)

    def operator_comes(self):
        self.operator_is_next = True

    def pump(self, pair, source, sink):
        way = source is pair["ends"][0]
        with self.turn:
            if self.operator_is_next:
                self.operator_is_next, self.operator = False, pair
        if pair is self.operator:
            super().pump(pair, source, sink)
            return
        try:
            while (data := source.recv(4096)):
                with self.turn:
                    self.free_s[way] = max(self.free_s[way], time.monotonic()) + len(data) / LINK_BYTES_PER_S
                    due_s = self.free_s[way]
                time.sleep(max(0.0, due_s - time.monotonic()))
                sink.sendall(data)
            sink.shutdown(1)
        except (OSError, ValueError):
            self.cut_pair(pair, count=False)


class ThinFleet(OpenFleet):
    """Workers on their own machine, which reach the ps through the link."""

    def __init__(self, trainer, folder):
        super().__init__(trainer, folder, ps=1, workers=2, model={"layers": [784, 8, 10]}, data=SMALL_DATA,
                         cluster={"lease_secs": 30}, output={"log_steps": 1})
        self.port = int(self.ps_hosts[0].split(":")[1])
        self.ps_hosts[0] = f"127.0.0.2:{self.port}"
        self.config["cluster"]["ps_hosts"] = self.ps_hosts
        (self.folder / "config.json").write_text(json.dumps(self.config))
        there = self.folder / "there"
        there.mkdir()
        for name in ("operator.pub", "fleet.key", "config.json"):
            shutil.copy2(self.folder / name, there / name)

    def start_all(self):
        supervise(self, "ps 0", "--bind=127.0.0.1")
        for i in range(2):
            supervise(self, f"worker {i}", "--config=there/config.json")
        self.until("worker 0", lambda text: STEP in text, "steps", 120)
        all_train(self)


def thin(trainer):
    with tempfile.TemporaryDirectory() as folder:
        fleet = ThinFleet(trainer, folder)
        with ThinLink(fleet.port) as link, fleet:
            fleet.start_all()
            workers = ["worker 0", "worker 1"]
            before = len(Watch(fleet, workers, step=STEP).rest(RATED_S).times("step")) / RATED_S
            new = programs.variant(fleet.trainer, fleet.folder / "new")
            link.operator_comes()
            watch = Watch(fleet, workers, step=STEP, restart="restarting in version")
            watch.run(f"--binary={new}", f"--rate_mb={LINK_BYTES_PER_S * HANDED_ON / 1e6}", "--least_speed=0%")
            assert set(programs.builds(fleet).values()) == {programs.build_of(new)}
            until = watch.first("restart")
            beside = sum(moment < until for moment in watch.times("step")) / (until - watch.began)
            after = len(Watch(fleet, workers, step=STEP).rest(RATED_S).times("step")) / RATED_S
            of = "link of 1 Mbit/s, "
            show(f"{of}program of {new.stat().st_size / 1e6:.1f} MB: total without the healthy_secs of fleet and "
                 "canary", round(watch.seconds - 2 * HEALTHY_S, 1), unit="s")
            show(f"{of}program: training's rate while it is handed on, of that before and after",
                 round(200 * beside / (before + after), 1), floor=80, unit="%",
                 steps_per_s=[round(before, 2), round(beside, 2), round(after, 2)])


def path(options):
    """Members run in their own folder."""
    return str(pathlib.Path(options.trainer).resolve())


PARTS = {"12": lambda options: configs(path(options), 12),
         "40": lambda options: configs(path(options), 40),
         "100": lambda options: configs(path(options), 100),
         "program": lambda options: program(path(options)),
         "thin": lambda options: thin(path(options))}
USUAL = ["12", "program", "thin"]


if __name__ == "__main__":
    if not [word for word in sys.argv[1:] if not word.startswith("-")]:
        sys.argv += USUAL
    run_parts(arguments(__doc__, data=False), PARTS, lambda options: options)
