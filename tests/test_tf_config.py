"""TF_CONFIG: the variable that TensorFlow's controllers set starts this program in the same way."""

import json
import os
import subprocess

import pytest

from clusters import SMALL_CLUSTER
from ports import free_ports
from runs import SMALL, run, train


def environment(**content):
    return {**os.environ, "TF_CONFIG": json.dumps(content)}


CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}


def shown(trainer, tmp_path, env, *flags):
    keys = json.loads(run(trainer, "config", "show", "--json", *flags, cwd=tmp_path, env=env).stdout)["keys"]
    return {name: (keys[f"cluster.{name}"]["value"], keys[f"cluster.{name}"]["from"])
            for name in ("job_name", "task_index", "ps_hosts", "worker_hosts")}


def test_flags_before_it_and_the_file_behind(trainer, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"cluster": {"ps_hosts": ["file:1"], "task_index": 1}}))
    env = environment(cluster=CLUSTER, task={"type": "worker", "index": 1})
    assert shown(trainer, tmp_path, env) == {
        "job_name": ("worker", "TF_CONFIG"), "task_index": (2, "TF_CONFIG"), "ps_hosts": (["d:1"], "TF_CONFIG"),
        "worker_hosts": (["a:1", "b:1", "c:1"], "TF_CONFIG")}
    found = shown(trainer, tmp_path, env, "--task_index=0", "--ps_hosts=flag:1")
    assert found["task_index"] == (0, "--task_index") and found["ps_hosts"] == (["flag:1"], "--ps_hosts")
    assert found["job_name"] == ("worker", "TF_CONFIG")
    assert shown(trainer, tmp_path, environment())["ps_hosts"][0] == ["file:1"]


def test_mistakes_are_told_in_one_line(trainer, tmp_path):
    for content, message in [
        ({"cluster": CLUSTER, "task": {"type": "boss"}},
         'TF_CONFIG: task.type must be chief, master, worker, ps or evaluator, not "boss"'),
        ({"cluster": {"worker": ["b"], "ps": ["d:1"]}, "task": {"type": "ps"}}, 'TF_CONFIG: worker_hosts: "b" is no'),
        ({"cluster": {"worker": ["b:1"], "ps": ["b:1"]}, "task": {"type": "ps"}},
         "TF_CONFIG: worker_hosts: b:1 is also in ps_hosts"),
        ({"cluster": CLUSTER, "task": {"type": "ps", "index": 3}}, "TF_CONFIG: task_index: must be from 0 to 0"),
    ]:
        result = run(trainer, cwd=tmp_path, env=environment(**content), status=2)
        assert message in result.stderr and len(result.stderr.splitlines()) == 1


def test_one_chief_alone_trains_locally(trainer, tmp_path):
    env = environment(cluster={"chief": ["a:1"]}, task={"type": "chief", "index": 0})
    assert train(trainer, *SMALL, "--train_steps=20", cwd=tmp_path, env=env).done["steps"] == 20


def test_an_evaluator_wants_a_folder(trainer, tmp_path):
    assert "an evaluator needs --train_dir" in run(trainer, "--job_name=evaluator", cwd=tmp_path, status=2).stderr


def test_a_whole_cluster_by_the_environment_alone(trainer, tmp_path):
    """Chief, worker, ps and evaluator, as TFJob starts them: the same command, different variables."""
    ports = free_ports(3)
    cluster = {"chief": [f"127.0.0.1:{ports[0]}"], "worker": [f"127.0.0.1:{ports[1]}"], "ps": [f"127.0.0.1:{ports[2]}"]}
    run(trainer, "keygen", "--out=fleet.key", cwd=tmp_path)
    members, command = {}, [trainer, *SMALL_CLUSTER, "--train_steps=400", "--learning_rate=0.1", "--min_workers=2",
                            "--log_format=json", "--train_dir=t", "--final_test=newest"]
    try:
        for kind in ("evaluator", "worker", "ps", "chief"):
            env = environment(cluster=cluster, task={"type": kind, "index": 0})
            members[kind] = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE,
                                             stderr=subprocess.STDOUT, text=True)
        texts = {kind: member.communicate(timeout=600)[0] for kind, member in members.items()}
    finally:
        for member in members.values():
            member.kill()
    assert {kind: member.returncode for kind, member in members.items()} == dict.fromkeys(members, 0), texts
    done = json.loads(texts["chief"].splitlines()[-1])
    assert done["event"] == "done" and done["steps"] == 400
    evaluated = [json.loads(line) for line in texts["evaluator"].splitlines() if '"evaluation"' in line]
    assert evaluated[-1]["global_step"] == 400
    assert evaluated[-1]["test_accuracy"] == pytest.approx(done["test_accuracy"])
