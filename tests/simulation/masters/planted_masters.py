"""Bugs planted into the masters, one at a time: proof that the simulator would see them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import msgspec

from stelae.actors.master.server import Master
from stelae.actors.raft.staleness import Freshness
from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.catalog.operations import Operations
from stelae.coordinator.liveness import standing
from stelae.coordinator.liveness.liveness import Liveness, Run
from stelae.core.errors import StelaeError
from stelae.core.messages.backups import DROP_LOGS, DropLogs
from stelae.core.messages.servers import (
    CLOSE_TABLET,
    OPEN_TABLET,
    CloseTablet,
    OpenTablet,
    TabletProgress,
)
from stelae.core.records.records import ServerKind, TabletRecord, TabletState
from tests.simulation.world.planting import planting

_BATCH = msgspec.msgpack.Decoder(CatalogBatch)


def _call_before_commit() -> Any:
    """Tell the owners of a new table's tablets to open them before the table is replicated."""
    replicate = Master._replicate

    async def hasty(self: Master, command: bytes) -> object:
        batch = _BATCH.decode(command)
        tables = {table.table_id: table for table in batch.tables}
        for tablet in batch.tablets:
            if tablet.generation == 1:
                order = OpenTablet(tables[tablet.table_id], tablet)
                _tell_owner(self, tablet, OPEN_TABLET, order)
        return await replicate(self, command)

    return patch.object(Master, "_replicate", hasty)


HASTE_S = 0.15


def _delete_before_commit() -> Any:
    """Close deleted tablets and drop their logs before the deletion is replicated."""
    replicate = Master._replicate

    async def hasty(self: Master, command: bytes) -> object:
        gone = [t for t in _BATCH.decode(command).tablets if t.state is TabletState.DELETED]
        for tablet in gone:
            _tell_owner(self, tablet, CLOSE_TABLET, CloseTablet(tablet.tablet_id, tablet.term))
        logs = DropLogs(tuple(tablet.tablet_id for tablet in gone))
        now = self.runtime.clock.monotonic()
        for seen in self.liveness.live(ServerKind.BACKUP, now) if gone else ():
            _tell(self, seen.server.address, DROP_LOGS, logs)
        if gone:  # the longer the change takes, the more often it fails: seldom is enough to lose
            await self.runtime.clock.sleep(HASTE_S)
        return await replicate(self, command)

    return patch.object(Master, "_replicate", hasty)


def _tell_owner(master: Master, tablet: TabletRecord, method: Any, order: Any) -> None:
    seen = master.liveness.find(Run(tablet.owner, tablet.owner_incarnation))
    if seen is not None:
        _tell(master, seen.server.address, method, order)


def _tell(master: Master, address: Any, method: Any, order: Any) -> None:
    async def call() -> None:
        with contextlib.suppress(StelaeError):
            await master.runtime.peers.call(address, method, order, timeout_s=1.0)

    master.tasks.spawn(call(), "planted")


def _publish_before_replicate() -> Any:
    """Show a change to the leader's readers as soon as it is drafted."""
    change, refusal = Operations.change, Catalog._refusal

    async def hasty(self: Operations, draft: Any, **rest: Any) -> Any:
        def published() -> CatalogBatch | None:
            batch: CatalogBatch | None = draft()
            if batch is not None:
                self._catalog._commit(batch)
            return batch

        return await change(self, published, **rest)

    def lenient(self: Catalog, batch: CatalogBatch) -> str:
        known = [self.tables.get(table.table_id) for table in batch.tables]
        known_tablets = [self.tablets.get(tablet.tablet_id) for tablet in batch.tablets]
        if known == list(batch.tables) and known_tablets == list(batch.tablets):
            return ""
        return refusal(self, batch)

    return _both(
        patch.object(Operations, "change", hasty), patch.object(Catalog, "_refusal", lenient)
    )


def _report_once() -> Any:
    """Take a tablet's being ready from the call that announces it alone, which may be lost."""
    heartbeat = Liveness.heartbeat

    def deaf(self: Liveness, beat: Any, now: float) -> Any:
        tablets = tuple(
            msgspec.structs.replace(report, progress=TabletProgress.OPENING)
            if report.progress is TabletProgress.PREPARED
            else report
            for report in beat.tablets
        )
        return heartbeat(self, msgspec.structs.replace(beat, tablets=tablets), now)

    return patch.object(Liveness, "heartbeat", deaf)


def _name_not_reserved() -> Any:
    """Let two requests create one name at once, with nothing but a look at the names before."""
    refusal = Catalog._refusal

    @contextlib.asynccontextmanager
    async def nothing(self: Operations, name: str) -> Any:
        yield

    def careless(self: Catalog, batch: CatalogBatch) -> str:
        reason = refusal(self, batch)
        return "" if reason.startswith("there is a table") else reason

    return _both(
        patch.object(Operations, "reserve", nothing), patch.object(Catalog, "_refusal", careless)
    )


def _commit_names_first() -> Any:
    """Commit tables and names, and the tablets a moment later."""
    commit = Catalog._commit

    def backwards(self: Catalog, batch: CatalogBatch) -> None:
        def tablets() -> None:
            commit(self, CatalogBatch(tablets=batch.tablets))

        commit(self, CatalogBatch(tables=batch.tables))
        if batch.tables:
            asyncio.get_running_loop().call_later(0.001, tablets)
        else:
            tablets()

    return patch.object(Catalog, "_commit", backwards)


def _two_entries() -> Any:
    """Replicate a table and its tablets one after the other, each in an entry of its own."""
    replicate = Master._replicate

    async def halves(self: Master, command: bytes) -> object:
        batch = _BATCH.decode(command)
        if batch.tables and batch.tablets:
            tablets = CatalogBatch(tablets=batch.tablets)
            await replicate(self, msgspec.structs.replace(batch, tablets=()).encode())
            return await replicate(self, tablets.encode())
        return await replicate(self, command)

    return patch.object(Master, "_replicate", halves)


def _stale_leader_serves() -> Any:
    """Answer by what is known here, without proof of still being the leader."""

    async def trusting(self: Master, timeout_s: float) -> Any:
        return self.lead()

    return patch.object(Master, "barrier", trusting)


def _stale_follower_serves() -> Any:
    """Take every master's state for new enough."""
    return patch.object(Freshness, "staleness_s", lambda self: 0.0)


def _request_forgotten() -> Any:
    """Carry out each request that comes, whether it came before or not."""
    return patch.object(Catalog, "_known_result", lambda self, request: None)


def _snapshot_forgets_requests() -> Any:
    """Leave the results of requests out of snapshots."""
    restore = Catalog.restore

    def forgetful(self: Catalog, data: bytes) -> None:
        restore(self, data)
        self._clients.clear()

    return patch.object(Catalog, "restore", forgetful)


def _unknown_deleted() -> Any:
    """Tell servers to drop what the catalog does not know."""

    def greedy(catalog: Catalog, held: Any) -> Any:
        known = ((tablet_id, catalog.tablets.get(tablet_id)) for tablet_id in held)
        return tuple(i for i, t in known if t is None or t.state.is_gone)

    return patch.object(standing, "to_drop", greedy)


def _both(*patches: Any) -> Any:
    stack = contextlib.ExitStack()

    @contextlib.contextmanager
    def entered() -> Iterator[None]:
        with stack:
            for each in patches:
                stack.enter_context(each)
            yield

    return entered()


BUGS: dict[str, Callable[[], Any]] = {
    "call_before_commit": _call_before_commit,
    "commit_names_first": _commit_names_first,
    "delete_before_commit": _delete_before_commit,
    "name_not_reserved": _name_not_reserved,
    "publish_before_replicate": _publish_before_replicate,
    "report_once": _report_once,
    "request_forgotten": _request_forgotten,
    "snapshot_forgets_requests": _snapshot_forgets_requests,
    "stale_leader_serves": _stale_leader_serves,
    "stale_follower_serves": _stale_follower_serves,
    "two_entries": _two_entries,
    "unknown_deleted": _unknown_deleted,
}


planted = planting(BUGS)
