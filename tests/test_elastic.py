"""Workers beyond worker_hosts, where the config lets them join."""

import re
import subprocess

import protocol
import pytest

from clusters import Cluster
from runs import wait_for


@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.full(but=("async",))
def test_a_worker_that_is_not_listed_joins_and_goes(trainer, tmp_path, mode):
    flags = ("--elastic=1", "--train_steps=1000000", "--lease_secs=5", "--learning_rate=0.05",
             *(("--issync=1",) if mode == "sync" else ()))
    with Cluster(trainer, tmp_path, ps=2, workers=1, flags=flags) as cluster:
        cluster.start_all()
        wait_for(lambda: (cluster.status()[1]["ps 0"]["global_step"] or 0) > 5, "step 5")
        assert set(cluster.status()[1]) == {"ps 0", "ps 1", "worker 0"}
        cluster.start("worker 1")
        cluster.start("worker 7")
        for name in ("worker 1", "worker 7"):
            wait_for(lambda: (cluster.status()[1].get(name, {}).get("local_step") or 0) > 5, f"steps of {name}")
        status, members = cluster.status()
        assert status == 0 and set(members) == {"ps 0", "ps 1", "worker 0", "worker 1", "worker 7"}
        assert members["worker 7"]["address"] == "not listed"
        cluster.kill("worker 7")
        wait_for(lambda: cluster.status()[1]["worker 7"]["state"] == "lost", "lost lease")
        before = cluster.status()[1]["ps 0"]["global_step"]
        wait_for(lambda: cluster.status()[1]["ps 0"]["global_step"] > before + 10, "steps without worker 7")


def test_who_asks_need_not_know_how_many_may_be_there(trainer, tmp_path):
    flags = ("--elastic=1", "--elastic_workers=16000", "--train_steps=1000000", "--lease_secs=5")
    with Cluster(trainer, tmp_path, workers=1, flags=flags) as cluster:
        cluster.start_all()
        cluster.start("worker 15000")
        wait_for(lambda: (cluster.status()[1].get("worker 15000", {}).get("local_step") or 0) > 5, "its steps")
        assert set(cluster.status()[1]) == {"ps 0", "worker 0", "worker 15000"}


def test_otherwise_they_are_refused(run):
    hosts = ("--job_name=worker", "--ps_hosts=a:1", "--worker_hosts=b:1,c:1")
    assert "must be from 0 to 1" in run(*hosts, "--task_index=2", status=2).stderr
    assert "must be from 0 to 65 (worker_hosts lists 2 and elastic lets more join), not 66" in run(
        *hosts, "--elastic=1", "--task_index=66", status=2).stderr
    many = ("--elastic=1", "--elastic_workers=16000")
    assert "must be from 0 to 16001 (" in run(*hosts, *many, "--task_index=16002", status=2).stderr
    assert "needs data_sharding shuffled" in run(*hosts, "--elastic=1", "--data_sharding=disjoint", status=2).stderr


def number_of(cluster, name):
    cluster.until(name, lambda text: "assigned by ps 0" in text or '"status"' in text, "a number")
    return int(re.search(r"this is worker (\d+), assigned by ps 0", cluster.text(name))[1])


def test_a_worker_without_a_number_is_given_one(trainer, tmp_path):
    """The same one after a restart; another one for another worker."""
    flags = ("--elastic=1", "--elastic_workers=20", "--train_steps=1000000", "--lease_secs=2", "--learning_rate=0.05")
    with Cluster(trainer, tmp_path, workers=1, flags=flags) as cluster:
        cluster.start_all()
        numbers = {}
        for folder in ("one", "other"):
            cluster.start("worker auto", f"--train_dir={tmp_path / folder}")
            numbers[folder] = number_of(cluster, "worker auto")
            name = f"worker {numbers[folder]}"
            wait_for(lambda name=name: (cluster.status()[1].get(name, {}).get("local_step") or 0) > 5, "its steps")
            cluster.members[folder] = cluster.members.pop("worker auto")
        assert len({0, *numbers.values()}) == 3 and max(numbers.values()) <= 20
        cluster.kill("one")
        cluster.start("worker auto", f"--train_dir={tmp_path / 'one'}")
        assert number_of(cluster, "worker auto") == numbers["one"]
        name = f"worker {numbers['one']}"
        wait_for(lambda: (cluster.status()[1][name].get("local_step") or 0) > 5, "its steps again")


def test_a_number_by_certificate(trainer, tmp_path):
    """A certificate that names the worker needs nobody; with one for any worker its key identifies it, wherever it
    runs."""
    keys = tmp_path / "keys"
    subprocess.run([trainer, "keygen", f"--ca={keys}"], check=True, capture_output=True)

    def keygen(member, name):
        subprocess.run([trainer, "keygen", f"--ca={keys}", f"--member={member}", f"--out={tmp_path / name}"],
                       check=True, capture_output=True)
        return f"--fleet_key={tmp_path / name}"

    flags = ("--elastic=1", "--train_steps=1000000", "--lease_secs=2", "--learning_rate=0.05")
    with Cluster(trainer, tmp_path, workers=2, flags=flags) as cluster:
        cluster.start("ps 0", keygen("ps:0", "ps.key"))
        cluster.start("worker auto", keygen("worker:0", "chief.key"))
        cluster.until("ps 0", lambda text: re.search(r"worker 0 \([^)]*\) joined", text), "worker 0")
        cluster.members["chief"] = cluster.members.pop("worker auto")
        any_worker = keygen("worker", "any.key")
        cluster.start("worker auto", any_worker)
        number = number_of(cluster, "worker auto")
        assert number >= 2
        cluster.until("ps 0", lambda text: re.search(rf"worker {number} \([^)]*\) joined", text), "the other one")
        cluster.kill("worker auto")
        cluster.start("worker auto", any_worker, f"--train_dir={tmp_path / 'elsewhere'}")
        assert number_of(cluster, "worker auto") == number


def test_who_has_no_number_may_ask_for_one_and_nothing_else(trainer, tmp_path):
    with Cluster(trainer, tmp_path, workers=1, flags=("--elastic=1", "--elastic_workers=3")) as cluster:
        cluster.start("ps 0")
        port = int(cluster.ps_hosts[0].split(":")[1])
        cluster.until("ps 0", lambda text: "listens" in text, "a listener")
        places = []
        for key in (5, 6, 7, 5):
            client = protocol.Client(port, key=tmp_path / "fleet.key")
            name, fields = client.hello(role=2, index=-1, digest="")
            assert name == "welcome", fields
            for asked, values in (("report", {}), ("get_status", {}), ("heartbeat", {}), ("get_program", {})):
                name, fields, _ = client.call(asked, **values)
                assert name == "error" and fields["code"] == 2, (asked, name, fields)
            name, fields, _ = client.call("get_place", key=key)
            assert name == "place", fields
            places.append(fields["index"])
            client.socket.close()
        assert places[3] == places[0] and sorted(places[:3]) == [1, 2, 3]
        client = protocol.Client(port, key=tmp_path / "fleet.key")
        assert client.hello(role=2, index=-1, digest="")[0] == "welcome"
        name, fields, _ = client.call("get_place", key=8)
        assert name == "place" and fields["index"] == places[1]  # nobody has used it, and it was asked for first
        name, fields, _ = client.call("get_place", key=9)
        assert name == "error" and "a worker has one key" in fields["message"]
        client = protocol.Client(port, key=tmp_path / "fleet.key")
        assert client.hello(role=2, index=-1, digest="0" * 64)[0] == "refused"
        client = protocol.Client(port, key=tmp_path / "fleet.key")
        assert client.hello(role=1, index=-1, digest="")[0] == "refused"


def test_auto_is_for_workers(run):
    hosts = ("--ps_hosts=a:1", "--worker_hosts=b:1", "--task_index=auto")
    assert "is for workers" in run("--job_name=ps", *hosts, status=2).stderr


def test_places_that_are_only_asked_for_keep_nobody_out(trainer, tmp_path):
    with Cluster(trainer, tmp_path, workers=1, flags=("--elastic=1", "--elastic_workers=3", "--train_steps=1000000",
                                                      "--lease_secs=30")) as cluster:
        cluster.start_all()
        port = int(cluster.ps_hosts[0].split(":")[1])
        cluster.until("ps 0", lambda text: "listens" in text, "a listener")
        for key in range(1, 8):
            client = protocol.Client(port, key=tmp_path / "fleet.key")
            assert client.hello(role=2, index=-1, digest="")[0] == "welcome"
            assert client.call("get_place", key=key)[0] == "place"
        cluster.start("worker auto")
        number = number_of(cluster, "worker auto")
        wait_for(lambda: (cluster.status()[1].get(f"worker {number}", {}).get("local_step") or 0) > 5, "its steps")


def test_a_worker_waits_until_a_place_is_free(trainer, tmp_path):
    with Cluster(trainer, tmp_path, workers=1, flags=("--elastic=1", "--elastic_workers=1", "--train_steps=1000000",
                                                      "--lease_secs=2")) as cluster:
        cluster.start_all()
        cluster.start("worker 1")
        wait_for(lambda: (cluster.status()[1].get("worker 1", {}).get("local_step") or 0) > 2, "steps of worker 1")
        cluster.start("worker auto")
        cluster.until("worker auto", lambda text: "waiting for a place" in text, "word that it waits")
        cluster.kill("worker 1")
        assert number_of(cluster, "worker auto") == 1


def test_a_chief_waits_for_those_who_are_not_listed(trainer, tmp_path):
    with Cluster(trainer, tmp_path, workers=1, flags=("--elastic=1", "--elastic_workers=3", "--train_steps=20",
                                                      "--issync=1", "--min_workers=3")) as cluster:
        cluster.start_all()
        cluster.until("worker 0", lambda text: "min_workers is 3" in text, "line about workers that are missing")
        cluster.start("worker 1")
        assert not cluster.events("worker 0", "step")
        cluster.start("worker 2")
        cluster.wait("worker 0")


def test_a_name_brings_a_worker_back_to_its_place(trainer, tmp_path):
    """Also from elsewhere, with other arguments, as a new container is."""
    flags = ("--elastic=1", "--elastic_workers=20", "--train_steps=1000000", "--lease_secs=2")
    with Cluster(trainer, tmp_path, workers=1, flags=flags) as cluster:
        cluster.start_all()
        cluster.start("worker auto", "--worker_name=pump 7", "--num_threads=1")
        number = number_of(cluster, "worker auto")
        cluster.kill("worker auto")
        cluster.start("worker auto", "--worker_name=pump 7", "--num_threads=2")
        assert number_of(cluster, "worker auto") == number
