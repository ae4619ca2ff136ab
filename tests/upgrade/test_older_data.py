"""Data directories of released versions: the code of the checkout starts on each, and serves it."""

from __future__ import annotations

import json
import tarfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stelae.actors.backup import frames
from stelae.client.table.table import AsyncTable
from stelae.core.errors import VersionMismatch
from stelae.core.messages.backups import ReplicaState
from stelae.core.schema.durability import segments
from tests import cluster_fixture
from tests.cluster_fixture import LocalCluster, local_cluster
from tests.upgrade import contents

INPUTS = sorted((Path(__file__).parent / "input").glob("*.tar.xz"))
WRITTEN_ID = contents.DELETED[0]
"""Key of a deleted row, which the test writes again."""
KEPT_ID = 1
KINDS_OF_FILES = (
    "*/instance",
    "*/master-list",
    "master-*/masters",
    "master-*/catalog/snapshots/*",
    "master-*/catalog/wals/*/log-*",
    "tserver-*/consensus-meta/*",
    "tserver-*/tablet-meta/*",
    "tserver-*/wals/*/log-*",
    "tserver-*/data/*/*.image",
    "tserver-*/quarantine/*/tablet-meta",
    "safekeeper-*/safekeeper-id",
    "safekeeper-*/timelines/*",
    "safekeeper-*/timeline-wals/*/*",
    "cas_store-*/cas.db",
)
assert INPUTS, "no input: the tests below would pass without running"


@pytest.fixture(params=INPUTS, ids=lambda path: path.name.removesuffix(".tar.xz"))
def made(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what one older version made."""
    monkeypatch.setattr(cluster_fixture, "CLUSTER", contents.CLUSTER)
    with tarfile.open(request.param) as packed:
        packed.extractall(tmp_path, filter="data")
    return tmp_path


@asynccontextmanager
async def started(made: Path) -> AsyncIterator[LocalCluster]:
    """The cluster of the checkout's code on that data directory."""
    async with local_cluster(
        made / "data", settings=contents.SETTINGS, **contents.CLUSTER_SIZE
    ) as cluster:
        yield cluster


async def rows_of(table: AsyncTable) -> dict[str, dict[str, Any]]:
    """All rows by key."""
    rows = (await table.scan()).to_pylist()
    return {contents.key_text(row[name] for name in table.key): row for row in rows}


def normal(rows: Mapping[Any, dict[str, Any]], schema: pa.Schema) -> dict[str, dict[str, Any]]:
    """Expected rows as Arrow gives them back, by key as text."""
    given = contents.arrow_rows(rows.values(), schema).to_pylist()
    return {str(row["id"]): row for row in given}


async def check_tables(
    cluster: LocalCluster,
    versions: Mapping[str, Mapping[str, int]],
    expected: Mapping[int, dict[str, Any]],
) -> None:
    """Compare every row, version and index."""
    for name, durability in contents.DURABILITIES.items():
        table = await cluster.database.table(name)
        assert table.record.durability == durability
        wanted = normal(expected, table.schema)
        assert await rows_of(table) == wanted, name
        assert await contents.versions_of(table) == versions[name], name
        for label in ("label-03", "updated"):
            found = (await table.find("label", label, timeout=120.0)).to_pylist()
            ids = {row["id"] for row in found}
            assert ids == {row["id"] for row in wanted.values() if row["label"] == label}
            assert ids, f"nothing has {label}"
    places = await cluster.database.table(contents.PLACES)
    wanted_places = {contents.key_text(k): contents.expected_place(k) for k in contents.PLACE_KEYS}
    assert await rows_of(places) == wanted_places
    assert await contents.versions_of(places) == versions[contents.PLACES]


async def check_cluster(cluster: LocalCluster, manifest: Mapping[str, Any]) -> None:
    """Compare what the masters keep of tables, tokens, servers and settings."""
    database = cluster.database
    names = {table.name for table in await database.tables()}
    assert names == set(manifest["tables"])
    for name, noted in manifest["tables"].items():
        table = await database.table(name)
        assert table.edition == noted["edition"]
        assert table.record.schema.version == noted["schema_version"]
    tokens = [(token["name"], token["role"]) for token in await database.tokens()]
    assert tokens == list(contents.TOKENS)
    assert (await database.rebalancing()).after_s == contents.REBALANCE_AFTER_S
    tservers = {server["name"]: server for server in await database.tservers()}
    assert [name for name in sorted(tservers) if tservers[name]["maintenance"]] == [
        contents.IN_MAINTENANCE
    ]
    assert len(await database.safekeepers()) == contents.CLUSTER_SIZE["safekeepers"]


async def write_on(
    cluster: LocalCluster, versions: dict[str, dict[str, int]], rows: dict[int, dict[str, Any]]
) -> None:
    """Write into every table, on the conditions of the older versions; note what is there then."""
    rows[KEPT_ID] = {**rows[KEPT_ID], "label": "updated"}
    rows[WRITTEN_ID] = {**rows[KEPT_ID], "id": WRITTEN_ID}
    del rows[contents.UPDATED[0]]
    for name in contents.DURABILITIES:
        table = await cluster.database.table(name)
        noted = versions[name]
        kept = contents.arrow_rows([rows[KEPT_ID]], table.schema)
        with pytest.raises(VersionMismatch):
            await table.upsert(kept, if_version=noted[str(KEPT_ID)] + 1)
        [version] = await table.upsert(kept, if_version=noted[str(KEPT_ID)])
        assert version > noted[str(KEPT_ID)]
        noted[str(KEPT_ID)] = int(version)
        again = contents.arrow_rows([rows[WRITTEN_ID]], table.schema)
        [version] = await table.upsert(again, if_version=0)
        noted[str(WRITTEN_ID)] = int(version)
        await table.delete(contents.UPDATED[0])
        del noted[str(contents.UPDATED[0])]


async def test_the_data_directory_of_an_older_version_is_served_and_written_on(made: Path) -> None:
    """Every row, version, index, token and mark of the older version is there, its calls are known,
    and what is written to it by this version is there after the next start."""
    manifest = json.loads((made / "manifest.json").read_text())
    versions = {name: noted["versions"] for name, noted in manifest["tables"].items()}
    rows = contents.expected_rows()
    async with started(made) as cluster:
        await check_tables(cluster, versions, rows)
        await check_cluster(cluster, manifest)
        for name in contents.DURABILITIES:
            table = await cluster.database.table(name)
            # The same request once more: its answer is remembered, or this would be RowExists.
            assert await contents.insert_once(table) == versions[name][str(contents.ONCE_ID)]
        await write_on(cluster, versions, rows)
        new = await cluster.database.create_table(
            "new", contents.FIRST_SCHEMA, key="id", durability=segments("disk", "disk")
        )
        await new.insert(contents.arrow_rows([contents.first_row(1)], contents.FIRST_SCHEMA))
        await check_tables(cluster, versions, rows)
    async with started(made) as cluster:
        await check_tables(cluster, versions, rows)
        new = await cluster.database.table("new")
        assert await new.count() == 1
        for name in contents.DURABILITIES:
            table = await cluster.database.table(name)
            extra = {**rows[KEPT_ID], "id": -1}
            await table.insert(contents.arrow_rows([extra], table.schema))
            assert await table.count() == len(rows) + 1


def test_the_input_has_open_and_sealed_segments_and_every_kind_of_file(made: Path) -> None:
    """The comparison above is worth what the input holds: replicas of segments in both forms, and
    logs, snapshots, images, timelines and the rows of the configuration store."""
    states = set()
    for path in (made / "data").glob("backup-*/disk/frames"):
        data = path.read_bytes()
        superblock = frames.newest_superblock(data[: frames.SUPERBLOCKS_BYTES])
        assert superblock is not None
        layout = frames.FrameLayout(superblock.frame_bytes, superblock.extents)
        for extent in range(len(superblock.extents)):
            begin, length, first = layout.metadata_range(extent)
            slots = frames.read_slots(data[begin : begin + length], first)
            states |= {slot.newest.state for slot in slots if slot.newest is not None}
    assert states >= {ReplicaState.OPEN, ReplicaState.SEALED}
    for pattern in KINDS_OF_FILES:
        assert list((made / "data").glob(pattern)), pattern
