"""Ports for tests, chosen by the system."""

import fcntl
import os
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


def free_ports(count):
    """Ports that nobody listens on, at any address of this machine, and that stay free of other tests of these: a
    member may stop and start again there, or a relay stand before it."""
    sockets, ports = [], []
    while len(ports) < count:
        sockets.append(socket.create_server(("", 0)))  # held until all are found, so that they differ
        port = sockets[-1].getsockname()[1]
        if claim(port):
            ports.append(port)
    for each in sockets:
        each.close()
    return ports
