"""HTTP requests that once harmed the server's process; tests/fuzz/fuzz_http.c looks for more."""

import socket
import urllib.error
import urllib.request

from ports import free_ports
from runs import ENDLESS, SMALL, start, wait_for


def health(port):
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=60).status
    except urllib.error.URLError:
        return None


def test_an_upgrade_ends_the_connection_and_nothing_else(trainer, tmp_path):
    """Anything may follow such a request. This path needs no token."""
    (port,) = free_ports(1)
    process = start(trainer, *SMALL, *ENDLESS, "--validate_steps=0", "--log_steps=0", f"--http=127.0.0.1:{port}",
                    cwd=tmp_path)
    try:
        wait_for(lambda: health(port) == 200, "the server")
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\n"
                           b"Upgrade: websocket\r\n\r\nand what follows")
            answer = b"".join(iter(lambda: client.recv(4096), b""))
        assert answer.startswith(b"HTTP/1.1 200") and b"Connection: close" in answer and answer.count(b"HTTP/1.1") == 1
        assert health(port) == 200 and process.poll() is None
    finally:
        process.kill()
        process.communicate()
