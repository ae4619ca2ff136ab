"""Where evicted timelines go: blobs on backups, so many copies of each as the settings say.

Which backups a blob goes to first is drawn from its name, so that blobs spread over all of them,
and those of one timeline's safekeepers fall on different ones. Nobody remembers where a blob is:
all live backups are asked. Invariants: a blob counts as put once so many backups say that it is
durable; nobody waits for a deletion, as what it leaves is found by a census, since no control file
names it. Neon RFC 035, "Integration with evicted timelines"; rendezvous hashing (Thaler and
Ravishankar, 1998); design §10.
"""

from __future__ import annotations

from collections.abc import Iterable

from crc32c import crc32c

from stelae.actors.server.membership import Membership
from stelae.core.config.settings import Settings
from stelae.core.errors import CorruptData, NotEnoughServers, StelaeError, Unavailable
from stelae.core.messages.safekeepers import (
    DELETE_BLOBS,
    GET_BLOB,
    LIST_BLOBS,
    PUT_BLOB,
    DeleteBlobs,
    GetBlob,
    ListBlobs,
    PutBlob,
)
from stelae.core.records.records import ServerInfo
from stelae.core.records.timelines import SafekeeperId
from stelae.core.rpc import Blob, Empty, Reply
from stelae.core.runtime import Runtime

SLOWEST_BYTES_PER_S = 4 << 20
PAGES_MAX = 1000
GET_ROUNDS = 3
"""Backups that did not answer are asked so often: a timeline waits."""


class BackupOffload:
    """A `stelae.actors.safekeeper.timeline_store.eviction.Offload` on the live backups."""

    def __init__(self, runtime: Runtime, settings: Settings, members: Membership) -> None:
        self._runtime = runtime
        self._settings = settings
        self._members = members
        self.may_have_left = True
        """Whether backups may have blobs that were deleted, or were never counted."""

    @property
    def backup_count(self) -> int:
        """How many live ones may take blobs."""
        return len(self._members.staying_backups())

    def may_keep(self, backup: ServerInfo) -> bool:
        """Whether what is there counts: from one that is to be retired it has to go elsewhere."""
        return backup.uuid not in self._members.retiring

    def _backups(self, name: str) -> list[ServerInfo]:
        """All live ones, in the order in which they are to have that blob."""
        backups = self._members.all_backups()
        return sorted(backups, key=lambda info: crc32c(f"{info.uuid}/{name}".encode()))

    async def put(self, name: str, data: Blob, crc: int) -> None:
        """See `Offload`. Raises NotEnoughServers if too few backups took it."""
        copies, wanted = 0, self._settings.evict_copies
        extra_s = memoryview(data).nbytes / SLOWEST_BYTES_PER_S
        for backup in filter(self.may_keep, self._backups(name)):
            try:
                await self._runtime.peers.call(
                    backup.address,
                    PUT_BLOB,
                    PutBlob(name, crc),
                    timeout_s=self._settings.call_timeout_s + extra_s,
                    blobs=[data],
                    destination=backup.uuid,
                )
            except StelaeError:
                self._runtime.metrics.count("blobs_not_put", backup=backup.name)
                continue
            copies += 1
            if copies == wanted:
                return
        raise NotEnoughServers(f"the eviction of {name}", wanted, "backups that take it", copies)

    async def get(self, name: str) -> Blob:
        """See `Offload`. Raises Unavailable if none of the live backups gives it."""
        asked = self._backups(name)
        count = len(asked)
        damage: CorruptData | None = None
        problems: list[str] = []
        for _ in range(GET_ROUNDS):
            again: list[ServerInfo] = []
            problems.clear()
            for backup in asked:
                try:
                    found = await self._get_from(backup, name)
                except CorruptData as error:
                    damage = error
                except StelaeError as error:
                    again.append(backup)
                    problems.append(str(error))
                else:
                    if found is not None:
                        return found
            asked = again
        if damage is not None and not problems:
            raise damage
        said = "; ".join(problems) or f"none of {count} live backups has it"
        raise Unavailable(f"blob {name}", said)

    async def _get_from(self, backup: ServerInfo, name: str) -> Blob | None:
        reply = await self._runtime.peers.call(
            backup.address,
            GET_BLOB,
            GetBlob(name),
            timeout_s=2 * self._settings.call_timeout_s,
            destination=backup.uuid,
        )
        return reply.blobs[0] if reply.body.is_here and reply.blobs else None

    async def delete(self, name: str) -> None:
        """See `Offload`. All live backups are told, and not waited for."""
        self.may_have_left = True

        def ended(outcome: Reply[Empty] | StelaeError) -> None:
            if isinstance(outcome, StelaeError):
                self._runtime.metrics.count("blobs_not_deleted")

        for backup in self._backups(name):
            self._runtime.peers.post(
                backup.address,
                DELETE_BLOBS,
                DeleteBlobs((name,)),
                ended,
                timeout_s=self._settings.call_timeout_s,
                destination=backup.uuid,
            )

    async def delete_at(self, backup: ServerInfo, names: Iterable[str]) -> None:
        """Raises StelaeError."""
        await self._runtime.peers.call(
            backup.address,
            DELETE_BLOBS,
            DeleteBlobs(tuple(names)),
            timeout_s=self._settings.call_timeout_s,
            destination=backup.uuid,
        )

    async def census(self, safekeeper: SafekeeperId) -> dict[str, list[ServerInfo]]:
        """Every blob of this safekeeper, and the live backups that have it. Raises StelaeError: one
        of them does not say."""
        found: dict[str, list[ServerInfo]] = {}
        for backup in self._members.all_backups():
            after = ""
            for _ in range(PAGES_MAX):
                reply = await self._runtime.peers.call(
                    backup.address,
                    LIST_BLOBS,
                    ListBlobs(safekeeper, after),
                    timeout_s=self._settings.call_timeout_s,
                    destination=backup.uuid,
                )
                for name in reply.body.names:
                    found.setdefault(name, []).append(backup)
                if not reply.body.more:
                    break
                after = reply.body.names[-1]
        return found
