"""A worker of a synchronous cluster whose gradients are not finite, using the protocol's second implementation."""

import collections
import ssl
import struct
import time

import protocol

NAN, INFINITY, ONE = (struct.pack("<f", value) for value in (float("nan"), float("inf"), 1.0))
BROKEN = (OSError, EOFError, ssl.SSLError)
NOT_READY, OLD_GENERATION, TOO_LATE = 3, 4, 6  # errors
STALE, NOT_FINITE, NOT_WANTED = 3, 4, 5  # outcomes of a push


class Refused(Exception):
    """The ps does not admit it, for now."""


class Shard:
    """Its link to one ps: says hello, learns the shard's contents, and pushes gradients of one float."""

    def __init__(self, host, key, deadline, timeout=3, **hello):
        name, port = host.split(":")
        self.deadline = deadline
        self.client = protocol.Client(int(port), str(key), host=name, timeout=timeout)
        try:
            said, fields = self.client.hello(**hello)
            if said != "welcome":
                raise Refused(fields)
            self.catch_up()
        except BaseException:
            self.close()
            raise

    def close(self):
        self.client.socket.close()

    def answer(self):
        """The last frame of the answer; meanwhile the ps may ping."""
        while True:
            name, fields, _ = self.client.receive()
            if name == "ping":
                pong = protocol.encode("pong", nonce=fields["nonce"])
                self.client.socket.sendall(protocol.frame("pong", pong, request=fields["request"],
                                                          generation=self.client.generation))
            elif name == "leave":
                raise Refused(fields)
            elif fields["last"]:
                return name, fields

    def catch_up(self):
        """The shard's state, and the step of training."""
        model = {"state": 0}
        while model["state"] != 2:
            assert time.monotonic() < self.deadline, f"no parameters: {model}"
            self.client.send("get_model", wait_ms=1000)
            name, model = self.answer()
            if name == "error":
                raise Refused(model)
        self.client.generation = model["generation"]
        self.first = model["ranges"][0][0]
        self.version, self.step = model["version"], model["global_step"]

    def push(self, sequence, value):
        self.client.send("push", sequence=sequence, base_version=self.version, base_step=self.step, token=self.step,
                         examples=50, loss=1.0, ranges=[(self.first, 1)], bulk=value)

    def outcome(self):
        """The outcome of a push; None if it did not count because the ps went back to a checkpoint or gave up waiting.
        """
        name, fields = self.answer()
        if name == "error":
            assert fields["code"] in (NOT_READY, OLD_GENERATION, TOO_LATE), fields
            self.catch_up()
            return None
        if fields["outcome"] == NOT_WANTED:
            raise Refused("the job is over")  # the next worker to start begins another one
        self.version, self.step = fields["version"], fields["global_step"]
        return fields["outcome"]


class DivergingWorker:
    """.outcomes: of its pushes, by the numbers in `pushed`. values: what it pushes to each ps, in turn."""

    def __init__(self, hosts, key, values, **hello):
        self.hosts, self.key, self.values, self.hello = hosts, key, values, hello
        self.outcomes = collections.Counter()
        self.sequence = 0

    def push(self, shards):
        self.sequence += 1
        for shard, value in zip(shards, self.values):
            shard.push(self.sequence, value)
        for shard in shards:
            outcome = shard.outcome()
            if outcome is not None:
                self.outcomes[outcome] += 1

    def run(self, refusals, within):
        """Until that many of its gradients were refused; meanwhile links and ps may come and go."""
        deadline = time.monotonic() + within
        why = None
        while self.outcomes[NOT_FINITE] < refusals:
            shards = []
            try:
                for host in self.hosts:
                    shards.append(Shard(host, self.key, deadline, **self.hello))
                while self.outcomes[NOT_FINITE] < refusals and time.monotonic() < deadline:
                    self.push(shards)
            except (*BROKEN, Refused) as error:
                why = error
                time.sleep(0.02)
            finally:
                for shard in shards:
                    shard.close()
            assert time.monotonic() < deadline, f"{refusals} refusals are wanted, got {self.outcomes}; {why}"
