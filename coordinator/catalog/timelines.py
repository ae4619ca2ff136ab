"""What the catalog keeps beside tables for tablets with ``wal(n, …)``: who the safekeepers are, and
(where no other store is named) the configuration of each timeline; and what operators have ordered
of timelines, until it is decided. A part of `stelae.coordinator.catalog.catalog`, and as
deterministic.

Invariants:
- an id of a safekeeper is given once, to one server, and its record stays for ever;
- a configuration follows the one before it as a step of the procedure leads to it
  (`check_succession`), whoever wrote it: its revision is the compare-and-set;
- every record ever written stays, in order: of a timeline all but the newest ones are packed away;
- a timeline that is deleted, with nothing left to be done, is *over*: packed away with others,
  found by its id and listed no more.

Implements seed 004 ("Schema": safekeepers, timelines; "configuration storage"); design §10.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import msgspec

from stelae.core.errors import InvalidArgument
from stelae.core.ids import ServerUuid, TableId
from stelae.core.records.configurations import (
    MigrationOrder,
    StoredRecord,
    TimelineId,
    check_succession,
)
from stelae.core.records.records import SafekeeperRecord
from stelae.core.records.timelines import SafekeeperId

RECENT = 32
"""Records of one timeline that are packed away together, as soon as there are twice as many."""
PACK_SIZE = 256
"""Timelines that are over, packed away together."""
_LEVEL = 1


class Packed(msgspec.Struct, frozen=True, array_like=True):
    """Timelines that are over; opened when somebody asks for one."""

    timelines: tuple[TimelineId, ...]
    records: bytes
    """Of each, in that order, the last one."""
    older: bytes = b""
    """Of each all others, oldest first; empty where they were not kept yet."""


class Older(msgspec.Struct, frozen=True, array_like=True):
    """All but the newest records of a timeline, oldest first."""

    timeline: TimelineId
    packs: list[bytes]


class TimelineState(msgspec.Struct, array_like=True):
    """All of it, in a snapshot."""

    safekeepers: list[SafekeeperRecord] = []
    timelines: list[list[StoredRecord]] = []
    over: list[StoredRecord] = []
    packed: list[Packed] = []
    older: list[Older] = []
    orders: list[MigrationOrder] = []


_ENCODER = msgspec.msgpack.Encoder()
_RECORDS = msgspec.msgpack.Decoder(list[StoredRecord])
_HISTORIES = msgspec.msgpack.Decoder(list[list[StoredRecord]])


class TimelineCatalog:
    """The registry of safekeepers, the configurations of timelines, and orders about them."""

    def __init__(self, state: TimelineState | None = None) -> None:
        state = state or TimelineState()
        self.orders = {order.timeline: order for order in state.orders}
        """What operators have ordered and is not decided yet, in the order in which it came."""
        self.safekeepers: dict[SafekeeperId, SafekeeperRecord] = {}
        self._id_of: dict[ServerUuid, SafekeeperId] = {}
        self._recent: dict[TimelineId, list[StoredRecord]] = {}
        self._older = {one.timeline: list(one.packs) for one in state.older}
        self._keys: list[tuple[str, TimelineId]] | None = None
        self._over = {row.record.timeline: row for row in state.over}
        self._packed = list(state.packed)
        self._pack_of = {timeline: pack for pack in self._packed for timeline in pack.timelines}
        self.commit(state.safekeepers, ())
        for rows in state.timelines:
            self._recent[rows[-1].record.timeline] = list(rows)

    def state(self) -> TimelineState:
        """For a snapshot."""
        return TimelineState(
            list(self.safekeepers.values()),
            list(self._recent.values()),
            list(self._over.values()),
            list(self._packed),
            [Older(timeline, list(packs)) for timeline, packs in self._older.items()],
            list(self.orders.values()),
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
            rows = self._recent.get(timeline)
            if rows is None:
                rows = self._recent[timeline] = []
                self._keys = None
            rows.append(row)
            if row.record.is_over:
                self._put_away(row)
            elif len(rows) >= 2 * RECENT:
                self._pack_older(timeline, RECENT)

    def order(self, given: Iterable[MigrationOrder], decided: Iterable[MigrationOrder]) -> None:
        """Keep what was given, each in place of an earlier order for its timeline; forget what is
        decided, unless another order has come since."""
        for order in decided:
            if self.orders.get(order.timeline) == order:
                del self.orders[order.timeline]
        for order in given:
            self.orders.pop(order.timeline, None)
            self.orders[order.timeline] = order

    def _pack_older(self, timeline: TimelineId, count: int) -> None:
        rows = self._recent[timeline]
        self._older.setdefault(timeline, []).append(_pack(rows[:count]))
        del rows[:count]

    def _put_away(self, row: StoredRecord) -> None:
        """Nothing of it ever changes again."""
        timeline = row.record.timeline
        self._pack_older(timeline, len(self._recent[timeline]) - 1)
        del self._recent[timeline]
        self._keys = None
        self._over[timeline] = row
        if len(self._over) < PACK_SIZE:
            return
        older = [self._opened(over) for over in self._over]
        pack = Packed(tuple(self._over), _pack(list(self._over.values())), _pack(older))
        for over in self._over:
            self._older.pop(over, None)
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
        rows = self.recent(timeline)
        return rows[-1] if rows else None

    def recent(self, timeline: TimelineId) -> Sequence[StoredRecord]:
        """The newest records of a timeline, oldest first: what is there without opening its older
        ones. The last one always is."""
        pack = self._pack_of.get(timeline)
        if pack is not None:
            rows = _RECORDS.decode(zlib.decompress(pack.records))
            return (rows[pack.timelines.index(timeline)],)
        over = self._over.get(timeline)
        return self._recent.get(timeline, ()) if over is None else (over,)

    def at(self, timeline: TimelineId, revision: int) -> StoredRecord | None:
        """The record of that revision; cheap if it is recent."""
        rows = self.history(timeline, revision - 1)
        return rows[0] if rows and rows[0].revision == revision else None

    def history(self, timeline: TimelineId, after_revision: int = 0) -> Sequence[StoredRecord]:
        """All records of a timeline above a revision, oldest first; no older ones are opened than
        have to be."""
        rows = self.recent(timeline)
        if rows and rows[0].revision > after_revision + 1:
            rows = [*self._opened(timeline, after_revision), *rows]
        return [row for row in rows if row.revision > after_revision]

    def _opened(self, timeline: TimelineId, after_revision: int = 0) -> list[StoredRecord]:
        """What is packed of a timeline, at least all above a revision."""
        pack = self._pack_of.get(timeline)
        if pack is not None:
            at = pack.timelines.index(timeline)
            return _HISTORIES.decode(zlib.decompress(pack.older))[at] if pack.older else []
        found: list[StoredRecord] = []
        for packed in reversed(self._older.get(timeline, ())):
            rows = _RECORDS.decode(zlib.decompress(packed))
            found[:0] = rows
            if rows and rows[0].revision <= after_revision + 1:
                break
        return found

    def page(
        self, table_id: TableId | None, after: TimelineId | None, limit: int
    ) -> list[StoredRecord]:
        """Newest records, in the order of their keys; none of timelines that are over."""
        if self._keys is None:
            self._keys = sorted((timeline.key, timeline) for timeline in self._recent)
        prefix = "" if table_id is None else f"{table_id}/"
        keys = self._keys
        start = bisect_right(keys, after.key if after is not None else prefix, key=_first)
        found: list[StoredRecord] = []
        for key, timeline in islice(keys, start, None):
            if len(found) >= limit or not key.startswith(prefix):
                break
            found.append(self._recent[timeline][-1])
        return found

    def all(self) -> Iterator[StoredRecord]:
        """The newest record of each timeline that is not over, in the order of creation."""
        return (rows[-1] for rows in self._recent.values())


def _pack(records: list[StoredRecord] | list[list[StoredRecord]]) -> bytes:
    return zlib.compress(_ENCODER.encode(records), _LEVEL)


def _first(pair: tuple[str, TimelineId]) -> str:
    return pair[0]
