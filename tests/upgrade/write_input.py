"""Fills a data directory with the code of an older version; `tests.upgrade.make_input` runs this.

It stands in a copy of the older version's tree, whose `tests.cluster_fixture` it uses.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from tests import cluster_fixture
from tests.upgrade import contents


async def write(folder: Path) -> None:
    """Start a cluster in ``folder``, fill it, note what the rows' versions are, and stop it."""
    cluster_fixture.CLUSTER = contents.CLUSTER
    async with cluster_fixture.local_cluster(
        folder / "data", settings=contents.SETTINGS, **contents.CLUSTER_SIZE
    ) as cluster:
        await contents.fill(cluster.database)
        tables = {}
        for name in (*contents.DURABILITIES, contents.PLACES):
            table = await cluster.database.table(name)
            tables[name] = {
                "edition": table.edition,
                "schema_version": table.record.schema.version,
                "versions": await contents.versions_of(table),
            }
    (folder / "manifest.json").write_text(json.dumps({"tables": tables}, sort_keys=True))


if __name__ == "__main__":
    asyncio.run(write(Path(sys.argv[1])))
