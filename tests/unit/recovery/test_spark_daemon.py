"""`stelae.recovery.spark_daemon`: what workers are forked from has done everything once."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from stelae.recovery import spark_daemon

PROBE = """
import sys, threading
from stelae.recovery import spark_daemon
assert spark_daemon.rehearse() == 32, "rows of both kinds of keys are merged"
assert threading.active_count() == 1, threading.enumerate()
assert "ray" not in sys.modules
import stelae.recovery.spark_job, stelae.storage.kernels.compiled, pandas
"""


def test_a_rehearsal_loads_what_tasks_need_and_leaves_no_thread_that_a_fork_would_miss() -> None:
    """In a process of its own, as the daemon is one; it knows nothing of Ray."""
    subprocess.run([sys.executable, "-c", PROBE], check=True, timeout=120)


def test_a_task_comes_and_its_answer_goes_without_waiting_for_acknowledgements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also after an answer, with which the kernel takes to putting acknowledgements off again."""
    seen = []

    def carry_out(connection: socket.socket, authenticated: bool) -> int:
        names = (socket.TCP_NODELAY, socket.TCP_QUICKACK)
        seen.append([bool(connection.getsockopt(socket.IPPROTO_TCP, name)) for name in names])
        connection.sendall(connection.recv(4))
        return 0

    monkeypatch.setattr(spark_daemon, "_serve_task", carry_out)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as executor,
        server.accept()[0] as worker,
    ):
        for task in (b"one ", b"two "):
            executor.sendall(task)
            assert spark_daemon.serve_task(worker, authenticated=True) == 0
            assert executor.recv(4) == task
    assert seen == [[True, True], [True, True]]
