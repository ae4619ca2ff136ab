"""What the HTTP tests share: an application over a real cluster, and clients with tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from stelae.client.http.database import HttpDatabase
from stelae.core.ids import TabletId
from stelae.core.records.tokens import Role
from stelae.core.schema.durability import Durability, segments
from stelae.serve.app import make_app
from stelae.serve.gateway.guard import Limits
from stelae.serve.gateway.tokens import TokenVerifier, make_token
from tests.cluster_fixture import LocalCluster, local_cluster

SAFEKEEPERS = 4
"""One more than a table of ``wal(3)`` needs: its logs can move."""
ARROW = "application/vnd.apache.arrow.stream"
PROBLEM = "application/problem+json"


class World:
    """One application in this process; `client` talks to it without a socket.

    ``durability`` is that of the tables that its tests make.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        limits: Limits | None = None,
        durability: Durability | None = None,
    ) -> None:
        self.durability = segments("ram", "ram") if durability is None else durability
        made = {role: make_token(role.value, role) for role in Role}
        self.cluster = cluster
        self.tokens = {role: token for role, (token, _) in made.items()}
        self.verifier = TokenVerifier(entry for _, entry in made.values())
        self.app: FastAPI = make_app(cluster.database, self.verifier, limits)

    def client(
        self, role: Role | None = Role.ADMIN, app: FastAPI | None = None
    ) -> httpx.AsyncClient:
        headers = {} if role is None else {"Authorization": f"Bearer {self.tokens[role]}"}
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(app or self.app, raise_app_exceptions=False),
            base_url="http://stelae",
            headers=headers,
        )

    def database(self, role: Role = Role.ADMIN) -> HttpDatabase:
        """Stelae's own client over this application."""
        return HttpDatabase("http://stelae", self.tokens[role], self.client(None))


@asynccontextmanager
async def http_world(root: Path, durability: Durability | None = None) -> AsyncIterator[World]:
    async with local_cluster(root, tservers=3, safekeepers=SAFEKEEPERS) as cluster:
        yield World(cluster, durability=durability)


@asynccontextmanager
async def copies_held(
    cluster: LocalCluster, tablet: TabletId, *safekeepers: int
) -> AsyncIterator[None]:
    """These safekeepers, by id, say that an earlier call still copies this tablet's log to them."""
    servers = await cluster.safekeepers_by_id()
    pulls = [servers[number].pulls for number in safekeepers]
    for each in pulls:
        each._active.add(tablet)
    try:
        yield
    finally:
        for each in pulls:
            each._active.discard(tablet)


def problem_of(response: httpx.Response, status: int, slug: str) -> dict[str, Any]:
    """Check that the answer is this problem, and return its document."""
    document: dict[str, Any] = response.json()
    assert response.status_code == status, document
    assert response.headers["content-type"] == PROBLEM
    assert document["type"] == f"/problems/{slug}", document
    assert document["status"] == status
    assert document["title"]
    assert document["detail"]
    return document
