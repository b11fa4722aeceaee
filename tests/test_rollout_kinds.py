"""A new program for a fleet with two architectures, the other one emulated: good and bad ones for either.

6 members, 100 in make test-full (or TRAINER_FLEET of them).
"""

import json
import os
import platform
import subprocess

import pytest

import emulated
import programs
from trials import Trial, bring, settle

FULL = os.environ.get("TRAINER_TEST_FULL") == "1"
MEMBERS = int(os.environ.get("TRAINER_FLEET", 100 if FULL else 6))
EVERY = 8 if MEMBERS >= 40 else 2

pytestmark = pytest.mark.alone if FULL else pytest.mark.xdist_group("kinds")


@pytest.fixture(scope="module")
def fleet(trainer, tmp_path_factory):
    if platform.machine() != "x86_64":
        pytest.skip("the other kind would be this one")
    folder = tmp_path_factory.mktemp("kinds")
    with Trial(trainer, folder / "north", MEMBERS, elsewhere=(emulated.machine(folder), EVERY)) as fleet:
        fleet.start_and_train()
        yield fleet


@pytest.fixture(scope="module")
def canaries(fleet):
    """The last worker of each architecture, this machine's first."""
    last = len(fleet.worker_hosts) - 1
    return f"worker {last - 1}", f"worker {last}"


def make_both(fleet, trainer, name):
    tail = name.encode()
    return (programs.variant(trainer, fleet.folder / name, tail),
            programs.variant(emulated.BINARY, fleet.folder / f"{name}_there", tail))


def expected(fleet, here, there):
    return {name: (programs.build_of(there), "aarch64") if name in fleet.elsewhere
            else (programs.build_of(here), "x86_64") for name in fleet.names()}


def restarts(folder, version):
    lines = (folder / "config.json.d" / "audit.log").read_text().splitlines()
    return [line["member"] for line in map(json.loads, lines)
            if line["what"] == "start again" and line["version"] == version]


def test_a_program_for_each_kind(fleet, canaries, trainer):
    here, there = make_both(fleet, trainer, "new")
    done, output = bring(fleet, here)
    assert not done and "no program for this machine's architecture, aarch64" in output, output
    done, output = bring(fleet, f"{there},{here}")
    assert done, output
    assert programs.builds_and_machines(fleet) == expected(fleet, here, there)
    elsewhere = fleet.folder / "there"
    for folder, canary in zip((fleet.folder, elsewhere), canaries):
        assert restarts(folder, fleet.version)[0] == canary
    # Those that distribute programs have them all; others have what they run, and ran before.
    kept = {path.parent.name for path in (elsewhere / "trainer.d").glob("*/trainer")}
    assert kept == {programs.build_of(emulated.BINARY), programs.build_of(there)}


def test_programs_that_do_no_good(fleet, canaries, trainer, full):
    """For either architecture: they reach only its canary, or nobody."""
    before = programs.builds_and_machines(fleet)
    starts = {name: len(fleet.events(name, "start")) for name in fleet.names() if name not in canaries}
    here, there = make_both(fleet, trainer, "good")
    cut = fleet.folder / "cut"
    cut.write_bytes(there.read_bytes()[:1 << 20])
    crashes = [programs.compile_program(fleet.folder, f"crashes_{compiler}", programs.CRASHES, compiler)
               for compiler in ("cc", emulated.COMPILER)]
    subprocess.run([trainer, "keygen", "--operator=nobody.key"], cwd=fleet.folder, check=True, timeout=240)
    for files, flags, message in (
        ((here, cut), (), "is truncated"),
        ((here, programs.variant(trainer, fleet.folder / "twice")), (), "one for each architecture"),
        ((here, there), ("--key=nobody.key",), "is not signed"),
        ((here, crashes[1]), (), f"{canaries[1]}: it failed 2 times"),
    ):
        done, output = bring(fleet, ",".join(map(str, files)), *flags)
        assert not done and message in output, output
    if full:
        hangs = programs.compile_program(fleet.folder, "hangs", programs.HANGS, emulated.COMPILER)
        for files, canary in (((crashes[0], there), canaries[0]), ((here, hangs), canaries[1])):
            done, output = bring(fleet, ",".join(map(str, files)))
            assert not done and f"{canary}: it failed 2 times" in output, output
        done, output = bring(fleet, f"{here},{there}", "--least_speed=50%", train={"max_steps_per_s": 1})
        assert not done and "in the new program, but made" in output, output
    assert programs.builds_and_machines(fleet) == before
    assert {name: len(fleet.events(name, "start")) for name in starts} == starts


@pytest.mark.full
def test_both_kinds_change_a_key_of_the_job(fleet):
    done, output = settle(fleet, *fleet.begin("--healthy_secs=1", train={"batch_size": 25}))
    assert done, output
