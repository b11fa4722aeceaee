"""deploy/slurm/trainer.sbatch unchanged, on a real Slurm: slurmctld, three slurmd and munge in their own namespaces."""

import json
import os
import pathlib
import random
import shutil
import subprocess

import pytest

from ports import free_ports
from runs import checkpoints, seed_of_tests, wait_for

pytestmark = [pytest.mark.deploy, pytest.mark.xdist_group("slurm")]

NODES = 3
JOB = ("--data_source=synthetic", "--synthetic_train=3000", "--synthetic_test=500", "--validation_size=0",
       "--layers=784,32,10", "--batch_size=50", "--num_threads=1", "--log_steps=50", "--log_format=json")
END = "-- end of answer"


class Slurm:
    """A cluster that runs shell commands, one after another."""

    def __init__(self, folder, trainer):
        self.folder, self.trainer = folder, trainer
        # All nodes are this machine, and a member listens on every address unless told otherwise.
        wrapper = folder / "trainer_here"
        wrapper.write_text(f'#!/bin/sh\nexec {trainer} "$@" ${{SLURM_PROCID:+--bind=$SLURMD_NODENAME}}\n')
        wrapper.chmod(0o755)
        env = {**os.environ, "PORT": str(self.port_block()), "TRAINER": str(wrapper)}
        script = pathlib.Path(__file__).parent / "slurm_of_its_own.sh"
        self.log = open(folder / "slurm.log", "w+")
        self.process = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL", str(script),
             str(folder / "slurm"), str(NODES)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
            text=True, env=env, cwd=folder)
        said = self.process.stdout.readline()
        if said != "up\n":
            self.process.kill()
            pytest.skip(f"no Slurm can be started here: {said}{(folder / 'slurm.log').read_text()[-500:]}")

    @staticmethod
    def port_block():
        """A port followed by free ones, one for each daemon."""
        while True:
            port = free_ports(1)[0]
            if port < 65000 and not {port + i for i in range(1, NODES + 1)} & set(listening()):
                return port

    def run(self, command):
        self.process.stdin.write(f"{command} 2>&1; echo; echo '{END}'\n")
        self.process.stdin.flush()
        lines = []
        while True:
            line = self.process.stdout.readline()
            assert line, (lines, (self.folder / "slurm.log").read_text()[-2000:])
            if line.strip() == END:
                return "".join(lines).rstrip("\n")
            lines.append(line)

    def close(self):
        self.process.kill()
        self.process.wait(240)

    def submit(self, folder, *arguments, options=""):
        said = self.run(f"cd {folder} && sbatch --parsable {options} {SBATCH} {' '.join(arguments)}; cd {self.folder}")
        assert said.isdigit(), said
        return said

    def state(self, job):
        return self.run(f"squeue -h -t all -j {job} -o '%T %r %c'").split()[0]


def listening():
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in pathlib.Path(name).read_text().splitlines()[1:]:
            yield int(line.split()[1].rpartition(":")[2], 16)


SBATCH = pathlib.Path(__file__).resolve().parent.parent / "deploy" / "slurm" / "trainer.sbatch"


@pytest.fixture(scope="module")
def slurm(trainer, tmp_path_factory):
    if os.geteuid() != 0 or not all(map(shutil.which, ("munged", "slurmctld", "slurmd", "unshare"))):
        pytest.skip("a Slurm of its own wants root, and the packages of purpose deploy")
    folder = tmp_path_factory.mktemp("slurm", numbered=True)
    folder.chmod(0o755)
    cluster = Slurm(folder, trainer)
    yield cluster
    cluster.close()


@pytest.fixture
def job_folder(trainer, tmp_path):
    subprocess.run([trainer, "keygen", "--out=fleet.key"], cwd=tmp_path, check=True, capture_output=True, timeout=240)
    return tmp_path


def log_of(folder, job):
    path = folder / f"trainer-{job}.log"
    return path.read_text() if path.exists() else ""


def events(folder, job, task):
    """A task's events, after the label that srun puts before each line."""
    lines = [line.partition(": ") for line in log_of(folder, job).splitlines()]
    return [json.loads(text) for label, _, text in lines if label.strip() == str(task) and text.startswith("{")
            and text.endswith("}")]


def steps(folder, job):
    return [event["global_step"] for event in events(folder, job, 1) if event["event"] == "step"]


def ends(slurm, folder, job, state="COMPLETED"):
    wait_for(lambda: slurm.state(job) not in ("PENDING", "RUNNING", "COMPLETING"), f"end of job {job}")
    assert slurm.state(job) == state, log_of(folder, job)


def bracket():
    if random.random() < 0.5:
        return f"[{','.join(str(random.randrange(20)) for _ in range(random.randrange(1, 4)))}]"
    low, width = random.randrange(12), random.randrange(1, 4)
    return f"[{low:0{width}d}-{low + random.randrange(4):0{width}d}]"


def goes_on(slurm, folder, job):
    """It is requeued, and its second run starts from what the first has saved."""
    wait_for(lambda: slurm.state(job) == "PENDING", f"requeue: {slurm.state(job)}")
    kept = checkpoints(folder / "run")
    slurm.run(f"scontrol update JobId={job} StartTime=now")  # Slurm would delay it for two minutes
    wait_for(lambda: steps(folder, job)[-1] > max(kept), "steps of the second run")
    assert kept[max(kept)].name in log_of(folder, job)


def test_every_hostlist_is_read_as_scontrol_reads_it(slurm, trainer, tmp_path):
    """Lists from a seed, and the program's own view of them: as many nodes, one task on each."""
    random.seed(seed_of_tests())
    texts = ["n1", "n[08-11]", "n[8-11]", "login,n[1,3-5]", "rack[0-1]n[1-2]", "n[099-101],n007", "n[3,3]"]
    for _ in range(40):
        names = [random.choice("abc") + bracket() + random.choice(["", "x[0-1]", "-y[1,3]", "[08-10]"])
                 for _ in range(random.randrange(1, 4))]
        texts.append(",".join(names))
    for text in texts:
        expected = slurm.run(f"scontrol show hostnames '{text}'").split()
        if len(set(expected)) < len(expected):  # a step has each node once
            continue
        env = {**os.environ, "SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_LOCALID": "0",
               "SLURM_STEP_NODELIST": f"first,{text}", "SLURM_STEP_TASKS_PER_NODE": f"1(x{len(expected) + 1})"}
        shown = subprocess.run([trainer, "config", "show", "--json", "--cluster=slurm", "--base_port=1"], env=env,
                               cwd=tmp_path, capture_output=True, text=True, timeout=240)
        assert shown.returncode == 0, (text, shown.stderr)
        found = json.loads(shown.stdout)["keys"]["cluster.worker_hosts"]["value"]
        assert found == [f"{name}:1" for name in expected], text


def test_steps_of_any_shape_know_their_members(slurm, trainer, tmp_path):
    # Slurm would take whichever nodes have finished the previous step.
    for nodes, shape, ps, workers in [("n[1-3]", "-N3 -n3", ["n1:7000"], ["n2:7000", "n3:7000"]),
                                      ("n[1-2]", "-N2 -n5", ["n1:7000"], ["n1:7001", "n1:7002", "n1:7003", "n2:7000"]),
                                      ("n1", "-N1 -n2", ["n1:7000"], ["n1:7001"])]:
        said = slurm.run(f"srun -w '{nodes}' {shape} --output={tmp_path}/%t{shape[-1]}.json {trainer} config show "
                         "--json --cluster=slurm --base_port=7000")
        shown = [json.loads(path.read_text())["keys"] for path in tmp_path.glob(f"?{shape[-1]}.json")]
        roles = sorted((keys["cluster.job_name"]["value"], keys["cluster.task_index"]["value"]) for keys in shown)
        assert roles == [("ps", 0), *(("worker", i) for i in range(len(workers)))], said
        for keys in shown:
            assert (keys["cluster.ps_hosts"]["value"], keys["cluster.worker_hosts"]["value"]) == (ps, workers)
    said = slurm.run(f"srun -N2 -n4 --distribution=cyclic {trainer} config show --cluster=slurm")
    assert "start the members by srun --distribution=block" in said


def test_a_job_trains_on_three_nodes(slurm, job_folder):
    job = slurm.submit(job_folder, *JOB, "--train_steps=300", "--learning_rate=0.1")
    ends(slurm, job_folder, job)
    done = [event for event in events(job_folder, job, 1) if event["event"] == "done"]
    assert done and max(checkpoints(job_folder / "run")) == 300


def test_before_the_time_is_up_it_saves_and_is_requeued(slurm, job_folder):
    """--signal and a limit of a minute: the first run ends by SIGUSR1; the second continues from its checkpoint."""
    job = slurm.submit(job_folder, *JOB, "--train_steps=100000000", options="--time=1 --signal=USR1@50")
    wait_for(lambda: "SIGUSR1" in log_of(job_folder, job), "signal")
    goes_on(slurm, job_folder, job)
    slurm.run(f"scancel {job}")


def test_a_preempted_job_saves_and_goes_on_when_it_may(slurm, job_folder):
    job = slurm.submit(job_folder, *JOB, "--train_steps=100000000", "--save_model_secs=3600", options="-p low")
    wait_for(lambda: len(steps(job_folder, job)) >= 3, "steps")
    before = steps(job_folder, job)[-1]
    urgent = slurm.run("sbatch --parsable -p high -N3 --ntasks-per-node=1 --cpus-per-task=4 "
                       f"-o {job_folder}/urgent.log --wrap 'sleep 3'")
    wait_for(lambda: "SIGTERM" in log_of(job_folder, job), "preemption")
    wait_for(lambda: checkpoints(job_folder / "run"), "checkpoint")
    assert max(checkpoints(job_folder / "run")) >= before
    ends(slurm, job_folder, urgent)
    goes_on(slurm, job_folder, job)
    slurm.run(f"scancel {job}")


@pytest.mark.parametrize("time", range(3))
def test_a_cancelled_job_saves_and_does_not_come_again(slurm, job_folder, time):
    job = slurm.submit(job_folder, *JOB, "--train_steps=100000000", "--save_model_secs=3600")
    wait_for(lambda: len(steps(job_folder, job)) >= 3, "steps")
    before = steps(job_folder, job)[-1]
    slurm.run(f"scancel {job}")
    ends(slurm, job_folder, job, "CANCELLED")
    wait_for(lambda: checkpoints(job_folder / "run"), "checkpoint")
    assert max(checkpoints(job_folder / "run")) >= before
