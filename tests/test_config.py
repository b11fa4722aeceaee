"""config.json in the real binary: the shipped example, `config check|show|schema`, and errors with their positions."""

import json

import jsonschema
import pytest


@pytest.fixture(scope="session")
def schema(trainer):
    import subprocess

    return json.loads(subprocess.run([trainer, "config", "schema"], capture_output=True, check=True).stdout)


def show(run, *arguments, **options):
    return json.loads(run("config", "show", "--json", *arguments, **options).stdout)


def write(folder, value, name="config.json"):
    path = folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def test_the_example_is_the_defaults(run, root):
    """What config.json says equals the default, for every key, and it names every key."""
    from_file = show(run, f"--config={root / 'config.json'}")
    defaults = show(run)
    assert from_file["digest"] == defaults["digest"]
    for path, report in defaults["keys"].items():
        assert report["from"] == "default"
        assert from_file["keys"][path]["value"] == report["value"], path
        assert "config.json:" in from_file["keys"][path]["from"], path


def test_places_of_values(run, root):
    shown = show(run, f"--config={root / 'config.json'}")
    lines = (root / "config.json").read_text().splitlines()
    for path, report in shown["keys"].items():
        line, column = map(int, report["from"].split(":")[-2:])
        assert f'"{path.split(".")[1]}":' in lines[line - 1]
        rest = lines[line - 1][column - 1 :].rstrip(",")
        value = json.loads(rest)
        assert value == report["value"] or path == "train.learning_rate"


def test_config_json_of_the_folder_is_read(run, tmp_path):
    write(tmp_path, {"train": {"seed": 5}})
    shown = show(run, "--batch_size", "7", "--noissync")
    assert shown["keys"]["train.seed"]["value"] == 5
    assert shown["keys"]["train.seed"]["from"] == "config.json:1:20"
    assert shown["keys"]["train.batch_size"] == {"value": 7, "from": "--batch_size", "scope": "job", "change": "job"}
    assert shown["keys"]["cluster.issync"]["from"] == "--issync"
    text = run("config", "show", "--batch_size=7").stdout
    assert "train.batch_size" in text and "config.json:1:20" in text
    assert show(run, "--batch_size=7")["digest"] in run("config", "show", "--batch_size=7").stdout


def test_digest_is_of_the_job_alone(run, tmp_path):
    base = show(run)["digest"]
    assert show(run, "--data_dir=elsewhere", "--num_threads=3", "--train_dir=x")["digest"] == base
    assert show(run, "--layers=784,10")["digest"] != base
    one = write(tmp_path, '{"train": {"seed": 3, "batch_size": 50}, "model": {"layers": [784, 10]}}', "one.json")
    two = write(tmp_path, '{"model":{"layers":[784,10]},\n"train":{"batch_size":5e1,"seed":3}}', "two.json")
    assert show(run, f"--config={one}")["digest"] == show(run, f"--config={two}")["digest"]


def test_show_can_be_fed_back(run, tmp_path):
    """The output of `config show` is a config that shows the same."""
    flags = ["--layers=20,30,5", "--ps_hosts=a:1,[::1]:2", "--worker_hosts=b:1", "--device=gpu:2", "--l2=0.1"]
    shown = show(run, *flags, "--train_dir=d", "--save_steps=5", "--optimizer=adam", "--lr_decay=0.99")
    sections = {}
    for path, report in shown["keys"].items():
        section, name = path.split(".")
        sections.setdefault(section, {})[name] = report["value"]
    write(tmp_path, sections)
    again = show(run)
    assert again["digest"] == shown["digest"]
    assert {k: v["value"] for k, v in again["keys"].items()} == {k: v["value"] for k, v in shown["keys"].items()}


def test_schema_is_one_and_takes_the_example(schema, root):
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.validate(json.loads((root / "config.json").read_text()), schema, jsonschema.Draft202012Validator)


def test_schema_describes_every_key(run, schema):
    keys = show(run)["keys"]
    described = {
        f"{section}.{name}": key
        for section, object in schema["properties"].items()
        for name, key in object["properties"].items()
    }
    assert list(described) == list(keys)
    for path, key in described.items():
        assert key["description"] and key["x-scope"] == keys[path]["scope"] and key["x-change"] == keys[path]["change"]


VALUES = [
    ("train.batch_size", [1, 65536, 100.0], [0, 65537, 1.5, "100", None, True, [1]]),
    ("train.momentum", [0, 0.99], [1, -0.1, "0.9"]),
    ("train.lr_decay", [1, 1e-9], [0, 1.01]),
    ("train.optimizer", ["adam"], ["Adam", "", 3]),
    ("train.seed", [0, 2**53 - 1], [-1, 2**53]),
    ("train.device", ["cpu", "gpu:7"], ["gpu:", "tpu", "gpu:123"]),
    ("train.allow_soft_placement", [True, False], [1, "true"]),
    ("train.gpu_memory_fraction", [1, 0.01], [0, 1.1, "half"]),
    ("train.gpu_timeout_secs", [0.1, 3600], [0, 0.05, 3601]),
    ("train.towers", [[], ["gpu:0", "gpu:1"], ["cpu", "gpu:63"]], [["gpu"], ["tpu:0"], ["gpu:64"], "gpu:0,gpu:1", [0]]),
    ("train.placement", [{}, {"layer1": "cpu:0"}, {"layer0": "gpu:1", "layer1": "cpu:0"}],
     [{"layer1": "cpu"}, {"layer15": "cpu:0"}, {"layer01": "cpu:0"}, {"layer1": 0}, {"layer0": "gpu:64"}, "cpu:0",
      ["cpu:0"]]),
    ("train.precision", ["float32", "tf32", "bfloat16"], ["float16", 32]),
    ("model.layers", [[784, 10], [1] * 16, [1048576, 65536]],
     [[1048577, 10], [784, 65537], [], [1], [1] * 17, [0, 1], [1, "2"], 784, "784,10"]),
    ("cluster.issync", [True, False], [1, "true"]),
    ("cluster.ps_hosts", [[], ["a:1"], ["[::1]:2222"]], [["a"], ["a:1", "a:1"], "a:1", [1]]),
    ("data.validation_size", ["auto", 0, 100000000], ["Auto", "500", -1, 100000001, 1.5, None, True]),
    ("data.data_dir", ["", "x", "ä"], [3, "a\nb", "a" * 4097]),
    ("train.nothing", [], [1]),
    ("nothing.seed", [], [1]),
]


@pytest.mark.parametrize("path, good, bad", VALUES, ids=[value[0] for value in VALUES])
def test_schema_and_program_agree(run, schema, tmp_path, path, good, bad):
    section, name = path.split(".")
    validator = jsonschema.Draft202012Validator(schema)
    for value, fine in [(value, True) for value in good] + [(value, False) for value in bad]:
        config = {section: {name: value}}
        write(tmp_path, config)
        assert validator.is_valid(config) == fine, value
        result = run("config", "check", status=0 if fine else 2)
        if not fine:
            place = "" if path.startswith("nothing") else f": {path}"
            assert result.stderr.startswith("trainer: error: config.json:1:"), result.stderr
            assert place in result.stderr


BROKEN = [
    ('{"train": {"batch_sise": 1}}', "config.json:1:12: train.batch_sise: unknown key; did you mean train.batch_size?"),
    ('{\n  "train": {\n    "seed": 1,\n  }\n}', "config.json:3:14: trailing comma; remove it"),
    ('{\n  // seed\n  "train": {}\n}', "config.json:2:3: JSON has no comments; remove this one"),
    ('{"train": {"seed": 1, "seed": 2}}', "config.json:1:23: duplicate name \"seed\"; remove one"),
    ('{"train": {"seed": 1}', "config.json:1:22: the file ends inside an object; a closing } is missing"),
    ("[" * 40, "config.json:1:17: nested too deeply"),
]


@pytest.mark.parametrize("text, message", BROKEN, ids=[message.split(": ", 1)[1] for _, message in BROKEN])
def test_broken_files_are_told_with_their_place(run, tmp_path, text, message):
    write(tmp_path, text)
    for command in (["config", "check"], ["config", "show"], ["train"], []):
        assert run(*command, status=2).stderr == f"trainer: error: {message}\n"


def test_files_that_are_no_config(run, tmp_path):
    assert "no.json" in run("config", "check", "--config=no.json", status=2).stderr
    assert "." in run("config", "check", "--config=.", status=2).stderr
    (tmp_path / "latin.json").write_bytes(b'{"data": {"data_dir": "\xe4"}}')
    assert "latin.json:1:24: byte 0xE4 is not UTF-8" in run("config", "check", "--config=latin.json", status=2).stderr
    (tmp_path / "large.json").write_bytes(b" " * (1 << 20) + b"{}")
    assert "large.json" in run("config", "check", "--config=large.json", status=2).stderr


def test_check_says_what_it_checked(run, tmp_path):
    write(tmp_path, {"train": {"seed": 2}})
    digest = show(run)["digest"]
    result = run("config", "check")
    assert result.stdout.startswith("config.json: valid") and digest[:16] in result.stdout
    told = json.loads(run("config", "check", "--log_format=json").stdout)
    assert told["event"] == "config" and told["digest"] == digest
    hosts = ["--ps_hosts=a:1", "--worker_hosts=b:1"]
    assert "--task_index" in run("config", "check", "--job_name=ps", "--task_index=1", *hosts, status=2).stderr
    run("config", "check", "--job_name=ps", *hosts)
