"""Runs a command, and another one aside: with what the first leaves of the CPU, and no more.

``python tests/aside.py COMMAND... --aside OTHER...``: tests on real servers sleep and wait for much
of their time, and simulations, whose time is virtual, can have it. The other command gets a session
and a scheduling class of its own (SCHED_IDLE), so that whatever the first one starts has a core at
once. Its output is kept, and printed when both have ended. The exit code is that of the first of
both that failed. Pytest's 5, no test has these markers, is no failure of the first; of the other
one it is: a wrong marker would make all simulations a success.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

SEPARATOR = "--aside"
NO_TESTS = 5
TERM_S = 10.0
"""How long pytest and its workers may take to end once they are told to."""


def stand_aside() -> None:
    """This process, and what it will start, run when nobody else wants to."""
    os.setsid()
    os.nice(19)
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with suppress(OSError):  # sessions share the CPU evenly, whatever is in them, unless told
        Path("/proc/self/autogroup").write_text("19")


def run(command: list[str], other: list[str]) -> int:
    """Both to their ends. Whatever ends this process ends both."""
    with tempfile.TemporaryFile() as output:
        started: list[subprocess.Popen[bytes]] = []
        try:
            aside = subprocess.Popen(
                [sys.executable, __file__, SEPARATOR, *other],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            started.append(aside)
            first = subprocess.Popen(command)
            started.append(first)
            code, other_code = first.wait(), aside.wait()
        finally:
            for process in started:
                process.terminate()  # nothing, if it has ended
            for process in started:
                _end(process)
            for process in started[:1]:  # workers that their parent has left behind
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            output.seek(0)
            sys.stdout.buffer.write(output.read())
            sys.stdout.flush()
    return other_code if code in (0, NO_TESTS) else code


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(TERM_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _terminated(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # told once more, it still ends both
    raise SystemExit(128 + signal.SIGTERM)


def main(arguments: list[str]) -> int:
    at = arguments.index(SEPARATOR)
    first, other = arguments[:at], arguments[at + 1 :]
    if not first:
        stand_aside()
        os.execvp(other[0], other)
    signal.signal(signal.SIGTERM, _terminated)
    return run(first, other)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
