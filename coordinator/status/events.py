"""What happened of late in a cluster, for people: a bounded list that every master keeps.

Most events are read off the catalog's entries, which every master applies: so whoever leads next
tells the same story. What is not in the log (servers heard for the first time, or found dead) the
leader master adds, as it does those that were expected and not heard, and it goes with its
leadership. Nothing is decided from any of it.

`Chronicle` stands where the catalog's state machine is applied and hands everything on; entries
that were in the log before this master began have no time, as entries do not carry one. Times are
seconds of this master's monotonic clock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.liveness.liveness import Liveness, Run, run_of
from stelae.coordinator.placement.known_backups import not_heard_backups
from stelae.core.ids import ServerUuid, TableId
from stelae.core.records.records import (
    BackupRecord,
    ServerMark,
    TableRecord,
    TableState,
    TabletRecord,
    TabletState,
)

KEPT = 100
DETAILS_MAX = 3
"""Events of one kind that one entry may add: an entry may have a thousand tablets."""
_DECODER = msgspec.msgpack.Decoder(CatalogBatch)


class Event(NamedTuple):
    """One line. ``mood``: bad, warn, good, calm."""

    number: int
    at: float | None
    """None: before this master began."""
    text: str
    mood: str


class EventLog:
    """The last of them."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._events: deque[Event] = deque(maxlen=KEPT)
        self._number = 0

    def add(self, text: str, mood: str = "calm", *, is_new: bool = True) -> None:
        """It happened now; or, if it is not new, at a time that nobody knows."""
        self._number += 1
        self._events.append(Event(self._number, self._monotonic() if is_new else None, text, mood))

    def describe(self, now: float, wall: float) -> list[dict[str, Any]]:
        """For the status document, the newest first."""
        return [
            {
                "id": event.number,
                "time": None if event.at is None else round(wall - (now - event.at), 3),
                "text": event.text,
                "mood": event.mood,
            }
            for event in reversed(self._events)
        ]


# ---- from the log -----------------------------------------------------------------------------


class Chronicle:
    """The catalog as the masters' log sees it, with an eye on what changes."""

    def __init__(self, catalog: Catalog, events: EventLog) -> None:
        self._catalog = catalog
        self._events = events
        self.old_until = 0
        """Entries up to this index were in the log before this master began."""

    def apply(self, index: int, term: int, command: bytes) -> object:
        """As `Catalog.apply`."""
        catalog, batch = self._catalog, _DECODER.decode(command)
        tables = {each.table_id: catalog.tables.get(each.table_id) for each in batch.tables}
        tablets = [(catalog.tablets.get(each.tablet_id), each) for each in batch.tablets]
        marks = [(catalog.marks.get(each.uuid), each) for each in batch.marks]
        others = (catalog.access, catalog.rebalancing, len(catalog.backups.losses))
        outcome = catalog.apply(index, term, command)
        told = [
            *_of_tables(catalog, tables),
            *_of_tablets(catalog, tables, tablets),
            *_of_marks(catalog, marks),
            *_of_others(catalog, others),
        ]
        for text, mood in told:
            self._events.add(text, mood, is_new=index > self.old_until)
        return outcome

    def snapshot(self) -> bytes:
        """As `Catalog.snapshot`: events are not in it."""
        return self._catalog.snapshot()

    def restore(self, data: bytes) -> None:
        """As `Catalog.restore`."""
        self._catalog.restore(data)


def _of_tables(
    catalog: Catalog, tables: Mapping[TableId, TableRecord | None]
) -> Iterator[tuple[str, str]]:
    for table_id, before in tables.items():
        now = catalog.tables.get(table_id)
        if now is None or now is before or (before and now.generation == before.generation):
            continue
        if before is None:
            tablets = len(catalog.tablets_of(table_id))
            yield f"table {now.name} created with {tablets} tablets, {now.durability}", "calm"
        elif now.state is TableState.DELETED:
            yield f"table {now.name} deleted", "warn"
        else:
            yield from _of_altered(before, now)


def _of_altered(before: TableRecord, now: TableRecord) -> Iterator[tuple[str, str]]:
    if now.name != before.name:
        yield f"table {before.name} renamed to {now.name}", "calm"
    if now.schema.version != before.schema.version:
        yield f"table {now.name} has schema version {now.schema.version}", "calm"
    if now.becoming is not None and now.change != before.change:
        yield f"table {now.name} becomes {now.becoming}", "calm"
    if now.durability != before.durability:
        yield f"table {now.name} is {now.durability} now", "good"


def _of_tablets(
    catalog: Catalog,
    tables: Mapping[TableId, TableRecord | None],
    tablets: list[tuple[TabletRecord | None, TabletRecord]],
) -> Iterator[tuple[str, str]]:
    """What befell tablets of tables that were there before, by table."""
    counts: Counter[tuple[str, str]] = Counter()
    for before, wanted in tablets:
        now = catalog.tablets.get(wanted.tablet_id)
        if before is None or now is None or now.generation == before.generation:
            continue
        table = catalog.tables.get(now.table_id)
        if table is None or table.state is TableState.DELETED:
            continue
        if before.state is TabletState.CREATING and now.state is TabletState.RUNNING:
            continue  # the table's creation has been told
        if before.state is not now.state:
            counts[table.name, _WORDS[now.state]] += 1
        elif now.configuration != before.configuration:
            counts[table.name, "with other replicas"] += 1
        elif now.timeline != before.timeline:
            counts[table.name, "with a log on other safekeepers"] += 1
    for (name, words), count in counts.most_common(DETAILS_MAX):
        what = "1 tablet" if count == 1 else f"{count} tablets"
        mood = {"to be recovered": "bad", "served": "good"}.get(words, "calm")
        yield f"table {name}: {what} {words}", mood


_WORDS = {
    TabletState.CREATING: "being created",
    TabletState.RUNNING: "served",
    TabletState.RECOVERING: "to be recovered",
    TabletState.DELETED: "deleted",
    TabletState.REPLACED: "replaced",
}


def _of_marks(
    catalog: Catalog, marks: list[tuple[ServerMark | None, ServerMark]]
) -> Iterator[tuple[str, str]]:
    for known, wanted in marks[:DETAILS_MAX]:
        before = known or ServerMark(wanted.uuid, wanted.name, generation=0)
        now = catalog.marks.get(wanted.uuid, before)
        if now.retiring != before.retiring:
            yield f"{now.name} is {'' if now.retiring else 'not '}to be retired", "warn"
        if now.maintenance != before.maintenance:
            yield f"{now.name} is {'' if now.maintenance else 'no longer '}in maintenance", "warn"


def _of_others(catalog: Catalog, before: tuple[Any, Any, int]) -> Iterator[tuple[str, str]]:
    access, rebalancing, losses = before
    if catalog.access.generation != access.generation:
        had = {token.name for token in access.all}
        has = {token.name for token in catalog.access.all}
        # Whoever may read sees this: not what tokens are called, nor who accepted what.
        for _ in sorted(has - had)[:DETAILS_MAX]:
            yield "an access token was created", "calm"
        for _ in sorted(had - has)[:DETAILS_MAX]:
            yield "an access token was revoked", "calm"
    if catalog.rebalancing.generation != rebalancing.generation:
        after_s = catalog.rebalancing.after_s
        off = after_s is not None and after_s <= 0
        yield f"rebalancing switched {'off' if off else 'on'}", "calm"
    for _ in catalog.backups.losses[losses:][:DETAILS_MAX]:
        yield "a loss of rows was accepted", "bad"


# ---- what the log does not say ----------------------------------------------------------------


class ServerEvents:
    """Of one leadership: which servers come and go, and which backups were expected in vain."""

    def __init__(self, events: EventLog, catalog: Catalog, liveness: Liveness) -> None:
        self._events = events
        self._catalog = catalog
        self._liveness = liveness
        self._has_missed = False
        self._was_live: dict[ServerUuid, tuple[Run, bool]] = {}

    def look(self, now: float) -> None:
        """Add what is different from the last look."""
        is_first, known = not self._was_live, self._was_live
        self._was_live = {}
        for seen in self._liveness.newest_runs():
            run, live = run_of(seen), self._liveness.is_live(run_of(seen), now)
            self._was_live[run.uuid] = run, live
            if is_first:
                continue
            name, before = seen.server.name, known.get(run.uuid)
            if before is None:
                self._events.add(f"{name} is live")
            elif before[0] != run:
                self._events.add(f"{name} was started anew", "good")
            elif before[1] and not live:
                self._events.add(f"{name} was found dead", "bad")
            elif live and not before[1]:
                self._events.add(f"{name} is heard again", "good")
        if not self._has_missed and not self._liveness.may_hear(now):
            self._has_missed = True  # from now on every one that is heard is remembered
            self._miss(not_heard_backups(self._catalog, self._liveness, now))

    def _miss(self, away: Sequence[BackupRecord]) -> None:
        for record in away[:DETAILS_MAX]:
            where = f"{record.name} on machine {record.machine}"
            self._events.add(f"{where} is a known backup, and was not heard", "bad")
        if len(away) > DETAILS_MAX:
            others = len(away) - DETAILS_MAX
            self._events.add(f"{others} more of the known backups were not heard", "bad")
