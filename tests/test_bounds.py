"""What a file can make the program use: its kind bounds the memory, whatever it announces or unpacks to."""

import gzip
import json
import resource
import struct
import subprocess
import zlib

import pytest

from runs import SMALL, run

MIB = 1 << 20
MOST = 256 * MIB  # of address space: some 40 for the program and its threads' stacks, the rest for a file


def bounded(trainer, *flags, cwd, **options):
    """Runs it with that much address space; (status, output, errors, the peak of memory in bytes)."""
    script = (
        "import resource, subprocess, sys;"
        "code = subprocess.call(sys.argv[1:]);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(["python3", "-c", script, trainer, *flags], cwd=cwd, capture_output=True, text=True,
                          timeout=600, errors="replace",
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (8 * MOST, 8 * MOST)), **options)
    lines = done.stderr.splitlines()
    return done.returncode, done.stdout, "\n".join(lines[:-1]), int(lines[-1]) * 1024


def refused(trainer, *flags, cwd, why, most=64 * MIB, **options):
    status, _, error, bytes_taken = bounded(trainer, *flags, cwd=cwd, **options)
    assert status != 0 and why in error and error.count("\n") <= 1, (status, error)
    assert bytes_taken < most, bytes_taken
    return error


def write_bomb(path, header, size):
    """A header and zeros, compressed a thousand to one."""
    pack = zlib.compressobj(9, zlib.DEFLATED, 31)
    with open(path, "wb") as file:
        file.write(pack.compress(header))
        zeros = bytes(MIB)
        for _ in range(size // MIB):
            file.write(pack.compress(zeros))
        file.write(pack.compress(zeros[: size % MIB]) + pack.flush())


@pytest.fixture(scope="module")
def bomb(tmp_path_factory):
    """A data set of a quarter of a gigabyte in a quarter of a megabyte: 28x28 images, all black, and their labels."""
    folder = tmp_path_factory.mktemp("bomb")
    count = 256 * MIB // 784
    for part in ("train", "t10k"):
        if part == "train":
            write_bomb(folder / f"{part}-images-idx3-ubyte.gz", struct.pack(">BBBB3I", 0, 0, 8, 3, count, 28, 28),
                       count * 784)
            write_bomb(folder / f"{part}-labels-idx1-ubyte.gz", struct.pack(">BBBBI", 0, 0, 8, 1, count), count)
        else:
            with gzip.open(folder / f"{part}-images-idx3-ubyte.gz", "wb") as file:
                file.write(struct.pack(">BBBB3I", 0, 0, 8, 3, 10, 28, 28) + bytes(7840))
            with gzip.open(folder / f"{part}-labels-idx1-ubyte.gz", "wb") as file:
                file.write(struct.pack(">BBBBI", 0, 0, 8, 1, 10) + bytes(10))
    return folder


def test_data_info_of_a_bomb(trainer, bomb, tmp_path):
    assert (bomb / "train-images-idx3-ubyte.gz").stat().st_size < MIB
    status, text, error, bytes_taken = bounded(trainer, "data", "info", "--log_format=json", f"--data_dir={bomb}",
                                               cwd=tmp_path)
    assert status == 0, error
    told = {line["part"]: line for line in map(json.loads, text.splitlines())}
    assert told["training"]["images"] == 256 * MIB // 784 and told["training"]["zeros"] == 1
    assert told["training"]["images_per_class"] == [256 * MIB // 784] and told["test"]["images"] == 10
    assert bytes_taken < 128 * MIB


def test_predict_of_a_bomb(trainer, tmp_path):
    run(trainer, *SMALL, "--train_steps=1", "--train_dir=run", cwd=tmp_path)
    count = 128 * MIB // 784
    write_bomb(tmp_path / "many.gz", struct.pack(">BBBB3I", 0, 0, 8, 3, count, 28, 28), count * 784)
    # A header's count is trusted only as far as images follow: those that are there are classified, a few at a time.
    status, text, error, bytes_taken = bounded(trainer, "predict", "--train_dir=run", "many.gz", cwd=tmp_path)
    assert status == 0 and text.count("\n") == count, error
    assert bytes_taken < 96 * MIB
    wide = struct.pack(">BBBB3I", 0, 0, 8, 3, 1, 60000, 60000)
    write_bomb(tmp_path / "wide.gz", wide, 4 * MIB)
    with open(tmp_path / "wide.gz", "ab") as file:
        file.write(bytes(4 * MIB))  # its size permits what it announces
    refused(trainer, "predict", "--train_dir=run", "wide.gz", cwd=tmp_path, why="3600000000 pixels; the limit is")


def test_more_images_than_labels_fit(trainer, tmp_path):
    for part in ("train", "t10k"):
        write_bomb(tmp_path / f"{part}-images-idx3-ubyte.gz", struct.pack(">BBBB3I", 0, 0, 8, 3, 1 << 27, 1, 1),
                   1 << 27)
        write_bomb(tmp_path / f"{part}-labels-idx1-ubyte.gz", struct.pack(">BBBBI", 0, 0, 8, 1, 1 << 27), MIB)
    refused(trainer, "data", "info", "--data_dir=.", cwd=tmp_path, why="has 134217728 images; the limit is 67108864")


@pytest.mark.parametrize("kind", ["zeros", "a long line", "many spans"])
def test_profile_of_what_is_none(trainer, tmp_path, kind):
    path, why = tmp_path / "trace.json", "not a profile of one member"
    if kind == "zeros":
        path = "/dev/zero"
    elif kind == "a long line":
        path.write_text('{"ph":"X","name":"' + "x" * (64 * MIB) + '"}\n')
    else:
        with open(path, "w") as file:
            file.write('{"ph":"M","name":"process_name","pid":1,"tid":1e300,"args":{"name":"ps 0"}}\n')
            span = ',\n{"ph":"X","name":"x","pid":1,"tid":-1e300,"ts":0,"dur":1,"args":{"number":1e300}}'
            file.write(span * 20000 + ',\n{"ph":"X","name":\n')
        why = "is the file complete?"
    refused(trainer, "profile", str(path), cwd=tmp_path, why=why)


@pytest.mark.parametrize("flags,why", [
    (["config", "show", "--config=/dev/zero"], "1048576"),
    (["status", "--ps_hosts=127.0.0.1:1", "--worker_hosts=127.0.0.1:2", "--fleet_key=/dev/zero"], "/dev/zero"),
    (["inspect", "endless.safetensors"], "endless.safetensors"),
    (["predict", "--train_dir=none", "-"], "none"),
], ids=lambda value: value[0] if isinstance(value, list) else "")
def test_endless_files_end_at_their_limit(trainer, tmp_path, flags, why):
    with open(tmp_path / "endless.safetensors", "wb") as file:
        file.write(struct.pack("<Q", 1 << 40))
        file.truncate(1 << 41)
    with open("/dev/zero") as endless:
        refused(trainer, *flags, cwd=tmp_path, why=why, stdin=endless)


def test_a_picture_is_no_larger_than_it_says(trainer, tmp_path):
    """A PNG of one pixel whose data unpack to many, which are ignored, and one that announces many."""
    run(trainer, *SMALL, "--train_steps=1", "--train_dir=run", cwd=tmp_path)

    def write(path, width, height, data):
        def chunk(name, content):
            return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

        header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b""))

    write(tmp_path / "deep.png", 1, 1, zlib.compress(bytes(256 * MIB), 9))
    write(tmp_path / "wide.png", 1 << 30, 1 << 30, zlib.compress(b""))
    status, text, error, bytes_taken = bounded(trainer, "predict", "--train_dir=run", "deep.png", cwd=tmp_path)
    assert (status == 0 and text.startswith("deep.png: ") or "deep.png" in error) and bytes_taken < 64 * MIB
    refused(trainer, "predict", "--train_dir=run", "wide.png", cwd=tmp_path, why="wide.png")
