"""A command aside takes only what is left of the CPU, counts as much, and ends with the first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests import aside

ASIDE = [sys.executable, aside.__file__]
LIMIT_S = 30.0


def code(number: int) -> list[str]:
    return [sys.executable, "-c", f"raise SystemExit({number})"]


def both(first: list[str], other: list[str]) -> subprocess.CompletedProcess[str]:
    command = [*ASIDE, *first, aside.SEPARATOR, *other]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


@pytest.mark.parametrize(
    ("first", "other", "told"),
    [(0, 0, 0), (2, 0, 2), (0, 3, 3), (2, 3, 2), (5, 0, 0), (0, 5, 5), (5, 3, 3), (5, 5, 5)],
)
def test_what_fails_in_either_is_told(first: int, other: int, told: int) -> None:
    """The first one's code goes before; that no test has the markers is no failure of it."""
    assert both(code(first), code(other)).returncode == told


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="of Linux")
def test_the_other_one_runs_when_nobody_else_wants_to_and_is_heard_at_the_end() -> None:
    """Its scheduling class is the lowest, the first one's is as ever; its output comes last."""
    show = "import os, sys, time; time.sleep(float(sys.argv[1])); print(os.sched_getscheduler(0))"
    done = both([sys.executable, "-c", show, "0.5"], [sys.executable, "-c", show, "0"])
    assert done.stdout.split() == [str(os.SCHED_OTHER), str(os.SCHED_IDLE)]


def test_the_other_one_ends_if_the_first_cannot_even_begin() -> None:
    """Nothing of it is left."""
    before = set(psutil.Process().children(recursive=True))
    begin_s = time.monotonic()
    with pytest.raises(FileNotFoundError):
        aside.run(["/no/such/command"], [sys.executable, "-c", "import time; time.sleep(60)"])
    assert time.monotonic() - begin_s < LIMIT_S
    assert set(psutil.Process().children(recursive=True)) <= before


def test_whoever_ends_both_leaves_nothing_behind(tmp_path: Path) -> None:
    """Neither the commands nor what the other one has started."""
    sleeps = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(60)"
    nested = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {sleeps!r}, sys.argv[1]])"
    )
    first, other = tmp_path / "first", tmp_path / "other"
    one = [sys.executable, "-c", sleeps, str(first)]
    another = [sys.executable, "-c", nested, str(other)]
    running = subprocess.Popen([*ASIDE, *one, aside.SEPARATOR, *another])
    end_s = time.monotonic() + LIMIT_S
    while not all(path.exists() and path.read_text() for path in (first, other)):
        assert time.monotonic() < end_s
        time.sleep(0.02)
    started = [psutil.Process(int(path.read_text())) for path in (first, other)]
    for _ in range(3):  # `timeout` tells a process and its group
        running.terminate()
    assert running.wait(LIMIT_S) == 128 + signal.SIGTERM
    _, left = psutil.wait_procs(started, LIMIT_S)
    assert not left
