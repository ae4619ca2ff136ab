"""What a server says of its replicas in heartbeats: role, log, members, and how a leader sees them.

Source: seed Kudu tablet copy (consensus state in heartbeats, unresponsive followers); design §8.
"""

from __future__ import annotations

from collections.abc import Callable

from stelae.actors.raft.replica import Replica
from stelae.consensus.raft.ready import Role, Status
from stelae.core.ids import OpId, ServerUuid, TabletId
from stelae.core.messages.servers import (
    GroupReport,
    PeerHealth,
    ReplicaRole,
    TabletProgress,
    TabletReport,
)
from stelae.core.records.succession import SuccessionReport
from stelae.storage.replicated.state_machine import TabletStateMachine

NOBODY = ServerUuid("")
LOOK_S = 0.5


def report_of(
    replica: Replica,
    machine: TabletStateMachine,
    load_per_s: float = 0.0,
    succession: SuccessionReport | None = None,
) -> TabletReport:
    """Of a replica that takes part."""
    status, memory = replica.status(), machine.memory
    committed = replica.members
    group = GroupReport(
        role=_role(replica, status),
        last=status.last,
        commit_index=status.commit_index,
        leader=status.leader or ServerUuid(""),
        configuration=committed,
        is_changing=status.role is Role.LEADER and status.configuration != committed,
        peers=tuple(
            [PeerHealth(uuid, p.is_heard, p.match_index) for uuid, p in status.peers.items()]
        ),
        live_bytes=memory.live_bytes,
    )
    return TabletReport(
        tablet_id=machine.tablet_id,
        term=status.term,
        progress=TabletProgress.SERVING,
        row_count=memory.row_count,
        memory_bytes=memory.memory_bytes,
        segment_count=memory.segment_count,
        schema_version=machine.schemas.present.version if machine.is_founded else 0,
        renames=machine.schemas.table.renames if machine.is_founded else 0,
        group=group,
        load_per_s=load_per_s,
        succession=succession,
    )


class ReplicaReports:
    """The reports of one replica that takes part, made anew only where there is something new."""

    def __init__(
        self,
        replica: Replica,
        machine: TabletStateMachine,
        giving: Callable[[], SuccessionReport | None],
    ) -> None:
        self._replica = replica
        self._machine = machine
        self._giving = giving
        self._made_of: tuple[object, ...] = ()
        self._last: TabletReport | None = None
        self._seen: tuple[object, ...] = ()
        self._look_at_s = 0.0

    def report(self, load_per_s: float, now_s: float) -> TabletReport:
        """As it is now; the very same one as before, if nothing has changed.

        A follower at rest is looked at closely once in `LOOK_S`: without its log growing nothing
        of it changes but what it does with its memory.
        """
        core = self._replica.core
        log = core.log
        seen = core.term, core.leader_uuid, log.last_index, log.commit_index, log.applied_index
        if self._last is not None and seen == self._seen and now_s < self._look_at_s:
            return self._last
        self._seen = seen
        self._look_at_s = now_s + LOOK_S if core.role is Role.FOLLOWER else 0.0
        giving = self._giving()
        made_of = (load_per_s, giving, *self._state())
        if self._last is None or made_of != self._made_of:
            self._last = report_of(self._replica, self._machine, load_per_s, giving)
            self._made_of = made_of
        return self._last

    def _state(self) -> tuple[object, ...]:
        """Everything that a report is made from."""
        core, machine = self._replica.core, self._machine
        log, memory, schemas = core.log, machine.memory, machine.schemas
        peers = core.leader.progress if core.leader is not None else {}
        return (
            core.term,
            core.role,
            core.leader_uuid,
            log.last.index,
            log.commit_index,
            log.applied_index,
            log.configuration.op_id,
            memory.memory_bytes,
            memory.segment_count,
            machine.is_founded,
            schemas.present.version,
            schemas.table.renames,
            [(uuid, peer.match_index, peer.is_heard) for uuid, peer in peers.items()],
        )


def _role(replica: Replica, status: Status) -> ReplicaRole:
    if status.role is Role.FOLLOWER:
        return ReplicaRole.FOLLOWER
    ready = status.role is Role.LEADER and replica.leader_ready
    return ReplicaRole.LEADER if ready else ReplicaRole.CANDIDATE


def report_without_rows(
    tablet_id: TabletId,
    role: ReplicaRole,
    *,
    term: int = 0,
    last: OpId | None = None,
    problem: str = "",
    copied: tuple[int, int] = (0, 0),
    no_room: bool = False,
    tries_again: bool = False,
    source: ServerUuid = NOBODY,
) -> TabletReport:
    """Of one that is being opened or copied, of a tombstone, or of one that failed.

    ``copied``: bytes that are here, and bytes in all; ``source``: from whom. ``no_room``: it failed
    as the disk is full, and begins again; ``tries_again``: likewise, for something that may pass.
    """
    failed = role is ReplicaRole.FAILED
    return TabletReport(
        tablet_id=tablet_id,
        term=term,
        progress=TabletProgress.FAILED if failed else TabletProgress.OPENING,
        problem=problem,
        group=GroupReport(
            role=role,
            last=last or OpId(0, 0),
            copied_bytes=copied[0],
            copy_bytes=copied[1],
            no_room=no_room,
            copy_source=source,
            tries_again=tries_again,
        ),
    )
