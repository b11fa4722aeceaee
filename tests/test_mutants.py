"""`make mutants` on a room of one file whose mutants are known: which die, which survive, which don't count."""

import os
import re
import shutil
import subprocess

import pytest

CLAMP = """\
#include <string.h>
#include <unistd.h>

int clamp(int value, int most);
int twice(int value);
void wait_for(int left);
void *fill(void *piece, char byte);

int clamp(int value, int most)
{
    if (value > most) {
        return most;
    }
    return value;
}

int twice(int value)
{
    return 2 * value;
}

void wait_for(int left)
{
    while (left > 0) {
        usleep(1000);
        left -= 8;
    }
}
"""

TEST = """\
#include <stddef.h>
int clamp(int value, int most);
void wait_for(int left);
int main(void)
{
    wait_for(8);
    return clamp(5, 3) != 3 || clamp(-5, 3) != -5;
}
"""

MAKEFILE = """\
build/san/%.o: %.c
	@mkdir -p $(@D)
	@gcc -g -Wall -Wextra -Werror -c -o $@ $<
build/san/rooms.a: build/san/net/clamp.o
	@ar rcs $@ $^
build/san/tests/net/test_clamp: build/san/tests/net/test_clamp.o build/san/rooms.a
	@gcc -o $@ $< build/san/rooms.a
"""

EQUIVALENT = """\
# What is greater or as great.

net/clamp.c
-    if (value > most) {
+if (value >= most) {
As great is the same.

net/clamp.c
- if (value > least) {
+ if (value >= least) {
Stands there no more.
"""


@pytest.fixture
def tree(root, tmp_path):
    for name, text in (("net/clamp.c", CLAMP), ("tests/net/test_clamp.c", TEST), ("Makefile", MAKEFILE)):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    shutil.copytree(root / "tests/mutants", tmp_path / "tests/mutants")
    (tmp_path / "tests/mutants/equivalent.txt").write_text(EQUIVALENT)
    subprocess.run(["make", "build/san/tests/net/test_clamp"], cwd=tmp_path, check=True,
                   env={**os.environ, "MAKEFLAGS": ""})
    return tmp_path


def mutants(root, tree, *arguments, fails=""):
    python = root / "build/venv-mutants/bin/python"
    if not python.exists():
        pytest.skip("no build/venv-mutants: make build/venv-mutants/ready")
    done = subprocess.run([python, "tests/mutants/mutants.py", "--seed=1", "--units-alone", *arguments,
                           "build/san/tests/net/test_clamp"], cwd=tree, capture_output=True, text=True, timeout=900,
                          env={**os.environ, "MAKEFLAGS": ""})
    assert done.stderr.strip() == fails
    return done


def ends(text):
    """{(line, kind): dies or SURVIVES}"""
    return {(int(line), kind): how for how, line, kind in
            re.findall(r"^ *\d+ (dies|SURVIVES) +net/clamp\.c:(\d+): ([\w ]+?)(?: \(.*\))?$", text, re.M)}


def test_what_no_test_notices_survives(root, tree):
    before = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file() and "pycache" not in str(path)}
    done = mutants(root, tree)
    assert ends(done.stdout) == {
        (11, "comparison flipped"): "dies",
        (11, "early return dropped"): "dies",
        (19, "constant changed"): "SURVIVES",
        (24, "bound off by one"): "SURVIVES",
        (24, "comparison flipped"): "SURVIVES",
        (24, "constant changed"): "SURVIVES",
        (25, "constant changed"): "SURVIVES",
        (25, "statement dropped"): "SURVIVES",
        (26, "constant changed"): "SURVIVES",
        (26, "statement dropped"): "dies",  # an endless loop
    }
    assert re.search(r"^net +10 +3 +0 +7 +30%$", done.stdout, re.M)
    assert done.returncode == 1 and "fewer than 90 of 100 die in net" in done.stdout
    assert "-    return 2 * value;\n+    return 3 * value;\n" in done.stdout
    assert "net: 11 changes, 1 of them equivalent; tried 10; 0 more did not compile" in done.stdout
    assert "net/clamp.c has no such change any more: -if (value > least) {" in done.stdout
    assert {path: path.read_bytes() for path in before} == before


def test_a_line_alone(root, tree):
    done = mutants(root, tree, "--file=net/clamp.c:11")
    assert len(ends(done.stdout)) == 2 and done.returncode == 0


def test_a_room_that_is_none(root, tree):
    done = mutants(root, tree, "--room=kitchen",
                   fails="mutants: rooms are ps, net, worker, and a file is one of theirs")
    assert done.returncode != 0 and not ends(done.stdout)


def test_a_seed_draws_the_same_again(root, tree):
    first, again = (mutants(root, tree, "--count=3", "--room=net").stdout for _ in range(2))
    assert ends(first) == ends(again) and len(ends(first)) == 3


def test_what_the_compiler_refuses_is_not_counted(root, tree):
    with (tree / "net/clamp.c").open("a") as source:
        source.write("\nvoid *fill(void *piece, char byte)\n{\n    return memset(piece, byte, 8);\n}\n")
    done = mutants(root, tree, "--file=net/clamp.c:32")
    assert set(ends(done.stdout)) == {(32, "arguments swapped"), (32, "constant changed")}
    assert "tried 2; 1 more did not compile" in done.stdout
