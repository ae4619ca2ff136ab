"""The rows of the audit log about calls that do not go over HTTP: a client writes its own.

All orders to masters leave through one object of a client (`LoggedMasters`); changes of servers,
which go to Ray, are made within the cluster's turn, which is noted as a whole. Reads and writes of
rows are never noted. Rules:

1. No call fails, or ends after its deadline, because the audit table is away: after the call its
   row is waited for up to `WAIT_S`, not at all while the last write has failed.
2. A row that is not written within `GIVE_UP_S`, nor by `close`, is in the program's log instead.
3. A row's key is the id of its request. An order that is repeated, and a row that is written again,
   is the same row.
4. What never reached a master is not noted: nothing was asked of the cluster.

A process that dies between its order and the row leaves none; one with the cluster's secret may
leave Stelae's client out. (decisions §87)
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import msgspec

from stelae.client.routing.masters import MastersClient
from stelae.core.errors import (
    DeadlineExpired,
    InvalidArgument,
    NoQuorum,
    Rejected,
    RetryElsewhere,
    RetryLater,
    RowExists,
    StelaeError,
)
from stelae.core.ids import Address, RequestId
from stelae.core.messages.alter import ALTER_TABLE
from stelae.core.messages.catalog import CREATE_TABLE, DELETE_TABLE
from stelae.core.messages.index_catalog import CREATE_INDEX, DROP_INDEX
from stelae.core.messages.masters import ADD_MASTER, REMOVE_MASTER
from stelae.core.messages.operators import (
    MARK_SERVER,
    MOVE_REPLICA,
    REPLACE_SERVER,
    SET_REBALANCING,
)
from stelae.core.messages.timelines import (
    ABORT_MIGRATION,
    MIGRATE_SAFEKEEPER,
    MIGRATE_TABLE,
    MIGRATE_TIMELINE,
    SCRUB_SAFEKEEPER,
    SET_SAFEKEEPER_STATUS,
)
from stelae.core.records.losses import ACCEPT_LOSS
from stelae.core.records.tokens import DROP_TOKEN, PUT_LIMITED_TOKEN, PUT_TOKEN
from stelae.core.rpc import Method
from stelae.core.runtime import Runtime
from stelae.core.schema.alter import SchemaChange, added_columns
from stelae.core.schema.audit import Outcome
from stelae.core.schema.durability import Durability
from stelae.core.schema.own_tables import AUDIT_TABLE
from stelae.core.tasks import Tasks

Q = TypeVar("Q", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)

logger = logging.getLogger("stelae.audit")

WAIT_S = 2.0
"""Maximum seconds for which a call waits for its row."""
WRITE_TIMEOUT_S = 10.0
"""Upper bound on one write, which may have to create the audit table."""
GIVE_UP_S = 60.0
"""Seconds after which rows that cannot be written go to the program's log."""
PAUSE_S = 0.2
PAUSE_MAX_S = 5.0
CLOSE_S = 2.0
"""Maximum seconds for which `CallLog.close` waits for rows."""
MAX_WAITING = 1000
"""Maximum rows that wait to be written; the oldest go to the program's log."""
PIECE_ROWS = 100
TEXT_CHARS = 1000
"""Maximum characters of a text column."""
ROLE = "secret"
"""Role of whoever has the cluster's secret, and no token."""

ABOUT: Mapping[str, str] = {
    CREATE_TABLE.name: "name",
    DELETE_TABLE.name: "name",
    ALTER_TABLE.name: "name",
    CREATE_INDEX.name: "table",
    DROP_INDEX.name: "table",
    PUT_TOKEN.name: "name",
    PUT_LIMITED_TOKEN.name: "name",
    DROP_TOKEN.name: "name",
    MARK_SERVER.name: "server",
    REPLACE_SERVER.name: "uuid",
    MOVE_REPLICA.name: "tablet_id",
    SET_REBALANCING.name: "",
    ADD_MASTER.name: "name",
    REMOVE_MASTER.name: "master",
    ACCEPT_LOSS.name: "",
    SET_SAFEKEEPER_STATUS.name: "safekeeper_id",
    MIGRATE_TIMELINE.name: "tablet_id",
    MIGRATE_TABLE.name: "table",
    MIGRATE_SAFEKEEPER.name: "src_sk",
    ABORT_MIGRATION.name: "tablet_id",
    SCRUB_SAFEKEEPER.name: "safekeeper_id",
}
"""Orders that are noted, each with the field that says what it is about; empty: the cluster."""
_NOT_SHOWN = frozenset({"request", "sha256", "schema", "partitioning", "table_id"})

Row: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who uses a client, as that process says itself: nobody checks it."""

    name: str
    """``user@host``."""
    door: str
    """``cli``, ``python``, or ``applier``: Stelae's own actor, for operations over HTTP."""
    source: str = ""
    """The host."""
    details: str = ""
    """Which command and process, and which job of Ray."""


@dataclass(slots=True)
class NotedCall:
    """A call that has begun."""

    row: Row
    began: float
    """Monotonic seconds."""


class CallLog:
    """The rows of one client, in its event loop. ``put`` writes rows to the audit table."""

    def __init__(
        self, runtime: Runtime, caller: Caller, put: Callable[[Sequence[Row]], Awaitable[None]]
    ) -> None:
        self._runtime = runtime
        self._caller = caller
        self._put = put
        self._waiting: dict[str, Row] = {}
        """Rows that are not known to be written, by id; at most `MAX_WAITING`."""
        self._tasks = Tasks()
        self._writer: asyncio.Task[None] | None = None
        self._problem = ""
        """Why the last write failed; empty: it did not."""

    def begun(
        self, what: str, about: str, details: str = "", request: RequestId | None = None
    ) -> NotedCall:
        """A call of now, of which nothing is written yet."""
        now = datetime.datetime.fromtimestamp(self._runtime.clock.now(), datetime.UTC)
        if request is None:
            entry_id = f"call-{self._runtime.rng.getrandbits(128):032x}"
        else:  # rule 3
            entry_id = f"call-{request.client_id}-{request.sequence}"
        caller = self._caller
        row = {
            "id": entry_id,
            "time": now,
            "gateway": "",
            "caller": caller.name,
            "role": ROLE,
            "method": caller.door,
            "path": _cut(f"{what} {about}".rstrip() if about not in what.split() else what),
            "object": _cut(about),
            "outcome": Outcome.BEGUN.value,
            "status": None,
            "calls": 1,
            "duration_s": None,
            "request_id": "",
            "source": caller.source,
            "details": _cut(_joined(details, caller.details)),
        }
        return NotedCall(row, self._runtime.clock.monotonic())

    async def begin(self, what: str, about: str, details: str = "") -> NotedCall:
        """The beginning of a call that may last long, which is written down before it."""
        call = self.begun(what, about, details)
        self._note(call.row)
        await self._settle(WAIT_S)
        return call

    async def end(
        self, call: NotedCall, error: BaseException | None, wait_s: float = WAIT_S
    ) -> None:
        """The end of a call: ``error`` is what it raised. Waits for its row (rule 1)."""
        took_s = round(self._runtime.clock.monotonic() - call.began, 4)
        row = {**call.row, "outcome": outcome_of(error).value, "duration_s": took_s}
        if error is not None:
            said = str(error).partition("\n")[0] or type(error).__name__
            row["details"] = _cut(f"{said}; {row['details']}")
        self._note(row)
        await self._settle(min(wait_s, WAIT_S))

    @asynccontextmanager
    async def order(
        self, method: Method[Any, Any], order: Any, timeout_s: float
    ) -> AsyncIterator[None]:
        """Note an order to the masters, if it is one that is noted."""
        if not is_noted(method, order):
            yield
            return
        deadline = self._runtime.clock.monotonic() + timeout_s
        name = ABOUT[method.name]
        call = self.begun(
            method.name.partition(".")[2],
            str(getattr(order, name)) if name else "",
            "; ".join(_shown(order, name)),
            order.request if hasattr(order, "request") else None,
        )
        try:
            yield
        except (NoQuorum, DeadlineExpired):  # rule 4
            raise
        except asyncio.CancelledError as error:
            await self.end(call, error, 0.0)
            raise
        except StelaeError as error:
            await self.end(call, error, deadline - self._runtime.clock.monotonic())
            raise
        await self.end(call, None, deadline - self._runtime.clock.monotonic())

    async def close(self) -> None:
        """Wait for what is being written, up to `CLOSE_S`; then no row is written any more."""
        await self._settle(CLOSE_S)
        await self._tasks.close()
        self._give_up("the connection was closed")

    def _note(self, row: Row) -> None:
        self._waiting.pop(row["id"], None)
        self._waiting[row["id"]] = row
        while len(self._waiting) > MAX_WAITING:
            _say(self._waiting.pop(next(iter(self._waiting))), "too many rows wait")
        if self._tasks.is_closed:
            self._give_up("the connection was closed")
        elif self._writer is None or self._writer.done():
            self._writer = self._tasks.spawn(self._write(), "calls to the audit log")

    async def _settle(self, wait_s: float) -> None:
        """Wait until all rows are written, or rule 1 says that it is enough."""
        if self._writer is not None and not self._problem:
            await asyncio.wait([self._writer], timeout=wait_s)

    async def _write(self) -> None:
        clock = self._runtime.clock
        end_s, pause_s, most = clock.monotonic() + GIVE_UP_S, PAUSE_S, PIECE_ROWS
        while self._waiting:
            rows = list(self._waiting.values())[:most]
            try:
                async with asyncio.timeout(WRITE_TIMEOUT_S):
                    await self._put(rows)
            except Exception as error:  # rule 1: whatever it is, the call was carried out
                if not isinstance(error, StelaeError | TimeoutError):
                    logger.exception("rows of the audit log cannot be written")
                self._problem = str(error) or f"no answer within {WRITE_TIMEOUT_S:g} s"
                if isinstance(error, Rejected) and not isinstance(error, RowExists):
                    if most == 1:
                        self._done(rows, self._problem)
                    most = 1  # one of them is not taken: which one shows if each goes alone
                    continue
                if clock.monotonic() >= end_s:
                    self._give_up(self._problem)
                    return
                await clock.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
                continue
            self._problem = ""
            end_s, pause_s = clock.monotonic() + GIVE_UP_S, PAUSE_S
            self._done(rows)

    def _done(self, rows: Sequence[Row], why_not: str = "") -> None:
        """These were written, or, for a reason, are not."""
        for row in rows:
            if self._waiting.get(row["id"]) is row:  # else it has ended meanwhile
                del self._waiting[row["id"]]
                if why_not:
                    _say(row, why_not)

    def _give_up(self, why: str) -> None:
        self._done(list(self._waiting.values()), why)


class LoggedMasters(MastersClient):
    """The masters, for a client whose orders are noted."""

    def __init__(self, runtime: Runtime, masters: Sequence[Address], calls: CallLog) -> None:
        super().__init__(runtime, masters)
        self._calls = calls

    async def call(self, method: Method[Q, R], request: Q, *, timeout_s: float) -> R:
        """See `MastersClient.call`."""
        async with self._calls.order(method, request, timeout_s):
            return await super().call(method, request, timeout_s=timeout_s)


def is_noted(method: Method[Any, Any], order: Any) -> bool:
    """Whether an order is noted: all of `ABOUT`, but not the one that makes the audit table."""
    is_own = method is CREATE_TABLE and order.name == AUDIT_TABLE
    return method.name in ABOUT and not is_own


def outcome_of(error: BaseException | None) -> Outcome:
    """Return the outcome of a call that raised this: refused, if it was not executed."""
    if error is None:
        return Outcome.DONE
    is_refused = isinstance(error, Rejected | RetryLater | RetryElsewhere)
    return Outcome.REFUSED if is_refused else Outcome.FAILED


def _shown(order: Any, about: str) -> Iterator[str]:
    """What an order says, field by field: names, numbers and settings."""
    for name in order.__struct_fields__:
        value = getattr(order, name)
        if name == about or name in _NOT_SHOWN or value in (None, "", ()):
            continue
        if isinstance(value, SchemaChange):
            yield from _changes(value)
        elif isinstance(value, str | int | float | Durability):
            yield f"{name}: {value}"
        elif isinstance(value, tuple) and all(isinstance(each, str | int) for each in value):
            yield f"{name}: {', '.join(map(str, value))}"


def _changes(change: SchemaChange) -> Iterator[str]:
    try:
        added = [field.name for field in added_columns(change)]
    except InvalidArgument:
        added = ["?"]  # the masters refuse it, and say why
    if added:
        yield f"adds: {', '.join(added)}"
    if change.drop:
        yield f"drops: {', '.join(change.drop)}"
    if change.rename:
        yield f"renames: {', '.join(f'{old} to {new}' for old, new in change.rename)}"


def _joined(details: str, of_caller: str) -> str:
    """What is said of a call and of its caller, each thing once."""
    if details in of_caller.split(", "):  # who asked for it, by the turn and by the connection
        return of_caller
    return "; ".join(text for text in (details, of_caller) if text)


def _cut(text: str) -> str:
    return text[:TEXT_CHARS]


def _say(row: Row, why: str) -> None:
    line = msgspec.json.encode(row).decode()
    logger.warning("a line of the audit log was not written (%s): %s", why, line)
