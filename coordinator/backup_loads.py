"""What the leader passes on of backups to tservers, which place replicas: loads and copysets.

Made from what backups said last, and numbered by its content, so that it is sent only when it says
something new, and means the same from every master.
"""

from __future__ import annotations

import hashlib

import msgspec

from stelae.core.backup_views import BackupLoad, BackupsView, MediumLoad
from stelae.core.ids import ServerUuid


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

    def view(self, copysets: tuple[tuple[ServerUuid, ...], ...]) -> BackupsView:
        """All of it, with the groups of the catalog."""
        view = self._view
        if view is None or view.copysets != copysets:
            loads = tuple(BackupLoad(u, self._media[u]) for u in sorted(self._media))
            content = msgspec.msgpack.encode((loads, copysets))
            digest = hashlib.blake2b(content, digest_size=7).digest()
            version = int.from_bytes(digest, "big") + 1
            view = self._view = BackupsView(version, loads, copysets)
        return view
