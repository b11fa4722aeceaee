"""Whose files the program acts on: not those that another user of the machine owns, may write to or put in the way.

The tests run as root and play two other users, who have no entries in /etc/passwd.
"""

import json
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import tempfile

import pytest

from ports import free_ports
from runs import LONG_S, wait_for
from served import Served

ALICE, MALLORY = 4242, 4343
TINY = ["--data_source=synthetic", "--synthetic_train=200", "--synthetic_test=100", "--layers=784,10",
        "--train_steps=1", "--progress=false"]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can play several users")


@pytest.fixture
def folder():
    """One that every user can reach; everything above belongs to root."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="trust-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def run_as(user, command, cwd, status=None, **options):
    """The user's group has the same number."""
    result = subprocess.run(list(map(str, command)), cwd=cwd, user=user, group=user, extra_groups=[], text=True,
                            capture_output=True, timeout=LONG_S, **options)
    assert status is None or result.returncode == status, result.stdout + result.stderr
    return result


def own(user, *paths):
    for path in paths:
        os.chown(path, user, user, follow_symlinks=False)


def accepts(trainer, folder, *flags, user=0, config="config.json"):
    """Whether a command that acts on the config takes this one; if not, what it says."""
    result = run_as(user, [trainer, "data", "info", f"--config={config}", *TINY, *flags], folder)
    assert result.returncode in (0, 2) and "is not trusted" in result.stderr or result.returncode == 0, result.stderr
    return result.returncode == 0 or result.stderr


def plant_program(folder, trace):
    """Files that make version 2 run a script."""
    digest = "0123456789abcdef" + 48 * "a"
    script = folder / "trainer.d" / digest[:16] / "trainer"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/bin/sh\ntouch {trace}\n")
    script.chmod(0o755)
    versions = folder / "config.json.d"
    versions.mkdir()
    (versions / "current").write_text("2\n")
    (versions / "00000002.program").write_text(f"{digest}\n")
    (versions / "00000002.json").write_text("{}")
    return [folder / "trainer.d", script.parent, script, versions, *versions.iterdir()]


# --- Programs ---


@pytest.mark.parametrize("has_config", [False, True])
@pytest.mark.parametrize("owner", [0, MALLORY])
def test_plain_trainer_runs_no_program_of_the_folder(trainer, folder, owner, has_config):
    place, trace = folder / "place", folder / "executed"
    place.mkdir()
    planted = plant_program(place, trace)
    if has_config:
        (place / "config.json").write_text("{}")
        planted.append(place / "config.json")
    own(owner, place, *planted)
    refused = has_config and owner == MALLORY
    result = run_as(0, [trainer, *TINY], place, status=2 if refused else 0)
    assert not trace.exists()
    assert not refused or f"config.json: is not trusted, because {place} belongs to user {MALLORY}" in result.stderr


def test_a_program_without_a_manifest_is_not_run(trainer, folder):
    """The digest must be right for it to come that far."""
    trace = folder / "executed"
    plant_program(folder, trace)
    (folder / "config.json").write_text("{}")
    script = next((folder / "trainer.d").glob("*/trainer"))
    digest = subprocess.run(["b2sum", "-l256", script], capture_output=True, check=True, text=True).stdout.split()[0]
    script.parent.rename(folder / "trainer.d" / digest[:16])
    (folder / "config.json.d/00000002.program").write_text(f"{digest}\n")
    for flags in (["--config=config.json"], ["--supervise"], ["--job_name=local"]):
        result = run_as(0, [trainer, *flags, *TINY], folder, status=0)
        assert "does not start, so this one continues" in result.stderr and "operator.pub" in result.stderr, flags
    run_as(0, [trainer, "keygen", "--operator=operator"], folder, status=0)
    (folder / "operator.pub").rename(folder / "operator.pub.mine")
    (folder / "operator.pub.mine").rename(folder / "operator.pub")
    result = run_as(0, [trainer, "--config=config.json", *TINY], folder, status=0)
    assert "no manifest signed by the operator" in result.stderr
    assert not trace.exists()


# --- The config ---


def test_a_foreign_config_decides_nothing(trainer, folder):
    place, treasure = folder / "place", folder / "treasure"
    place.mkdir()
    treasure.write_text("mine")
    (port,) = free_ports(1)
    (place / "config.json").write_text(json.dumps({
        "output": {"profile": str(treasure)}, "observe": {"http": f"0.0.0.0:{port}", "http_insecure": True}}))
    own(MALLORY, place, place / "config.json")
    result = run_as(0, [trainer, *TINY], place, status=2)
    assert treasure.read_text() == "mine"
    assert len(result.stderr.splitlines()) == 1
    for part in (f"{place} belongs to user {MALLORY}, and this process runs as root (0)", f"run: chown 0 {place}",
                 "--trust_folder=."):
        assert part in result.stderr
    run_as(0, [trainer, "config", "check"], place, status=0)
    run_as(0, [trainer, *TINY, "--trust_folder=."], place, status=0)
    assert treasure.read_text() != "mine"


@pytest.mark.parametrize("what, change, fault", [
    ("config.json", lambda path: path.chmod(0o646), "can be written to by everybody; run: chmod o-w"),
    ("config.json", lambda path: path.chmod(0o666), "can be written to by everybody; run: chmod go-w"),
    ("config.json", lambda path: (os.chown(path, ALICE, MALLORY), path.chmod(0o664)),
     f"can be written to by its group, {MALLORY}; run: chmod g-w"),
    ("config.json", lambda path: own(MALLORY, path),
     f"belongs to user {MALLORY}, and this process runs as user {ALICE}"),
    ("", lambda path: path.chmod(0o777), "can be written to by everybody"),
    ("", lambda path: (os.chown(path, ALICE, MALLORY), path.chmod(0o775)), "can be written to by its group"),
    ("..", lambda path: path.chmod(0o777), "can be written to by everybody"),
    ("..", lambda path: own(MALLORY, path), f"belongs to user {MALLORY}"),
    ("config.json.d", lambda path: path.chmod(0o777), "can be written to by everybody"),
    ("config.json.d", lambda path: path.chmod(0o1777), "can be written to by everybody"),
    ("config.json.d", lambda path: own(MALLORY, path), f"belongs to user {MALLORY}"),
    ("config.json.d/current", lambda path: own(MALLORY, path), f"belongs to user {MALLORY}"),
    ("config.json.d/00000002.json", lambda path: own(MALLORY, path), f"belongs to user {MALLORY}"),
    ("config.json.d/00000002.json.sum", lambda path: own(MALLORY, path), f"belongs to user {MALLORY}"),
    ("config.json.d/00000002.local.json", lambda path: path.chmod(0o666), "can be written to by everybody"),
    # What is accepted:
    ("config.json", lambda path: path.chmod(0o664), None),  # umask 002, where the group is the user's own
    ("", lambda path: path.chmod(0o2775), None),
    ("config.json", lambda path: own(0, path), None),
    ("", lambda path: own(0, path), None),
    ("..", lambda path: path.chmod(0o1777), None),  # as /tmp: nobody else can replace what is ours
])
def test_owners_and_modes(trainer, folder, what, change, fault):
    place = folder / "above/place"
    versions = place / "config.json.d"
    versions.mkdir(parents=True)
    (place / "config.json").write_text("{}")
    (versions / "current").write_text("2\n")
    for name in ("00000002.json", "00000002.local.json"):
        (versions / name).write_text("{}")
    own(ALICE, folder / "above", place, place / "config.json", versions, *versions.iterdir())
    assert accepts(trainer, place, user=ALICE) is True
    if what.endswith(".sum"):
        (place / what).write_text("00000000\n")
    change(place / what)
    found = accepts(trainer, place, user=ALICE)
    if fault is None:
        assert found is True
        return
    named = (place / what).resolve()
    assert str(named) in found and fault in found and len(found.splitlines()) == 1
    assert what.endswith(".sum") or accepts(trainer, place, "--trust_folder=.", user=ALICE) is True


def test_access_lists_count_as_others(trainer, folder):
    if not shutil.which("setfacl"):
        pytest.skip("no setfacl")
    (folder / "config.json").write_text("{}")
    own(ALICE, folder, folder / "config.json")
    if subprocess.run(["setfacl", "-m", f"u:{MALLORY}:rw", folder / "config.json"]).returncode != 0:
        pytest.skip("no access control lists on this file system")
    assert "whom its access control list names; run: setfacl -b" in accepts(trainer, folder, user=ALICE)


def test_root_does_not_act_on_a_users_files(trainer, folder):
    (folder / "config.json").write_text("{}")
    assert accepts(trainer, folder) is True
    own(ALICE, folder / "config.json")
    found = accepts(trainer, folder)
    assert f"{folder}/config.json belongs to user {ALICE}, and this process runs as root (0)" in found
    assert accepts(trainer, folder, user=ALICE) is True


def test_links_are_followed_and_checked(trainer, folder):
    good, bad, sticky = folder / "good", folder / "bad", folder / "sticky"
    for path in (good, bad, sticky):
        path.mkdir()
    (good / "config.json").write_text("{}")
    (bad / "config.json").symlink_to(good / "config.json")
    own(MALLORY, bad)
    sticky.chmod(0o1777)
    # As Kubernetes mounts a ConfigMap.
    (good / "..2026").mkdir()
    (good / "..2026/config.json").write_text("{}")
    (good / "..data").symlink_to("..2026")
    (good / "mounted.json").symlink_to("..data/config.json")
    (good / "far.json").symlink_to("../bad/../good/config.json")
    (good / "loop.json").symlink_to("loop.json")
    (sticky / "mine.json").symlink_to("../good/config.json")
    (sticky / "foreign.json").symlink_to("../good/config.json")
    own(MALLORY, sticky / "foreign.json")
    os.chown(sticky / "mine.json", ALICE, ALICE, follow_symlinks=False)

    def tried(path):
        return accepts(trainer, folder, user=ALICE, config=path)

    assert tried("good/mounted.json") is True and tried("sticky/mine.json") is True
    assert f"{bad} belongs to" in tried("bad/config.json")
    assert f"{bad} belongs to" in tried("good/far.json")
    assert f"{sticky}/foreign.json belongs to" in tried("sticky/foreign.json")
    result = run_as(ALICE, [trainer, "data", "info", "--config=good/loop.json"], folder, status=2)
    assert "loop.json" in result.stderr
    # A folder that is trusted is trusted with what is reached through it.
    assert accepts(trainer, folder, "--trust_folder=bad", user=ALICE, config="bad/config.json") is True


def test_descriptors_are_the_callers_choice(trainer, folder):
    (folder / "config.json").write_text('{"train": {"batch_size": 7}}')
    own(MALLORY, folder / "config.json")
    for options in ({"input": '{"train": {"batch_size": 7}}'}, {"stdin": open(folder / "config.json")}):
        command = [trainer, *TINY, "--config=/dev/stdin"]
        assert "7" in run_as(0, command, folder, status=0, **options).stdout


def test_in_a_user_namespace_an_owner_without_a_number_is_nobody(trainer, folder):
    """Unmapped owners show as 65534, whoever they are."""
    (folder / "config.json").write_text("{}")
    own(MALLORY, folder / "config.json")
    inside = ["unshare", "-U", "--map-root-user"]
    if run_as(0, [*inside, "true"], folder).returncode != 0:
        pytest.skip("no user namespaces here")
    result = run_as(0, [*inside, trainer, "data", "info", *TINY], folder, status=2)
    assert "no number in this user namespace" in result.stderr
    own(65534, folder / "config.json")
    (folder / "config.json").chmod(0o644)
    assert accepts(trainer, folder, user=65534) is True
    result = run_as(65534, ["unshare", "-U", trainer, "data", "info", *TINY], folder, status=2)
    assert "no number in this user namespace" in result.stderr


# --- --trust_folder, and what may not be set by others ---


def test_trust_folder(trainer, folder):
    for name in ("a", "b"):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text("{}")
        own(MALLORY, folder / name, folder / name / "config.json")
    (folder / "config.json").write_text('{"security": {"trust_folder": "a"}}')

    def tried(*flags):
        return accepts(trainer, folder, *flags, config="a/config.json")

    assert tried("--trust_folder=/") is True
    assert tried("--trust_folder=b:a") is True and tried(f"--trust_folder={folder}") is True
    assert "--trust_folder=a" in tried("--trust_folder=b")
    for flag, text in (("missing", "No such file"), ("config.json", "not a folder"), (":", "separated by colons")):
        assert text in run_as(0, [trainer, *TINY, f"--trust_folder={flag}"], folder, status=2).stderr
    # Only from the command line.
    assert "trust_folder: unknown key" in run_as(0, [trainer, *TINY], folder, status=2).stderr
    environment = {**os.environ, "TRUST_FOLDER": "a", "TRAINER_TRUST_FOLDER": "a"}
    run_as(0, [trainer, *TINY, "--config=a/config.json"], folder, status=2, env=environment)


def test_a_cluster_passes_it_on(trainer, folder):
    (folder / "config.json").write_text("{}")
    own(MALLORY, folder, folder / "config.json")
    run_as(0, [trainer, "cluster", "--workers=1", "--trust_folder=.", *TINY], folder, status=0)


@pytest.mark.parametrize("mode", [0o4755, 0o2755])
def test_it_does_not_run_with_borrowed_rights(trainer, folder, mode):
    program = folder / "trainer"
    shutil.copy(trainer, program)
    program.chmod(mode)
    result = run_as(ALICE, [program, "version"], folder)
    if result.returncode == 0:
        pytest.skip("mounted with nosuid")
    assert f"{program} is setuid or setgid" in result.stderr and f"chmod ug-s {program}" in result.stderr


def test_it_does_not_run_with_file_capabilities(trainer, folder):
    if not shutil.which("setcap"):
        pytest.skip("no setcap")
    program = folder / "trainer"
    shutil.copy(trainer, program)
    if subprocess.run(["setcap", "cap_net_bind_service+ep", program]).returncode != 0:
        pytest.skip("no capabilities on this file system")
    assert "has file capabilities" in run_as(ALICE, [program, "version"], folder, status=1).stderr


# --- Keys and tokens ---


@pytest.fixture
def keys(trainer, folder):
    """All kinds, owned by Alice."""
    for flags in (["--out=fleet.key"], ["--ca=authority"], ["--operator=operator.key"],
                  ["--ca=authority", "--member=ps:0", "--out=ps.key"]):
        run_as(0, [trainer, "keygen", *flags], folder, status=0)
    (folder / "token").write_text("0123456789abcdef0123456789abcdef")
    (folder / "token").chmod(0o600)
    (folder / "file").write_text("x")
    own(ALICE, folder, folder / "authority", *(path for path in folder.rglob("*") if path.is_file()))
    return folder


USES = {
    "fleet.key": ["status", "--ps_hosts=127.0.0.1:1", "--worker_hosts=127.0.0.1:2", "--fleet_key=fleet.key"],
    "ps.key": ["status", "--ps_hosts=127.0.0.1:1", "--worker_hosts=127.0.0.1:2", "--fleet_key=ps.key"],
    "authority/ca.key": ["keygen", "--ca=authority", "--member=ps:1", "--out=new.key"],
    "operator.key": ["sign", "--key=operator.key", "file"],
    "operator.key.pub": ["version", "--verify=file", "--key=operator.key.pub"],
}


@pytest.mark.parametrize("key", [*USES, "token"])
@pytest.mark.parametrize("change, fault", [
    (lambda path: own(MALLORY, path), f"belongs to user {MALLORY}"),
    (lambda path: path.chmod(path.stat().st_mode | 0o020), "can be written to by its group"),
    (lambda path: path.parent.chmod(0o777), "can be written to by everybody"),
])
def test_keys_that_others_may_have_written_are_refused(trainer, keys, key, change, fault):
    (port,) = free_ports(1)
    command = [trainer, *USES.get(key, [*TINY, f"--http=127.0.0.1:{port}", "--http_token_file=token"])]
    assert "is not trusted" not in run_as(ALICE, command, keys).stderr
    (keys / "new.key").unlink(missing_ok=True)
    change(keys / key)
    if key == "token" or "fleet" in key or key == "ps.key":
        os.chmod(keys / key, stat.S_IMODE((keys / key).stat().st_mode) & ~0o007)
    result = run_as(ALICE, command, keys)
    assert result.returncode != 0 and f"{key}: is not trusted" in result.stderr and fault in result.stderr


def test_a_holder_of_keys_is_not_dumped(trainer, keys):
    (port,) = free_ports(1)
    flags = [f"--ps_hosts=127.0.0.1:{port}", "--worker_hosts=127.0.0.1:1", "--job_name=ps", "--log_format=json"]

    def owner_of_memory(*more):
        process = subprocess.Popen([trainer, *flags, *more], cwd=keys, user=ALICE, group=ALICE, extra_groups=[],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert process.stdout.readline()  # its first line comes after the key was read
        owner = os.stat(f"/proc/{process.pid}/mem").st_uid
        with open(f"/proc/{process.pid}/status", encoding="ascii") as status:
            assert "NoNewPrivs:\t1\n" in status.read()  # nothing that it starts gains rights
        process.send_signal(signal.SIGKILL)
        process.communicate()
        return owner

    assert owner_of_memory("--insecure") == ALICE
    assert owner_of_memory("--fleet_key=fleet.key") == 0  # and so neither dumped nor traced by Alice


# --- What is written ---


@pytest.fixture
def model(trainer, folder):
    flags = [flag for flag in TINY if "train_steps" not in flag]
    run_as(0, [trainer, *flags, "--train_steps=5", "--train_dir=run"], folder, status=0)
    return folder


def test_the_request_log_follows_no_links(trainer, model):
    """At names that were once fixed, too."""
    treasure = model / "treasure"
    treasure.write_text("mine")
    log = model / "log/model"
    log.mkdir(parents=True)
    for name in (".under-way.csv", ".under-way.png"):
        (log / name).symlink_to(treasure)
    body = {"instances": [[0] * 784] * 3}
    with Served(trainer, "run", "--request_log=log", cwd=model) as server:
        server.post("/v1/models/model:predict", body)
        wait_for(lambda: len(list(log.rglob("*.png"))) >= 3, "pictures")
    assert treasure.read_text() == "mine"


@pytest.mark.parametrize("change", [lambda path: path.chmod(0o777), lambda path: own(MALLORY, path)])
def test_a_request_log_that_others_may_change_is_refused(trainer, model, change):
    (model / "log/model").mkdir(parents=True)
    change(model / "log/model")
    where = f"--http=127.0.0.1:{free_ports(1)[0]}"
    result = run_as(0, [trainer, "serve", "run", "--request_log=log", where], model, status=1)
    assert "log/model: is not trusted" in result.stderr and "--trust_folder=log/model" in result.stderr


def test_the_access_log_follows_no_links_of_others(trainer, model):
    treasure = model / "treasure"
    treasure.write_text("mine\n")
    shared = model / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    where = f"--http=127.0.0.1:{free_ports(1)[0]}"

    def refusal(name):
        return run_as(0, [trainer, "serve", "run", f"--access_log=shared/{name}", where], model, status=1).stderr

    (shared / "link").symlink_to(treasure)
    own(MALLORY, shared / "link")
    assert "shared/link: cannot be written" in refusal("link")
    shared.chmod(0o777)  # where the kernel does not refuse it by itself
    assert "a symbolic link is in its place" in refusal("link")
    os.link(treasure, shared / "hard")
    assert "has a second name (a hard link)" in refusal("hard")
    (shared / "foreign").write_text("")
    own(MALLORY, shared / "foreign")
    assert "belongs to another user" in refusal("foreign")
    os.mkfifo(shared / "fifo")
    own(MALLORY, shared / "fifo")
    reader = os.open(shared / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    assert "belongs to another user" in refusal("fifo")
    os.close(reader)
    assert treasure.read_text() == "mine\n"
    # Our own links are followed, and standard output is reached.
    (model / "own").symlink_to("elsewhere")
    (model / "elsewhere").write_text("")
    for name in ("own", "/dev/stdout"):
        with Served(trainer, "run", f"--access_log={name}", cwd=model) as server:
            server.get("/healthz")
            wait_for(lambda: "/healthz" in (model / "elsewhere").read_text() + server.text(), "a line")


@pytest.mark.parametrize("flag", ["profile", "summary"])
def test_outputs_replace_links(trainer, folder, flag):
    """What is written whole takes the place of a link; it does not follow it."""
    treasure, out = folder / "treasure", folder / "out"
    treasure.write_text("mine")
    out.symlink_to(treasure)
    (folder / "out.part").symlink_to(treasure)
    if flag == "profile":
        run_as(0, [trainer, *TINY, "--profile=out"], folder, status=0)
    else:
        run_as(0, [trainer, *TINY, "--profile=one"], folder, status=0)
        run_as(0, [trainer, "profile", "one", "--out=out"], folder)
    assert treasure.read_text() == "mine"


def test_an_output_may_be_a_stream(trainer, folder):
    names = "a,b,kind\n"
    rows = "".join(f"{i},{i % 7},{'xy'[i % 2]}\n" for i in range(60))
    (folder / "data").mkdir()
    (folder / "data/train.csv").write_text(names + rows)
    (folder / "data/test.csv").write_text(names + rows)
    run_as(0, [trainer, "--data_dir=data", "--target=kind", "--train_steps=5", "--batch_size=10", "--train_dir=run",
               "--progress=false"], folder, status=0)
    shown = run_as(0, [trainer, "predict", "run", "data/test.csv"], folder, status=0).stdout
    streamed = run_as(0, [trainer, "predict", "run", "data/test.csv", "--out=/dev/stdout"], folder, status=0).stdout
    assert shown == streamed and len(shown.splitlines()) == 61
    run_as(0, [trainer, "predict", "run", "data/test.csv", "--out=kept.csv"], folder, status=0)
    assert (folder / "kept.csv").read_text() == shown
    run_as(0, [trainer, "predict", "run", "data/test.csv", "--out=/dev/null"], folder, status=0)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
