"""Links with a delay: frames arrive late and in order, and some not at all."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.nodes.networks import NodeNetwork, RayNode, why_no_delay
from tests.until import until

pytestmark = pytest.mark.skipif(bool(why_no_delay()), reason=why_no_delay() or "possible")
DELAY_S = 0.05
PORT = 5001
ECHO = f"""
import socket
server = socket.create_server(("", {PORT}))
while True:
    connection, _ = server.accept()
    while found := connection.recv(1 << 16):
        connection.sendall(found)
"""
CALL = """
import socket, sys, time
data = bytes(range(256)) * 2000
began = time.monotonic()
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60)
print(time.monotonic() - began)
connection.settimeout(60)
connection.sendall(data)
found = b""
while len(found) < len(data):
    found += connection.recv(1 << 16)
assert found == data
"""


@contextmanager
def joined(
    folder: Path, *, delay_s: float = 0.0, loss: float = 0.0
) -> Iterator[tuple[RayNode, RayNode]]:
    """Two nodes; the second one answers with what it gets."""
    network = NodeNetwork(folder, 2, delay_s=delay_s, loss=loss)
    echo = None
    try:
        network.connect()
        first, second = network.nodes
        within = ["ip", "netns", "exec", second.namespace]
        echo = subprocess.Popen([*within, sys.executable, "-c", ECHO])
        yield first, second
    finally:
        if echo is not None:
            echo.kill()
            echo.wait()
        network.end()


def call(caller: RayNode, called: RayNode) -> subprocess.CompletedProcess[str]:
    """Connect, which is one round trip, and send data there and back."""
    within = ["ip", "netns", "exec", caller.namespace]
    command = [*within, sys.executable, "-c", CALL, called.address, str(PORT)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def answered(caller: RayNode, called: RayNode) -> subprocess.CompletedProcess[str] | None:
    done = call(caller, called)
    return done if done.returncode == 0 else None


@pytest.mark.parametrize("loss", [0.0, 0.05])
def test_a_round_trip_takes_the_delay_twice_and_all_arrives_in_the_end(
    loss: float, tmp_path: Path
) -> None:
    """TCP sends again what a line has lost. Whatever the machine does, no trip is shorter."""
    with joined(tmp_path, delay_s=DELAY_S, loss=loss) as (first, second):
        done = until(lambda: answered(first, second), 120.0, "the echo answers")
        assert float(done.stdout) >= 2 * DELAY_S


def test_a_line_that_loses_everything_lets_nobody_through(tmp_path: Path) -> None:
    """The loss is the share that was asked for: of all frames, each one."""
    with joined(tmp_path, loss=1.0) as (first, second):
        began = time.monotonic()
        within = ["ip", "netns", "exec", first.namespace]
        code = f"import socket; socket.create_connection(('{second.address}', {PORT}), timeout=2)"
        done = subprocess.run([*within, sys.executable, "-c", code], capture_output=True)
        assert done.returncode != 0
        assert time.monotonic() - began >= 2.0 or b"No route" in done.stderr
