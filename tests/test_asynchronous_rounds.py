"""Asynchronous rounds (buffer_size): every few differences make a round, and nobody waits for a slow worker."""

import json
import random
import signal

import pytest

from clusters import Cluster
from ports import free_ports
from relay import Relay
from runs import SMALL, checkpoints, newest, same_tensors, seed_of_tests, train, wait_for
from test_observe import get, is_as_documented

ROUNDS = ("--local_steps=4", "--learning_rate=0.1", "--lease_secs=30", "--validate_steps=0")


def relayed(cluster, least, most):
    """Relays before every ps, which reset each connection after a random number of bytes."""
    dice = random.Random(seed_of_tests())
    ports = [int(host.split(":")[1]) for host in cluster.ps_hosts]
    cluster.ps_hosts = [f"127.0.0.2:{port}" for port in ports]
    relays = [Relay(port, dice.randrange(1 << 30)) for port in ports]
    for relay in relays:
        relay.cut_after = (least, most)
    return relays


@pytest.mark.parametrize("ps, flags", [
    (1, ("--outer_optimizer=adam", "--clip_difference_norm=0.5")),
    (2, ("--outer_optimizer=momentum", "--proximal_mu=0.1")),
])
def test_one_worker_gives_the_bits_of_one_process_over_links_that_are_cut(trainer, tmp_path, ps, flags):
    """One difference per round fixes their order: one that counted twice, or not at all, would show."""
    flags = (*ROUNDS, "--train_steps=60", "--num_threads=1", *flags)
    with Cluster(trainer, tmp_path, ps=ps, workers=1,
                 flags=(*flags, "--buffer_size=1", "--train_dir=kept", "--lease_secs=1")) as cluster:
        relays = relayed(cluster, 200_000, 2_000_000)
        cluster.start_all("--bind=127.0.0.1")
        cluster.wait_all()
        for relay in relays:
            relay.__exit__()
        assert sum(relay.cuts for relay in relays) >= 3
    train(trainer, *SMALL, *flags, "--clients=1", "--train_dir=played", cwd=tmp_path)
    assert same_tensors(newest(tmp_path / "kept"), newest(tmp_path / "played")) == []


@pytest.mark.parametrize("ps, flags", [
    (1, ("--wire_dtype=int8", "--wire_top=0.2")),
    (2, ("--wire_dtype=bfloat16", "--round_weights=equal", "--outer_optimizer=nesterov")),
])
@pytest.mark.full(but=("2-flags1",))
def test_every_few_differences_make_a_round_over_links_that_are_cut(trainer, tmp_path, ps, flags):
    """No ps is restarted, so each has counted as many differences as its rounds need, and none twice."""
    flags = (*ROUNDS, "--train_steps=40", "--buffer_size=3", "--train_dir=kept", "--serve_forever=1", *flags)
    with Cluster(trainer, tmp_path, ps=ps, workers=2, flags=(*flags, "--lease_secs=1")) as cluster:
        hosts = cluster.ps_hosts
        relays = relayed(cluster, 20_000, 500_000)
        cluster.start_all("--bind=127.0.0.1")
        for worker in ("worker 0", "worker 1"):
            cluster.wait(worker)
        cluster.ps_hosts = hosts
        members = cluster.status()[1]
        for i in range(ps):
            assert members[f"ps {i}"]["global_step"] == 40
            assert members[f"ps {i}"]["local_step"] == 3 * 40
        for relay in relays:
            relay.__exit__()
        assert sum(relay.cuts for relay in relays) >= 3
        assert cluster.events("worker 0", "done")[0]["test_accuracy"] > 0.5


def test_a_slow_worker_keeps_nobody_waiting(trainer, tmp_path):
    """It takes one step while the others take hundreds, on examples that they lack; what it learns arrives late, and
    counts. All of it is visible meanwhile."""
    flags = (*ROUNDS, "--train_steps=100000", "--max_steps_per_s=400", "--buffer_size=2", "--data_sharding=disjoint",
             "--validate_steps=50", "--min_workers=3")
    with Cluster(trainer, tmp_path, workers=3, flags=flags) as cluster:
        port = free_ports(1)[0]
        cluster.start("ps 0", f"--http=127.0.0.1:{port}")
        cluster.start("worker 0")
        cluster.start("worker 1")
        cluster.start("worker 2", "--max_steps_per_s=1")
        wait_for(lambda: cluster.status()[1]["worker 2"]["staleness"] >= 3, "a difference that comes late")
        metrics = get(port, "/metrics")[2].decode()
        assert "\ntrainer_buffer_size 2" in metrics and "\ntrainer_buffer_fill " in metrics
        assert float(metrics.partition("\ntrainer_buffer_staleness ")[2].split()[0]) >= 0
        members = cluster.status()[1]
        assert "of 2 differences for step" in members["ps 0"]["message"]
        assert "steps old on average" in members["ps 0"]["message"]
        assert members["worker 2"]["local_step"] * 3 < members["worker 0"]["local_step"]
        assert is_as_documented(json.loads(get(port, "/api/status")[2]))
        wait_for(lambda: any(event["validation_accuracy"] > 0.9 for event in cluster.events("worker 0", "validation")),
                 "an accuracy of 90%")


@pytest.mark.parametrize("ps", [1, 2])
@pytest.mark.full(but=("2",))
def test_restarts_cost_what_was_not_saved(trainer, tmp_path, ps):
    """A worker is killed, and the others continue; a ps is killed, and all continue from a checkpoint, with an empty
    buffer; a worker stands still, and costs nothing."""
    flags = (*ROUNDS, "--train_steps=100000", "--max_steps_per_s=400", "--buffer_size=4", "--save_steps=5",
             "--train_dir=kept", "--wire_dtype=int8", "--lease_secs=2")
    with Cluster(trainer, tmp_path, ps=ps, workers=3, flags=flags) as cluster:
        def step():
            return cluster.status()[1]["ps 0"]["global_step"] or 0

        def goes_on(what):
            before = step()
            wait_for(lambda: step() >= before + 5, what)

        cluster.start_all()
        wait_for(lambda: checkpoints(tmp_path / "kept"), "a checkpoint")
        cluster.kill("worker 1")
        goes_on("rounds without worker 1")
        cluster.start("worker 1")
        cluster.kill("worker 2", signal.SIGSTOP)
        goes_on("rounds without worker 2")
        generation = cluster.status()[1]["ps 0"]["generation"]
        kept = max(checkpoints(tmp_path / "kept"))
        cluster.kill(f"ps {ps - 1}")
        cluster.start(f"ps {ps - 1}")
        cluster.kill("worker 2", signal.SIGCONT)
        wait_for(lambda: cluster.status()[1]["ps 0"]["generation"] == generation + 1, "a restore")
        wait_for(lambda: max(checkpoints(tmp_path / "kept")) > kept, "another checkpoint")
        wait_for(lambda: all(cluster.status()[1][f"worker {i}"]["state"] == "training" for i in range(3)), "all")
        goes_on("rounds of all")
        cluster.kill("worker 0", signal.SIGTERM)
        cluster.wait("worker 0", status=143)


@pytest.mark.parametrize("flags, words", [
    (("--buffer_size=3",), "has no effect while every step is shared"),
    (("--buffer_size=3", "--local_steps=4"), "makes synchronous rounds"),
    (("--buffer_size=3", "--local_steps=4", "--clients=3"), "makes synchronous rounds"),
    (("--buffer_size=3", "--local_steps=4", "--issync=1"), "remove issync"),
    (("--buffer_size=3", "--local_steps=4", "--aggregate=median"), "keeps only their running mean; use mean"),
    (("--buffer_size=3", "--local_steps=4", "--participation=0.5"), "whichever are ready make it; set it to 1"),
    (("--buffer_size=3", "--local_steps=4", "--round_deadline_secs=5"), "rounds do not wait; set it to 0"),
    (("--buffer_size=3", "--local_steps=4", "--pipeline_depth=1"), "computes ahead of the answer"),
    (("--buffer_size=3", "--local_steps=4", "--clip_difference_norm=1", "--ps_hosts=a:1,c:1", "--worker_hosts=b:1"),
     "needs whole differences on one ps"),
    (("--buffer_size=-1", "--local_steps=4"), "must be an integer from 0"),
])
def test_what_makes_no_sense_is_refused(run, flags, words):
    result = run(*flags, status=2)
    assert words in result.stdout + result.stderr
