"""Shared by tests of clusters: real processes on ports chosen by the system, with their own key."""

import json
import os
import pathlib
import signal
import subprocess
import time

from ports import free_ports
from runs import ENDLESS_STEPS, LONG_S, PACE, SMALL, TRAINING_S, Result, pause_after, wait_for

SMALL_CLUSTER = SMALL + ("--lease_secs=2",)


def threads_stand_still(pid):
    try:
        threads = pathlib.Path(f"/proc/{pid}/task").glob("*/stat")
        return all(thread.read_text().rpartition(")")[2].split()[0] == "T" for thread in threads)
    except OSError:  # one has just ended
        return False


class Cluster:
    """Members by name ("ps 0", "worker 1"), started and stopped one by one; the rest are killed at the end."""

    def __init__(self, trainer, folder, ps=1, workers=2, flags=()):
        self.trainer, self.folder = trainer, pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        ports = free_ports(ps + workers)
        self.ps_hosts = [f"127.0.0.1:{port}" for port in ports[:ps]]
        self.worker_hosts = [f"127.0.0.1:{port}" for port in ports[ps:]]
        self.flags = list(SMALL_CLUSTER) + list(flags)
        self.members = {}
        self.programs, self.environments = {}, {}  # by member, besides `trainer` and our variables
        key = self.folder / "fleet.key"
        if not key.exists():
            subprocess.run([trainer, "keygen", f"--out={key}"], check=True, capture_output=True, timeout=240)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.members.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.communicate()

    @property
    def hosts(self):
        return [f"--ps_hosts={','.join(self.ps_hosts)}", f"--worker_hosts={','.join(self.worker_hosts)}"]

    def start(self, name, *flags):
        role, index = name.split()
        given = {flag.split("=")[0]: flag for flag in (*self.flags, *flags)}
        if int(given.get("--train_steps", "=0").split("=")[1]) >= ENDLESS_STEPS:
            given.setdefault("--max_steps_per_s", f"--max_steps_per_s={PACE}")
        output = open(self.folder / f"{name.replace(' ', '')}.{len(list(self.folder.glob('*.out')))}.out", "w+b")
        process = subprocess.Popen(
            [self.programs.get(name, self.trainer), f"--job_name={role}", f"--task_index={index}", "--log_format=json",
             *self.hosts, *given.values()],
            cwd=self.folder, stdout=output, stderr=subprocess.STDOUT,
            env={**os.environ, **self.environments.get(name, {})})
        process.output, process.parsed, process.events = output, 0, []
        self.members[name] = process
        return process

    def start_all(self, *flags):
        for i in range(len(self.ps_hosts)):
            self.start(f"ps {i}", *flags)
        for i in range(len(self.worker_hosts)):
            self.start(f"worker {i}", *flags)

    def text(self, name):
        output = self.members[name].output
        return os.pread(output.fileno(), 1 << 24, 0).decode()

    def events(self, name, event=None):
        """Events in complete lines. Tests ask again and again, so parsed lines are cached."""
        process = self.members[name]
        text = os.pread(process.output.fileno(), 1 << 24, process.parsed)
        text = text[:text.rfind(b"\n") + 1]
        process.parsed += len(text)
        process.events += [json.loads(line) for line in text.decode().splitlines()
                           if line.startswith("{") and line.endswith("}")]
        return [line for line in process.events if event is None or line["event"] == event]

    def wait(self, name, status=0, timeout=TRAINING_S):
        try:
            got = self.members[name].wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{name} is still there after {timeout} s\n{self.text(name)}") from None
        assert status is None or got == status, f"{name}: status {got}\n{self.text(name)}"
        return Result(got, self.text(name), "")

    def wait_all(self, timeout=TRAINING_S):
        for name in self.members:
            self.wait(name, timeout=timeout)

    def until(self, name, condition, what, timeout=LONG_S):
        deadline = time.monotonic() + timeout
        while True:
            begun = time.monotonic()
            if condition(self.text(name)):
                return
            now = time.monotonic()
            assert self.members[name].poll() is None, f"{name} ended before {what}\n{self.text(name)}"
            assert now < deadline, f"no {what} from {name} within {timeout} s\n{self.text(name)}"
            pause_after(now - begun)

    def kill(self, name, number=signal.SIGKILL):
        """Returns once it has taken effect: on a busy machine a stopped process runs on for a while."""
        self.members[name].send_signal(number)
        if number == signal.SIGKILL:
            self.members[name].wait(LONG_S)
        if number == signal.SIGSTOP:
            wait_for(lambda: threads_stand_still(self.members[name].pid), f"standstill of {name}")

    def status(self, timeout=LONG_S):
        """(exit status, members by name) of `trainer status --json`."""
        result = subprocess.run([self.trainer, "status", "--json", *self.hosts], cwd=self.folder, capture_output=True,
                                text=True, timeout=timeout)
        assert result.stdout, result.stderr
        members = json.loads(result.stdout)["members"]
        return result.returncode, {f"{member['role']} {member['task']}": member for member in members}
