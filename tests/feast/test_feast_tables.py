"""Tables of feature views on real servers: what writers leave, and how tables change and end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("feast", reason="Feast has an environment of its own: make test-feast")

from feast.protos.feast.types.Value_pb2 import Value
from feast.types import FeastType, Float64, Int64, String

from stelae import feast
from stelae.client.database import AsyncDatabase
from stelae.client.table.table import AsyncTable
from stelae.connectors.feast_rows import Batch, Layout, feast_rows, layout_of
from stelae.connectors.feast_tables import ViewTables
from stelae.core.errors import InvalidArgument, OutcomeUnknown
from stelae.core.schema.durability import segments
from tests.cluster_fixture import local_cluster
from tests.feast.views import key_of, row_of, view_of

TAILS = [f"N{n}" for n in range(12)]
WRITERS = 4
MINUTES = 24


def laid_out(features: dict[str, FeastType], name: str = "planes") -> Layout:
    return layout_of("air", view_of(name, features), versions=False, key_version=3)


def opened(database: AsyncDatabase) -> ViewTables:
    return ViewTables(database, segments("disk"), 4, 10.0, None)


@asynccontextmanager
async def tables_of(root: Path) -> AsyncIterator[ViewTables]:
    async with local_cluster(root) as cluster:
        yield opened(cluster.database)


async def read(tables: ViewTables, layout: Layout, tails: list[str]) -> list[Any]:
    names = list(layout.features)
    keys = layout.keys(map(key_of, tails))
    found = await tables.read(layout, keys, layout.columns(names))
    return [values for _, values in feast_rows(layout, keys, names, found)]


async def written_at_the_same_time(tables: ViewTables, layout: Layout) -> list[int]:
    """Four writers, each with every fourth event of all planes, in an order of its own."""
    await tables.reconcile([layout])

    async def write(first: int) -> None:
        minutes = list(range(first, MINUTES, WRITERS))
        random.Random(first).shuffle(minutes)
        for minute in minutes:
            rows = [row_of(tail, minute, {"x": minute}) for tail in TAILS]
            await tables.write(Batch.of(layout, rows))

    await asyncio.gather(*map(write, range(WRITERS)))
    return [values["x"].int64_val for values in await read(tables, layout, TAILS)]


async def test_the_newest_event_wins_whoever_writes_at_the_same_time(tmp_path: Path) -> None:
    """Of every plane, each writer with events in an order of its own."""
    async with tables_of(tmp_path) as tables:
        found = await written_at_the_same_time(tables, laid_out({"x": Int64}))
        assert found == [MINUTES - 1] * len(TAILS)


@pytest.mark.parametrize("is_conditional", [True, False], ids=["conditional", "planted bug"])
async def test_who_looked_before_a_newer_event_came_does_not_write_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_conditional: bool
) -> None:
    """And without conditions it would: so the test above can see it."""
    upsert, has_looked, is_overtaken = AsyncTable.upsert, asyncio.Event(), asyncio.Event()

    async def overtaken(self: AsyncTable, rows: pa.Table, **more: Any) -> Any:
        if not has_looked.is_set():
            has_looked.set()
            await is_overtaken.wait()
        if not is_conditional:
            more["if_version"] = None
        return await upsert(self, rows, **more)

    monkeypatch.setattr(AsyncTable, "upsert", overtaken)
    async with tables_of(tmp_path) as tables, asyncio.timeout(20.0), asyncio.TaskGroup() as older:
        layout = laid_out({"x": Int64})
        await tables.reconcile([layout])
        first = older.create_task(tables.write(Batch.of(layout, [row_of("N1", 1, {"x": 1})])))
        await has_looked.wait()
        await tables.write(Batch.of(layout, [row_of("N1", 2, {"x": 2})]))
        is_overtaken.set()
        await first
        (found,) = await read(tables, layout, ["N1"])
        assert found["x"].int64_val == (2 if is_conditional else 1)


async def test_a_write_of_unknown_outcome_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was carried out, and nobody said so: the row is ours, and is left as it is."""
    upsert = AsyncTable.upsert
    calls = []

    async def unanswered(self: AsyncTable, rows: pa.Table, **more: Any) -> Any:
        calls.append(rows.num_rows)
        versions = await upsert(self, rows, **more)
        if len(calls) == 1:
            raise OutcomeUnknown("tserver", "write", 1.0)
        return versions

    monkeypatch.setattr(AsyncTable, "upsert", unanswered)
    async with tables_of(tmp_path) as tables:
        layout = laid_out({"x": Int64})
        await tables.reconcile([layout])
        await tables.write(Batch.of(layout, [row_of("N1", 1, {"x": 1})]))
        assert calls == [1]
        assert [v["x"].int64_val for v in await read(tables, layout, ["N1"])] == [1]


async def test_a_writer_with_an_older_view_erases_nothing(tmp_path: Path) -> None:
    """It knows one feature of two; another client has the newer view."""
    async with local_cluster(tmp_path) as cluster:
        older, newer = laid_out({"x": Int64}), laid_out({"x": Int64, "y": Int64})
        old, new = opened(cluster.database), opened(cluster.database)
        await old.reconcile([older])
        await old.write(Batch.of(older, [row_of("N1", 0, {"x": 0})]))
        await new.reconcile([newer])
        await new.write(Batch.of(newer, [row_of("N1", 1, {"x": 1, "y": 1})]))
        await old.write(Batch.of(older, [row_of(tail, 2, {"x": 2}) for tail in ("N1", "N2")]))
        one, two = await read(new, newer, ["N1", "N2"])
        assert one == {"x": Value(int64_val=2), "y": Value(int64_val=1)}
        assert two == {"x": Value(int64_val=2), "y": Value()}


async def test_several_calls_may_meet_a_table_that_is_made_anew(tmp_path: Path) -> None:
    """Each looks it up again; none takes away what another has found."""
    async with local_cluster(tmp_path) as cluster:
        layout, tables, others = laid_out({"x": Int64}), *map(opened, [cluster.database] * 2)
        await tables.reconcile([layout])
        await tables.write(Batch.of(layout, [row_of("N1", 0, {"x": 0})]))
        await others.drop("air", ["planes"])
        await others.reconcile([layout])
        found = await asyncio.gather(*(read(tables, layout, [tail]) for tail in TAILS))
        assert found == [[None]] * len(TAILS)


async def test_rows_are_converted_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other calls go on meanwhile."""
    beside = []

    def watched(name: str) -> None:
        real = getattr(Batch, name)

        def call(*given: Any, **more: Any) -> Any:
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop()
            beside.append(name)
            return real(*given, **more)

        monkeypatch.setattr(Batch, name, call)

    config = SimpleNamespace(
        project="air",
        registry=SimpleNamespace(enable_online_feature_view_versioning=False),
        entity_key_serialization_version=3,
    )
    async with tables_of(tmp_path) as tables:
        layout = laid_out({"x": Int64})
        await tables.reconcile([layout])
        watched("of")
        watched("due")
        view = view_of("planes", {"x": Int64})
        await feast._write(config, view, [row_of("N1", 0, {"x": 0})], tables)
    assert beside == ["of", "due"]


async def test_tables_follow_their_views(tmp_path: Path) -> None:
    """Features come, go, and change their type, while another client goes on with what it knows."""
    async with local_cluster(tmp_path) as cluster:
        tables, other = opened(cluster.database), opened(cluster.connect("other"))
        first = laid_out({"x": Int64, "y": Int64})
        await tables.reconcile([first])
        await tables.write(Batch.of(first, [row_of("N1", 1, {"x": 1, "y": 2})]))
        assert len(await read(other, first, ["N1"])) == 1

        second = laid_out({"x": Int64, "y": String, "z": Float64})
        with pytest.raises(InvalidArgument, match="run it again"):
            await read(other, second, ["N1"])
        await tables.reconcile([second])
        await tables.reconcile([second])  # again is fine
        for each in (tables, other):
            (found,) = await read(each, second, ["N1"])
            assert found["x"].int64_val == 1
            assert found["y"].WhichOneof("val") is found["z"].WhichOneof("val") is None

        await tables.drop("air", ["planes"])
        await tables.drop("air", ["planes"])
        for each in (tables, other):
            with pytest.raises(InvalidArgument, match="run feast apply"):
                await read(each, second, ["N1"])
        await tables.reconcile([first])
        assert await read(other, first, ["N1"]) == [None]


async def test_dropping_leaves_other_views_alone(tmp_path: Path) -> None:
    """Names that begin alike, and other projects, are no reason."""
    async with tables_of(tmp_path) as tables:
        for name in ("a", "ab", "__precomputed__s"):
            await tables.reconcile([laid_out({"x": Int64}, name)])
        await tables.drop("air", ["a"])
        assert await tables._names() == {"air.ab", "air.__precomputed__s"}
        await tables.drop("ai", ["ab"], also="__precomputed__")
        assert await tables._names() == {"air.ab", "air.__precomputed__s"}
        await tables.drop("air", [], also="__precomputed__")
        assert await tables._names() == {"air.ab"}
