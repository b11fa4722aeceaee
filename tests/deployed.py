"""Shared by the tests of deploy/: files in other languages as Python values, and members started as these files say."""

import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOOLS = ROOT / "build" / "venv-deploy" / "bin"
YAML = "import json, sys, yaml; print(json.dumps([d for p in sys.argv[1:] for d in yaml.safe_load_all(open(p)) if d]))"
HCL = "import hcl2, json, sys; print(json.dumps(hcl2.load(open(sys.argv[1]))))"


def tool(*arguments, **options):
    return subprocess.run([str(argument) for argument in arguments], capture_output=True, text=True, timeout=240,
                          **options)


def read_yaml(*paths):
    """All documents of all files."""
    result = tool(TOOLS / "python", "-c", YAML, *paths)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def read_hcl(path):
    result = tool(TOOLS / "python", "-c", HCL, path)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)
