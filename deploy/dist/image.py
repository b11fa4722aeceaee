"""An OCI image that holds only the program: layout and blobs are written directly, without a daemon."""

import hashlib
import io
import json
import pathlib
import tarfile
import time

TOP = pathlib.Path(__file__).resolve().parents[2]
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
NOBODY = 65532  # whom the program runs as: there is no file of users in the image
HOME = "var/lib/trainer"


def describe(kind, blob, **more):
    return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{hashlib.sha256(blob).hexdigest()}",
            "size": len(blob), **more}


def lay_out(build, root):
    for folder in (HOME, "tmp", "licences"):
        (root / folder).mkdir(parents=True)
    (root / "trainer").write_bytes(build.program.read_bytes())
    (root / "trainer").chmod(0o755)
    for name, text in build.notices().items():
        (root / "licences" / name).write_text(text)
    (root / "licences/trainer").write_text((TOP / "LICENSE").read_text())


def configuration(build, layer, created):
    return {
        "created": created,
        "architecture": ARCHITECTURES[build.machine],
        "os": "linux",
        "config": {
            "User": f"{NOBODY}:{NOBODY}",
            "Entrypoint": ["/trainer"],
            "WorkingDir": f"/{HOME}",
            "Volumes": {f"/{HOME}": {}},
            "StopSignal": "SIGTERM",
            "Labels": labels(build, created),
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        "history": [{"created": created, "created_by": "make dist"}],
    }


def labels(build, created):
    return {
        "org.opencontainers.image.title": "trainer",
        "org.opencontainers.image.version": build.release.version,
        "org.opencontainers.image.created": created,
        "org.opencontainers.image.licenses": "MIT",
    }


def make(build, tidy, tar, compressed):
    """The layout as one archive, with a manifest.json for tools that read only `docker save`'s format."""
    root = build.work / "image"
    lay_out(build, root)
    tidy(root, build.release.epoch)
    (root / "tmp").chmod(0o1777)
    layer = tar(root, "", build.release.epoch, lambda path: NOBODY if path == HOME else 0)
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(build.release.epoch))
    packed = compressed(layer)
    config = json.dumps(configuration(build, layer, created), indent=1, sort_keys=True).encode()
    manifest = json.dumps({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": describe("config.v1+json", config),
        "layers": [describe("layer.v1.tar+gzip", packed)],
        "annotations": labels(build, created),
    }, indent=1).encode()
    platform = {"architecture": ARCHITECTURES[build.machine], "os": "linux"}
    tag = build.release.version.replace("+", "-")
    index = json.dumps({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [describe("manifest.v1+json", manifest, platform=platform,
                               annotations={"org.opencontainers.image.ref.name": f"trainer:{tag}"})],
    }, indent=1).encode()
    blob = "blobs/sha256/{}".format
    names = [blob(hashlib.sha256(each).hexdigest()) for each in (config, packed, manifest)]
    saved = json.dumps([{"Config": names[0], "RepoTags": [f"trainer:{tag}"], "Layers": [names[1]]}]).encode()
    files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": index, "manifest.json": saved,
             **dict(zip(names, (config, packed, manifest)))}
    return {f"{build.name}.oci.tar": archive_of(files, build.release.epoch)}


def archive_of(files, epoch):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for folder in ("blobs", "blobs/sha256"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode, entry.mtime = tarfile.DIRTYPE, 0o755, epoch
            archive.addfile(entry)
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(content), 0o644, epoch
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()
