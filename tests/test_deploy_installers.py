"""deploy/ansible on its own file systems, deploy/cloud-init and deploy/nomad with their own parsers."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from deployed import ROOT, read_hcl, read_yaml, tool
from ports import free_ports

ANSIBLE = ROOT / "deploy" / "ansible"
INSTALLERS = ROOT / "build" / "venv-installers" / "bin"
CHROOT = pathlib.Path(__file__).parent / "chroot_of_its_own.sh"
HOSTS = ("a0", "a1")
SMALL_CONFIG = {"fleet": {"name": "digits", "version": 1}, "model": {"layers": [784, 32, 10]},
                "train": {"train_steps": 200, "num_threads": 1},
                "data": {"data_source": "synthetic", "synthetic_train": 3000, "synthetic_test": 500}}


class Fleet:
    """Machines that share this one's files, with private changes."""

    def __init__(self, trainer, folder):
        self.trainer, self.folder = trainer, folder
        shutil.copytree(ROOT / "deploy", folder / "deploy")
        tool(trainer, "keygen", "--out=fleet.key", cwd=folder)
        tool(trainer, "keygen", "--operator=operator.key", cwd=folder)
        self.ports = dict(zip(HOSTS, free_ports(len(HOSTS))))
        (folder / "inventory.yml").write_text(json.dumps({
            "trainer_ps": {"hosts": {"a0": {}}},
            "trainer_workers": {"hosts": {"a1": {"trainer_flags": "--train_dir=run"}}},
            "all": {"vars": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable,
                             "trainer_started": False, "trainer_binary": trainer,
                             "trainer_fleet_key": str(folder / "fleet.key"),
                             "trainer_operator_pub": str(folder / "operator.key.pub"),
                             "trainer_config": SMALL_CONFIG}}}))

    def on(self, host, *command):
        return subprocess.Popen(["unshare", "--mount", "--uts", CHROOT, self.folder / "machines" / host, *command],
                                cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                env={**os.environ, "ANSIBLE_NOCOLOR": "1", "SYSTEMD_OFFLINE": "1",
                                     "ANSIBLE_LOCAL_TEMP": str(self.folder / "ansible"), "LC_ALL": "C.UTF-8"})

    def run(self, host, *command, status=0):
        process = self.on(host, *command)
        text = process.communicate(timeout=600)[0]
        assert status is None or process.returncode == status, text
        return text

    def play(self, host, *flags):
        """The number of tasks that changed something."""
        text = self.run(host, INSTALLERS / "ansible-playbook", "-i", self.folder / "inventory.yml", "--limit", host,
                        *flags, self.folder / "deploy/ansible/site.yml")
        assert "failed=0" in text and "unreachable=0" in text
        return int(re.search(r"changed=(\d+)", text)[1]), text

    def changes(self, host, path):
        return self.folder / "machines" / host / "changes" / path


@pytest.fixture
def fleet(trainer, tmp_path):
    fleet = Fleet(trainer, tmp_path)
    (tmp_path / "machines").mkdir()
    (tmp_path / "ansible").mkdir()
    if os.geteuid() != 0 or fleet.on("probe", "true").wait(240) != 0:
        pytest.skip("file systems of its own want root, and overlays")
    return fleet


def as_the_unit_starts(fleet, host, instance):
    """The user, the folder, the command and the member's own flags."""
    unit = (ROOT / "deploy/trainer@.service").read_text()
    start = re.search(r"^ExecStart=(.*) \$MEMBER$", unit, re.M)[1].replace(" $FLAGS", "")
    assert re.search(r"^User=trainer$", unit, re.M) and re.search(r"^WorkingDirectory=/var/lib/trainer$", unit, re.M)
    hosts = f"--ps_hosts=127.0.0.1:{fleet.ports['a0']} --worker_hosts=127.0.0.1:{fleet.ports['a1']}"
    return fleet.on(host, "sh", "-c", f"MEMBER=$(sed -n 's/^MEMBER=//p' /etc/trainer/{instance}.conf); "
                    "cd /var/lib/trainer; exec setpriv --reuid=trainer --regid=trainer --clear-groups "
                    f"{start} $MEMBER {hosts}")


@pytest.mark.deploy
def test_the_role_makes_members_that_run_and_changes_nothing_the_second_time(fleet):
    for host in HOSTS:
        changed, text = fleet.play(host)
        assert changed >= 7, text
        changed, text = fleet.play(host)
        assert changed == 0, text
    unit = fleet.changes("a0", "etc/systemd/system/trainer@.service")
    assert unit.read_text() == (ROOT / "deploy/trainer@.service").read_text()
    assert fleet.changes("a0", "etc/systemd/system/multi-user.target.wants/trainer@ps-0.service").is_symlink()
    state = fleet.changes("a1", "var/lib/trainer")
    assert (state / "fleet.key").stat().st_mode & 0o777 == 0o600 and state.stat().st_mode & 0o777 == 0o700
    assert (state / "fleet.key").stat().st_uid != 0
    config = json.loads((state / "config.json").read_text())
    assert config["cluster"] == {"ps_hosts": ["a0:2222"], "worker_hosts": ["a1:2222"]}
    members = {}
    try:
        for host, instance in (("a0", "ps-0"), ("a1", "worker-0")):
            members[host] = as_the_unit_starts(fleet, host, instance)
        texts = {host: member.communicate(timeout=600)[0] for host, member in members.items()}
    finally:
        for member in members.values():
            member.kill()
    assert [member.returncode for member in members.values()] == [0, 0], texts
    assert (state / "run/model-0000000200.safetensors").exists()


@pytest.mark.deploy
def test_the_role_is_clean_for_its_linter():
    result = tool(INSTALLERS / "ansible-lint", "--offline", "--profile", "production", ".", cwd=ANSIBLE,
                  env={**os.environ, "PATH": f"{INSTALLERS}:{os.environ['PATH']}"})
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.deploy
def test_cloud_init_takes_the_user_data(tmp_path):
    """Checked with cloud-init's own schema; the package is not installed, because it would configure this machine."""
    if not shutil.which("apt-get"):
        pytest.skip("cloud-init comes from Debian")
    fetched = tool("apt-get", "-o", "APT::Sandbox::User=root", "download", "cloud-init", cwd=tmp_path)
    if fetched.returncode != 0:
        pytest.skip(f"no cloud-init here: {fetched.stderr[-200:]}")
    (package,) = tmp_path.glob("cloud-init_*.deb")
    assert tool("dpkg", "-x", package, tmp_path / "root").returncode == 0
    for text, status in ((None, 0), ("write_files:", 1)):
        path = tmp_path / "data.yaml"
        content = (ROOT / "deploy/cloud-init/worker.yaml").read_text()
        path.write_text(content.replace(text, "write_flies: 7\nwrite_files: 7\nold_files:") if text else content)
        result = tool(INSTALLERS / "python", "-m", "cloudinit.cmd.main", "schema", "-c", path,
                      env={**os.environ, "PYTHONPATH": str(tmp_path / "root/usr/lib/python3/dist-packages")})
        assert result.returncode == status, result.stdout + result.stderr


def test_user_data_is_of_the_same_form_as_the_rest(trainer, tmp_path):
    (data,) = read_yaml(ROOT / "deploy/cloud-init/worker.yaml")
    files = {entry["path"]: entry for entry in data["write_files"]}
    (tmp_path / "config.json").write_text(files["/var/lib/trainer/config.json"]["content"])
    member = files["/etc/trainer/worker-3.conf"]["content"].strip().removeprefix("MEMBER=").split()
    shown = tool(trainer, "config", "show", "--json", *member, cwd=tmp_path)
    cluster = json.loads(shown.stdout)["keys"]
    assert cluster["cluster.task_index"]["value"] == len(cluster["cluster.worker_hosts"]["value"]) - 1 == 3
    script = [command if isinstance(command, str) else " ".join(map(shell_word, command)) for command in data["runcmd"]]
    assert tool("sh", "-n", "-c", "\n".join(script)).returncode == 0
    fetched = {command[command.index("-o") + 1] for command in data["runcmd"] if command[0] == "curl"}
    (check,) = [number for number, line in enumerate(script) if "sha256sum --check" in line]
    assert fetched == set(re.findall(r"0{64}  ([\w/@.]+)", script[check])) and len(fetched) == 2
    installed = [number for number, command in enumerate(data["runcmd"]) if command[:1] == ["install"]]
    assert min(installed) > check  # nothing is where it would run before it was checked


def shell_word(word):
    return "'" + str(word).replace("'", "'\\''") + "'"


def evaluated(text, values):
    """An argument of the job file, with Nomad's values; its only logic is one condition."""
    text = text.strip('"').replace('\\"', '"')
    condition = re.search(r"\$\{group\.value\.role == .*\"\}$", text)
    if condition:
        chief = values["group.value.role"] == "worker" and values["group.value.index"] == 0
        text = text.replace(condition[0], "${NOMAD_ALLOC_DIR}/data/run" if chief else "")
    return re.sub(r"\$\{([\w.]+)\}", lambda found: str(values[found[1]]), text)


def test_the_job_for_nomad_is_read_and_its_members_train(trainer, tmp_path):
    """With a parser of HCL2; Nomad's values in the task's arguments are filled in here."""
    job = read_hcl(ROOT / "deploy/nomad/trainer.nomad.hcl")["job"][0]['"trainer"']
    (content,) = job["dynamic"][0]['"group"']["content"]
    task = content["task"][0]['"trainer"']
    assert task["config"][0]["command"] == '"local/trainer"' and task["kill_signal"] == '"SIGTERM"'
    templates = {template["destination"].strip('"').rpartition("/")[2]: template for template in task["template"]}
    assert set(templates) == {"config.json", "fleet.key", "operator.pub"}
    text = re.search(r"<<END\n(.*)\nEND", templates["config.json"]["data"], re.S)[1]
    config = json.loads(text)
    config["train"].update(train_steps=300, num_threads=1)
    config.setdefault("cluster", {})["min_workers"] = 2
    config["model"]["layers"] = [784, 32, 10]
    config["data"].update(synthetic_train=3000, synthetic_test=500)
    ports = free_ports(3)
    members = []
    tool(trainer, "keygen", "--out=fleet.key", cwd=tmp_path)
    try:
        for role, index in (("ps", 0), ("worker", 0), ("worker", 1)):
            alloc = tmp_path / f"{role}{index}"
            (alloc / "data").mkdir(parents=True)
            (alloc / "data/config.json").write_text(json.dumps(config))
            values = {"NOMAD_ALLOC_DIR": alloc, "NOMAD_SECRETS_DIR": tmp_path, "group.value.role": role,
                      "group.value.index": index, "local.ps_hosts": f"127.0.0.1:{ports[0]}",
                      "local.worker_hosts": f"127.0.0.1:{ports[1]},127.0.0.1:{ports[2]}"}
            members.append(subprocess.Popen([trainer, *(evaluated(word, values) for word in
                                                        task["config"][0]["args"])], cwd=alloc, text=True,
                                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        texts = [member.communicate(timeout=600)[0] for member in members]
    finally:
        for member in members:
            member.kill()
    assert [member.returncode for member in members] == [0, 0, 0], texts
    assert (tmp_path / "worker0/data/run/model-0000000300.safetensors").exists()
    assert not (tmp_path / "worker1/data/run").exists()


def test_readers_find_mistakes(tmp_path):
    text = (ROOT / "deploy/nomad/trainer.nomad.hcl").read_text()
    (tmp_path / "wrong.hcl").write_text(text.replace('content {', 'content [', 1))
    with pytest.raises(AssertionError):
        read_hcl(tmp_path / "wrong.hcl")
