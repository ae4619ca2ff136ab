"""The control file: what a safekeeper has of one timeline, as one small file. Pure codec and steps.

Invariant: each change of a timeline (created, cut, trimmed, pulled, evicted, brought back, deleted)
is the replacement of this one file, whose ``number`` grows with each; files of the WAL are made
before it and removed after it, and what lies there otherwise is rolled forward or back from it.
A deleted timeline keeps its tombstone for ever. Neon RFC 035, "Persistently stored data changes"
and the deletion under a generation; design §10.
"""

from __future__ import annotations

import enum

import msgspec

from stelae.core.errors import CorruptData
from stelae.core.ids import OpId, TabletId
from stelae.core.records.timelines import (
    NOBODY,
    AcceptorState,
    LogCut,
    LogPosition,
    TermHistory,
    TimelineConfiguration,
    TimelineSnapshot,
    WalFile,
    term_at,
)
from stelae.storage.files.sealed import HEADER_BYTES, seal, unseal
from stelae.storage.files.wal_log import NO_CUT

CONTROL_MAGIC = b"STELTIML"
FOREVER = 1 << 62
"""The generation of the tombstone of a tablet that was dropped: no configuration reaches it."""


class Presence(enum.StrEnum):
    ABSENT = "absent"
    """Nothing was ever here; a pull is under way."""
    RESIDENT = "resident"
    EVICTED = "evicted"
    """Its WAL files are offloaded."""
    DELETED = "deleted"


class TimelineTombstone(msgspec.Struct, frozen=True, array_like=True):
    """Of the last deletion: configurations up to ``generation`` do not bring the timeline back.

    ``term`` was its term: whoever comes after starts no lower, so that none is won twice.
    """

    generation: int
    term: int


class OffloadedFile(msgspec.Struct, frozen=True, array_like=True):
    """A WAL file, and the name under which its content is offloaded."""

    file: WalFile
    blob: str


class EvictedLog(msgspec.Struct, frozen=True, array_like=True):
    """What is known of the WAL of an evicted timeline."""

    history: TermHistory
    """Of the whole log, up to its end."""
    last: OpId
    files: tuple[OffloadedFile, ...]


class TimelineControl(msgspec.Struct, frozen=True):
    """One timeline on one safekeeper."""

    tablet_id: TabletId
    number: int
    """Grows with each replacement of this file."""
    presence: Presence
    acceptor: AcceptorState | None = None
    """Of one that is resident or evicted."""
    incarnation: int = 0
    """Names the folder of its WAL; each new content has a higher one."""
    base_lsn: int = 0
    """Entries up to here are not in the WAL: never above the horizon."""
    cut: LogCut = NO_CUT
    backed_up_lsn: int = 0
    """Entries up to here are in sealed segments, which backups hold."""
    evicted: EvictedLog | None = None
    stale_blobs: tuple[str, ...] = ()
    """Blobs that may have been offloaded and do not count: they are to be deleted."""
    tombstone: TimelineTombstone | None = None
    """Of the last time that it was deleted here, brought back since or not."""

    @property
    def generation(self) -> int:
        """Of its configuration; 0 without one."""
        return self.acceptor.configuration.generation if self.acceptor is not None else 0

    @property
    def deleted_generation(self) -> int:
        """Configurations up to this one are refused; 0: none."""
        return self.tombstone.generation if self.tombstone is not None else 0

    @property
    def exists(self) -> bool:
        return self.presence in (Presence.RESIDENT, Presence.EVICTED)


# ---- the file -------------------------------------------------------------------------------


def encode_control(control: TimelineControl) -> bytes:
    """Encode for an atomic replace."""
    return seal(CONTROL_MAGIC, msgspec.msgpack.encode(control))


def decode_control(where: str, tablet_id: TabletId, data: bytes) -> TimelineControl:
    """Decode and check; ``where`` names the file. Raises CorruptData."""
    control = unseal(where, CONTROL_MAGIC, data, TimelineControl)
    if control.tablet_id != tablet_id:
        raise CorruptData(where, HEADER_BYTES, f"belongs to tablet {control.tablet_id}")
    problem = _problem(control)
    if problem:
        raise CorruptData(where, HEADER_BYTES, f"is {control.presence.value}, but {problem}")
    return control


def _problem(control: TimelineControl) -> str:
    """Why no step can have made this; empty if one can."""
    if control.exists != (control.acceptor is not None):
        return "has the state of another presence"
    if (control.presence is Presence.EVICTED) != (control.evicted is not None):
        return "its offloaded files say otherwise"
    if control.presence is Presence.DELETED and control.tombstone is None:
        return "has no tombstone"
    if control.acceptor is None:
        return ""
    if control.generation <= control.deleted_generation:
        return f"was deleted under generation {control.deleted_generation}"
    if not control.base_lsn <= control.acceptor.horizon_lsn <= control.acceptor.commit_lsn:
        return f"its log begins after {control.base_lsn}, above horizon or commit"
    return ""


# ---- steps ----------------------------------------------------------------------------------


def _next(before: TimelineControl, **changes: object) -> TimelineControl:
    return msgspec.structs.replace(before, number=before.number + 1, **changes)


def _blobs_of(control: TimelineControl) -> tuple[str, ...]:
    """What of it is offloaded, and counts."""
    return tuple(each.blob for each in control.evicted.files) if control.evicted else ()


def unknown(tablet_id: TabletId) -> TimelineControl:
    """What is known of a timeline that never was here; not written as such."""
    return TimelineControl(tablet_id, 0, Presence.ABSENT)


def created(
    before: TimelineControl, configuration: TimelineConfiguration, incarnation: int
) -> TimelineControl:
    """A new, empty timeline; it remembers the term of one that was deleted."""
    assert not before.exists, f"creation of a timeline that is {before.presence}"
    assert configuration.generation > before.deleted_generation, "a deleted timeline comes back"
    term = before.tombstone.term if before.tombstone is not None else 0
    return _next(
        before,
        presence=Presence.RESIDENT,
        acceptor=AcceptorState(configuration, term=term),
        incarnation=incarnation,
        base_lsn=0,
        cut=NO_CUT,
        backed_up_lsn=0,
    )


def saved(before: TimelineControl, acceptor: AcceptorState) -> TimelineControl:
    """The acceptor's state is another one; nothing in it that must only rise falls."""
    now = before.acceptor
    assert now is not None, f"save of a timeline that is {before.presence}"
    assert acceptor.term >= now.term, "a term falls"
    same_vote = now.voted_for == NOBODY or acceptor.voted_for == now.voted_for
    assert acceptor.term > now.term or same_vote, "a second vote in one term"
    same_members = acceptor.configuration == now.configuration
    assert acceptor.configuration.generation > before.generation or same_members, "members go back"
    assert acceptor.commit_lsn >= now.commit_lsn, "the commit falls"
    assert now.horizon_lsn <= acceptor.horizon_lsn <= acceptor.commit_lsn, "the horizon falls"
    return _next(before, acceptor=acceptor)


def log_cut(before: TimelineControl, from_lsn: int) -> TimelineControl:
    """Nothing counts any more of what the log has from there on."""
    assert before.acceptor is not None, f"cut of a timeline that is {before.presence}"
    assert from_lsn > before.acceptor.commit_lsn, f"committed entries from {from_lsn} on are cut"
    return _next(before, cut=LogCut(before.cut.number + 1, from_lsn))


def reopened(before: TimelineControl, found: TimelineControl, flush_lsn: int) -> TimelineControl:
    """To be written after the disk failed: ``before`` is what was known, ``found`` is read now.

    Nobody knows whether ``found`` would outlive a crash, so it is written once more. What the log
    has after ``flush_lsn`` was never made durable, although it can be read: it does not count.
    """
    both = before.presence is found.presence is Presence.RESIDENT
    if not both or found.incarnation != before.incarnation:
        return _next(found)  # a new log is durable before a control file names it
    end_lsn = flush_lsn
    if found.cut.number > before.cut.number:
        end_lsn = min(flush_lsn, found.cut.from_lsn - 1)
    return log_cut(found, end_lsn + 1)


def restarted(before: TimelineControl, base_lsn: int, incarnation: int) -> TimelineControl:
    """The log is empty and begins after ``base_lsn``: what was before is committed, and needed no
    more. What lay here or was offloaded is to go."""
    assert before.acceptor is not None, f"restart of a timeline that is {before.presence}"
    assert before.base_lsn <= base_lsn <= before.acceptor.horizon_lsn, f"a restart after {base_lsn}"
    return _next(
        before,
        presence=Presence.RESIDENT,
        incarnation=incarnation,
        base_lsn=base_lsn,
        cut=LogCut(before.cut.number + 1, base_lsn + 1),
        evicted=None,
        stale_blobs=before.stale_blobs + _blobs_of(before),
    )


def trimmed(before: TimelineControl, base_lsn: int) -> TimelineControl:
    """The WAL begins after ``base_lsn``."""
    assert before.acceptor is not None, f"trim of a timeline that is {before.presence}"
    assert before.base_lsn <= base_lsn <= before.acceptor.horizon_lsn, f"a trim to {base_lsn}"
    return _next(before, base_lsn=base_lsn)


def backed_up(before: TimelineControl, lsn: int) -> TimelineControl:
    """Backups hold the entries up to ``lsn``."""
    assert lsn >= before.backed_up_lsn
    return _next(before, backed_up_lsn=lsn)


def deleted(before: TimelineControl, generation: int) -> TimelineControl:
    """What remains is a tombstone, and the blobs that are to go. Generations never fall."""
    term = before.tombstone.term if before.tombstone is not None else 0
    if before.acceptor is not None:
        term = max(term, before.acceptor.term)
    blobs = before.stale_blobs + _blobs_of(before)
    tombstone = TimelineTombstone(max(generation, before.deleted_generation), term)
    return TimelineControl(
        before.tablet_id,
        before.number + 1,
        Presence.DELETED,
        incarnation=before.incarnation,
        stale_blobs=blobs,
        tombstone=tombstone,
    )


# ---- pull -----------------------------------------------------------------------------------


def pulling(before: TimelineControl) -> TimelineControl:
    """Files are about to come of a timeline of which nothing is known yet."""
    assert before.number == 0
    return _next(before)


def merged_acceptor(
    before: TimelineControl, pulled: AcceptorState, configuration: TimelineConfiguration
) -> AcceptorState:
    """State after the pull of a copy: terms, generations and commits never fall, and the own vote
    stays unless the copy's term is higher, in which nobody got it."""
    own = before.acceptor or AcceptorState(configuration)
    term = before.tombstone.term if before.tombstone is not None else 0
    term = max(term, own.term, pulled.term)
    configurations = (own.configuration, pulled.configuration, configuration)
    return AcceptorState(
        max(configurations, key=lambda each: each.generation),
        term,
        own.voted_for if own.term == term else NOBODY,
        pulled.term_history,
        max(own.commit_lsn, pulled.commit_lsn),
        max(own.horizon_lsn, pulled.horizon_lsn),
    )


def pulled(
    before: TimelineControl,
    snapshot: TimelineSnapshot,
    acceptor: AcceptorState,
    incarnation: int,
) -> TimelineControl:
    """A copy counts from now on, in the place of what was here."""
    assert acceptor.configuration.generation > before.deleted_generation, "a deleted one comes back"
    return _next(
        before,
        presence=Presence.RESIDENT,
        acceptor=acceptor,
        incarnation=incarnation,
        base_lsn=snapshot.base_lsn,
        cut=snapshot.cut,
        evicted=None,
        stale_blobs=before.stale_blobs + _blobs_of(before),
    )


def history_problem(snapshot: TimelineSnapshot) -> str:
    """Why a manifest contradicts itself; empty if it does not."""
    acceptor, last = snapshot.acceptor, snapshot.last
    if not snapshot.base_lsn <= acceptor.horizon_lsn <= acceptor.commit_lsn <= last.index:
        return "base, horizon, commit and end do not follow one another"
    if term_at(acceptor.term_history, last.index) != last.term:
        return f"its history does not end in {last}"
    if acceptor.term_history and acceptor.term_history[-1].start_lsn > last.index:
        return "its history goes beyond its end"
    if last.term > acceptor.term:
        return f"{last} is of a term above {acceptor.term}"
    return ""


def is_newer(position: LogPosition, than: LogPosition) -> bool:
    """Whether a log has everything that the other one could have acknowledged, and more."""
    return position > than


# ---- eviction -------------------------------------------------------------------------------


def offloading(before: TimelineControl, blobs: tuple[str, ...]) -> TimelineControl:
    """Blobs are about to be written; until they count they are to be deleted."""
    assert before.presence is Presence.RESIDENT
    return _next(before, stale_blobs=before.stale_blobs + blobs)


def evicted(before: TimelineControl, log: EvictedLog) -> TimelineControl:
    """The offloaded files count, and no longer those that are here."""
    assert before.presence is Presence.RESIDENT
    counting = {offloaded.blob: None for offloaded in log.files}
    stale = tuple(blob for blob in before.stale_blobs if blob not in counting)
    return _next(
        before,
        presence=Presence.EVICTED,
        evicted=log,
        stale_blobs=stale,
    )


def brought_back(before: TimelineControl, incarnation: int) -> TimelineControl:
    """The files are here again; the blobs are to go."""
    assert before.evicted is not None
    return _next(
        before,
        presence=Presence.RESIDENT,
        evicted=None,
        incarnation=incarnation,
        stale_blobs=before.stale_blobs + _blobs_of(before),
    )


def blobs_forgotten(before: TimelineControl, blobs: tuple[str, ...]) -> TimelineControl:
    """Those were deleted."""
    gone = dict.fromkeys(blobs)
    return _next(before, stale_blobs=tuple(blob for blob in before.stale_blobs if blob not in gone))
