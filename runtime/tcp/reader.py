"""From bytes to messages: frames are checked, and large messages put together from their parts.

No I/O: whoever reads a socket asks `get_buffer` where to put bytes and tells `buffer_updated` how
many came.

Invariants: a message reaches the sink only whole and after its checksums held; the first that does
not hold raises `FrameError`, after which the reader is not used again. Memory is bounded by the
receive buffer, and by what the sink wants of large messages, which are received in place, without a
copy. (design.md §4)
"""

from __future__ import annotations

from collections.abc import Callable

from crc32c import crc32c

from stelae.core.rpc import SINGLE_BYTES_MAX
from stelae.runtime.tcp.frames import (
    HEAD_BYTES,
    PART_BYTES,
    Assembly,
    FrameError,
    Head,
    Kind,
    decode_head,
)
from stelae.runtime.tcp.limits import Limits, Sink

_RECEIVE_BYTES = 256 * 1024
_BETWEEN_PARTS_BYTES = 4096
_IN_PARTS = (Kind.REQUEST, Kind.REPLY)


class FrameReader:
    """See the module. ``now`` gives seconds of any steady clock."""

    def __init__(self, sink: Sink, limits: Limits, now: Callable[[], float]) -> None:
        self.closed = False
        """Set it to stop in the midst of a row of frames."""
        self._sink = sink
        self._limits = limits
        self._now = now
        self._received = memoryview(bytearray(_RECEIVE_BYTES))
        self._end = 0
        self._assemblies: dict[tuple[int, int], Assembly] = {}
        self._part: tuple[Head, Assembly, memoryview] | None = None
        self._part_filled = 0
        self._scratch: memoryview | None = None

    def get_buffer(self) -> memoryview:
        """Where the next bytes are to be put; never empty."""
        if self._part is not None:
            return self._part[2][self._part_filled :]
        end = self._end
        if self._assemblies:  # read little, so that the next part need not be copied
            return self._received[end : end + _BETWEEN_PARTS_BYTES]
        return self._received[end:]

    def buffer_updated(self, nbytes: int) -> None:
        """Take the ``nbytes`` put into the last `get_buffer`. Raises FrameError."""
        if self._part is None:
            self._end += nbytes
            self._read_frames()
            return
        self._part_filled += nbytes
        if self._part_filled == self._part[0].length:
            self._finish_part()

    def _read_frames(self) -> None:
        """Take every whole frame out of the receive buffer; move the rest to its front."""
        received = self._received
        message_received = self._sink.message_received
        start, end = 0, self._end
        while end - start >= HEAD_BYTES and not self.closed:
            head = decode_head(received, start)
            length, payload_crc, kind, _, call_id, _ = head
            payload_start = start + HEAD_BYTES
            if kind is Kind.PART:
                start = self._begin_part(Head(*head), payload_start, end)
                continue
            payload_end = payload_start + length
            if payload_end > end:
                break
            payload = received[payload_start:payload_end]
            if crc32c(payload) != payload_crc:
                raise FrameError("a frame's payload does not match its checksum")
            start = payload_end
            if kind is Kind.ABANDON:
                self._drop_assembly(Head(*head))
            else:
                message_received(kind, call_id, payload, 0.0)
        if start:
            rest = end - start
            if rest:
                received[:rest] = received[start:end]
            self._end = rest

    # ---- parts ------------------------------------------------------------------------------

    def _begin_part(self, head: Head, start: int, end: int) -> int:
        """Take what is there of a part's payload; the rest comes in place. Returns its end."""
        assembly = self._assemblies.get((head.whole, head.call_id))
        if assembly is None:
            assembly = self._begin_assembly(head)
        elif assembly.total != head.total:
            raise FrameError("the parts of a message differ in its size")
        if self._scratch is None and not assembly.wanted:
            self._scratch = memoryview(bytearray(PART_BYTES))
        target = assembly.target(head.length, self._scratch)
        present = min(head.length, end - start)
        target[:present] = self._received[start : start + present]
        self._part = (head, assembly, target)
        self._part_filled = present
        if present == head.length:
            self._finish_part()
        return start + present

    def _begin_assembly(self, head: Head) -> Assembly:
        if head.total > self._limits.message_bytes or head.total <= SINGLE_BYTES_MAX:
            raise FrameError(f"a message of {head.total} bytes cannot come in parts")
        if len(self._assemblies) >= self._limits.assemblies:
            raise FrameError("too many large messages at the same time")
        if head.whole not in _IN_PARTS:
            raise FrameError(f"a message of kind {head.whole} cannot come in parts")
        wanted = self._sink.wants(Kind(head.whole), head.call_id, head.total)
        place = self._sink.place(head.call_id, head.total) if wanted else None
        assembly = Assembly(Kind(head.whole), head.total, self._now(), wanted, place)
        self._assemblies[(head.whole, head.call_id)] = assembly
        return assembly

    def _finish_part(self) -> None:
        assert self._part is not None
        head, assembly, target = self._part
        self._part = None
        if crc32c(target) != head.payload_crc:
            raise FrameError("a part's payload does not match its checksum")
        assembly.received += head.length
        if not assembly.complete:
            return
        del self._assemblies[(head.whole, head.call_id)]
        if assembly.wanted:
            age_s = self._now() - assembly.started_s
            self._sink.message_received(assembly.whole, head.call_id, assembly.message(), age_s)

    def _drop_assembly(self, head: Head) -> None:
        assembly = self._assemblies.pop((head.whole, head.call_id), None)
        if assembly is not None and assembly.wanted:
            self._sink.abandoned(head.call_id)
