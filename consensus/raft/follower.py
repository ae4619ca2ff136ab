"""What a follower does with its leader's messages: take entries in, put snapshots together.

Invariant: the commit index never passes what this message verified to equal the leader's log
(KUDU-639), and a snapshot is complete or it is nothing. Raft §5.3, §7.
"""

from __future__ import annotations

from stelae.consensus.raft.log_view import LogView
from stelae.consensus.raft.messages import AppendRequest, AppendResponse, SnapshotRequest
from stelae.core.ids import OpId, ServerUuid
from stelae.core.records.replication import Snapshot


def answer_append(
    log: LogView, request: AppendRequest, memory_over: tuple[int, int] | None = None
) -> AppendResponse:
    """Take what follows a matching entry into ``log``; the answer must wait until it is durable."""
    accepted = True
    if request.previous.index < log.commit_index:
        # What is committed here is the same there: look only at what comes after it.
        known = log.commit_index - request.previous.index
        index = log.merge(log.committed, request.entries[known:])
        log.commit_to(min(request.commit_index, index))
    elif log.matches(request.previous):
        index = log.merge(request.previous, request.entries)
        log.commit_to(min(request.commit_index, index))
    else:
        accepted = False
        index = request.previous.index
    hint = log.last if accepted else log.last_possible_match(request.previous)
    return AppendResponse(
        request.group_id,
        request.destination,
        request.source,
        request.term,
        accepted,
        index,
        hint,
        request.round,
        memory_over,
    )


def answer_while_busy(
    log: LogView, request: AppendRequest, memory_over: tuple[int, int] | None
) -> AppendResponse:
    """Answer a heartbeat of the leader that is followed, while something is made durable: what is
    committed equals its log, and of that it is told what is durable here."""
    index = min(log.commit_index, log.stable_index)
    ends = (request.group_id, request.destination, request.source)
    return AppendResponse(*ends, request.term, True, index, log.last, request.round, memory_over)


class SnapshotAssembly:
    """The chunks of one snapshot, in order, as one leader sends them in one term."""

    def __init__(self, size_max_bytes: int) -> None:
        self._size_max_bytes = size_max_bytes
        self._source: tuple[ServerUuid, int, OpId, int] | None = None
        self._data = bytearray()

    def add(self, request: SnapshotRequest) -> int:
        """Take a chunk if it is the next one; return the offset wanted next."""
        source = (request.source, request.term, request.last, request.size_bytes)
        if source != self._source:
            self.clear()
            self._source = source
        fits = len(self._data) + len(request.chunk) <= self._size_max_bytes
        if request.offset == len(self._data) and fits:
            self._data += request.chunk
        return len(self._data)

    def complete(self, request: SnapshotRequest) -> bytes | None:
        """The whole snapshot, once, when its last byte has come; else None."""
        if len(self._data) < request.size_bytes:
            return None
        data = bytes(self._data)
        self.clear()
        return data

    def clear(self) -> None:
        """Forget what has come so far."""
        self._source = None
        self._data = bytearray()


def take_snapshot(
    log: LogView, assembly: SnapshotAssembly, request: SnapshotRequest
) -> tuple[Snapshot | None, int | None]:
    """Take a chunk: the snapshot that ``log`` was reset to, if it was, and the offset that is
    wanted next; None: nothing more, all that is in it is here."""
    if request.last.index <= log.commit_index or log.matches(request.last):
        log.commit_to(request.last.index)
        assembly.clear()
        return None, None
    offset = assembly.add(request)
    data = assembly.complete(request)
    if data is None:
        return None, offset
    installed = Snapshot(request.last, request.configuration, data)
    log.reset(installed)
    return installed, None
