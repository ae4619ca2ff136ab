"""What a launch would leave out: servers that the spec has no longer, and their copies.

Servers are numbered, and a launch starts as many as the spec says. With a smaller count the last
ones would vanish by their number, whatever they hold: copies of tablets that may be the only ones.
`stelae apply` moves copies before it stops a server; a launch cannot, and refuses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from stelae.actors.backup.disk_opening import FRAME_FILE
from stelae.actors.backup.frames import (
    SUPERBLOCKS_BYTES,
    FrameLayout,
    newest_superblock,
    read_slots,
)
from stelae.actors.safekeeper.timeline_store.files import CONTROLS
from stelae.actors.tserver.tablet_store.files import TABLET_META
from stelae.core.config.spec import ClusterSpec
from stelae.core.errors import CorruptData, InvalidArgument
from stelae.core.ids import TabletId
from stelae.core.messages.replicas import DataState
from stelae.core.records.records import ServerKind
from stelae.runtime.files import TEMPORARY_SUFFIX
from stelae.storage.files.superblock import decode_superblock
from stelae.storage.files.timeline_control import Presence, decode_control

TABLETS_NAMED = 5
_SECTIONS = {
    ServerKind.BACKUP: "backups",
    ServerKind.SAFEKEEPER: "safekeepers",
    ServerKind.TSERVER: "tservers",
}


def check_left_out(spec: ClusterSpec, names: Iterable[str]) -> None:
    """Refuse a launch of the servers ``names`` that leaves out one which holds copies of tablets.

    Raises:
        InvalidArgument: naming the server, its tablets, and what to do.
    """
    wanted = frozenset(names)
    for kind, section in _SECTIONS.items():
        for name, folders in sorted(_folders(spec, kind).items()):
            if name in wanted:
                continue
            tablets = sorted({tablet for folder in folders for tablet in copies_in(folder, kind)})
            if tablets:
                count = len([each for each in wanted if each.startswith(f"{kind.value}-")])
                raise InvalidArgument(_refusal(name, section, count, folders, tablets))


def _refusal(
    name: str, section: str, count: int, folders: list[Path], tablets: list[TabletId]
) -> str:
    shown = ", ".join(tablets[:TABLETS_NAMED])
    more = f" and {len(tablets) - TABLETS_NAMED} more" if len(tablets) > TABLETS_NAMED else ""
    number = name.rpartition("-")[2]
    return (
        f"{section}.count is {count}, but {name} holds copies of {len(tablets)} tablets "
        f"({shown}{more}): without it they could be lost. Launch with {section}.count: {number}, "
        f"and lower it with `stelae apply`, which moves copies first. If other servers have these "
        f"copies by now, move {' and '.join(map(str, folders))} away"
    )


def _folders(spec: ClusterSpec, kind: ServerKind) -> dict[str, list[Path]]:
    """The folders of each server of this kind that ever ran here: one, and one for each medium
    that has a path of its own."""
    roots = [Path(spec.data_dir)]
    if kind is ServerKind.BACKUP:
        paths = [Path(medium.path) for medium in spec.media.values() if medium.path is not None]
        roots += [path for path in paths if path.is_absolute()]
    found: dict[str, list[Path]] = {}
    pattern = re.compile(rf"{re.escape(kind.value)}-[0-9]+")
    for root in dict.fromkeys(roots):
        for folder in sorted(root.iterdir()) if root.is_dir() else ():
            if pattern.fullmatch(folder.name) and folder.is_dir():
                found.setdefault(folder.name, []).append(folder)
    return found


def copies_in(folder: Path, kind: ServerKind) -> Iterator[TabletId]:
    """The tablets of which a server's folder has a copy that counts; some may come twice."""
    if kind is ServerKind.BACKUP:
        for file in sorted(folder.rglob(FRAME_FILE)):
            yield from _logs_in(file)
    elif kind is ServerKind.SAFEKEEPER:
        for tablet_id, data in _files(folder / CONTROLS):
            control = decode_control(str(folder / CONTROLS / tablet_id), tablet_id, data)
            if control.presence in (Presence.RESIDENT, Presence.EVICTED):
                yield tablet_id
    else:
        for tablet_id, data in _files(folder / TABLET_META):
            superblock = decode_superblock(str(folder / TABLET_META / tablet_id), tablet_id, data)
            if superblock.state is DataState.READY:
                yield tablet_id


def _files(folder: Path) -> Iterator[tuple[TabletId, bytes]]:
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if not path.name.endswith(TEMPORARY_SUFFIX):  # of a replacement that a crash cut short
            yield TabletId(path.name), path.read_bytes()


def _logs_in(path: Path) -> Iterator[TabletId]:
    """The logs of which a frame file has replicas."""
    with path.open("rb") as file:
        superblock = newest_superblock(file.read(SUPERBLOCKS_BYTES))
        if superblock is None:
            if path.stat().st_size > SUPERBLOCKS_BYTES:
                raise CorruptData(str(path), 0, "no superblock of the frame file is whole")
            return
        layout = FrameLayout(superblock.frame_bytes, superblock.extents)
        for extent in range(len(layout.extents)):
            offset, length, first_frame = layout.metadata_range(extent)
            file.seek(offset)
            for slots in read_slots(file.read(length), first_frame):
                if slots.newest is not None and slots.newest.state is not None:
                    yield slots.newest.tablet_id
