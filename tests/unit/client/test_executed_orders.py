"""Orders that were executed: a look at the table that then fails never says that they were not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pyarrow as pa
import pytest

from stelae.client.database import AsyncDatabase
from stelae.client.http.database import HttpDatabase
from stelae.client.http.protocol import PROBLEM_TYPE
from stelae.client.http.table import HttpTable
from stelae.client.routing.session import Session
from stelae.client.table.table import AsyncTable
from stelae.core.config.settings import Settings
from stelae.core.errors import DeadlineExpired, InvalidArgument, NotDoneYet, RetryLater
from stelae.core.ids import ClientId
from stelae.core.messages.alter import ALTER_TABLE, IS_ALTER_DONE, IsAlterDoneReply
from stelae.core.messages.catalog import (
    CREATE_TABLE,
    GET_TABLE,
    IS_CREATE_DONE,
    CreateProgress,
    TableLocations,
    TableReply,
)
from stelae.core.schema.schema import TableSchema, check_known_name
from tests.unit.client.routing.scripted import MASTER, Scripted, cache_of, locations

SCHEMA = TableSchema.of(pa.schema([pa.field("id", pa.int64(), False), ("v", pa.string())]), ["id"])
FOUND = locations(SCHEMA)
TIMEOUT_S = 20.0
OVERLOADED_S = 25.0
"""Seconds that an HTTP front asks to wait: longer than a call has, less than a look by default."""
OLD_NAMES = (" x", "x ")


def scripted_table(runtime: Scripted) -> AsyncTable:
    cache, session = cache_of(runtime, FOUND), Session(ClientId("c"))
    return AsyncTable(runtime, Settings(), session, cache)  # type: ignore[arg-type]


def database_of(runtime: Scripted) -> AsyncDatabase:
    return AsyncDatabase(runtime, [MASTER])  # type: ignore[arg-type]


def busy(_: Any) -> Any:
    return RetryLater("no leader is elected")


async def test_a_create_whose_look_up_fails_is_not_done_yet() -> None:
    """Native, without waiting for tablets: the look-up is repeated until the deadline."""
    runtime = Scripted()
    runtime.peers.otherwise[CREATE_TABLE.name] = lambda _: TableReply(FOUND.table)
    runtime.peers.otherwise[GET_TABLE.name] = busy
    database = database_of(runtime)

    async def create() -> AsyncTable:
        return await database.create_table(
            "t", SCHEMA.arrow, key="id", wait=False, timeout=TIMEOUT_S
        )

    with pytest.raises(NotDoneYet, match=r"create_table.*no leader"):
        await create()
    runtime.peers.otherwise[GET_TABLE.name] = lambda _: FOUND
    assert (await create()).name == "t"


async def test_an_alter_whose_refresh_fails_is_not_done_yet() -> None:
    """Native. Before the alter the same failure says that nothing was done."""
    runtime = Scripted()
    table = scripted_table(runtime)
    altered: list[Any] = []

    def alter(order: Any) -> TableReply:
        altered.append(order)
        runtime.peers.otherwise[GET_TABLE.name] = busy
        return TableReply(FOUND.table)

    runtime.peers.otherwise[ALTER_TABLE.name] = alter
    runtime.peers.otherwise[IS_ALTER_DONE.name] = lambda _: IsAlterDoneReply(True, 1)
    with pytest.raises(NotDoneYet, match=r"the alter of 't'.*no leader"):
        await table.alter(add_columns={"w": pa.int8()}, if_edition="e", timeout=TIMEOUT_S)
    assert len(altered) == 1
    with pytest.raises(DeadlineExpired) as caught:
        await table.alter(add_columns={"w": pa.int8()}, timeout=TIMEOUT_S)
    assert type(caught.value) is DeadlineExpired
    assert len(altered) == 1


async def test_a_look_up_that_hangs_ends_by_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up of its own takes longer than the call has."""
    runtime = Scripted()
    runtime.peers.otherwise[CREATE_TABLE.name] = lambda _: TableReply(FOUND.table)
    table, call = scripted_table(runtime), runtime.peers.call

    async def hang(address: Any, method: Any, request: Any, **options: Any) -> Any:
        if method is GET_TABLE:
            await asyncio.Event().wait()
        return await call(address, method, request, **options)

    monkeypatch.setattr(runtime.peers, "call", hang)
    with pytest.raises(NotDoneYet, match="create_table"):
        await database_of(runtime).create_table(
            "t", SCHEMA.arrow, key="id", wait=False, timeout=0.01
        )
    with pytest.raises(DeadlineExpired, match=f"the masters {MASTER}"):
        await table.alter(add_columns={"w": pa.int8()}, timeout=0.01)


# ---- HTTP -------------------------------------------------------------------------------------


class Front:
    """An HTTP front that executes orders, and answers no look at the tables; keeps the paths."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.database = HttpDatabase(
            "http://stelae", "x", httpx.AsyncClient(transport=httpx.MockTransport(self._answer))
        )

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append((request.method, request.url.raw_path.decode()))
        if request.method == "GET":
            problem = {"error": "Overloaded", "args": ["looks at tables", 1, OVERLOADED_S]}
            return httpx.Response(
                429, content=msgspec.json.encode(problem), headers={"content-type": PROBLEM_TYPE}
            )
        return httpx.Response(204)

    def table(self) -> HttpTable:
        return self.database.handle(TableLocations(FOUND.table, ()))


@pytest.mark.parametrize(
    "order",
    [
        lambda table: table.drop_index("v", timeout=TIMEOUT_S),
        lambda table: table.create_index("v", wait=False, timeout=TIMEOUT_S),
    ],
    ids=["drop", "create"],
)
async def test_an_index_order_whose_refresh_fails_is_not_done_yet(
    order: Callable[[HttpTable], Any],
) -> None:
    """HTTP: a look that has only the time left gives up at once, and the order is sent once."""
    front = Front()
    with pytest.raises(NotDoneYet, match=r"the index of 'v' is not done yet.*looks at tables"):
        await order(front.table())
    assert [method for method, _ in front.asked][1:] == ["GET"]
    assert front.asked[1] == ("GET", "/v1/tables")
    await front.database.close()


# ---- names that are given no more -------------------------------------------------------------


async def test_tables_with_names_that_are_given_no_more_can_be_used() -> None:
    """Natively every name that a table had; a new name follows the stricter rule."""
    runtime = Scripted()
    runtime.peers.otherwise[IS_CREATE_DONE.name] = lambda _: CreateProgress(
        FOUND.table.table_id, True
    )
    runtime.peers.otherwise[GET_TABLE.name] = lambda _: FOUND
    database = database_of(runtime)
    for name in (".", "..", *OLD_NAMES):
        assert await database.is_create_done(name)
        assert (await database.table(name)).name == "t"
        with pytest.raises(InvalidArgument):
            await database.rename_table("t", name)
        with pytest.raises(InvalidArgument):
            await database.create_table(name, SCHEMA.arrow, key="id")
    asked = [request.name for request in runtime.peers.sent(IS_CREATE_DONE.name)]
    assert asked == [".", "..", *OLD_NAMES]
    for wrong in ("", "x" * 256, "a\n", None, 5):
        with pytest.raises(InvalidArgument):
            check_known_name(wrong)


async def test_names_that_no_path_leads_to_are_refused_over_http() -> None:
    """Any other is percent-encoded."""
    front = Front()
    for name in (".", "..", "a/b"):
        table = msgspec.structs.replace(FOUND.table, name=name)
        with pytest.raises(InvalidArgument, match="native client"):
            await front.database.delete_table(name)
        with pytest.raises(InvalidArgument, match="native client"):
            front.database.handle(TableLocations(table, ()))
    assert front.asked == []
    for name in OLD_NAMES:
        await front.database.delete_table(name)
    assert [path for _, path in front.asked] == [
        "/v1/tables/%20x?confirm=+x",
        "/v1/tables/x%20?confirm=x+",
    ]
    await front.database.close()
