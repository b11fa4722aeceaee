"""A new program for a running fleet: distributed, tried by a canary, then by all; and rolled back if it is bad."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import threading
import time

import pytest

import programs
from fleets import OpenFleet, in_force, supervise, text_of
from programs import CRASHES, HANGS, MARK, build_of, compile_program
from runs import LONG_S, wait_for


class Machines(OpenFleet):
    """A fleet whose members run on two machines, each with its own folder."""

    def start_all(self, off=()):
        self.other = self.folder / "other"
        self.other.mkdir()
        for name in ("operator.pub", "fleet.key", "config.json"):
            shutil.copy2(self.folder / name, self.other / name)
        supervise(self, "ps 0")
        there = [i for i in range(len(self.worker_hosts)) if i not in off]
        for i in there:
            supervise(self, f"worker {i}", *(["--config=other/config.json"] if i > 0 else []))
        self.until("worker 0", lambda text: text.count('"event":"step"') >= 2, "steps")
        wait_for(lambda: all(self.versions()[f"worker {i}"] != 0 for i in there), "version of everybody")

    def variant(self, name="new", tail=b"another build"):
        """A program that differs from this one only in its bytes."""
        return programs.variant(self.trainer, self.folder / name, tail)

    def builds(self):
        return programs.builds(self)

    def bring(self, path, *flags, timeout=240):
        """Without a bound on its speed, which on a busy machine depends on other load."""
        usual = {"--healthy_secs": "0.5", "--least_speed": "0%"}
        usual |= dict(flag.split("=") for flag in flags if "=" in flag)
        switches = [flag for flag in flags if "=" not in flag]
        return self.rollout(f"--binary={path}", "--yes", *switches, *map("=".join, usual.items()), timeout=timeout)

    def kept(self, folder):
        return {path.parent.name for path in (folder / "trainer.d").glob("*/trainer")}


@pytest.fixture
def machines(trainer, tmp_path):
    with Machines(trainer, tmp_path / "fleet", ps=1, workers=3) as fleet:
        fleet.start_all()
        yield fleet


def test_a_new_program(machines):
    fleet = machines
    old, new = build_of(fleet.variant("old", b"")), fleet.variant()
    result = fleet.bring(new, "--dry-run")
    assert result.returncode == 0 and build_of(new) in text_of(result), text_of(result)
    result = fleet.bring(new)
    assert result.returncode == 0, text_of(result) + fleet.text("worker 2") + fleet.text("ps 0")
    assert set(fleet.builds().values()) == {build_of(new)}
    assert set(fleet.versions().values()) == {2}
    fleet.goes_on()
    for folder in (fleet.folder, fleet.other):
        assert fleet.kept(folder) == {old, build_of(new)}
    audit = [json.loads(line) for line in (fleet.other / "config.json.d" / "audit.log").read_text().splitlines()]
    fetched = [line["member"] for line in audit if line["what"] == "fetch the program"]
    assert len(fetched) == 1, audit  # once for both members of that machine
    restarts = [line["member"] for line in audit if line["what"] == "start again"]
    assert restarts == ["worker 2", "worker 1"]
    # A supervisor starts the installed program, and they switch to the one that was rolled out.
    fleet.kill("worker 1")
    supervise(fleet, "worker 1", "--config=other/config.json")
    fleet.until("worker 1", lambda text: '"event":"step"' in text, "steps")
    wait_for(lambda: fleet.builds()["worker 1"] == build_of(new), "its program")
    # A config follows, and the program stays; then one more program: the last two are kept.
    result = fleet.rollout(fleet.candidate(3, train={"learning_rate": 0.04}), "--yes", "--healthy_secs=0.5")
    assert result.returncode == 0, text_of(result)
    assert set(fleet.builds().values()) == {build_of(new)}
    newest = fleet.variant("newest", b"a third build")
    result = fleet.bring(newest, "--waves=1,3", "--rate_mb=40")
    assert result.returncode == 0, text_of(result)
    assert set(fleet.builds().values()) == {build_of(newest)} and fleet.alive()
    assert fleet.kept(fleet.folder) == fleet.kept(fleet.other) == {build_of(new), build_of(newest)}
    assert fleet.goes_on()["learning_rate"] == 0.04


def children_of(process):
    return [int(pid) for pid in pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def test_a_transfer_that_is_cut_off_goes_on_where_it_stopped(machines):
    """Both members of a machine are killed while one of them fetches."""
    fleet = machines
    new = fleet.variant()
    part = fleet.other / "trainer.d" / build_of(new) / "part"
    with subprocess.Popen([fleet.trainer, "rollout", f"--binary={new}", "--yes", "--healthy_secs=0.5", "--rate_mb=0.5",
                           *fleet.job_flags()], cwd=fleet.folder, stdout=subprocess.PIPE, text=True) as operator:
        wait_for(lambda: part.exists() and part.stat().st_size > 300000, "a part of the program")
        for name in ("worker 1", "worker 2"):
            for child in children_of(fleet.members[name]):
                os.kill(child, signal.SIGKILL)
        there = part.stat().st_size
        assert there < new.stat().st_size
        smallest = there
        while operator.poll() is None:
            with contextlib.suppress(FileNotFoundError):
                smallest = min(smallest, part.stat().st_size)
            time.sleep(0.02)
        output = operator.stdout.read()
    assert operator.returncode == 0, output
    assert smallest == there and set(fleet.builds().values()) == {build_of(new)}
    assert (part.parent / "trainer").read_bytes() == new.read_bytes() and not part.exists()


def test_over_a_thin_link_it_comes_in_small_pieces(machines):
    """A second's worth at once, so that training's messages wait behind only a little of it; and no faster than
    specified, except that a quarter of a second may be saved up."""
    fleet = machines
    new = fleet.variant()
    part = fleet.other / "trainer.d" / build_of(new) / "part"
    begun_s, samples = time.monotonic(), [(0, 0)]  # (seconds since then, size)
    with subprocess.Popen([fleet.trainer, "rollout", f"--binary={new}", "--yes", "--rate_mb=0.02", *fleet.job_flags()],
                          cwd=fleet.folder, stdout=subprocess.PIPE, text=True) as operator:
        while samples[-1][1] < 100000:
            assert operator.poll() is None and samples[-1][0] < LONG_S, samples
            size = part.stat().st_size if part.exists() else 0
            samples.append((time.monotonic() - begun_s, size))
            time.sleep(0.01)
        aborted = fleet.rollout("abort")
        assert aborted.returncode == 0, text_of(aborted)
        operator.communicate(timeout=240)
    for after_s, size in samples:  # however long a piece is on its way
        assert size <= 20 * 1024 * (1 + 0.25 + after_s), samples
    seconds = samples[-1][0] - next(after_s for after_s, size in samples if size > 0)
    assert seconds > 0.5 * 100000 / 20000, (samples, seconds)
    assert operator.returncode != 0 and set(fleet.versions().values()) == {1}


def test_a_machine_that_was_off_fetches_it_when_it_is_back(trainer, tmp_path):
    with Machines(trainer, tmp_path / "fleet", ps=1, workers=2) as fleet:
        fleet.start_all(off=[1])
        new = fleet.variant()
        result = fleet.bring(new)
        assert result.returncode == 0 and "without worker 1, which is off" in text_of(result), text_of(result)
        assert fleet.kept(fleet.other) == set()
        supervise(fleet, "worker 1", "--config=other/config.json")
        wait_for(lambda: set(fleet.builds().values()) == {build_of(new)}, "the new program everywhere")
        assert in_force(fleet.other) == "2" and set(fleet.versions().values()) == {2}
        assert build_of(new) in fleet.kept(fleet.other)


# --- Bad programs ---


@pytest.mark.parametrize("name, source", [("crashes", CRASHES), ("hangs", HANGS)], ids=["crashes", "hangs"])
def test_a_bad_program_reaches_the_canary_only(machines, name, source):
    fleet = machines
    old = set(fleet.builds().values())
    bad = compile_program(fleet.folder, name, source)
    began = time.monotonic()
    result = fleet.bring(bad)
    assert result.returncode == 1, text_of(result)
    assert "went back from version 2 to version 1: worker 2: it failed 2 times" in text_of(result)
    seconds = time.monotonic() - began
    assert set(fleet.versions().values()) == {1} and set(fleet.builds().values()) == old
    for i in range(2):
        assert len(fleet.events(f"worker {i}", "start")) == 1
    fleet.goes_on()
    assert fleet.alive() and in_force(fleet.other) == "1"
    print(f"{name}: back after {seconds:.1f} s")


def test_what_is_refused_before_anything_changes(machines, trainer):
    fleet = machines
    good = fleet.variant()
    cut = fleet.folder / "cut"
    cut.write_bytes(good.read_bytes()[:1 << 20])
    foreign = programs.foreign(trainer, fleet.folder / "foreign")
    late = fleet.folder / "late"
    late.write_bytes(good.read_bytes().replace(MARK, MARK[:-4] + struct.pack("<HH", 5, 5)))
    (fleet.folder / "text").write_text("no program")
    for path, message in (
        (cut, "is truncated"),
        (foreign, "no program for this machine's architecture, x86_64"),
        (fleet.folder / "text", "is not a program"),
        (fleet.folder / "missing", "cannot be opened"),
        ("/bin/true", "is not a trainer"),
        (f"{good},{good}", "one for each architecture"),
        (late, "speaks protocol versions from 5 on"),
    ):
        result = fleet.bring(path)
        assert result.returncode in (1, 2) and message in text_of(result), (path, text_of(result))
    for flags, message in ((("--waves=0",), "--waves must be"), (("--waves=1;2",), "--waves must be"),
                           (("--rate_mb=-1",), "--rate_mb must be"), (("--budget=0",), "--budget must be"),
                           (("--budget=5%x",), "--budget must be"), (("--least_speed=50",), "--least_speed must be"),
                           (("--least_speed=101%",), "--least_speed must be")):
        result = fleet.bring(good, *flags)
        assert result.returncode == 2 and message in text_of(result), text_of(result)
    subprocess.run([trainer, "keygen", "--operator=other.key"], cwd=fleet.folder, check=True, timeout=240)
    result = fleet.bring(good, "--key=other.key")
    assert result.returncode == 1 and "is not signed by the operator key" in text_of(result)
    result = fleet.rollout(fleet.candidate(30, train={"batch_size": 40}), f"--binary={good}", "--yes")
    assert result.returncode == 1 and "a new program can't come with keys of the job" in text_of(result)
    assert set(fleet.versions().values()) == {1} and fleet.alive()
    for name in ("ps 0", "worker 0", "worker 1", "worker 2"):
        assert len(fleet.events(name, "start")) <= 1


def test_a_program_that_is_much_slower_goes_back(machines):
    """The canary's pace is that of a config in the same rollout, so that no machine is too busy for this test."""
    fleet = machines
    old = set(fleet.builds().values())
    new = fleet.variant()
    name = fleet.candidate(2, train={"max_steps_per_s": 2})
    fleet.goes_on(more=20)  # otherwise its former speed is unknown
    result = fleet.rollout(name, f"--binary={new}", "--yes", "--healthy_secs=0.5")
    assert result.returncode == 1, text_of(result)
    assert re.search(r"went back from version 2 to version 1: worker 2 makes [\d.]+ steps/s in the new program, but "
                     r"made [\d.]+ before: less than 50%", text_of(result)), text_of(result)
    assert set(fleet.builds().values()) == old and len(fleet.events("worker 1", "start")) == 1
    fleet.goes_on()


def test_programs_are_handed_on_no_faster_than_told(machines):
    """Two megabytes a second, and one more at the start, by ps 0's budget."""
    fleet = machines
    new = fleet.variant()
    began = time.monotonic()
    result = fleet.bring(new, "--rate_mb=2")
    assert result.returncode == 0, text_of(result)
    fetched = [json.loads(line) for line in (fleet.other / "config.json.d" / "audit.log").read_text().splitlines()]
    assert [line["what"] for line in fetched].count("fetch the program") == 1
    assert time.monotonic() - began >= (new.stat().st_size - 1e6) / 2.1e6


@contextlib.contextmanager
def a_disk_that_damages(path, damaged):
    """Puts these contents there, and again whenever somebody replaces them."""
    healed, copy = threading.Event(), path.with_suffix(".copy")

    def damage():
        known = None
        while not healed.wait(0.005):
            with contextlib.suppress(FileNotFoundError):
                if known != (path.stat().st_ino, path.stat().st_mtime_ns):
                    copy.write_bytes(damaged)
                    known = copy.stat().st_ino, copy.stat().st_mtime_ns
                    copy.replace(path)

    disk = threading.Thread(target=damage)
    disk.start()
    try:
        yield
    finally:
        healed.set()
        disk.join()


def test_a_machine_that_fails_pauses_the_rollout_until_the_operator_says_so(machines):
    """The disk damages the program once the canary, on the same machine, has started it. The canary may notice that,
    and fetch it again."""
    fleet = machines
    new = fleet.variant()
    old = fleet.builds()["worker 1"]
    damaged = new.read_bytes()[:-1] + b"?"
    with subprocess.Popen([fleet.trainer, "rollout", f"--binary={new}", "--yes", "--healthy_secs=5", "--least_speed=0%",
                           "--budget=1", *fleet.job_flags()], cwd=fleet.folder, stdout=subprocess.PIPE,
                          text=True) as operator:
        fleet.until("worker 2", lambda text: text.count('"event":"start"') == 2, "its start in the new program")
        with a_disk_that_damages(fleet.other / "trainer.d" / build_of(new) / "trainer", damaged):
            for line in operator.stdout:
                if "is paused" in line:
                    break
        assert "worker 1: " in line and "is damaged" in line and "`trainer rollout resume`" in line
        assert fleet.builds()["worker 0"] == old
        assert "is paused" in text_of(fleet.rollout("status"))
        result = fleet.rollout("resume")
        assert result.returncode == 0 and "version 2 is resumed" in text_of(result), text_of(result)
        output = operator.stdout.read()
    assert operator.returncode == 0 and "without worker 1, which is off" in output, output
    builds = fleet.builds()
    assert builds.pop("worker 1") == old and set(builds.values()) == {build_of(new)}
    result = fleet.rollout("resume")
    assert result.returncode == 1 and "there is no rollout to resume" in text_of(result)
    audit = (fleet.folder / "config.json.d" / "audit.log").read_text().splitlines()
    assert "resume" in [json.loads(line)["what"] for line in audit]
    fleet.goes_on()


def test_a_damaged_program_is_fetched_again(machines):
    fleet = machines
    new = fleet.variant()
    result = fleet.bring(new)
    assert result.returncode == 0, text_of(result)
    wait_for(lambda: not list((fleet.other / "config.json.d").glob("probation-*")), "the end of probation")
    fleet.kill("worker 1", signal.SIGTERM)
    fleet.wait("worker 1", status=None)
    fleet.kill("worker 2", signal.SIGTERM)
    fleet.wait("worker 2", status=None)
    program = fleet.other / "trainer.d" / build_of(new) / "trainer"
    os.truncate(program, 100000)
    supervise(fleet, "worker 1", "--config=other/config.json")
    fleet.until("worker 1", lambda text: "until the fleet brings the program of version 2 again" in text, "the damage")
    wait_for(lambda: program.exists() and program.read_bytes() == new.read_bytes(), "the new program", 240)
    wait_for(lambda: fleet.builds().get("worker 1") == build_of(new), "the new program at worker 1", 240)
