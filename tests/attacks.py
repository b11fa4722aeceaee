#!/usr/bin/env python3
"""Unauthenticated peers and false members that keep a fleet from working, one process each, for tests and benchmarks.

    tests/attacks.py ATTACK PORT KEY SECONDS RATE

Prints "begun" once it has made enough connections to do harm, and at the end {"count": connections, "cpu_s": processor
time, ...}.

RATE is a share of the attack's full strength. KEY is the fleet's, which only `guests` use; the others have a key of
their own, or none.
"""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import resource
import select
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time

import protocol

CHANGE_CIPHER_SPEC = bytes([0x14, 3, 3, 0, 1, 1])
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close sends a reset


def client_hello(key=None):
    """A ClientHello as OpenSSL sends it."""
    out = ssl.MemoryBIO()
    peer = protocol.context(key).wrap_bio(ssl.MemoryBIO(), out)
    try:
        peer.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return out.read()


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=5)


class Pace:
    """Limits to a rate, if there is one; False once the time is over."""

    def __init__(self, rate, seconds, harm):
        self.gap, self.next, self.end, self.count = 1 / rate, time.monotonic(), time.monotonic() + seconds, 0
        self.harm = harm

    def goes_on(self):
        if self.count == self.harm:
            self.harm = None
            print("begun", flush=True)
        now = time.monotonic()
        if now < self.next:
            time.sleep(self.next - now)
        self.next = max(self.next + self.gap, now - 0.1)
        self.count += 1
        return now < self.end


def garbage(port, key, pace):
    """Sends 8 meaningless bytes and disconnects."""
    while pace.goes_on():
        with connect(port) as peer:
            peer.sendall(b"\x00garbage")


def reset(port, key, pace):
    """A ClientHello and a reset: the server computes the handshake in vain."""
    hello = client_hello()
    while pace.goes_on():
        with connect(port) as peer:
            peer.sendall(hello)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


def wrong_key(port, key, pace):
    """Whole handshakes with a foreign key."""
    trainer = os.environ["TRAINER"]
    with tempfile.TemporaryDirectory() as folder:
        other = f"{folder}/other.key"
        subprocess.run([trainer, "keygen", f"--out={other}"], check=True, capture_output=True)
        context = protocol.context(other)
        context.verify_mode = ssl.CERT_NONE

        def shake_hands():
            try:
                with connect(port) as peer, context.wrap_socket(peer) as tls:
                    tls.recv(1)
            except OSError:
                pass

        with concurrent.futures.ThreadPoolExecutor(16) as hands:
            while pace.goes_on():
                hands.submit(shake_hands)


def silent(port, key, pace):
    """A hundred silent connections, which reconnect when they are cut."""
    held = []
    while pace.goes_on():
        if len(held) < 100:
            held.append(connect(port))
            held[-1].setblocking(False)
        else:
            held = [each for each in held if not is_closed(each)]
            pace.count -= 1


def is_closed(held):
    try:
        return held.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def stream(port, key, pace):
    """Eight connections that begin a handshake and continue with meaningless records."""
    hello, records = client_hello(), CHANGE_CIPHER_SPEC * 2000
    held = []
    while pace.goes_on():
        pace.count -= 1
        if len(held) < 8:
            held.append(connect(port))
            held[-1].sendall(hello)
            held[-1].setblocking(False)
            pace.count += 1
        for each in list(held):
            try:
                each.send(records)
            except BlockingIOError:
                pass
            except OSError:
                each.close()
                held.remove(each)


def guests(port, key, pace):
    """96 members unknown to the fleet that report with its key."""
    held = {}
    while pace.goes_on():
        index = 1000 + pace.count % 96
        if index not in held or is_closed(held[index].socket):
            client = protocol.Client(port, key)
            client.hello(role=2, index=index, incarnation=index, digest="")
            client.socket.setblocking(False)
            held[index] = client


# Connections per second, which attacks that hold connections reach only if these are cut; and the number that does
# harm.
ATTACKS = {"garbage": (garbage, 4500, 500), "reset": (reset, 1000, 300), "wrong_key": (wrong_key, 250, 100),
           "silent": (silent, 1000, 100), "stream": (stream, 200, 40), "guests": (guests, 250, 96)}


class Attack:
    """Runs from __enter__ to end(), which returns its output."""

    def __init__(self, name, port, key, trainer, rate=1.0, seconds=600.0):
        self.command = [sys.executable, __file__, name, *map(str, (port, key, seconds, rate))]
        self.environment = {**os.environ, "TRAINER": str(trainer)}

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        env=self.environment)
        there, _, _ = select.select([self.process.stdout], [], [], 240)
        if not there or self.process.stdout.readline() != "begun\n":
            self.process.kill()
            raise AssertionError(f"{self.command}: not begun within 240 s\n{self.process.communicate()}")
        return self

    def processor_s(self):
        with open(f"/proc/{self.process.pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @contextlib.contextmanager
    def paused(self):
        self.process.send_signal(signal.SIGSTOP)
        yield
        self.process.send_signal(signal.SIGCONT)

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        output, errors = self.process.communicate(timeout=240)
        assert self.process.returncode == 0, errors
        return json.loads(output)

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


class Enough(Exception):
    pass


def stop(*_):
    raise Enough


def main():
    name, port, key, seconds, part = sys.argv[1:]
    signal.signal(signal.SIGTERM, stop)
    attack, rate, harm = ATTACKS[name]
    begun, pace, failed = time.monotonic(), Pace(rate * float(part), float(seconds), harm), 0
    try:
        while time.monotonic() < pace.end:
            try:
                attack(int(port), key, pace)
            except (OSError, EOFError):  # it was cut, as it should be: reconnect
                failed += 1
    except Enough:
        pass
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"count": pace.count, "cut": failed, "cpu_s": used.ru_utime + used.ru_stime,
                      "wall_s": time.monotonic() - begun}))


if __name__ == "__main__":
    main()
