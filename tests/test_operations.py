"""docs/operations.md: its commands are run as written, and its figures are the program's."""

import pathlib
import re
import shutil
import subprocess
import time
import urllib.request

import pytest

import programs
from clusters import Cluster
from conftest import ROOT
from fleets import OpenFleet, text_of
from ports import free_ports
from runs import ENDLESS, checkpoints, wait_for

TEXT = (ROOT / "docs" / "operations.md").read_text()
BY_HAND = "not tested"

# Who runs the commands of a block, found by a word that only it has: unchanged, or with the test's ports and paths.
RUN_BY = {
    "member() {": "test_systemd.py::test_the_fleet_of_the_documents",
    "CONFIG=new.json member a9": "test_systemd.py::test_the_fleet_of_the_documents",
    "sbatch": "test_deploy_slurm.py::test_a_job_trains_on_three_nodes",
    "ansible-playbook": "test_deploy_installers.py::"
                        "test_the_role_makes_members_that_run_and_changes_nothing_the_second_time",
    "minisign -Vm SHA256SUMS": "test_dist.py::test_the_sums_are_signed",
    "trainer manual trainer-config": "test_operations.py::test_manual_and_completion",
    "MEMBER=": "test_systemd_unit.py::test_the_unit_under_systemd",
    "--http=127.0.0.1:9200 --train_dir=run": "test_observe.py",
    "openssl rand -hex 32": "test_observe.py",
    "trainer top": "test_top.py",
    "trainer dashboard": "test_page.py",
    "systemctl status": "test_systemd_unit.py::test_the_unit_under_systemd",
    "rollout revert": "test_operations.py::test_upgrade_and_rollback",
    "-checkend": "test_operations.py::test_keys",
    "cp -a run backup": "test_operations.py::test_backup_and_recovery",
    "cp -a backup run": "test_operations.py::test_backup_and_recovery",
}


# Of commands within the text, those of other programs; those missing here are marked in their section as not tested.
OTHERS = re.compile(r"(apt|tar|podman|docker|systemd-\w+|systemctl|journalctl|ssh|kubectl|nomad) ")
RUN_WITHIN = {"tar -xf": "test_dist.py::test_the_archive"}


def blocks():
    found = re.findall(r"(?<=\n\n)(?: {4}.*\n|\n(?= {4}))+", TEXT)
    return [re.sub("^    ", "", block, flags=re.M) for block in found]


def block_with(word):
    (found,) = [block for block in blocks() if word in block]
    return found


def test_every_block_is_run_by_a_test_or_says_that_it_is_not():
    names = pathlib.Path(__file__).parent
    for block in blocks():
        claims = [test for word, test in RUN_BY.items() if word in block]
        assert claims or BY_HAND in block, block
        for line in block.splitlines():
            assert not re.match("kubectl|nomad|journalctl", line) or BY_HAND in line, line
        for claim in claims:
            is_there(names, claim)


def is_there(names, claim):
    file, _, function = claim.partition("::")
    assert (names / file).exists(), claim
    assert not function or f"def {function}(" in (names / file).read_text(), claim


def test_every_command_in_the_text_is_run_by_a_test_or_its_section_says_that_it_is_not():
    names = pathlib.Path(__file__).parent
    prose = re.sub("^    .*\n", "", TEXT, flags=re.M)
    found = 0
    for section in re.split("^## ", prose, flags=re.M):
        for command in (span for span in re.findall("`([^`]+)`", section) if OTHERS.match(span)):
            claims = [test for word, test in RUN_WITHIN.items() if command.startswith(word)]
            assert claims or BY_HAND in section.replace("\n", " "), command
            found += 1
            for claim in claims:
                is_there(names, claim)
    assert found >= 5


def shell(commands, folder):
    result = subprocess.run(["bash", "-e", "-c", commands], cwd=folder, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_manual_and_completion(trainer, tmp_path):
    if not shutil.which("man"):
        pytest.skip("no man here")
    (tmp_path / "trainer").symlink_to(trainer)
    assert "learning_rate" in shell(block_with("trainer manual trainer-config") + "\ncomplete -p", tmp_path)


def test_upgrade_and_rollback(trainer, tmp_path):
    with OpenFleet(trainer, tmp_path, ps=1, workers=2) as fleet:
        (tmp_path / "trainer").symlink_to(trainer)
        fleet.start_and_train()
        shutil.copy(tmp_path / fleet.candidate(2, train={"learning_rate": 0.04}), tmp_path / "new.json")
        said = shell(block_with("rollout revert"), tmp_path)
        assert "0.04" in said
        wait_for(lambda: set(fleet.versions().values()) == {3}, "third version")


def test_keys(trainer, tmp_path):
    (tmp_path / "trainer").symlink_to(trainer)
    assert "Certificate will not expire" in shell(block_with("-checkend"), tmp_path)
    result = subprocess.run(["openssl", "x509", "-in", "worker1.key", "-noout", "-checkend", "40000000"], cwd=tmp_path,
                            capture_output=True, timeout=240)
    assert result.returncode == 1, "in more than a year"


def test_backup_and_recovery(trainer, tmp_path):
    """The copy of a folder in use; all machines lost; and the folder lost while the ps live."""
    fleet = OpenFleet(trainer, tmp_path, ps=1, workers=2, output={"save_steps": 200})  # none while one is copied
    with fleet:
        (tmp_path / "trainer").symlink_to(trainer)
        fleet.start_and_train()
        wait_for(lambda: len(checkpoints(tmp_path / "run")) >= 2, "checkpoints")
        said = shell(block_with("cp -a run backup"), tmp_path)
        kept = max(checkpoints(tmp_path / "backup"))
        assert f"{kept:010d}" in said
        fleet.kill("worker 0")
        shutil.rmtree(tmp_path / "run")
        fleet.start("worker 0")
        wait_for(lambda: checkpoints(tmp_path / "run"), "checkpoint of what the ps hold")
        assert max(checkpoints(tmp_path / "run")) > kept and "generation 2" not in fleet.text("ps 0")
        for name in fleet.members:
            fleet.kill(name)
        shell(block_with("cp -a backup run"), tmp_path)
        fleet.start_and_train()
        assert f"model-{kept:010d}.safetensors" in fleet.text("worker 0")


def make_machine(fleet, name):
    """A folder with what every member needs."""
    folder = fleet.folder / name
    folder.mkdir()
    for file in ("config.json", "fleet.key", "operator.pub"):
        shutil.copy(fleet.folder / file, folder)
    return f"--config={name}/config.json"


def test_ps_0_comes_back_with_what_another_member_has(trainer, tmp_path):
    with OpenFleet(trainer, tmp_path, ps=1, workers=2) as fleet:
        fleet.start_and_train(make_machine(fleet, "first"))
        new = programs.variant(trainer, tmp_path / "new")
        result = fleet.rollout(f"--binary={new}", "--yes", "--healthy_secs=0.5", "--least_speed=0%")
        assert result.returncode == 0, text_of(result)
        fleet.kill("ps 0")
        shutil.rmtree(tmp_path / "first")
        second = make_machine(fleet, "second")
        for name in ("config.json.d", "trainer.d"):
            shutil.copytree(tmp_path / name, tmp_path / "second" / name)
        fleet.start("ps 0", second)
        fleet.goes_on()
        wait_for(lambda: set(fleet.versions().values()) == {2}, "version 2 of everybody")
        wait_for(lambda: set(programs.builds(fleet).values()) == {programs.build_of(new)}, "the program of everybody")
        result = fleet.rollout(fleet.candidate(3, train={"learning_rate": 0.04}), "--yes", "--healthy_secs=0.5")
        assert result.returncode == 0, text_of(result)


def test_an_operator_who_lost_the_key_makes_another(trainer, tmp_path):
    with OpenFleet(trainer, tmp_path, ps=1, workers=2) as fleet:
        fleet.start_and_train()
        result = fleet.rollout(fleet.candidate(2, train={"learning_rate": 0.04}), "--yes", "--healthy_secs=0.5")
        assert result.returncode == 0, text_of(result)
        for name in ("operator.key", "operator.key.pub"):
            (tmp_path / name).unlink()
        subprocess.run([trainer, "keygen", "--operator=operator.key"], cwd=tmp_path, check=True, timeout=240)
        shutil.move(tmp_path / "operator.key.pub", tmp_path / "operator.pub")
        result = fleet.rollout(fleet.candidate(3, train={"learning_rate": 0.03}), "--yes", "--healthy_secs=0.5")
        assert result.returncode == 0, text_of(result)
        assert set(fleet.versions().values()) == {3}


def test_worker_0_comes_back_elsewhere_with_a_copy(trainer, tmp_path):
    """The ps' state is newer than the copy, and counts."""
    with OpenFleet(trainer, tmp_path, ps=1, workers=2, output={"save_steps": 50}) as fleet:
        fleet.start_and_train()
        wait_for(lambda: checkpoints(tmp_path / "run"), "checkpoint")
        shutil.copytree(tmp_path / "run", tmp_path / "backup", ignore=shutil.ignore_patterns("*.tmp*"))
        before = fleet.goes_on(more=10)["global_step"]
        fleet.kill("worker 0")
        shutil.rmtree(tmp_path / "run")
        fleet.start("worker 0", make_machine(fleet, "elsewhere"), "--train_dir=backup")
        assert fleet.goes_on()["global_step"] > before and "generation 2" not in fleet.text("ps 0")


def test_a_ps_takes_as_much_memory_as_the_table_says(trainer, tmp_path):
    rows = re.findall(r"^\| ([\d,]+) \| ([\d,]+) \| (\w+) \| (\d+) \| ([\d.]+) MiB \|", TEXT, re.M)
    assert len(rows) == 7
    for number, (layers, parameters, optimizer, workers, memory) in enumerate(rows):
        with Cluster(trainer, tmp_path / str(number), workers=int(workers),
                     flags=(f"--layers={layers}", f"--optimizer={optimizer}", "--local=false")) as cluster:
            cluster.start("ps 0")
            cluster.until("ps 0", lambda text: "takes about" in text, "its needs")
            assert f"takes about {memory} MiB once all workers are connected" in cluster.text("ps 0"), layers
        assert int(parameters.replace(",", "")) == count_parameters(layers)
        slots = {"sgd": 0, "adam": 2}[optimizer]
        model = 4 * count_parameters(layers) / 2**20
        by_rule = 4 + 2 * model * (1 + slots) + int(workers) * (model + 0.6)
        assert abs(float(memory) / by_rule - 1) < 0.1, (layers, memory, by_rule)


def count_parameters(layers):
    widths = list(map(int, layers.split(",")))
    return sum((a + 1) * b for a, b in zip(widths, widths[1:]))


def numbers_of(port):
    """A member's metrics that have a single value."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")
            if "{" not in name}


class Exchange:
    """The cost of one worker's step to a ps: MB received, MB sent, ms of processor time; and its memory at most, in
    MiB. Over at least that many steps."""

    def __init__(self, trainer, folder, layers, wire_dtype, steps):
        (port,) = free_ports(1)
        flags = (f"--layers={layers}", f"--wire_dtype={wire_dtype}", *ENDLESS, "--batch_size=100", "--local=false",
                 "--learning_rate=0.01", "--log_steps=1")
        with Cluster(trainer, folder, workers=1, flags=flags) as cluster:
            cluster.start("ps 0", f"--http=127.0.0.1:{port}")
            cluster.start("worker 0")
            cluster.until("worker 0", lambda text: '"event":"step"' in text, "steps")
            pushes = "trainer_pushes_applied_total"
            wait_for(lambda: numbers_of(port).get(pushes, 0) >= 5, "steps")
            before = after = numbers_of(port)
            wait_for(lambda: cluster.events("worker 0", "step")[-1]["global_step"] >= before[pushes] + steps, "steps")
            while after[pushes] < before[pushes] + steps:  # not asked before, as answers cost processor time, too
                assert cluster.members["worker 0"].poll() is None, cluster.text("worker 0")
                time.sleep(0.1)
                after = numbers_of(port)
            status = pathlib.Path(f"/proc/{cluster.members['ps 0'].pid}/status").read_text()
        made = after[pushes] - before[pushes]
        self.came, self.went, self.processor = (
            (after[name] - before[name]) / made for name in
            ("trainer_received_bytes_total", "trainer_sent_bytes_total", "process_cpu_seconds_total"))
        self.came, self.went, self.processor = self.came / 1e6, self.went / 1e6, self.processor * 1e3
        self.memory = int(re.search(r"VmHWM:\s*(\d+)", status)[1]) / 1024


def test_a_step_takes_as_much_of_network_and_processor_as_the_table_says(trainer, tmp_path, full):
    """The size of packed answers depends on how much has changed; processor time differs between machines, and on a
    busy one."""
    rows = re.findall(r"^\| ([\d,]+) \| (\w+) \| ([\d.]+) MB \| ([\d.]+) MB \| ([\d.]+) ms \|", TEXT, re.M)
    assert len(rows) == 12
    for number, (layers, wire_dtype, came, went, processor) in enumerate(rows):
        if count_parameters(layers) > (10000000 if full else 100000):
            continue
        found = Exchange(trainer, tmp_path / str(number), layers, wire_dtype, steps=60)
        assert abs(found.came / float(came) - 1) < 0.1, (layers, wire_dtype, vars(found))
        assert abs(found.went / float(went) - 1) < (0.1 if wire_dtype == "float32" else 0.3), vars(found)
        assert found.processor < 5 * float(processor), vars(found)
        rule = 4 + 4 * count_parameters(layers) * 3 / 2**20 + 0.6
        assert rule / 2 < found.memory < 1.2 * rule, (rule, vars(found))
