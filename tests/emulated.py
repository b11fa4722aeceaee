"""The program for aarch64 (make ARCH=aarch64), and a machine to run it: this one's files, and qemu."""

import pathlib
import shutil
import subprocess

import pytest

BINARY = pathlib.Path(__file__).parent.parent / "build" / "aarch64" / "build" / "trainer"
COMPILER = "aarch64-linux-gnu-gcc"

# ELF, 64 bits, little-endian, for this machine; either kind of program.
MAGIC = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"


def program():
    """Its path, and its emulator's."""
    if not BINARY.exists():
        pytest.skip("no program for aarch64: make ARCH=aarch64")
    qemu = shutil.which("qemu-aarch64")
    assert qemu, "qemu-user is missing"
    return BINARY, qemu


def machine(folder):
    """A command that runs the program with everything that it executes emulated too, such as a program from a rollout.
    The kernel knows the emulator only in a namespace that ends with the command."""
    binary, qemu = program()
    command = folder / "trainer_elsewhere"
    command.write_text(f"""#!/bin/sh
exec unshare --user --map-root-user --mount sh -ec '
    mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
    printf %s ":aarch64:M::{MAGIC}:{MASK}:{qemu}:" >/proc/sys/fs/binfmt_misc/register
    ulimit -c 0
    exec {binary} "$@"' sh "$@"
""")
    command.chmod(0o755)
    said = subprocess.run([command, "version"], capture_output=True, text=True, timeout=240)
    if said.returncode != 0:
        pytest.skip(f"no namespace here in which another kind of program runs: {said.stderr[-200:]}")
    return str(command)
