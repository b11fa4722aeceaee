"""docs/operations.md: its commands are run as they are written, and its figures are the program's."""

import pathlib
import re
import shutil
import subprocess

import pytest

import programs
from clusters import Cluster
from conftest import ROOT
from fleets import OpenFleet, text_of
from runs import checkpoints, wait_for

TEXT = (ROOT / "docs" / "operations.md").read_text()
BY_HAND = "not run by a test"

# Who runs the commands of a block, by a word that only it has: as they are, or with ports and paths of its own.
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
    "rollout revert": "test_operations.py::test_upgrade_and_rollback",
    "-checkend": "test_operations.py::test_keys",
    "cp -a run backup": "test_operations.py::test_backup_and_recovery",
    "cp -a backup run": "test_operations.py::test_backup_and_recovery",
}


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
            file, _, function = claim.partition("::")
            assert (names / file).exists(), claim
            assert not function or f"def {function}(" in (names / file).read_text(), claim


def shell(commands, folder):
    result = subprocess.run(["bash", "-e", "-c", commands], cwd=folder, capture_output=True, text=True, timeout=120)
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
                            capture_output=True, timeout=20)
    assert result.returncode == 1, "in more than a year"


def test_backup_and_recovery(trainer, tmp_path):
    """The copy of a folder that is written to; all machines lost; and the folder lost while the ps live."""
    fleet = OpenFleet(trainer, tmp_path, ps=1, workers=2, output={"save_steps": 50})
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
        assert set(fleet.versions().values()) == {2}
        assert set(programs.builds(fleet).values()) == {programs.build_of(new)}
        result = fleet.rollout(fleet.candidate(3, train={"learning_rate": 0.04}), "--yes", "--healthy_secs=0.5")
        assert result.returncode == 0, text_of(result)


def test_an_operator_who_lost_the_key_makes_another(trainer, tmp_path):
    with OpenFleet(trainer, tmp_path, ps=1, workers=2) as fleet:
        fleet.start_and_train()
        result = fleet.rollout(fleet.candidate(2, train={"learning_rate": 0.04}), "--yes", "--healthy_secs=0.5")
        assert result.returncode == 0, text_of(result)
        for name in ("operator.key", "operator.key.pub"):
            (tmp_path / name).unlink()
        subprocess.run([trainer, "keygen", "--operator=operator.key"], cwd=tmp_path, check=True, timeout=20)
        shutil.move(tmp_path / "operator.key.pub", tmp_path / "operator.pub")
        result = fleet.rollout(fleet.candidate(3, train={"learning_rate": 0.03}), "--yes", "--healthy_secs=0.5")
        assert result.returncode == 0, text_of(result)
        assert set(fleet.versions().values()) == {3}


def test_worker_0_comes_back_elsewhere_with_a_copy(trainer, tmp_path):
    """What the ps hold is newer than the copy, and counts."""
    with OpenFleet(trainer, tmp_path, ps=1, workers=2, output={"save_steps": 50}) as fleet:
        fleet.start_and_train()
        wait_for(lambda: checkpoints(tmp_path / "run"), "checkpoint")
        shutil.copytree(tmp_path / "run", tmp_path / "backup")
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
                     flags=(f"--layers={layers}", f"--optimizer={optimizer}")) as cluster:
            cluster.start("ps 0")
            cluster.until("ps 0", lambda text: "takes about" in text, "its needs")
            assert f"takes about {memory} MiB once all workers are connected" in cluster.text("ps 0"), layers
        widths = list(map(int, layers.split(",")))
        assert int(parameters.replace(",", "")) == sum((a + 1) * b for a, b in zip(widths, widths[1:]))
