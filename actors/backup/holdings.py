"""What one backup holds: its replicas by log and segment, and how they are read.

Invariants: a replica that exists is durable, and what is said of it was so at one moment; one that
is replaced while it is read is read again, for its frames may be another's by then.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from crc32c import crc32c

from stelae.actors.backup.media import PIECE_BYTES, Medium
from stelae.actors.backup.replicas import (
    Facts,
    LogContents,
    Replica,
    blob_size,
    certify,
    joined,
    read_contents,
)
from stelae.core.errors import CorruptData, InvalidArgument, TabletNotReady, TooLarge
from stelae.core.ids import TabletId, segment_name
from stelae.core.messages.backups import (
    Certified,
    ImagePlace,
    LocatedReplica,
    ReadReplica,
    ReplicaInfo,
    ReplicaState,
)
from stelae.core.rpc import Blob
from stelae.core.runtime import Runtime
from stelae.storage.entries.entry import HEADER_BYTES, entry_length
from stelae.storage.segments.image import IMAGE_TRAILER_BYTES, summary_range

REPLY_BYTES_MAX = 96 << 20
READ_ATTEMPTS = 3


class Holdings:
    """The replicas of all media of a backup."""

    def __init__(self, runtime: Runtime, media: Mapping[str, Medium], server: str) -> None:
        self._runtime = runtime
        self._media = media
        self._server = server
        self._logs: dict[TabletId, dict[int, Replica]] = {}
        self._locks: weakref.WeakValueDictionary[tuple[TabletId, int], asyncio.Lock]
        self._locks = weakref.WeakValueDictionary()

    # ---- the map ----------------------------------------------------------------------------

    @property
    def logs(self) -> list[TabletId]:
        return sorted(self._logs)

    @property
    def count(self) -> int:
        """Replicas of all logs but those of which half a copy is here."""
        return sum(r.wanted is not None for log in self._logs.values() for r in log.values())

    def segments(self, log: TabletId) -> list[int]:
        return sorted(self._logs.get(log, {}))

    def find(self, log: TabletId, segment_id: int) -> Replica | None:
        return self._logs.get(log, {}).get(segment_id)

    def enter(self, replica: Replica) -> None:
        self._logs.setdefault(replica.tablet_id, {})[replica.segment_id] = replica

    def enter_found(self, replica: Replica) -> Facts:
        """Enter a replica found at start, and return what it is.

        If it is on two media, a seal or a newer copy of a head was moving it to the other one. Each
        is whole, and the newer one counts, which has all of the other: the former is let go of.
        """
        facts = replica.facts
        assert facts is not None, "what is found exists"
        other = self.find(replica.tablet_id, replica.segment_id)
        if other is not None and _rank(other) >= _rank(replica):
            self._media[replica.medium].free(replica)
            return facts
        if other is not None:
            self._media[other.medium].free(other)
        self.enter(replica)
        return facts

    def forget(self, replica: Replica) -> None:
        """Free a replica, and take it out of the map."""
        segments = self._logs[replica.tablet_id]
        assert segments[replica.segment_id] is replica
        del segments[replica.segment_id]
        if not segments:
            del self._logs[replica.tablet_id]
        self._media[replica.medium].free(replica)

    def replace(self, former: Replica, replica: Replica) -> None:
        """Let a replica, durable by now, take the place of another one of its segment, which may be
        the only one that lasts."""
        lasts = [self._media[each.medium].is_lasting for each in (former, replica)]
        assert former.wanted is None or lasts != [True, False], f"{former.where} goes into memory"
        self.forget(former)
        self.enter(replica)

    def lock(self, log: TabletId, segment_id: int) -> asyncio.Lock:
        """Held while a segment's replica changes; it lasts only as long as somebody has it."""
        key = log, segment_id
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock

    async def quiesce(self, logs: Mapping[TabletId, object]) -> None:
        """Wait until the changes to these logs that have begun are in a batch, or refused."""
        for log, segment_id in sorted(key for key in self._locks if key[0] in logs):
            async with self.lock(log, segment_id):
                continue

    # ---- what is said of it -----------------------------------------------------------------

    async def describe(self, log: TabletId) -> tuple[tuple[ReplicaInfo, ...], tuple[int, ...]]:
        """The replicas of a log that durably exist, by segment; and the segments of those that do
        not count: found to be damaged, or open with a prologue that cannot be read."""
        infos: list[ReplicaInfo] = []
        damaged: list[int] = []
        for segment_id in self.segments(log):
            replica = self.find(log, segment_id)
            if replica is None or replica.facts is None:
                continue
            if replica.damaged:
                damaged.append(segment_id)
                continue
            facts = replica.facts
            if facts.state is ReplicaState.OPEN:
                try:
                    await self._read_contents(replica, facts)
                except CorruptData:
                    self._runtime.metrics.count("backup_damaged_replicas")
                    damaged.append(segment_id)
                    continue
                if replica.freed:
                    continue
            infos.append(info_of(replica, facts))
        return tuple(infos), tuple(damaged)

    async def _read_contents(self, replica: Replica, facts: Facts) -> None:
        if replica.contents is None:
            medium = self._media[replica.medium]
            if facts.length < HEADER_BYTES:
                raise CorruptData(replica.where, 0, "no prologue")
            length = entry_length(await medium.read(replica, 0, HEADER_BYTES))
            if length > facts.length:
                raise CorruptData(replica.where, 0, "the prologue is longer than the replica")
            head = await medium.read(replica, 0, length)
            replica.contents = read_contents(bytes(head), replica.where)

    # ---- reading ----------------------------------------------------------------------------

    def readable(self, log: TabletId, segment_id: int) -> tuple[Replica, Facts]:
        """A replica, and what is durable of it. Raises InvalidArgument: there is none."""
        replica = self.find(log, segment_id)
        if replica is None or replica.facts is None:
            name = segment_name(segment_id)
            raise InvalidArgument(f"backup {self._server} has no segment {name} of tablet {log}")
        return replica, replica.facts

    async def read(self, request: ReadReplica) -> tuple[ReplicaInfo, Blob]:
        """Bytes of a replica. An image that is read whole is checked here; rows are served as they
        are, and checked entry by entry by whoever reads them.

        Raises:
            CorruptData: the medium does not have what the record says.
            InvalidArgument: there is no such replica, or it has no such bytes.
        """
        for _ in range(READ_ATTEMPTS):
            replica, facts = self.readable(request.tablet_id, request.segment_id)
            offset = request.offset
            length = request.length or facts.length - offset
            if offset < 0 or length < 0 or offset + length > facts.length:
                text = f"bytes {offset}+{length} of {facts.length}"
                raise InvalidArgument(f"{replica.where}: {text}")
            if length > REPLY_BYTES_MAX:
                raise TooLarge(f"read of {replica.where}", length, REPLY_BYTES_MAX)
            data = await self._media[replica.medium].read(replica, offset, length)
            if replica.freed:
                continue
            if length == facts.length:
                await self._check_whole(replica, facts, data, verify=request.verify)
            return info_of(replica, facts), data
        raise _busy(request.tablet_id, request.segment_id)

    async def read_ranges(self, replica: Replica, ranges: Sequence[tuple[int, int]]) -> list[Blob]:
        """Bytes (offset, length) of that very replica, and of none that took its place meanwhile;
        whoever reads them checks them.

        Raises:
            CorruptData: the medium has fewer.
            TabletNotReady: the replica is there no more.
        """
        medium = self._media[replica.medium]
        found = [await medium.read(replica, offset, length) for offset, length in ranges]
        if replica.freed:
            raise _busy(replica.tablet_id, replica.segment_id)
        return found

    def fill(self, replica: Replica, offset: int, buffer: memoryview) -> None:
        """As `read_ranges`, of a few bytes, at once and into a buffer."""
        if replica.freed:
            raise _busy(replica.tablet_id, replica.segment_id)
        self._media[replica.medium].fill(replica, offset, buffer)

    def place_of(self, replica: Replica) -> ImagePlace | None:
        """Where what is durable of a replica lies; None: in no file."""
        facts = replica.facts
        if replica.freed or facts is None:
            return None
        return self._media[replica.medium].place_of(replica, facts.length)

    async def locate(self, log: TabletId, segment_id: int) -> LocatedReplica | None:
        """What is durable of a replica, and where. None: in no file, or it is not whole."""
        replica = self.find(log, segment_id)
        facts = None if replica is None else replica.facts
        if replica is None or facts is None or replica.damaged:
            return None
        place = self.place_of(replica)
        if place is None:
            return None
        trailer = b""
        if facts.state is ReplicaState.SEALED:
            start = max(0, facts.length - IMAGE_TRAILER_BYTES)
            end = await self._media[replica.medium].read(replica, start, facts.length - start)
            trailer = bytes(end)
        return None if replica.freed else LocatedReplica(info_of(replica, facts), place, trailer)

    async def _check_whole(
        self, replica: Replica, facts: Facts, data: Blob, *, verify: bool
    ) -> None:
        """Of rows only if whoever read them before found damage. Raises `CorruptData`."""
        if facts.state is ReplicaState.SEALED:
            is_right = await checksum(self._runtime, data) == facts.crc
        else:
            is_right = not verify or await self._runtime.offload(_is_certified, facts, data)
        if not is_right and not replica.freed:
            self.note_damage(replica)
            raise CorruptData(replica.where, 0, f"bad checksum of what is {facts.state.value}")

    def note_damage(self, replica: Replica) -> None:
        """It is not what it says: it is offered no more."""
        if not replica.freed:
            replica.damaged = True
            self._runtime.metrics.count("backup_damaged_replicas")

    async def read_summary(self, log: TabletId, segment_id: int) -> tuple[ReplicaInfo, Blob]:
        """The tail of an image; of rows, all of them."""
        for _ in range(READ_ATTEMPTS):
            replica, facts = self.readable(log, segment_id)
            medium = self._media[replica.medium]
            offset, length = 0, facts.length
            if facts.state is ReplicaState.SEALED:
                start = max(0, facts.length - IMAGE_TRAILER_BYTES)
                trailer = await medium.read(replica, start, facts.length - start)
                if replica.freed:
                    continue
                offset, length = summary_range(trailer, facts.length, replica.where)
            data = await medium.read(replica, offset, length)
            if not replica.freed:
                return info_of(replica, facts), data
        raise _busy(log, segment_id)


async def checksum(runtime: Runtime, data: Blob) -> int:
    """CRC-32C, off the event loop if the data is large."""
    if blob_size([data]) < PIECE_BYTES:
        return int(crc32c(data))
    return int(await runtime.offload(crc32c, data))


async def check_certificate(
    runtime: Runtime, base: Certified, new: Certified, views: Sequence[memoryview], where: str
) -> None:
    """Check that the bytes which follow ``base`` make up ``new``: entries whole and undamaged.

    Raises:
        InvalidArgument: they do not.
    """
    data = joined(views)[: new.length - base.length]
    try:
        if len(data) < PIECE_BYTES:
            found = certify(base, data, where)
        else:
            found = await runtime.offload(certify, base, data, where)
    except CorruptData as error:
        raise InvalidArgument(f"the certificate does not fit: {error}") from error
    if found != new:
        raise InvalidArgument(f"{where}: the certificate says {new}, the entries {found}")


_UNKNOWN = LogContents((), ())


def _busy(log: TabletId, segment_id: int) -> TabletNotReady:
    return TabletNotReady(log, f"having segment {segment_name(segment_id)} replaced")


def _rank(replica: Replica) -> tuple[Any, ...]:
    facts = replica.facts
    assert facts is not None
    return facts.state is ReplicaState.SEALED, facts.term, facts.epoch, facts.length


def _is_certified(facts: Facts, data: Blob) -> bool:
    try:
        return certify(Certified(0, 0), data, "a replica") == facts.certificate
    except CorruptData:
        return False


def info_of(replica: Replica, facts: Facts) -> ReplicaInfo:
    """What is said of a replica."""
    is_open = facts.state is ReplicaState.OPEN
    contents = replica.contents if is_open and replica.contents is not None else _UNKNOWN
    return ReplicaInfo(
        replica.segment_id,
        facts.term,
        facts.epoch,
        facts.state,
        replica.medium,
        facts.length,
        facts.crc,
        contents.digest,
        contents.facts,
        replica.may_be_short,
    )
