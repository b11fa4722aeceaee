"""The bill of materials of the program, in CycloneDX 1.5."""

import hashlib
import json
import time
import urllib.parse
import uuid

SPACE = uuid.uuid5(uuid.NAMESPACE_URL, "trainer/bill-of-materials")


def purl(part):
    """Of Debian's source package: the security tracker lists fixes by its version."""
    if part.debian:
        return f"pkg:deb/debian/{part.debian_name}@{urllib.parse.quote(part.debian, safe='.~-')}?arch=source"
    return f"pkg:generic/{part.name}@{part.version}"


def licence(text):
    if text.startswith("LicenseRef-"):
        return [{"license": {"name": text.removeprefix("LicenseRef-").replace("-", " ")}}]
    return [{"expression": text}] if " " in text else [{"license": {"id": text}}]


def component(part):
    found = {"type": "library", "bom-ref": part.name, "name": part.name, "version": part.version,
             "licenses": licence(part.licence), "purl": purl(part)}
    if part.debian:
        found["properties"] = [{"name": "trainer:debian-version", "value": part.debian}]
    return found


def make(build):
    release = build.release
    program = build.program.read_bytes()
    root = f"trainer@{release.version}"
    bill = {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(SPACE, hashlib.sha256(program).hexdigest())}",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(release.epoch)),
            "component": {
                "type": "application", "bom-ref": root, "name": "trainer", "version": release.version,
                "licenses": licence("MIT"),
                "purl": f"pkg:generic/trainer@{urllib.parse.quote(release.version, safe='.-')}",
                "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(program).hexdigest()}],
                "properties": [{"name": "trainer:machine", "value": build.machine}],
            },
        },
        "components": [component(part) for part in build.parts],
        "dependencies": [{"ref": root, "dependsOn": [part.name for part in build.parts]},
                         *({"ref": part.name} for part in build.parts)],
    }
    return {f"{build.name}.cdx.json": (json.dumps(bill, indent=2) + "\n").encode()}
