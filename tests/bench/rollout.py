"""How long rollouts take on a fleet of real processes on this machine, as their logs tell, looked at every 2 ms.

    tests/bench/rollout.py [MEMBERS]                      12, with one ps for every ten or so, and a net of 784-8-10

Live: from the first member that has the new version in force to the last. Job: from the proposal to the end, without
--healthy_secs, and the pause, from worker 0's last step before to its first one after. Local: likewise from the
proposal to the end.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from figures import missed, show  # noqa: E402
from fleets import OpenFleet  # noqa: E402

HEALTHY_S = 2.0


class Tail:
    """What a member's log has got since the last look."""

    def __init__(self, fleet, name):
        self.fd = fleet.members[name].output.fileno()
        self.offset = os.fstat(self.fd).st_size

    def look(self):
        text = os.pread(self.fd, 1 << 20, self.offset)
        self.offset += len(text)
        return text.decode(errors="replace")


def roll_out(fleet, new, line=None):
    """(seconds in all, when each member first had the line, when worker 0's log had steps)."""
    watched = fleet.members if line else ["worker 0"]  # looking costs a processor that the members want, too
    tails = {name: Tail(fleet, name) for name in watched}
    seen, steps = {}, []
    begun = time.monotonic()
    operator = subprocess.Popen([fleet.trainer, "rollout", new, "--yes", f"--healthy_secs={HEALTHY_S}",
                                 *fleet.job_flags()],
                                cwd=fleet.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while operator.poll() is None:
        now = time.monotonic()
        for name, tail in tails.items():
            text = tail.look()
            if line and line in text:
                seen.setdefault(name, now)
            if name == "worker 0" and '"event":"step"' in text:
                steps.append(now)
        time.sleep(0.002)
    assert operator.returncode == 0, operator.communicate()[0]
    return time.monotonic() - begun, seen, steps


def processor_seconds(fleet):
    """That all members have used so far: what a machine of more processors would not wait for."""
    ticks = 0
    for member in fleet.members.values():
        fields = pathlib.Path(f"/proc/{member.pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def longest_gap(times):
    return max((b - a for a, b in zip(times, times[1:])), default=0)


def main():
    members = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    ps = 1 if members < 6 else 2 if members < 40 else 3
    train = {"learning_rate": 0.04}
    with tempfile.TemporaryDirectory() as folder:
        with OpenFleet(os.environ.get("TRAINER", str(ROOT / "build" / "trainer")), folder, ps=ps, workers=members - ps,
                       model={"layers": [784, 8, 10]}, cluster={"lease_secs": 10},
                       data={"synthetic_train": 400, "synthetic_test": 100}, output={"log_steps": 1}) as fleet:
            fleet.start_and_train()
            deadline = time.monotonic() + 120
            while not all(member["state"] in ("training", "ready") for member in fleet.status(60)[1].values()):
                assert time.monotonic() < deadline, fleet.status(60)
                time.sleep(0.5)
            of = f"{members} members on one machine, "
            seconds, seen, steps = roll_out(fleet, fleet.candidate(2, train=train),
                                            "version 2 of the config is in force")
            assert len(seen) == members, seen
            show(f"{of}live: from the first switch to the last", round(max(seen.values()) - min(seen.values()), 2),
                 most=1, unit="s")
            show(f"{of}live: longest time without a step of worker 0", round(longest_gap(steps), 2), unit="s")
            train["batch_size"] = 40
            used = processor_seconds(fleet)
            seconds, _, steps = roll_out(fleet, fleet.candidate(3, train=train))
            used = processor_seconds(fleet) - used
            show(f"{of}job: total without healthy_secs", round(seconds - HEALTHY_S, 2), most=10, unit="s")
            show(f"{of}job: processor time, training included", round(used, 1), unit="s")
            show(f"{of}job: training pause", round(longest_gap(steps), 2), most=2, unit="s")
            seconds, _, _ = roll_out(fleet, fleet.candidate(4, train=train, cluster={"recovery_wait_secs": 0.5}))
            show(f"{of}local: total without the healthy_secs of fleet and canary", round(seconds - 2 * HEALTHY_S, 2),
                 unit="s")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
