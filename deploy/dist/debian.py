"""A Debian package, built by dpkg-deb: what `make install` copies, and the folder debian."""

import email.utils
import gzip
import hashlib
import os
import pathlib
import re
import subprocess

import image

FOLDER = pathlib.Path(__file__).resolve().parent / "debian"
DESCRIPTION = """trains small dense networks on one machine or a fleet
 One static program that trains softmax regression and multi-layer perceptrons:
 on one machine, on a GPU, or on a fleet of parameter servers and workers that
 know each other by keys. Configs of a running fleet are rolled out, watched and
 taken back.
 .
 The systemd unit trainer@.service runs one member of a fleet."""
COPYRIGHT = """trainer is

{own}
It is linked statically, so it contains parts of other projects. Mbed TLS is available under either of two licences; it
is used here under the Apache License 2.0: /usr/share/common-licenses/Apache-2.0.
"""


def version_of(version):
    """Debian's version order: 0.2.0-rc1 comes before 0.2.0, and 0.2.0-3-g1234567 after it."""
    number, before, behind = re.fullmatch(r"([0-9.]+)(?:-((?:alpha|beta|rc)[0-9.]*))?(.*)", version).groups()
    behind = behind.lstrip("-+").replace("-", ".")
    return number + (f"~{before}" if before else "") + (f"+{behind}" if behind else "")


def write(path, text, mode=0o644, packed=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0) if packed else text.encode())
    path.chmod(mode)


def copyright_of(build):
    text = COPYRIGHT.format(own=(FOLDER.parents[2] / "LICENSE").read_text())
    for name, notice in build.notices().items():
        if name != "mbedtls":
            text += f"\n--- {name}\n\n{notice}"
    return text


def changelog(release):
    """The changelog for Debian's tools; CHANGELOG.md beside it is for people."""
    when = email.utils.formatdate(release.epoch)
    return (f"trainer ({version_of(release.version)}) unstable; urgency=medium\n\n"
            f"  * What is new in {release.version}: CHANGELOG.md\n\n -- {release.maintainer}  {when}\n")


def as_debian_has_it(build, root):
    """Paths and compression that differ from `make install`'s."""
    share = root / "usr/share"
    documents = share / "doc/trainer"
    for page in share.glob("man/*/*"):
        write(page.with_name(page.name + ".gz"), page.read_text(), packed=True)
        page.unlink()
    (share / "zsh/vendor-completions").mkdir()
    (share / "zsh/site-functions/_trainer").rename(share / "zsh/vendor-completions/_trainer")
    (share / "zsh/site-functions").rmdir()
    for licence in [*(documents / "licences").iterdir(), documents / "LICENSE"]:
        licence.unlink()
    (documents / "licences").rmdir()
    write(documents / "copyright", copyright_of(build))
    write(documents / "changelog.gz", changelog(build.release), packed=True)
    write(share / "lintian/overrides/trainer", (FOLDER / "overrides").read_text())
    write(root / "etc/default/trainer", (FOLDER / "default").read_text())


def control(build, root):
    files = [path for path in root.rglob("*") if path.is_file()]
    kib = sum(-(-path.stat().st_size // 1024) for path in files) + sum(1 for path in root.rglob("*") if path.is_dir())
    built_using = sorted(f"{part.debian_name} (= {part.debian})" for part in build.parts if part.debian)
    fields = {
        "Package": "trainer",
        "Version": version_of(build.release.version),
        "Architecture": image.ARCHITECTURES[build.machine],
        "Maintainer": build.release.maintainer,
        "Installed-Size": str(kib),
        "Recommends": "systemd",
        "Section": "science",
        "Priority": "optional",
        "Built-Using": ", ".join(built_using),
        "Description": DESCRIPTION,
    }
    return "".join(f"{name}: {text}\n" for name, text in fields.items() if text)


def make(build, tidy):
    root = build.work / "debian"
    build.install(root, "/usr", "/usr/lib/systemd/system")
    as_debian_has_it(build, root)
    tidy(root, build.release.epoch)
    files = sorted(path for path in root.rglob("*") if path.is_file())
    sums = "".join(f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(root)}\n" for path in files
                   if path.relative_to(root).parts[0] != "etc")
    text = control(build, root)
    write(root / "DEBIAN/control", text)
    write(root / "DEBIAN/md5sums", sums)
    write(root / "DEBIAN/conffiles", "/etc/default/trainer\n")
    for script in ("postinst", "prerm", "postrm"):
        write(root / "DEBIAN" / script, (FOLDER / script).read_text(), 0o755)
    tidy(root, build.release.epoch)
    name = f"trainer_{version_of(build.release.version)}_{image.ARCHITECTURES[build.machine]}.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Zxz", "-z9", "--build", root, build.work / name], check=True,
                   env={**os.environ, "SOURCE_DATE_EPOCH": str(build.release.epoch)}, stdout=subprocess.DEVNULL)
    return {name: (build.work / name).read_bytes()}
