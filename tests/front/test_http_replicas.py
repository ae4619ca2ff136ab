"""Over HTTP: the number of a table's replicas is changed, and copies are shown."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from stelae.core.errors import InvalidArgument
from stelae.core.schema.durability import replicas
from tests.cluster_fixture import local_cluster
from tests.front.http_world import World, problem_of

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("a", pa.string())])


async def test_replicas_of_a_table_are_changed_over_http(tmp_path: Path) -> None:
    """By PATCH and by Stelae's own client; what cannot be is a problem that says why."""
    async with local_cluster(tmp_path, tservers=3) as cluster:
        world = World(cluster)
        async with world.client() as http:
            body = {
                "name": "t",
                "columns": [{"name": "id", "type": "int64", "nullable": False}],
                "key": ["id"],
                "durability": {"replicas": 1},
            }
            assert (await http.post("/v1/tables", json=body)).status_code == 201
            await http.put("/v1/tables/t/rows/1", json={})
            answer = await http.patch("/v1/tables/t", json={"durability": {"replicas": 3}})
            assert answer.status_code == 200, answer.text
            assert answer.json()["durability"] == {"replicas": 3}
            assert answer.json()["state"] == "running"
            (tablet,) = (await http.get("/v1/tables/t/tablets")).json()["tablets"]
            assert [member["voter"] for member in tablet["replicas"]] == [True] * 3
            assert (await http.get("/v1/tables/t/rows/1")).json() == {"id": 1}
            for wanted in ({"replicas": 2}, {"wal": 3, "segments": []}):
                answer = await http.patch("/v1/tables/t", json={"durability": wanted})
                problem_of(answer, 400, "invalid-argument")
            assert (await http.get("/v1/copies")).json() == {"copies": []}
        database = world.database()
        table = await database.table("t")
        await table.alter(durability=replicas(1))
        assert (await database.table("t")).record.durability == replicas(1)
        with pytest.raises(InvalidArgument, match="one after the other"):
            await table.alter(durability=replicas(3), add_columns={"more": pa.int8()})
