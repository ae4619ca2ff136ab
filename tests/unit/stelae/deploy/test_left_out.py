"""A launch with a smaller count refuses what would take copies away; real servers wrote them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stelae.core.config.spec import ClusterSpec
from stelae.core.config.spec_file import load_spec
from stelae.core.errors import InvalidArgument
from stelae.core.records.records import ServerKind
from stelae.core.schema.durability import Durability, replicas, segments, wal
from stelae.core.schema.partition import hash_partition
from stelae.deploy.left_out import check_left_out, copies_in
from tests.cluster_fixture import local_cluster

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("text", pa.string())])
SERVERS = tuple([f"{kind}-{n}" for kind in ("backup", "safekeeper", "tserver") for n in range(3)])
TABLES: dict[str, Durability] = {
    "s": segments("disk", "disk", "disk"),
    "r": replicas(3),
    "w": wal(3, segments=("disk",)),
}


async def written(root: Path) -> dict[str, set[str]]:
    """A cluster that has a table of each durability, and is down; the tablets of each table."""
    tablets: dict[str, set[str]] = {}
    async with local_cluster(root, masters=1, tservers=3, backups=3, safekeepers=3) as here:
        for name, durability in TABLES.items():
            table = await here.database.create_table(
                name,
                SCHEMA,
                key="id",
                partition=hash_partition("id", buckets=3),
                durability=durability,
            )
            await table.upsert([{"id": n, "text": "x"} for n in range(300)])
            (master,) = here.masters
            record = master.catalog.find(name)
            assert record is not None
            made = master.catalog.tablets_of(record.table_id)
            tablets[name] = {each.tablet_id for each in made}
    return tablets


def spec_of(root: Path) -> ClusterSpec:
    sections: dict[str, Any] = {"serve": None, "spark": None, "data_dir": str(root)}
    return load_spec(sections)


async def test_what_holds_copies_is_not_left_out(tmp_path: Path) -> None:
    """Backups, safekeepers and tablet servers: each is named with its tablets and the way out."""
    tablets = await written(tmp_path)
    spec = spec_of(tmp_path)
    check_left_out(spec, SERVERS)
    for gone, section, held in (
        ("backup-2", "backups", tablets["s"] | tablets["w"]),
        ("safekeeper-2", "safekeepers", tablets["w"]),
        ("tserver-2", "tservers", tablets["r"]),
    ):
        names = [name for name in SERVERS if name != gone]
        kind = ServerKind(gone.partition("-")[0])
        there = set(copies_in(tmp_path / gone, kind))
        assert there
        assert there <= held
        with pytest.raises(InvalidArgument, match=rf"{section}.count is 2, but {gone}") as caught:
            check_left_out(spec, names)
        assert min(there) in str(caught.value)
        assert "stelae apply" in str(caught.value)
        shutil.move(tmp_path / gone, tmp_path / f"away-{gone}")
        check_left_out(spec, names)
        shutil.move(tmp_path / f"away-{gone}", tmp_path / gone)


async def test_a_server_without_copies_may_be_left_out(tmp_path: Path) -> None:
    """Its folder is there, with an identity and empty files."""
    async with local_cluster(tmp_path, masters=1, tservers=3, backups=3, safekeepers=3):
        pass
    check_left_out(spec_of(tmp_path), [name for name in SERVERS if not name.endswith("-2")])
