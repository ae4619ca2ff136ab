"""The command line as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

WIDE = {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}


def stelae(
    *arguments: str, cwd: Path | None = None, env: dict[str, str] | None = None, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "stelae", *arguments],
        cwd=cwd,
        env={**os.environ, **WIDE, **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
