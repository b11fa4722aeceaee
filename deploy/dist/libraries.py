"""The third-party parts of the program: licences, notices, and the exact sources it was built from."""

import collections
import os
import pathlib
import re
import subprocess

# What base/deps/fetch fetches: the SPDX licence identifier, and the file with the text. Debian's name, if different.
Row = collections.namedtuple("Row", "licence notice debian", defaults=("LICENSE", None))

LIBRARIES = {
    "musl": Row("MIT", "COPYRIGHT"),
    "cjson": Row("MIT"),
    "libsodium": Row("ISC"),
    "zlib": Row("Zlib"),
    "libspng": Row("BSD-2-Clause"),
    "libjpeg-turbo": Row("IJG AND Zlib", "README.ijg"),
    "llhttp": Row("MIT", debian="libllhttp-source"),
    "mbedtls": Row("Apache-2.0 OR GPL-2.0-or-later"),
    "intel-ipsec-mb": Row("BSD-3-Clause", debian="libipsec-mb-dev"),
}
ONLY_ON = {"intel-ipsec-mb": "x86_64"}

# debian: version with revision, which tells what Debian has fixed; None: upstream's sources.
Part = collections.namedtuple("Part", "name version licence notice debian_name debian")


def output(*command, **options):
    return subprocess.run(command, check=True, capture_output=True, **options).stdout.decode().strip()


def cache():
    """Where base/deps/fetch keeps downloads."""
    folder = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(os.environ.get("DEPS_CACHE") or pathlib.Path(folder) / "trainer/sources")


def is_version(debian, version):
    """Whether Debian's 1:1.3+really2.0-1+b1 is upstream's 2.0.0. Either may leave out a final zero."""
    written = re.fullmatch(r"(?:\d+:)?(?:.*really)?(\d+(?:\.\d+)*).*", debian)
    numbers = [[int(part) for part in re.sub(r"(\.0)+$", "", text).split(".")]
               for text in (written[1] if written else "0", version)]
    return numbers[0] == numbers[1]


def library(tree, name):
    """One of the libraries that base/deps/fetch left in a tree."""
    if name not in LIBRARIES:
        raise SystemExit(f"pack: the program has {name}, of which deploy/dist/libraries.py does not know the licence")
    row, folder = LIBRARIES[name], tree / "build/deps/source" / name
    version = (folder / ".trainer-version").read_text().strip()
    if not (folder / ".trainer-origin").read_text().startswith("debian "):
        return Part(name, version, row.licence, (folder / row.notice).read_text(), None, None)
    if not row.debian:
        first = (folder / "debian/changelog").read_text().split("\n", 1)[0]
        debian = re.fullmatch(r"\S+ \((\S+)\) .*", first)[1]
        return Part(name, version, row.licence, (folder / row.notice).read_text(), name, debian)
    # A package of which fetch unpacks only what the program uses.
    found = list((cache() / name).glob("*.deb"))
    debian = output("dpkg-deb", "-f", found[0], "Version") if len(found) == 1 else ""
    if not is_version(debian, version):
        raise SystemExit(f"pack: {cache() / name} is not what {folder} was unpacked from: remove both, and make")
    files = subprocess.run(["dpkg-deb", "--fsys-tarfile", found[0]], check=True, capture_output=True).stdout
    notice = output("tar", "-xO", f"./usr/share/doc/{row.debian}/copyright", input=files)
    source = output("dpkg-deb", "-f", found[0], "Source") or row.debian
    return Part(name, version, row.licence, notice, source.split()[0], debian)


def dygraphs(tree):
    """The charts library of the members' page (observe/page/page.mk)."""
    head = (tree / "build/page/dygraph.js").read_text().split("\n", 1)[0]
    version = re.search(r"/v([0-9.]+)/LICENSE", head)[1]
    if os.environ.get("DEPS_DIR"):
        notice = next(pathlib.Path(os.environ["DEPS_DIR"]).glob("dygraphs*/LICENSE*")).read_text()
        return Part("dygraphs", version, "MIT", notice, None, None)
    package = "libjs-dygraphs"
    notice = pathlib.Path(f"/usr/share/doc/{package}/copyright").read_text()
    return Part("dygraphs", version, "MIT", notice, "dygraphs", output("dpkg-query", "-Wf${Version}", package))


def compiler(program):
    """What gcc links into each program, under its runtime exception: needs no notice."""
    told = re.search(rb"GCC: \(([^)]*)\) ([0-9.]+)", program.read_bytes())
    debian = told[1].decode().partition("Debian ")[2]
    name = f"gcc-{told[2].decode().split('.')[0]}" if debian else None
    return Part("libgcc", told[2].decode(), "GPL-3.0-or-later WITH GCC-exception-3.1", None, name, debian or None)


def toolkit(nvcc):
    """What nvcc links into the kernels."""
    version = re.search(r"V([0-9.]+)", output(nvcc, "--version"))[1]
    return Part("cuda-nvcc", version, "LicenseRef-NVIDIA-CUDA-EULA", None, None, None)


def parts(tree, machine, libraries, nvcc):
    """All of them, for a tree's program. libraries: those of base/deps that make links."""
    names = [name for name in libraries if ONLY_ON.get(name, machine) == machine]
    found = [library(tree, name) for name in names] + [dygraphs(tree), compiler(tree / "build/trainer")]
    return sorted(found + ([toolkit(nvcc)] if nvcc else []))
