"""A private PostgreSQL for tests: Debian's binaries, a directory of its own, no TCP port."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.services import need

USER = "postgres"


def needed_binaries() -> Path:
    """Where ``initdb`` and ``postgres`` are; without them the test is skipped, or fails."""
    missing = "PostgreSQL is not installed (Debian: apt-get install postgresql)"
    return need(_find_binaries(), missing)


def _find_binaries() -> Path | None:
    """Debian keeps them out of PATH."""
    candidates = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    on_path = shutil.which("initdb")
    if on_path:
        candidates.append(Path(on_path).parent)
    for folder in candidates:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    return None


class Postgres:
    """One server, run as ``postgres`` where the tests run as root (which it refuses)."""

    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        self._folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        self._as_user: list[str] = []
        if os.geteuid() == 0:
            shutil.chown(self._folder, USER, USER)
            self._as_user = ["runuser", "-u", USER, "--"]

    @property
    def url(self) -> str:
        user = USER if self._as_user else os.environ.get("USER", USER)
        return f"postgresql:///postgres?host={self._folder}&user={user}"

    def create(self) -> None:
        self._run("initdb", "-D", self._data, "-A", "trust", "-U", self.url.split("user=")[1], "-N")
        self.start()

    def start(self, *options: str) -> None:
        settings = f"-c listen_addresses='' -k {self._folder} -c shared_buffers=16MB"
        self._run(
            *("pg_ctl", "-D", self._data, "-w", "-t", "60", "-l", str(self._folder / "log")),
            *("-o", " ".join([settings, *options]), "start"),
        )

    def kill(self) -> None:
        """As a power cut would: no checkpoint, no farewell."""
        self._run("pg_ctl", "-D", self._data, "-w", "-m", "immediate", "stop")

    def remove(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-w", "-m", "immediate", "stop", check=False)
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _data(self) -> str:
        return str(self._folder / "data")

    def _run(self, program: str, *arguments: str, check: bool = True) -> None:
        command: Sequence[str] = [*self._as_user, str(self._binaries / program), *arguments]
        done = subprocess.run(
            command, cwd=self._folder, capture_output=True, text=True, timeout=120, check=False
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{program} failed: {done.stdout}{done.stderr}")
