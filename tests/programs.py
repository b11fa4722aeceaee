"""Programs to roll out: other builds of the trainer, and some bad ones."""

import hashlib
import platform
import struct
import subprocess

from runs import LONG_S

MARK = b"trainer speaks protocol\0" + struct.pack("<HH", 1, 1)

CRASHES = "int main(void) { __builtin_trap(); }"
HANGS = "#include <unistd.h>\nint main(void) { for (;;) { pause(); } }"


def build_of(path):
    """The first half of a program's digest, which identifies it."""
    return hashlib.blake2b(path.read_bytes(), digest_size=32).hexdigest()[:16]


def variant(trainer, path, tail=b"another build"):
    """A program that differs from this one only in its bytes."""
    with open(trainer, "rb") as file:
        path.write_bytes(file.read() + tail)
    return path


def foreign(trainer, path):
    """The same for another kind of processor, according to its header."""
    data = bytearray(variant(trainer, path).read_bytes())
    data[18:20] = struct.pack("<H", 183)  # AArch64
    path.write_bytes(data)
    return path


def compile_program(folder, name, source, compiler="cc"):
    """A program of a few lines that looks like a trainer."""
    path = folder / name
    subprocess.run([compiler, "-O1", "-static", "-o", path, "-x", "c", "-"], input=source, text=True, check=True,
                   capture_output=True, timeout=LONG_S)
    path.write_bytes(path.read_bytes() + MARK)
    return path


def builds_and_machines(fleet):
    """The build and architecture that each member's process reports."""
    told = {name: member["program"].rpartition(", build ")[2] for name, member in fleet.status()[1].items()}
    return {name: tuple(text.partition(" ")[::2]) for name, text in told.items()}


def builds(fleet):
    """The builds, in a fleet of this kind of machine."""
    told = builds_and_machines(fleet)
    assert {machine for build, machine in told.values() if build} == {platform.machine()}
    return {name: build for name, (build, _) in told.items()}
