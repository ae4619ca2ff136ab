"""What the tests on real Ray share: a small cluster of their own, and the end of all its processes.

The session's folder lies right below the temporary folder: Ray's sockets must have short paths.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

if TYPE_CHECKING:
    from stelae.cluster import LaunchedDatabase

END_TIMEOUT_S = 60.0


@pytest.fixture(scope="session")
def small_spec() -> Callable[..., dict[str, Any]]:
    """``small_spec(folder, **more)``: three of each server, without HTTP and Spark."""
    return _small_spec


def _small_spec(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "cluster": "test",
        "data_dir": str(folder),
        "ray": {"address": "local", "num_cpus": 2},
        "tservers": {"count": 3, "memory": "128MiB"},
        "segment_size": "1MiB",
        "serve": None,
        "spark": None,
        **more,
    }


@pytest.fixture(scope="module")
def ray_folder() -> Iterator[Path]:
    """A short folder for data and for Ray; the environment of a Ray of our own."""
    folder = Path(tempfile.mkdtemp(prefix="st-", dir="/tmp"))
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_AUTH_MODE", "disabled")
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    patch.setenv("RAY_TMPDIR", str(folder / "r"))
    yield folder
    patch.undo()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def ends_processes() -> Iterator[None]:
    """Every process that the module's tests start has ended when they have."""
    before = set(psutil.Process().children(recursive=True))
    yield
    started = [p for p in psutil.Process().children(recursive=True) if p not in before]
    _, left = psutil.wait_procs(started, END_TIMEOUT_S)
    names = [f"{process.pid} {process.name()}" for process in left]
    for process in left:
        process.kill()
    assert not names, f"still running: {names}"


@pytest.fixture(scope="module")
def launch_small(ray_folder: Path, ends_processes: None) -> Iterator[Callable[..., Any]]:
    """``launch_small(name, **spec)``: a cluster in a folder of that name; closed at the end."""
    import stelae

    launched: list[LaunchedDatabase] = []

    def launch(name: str, **more: Any) -> LaunchedDatabase:
        database = stelae.launch(_small_spec(ray_folder / name, **more))
        launched.append(database)
        return database

    yield launch
    for database in reversed(launched):
        database.close()
