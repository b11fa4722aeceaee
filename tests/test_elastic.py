"""Workers beyond worker_hosts, where the config lets them join."""

import pytest

from clusters import Cluster
from runs import wait_for


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_worker_that_is_not_listed_joins_and_goes(trainer, tmp_path, mode):
    flags = ("--elastic=1", "--train_steps=1000000", "--lease_secs=1", "--learning_rate=0.05",
             *(("--issync=1",) if mode == "sync" else ()))
    with Cluster(trainer, tmp_path, ps=2, workers=1, flags=flags) as cluster:
        cluster.start_all()
        wait_for(lambda: (cluster.status()[1]["ps 0"]["global_step"] or 0) > 5, "step 5")
        assert set(cluster.status()[1]) == {"ps 0", "ps 1", "worker 0"}
        cluster.start("worker 1")
        cluster.start("worker 7")
        for name in ("worker 1", "worker 7"):
            wait_for(lambda: (cluster.status()[1].get(name, {}).get("local_step") or 0) > 5, f"steps of {name}", 30)
        status, members = cluster.status()
        assert status == 0 and set(members) == {"ps 0", "ps 1", "worker 0", "worker 1", "worker 7"}
        assert members["worker 7"]["address"] == "not listed"
        cluster.kill("worker 7")
        wait_for(lambda: cluster.status()[1]["worker 7"]["state"] == "lost", "lost lease")
        before = cluster.status()[1]["ps 0"]["global_step"]
        wait_for(lambda: cluster.status()[1]["ps 0"]["global_step"] > before + 10, "steps without worker 7")


def test_otherwise_they_are_refused(run):
    hosts = ("--job_name=worker", "--ps_hosts=a:1", "--worker_hosts=b:1,c:1")
    assert "must be from 0 to 1" in run(*hosts, "--task_index=2", status=2).stderr
    assert "must be from 0 to 65 (worker_hosts lists 2 and elastic lets more join), not 66" in run(
        *hosts, "--elastic=1", "--task_index=66", status=2).stderr
    many = ("--elastic=1", "--elastic_workers=16000")
    assert "must be from 0 to 16001 (" in run(*hosts, *many, "--task_index=16002", status=2).stderr
    assert "needs data_sharding shuffled" in run(*hosts, "--elastic=1", "--data_sharding=disjoint", status=2).stderr
