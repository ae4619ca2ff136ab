"""What the catalog keeps beside tables for tablets with ``wal(n, …)``: who the safekeepers are, and
(where no other store is named) the configuration of each timeline. A part of
`stelae.coordinator.catalog`, and as deterministic.

Invariants:
- an id of a safekeeper is given once, to one server, and its record stays for ever;
- a configuration follows the one before it as a step of the procedure leads to it
  (`check_succession`), whoever wrote it: its revision is the compare-and-set;
- of a timeline that is deleted, with nothing left to be done, one record stays for ever.

Implements seed 004 ("Schema": safekeepers, timelines; "configuration storage"); design §10.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from stelae.core.configurations import StoredRecord, TimelineId, check_succession
from stelae.core.errors import InvalidArgument
from stelae.core.ids import ServerUuid, TableId
from stelae.core.records import SafekeeperRecord
from stelae.core.timelines import SafekeeperId

HISTORY_MAX = 32
"""Records kept of one timeline, the newest: by them a repeated write is recognised."""


class TimelineState(msgspec.Struct, array_like=True):
    """All of it, in a snapshot."""

    safekeepers: list[SafekeeperRecord] = []
    timelines: list[list[StoredRecord]] = []


class TimelineCatalog:
    """The registry of safekeepers, and the configurations of timelines."""

    def __init__(self, state: TimelineState | None = None) -> None:
        state = state or TimelineState()
        self.safekeepers: dict[SafekeeperId, SafekeeperRecord] = {}
        self._id_of: dict[ServerUuid, SafekeeperId] = {}
        self._history: dict[TimelineId, list[StoredRecord]] = {}
        self._keys: list[tuple[str, TimelineId]] | None = None
        self.commit(state.safekeepers, ())
        for rows in state.timelines:
            self._history[rows[-1].record.timeline] = list(rows)

    def state(self) -> TimelineState:
        """For a snapshot."""
        return TimelineState(list(self.safekeepers.values()), list(self._history.values()))

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
            is_over = row.record.deleted and row.record.is_finished
            del rows[: -1 if is_over else -HISTORY_MAX]

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
        rows = self._history.get(timeline)
        return rows[-1] if rows else None

    def history(self, timeline: TimelineId) -> Sequence[StoredRecord]:
        """The newest records of a timeline, oldest first."""
        return self._history.get(timeline, ())

    def page(
        self, table_id: TableId | None, after: TimelineId | None, limit: int
    ) -> list[StoredRecord]:
        """Newest records, in the order of their keys."""
        if self._keys is None:
            self._keys = sorted((timeline.key, timeline) for timeline in self._history)
        prefix = "" if table_id is None else f"{table_id}/"
        keys = self._keys
        start = bisect_right(keys, after.key if after is not None else prefix, key=_first)
        found: list[StoredRecord] = []
        for key, timeline in keys[start:]:
            if len(found) >= limit or not key.startswith(prefix):
                break
            found.append(self._history[timeline][-1])
        return found

    def all(self) -> Iterator[StoredRecord]:
        """The newest record of each timeline, in the order of creation."""
        return (rows[-1] for rows in self._history.values())


def _first(pair: tuple[str, TimelineId]) -> str:
    return pair[0]
