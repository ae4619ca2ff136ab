"""One segment replica on a backup: what is known of it, and what a write may do to it.

Pure rules, from RAMCloud's backups: a replica exists up to its certificate and no further; writes
are idempotent; a gap, a lower epoch, or bytes that a certificate does not fit are refused. The
epoch rises only together with a certificate: half of a newer copy must not lend its epoch to the
stale replica that it is written over. (Seed 003, "Master Soft State"; design §6 and §9.)
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from stelae.core.errors import CorruptData, InvalidArgument, StaleTerm
from stelae.core.ids import TabletId, segment_name
from stelae.core.messages.backups import ANY_EPOCH, Certified, ReplicaState, WriteReplica
from stelae.core.records.losses import SegmentFacts
from stelae.core.rpc import Blob
from stelae.storage.entries.entry import (
    EntryKind,
    certify_entries,
    decode_prologue,
    read_entries,
)

NEVER = sys.maxsize
"""An offset past all others."""


class Facts(msgspec.Struct, frozen=True):
    """What a replica is, as its record says it."""

    term: int
    epoch: int
    state: ReplicaState
    length: int
    crc: int

    @property
    def certificate(self) -> Certified:
        return Certified(self.length, self.crc)


class Batch:
    """Changes that become durable together (group commit), and those who wait for it."""

    __slots__ = ("_done", "changes", "needs_sync")

    def __init__(self) -> None:
        self.changes: dict[Replica, Facts | None] = {}
        """None: the replica is freed."""
        self.needs_sync = False
        self._done = asyncio.Event()

    def finish(self) -> None:
        self._done.set()

    async def wait(self) -> None:
        """Wait until it is durable; for ever, if the medium failed and the server is ending."""
        await self._done.wait()


class Replica:
    """A segment replica on a medium. Compared by identity: a segment may be written anew."""

    __slots__ = (
        "batch",
        "content",
        "contents",
        "damaged",
        "facts",
        "frames",
        "freed",
        "may_be_short",
        "medium",
        "ready",
        "segment_id",
        "synced",
        "tablet_id",
        "unsynced_from",
        "wanted",
        "written",
    )

    def __init__(self, tablet_id: TabletId, segment_id: int, medium: str) -> None:
        self.tablet_id = tablet_id
        self.segment_id = segment_id
        self.medium = medium
        self.facts: Facts | None = None
        """What is durable; None: as yet it does not exist."""
        self.wanted: Facts | None = None
        """What has been accepted, and is durable once ``batch`` is."""
        self.batch: Batch | None = None
        self.written = 0
        """Bytes received without a gap; those past the certificate do not exist."""
        self.synced = 0
        """Bytes of them that are surely on the disk."""
        self.unsynced_from = NEVER
        """The lowest offset written to since the last sync began."""
        self.ready = 0
        """Bytes of the frames whose blocks the file system surely has at hand."""
        self.frames: tuple[int, ...] = ()
        self.content = bytearray()
        """Of a medium in memory: the bytes."""
        self.contents: LogContents | None = None
        """Of an open one: what its prologue says, once it was asked for."""
        self.freed = False
        self.damaged = False
        """What it holds is not what was certified: nobody is told that it is here."""
        self.may_be_short = False
        """See `ReplicaInfo`."""

    @property
    def where(self) -> str:
        """How errors name it."""
        return f"segment {segment_name(self.segment_id)} of tablet {self.tablet_id}"


def is_up_to(replica: Replica, epoch: int) -> bool:
    """Whether a replica is of this epoch or a lower one. Without a certificate it has none yet: it
    is being made now."""
    return epoch == ANY_EPOCH or (replica.wanted is not None and replica.wanted.epoch <= epoch)


# ---- certificates ---------------------------------------------------------------------------


def certify(base: Certified, data: Blob, where: str) -> Certified:
    """The certificate of ``base`` prolonged by the entries in ``data``, each of them checked.

    Raises:
        CorruptData: an entry is cut or damaged.
    """
    return certify_entries(base, data, where)


class LogContents(NamedTuple):
    """What a head says of its log."""

    digest: tuple[int, ...]
    facts: tuple[SegmentFacts, ...]


def read_contents(head: bytes, where: str) -> LogContents:
    """What is said in the prologue that ``head`` (the first entry) is. Raises `CorruptData`."""
    for entry in read_entries(head, None, where):
        if entry.kind is EntryKind.PROLOGUE:
            prologue = decode_prologue(entry.payload, where)
            return LogContents(prologue.digest, prologue.facts)
    raise CorruptData(where, 0, "the segment does not begin with a prologue")


def blob_size(blobs: Sequence[Blob]) -> int:
    return sum([_view(blob).nbytes for blob in blobs])


def _view(blob: Blob) -> memoryview:
    view = memoryview(blob)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def skip_bytes(blobs: Sequence[Blob], skip: int) -> list[memoryview]:
    """The blobs as views, without their first ``skip`` bytes and without empty ones."""
    views: list[memoryview] = []
    for blob in blobs:
        view = _view(blob)
        if skip >= view.nbytes:
            skip -= view.nbytes
            continue
        views.append(view[skip:] if skip else view)
        skip = 0
    return views


def joined(views: Sequence[memoryview]) -> bytes | memoryview:
    """The bytes of all views; no copy if there is but one."""
    return views[0] if len(views) == 1 else b"".join(views)


# ---- writes ---------------------------------------------------------------------------------


class WritePlan(NamedTuple):
    """What a permitted write does."""

    skip: int
    """Bytes of the request that are there already, under a certificate."""
    facts: Facts | None
    """To be made durable; None: nothing changes but bytes that do not exist yet."""
    certify_from: Certified | None
    """The certificate from which the new one must follow; None: none to check."""


def plan_write(held: Replica | None, request: WriteReplica, size: int) -> WritePlan:
    """What ``request`` with ``size`` bytes does to the replica ``held`` (None: there is none).

    Raises:
        StaleTerm: the replica has a higher epoch.
        InvalidArgument: whatever else the docstring of `WriteReplica` forbids.
    """
    if request.close and request.certificate is None:
        raise InvalidArgument("a close needs a certificate")
    old = held.wanted if held is not None else None
    if held is None:
        if not request.create or request.offset != 0 or size == 0:
            raise InvalidArgument(_absent(request))
    elif old is not None and request.epoch < old.epoch:
        what = f"epoch of {held.where}"
        raise StaleTerm(what, request.epoch, old.epoch)
    if old is not None and old.state is not ReplicaState.OPEN:
        return _repeat_close(old, request)
    written = held.written if held is not None else 0
    if request.offset > written:
        raise InvalidArgument(f"{_name(request)}: a gap from {written} to {request.offset}")
    end = max(written, request.offset + size)
    base = old.certificate if old is not None else Certified(0, 0)
    skip = max(0, base.length - request.offset)
    if request.certificate is None:
        return WritePlan(skip, None, None)
    return _plan_certified(request, request.certificate, old, base, skip, end)


def _plan_certified(
    request: WriteReplica,
    certificate: Certified,
    old: Facts | None,
    base: Certified,
    skip: int,
    end: int,
) -> WritePlan:
    if certificate.length > end:
        text = f"a certificate over {certificate.length} bytes, of which {end} are here"
        raise InvalidArgument(f"{_name(request)}: {text}")
    if certificate.length == base.length and certificate.crc != base.crc:
        raise InvalidArgument(f"{_name(request)}: another certificate than the one held")
    if request.close and certificate.length < base.length:
        raise InvalidArgument(f"{_name(request)}: closed before the end of what is held")
    newest = certificate if certificate.length > base.length else base
    state = ReplicaState.CLOSED if request.close else ReplicaState.OPEN
    facts = Facts(request.term, request.epoch, state, newest.length, newest.crc)
    return WritePlan(skip, facts if facts != old else None, base if newest is certificate else None)


def _repeat_close(old: Facts, request: WriteReplica) -> WritePlan:
    """A close of what is closed: nothing new, except that the epoch may have been raised."""
    same = request.close and request.certificate == old.certificate
    if old.state is ReplicaState.SEALED or not same:
        raise InvalidArgument(f"{_name(request)}: it is {old.state} and takes no more")
    facts = msgspec.structs.replace(old, term=max(old.term, request.term), epoch=request.epoch)
    return WritePlan(NEVER, facts if facts != old else None, None)


def _name(request: WriteReplica) -> str:
    return f"segment {segment_name(request.segment_id)} of tablet {request.tablet_id}"


def _absent(request: WriteReplica) -> str:
    return f"no replica of {_name(request)} is here; one begins with ``create`` at offset 0"
