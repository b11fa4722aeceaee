"""Tests that run in parallel never get the same port, whichever listens on it."""

import pathlib
import subprocess
import sys

import pytest

import ports


def claims_of_another_process(wanted):
    code = f"import ports; print(*[port for port in {wanted} if ports.claim(port)])"
    shown = subprocess.run([sys.executable, "-c", code], cwd=ports.__file__.rpartition("/")[0], capture_output=True,
                           text=True, check=True, timeout=240).stdout
    return [int(port) for port in shown.split()]


def test_a_port_is_given_once():
    given = ports.free_ports(40)
    assert len(set(given)) == 40
    assert not any(ports.claim(port) for port in given)
    assert claims_of_another_process(given) == []


def test_the_system_gives_them_to_nobody():
    low, high = map(int, pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    if low <= 12000:
        pytest.skip("the system's own ports are nearly all")
    assert not any(low <= port <= high for port in ports.free_ports(40))


def test_ports_are_free_again_when_their_process_ended():
    code = "import ports; print(*ports.free_ports(5))"
    shown = subprocess.run([sys.executable, "-c", code], cwd=ports.__file__.rpartition("/")[0], capture_output=True,
                           text=True, check=True, timeout=240).stdout
    given = [int(port) for port in shown.split()]
    assert claims_of_another_process(given) == given
