"""cluster=slurm: srun's variables make its tasks a cluster; and schedulers that signal all members at once."""

import json
import os
import signal
import subprocess

import pytest

from clusters import Cluster
from ports import free_ports
from runs import checkpoints, run, tensors, wait_for


def task(procid, nodeid=0, localid=0, nodelist="localhost", counts="3"):
    return {**os.environ, "SLURM_PROCID": str(procid), "SLURM_NODEID": str(nodeid), "SLURM_LOCALID": str(localid),
            "SLURM_STEP_NODELIST": nodelist, "SLURM_STEP_TASKS_PER_NODE": counts}


def shown(trainer, folder, env, *flags):
    keys = json.loads(run(trainer, "config", "show", "--json", *flags, cwd=folder, env=env).stdout)["keys"]
    return {name: (keys[f"cluster.{name}"]["value"], keys[f"cluster.{name}"]["from"])
            for name in ("job_name", "task_index", "ps_hosts", "worker_hosts")}


def test_tasks_are_members(trainer, tmp_path):
    env = task(3, 1, 1, "n[08-09],login", "2(x2),1")
    assert shown(trainer, tmp_path, env, "--cluster=slurm", "--ps_count=2", "--base_port=7000") == {
        "job_name": ("worker", "cluster=slurm"), "task_index": (1, "cluster=slurm"),
        "ps_hosts": (["n08:7000", "n08:7001"], "cluster=slurm"),
        "worker_hosts": (["n09:7000", "n09:7001", "login:7000"], "cluster=slurm")}
    assert shown(trainer, tmp_path, env)["job_name"] == ("local", "default"), "only where it is asked for"


def test_the_file_asks_for_it_and_flags_override(trainer, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"cluster": {"cluster": "slurm", "base_port": 7000}}))
    found = shown(trainer, tmp_path, task(0), "--task_index=5", "--ps_hosts=flag:1", "--base_port=8000")
    assert found["task_index"] == (5, "--task_index") and found["ps_hosts"] == (["flag:1"], "--ps_hosts")
    assert found["worker_hosts"] == (["localhost:8001", "localhost:8002"], "cluster=slurm")


def test_mistakes_are_told_in_one_line(trainer, tmp_path):
    for env, message in [
        (dict(os.environ), "SLURM_PROCID is not set: with cluster=slurm, start the members by srun"),
        ({**task(0), "TF_CONFIG": "{}"}, "TF_CONFIG and cluster=slurm both define this process's role; remove one"),
        (task(0, nodelist="n_[1"), "SLURM_STEP_NODELIST: a '[' without its ']'"),
        (task(0, nodelist="!"), 'cluster=slurm: ps_hosts: "!:2222" is no'),
        (task(1, 1, 0, "n[1-2]", "2(x2)"), "start the members by srun --distribution=block"),
    ]:
        result = run(trainer, "--cluster=slurm", cwd=tmp_path, env=env, status=2)
        assert message in result.stderr and len(result.stderr.splitlines()) == 1, result.stderr


def test_a_whole_cluster_by_the_environment_alone(trainer, tmp_path):
    """One ps and two workers, as srun starts them: the same command, different variables."""
    for _ in range(5):  # three consecutive ports, one of which may be taken meanwhile
        port = free_ports(1)[0]
        if port > 65000:
            continue
        flags = ("--train_steps=300", "--learning_rate=0.1", "--train_dir=run", "--min_workers=2")
        with Cluster(trainer, tmp_path, flags=flags) as cluster:
            command = [trainer, *cluster.flags, "--cluster=slurm", f"--base_port={port}", "--log_format=json"]
            members = [subprocess.Popen(command, cwd=tmp_path, env=task(i, 0, i), stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True) for i in range(3)]
            try:
                texts = [member.communicate(timeout=600)[0] for member in members]
            finally:
                for member in members:
                    member.kill()
        if not any("address already in use" in text.lower() for text in texts):
            break
    assert [member.returncode for member in members] == [0, 0, 0], texts
    assert json.loads(texts[1].splitlines()[-1])["steps"] == 300


@pytest.mark.parametrize("number, status", [(signal.SIGUSR1, 138), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("sync", ["--noissync", "--issync"])
@pytest.mark.full(but=("--noissync-10-138", "--issync-15-143"))
def test_all_are_asked_to_leave_at_once_and_the_job_goes_on_later(trainer, tmp_path, number, status, sync):
    """Preemption, a time limit, a drained pod: the ps stay until worker 0 has saved their state."""
    with Cluster(trainer, tmp_path, ps=2, flags=("--train_steps=100000000", "--leave_secs=3600", "--train_dir=run",
                                                 "--save_model_secs=3600", "--lease_secs=30", sync)) as cluster:
        cluster.start_all()
        cluster.until("worker 0", lambda text: text.count('"event":"step"') >= 2, "steps")
        before = cluster.events("worker 0", "step")[-1]["global_step"]
        for name in ("ps 0", "ps 1", "worker 0", "worker 1"):
            cluster.kill(name, number)
        for name in cluster.members:
            cluster.wait(name, status=status)
        kept = checkpoints(tmp_path / "run")
        assert max(kept, default=0) >= before, cluster.text("worker 0")
        assert int(tensors(kept[max(kept)])[1]["global_step"]) == max(kept)
    with Cluster(trainer, tmp_path, ps=2,
                 flags=(f"--train_steps={max(kept) + 200}", "--train_dir=run", "--min_workers=2", sync)) as cluster:
        cluster.start_all()
        cluster.wait_all()
        assert max(checkpoints(tmp_path / "run")) == max(kept) + 200
        assert kept[max(kept)].name in cluster.text("worker 0")


def test_a_ps_that_leaves_alone_does_not_wait_for_ever(trainer, tmp_path):
    with Cluster(trainer, tmp_path, workers=1, flags=("--train_steps=100000000", "--leave_secs=1")) as cluster:
        cluster.start_all()
        cluster.until("worker 0", lambda text: '"event":"step"' in text, "steps")
        cluster.kill("ps 0", signal.SIGTERM)
        cluster.wait("ps 0", status=143)
        assert "waits up to 1 s for worker 0 to leave first" in cluster.text("ps 0")


def test_a_ps_without_workers_leaves_at_once(trainer, tmp_path):
    with Cluster(trainer, tmp_path, workers=1, flags=("--leave_secs=3600",)) as cluster:
        cluster.start("ps 0")
        cluster.until("ps 0", lambda text: "listens on port" in text, "listening")
        cluster.kill("ps 0", signal.SIGTERM)
        cluster.wait("ps 0", status=143)


def test_without_cluster_slurm_a_lone_run_saves_at_sigusr1(trainer, tmp_path):
    process = subprocess.Popen([trainer, "--data_source=synthetic", "--synthetic_train=3000", "--synthetic_test=500",
                                "--validation_size=0", "--train_steps=100000000", "--train_dir=run",
                                "--log_format=json", "--layers=784,32,10"],
                               cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        while '"event":"step"' not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGUSR1)
        process.stdout.read()
        assert process.wait(240) == 138
    finally:
        process.kill()
    wait_for(lambda: checkpoints(tmp_path / "run"), "checkpoint")
