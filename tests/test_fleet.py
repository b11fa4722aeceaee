"""Fleets as people run them: a certificate for each role, ps that stay for the next job, bounds that hold."""

import json
import pathlib
import signal
import subprocess
import time

import pytest

import runs
from clusters import Cluster

ROOT = pathlib.Path(__file__).resolve().parent.parent


def make_keys(trainer, folder, members):
    def keygen(*flags):
        subprocess.run([trainer, "keygen", *flags], cwd=folder, check=True, capture_output=True, timeout=240)

    keygen("--ca=keys")
    for member in members:
        keygen("--ca=keys", f"--member={member}", f"--out={member.replace(':', '')}.key")


def test_members_with_certificates_of_their_own(trainer, tmp_path):
    """An authority's certificates: each member trains in its own role; in another's it is refused, or does not start.
    """
    with Cluster(trainer, tmp_path, ps=2, workers=2,
                 flags=("--train_steps=300", "--issync=0", "--min_workers=2", "--learning_rate=0.1")) as cluster:
        make_keys(trainer, tmp_path, ("ps:0", "ps:1", "worker:0", "worker:1", "operator"))
        (tmp_path / "fleet.key").unlink()

        def start(name, key=None):
            return cluster.start(name, f"--fleet_key={(key or name).replace(' ', '')}.key")

        start("ps 0")
        start("ps 1")
        # A ps's key used by a worker, and another worker's key.
        start("worker 0", "ps 0")
        assert "ps0.key is the key of ps:0, but this process is worker:0" in cluster.wait("worker 0", status=1).stdout
        start("worker 1", "worker 0")
        assert "is the key of worker:0, but this process is worker:1" in cluster.wait("worker 1", status=1).stdout
        start("worker 1")
        start("worker 0")
        asked = subprocess.run([trainer, "status", *cluster.hosts, "--fleet_key=operator.key"], cwd=tmp_path,
                               capture_output=True, text=True, timeout=240)
        assert "worker 1" in asked.stdout and "ps 1" in asked.stdout, asked.stderr
        cluster.wait_all()
        assert cluster.events("worker 0", "done")[0]["steps"] == 300


def test_a_ps_in_anothers_place_is_not_trusted(trainer, tmp_path):
    """A server with a certificate, but not that of the ps that is expected, gets no parameters and no gradients."""
    with Cluster(trainer, tmp_path, workers=1, flags=("--train_steps=100",)) as cluster:
        make_keys(trainer, tmp_path, ("ps:0", "worker:0", "worker:3"))
        process = subprocess.Popen([ROOT / "build/san/tests/net/server", "worker3.key"], cwd=tmp_path,
                                   stdout=subprocess.PIPE, text=True)
        try:
            cluster.ps_hosts = [f"127.0.0.1:{int(process.stdout.readline())}"]
            cluster.start("worker 0", "--fleet_key=worker0.key")
            cluster.until("worker 0", lambda text: "its certificate is for worker:3, but we expect ps:0" in text,
                          "distrust")
        finally:
            process.kill()
            process.communicate()


def test_serve_forever(trainer, tmp_path):
    """Like server.join: the ps outlives a job, serves the next one from its start, and stops when told to."""
    with Cluster(trainer, tmp_path, ps=2, workers=2,
                 flags=("--train_steps=150", "--issync=0", "--learning_rate=0.1", "--max_steps_per_s=100")) as cluster:
        for i in range(2):
            cluster.start(f"ps {i}", "--serve_forever=true")
        for _ in range(2):
            cluster.start("worker 0")
            cluster.start("worker 1")
            assert cluster.wait("worker 0").status == 0
            cluster.wait("worker 1")
            done = cluster.events("worker 0", "done")[0]
            assert done["steps"] == 150 and done["local_steps"] > 0
            time.sleep(0.5)
            assert all(cluster.members[f"ps {i}"].poll() is None for i in range(2))
        for i in range(2):
            cluster.kill(f"ps {i}", signal.SIGTERM)
            cluster.wait(f"ps {i}", status=None)


@pytest.mark.parametrize("ps, depth, dtype", [(1, 3, "float32"), (3, 0, "float32"), (3, 3, "bfloat16")])
@pytest.mark.full(but=("3-3-bfloat16",))
def test_max_staleness_is_exact(trainer, tmp_path, ps, depth, dtype):
    """A worker that stands still lets the other one advance by that many steps, and no further, until it moves again.

    A ps applies a push and then holds back its answer while the worker is more than the bound ahead: so the lead grows
    to exactly one more than the bound, whatever the depth of the pipeline, whose pushes are sent one after another, and
    however many ps there are, of which the first one decides."""
    bound, lead = 6, 6 + 1
    with Cluster(trainer, tmp_path, ps=ps, workers=2, flags=(
            "--train_steps=100000000", "--issync=0", "--lease_secs=60", "--learning_rate=0.01",
            f"--max_staleness={bound}", f"--pipeline_depth={depth}", f"--wire_dtype={dtype}")) as cluster:
        cluster.start_all()

        def told(name, what):
            return cluster.status()[1][name][what] or 0

        def where_it_stands(worker, least):
            """The global step of ps 0 at which it makes this worker wait, seen three times."""
            seen = []

            def stands_still():
                members = cluster.status()[1]
                step = members["ps 0"]["global_step"] or 0
                assert step < least + 200, "nobody waits"
                seen.append(step if members[f"worker {worker}"]["state"] == "waiting" else None)
                return step >= least and seen[-3:] == 3 * [step]

            runs.wait_for(stands_still, f"worker {worker} to wait")
            return seen[-1]

        runs.wait_for(lambda: all(told(f"worker {i}", "local_step") > 20 for i in range(2)), "steps of both")
        cluster.kill("worker 1", signal.SIGSTOP)
        steps = where_it_stands(0, told("ps 0", "global_step"))
        for here, there in ((0, 1), (1, 0), (0, 1)):
            # From as far ahead as allowed on one side, to as far ahead on the other.
            cluster.kill(f"worker {here}", signal.SIGSTOP)
            cluster.kill(f"worker {there}", signal.SIGCONT)
            before, steps = steps, where_it_stands(there, steps + 2 * lead)
            assert steps == before + 2 * lead
        cluster.kill("worker 0", signal.SIGCONT)
        runs.wait_for(lambda: told("ps 0", "global_step") > steps + 100, "steps of both")
        for name, member in cluster.status()[1].items():
            # Computed when the other one was `bound` ahead, applied when it is `lead` behind, plus the pipeline's own.
            assert member["staleness"] <= bound + lead + 2 * depth, (name, member)


def test_status_answers_at_once_while_training(trainer, tmp_path):
    """Within 100 ms, including TLS, while two workers leave no CPU idle."""
    with Cluster(trainer, tmp_path, workers=2, flags=("--layers=784,500,10", "--batch_size=100",
                                                      "--train_steps=100000000", "--lease_secs=30",
                                                      "--learning_rate=0.01")) as cluster:
        cluster.start_all()
        cluster.until("worker 0", lambda text: '"event":"step"' in text, "steps")
        runs.wait_for(lambda: cluster.status()[1]["worker 0"]["state"] == "training", "worker 0 to train")

        def ask():
            status, members = cluster.status()
            assert status == 0 and members["worker 0"]["state"] == "training"

        assert runs.best_seconds(ask, 0.1) < 0.1


def test_memory_of_a_ps_is_known_beforehand(trainer, tmp_path):
    """256 workers, each with its connection and its stage, all waiting for each step at once: at its start the ps
    reports what they will need."""
    load = ROOT / "build/bench/ps_load"
    with Cluster(trainer, tmp_path, workers=256) as cluster:
        flags = ("--layers=784,16,10", "--train_steps=0", "--learning_rate=0.01", "--fleet_key=fleet.key",
                 "--issync=1", "--min_workers=256")
        cluster.flags = list(flags)
        ps = cluster.start("ps 0")
        cluster.until("ps 0", lambda text: "listens on port" in text, "the line about listening")
        measured = subprocess.run([load, "--seconds=3", f"--pid={ps.pid}", *cluster.hosts, *flags], cwd=tmp_path,
                                  capture_output=True, text=True, timeout=600)
        assert measured.returncode == 0, measured.stderr
        found = json.loads(measured.stdout)
        assert found["failed"] == 0 and found["workers"] == 256
        assert found["ps_predicted_bytes"] * 0.8 < found["ps_peak_bytes"] < found["ps_predicted_bytes"] * 1.05, found
        told = f"about {found['ps_predicted_bytes'] / 2**20:.1f} MiB once all workers are connected"
        assert told in cluster.text("ps 0"), (told, cluster.text("ps 0"))
