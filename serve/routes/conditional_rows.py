"""Writes of one row under conditions that take a look at the row: ``*``, and lists of ETags.

A tablet compares with one version. So the row's version is read, and where it fulfils the condition
the write is made for that version alone; a row that changes in between is looked at anew.

Each such attempt has an id of its own, made of the request's, because a tablet remembers what it
refused. A repeated request meets the outcomes of its former attempts in their order, whatever the
row has become: to that end it is sent where the condition does not hold, too, for a version that no
row ever has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request

from stelae.client.table.table import AsyncTable
from stelae.core.errors import RetryLater, VersionMismatch
from stelae.core.schema.schema import VERSION_COLUMN
from stelae.serve.bodies.problems import PreconditionFailed
from stelae.serve.gateway.conditions import MAX_VERSION, Condition
from stelae.serve.gateway.requests import is_numbered, numbered

ATTEMPTS = 20
LEAST_S = 0.001
NEVER = MAX_VERSION
"""No row comes to have it."""


async def write_under(
    condition: Condition,
    request: Request,
    table: AsyncTable,
    key: tuple[Any, ...],
    op: bytes,
    body: bytes,
    timeout_s: float,
    write: Callable[[AsyncTable, int, float], Awaitable[Any]],
) -> Any:
    """Have ``write`` done to a row, given the table, the version that the row must have, and the
    seconds that are left.

    Raises:
        PreconditionFailed, VersionMismatch: the condition does not hold.
        RetryLater: the row kept changing.
    """
    version = condition.only_version()
    if version is not None:
        return await write(numbered(request, table, op, body), version, timeout_s)
    clock = asyncio.get_running_loop().time
    deadline = clock() + timeout_s
    what = f"the row of {table.name!r}"
    for attempt in range(ATTEMPTS):
        left_s = max(deadline - clock(), LEAST_S)
        columns = [table.key[0]]
        row = await table.get(key, columns=columns, with_version=True, timeout=left_s)
        found = 0 if row is None else int(row[VERSION_COLUMN])
        try:
            condition.check(str(found) if found else None, what)
        except PreconditionFailed:
            if not is_numbered(request):
                raise
            found = NEVER
        left_s = max(deadline - clock(), LEAST_S)
        try:
            return await write(numbered(request, table, op, body, attempt), found, left_s)
        except VersionMismatch as error:
            if error.args[2] == NEVER:
                now = int(error.args[3])
                condition.check(str(now) if now else None, what)
                raise PreconditionFailed(f"{what} was refused: it was another one then") from None
    raise RetryLater(f"{what} changes all the time: {ATTEMPTS} attempts met another version each")
