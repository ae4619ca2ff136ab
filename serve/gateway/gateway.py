"""What all routes share: the database, handles on tables, deadlines, and reading of bodies."""

from __future__ import annotations

import asyncio
import inspect
import math
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

import anyio.to_thread
import msgspec
from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from stelae.client.database import AsyncDatabase
from stelae.client.http.protocol import (
    ARROW_TYPE,
    JSON_TYPE,
    NDJSON_TYPE,
    SCHEMA_VERSION_HEADER,
    TIMEOUT_HEADER,
)
from stelae.client.input.given import staleness
from stelae.client.table.table import AsyncTable
from stelae.core.errors import (
    ColumnNotFound,
    DeadlineExpired,
    InvalidArgument,
    SchemaChanged,
    TableNotFound,
)
from stelae.core.tasks import within
from stelae.serve.bodies.problems import MalformedBody, UnsupportedMedia
from stelae.serve.gateway.guard import Limits
from stelae.serve.gateway.health import Health

B = TypeVar("B", bound=BaseModel)
T = TypeVar("T")

DatabaseSource: TypeAlias = AsyncDatabase | Callable[[], AsyncDatabase | Awaitable[AsyncDatabase]]
HANDLE_S = 1.0
"""How long a handle on a table is used without asking the masters for it again."""
OFFLOAD_BYTES = 32 << 10
"""From this size on, bodies are read and written off the event loop."""


class InvalidBody(Exception):
    """A JSON body that does not fit its model."""

    def __init__(self, errors: list[dict[str, str]]) -> None:
        super().__init__(errors)
        self.errors = errors


class Gateway:
    """One HTTP replica's view of its cluster. Lives in one event loop."""

    def __init__(
        self,
        source: DatabaseSource,
        limits: Limits,
        token_key: bytes = b"",
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits
        """Others may take their place at any time."""
        self.token_key = token_key or secrets.token_bytes(32)
        """Signs what clients bring back and nobody may make up; the same in all replicas."""
        self._source = source
        self._database: AsyncDatabase | None = None
        self._opening = asyncio.Lock()
        self._monotonic = monotonic
        self._handles: dict[str, tuple[AsyncTable, float]] = {}
        self.health = Health(self.database)

    async def database(self) -> AsyncDatabase:
        """The database, opened at the first request."""
        if self._database is None:
            async with self._opening:
                if self._database is None:
                    self._database = await self._open()
        return self._database

    async def _open(self) -> AsyncDatabase:
        if isinstance(self._source, AsyncDatabase):
            return self._source
        database = self._source()
        return await database if inspect.isawaitable(database) else database

    async def close(self) -> None:
        """Close the database if this gateway opened it."""
        await self.health.close()
        if self._database is not None and self._database is not self._source:
            await self._database.close()

    # ---- tables -----------------------------------------------------------------------------

    async def look_up(
        self, name: str, timeout_s: float, max_staleness: float | None = None
    ) -> AsyncTable:
        """Ask the masters for a table. Raises TableNotFound, DeadlineExpired."""
        database = await self.database()
        try:
            async with asyncio.timeout(timeout_s):
                table = await database.table(name, max_staleness=max_staleness)
        except TimeoutError:
            raise DeadlineExpired("the look-up of a table", "the masters") from None
        if len(self._handles) >= 1000:
            self._handles.clear()
        self._handles[name] = (table, self._monotonic())
        return table

    def forget(self, name: str) -> None:
        """The table is gone, or changed."""
        self._handles.pop(name, None)

    async def on_table(
        self,
        request: Request,
        name: str,
        timeout_s: float,
        work: Callable[[AsyncTable], Awaitable[T]],
    ) -> T:
        """Do ``work`` on a table, in the version of its schema that the request was made with.

        A handle looked up a moment ago will do: if that table is gone or renamed, or lacks a
        column, another look is taken once.
        """
        version = schema_version(request)
        known = self._handles.get(name)
        if known is not None and self._monotonic() < known[1] + HANDLE_S:
            try:
                return await work(_at(known[0], version))
            except (TableNotFound, ColumnNotFound, SchemaChanged):
                self.forget(name)
        return await work(_at(await self.look_up(name, timeout_s), version))

    # ---- requests ---------------------------------------------------------------------------

    def timeout_s(self, request: Request, default_s: float | None = None) -> float:
        """How long the call may take: what its header says, or the default. Raises
        InvalidArgument."""
        text = request.headers.get(TIMEOUT_HEADER)
        if text is None:
            limits = self.limits
            return limits.timeout_s if default_s is None else min(default_s, limits.timeout_max_s)
        try:
            timeout_s = float(text)
        except ValueError:
            timeout_s = math.nan
        if not 0 < timeout_s <= self.limits.timeout_max_s:
            raise InvalidArgument(
                f"{TIMEOUT_HEADER} {text[:40]!r}: above 0, at most {self.limits.timeout_max_s:g}"
            )
        return timeout_s

    def max_staleness(self, request: Request) -> float | None:
        """How old the state that is read may be: ``?max_staleness=`` in seconds. Raises
        InvalidArgument."""
        text = request.query_params.get("max_staleness")
        if text is None:
            return None
        try:
            return staleness(float(text))
        except ValueError:
            raise InvalidArgument(f"max_staleness={text[:40]!r}: a number of seconds") from None

    async def body(self, request: Request, timeout_s: float) -> bytes:
        """The whole body (the guard bounds it). Raises TooLarge, Overloaded, DeadlineExpired."""
        try:
            return await within(timeout_s, request.body())
        except TimeoutError:
            raise DeadlineExpired("reading the body", "the client to send it") from None
        except ClientDisconnect:
            raise DeadlineExpired("reading the body", "a client that went away") from None

    async def json_body(self, request: Request, model: type[B], timeout_s: float) -> B:
        """The body as a model. Raises MalformedBody, UnsupportedMedia, InvalidBody."""
        if body_type(request) != JSON_TYPE:
            raise UnsupportedMedia(f"this path takes {JSON_TYPE}")
        data = await self.body(request, timeout_s)
        return await offload(len(data), parse_model, data, model)


def schema_version(request: Request) -> int:
    """The version of the table's schema that a request's columns are of; 0: the newest. Raises
    InvalidArgument."""
    text = request.headers.get(SCHEMA_VERSION_HEADER)
    if text is None:
        return 0
    if not text.isascii() or not text.isdecimal() or len(text) > 18 or not int(text):
        raise InvalidArgument(f"{SCHEMA_VERSION_HEADER} {text[:40]!r}: a number above 0")
    return int(text)


def _at(table: AsyncTable, version: int) -> AsyncTable:
    return table.at_version(version) if version else table


def parse_json(data: bytes) -> Any:
    """Strict JSON: no NaN, no comments. Raises MalformedBody."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise MalformedBody(f"the body is not JSON: {error}") from None


def parse_model(data: bytes, model: type[B]) -> B:
    """Raises MalformedBody, InvalidBody."""
    value = parse_json(data)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise InvalidBody(
            [
                {"path": ".".join(str(part) for part in item["loc"]), "message": item["msg"]}
                for item in error.errors(include_url=False, include_input=False)[:20]
            ]
        ) from None


def body_type(request: Request) -> str:
    """The media type of the body; JSON if it is not said."""
    text = request.headers.get("content-type", JSON_TYPE)
    return text.partition(";")[0].strip().lower() or JSON_TYPE


def answer_type(request: Request, offered: tuple[str, ...]) -> str:
    """Which of the media types offered the client likes best; the first if it does not say."""
    ranked: list[tuple[float, str]] = []
    for item in request.headers.get("accept", "").split(","):
        kind, _, parameters = item.partition(";")
        ranked.append((_quality(parameters), kind.strip().lower()))
    for quality, kind in sorted(ranked, key=lambda pair: -pair[0]):
        if quality > 0 and kind in offered:
            return kind
    return offered[0]


def _quality(parameters: str) -> float:
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


async def offload(size_bytes: int, work: Callable[..., T], *args: Any) -> T:
    """Do ``work`` here if it is small, else in a thread."""
    if size_bytes < OFFLOAD_BYTES:
        return work(*args)
    return await anyio.to_thread.run_sync(work, *args)


def gateway_of(request: Request) -> Gateway:
    gateway = request.app.state.gateway
    assert isinstance(gateway, Gateway)
    return gateway


ALL_TYPES = (JSON_TYPE, ARROW_TYPE, NDJSON_TYPE)
ROW_TYPES = (JSON_TYPE, ARROW_TYPE)
