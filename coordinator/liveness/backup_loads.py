"""What the leader passes on of backups to tservers, which place replicas: loads and copysets.

Made from what backups said last, and numbered by its content, so that it is sent only when it says
something new, and means the same from every master.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Container, Sequence

import msgspec

from stelae.core.ids import ServerUuid
from stelae.core.messages.backup_loads import BackupLoad, BackupsView, MediumLoad


class BackupLoads:
    """The newest word of each backup."""

    def __init__(self) -> None:
        self._media: dict[ServerUuid, tuple[MediumLoad, ...]] = {}
        self._view: BackupsView | None = None

    def note(self, backup: ServerUuid, media: tuple[MediumLoad, ...]) -> None:
        """It says so with a heartbeat."""
        if self._media.get(backup) != media:
            self._media[backup] = media
            self._view = None

    def have_room(
        self,
        media: Sequence[str],
        log_bytes: int,
        segment_bytes: int,
        retiring: Container[ServerUuid] = (),
    ) -> bool:
        """Whether there is room, beside reserves, for a log of that length on each of ``media``, on
        backups that stay."""
        staying = [told for uuid, told in self._media.items() if uuid not in retiring]
        loads = [load for told in staying for load in told if not load.is_low]
        return all(
            sum(load.free_segments for load in loads if load.medium == medium) * segment_bytes
            >= count * log_bytes
            for medium, count in Counter(media).items()
        )

    def view(
        self,
        copysets: tuple[tuple[ServerUuid, ...], ...],
        retiring: tuple[ServerUuid, ...] = (),
        needed: tuple[ServerUuid, ...] = (),
        shunned: tuple[ServerUuid, ...] = (),
    ) -> BackupsView:
        """All of it, with the catalog's groups, who is to be retired, who not before long, and who
        does not answer."""
        view = self._view
        new = (copysets, retiring, needed, shunned)
        if view is None or (view.copysets, view.retiring, view.needed, view.shunned) != new:
            loads = tuple(BackupLoad(u, self._media[u]) for u in sorted(self._media))
            view = self._view = _numbered(BackupsView(0, loads, *new))
        return view


def who_retires(retiring: tuple[ServerUuid, ...]) -> BackupsView:
    """Of all that only who is to be retired: for safekeepers, which heed no loads."""
    return _numbered(BackupsView(0, retiring=retiring))


def _numbered(view: BackupsView) -> BackupsView:
    said = (view.loads, view.copysets, view.retiring, view.needed, view.shunned)
    content = msgspec.msgpack.encode(said)
    digest = hashlib.blake2b(content, digest_size=7).digest()
    return msgspec.structs.replace(view, version=int.from_bytes(digest, "big") + 1)
