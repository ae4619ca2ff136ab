"""The database over HTTP: `AsyncDatabase` again, for whoever is outside the cluster.

Rows travel as Arrow. Writes carry request ids, so they are repeated through lost answers and
applied once, as on the direct way. (design §12)
"""

from __future__ import annotations

import base64
import os
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import httpx
import msgspec
import pyarrow as pa

from stelae.client.database import DEFAULT_DURABILITY
from stelae.client.database_api import DatabaseApi, check_new_table
from stelae.client.http.json_values import to_json_value
from stelae.client.http.protocol import (
    JSON_TYPE,
    REQUEST_ID_HEADER,
    format_request_id,
    if_match,
    staleness_query,
)
from stelae.client.http.records import (
    durability_json,
    json_of,
    table_record,
    tablet_location,
)
from stelae.client.http.table import HttpTable
from stelae.client.http.table_calls import table_path
from stelae.client.http.transport import HttpTransport
from stelae.client.routing.attempts import DEFAULT_TIMEOUT_S
from stelae.client.routing.session import Session
from stelae.core.errors import (
    InvalidArgument,
)
from stelae.core.ids import ClientId, make_uuid
from stelae.core.messages.catalog import TableLocations, TabletLocation
from stelae.core.records.records import TableRecord
from stelae.core.schema.durability import Durability
from stelae.core.schema.partition import Partitioning
from stelae.core.schema.values import from_wire, to_wire


class HttpDatabase(DatabaseApi[HttpTable]):
    """See `stelae.client.database.AsyncDatabase`. ``client`` replaces the HTTP connections.
    ``ca_file``: whose certificates are believed, in PEM."""

    table_class = HttpTable

    def __init__(
        self,
        url: str,
        token: str,
        client: httpx.AsyncClient | None = None,
        *,
        ca_file: str | os.PathLike[str] | None = None,
        has_answered: bool = False,
    ) -> None:
        """``has_answered``: whether the endpoint has answered before, to any process."""
        rng = random.SystemRandom()
        self._transport = HttpTransport(
            url,
            token,
            client,
            ca_file,
            rng=rng,
            monotonic=time.monotonic,
            has_answered=has_answered,
        )
        self._session = Session(ClientId(make_uuid(rng)))

    @property
    def has_answered(self) -> bool:
        """Whether the endpoint has answered before: then a refused connection is repeated."""
        return self._transport.has_answered

    async def create_table(
        self,
        name: str,
        schema: pa.Schema,
        *,
        key: str | Sequence[str],
        partition: Partitioning | None = None,
        durability: Durability = DEFAULT_DURABILITY,
        indexes: str | Sequence[str] = (),
        wait: bool = True,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> HttpTable:
        """See `AsyncDatabase.create_table`."""
        check_new_table(name, schema, durability, partition)
        body = {
            "name": name,
            "arrow_schema": base64.b64encode(schema.serialize().to_pybytes()).decode(),
            "key": [key] if isinstance(key, str) else list(key),
            "partition": None if partition is None else _partition_json(partition, schema),
            "durability": durability_json(durability),
            "indexes": [indexes] if isinstance(indexes, str) else list(indexes),
        }
        with self._session.request() as request:
            response = await self._transport.call(
                "POST",
                "/v1/tables" if wait else "/v1/tables?wait=false",
                what="create_table",
                timeout_s=timeout,
                repeatable=True,
                content=msgspec.json.encode(body),
                headers={
                    "Content-Type": JSON_TYPE,
                    REQUEST_ID_HEADER: format_request_id(request),
                },
            )
        return self._open(json_of(response))

    async def is_create_done(
        self,
        name: str,
        *,
        max_staleness: float | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> bool:
        """See `AsyncDatabase.is_create_done`."""
        found = await self._get_table(name, max_staleness, timeout)
        return "creating" not in found["tablet_states"]

    async def table(self, name: str, *, max_staleness: float | None = None) -> HttpTable:
        return self._open(await self._get_table(name, max_staleness, DEFAULT_TIMEOUT_S))

    async def _get_table(
        self, name: str, max_staleness: float | None, timeout_s: float
    ) -> dict[str, Any]:
        path = f"{table_path(name)}{staleness_query(max_staleness)}"
        return await self._transport.read(path, what="table", timeout_s=timeout_s)

    async def locate_table(
        self,
        name: str,
        *,
        max_staleness: float | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> list[TabletLocation]:
        """See `AsyncDatabase.locate_table`."""
        path = f"{table_path(name)}/tablets{staleness_query(max_staleness)}"
        return await self._locations(path, timeout)

    async def locate(
        self,
        tablets: Sequence[str],
        *,
        max_staleness: float | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> list[TabletLocation]:
        """See `AsyncDatabase.locate`."""
        ids = [("id", tablet_id) for tablet_id in tablets]
        path = f"/v1/tablets?{urlencode(ids)}{staleness_query(max_staleness, first='&')}"
        return await self._locations(path, timeout)

    async def _locations(self, path: str, timeout_s: float) -> list[TabletLocation]:
        found = await self._transport.read(path, what="locate", timeout_s=timeout_s)
        return [tablet_location(info) for info in found["tablets"]]

    def _open(self, described: Mapping[str, Any]) -> HttpTable:
        return HttpTable(self._transport, self._session, table_record(described))

    def locations_of(self, table: HttpTable) -> TableLocations:
        return TableLocations(table.record, ())  # the server knows where tablets are

    def handle(self, locations: TableLocations) -> HttpTable:
        return HttpTable(self._transport, self._session, locations.table)

    async def tables(
        self, *, max_staleness: float | None = None, timeout: float = DEFAULT_TIMEOUT_S
    ) -> list[TableRecord]:
        """See `AsyncDatabase.tables`."""
        path = f"/v1/tables{staleness_query(max_staleness)}"
        found = await self._transport.read(path, what="tables", timeout_s=timeout)
        return [table_record(info) for info in found["tables"]]

    async def delete_table(
        self, name: str, *, if_edition: str = "", timeout: float = DEFAULT_TIMEOUT_S
    ) -> None:
        """See `AsyncDatabase.delete_table`."""
        with self._session.request() as request:
            await self._transport.call(
                "DELETE",
                f"{table_path(name)}?{urlencode({'confirm': name})}",
                what="delete_table",
                timeout_s=timeout,
                repeatable=True,
                headers={REQUEST_ID_HEADER: format_request_id(request), **if_match(if_edition)},
            )

    async def status(
        self, *, max_staleness: float | None = None, timeout: float = DEFAULT_TIMEOUT_S
    ) -> dict[str, Any]:
        """See `AsyncDatabase.status`."""
        path = f"/v1/cluster{staleness_query(max_staleness)}"
        return await self._transport.read(path, what="status", timeout_s=timeout)

    async def close(self) -> None:
        """End this client's connections."""
        await self._transport.close()


def _partition_json(partition: Partitioning, schema: pa.Schema) -> dict[str, Any]:
    by_hash, by_range = partition.hash, partition.range
    found: dict[str, Any] = {}
    if by_hash is not None:
        found["hash"] = {"columns": list(by_hash.columns), "buckets": by_hash.buckets}
    if by_range is not None:
        for name in by_range.columns:
            if schema.get_field_index(name) < 0:
                raise InvalidArgument(f"partition column {name!r} is not in the schema")
        kinds = [schema.field(name).type for name in by_range.columns]
        splits = [
            [
                to_json_value(from_wire(to_wire(value, kind, "range split"), kind), kind)
                for value, kind in zip(split, kinds, strict=False)
            ]
            for split in by_range.splits
        ]
        found["range"] = {"columns": list(by_range.columns), "splits": splits}
    return found
