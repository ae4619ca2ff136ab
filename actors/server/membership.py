"""What a server knows of the others: the live servers that the leader master lists."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from stelae.core.ids import ServerUuid
from stelae.core.messages.backup_loads import BackupsView, MediumLoad
from stelae.core.messages.servers import HeartbeatReply
from stelae.core.records.records import ServerInfo, ServerKind
from stelae.core.records.timelines import SafekeeperId

LOW_S = 2.0
"""Time for which a backup's own word counts that a medium is low: longer than its heartbeat takes
to come round by the masters."""


class Membership:
    """The newest list of live servers. A hint: every call is fenced by what the receiver knows."""

    def __init__(self) -> None:
        self._by_uuid: dict[ServerUuid, ServerInfo] = {}
        self._safekeepers: dict[SafekeeperId, ServerInfo] = {}
        self._changed = asyncio.Event()
        self.version = 0
        """Of the list, as the masters number them; 0: there is none yet."""
        self.backups_view = BackupsView(0)
        self._loads: dict[tuple[ServerUuid, str], MediumLoad] = {}
        self._low: dict[tuple[ServerUuid, str], asyncio.TimerHandle] = {}
        """Media of backups that have just said that they are low, until that is forgotten."""
        self._short: dict[tuple[str, ...], str] = {}
        """What `short_medium` has found, until anything differs: each write asks."""

    def heed(self, reply: HeartbeatReply) -> None:
        """Take the list that comes with a leader's reply, unless it is the one already here."""
        if reply.servers_version == 0 or reply.servers_version != self.version:
            self.update(reply.servers)
            self.version = reply.servers_version
        if reply.backups is not None:
            self.see_backups(reply.backups)

    def see_backups(self, view: BackupsView) -> None:
        """Take what the masters know of backups; wakes whoever waits for one with room."""
        self.backups_view = view
        self._loads = {(each.uuid, m.medium): m for each in view.loads for m in each.media}
        self._differs()

    @property
    def retiring(self) -> tuple[ServerUuid, ...]:
        """Servers that are to be retired; few."""
        return self.backups_view.retiring

    @property
    def shunned(self) -> tuple[ServerUuid, ...]:
        """Backups that do not answer those who place replicas; few."""
        return self.backups_view.shunned

    @property
    def leaving_backups(self) -> tuple[ServerUuid, ...]:
        """Live backups that are to be retired."""
        live = (self._by_uuid.get(uuid) for uuid in self.retiring)
        return tuple(s.uuid for s in live if s is not None and s.kind is ServerKind.BACKUP)

    def can_spare(self, media: tuple[str, ...]) -> bool:
        """Whether backups that stay are enough for a segment with replicas on ``media``, by the
        room they have: a full one is not chosen."""
        # Placement takes a retiring backup before a shunned one. If a shunned one counted here, the
        # head would leave the retiring backup, and its follower would be put there again.
        answering = [s for s in self.staying_backups() if s.uuid not in self.shunned]
        staying = [[m for m in s.media if self._has_room(s, m)] for s in answering]
        of_each = all(sum(m in roomy for roomy in staying) >= media.count(m) for m in {*media})
        return of_each and sum(not {*media}.isdisjoint(r) for r in staying) >= len(media)

    def _has_room(self, backup: ServerInfo, medium: str) -> bool:
        load = self.load_of(backup.uuid, medium)
        return load is None or load.free_segments > 0

    @property
    def copysets(self) -> tuple[tuple[ServerUuid, ...], ...]:
        """Groups in which the replicas of a segment best lie; empty: anywhere."""
        return self.backups_view.copysets

    def load_of(self, backup: ServerUuid, medium: str) -> MediumLoad | None:
        """What it said last of that medium; None: nothing yet."""
        return self._loads.get((backup, medium))

    def note_low(self, backup: ServerUuid, medium: str) -> None:
        """A backup says itself that it has its reserve left on a medium, and no more."""
        at = backup, medium
        if at in self._low:
            self._low[at].cancel()
        else:
            self._short.clear()
        self._low[at] = asyncio.get_running_loop().call_later(LOW_S, self._forget_low, at)

    def _forget_low(self, at: tuple[ServerUuid, str]) -> None:
        del self._low[at]
        self._short.clear()

    def update(self, servers: Iterable[ServerInfo]) -> None:
        """Take a list; wakes whoever waits if anything differs."""
        by_uuid = {server.uuid: server for server in servers}
        if by_uuid != self._by_uuid:
            self._by_uuid = by_uuid
            self._safekeepers = {
                server.safekeeper_id: server
                for server in by_uuid.values()
                if server.kind is ServerKind.SAFEKEEPER and server.safekeeper_id is not None
            }
            self._differs()

    def _differs(self) -> None:
        self._short.clear()
        self._changed.set()
        self._changed = asyncio.Event()

    def find(self, uuid: ServerUuid) -> ServerInfo | None:
        return self._by_uuid.get(uuid)

    def backups(self, medium: str) -> list[ServerInfo]:
        """Live backups that offer ``medium``, in order of their UUIDs."""
        found = [
            server
            for server in self._by_uuid.values()
            if server.kind is ServerKind.BACKUP and medium in server.media
        ]
        return sorted(found, key=lambda server: server.uuid)

    def short_medium(self, media: tuple[str, ...]) -> str:
        """A medium of which too few live backups have more than their reserve, for one more segment
        with replicas on ``media``; empty: none. Where too few live at all it is another matter."""
        found = self._short.get(media)
        if found is None:
            found = self._short[media] = next(filter(self._is_short(media), media), "")
        return found

    def _is_short(self, media: tuple[str, ...]) -> Callable[[str], bool]:
        def is_short(medium: str) -> bool:
            # One that is to be retired takes rows while it is needed, and is chosen last.
            gone = {*self.retiring}.difference(self.backups_view.needed)
            live = [each.uuid for each in self.backups(medium) if each.uuid not in gone]
            answering = [uuid for uuid in live if uuid not in self.shunned]
            count = media.count(medium)
            roomy = sum(self._takes_rows(uuid, medium) for uuid in answering)
            # Placement takes the reserve of others before a shunned backup, which so is room only
            # for the replicas that the others are too few for.
            shunned = sum(self._takes_rows(u, medium) for u in live if u in self.shunned)
            roomy += min(shunned, max(0, count - len(answering)))
            return roomy < count <= len(live)

        return is_short

    def _takes_rows(self, backup: ServerUuid, medium: str) -> bool:
        if (backup, medium) in self._low:
            return False
        load = self.load_of(backup, medium)
        return load is None or not (load.is_low or not load.free_segments)

    def staying_backups(self) -> list[ServerInfo]:
        """Live backups that are not to be retired, in order of their UUIDs."""
        return [each for each in self.all_backups() if each.uuid not in self.retiring]

    def all_backups(self) -> list[ServerInfo]:
        """Live backups, in order of their UUIDs."""
        found = [server for server in self._by_uuid.values() if server.kind is ServerKind.BACKUP]
        return sorted(found, key=lambda server: server.uuid)

    def safekeeper(self, safekeeper_id: SafekeeperId) -> ServerInfo | None:
        """The live safekeeper that configurations call so."""
        return self._safekeepers.get(safekeeper_id)

    async def wait_change(self) -> None:
        """Wait until the list differs from what it is now."""
        await self._changed.wait()
