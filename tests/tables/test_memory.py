"""Tablet servers whose memory is full; the same for every durability."""

from __future__ import annotations

from pathlib import Path

import pytest

from stelae.core.errors import OutOfMemory
from stelae.core.schema.durability import Durability
from stelae.storage.rows.cleaning import LIVE_SHARE_MAX
from tests.cluster_fixture import local_cluster
from tests.durabilities import ALL
from tests.tables.conftest import SCHEMA

LIMIT_BYTES = 4 << 20
TEXT = "x" * 1000


@pytest.mark.parametrize("durability", ALL, ids=str)
async def test_a_full_server_refuses_rows_by_name_and_serves_on(
    tmp_path: Path, durability: Durability
) -> None:
    """At once, not at the deadline; reads go on, deletes go through, and what was acknowledged is
    all there."""
    async with local_cluster(
        tmp_path, tservers=3, safekeepers=3, memory_limit_bytes=LIMIT_BYTES
    ) as cluster:
        table = await cluster.database.create_table("t", SCHEMA, key="id", durability=durability)
        written = more = 0

        async def fill() -> None:
            nonlocal written
            while written < 100_000:
                rows = [{"id": written + n, "name": TEXT} for n in range(200)]
                await table.upsert(rows, timeout=120.0)
                written += 200

        async def fill_one_by_one() -> None:
            """Sealing packs rows, so that there may be room for some."""
            nonlocal more
            while more < LIMIT_BYTES // 1000:
                await table.insert({"id": -1 - more, "name": TEXT})
                more += 1

        with pytest.raises(OutOfMemory) as caught:
            await fill()
        server, used, limit = caught.value.args
        assert server.startswith("tserver-")
        assert used > limit
        assert limit in (LIMIT_BYTES, int(LIVE_SHARE_MAX * LIMIT_BYTES)), "of all, or of what lives"
        assert LIMIT_BYTES // 2000 < written < 4 * LIMIT_BYTES // 1000
        with pytest.raises(OutOfMemory):
            await fill_one_by_one()
        assert await table.get(0) == {"id": 0, "name": TEXT, "reading": None}
        await table.delete(0)
        assert await table.get(0) is None
        assert await table.count() == written + more - 1
