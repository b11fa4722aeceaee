"""The output of `make dist`: the same bytes from anywhere, and each file works."""

import hashlib
import io
import json
import os
import pathlib
import platform
import re
import select
import shutil
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import types

import pytest

from conftest import ROOT
from ports import free_ports

sys.path.insert(0, str(ROOT / "deploy/dist"))
import debian  # noqa: E402
import image  # noqa: E402
import libraries  # noqa: E402

VERSION = "1.2.3"
EPOCH = 1700000000  # time of the commit, according to the packages
MAINTAINER = "Some Body <some.body@users.example.org>"
MIB = 1 << 20
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
OWN = platform.machine()
TREES = {OWN: ROOT} | ({"aarch64": ROOT / "build/aarch64"} if OWN == "x86_64" else {})

# Two at a time would each build everything.
pytestmark = pytest.mark.xdist_group("dist")


def output_of(*command, **options):
    return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout


def nvcc():
    return shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")


def pack(top, out, trees, key, **options):
    given = [f"{machine}={tree}" for machine, tree in trees.items()]
    has_gpu = "gpu" in json.loads(output_of(ROOT / "build/trainer", "version", "--json"))["engines"]
    command = [top / "deploy/dist/pack", f"--out={out}", f"--version={VERSION}", f"--maintainer={MAINTAINER}",
               f"--libraries={' '.join(libraries.LIBRARIES)}", f"--key={key}", *given]
    command += [f"--nvcc={nvcc()}"] if has_gpu else []
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH), **options.pop("env", {})}
    packed = subprocess.run(command, capture_output=True, text=True, env=env, timeout=1200, **options)
    assert packed.returncode == 0, packed.stderr


@pytest.fixture(scope="session")
def release(tmp_path_factory):
    """The folder of a release, packed from the programs under test, and the key that signed it."""
    folder = tmp_path_factory.mktemp("dist")
    said = output_of(ROOT / "build/trainer", "keygen", f"--operator={folder / 'release.key'}")
    missing = [machine for machine, tree in TREES.items() if not (tree / "build/trainer").exists()]
    if missing:
        pytest.skip(f"no program for {missing}: make ARCH=aarch64")
    pack(ROOT, folder / "dist", TREES, folder / "release.key")
    key = re.search(r"minisign knows it as (RW\S{54})", said)[1]
    return folder / "dist", key


def part(release, machine, ending):
    return release[0] / f"trainer-{VERSION}-linux-{machine}.{ending}"


def package(release, machine):
    return release[0] / f"trainer_{VERSION}_{MACHINES[machine]}.deb"


@pytest.mark.parametrize("debian, version, is_same", [
    ("2.0-1+b1", "2.0.0", True),
    ("2.0.1-1", "2.0.1", True),
    ("1:1.3.dfsg+really1.3.1-2", "1.3.1", True),
    ("1.3-2", "2.0.0", False),
    ("2.0-1", "2.0.1", False),
    ("", "2.0.0", False),
])
def test_debians_version_is_upstreams(debian, version, is_same):
    assert libraries.is_version(debian, version) is is_same


def test_a_release_is_whole(release):
    expected = {"SHA256SUMS", "SHA256SUMS.minisig"}
    for machine in TREES:
        expected |= {part(release, machine, ending).name for ending in ("tar.gz", "oci.tar", "cdx.json")}
        expected.add(package(release, machine).name)
        assert package(release, machine).stat().st_size <= 4 * MIB
        assert part(release, machine, "oci.tar").stat().st_size <= 5 * MIB
    assert {path.name for path in release[0].iterdir()} == expected


# --- The same bytes ---


def elsewhere(folder):
    """The sources of a release, in another folder, with other times and modes."""
    listed = output_of("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT).split("\0")
    kept = ("deploy/", "docs/", "config.json", "LICENSE", "README.md", "CHANGELOG.md", "net/PROTOCOL.md", "tests/")
    names = [name for name in listed if name.startswith(kept) and (ROOT / name).is_file()]
    names += ["build/trainer", "build/page/dygraph.js"]
    for name, row in libraries.LIBRARIES.items():
        inside = (".trainer-version", ".trainer-origin", row.notice, "debian/changelog")
        found = [f"build/deps/source/{name}/{path}" for path in inside]
        names += [path for path in found if (ROOT / path).exists()]
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
        (folder / name).chmod(0o700 if os.access(ROOT / name, os.X_OK) else 0o600)
        os.utime(folder / name, (1000000000, 1000000000))


@pytest.fixture
def open_folder():
    """One that any user may access, unlike pytest's."""
    with tempfile.TemporaryDirectory(prefix="trainer-test-") as folder:
        os.chmod(folder, 0o755)
        yield pathlib.Path(folder)


@pytest.mark.full
def test_packing_leaves_no_trace(release, open_folder):
    """Another folder, hour, time zone, umask, language, and user if another is available."""
    other, out = open_folder / "a folder of another name", open_folder / "out"
    elsewhere(other)
    for package in filter(None, (row.debian and name for name, row in libraries.LIBRARIES.items())):
        if (libraries.cache() / package).exists():
            shutil.copytree(libraries.cache() / package, open_folder / "cache" / package)
    shutil.copy(release[0].parent / "release.key", open_folder / "release.key")
    somebody = {}
    if os.geteuid() == 0:
        subprocess.run(["chown", "-R", "12345:12345", open_folder], check=True)
        somebody = {"user": 12345, "group": 12345, "extra_groups": []}
    env = {"TZ": "Pacific/Kiritimati", "LC_ALL": "C.UTF-8", "TMPDIR": str(open_folder), "HOME": str(open_folder),
           "DEPS_CACHE": str(open_folder / "cache")}
    pack(other, out, {OWN: other}, open_folder / "release.key", env=env, umask=0o077, **somebody)
    made = [path for path in out.iterdir() if not path.name.startswith("SHA256SUMS")]
    assert len(made) == 4
    for path in made:
        assert path.read_bytes() == (release[0] / path.name).read_bytes(), explain(path, release[0] / path.name)


def explain(one, other):
    if not shutil.which("diffoscope"):
        return f"{one} and {other} differ; diffoscope would say where"
    return subprocess.run(["diffoscope", one, other], capture_output=True, text=True).stdout


@pytest.mark.full
def test_a_build_leaves_no_trace(tmp_path):
    """The whole release, from two clones, which builds all libraries four times."""
    made = []
    for name, umask, zone in (("one", 0o022, "UTC"), ("another/with a longer name", 0o077, "Asia/Kathmandu")):
        folder = tmp_path / name.replace(" ", "-")
        subprocess.run(["git", "clone", "-q", ROOT, folder], check=True)
        env = {**os.environ, "MAKEFLAGS": "", "TZ": zone, "CCACHE_DISABLE": "1"}
        subprocess.run(["make", "dist"], check=True, cwd=folder, env=env, umask=umask, stdout=subprocess.DEVNULL)
        made.append(folder / "build/dist")
    assert len(list(made[0].iterdir())) == 4 * len(TREES) + 1
    for path in sorted(made[0].iterdir()):
        assert path.read_bytes() == (made[1] / path.name).read_bytes(), explain(path, made[1] / path.name)


# --- Signed digests ---


def test_the_sums_are_signed(release, run):
    folder, key = release
    output_of("sha256sum", "--strict", "-c", "SHA256SUMS", cwd=folder)
    assert f"Trusted comment: trainer {VERSION}" in output_of("minisign", "-Vm", folder / "SHA256SUMS", "-P", key)
    for path in sorted(folder.iterdir()):
        if not path.name.startswith("SHA256SUMS"):
            said = run("version", "--verify", path, f"--key={key}").stdout
            assert said == f'{path} is as released: "trainer {VERSION}", signed by the key {key}\n'
    assert "is as released" in run("version", f"--verify={path}", f"--key={folder.parent}/release.key.pub").stdout
    beside = run("version", f"--verify={path.name}", f"--key={key}", cwd=folder).stdout
    assert beside.startswith(f"{path.name} is as released")


def test_minisigns_own_keys_and_signatures_count(run, tmp_path):
    (tmp_path / "file").write_text("released")
    (tmp_path / "SHA256SUMS").write_text(f"{hashlib.sha256(b'released').hexdigest()}  file\n")
    output_of("minisign", "-G", "-W", "-p", "mini.pub", "-s", "mini.key", cwd=tmp_path)
    output_of("minisign", "-S", "-s", "mini.key", "-m", "SHA256SUMS", "-t", "theirs", cwd=tmp_path)
    assert 'is as released: "theirs"' in run("version", "--verify=file", "--key=mini.pub").stdout
    output_of("minisign", "-S", "-l", "-s", "mini.key", "-m", "SHA256SUMS", cwd=tmp_path)
    told = run("version", "--verify=file", "--key=mini.pub", status=1).stderr
    assert "is a signature in minisign's legacy format" in told


def altered(path, at=-1):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def replace_line(path, number, line):
    lines = path.read_text().splitlines()
    lines[number] = line
    path.write_text("\n".join(lines) + "\n")


TAMPERED = {
    "the file": (lambda folder, file: altered(file), "is damaged or was altered: its SHA-256 begins with"),
    "a torn file": (lambda folder, file: os.truncate(file, file.stat().st_size // 2), "download it again"),
    "the sums": (lambda folder, file: altered(folder / "SHA256SUMS", 5),
                 "SHA256SUMS: differs from what was signed by the key"),
    "an added line": (lambda folder, file: (folder / "SHA256SUMS").write_text((folder / "SHA256SUMS").read_text() * 2),
                      "SHA256SUMS: differs from what was signed by the key"),
    "the comment": (lambda folder, file: replace_line(folder / "SHA256SUMS.minisig", 2, "trusted comment: trainer 9"),
                    "has a comment that was not signed by the key"),
    "the signature": (lambda folder, file: replace_line(folder / "SHA256SUMS.minisig", 1, "RUSQ"),
                      "SHA256SUMS.minisig: is not a minisign signature"),
    "another name": (lambda folder, file: file.rename(folder / "other"), "cannot be opened"),
    "no signature": (lambda folder, file: (folder / "SHA256SUMS.minisig").unlink(), "SHA256SUMS.minisig: cannot be"),
    "no sums": (lambda folder, file: (folder / "SHA256SUMS").unlink(), "SHA256SUMS: cannot be opened"),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_what_was_tampered_with_is_refused_in_one_line(release, run, tmp_path, what):
    folder, file = tmp_path / "copy", tmp_path / "copy" / part(release, OWN, "cdx.json").name
    folder.mkdir()
    for name in ("SHA256SUMS", "SHA256SUMS.minisig", file.name):
        shutil.copyfile(release[0] / name, folder / name)
    change, words = TAMPERED[what]
    change(folder, file)
    result = run("version", "--verify", file, f"--key={release[1]}", status=1)
    assert words in result.stderr and result.stderr.count("\n") == 1 and result.stdout == ""


def test_another_key_does_not_count(release, run, tmp_path):
    file = part(release, OWN, "cdx.json")
    run("keygen", "--operator=other.key")
    assert "SHA256SUMS: was not signed by the key RW" in run("version", "--verify", file, "--key=other.key.pub",
                                                             status=1).stderr
    for key, words in (("RWxyz", "is not a minisign public key"), ("nowhere.pub", "nowhere.pub: cannot be opened"),
                       (str(tmp_path / "other.key"), "is not an operator's public key")):
        assert words in run("version", "--verify", file, f"--key={key}", status=1).stderr
    shutil.copy(file, tmp_path / "unlisted")
    for name in ("SHA256SUMS", "SHA256SUMS.minisig"):
        shutil.copy(release[0] / name, tmp_path / name)
    assert "unlisted: is not part of the release" in run("version", "--verify=unlisted", f"--key={release[1]}",
                                                         status=1).stderr


def test_a_program_believes_the_key_that_came_with_it(release, trainer, tmp_path, run):
    file = part(release, OWN, "cdx.json")
    assert "no key was installed with this program" in run("version", "--verify", file, status=1).stderr
    for folder in ("bin", "share/trainer"):
        (tmp_path / "usr" / folder).mkdir(parents=True)
    shutil.copy(trainer, tmp_path / "usr/bin/trainer")
    shutil.copy(release[0].parent / "release.key.pub", tmp_path / "usr/share/trainer/release.pub")
    assert "is as released" in output_of(tmp_path / "usr/bin/trainer", "version", "--verify", file)


def test_signing_wants_a_key_and_a_file(run, tmp_path):
    assert "sign: missing --key=FILE" in run("sign", "file", status=2).stderr
    assert "sign: missing FILE" in run("sign", "--key=key", status=2).stderr
    run("keygen", "--operator=key")
    assert "cannot be opened" in run("sign", "--key=key", "nowhere", status=1).stderr
    (tmp_path / "key.pub").chmod(0o600)
    assert "is not an operator's secret key" in run("sign", "--key=key.pub", "key", status=1).stderr
    assert "--verify cannot be combined with --json" in run("version", "--json", "--verify=key", status=2).stderr
    assert "--key needs --verify" in run("version", "--key=key", status=2).stderr


# --- The archive ---


def members(content):
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return {entry.name: entry for entry in archive.getmembers()}


@pytest.mark.parametrize("machine", TREES)
def test_the_archive(release, machine, tmp_path):
    found = members(part(release, machine, "tar.gz").read_bytes())
    top = f"trainer-{VERSION}-linux-{machine}"
    for name in ("share/man/man1/trainer.1", "share/man/man5/trainer-config.5", "share/zsh/site-functions/_trainer",
                 "share/bash-completion/completions/trainer", "share/fish/vendor_completions.d/trainer.fish",
                 "lib/systemd/system/trainer@.service", "lib/sysusers.d/trainer.conf", "lib/tmpfiles.d/trainer.conf",
                 "share/doc/trainer/CHANGELOG.md", "share/doc/trainer/LICENSE", "share/doc/trainer/docs/operations.md",
                 "share/doc/trainer/licences/mbedtls", "share/doc/trainer/licences/musl"):
        assert found[f"{top}/{name}"].mode == 0o644, name
    for name, entry in found.items():
        assert (entry.uid, entry.gid, entry.mtime, entry.uname) == (0, 0, EPOCH, ""), name
        assert name.startswith(f"{top}/") and entry.mode in (0o644, 0o755)
    output_of("tar", "-xf", part(release, machine, "tar.gz"), "-C", tmp_path, "--strip-components=1")
    program = (tmp_path / "bin/trainer").read_bytes()
    unit = (tmp_path / "lib/systemd/system/trainer@.service").read_text()
    assert struct.unpack_from("<H", program, 18)[0] == {"x86_64": 62, "aarch64": 183}[machine]
    assert str(ROOT).encode() not in program and os.environ.get("HOME", "/root").encode() + b"/" not in program
    assert "ExecStart=/usr/local/bin/trainer" in unit
    runner = [] if machine == OWN else [shutil.which(f"qemu-{machine}")]
    assert "trainer" in output_of(*runner, tmp_path / "bin/trainer", "version")


# --- The Debian package ---


def test_versions_in_debians_order():
    for version, expected in {"0.1.0": "0.1.0", "0.2.0-rc1": "0.2.0~rc1", "0.1.0-3-g0123456789": "0.1.0+3.g0123456789",
                              "0.1.0+g0123456789-dirty": "0.1.0+g0123456789.dirty",
                              "0.2.0-rc1-2-g0123456789": "0.2.0~rc1+2.g0123456789"}.items():
        assert debian.version_of(version) == expected
    ordered = ["0.2.0-rc1", "0.2.0-rc1-2-g0123456789", "0.2.0-rc2", "0.2.0", "0.2.0-3-g0123456789", "0.2.1"]
    for before, behind in zip(ordered, ordered[1:]):
        output_of("dpkg", "--compare-versions", debian.version_of(before), "lt", debian.version_of(behind))


def texts_of_the_program():
    """What of the program is meant to be read: the runs of eight printable bytes and more in its constants, without the
    GPU's compressed kernels. In machine code and in tables any letters may follow one another."""
    with tempfile.NamedTemporaryFile() as constants:
        output_of("objcopy", "-O", "binary", "--only-section=.rodata", ROOT / "build/trainer", constants.name)
        found = constants.read()
    kernels = ROOT / "build/gpu/kernels.fatbin"
    if kernels.exists():
        found = found.replace(kernels.read_bytes(), b"")
    return b"\n".join(re.findall(rb"[ -~\n\t]{8,}", found))


def is_chance(line):
    """A misspelt word that no text of the program holds."""
    found = re.match(r"I: trainer: spelling-error-in-binary ([A-Za-z]+) ", line)
    if found is None:
        return False
    letters = r"[][(){}]?".join(found[1])  # lintian leaves out brackets
    return not re.search(f"(?<![A-Za-z]){letters}(?![A-Za-z])".encode(), texts_of_the_program())


def test_a_misspelt_word_of_a_text_is_no_chance():
    assert is_chance("I: trainer: spelling-error-in-binary wTHq with [usr/bin/trainer]")
    assert not is_chance("I: trainer: spelling-error-in-binary learning learn [usr/bin/trainer]")


@pytest.mark.full
def test_lintian_has_nothing_to_say(release, full):
    packages = [package(release, machine) for machine in (TREES if full else [OWN])]
    result = subprocess.run(["lintian", "--display-info", "--fail-on", "error,warning", "--allow-root", *packages],
                            capture_output=True, text=True, env={**os.environ, "LC_ALL": "C.UTF-8"})
    said = [line for line in result.stdout.splitlines() if not is_chance(line)]
    assert (result.returncode, said) == (0, []), result.stdout + result.stderr


@pytest.mark.parametrize("machine", TREES)
def test_the_package(release, machine, tmp_path):
    told = output_of("dpkg-deb", "-f", package(release, machine))
    assert f"Version: {VERSION}\n" in told and f"Architecture: {MACHINES[machine]}\n" in told
    assert f"Maintainer: {MAINTAINER}\n" in told and "\nDepends:" not in told, "the program needs nothing"
    assert re.search(r"Built-Using: .*\bmusl \(= 1\.2\.", told) or os.environ.get("DEPS_DIR")
    output_of("dpkg-deb", "-R", package(release, machine), tmp_path / "root")
    root = tmp_path / "root"
    assert (root / "DEBIAN/conffiles").read_text() == "/etc/default/trainer\n"
    for name in ("usr/share/man/man1/trainer.1.gz", "usr/share/man/man5/trainer-config.5.gz", "etc/default/trainer",
                 "usr/share/zsh/vendor-completions/_trainer", "usr/share/bash-completion/completions/trainer",
                 "usr/lib/sysusers.d/trainer.conf", "usr/share/doc/trainer/copyright"):
        assert (root / name).stat().st_mode & 0o777 == 0o644, name
    assert "ExecStart=/usr/bin/trainer " in (root / "usr/lib/systemd/system/trainer@.service").read_text()
    output_of("md5sum", "--strict", "-c", "DEBIAN/md5sums", cwd=root)
    if machine == OWN:
        assert "trainer" in output_of(root / "usr/bin/trainer", "version")


# In its own mount namespace, on a copy of this system that is discarded.
INSTALLS = """set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
cp "$2" "$1/root/package.deb"
exec chroot "$1/root" sh -ec '
    dpkg --no-triggers -i /package.deb
    trainer version | head -n 1
    id trainer
    stat -c "%U %a %n" /var/lib/trainer /etc/trainer
    echo "FLAGS=--num_threads=1" >/etc/default/trainer
    dpkg --no-triggers -i /package.deb
    cat /etc/default/trainer
    dpkg --no-triggers -r trainer
    ls -d /var/lib/trainer /etc/default/trainer
    dpkg --no-triggers -P trainer
    ls -d /var/lib/trainer /etc/default/trainer /usr/bin/trainer 2>&1 || echo all gone'
"""


def test_the_package_installs_upgrades_and_goes(release, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("installing packages needs root")
    result = subprocess.run(["unshare", "--mount", "--pid", "--fork", "sh", "-c", INSTALLS, "sh", tmp_path,
                             package(release, OWN)], capture_output=True, text=True, timeout=240)
    if "mount:" in result.stderr:
        pytest.skip(f"no overlay can be mounted here: {result.stderr}")
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"^trainer \d", result.stdout, re.M) and re.search(r"^uid=\d+\(trainer\)", result.stdout, re.M)
    assert "trainer 700 /var/lib/trainer\nroot 755 /etc/trainer\n" in result.stdout
    assert "FLAGS=--num_threads=1\n" in result.stdout, "what the administrator wrote stays"
    assert "/etc/default/trainer\n/var/lib/trainer\n" in result.stdout
    assert result.stdout.endswith("all gone\n") and result.stdout.count("No such file") == 3


# --- The bill of materials ---


@pytest.mark.parametrize("machine", TREES)
def test_the_bill_of_materials(release, machine):
    path = part(release, machine, "cdx.json")
    check = ("import sys\n"
             "from cyclonedx.schema import OutputFormat, SchemaVersion\n"
             "from cyclonedx.validation.json import JsonStrictValidator\n"
             "wrong = JsonStrictValidator(SchemaVersion.V1_5).validate_str(open(sys.argv[1]).read())\n"
             "sys.exit(str(wrong) if wrong else 0)\n")
    output_of(ROOT / "build/venv-dist/bin/python", "-c", check, path)
    bill = json.loads(path.read_text())
    with tarfile.open(part(release, machine, "tar.gz")) as archive:
        program = archive.extractfile(f"trainer-{VERSION}-linux-{machine}/bin/trainer").read()
    assert bill["metadata"]["component"]["hashes"][0]["content"] == hashlib.sha256(program).hexdigest()
    found = {component["name"]: component for component in bill["components"]}
    for name in ("musl", "cjson", "libsodium", "zlib", "libspng", "libjpeg-turbo", "llhttp", "mbedtls", "dygraphs",
                 "libgcc"):
        assert found[name]["licenses"] and found[name]["purl"].startswith(("pkg:deb/debian/", "pkg:generic/"))
    assert ("intel-ipsec-mb" in found) == (machine == "x86_64")
    for name in libraries.LIBRARIES:
        if name in found:
            source = TREES[machine] / "build/deps/source" / name
            assert found[name]["version"] == (source / ".trainer-version").read_text().strip()


def test_every_library_is_on_the_list(root):
    linked = re.search(r"^libraries +:= (.*)$", (root / "Makefile").read_text(), re.M)[1]
    names = set(re.sub(r"\$\(if \S+ \S+,(.*)\)$", r"\1", linked).replace("$(machine)),", "").split())
    assert {name for name in names if "$" not in name} <= set(libraries.LIBRARIES)
    assert set(libraries.LIBRARIES) - {"musl", "intel-ipsec-mb"} <= names


# --- The image ---


def unpacked(path, folder):
    """The image's files in a folder; its configuration. Checks all digests and sizes."""
    with tarfile.open(path) as archive:
        blobs = {entry.name: archive.extractfile(entry).read() for entry in archive.getmembers() if entry.isfile()}
    assert json.loads(blobs["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}

    def blob(told, kind):
        content = blobs[told["digest"].replace("sha256:", "blobs/sha256/")]
        assert told["digest"] == f"sha256:{hashlib.sha256(content).hexdigest()}" and told["size"] == len(content)
        assert told["mediaType"] == f"application/vnd.oci.image.{kind}"
        return content

    index = json.loads(blobs["index.json"])
    manifest = json.loads(blob(index["manifests"][0], "manifest.v1+json"))
    assert index["schemaVersion"] == manifest["schemaVersion"] == 2
    config = json.loads(blob(manifest["config"], "config.v1+json"))
    layer = subprocess.run(["gzip", "-dc"], input=blob(manifest["layers"][0], "layer.v1.tar+gzip"), check=True,
                           capture_output=True).stdout
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
    assert len(layer) <= 5 * MIB
    subprocess.run(["tar", "-x", "-C", folder], input=layer, check=True)
    return config, members(layer)


@pytest.mark.parametrize("machine", TREES)
def test_the_image(release, machine, open_folder):
    config, files = unpacked(part(release, machine, "oci.tar"), open_folder)
    assert (config["architecture"], config["os"]) == (MACHINES[machine], "linux")
    assert config["config"]["Entrypoint"] == ["/trainer"] and config["config"]["User"] == "65532:65532"
    assert config["config"]["Labels"]["org.opencontainers.image.version"] == VERSION
    assert {name for name, entry in files.items() if entry.isfile() and "/" not in name} == {"trainer"}
    assert files["var/lib/trainer"].uid == files["var/lib/trainer"].gid == 65532 and files["tmp"].mode == 0o1777
    assert all(entry.mtime == EPOCH and (entry.uid == 0 or name == "var/lib/trainer") for name, entry in files.items())
    if machine == OWN and os.geteuid() == 0:
        said = output_of("chroot", "--userspec=65532:65532", open_folder, *config["config"]["Entrypoint"], "version")
        assert said.startswith("trainer ")


def wait_for_end(pid_file, timeout=240):
    """podman returns while its monitor, conmon, still cleans up in the folders; the monitor is no child of ours."""
    try:
        process = os.pidfd_open(int(pid_file.read_text()))
    except (FileNotFoundError, ProcessLookupError):  # never started, or gone already
        return
    try:
        ended = select.select([process], [], [], timeout)[0]
    finally:
        os.close(process)
    assert ended, f"the process of {pid_file} still runs after {timeout} s"


def test_podman_takes_the_image(release, open_folder):
    podman = ["podman", "--root", open_folder / "root", "--runroot", open_folder / "run", "--storage-driver=vfs",
              "--runtime=runc", "--cgroup-manager=cgroupfs"]
    told = subprocess.run([*podman, "info"], capture_output=True, text=True)
    if told.returncode != 0:
        pytest.skip(f"no podman here: {told.stderr[-200:]}")
    for transport in ("docker-archive", "oci-archive"):
        subprocess.run([*podman, "pull", "-q", f"{transport}:{part(release, OWN, 'oci.tar')}"], check=True,
                       capture_output=True, timeout=240)
        names = output_of(*podman, "images", "--format", "{{.Repository}}:{{.Tag}}")
        assert names == f"localhost/trainer:{VERSION}\n", transport
    limits = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024")
    conmon = open_folder / "conmon.pid"
    result = subprocess.run([*podman, "run", "--rm", "--network=none", "--read-only", f"--conmon-pidfile={conmon}",
                             *limits, f"trainer:{VERSION}", "version"], capture_output=True, text=True, timeout=240)
    wait_for_end(conmon)
    if result.returncode in (125, 126):
        pytest.skip(f"podman can run nothing here: {result.stderr[-300:]}")
    assert result.returncode == 0 and result.stdout.startswith("trainer "), result.stderr


@pytest.mark.alone
def test_a_container_is_ready_at_once(open_folder, trainer):
    """From the start of the process to its message that it serves, in its own namespaces."""
    if os.geteuid() != 0:
        pytest.skip("chroot needs root")
    home = open_folder / "var/lib/trainer"
    # Another test checks the contents of an image; this one has the same without packing all of it.
    build = types.SimpleNamespace(program=pathlib.Path(trainer), notices=dict)
    image.lay_out(build, open_folder)
    os.chown(home, image.NOBODY, image.NOBODY)
    output_of(open_folder / "trainer", "keygen", f"--out={home / 'fleet.key'}")
    os.chown(home / "fleet.key", 65532, 65532)
    ports, took = free_ports(2), []
    for attempt in range(100):  # until it is not under the influence of other load
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as said:
            name = f"\0trainer-dist-{os.getpid()}-{attempt}"
            said.bind(name)
            said.settimeout(60)
            begun = time.monotonic()
            process = subprocess.Popen(
                ["unshare", "--mount", "--ipc", "--uts", "chroot", "--userspec=65532:65532", open_folder, "/trainer",
                 "--job_name=ps", "--task_index=0",
                 f"--ps_hosts=127.0.0.1:{ports[0]}", f"--worker_hosts=127.0.0.1:{ports[1]}",
                 "--fleet_key=/var/lib/trainer/fleet.key"],
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "NOTIFY_SOCKET": name.replace("\0", "@")},
                stdout=subprocess.DEVNULL)
            try:
                while b"READY=1" not in said.recv(4096):
                    pass
                took.append(time.monotonic() - begun)
            finally:
                process.kill()
                process.wait()
        if took[-1] <= 0.050:
            break
    print(f"start to ready in {', '.join(f'{each * 1000:.0f}' for each in took)} ms")
    assert min(took) <= 0.050
