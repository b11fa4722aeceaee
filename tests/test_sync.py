"""Synchronous training with real processes: the bits of one process with micro-batches, backups, lost members."""

import ctypes
import os
import platform
import re
import signal
import struct
import time

import pytest

from clusters import Cluster
from runs import SMALL, newest, same_tensors, tensors, train, wait_for

SYNC = ("--issync=1", "--min_workers=1")


def reached(cluster, name, what="global_step"):
    return cluster.status()[1][name][what] or 0


def local(trainer, folder, workers, *flags):
    """The newest checkpoint of one process that trains with a micro-batch for each worker."""
    train(trainer, *SMALL, *flags, f"--micro_batches={workers}", "--train_dir=local", cwd=folder)
    return newest(folder / "local")


def assert_same(trainer, cluster, workers, *flags):
    cluster.wait_all()
    kept, alike = newest(cluster.folder / "kept"), local(trainer, cluster.folder, workers, *flags)
    assert same_tensors(kept, alike) == []
    assert tensors(kept)[1]["kept_rows"] == tensors(alike)[1]["kept_rows"]


@pytest.mark.parametrize("ps, workers, flags", [
    (1, 2, ("--optimizer=sgd", "--learning_rate=0.3")),
    (1, 3, ("--optimizer=adam", "--ema_decay=0.9", "--validate_steps=20", "--save_steps=15")),
    (2, 2, ("--optimizer=momentum", "--nesterov=1", "--lr_decay=0.8", "--epochs=2", "--train_steps=0")),
    (2, 3, ("--optimizer=adagrad", "--l2=0.001", "--placement=round_robin", "--clip_norm=0.3")),
    (3, 2, ("--optimizer=adadelta", "--layers=784,100,50,10", "--placement=greedy", "--dropout=0.2")),
    (4, 2, ("--layers=784,10", "--initializer=zeros", "--batch_size=77")),
])
@pytest.mark.full(but=("1-2-flags0", "2-2-flags2", "4-2-flags5"))
def test_all_workers_give_the_bits_of_one_process(trainer, tmp_path, ps, workers, flags):
    """Each worker computes what the micro-batch with its index would have been."""
    flags = ("--train_steps=60", *flags)
    given = {flag.split("=")[0]: flag for flag in flags}.values()
    with Cluster(trainer, tmp_path, ps=ps, workers=workers, flags=(*SYNC, *given, "--train_dir=kept",
                                                                  "--lease_secs=30")) as cluster:
        cluster.start_all()
        assert_same(trainer, cluster, workers, *given)
        done = cluster.events("worker 0", "done")[0]
        assert 0.2 < done["test_accuracy"] <= 1


def turn_ns(thread):
    """The time slice that this thread requests from the scheduler, by sched_getattr(2); 0 if the kernel does not tell.
    """
    attributes = ctypes.create_string_buffer(48)
    number = {"x86_64": 315, "aarch64": 275}[platform.machine()]
    if ctypes.CDLL(None, use_errno=True).syscall(number, int(thread), attributes, 48, 0) != 0:
        raise OSError(ctypes.get_errno(), f"sched_getattr of thread {thread}")
    return struct.unpack_from("<Q", attributes, 24)[0]


def turns_of(process):
    """Of all threads; one that ends meanwhile is not among those that serve."""
    found = []
    for thread in os.listdir(f"/proc/{process.pid}/task"):
        try:
            found.append(turn_ns(thread))
        except ProcessLookupError:
            pass
    return found


@pytest.mark.parametrize("mode", ["--issync=1", "--issync=0"])
def test_threads_that_all_wait_for_run_soon(trainer, tmp_path, mode):
    """Threads of a ps that serve synchronous workers request short slices; no others do."""
    if turn_ns(0) == 0:
        pytest.skip("this kernel knows no turns of threads (6.12 and on)")
    with Cluster(trainer, tmp_path, workers=2, flags=(mode, "--train_steps=1000000")) as cluster:
        cluster.start_all()
        wait_for(lambda: reached(cluster, "ps 0") > 10, "step 10")
        turns = {name: turns_of(process) for name, process in cluster.members.items()}
        assert (turns["ps 0"].count(100_000) >= 2) == (mode == "--issync=1")
        assert 100_000 not in turns["worker 0"] + turns["worker 1"]


def test_it_goes_on_from_checkpoints_of_one_process_and_back(trainer, tmp_path):
    flags = ("--optimizer=momentum",)
    with Cluster(trainer, tmp_path, ps=2, workers=2, flags=(*SYNC, *flags, "--train_dir=kept", "--train_steps=40",
                                                           "--lease_secs=30")) as cluster:
        train(trainer, *SMALL, *flags, "--micro_batches=2", "--train_steps=20", "--train_dir=kept", cwd=tmp_path)
        cluster.start_all()
        cluster.wait_all()
    train(trainer, *SMALL, *flags, "--micro_batches=2", "--train_steps=60", "--train_dir=kept", cwd=tmp_path)
    assert same_tensors(newest(tmp_path / "kept"), local(trainer, tmp_path, 2, *flags, "--train_steps=60")) == []


def test_bfloat16_on_the_wire_learns_as_well(trainer, tmp_path):
    flags = ("--wire_dtype=bfloat16", "--train_steps=200", "--lease_secs=30")
    with Cluster(trainer, tmp_path, workers=2, flags=(*SYNC, *flags)) as cluster:
        cluster.start_all()
        cluster.wait_all()
        assert cluster.events("worker 0", "done")[0]["test_accuracy"] > 0.8


@pytest.mark.parametrize("ps", [1, 2])
@pytest.mark.full(but=("1",))
def test_a_slow_worker_is_hidden_by_backups(trainer, tmp_path, ps):
    """Worker 2 is stopped most of the time; two of three gradients make a step, so nobody waits for it."""
    flags = ("--train_steps=100000", "--replicas_to_aggregate=2", "--lease_secs=30")
    with Cluster(trainer, tmp_path, ps=ps, workers=3, flags=(*SYNC, *flags)) as cluster:
        cluster.start_all()
        wait_for(lambda: reached(cluster, "worker 2", "local_step") > 5, "step of worker 2")
        for i in range(5):
            cluster.kill("worker 2", signal.SIGSTOP)
            stopped_at = reached(cluster, "ps 0")
            wait_for(lambda: reached(cluster, "ps 0") > stopped_at + 20, f"steps without worker 2, time {i}")
            cluster.kill("worker 2", signal.SIGCONT)
            # What it computed meanwhile is for a past step, and never counts.
            wait_for(lambda: reached(cluster, "worker 2", "dropped") > i,
                     f"gradient of worker 2 that is dropped, time {i}")
        status, members = cluster.status()
        assert status == 0 and members["ps 0"]["dropped"] > 0 and not members["worker 2"]["missing"]


def test_a_killed_worker_shrinks_the_step_after_its_lease(trainer, tmp_path):
    """Until its lease ends no step is made without it, and from then on every one."""
    lease_s = 4
    with Cluster(trainer, tmp_path, ps=2, workers=3,
                 flags=(*SYNC, "--train_steps=1000000", f"--lease_secs={lease_s}", "--layers=784,10")) as cluster:
        cluster.start_all()
        wait_for(lambda: reached(cluster, "ps 0") > 20, "step 20")
        begun = time.monotonic()
        cluster.kill("worker 2")
        stands_at = reached(cluster, "ps 0") + 1  # its last gradient may have arrived just before
        wait_for(lambda: reached(cluster, "ps 0") > stands_at, "step without worker 2", 15)
        # Its last message renewed its lease, at most a heartbeat's interval before.
        assert time.monotonic() - begun > lease_s / 2, "a step without worker 2, whose lease lasts"
        wait_for(lambda: reached(cluster, "ps 0") > stands_at + 20, "steps without worker 2", 15)
        # The other ps, which may have heard it slightly later, ends its lease itself.
        wait_for(lambda: cluster.status()[1]["worker 2"]["state"] == "lost", "worker 2 to be lost", 15)
        cluster.until("ps 0", lambda text: "worker 2 (127.0.0.1:" in text and "is lost" in text, "line about worker 2")
        # Back again, it counts again.
        cluster.start("worker 2")
        wait_for(lambda: cluster.status()[1]["worker 2"]["state"] in ("training", "waiting"), "worker 2 at work")
        assert cluster.status()[0] == 0


def test_min_replicas_waits_and_names_who_is_awaited(trainer, tmp_path):
    """If every worker is required, killing one costs only time: the bits are those of one process."""
    flags = ("--train_steps=600", "--optimizer=adam")
    with Cluster(trainer, tmp_path, workers=2, flags=(*SYNC, *flags, "--min_replicas=2", "--lease_secs=1",
                                                      "--train_dir=kept")) as cluster:
        cluster.start_all("--max_steps_per_s=100")
        wait_for(lambda: reached(cluster, "ps 0") > 20, "step 20")
        cluster.kill("worker 1")
        wait_for(lambda: re.search(r"waiting for (1 more worker to push step \d+ \(min_replicas is 2\)|worker 1)",
                                   cluster.status()[1]["ps 0"]["message"]), "message about worker 1")
        wait_for(lambda: "min_replicas is 2" in cluster.status()[1]["ps 0"]["message"], "message about min_replicas")
        cluster.start("worker 1", "--max_steps_per_s=100")
        assert_same(trainer, cluster, 2, *flags)


def test_flags_that_make_no_sense_together(run):
    hosts = ("--ps_hosts=a:1", "--worker_hosts=b:1,c:1", "--job_name=ps")
    for flags, words in [(("--issync=1", "--replicas_to_aggregate=3"), "worker_hosts lists 2, fewer than 3"),
                         (("--issync=1", "--replicas_to_aggregate=1", "--min_replicas=2"),
                          "must be at most 1, the gradients per step, not 2"),
                         (("--issync=0", "--replicas_to_aggregate=1"), "set issync=1"),
                         (("--issync=1", "--max_staleness=2"), "asynchronous training")]:
        assert words in run(*hosts, *flags, status=2).stderr


def test_status_of_a_step_that_waits(trainer, tmp_path):
    with Cluster(trainer, tmp_path, workers=2, flags=(*SYNC, "--train_steps=100000", "--lease_secs=30")) as cluster:
        cluster.start_all()
        wait_for(lambda: reached(cluster, "ps 0") > 20, "step 20")
        cluster.kill("worker 1", signal.SIGSTOP)
        wait_for(lambda: re.fullmatch(rf"waiting for worker 1 \({cluster.worker_hosts[1]}\) to push step \d+, \d+ s",
                                      cluster.status()[1]["ps 0"]["message"]), "message that names worker 1")
        cluster.kill("worker 1", signal.SIGCONT)
        step = reached(cluster, "ps 0")
        wait_for(lambda: reached(cluster, "ps 0") > step + 5, "further steps")
