"""No code that works on secrets in TLS branches on them, or uses them as addresses: tests/net/tls/constant_time.c says
what is checked, constant_time.supp which branches are on public data.
"""

import shutil
import subprocess

import pytest


def memcheck(root, *arguments):
    if not shutil.which("valgrind"):
        pytest.skip("no valgrind on this machine")
    tls = root / "tests" / "net" / "tls"
    return subprocess.run(
        ["valgrind", "--quiet", "--error-exitcode=9", "--expensive-definedness-checks=yes", "--read-inline-info=no",
         f"--suppressions={tls / 'constant_time.supp'}", root / "build" / "constant_time", *arguments],
        capture_output=True, text=True, timeout=900)


def test_no_branch_on_a_secret(root):
    done = memcheck(root)
    assert done.stdout == "done\n" and done.returncode == 0, done.stderr


def test_a_branch_on_a_secret_is_noticed(root):
    done = memcheck(root, "leak")
    assert done.returncode == 9 and "uninitialised" in done.stderr, done.stdout + done.stderr
