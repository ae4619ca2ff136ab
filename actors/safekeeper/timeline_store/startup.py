"""What a safekeeper does with its timelines' files when it starts: rolled forward or back.

The control file says how far each change came: a cut or trim that was committed is carried on by
the log's loading; of WAL folders only the one counts that the control file names, so that a pull,
or the return of an evicted timeline, which was not committed is undone, and a deletion or eviction
that was is carried on. A timeline whose files cannot be believed, or below which the disk failed,
is left as it is, and reported.
Invariant: running it again, also after a crash in its midst, changes nothing more. Design §10.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from stelae.actors.safekeeper.timeline_store.files import CONTROLS, TimelineFiles
from stelae.actors.safekeeper.timeline_store.log import TimelineLog
from stelae.actors.server.disk import damage_of
from stelae.core.errors import CorruptData
from stelae.core.ids import TabletId
from stelae.storage.files.timeline_control import Presence, TimelineControl

MakeLog = Callable[[TimelineControl], TimelineLog]


class TimelineRepair(enum.StrEnum):
    FILES_REMOVED = "files removed that do not count"
    PULL_FORGOTTEN = "first pull forgotten"


@dataclass(slots=True)
class LoadedTimelines:
    """All timelines that a safekeeper has. What is ``failed`` is in none of the others."""

    controls: dict[TabletId, TimelineControl] = field(default_factory=dict)
    logs: dict[TabletId, TimelineLog] = field(default_factory=dict)
    """Of those that are resident."""
    failed: dict[TabletId, CorruptData] = field(default_factory=dict)
    repairs: list[tuple[TabletId, TimelineRepair]] = field(default_factory=list)


def may_pass(error: CorruptData) -> bool:
    """Whether the disk failed, so that a later try may do better; else what it gave is damaged."""
    return isinstance(error.__cause__, OSError)


async def load_timelines(files: TimelineFiles, make_log: MakeLog) -> LoadedTimelines:
    """Read and settle all that is there. Raises OSError."""
    loaded = LoadedTimelines()
    folders = await files.wal_folders()
    known = dict.fromkeys([*await files.controls(), *folders])
    for tablet_id in sorted(known):
        try:
            with damage_of(f"a file of timeline {tablet_id}"):
                await load_timeline(files, tablet_id, folders.get(tablet_id, []), make_log, loaded)
        except CorruptData as error:
            loaded.failed[tablet_id] = error
    return loaded


async def load_timeline(
    files: TimelineFiles,
    tablet_id: TabletId,
    incarnations: list[int],
    make_log: MakeLog,
    loaded: LoadedTimelines,
    *,
    afresh: bool = False,
) -> None:
    """The same of one timeline, of which these folders are there; ``afresh`` is that of the log's
    loading. Raises CorruptData, OSError."""
    control = await files.read_control(tablet_id)
    if control is None:
        path = files.path(CONTROLS, tablet_id)
        raise CorruptData(path, 0, "is missing, but there is a WAL of the tablet")
    counts = control.incarnation if control.presence is Presence.RESIDENT else None
    log = None
    if counts is not None:
        log = make_log(control)
        assert control.acceptor is not None
        await log.load(control.cut, control.acceptor.commit_lsn, afresh=afresh)
    stale = [number for number in incarnations if number != counts]
    for number in stale:
        await files.remove_wal(tablet_id, number)
    if stale:
        loaded.repairs.append((tablet_id, TimelineRepair.FILES_REMOVED))
    if control.presence is Presence.ABSENT:
        await files.remove_control(tablet_id)
        loaded.repairs.append((tablet_id, TimelineRepair.PULL_FORGOTTEN))
        return
    loaded.controls[tablet_id] = control
    if log is not None:
        loaded.logs[tablet_id] = log
