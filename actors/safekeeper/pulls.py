"""The receiving end of pulls: a timeline is copied from another safekeeper, and counts when whole.

What is done is idempotent: a pull that ended by its deadline, or with the source, is gone on with
by the next call. Invariants: bounded in number, one for each timeline; the configuration is adopted
before anything else, so that nothing of a lower one is acknowledged beside the pull; what is here
is replaced only by a log that is ahead (`stelae.actors.safekeeper.timeline_store.pull`). Neon RFC
035, steps 5 and 7; design §10.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from stelae.actors.safekeeper.timeline_store.pull import PullAttempt
from stelae.actors.safekeeper.timelines import SafekeeperTimelines
from stelae.core.config.settings import Settings
from stelae.core.errors import (
    CorruptData,
    InvalidArgument,
    OutcomeUnknown,
    Overloaded,
    StelaeError,
    TabletNotReady,
    Unavailable,
)
from stelae.core.ids import TabletId
from stelae.core.messages.safekeepers import (
    BEGIN_PULL,
    END_PULL,
    PULL_TIMELINE,
    READ_PULL,
    BeginPull,
    EndPull,
    PullPlan,
    PullTimelineFrom,
    ReadPull,
)
from stelae.core.records.timelines import SafekeeperPlace, SwitchReply, WalFile, check_configuration
from stelae.core.rpc import Call, Empty, Handlers, Reply
from stelae.core.runtime import Runtime
from stelae.core.tasks import all_or_first_error

PULLS_MAX = 4
SLOWEST_BYTES_PER_S = 4 << 20
"""A large piece has so much more time, or it would never arrive."""
LOST_PAUSE_S = 0.05
FILES_AT_ONCE = 8
ABANDONED_FACTOR = 20
"""What came of a pull is removed after so many idle times of its source: nobody goes on with it."""


class PullReceiver:
    """The pulls that this safekeeper makes."""

    def __init__(
        self, runtime: Runtime, settings: Settings, timelines: SafekeeperTimelines
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._timelines = timelines
        self._active: set[TabletId] = set()
        self._attempts: dict[TabletId, tuple[PullAttempt, float]] = {}
        """Those begun and not finished, and when they were last worked on."""

    def handlers(self) -> Handlers:
        return {PULL_TIMELINE: self._on_pull}

    async def _on_pull(self, call: Call[PullTimelineFrom]) -> Reply[SwitchReply]:
        tablet_id = call.body.timeline.tablet_id
        if tablet_id in self._active:
            raise TabletNotReady(tablet_id, "being pulled by an earlier call")
        if len(self._active) >= PULLS_MAX:
            raise Overloaded("pulls of timelines to this safekeeper", PULLS_MAX)
        self._active.add(tablet_id)
        try:
            # In this order: a TimeoutError is an OSError, and no fault of the disk.
            async with asyncio.timeout(call.timeout_s):
                with self._timelines.disk_errors(tablet_id):
                    return Reply(await self._pull(call.body, call.timeout_s))
        except TimeoutError:
            raise TabletNotReady(tablet_id, "still being pulled") from None
        finally:
            self._active.discard(tablet_id)

    async def _pull(self, order: PullTimelineFrom, timeout_s: float) -> SwitchReply:
        tablet_id, configuration = order.timeline.tablet_id, order.configuration
        check_configuration(configuration)
        store = self._timelines.store(tablet_id)
        if store.safekeeper not in configuration.members:
            raise InvalidArgument(f"{store.name} is no member of {configuration}")
        if self._timelines.find(tablet_id) is not None:
            reply = await self._timelines.switch(tablet_id, configuration, 0, timeout_s)
            if reply.position >= order.at_least:
                return reply
        await self._copy(order)
        if self._timelines.find(tablet_id) is None:
            raise TabletNotReady(tablet_id, "pulled, and deleted at once")
        reply = await self._timelines.switch(tablet_id, configuration, 0, timeout_s)
        if reply.position < order.at_least:
            has = f"{reply.position} of {order.at_least}, and {order.source} has no more yet"
            raise TabletNotReady(tablet_id, f"pulled, with {has}")
        return reply

    async def _copy(self, order: PullTimelineFrom) -> None:
        """Take over what the source has, unless what is here is as far ahead."""
        tablet_id, source = order.timeline.tablet_id, order.source
        store = self._timelines.store(tablet_id)
        begun = await self._runtime.peers.call(
            source.address,
            BEGIN_PULL,
            BeginPull(tablet_id, store.safekeeper),
            timeout_s=self._settings.call_timeout_s,
            destination=source.uuid,
        )
        plan = begun.body
        try:
            if plan.snapshot.tablet_id != tablet_id:
                raise InvalidArgument(f"{source} gives {plan.snapshot.tablet_id} for {tablet_id}")
            attempt = await store.pulls.begin(plan.snapshot, order.configuration)
            if attempt is not None:
                await self._fetch_all(attempt, plan, source)
                await store.pulls.finish(attempt)
                self._runtime.metrics.count("timelines_pulled")
            self._attempts.pop(tablet_id, None)
        finally:
            self._end(plan.session, source)

    async def _fetch_all(
        self, attempt: PullAttempt, plan: PullPlan, source: SafekeeperPlace
    ) -> None:
        """A few files at a time: a piece that is lost holds up its own file alone."""
        self._note(attempt)
        missing = iter(attempt.missing)

        async def fetch_some() -> None:
            for file, offset in missing:  # shared: each file is taken by one
                while not await self._fetch(attempt, plan.session, source, file, offset):
                    offset += min(self._settings.copy_piece_bytes, file.size_bytes - offset)
                    self._note(attempt)

        await all_or_first_error([fetch_some() for _ in range(FILES_AT_ONCE)])

    async def _fetch(
        self,
        attempt: PullAttempt,
        session: str,
        source: SafekeeperPlace,
        file: WalFile,
        offset: int,
    ) -> bool:
        """The next piece of a file, once it arrives; whether that is whole now."""
        while True:  # until the deadline of the pull
            try:
                return await self._fetch_once(attempt, session, source, file, offset)
            except (OutcomeUnknown, Unavailable):
                self._runtime.metrics.count("pull_pieces_lost")
                await self._runtime.clock.sleep(LOST_PAUSE_S)

    async def _fetch_once(
        self,
        attempt: PullAttempt,
        session: str,
        source: SafekeeperPlace,
        file: WalFile,
        offset: int,
    ) -> bool:
        size_bytes = min(self._settings.copy_piece_bytes, file.size_bytes - offset)
        reply = await self._runtime.peers.call(
            source.address,
            READ_PULL,
            ReadPull(session, file, offset, size_bytes),
            timeout_s=self._settings.call_timeout_s + size_bytes / SLOWEST_BYTES_PER_S,
            destination=source.uuid,
        )
        if len(reply.blobs) != 1 or memoryview(reply.blobs[0]).nbytes != size_bytes:
            raise CorruptData(f"{file.name} of safekeeper {source.safekeeper_id}", offset, "is cut")
        store = self._timelines.store(attempt.tablet_id)
        return await store.pulls.write(attempt, file, offset, reply.blobs[0])

    def _end(self, session: str, source: SafekeeperPlace) -> None:
        """Tell the source, if that can be told at once; it finds out by itself otherwise."""

        def ended(outcome: Reply[Empty] | StelaeError) -> None:
            if isinstance(outcome, StelaeError):
                self._runtime.metrics.count("pull_sessions_left")

        self._runtime.peers.post(
            source.address,
            END_PULL,
            EndPull(session),
            ended,
            timeout_s=self._settings.call_timeout_s,
            destination=source.uuid,
        )

    # ---- what nobody goes on with -----------------------------------------------------------

    def _note(self, attempt: PullAttempt) -> None:
        self._attempts[attempt.tablet_id] = (attempt, self._runtime.clock.monotonic())

    async def abandon_old(self) -> None:
        """Remove what came of pulls that nobody has gone on with for long. Raises OSError."""
        limit_s = ABANDONED_FACTOR * self._settings.copy_idle_s
        now = self._runtime.clock.monotonic()
        for tablet_id, (attempt, noted_s) in list(self._attempts.items()):
            if tablet_id in self._active or now - noted_s < limit_s:
                continue
            del self._attempts[tablet_id]
            with suppress(TabletNotReady):  # it was ended by others: nothing of it is left
                await self._timelines.store(tablet_id).pulls.abort(attempt)
            self._runtime.metrics.count("pulls_abandoned")
