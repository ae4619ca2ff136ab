"""``stelae plan --calibrate``: rates of this machine, measured by a process of its own.

``python -m stelae.planning.calibration FOLDER`` does the work
(`stelae.planning.calibration_work`) and writes a line of JSON per step to standard output. Here it
is started, watched, and ended: it has a deadline, dies with whoever asked for it, and its folder is
removed in any case.

What it measures are the parts of a recovery. What servers do around them (event loops, frames,
Ray's object store) is added as `AROUND`.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stelae.core.errors import InvalidArgument, RetryLater
from stelae.planner.hardware import Hardware

MODULE = "stelae.planning.calibration"
TIMEOUT_S = 60.0
END_TIMEOUT_S = 5.0
FREE_BYTES_MIN = 1 << 30
AROUND = 1.5
"""A server's CPU time for a byte of a recovery, against that of the parts measured here."""
LINE_BYTES_MAX = 1 << 16

Progress = Callable[[int, int, str], None]


def calibrate(
    base: Hardware, progress: Progress, *, folder: Path | None = None, timeout_s: float = TIMEOUT_S
) -> Hardware:
    """Measure this machine; what cannot be measured on one machine alone stays as in ``base``.

    ``folder``: on the disk that is to be measured; the system's temporary one if absent.

    Raises:
        InvalidArgument: there is no such folder, or no room in it.
        RetryLater: a measurement failed, or was not done in time.
    """
    where = Path(folder or tempfile.gettempdir())
    if not where.is_dir():
        raise InvalidArgument(f"{where} is no folder: name one on the disk to be measured")
    if shutil.disk_usage(where).free < FREE_BYTES_MIN:
        raise InvalidArgument(f"{where} has less than 1 GiB free, which calibration needs")
    with tempfile.TemporaryDirectory(prefix="stelae-calibration-", dir=where) as made:
        figures = _run(Path(made), progress, timeout_s)
    return hardware_of(figures, base)


def hardware_of(figures: Mapping[str, float], base: Hardware) -> Hardware:
    """Rates from figures of `stelae.planning.calibration_work`.

    Sending: out of the page cache, and half of a connection. Receiving: the other half, the check,
    and new memory to stay in.
    """
    half_s = 1 / figures["stream_bytes_per_core_s"]
    send_s = half_s + 1 / figures["cached_read_bytes_per_core_s"]
    receive_s = half_s + 1 / figures["check_bytes_per_core_s"]
    receive_s += 1 / figures["new_memory_bytes_per_core_s"]
    return replace(
        base,
        name="calibrated",
        cores=int(figures["cores"]),
        disk_read_bytes_per_s=figures["disk_read_bytes_per_s"],
        disk_write_bytes_per_s=figures["disk_write_bytes_per_s"],
        disk_seek_s=figures["disk_seek_s"],
        send_bytes_per_core_s=1 / (AROUND * send_s),
        receive_bytes_per_core_s=1 / (AROUND * receive_s),
        merge_rows_per_core_s=figures["merge_rows_per_core_s"] / AROUND,
    )


def _run(folder: Path, progress: Progress, timeout_s: float) -> dict[str, float]:
    deadline = time.monotonic() + timeout_s
    with (folder / "errors").open("w+b") as errors, _child(folder, errors) as child:
        figures: dict[str, float] = {}
        for line in _lines(child, deadline):
            try:
                told = json.loads(line)
            except ValueError:
                continue  # something that a library had to say
            if "step" in told:
                progress(told["done"], told["total"], told["step"])
            else:
                figures.update(told["figures"])
        code = child.wait(END_TIMEOUT_S)
        if code:
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip().splitlines()[-1:]
            what = said[0] if said else f"exit code {code}"
            raise RetryLater(f"the calibration failed: {what}")
    return figures


def command_of(folder: Path) -> list[str]:
    """How the working process is started."""
    return [sys.executable, "-m", MODULE, str(folder)]


@contextlib.contextmanager
def _child(folder: Path, errors: Any) -> Iterator[subprocess.Popen[bytes]]:
    """The working process; gone when this ends, however it does."""
    child = subprocess.Popen(
        command_of(folder),
        stdin=subprocess.PIPE,  # closed when this process ends: the sign to stop
        stdout=subprocess.PIPE,
        stderr=errors,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield child
    finally:
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()
        if child.poll() is None:
            child.kill()
        child.wait(END_TIMEOUT_S)


def _lines(child: subprocess.Popen[bytes], deadline: float) -> Iterator[bytes]:
    """Lines of its standard output until it ends. Raises `RetryLater` at the deadline."""
    assert child.stdout is not None
    descriptor, pending = child.stdout.fileno(), b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not selector.select(left_s):
                raise RetryLater("the calibration was not done in time; is the machine busy?")
            data = os.read(descriptor, LINE_BYTES_MAX)
            if not data:
                return
            *lines, pending = (pending + data).split(b"\n")
            yield from lines


def main(arguments: list[str]) -> int:
    """The working process."""
    import threading

    from stelae.planning.calibration_work import cpu_count, steps

    def watch() -> None:
        """Nobody is left to tell: end at once, in the middle of whatever it is."""
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=watch, name="calibration-watch", daemon=True).start()
    folder, todo = Path(arguments[0]), list(steps())
    figures: dict[str, float] = {"cores": cpu_count()}
    for done, step in enumerate(todo):
        print(json.dumps({"step": step.name, "done": done, "total": len(todo)}), flush=True)
        figures.update(step.measure(folder))
    print(json.dumps({"figures": figures}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
