"""All timelines of a safekeeper at work, and the calls about them.

Until the masters have given this safekeeper an id there is no store, and everything is refused.
Invariants: each call is idempotent; whatever is answered is durable; a timeline that fails says so
and stops, the others go on. Neon RFC 035, "Safekeeper changes" and "API"; design §10.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager

from stelae.actors.safekeeper.acceptor import ActiveTimeline, QueuedBytes
from stelae.actors.safekeeper.links import ProposerLinks
from stelae.actors.safekeeper.timeline_store.eviction import Offload
from stelae.actors.safekeeper.timeline_store.log import FILE_BYTES
from stelae.actors.safekeeper.timeline_store.store import TimelineStore
from stelae.consensus.wal.messages import (
    WAL_FETCH,
    WAL_STATUS,
    WAL_TO_ACCEPTOR,
    AcceptorReply,
    FetchedEntries,
    FetchEntries,
    ProposerMail,
    TimelineStatus,
    check_message,
    unpacked,
)
from stelae.consensus.wal.messages import TimelineStatusOf as WalStatusOf
from stelae.core.errors import (
    CorruptData,
    InvalidArgument,
    StelaeError,
    TabletNotFound,
    TabletNotReady,
    TabletTombstoned,
)
from stelae.core.ids import TabletId
from stelae.core.messages.safekeepers import (
    EXCLUDE_TIMELINE,
    LIST_MAX,
    LIST_TIMELINES,
    PING,
    PUT_CONFIGURATION,
    TIMELINE_STATUS,
    ConfigurationPut,
    ExcludeTimeline,
    HeldTimeline,
    ListTimelines,
    Ping,
    Pong,
    PutConfiguration,
    TimelineList,
    TimelinePresence,
    TimelineStatusOf,
)
from stelae.core.records.timelines import (
    SafekeeperId,
    SwitchReply,
    TimelineConfiguration,
    check_configuration,
)
from stelae.core.rpc import EMPTY, Call, Empty, Handlers, Reply, prompt
from stelae.core.runtime import Runtime
from stelae.core.tasks import Tasks

logger = logging.getLogger(__name__)

_NOTHING = Reply(AcceptorReply())


class SafekeeperTimelines:
    """The timelines of one safekeeper; `open` first, once it has its id."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: Tasks,
        name: str,
        *,
        blobs: Offload | None = None,
        file_bytes: int = FILE_BYTES,
    ) -> None:
        """``blobs`` is where evicted timelines go; ``file_bytes`` is of a file of a WAL."""
        self._runtime = runtime
        self._tasks = tasks
        self._name = name
        self._blobs = blobs
        self._file_bytes = file_bytes
        self._links = ProposerLinks(runtime, tasks)
        self._queued = QueuedBytes()
        self._store: TimelineStore | None = None
        self._active: dict[TabletId, ActiveTimeline] = {}
        self.failed = asyncio.Event()
        """Set with each timeline that fails."""

    async def open(self, safekeeper: SafekeeperId) -> None:
        """Read and check all timelines; those that are damaged, or below which the disk failed,
        stop alone. Raises OSError."""
        runtime = self._runtime
        store = TimelineStore(
            runtime.disk,
            self._tasks,
            safekeeper,
            offload=runtime.offload,
            blobs=self._blobs,
            file_bytes=self._file_bytes,
        )
        store.on_failed = self._on_failed
        loaded = await store.load_all()
        for tablet_id, error in loaded.failed.items():
            self._on_failed(tablet_id, error)
        self._store = store
        for tablet_id in list(store.timelines):
            try:
                self.active(tablet_id).begin()
            except StelaeError as error:
                # `_on_failed` has told people; here it only must not stop the others.
                runtime.metrics.count("timelines_not_begun", kind=type(error).__name__)

    async def close(self) -> None:
        """Let go of all files."""
        if self._store is not None:
            await self._store.close()

    def handlers(self) -> Handlers:
        return {
            WAL_TO_ACCEPTOR: self._on_mail,
            WAL_STATUS: self._on_wal_status,
            WAL_FETCH: self._on_fetch,
            PING: self._on_ping,
            PUT_CONFIGURATION: self._on_put_configuration,
            EXCLUDE_TIMELINE: self._on_exclude,
            TIMELINE_STATUS: self._on_status,
            LIST_TIMELINES: self._on_list,
        }

    # ---- what there is ----------------------------------------------------------------------

    @property
    def safekeeper_id(self) -> SafekeeperId | None:
        return self._store.safekeeper if self._store is not None else None

    @property
    def held(self) -> list[TabletId]:
        """The timelines that exist here, whole or not."""
        store = self._store
        return [] if store is None else sorted({*store.timelines, *store.failed})

    def store(self, tablet_id: TabletId) -> TimelineStore:
        """Raises TabletNotReady: the masters have not given this safekeeper its id yet."""
        if self._store is None:
            raise TabletNotReady(tablet_id, f"not kept by {self._name}, which has no id yet")
        return self._store

    def active(self, tablet_id: TabletId) -> ActiveTimeline:
        """Raises TabletNotReady (failed, or no id yet), TabletNotFound, TabletTombstoned,
        CorruptData."""
        store = self.store(tablet_id)
        try:
            store.timeline(tablet_id).check()
        except (TabletNotFound, TabletTombstoned):
            self._active.pop(tablet_id, None)
            raise
        found = self._active.get(tablet_id)
        if found is None:
            found = ActiveTimeline(self._runtime, store, self._links, self._queued, tablet_id)
            self._active[tablet_id] = found
        return found

    def find(self, tablet_id: TabletId) -> ActiveTimeline | None:
        """The same; None: it is not here (any more)."""
        try:
            return self.active(tablet_id)
        except (TabletNotFound, TabletTombstoned):
            return None

    def working(self, tablet_id: TabletId) -> ActiveTimeline | None:
        """The same; None also if it does nothing any more."""
        try:
            return self.active(tablet_id)
        except StelaeError:
            return None

    @contextmanager
    def disk_errors(self, tablet_id: TabletId) -> Iterator[None]:
        """What fails for the disk is told as what it means to the caller."""
        try:
            yield
        except OSError as error:
            raise TabletNotReady(tablet_id, f"failed on {self._name}: {error}") from error

    def _on_failed(self, tablet_id: TabletId, error: OSError | CorruptData) -> None:
        logger.error(
            "timeline %s on safekeeper %s does nothing any more: %s", tablet_id, self._name, error
        )
        self._runtime.metrics.count("timelines_failed")
        self.failed.set()

    # ---- proposers --------------------------------------------------------------------------

    @prompt
    async def _on_mail(self, call: Call[ProposerMail]) -> Reply[AcceptorReply]:
        mail = call.body
        active = self.active(mail.timeline_id)
        messages = unpacked(mail, call.blobs)
        for message in messages:
            check_message(message)
            if message.timeline_id != mail.timeline_id:
                raise InvalidArgument(f"mail of two timelines, one {message.timeline_id}")
            if message.safekeeper != self.safekeeper_id:
                raise InvalidArgument(
                    f"mail for safekeeper {message.safekeeper}; this one is {self.safekeeper_id}"
                )
        answers = active.receive(mail.address, messages, in_reply=mail.takes_replies)
        return _NOTHING if answers is None else Reply(AcceptorReply(await answers.wait()))

    async def _on_wal_status(self, call: Call[WalStatusOf]) -> Reply[TimelineStatus]:
        active = self.active(call.body.timeline_id)
        reply = await active.ask(lambda acceptor, n: acceptor.status(n), call.timeout_s)
        assert isinstance(reply, TimelineStatus)
        return Reply(reply)

    async def _on_fetch(self, call: Call[FetchEntries]) -> Reply[FetchedEntries]:
        return Reply(await self.active(call.body.timeline_id).fetch(call.body))

    # ---- the controller ---------------------------------------------------------------------

    async def _on_ping(self, call: Call[Ping]) -> Reply[Pong]:
        store = self._store
        if store is None or store.safekeeper != call.body.safekeeper_id:
            found = "none yet" if store is None else store.safekeeper
            raise InvalidArgument(
                f"{self._name} is not {call.body.safekeeper_id}: its id is {found}"
            )
        timelines = store.timelines.values()
        failed = sum(1 for timeline in timelines if timeline.failure is not None)
        evicted = sum(1 for timeline in timelines if timeline.is_evicted)
        return Reply(Pong(len(self.held), failed + len(store.failed), evicted))

    async def _on_put_configuration(self, call: Call[PutConfiguration]) -> Reply[ConfigurationPut]:
        order = call.body
        tablet_id, configuration = order.timeline.tablet_id, order.configuration
        check_configuration(configuration)
        if self.find(tablet_id) is None:
            store = self.store(tablet_id)
            if not order.create or store.control(tablet_id).tombstone is not None:
                return Reply(ConfigurationPut(None))
            if store.safekeeper not in configuration.members:
                raise InvalidArgument(f"{store.name} is no member of {configuration}")
            with self.disk_errors(tablet_id):
                await store.create(tablet_id, configuration)
        reply = await self.switch(tablet_id, configuration, order.min_term, call.timeout_s)
        return Reply(ConfigurationPut(reply))

    async def switch(
        self,
        tablet_id: TabletId,
        configuration: TimelineConfiguration,
        min_term: int,
        timeout_s: float,
    ) -> SwitchReply:
        """See `ActiveTimeline.switch`; also raises as `active` does."""
        return await self.active(tablet_id).switch(configuration, min_term, timeout_s)

    async def _on_exclude(self, call: Call[ExcludeTimeline]) -> Reply[Empty]:
        order = call.body
        configuration = None if order.forever else order.configuration
        await self.exclude(order.timeline.tablet_id, configuration)
        return EMPTY

    async def exclude(
        self, tablet_id: TabletId, configuration: TimelineConfiguration | None
    ) -> None:
        """Delete it, leaving a tombstone; None: for ever. See `TimelineStore.delete`."""
        with self.disk_errors(tablet_id):
            await self.store(tablet_id).delete(tablet_id, configuration)
        self._active.pop(tablet_id, None)

    # ---- what people and the scrub ask ------------------------------------------------------

    async def _on_status(self, call: Call[TimelineStatusOf]) -> Reply[HeldTimeline]:
        tablet_id = call.body.tablet_id
        store = self.store(tablet_id)
        if tablet_id not in store.failed:
            store.timeline(tablet_id)
        return Reply(self.describe(tablet_id))

    async def _on_list(self, call: Call[ListTimelines]) -> Reply[TimelineList]:
        limit = min(max(1, call.body.limit), LIST_MAX)
        held = self.held
        start = bisect_right(held, call.body.after)
        page = tuple(self.describe(tablet_id) for tablet_id in held[start : start + limit])
        return Reply(TimelineList(self.safekeeper_id, page, start + limit < len(held)))

    def describe(self, tablet_id: TabletId) -> HeldTimeline:
        """Of a timeline that is here, at this moment."""
        store = self.store(tablet_id)
        damaged = store.failed.get(tablet_id)
        if damaged is not None:
            return HeldTimeline(tablet_id, TimelinePresence.FAILED, problem=str(damaged))
        timeline = store.timelines[tablet_id]
        state, position, control = timeline.acceptor, timeline.position, timeline.control
        active = self._active.get(tablet_id)
        if control.evicted is not None:
            presence = TimelinePresence.EVICTED
            log_bytes = sum(each.file.size_bytes for each in control.evicted.files)
        else:
            presence = TimelinePresence.RESIDENT
            log_bytes = timeline.log_bytes
        if timeline.failure is not None:
            presence = TimelinePresence.FAILED
        return HeldTimeline(
            tablet_id,
            presence,
            state.configuration,
            state.term,
            position.last_log_term,
            position.flush_lsn,
            active.commit_lsn if active is not None else state.commit_lsn,
            state.horizon_lsn,
            timeline.base_lsn,
            log_bytes,
            str(timeline.failure or ""),
        )
