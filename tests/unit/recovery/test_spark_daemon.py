"""`stelae.recovery.spark_daemon`: what workers are forked from has done everything once."""

from __future__ import annotations

import subprocess
import sys

PROBE = """
import sys, threading
from stelae.recovery import spark_daemon
assert spark_daemon.rehearse() == 32, "rows of both kinds of keys are merged"
assert threading.active_count() == 1, threading.enumerate()
assert "ray" not in sys.modules
import stelae.recovery.spark_job, stelae.storage.kernels, pandas
"""


def test_a_rehearsal_loads_what_tasks_need_and_leaves_no_thread_that_a_fork_would_miss() -> None:
    """In a process of its own, as the daemon is one; it knows nothing of Ray."""
    subprocess.run([sys.executable, "-c", PROBE], check=True, timeout=120)
