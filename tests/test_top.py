"""trainer top, in a terminal that pyte emulates: its display, its keys, and the state in which it leaves the terminal.
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
import threading
import time

import pexpect
import pyte
import pytest

import page_server
from clusters import Cluster
from ports import free_ports
from runs import LONG_S, SMALL, start, wait_for
from test_observe import LONG, Watched, wait_until

PLAIN_TERMINAL = {"TERM": "xterm", "PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": "/"}


def end(process):
    """On a busy machine a killed process lives longer than pexpect's own close() waits."""
    process.kill(signal.SIGKILL)
    with contextlib.suppress(pexpect.ExceptionPexpect):
        process.wait()
    process.close()


class Terminal:
    """`trainer top` in a terminal of that many columns and rows."""

    def __init__(self, trainer, *flags, size=(80, 24), cwd=None, **environment):
        self.screen = pyte.Screen(*size)
        self.stream = pyte.ByteStream(self.screen)
        self.sent = b""
        self.process = pexpect.spawn(str(trainer), ["top", *flags], dimensions=size[::-1], cwd=str(cwd or "/"),
                                     env={**PLAIN_TERMINAL, **environment}, timeout=240)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        end(self.process)

    def look(self, seconds=0.1):
        with contextlib.suppress(pexpect.TIMEOUT, pexpect.EOF):
            some = self.process.read_nonblocking(1 << 16, seconds)
            self.sent += some
            self.stream.feed(some)
        return "\n".join(self.screen.display)

    def until(self, happened, seconds=LONG_S):
        end = time.monotonic() + seconds
        while not happened(text := self.look()):
            assert time.monotonic() < end and self.process.isalive(), text
        return text

    def press(self, keys):
        self.process.send(keys)

    def resize(self, columns, rows):
        self.screen.resize(rows, columns)
        self.process.setwinsize(rows, columns)

    def status(self):
        """Once it has ended."""
        self.process.expect(pexpect.EOF, timeout=240)
        self.sent += self.process.before
        self.process.close()
        return self.process.exitstatus


def address(run_):
    return f"--http=127.0.0.1:{run_.port}"


def once(trainer, *flags, cwd="/", status=0, **environment):
    result = subprocess.run([trainer, "top", "--once", *flags], cwd=cwd, capture_output=True, timeout=240,
                            env={**PLAIN_TERMINAL, **environment}, check=False)
    assert result.returncode == status, result
    return (result.stderr if status else result.stdout).decode()


@pytest.fixture(scope="module")
def watched(trainer, tmp_path_factory):
    with Watched(trainer, tmp_path_factory.mktemp("run"), "--train_dir=digits") as run_:
        wait_until(lambda: run_.json("/api/status")["progress"]["metrics"])
        wait_until(lambda: len(run_.json("/api/history")["recent"]["time"]) >= 3)
        yield run_


# --- On a terminal ---


def test_it_shows_the_run_and_gives_the_terminal_back(trainer, watched):
    with Terminal(trainer, address(watched)) as top:
        # A display may come in two pieces: its last line is waited for.
        text = top.until(lambda text: "accuracy" in text and "local 0" in text and re.search("[⠁-⣿]", text) and
                         "EVENTS" in text and "q quit" in text.splitlines()[-1])
        assert "digits" in text and "of 100,000,000" in text and "steps/s" in text
        assert re.search(r"MEMBER +STATE +STEP", text)
        before = re.search(r"step ([\d,]+)", text)[1]
        top.until(lambda text: (now := re.search(r"step ([\d,]+)", text)) and now[1] != before)  # it is alive
        top.press("q")
        assert top.status() == 0
    assert top.sent.startswith(b"\x1b[?1049h") and top.sent.endswith(b"\x1b[?25h\x1b[?1049l")


def test_pause_pages_and_help(trainer, watched):
    with Terminal(trainer, address(watched), size=(100, 30)) as top:
        top.until(lambda text: "local 0" in text)
        top.press("p")
        top.until(lambda text: "PAUSED" in text)
        paused = top.look(2)  # with the rest of this display
        time.sleep(2.5)  # detecting that nothing changes takes time
        assert re.search(r"step ([\d,]+)", top.look())[1] == re.search(r"step ([\d,]+)", paused)[1]
        top.press("p")
        top.until(lambda text: "PAUSED" not in text)
        top.press("?")
        top.until(lambda text: "Ctrl-Z" in text)
        top.press("\x1b")
        top.until(lambda text: "Ctrl-Z" not in text)
        top.press("2")
        top.until(lambda text: "learning_rate" in text and "MEMBER" not in text and "EVENTS" not in text)
        top.press("\t")
        top.until(lambda text: "MEMBER" in text and "EVENTS" not in text)
        top.press("\t")
        top.until(lambda text: "MEMBER" not in text and "EVENTS" in text)
        top.press("t")
        top.until(lambda text: "t whole run" in text)


def test_members_are_sorted_and_filtered(trainer, root):
    fleet = page_server.Run(workers=12)
    for i, member in enumerate(fleet.members):
        member["host"], member["global_step"] = f"node-{i}", 4000 + 7 * i % 13
    with page_server.Member(root / "build/page", fleet) as member, \
            Terminal(trainer, f"--http=127.0.0.1:{member.port}", size=(120, 60)) as top:

        def shown(text):
            return [int(row[1]) for row in re.finditer(r"^ *worker (\d+) ", text, re.M)]

        assert shown(top.until(lambda text: len(shown(text)) == 12)) == sorted(range(12))
        top.press("r")
        top.until(lambda text: shown(text) == sorted(range(12), reverse=True))
        top.press("r/er 1\r")
        top.until(lambda text: shown(text) == [1, 10, 11])
        top.press("\x1b")
        top.until(lambda text: len(shown(text)) == 12)
        steps = {i: fleet.members[i + 1]["global_step"] for i in range(12)}
        top.press("s" * 2)  # member, state, step
        top.until(lambda text: (order := shown(text)) and
                  [steps[i] for i in order] in (sorted(steps.values()), sorted(steps.values(), reverse=True)))


@pytest.mark.parametrize("inherited", [set(), {signal.SIGWINCH}])
def test_it_follows_the_size_of_the_terminal(trainer, watched, inherited):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, inherited)  # as perf does with what it starts
    top = Terminal(trainer, address(watched))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    with top:
        top.until(lambda text: "local 0" in text)
        for columns, rows in ((200, 50), (40, 10), (12, 3), (80, 24)):
            top.resize(columns, rows)
            top.until(lambda text, rows=rows: len(text.splitlines()) == rows and text.startswith("trainer top") and
                      "q quit"[:columns] in text.splitlines()[-1])
        assert "VERSION" not in top.look()
        top.resize(200, 50)
        top.until(lambda text: "VERSION" in text)


def test_no_color_and_no_unicode(trainer, watched):
    colors = re.compile(rb"\x1b\[[0-9;]*3[0-7]m")
    with Terminal(trainer, address(watched)) as top:
        top.until(lambda text: "local 0" in text)
        assert colors.search(top.sent)
    with Terminal(trainer, address(watched), NO_COLOR="1", LANG="C") as top:
        top.until(lambda text: "local 0" in text and "accuracy" in text)
        assert not colors.search(top.sent) and top.sent.isascii()
    with Terminal(trainer, address(watched), TERM="linux") as top:
        top.until(lambda text: "local 0" in text and "accuracy" in text)
        assert top.sent.isascii()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it_and_the_terminal_is_as_before(trainer, watched, number):
    with Terminal(trainer, address(watched)) as top:
        top.until(lambda text: "local 0" in text)
        top.process.kill(number)
        assert top.status() == 0 and top.sent.endswith(b"\x1b[?1049l")


def test_a_shell_that_suspends_it(trainer, watched):
    """Ctrl-Z gives the terminal back and fg takes it again."""
    shell = pexpect.spawn("/bin/bash", ["--norc", "-i"], env={**PLAIN_TERMINAL, "PS1": "ready> "}, timeout=240,
                          dimensions=(24, 80))
    try:
        shell.expect_exact("ready> ")
        shell.sendline(f"{trainer} top {address(watched)}")
        shell.expect_exact("local 0")
        shell.send("\x1a")
        shell.expect_exact("\x1b[?1049l")
        shell.expect_exact("ready> ")
        shell.sendline("fg")
        shell.expect_exact("\x1b[?1049h")
        shell.expect_exact("local 0")
        shell.send("q")
        shell.expect_exact("\x1b[?1049l")
        shell.sendline("exit")
        shell.expect(pexpect.EOF)
    finally:
        end(shell)


# --- Once ---


def test_once_is_for_scripts(trainer, watched):
    text = once(trainer, address(watched))
    assert "\x1b" not in text and text.startswith("trainer top") and "MEMBER" in text and "EVENTS" in text
    assert "quit" not in text and max(map(len, text.splitlines())) <= 80
    assert max(map(len, once(trainer, address(watched), COLUMNS="160").splitlines())) > 100
    assert once(trainer, address(watched), "--ascii").isascii()


def test_without_a_terminal_or_a_server_it_says_what_to_do(trainer, watched):
    result = subprocess.run([trainer, "top", address(watched)], capture_output=True, text=True, timeout=240,
                            check=False)
    assert result.returncode == 1 and "--once" in result.stderr
    (port,) = free_ports(1)
    assert "nothing listens" in once(trainer, f"--http=127.0.0.1:{port}", status=1)
    assert "--http=HOST:PORT" in once(trainer, status=2)


def test_a_server_that_says_odd_things(trainer):
    """An endless or invalid answer neither blocks nor breaks it."""
    answers = [b"SSH-2.0-OpenSSH_9\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{\"a\":",
               b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnull", b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 200000,
               b"HTTP/1.1 500 Odd\r\nContent-Length: 20\r\n\r\n{\"error\":\"so odd it\"}", b""]
    with socket.create_server(("127.0.0.1", 0)) as server:
        def serve():
            for answer in answers:
                for _ in range(3 if b"null" in answer else 1):
                    connection, _ = server.accept()
                    with connection, contextlib.suppress(OSError):
                        connection.recv(65536)
                        connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        flag = f"--http=127.0.0.1:{server.getsockname()[1]}"
        assert "is not an answer" in once(trainer, flag, status=1)
        assert "/api/status" in once(trainer, flag, status=1)
        once(trainer, flag)
        once(trainer, flag, status=1)
        assert "500: so odd it" in once(trainer, flag, status=1)
        assert "ended" in once(trainer, flag, status=1)


# --- A token, TLS, a fleet ---


def test_a_token_and_tls(trainer, tmp_path):
    subprocess.run([trainer, "keygen", "--out=fleet.key"], cwd=tmp_path, check=True, capture_output=True, timeout=240)
    subprocess.run([trainer, "keygen", "--out=other.key"], cwd=tmp_path, check=True, capture_output=True, timeout=240)
    (tmp_path / "token").write_text("0123456789abcdef")
    (tmp_path / "wrong").write_text("0123456789abcdeF")
    for name in ("token", "wrong"):
        (tmp_path / name).chmod(0o600)
    (port,) = free_ports(1)
    process = start(trainer, *SMALL, *LONG, f"--http=127.0.0.1:{port}", "--http_token_file=token",
                    "--http_cert=fleet.key", cwd=tmp_path)

    def ask(certificate, *flags, status=0):
        return once(trainer, f"--http=127.0.0.1:{port}", f"--http_cert={certificate}", *flags, cwd=tmp_path,
                    status=status)

    try:
        wait_for(lambda: "nothing listens" not in ask("other.key", status=1), "the server")
        assert "local 0" in ask("fleet.key", "--http_token_file=token")
        assert "401" in ask("fleet.key", "--http_token_file=wrong", status=1)
        assert "401" in ask("fleet.key", status=1)
        assert "its certificate is not trusted here" in ask("other.key", "--http_token_file=token", status=1)
    finally:
        process.kill()
        process.communicate()


def test_a_fleet_by_its_key(trainer, tmp_path):
    with Cluster(trainer, tmp_path, ps=1, workers=2, flags=LONG) as cluster:
        cluster.start_all()
        wait_until(lambda: all(not member["missing"] for member in cluster.status()[1].values()))
        with Terminal(trainer, *cluster.hosts, size=(120, 30), cwd=tmp_path) as top:
            top.until(lambda text: re.search("worker 0 +training", text) and re.search("worker 1 +training", text) and
                      re.search("ps 0 +ready", text))
            top.until(lambda text: "loss" in text and "steps_per_s" in text)
            top.press("/worker 1\r")
            top.until(lambda text: "worker 1" in text and "worker 0 " not in text.split("EVENTS")[0])
            cluster.kill("worker 1")
            top.until(lambda text: "1 of 3 members missing" in text and "worker 1 is lost" in text and
                      re.search("worker 1 +lost", text))


def test_it_shows_that_the_member_is_gone_and_comes_back(trainer, tmp_path):
    with Watched(trainer, tmp_path, "--train_dir=run") as run_, Terminal(trainer, address(run_)) as top:
        top.until(lambda text: "local 0" in text)
        run_.process.terminate()
        run_.process.communicate(timeout=240)
        top.until(lambda text: "can't connect" in text and " old: " in text)
        run_.process = start(*run_.process.args, cwd=tmp_path)
        top.until(lambda text: "can't connect" not in text and "training" in text)
