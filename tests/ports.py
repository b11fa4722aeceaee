"""Ports for tests that nothing else on this machine gets meanwhile."""

import fcntl
import os
import pathlib
import random
import socket
import tempfile

CLAIMS = f"{tempfile.gettempdir()}/trainer-test-ports.{os.getuid()}"  # byte n is locked by the process that has port n
claims = os.open(CLAIMS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)  # never closed: that would release all locks
claimed = set()  # by this process, which its own locks don't block


def claim(port):
    """True if the port now belongs to this process, until it ends: no other test process gets it."""
    if port in claimed:
        return False
    try:
        fcntl.lockf(claims, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    claimed.add(port)
    return True


def candidates():
    """Ports in random order, below those that the system hands out. It assigns those to outgoing connections and to
    listeners on port 0: a port of that range might be taken while a member is down that will come back."""
    first = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = list(range(10000, first)) if first > 12000 else list(range(1024, 65536))
    random.SystemRandom().shuffle(ports)
    return ports


def free_ports(count):
    """Ports without a listener, at any address of this machine, which other tests won't use: a member may stop and
    start again there, or a relay stand before it."""
    ports = []
    for port in candidates():
        if len(ports) == count:
            break
        if claim(port):  # before it is tried: it might be another test's, whose member is about to start there
            try:
                socket.create_server(("", port)).close()
            except OSError:
                continue
            ports.append(port)
    assert len(ports) == count, f"{count} ports are not free on this machine"
    return ports
