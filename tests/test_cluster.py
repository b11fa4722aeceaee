"""Clusters of real processes: parameter servers and workers over TLS, asynchronous training from start to end."""

import json
import os
import random
import re
import signal
import subprocess
import time

import pytest

import runs
from clusters import Cluster, SMALL_CLUSTER
from ports import free_ports
from relay import Relay
from runs import checkpoints, newest, seed_of_tests, tensors, train


def done_of(cluster):
    return cluster.wait("worker 0").done


def test_one_ps_and_two_workers_train_and_leave(trainer, tmp_path):
    with Cluster(trainer, tmp_path, flags=("--train_steps=600", "--learning_rate=0.2", "--min_workers=2",
                                           "--max_steps_per_s=200")) as cluster:  # so that neither makes them all
        cluster.start_all()
        done = done_of(cluster)
        cluster.wait_all()
        assert done["steps"] == 600 and done["test_accuracy"] > 0.8
        assert done["global_steps_per_s"] > 0 and 0 < done["local_steps"] <= 600
        steps = [event["worker"] for name in ("worker 0", "worker 1") for event in cluster.events(name, "step")]
        assert set(steps) == {0, 1}, "both took part"


@pytest.mark.parametrize("order", [["worker 1", "worker 0", "ps 0"], ["worker 0", "ps 0", "worker 1"]])
def test_any_order_of_start(trainer, tmp_path, order):
    with Cluster(trainer, tmp_path, flags=("--train_steps=300", "--min_workers=2")) as cluster:
        for name in order:
            cluster.start(name)
            time.sleep(0.3)
        assert done_of(cluster)["steps"] == 300
        cluster.wait_all()


def test_a_worker_names_what_it_waits_for(trainer, tmp_path):
    with Cluster(trainer, tmp_path, flags=("--train_steps=50", "--min_workers=2")) as cluster:
        cluster.start("worker 1")
        cluster.until("worker 1", lambda text: "waiting for ps 0 (127.0.0.1:" in text, "line about the ps it waits for")
        cluster.start("ps 0")
        cluster.until("worker 1", lambda text: re.search(r"waiting for worker 0 \(.*\) to initialise the model", text),
                      "line about the chief")
        cluster.start("worker 0")
        cluster.wait_all()


def test_it_waits_for_min_workers(trainer, tmp_path):
    with Cluster(trainer, tmp_path, workers=3, flags=("--train_steps=100", "--min_workers=3")) as cluster:
        for name in ("ps 0", "worker 0", "worker 1"):
            cluster.start(name)
        cluster.until("worker 0", lambda text: "min_workers is 3" in text, "line about workers that are missing")
        assert not cluster.events("worker 0", "step")
        cluster.start("worker 2")
        cluster.wait_all()


BOX = ("--data_source=table", "--data_sharding=own", "--target=y", "--layers=2,8,2", "--local_steps=5",
       "--train_steps=1000000", "--max_steps_per_s=50", "--batch_size=10", "--issync=1", "--learning_rate=0.05",
       "--lease_secs=5")


def test_a_box_that_fails_at_each_start_stops_nobody(trainer, tmp_path):
    """A table without a column that the model needs, under a supervisor that starts the worker again and again."""
    for i, header in enumerate(("a,b,y", "a,b,y", "a,y")):
        (tmp_path / f"d{i}").mkdir()
        rows = [(str(row % 7), str(row % 5), "high" if row % 7 > 3 else "low") for row in range(100 + i)]
        (tmp_path / f"d{i}" / "train.csv").write_text("\n".join([header, *(
            ",".join(row if "b" in header else (row[0], row[2])) for row in rows)]) + "\n")
    with Cluster(trainer, tmp_path, workers=3) as cluster:
        cluster.flags = list(BOX)
        cluster.start("ps 0")
        for i in range(2):
            cluster.start(f"worker {i}", f"--data_dir=d{i}")
        step = lambda: cluster.status()[1]["ps 0"]["global_step"] or 0
        runs.wait_for(lambda: step() > 5, "steps of two")  # after a lease, for which the third might come
        for again in range(4):
            before = step()
            cluster.start("worker 2", "--data_dir=d2")
            assert "has no column b" in cluster.wait("worker 2", status=1).stdout
            runs.wait_for(lambda: step() > before + 3, "steps while the third box fails")
        text = cluster.text("ps 0")
        assert re.search(r"worker 2 \([^)]*\) failed: d2/train.csv: has no column b", text)
        assert "for the 4. time in a row" in text
        member = cluster.status()[1]["worker 2"]
        assert member["state"] == "failed" and "has no column b" in member["message"]


def test_http_of_a_cluster_is_the_chiefs(trainer, tmp_path):
    port = free_ports(1)[0]
    done = subprocess.run([trainer, "cluster", *SMALL_CLUSTER, "--train_steps=30", f"--http=127.0.0.1:{port}"],
                          cwd=tmp_path, capture_output=True, text=True, timeout=runs.LONG_S)
    assert done.returncode == 0 and "died" not in done.stderr, done.stdout + done.stderr
    assert len(re.findall(f"http.*127.0.0.1:{port}", done.stdout + done.stderr)) == 1


def test_a_ps_listens_on_another_port_than_the_world_sees(trainer, tmp_path):
    with Cluster(trainer, tmp_path, workers=1, flags=("--train_steps=20",)) as cluster:
        seen, inner = int(cluster.ps_hosts[0].split(":")[1]), free_ports(1)[0]
        cluster.ps_hosts = [f"127.0.0.2:{seen}"]
        with Relay(seen) as relay:
            relay.to = ("127.0.0.1", inner)
            cluster.start("ps 0", f"--bind=127.0.0.1:{inner}")
            cluster.start("worker 0")
            cluster.wait("worker 0")
            assert relay.connections > 0


@pytest.mark.parametrize("flags", [
    ("--optimizer=adam", "--ema_decay=0.9"),
    ("--optimizer=momentum", "--wire_dtype=bfloat16", "--l2=1e-4"),
    ("--optimizer=adagrad", "--placement=round_robin"),
    ("--optimizer=adadelta", "--placement=greedy", "--data_sharding=disjoint", "--layers=784,16,16,10"),
    ("--layers=784,10", "--wire_dtype=bfloat16", "--learning_rate=0.2"),
    ("--max_staleness=2", "--lr_decay=0.9", "--learning_rate=0.2"),
    ("--pipeline_depth=1", "--learning_rate=0.2"),
    ("--pipeline_depth=3", "--max_staleness=2", "--wire_dtype=bfloat16", "--learning_rate=0.1"),
])
@pytest.mark.full(but=("flags0", "flags2", "flags5", "flags7"))
def test_optimizers_placements_and_wires(trainer, tmp_path, flags):
    with Cluster(trainer, tmp_path, ps=3, workers=2, flags=("--train_steps=900", "--min_workers=2", *flags)) as cluster:
        cluster.start_all()
        done = done_of(cluster)
        cluster.wait_all()
        assert done["steps"] == 900 and done["test_accuracy"] > 0.7


def test_bfloat16_takes_a_third_of_the_bytes(trainer, tmp_path):
    """Gradients take half, and parameters are sent as differences."""
    took = {}
    for dtype in ("float32", "bfloat16"):
        flags = ("--train_steps=1000000", "--learning_rate=0.1", "--layers=784,100,10", f"--wire_dtype={dtype}")
        with Cluster(trainer, tmp_path / dtype, workers=1, flags=flags) as cluster:
            cluster.start_all()
            seen = []
            for step in (100, 400):
                runs.wait_for(lambda: (cluster.status()[1]["ps 0"]["global_step"] or 0) >= step, f"step {step}")
                member = cluster.status()[1]["ps 0"]
                seen.append((member["global_step"], member["bytes_in"] + member["bytes_out"]))
            took[dtype] = (seen[1][1] - seen[0][1]) / (seen[1][0] - seen[0][0])
            print(f"{dtype}: {took[dtype] / 1000:.0f} KB a step")
    assert took["bfloat16"] < 0.4 * took["float32"]


def test_more_ps_than_rows_to_share(trainer, tmp_path):
    with Cluster(trainer, tmp_path, ps=5, workers=1, flags=("--train_steps=60", "--placement=round_robin",
                                                            "--layers=784,10")) as cluster:
        cluster.start_all()
        assert done_of(cluster)["steps"] == 60
        cluster.wait_all()


def test_one_worker_computes_what_local_training_does(trainer, tmp_path):
    """The same batches, gradients and updates, in the same order: the same bits, whatever the number of shards."""
    flags = ("--train_steps=40", "--optimizer=momentum", "--validate_steps=0")
    train(trainer, *SMALL_CLUSTER, *flags, f"--train_dir={tmp_path}/local", cwd=tmp_path)
    with Cluster(trainer, tmp_path / "cluster", ps=2, workers=1, flags=flags) as cluster:
        cluster.start_all("--train_dir=kept")
        cluster.wait_all()
    assert runs.same_tensors(newest(tmp_path / "local"), newest(tmp_path / "cluster/kept")) == []


def test_checkpoints_go_from_cluster_to_local_and_back(trainer, tmp_path):
    kept = f"--train_dir={tmp_path}/kept"
    common = ("--optimizer=adam", "--ema_decay=0.9")
    both = ("--min_workers=2",)
    with Cluster(trainer, tmp_path / "first", ps=2, flags=("--train_steps=200", *both, *common, kept)) as cluster:
        cluster.start_all()
        cluster.wait_all()
    assert set(checkpoints(tmp_path / "kept")) == {200}
    done = train(trainer, *SMALL_CLUSTER, *common, "--train_steps=300", kept, cwd=tmp_path).done
    assert done["steps"] == 300 and done["local_steps"] == 100
    with Cluster(trainer, tmp_path / "second", flags=("--train_steps=400", *both, *common, kept)) as cluster:
        cluster.start_all()
        done = done_of(cluster)
        cluster.wait_all()
        assert cluster.events("worker 0", "start")[0]["global_step"] == 300
    assert done["steps"] == 400 and set(checkpoints(tmp_path / "kept")) == {200, 300, 400}


@pytest.mark.parametrize("ps, workers, steps, every, flags", [
    (2, 2, 4000, 25, ("--validate_steps=0",)),
    (2, 2, 4000, 25, ("--validate_steps=490",)),
    (1, 3, 2000, 20, ("--validate_steps=500", "--save_model_secs=0.2")),
    (2, 2, 2000, 10, ("--validate_steps=100", "--issync=true")),
    (3, 2, 600, 2, ("--validate_steps=100",)),  # faster than a disk can be: training waits
    (2, 2, 300, 1, ("--validate_steps=0", "--issync=true")),
])
@pytest.mark.full(but=("1-3-2000-20-flags2", "3-2-600-2-flags4", "2-2-300-1-flags5"))
def test_checkpoints_by_steps_are_of_those_steps(trainer, tmp_path, ps, workers, steps, every, flags):
    """However fast steps are made, and whatever else takes snapshots: none is missing, and by steps alone there are no
    others. Training waits for a chief and its disk, at most a lease, which is therefore long here."""
    flags = (f"--train_steps={steps}", f"--save_steps={every}", "--max_to_keep=0", f"--min_workers={workers}",
             "--lease_secs=60", *flags)
    with Cluster(trainer, tmp_path, ps=ps, workers=workers, flags=flags) as cluster:
        cluster.start_all("--train_dir=kept")
        cluster.wait_all()
        kept, due = checkpoints(tmp_path / "kept"), set(range(every, steps + 1, every))
        assert due <= set(kept), (sorted(due - set(kept)), cluster.text("worker 0")[-3000:])
        assert due == set(kept) or "--save_model_secs=0.2" in flags
        for step, path in kept.items():
            assert tensors(path)[1]["global_step"] == str(step)
        assert "no checkpoint of step" not in cluster.text("worker 0")


def test_training_waits_for_no_chief_that_is_gone(trainer, tmp_path):
    """Nobody reads what it ordered: the others wait at most a lease, continue, and what is missing is reported."""
    flags = ("--train_steps=0", "--save_steps=20", "--max_to_keep=0", "--log_steps=20")
    with Cluster(trainer, tmp_path, ps=2, workers=2, flags=flags) as cluster:
        cluster.start_all("--train_dir=kept")
        cluster.until("worker 0", lambda text: len(cluster.events("worker 0", "checkpoint")) >= 3, "checkpoints")
        cluster.members["worker 0"].send_signal(signal.SIGSTOP)
        frozen = len(cluster.events("worker 1", "step"))
        cluster.until("worker 1", lambda text: len(cluster.events("worker 1", "step")) > frozen + 20, "steps meanwhile")
        cluster.members["worker 0"].send_signal(signal.SIGCONT)
        cluster.until("worker 0", lambda text: "no checkpoint of step" in text, "what is missing")
        seen = len(cluster.events("worker 0", "checkpoint"))
        cluster.until("worker 0", lambda text: len(cluster.events("worker 0", "checkpoint")) > seen + 3, "checkpoints")
        cluster.kill("worker 0")
        frozen = len(cluster.events("worker 1", "step"))
        cluster.until("worker 1", lambda text: len(cluster.events("worker 1", "step")) > frozen + 20,
                      "steps without it")
        seen = set(checkpoints(tmp_path / "kept"))
        cluster.start("worker 0", "--train_dir=kept")
        cluster.until("worker 0", lambda text: len(set(checkpoints(tmp_path / "kept")) - seen) > 3, "checkpoints again")


def test_a_restarted_chief_resets_nothing(trainer, tmp_path):
    """It is killed while the other worker continues; nothing was ever saved, so only the shards have the state."""
    with Cluster(trainer, tmp_path, flags=("--train_steps=2000", "--log_steps=50", "--max_steps_per_s=200")) as cluster:
        cluster.start_all()
        cluster.until("worker 0", lambda text: '"global_step":' in text and '"event":"step"' in text, "steps")
        cluster.kill("worker 0")
        known = cluster.events("worker 1", "step")[-1]["global_step"] if cluster.events("worker 1", "step") else 0
        cluster.until("worker 1", lambda text: max([known, *(event["global_step"] for event in cluster.events(
            "worker 1", "step"))]) > known + 100, "steps without the chief")
        cluster.start("worker 0")
        done = done_of(cluster)
        start = cluster.events("worker 0", "start")[0]
        assert start["global_step"] > known, "it goes on where the shards are"
        assert done["steps"] == 2000
        cluster.wait_all()
        assert len([line for line in cluster.events("ps 0") if "writes the model" in line.get("message", "")]) == 1


def test_a_killed_worker_costs_nothing_but_itself(trainer, tmp_path, full):
    seed = seed_of_tests()
    chance = random.Random(seed)
    # At sgd's default rate of 0.5 such a small network oscillates with three workers' stale gradients, with or without
    # kills.
    flags = ("--train_steps=3000", "--log_steps=20", "--learning_rate=0.1")
    with Cluster(trainer, tmp_path, workers=3, flags=flags) as cluster:
        cluster.start_all()
        cluster.until("worker 0", lambda text: '"event":"step"' in text, "steps")
        for _ in range(10 if full else 3):
            victim = f"worker {chance.randrange(1, 3)}"
            time.sleep(chance.uniform(0, 0.2))
            if cluster.members[victim].poll() is None:
                cluster.kill(victim)
            cluster.start(victim)
        done = done_of(cluster)
        assert done["steps"] == 3000 and done["test_accuracy"] > 0.8
        assert cluster.wait("ps 0").status == 0


def test_a_ps_that_comes_back_is_given_the_newest_checkpoint(trainer, tmp_path):
    with Cluster(trainer, tmp_path, ps=2, flags=("--train_steps=8000", "--save_steps=100",
                                                 "--log_steps=50")) as cluster:
        cluster.start_all("--train_dir=kept")
        cluster.until("worker 0", lambda text: len(cluster.events("worker 0", "checkpoint")) >= 1, "checkpoint")
        cluster.kill("ps 1")
        cluster.start("ps 1", "--train_dir=kept")
        done = done_of(cluster)
        assert done["steps"] == 8000
        assert "generation 2 of the model begins" in cluster.text("worker 0")
        for name in ("ps 0", "ps 1", "worker 1"):
            cluster.wait(name)


def test_epochs_count_the_whole_job(trainer, tmp_path):
    """2500 training images in batches of 50: 4 epochs are 200 batches, whichever workers draw them."""
    with Cluster(trainer, tmp_path, workers=3, flags=("--train_steps=0", "--epochs=4", "--min_workers=3")) as cluster:
        cluster.start_all()
        done = done_of(cluster)
        assert done["steps"] == 200 and done["epochs"] == 4
        cluster.wait_all()


def test_target_accuracy_ends_the_job(trainer, tmp_path):
    with Cluster(trainer, tmp_path, flags=("--train_steps=100000", "--target_accuracy=0.6", "--min_workers=2",
                                           "--validate_steps=20")) as cluster:
        cluster.start_all()
        done = done_of(cluster)
        assert "validation accuracy 0.6 reached" in done["reason"] and done["best_accuracy"] >= 0.6
        cluster.wait_all()


def test_a_diverging_job_fails_for_all(trainer, tmp_path):
    with Cluster(trainer, tmp_path, flags=("--train_steps=20000", "--learning_rate=1000", "--min_workers=2",
                                           "--activation=identity")) as cluster:
        cluster.start_all()
        cluster.wait("worker 0", status=1)
        assert "lower --learning_rate" in cluster.text("worker 0")
        cluster.wait("worker 1", status=1)
        cluster.wait("ps 0", status=None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_chief_leaves_a_checkpoint(trainer, tmp_path, number):
    with Cluster(trainer, tmp_path, workers=1, flags=("--train_steps=1000000", "--log_steps=20")) as cluster:
        cluster.start_all("--train_dir=kept")
        cluster.until("worker 0", lambda text: '"event":"step"' in text, "steps")
        cluster.kill("worker 0", number)
        cluster.wait("worker 0", status=128 + number)
        assert cluster.events("worker 0", "interrupted")[0]["path"] == str(newest(tmp_path / "kept")).replace(
            str(tmp_path) + "/", "")


def test_other_configs_are_refused_by_name(trainer, tmp_path):
    with Cluster(trainer, tmp_path, flags=("--train_steps=100000",)) as cluster:
        cluster.start("ps 0")
        cluster.start("worker 1", "--layers=784,300,10")
        cluster.wait("worker 1", status=1)
        assert "worker 1 has model.layers=[784,300,10], ps 0 has [784,32,10]" in cluster.text("worker 1")
        cluster.until("ps 0", lambda text: "model.layers=[784,300,10]" in text, "line about it")


def test_a_second_process_of_the_same_number_is_refused(trainer, tmp_path):
    with Cluster(trainer, tmp_path, flags=("--train_steps=1000000", "--log_steps=20")) as cluster:
        cluster.start_all()
        cluster.until("worker 1", lambda text: '"event":"step"' in text, "steps")
        first = cluster.members["worker 1"]
        cluster.start("worker 1")
        cluster.wait("worker 1", status=1)
        assert "worker 1 is already running" in cluster.text("worker 1")
        assert first.poll() is None
        first.kill()
        first.wait(240)


def test_without_a_key_no_role_starts(run, tmp_path):
    hosts = ("--ps_hosts=127.0.0.1:1", "--worker_hosts=127.0.0.1:2")
    for role in ("ps", "worker"):
        result = run(f"--job_name={role}", *hosts, *SMALL_CLUSTER, status=1)
        assert "trainer keygen --out=fleet.key" in result.stderr


def test_plain_text_is_said_loudly(trainer, tmp_path):
    with Cluster(trainer, tmp_path, flags=("--train_steps=50", "--min_workers=2", "--insecure")) as cluster:
        cluster.start_all()
        cluster.wait_all()
        assert all("INSECURE" in cluster.text(name) for name in cluster.members)


# --- trainer cluster ---


def cluster_command(trainer, tmp_path, *flags, status=0):
    return runs.run(trainer, "cluster", *SMALL_CLUSTER[:-1], *flags, cwd=tmp_path, status=status)


def test_cluster_command_trains_and_ends_with_the_chiefs_done_line(trainer, tmp_path):
    result = cluster_command(trainer, tmp_path, "--ps=2", "--workers=3", "--train_steps=300", "--log_format=json")
    assert result.done["member"] == "worker 0" and result.done["steps"] == 300
    assert {event["member"] for event in result.events} == {"ps 0", "ps 1", "worker 0", "worker 1", "worker 2"}
    assert result.stderr == ""


def test_cluster_command_shows_names(trainer, tmp_path):
    result = cluster_command(trainer, tmp_path, "--train_steps=100")
    assert re.search(r"^ps 0 +\| ", result.stdout, re.M) and re.search(r"^worker 1 +\| ", result.stdout, re.M)
    assert "test accuracy" in result.stdout


def members_of(process):
    """Ids of its child processes."""
    text = open(f"/proc/{process.pid}/task/{process.pid}/children").read()
    return [int(each) for each in text.split()]


def is_there(pid):
    try:
        return open(f"/proc/{pid}/stat").read().split(")")[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def start_cluster(trainer, tmp_path, *flags):
    process = subprocess.Popen([trainer, "cluster", *SMALL_CLUSTER[:-1], "--train_steps=100000000", "--log_steps=20",
                                "--log_format=json", *flags],
                               cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env={**os.environ, "TMPDIR": str(tmp_path)})
    lines = []
    for line in process.stdout:
        lines.append(json.loads(line))
        if lines[-1]["event"] == "step":
            break
    return process, lines


def test_ctrl_c_ends_the_whole_cluster(trainer, tmp_path):
    process, _ = start_cluster(trainer, tmp_path, "--train_dir=kept")
    members = members_of(process)
    assert len(members) == 3
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=240)
    assert process.returncode == 130, stdout + stderr
    assert not any(map(is_there, members))
    assert len(checkpoints(tmp_path / "kept")) == 1
    assert not list(tmp_path.glob("trainer-*")), "its key is gone"


def test_nobody_outlives_a_killed_cluster_command(trainer, tmp_path):
    process, _ = start_cluster(trainer, tmp_path)
    members = members_of(process)
    process.kill()
    process.communicate(timeout=240)
    runs.wait_for(lambda: not any(map(is_there, members)), "end of its members")


def command_line(pid):
    return open(f"/proc/{pid}/cmdline").read().split("\0")


def test_a_members_death_is_told(trainer, tmp_path):
    process, _ = start_cluster(trainer, tmp_path)
    victim = next(pid for pid in members_of(process) if "--job_name=ps" in command_line(pid))
    os.kill(victim, signal.SIGKILL)
    stdout, stderr = process.communicate(timeout=240)
    assert process.returncode == 1
    assert f"ps 0 (process {victim}) died: killed by signal 9" in stdout + stderr


@pytest.mark.parametrize("flag", ["--ps=0", "--workers=x", "--workers=1000"])
def test_cluster_command_checks_its_flags(run, flag):
    assert "must be an integer from 1 to" in run("cluster", flag, status=2).stderr


@pytest.mark.parametrize("flag, word", [("--micro_batches=2", "micro_batches is 2")])
def test_what_a_worker_cannot_do_yet_is_said(trainer, tmp_path, flag, word):
    with Cluster(trainer, tmp_path, workers=1, flags=(flag,)) as cluster:
        worker = cluster.start("worker 0")
        _, stderr = worker.communicate(timeout=240)
        assert worker.returncode != 0
    text = (stderr or b"") + b"".join(path.read_bytes() for path in tmp_path.glob("worker0*"))
    assert word.encode() in text, text


# --- Nobody is there ---


@pytest.mark.parametrize("name, flags", [("worker 0", ()), ("worker 1", ()), ("worker 1", ("--data_sharding=chief",))],
                         ids=["the chief", "a worker", "data of the chief"])
def test_who_reaches_nobody_gives_up(trainer, tmp_path, name, flags):
    """Like a worker that starts when the job is over and its ps are gone."""
    with Cluster(trainer, tmp_path, flags=("--join_secs=1", "--train_steps=10")) as cluster:
        cluster.start(name, *flags)
        cluster.wait(name, status=1)
        hosts = f"(ps 0 \\({cluster.ps_hosts[0]}|worker 0 \\({cluster.worker_hosts[0]})"
        told = f"gave up waiting for {hosts}\\) after [1-9]\\d* s \\(join_secs\\), having reached no member: "
        assert re.search(told, cluster.text(name)), cluster.text(name)


def test_who_has_reached_a_ps_once_waits_for_it(trainer, tmp_path):
    join_s = 5
    with Cluster(trainer, tmp_path, workers=1, flags=(f"--join_secs={join_s}", "--train_steps=1000000",
                                                      "--train_dir=run", "--save_model_secs=0.2")) as cluster:
        cluster.start("ps 0")
        cluster.until("ps 0", lambda text: "listens on port" in text, "listening")
        cluster.start("worker 0")
        cluster.until("worker 0", lambda text: '"event":"checkpoint"' in text, "a checkpoint")
        cluster.kill("ps 0")
        cluster.until("worker 0", lambda text: "waiting for ps 0" in text, "word of the wait")
        time.sleep(join_s)
        cluster.start("ps 0")
        seen = len(cluster.events("worker 0", "step"))
        cluster.until("worker 0", lambda text: len(cluster.events("worker 0", "step")) > seen, "steps")
