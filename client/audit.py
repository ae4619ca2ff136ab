"""The audit log as a table: read by operators, written and trimmed by Stelae itself.

Rules:

1. The row of an answered call replaces the row of its beginning, never the other way round: rows of
   calls that have only begun are inserted where there is none. So the rows are the same in
   whichever order, and however often, they are written.
2. The table is made when its first row comes, with as many copies as the cluster's servers allow.
3. Rows are deleted in pieces of `PIECE_ROWS`, the oldest first. Refused requests have
   one `REFUSED_SHARE` of the rows at most, so that no number of them displaces what was done.
4. Which rows are asked for, or go, is found in Arrow and in another thread: a table of a million
   rows does not hold up the event loop, and only what is answered becomes Python rows.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from stelae.client.input.given import row_limit
from stelae.client.table.table import AsyncTable
from stelae.core.errors import InvalidArgument, StelaeError, TableExists, TableNotFound
from stelae.core.records.records import ServerKind
from stelae.core.runtime import Runtime
from stelae.core.schema.audit import AUDIT_KEY, AUDIT_SCHEMA, Outcome, has_audit_columns
from stelae.core.schema.durability import Durability, replicas, segments
from stelae.core.schema.own_tables import AUDIT_TABLE

if TYPE_CHECKING:
    from stelae.core.schema.partition import Partitioning

logger = logging.getLogger(__name__)

CALL_TIMEOUT_S = 30.0
MAX_ENTRIES = 1000
"""Maximum entries of one answer."""
PIECE_ROWS = 500
"""Maximum rows that are deleted at once."""
REFUSED_SHARE = 5
"""Refused requests have at most one of so many parts of the rows."""
TRIM_EVERY = 500
"""Average number of writes between two trims by clients that no front trims for."""
LONGEST_KEPT = datetime.timedelta(days=3650)
MOST_ROWS = 1_000_000
"""The largest ``serve.limits.audit_keep`` and ``audit_rows`` that a front may have."""
_NEWEST_FIRST = [("time", "descending"), ("id", "descending")]
_LAST = "\U0010ffff"
"""Sorts behind every text that goes on otherwise."""

AuditEntry: TypeAlias = dict[str, Any]


class AuditCalls:
    """The part of `AsyncDatabase` that is about the audit log."""

    runtime: Runtime

    if TYPE_CHECKING:

        async def table(self, name: str, *, max_staleness: float | None = None) -> AsyncTable: ...

        async def create_table(
            self,
            name: str,
            schema: pa.Schema,
            *,
            key: str | Sequence[str],
            partition: Partitioning | None = None,
            durability: Durability = ...,
            indexes: str | Sequence[str] = (),
            wait: bool = True,
            timeout: float = ...,
        ) -> AsyncTable: ...

        async def status(
            self, *, max_staleness: float | None = None, timeout: float = ...
        ) -> dict[str, Any]: ...

    async def audit(
        self,
        *,
        since: datetime.datetime | None = None,
        until: datetime.datetime | None = None,
        who: str = "",
        outcome: str = "",
        path: str = "",
        limit: int = 100,
        before: str = "",
        timeout: float = CALL_TIMEOUT_S,
    ) -> list[AuditEntry]:
        """Return what the audit log has of administrative calls, the newest last.

        An entry has the columns of the table: ``time`` (when the call began, UTC), ``gateway``,
        ``caller`` (the token's name, or ``user@host``), ``role``, ``method`` (of HTTP, or ``cli``,
        ``python``, ``applier``), ``path``, ``object``, ``outcome``
        (``done``, ``refused``, ``failed``; ``begun``: no answer is noted), ``status``, ``calls``
        (how many the entry stands for), ``duration_s``, ``request_id``, ``source``, ``details``
        and ``id``. It is there about a second after the call was answered.

        ``since`` and ``until``: only calls that began then or later, and before that. ``path``: its
        beginning. ``limit``: the newest so many of these, up to `MAX_ENTRIES`. ``before``: the
        ``id`` of an entry, for those that are older than it.

        Raises:
            InvalidArgument: no such outcome or entry, or a time without a time zone.
        """
        terms = _terms(since, until, who, outcome, path)
        count = _limit(limit)
        try:
            table = await self._audit_table()
        except TableNotFound:
            return []
        edge = None if not before else await _edge(table, before, timeout)
        if edge is not None:
            terms.append(("time", "<=", edge[0]))
        # First which they are, by two columns, and then these alone as a whole.
        found = await table.scan(columns=["time", "id"], where=terms, timeout=timeout)
        newest = await asyncio.to_thread(_newest, found, edge, count)
        rows = await table.get_many(newest, timeout=timeout)
        return sorted(rows.to_pylist(), key=lambda row: (row["time"], row["id"]))

    async def put_audit(
        self, rows: Sequence[Mapping[str, Any]], *, timeout: float = CALL_TIMEOUT_S
    ) -> None:
        """Write rows of the audit table (rule 1); again is fine. For Stelae itself.

        Raises:
            RowExists: a call was answered meanwhile; again is fine.
            StelaeError: as any write does.
        """
        ended = [dict(row) for row in rows if row["outcome"] != Outcome.BEGUN]
        begun = [dict(row) for row in rows if row["outcome"] == Outcome.BEGUN]
        table = (await self._made_audit_table(timeout)).for_stelae()
        if ended:
            await table.upsert(ended, timeout=timeout)
        if begun:  # rule 1
            ids = [row["id"] for row in begun]
            there = await table.get_many(ids, columns=[AUDIT_KEY], timeout=timeout)
            known = set(there.column(AUDIT_KEY).to_pylist())
            absent = [row for row in begun if row["id"] not in known]
            if absent:
                await table.insert(absent, timeout=timeout)

    async def put_calls(self, rows: Sequence[Mapping[str, Any]], *, timeout: float) -> None:
        """`put_audit` for a client's own rows. Now and then it trims the table to the largest
        limits that a front may have, as a cluster may have no front. Raises as `put_audit`."""
        await self.put_audit(rows, timeout=timeout)
        if self.runtime.rng.random() * TRIM_EVERY < 1.0:
            try:
                now = datetime.datetime.fromtimestamp(self.runtime.clock.now(), datetime.UTC)
                await self.trim_audit(now - LONGEST_KEPT, MOST_ROWS, timeout=timeout)
            except StelaeError as error:
                logger.info("the audit log was not trimmed: %s", error)

    async def trim_audit(
        self, oldest: datetime.datetime, max_rows: int, *, timeout: float = CALL_TIMEOUT_S
    ) -> int:
        """Delete the rows from before ``oldest``, and the oldest ones above ``max_rows`` and above
        the share of refused requests (rule 3). Returns how many. For Stelae itself."""
        try:
            table = (await self._audit_table()).for_stelae()
        except TableNotFound:
            return 0
        found = await table.scan(columns=["time", "id", "outcome"], timeout=timeout)
        doomed = await asyncio.to_thread(_doomed, found, oldest, max_rows)
        for start in range(0, len(doomed), PIECE_ROWS):
            await table.delete(doomed.slice(start, PIECE_ROWS).to_pylist(), timeout=timeout)
        return len(doomed)

    async def _made_audit_table(self, timeout_s: float) -> AsyncTable:
        try:
            return await self._audit_table()
        except TableNotFound:
            durability = audit_durability(await self.status(timeout=timeout_s))
        try:
            return await self.create_table(
                AUDIT_TABLE, AUDIT_SCHEMA, key=AUDIT_KEY, durability=durability, timeout=timeout_s
            )
        except TableExists:  # another gateway has made it
            return await self._audit_table()

    async def _audit_table(self) -> AsyncTable:
        """Raises TableNotFound; InvalidArgument: somebody has made a table of that name before it
        was Stelae's."""
        table = await self.table(AUDIT_TABLE)
        if not has_audit_columns(table.schema, table.key):
            raise InvalidArgument(
                f"table {AUDIT_TABLE!r} has other columns than Stelae's audit log: an earlier "
                "version let somebody make it. Rename or drop it; until then calls stay in the "
                "gateways' files"
            )
        return table


def audit_durability(status: Mapping[str, Any]) -> Durability:
    """Return the durability of a new audit table: two copies on disks of backups where there are
    two, else as much as the servers of this status document allow. Pure."""
    live = [each for each in status["servers"] if each["state"] == "live"]
    disks = [
        each
        for each in live
        if each["kind"] == ServerKind.BACKUP.value and "disk" in each["media"]
        if not each.get("retiring")
    ]
    if disks:
        return segments(*["disk"] * min(2, len(disks)))
    homes = [e for e in live if e["kind"] == ServerKind.TSERVER.value and not e["retiring"]]
    return replicas(3 if len(homes) >= 3 else 1)


def _terms(
    since: datetime.datetime | None,
    until: datetime.datetime | None,
    who: str,
    outcome: str,
    path: str,
) -> list[tuple[str, str, Any]]:
    for name, at in (("since", since), ("until", until)):
        if at is not None and at.tzinfo is None:
            raise InvalidArgument(f"{name}={at!r}: give it a time zone, as in datetime.now(UTC)")
    if outcome and outcome not in list(Outcome):
        raise InvalidArgument(f"outcome {outcome[:40]!r}: one of {', '.join(Outcome)}")
    terms: list[tuple[str, str, Any]] = []
    if since is not None:
        terms.append(("time", ">=", since))
    if until is not None:
        terms.append(("time", "<", until))
    if who:
        terms.append(("caller", "=", who))
    if outcome:
        terms.append(("outcome", "=", outcome))
    if path:
        terms += [("path", ">=", path), ("path", "<=", path + _LAST)]
    return terms


def _limit(limit: int) -> int:
    count = row_limit(limit)
    if count is None or not 1 <= count <= MAX_ENTRIES:
        raise InvalidArgument(f"limit={limit!r}: 1 to {MAX_ENTRIES}; older ones with before=")
    return count


async def _edge(table: AsyncTable, before: str, timeout_s: float) -> tuple[datetime.datetime, str]:
    row = await table.get(before, columns=["time"], timeout=timeout_s)
    if row is None:
        raise InvalidArgument(f"before={before[:40]!r}: no entry of the audit log has this id")
    return row["time"], before


def _newest(found: pa.Table, edge: tuple[datetime.datetime, str] | None, count: int) -> list[str]:
    """Return the ids of the newest ``count`` rows that are older than the edge, in no order."""
    if edge is not None:
        at, ids = found.column("time"), found.column("id")
        is_at_edge = pc.equal(at, _scalar(found, edge[0]))
        is_before = pc.less(at, _scalar(found, edge[0]))
        found = found.filter(pc.or_(is_before, pc.and_(is_at_edge, pc.less(ids, edge[1]))))
    chosen = pc.select_k_unstable(found, k=count, sort_keys=_NEWEST_FIRST)
    newest: list[str] = found.column("id").take(chosen).to_pylist()
    return newest


def _doomed(found: pa.Table, oldest: datetime.datetime, max_rows: int) -> pa.ChunkedArray:
    """Return the ids of the rows from before ``oldest``, and of those that are older than the
    newest ``max_rows`` or, of refused requests, the newest of their share; the oldest first."""
    is_kept = pc.greater_equal(found.column("time"), _scalar(found, oldest))
    kept = found.filter(is_kept).sort_by(_NEWEST_FIRST)
    is_refused = pc.equal(kept.column("outcome"), Outcome.REFUSED.value)
    refused, others = kept.filter(is_refused), kept.filter(pc.invert(is_refused))
    refused_rows = min(refused.num_rows, -(-max_rows // REFUSED_SHARE))
    surplus = [refused.slice(refused_rows), others.slice(max_rows - refused_rows)]
    doomed = pa.concat_tables([found.filter(pc.invert(is_kept)), *surplus])
    return doomed.sort_by([(name, "ascending") for name, _ in _NEWEST_FIRST]).column("id")


def _scalar(found: pa.Table, at: datetime.datetime) -> pa.Scalar:
    return pa.scalar(at, found.schema.field("time").type)
