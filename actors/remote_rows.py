"""Bringing the rows of a recovered tablet back while it is served: phase 2 of a recovery.

Whoever needs rows that are not here has them fetched from a backup, with their neighbours or with
their whole segment, and waits; meanwhile all segments are loaded one after the other, those first
that somebody waits for, then in the order of the log, at a bounded rate. Each comes from any of
its replicas. One that is damaged is passed over, and replaced once another one was read. A segment
that nobody can serve is tried again for as long as it takes: who reads rows of it waits until the
call's deadline, and is told; all else goes on. Segments for which there is no memory stay remote.

Invariant: what was fetched is shown only after it was checked (`stelae.storage.remote`).
Source: seed RAMCloud master recovery, phase 2; design §9.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Protocol

import pyarrow as pa

from stelae.actors.membership import Membership
from stelae.actors.row_pieces import Remote, RowPieces
from stelae.actors.segment_replica import RemoteImage
from stelae.actors.tablet_log import FoundSegment
from stelae.actors.tablet_recovery import Intake, fetch_all
from stelae.core.errors import CorruptData, DataLost, StelaeError, TabletNotHere, TabletNotReady
from stelae.core.ids import Address, ServerUuid, TabletId, segment_name
from stelae.core.messages import SegmentSource
from stelae.core.runtime import ObjectHandle, Runtime
from stelae.core.settings import Settings
from stelae.core.tasks import Tasks
from stelae.storage.remote import Piece, RemoteRun, RemoteSegment, RowsAbsent

HELD_BYTES = 32 << 20
"""Of rows that were fetched and are not to stay: they serve for a while yet."""
LOADERS = 2
"""Of one tablet: one reads while the other's rows are checked and put into shared memory."""
PAUSE_S = 0.1
LONGEST_PAUSE_S = 1.0
ANSWER_SHARE = 0.9
"""Of a call's time that is spent waiting for rows: the rest is for saying that there are none."""


class Owner(Protocol):
    """The tablet whose rows these are."""

    def arrived(
        self,
        segment: RemoteSegment,
        whole: Piece,
        handle: ObjectHandle | None,
        damaged: Sequence[ServerUuid],
    ) -> None:
        """The rows are here to stay."""


class RemoteRows:
    """Those of one tablet."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        members: Membership,
        intake: Intake,
        tasks: Tasks,
        tablet_id: TabletId,
        owner: Owner,
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._members = members
        self._intake = intake
        self._tasks = tasks
        self._tablet_id = tablet_id
        self._owner = owner
        self._remote: dict[RemoteRun, Remote] = {}
        self._held: OrderedDict[Piece, None] = OrderedDict()
        self._held_bytes = 0
        self._pieces = RowPieces(runtime, settings, members, tasks, tablet_id, self._hold)
        self.total_bytes = 0
        """Of all segments that were remote at first."""
        self.loaded_s = 0.0
        """From the hand-over until all rows were here; 0: they are not yet, or always were."""
        self._began: float | None = None
        self._lacks_memory = False
        self._is_closed = False

    def add(self, segment: RemoteSegment, found: FoundSegment) -> RemoteImage:
        """These rows are to be brought back. Returns what gives the image to whoever makes a
        replica of it."""
        self._remote[segment.remote] = Remote(
            segment, found, {uuid: None for uuid in found.damaged}
        )
        segment.remote.cut(self._settings.row_piece_bytes)
        self.total_bytes += segment.remote.size_bytes
        run = segment.remote
        return RemoteImage(run.size_bytes, partial(self._image_of, run))

    # ---- how it goes ------------------------------------------------------------------------

    @property
    def is_loading(self) -> bool:
        """Whether rows are elsewhere yet: nothing is cleaned, and nothing changes hands."""
        return bool(self._remote)

    @property
    def left_bytes(self) -> int:
        """Of segments that are still remote."""
        return sum([remote.size_bytes for remote in self._remote.values()])

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    @property
    def waits_for(self) -> str:
        """What keeps rows from being loaded; empty: nothing."""
        stuck = [r.run.segment_id for r in self._remote.values() if r.failures > 1]
        if stuck:
            names = ", ".join(segment_name(segment) for segment in sorted(stuck)[:8])
            more = f" and {len(stuck) - 8} more" if len(stuck) > 8 else ""
            return f"waits for a backup with a readable replica of segments {names}{more}"
        if self._lacks_memory:
            return f"no memory for {len(self._remote)} segments: rows are fetched when needed"
        return ""

    # ---- rows that somebody waits for ---------------------------------------------------------

    async def bring(self, absent: RowsAbsent, timeout_s: float) -> list[Piece]:
        """Fetch what is wanted. It is here for as long as what is returned is held.

        Raises TabletNotReady: not by the deadline.
        """
        clock = self._runtime.clock
        started = clock.monotonic()
        deadline = started + timeout_s * ANSWER_SHARE
        pause_s = PAUSE_S
        held: dict[tuple[RemoteRun, int], Piece] = {}
        while not self._collect(absent, held):
            if self._is_closed:
                raise TabletNotHere(self._tablet_id, "this server any more")
            count, work = len(held), self._begin(absent, held)
            left_s = deadline - clock.monotonic()
            if left_s <= 0.0:
                raise self._not_ready(absent)
            if work:
                await asyncio.wait(work, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            is_whole = self._collect(absent, held)
            if not is_whole and len(held) == count:  # nothing came
                await clock.sleep(max(0.0, min(pause_s, deadline - clock.monotonic())))
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        self._runtime.metrics.observe("rows_fetched_s", clock.monotonic() - started)
        return list(held.values())

    def _not_ready(self, absent: RowsAbsent) -> TabletNotReady:
        segments = sorted({wanted.run.segment_id for wanted in absent.wanted})
        names = ", ".join(segment_name(segment) for segment in segments[:8])
        return TabletNotReady(
            self._tablet_id, f"waiting for rows of segments {names}, which no backup has served yet"
        )

    def _collect(self, absent: RowsAbsent, held: dict[tuple[RemoteRun, int], Piece]) -> bool:
        """Hold what is here of it; whether that is everything."""
        is_whole = True
        for wanted in absent.wanted:
            run = wanted.run
            if run not in self._remote:  # it is here to stay
                continue
            for number in [0] if wanted.pieces is None else wanted.pieces:
                if (run, number) in held:
                    continue
                piece = run.held if wanted.pieces is None else run.piece(number)
                if piece is None:
                    is_whole = False
                else:
                    held[run, number] = piece
        return is_whole

    def _begin(
        self, absent: RowsAbsent, held: dict[tuple[RemoteRun, int], Piece]
    ) -> list[asyncio.Future[None]]:
        """What fetches what is not here: it is done when that is here, or cannot be had."""
        tasks: dict[asyncio.Future[None], None] = {}
        for wanted in absent.wanted:
            remote = self._remote.get(wanted.run)
            if remote is None or wanted.run.is_here:
                continue
            remote.asked_at = min(remote.asked_at, self._runtime.clock.monotonic())
            if wanted.pieces is None:
                tasks[self._load(remote)] = None
                continue
            missing = [n for n in wanted.pieces if (wanted.run, n) not in held]
            tasks |= dict.fromkeys(self._pieces.begin(remote, missing))
        return list(tasks)

    def _hold(self, piece: Piece) -> None:
        """Keep it for a while; what was fetched first is let go of first."""
        if piece not in self._held:
            self._held[piece] = None
            self._held_bytes += piece.size_bytes
        while self._held_bytes > HELD_BYTES and len(self._held) > 1:
            oldest, _ = self._held.popitem(last=False)
            self._held_bytes -= oldest.size_bytes

    # ---- whole segments ---------------------------------------------------------------------

    def _load(self, remote: Remote) -> asyncio.Task[None]:
        """The task that loads a segment: one at a time."""
        if remote.loading is None:
            name = f"{self._tablet_id[:8]}/segment {remote.run.segment_id}"
            remote.loading = self._tasks.spawn(self._load_any(remote), name)
        return remote.loading

    async def _load_any(self, remote: Remote) -> None:
        """Read the segment from one replica after the other, and keep it if there is room."""
        try:
            for uuid, address in remote.places(self._members, self._runtime.rng):
                try:
                    whole, handle = await self._load_from(remote, uuid, address)
                except DataLost:
                    remote.is_damaged_at(uuid, self._runtime.metrics)
                except StelaeError:
                    self._runtime.metrics.count("row_reads_failed")
                else:
                    remote.failures = 0
                    self._take(remote, whole, handle)
                    return
            remote.failures += 1
        finally:
            remote.loading = None

    async def _load_from(
        self, remote: Remote, uuid: ServerUuid, address: Address
    ) -> tuple[Piece, ObjectHandle | None]:
        run = remote.run
        source = SegmentSource(run.segment_id, True, run.size_bytes, ((uuid, address, ""),))
        async with self._intake.turns:
            found = await fetch_all(
                self._runtime,
                self._settings,
                self._tablet_id,
                source,
                (uuid, address),
                self._intake,
            )
        if found.image is None:
            raise CorruptData(found.where, 0, "rows where an image was to be")
        return run.take_image(found.image), found.handle

    def _take(self, remote: Remote, whole: Piece, handle: ObjectHandle | None) -> None:
        self._lacks_memory = not self._intake.has_room(remote.more_bytes)
        if self._lacks_memory:
            self._hold(whole)
            return
        self._intake.count(remote.more_bytes)
        del self._remote[remote.run]
        self._owner.arrived(remote.segment, whole, handle, tuple(remote.damaged))
        self._runtime.metrics.count("segments_loaded")
        if not self._remote:
            self._held.clear()
            self._held_bytes = 0
            if self._began is not None:
                self.loaded_s = self._runtime.clock.monotonic() - self._began
                self._runtime.metrics.observe("tablet_loaded_s", self.loaded_s)

    # ---- in the background ------------------------------------------------------------------

    async def run(self) -> None:
        """Load everything, until it is here."""
        self._began = self._runtime.clock.monotonic()
        await asyncio.gather(*(self._load_all() for _ in range(LOADERS)))
        self._intake.images.clear()

    async def _load_all(self) -> None:
        pause_s = PAUSE_S
        while self._remote:
            remote = self._next()
            self._lacks_memory = not self._intake.has_room(remote.more_bytes)
            if not self._lacks_memory:
                await self._load_in_turn(remote)
            if remote.run not in self._remote:
                pause_s = PAUSE_S
                continue
            await self._runtime.clock.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _next(self) -> Remote:
        """What was needed first, then in the order of the log; what could not be had comes last."""
        return min(
            self._remote.values(),
            key=lambda r: (r.turn is not None, r.failures, r.asked_at, r.run.segment_id),
        )

    async def _load_in_turn(self, remote: Remote) -> None:
        """Wait until a segment has had its turn to be loaded. Whoever waits for the same one shares
        the turn, or the rate would be spent on what is here by then."""
        if remote.turn is None:
            name = f"{self._tablet_id[:8]}/turn of segment {remote.run.segment_id}"
            remote.turn = self._tasks.spawn(self._turn(remote), name)
        await asyncio.wait([remote.turn])

    async def _turn(self, remote: Remote) -> None:
        try:
            async with self._intake.loads:
                if remote.run in self._remote:
                    rate = self._settings.load_bytes_per_s
                    await self._intake.pace(self._runtime.clock, remote.size_bytes, rate)
                if remote.run in self._remote:
                    await asyncio.wait([self._load(remote)])
        finally:
            remote.turn = None

    async def _image_of(self, run: RemoteRun) -> pa.Buffer | None:
        """The image, for a replica to be made of it; in its turn. None: it has arrived, or nobody
        has it now."""
        remote = self._remote.get(run)
        if remote is None:
            return None
        if run.held is None:
            await self._load_in_turn(remote)
        held = run.held
        return held.image if run in self._remote and held is not None else None

    def close(self) -> None:
        """Nothing is fetched any more; whoever waits is told."""
        self._is_closed = True
        self._pieces.close()
