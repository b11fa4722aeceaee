"""The command line of the real binary: commands, flags, help, exit statuses."""

import json
import os
import platform
import re
import subprocess

import pytest

from runs import best_seconds


def error_line(result):
    """The single line that a failed run prints on standard error."""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("trainer: error: ")
    return lines[0].removeprefix("trainer: error: ")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--wroker_hosts=a:1"], "unknown flag --wroker_hosts; did you mean --worker_hosts?"),
        (["train", "--lerning_rate", "1"], "unknown flag --lerning_rate; did you mean --learning_rate?"),
        (["--batch_size=0"], '--batch_size: must be auto or an integer from 1 to 65536, not "0"'),
        (["--seed=1", "--seed=1"], "--seed is given twice"),
        (["--seed"], "--seed needs a value: --seed=..."),
        (["train", "stray"], "stray: unexpected argument; train takes only flags, written --name=value"),
        (["config", "check", "new.json"],
         "new.json: unexpected argument; --config=new.json reads it instead of config.json"),
        (["--issync", "0"], "0: unexpected argument; train takes only flags, written --name=value"),
        (["--", "--seed=1"], "--: not a flag; flags are written --name=value"),
        (["confg", "show"], "unknown command confg; did you mean config?"),
        (["config"], "config needs a subcommand: check, show, schema"),
        (["config", "chek"], "unknown command config chek; expected one of: check, show, schema"),
        (["version", "--seed=1"], "unknown flag --seed; `trainer help flags` lists them all"),
        (["version", "--json=maybe"], '--json: must be true or false, not "maybe"'),
        (["help", "batch_sise"], "no help on batch_sise; did you mean `trainer help batch_size`?"),
        (["eval", "a", "b", "c"], "c: unexpected argument; `trainer help eval` shows what eval takes"),
    ],
)
def test_misuse_is_told_in_one_line(run, arguments, message):
    assert error_line(run(*arguments, status=2)) == message


def test_roles_want_their_hosts(run):
    assert "needs the addresses of all ps" in error_line(run("--job_name=ps", status=2))
    assert "needs the addresses of all ps" in error_line(run("--job_name=worker", status=2))


def test_errors_speak_the_log_format_asked_for(run):
    for flags in (["--log_format=json"], ["--log_format", "json"]):
        result = run(*flags, "--batch_size=0", status=2)
        told = json.loads(result.stdout)
        assert told["event"] == "log" and told["level"] == "error"
        assert "--batch_size: must be" in told["message"]
        assert "--batch_size: must be" in error_line(result)


TOPICS = [
    [],
    ["train"],
    ["eval"],
    ["config"],
    ["config", "show"],
    ["version"],
    ["help"],
    ["flags"],
    ["files"],
    ["keygen"],
    ["rollout"],
    ["serve"],
    ["batch_size"],
    ["train.batch_size"],
    ["model"],
]


@pytest.mark.parametrize("topic", TOPICS, ids=" ".join)
def test_help_fits_a_page(run, topic):
    text = run("help", *topic).stdout
    assert text.strip()
    for line in text.splitlines():
        assert len(line) <= 80, line
        assert line == line.rstrip()


def test_help_anywhere(run):
    overview = run("help").stdout
    assert run("--help").stdout == overview
    assert run("-h").stdout == overview
    about_eval = run("help", "eval").stdout
    assert "--checkpoint" in about_eval
    assert run("eval", "--help").stdout == about_eval
    assert run("eval", "-h").stdout == about_eval
    assert run("eval", "--unknown", "--seed=x", "--help").stdout == about_eval


def test_help_names_every_command_and_key(run):
    overview = run("help").stdout
    for command in ("train", "eval", "config check", "config show", "config schema", "version", "help"):
        assert re.search(rf"^  {command}\b", overview, re.M), command
    shown = json.loads(run("config", "show", "--json").stdout)
    config, flags = run("help", "config").stdout, run("help", "flags").stdout
    for path in shown["keys"]:
        section, name = path.split(".")
        assert re.search(rf"^  {name}\b", config, re.M), path
        if section != "fleet":
            assert re.search(rf"^  --(\[no\])?{name}\b", flags, re.M), path


def test_help_tells_default_learning_rates(run):
    """The rates that `help` shows are those in effect."""
    text = " ".join(run("help", "learning_rate").stdout.split())
    of_tables, of_pictures = text.split("auto for tables: ")[1].split("auto for pictures: ")
    for optimizer in ("sgd", "momentum", "adagrad", "adadelta", "adam", "rmsprop", "ftrl"):
        for said, flags in ((of_tables, ["--target=y"]), (of_pictures, [])):
            shown = json.loads(run("config", "show", "--json", f"--optimizer={optimizer}", *flags).stdout)
            assert f"{optimizer} {shown['keys']['train.learning_rate']['chosen']}" in said


def test_version(run):
    text = run("version").stdout
    assert text == run("--version").stdout
    for word in ("trainer ", "linked ", "TLS", "cJSON", "libsodium", "zlib", "engines", "kernels"):
        assert word in text
    facts = json.loads(run("version", "--json").stdout)
    assert facts["version"] in text
    if platform.machine() == "x86_64":
        assert "sse2" in facts["features"].split()
        assert "IPsec-MB" in text
        known = set(re.search(r"^flags\s*:(.*)$", open("/proc/cpuinfo").read(), re.M).group(1).split())
        for feature in ("avx", "avx2", "fma"):
            assert (feature in facts["features"].split()) == (feature in known)


def test_version_is_quick(trainer):
    """Under 5 ms, process start included."""
    if "TRAINER_BINARY" in os.environ:
        pytest.skip("measured on the product alone")
    best_s = best_seconds(lambda: subprocess.run([trainer, "version"], stdout=subprocess.DEVNULL, check=True), 0.005)
    assert best_s < 0.005, f"best {best_s * 1e3:.1f} ms"


def test_full_disk_is_a_failure(trainer):
    with open("/dev/full", "w") as full:
        result = subprocess.run([trainer, "help", "config"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert result.returncode == 1
    assert "standard output" in result.stderr
