"""What a backup accepts of each log: from which term on writes, and from which head on open heads.

A promise only rises, and outlives the process: that of a term, made to the masters, is in the
``fences`` file before it is answered. Heads before the one named are closed for good: what they are
superseded by is freed only once that is promised, so a write that is late does not open one of them
again, with a digest that names what is gone. Where the disk has no room for the file, the promise
about heads holds for as long as the process lives: what is freed must not wait for room.

A write of a higher term raises the fence too, in memory; across a restart the terms in the
replicas' records do the same. That it is lost if those replicas are freed and the backup then
restarts does no harm: who owns the higher term was let in by masters that had fenced enough
backups first, so an older owner gets no write acknowledged by all of its replicas any more.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterable

import msgspec
from crc32c import crc32c

from stelae.core.errors import CorruptData, LogFenced, StaleTerm
from stelae.core.ids import TabletId, segment_name
from stelae.core.messages.backups import WriteReplica
from stelae.core.runtime import Disk
from stelae.storage.files.sealed import refuse_other_format

FENCES_FILE = "fences"
_MAGIC = b"STELFNC2"
_TERMS_MAGIC = b"STELFNC1"
"""A file of terms alone."""
_HEAD_BYTES = len(_MAGIC) + 4
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class _Promises(msgspec.Struct, array_like=True):
    """The content of the file."""

    terms: dict[TabletId, int]
    heads_from: dict[TabletId, int]

    def copy(self) -> _Promises:
        return _Promises(dict(sorted(self.terms.items())), dict(sorted(self.heads_from.items())))


class Fences:
    """By log. `check` and `observe` are for every write; `promise` for the masters."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._terms: dict[TabletId, int] = {}
        self._promised = _Promises({}, {})
        self._durable = _Promises({}, {})
        self._writing = asyncio.Lock()

    async def load(self) -> None:
        """Raises `CorruptData` if there is a file and it is damaged."""
        try:
            data = await self._disk.read(FENCES_FILE)
        except FileNotFoundError:
            return
        magic, body = data[: len(_MAGIC)], data[_HEAD_BYTES:]
        refuse_other_format(f"file {FENCES_FILE}", data, _MAGIC, _TERMS_MAGIC)
        crc = int.from_bytes(data[len(_MAGIC) : _HEAD_BYTES], "little")
        is_whole = len(data) > _HEAD_BYTES  # of no bytes the checksum is 0, as is one cut off
        if magic not in (_MAGIC, _TERMS_MAGIC) or not is_whole or crc32c(body) != crc:
            raise CorruptData(f"file {FENCES_FILE}", 0, "bad checksum")
        if magic == _TERMS_MAGIC:
            terms = msgspec.msgpack.decode(body, type=dict[TabletId, int])
            self._promised = _Promises(terms, {})
        else:
            self._promised = msgspec.msgpack.decode(body, type=_Promises)
        self._durable = self._promised.copy()
        self._terms = dict(self._promised.terms)

    def term(self, log: TabletId) -> int:
        """Lower terms are refused."""
        return self._terms.get(log, 0)

    def heads_from(self, log: TabletId) -> int:
        """Heads before this one are closed for good, as far as was told here."""
        return self._promised.heads_from.get(log, 0)

    def check(self, log: TabletId, term: int) -> None:
        """Raises `LogFenced` if ``term`` is fenced off."""
        fence = self._terms.get(log, 0)
        if term < fence:
            raise LogFenced(f"term of tablet {log}", term, fence)

    def check_may_open(self, request: WriteReplica) -> None:
        """Of a replica that is not here. Raises `StaleTerm`: it would open a head again that was
        closed, and freed since. What is closed may come, also in pieces: before the last one,
        which has the certificate, there is no replica."""
        heads_from = self._promised.heads_from.get(request.tablet_id, 0)
        opens = request.certificate is not None and not request.close
        if opens and request.segment_id < heads_from:
            what = f"an open replica of segment {segment_name(request.segment_id)}"
            raise StaleTerm(what, request.segment_id, heads_from)

    def observe(self, log: TabletId, term: int) -> None:
        """A write of ``term`` was accepted: refuse lower ones from now on."""
        if term > self._terms.get(log, 0):
            self._terms[log] = term

    async def promise(self, logs: Iterable[tuple[TabletId, int]]) -> None:
        """Raise fences, at once in memory, and durably before the return."""
        wanted = dict(logs)
        for log, term in wanted.items():
            self.observe(log, term)
            if term > self._promised.terms.get(log, 0):
                self._promised.terms[log] = term
        await self._save(lambda durable: _holds(durable.terms, wanted))

    async def close_heads(self, log: TabletId, heads_from: int) -> bool:
        """Heads of the log before this one are closed for good: at once in memory, and durably
        before the return; false if the disk has no room for it."""
        if heads_from > self._promised.heads_from.get(log, 0):
            self._promised.heads_from[log] = heads_from
        try:
            await self._save(lambda durable: _holds(durable.heads_from, {log: heads_from}))
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            return False
        return True

    async def _save(self, is_there: Callable[[_Promises], bool]) -> None:
        """Make all promises durable, unless what matters is so already: who waited for another's
        turn finds it done."""
        async with self._writing:
            if is_there(self._durable):
                return
            promised = self._promised.copy()
            body = msgspec.msgpack.encode(promised)
            head = _MAGIC + crc32c(body).to_bytes(4, "little")
            await self._disk.replace(FENCES_FILE, head + body)
            self._durable = promised

    def forget(self, log: TabletId) -> None:
        """The tablet is deleted; its id is never used again. The file follows when next written."""
        self._terms.pop(log, None)
        for promises in (self._promised, self._durable):
            promises.terms.pop(log, None)
            promises.heads_from.pop(log, None)


def _holds(durable: dict[TabletId, int], wanted: dict[TabletId, int]) -> bool:
    return all(durable.get(log, 0) >= least for log, least in wanted.items())
