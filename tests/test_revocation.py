"""Keys that are revoked before they expire: by a list that operators sign, which reaches every member by ps 0."""

import json
import shutil
import subprocess
import time

import pytest

import protocol
from clocks import Clocks
from fleets import Fleet, text_of
from runs import LONG_S, wait_for

MEMBERS = ("ps:0", "ps:1", "worker:0", "worker:1")
DAY_S = 86400


class Machines(Fleet):
    """Each member on a machine of its own, a folder, with a certificate of its own."""

    def __init__(self, trainer, folder, members=MEMBERS, **options):
        super().__init__(trainer, folder, flags=("--issync=0",), **options)
        (self.folder / "fleet.key").unlink()
        self.keygen("--ca=keys")
        self.keygen("--ca=keys", "--member=operator", "--out=me.key")
        for member in members:
            name = member.replace(":", "")
            machine = self.folder / name
            machine.mkdir()
            for file in ("config.json", "operator.pub"):
                shutil.copy(self.folder / file, machine)
            self.keygen("--ca=keys", f"--member={member}", f"--out={name}.key")
        # The operator's machine.
        (self.folder / "config.json").write_text(json.dumps({**self.config, "security": {"fleet_key": "me.key"}}))

    def keygen(self, *flags):
        subprocess.run([self.trainer, "keygen", *flags], cwd=self.folder, check=True, capture_output=True,
                       timeout=LONG_S)

    def list_of(self, name):
        return self.folder / name.replace(" ", "") / "config.json.d" / "revoked"

    def start(self, name, *flags):
        machine = name.replace(" ", "")
        return super().start(name, f"--config={machine}/config.json", f"--fleet_key={machine}.key", *flags)

    def revoke(self, *arguments):
        return subprocess.run([self.trainer, "revoke", *arguments, *self.job_flags()], cwd=self.folder,
                              capture_output=True, text=True, timeout=LONG_S)

    def send(self, bulk):
        """As an operator's program would."""
        port = int(self.ps_hosts[0].split(":")[1])
        with protocol.Client(port, str(self.folder / "me.key"), str(self.folder / "keys" / "ca.key")) as client:
            assert client.hello(role=3, index=-1, digest="", cluster="north")[0] == "welcome"
            client.send("revoke", bulk=bulk, number=1)
            answer, fields, _ = client.receive()
            return answer, fields.get("message", "")


@pytest.fixture
def fleet(trainer, tmp_path):
    with Machines(trainer, tmp_path / "fleet") as fleet:
        yield fleet


def steps_of(fleet, name):
    return len(fleet.events(name, "step"))


def test_a_revoked_worker_is_cut_and_refused(fleet):
    fleet.start_and_train()
    result = fleet.revoke("worker:1", "--reason=stolen laptop")
    assert result.returncode == 0, text_of(result)
    assert "revoked: keys of worker:1 that were issued until" in text_of(result), text_of(result)
    # Open connections end at once, on machines that only hear of it from ps 0 too.
    for name in ("ps 0", "ps 1"):
        fleet.until(name, lambda text: "is cut: its key was revoked (list 1," in text, "a cut connection")
        assert "stolen laptop; make it a new one: trainer keygen --ca=DIR --member=worker:1" in fleet.text(name)
    # And no new one begins: the worker is told why, and so are those whom it asks.
    fleet.until("worker 1", lambda text: "our key was revoked" in text, "a reason")
    fleet.until("ps 0", lambda text: "is not trusted: its key was revoked (list 1," in text, "a refusal")
    fleet.until("worker 0", lambda text: "list 1 of revoked keys" in text, "the list")
    # The others train on.
    before = steps_of(fleet, "worker 0")
    wait_for(lambda: steps_of(fleet, "worker 0") > before + 1, "steps of worker 0")
    # All machines keep the list, and say who was locked out.
    for name in ("ps 0", "ps 1", "worker 0"):
        wait_for(lambda: fleet.list_of(name).exists(), f"the list of {name}")
        assert '"what":"revoke"' in (fleet.list_of(name).parent / "audit.log").read_text()
    show = fleet.revoke("show")
    assert show.returncode == 0 and "1 revoked" in text_of(show) and "stolen laptop" in text_of(show)
    # Restarted members have it from the beginning, also where ps 0 is away.
    fleet.kill("ps 1")
    fleet.start("ps 1")
    fleet.until("ps 1", lambda text: "its key was revoked (list 1," in text, "a refusal after a restart")
    # A new key for the same member is good; dates are whole seconds.
    fleet.kill("worker 1")
    time.sleep(1.1)
    (fleet.folder / "worker1.key").unlink()
    fleet.keygen("--ca=keys", "--member=worker:1", "--out=worker1.key")
    fleet.start("worker 1", "--train_dir=")
    fleet.until("worker 1", lambda text: '"event":"step"' in text, "steps with a new key")


def test_what_may_not_replace_a_list(fleet):
    """An older list, one that a stranger signed, one for another fleet, one with a signature too few."""
    for name in ("ps 0", "ps 1"):
        fleet.start(name)
    wait_for(lambda: fleet.revoke("show").returncode == 0, "ps 0")
    assert fleet.revoke("worker:1").returncode == 0
    first = fleet.list_of("ps 0").read_bytes()
    assert fleet.revoke("worker:0", "--reason=left us").returncode == 0
    second = fleet.list_of("ps 0").read_bytes()
    assert first != second
    for again in (first, second):
        answer, message = fleet.send(again)
        assert answer == "error" and "an older list never replaces a newer one" in message, message
    answer, message = fleet.send(second[:-1])
    assert answer == "error" and "is not signed by 1 of the 1 operator keys" in message, message
    # A stranger's machine trusts a key of its own.
    stranger = fleet.folder / "stranger"
    stranger.mkdir()
    shutil.copy(fleet.folder / "config.json", stranger)
    fleet.keygen("--operator=stranger/operator.key")
    shutil.copy(stranger / "operator.key.pub", stranger / "operator.pub")
    asks = fleet.revoke("ps:1", "--config=stranger/config.json")
    assert asks.returncode == 1 and "what ps 0 has: the list of revoked keys is not signed" in text_of(asks)
    # A member that finds such a list on its disk, or a torn one, does not start without it.
    path = fleet.list_of("ps 0")
    for wrong in (second[:100], first[:-64] + second[-64:]):
        fleet.kill("ps 0")
        path.write_bytes(wrong)
        fleet.start("ps 0")
        text = fleet.wait("ps 0", status=1).stdout
        assert "config.json.d/revoked" in text and "is not signed" in text, text
    path.write_bytes(second)
    fleet.start("ps 0")
    # Its own key: ps 0 refuses, since all others learn of it from ps 0.
    wait_for(lambda: fleet.revoke("show").returncode == 0, "ps 0")
    result = fleet.revoke("ps:0")
    assert result.returncode == 1 and "names the key of ps 0 itself" in text_of(result), text_of(result)
    # Taken off again.
    result = fleet.revoke("worker:0", "--restore")
    assert result.returncode == 0, text_of(result)
    show = text_of(fleet.revoke("show"))
    assert "worker:1" in show and "worker:0" not in show, show
    assert "is not on the list" in text_of(fleet.revoke("worker:5", "--restore"))
    assert "no member such as worker:1" in text_of(fleet.revoke("worker-1"))


def test_two_operators_sign_a_list(fleet):
    fleet.keygen("--operator=second.key")
    keys = (fleet.folder / "operator.key.pub").read_text() + (fleet.folder / "second.key.pub").read_text()
    for folder in (fleet.folder, fleet.folder / "ps0", fleet.folder / "ps1"):
        (folder / "operator.pub").write_text(keys + "threshold 2\n")
    fleet.start("ps 0")
    wait_for(lambda: fleet.revoke("show").returncode == 0, "ps 0")
    assert "asks for the signatures of 2 operators" in text_of(fleet.revoke("worker:1"))
    assert "has 1 of 2 signatures" in text_of(fleet.revoke("worker:1", "--list=new.list"))
    answer, message = fleet.send((fleet.folder / "new.list").read_bytes())
    assert answer == "error" and "is not signed by 2 of the 2 operator keys" in message
    assert "signed by a key twice" in text_of(fleet.revoke("sign", "--list=new.list"))
    result = fleet.revoke("sign", "--list=new.list", "--key=second.key")
    assert "has 2 of 2 signatures" in text_of(result) and "worker:1" in text_of(result)
    result = fleet.revoke("install", "--list=new.list")
    assert result.returncode == 0 and "ps 0 has list 1, with 1 revoked" in text_of(result), text_of(result)


def test_the_operators_key_is_replaced(fleet):
    """The list is signed again; until then the old key vouches for it."""
    fleet.start("ps 0")
    wait_for(lambda: fleet.revoke("show").returncode == 0, "ps 0")
    assert fleet.revoke("worker:1").returncode == 0
    fleet.kill("ps 0")
    fleet.keygen("--operator=new.key")
    machines = (fleet.folder, fleet.folder / "ps0")
    for machine in machines:
        (machine / "operator.pub").rename(machine / "operator.pub.previous")
        shutil.copy(fleet.folder / "new.key.pub", machine / "operator.pub")
    fleet.start("ps 0")
    wait_for(lambda: fleet.revoke("show").returncode == 0, "ps 0, by the former key")
    result = fleet.revoke("renew", "--key=new.key")
    assert result.returncode == 0 and "list 2" in text_of(result) and "1 revoked" in text_of(result), text_of(result)
    for machine in machines:
        (machine / "operator.pub.previous").unlink()
    fleet.kill("ps 0")
    fleet.start("ps 0")
    wait_for(lambda: "worker:1" in text_of(fleet.revoke("show")), "ps 0, by the new key")


def test_an_expired_list_is_said(fleet, clocked):
    """It stays in force, but whoever has it may lack a newer one."""
    clocks = Clocks(clocked, fleet, ("ps 0",))
    fleet.start("ps 0")
    wait_for(lambda: fleet.revoke("show").returncode == 0, "ps 0")
    assert fleet.revoke("worker:1", "--days=2").returncode == 0
    first = fleet.list_of("ps 0").read_bytes()
    fleet.kill("ps 0")
    clocks.set("ps 0", 3 * DAY_S)
    fleet.start("ps 0")
    fleet.until("ps 0", lambda text: "list of revoked keys (number 1) expired on" in text and "stays in force" in text,
                "a warning")
    # None that has expired is installed.
    fleet.list_of("ps 0").unlink()
    fleet.kill("ps 0")
    fleet.start("ps 0")
    wait_for(lambda: fleet.revoke("show").returncode == 0, "ps 0")
    answer, message = fleet.send(first)
    assert answer == "error" and "(number 1) expired on" in message and "trainer revoke renew" in message, message


def test_an_old_fleet_key_is_revoked(trainer, tmp_path):
    """During a rotation two keys are trusted; the old one is locked out before the last machine has changed."""
    with Fleet(trainer, tmp_path, ps=1, workers=1) as fleet:
        def run(*arguments):
            return subprocess.run([trainer, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=LONG_S)

        assert run("keygen", "--out=old.key").returncode == 0
        shutil.copy(tmp_path / "old.key", tmp_path / "fleet.key.previous")
        fleet.start_and_train()
        port = int(fleet.ps_hosts[0].split(":")[1])
        hello = {"role": 3, "index": -1, "digest": "", "cluster": "north"}
        with protocol.Client(port, str(tmp_path / "old.key"), str(tmp_path / "fleet.key")) as client:
            assert client.hello(**hello)[0] == "welcome"
            assert "one key for all" in text_of(run("revoke", "worker:1", *fleet.job_flags()))
            assert "uses itself, and the whole fleet's" in text_of(run("revoke", "fleet.key", *fleet.job_flags()))
            result = run("revoke", "old.key", *fleet.job_flags())
            assert result.returncode == 0, text_of(result)
            with pytest.raises((EOFError, ConnectionError, OSError)):
                client.receive()
        fleet.until("ps 0", lambda text: "is cut: its key was revoked (list 1," in text, "a cut connection")
        with pytest.raises((EOFError, OSError)):
            with protocol.Client(port, str(tmp_path / "old.key"), str(tmp_path / "fleet.key")) as client:
                client.hello(**hello)
        fleet.until("ps 0", lambda text: "give it the fleet's present key" in text, "a refusal")
