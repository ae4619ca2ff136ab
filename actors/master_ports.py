"""What the leader master's drivers of migrations act on: safekeepers, the store, and the catalog.

Implements seed 004 ("storage_controller <-> control plane interface": here both are the masters,
so that ``/notify-safekeepers`` is an entry of their log); design §10.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from stelae.core.configurations import ConfigurationStore, TimelineId, TimelineRecord
from stelae.core.timelines import LogPosition, SafekeeperId, SwitchReply, TimelineConfiguration

Notify = Callable[[TimelineRecord], Awaitable[object]]


class SafekeeperCalls(Protocol):
    """The part of `MigrationPorts` that safekeepers answer."""

    async def ping(self, safekeeper: SafekeeperId, *, timeout_s: float) -> None: ...

    async def put_configuration(
        self,
        safekeeper: SafekeeperId,
        timeline: TimelineId,
        configuration: TimelineConfiguration,
        *,
        min_term: int,
        create: bool,
        timeout_s: float,
    ) -> SwitchReply | None: ...

    async def pull_timeline(
        self,
        safekeeper: SafekeeperId,
        source: SafekeeperId,
        timeline: TimelineId,
        configuration: TimelineConfiguration,
        *,
        at_least: LogPosition,
        timeout_s: float,
    ) -> SwitchReply: ...

    async def exclude(
        self,
        safekeeper: SafekeeperId,
        timeline: TimelineId,
        configuration: TimelineConfiguration,
        *,
        forever: bool,
        timeout_s: float,
    ) -> None: ...


class MasterPorts:
    """See `stelae.actors.migration_runner.MigrationPorts`."""

    def __init__(
        self, safekeepers: SafekeeperCalls, store: ConfigurationStore, notify: Notify
    ) -> None:
        """``notify`` replicates what the catalog is told; raises StelaeError."""
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
