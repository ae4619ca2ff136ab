"""What a safekeeper hands to another one that pulls a timeline: the manifest of a copy.

A copy is the files of the WAL as they lie on the donor, cut at one position, with the state that
goes with them. Neon RFC 035, pull_timeline; design §10.
"""

from __future__ import annotations

import msgspec

from stelae.core.ids import OpId, TabletId
from stelae.core.records.timelines import AcceptorState, LogPosition

NOTHING = OpId(0, 0)
"""The end of a log that never had an entry."""


class WalFile(msgspec.Struct, frozen=True, array_like=True):
    """One file of a WAL; ``crc`` is the CRC-32C of its first ``size_bytes``."""

    name: str
    size_bytes: int
    crc: int


class LogCut(msgspec.Struct, frozen=True, array_like=True):
    """The last time that a log was cut: in files made before it, nothing counts from there on."""

    number: int
    """Of how many cuts it is the last; 0: there was none."""
    from_lsn: int


class TimelineSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """A timeline at one point: all that ``last`` says is durable at the donor, in ``files``."""

    tablet_id: TabletId
    acceptor: AcceptorState
    """As of then; its history is that of the whole log, up to ``last``."""
    base_lsn: int
    """Entries up to here are not in the files."""
    last: OpId
    cut: LogCut
    files: tuple[WalFile, ...]

    @property
    def generation(self) -> int:
        return self.acceptor.configuration.generation

    @property
    def position(self) -> LogPosition:
        return LogPosition(self.last.term, self.last.index)
