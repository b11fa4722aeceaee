"""Manual pages and completion: generated from the program's own tables, and tried with mandoc, man and real shells."""

import json
import os
import pty
import re
import select
import shutil
import subprocess

import pytest

SECONDS = 240  # for a shell to answer; it takes a few milliseconds


def page(trainer, name):
    return subprocess.run([trainer, "manual", name], capture_output=True, text=True, check=True).stdout


def formatted(source):
    command = ["mandoc", "-Tascii", "-Owidth=200"]
    return re.sub(".\b", "", subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("name", ["trainer", "trainer-config"])
def test_pages_are_clean(trainer, name, tmp_path):
    source = page(trainer, name)
    lint = subprocess.run(["mandoc", "-Tlint", "-Wstyle"], input=source, capture_output=True, text=True).stdout
    # The pages refer to each other, and neither is installed here.
    assert [line for line in lint.splitlines() if "referenced manual not found: Xr trainer" not in line] == []
    if shutil.which("man") and shutil.which("groff"):
        (tmp_path / "page.1").write_text(source)
        shown = subprocess.run(["man", "--warnings", "-l", tmp_path / "page.1"], capture_output=True, text=True,
                               env={**os.environ, "MANWIDTH": "100", "LC_ALL": "C.UTF-8"}, check=True)
        assert shown.stderr == "" and "DESCRIPTION" in shown.stdout


def test_pages_have_every_command_and_every_key(trainer):
    commands, keys = formatted(page(trainer, "trainer")), formatted(page(trainer, "trainer-config"))
    overview = subprocess.run([trainer, "help"], capture_output=True, text=True, check=True).stdout
    listed = re.search(r"default\):\n(.*?)\n\n", overview, re.S).group(1)
    names = re.findall(r"^  ([a-z]+(?: [a-z]+(?=  ))?)", listed, re.M)
    assert "train" in names and "config check" in names and len(names) > 15
    for name in names:
        assert f"\n     trainer {name}" in commands and f"\n     {name}" in commands
    schema = json.loads(subprocess.run([trainer, "config", "schema"], capture_output=True, check=True).stdout)
    for section, inside in schema["properties"].items():
        for key in inside.get("properties", {}):
            assert re.search(rf"^     {key}\b", keys, re.M), f"{section}.{key}"


def test_there_is_no_third_page(run):
    assert "there are trainer and trainer-config" in run("manual", "trainer-data", status=2).stderr


class Shell:
    """An interactive shell on its own terminal."""

    def __init__(self, trainer, home, *command):
        self.text = ""
        child, self.terminal = pty.fork()
        if child == 0:
            folder = os.path.dirname(os.path.abspath(trainer))
            environment = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(home), "TERM": "dumb", "PS1": "ready>",
                           "LC_ALL": "C.UTF-8"}
            os.chdir(home)
            os.execvpe(command[0], command, environment)

    def send(self, text):
        os.write(self.terminal, text.encode())

    def expect(self, text):
        """Reads on until this appears; earlier text is dropped."""
        while text not in self.text:
            ready, _, _ = select.select([self.terminal], [], [], SECONDS)
            assert ready, f"no {text!r} in {self.text!r}"
            self.text += os.read(self.terminal, 4096).decode(errors="replace").replace("\r", "")
        before, _, self.text = self.text.partition(text)
        return before

    def close(self):
        os.close(self.terminal)


@pytest.fixture
def bash(trainer, tmp_path):
    shell = Shell(trainer, tmp_path, "bash", "--norc", "--noprofile", "-i")
    shell.expect("ready>")
    shell.send("source <(trainer completion bash); echo loaded=$?\n")
    shell.expect("loaded=0")
    shell.expect("ready>")
    yield shell
    shell.close()


@pytest.mark.parametrize("typed, completed", [
    ("trainer eva", "trainer eval "),
    ("trainer config sch", "trainer config schema "),
    ("trainer --optim", "trainer --optimizer="),
    ("trainer --optimizer=mo", "trainer --optimizer=momentum "),
    ("trainer train --optimizer mo", "trainer train --optimizer momentum "),
    ("trainer --noissy", "trainer --noissync "),
    ("trainer predict --checkpoint_k", "trainer predict --checkpoint_key="),
    ("trainer --train_dir=my_", "trainer --train_dir=my_run/"),
    ("trainer eval my_", "trainer eval my_run/"),
])
def test_bash_completes(bash, tmp_path, typed, completed):
    (tmp_path / "my_run").mkdir()
    bash.send(typed + "\t")
    bash.expect(completed)


def test_bash_lists_what_there_is(bash):
    bash.send("trainer --optimizer=ad\t\t\t")
    bash.expect("adadelta")
    bash.expect("adam")


def test_zsh_completes(trainer, tmp_path):
    shell = Shell(trainer, tmp_path, "zsh", "-f", "-i")
    shell.send("unsetopt zle_bracketed_paste; autoload -U compinit; compinit -D; "
               "source <(trainer completion zsh); echo loaded=$?\n")
    shell.expect("loaded=0")
    # What zsh draws is not what was typed, so the completed lines are run.
    shell.send("trainer config sch\t\n")
    shell.expect("json-schema.org")
    shell.send("trainer config show --optim\tftrl\n")
    shell.expect("ftrl      ")
    shell.send("trainer config show --optimizer=mom\t\n")
    shell.expect("momentum      ")
    shell.close()


def test_fish_completes(trainer, tmp_path):
    folder = os.path.dirname(os.path.abspath(trainer))
    script = "trainer completion fish | source; complete -C 'trainer --optimizer=ad'; complete -C 'trainer config s'"
    shown = subprocess.run(["fish", "--no-config", "-c", script], capture_output=True, text=True, check=True,
                           env={"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(tmp_path)}, cwd=tmp_path)
    lines = [line.split("\t")[0] for line in shown.stdout.splitlines()]
    assert lines == ["--optimizer=adadelta", "--optimizer=adagrad", "--optimizer=adam", "schema", "show"]


def test_misuse(run):
    assert "for bash, zsh or fish" in run("completion", "tcsh", status=2).stderr
    assert "for the shells' scripts" in run("completion", "words", status=2).stderr
