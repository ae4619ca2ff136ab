"""Over HTTP, and on real sockets and files: a table gets another durability while it is written."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from stelae.core.schema.durability import replicas, segments, wal
from tests.cluster_fixture import local_cluster
from tests.front.http_world import World

BODY = {
    "name": "t",
    "columns": [{"name": "id", "type": "int64", "nullable": False}],
    "key": ["id"],
    "partition": {"hash": {"columns": ["id"], "buckets": 2}},
    "durability": {"segments": ["disk", "disk"]},
}


async def test_a_table_is_given_each_durability_in_turn_over_http(tmp_path: Path) -> None:
    """By PATCH and by Stelae's own client; writers of the same client go on, and lose nothing."""
    async with local_cluster(tmp_path, tservers=3, safekeepers=3) as cluster:
        world = World(cluster)
        async with world.client() as http:
            assert (await http.post("/v1/tables", json=BODY)).status_code == 201
            table = await world.database().table("t")
            done, longest_s, end = 0, 0.0, False

            async def write() -> None:
                nonlocal done, longest_s
                while not end:
                    began = time.monotonic()
                    await table.upsert({"id": done})
                    longest_s = max(longest_s, time.monotonic() - began)
                    done += 1

            writing = asyncio.create_task(write())
            answer = await http.patch(
                "/v1/tables/t", json={"durability": {"wal": 3, "segments": ["disk"]}}
            )
            assert answer.status_code == 200, answer.text
            described = answer.json()
            assert described["durability"] == {"wal": 3, "segments": ["disk"]}
            assert (described["becoming"], described["state"]) == (None, "running")
            for wanted in (replicas(3), wal(1, ("disk",)), segments("disk")):
                await table.alter(durability=wanted, timeout=30.0)
                assert table.record.durability == wanted
            end = True
            await writing
            assert done > 0
            assert await table.count() == done
            status = await world.database().status()
            (described,) = status["tables"]
            assert described["durability"] == "segments('disk')"
            assert described["becoming"] is None


@pytest.mark.parametrize(
    ("durability", "detail"),
    [
        ({"wal": 3}, "durability.wal.segments: Field required"),
        (
            {"replicas": 3, "segments": ["disk"]},
            "durability.replicas.segments: Extra inputs are not permitted",
        ),
        ({"segments": "disk"}, "durability.segments.segments: Input should be a valid list"),
        (
            "replicas(3)",
            'durability: give {"segments": ["disk", "disk"]}, {"replicas": 3} or '
            '{"wal": 3, "segments": ["disk"]}',
        ),
    ],
)
async def test_what_is_wrong_with_a_durability_is_said_of_the_one_that_is_meant(
    durability: Any, detail: str, tmp_path: Path
) -> None:
    """And of none of the others."""
    async with local_cluster(tmp_path) as cluster, World(cluster).client() as http:
        answer = await http.patch("/v1/tables/t", json={"durability": durability})
        assert (answer.status_code, answer.json()["detail"]) == (422, detail)
