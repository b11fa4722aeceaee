"""The binary as a file, and the build that made it."""

import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import time

import pytest


def output_of(*command, **options):
    return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout


def test_is_a_static_pie(trainer):
    header = output_of("readelf", "-hW", trainer)
    assert re.search(r"Type:\s+DYN", header)
    assert "INTERP" not in output_of("readelf", "-lW", trainer)
    assert "(NEEDED)" not in output_of("readelf", "-dW", trainer)


def test_is_hardened(trainer):
    segments = output_of("readelf", "-lW", trainer)
    assert "GNU_RELRO" in segments
    stack = re.search(r"GNU_STACK.*", segments).group()
    assert re.search(r"\bRW\b", stack) and "RWE" not in stack
    assert "BIND_NOW" in output_of("readelf", "-dW", trainer)
    # musl's function for a corrupted stack
    assert "__stack_chk_fail" in output_of("readelf", "-sW", trainer)


def test_is_small(trainer, run, root):
    """With the page and its charts, but without the GPU engine's own program, which test_gpu.py measures."""
    payload = 0
    if "gpu" in json.loads(run("version", "--json").stdout)["engines"]:
        payload = os.path.getsize(root / "build/gpu/trainer-gpu")
    assert os.path.getsize(trainer) - payload < 4 * (1 << 20)


def test_tells_its_version(run, root):
    version = (root / "build" / "version").read_text().strip()
    assert version in run("version").stdout


def test_the_version_is_that_of_the_newest_tag(root, tmp_path):
    """In a clone, where make builds nothing else."""
    output_of("git", "clone", "-q", "--shared", root, tmp_path / "clone")

    def version(*git):
        output_of("git", "-c", "user.name=Some Body", "-c", "user.email=some.body@users.example.org", *git,
                  cwd=tmp_path / "clone")
        output_of("make", "help", cwd=tmp_path / "clone", env={**os.environ, "MAKEFLAGS": ""})
        return (tmp_path / "clone/build/version").read_text().strip()

    assert version("tag", "v9.8.7-rc1") == "9.8.7-rc1"
    assert re.fullmatch("9.8.7-rc1-1-g[0-9a-f]{10}", version("commit", "-q", "--allow-empty", "-m", "One more"))
    assert version("tag", "v9.8.7") == "9.8.7"


def test_runs_in_an_empty_chroot(trainer, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("chroot needs root")
    shutil.copy(trainer, tmp_path / "trainer")
    assert "trainer" in output_of("chroot", str(tmp_path), "/trainer", "version")


@pytest.mark.parametrize("cpu", ["qemu64", "core2duo", "Haswell"])
def test_runs_on_old_processors(trainer, cpu):
    qemu = shutil.which("qemu-x86_64-static") or shutil.which("qemu-x86_64")
    if qemu is None:
        pytest.skip("no qemu-x86_64 (package qemu-user)")
    assert "trainer" in output_of(qemu, "-cpu", cpu, trainer, "version")


# --- What is compiled again, in a copy of the tree ---

OBJECTS = ["build/product/base/error.o", "build/product/base/file.o", "build/product/base/philox_user.o"]


@pytest.fixture
def copy(root, tmp_path):
    """A small tree with the project's Makefile, three sources, and the libraries already built."""
    tree = tmp_path / "tree"
    (tree / "base/random").mkdir(parents=True)
    (tree / "build").mkdir()
    (tree / "cuda").mkdir()
    (tree / "observe/page").mkdir(parents=True)
    (tree / "deploy/dist").mkdir(parents=True)
    (tree / "tests").mkdir()
    fragments = [path.relative_to(root) for path in root.glob("tests/*.mk")]
    headers = [path.relative_to(root) for path in root.glob("base/*.h")]
    sources = ("base/error.c", "base/file.c", "base/random/philox.h")
    for name in ("Makefile", "cuda/build.mk", "observe/page/page.mk", "deploy/dist/dist.mk", *fragments, *headers,
                 *sources):
        shutil.copy(root / name, tree / name)
    (tree / "base/philox_user.c").write_text('#include "base/random/philox.h"\nextern int philox_user;\n')
    shutil.copytree(root / "base/deps", tree / "base/deps")
    (tree / "build/deps").symlink_to((root / "build/deps").resolve())
    (tree / "build/packages-build").touch()
    assert compiled(tree) == {"base/error.c", "base/file.c", "base/philox_user.c"}
    return tree


def compiled(tree, *arguments):
    text = output_of("make", *OBJECTS, *arguments, cwd=tree, env={**os.environ, "MAKEFLAGS": ""})
    return set(re.findall(r"^cc (\S+)$", text, re.M))


def touch(path):
    later = time.time() + 2
    os.utime(path, (later, later))


def test_nothing_changed_compiles_nothing(copy):
    assert compiled(copy) == set()


def test_a_source_compiles_itself_alone(copy):
    touch(copy / "base/error.c")
    assert compiled(copy) == {"base/error.c"}


def test_a_header_compiles_what_includes_it(copy):
    touch(copy / "base/error.h")
    assert compiled(copy) == {"base/error.c", "base/file.c"}


def test_a_flag_compiles_everything(copy):
    assert len(compiled(copy, "warnings=-Wall")) == len(OBJECTS)
    assert compiled(copy, "warnings=-Wall") == set()


def test_what_a_build_depends_on_is_noted_once(root):
    """A note that is rewritten recompiles everything that depends on it."""
    def notes():
        output_of("make", "help", cwd=root)
        return {path: path.stat().st_mtime_ns for path in (root / "build").glob("*/flags")}

    notes()  # for this make's own variables, if the build had others
    before = notes()
    assert len(before) >= 5 and notes() == before


def test_a_warning_is_an_error(copy):
    with (copy / "base/error.c").open("a") as source:
        source.write("static int nobody_calls_this(void)\n{\n    return 0;\n}\n")
    touch(copy / "base/error.c")
    with pytest.raises(subprocess.CalledProcessError):
        compiled(copy)


def test_a_failed_compilation_is_tried_again(copy):
    text = (copy / "base/error.c").read_text()
    (copy / "base/error.c").write_text(text + "}")
    touch(copy / "base/error.c")
    for _ in range(2):
        with pytest.raises(subprocess.CalledProcessError):
            compiled(copy)


# --- Other targets ---


@pytest.mark.alone
def test_installs_to_a_folder(root, trainer, tmp_path):
    subprocess.run(
        ["make", "install", f"DESTDIR={tmp_path}", "PREFIX=/usr"],
        check=True, cwd=root, env={**os.environ, "MAKEFLAGS": ""}, stdout=subprocess.DEVNULL,
    )
    assert output_of(str(tmp_path / "usr/bin/trainer"), "version")
    documents = tmp_path / "usr/share/doc/trainer"
    for name in ("config.json", "README.md", "CHANGELOG.md", "LICENSE", "gpu.conf", "docs/training.md"):
        assert (documents / name).exists()
    for document in documents.glob("**/*.md"):
        for target in re.findall(r"\]\(([^)#\s]+\.md)", document.read_text()):
            assert (document.parent / target).exists(), (document, target)
    for name, start in (("trainer@.service", "/usr/bin/trainer --config="),
                        ("trainer-serve@.service", "/usr/bin/trainer serve "), ("trainer-serve@.socket", None)):
        unit = tmp_path / "usr/lib/systemd/system" / name
        assert unit.stat().st_mode & 0o777 == 0o644
        assert not start or f"\nExecStart={start}" in unit.read_text()
        assert unit.read_text() == (root / "deploy" / name).read_text().replace("/usr/local/", "/usr/")
    for name in ("lib/sysusers.d/trainer.conf", "lib/tmpfiles.d/trainer.conf", "share/man/man1/trainer.1"):
        assert (tmp_path / "usr" / name).stat().st_mode & 0o777 == 0o644


def test_help_names_every_target(root):
    text = output_of("make", "help", cwd=root)
    for target in "all run test bench lint debug fuzz dist install clean distclean".split():
        assert re.search(rf"\b{target}\b", text), target


def test_every_fuzzer_is_listed(root):
    """With the files that it decodes, its first inputs and its dictionary; tests/fuzz/coverage reads the same table."""
    folder = root / "tests/fuzz"
    table = re.findall(r"^\| `(fuzz_\w+)` \| ([^|]*) \| [^|]+ \|$", (folder / "README.md").read_text(), re.M)
    assert [name for name, _ in table] == sorted(path.stem for path in folder.glob("fuzz_*.c"))
    for name, decoders in table:
        assert all((root / path).is_file() for path in re.findall(r"`([^`]+)`", decoders)), decoders
        kind = name.removeprefix("fuzz_")
        assert (folder / "dictionary" / kind).is_file(), name
        assert any((folder / "corpus" / kind).iterdir()), name


# --- Fetching without a network: a folder of unpacked sources replaces Debian's archive ---


def fetch(root, tmp_path, name, **env):
    return subprocess.run(
        [root / "base/deps/fetch", name, tmp_path / "out"], capture_output=True, text=True, env={**os.environ, **env}
    )


def test_planted_bugs_fit_the_sources(root):
    """`make simulate-mutants`, which is not part of `make test`, would stop at the first that does not."""
    patches = sorted((root / "tests/simulate/mutants").glob("*.patch"))
    assert len(patches) >= 10
    for patch in patches:
        result = subprocess.run(["git", "apply", "--check", patch], cwd=root, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr


def cjson_release(folder, version):
    major, minor, patch = version.split(".")
    source = folder / f"cJSON-{version}"
    source.mkdir(parents=True)
    (source / "cJSON.h").write_text(
        f"#define CJSON_VERSION_MAJOR {major}\n#define CJSON_VERSION_MINOR {minor}\n"
        f"#define CJSON_VERSION_PATCH {patch}\n"
    )
    return source


def test_deps_dir_takes_a_release(root, tmp_path):
    cjson_release(tmp_path / "deps", "1.7.18")
    result = fetch(root, tmp_path, "cjson", DEPS_DIR=str(tmp_path / "deps"))
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "out/cJSON.h").exists()
    assert (tmp_path / "deps/cJSON-1.7.18/cJSON.h").exists(), "the user's folder stays as it was"


@pytest.mark.parametrize("version", ["1.7.9", "1.8.0", "2.0.0"])
def test_deps_dir_refuses_other_versions(root, tmp_path, version):
    cjson_release(tmp_path / "deps", version)
    result = fetch(root, tmp_path, "cjson", DEPS_DIR=str(tmp_path / "deps"))
    assert result.returncode == 1
    assert version in result.stderr and "1.7.17 or newer" in result.stderr
    assert not (tmp_path / "out").exists()


def test_deps_dir_says_what_is_missing(root, tmp_path):
    (tmp_path / "deps").mkdir()
    result = fetch(root, tmp_path, "zlib", DEPS_DIR=str(tmp_path / "deps"))
    assert result.returncode == 1
    assert f"{tmp_path}/deps/zlib-VERSION" in result.stderr and result.stderr.count("\n") == 1


def test_altered_download_is_not_used(root, tmp_path):
    """A modified cached file is fetched again, so without a way to fetch the build stops."""
    cache = tmp_path / "cache"
    folder = cache / "cjson"
    folder.mkdir(parents=True)
    (folder / "cjson_1.7.18-1.dsc").write_text("Version: 1.7.18-1\n")
    digest = hashlib.sha256(b"Version: 1.7.18-1\n").hexdigest()
    (folder / "SHA256SUMS").write_text(f"{digest}  cjson_1.7.18-1.dsc\n")  # of its own making
    path = tmp_path / "bin"
    path.mkdir()
    (path / "apt-get").write_text("#!/bin/sh\nexit 1\n")
    (path / "apt-get").chmod(0o755)
    result = fetch(root, tmp_path, "cjson", DEPS_CACHE=str(cache), PATH=f"{path}:{os.environ['PATH']}")
    assert result.returncode == 1
    assert "DEPS_DIR=" in result.stderr


def llhttp_package(folder, version):
    """A package like Debian's, and the path of its header's digest in the tree."""
    source = folder / "package/usr/src/llhttp/include"
    source.mkdir(parents=True)
    major, minor, patch = version.split(".")
    (source / "llhttp.h").write_text(
        f"#define LLHTTP_VERSION_MAJOR {major}\n#define LLHTTP_VERSION_MINOR {minor}\n"
        f"#define LLHTTP_VERSION_PATCH {patch}\n"
    )
    control = folder / "package/DEBIAN"
    control.mkdir()
    (control / "control").write_text(
        f"Package: llhttp\nVersion: {version}\nArchitecture: all\nMaintainer: x <x@x>\nDescription: x\n"
    )
    cache = folder / "cache/llhttp"
    cache.mkdir(parents=True)
    subprocess.run(["dpkg-deb", "-b", folder / "package", cache / "l.deb"], check=True, capture_output=True)
    listed = hashlib.sha256((source / "llhttp.h").read_bytes()).hexdigest() + "  ./include/llhttp.h\n"
    return cache / "l.deb", hashlib.sha256(listed.encode()).hexdigest()


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="no dpkg-deb")
def test_sources_are_what_the_tree_says(root, tmp_path):
    """Before they are unpacked, and after; in the cache, too."""
    package, tree = llhttp_package(tmp_path, "9.4.3")
    digest = hashlib.sha256(package.read_bytes()).hexdigest()
    pins, bare = tmp_path / "digests", tmp_path / "bin"
    bare.mkdir()
    (bare / "apt-get").write_text("#!/bin/sh\nexit 1\n")
    (bare / "apt-get").chmod(0o755)

    def take(file, unpacked):
        pins.write_text(f"# comment\nllhttp 9.4.3 l.deb {file}\nllhttp 9.4.3 tree {unpacked}\n")
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        path = f"{bare}:{os.environ['PATH']}"
        return fetch(root, tmp_path, "llhttp", DEPS_CACHE=str(tmp_path / "cache"), DEPS_DIGESTS=str(pins), PATH=path)

    assert take(digest, tree).returncode == 0
    assert (tmp_path / "out/include/llhttp.h").exists()
    result = take(digest, "0" * 64)
    assert result.returncode == 1 and "what was unpacked differs from the digest in" in result.stderr
    assert not (tmp_path / "out").exists()
    assert take("0" * 64, tree).returncode == 1  # asks for another, and cannot
    (package.parent / "more.deb").write_bytes(package.read_bytes())
    assert take(digest, tree).returncode == 1


def test_every_library_has_digests(root):
    names = set(re.findall(r"^([a-z-]+)\) +oldest=", (root / "base/deps/fetch").read_text(), re.M))
    lines = [line.split() for line in (root / "base/deps/digests").read_text().splitlines() if line[:1] != "#"]
    assert all(len(line) == 4 and re.fullmatch(r"[0-9a-f]{64}", line[3]) for line in lines)
    for name in names:
        own = [line for line in lines if line[0] == name]
        assert len({version for _, version, _, _ in own}) == 1, name
        assert [file for _, _, file, _ in own].count("tree") == 1 and len(own) >= 2, name


# --- MNIST ---


def get_mnist(root, folder, url):
    return subprocess.run(
        [root / "base/deps/mnist", folder], capture_output=True, text=True, env={**os.environ, "MNIST_URL": url}
    )


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
def test_mnist_comes_with_the_right_digest(root, mnist, tmp_path):
    if not (pathlib.Path(mnist) / "train-images-idx3-ubyte.gz").exists():
        pytest.skip("the MNIST here is not gzipped, as a mirror's is")
    result = get_mnist(root, tmp_path / "data", f"file://{mnist}")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "data/train-images-idx3-ubyte").stat().st_size == 47040016


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
def test_mnist_altered_is_refused(root, mnist, tmp_path):
    if not (pathlib.Path(mnist) / "train-images-idx3-ubyte.gz").exists():
        pytest.skip("the MNIST here is not gzipped, as a mirror's is")
    mirror = tmp_path / "mirror"
    shutil.copytree(mnist, mirror)
    shutil.copy(mirror / "t10k-images-idx3-ubyte.gz", mirror / "train-images-idx3-ubyte.gz")
    result = get_mnist(root, tmp_path / "data", f"file://{mirror}")
    assert result.returncode == 1
    assert "wrong SHA-256" in result.stderr
    assert not list((tmp_path / "data").iterdir())


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
@pytest.mark.alone
def test_mnist_unreachable_is_one_quick_line(root, tmp_path):
    start = time.monotonic()
    result = get_mnist(root, tmp_path / "data", "http://127.0.0.1:9/mnist")
    assert result.returncode == 1
    assert time.monotonic() - start < 6
    assert result.stderr.count("\n") == 1 and "MNIST_URL=" in result.stderr


# --- Lint that is our own ---


@pytest.mark.parametrize(
    "path, line, fine",
    [
        ("net/a.c", '#include "base/error.h"', True),
        ("base/a.c", '#include "net/message.h"', False),
        ("ps/store/a.c", '#include "worker/engine.h"', False),
        ("worker/a.c", '#include "cuda/engine.h"', True),
        ("cuda/a.c", '#include "worker/engine.h"', False),
        ("ps/a.c", '#include "store.h"', False),
        ("ps/a.c", "#include <base/error.h>", False),
        ("trainer.c", '#include "worker/engine.h"', True),
    ],
)
def test_includes_follow_the_arrows(root, tmp_path, path, line, fine):
    source = tmp_path / path
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(f"/* text */\n{line}\n")
    result = subprocess.run(
        ["awk", "-f", root / "tests/lint/includes.awk", path], cwd=tmp_path, capture_output=True, text=True
    )
    assert (result.returncode == 0) == fine, result.stdout
    assert fine or result.stdout.startswith(f"{path}:2: ")
