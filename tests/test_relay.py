"""The relay between members: nothing of it goes on after its end, at the expense of later tests."""

import socket
import threading

from ports import free_ports
from relay import Relay
from runs import wait_for


def test_half_open_links_end_with_it():
    (port,) = free_ports(1)
    before = threading.active_count()
    with socket.create_server(("127.0.0.1", port)) as server:
        with Relay(port) as relay:
            with socket.create_connection(("127.0.0.2", port), timeout=60) as client:
                accepted = server.accept()[0]
                with accepted:
                    client.sendall(b"before")
                    assert accepted.recv(100) == b"before"
                    relay.stall()
                    client.sendall(b"behind")
                    assert threading.active_count() > before
    wait_for(lambda: threading.active_count() <= before, "end of the relay's threads")
