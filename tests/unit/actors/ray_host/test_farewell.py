"""`stelae.actors.ray_host.exit_hook`: who is to end hands over first, once, and then ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

PROGRAM = """
import asyncio, signal, sys, threading
from stelae.actors.ray_host.exit_hook import at_exit

def ended(number, frame):  # as Ray's
    raise SystemExit(1)

signal.signal(signal.SIGTERM, ended)
loop = asyncio.new_event_loop()

async def work(timeout_s):
    print("begun", flush=True)
    if sys.argv[1] == "hangs":
        await asyncio.Event().wait()
    await asyncio.to_thread(sys.stdin.readline)  # pools still work, as servers need them
    print("handed over", flush=True)

undo = at_exit(loop, work, float(sys.argv[2]))
if sys.argv[1] == "undone":
    undo()
if sys.argv[1] == "closed":
    loop.close()
else:
    threading.Thread(target=loop.run_forever, daemon=True).start()
print("ready", flush=True)
signal.pause()
"""
END_S = 30.0


class Told:
    """A process, and what it says."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdin is not None
        assert process.stdout is not None
        self.stdin, self.stdout = process.stdin, process.stdout

    def says(self, word: str) -> None:
        assert self.stdout.readline().strip() == word

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def ends(self) -> tuple[int, str]:
        """Its exit code, and what else it said."""
        return self.process.wait(END_S), self.stdout.read()


@contextmanager
def running(how: str, timeout_s: float) -> Iterator[Told]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, how, str(timeout_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        told = Told(process)
        try:
            told.says("ready")
            yield told
        finally:
            process.kill()


def test_a_second_sigterm_neither_breaks_a_hand_over_nor_lets_it_hang() -> None:
    """The first begins it; whatever comes after that is ignored until it is done, and then the
    process ends as it would have."""
    with running("works", END_S) as told:
        told.terminate()
        told.says("begun")
        for _ in range(3):
            told.terminate()
        told.stdin.write("go on\n")
        told.stdin.flush()
        told.says("handed over")
        assert told.ends() == (1, "")


@pytest.mark.parametrize("signals", [1, 2])
def test_a_hand_over_that_hangs_ends_with_its_time(signals: int) -> None:
    """Whoever leads nothing any more, and cannot say so, ends all the same."""
    with running("hangs", 0.2) as told:
        told.terminate()
        told.says("begun")
        for _ in range(signals - 1):
            told.terminate()
        assert told.ends() == (1, "")


@pytest.mark.parametrize("how", ["closed", "undone"])
def test_a_server_that_has_stopped_already_has_nothing_to_say(how: str) -> None:
    """Its loop is closed, or it was stopped in order: the process ends at once."""
    with running(how, END_S) as told:
        told.terminate()
        assert told.ends() == (1, "")
