"""Rows of remote segments that a call needs by themselves, without their neighbours.

Most calls need one row. Its piece would have a backup read and cut more than a hundred others, and
this server check and decode them, while somebody waits: several times what all the rest takes. So
the row is read past the backup where that can be, or else a backup is asked for the row alone, in
the turn that needs it. Once a second row of a piece is wanted its neighbours are likely to be, too:
then the piece follows, and nobody waits for it. This is the ordinary case only: where the first
replica that is asked does not help, the rows are fetched in pieces (`pieces`).

Invariant: what was fetched is shown only after it was checked (`stelae.storage.segments.remote`).
Source: seed RAMCloud master recovery, phase 2 (objects on demand); design §9.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from stelae.actors.server.membership import Membership
from stelae.actors.tserver.row_loading.near_rows import NearRows
from stelae.actors.tserver.row_loading.pieces import PIECE_TIMEOUT_S, Remote, RowPieces
from stelae.core.errors import StelaeError
from stelae.core.ids import Address, ServerUuid, TabletId, segment_name
from stelae.core.messages.backups import (
    READ_SINGLE_ROWS,
    SINGLE_ROWS_MAX,
    ReadSingleRows,
    ReadSingleRowsReply,
)
from stelae.core.rpc import Reply
from stelae.core.runtime import Runtime
from stelae.storage.segments.remote import Piece, RemoteRun, RowsAbsent


class SingleRows:
    """Those of one tablet. ``hold`` is given what has come."""

    def __init__(
        self,
        runtime: Runtime,
        members: Membership,
        tablet_id: TabletId,
        near: NearRows,
        pieces: RowPieces,
        hold: Callable[[Piece], None],
    ) -> None:
        self._runtime = runtime
        self._members = members
        self._tablet_id = tablet_id
        self._near = near
        self._pieces = pieces
        self._hold = hold
        self._coming: dict[tuple[RemoteRun, int], list[asyncio.Future[Piece | None]]] = {}
        """By segment and row: who waits for it. Each for itself, as each may be cancelled."""
        self._is_closed = False

    def close(self) -> None:
        """Nothing more is asked for; whoever waits is told."""
        self._is_closed = True
        for run, row in list(self._coming):
            self._ended(run, row, None)

    async def bring(
        self, remotes: Mapping[RemoteRun, Remote], absent: RowsAbsent, timeout_s: float
    ) -> list[Piece] | None:
        """What is wanted, here for as long as it is held. None: pieces are to be fetched."""
        if self._is_closed or len(absent.wanted) > SINGLE_ROWS_MAX:
            return None
        found: list[Piece] = []
        far: dict[RemoteRun, list[int]] = {}
        now = self._runtime.clock.monotonic()
        for wanted in absent.wanted:
            run, row = wanted.run, wanted.row
            remote = remotes.get(run)
            if remote is None or row < 0:
                return None
            remote.asked_at = min(remote.asked_at, now)
            piece = self._near.take_row(run, row)
            if piece is None:
                far.setdefault(run, []).append(row)
            else:
                self._hold(piece)
                found.append(piece)
        if not far:
            return found
        # A piece of one row is that row, and can be large; and no answer may come by the timeout.
        if timeout_s < PIECE_TIMEOUT_S or not all(
            r.comes_in_rows and r.piece_rows > 1 for r in far
        ):
            return None
        return await self._fetch(remotes, far, found, now)

    async def _fetch(
        self,
        remotes: Mapping[RemoteRun, Remote],
        far: Mapping[RemoteRun, Sequence[int]],
        found: list[Piece],
        began: float,
    ) -> list[Piece] | None:
        waits: list[asyncio.Future[Piece | None]] = []
        for run, rows in far.items():
            if not self._ask(remotes[run], rows):
                return None
            waits += [self._wait(run, row) for row in rows]
        for each in waits:
            piece = await each
            if piece is None:
                return None
            found.append(piece)
        took_s = self._runtime.clock.monotonic() - began
        self._runtime.metrics.observe("rows_fetched_s", took_s)
        return found

    def _wait(self, run: RemoteRun, row: int) -> asyncio.Future[Piece | None]:
        future: asyncio.Future[Piece | None] = asyncio.get_running_loop().create_future()
        self._coming[run, row].append(future)
        return future

    def _ask(self, remote: Remote, rows: Sequence[int]) -> bool:
        """Have rows on their way. False: they are to be fetched otherwise."""
        run = remote.run
        new = [row for row in dict.fromkeys(rows) if (run, row) not in self._coming]
        if not new:
            return True
        places = remote.places(self._members, self._runtime.rng)
        if not places:
            return False
        uuid, address = places[0]
        log, wants_place = remote.found.log or self._tablet_id, self._near.wants_place(run, uuid)
        if not self._runtime.peers.post(
            address,
            READ_SINGLE_ROWS,
            ReadSingleRows(log, run.segment_id, tuple(new), run.known, wants_place),
            partial(self._posted, remote, new, uuid, address),
            timeout_s=PIECE_TIMEOUT_S,
            destination=uuid,
        ):
            return False
        self._coming |= {(run, row): [] for row in new}
        if neighbours := remote.touch(new):
            self._pieces.begin(remote, neighbours)
        return True

    def _posted(
        self,
        remote: Remote,
        rows: Sequence[int],
        uuid: ServerUuid,
        address: Address,
        outcome: Reply[ReadSingleRowsReply] | StelaeError,
    ) -> None:
        run, pieces = remote.run, dict[int, Piece]()
        try:
            if isinstance(outcome, StelaeError):
                raise outcome
            where = f"segment {segment_name(run.segment_id)} from {address}"
            reply = outcome.body
            taken = run.take_rows(rows, reply.trailer, reply.rows, where)
        except StelaeError as error:
            remote.failed_at(uuid, error, self._runtime.metrics)
        else:
            remote.failures = 0
            self._runtime.metrics.count("single_rows_fetched", len(rows))
            pieces = dict(zip(rows, taken, strict=True))
            if reply.place is not None:
                self._near.found(run, reply.place, uuid)
        for row in rows:
            piece = pieces.get(row)
            if piece is not None:
                self._hold(piece)
            self._ended(run, row, piece)

    def _ended(self, run: RemoteRun, row: int, piece: Piece | None) -> None:
        """A row is here, or could not be had: whoever waits goes on."""
        for waiting in self._coming.pop((run, row), ()):
            if not waiting.done():
                waiting.set_result(piece)
