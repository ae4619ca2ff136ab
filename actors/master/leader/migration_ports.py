"""What the leader master's drivers of migrations act on: safekeepers, the store, and the catalog.

Implements seed 004 ("storage_controller <-> control plane interface": here both are the masters,
so that ``/notify-safekeepers`` is an entry of their log); design §10.

Where a safekeeper is, a function says, which knows the live servers. Each call to one names the
server by its UUID, so that whoever has taken over its address refuses it. Neon RFC 035.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from stelae.core.errors import InvalidArgument, Unavailable
from stelae.core.ids import Address, ServerUuid, TabletId
from stelae.core.messages.safekeepers import (
    EXCLUDE_TIMELINE,
    LIST_MAX,
    LIST_TIMELINES,
    PING,
    PULL_TIMELINE,
    PUT_CONFIGURATION,
    TIMELINE_STATUS,
    ExcludeTimeline,
    HeldTimeline,
    ListTimelines,
    Ping,
    Pong,
    PullTimelineFrom,
    PutConfiguration,
    TimelineStatusOf,
)
from stelae.core.records.configurations import ConfigurationStore, TimelineId, TimelineRecord
from stelae.core.records.timelines import (
    LogPosition,
    SafekeeperId,
    SafekeeperPlace,
    SwitchReply,
    TimelineConfiguration,
)
from stelae.core.rpc import Method, Q, R
from stelae.core.runtime import Runtime

Notify = Callable[[TimelineRecord], Awaitable[object]]


class MasterPorts:
    """See `stelae.actors.master.leader.migration_runner.MigrationPorts`."""

    def __init__(
        self, safekeepers: SafekeeperPorts, store: ConfigurationStore, notify: Notify
    ) -> None:
        """``notify`` replicates what the catalog is told; raises StelaeError."""
        self.safekeepers = safekeepers
        self.store = store
        self._notify = notify
        self.ping = safekeepers.ping
        self.put_configuration = safekeepers.put_configuration
        self.pull_timeline = safekeepers.pull_timeline
        self.exclude = safekeepers.exclude

    async def notify(self, record: TimelineRecord, *, timeout_s: float) -> None:
        """Its entry has the deadline of all entries."""
        del timeout_s
        await self._notify(record)


Find = Callable[[SafekeeperId], tuple[ServerUuid, Address] | None]
"""Which server a safekeeper is, and where; None: it is not known, or does not live."""
PAGES_MAX = 10_000


class SafekeeperPorts:
    """Calls of safekeepers. All end by ``timeout_s``; they raise Unavailable for one that nobody
    can find, and what the calls raise (`stelae.core.messages.safekeepers`)."""

    def __init__(self, runtime: Runtime, find: Find) -> None:
        self._runtime = runtime
        self._find = find

    async def ping(self, safekeeper: SafekeeperId, *, timeout_s: float) -> None:
        """Raises StelaeError unless it answers, under that id."""
        await self._call(safekeeper, PING, Ping(safekeeper), timeout_s)

    async def look(self, safekeeper: SafekeeperId, *, timeout_s: float) -> Pong:
        """How its timelines are. Raises as `ping` does."""
        return await self._call(safekeeper, PING, Ping(safekeeper), timeout_s)

    async def put_configuration(
        self,
        safekeeper: SafekeeperId,
        timeline: TimelineId,
        configuration: TimelineConfiguration,
        *,
        min_term: int,
        create: bool,
        timeout_s: float,
    ) -> SwitchReply | None:
        """See `MigrationPorts`."""
        order = PutConfiguration(timeline, configuration, min_term, create)
        return (await self._call(safekeeper, PUT_CONFIGURATION, order, timeout_s)).reply

    async def pull_timeline(
        self,
        safekeeper: SafekeeperId,
        source: SafekeeperId,
        timeline: TimelineId,
        configuration: TimelineConfiguration,
        *,
        at_least: LogPosition,
        timeout_s: float,
    ) -> SwitchReply:
        """See `MigrationPorts`."""
        uuid, address = self._place(source)
        place = SafekeeperPlace(source, uuid, address)
        order = PullTimelineFrom(timeline, configuration, place, at_least)
        return await self._call(safekeeper, PULL_TIMELINE, order, timeout_s)

    async def exclude(
        self,
        safekeeper: SafekeeperId,
        timeline: TimelineId,
        configuration: TimelineConfiguration,
        *,
        forever: bool,
        timeout_s: float,
    ) -> None:
        """See `MigrationPorts`."""
        order = ExcludeTimeline(timeline, configuration, forever)
        await self._call(safekeeper, EXCLUDE_TIMELINE, order, timeout_s)

    async def timeline_status(
        self, safekeeper: SafekeeperId, tablet_id: TabletId, *, timeout_s: float
    ) -> HeldTimeline:
        """What it has of a timeline. Raises TabletNotFound, TabletTombstoned."""
        return await self._call(safekeeper, TIMELINE_STATUS, TimelineStatusOf(tablet_id), timeout_s)

    async def timelines(
        self, safekeeper: SafekeeperId, *, timeout_s: float
    ) -> AsyncIterator[HeldTimeline]:
        """All that it has, page by page, each with that deadline."""
        after = TabletId("")
        for _ in range(PAGES_MAX):
            order = ListTimelines(after, LIST_MAX)
            page = await self._call(safekeeper, LIST_TIMELINES, order, timeout_s)
            if page.safekeeper_id != safekeeper:
                raise InvalidArgument(f"safekeeper {page.safekeeper_id} answers for {safekeeper}")
            for held in page.timelines:
                yield held
            if not page.more:
                return
            after = page.timelines[-1].tablet_id

    def _place(self, safekeeper: SafekeeperId) -> tuple[ServerUuid, Address]:
        found = self._find(safekeeper)
        if found is None:
            raise Unavailable(f"safekeeper {safekeeper}", "it is not among the live servers")
        return found

    async def _call(
        self, safekeeper: SafekeeperId, method: Method[Q, R], request: Q, timeout_s: float
    ) -> R:
        uuid, address = self._place(safekeeper)
        reply = await self._runtime.peers.call(
            address, method, request, timeout_s=timeout_s, destination=uuid
        )
        return reply.body
