"""What the catalog keeps beside tables for tablets with ``wal(n, …)``: who the safekeepers are, and
(where no other store is named) the configuration of each timeline. A part of
`stelae.coordinator.catalog`, and as deterministic.

Invariants:
- an id of a safekeeper is given once, to one server, and its record stays for ever;
- a configuration follows the one before it as a step of the procedure leads to it
  (`check_succession`), whoever wrote it: its revision is the compare-and-set;
- of a timeline that is deleted, with nothing left to be done, the last record stays for ever: it
  is *over*, packed away with others, found by its id and listed no more.

Implements seed 004 ("Schema": safekeepers, timelines; "configuration storage"); design §10.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import msgspec

from stelae.core.configurations import StoredRecord, TimelineId, check_succession
from stelae.core.errors import InvalidArgument
from stelae.core.ids import ServerUuid, TableId
from stelae.core.records import SafekeeperRecord
from stelae.core.timelines import SafekeeperId

HISTORY_MAX = 32
"""Records kept of one timeline, the newest: by them a repeated write is recognised."""


PACK_SIZE = 256
"""Records packed away together."""
_LEVEL = 1


class Packed(msgspec.Struct, frozen=True, array_like=True):
    """The last records of timelines that are over; opened when somebody asks for one."""

    timelines: tuple[TimelineId, ...]
    records: bytes


class TimelineState(msgspec.Struct, array_like=True):
    """All of it, in a snapshot."""

    safekeepers: list[SafekeeperRecord] = []
    timelines: list[list[StoredRecord]] = []
    over: list[StoredRecord] = []
    packed: list[Packed] = []


_ENCODER = msgspec.msgpack.Encoder()
_RECORDS = msgspec.msgpack.Decoder(list[StoredRecord])


class TimelineCatalog:
    """The registry of safekeepers, and the configurations of timelines."""

    def __init__(self, state: TimelineState | None = None) -> None:
        state = state or TimelineState()
        self.safekeepers: dict[SafekeeperId, SafekeeperRecord] = {}
        self._id_of: dict[ServerUuid, SafekeeperId] = {}
        self._history: dict[TimelineId, list[StoredRecord]] = {}
        self._keys: list[tuple[str, TimelineId]] | None = None
        self._over = {row.record.timeline: row for row in state.over}
        self._packed = list(state.packed)
        self._pack_of = {timeline: pack for pack in self._packed for timeline in pack.timelines}
        self.commit(state.safekeepers, ())
        for rows in state.timelines:
            self._history[rows[-1].record.timeline] = list(rows)

    def state(self) -> TimelineState:
        """For a snapshot."""
        return TimelineState(
            list(self.safekeepers.values()),
            list(self._history.values()),
            list(self._over.values()),
            list(self._packed),
        )

    # ---- changes ----------------------------------------------------------------------------

    def refusal(
        self, safekeepers: Iterable[SafekeeperRecord], timelines: Iterable[StoredRecord]
    ) -> str:
        """Why these do not follow from what is there; empty if they do."""
        for one in safekeepers:
            known = self.safekeepers.get(one.safekeeper_id)
            if one.generation != (known.generation if known else 0) + 1:
                return f"safekeeper {one.safekeeper_id} has changed meanwhile"
            if self._id_of.get(one.uuid, one.safekeeper_id) != one.safekeeper_id:
                return f"{one.name} has another id already"
            if known is not None and known.uuid != one.uuid:
                return f"safekeeper {one.safekeeper_id} is {known.name}"
        for row in timelines:
            current = self.current(row.record.timeline)
            if row.revision != (current.revision if current else 0) + 1:
                return f"the configuration of {row.record.timeline.key} has changed meanwhile"
            try:
                check_succession(current.record if current else None, row.record)
            except InvalidArgument as error:
                return str(error)
        return ""

    def commit(
        self, safekeepers: Iterable[SafekeeperRecord], timelines: Iterable[StoredRecord]
    ) -> None:
        """Take in what was not refused."""
        for one in safekeepers:
            self.safekeepers[one.safekeeper_id] = one
            self._id_of[one.uuid] = one.safekeeper_id
        for row in timelines:
            timeline = row.record.timeline
            rows = self._history.get(timeline)
            if rows is None:
                rows = self._history[timeline] = []
                self._keys = None
            rows.append(row)
            del rows[:-HISTORY_MAX]
            if row.record.is_over:
                self._put_away(row)

    def _put_away(self, row: StoredRecord) -> None:
        """Nothing of it ever changes again."""
        del self._history[row.record.timeline]
        self._keys = None
        self._over[row.record.timeline] = row
        if len(self._over) < PACK_SIZE:
            return
        records = zlib.compress(_ENCODER.encode(list(self._over.values())), _LEVEL)
        pack = Packed(tuple(self._over), records)
        self._packed.append(pack)
        self._pack_of.update(dict.fromkeys(pack.timelines, pack))
        self._over = {}

    # ---- readers ----------------------------------------------------------------------------

    def id_of(self, uuid: ServerUuid) -> SafekeeperId | None:
        """How configurations call this server."""
        return self._id_of.get(uuid)

    @property
    def next_id(self) -> SafekeeperId:
        """Above all that were ever given."""
        return SafekeeperId(max(self.safekeepers, default=0) + 1)

    def current(self, timeline: TimelineId) -> StoredRecord | None:
        """The newest record of a timeline; None: there never was one."""
        rows = self.history(timeline)
        return rows[-1] if rows else None

    def history(self, timeline: TimelineId) -> Sequence[StoredRecord]:
        """The newest records of a timeline, oldest first."""
        rows = self._history.get(timeline)
        if rows is not None:
            return rows
        over = self._over.get(timeline)
        pack = self._pack_of.get(timeline)
        if over is None and pack is not None:
            records = _RECORDS.decode(zlib.decompress(pack.records))
            over = records[pack.timelines.index(timeline)]
        return () if over is None else (over,)

    def page(
        self, table_id: TableId | None, after: TimelineId | None, limit: int
    ) -> list[StoredRecord]:
        """Newest records, in the order of their keys; none of timelines that are over."""
        if self._keys is None:
            self._keys = sorted((timeline.key, timeline) for timeline in self._history)
        prefix = "" if table_id is None else f"{table_id}/"
        keys = self._keys
        start = bisect_right(keys, after.key if after is not None else prefix, key=_first)
        found: list[StoredRecord] = []
        for key, timeline in islice(keys, start, None):
            if len(found) >= limit or not key.startswith(prefix):
                break
            found.append(self._history[timeline][-1])
        return found

    def all(self) -> Iterator[StoredRecord]:
        """The newest record of each timeline that is not over, in the order of creation."""
        return (rows[-1] for rows in self._history.values())


def _first(pair: tuple[str, TimelineId]) -> str:
    return pair[0]
