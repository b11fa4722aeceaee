"""What an operator signs, and who can abort a rollout: having the fleet's key is not enough."""

import contextlib
import json
import os
import pty
import re
import socket
import ssl
import subprocess
import threading
import time

import pytest

import protocol
from fleets import RATE, Fleet, text_of


class FalsePs:
    """Has the fleet's key, says what it likes, and keeps what an operator sends it."""

    def __init__(self, folder, port=0, manifest=b"", **told):
        self.told, self.manifest, self.signed = told, manifest, []
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(folder / "fleet.key")
        self.context.load_verify_locations(folder / "fleet.key")
        self.context.verify_mode = ssl.CERT_REQUIRED
        self.listener = socket.create_server(("127.0.0.1", port))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self.run)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(20)

    def run(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                with contextlib.suppress(OSError, EOFError):
                    self.serve(self.context.wrap_socket(connection, server_side=True))

    def serve(self, connection):
        client = protocol.Client.__new__(protocol.Client)
        client.socket = connection
        with connection:
            while True:
                name, fields, bulk = client.receive()
                answer, values, out = "done", {"global_step": -1}, b""
                if name == "hello":
                    answer = "welcome"
                    values = {"version": 1, "role": 1, "index": 0, "incarnation": 7, "fleet_version": 1}
                elif name == "report":
                    answer, values, out = "rollout", self.told, self.manifest
                else:
                    self.signed.append((name, bulk))
                connection.sendall(protocol.frame(answer, protocol.encode(answer, **values), bulk=out,
                                                  request=fields["request"]))


@pytest.fixture
def fleet(trainer, tmp_path):
    with Fleet(trainer, tmp_path / "fleet", ps=1, workers=1) as fleet:
        yield fleet


def asked(fleet, ps, *arguments):
    flags = [flag for flag in fleet.job_flags() if not flag.startswith("--ps_hosts")]
    return subprocess.run([fleet.trainer, "rollout", *arguments, f"--ps_hosts=127.0.0.1:{ps.port}", *flags],
                          cwd=fleet.folder, capture_output=True, text=True, timeout=240)


def in_force(fleet):
    """What ps 0 tells operators, and the manifest that comes with it."""
    with protocol.Client(int(fleet.ps_hosts[0].split(":")[1]), str(fleet.folder / "fleet.key")) as client:
        assert client.hello(role=3, index=-1, digest="", cluster="north")[0] == "welcome"
        _, fields, manifest = client.call("report", loss=-1.0)
        of_the_frame = ("request", "generation", "last", "protocol")
        return {name: value for name, value in fields.items() if name not in of_the_frame}, manifest


def test_a_false_ps_0_gets_nothing_signed(fleet):
    """It knows everything that a real one does, has seen rollouts, and has taken ps 0's place."""
    fleet.start_and_train()
    told, manifest = in_force(fleet)
    assert manifest == b"" and told["earlier"] == ""
    seen = []
    for version in (2, 3):
        new = fleet.candidate(version, learning_rate=version / 100)
        assert fleet.rollout(new, "--yes", "--healthy_secs=0.5").returncode == 0
        seen.append(in_force(fleet))
        assert seen[-1][1] == (fleet.folder / "config.json.d" / f"{version:08}.manifest").read_bytes()
    for name in ("worker 0", "ps 0"):
        fleet.kill(name)
        fleet.members[name].wait(240)
    new = fleet.candidate(9, learning_rate=0.5)
    told, manifest = seen[1]
    port = int(fleet.ps_hosts[0].split(":")[1])

    def refused(why, *whats, manifest=b"", **values):
        with FalsePs(fleet.folder, port, manifest, **values) as ps:
            for what in whats:
                result = fleet.rollout(what, "--yes")
                assert result.returncode == 1 and ps.signed == [] and why in text_of(result), (what, text_of(result))

    def shown(*whats, manifest=b"", **values):
        with FalsePs(fleet.folder, port, manifest, **values):
            return [text_of(fleet.rollout(what, "--dry-run")) for what in whats]

    # Without a manifest the previous config rests on its word alone; so do local keys, and the config itself.
    worse = told["earlier"].replace('"learning_rate":0.02', '"learning_rate":9')
    false = told["job"].replace('"learning_rate":0.03', '"learning_rate":9')
    assert worse != told["earlier"] and false != told["job"]
    threads = json.dumps({"train": {"num_threads": 64}}, separators=(",", ":"))
    profile = json.dumps({"output": {"profile": "/tmp/everything"}}, separators=(",", ":"))
    own_word = "only ps 0 says what was in force before"
    refused(own_word, "revert", **{**told, "earlier": worse})
    refused(own_word, "revert", **{**told, "earlier_local": threads})
    in_doubt = "only ps 0 says that this version 3 is in force"
    refused(in_doubt, "revert", new, manifest=manifest, **{**told, "local": threads})
    refused(in_doubt, "revert", new, manifest=manifest, **{**told, "job": false})
    assert f"warning: {in_doubt}" in shown(new, **{**told, "job": false})[0]
    # With its manifest, that counts.
    (text,) = shown("revert", manifest=manifest, **{**told, "earlier": worse, "earlier_local": threads})
    assert "0.03 -> 0.02  (live)" in text and "num_threads" not in text and "only ps 0" not in text
    # Local keys are refused in any case.
    spared = "output.profile, which belongs to each machine and can't be rolled out"
    refused(spared, "revert", new, **{**told, "local": profile})
    refused(spared, "revert", new, **{**told, "earlier_local": profile})
    # Old versions, and version numbers that would leave no room for others.
    refused("but this machine has version 3", "revert", manifest=seen[0][1], **seen[0][0])
    refused("version 99999990 was proposed", "revert", manifest=manifest, **{**told, "highest": 99999990})
    # An abort is for a rollout that this key has signed, while it is under way.
    refused("there is no rollout to abort", "abort", manifest=manifest, **told)
    refused("shows the manifest of version 3", "abort", manifest=manifest, **{**told, "state": 3, "target": 4})
    refused("is not signed by", "abort", manifest=manifest[:-1], **{**told, "state": 3})
    refused("shows no manifest", "abort", **{**told, "state": 3})


def test_an_operator_may_answer_for_it(fleet):
    """The config.json here differs from the fleet's, which nobody signed: the differences are shown, and must be
    confirmed."""
    fleet.start_and_train()
    new = fleet.candidate(2, learning_rate=0.05)
    path = fleet.folder / "config.json"
    path.write_text(json.dumps({**fleet.config, "train": {"learning_rate": 7}}))
    result = fleet.rollout(new, "--yes")
    assert result.returncode == 1 and "only ps 0 says that this version 1 is in force" in text_of(result)
    for answer, status in ((b"n\n", 1), (b"y\n", 0)):
        terminal, slave = pty.openpty()
        operator = subprocess.Popen([fleet.trainer, "rollout", new, "--yes", "--healthy_secs=0.5", *fleet.job_flags()],
                                    cwd=fleet.folder, stdin=slave, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                    text=True)
        os.close(slave)
        os.write(terminal, answer)
        output, _ = operator.communicate(timeout=240)
        os.close(terminal)
        assert operator.returncode == status and "Sign this, trusting ps 0 alone? [y/N]" in output, output
        assert re.search(r"train.learning_rate +7 -> 0.1", output), output
    assert set(fleet.versions().values()) == {2}


def audit(fleet):
    return [json.loads(line) for line in (fleet.folder / "config.json.d" / "audit.log").read_text().splitlines()]


def send(fleet, name, bulk, **values):
    with protocol.Client(int(fleet.ps_hosts[0].split(":")[1]), str(fleet.folder / "fleet.key")) as client:
        assert client.hello(role=3, index=-1, cluster="north")[0] == "welcome"
        client.send(name, bulk=bulk, **values)
        answer, fields, _ = client.receive()
        return answer, fields.get("message", "")


def test_an_abort_needs_the_operators_signature(fleet):
    fleet.start_and_train()

    def begin(version):
        operator = subprocess.Popen([fleet.trainer, "rollout", fleet.candidate(version, learning_rate=0.01 * version),
                                     "--yes", "--healthy_secs=600", *fleet.job_flags()], cwd=fleet.folder,
                                    stdout=subprocess.PIPE, text=True)
        fleet.until("ps 0", lambda text: f"watching version {version}" in text, "a new version")
        return operator

    operator = begin(2)
    subprocess.run([fleet.trainer, "keygen", "--operator=other.key"], cwd=fleet.folder, check=True, timeout=240)
    told, manifest = in_force(fleet)
    # Showing the operator the truth gets what it would send.
    with FalsePs(fleet.folder, manifest=manifest, **told) as ps:
        assert asked(fleet, ps, "abort").returncode == 0
    ((name, abort),) = ps.signed
    assert name == "abort_rollout"
    for wrong, why in ((b"", "is not signed"), (abort[:-1], "is not signed"), (b"x" + abort[1:], "is not signed"),
                       (b"x" * 1024, "is torn")):
        answer, message = send(fleet, "abort_rollout", wrong, who="me")
        assert answer == "error" and message.startswith("the abort") and why in message, message
    result = fleet.rollout("abort", "--key=other.key")
    assert result.returncode == 1 and "is not signed by the operator key" in text_of(result)
    assert set(fleet.versions().values()) == {2} and operator.poll() is None
    assert send(fleet, "abort_rollout", abort, who="me")[0] == "done"
    output, _ = operator.communicate(timeout=240)
    assert operator.returncode == 1 and "the operator aborted it" in output
    # It has been used, and is worthless for any other rollout.
    operator = begin(3)
    answer, message = send(fleet, "abort_rollout", abort, who="me")
    assert answer == "error" and 'is for version 2 of fleet "north", not for the rollout' in message
    result = fleet.rollout("abort")
    assert result.returncode == 0 and "the rollout of version 3 is aborted" in text_of(result), text_of(result)
    operator.communicate(timeout=240)
    aborts = [line for line in audit(fleet) if line["what"] == "abort"]
    assert [line["version"] for line in aborts if line["outcome"] == "done"] == [2, 3]
    assert any("is not signed" in line["outcome"] and line["who"] == "unknown" for line in aborts)


def test_what_nobody_signed_does_not_fill_the_audit_log(fleet):
    """300 proposals: it used to be 48 kB and 300 syncs."""
    fleet.start_and_train()
    fleet.kill("worker 0")
    begun = time.monotonic()
    with protocol.Client(int(fleet.ps_hosts[0].split(":")[1]), str(fleet.folder / "fleet.key")) as client:
        assert client.hello(role=3, index=-1, cluster="north")[0] == "welcome"
        for i in range(300):
            client.send("propose", bulk=b"x" * 300, healthy_s=1.0)
            assert client.receive()[0] == "error"
            client.send("abort_rollout", bulk=b"x" * 300, who="me")
            assert client.receive()[0] == "error"
    lines, most = audit(fleet), 12 + (time.monotonic() - begun) // 60  # one more each minute
    assert 10 <= len(lines) <= most and (fleet.folder / "config.json.d" / "audit.log").stat().st_size < 4000
    assert fleet.text("ps 0").count("is refused") <= most
    assert {line["what"] for line in lines} == {"propose", "abort"}


def test_a_public_key_that_anybody_may_replace(fleet):
    fleet.start_and_train()
    (fleet.folder / "operator.pub").chmod(0o666)
    result = fleet.rollout(fleet.candidate(2, learning_rate=0.05), "--yes")
    assert result.returncode == 1, text_of(result)
    assert "operator.pub can be written to by everybody" in text_of(result), text_of(result)


def test_two_of_three_operators(fleet):
    for name in ("anna", "bert", "cora", "stranger"):
        subprocess.run([fleet.trainer, "keygen", f"--operator={name}.key"], cwd=fleet.folder, check=True, timeout=240)
    team = [(fleet.folder / f"{name}.key.pub").read_text() for name in ("anna", "bert", "cora")]
    (fleet.folder / "operator.pub").write_text("".join(team) + "threshold 2\n")
    fleet.start_and_train()
    new, manifest = fleet.candidate(2, learning_rate=0.05), fleet.folder / "two.manifest"
    result = fleet.rollout(new, "--yes", "--key=anna.key")
    assert result.returncode == 1 and "asks for the signatures of 2 operators: add --manifest" in text_of(result)
    result = fleet.rollout(new, "--yes", "--key=anna.key", "--manifest=two.manifest")
    assert result.returncode == 0 and "has 1 of 2 signatures; next: trainer rollout sign" in text_of(result)
    # One signature is none, whoever brings it.
    signed_once = manifest.read_bytes()
    result = fleet.rollout("propose", "--manifest=two.manifest")
    assert result.returncode == 1 and "not signed by 2 of the 3 operator keys" in text_of(result)
    assert "not signed by 2 of the 3" in send(fleet, "propose", signed_once, healthy_s=1.0)[1]
    for key, why in (("anna", "signed by a key twice"), ("stranger", "operator.pub here does not have")):
        result = fleet.rollout("sign", "--yes", f"--key={key}.key", "--manifest=two.manifest")
        assert result.returncode == 1 and why in text_of(result), text_of(result)
        assert manifest.read_bytes() == signed_once
    result = fleet.rollout("sign", "--yes", "--key=cora.key", "--manifest=two.manifest")
    assert result.returncode == 0 and "has 2 of 2 signatures; next: trainer rollout propose" in text_of(result)
    assert "0.1 -> 0.05  (live)" in text_of(result)  # what is signed is shown
    result = fleet.rollout("propose", "--manifest=two.manifest", "--healthy_secs=0.5")
    assert result.returncode == 0 and "version 2 is in force" in text_of(result), text_of(result)
    assert set(fleet.versions().values()) == {2}
    # A restarted member believes it; the manifest vouches for what runs when the next one is signed.
    fleet.kill("worker 0")
    fleet.start("worker 0")
    fleet.until("worker 0", lambda text: '"event":"step"' in text, "steps")
    assert fleet.events("worker 0", "start")[0]["config_version"] == 2
    new = fleet.candidate(3, learning_rate=0.02)
    assert fleet.rollout(new, "--yes", "--key=bert.key", "--manifest=three.manifest").returncode == 0
    assert fleet.rollout("sign", "--yes", "--key=anna.key", "--manifest=three.manifest").returncode == 0
    operator = subprocess.Popen([fleet.trainer, "rollout", "propose", "--manifest=three.manifest", "--healthy_secs=600",
                                 *fleet.job_flags()], cwd=fleet.folder, stdout=subprocess.PIPE, text=True)
    fleet.until("ps 0", lambda text: "watching version 3" in text, "version 3")
    # One of them is enough to stop it.
    result = fleet.rollout("abort", "--key=cora.key")
    assert result.returncode == 0, text_of(result)
    operator.communicate(timeout=240)
    assert operator.returncode == 1 and set(fleet.versions().values()) == {2}
    begun = [line["outcome"] for line in audit(fleet) if line["what"] == "propose" and "begun" in line["outcome"]]
    assert len(begun) == 2 and all(re.fullmatch("begun, signed by [0-9a-f]{16} [0-9a-f]{16}", line) for line in begun)
    assert len({line.split()[-1] for line in begun}) == 2  # Cora, then Anna


def test_the_audit_log_shows_what_was_changed(fleet):
    fleet.start_and_train()
    assert fleet.rollout(fleet.candidate(2, learning_rate=0.05), "--yes", "--healthy_secs=0.5").returncode == 0
    fleet.kill("worker 0")
    fleet.kill("ps 0")
    log = fleet.folder / "config.json.d" / "audit.log"
    lines = log.read_text().splitlines(keepends=True)  # the kill may have come between the last one and audit.head
    result = fleet.rollout("history", "--verify")
    assert result.returncode == 0 and f"{len(lines)} lines, each of which follows" in text_of(result)
    for changed, where in (([*lines[:1], lines[1].replace("ps 0", "ps 1").replace("worker 0", "ps 1"), *lines[2:]], 3),
                           ([*lines[:1], *lines[2:]], 2), (lines[1:], 1),
                           ([lines[0], lines[2], lines[1], *lines[3:]], 2), (lines[:-2], None)):
        log.write_text("".join(changed))
        result = fleet.rollout("history", "--verify")
        assert result.returncode == 1, where
        assert (f"audit.log:{where}: this line is torn, or does not follow" if where else
                "its last line is not the one that") in text_of(result), text_of(result)
    log.unlink()
    result = fleet.rollout("history", "--verify")
    assert result.returncode == 1 and "audit.log" in text_of(result), text_of(result)
    log.write_text("".join(lines))
    assert fleet.rollout("history", "--verify").returncode == 0
