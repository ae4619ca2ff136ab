"""A source brings all it has over to its successor, and makes way: one run of it, at one server.

Piece by piece, by version, each durable there before the next (`stelae.storage.rows.transfer`),
until nothing is left; then new writes are refused, what came last follows, and what requests came
to; then reads are refused as well, and the masters hear so. How far the successor is, it says
itself, so a run may end at any point, and the next one, also another server's, goes on from there.

The fence does not last: if the last of it is not over within `FENCE_S`, writes go on, and it is
tried again. What is CLOSED only the masters open. `docs/decisions.md`, §34.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa

from stelae.core.backoff import Backoff
from stelae.core.config.settings import Settings
from stelae.core.errors import (
    CorruptData,
    InvalidArgument,
    NoSpace,
    NotLeader,
    OutOfMemory,
    StelaeError,
)
from stelae.core.ids import Address, ServerUuid, TabletId
from stelae.core.records.succession import (
    IMPORT_CHANGES,
    ImportChanges,
    Succession,
    SuccessionReport,
    SuccessionStage,
)
from stelae.core.runtime import Runtime
from stelae.core.schema.schema import VERSION_COLUMN
from stelae.storage.entries.entry import Result, encode_batch
from stelae.storage.rows.memory import TabletMemory
from stelae.storage.rows.transfer import Changes

PIECE_BYTES = 256 << 10
"""Small, as it is made, and taken in, on event loops that others wait for."""
RESULTS_IN_A_PIECE = 2000
FENCE_S = 1.0
"""For so long writes are refused at most, before they go on and the end is tried again."""
PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0


class Source(Protocol):
    """A tablet of any durability that makes way."""

    tablet_id: TabletId
    transfer: TabletTransfer | None
    began: dict[TabletId, int]
    """Successors to which this very object has given everything from the first version on, and
    what `forgettings` were then."""

    @property
    def succession(self) -> Succession: ...
    @property
    def next_version(self) -> int: ...
    @property
    def giving_term(self) -> int:
        """In which it is served, or led, here; 0: it is not."""

    @property
    def is_volatile(self) -> bool:
        """Whether its rows die with its server: another owner's are none of these."""

    def keep_all(self, *, keeps: bool) -> None:
        """Forget no tombstone while that is so."""

    async def give_way(
        self,
        successor: TabletId,
        stage: SuccessionStage,
        timeout_s: float,
        *,
        by_masters: bool = False,
    ) -> SuccessionStage: ...

    async def changes_since(
        self, version: int, limit_bytes: int, began_at: int | None, timeout_s: float
    ) -> Changes | None: ...

    @property
    def forgettings(self) -> int:
        """As `TabletMemory.forgettings`."""

    def results(self) -> tuple[Result, ...]: ...


class _Over(Exception):
    """This server has nothing to give any more."""


class TabletTransfer:
    """See the module. `aim` it again whenever the masters say where the successor is served."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        source: Source,
        successor: TabletId,
        on_closed: Callable[[], None],
    ) -> None:
        self.successor = successor
        self.copied = self.versions = 0
        self.is_lost = False
        self.problem = ""
        self.lacks_room = False
        """The successor has refused the last piece for want of it."""
        self._runtime = runtime
        self._settings = settings
        self._source = source
        self._on_closed = on_closed
        self._address = Address("")
        self._server: ServerUuid | None = None
        self._term = 0

    def aim(self, address: Address, server: ServerUuid) -> None:
        """The successor is served there, as far as the masters know."""
        self._address, self._server = address, server or None

    async def run(self) -> None:
        """Until the source is CLOSED, or the successor is lost, or this server is not the source's
        any more."""
        source = self._source
        backoff = Backoff(self._runtime.rng, PAUSE_S, LONGEST_PAUSE_S)
        source.keep_all(keeps=True)
        try:
            while True:
                try:
                    if await self._try():
                        break
                except (StelaeError, TimeoutError) as error:
                    self.problem = str(error) or "the last of it took too long"
                    self._runtime.metrics.count("transfers_repeated")
                await backoff.pause(self._runtime.clock)
        except _Over:
            return
        finally:
            source.keep_all(keeps=False)
            if source.transfer is self and not self.is_lost:
                source.transfer = None
        self._on_closed()

    async def _try(self) -> bool:
        """Whether it is over."""
        self._term = self._source.giving_term
        if not self._term:
            raise _Over
        self._check()
        source, timeout_s = self._source, self._settings.call_timeout_s
        if source.succession.stage is SuccessionStage.FENCED:  # of an earlier run, or another one's
            fenced_for = source.succession.successor
            await source.give_way(fenced_for, SuccessionStage.OPEN, timeout_s)
        if source.succession.stage is SuccessionStage.CLOSED:
            return True
        position = await self._position()
        if position is None or not await self._copy(position):
            self.is_lost = True
            return True
        try:
            async with asyncio.timeout(FENCE_S):
                if await source.give_way(self.successor, SuccessionStage.FENCED, timeout_s) is (
                    SuccessionStage.OPEN
                ):
                    return False
                await self._finish()
            self._check()
            stage = await source.give_way(self.successor, SuccessionStage.CLOSED, timeout_s)
        except (StelaeError, TimeoutError):
            await self._open_again()
            raise
        return stage is SuccessionStage.CLOSED

    async def _open_again(self) -> None:
        try:
            await self._source.give_way(
                self.successor, SuccessionStage.OPEN, self._settings.call_timeout_s
            )
        except StelaeError:
            self._runtime.metrics.count("fences_left")  # the next try sees to it

    def _check(self) -> None:
        """In another term others may have opened what was fenced in this one."""
        if self._source.transfer is not self or self._source.giving_term != self._term:
            raise _Over

    # ---- what is brought over ---------------------------------------------------------------

    async def _position(self) -> int | None:
        """How far the successor is; None: with what nobody has any more."""
        source = self._source
        position = await self._push(ImportChanges(self.successor, 0, 0), None)
        if position == 1:
            source.began[self.successor] = source.forgettings
        elif source.is_volatile and self.successor not in source.began:
            return None
        return position

    async def _copy(self, position: int) -> bool:
        """Everything up to now; False: that cannot be."""
        while True:
            position, is_last = await self._piece(position)
            if is_last:
                return position > 0

    async def _piece(self, position: int) -> tuple[int, bool]:
        """The next piece; how far the successor is then, 0: it is lost; and whether it has all."""
        timeout_s = self._settings.call_timeout_s
        limit_bytes = min(PIECE_BYTES, self._settings.segment_bytes)
        source = self._source
        self.versions = source.next_version
        if position == 1:  # it has nothing, be it that it has lost what it had
            source.began[self.successor] = source.forgettings
        began_at = source.began.get(self.successor)
        changes = await source.changes_since(position, limit_bytes, began_at, timeout_s)
        if changes is None:
            return 0, True
        if changes.next_version == position:
            return position, changes.is_last
        stream = None
        if changes.batch is not None and changes.batch.num_rows:
            stream = await self._runtime.offload(encode_batch, changes.batch)
        order = ImportChanges(self.successor, position, changes.next_version)
        reached = await self._push(order, stream)
        self.copied = reached
        return reached, changes.is_last and reached == changes.next_version

    async def _finish(self) -> None:
        """All that is left, of a source that is written no more."""
        source = self._source
        position = await self._push(ImportChanges(self.successor, 0, 0), None)
        while True:
            is_last, results = False, source.results()
            while not is_last:
                position, is_last = await self._piece(position)
            if position == 0:
                raise InvalidArgument(f"tablet {self.successor} cannot be brought up to its source")
            at = range(0, len(results), RESULTS_IN_A_PIECE)
            for chunk in [results[i : i + RESULTS_IN_A_PIECE] for i in at]:
                told = tuple([_plain(result) for result in chunk])
                order = ImportChanges(self.successor, position, position, told)
                reached = await self._push(order, None)
                if reached != position:
                    position = reached
                    break
            else:
                if position == source.next_version:
                    self.copied = position
                    return

    async def _push(self, order: ImportChanges, stream: pa.Buffer | None) -> int:
        """Have the successor take a piece, wherever it is served; how far it is then."""
        backoff = Backoff(self._runtime.rng, PAUSE_S, LONGEST_PAUSE_S)
        while True:
            self._check()
            try:
                reply = await self._runtime.peers.call(
                    self._address,
                    IMPORT_CHANGES,
                    order,
                    timeout_s=self._settings.call_timeout_s,
                    blobs=() if stream is None else (stream,),
                    destination=self._server,
                )
            except NotLeader as error:
                self.problem, self.lacks_room = str(error), False
                if error.leader and error.leader != self._address:
                    self._address, self._server = Address(error.leader), None
            except (OutOfMemory, NoSpace) as error:
                self.problem, self.lacks_room = str(error), True
                await backoff.pause(self._runtime.clock)
                continue
            except StelaeError as error:
                self.problem, self.lacks_room = str(error), False
            else:
                self.problem, self.lacks_room = "", self.lacks_room and stream is None
                return int(reply.body.next_version)
            await self._runtime.clock.sleep(PAUSE_S)


def _plain(result: Result) -> tuple[str, int, int, bytes]:
    return result.client_id, result.sequence, result.first_incomplete, result.outcome


def report_of(succession: Succession, transfer: TabletTransfer | None) -> SuccessionReport | None:
    """What a source says of how it makes way; None: it does not."""
    if transfer is not None:
        stage = SuccessionStage.OPEN
        if succession.successor == transfer.successor:
            stage = succession.stage
        elif succession.stage is not SuccessionStage.OPEN:
            return SuccessionReport(succession.successor, succession.stage)
        return SuccessionReport(
            transfer.successor,
            stage,
            transfer.copied,
            transfer.versions,
            transfer.is_lost,
            transfer.problem,
            transfer.lacks_room,
        )
    if succession.stage is SuccessionStage.OPEN:
        return None
    return SuccessionReport(succession.successor, succession.stage)


def checked_import(memory: TabletMemory, order: ImportChanges, blob: Any) -> pa.RecordBatch | None:
    """The rows of an import, if it is the next one.

    Raises:
        InvalidArgument: it is none, whatever is here.
    """
    if blob is None or order.from_version != memory.next_version:
        return None
    try:
        batch = memory.imported_batch(blob)
    except CorruptData as error:
        raise InvalidArgument(str(error)) from error
    versions = batch.column(VERSION_COLUMN).to_numpy()
    if len(versions) and not order.from_version <= versions[0] <= versions[-1] < order.next_version:
        raise InvalidArgument(f"versions {versions[0]} to {versions[-1]}, not as it says")
    return batch
