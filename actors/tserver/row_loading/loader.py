"""Bringing the rows of a recovered tablet back while it is served: phase 2 of a recovery.

Whoever needs rows that are not here has them fetched from a backup, with their neighbours or with
their whole segment, and waits; meanwhile all segments are loaded one after the other, those first
that somebody waits for, then in the order of the log, at a bounded rate. Each comes from any of
its replicas. One that is damaged is passed over, and replaced once another one was read. A segment
that nobody can serve is tried again for as long as it takes: who reads rows of it waits until the
call's deadline, and is told; all else goes on. Segments for which there is no memory stay remote.
What a part of a split tablet inherits is fetched for
`stelae.actors.tserver.owned_tablet.inheriting`, and for readers until that is done; it never stays.

Invariant: what was fetched is shown only after it was checked (`stelae.storage.segments.remote`).
Source: seed RAMCloud master recovery, phase 2; design §9.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Protocol, TypeAlias

import pyarrow as pa

from stelae.actors.server.membership import Membership
from stelae.actors.tserver.row_loading.near_rows import TURN_BYTES, NearRows
from stelae.actors.tserver.row_loading.picked_rows import fetch_picked
from stelae.actors.tserver.row_loading.pieces import Remote, RowPieces
from stelae.actors.tserver.row_loading.remote_columns import RemoteColumns
from stelae.actors.tserver.row_loading.single_rows import SingleRows
from stelae.actors.tserver.segments.replica import RemoteImage
from stelae.actors.tserver.tablet_log.interface import FoundSegment
from stelae.actors.tserver.tablet_log.recovery import Intake, fetch_all
from stelae.core.backoff import Backoff
from stelae.core.config.settings import Settings
from stelae.core.errors import CorruptData, DataLost, StelaeError, TabletNotHere, TabletNotReady
from stelae.core.ids import Address, ServerUuid, TabletId
from stelae.core.messages.servers import SegmentSource
from stelae.core.runtime import ObjectHandle, Runtime
from stelae.core.tasks import Tasks
from stelae.recovery.plan import names_of
from stelae.storage.segments.remote import Piece, RemoteRun, RemoteSegment, RowsAbsent, Wanted

HELD_BYTES = 32 << 20
"""Of rows that were fetched and are not to stay: they serve for a while yet."""
LOADERS = 3
"""Of one tablet: some read while others' rows are put into shared memory."""
PAUSE_S = 0.1
LONGEST_PAUSE_S = 1.0
ANSWER_SHARE = 0.9
"""Of a call's time that is spent waiting for rows: the rest is for saying that there are none."""


Held: TypeAlias = dict[tuple[RemoteRun, int], Piece]
"""Pieces by their numbers; all of a segment as its first one."""


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
        self._near = NearRows(runtime)
        self._columns = RemoteColumns(runtime, settings, members, intake, tablet_id)
        self._pieces = RowPieces(
            runtime, settings, members, tasks, tablet_id, self._near, self._hold
        )
        self._single = SingleRows(runtime, members, tablet_id, self._near, self._pieces, self._hold)
        self.total_bytes = 0
        """Of all segments that were remote at first."""
        self.loaded_s = 0.0
        """From the hand-over until all rows were here; 0: they are not yet, or always were."""
        self.load_bytes_per_s = settings.load_bytes_per_s  # of rows that nobody waits for
        self._began: float | None = None
        self.lacks_memory = False  # those that come next do not fit here
        self._is_closed = False

    def add(self, segment: RemoteSegment, found: FoundSegment) -> RemoteImage:
        """These rows are to be brought back. Returns what gives the image to whoever makes a
        replica of it."""
        self._remote[segment.remote] = Remote(
            segment, found, {uuid: None for uuid in found.damaged}
        )
        segment.remote.cut(self._settings.row_piece_bytes)
        self.total_bytes += segment.remote.wanted_bytes
        run = segment.remote
        return RemoteImage(run.size_bytes, partial(self._image_of, run))

    # ---- how it goes ------------------------------------------------------------------------

    @property
    def is_loading(self) -> bool:
        """Whether rows are elsewhere yet: nothing is cleaned, and nothing changes hands."""
        return bool(self._remote)

    @property
    def is_closed(self) -> bool:
        """Whether nothing is fetched any more."""
        return self._is_closed

    @property
    def left_bytes(self) -> int:
        """Of segments that are still remote."""
        return sum([remote.size_bytes for remote in self._remote.values()])

    @property
    def held_bytes(self) -> int:
        return self._held_bytes + self._near.held_bytes

    @property
    def left(self) -> list[Remote]:
        """Segments that are still remote."""
        return list(self._remote.values())

    @property
    def waits_for(self) -> str:
        """What keeps rows from being loaded; empty: nothing."""
        if stuck := [r.run.segment_id for r in self._remote.values() if r.is_stuck]:
            return f"waits for a readable replica of {names_of(stuck)}; see `stelae recover`"
        if self.lacks_memory:
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
        single = await self._single.bring(self._remote, absent, deadline - started)
        if single is not None:
            return single
        held: Held = {}
        backoff = self._backoff()
        while not self._collect(absent, held):
            if self._is_closed:
                raise TabletNotHere(self._tablet_id, "this server any more")
            count = len(held)
            work, later = self._begin(absent, held)
            left_s = deadline - clock.monotonic()
            if left_s <= 0.0:
                raise self._not_ready(absent)
            if later:
                await self._take_later(later, held, deadline)
                continue
            if work:
                await asyncio.wait(work, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            is_whole = self._collect(absent, held)
            if not is_whole and len(held) == count:  # nothing came
                await backoff.pause(clock, deadline)
        self._runtime.metrics.observe("rows_fetched_s", clock.monotonic() - started)
        return list(held.values())

    def _backoff(self) -> Backoff:
        return Backoff(self._runtime.rng, PAUSE_S, LONGEST_PAUSE_S)

    def _not_ready(self, absent: RowsAbsent) -> TabletNotReady:
        names = names_of({wanted.run.segment_id for wanted in absent.wanted})
        return TabletNotReady(self._tablet_id, f"waiting for rows of {names}, which no backup has")

    def _collect(self, absent: RowsAbsent, held: Held) -> bool:
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
        self, absent: RowsAbsent, held: Held
    ) -> tuple[list[asyncio.Future[None]], list[tuple[Remote, list[int]]]]:
        """What fetches what is not here: it is done when that is here, or cannot be had. And what
        is to be read from here in turns of the loop to come."""
        tasks: dict[asyncio.Future[None], None] = {}
        later: list[tuple[Remote, list[int]]] = []
        left_bytes = TURN_BYTES
        for wanted in absent.wanted:
            remote = self._remote.get(wanted.run)
            if remote is None or wanted.run.is_here:
                continue
            remote.asked_at = min(remote.asked_at, self._runtime.clock.monotonic())
            if wanted.pieces is None:
                tasks[self._load(remote)] = None
                continue
            missing = [n for n in wanted.pieces if (wanted.run, n) not in held]
            if left_bytes <= 0 and self._near.knows(wanted.run):
                later.append((remote, missing))
                continue
            taken = self._near.take(wanted.run, missing, left_bytes)
            left_bytes -= taken.read_bytes
            held |= {(wanted.run, number): piece for number, piece in taken.pieces.items()}
            if taken.later:
                later.append((remote, taken.later))
            tasks |= dict.fromkeys(self._pieces.begin(remote, taken.far))
        return list(tasks), later

    async def _take_later(
        self, later: list[tuple[Remote, list[int]]], held: Held, deadline: float
    ) -> None:
        """Read pieces from here, some in each turn of the loop."""

        def has_time() -> bool:
            return not self._is_closed and self._runtime.clock.monotonic() < deadline

        for remote, numbers in later:
            async for number, piece in self._near.take_in_turns(remote.run, numbers, has_time):
                held[remote.run, number] = piece

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
        if run.picks is not None:
            at = uuid, address
            return await fetch_picked(
                self._runtime, self._settings, self._tablet_id, remote, at, self._intake
            ), None
        source = SegmentSource(
            run.segment_id,
            True,
            run.size_bytes,
            ((uuid, address, ""),),
            log=remote.found.log or TabletId(""),
        )
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
        if remote.run.picks is not None:
            self._hold(whole)
            return
        self.lacks_memory = not self._intake.has_room(remote.more_bytes)
        if self.lacks_memory:
            self._hold(whole)
            return
        self._intake.count(remote.more_bytes)
        del self._remote[remote.run]
        self._near.drop(remote.run)
        # A damaged replica in another log is not this tablet's to replace.
        damaged = () if remote.found.log else tuple(remote.damaged)
        self._owner.arrived(remote.segment, whole, handle, damaged)
        self._runtime.metrics.count("segments_loaded")
        self._look_whether_all()

    def _look_whether_all(self) -> None:
        """Whether nothing is elsewhere any more."""
        if not self._remote:
            self._held.clear()
            self._held_bytes = 0
            self._near.clear()
            self._columns.clear()
            if self._began is not None:
                self.loaded_s = self._runtime.clock.monotonic() - self._began
                self._runtime.metrics.observe("tablet_loaded_s", self.loaded_s)

    # ---- some columns, for indexes ----------------------------------------------------------

    async def columns(
        self, run: RemoteRun, column_ids: tuple[int, ...], timeout_s: float
    ) -> pa.RecordBatch:
        """Some columns of all rows of a segment, which need not be here, nor stay.

        Raises TabletNotReady: not by the deadline.
        """
        clock = self._runtime.clock
        deadline, backoff = clock.monotonic() + timeout_s * ANSWER_SHARE, self._backoff()
        while (whole := run.whole) is None:
            if self._is_closed:
                raise TabletNotHere(self._tablet_id, "this server any more")
            left_s = deadline - clock.monotonic()
            if left_s <= 0.0:
                raise self._not_ready(RowsAbsent([Wanted(run, None)]))
            remote = self._remote[run]
            # Look-ups wait: what nobody has asked for comes later, unless this takes long.
            with nullcontext() if remote.failures else self._intake.opening():
                found = await self._columns.read(remote, column_ids, left_s)
            if found is not None:
                return found
            await backoff.pause(clock, deadline)
        return run.columns_of(whole, column_ids)

    # ---- in the background ------------------------------------------------------------------

    async def run(self) -> None:
        """Load everything, until it is here."""
        self._began = self._runtime.clock.monotonic()
        with self._intake.loading():
            await asyncio.gather(*(self._load_all() for _ in range(LOADERS)))

    async def _load_all(self) -> None:
        backoff = self._backoff()
        while (remote := self._next()) is not None:
            self.lacks_memory = not self._intake.has_room(remote.more_bytes)
            if not self.lacks_memory:
                await self._load_in_turn(remote)
            if remote.run not in self._remote:
                backoff.reset()
                continue
            await backoff.pause(self._runtime.clock)

    def _next(self) -> Remote | None:
        """What was needed first, then in the order of the log; what could not be had comes last.
        What is inherited has its own order."""
        return min(
            [remote for remote in self._remote.values() if remote.run.picks is None],
            key=lambda r: (r.turn is not None, r.failures, r.asked_at, r.run.segment_id),
            default=None,
        )

    async def _load_in_turn(self, remote: Remote) -> None:
        """Wait until a segment has had its turn to be loaded. Whoever waits for the same one shares
        the turn, or the rate would be spent on what is here by then."""
        await asyncio.wait([self._begin_turn(remote)])

    def _begin_turn(self, remote: Remote) -> asyncio.Task[None]:
        if remote.turn is None:
            name = f"{self._tablet_id[:8]}/turn of segment {remote.run.segment_id}"
            remote.turn = self._tasks.spawn(self._turn(remote), name)
        return remote.turn

    async def _turn(self, remote: Remote) -> None:
        try:
            async with self._intake.loads:
                if remote.run in self._remote:
                    rate = self.load_bytes_per_s
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

    # ---- what is inherited --------------------------------------------------------------------

    async def wait_room(self, more_bytes: int) -> None:
        """Until there is memory for so much more."""
        backoff = self._backoff()
        while more_bytes > 0 and not self._intake.has_room(more_bytes):
            self.lacks_memory = True
            await backoff.pause(self._runtime.clock)
        self.lacks_memory = False
        self._intake.count(max(0, more_bytes))

    def fetch_soon(self, segments: Sequence[RemoteSegment]) -> None:
        """Their picked rows are wanted next: fetch them, in their turn, for a while."""
        for segment in segments:
            remote = self._remote[segment.remote]
            if remote.run.held is None and self._intake.has_room(remote.size_bytes):
                self._begin_turn(remote)

    async def hold_picked(self, segments: Sequence[RemoteSegment]) -> dict[RemoteRun, Piece]:
        """Fetch the picked rows of these, in their turn, however long it takes."""
        runs = [segment.remote for segment in segments]
        held = await asyncio.gather(*(self._hold_picked(self._remote[run]) for run in runs))
        return dict(zip(runs, held, strict=True))

    async def _hold_picked(self, remote: Remote) -> Piece:
        backoff = self._backoff()
        while (held := remote.run.held) is None:
            if self._is_closed:
                raise TabletNotHere(self._tablet_id, "this server any more")
            await self._load_in_turn(remote)
            if remote.run.held is None:
                await backoff.pause(self._runtime.clock)
        return held

    def moved(self, held: Mapping[RemoteRun, Piece]) -> None:
        """Their rows are in other segments from now on. Who began to read before that has them as
        they were."""
        for run, piece in held.items():
            del self._remote[run]
            self._near.drop(run)
            run.keep(piece)
        self._look_whether_all()

    def close(self) -> None:
        """Nothing is fetched any more; whoever waits is told."""
        self._is_closed = True
        self._single.close()
        self._pieces.close()
        self._near.close()
        self._columns.close()
