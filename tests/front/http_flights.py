"""The table that the tests of the HTTP API write to."""

from __future__ import annotations

from typing import Any

import httpx

from tests.durabilities import as_json
from tests.front.http_world import World

FLIGHTS: dict[str, Any] = {
    "name": "flights",
    "columns": [
        {"name": "id", "type": "int64", "nullable": False},
        {"name": "dest", "type": "string"},
        {"name": "delay", "type": "double"},
        {"name": "departed", "type": "timestamp[us, tz=UTC]"},
        {"name": "day", "type": "date32"},
        {"name": "raw", "type": "binary"},
    ],
    "key": ["id"],
    "partition": {"hash": {"columns": ["id"], "buckets": 3}},
}
"""But for the durability, which is the world's."""


def flights_of(world: World) -> dict[str, Any]:
    return {**FLIGHTS, "durability": as_json(world.durability)}


async def make_flights(
    world: World, http: httpx.AsyncClient, rows: int = 0, name: str = "flights"
) -> None:
    response = await http.post("/v1/tables", json={**flights_of(world), "name": name})
    assert response.status_code == 201, response.text
    if rows:
        body = {"rows": [{"id": i, "dest": "LAX" if i % 2 else "JFK"} for i in range(rows)]}
        response = await http.post(f"/v1/tables/{name}/rows:write", json=body)
        assert response.status_code == 200, response.text
