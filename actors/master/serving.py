"""What a master's request handlers need of the master: the seam between them and its server.

The handlers read the catalog and what is known of servers; a change goes through the coordinator,
which only a master that leads has.
"""

from __future__ import annotations

from typing import Protocol

from stelae.actors.master.leader.coordinator import Coordinator
from stelae.actors.master.leader.timelines import TimelineKeeper
from stelae.actors.master.peers import MasterGroup
from stelae.coordinator.catalog.catalog import Catalog
from stelae.coordinator.liveness.liveness import Liveness
from stelae.coordinator.status.events import EventLog
from stelae.core.config.settings import Settings
from stelae.core.ids import ServerUuid
from stelae.core.records.records import ServerInfo
from stelae.core.runtime import Runtime


class ServingMaster(Protocol):
    """A master that answers requests, whether it leads or follows."""

    catalog: Catalog
    liveness: Liveness
    events: EventLog
    group: MasterGroup
    cluster: str
    settings: Settings
    is_encrypted: bool
    """Whether the cluster's connections have TLS."""

    @property
    def runtime(self) -> Runtime: ...

    @property
    def info(self) -> ServerInfo: ...

    @property
    def term(self) -> int:
        """The masters' Raft term, as far as this master knows; 0 before it has joined."""
        ...

    @property
    def leader_uuid(self) -> ServerUuid | None:
        """The leader, as far as this master knows."""
        ...

    @property
    def coordinator(self) -> Coordinator | None:
        """The coordinator, while this master leads; likewise `timelines`."""
        ...

    @property
    def timelines(self) -> TimelineKeeper | None: ...

    def keeps_up(self, uuid: ServerUuid) -> bool:
        """Whether another master's log has what is committed; asked of a leader."""
        ...

    def lead(self) -> Coordinator:
        """Return the coordinator. Raises NotLeader."""
        ...

    def lead_timelines(self) -> TimelineKeeper:
        """Return the keeper of timelines. Raises NotLeader."""
        ...

    async def view(self, timeout_s: float, max_staleness_s: float) -> Coordinator | None:
        """Return once this master may answer a read: the coordinator, if it leads.

        Raises NotLeader, Overloaded, DeadlineExpired, TooStale.
        """
        ...

    async def barrier(self, timeout_s: float) -> Coordinator:
        """Return the coordinator, after proof that this master led when the call came.

        Raises NotLeader, Overloaded, DeadlineExpired.
        """
        ...
