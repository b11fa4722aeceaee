"""Ports for tests, that nothing else on this machine is given meanwhile."""

import fcntl
import os
import pathlib
import random
import socket
import tempfile

CLAIMS = f"{tempfile.gettempdir()}/trainer-test-ports.{os.getuid()}"  # byte n is locked by the process that has port n
claims = os.open(CLAIMS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)  # never closed: that would let go of all
claimed = set()  # of this process, for which its own locks are no obstacle


def claim(port):
    """True if the port is this process's from now on, to its end: no other process that runs tests is given it."""
    if port in claimed:
        return False
    try:
        fcntl.lockf(claims, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    claimed.add(port)
    return True


def candidates():
    """Ports in a random order, below those that the system hands out by itself. It does so to every connection, and to
    whoever listens on port 0: a port of its own range might be gone while a member is down that is to come back."""
    first = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = list(range(10000, first)) if first > 12000 else list(range(1024, 65536))
    random.SystemRandom().shuffle(ports)
    return ports


def free_ports(count):
    """Ports that nobody listens on, at any address of this machine, and that stay free of other tests of these: a
    member may stop and start again there, or a relay stand before it."""
    sockets, ports = [], []
    for port in candidates():
        if len(ports) == count:
            break
        try:
            server = socket.create_server(("", port))  # held until all are found
        except OSError:
            continue
        sockets.append(server)
        if claim(port):
            ports.append(port)
    for each in sockets:
        each.close()
    assert len(ports) == count, f"{count} ports are not free on this machine"
    return ports
