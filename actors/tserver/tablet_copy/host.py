"""What tablet copies need of the server they run on: the seam to its replicated tablets."""

from __future__ import annotations

from typing import Protocol

from stelae.actors.raft.replica import Replica
from stelae.core.ids import OpId, TabletId
from stelae.core.messages.replicas import DataState


class CopiedTablet(Protocol):
    """A tablet whose replica runs; another object after each start."""

    @property
    def replica(self) -> Replica: ...


class CopyHost(Protocol):
    """All replicated tablets of one server.

    From `stop_for_copy` on until `settle` or `start_copied` has returned, leaders are
    answered `TabletNotReady`, never `TabletNotHere`.
    """

    def tablet(self, tablet_id: TabletId) -> CopiedTablet | None:
        """The tablet, if its replica runs."""
        ...

    def data_state(self, tablet_id: TabletId) -> DataState: ...

    def last_op_id(self, tablet_id: TabletId) -> OpId | None:
        """The end of its log, or what its tombstone kept; None if that is not known."""
        ...

    def term(self, tablet_id: TabletId) -> int:
        """The highest that its replica or tombstone has seen; 0 if there is none."""
        ...

    async def stop_for_copy(self, tablet_id: TabletId) -> None:
        """Stop the replica and close its log; its files stay. Once begun, it ends in this way."""
        ...

    async def settle(self, tablet_id: TabletId) -> None:
        """Let vote what is deleted or being copied; if it does so, or is neither: nothing."""
        ...

    async def start_copied(self, tablet_id: TabletId) -> None:
        """The disk has the tablet: stop its tombstone, if there is one, and start the replica."""
        ...

    def disk_failed(self, tablet_id: TabletId, error: OSError) -> None:
        """While the tablet was changed: only the next start will know what the disk has of it."""
        ...
