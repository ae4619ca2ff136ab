"""Faults for tables with ``wal(n)`` on real Ray: servers killed or frozen, and logs that move.

A frozen process (SIGSTOP) keeps its connections and answers nothing, as if it could be reached by
nobody: so two halves of the safekeepers are split from each other, one half at a time.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pyarrow as pa

from stelae import Database, Table, errors, hash_partition, wal
from stelae.coordinator.timelines.migration_steps import SILENT
from stelae.core.ids import TabletId
from stelae.core.messages.timelines import TimelineView
from stelae.core.records.configurations import StoredRecord, check_succession
from stelae.core.schema.durability import Durability
from tests.cluster.row_clients import VALUES
from tests.cluster.running import LIMIT_S, ClusterFixture
from tests.until import NO_LEADER, until

MEMBERS = 3
SAFEKEEPERS = MEMBERS + 1
SPEC: dict[str, Any] = {
    "tservers": {"count": 2, "memory": "1GiB"},
    "safekeepers": {"count": SAFEKEEPERS},
}
SCHEMA = pa.schema([pa.field("id", pa.int64(), False), *VALUES])
WAL = wal(MEMBERS, ("disk", "disk"))
BATCHES = (1, 1, 20, 150)
"""Rows in a call of each client; from a hundred on they travel as Arrow."""
KEYS_PER_CLIENT = 400


# ---- processes ------------------------------------------------------------------------------


@contextmanager
def frozen(*pids: int) -> Iterator[None]:
    """These processes do not run meanwhile."""
    with ExitStack() as thaw:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
            thaw.callback(os.kill, pid, signal.SIGCONT)
        yield


# ---- load -----------------------------------------------------------------------------------


class LoadedTable:
    """A table, with ``wal(3)`` if nothing else is said, and clients that write to it, one row or
    many a call."""

    def __init__(self, cluster: ClusterFixture, buckets: int, durability: Durability = WAL) -> None:
        self.table: Table = cluster.database.create_table(
            "w",
            SCHEMA,
            key="id",
            partition=hash_partition("id", buckets),
            durability=durability,
        )
        self.tablets = [each.tablet.tablet_id for each in cluster.database.locate_table("w")]
        self.load = cluster.load
        for number, batch in enumerate(BATCHES):
            first = number * KEYS_PER_CLIENT
            keys = [{"id": first + n} for n in range(KEYS_PER_CLIENT)]
            self.load.add(self.table, f"client-{number}", keys, batch=batch)
        self.load.start()

    def end(self) -> str:
        """End the load, and check each row; in words what was done."""
        self.load.end()
        rows = self.load.check_rows("w")
        pause_s = max(client.longest_pause_s() for client in self.load.clients)
        unknown = sum(client.unknown for client in self.load.clients)
        return (
            f"{self.load.writes} calls acknowledged, {unknown} of unknown outcome; {rows} rows; "
            f"longest pause of a client {pause_s:.2f} s"
        )


class Mover(threading.Thread):
    """Moves one log after the other to safekeepers drawn by lot, until it is told to end.

    What is refused or given up while servers are away is counted; anything else is a failure.
    """

    def __init__(self, db: Database, tablets: Sequence[TabletId]) -> None:
        super().__init__(name="mover")
        self.moved = 0
        self.problems: list[str] = []
        self.failure: BaseException | None = None
        self._db, self._tablets = db, tablets
        self._rng = random.Random(7)
        self._end = threading.Event()

    def run(self) -> None:
        try:
            while not self._end.wait(0.2):
                self._move(self._rng.choice(self._tablets))
        except BaseException as error:
            self.failure = error

    def _move(self, tablet: TabletId) -> None:
        try:
            known = [one.record.safekeeper_id for one in self._db.safekeepers()]
            now = self._db.locate_timeline(tablet).configuration
            spares = [each for each in known if each not in now.members]
            if not spares:  # it moves already: all of them are its members
                return
            out, spare = self._rng.choice(now.sk_set), self._rng.choice(spares)
            kept = [each for each in now.sk_set if each != out]
            for scheduled in self._db.migrate_timeline(tablet, [*kept, spare]):
                self._db.wait_migrated(scheduled, timeout=LIMIT_S)
                self.moved += 1
        except (errors.RetryLater, errors.MigrationUnderWay) as error:
            self.problems.append(str(error))
        except errors.InvalidArgument as error:
            if SILENT not in str(error):
                raise
            self.problems.append(str(error))

    def end(self) -> None:
        self._end.set()
        self.join()
        assert self.failure is None, repr(self.failure)


# ---- timelines ------------------------------------------------------------------------------


def seen_of_migrations(db: Database, tablets: Sequence[TabletId]) -> str:
    """For a failure: who leads the masters, how the safekeepers are, and what of these timelines
    is under way, has ended, and is in the store."""

    def masters() -> list[str]:
        status = db.status()
        roles = [f"{s['id']} {s['role']}" for s in status["servers"] if s["kind"] == "master"]
        return [f"masters in term {status['term']}: {', '.join(roles)}"]

    def safekeepers() -> list[str]:
        return [
            f"{one.record.name} ({one.record.safekeeper_id}): {one.record.status.value}, "
            f"live {one.is_live}, silent {one.silent_s} s, {one.timelines} timelines, "
            f"{one.broken} broken"
            for one in db.safekeepers()
        ]

    def migrations() -> list[str]:
        found = db.migrations()
        return [f"runs: {each}" for each in found.running] + [f"ended: {e}" for e in found.ended]

    def timelines() -> list[str]:
        views = [db.locate_timeline(tablet) for tablet in tablets]
        return [f"{view.configuration}, last of the store: {view.history[-1:]}" for view in views]

    lines: list[str] = []
    for look in (masters, safekeepers, migrations, timelines):
        try:
            lines += look()
        except errors.StelaeError as error:
            lines.append(f"{look.__name__}: {error!r}")
    return "".join(f"\n  {line}" for line in lines)


def wait_at_rest(db: Database, tablets: Sequence[TabletId]) -> list[TimelineView]:
    """All of them, once nothing of any of them is under way or left to be done."""

    def look() -> list[TimelineView]:
        views = [db.locate_timeline(tablet) for tablet in tablets]
        return views if all(is_at_rest(view) for view in views) else []

    what = "nothing left to be done for any timeline"
    return until(look, LIMIT_S, what, retried=NO_LEADER)


def is_at_rest(view: TimelineView) -> bool:
    stored = view.history[-1].record if view.history else None
    return (
        view.running is None
        and stored is not None
        and stored.is_finished
        and stored.configuration == view.configuration
    )


def check_history(history: Sequence[StoredRecord]) -> None:
    """Each revision was made of the one before by a step of the procedure. Of the first ones the
    masters forget some; a configuration store does not."""
    first = history[0].revision
    assert [stored.revision for stored in history] == [*range(first, first + len(history))]
    before = history[0].record
    for stored in history[1:]:
        check_succession(before, stored.record)
        before = stored.record


def wait_whole(db: Database, tablets: Sequence[TabletId]) -> list[TimelineView]:
    """All of them, once each has as many members as it should, which all hold the same log in its
    newest configuration. Nobody writes meanwhile."""
    views = wait_at_rest(db, tablets)

    def missing() -> list[str]:
        found = []
        for view in views:
            held = [member.held for member in db.timeline_members(view)]
            logs = {each and (each.last_log_term, each.flush_lsn, each.generation) for each in held}
            whole = len(held) == MEMBERS and len(logs) == 1 and None not in logs
            if not whole or view.configuration.generation not in {log[-1] for log in logs if log}:
                found.append(f"{view.configuration} holds {logs}")
        return found

    what = "every member holds the whole log"
    until(lambda: not missing(), LIMIT_S, what, retried=NO_LEADER)
    return views
