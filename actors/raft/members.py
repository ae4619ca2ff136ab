"""What a leader does by itself for its group's members: promote who has caught up, let go who never
will.

Level-triggered: a non-voter in the committed configuration *is* the intent to make it a voter, so
whichever leader comes next goes on with it. One that shows no progress for
``abandon_member_s`` is removed again, so that an addition which cannot finish does not stand in the
way of others. Design §8.
"""

from __future__ import annotations

from dataclasses import dataclass

from stelae.consensus.raft.leader import Leader
from stelae.consensus.raft.membership import ChangeKind, MemberChange
from stelae.consensus.raft.raft import Raft
from stelae.core.errors import TabletNotReady
from stelae.core.ids import OpId, ServerUuid


@dataclass(slots=True)
class _Seen:
    """How far a non-voter was, and since when."""

    reached: tuple[int, int]
    since_us: int


class MemberCare:
    """One replica's care for the non-voters of the group that it leads."""

    def __init__(self, abandon_member_us: int) -> None:
        """``abandon_member_us``: 0 waits for ever."""
        self._abandon_us = abandon_member_us
        self._seen: dict[ServerUuid, _Seen] = {}
        self._copied: dict[ServerUuid, int] = {}
        self._as_of: tuple[int, OpId] = 0, OpId(0, 0)
        """The term and the configuration that these are of."""

    def copy_advanced(self, uuid: ServerUuid, size_bytes: int) -> None:
        """The host has brought so much of its copy to that member."""
        self._copied[uuid] = size_bytes

    def change(self, core: Raft, now_us: int) -> bool:
        """Propose what is due. False: it was put off, and is looked at again with the next tick."""
        due = self.due(core, now_us)
        if due is not None:
            try:
                core.change_members(due)
            except TabletNotReady:  # too few would be reachable
                return False
        return True

    def due(self, core: Raft, now_us: int) -> MemberChange | None:
        """The change that is to be made now, if there is one and it may begin."""
        leader = core.leader
        if leader is None:
            return None
        if not core.configuration.non_voters:  # as nearly always
            self._seen.clear()
            self._copied.clear()
            return None
        if not leader.settled or leader.transfer_target is not None:
            return None
        committed = core.log.committed_configuration
        if committed.op_id != core.configuration.op_id:
            return None
        if self._as_of != (core.term, committed.op_id):
            # What another term's leader saw is not known here. And a member that was removed and
            # added again begins from nothing: with the clock of its former life it would be removed
            # at once, be added again by the masters, and so on without end.
            self._as_of = core.term, committed.op_id
            self._seen.clear()
        waiting = [peer.uuid for peer in committed.non_voters if peer.uuid != core.uuid]
        self._seen = {uuid: seen for uuid, seen in self._seen.items() if uuid in waiting}
        self._copied = {uuid: size for uuid, size in self._copied.items() if uuid in waiting}
        for uuid in waiting:
            if leader.has_caught_up(uuid):
                return MemberChange(ChangeKind.PROMOTE, uuid)
            if self._is_stuck(leader, uuid, now_us):
                return MemberChange(ChangeKind.REMOVE, uuid)
        return None

    def _is_stuck(self, leader: Leader, uuid: ServerUuid, now_us: int) -> bool:
        progress = leader.progress[uuid]
        copied = self._copied.get(uuid, progress.snapshot_offset)
        reached = (progress.match_index, copied)
        seen = self._seen.get(uuid)
        if seen is None or seen.reached != reached:
            self._seen[uuid] = _Seen(reached, now_us)
            return False
        return 0 < self._abandon_us <= now_us - seen.since_us
