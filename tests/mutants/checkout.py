"""A copy of the checkout in which mutants are tried, and one run of tests in it.

The copy keeps the times of files, so that compiled bytecode that came along stays valid. Its
packages are found through ``PYTHONPATH``, which comes before an editable install of the original.
"""

from __future__ import annotations

import enum
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.mutants.mutant import Mutant

LEFT_OUT = (".git", ".venv*", "build", ".mypy_cache", ".ruff_cache", ".hypothesis", "*.egg-info")
ROOMS = (
    *("core", "consensus", "storage", "runtime", "client", "coordinator"),
    *("planner", "recovery", "actors", "serve", "simulation", "dashboards"),
)
"""Folders at the root that are packages of ``stelae``."""
PLUGINS = ("pytest_asyncio.plugin", "_hypothesis_pytestplugin")
"""All that the tests need: the others take seconds to import."""
FAST = "not soak and not ray and not spark"


class Outcome(enum.StrEnum):
    """What became of a run of tests."""

    KILLED = "killed"
    """A test failed."""
    SURVIVED = "survived"
    """All tests passed."""
    TIMED_OUT = "timed out"


class Ran(NamedTuple):
    """One run of tests."""

    outcome: Outcome
    took_s: float
    said: str
    """The end of what pytest printed."""


class Checkout:
    """One copy. At most one mutant is in it at a time."""

    def __init__(self, root: Path, folder: Path) -> None:
        """Copy ``root`` to ``folder``, which does not exist yet."""
        self._folder = folder
        shutil.copytree(root, folder, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
        for room in ROOMS:
            if (folder / room).is_dir():
                (folder / "stelae" / room).symlink_to(f"../{room}")

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """Have the mutant in the copy. Raises ValueError: its text is not there."""
        path = self._folder / mutant.path
        source, times = path.read_text(), path.stat()
        path.write_text(mutant.applied(source))
        # Never the time that the compiled original has: a change may leave the size as it is.
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + 2_000_000_000))
        try:
            yield
        finally:
            path.write_text(source)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def run(self, tests: Sequence[str], limit_s: float) -> Ran:
        """Run tests until the first failure. Raises RuntimeError: there was nothing to run."""
        options = [option for plugin in PLUGINS for option in ("-p", plugin)]
        options += ["-p", "no:cacheprovider", "--hypothesis-profile", "mutants", "-m", FAST]
        command = [sys.executable, "-m", "pytest", "-x", "-q", *options, *tests]
        started = time.monotonic()
        process = subprocess.Popen(
            ["nice", "-n", "19", *command],
            cwd=self._folder,
            env=_environment(self._folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said, _ = process.communicate()
            return Ran(Outcome.TIMED_OUT, time.monotonic() - started, said[-2000:])
        took_s = time.monotonic() - started
        match process.returncode:
            case 0:
                return Ran(Outcome.SURVIVED, took_s, said[-2000:])
            case 1 | 2:  # 2: a module could not even be imported
                return Ran(Outcome.KILLED, took_s, said[-2000:])
            case code:
                raise RuntimeError(f"pytest ended with {code} for {tests}:\n{said[-2000:]}")


def _environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",  # none of a mutant's may stay
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_ADDOPTS": "",
    }
