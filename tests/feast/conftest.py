"""A small cluster for the tests of Feast's online store; Feast has an environment of its own."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stelae.client.aio import Loop

if TYPE_CHECKING:
    from stelae.cluster import LaunchedDatabase
    from stelae.database.api import Database


@pytest.fixture(scope="module")
def database() -> Iterator[LaunchedDatabase]:
    """In a short folder, which is the working directory: the cluster's is .stelae/demo there."""
    import stelae

    folder = Path(tempfile.mkdtemp(prefix="st-", dir="/tmp"))
    with socket.socket() as probe, pytest.MonkeyPatch.context() as patch:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_TMPDIR", str(folder / "r"))
        patch.setenv("FEAST_USAGE", "False")
        patch.chdir(folder)
        probe.close()
        with stelae.launch(
            cluster="demo",
            ray={"address": "local", "num_cpus": 4},
            masters={"count": 1},
            tservers={"count": 2, "memory": "128MiB"},
            backups={"count": 2},
            segment_size="1MiB",
            serve={"host": "127.0.0.1", "port": port},
            spark=None,
        ) as found:
            yield found
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """Real ones without Ray, which every store connects to; quicker to start than `database`."""
    import stelae.feast
    from stelae.database.api import Database
    from tests.cluster_fixture import local_cluster

    loop = Loop()
    started = local_cluster(tmp_path_factory.mktemp("servers"))
    cluster = loop.run(started.__aenter__())
    found = Database(loop, cluster.database, "demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stelae.feast, "connect", lambda cluster, **more: found)
        yield found
    loop.run(started.__aexit__(None, None, None))
    loop.close()


def run(command: list[str], folder: Path) -> str:
    """What a command printed. It has to end well."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=120.0, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout
