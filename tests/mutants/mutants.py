#!/usr/bin/env python3
"""mutants.py [--seed=N] [--count=N] [--room=ROOM] [--file=PATH[:LINE]] [--jobs=N] [--units-alone]

Changes one thing in one file, again and again (changes.py), and demands that the unit tests of the file's room fail.
The simulator, which runs the same code as whole clusters, tries the survivors; the table lists both separately. Changes
that don't compile are not counted, nor those that equivalent.txt declares to be equivalent.

No flags are repeated here: make tells how an object is compiled and a program linked, as if the file had been touched;
only a faster linker and missing debugging information differ. A mutated file lies in its own folder under build with
its object, which comes before the archive of all rooms, so that the linker never takes the original. Programs run in a
copy of the tree, so that a mutant that writes files does not change the tree; that copy, and links to what make built,
stay unchanged while the tree is worked on. The nearest program runs first; one that takes far longer than unchanged has
noticed, too.
"""

import argparse
import concurrent.futures
import difflib
import functools
import os
import pathlib
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import NamedTuple

from changes import Change, changes_of

ROOMS = {"ps": ["ps/**/*.c"], "net": ["net/**/*.c"], "worker": ["worker/training.c", "worker/remote/**/*.c"]}
# Kernels for one kind of processor are compared bit by bit with a reference that every machine runs.
KERNELS = re.compile(r"_(avx2|avx512|neon)\.c$")
SIMULATOR = "build/simulate/simulate"
SIMULATIONS = (["--seeds=400"], ["--rollout", "--seeds=60"])
DEADLINE_S = 60
TRIES = 3
LEAST = 90  # of a hundred
FILE_LIMIT = 1 << 30
LINKER = ["-fuse-ld=lld"] if shutil.which("ld.lld") else []


@functools.cache
def source_of(path):
    return pathlib.Path(path).read_bytes()


class Mutant(NamedTuple):
    room: str
    path: str
    change: Change

    def after(self):
        source, change = source_of(self.path), self.change
        return source[:change.start] + change.text.encode() + source[change.end:]

    def lines(self):
        """The lines removed and added: the key in equivalent.txt."""
        source, change = source_of(self.path), self.change
        begin = source.rfind(b"\n", 0, change.start) + 1
        end = source.find(b"\n", change.end)
        gone = source[begin:end].decode()
        come = source[begin:change.start].decode() + change.text + source[change.end:end].decode()
        return tuple(sign + line.strip() for sign, text in (("-", gone), ("+", come)) for line in text.split("\n"))

    def diff(self):
        texts = [text.decode().splitlines() for text in (source_of(self.path), self.after())]
        return list(difflib.unified_diff(*texts, f"a/{self.path}", f"b/{self.path}", lineterm=""))

    def line(self):
        return source_of(self.path)[:self.change.start].count(b"\n") + 1

    def name(self):
        return f"{self.path}:{self.line()}: {self.change.kind}"


def equivalents():
    """{(path, lines): reason} of the blocks of equivalent.txt."""
    found = {}
    text = (pathlib.Path(__file__).parent / "equivalent.txt").read_text()
    for block in re.split(r"\n\s*\n", re.sub(r"^#.*\n", "", text, flags=re.M).strip()):
        path, *rest = block.split("\n")
        lines = tuple(line[0] + line[1:].strip() for line in rest if line[:1] in ("-", "+"))
        reason = " ".join(line.strip() for line in rest if line[:1] not in ("-", "+"))
        if not block:
            continue
        if not (lines and reason):
            sys.exit(f"mutants: equivalent.txt: {path}: needs the lines that change, and a reason")
        found[path, lines] = reason
    return found


# --- What make would do ---


def make_flags():
    """Without the job slots of the make that runs this."""
    kept = [flag for flag in os.environ.get("MAKEFLAGS", "").split() if not flag.startswith(("--jobserver", "-j"))]
    return {**os.environ, "MAKEFLAGS": " ".join(kept)}


class Recipes:
    """The commands that make these objects and programs as if their sources had been touched. They run in the tree's
    copy and take built files from links in kept, because make replaces what it builds again."""

    def __init__(self, sources, targets, kept):
        self.kept = kept
        touched = [word for source in sources for word in ("-W", source)]
        text = subprocess.run(["make", "-n", "-j1", "--no-print-directory", *touched, *targets], check=True,
                              capture_output=True, text=True, env=make_flags()).stdout
        lines = text.replace("\\\n", " ").splitlines()
        self.by_target = {words[words.index("-o") + 1]: words for line in lines if " -o " in line
                          for words in [shlex.split(line)] if "-o" in words}
        self.kept_words = {word: self.keep(word) for words in self.by_target.values()
                           if any(word.endswith(".a") for word in words) for word in words}

    def compile(self, source, target, mutated, made):
        """For the object at target, but from another source."""
        words = self.by_target[target]
        return [made if word == target else mutated if word == source else word for word in words] + ["-g0"]

    def link(self, program, mutated, made):
        """For program, with an object before all archives."""
        words = [made if word == program else self.kept_words[word] for word in self.by_target[program]]
        first = next(i for i, word in enumerate(words) if word.endswith(".a"))
        return words[:first] + [mutated] + words[first:] + LINKER + ["-Wl,--strip-debug"]

    def keep(self, word):
        """A link to what is built there now."""
        if not word.startswith("build/") or not os.path.isfile(word):
            return word
        return str(kept_link(word, self.kept))


KEEPING = threading.Lock()


def kept_link(path, folder):
    """A link in folder to what lies at path, made once."""
    link = folder / path
    with KEEPING:
        if not link.exists():
            link.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, link)
    return link


def sources_in(program):
    """The files it was linked from, according to its debugging information."""
    text = subprocess.run(["readelf", "--debug-dump=info", "--dwarf-depth=1", program], check=True,
                          capture_output=True, text=True).stdout
    return set(re.findall(r"DW_AT_name\s*:.*?(?:\): )?(\S+\.c)$", text, re.M))


# --- Running ---


def restrain():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_LIMIT, FILE_LIMIT))


def end_of(command, deadline_s, folder):
    """The result, "well", "fails" or "hangs", and the seconds until then."""
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=1:strict_string_checks=1:hard_rss_limit_mb=4096:"
                   "symbolize=0", "UBSAN_OPTIONS": "symbolize=0"}
    begun = time.monotonic()
    process = subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                               preexec_fn=restrain)
    try:
        ended = process.wait(deadline_s)
    except subprocess.TimeoutExpired:
        ended = None
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    how = "hangs" if ended is None else "fails" if ended else "well"
    return how, time.monotonic() - begun


def copy_of_tree(folder):
    """What compilers and programs find by names relative to the tree."""
    shutil.copytree(".", folder, symlinks=True, ignore=lambda at, names: {
        name for name in names if at == "." and name in ("build", ".git")})
    (folder / "build").symlink_to(pathlib.Path("build").resolve())


class Program:
    """A test program, and its sources. Its unchanged time is known once it has judged."""

    def __init__(self, path, work, runs=([],)):
        self.path, self.runs, self.kept = path, runs, kept_link(path, work / "kept")
        self.sources, self.seconds, self.failures = sources_in(self.kept), 0, 0
        self.measuring = threading.Lock()

    def measure(self, folder):
        with self.measuring:
            for options in [] if self.seconds else self.runs:
                self.seconds = max(self.seconds, self.time(options, folder))

    def time(self, options, folder):
        """Of a run; one that occasionally fails by itself on this machine has failures."""
        for _ in range(TRIES):
            how, seconds = end_of([str(self.kept.resolve()), *options], 2 * DEADLINE_S, folder)
            if how == "well":
                return seconds
            self.failures += 1
        return sys.exit(f"mutants: {self.path} fails without any change")

    def judge(self, linked, folder):
        """The result, linked with a mutant: repeated if it sometimes fails without any, and the best counts."""
        self.measure(folder)
        for options in self.runs:
            deadline_s = min(DEADLINE_S, 10 + 5 * self.seconds)
            ends = [end_of([str(linked.resolve()), *options], deadline_s, folder)[0] for _ in range(1 + self.failures)]
            if "well" not in ends:
                return ends[0]
        return "well"

    def distance(self, path):
        """Smallest for the test that mirrors path."""
        mine = self.path.replace("build/san/tests/", "").replace("test_", "").split("/")
        others = path[:-len(".c")].split("/")
        shared = len(os.path.commonprefix([mine, others]))
        return (-shared, mine[-1] not in others, self.seconds)


class Bench:
    """Compiles, links and judges."""

    def __init__(self, mutants, programs, work, simulator):
        self.programs, self.work, self.folder, self.simulator = programs, work, work / "tree", simulator
        sources = sorted({mutant.path for mutant in mutants})
        targets = [program.path for program in [*programs, *filter(None, [simulator])]]
        self.recipes = Recipes(sources, [self.object_of(source) for source in sources] + targets, work / "kept")

    @staticmethod
    def object_of(source, flavour="san"):
        return f"build/{flavour}/{source[:-2]}.o"

    def compile(self, mutant, place, flavour="san"):
        source, made = place / mutant.path, place / f"{flavour}.o"
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_bytes(mutant.after())
        command = self.recipes.compile(mutant.path, self.object_of(mutant.path, flavour), str(source), str(made))
        return subprocess.run(command, capture_output=True, cwd=self.folder).returncode == 0

    def notices(self, program, place, flavour):
        """How program fails with the mutant, in words; None: it succeeds."""
        linked = place / "program"
        subprocess.run(self.recipes.link(program.path, str(place / f"{flavour}.o"), str(linked)), check=True,
                       capture_output=True)
        how = program.judge(linked, self.folder)
        linked.unlink()
        name = program.path.replace("build/san/", "").replace("build/simulate/simulate", "simulator")
        return None if how == "well" else f"{name} {how}"

    def judge(self, mutant, place):
        """The program that notices; None if none does."""
        near = [program for program in self.programs if mutant.path in program.sources]
        for program in sorted(near, key=lambda program: program.distance(mutant.path)):
            if by := self.notices(program, place, "san"):
                return by
        if self.simulator and mutant.path in self.simulator.sources and self.compile(mutant, place, "simulate"):
            return self.notices(self.simulator, place, "simulate")
        return None


def judged(bench, mutants, count, jobs):
    """[(mutant, noticed by)] of the first that compile, in order."""
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        def prepare(numbered):
            number, mutant = numbered
            place = bench.work / f"{mutant.room}-{number}"
            return place if bench.compile(mutant, place) else shutil.rmtree(place)

        def decide(numbered):
            number, (mutant, place) = numbered
            by = bench.judge(mutant, place)
            shutil.rmtree(place)
            how = "SURVIVES" if by is None else "dies"
            # In one piece: print() writes the end of a line by itself, and another thread's line gets between.
            print(f"{number:4} {how:8} {mutant.name()}{f' ({by})' if by else ''}\n", end="", flush=True)
            return mutant, by

        chosen, tried = [], 0
        while len(chosen) < count and tried < len(mutants):
            some = list(enumerate(mutants))[tried:tried + max(jobs, count - len(chosen))]
            tried += len(some)
            places = pool.map(prepare, some)
            chosen += [(mutant, place) for (_, mutant), place in zip(some, places) if place]
        for _, place in chosen[count:]:
            shutil.rmtree(place)
        return list(pool.map(decide, enumerate(chosen[:count], 1))), tried - len(chosen)


# --- The report ---


def table(title, rows):
    """rows: {name: [noticed by]}. The last column is the share that was noticed."""
    print(f"\n{title:24} mutants  unit tests  simulator  survive   die")
    for name, ends in rows.items():
        survive = ends.count(None)
        simulator = sum(by is not None and by.startswith("simulator") for by in ends)
        died = 100 * (len(ends) - survive) / max(1, len(ends))
        print(f"{name:24} {len(ends):7} {len(ends) - survive - simulator:11} {simulator:10} {survive:8} {died:4.0f}%")


def report(results):
    for mutant, by in results:
        if by is None:
            print("\n" + "\n".join([mutant.name(), *mutant.diff()[2:]]))
    rooms, kinds = {}, {}
    for mutant, by in results:
        rooms.setdefault(mutant.room, []).append(by)
        kinds.setdefault(mutant.change.kind, []).append(by)
    table("room", rooms)
    table("kind", dict(sorted(kinds.items())))
    return [room for room, ends in rooms.items() if 100 * ends.count(None) > (100 - LEAST) * len(ends)]


def chosen_by(arguments):
    """Mutants by room, in the order of trying; and the number of equivalent ones."""
    known, where = equivalents(), (arguments.file or "").split(":")
    gone, by_room = set(known), {}
    for room, patterns in ROOMS.items():
        paths = sorted(str(path) for pattern in patterns for path in pathlib.Path().glob(pattern))
        every = [Mutant(room, path, change) for path in paths if not KERNELS.search(path)
                 for change in changes_of(source_of(path))]
        gone -= {(mutant.path, mutant.lines()) for mutant in every}
        if room in (arguments.room or room).split() and where[0] in ("", *paths):
            every = [mutant for mutant in every if where[0] in ("", mutant.path) and
                     (len(where) == 1 or int(where[1]) == mutant.line())]
            random.Random(f"{arguments.seed} {room}").shuffle(every)
            by_room[room] = every
    for path, lines in sorted(gone):
        print(f"mutants: equivalent.txt: {path} has no such change any more: {' '.join(lines)}")
    return by_room, known


def judge_rooms(arguments, by_room, known, work):
    """[(mutant, noticed by)] of all rooms."""
    copy_of_tree(work / "tree")
    results = []
    for room, mutants in by_room.items():
        counted = [mutant for mutant in mutants if (mutant.path, mutant.lines()) not in known]
        paths = [path for path in arguments.programs if path.startswith(f"build/san/tests/{room}/")]
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            programs = list(pool.map(lambda path: Program(path, work), paths))
        simulator = None if arguments.units_alone else Program(SIMULATOR, work, SIMULATIONS)
        bench = Bench(mutants, programs, work, simulator)
        some, refused = judged(bench, counted, arguments.count, arguments.jobs)
        print(f"{room}: {len(mutants)} changes, {len(mutants) - len(counted)} of them equivalent; tried {len(some)}; "
              f"{refused} more did not compile")
        results += some
    return results


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=random.randrange(1000000))
    parser.add_argument("--count", type=int, default=100, help="mutants of each room")
    parser.add_argument("--room")
    parser.add_argument("--file")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--units-alone", action="store_true", help="no simulator")
    parser.add_argument("programs", nargs="*", help="unit-test programs: build/san/tests/ROOM/...")
    arguments = parser.parse_args()
    print(f"mutants: seed {arguments.seed}, {arguments.count} a room")
    by_room, known = chosen_by(arguments)
    if not by_room:
        sys.exit(f"mutants: rooms are {', '.join(ROOMS)}, and a file is one of theirs")
    with tempfile.TemporaryDirectory(prefix="mutated-", dir="build") as work:
        results = judge_rooms(arguments, by_room, known, pathlib.Path(work))
    weak = report(results)
    for room in weak:
        print(f"mutants: fewer than {LEAST} of 100 die in {room}")
    return 1 if weak else 0


if __name__ == "__main__":
    sys.exit(main())
