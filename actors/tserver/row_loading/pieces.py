"""Pieces of remote segments that somebody waits for, from one replica after the other.

The first replica is asked in the turn that needs the rows, without a task of its own; whatever goes
wrong with it is left to one that asks the others. Whoever wants a piece that is on its way waits
for that one.

Invariant: what was fetched is shown only after it was checked (`stelae.storage.segments.remote`).
Source: seed RAMCloud master recovery, phase 2; design §9.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from stelae.actors.server.membership import Membership
from stelae.actors.tserver.row_loading.near_rows import NearRows
from stelae.actors.tserver.tablet_log.interface import FoundSegment
from stelae.core.config.settings import Settings
from stelae.core.errors import CorruptData, DataLost, StelaeError
from stelae.core.ids import Address, ServerUuid, TabletId, segment_name
from stelae.core.messages.backups import READ_ROWS, ReadRows, ReadRowsReply
from stelae.core.rpc import Reply
from stelae.core.runtime import Metrics, Runtime
from stelae.core.tasks import Tasks
from stelae.storage.segments.remote import Piece, RemoteRun, RemoteSegment

PIECE_TIMEOUT_S = 0.5
"""Of the first replica that is asked for a piece; the next ones get twice as long."""


@dataclass(slots=True)
class Remote:
    """A segment that is not here, and where it lies."""

    segment: RemoteSegment
    found: FoundSegment
    damaged: dict[ServerUuid, None] = field(default_factory=dict)
    loading: asyncio.Task[None] | None = None
    asked_at: float = math.inf
    """When somebody first needed rows of it."""
    failures: int = 0
    turn: asyncio.Task[None] | None = None
    """To be loaded: somebody waits for it."""
    touched: bytearray = field(default_factory=bytearray)
    """One for each piece: 1, a row of it was wanted by itself."""

    @property
    def run(self) -> RemoteRun:
        return self.segment.remote

    @property
    def is_stuck(self) -> bool:
        """It was looked for on all backups, more than once, and could not be read."""
        return self.failures > 1

    @property
    def size_bytes(self) -> int:
        """To be fetched."""
        return self.run.wanted_bytes

    @property
    def more_bytes(self) -> int:
        """So much more memory it takes once it is here."""
        return max(0, self.size_bytes - self.segment.memory_bytes)

    def places(self, members: Membership, rng: random.Random) -> list[tuple[ServerUuid, Address]]:
        """Where it may be read, in a random order: where the plan has found it, then anywhere else,
        as a backup may have come back with it; damaged replicas last."""
        known = [(uuid, address) for uuid, address, _ in self.found.replicas]
        rng.shuffle(known)
        places: list[tuple[ServerUuid, Address]] = []
        for uuid, address in known:
            live = members.find(uuid)
            places.append((uuid, address if live is None else live.address))
        if self.failures:
            planned = {uuid: None for uuid, _ in known}
            media = sorted({medium for _, _, medium in self.found.replicas})
            places += [
                (backup.uuid, backup.address)
                for medium in media
                for backup in members.backups(medium)
                if backup.uuid not in planned
            ]
        return sorted(places, key=lambda place: place[0] in self.damaged)

    def touch(self, rows: Sequence[int]) -> list[int]:
        """Rows are wanted by themselves. Returns the pieces of which that is so once more, and
        which are not here: of those other rows may well be wanted, too."""
        run = self.run
        if not self.touched:
            self.touched = bytearray(run.piece_count)
        again: dict[int, None] = {}
        for row in rows:
            number = row // run.piece_rows
            if self.touched[number] and run.piece(number) is None:
                again[number] = None
            self.touched[number] = 1
        return list(again)

    def failed_at(self, uuid: ServerUuid, error: StelaeError, metrics: Metrics) -> bool:
        """A replica could not be read. Returns whether the answer was that it is damaged."""
        if isinstance(error, DataLost):
            self.is_damaged_at(uuid, metrics)
            return True
        metrics.count("row_reads_failed")
        return False

    def is_damaged_at(self, uuid: ServerUuid, metrics: Metrics) -> None:
        """The replica there was read, and is not what it is to be."""
        metrics.count("replicas_corrupt")
        if any(uuid == each for each, _, _ in self.found.replicas):
            self.damaged[uuid] = None


class RowPieces:
    """Those of one tablet that are on their way. ``hold`` is given what has come."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        members: Membership,
        tasks: Tasks,
        tablet_id: TabletId,
        near: NearRows,
        hold: Callable[[Piece], None],
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._members = members
        self._tasks = tasks
        self._tablet_id = tablet_id
        self._near = near
        self._hold = hold
        self._coming: dict[tuple[RemoteRun, int], asyncio.Future[None]] = {}
        self._is_closed = False

    def close(self) -> None:
        """Nothing more is asked for."""
        self._is_closed = True

    def begin(self, remote: Remote, numbers: Sequence[int]) -> list[asyncio.Future[None]]:
        """Ask for pieces, in this turn if that can be: somebody waits, and tasks take their time.

        What is returned is done once they are here, or cannot be had.
        """
        run = remote.run
        new = [number for number in numbers if (run, number) not in self._coming]
        if new:
            self._ask(remote, new)
        # What could not be asked for at all has ended already.
        keys = [(run, number) for number in numbers]
        return [self._coming[key] for key in keys if key in self._coming]

    def _ask(self, remote: Remote, new: list[int]) -> None:
        run = remote.run
        coming: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._coming |= {(run, number): coming for number in new}
        places = remote.places(self._members, self._runtime.rng)
        if not places or not self._runtime.peers.post(
            places[0][1],
            READ_ROWS,
            self._request(remote, new, places[0][0]),
            partial(self._posted, remote, new, places),
            timeout_s=PIECE_TIMEOUT_S,
            destination=places[0][0],
        ):
            self._fetch_elsewhere(remote, new, places, PIECE_TIMEOUT_S)

    def _request(self, remote: Remote, numbers: Sequence[int], uuid: ServerUuid) -> ReadRows:
        run, log = remote.run, remote.found.log or self._tablet_id
        wants_place = self._near.wants_place(run, uuid)
        return ReadRows(log, run.segment_id, run.piece_rows, tuple(numbers), wants_place)

    def _posted(
        self,
        remote: Remote,
        numbers: list[int],
        places: list[tuple[ServerUuid, Address]],
        outcome: Reply[ReadRowsReply] | StelaeError,
    ) -> None:
        """What the first of some replicas came to; if it was nothing, the others are asked."""
        timeout_s = PIECE_TIMEOUT_S
        uuid, _ = places[0]
        try:
            if isinstance(outcome, StelaeError):
                raise outcome
            self._take_pieces(remote.run, numbers, outcome, places[0])
        except StelaeError as error:
            timeout_s = self._failed(remote, uuid, error, timeout_s)
        else:
            remote.failures = 0
            self._ended(remote.run, numbers)
            return
        self._fetch_elsewhere(remote, numbers, places[1:], timeout_s)

    def _ended(self, run: RemoteRun, numbers: Sequence[int]) -> None:
        """Pieces are here, or cannot be had: whoever waits looks again."""
        for number in numbers:
            coming = self._coming.pop((run, number))
            if not coming.done():
                coming.set_result(None)

    def _fetch_elsewhere(
        self,
        remote: Remote,
        numbers: list[int],
        places: list[tuple[ServerUuid, Address]],
        timeout_s: float,
    ) -> None:
        if self._is_closed:
            self._ended(remote.run, numbers)
            return
        name = f"{self._tablet_id[:8]}/rows of {remote.run.segment_id}"
        self._tasks.spawn(self._fetch(remote, numbers, places, timeout_s), name)

    async def _fetch(
        self,
        remote: Remote,
        numbers: list[int],
        places: list[tuple[ServerUuid, Address]],
        timeout_s: float,
    ) -> None:
        """Ask one replica after the other for some pieces."""
        run = remote.run
        try:
            for uuid, address in places:
                try:
                    reply = await self._runtime.peers.call(
                        address,
                        READ_ROWS,
                        self._request(remote, numbers, uuid),
                        timeout_s=timeout_s,
                        destination=uuid,
                    )
                    self._take_pieces(run, numbers, reply, (uuid, address))
                except StelaeError as error:
                    timeout_s = self._failed(remote, uuid, error, timeout_s)
                else:
                    remote.failures = 0
                    return
            remote.failures += 1
        finally:
            self._ended(run, numbers)

    def _failed(
        self, remote: Remote, uuid: ServerUuid, error: StelaeError, timeout_s: float
    ) -> float:
        """A replica could not be read. Returns how long the next one is waited for."""
        is_damaged = remote.failed_at(uuid, error, self._runtime.metrics)
        return timeout_s if is_damaged else min(2 * timeout_s, self._settings.call_timeout_s)

    def _take_pieces(
        self,
        run: RemoteRun,
        numbers: Sequence[int],
        reply: Reply[ReadRowsReply],
        place: tuple[ServerUuid, Address],
    ) -> None:
        """Check pieces, and show them for a while. Raises CorruptData."""
        trailer, crcs = reply.body.trailer, reply.body.crcs
        uuid, address = place
        where = f"segment {segment_name(run.segment_id)} from {address}"
        if not len(crcs) == len(reply.blobs) == len(numbers):
            raise CorruptData(where, 0, f"{len(reply.blobs)} pieces for {len(numbers)}")
        for number, crc, data in zip(numbers, crcs, reply.blobs, strict=True):
            self._hold(run.take_piece(number, trailer, crc, memoryview(data), where))
        self._runtime.metrics.count("row_pieces_fetched", len(numbers))
        if reply.body.place is not None:
            self._near.found(run, reply.body.place, uuid)
