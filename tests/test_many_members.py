"""A ps with hundreds of members that mostly wait: they cost it neither threads nor buffers."""

import json
import pathlib
import re
import signal
import subprocess

import protocol
from clusters import Cluster
from runs import wait_for

MEMBERS = 300  # each with a connection that waits to be selected for a round, and one for its heartbeats
THREADS = 100  # of the ps, far fewer than connections
KIB_EACH = 40  # of memory, for each connection
NO_STEP = 1 << 52


class PlainCluster(Cluster):
    @property
    def hosts(self):
        return [*super().hosts, "--insecure=1"]

    def status(self, timeout=240):
        result = subprocess.run([self.trainer, "status", "--json", *self.hosts], cwd=self.folder, capture_output=True,
                                text=True, timeout=timeout)
        members = json.loads(result.stdout.splitlines()[-1])["members"]  # after a warning about plain text
        return result.returncode, {f"{member['role']} {member['task']}": member for member in members}


def of_process(process, key):
    text = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(rf"^{key}:\s+(\d+)", text, re.MULTILINE)[1])


def heartbeat(client):
    name, fields, _ = client.call("heartbeat", state=3, loss=1.0, message="", host="here", device="none")
    assert name == "lease", (name, fields)


def test_members_that_wait_cost_little(trainer, tmp_path):
    flags = ("--elastic=1", f"--elastic_workers={MEMBERS}", "--issync=1", "--local_steps=2",
             "--participation=0.1", "--layers=784,10", "--train_steps=1000000", "--lease_secs=600", "--min_workers=1")
    with PlainCluster(trainer, tmp_path, ps=1, workers=1, flags=flags) as cluster:
        cluster.start_all()
        wait_for(lambda: (cluster.status()[1]["ps 0"]["global_step"] or 0) > 2, "rounds of worker 0")
        digest = cluster.status()[1]["worker 0"]["config_digest"]
        ps, port = cluster.members["ps 0"], int(cluster.ps_hosts[0].split(":")[1])
        before_kib = of_process(ps, "VmRSS")
        waiting, beating = [], []
        for i in range(1, MEMBERS + 1):
            for clients in (waiting, beating):
                client = protocol.Client(port, insecure=True, timeout=60)
                name, fields = client.hello(role=2, index=i, incarnation=1000 + i, digest=digest)
                assert name == "welcome", fields
                client.generation = fields["generation"]
                clients.append(client)
            waiting[-1].send("pull", after_step=NO_STEP, wait_ms=60000, ranges=[(0, 1)])
        for client in beating:
            heartbeat(client)
        wait_for(lambda: of_process(ps, "Threads") < THREADS, "threads that end")
        assert of_process(ps, "VmRSS") - before_kib < 2 * MEMBERS * KIB_EACH
        for client in reversed(beating):  # they continue after their rest
            heartbeat(client)
        asked = 0
        for client in waiting:  # some are selected for the round that all of these hold up
            client.socket.settimeout(0.01)
            try:
                name, fields, _ = client.receive()
                assert name in ("values", "ping"), (name, fields)
                asked += name == "values" and fields["token"] >= 0
            except TimeoutError:
                pass
        assert 0 < asked < MEMBERS / 2
        waiting[-1].socket.close()
        waiting.pop()
        ps.send_signal(signal.SIGTERM)
        cluster.members["worker 0"].send_signal(signal.SIGTERM)
        ps.wait(240)
        for client in waiting + beating:
            client.socket.close()
