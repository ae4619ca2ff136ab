"""What the leader master's drivers of migrations act on: safekeepers, the store, and the catalog.

Implements seed 004 ("storage_controller <-> control plane interface": here both are the masters,
so that ``/notify-safekeepers`` is an entry of their log); design §10.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from stelae.actors.master.leader.safekeeper_ports import SafekeeperPorts
from stelae.core.records.configurations import ConfigurationStore, TimelineRecord

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
