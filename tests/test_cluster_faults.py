"""A cluster whose parts fail: real processes, killed and frozen, links cut in the middle of a push.

The strictest test of synchronous training is arithmetic: with one gradient of every worker in each step (min_replicas),
a run ends with bit for bit the parameters of one local process, whatever the faults. A push that is lost, counted twice
or applied to another step would show.
"""

import os
import pathlib
import random
import resource
import signal
import subprocess
import time

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from clocks import Clocks
from clusters import Cluster
from diverging import NAN, NOT_FINITE, Shard
from relay import Relay
from runs import LONG_S, SMALL, checkpoints, newest, same_tensors, seed_of_tests, tensors, train, wait_for

FULL = os.environ.get("TRAINER_TEST_FULL") == "1"


def generator():
    seed = seed_of_tests()
    return random.Random(seed)


def repeats(short, full):
    return full if FULL else short


def reached(cluster, name="ps 0", what="global_step"):
    """A member's step, from `trainer status`; 0 if it does not answer."""
    return cluster.status()[1][name][what] or 0


def assert_bits_of_one_process(trainer, cluster, steps, workers, *flags):
    done = cluster.events("worker 0", "done")
    assert done and done[-1]["steps"] == steps, cluster.text("worker 0")[-3000:]
    train(trainer, *SMALL, *flags, f"--micro_batches={workers}", f"--train_steps={steps}", "--train_dir=local",
          cwd=cluster.folder)
    assert same_tensors(newest(cluster.folder / "kept"), newest(cluster.folder / "local")) == []


def sync(steps, *flags):
    return ("--issync=1", "--min_replicas=2", "--min_workers=2", f"--train_steps={steps}", "--train_dir=kept",
            "--lease_secs=2", "--recovery_wait_secs=0.2", *flags)


# --- Workers ---


@pytest.mark.parametrize("ps", [1, 2])
@pytest.mark.full(but=("2",))
def test_workers_killed_frozen_and_started_again(trainer, tmp_path, ps):
    """Worker 1 dies and returns, or stands still past its lease, again and again: every step has its gradient once."""
    dice, steps, flags = generator(), 100000, ("--optimizer=momentum", "--learning_rate=0.01")
    with Cluster(trainer, tmp_path, ps=ps, workers=2, flags=sync(steps, *flags, "--save_steps=200")) as cluster:
        cluster.start_all()
        wait_for(lambda: reached(cluster) > 10, "step 10")
        for i in range(repeats(10, 50)):
            before = reached(cluster)
            if i % 5 == 4:
                cluster.kill("worker 1", signal.SIGSTOP)
                time.sleep(dice.uniform(0.2, 2))
                cluster.kill("worker 1", signal.SIGCONT)
            else:
                cluster.kill("worker 1")
                time.sleep(dice.uniform(0, 0.3))
                cluster.start("worker 1")
            wait_for(lambda: reached(cluster) > before + dice.randrange(20), "step after worker 1 is back")
        servers = [f"ps {i}" for i in range(ps)]
        # Of the connections that are gone nothing is left: each memory has two sides.
        wait_for(lambda: sum(shared_memory(cluster, name) for name in servers) == sum(
            shared_memory(cluster, name) for name in ("worker 0", "worker 1")), "only the workers' memory")
        assert sum(open_memory(cluster, name) for name in cluster.members) == 0
        last = reached(cluster)
        cluster.kill("worker 0", signal.SIGTERM)  # a last checkpoint, of some step
        cluster.wait("worker 0", status=143)
        step = max(checkpoints(tmp_path / "kept"))
        assert step >= last
        train(trainer, *SMALL, *flags, "--micro_batches=2", f"--train_steps={step}", "--train_dir=local", cwd=tmp_path)
        assert same_tensors(newest(tmp_path / "kept"), newest(tmp_path / "local")) == []


def test_the_others_go_on_without_a_worker(trainer, tmp_path):
    """Asynchronous: worker 1 is killed, frozen and restarted, and worker 0 does not even slow down for long."""
    dice = generator()
    with Cluster(trainer, tmp_path, workers=3, flags=("--train_steps=1000000", "--lease_secs=1",
                                                      "--learning_rate=0.05")) as cluster:
        cluster.start_all()
        wait_for(lambda: reached(cluster) > 10, "step 10")
        for i in range(repeats(6, 50)):
            cluster.kill("worker 1", signal.SIGSTOP if i % 3 == 2 else signal.SIGKILL)
            before = reached(cluster)
            time.sleep(dice.uniform(0.05, 0.2))
            wait_for(lambda: reached(cluster) > before + 10, "steps of the others")
            if i % 3 == 2:
                wait_for(lambda: cluster.status()[1]["worker 1"]["state"] == "lost", "lost lease")
                cluster.kill("worker 1", signal.SIGCONT)
            else:
                cluster.start("worker 1")
            wait_for(lambda: cluster.status()[1]["worker 1"]["state"] == "training", "worker 1 at work")


def test_a_worker_that_sends_nan_is_refused_and_named(trainer, tmp_path):
    """Steps are made without it, at once. The protocol's second implementation plays it."""
    flags = ("--issync=1", "--train_steps=1000000", "--lease_secs=30", "--layers=784,10", "--num_threads=1")
    with Cluster(trainer, tmp_path, workers=2, flags=flags) as cluster:
        cluster.start("ps 0")
        cluster.start("worker 0")
        wait_for(lambda: cluster.status()[1]["worker 0"]["config_digest"], "worker 0")
        digest = cluster.status()[1]["worker 0"]["config_digest"]
        shard = Shard(cluster.ps_hosts[0], tmp_path / "fleet.key", time.monotonic() + LONG_S, timeout=LONG_S, index=1,
                      incarnation=7, digest=digest)
        for sequence in range(1, 20):
            before = shard.step
            shard.push(sequence, NAN)
            assert shard.outcome() == NOT_FINITE
            assert shard.step == before + 1  # the step was made without it, at once
        members = cluster.status()[1]
        shard.close()
        assert members["worker 1"]["dropped"] == 19 and members["worker 0"]["dropped"] == 0
        assert "worker 1 (127.0.0.1:" in cluster.text("ps 0") and "is not finite" in cluster.text("ps 0")


# --- The chief ---


@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.full(but=("async",))
def test_a_killed_chief_comes_back_and_resets_nothing(trainer, tmp_path, mode):
    dice = generator()
    flags = ("--train_steps=1000000", "--lease_secs=1", "--learning_rate=0.02", "--train_dir=kept",
             "--save_model_secs=0.2", *(("--issync=1",) if mode == "sync" else ()))
    with Cluster(trainer, tmp_path, ps=2, workers=2, flags=flags) as cluster:
        cluster.start_all()
        wait_for(lambda: checkpoints(tmp_path / "kept"), "checkpoint")
        for _ in range(repeats(3, 20)):
            time.sleep(dice.uniform(0, 0.3))
            cluster.kill("worker 0")
            wait_for(lambda: reached(cluster) > 0, "answer of ps 0")
            before = reached(cluster)
            wait_for(lambda: reached(cluster) > before, "step without the chief")
            cluster.start("worker 0")
            newest_before = max(checkpoints(tmp_path / "kept"))
            wait_for(lambda: max(checkpoints(tmp_path / "kept")) > newest_before, "checkpoint of the new chief")
            wait_for(lambda: reached(cluster) > before and reached(cluster, what="generation") == 1, "generation 1")


# --- Parameter servers ---


@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.full(but=("sync",))
def test_killed_ps_come_back_in_any_order(trainer, tmp_path, mode):
    """One, the other or both: all shards go back to the same checkpoint, workers rejoin, and nothing is started by
    hand."""
    dice = generator()
    flags = ("--train_steps=1000000", "--lease_secs=1", "--learning_rate=0.02", "--train_dir=kept",
             "--save_model_secs=0.1", "--recovery_wait_secs=0.2", *(("--issync=1",) if mode == "sync" else ()))
    slowest = 0
    with Cluster(trainer, tmp_path, ps=2, workers=2, flags=flags) as cluster:
        cluster.start_all()
        wait_for(lambda: checkpoints(tmp_path / "kept"), "checkpoint")
        for i in range(repeats(6, 30)):
            time.sleep(dice.uniform(0.05, 0.3))
            generation = max(reached(cluster, name, "generation") for name in ("ps 0", "ps 1"))
            names = dice.choice([["ps 0"], ["ps 1"], ["ps 0", "ps 1"], ["ps 1", "ps 0"]])
            kept = max(checkpoints(tmp_path / "kept"))
            for name in names:
                cluster.kill(name)
            time.sleep(dice.uniform(0, 0.4))
            for name in dice.sample(names, len(names)):
                cluster.start(name)
            begun = time.monotonic()
            wait_for(lambda: all(member["generation"] > generation and (member["global_step"] or 0) > kept + 3
                                 for name, member in cluster.status()[1].items() if name.startswith("ps")),
                     f"training after {names}", 20)
            slowest = max(slowest, time.monotonic() - begun)
        print(f"training again {slowest:.2f} s after the restart, at the latest")
        members = cluster.status()[1]
        assert members["ps 0"]["generation"] == members["ps 1"]["generation"]
        for worker in ("worker 0", "worker 1"):
            assert cluster.members[worker].poll() is None


def processor_seconds(process):
    """Processor time used by a process so far: user and system (proc(5), stat)."""
    fields = open(f"/proc/{process.pid}/stat").read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.full(but=("sync",))
def test_a_ps_that_is_away_for_long(trainer, tmp_path, mode):
    """All wait, name who is awaited, and use next to no processor; then training continues at once."""
    away_s = 300 if FULL else 15
    flags = ("--train_steps=1000000", "--lease_secs=5", "--learning_rate=0.02", "--train_dir=kept",
             "--save_model_secs=0.1", "--recovery_wait_secs=0.2", *(("--issync=1",) if mode == "sync" else ()))
    with Cluster(trainer, tmp_path, ps=2, workers=2, flags=flags) as cluster:
        cluster.start_all()
        wait_for(lambda: checkpoints(tmp_path / "kept"), "checkpoint")
        cluster.kill("ps 1")
        for name in ("worker 0", "worker 1"):
            cluster.until(name, lambda text: "waiting for ps 1 (" in text, "its wait")
        time.sleep(2)
        others = [process for name, process in cluster.members.items() if name != "ps 1"]
        before = [processor_seconds(process) for process in others]
        said = {name: len(cluster.text(name)) for name in cluster.members}
        time.sleep(away_s)
        used = [processor_seconds(process) - since for process, since in zip(others, before)]
        assert max(used) < 0.02 * away_s + 0.1, used
        for name in ("worker 0", "worker 1"):
            new = cluster.text(name)[said[name]:]
            assert f"waiting for ps 1 ({cluster.ps_hosts[1]}), " in new, new
            assert new.count("\n") < away_s / 4, new
        kept, generation = max(checkpoints(tmp_path / "kept")), reached(cluster, "ps 0", "generation")
        cluster.start("ps 1")
        begun = time.monotonic()
        wait_for(lambda: all(member["generation"] > generation and (member["global_step"] or 0) > kept + 3
                             for name, member in cluster.status()[1].items() if name.startswith("ps")),
                 "training", 20)
        print(f"training again {time.monotonic() - begun:.2f} s after the restart; processor seconds {used}")
        assert all(process.poll() is None for process in others)


def test_a_synchronous_run_through_lost_ps_has_the_bits_of_one_process(trainer, tmp_path):
    dice, steps, flags = generator(), 3000, ("--optimizer=adam", "--lr_decay=0.9")
    with Cluster(trainer, tmp_path, ps=2, workers=2, flags=sync(
            steps, *flags, "--save_steps=100", "--max_steps_per_s=400")) as cluster:  # not done before it is disturbed
        cluster.start_all()
        for i in range(repeats(4, 20)):
            wait_for(lambda: len(checkpoints(tmp_path / "kept")) > 0, "checkpoint")
            time.sleep(dice.uniform(0.05, 0.3))
            if max(checkpoints(tmp_path / "kept")) > steps - 1000:
                break
            names = dice.choice([["ps 0"], ["ps 1"], ["ps 0", "ps 1"], ["worker 0"], ["worker 1", "ps 1"]])
            for name in names:
                cluster.kill(name)
            for name in names:
                cluster.start(name)
            before = max(checkpoints(tmp_path / "kept"))
            wait_for(lambda: max(checkpoints(tmp_path / "kept")) > before, f"checkpoint after {names}")
        cluster.wait_all()
        assert_bits_of_one_process(trainer, cluster, steps, 2, *flags)


def test_all_killed_at_once_lose_the_time_since_the_last_checkpoint(trainer, tmp_path):
    dice, steps, flags = generator(), 2000, ("--optimizer=momentum", "--learning_rate=0.02")
    with Cluster(trainer, tmp_path, ps=2, workers=2, flags=sync(steps, *flags, "--save_steps=50")) as cluster:
        for i in range(repeats(4, 20)):
            cluster.start_all("--max_steps_per_s=100")  # so that they do not come to their end
            before = max(checkpoints(tmp_path / "kept"), default=0)
            wait_for(lambda: max(checkpoints(tmp_path / "kept"), default=0) > before, "checkpoint")
            time.sleep(dice.uniform(0, 0.05))
            for name in dice.sample(list(cluster.members), 4):
                cluster.kill(name)
            assert max(checkpoints(tmp_path / "kept")) > before
        cluster.start_all()
        cluster.wait_all()
        assert_bits_of_one_process(trainer, cluster, steps, 2, *flags)


# --- Links ---


def shared_memory(cluster, name):
    """How often a member has memory mapped that it shares with another one."""
    return pathlib.Path(f"/proc/{cluster.members[name].pid}/maps").read_text().count("/memfd:trainer-local")


def open_memory(cluster, name):
    """How many descriptors of such memory a member has open: it is mapped, and needs none."""
    files = pathlib.Path(f"/proc/{cluster.members[name].pid}/fd").iterdir()
    return sum(os.readlink(file).startswith("/memfd:trainer-local") for file in files)


@pytest.mark.parametrize("local", [True, False])
def test_members_of_one_machine_share_memory(trainer, tmp_path, local):
    """The bits of one process by either way, also after a kill."""
    steps, flags, way = 60, ("--optimizer=adam",), "true" if local else "false"
    with Cluster(trainer, tmp_path, ps=2, workers=2,
                 flags=(*sync(steps, *flags), "--max_steps_per_s=20", "--log_steps=3", f"--local={way}")) as cluster:
        cluster.start_all()
        for _ in range(2):
            cluster.until("worker 1", lambda text: '"event":"step"' in text, "a step")
            assert shared_memory(cluster, "worker 1") == (2 if local else 0)
            assert (shared_memory(cluster, "ps 0") > 0) == local
            assert cluster.status()[1]["worker 1"]["link"] == ("shared memory" if local else "TLS")
            said = cluster.text("worker 1").count("gradients and parameters go through shared memory")
            assert said == (2 if local else 0), cluster.text("worker 1")
            cluster.kill("worker 1")
            cluster.start("worker 1")
        cluster.wait_all()
        assert_bits_of_one_process(trainer, cluster, steps, 2, *flags)


def test_without_memory_to_share_the_link_stays_with_tls(trainer, tmp_path):
    """The ps may not make files, in memory or not, as large as a ring: each worker says so, and goes on."""
    steps, limited = 30, tmp_path / "limited"
    limited.write_text(f"#!/bin/bash\ntrap '' XFSZ\nulimit -f 100\nexec {trainer} \"$@\"\n")
    limited.chmod(0o755)
    with Cluster(trainer, tmp_path, workers=2, flags=sync(steps, "--max_steps_per_s=20", "--log_steps=3")) as cluster:
        cluster.programs["ps 0"] = str(limited)
        cluster.start_all()
        cluster.until("worker 1", lambda text: '"event":"step"' in text, "a step")
        assert cluster.status()[1]["worker 1"]["link"] == "TLS"
        assert shared_memory(cluster, "ps 0") == shared_memory(cluster, "worker 1") == 0
        assert open_memory(cluster, "ps 0") == 0
        cluster.wait_all()
        said = "shared memory is not used: no shared memory: File too large"  # the chief has a second connection
        assert cluster.text("worker 1").count(said) == 1 and 1 <= cluster.text("worker 0").count(said) <= 2
        assert_bits_of_one_process(trainer, cluster, steps, 2)


def relayed(cluster, dice):
    """Relays before every ps: 127.0.0.2 has them, 127.0.0.1 the ps themselves."""
    ports = [int(host.split(":")[1]) for host in cluster.ps_hosts]
    cluster.ps_hosts = [f"127.0.0.2:{port}" for port in ports]
    return [Relay(port, dice.randrange(1 << 30)) for port in ports]


def run_over_links_that_are_cut(cluster, dice, most, least_cuts):
    """From the start to the end of the job; every connection is reset after a random number of bytes."""
    relays = relayed(cluster, dice)
    for relay in relays:
        relay.cut_after = (20_000, most)
    cluster.start_all("--bind=127.0.0.1")
    cluster.wait_all()
    for relay in relays:
        relay.__exit__()
    cuts = sum(relay.cuts for relay in relays)
    print(f"{cuts} cuts of {sum(relay.connections for relay in relays)} connections")
    assert cuts >= least_cuts


@pytest.mark.parametrize("ps", [1, 2])
@pytest.mark.full(but=("2",))
def test_links_cut_in_the_middle_of_pushes(trainer, tmp_path, ps):
    """Every connection is reset after a random number of bytes, for that many steps: no update is lost or counted
    twice."""
    dice, steps, flags = generator(), repeats(150, 2000), ("--optimizer=adam",)
    with Cluster(trainer, tmp_path, ps=ps, workers=2, flags=sync(steps, *flags)) as cluster:
        run_over_links_that_are_cut(cluster, dice, 1_000_000, 20)
        assert_bits_of_one_process(trainer, cluster, steps, 2, *flags)


def test_asynchronous_pushes_over_links_that_are_cut_count_once(trainer, tmp_path):
    """One worker, so that the order of its pushes is fixed: the bits of one process again."""
    dice, steps, flags = generator(), repeats(300, 2000), ("--optimizer=adam",)
    with Cluster(trainer, tmp_path, ps=2, workers=1, flags=(f"--train_steps={steps}", "--train_dir=kept",
                                                            "--lease_secs=1", "--recovery_wait_secs=0.2",
                                                            *flags)) as cluster:
        run_over_links_that_are_cut(cluster, dice, 1_000_000, 10)
        assert_bits_of_one_process(trainer, cluster, steps, 1, *flags)


@pytest.mark.parametrize("wire", [
    ("--wire_dtype=bfloat16",),
    ("--wire_dtype=int8",),
    ("--wire_dtype=bfloat16", "--wire_top=0.5"),
], ids=["bfloat16", "int8", "largest"])
@pytest.mark.full(but=("int8",))
def test_what_a_cut_connection_was_told_is_told_again(trainer, tmp_path, wire):
    """bfloat16 is sent as differences from what a connection has brought: after each cut everything is sent again.
    Packed answers lead from one version to the next: after a cut all is sent."""
    dice, steps, flags = generator(), repeats(120, 1000), ("--optimizer=adam", *wire)
    with Cluster(trainer, tmp_path / "cut", ps=2, workers=2, flags=sync(steps, *flags)) as cluster:
        run_over_links_that_are_cut(cluster, dice, 500_000, 10)
    with Cluster(trainer, tmp_path / "whole", ps=2, workers=2, flags=sync(steps, *flags)) as cluster:
        cluster.start_all()
        cluster.wait_all()
    assert same_tensors(newest(tmp_path / "cut" / "kept"), newest(tmp_path / "whole" / "kept")) == []


def test_a_restore_over_links_that_are_cut(trainer, tmp_path):
    """Every connection ends after 200 KB, and a single vector is larger: the chief continues where it stopped, in the
    same generation."""
    dice, flags = generator(), ("--layers=784,100,10", "--optimizer=adam", "--min_replicas=1", "--min_workers=1")
    with Cluster(trainer, tmp_path, ps=1, workers=1, flags=sync(20, *flags)) as cluster:
        cluster.start_all()
        cluster.wait_all()
    with Cluster(trainer, tmp_path, ps=1, workers=1, flags=sync(40, *flags)) as cluster:
        (relay,) = relayed(cluster, dice)
        relay.cut_after = (200_000, 200_001)
        cluster.start_all("--bind=127.0.0.1")
        cluster.until("ps 0", lambda text: "the model of generation 1 is complete, at global step 20" in text,
                      "the whole model")
        assert relay.cuts >= 4
        relay.cut_after = None
        with relay.lock:
            for pair in relay.pairs:
                pair["left"] = None
        cluster.wait_all()
        relay.__exit__()
        assert_bits_of_one_process(trainer, cluster, 40, 1, *flags[:2])


@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.full(but=("async",))
def test_half_open_links_cost_one_lease_together(trainer, tmp_path, mode):
    """Every connection goes silent at once, without notice: all are reopened after one lease, not one lease each."""
    dice, steps, lease_s = generator(), 1000000, 10  # long, so that a slow machine does not look like a second lease
    flags = ("--optimizer=momentum", "--learning_rate=0.001")
    mode_flags = sync(steps) if mode == "sync" else (f"--train_steps={steps}", "--train_dir=kept")
    with Cluster(trainer, tmp_path, ps=3, workers=2, flags=(*mode_flags, *flags, f"--lease_secs={lease_s}")) as cluster:
        relays = relayed(cluster, dice)
        cluster.start_all("--bind=127.0.0.1")
        wait_for(lambda: reached(cluster) > 10, "step 10")
        longest = 0
        for i in range(repeats(3, 30)):
            time.sleep(dice.uniform(0, 0.5))
            for relay in relays:
                relay.stall()
            before, begun = reached(cluster), time.monotonic()
            wait_for(lambda: reached(cluster) > before + 3, f"steps after links {i} fell silent")
            longest = max(longest, time.monotonic() - begun)
        print(f"steps again {longest:.2f} s after all links fell silent, at the latest; the lease is {lease_s} s")
        assert longest < 2 * lease_s
        last = reached(cluster)
        cluster.kill("worker 0", signal.SIGTERM)
        cluster.wait("worker 0", status=143)
        if mode == "sync":
            step = max(checkpoints(tmp_path / "kept"))
            assert step >= last
            train(trainer, *SMALL, *flags, "--micro_batches=2", f"--train_steps={step}", "--train_dir=local",
                  cwd=tmp_path)
            assert same_tensors(newest(tmp_path / "kept"), newest(tmp_path / "local")) == []
        for relay in relays:
            relay.__exit__()


def test_nobody_waits_for_a_worker_that_reaches_only_some_ps(trainer, tmp_path):
    """Worker 2 reaches ps 0 and not ps 1, first because it never did, then because its links broke: synchronous steps
    are made without it, all report why, and it is back as soon as possible."""
    dice, flags = generator(), ("--issync=1", "--min_workers=2", "--train_steps=1000000", "--learning_rate=0.001",
                                "--layers=784,10", "--lease_secs=2")
    with Cluster(trainer, tmp_path, ps=2, workers=3, flags=flags) as cluster:
        relays = relayed(cluster, dice)
        far = relays[1]

        def state():
            return cluster.status()[1]["worker 2"]["state"]

        def lines_about(what):
            return sum(what in line and "worker 2 " in line for line in cluster.text("ps 0").splitlines())

        def goes_on_without(lines):
            wait_for(lambda: lines_about("it takes no part until") == lines, "line of ps 0")
            before = reached(cluster)
            wait_for(lambda: reached(cluster) > before + 10, "steps of the others")

        for name in ("ps 0", "ps 1", "worker 0", "worker 1"):
            cluster.start(name, "--bind=127.0.0.1")
        wait_for(lambda: reached(cluster) > 10, "step 10")
        far.refuses = True
        cluster.start("worker 2", "--bind=127.0.0.1")
        goes_on_without(1)
        assert f"has not reached ps 1 ({cluster.ps_hosts[1]}) for" in cluster.text("ps 0")
        cluster.until("worker 2", lambda text: "training paused until it answers" in text, "its own line")
        with far.lock:
            others = list(far.pairs)
        far.refuses = False
        wait_for(lambda: state() == "training", "worker 2 at work")
        wait_for(lambda: lines_about("reaches all ps again") >= 1, "line about its return")
        out, back = lines_about("it takes no part until"), lines_about("reaches all ps again")
        far.refuses = True
        with far.lock:
            own = [pair for pair in far.pairs if pair not in others]
        for pair in own:
            far.cut_pair(pair)
        goes_on_without(out + 1)
        wait_for(lambda: state() == "lost", "worker 2 lost")
        far.refuses = False
        wait_for(lambda: lines_about("reaches all ps again") == back + 1, "worker 2 at work again")
        for relay in relays:
            relay.__exit__()


@pytest.mark.parametrize("delay_s, bytes_per_s", [(0.1, 0), (0, 125_000)])
def test_slow_links_only_take_time(trainer, tmp_path, delay_s, bytes_per_s):
    """A round trip of 200 ms, or 1 Mbit/s: nobody is lost, nothing is sent twice, no processor is kept busy."""
    dice, steps, flags = generator(), 8, ("--layers=784,10",)
    with Cluster(trainer, tmp_path, workers=2, flags=sync(steps, *flags, "--lease_secs=15")) as cluster:
        relays = relayed(cluster, dice)
        cluster.start_all("--bind=127.0.0.1")
        relays[0].delay_s, relays[0].bytes_per_s = delay_s, bytes_per_s
        cluster.wait_all()
        relays[0].__exit__()
        assert "is lost" not in cluster.text("ps 0")
        assert_bits_of_one_process(trainer, cluster, steps, 2, *flags)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{usage.ru_utime + usage.ru_stime:.1f} s of processor time, so far in all tests")


# --- Clocks ---


def wall_times(folder):
    return [event.wall_time for path in sorted(folder.glob("events.*")) for event in EventFileLoader(str(path)).Load()]


def test_clocks_that_are_set(trainer, clocked, tmp_path):
    """Back by an hour, ahead by days, and back again, on all members and on one: nobody is lost, nothing is saved late
    or twice, and the bits are those of one process."""
    dice, flags = generator(), ("--optimizer=momentum", "--learning_rate=0.02", "--layers=784,10",
                                "--validation_size=0")
    if not clocked:
        pytest.skip("TRAINER_BINARY has no clock that can be set")
    with Cluster(trainer, tmp_path, workers=2, flags=sync(
            1000000, *flags, "--save_model_secs=0.2", "--lease_secs=15", "--save_summaries_steps=5")) as cluster:
        clocks = Clocks(clocked, cluster, ["ps 0", "worker 0"])  # worker 1's is left alone
        cluster.start_all()
        wait_for(lambda: checkpoints(tmp_path / "kept"), "checkpoint")
        for seconds in (-3600, 5 * 86400, -5 * 86400, dice.uniform(-1e6, 1e6), 0):
            clocks.set("ps 0", seconds)
            clocks.set("worker 0", seconds)
            step = reached(cluster)
            for _ in range(2):
                before = max(checkpoints(tmp_path / "kept"))
                wait_for(lambda: max(checkpoints(tmp_path / "kept")) > before, f"checkpoint at {seconds:.0f} s")
            wait_for(lambda: max(checkpoints(tmp_path / "kept")) >= step + 5, f"summary at {seconds:.0f} s")
        assert "is lost" not in cluster.text("ps 0")
        cluster.kill("worker 0", signal.SIGTERM)
        cluster.wait("worker 0", status=143)
    times = wall_times(tmp_path / "kept/summaries")
    assert max(times) - min(times) > 9 * 86400, "the clock was set, and shows where it may"
    train(trainer, *SMALL, *flags, "--micro_batches=2", f"--train_steps={max(checkpoints(tmp_path / 'kept'))}",
          "--train_dir=local", cwd=tmp_path)
    assert same_tensors(newest(tmp_path / "kept"), newest(tmp_path / "local")) == []


# --- Disks ---


def test_a_full_disk_at_checkpoint_time(trainer, tmp_path):
    """Training continues, the old checkpoint stays, the error is reported and shows in the exit status."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"can't mount a small tmpfs here: {mounted.stderr.strip()}")
    try:
        with Cluster(trainer, tmp_path, workers=2, flags=("--train_steps=1000000", "--lease_secs=2", "--max_to_keep=1",
                                                          "--learning_rate=0.02", "--save_model_secs=0.2",
                                                          "--validation_size=0",
                                                          f"--train_dir={disk}/kept")) as cluster:
            cluster.start_all()
            wait_for(lambda: checkpoints(disk / "kept"), "checkpoint")
            with open(disk / "ballast", "wb", buffering=0) as ballast:
                try:
                    while True:
                        ballast.write(bytes(4096))
                except OSError:
                    pass
            cluster.until("worker 0", lambda text: "No space left on device" in text and "status 1" in text,
                          "error about the checkpoint")
            kept, before = checkpoints(disk / "kept"), reached(cluster)
            wait_for(lambda: reached(cluster) > before + 50, "further steps")
            assert checkpoints(disk / "kept") == kept and tensors(newest(disk / "kept"))[0]
            (disk / "ballast").unlink()
            wait_for(lambda: max(checkpoints(disk / "kept")) > max(kept), "checkpoint once there is room")
            cluster.kill("worker 0", signal.SIGTERM)
            cluster.wait("worker 0", status=1)
            assert not [path for path in (disk / "kept").iterdir() if ".tmp" in path.name]
    finally:
        subprocess.run(["umount", disk], check=True)
