"""Under systemd: a member's sd_notify messages, and the units in deploy/."""

import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time

import pytest

from fleets import OpenFleet, text_of


class Listener:
    """The socket in NOTIFY_SOCKET: a path, or an abstract name. Like systemd, it always reads: the system keeps only
    ten datagrams, and members drop what it does not take."""

    def __init__(self, name):
        self.name = name
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + name[1:] if name.startswith("@") else name)
        self.lines, self.came = [], threading.Condition()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        while True:
            lines = self.socket.recv(4096).decode().splitlines()
            with self.came:
                self.lines += lines
                self.came.notify_all()

    def until(self, line, timeout=30):
        """Waits for a datagram with this line, and drops everything up to it."""
        with self.came:
            assert self.came.wait_for(lambda: line in self.lines, timeout), (line, self.lines)
            del self.lines[: self.lines.index(line) + 1]


@pytest.mark.parametrize("abstract", [False, True])
def test_members_tell_systemd_how_they_are(trainer, tmp_path, monkeypatch, abstract):
    with OpenFleet(trainer, tmp_path / "fleet", ps=1, workers=1) as fleet:
        listeners = {}
        for name in ("ps 0", "worker 0"):
            path = f"@trainer-test-{os.getpid()}-{name[0]}" if abstract else str(tmp_path / name[0])
            listeners[name] = Listener(path)
            monkeypatch.setenv("NOTIFY_SOCKET", path)
            monkeypatch.setenv("WATCHDOG_USEC", "2000000")
            monkeypatch.delenv("WATCHDOG_PID", raising=False)
            fleet.start(name)
        port = fleet.ps_hosts[0].split(":")[1]
        listeners["ps 0"].until("READY=1")
        listeners["ps 0"].until(f"STATUS=ps 0 listens on port {port}")
        listeners["worker 0"].until("READY=1")
        for listener in listeners.values():
            listener.until("WATCHDOG=1")
            listener.until("WATCHDOG=1")
        monkeypatch.delenv("NOTIFY_SOCKET")
        fleet.until("worker 0", lambda text: text.count('"event":"step"') >= 2, "steps")
        result = fleet.rollout(fleet.candidate(2, train={"batch_size": 40}), "--yes", "--healthy_secs=0.5")
        assert result.returncode == 0, text_of(result)
        for listener in listeners.values():
            listener.until("RELOADING=1")
            listener.until("READY=1")
        for name in ("worker 0", "ps 0"):
            fleet.members[name].terminate()
            listeners[name].until("STOPPING=1")
            fleet.wait(name, 143)


def test_a_watchdog_of_another_process_is_none_of_its_business(trainer, tmp_path, monkeypatch):
    listener = Listener(str(tmp_path / "notify"))
    with OpenFleet(trainer, tmp_path / "fleet", ps=1, workers=1) as fleet:
        monkeypatch.setenv("NOTIFY_SOCKET", listener.name)
        monkeypatch.setenv("WATCHDOG_USEC", "200000")
        monkeypatch.setenv("WATCHDOG_PID", "1")
        fleet.start("ps 0")
        listener.until("READY=1")
        time.sleep(1)
        fleet.members["ps 0"].terminate()
        listener.until("STOPPING=1")
        assert "WATCHDOG=1" not in listener.lines


def test_a_socket_that_is_not_there_does_no_harm(trainer, tmp_path, monkeypatch):
    for name in (str(tmp_path / "nobody"), "@nobody-at-all", "relative", "", "/" + "x" * 200):
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        with OpenFleet(trainer, tmp_path / "fleet", ps=1, workers=1, train={"train_steps": 5}) as fleet:
            fleet.start("ps 0")
            fleet.start("worker 0", "--train_dir=")
            fleet.wait_all()


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not here")
def test_the_unit_is_one(trainer, root, tmp_path):
    for name in ("trainer@.service", "trainer-serve@.service", "trainer-serve@.socket"):
        text = (root / "deploy" / name).read_text().replace("/usr/local/bin/trainer", trainer)
        (tmp_path / name).write_text(text)
        result = subprocess.run(["systemd-analyze", "verify", "--man=no", str(tmp_path / name)], capture_output=True,
                                text=True, timeout=240)
        complaints = [line for line in text_of(result).splitlines() if name.split("@")[0] in line]
        assert result.returncode == 0 and not complaints, text_of(result)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not here")
@pytest.mark.parametrize("name", ["trainer@.service", "trainer-serve@.service"])
def test_the_unit_is_exposed_little(root, name):
    """0 is least, 10 most; what remains is that it uses the network."""
    result = subprocess.run(["systemd-analyze", "security", "--offline=true", root / "deploy" / name],
                            capture_output=True, text=True, timeout=240)
    assert float(re.search(r"Overall exposure level for \S+: (\S+)", text_of(result))[1]) <= 1.2


def test_serving_has_a_user_and_a_folder_of_its_own(root):
    """A server, which strangers send requests to, can't read a fleet's key."""
    declared = (root / "deploy/sysusers.conf").read_text() + (root / "deploy/tmpfiles.conf").read_text()
    users = []
    for name in ("trainer@.service", "trainer-serve@.service"):
        text = (root / "deploy" / name).read_text()
        user = re.search(r"^User=(\S+)$", text, re.M)[1]
        folder = re.search(r"^StateDirectory=(\S+)$", text, re.M)[1]
        assert f"\nWorkingDirectory=/var/lib/{folder}\n" in text and "\nStateDirectoryMode=0700\n" in text
        assert re.search(rf'^u {user} - ".*" /var/lib/{folder}$', declared, re.M)
        assert re.search(rf"^d /var/lib/{folder} 0700 {user} {user} -$", declared, re.M)
        users.append((user, folder))
    assert len({user for user, _ in users}) == len({folder for _, folder in users}) == 2
    assert "/var/lib/trainer-serve" in (root / "deploy/dist/debian/postrm").read_text()


def test_the_fleet_of_the_documents(trainer, root, tmp_path):
    """Its config, its functions and its sed: what can be tried without ten machines, and with a fake systemd."""
    text = (root / "docs/operations.md").read_text()
    chapter = text[text.index("## From one machine to a fleet of ten"):]
    block = chapter[chapter.index("    ./trainer keygen"):chapter.index("`config check` catches")]
    tenth = chapter[chapter.index("    sed -e"):chapter.index("Every later change")]
    commands = "\n".join(line[4:] for line in (block + tenth).splitlines())
    (tmp_path / "trainer").symlink_to(trainer)
    (tmp_path / "deploy").symlink_to(root / "deploy")
    # ssh and scp record their arguments, and there is nothing to which a config could be rolled out.
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("ssh", "scp"):
        (tools / name).write_text(f'#!/bin/sh\necho {name} "$@" >>{tmp_path}/told\n')
        (tools / name).chmod(0o755)
    commands = commands.replace("./trainer status", ":").replace("./trainer rollout new.json --yes",
                                                                 "./trainer config check --config=new.json")
    commands = commands.replace("./trainer rollout status", ":")
    result = subprocess.run(["bash", "-e", "-c", commands], cwd=tmp_path, capture_output=True, text=True, timeout=240,
                            env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"})
    assert result.returncode == 0, text_of(result)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["fleet"]["version"] == 2 and config["cluster"]["worker_hosts"] == [f"a{i}:2222" for i in range(1, 10)]
    told = (tmp_path / "told").read_text()
    assert "MEMBER=--job_name=worker --task_index=0 --train_dir=run' >/etc/trainer/worker-0.conf" in told
    assert told.count("systemctl enable --now trainer@") == 10
    assert "new.json root@a9:/var/lib/trainer/config.json" in told
