"""One server of each kind on a real Ray is replaced by a new one while tables are written."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import stelae
from stelae.core.errors import InvalidArgument
from stelae.core.schema.durability import Durability
from tests.cluster.test_apply import written_all_the_while
from tests.cluster.test_one_server import state_of

pytestmark = [pytest.mark.ray, pytest.mark.soak]

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64())])
TIMEOUT_S = 120.0


def test_a_server_of_each_kind_is_replaced_under_load(tmp_path: Path) -> None:
    """It has another UUID and an empty folder, its former folder is kept, and no row is lost."""
    spec = {
        "cluster": "by-hand",
        "data_dir": str(tmp_path),
        "ray": {"address": "local", "num_cpus": 2},
        "masters": {"count": 3},
        "tservers": {"count": 4, "memory": "128MiB"},
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
            with pytest.raises(InvalidArgument, match="--no-drain"):
                database.replace_server("safekeeper-2", timeout=TIMEOUT_S)
            for name in ("tserver-2", "backup-2", "safekeeper-2", "master-2"):
                before = len(written)
                _, uuid = state_of(database, name)
                if name == "backup-2":
                    database.stop_server(name)
                told: list[str] = []
                found = database.replace_server(
                    name, drain=name != "safekeeper-2", progress=told.append, timeout=TIMEOUT_S
                )
                assert found.former == (uuid,)
                assert state_of(database, name) == ("live", found.uuid)
                assert found.uuid != uuid
                (aside,) = map(Path, found.set_aside)
                assert aside.parent == tmp_path
                assert (aside / "instance").exists()
                assert any(str(aside) in text for text in told)
                assert len(written) > before, f"writes went on while {name} was replaced"
        for table in tables:
            assert table.count() == len(written)
        assert database.check(wait=60, checksums=True).is_well
        assert len([m for m in database.masters() if m["voter"]]) == 3
