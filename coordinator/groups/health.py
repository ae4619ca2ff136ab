"""How each member of a tablet's group is: the one place that says who has failed. Pure.

Three things are known of a member: whether its server is heard by the masters, what the server says
of its replica, and whether the tablet's leader hears that replica. In this order:

- it says that it is damaged: broken;
- its server is not heard for ``dead_after_s``: failed. In maintenance it may stay away, unless it
  is back as another server: then its disk is gone;
- it says again and again for so long that its disk is full: failed. Before that it is waited for,
  as if it were away: it begins again by itself, once there is room;
- it says again and again that it tries to come back: waited for likewise, for `RETURN_GRACE_S`;
- it runs, and its leader does not hear it for so long: failed, as they cannot reach each other;
- anything else that is not well is waited for: its server lives, and it is being opened, or copied,
  or waits to be. But not for ever: after `STUCK_FACTOR` times as long without progress it has
  failed. Nobody knows why, but it may work elsewhere.

A leader says whom it hears, and no more: one that is being copied answers none of its appends,
however fast the rows come in. How long is too long is decided here alone; by itself a leader lets a
member go only when masters should have done it long ago (`Settings.abandon_member_s`).

Source: seed Kudu tablet copy (unresponsive followers are replaced); design §8.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stelae.coordinator.groups.group import TAKES_PART, Group, Replica
from stelae.coordinator.groups.healing import Health, Member
from stelae.coordinator.groups.spreading import Calm
from stelae.coordinator.liveness.liveness import Liveness
from stelae.core.config.settings import STUCK_FACTOR
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.messages.servers import ReplicaRole, TabletProgress
from stelae.core.records.records import ServerKind, ServerMark

RETURN_GRACE_S = 10.0
"""For which a replica that failed, and that its server begins again, is not replaced: a copy of all
its rows costs more than to wait for so long."""
BEGINNINGS_MAX = 3
"""Copies of one member that may begin anew, each with the whole time, before only more counts."""


@dataclass(slots=True)
class _Doubt:
    """A replica that is not well: how far it has come, and when that was last more."""

    since: float
    match_index: int
    copied_bytes: int
    most_bytes: int
    """Of all its copies so far."""
    runs: bool
    """It has its rows, and is merely not heard."""
    beginnings: int = 0


class Plea(enum.Enum):
    """Why a replica that has failed should be waited for, by its own word."""

    NO_ROOM = "no room"
    TRIES_AGAIN = "tries again"


class Unwell:
    """Replicas on live servers that are in doubt, and since when they have made no progress.

    Only in memory: under a new leader master they get as long again.
    """

    def __init__(self) -> None:
        self._doubts: dict[tuple[TabletId, ServerUuid], _Doubt] = {}
        self._asked: dict[tuple[TabletId, ServerUuid], _Doubt] = {}
        self._said: dict[tuple[TabletId, ServerUuid, Plea], tuple[float, float]] = {}
        self.calm = Calm()

    def for_s(
        self,
        tablet: TabletId,
        uuid: ServerUuid,
        now: float,
        *,
        runs: bool,
        match_index: int = 0,
        copied_bytes: int = 0,
    ) -> float:
        """For how long a replica has been in doubt without coming further.

        ``runs``: it has its rows, and its leader has to hear it now. A copy that begins anew has
        the whole time again, but not again and again: one that fails each time at the same place
        comes no further.
        """
        key = (tablet, uuid)
        doubt = self._doubts.get(key)
        if doubt is None:
            doubt = _Doubt(now, match_index, copied_bytes, copied_bytes, runs)
            self._doubts[key] = doubt
        self._asked[key] = doubt
        if copied_bytes < doubt.copied_bytes:
            doubt.beginnings += 1
            if doubt.beginnings <= BEGINNINGS_MAX:
                doubt.since, doubt.most_bytes = now, copied_bytes
        further = match_index > doubt.match_index or copied_bytes > doubt.most_bytes
        if further or runs != doubt.runs:
            doubt.since, doubt.runs = now, runs
        doubt.copied_bytes = copied_bytes
        doubt.match_index = max(doubt.match_index, match_index)
        doubt.most_bytes = max(doubt.most_bytes, copied_bytes)
        return now - doubt.since

    def pleads_for_s(
        self,
        tablet: TabletId,
        uuid: ServerUuid,
        plea: Plea,
        *,
        is_said: bool,
        now: float,
        forget_s: float,
    ) -> float:
        """For how long a replica has said again and again why it should be waited for.

        It begins anew every few seconds, and seems well until it fails again: only ``forget_s``
        without such a word is an end of it.
        """
        key = (tablet, uuid, plea)
        known = self._said.get(key)
        if known is not None and now > known[1] + forget_s:
            known = None
            del self._said[key]
        if is_said:
            known = self._said[key] = (known[0] if known is not None else now, now)
        return known[1] - known[0] if known is not None else 0.0

    def end_of_look(self, now: float, forget_s: float) -> None:
        """Whoever was not asked about since the last end is well, or gone."""
        self._doubts, self._asked = self._asked, {}
        self._said = {key: said for key, said in self._said.items() if now <= said[1] + forget_s}


def is_marked(mark: ServerMark) -> bool:
    """Whether a server is to get nothing new."""
    return mark.retiring or mark.maintenance


@dataclass(frozen=True, slots=True)
class Judge:
    """One look at members of groups, by what is known ``now``."""

    liveness: Liveness
    unwell: Unwell
    mark: Callable[[ServerUuid], ServerMark]
    """What operators want of a server."""
    now: float
    dead_after_s: float

    def members(
        self,
        group: Group,
        leader: Replica,
        leaves: ServerUuid | None,
        refused: Mapping[ServerUuid, float],
    ) -> list[Member]:
        """The members of the leader's committed configuration, and how each is.

        ``leaves``: whose replica is moved elsewhere. ``refused``: members to which the leadership
        was handed over in vain, and until when each is paused.
        """
        configuration = leader.group.configuration
        assert configuration is not None, "a leader knows its configuration"
        return [
            Member(
                peer.uuid,
                peer.voter,
                self._health(group, leader, peer.uuid),
                leaving=self.mark(peer.uuid).retiring or peer.uuid == leaves,
                may_lead=not self.mark(peer.uuid).maintenance,
                refused_until=refused.get(peer.uuid),
            )
            for peer in configuration.peers
        ]

    def _health(self, group: Group, leader: Replica, uuid: ServerUuid) -> Health:
        if uuid == leader.seen.server.uuid:
            return Health.HEALTHY
        own = group.replicas.get(uuid)
        if own is not None and own.group.role is ReplicaRole.FAILED and not own.comes_back:
            return Health.BROKEN
        seen = self.liveness.live_server(uuid, self.now)
        if seen is None:
            return self._of_silent(uuid)
        if self._pleads_too_long(group, own, uuid):
            return Health.FAILED
        tablet_id, limit_s = group.tablet.tablet_id, self.dead_after_s
        peer = next((peer for peer in leader.group.peers if peer.uuid == uuid), None)
        has_rows = own is not None and own.group.role in TAKES_PART
        if peer is not None and peer.is_heard and (has_rows or not seen.picture.is_exact):
            return Health.HEALTHY
        runs = own is not None and has_rows and own.report.progress is TabletProgress.SERVING
        doubt_s = self.unwell.for_s(
            tablet_id,
            uuid,
            self.now,
            runs=runs,
            match_index=0 if peer is None else peer.match_index,
            copied_bytes=0 if own is None else own.group.copied_bytes,
        )
        is_too_long = doubt_s >= (limit_s if runs else STUCK_FACTOR * limit_s)
        return Health.FAILED if is_too_long else Health.UNKNOWN

    def _pleads_too_long(self, group: Group, own: Replica | None, uuid: ServerUuid) -> bool:
        """Whether it should have come back by now, by all that it has said itself."""
        grace_s = min(RETURN_GRACE_S, self.dead_after_s)
        pleas = (
            (Plea.NO_ROOM, own is not None and own.is_full, self.dead_after_s),
            (Plea.TRIES_AGAIN, own is not None and own.tries_again, grace_s),
        )
        waited = [
            limit_s
            for plea, is_said, limit_s in pleas
            if self.unwell.pleads_for_s(
                group.tablet.tablet_id,
                uuid,
                plea,
                is_said=is_said,
                now=self.now,
                forget_s=self.dead_after_s,
            )
            >= limit_s
        ]
        return bool(waited)

    def _of_silent(self, uuid: ServerUuid) -> Health:
        """Of a member whose server is not live."""
        is_lost = self.liveness.silent_s(uuid, self.now) >= self.dead_after_s
        return Health.FAILED if is_lost and not self._is_awaited(uuid) else Health.UNKNOWN

    def _is_awaited(self, uuid: ServerUuid) -> bool:
        """In maintenance, and not back already as another server: then its disk is gone."""
        word = self.mark(uuid)
        if not word.maintenance:
            return False
        others = self.liveness.live(ServerKind.TSERVER, self.now)
        return all(seen.server.name != word.name for seen in others)
