"""One server of each kind on a real Ray is stopped and started again while tables are written."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import stelae
from stelae.core.errors import InvalidArgument
from stelae.core.schema.durability import Durability
from tests.cluster.test_apply import written_all_the_while

pytestmark = [pytest.mark.ray, pytest.mark.soak]

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64())])


def state_of(database: stelae.Database, name: str) -> tuple[str, str]:
    """The state and the UUID of a server."""
    (found,) = [each for each in database.servers() if each["name"] == name]
    return found["state"], found["uuid"]


def test_each_kind_of_server_is_stopped_and_started_under_load(tmp_path: Path) -> None:
    """It keeps its UUID, Ray leaves it alone meanwhile, and every acknowledged row is there."""
    spec = {
        "cluster": "one-server",
        "data_dir": str(tmp_path),
        "ray": {"address": "local", "num_cpus": 2},
        "masters": {"count": 3},
        "tservers": {"count": 3, "memory": "128MiB"},
        "backups": {"count": 3},
        "safekeepers": {"count": 3},
        "serve": None,
        "spark": None,
    }
    durabilities: tuple[Durability, ...] = (
        stelae.replicas(3),
        stelae.segments("disk", "disk"),
        stelae.wal(3),
    )
    with stelae.launch(spec) as database:
        tables = [
            database.create_table(f"t{n}", SCHEMA, key="id", durability=durability)
            for n, durability in enumerate(durabilities)
        ]
        with written_all_the_while(*tables) as written:
            for name in ("backup-2", "safekeeper-2", "tserver-2", "master-2"):
                before = len(written)
                _, uuid = state_of(database, name)
                database.stop_server(name)
                assert state_of(database, name) == ("stopped", uuid)
                assert name in database.status()["stopped"]
                if name == "tserver-2":
                    with pytest.raises(InvalidArgument, match="no live majority of replicas"):
                        database.stop_server("tserver-3")
                database.stop_server(name)
                database.start_server(name)
                assert state_of(database, name) == ("live", uuid)
                assert len(written) > before, f"writes went on without {name}"
        for table in tables:
            assert table.count() == len(written)
        assert database.check(wait=60, checksums=True).is_well
