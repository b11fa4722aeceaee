"""A field case: what people met elsewhere, as a small input, commands and what must hold. See README.md."""

import dataclasses
import json
import random
import re
import shlex
import subprocess

from ports import free_ports

TIMEOUT_S = 60
TRAIN = "trainer --data_dir=d --target=y --num_threads=1 --epochs=60 --log_steps=0"


@dataclasses.dataclass
class Case:
    name: str
    source: str
    files: dict
    run: list
    holds: list


@dataclasses.dataclass
class Result:
    """Of the last command."""
    status: int
    stdout: str
    stderr: str
    folder: object
    http_status: int = 0

    @property
    def text(self):
        return self.stdout + self.stderr

    @property
    def end(self):
        """What a failed check shows."""
        return self.stdout[:600] + "...\n" + self.stdout[-1500:] + self.stderr[-1500:]


def learnable(write=str, rows=150, header="a,b,y", delimiter=",", seed=7):
    """A table whose class follows from a: large or small. `write` says how a number of 3 digits before the point and 2
    behind it stands in the file. All values of a differ, so that as categories they say nothing of other rows."""
    draw = random.Random(seed)
    values = draw.sample(range(10000, 99999), rows)
    lines = [delimiter.join([write(v / 100), str(draw.randrange(100)), "high" if v > 55000 else "low"]) for v in values]
    return "\n".join([*([header.replace(",", delimiter)] if header else []), *lines]) + "\n"


def serve(words, folder):
    """Starts a server on a port that the system chose; returns it and its address."""
    (port,) = free_ports(1)
    server = subprocess.Popen([*words, f"--http=127.0.0.1:{port}"], cwd=folder, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
    said = []
    for line in server.stdout:
        said.append(line)
        found = re.search(r"serving at (http://\S+)/", line)
        if found:
            return server, found[1]
    raise AssertionError("".join(said))


def run_command(command, trainer, folder, url):
    words = [str(trainer) if word == "trainer" else word.replace("URL", url) for word in shlex.split(command)]
    if words[0] == "curl":
        words[1:1] = ["-sS", "-w", "\n%{http_code}"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S)
    result = Result(done.returncode, done.stdout, done.stderr, folder)
    if words[0] == "curl" and result.status == 0:
        result.stdout, _, http_status = result.stdout.rpartition("\n")
        result.http_status = int(http_status)
    return result


def run_case(case, trainer, folder):
    for path, content in case.files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    server, url = None, ""
    try:
        for i, command in enumerate(case.run):
            if command.startswith("trainer serve ") and i < len(case.run) - 1:
                server, url = serve([str(trainer), *shlex.split(command)[1:]], folder)
                continue
            result = run_command(command, trainer, folder, url)
            assert i == len(case.run) - 1 or result.status == 0, (command, result.end)
    finally:
        if server:
            server.terminate()
            server.communicate()
    if not any(getattr(check, "of_failure", False) for check in case.holds):
        assert result.status == 0, result.end
    for check in case.holds:
        check(result)


# Checks: each makes a function of the result.


def fails(*texts):
    """Exit status 1, and one error that says all of these."""
    def check(result):
        assert result.status == 1, (result.status, result.end)
        errors = [line for line in result.stderr.splitlines() if "error:" in line]
        assert len(errors) == 1 and all(text in errors[0] for text in texts), (texts, result.end)
    check.of_failure = True
    return check


def says(*texts):
    """These stand in what the command printed."""
    def check(result):
        for text in texts:
            assert text in result.text, (text, result.end)
    return check


def matches(pattern):
    def check(result):
        assert re.search(pattern, result.text, re.MULTILINE), (pattern, result.end)
    return check


def never_says(*texts):
    def check(result):
        for text in texts:
            assert text not in result.text, (text, result.end)
    return check


def accuracy(least):
    """Of the final test."""
    def check(result):
        found = re.search(r"^test accuracy ([0-9.]+)%", result.stdout, re.MULTILINE)
        assert found and float(found[1]) >= 100 * least, result.end
    return check


def r2(least):
    def check(result):
        found = re.search(r"^test .*\br2 (-?[0-9.]+)", result.stdout, re.MULTILINE)
        assert found and float(found[1]) >= least, result.end
    return check


def file_holds(path, *texts):
    def check(result):
        content = (result.folder / path).read_text(encoding="utf-8")
        for text in texts:
            assert text in content, (path, text, content[:2000])
    return check


def lines_of(path, count):
    def check(result):
        assert len((result.folder / path).read_text(encoding="utf-8").splitlines()) == count
    return check


def json_holds(test):
    """What the command printed is JSON, of which `test` is true."""
    def check(result):
        assert test(json.loads(result.stdout)), result.end
    return check


def answers(status, *texts):
    """The HTTP status of curl's request, and what its answer says."""
    def check(result):
        assert result.http_status == status, (result.http_status, result.end)
        for text in texts:
            assert text in result.stdout, (text, result.end)
    return check
