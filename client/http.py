"""The database over HTTP: `AsyncDatabase` again, for whoever is outside the cluster.

Rows travel as Arrow. Writes carry request ids, so they are repeated through lost answers and
applied once, as on the direct way. Errors are those of `stelae.core.errors`, rebuilt from problem
documents. (design §12)
"""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import httpx
import msgspec
import pyarrow as pa

from stelae.client.alter import NewColumns
from stelae.client.attempts import DEFAULT_TIMEOUT_S
from stelae.client.database import DEFAULT_DURABILITY
from stelae.client.given import check_name
from stelae.client.http_protocol import (
    JSON_TYPE,
    PROBLEM_TYPE,
    TIMEOUT_HEADER,
    error_of_problem,
    staleness_query,
)
from stelae.client.http_records import (
    durability_json,
    json_of,
    table_record,
    tablet_location,
)
from stelae.client.http_table import HttpTable
from stelae.client.index_calls import Progress
from stelae.client.json_values import to_json_value
from stelae.client.session import Session
from stelae.core.catalog_messages import TabletLocation
from stelae.core.durability import Durability
from stelae.core.errors import (
    DeadlineExpired,
    InvalidArgument,
    NoSpace,
    OutcomeUnknown,
    OutOfMemory,
    RetryElsewhere,
    RetryLater,
    SchemaChanged,
    StelaeError,
    Unavailable,
)
from stelae.core.ids import ClientId, make_uuid
from stelae.core.partition import Partitioning
from stelae.core.records import TableRecord
from stelae.core.values import from_wire, to_wire

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
SHORTEST_S = 0.001
"""Of the time that a server is told to have: less is written as nothing, which it refuses."""
GRACE_S = 2.0
"""How much longer than the server this end waits: its answer says more than our giving up."""
CONNECT_TIMEOUT_S = 10.0


class HttpTransport:
    """Requests to one Stelae HTTP endpoint: token, deadline, repetition."""

    def __init__(self, url: str, token: str, client: httpx.AsyncClient | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.query:
            raise InvalidArgument(f"{url!r} is not an http:// or https:// address")
        if not token or not token.isascii() or not token.isprintable():
            raise InvalidArgument("token= is needed for HTTP: see the cluster's admin-token file")
        self.url = url.rstrip("/")
        self._token = token
        self._client = client or httpx.AsyncClient(
            limits=httpx.Limits(max_connections=100), follow_redirects=False, trust_env=False
        )

    async def call(
        self,
        method: str,
        path: str,
        *,
        what: str,
        timeout_s: float,
        repeatable: bool,
        content: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Send a request, again where that is safe, until it is answered well or time is up.

        ``repeatable``: it may be sent again after its outcome was lost.

        Raises:
            OutcomeUnknown: it may have been carried out.
            StelaeError: what the server answered.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        pause_s = FIRST_PAUSE_S
        last: StelaeError | None = None
        unknown: OutcomeUnknown | None = None
        while True:
            left_s = deadline - loop.time()
            if left_s <= 0:
                raise unknown or last or DeadlineExpired(what, "nothing: it had passed at the call")
            try:
                return await self._attempt(method, path, what, left_s, content, headers)
            except (OutOfMemory, NoSpace, SchemaChanged):
                raise  # repeating the same call helps nothing
            except OutcomeUnknown as error:
                if not repeatable:
                    raise
                unknown = error
            except (RetryLater, RetryElsewhere) as error:
                last = error
            await asyncio.sleep(min(pause_s, max(deadline - loop.time(), 0.0)))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _attempt(
        self,
        method: str,
        path: str,
        what: str,
        left_s: float,
        content: bytes,
        headers: Mapping[str, str] | None,
    ) -> httpx.Response:
        all_headers = {
            "Authorization": f"Bearer {self._token}",
            TIMEOUT_HEADER: f"{min(max(left_s, SHORTEST_S), 600.0):.3f}",
            **(headers or {}),
        }
        limit = httpx.Timeout(left_s + GRACE_S, connect=min(CONNECT_TIMEOUT_S, left_s))
        try:
            async with asyncio.timeout(left_s + GRACE_S):
                response = await self._client.request(
                    method, self.url + path, content=content, headers=all_headers, timeout=limit
                )
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise Unavailable(self.url, str(error) or type(error).__name__) from error
        except (httpx.TransportError, TimeoutError) as error:
            raise OutcomeUnknown(self.url, what, left_s) from error
        if response.status_code >= 300:
            raise _error_of(response)
        return response

    async def close(self) -> None:
        await self._client.aclose()


def _error_of(response: httpx.Response) -> StelaeError:
    problem: Any = {}
    if response.headers.get("content-type", "").startswith(PROBLEM_TYPE):
        try:
            problem = msgspec.json.decode(response.content)
        except msgspec.MsgspecError:
            problem = {"detail": f"HTTP status {response.status_code}, with a damaged document"}
    if not isinstance(problem, dict):
        problem = {}
    return error_of_problem(response.status_code, problem)


class HttpDatabase:
    """See `stelae.client.database.AsyncDatabase`. ``client`` replaces the HTTP connections."""

    def __init__(self, url: str, token: str, client: httpx.AsyncClient | None = None) -> None:
        self._transport = HttpTransport(url, token, client)
        self._session = Session(ClientId(make_uuid(random.SystemRandom())))

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
        check_name(name)
        if not isinstance(schema, pa.Schema):
            raise InvalidArgument(f"schema is a {type(schema).__name__}; give a pyarrow.Schema")
        body = {
            "name": name,
            "arrow_schema": base64.b64encode(schema.serialize().to_pybytes()).decode(),
            "key": [key] if isinstance(key, str) else list(key),
            "partition": None if partition is None else _partition_json(partition, schema),
            "durability": durability_json(durability),
            "indexes": [indexes] if isinstance(indexes, str) else list(indexes),
        }
        response = await self._transport.call(
            "POST",
            "/v1/tables" if wait else "/v1/tables?wait=false",
            what="create_table",
            timeout_s=timeout,
            repeatable=False,
            content=msgspec.json.encode(body),
            headers={"Content-Type": JSON_TYPE},
        )
        return self._open(response)

    async def is_create_done(
        self,
        name: str,
        *,
        max_staleness: float | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> bool:
        """See `AsyncDatabase.is_create_done`."""
        found = json_of(await self._get_table(name, max_staleness, timeout))
        return "creating" not in found["tablet_states"]

    async def table(self, name: str, *, max_staleness: float | None = None) -> HttpTable:
        """See `AsyncDatabase.table`."""
        return self._open(await self._get_table(name, max_staleness, DEFAULT_TIMEOUT_S))

    async def _get_table(
        self, name: str, max_staleness: float | None, timeout_s: float
    ) -> httpx.Response:
        check_name(name)
        return await self._transport.call(
            "GET",
            f"/v1/tables/{quote(name, safe='')}{staleness_query(max_staleness)}",
            what="table",
            timeout_s=timeout_s,
            repeatable=True,
        )

    async def locate_table(
        self,
        name: str,
        *,
        max_staleness: float | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> list[TabletLocation]:
        """See `AsyncDatabase.locate_table`."""
        check_name(name)
        path = f"/v1/tables/{quote(name, safe='')}/tablets{staleness_query(max_staleness)}"
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
        response = await self._transport.call(
            "GET", path, what="locate", timeout_s=timeout_s, repeatable=True
        )
        return [tablet_location(info) for info in json_of(response)["tablets"]]

    async def alter_table(
        self,
        name: str,
        *,
        add_columns: NewColumns = (),
        drop_columns: str | Sequence[str] = (),
        rename_columns: Mapping[str, str] | None = None,
        defaults: Mapping[str, Any] | None = None,
        rename_to: str = "",
        wait: bool = True,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> HttpTable:
        """See `AsyncDatabase.alter_table`."""
        table = await self.table(name)
        await table.alter(
            add_columns=add_columns,
            drop_columns=drop_columns,
            rename_columns=rename_columns,
            defaults=defaults,
            rename_to=rename_to,
            wait=wait,
            timeout=timeout,
        )
        return table

    async def create_index(
        self,
        name: str,
        column: str,
        *,
        unique: bool = False,
        wait: bool = True,
        progress: Progress | None = None,
        timeout: float = 3600.0,
    ) -> None:
        """See `AsyncDatabase.create_index`."""
        table = await self.table(name)
        await table.create_index(
            column, unique=unique, wait=wait, progress=progress, timeout=timeout
        )

    async def drop_index(
        self, name: str, column: str, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> None:
        """See `AsyncDatabase.drop_index`."""
        table = await self.table(name)
        await table.drop_index(column, timeout=timeout)

    async def rename_table(
        self, name: str, new_name: str, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> HttpTable:
        """See `AsyncDatabase.rename_table`."""
        table = await self.table(name)
        await table.rename(new_name, timeout=timeout)
        return table

    def _open(self, response: httpx.Response) -> HttpTable:
        return HttpTable(self._transport, self._session, table_record(json_of(response)))

    async def tables(
        self, *, max_staleness: float | None = None, timeout: float = DEFAULT_TIMEOUT_S
    ) -> list[TableRecord]:
        """See `AsyncDatabase.tables`."""
        path = f"/v1/tables{staleness_query(max_staleness)}"
        response = await self._transport.call(
            "GET", path, what="tables", timeout_s=timeout, repeatable=True
        )
        return [table_record(info) for info in json_of(response)["tables"]]

    async def delete_table(self, name: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        """See `AsyncDatabase.delete_table`."""
        check_name(name)
        await self._transport.call(
            "DELETE",
            f"/v1/tables/{quote(name, safe='')}",
            what="delete_table",
            timeout_s=timeout,
            repeatable=False,
        )

    async def status(
        self, *, max_staleness: float | None = None, timeout: float = DEFAULT_TIMEOUT_S
    ) -> dict[str, Any]:
        """See `AsyncDatabase.status`."""
        path = f"/v1/cluster{staleness_query(max_staleness)}"
        response = await self._transport.call(
            "GET", path, what="status", timeout_s=timeout, repeatable=True
        )
        return json_of(response)

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
