"""Logs of ``wal(3)`` tables on real Ray move while safekeepers, masters and the store are away.

The network split of the seed: ABC is to become ABD while A and C cannot reach B and D. First those
two do not run, then the other two; nobody has a majority of both sets while the change is joint.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, TypeAlias

import psycopg
import pytest

from stelae import Database
from stelae.core.ids import TabletId
from stelae.core.messages.timelines import TimelineView
from stelae.core.records.timelines import SafekeeperId, TimelineConfiguration, has_majority
from tests.cluster.running import LIMIT_S, ClusterFixture, ServerProcesses
from tests.cluster.wal_faults import (
    SAFEKEEPERS,
    SPEC,
    LoadedTable,
    Mover,
    check_history,
    frozen,
    wait_at_rest,
    wait_whole,
)
from tests.postgres import Postgres, needed_binaries
from tests.until import NO_LEADER, until

pytestmark = [pytest.mark.ray, pytest.mark.soak]

SPLIT_S = 3.0
SERVES_WITHIN_S = 15.0
FIRST_DELAY_S = 0.05
ROUNDS_MAX = 12
STORE_AWAY_S = 6.0
KILL_EVERY_S, KILLED_FOR_S = 4.0, 20.0


When: TypeAlias = Literal["before", "middle", "after"]


class Splits:
    """Moves of one log, and what was cut off, or killed, in the middle of them.

    When the middle is, is learned: the next blow comes earlier if the last one found a move done,
    and later if it found none begun.
    """

    def __init__(self, cluster: ClusterFixture, loaded: LoadedTable) -> None:
        self.cluster = cluster
        self.db, self.servers, self.load = cluster.database, cluster.servers, cluster.load
        self.tablets = loaded.tablets
        self.tablet = loaded.tablets[0]
        self.joint = self.served = self.resumed = 0
        """Splits that found the change joint; halves that served; moves that a later leader of the
        masters went on with."""
        self.slowest_s = 0.0
        """Of halves that could serve: until they did, if that took longer than a look."""
        self._rng = random.Random(11)
        self._delay_s = FIRST_DELAY_S

    def _view(self) -> tuple[TimelineView, SafekeeperId]:
        """The log at rest, and the safekeeper that is to become a member in place of the last."""
        (view,) = wait_at_rest(self.db, [self.tablet])
        (spare,) = set(range(1, SAFEKEEPERS + 1)) - {*view.configuration.sk_set}
        return view, SafekeeperId(spare)

    def _order(self, view: TimelineView, spare: SafekeeperId) -> None:
        """Have the log moved to its first two members and the spare one: ABC to ABD."""
        desired = (*view.configuration.sk_set[:2], spare)

        def order() -> bool:
            return bool(self.db.migrate_timeline(self.tablet, desired))

        self.cluster.until(order, "the move is taken")

    def _wait_middle(self) -> None:
        time.sleep(self._delay_s * self._rng.uniform(0.5, 1.5))

    def _learn(self, before: TimelineConfiguration, found: TimelineConfiguration) -> None:
        """From how far a move had come when it was struck."""
        if found.generation > before.generation + 1:
            self._delay_s *= 0.6
        elif found == before:
            self._delay_s *= 1.5

    def split(self, when: When, *, dies: bool = False) -> None:
        """A split before, in the middle of, or after a move: first B and D are cut off, then A and
        C. If the tablet's server ``dies`` between the two, with all that it knew, whoever is
        elected by one half must find what was acknowledged by the other."""
        view, d = self._view()
        a, b, c = view.configuration.sk_set
        names = {one.record.safekeeper_id: one.record.name for one in self.db.safekeepers()}
        pids = self.servers.processes("safekeeper", SAFEKEEPERS)
        pid = {number: pids[name] for number, name in names.items()}
        with ExitStack() as first, ExitStack() as second:
            if when == "before":
                first.enter_context(frozen(pid[b], pid[d]))
            self._order(view, d)
            if when == "middle":
                self._wait_middle()
            if when == "after":
                self.cluster.until(
                    lambda: look(self.db, self.tablet).configuration.sk_set[2] == d, "the move"
                )
                wait_at_rest(self.db, [self.tablet])
            if when != "before":
                first.enter_context(frozen(pid[b], pid[d]))
            found = self._half((a, c), serves=when == "before")
            if dies:
                self.servers.kill_at(self.db.locate_table("w")[0].address)
            second.enter_context(frozen(pid[a], pid[c]))
            first.close()
            later = self._half((b, d), serves=when == "after")
        if when == "middle":
            self._learn(view.configuration, found)
        self.joint += found.is_joint or later.is_joint
        self.load.wait_writes("after a split")
        wait_at_rest(self.db, [self.tablet])

    def _half(self, here: tuple[SafekeeperId, ...], *, serves: bool) -> TimelineConfiguration:
        """A while in which these safekeepers alone run; the log's configuration at its end.

        ``serves``: they are a majority, and rows are written. In the middle of a move nobody can
        say: a new member may have nothing of the log yet.
        """
        before, first = self._configurations(), self.load.writes
        time.sleep(SPLIT_S)
        after, writes = self._configurations(), self.load.writes - first
        sets = [members for each in after for members in each.member_sets]
        if serves:
            assert before == after
            assert all(has_majority(members, here) for members in sets), (here, sets)
            began = time.monotonic()
            what = f"{here} have a majority of {sets}: a row is written"
            until(lambda: self.load.writes > first, SERVES_WITHIN_S, what)
            if not writes:
                self.slowest_s = max(self.slowest_s, SPLIT_S + time.monotonic() - began)
            self.served += 1
        return after[0]

    def _configurations(self) -> list[TimelineConfiguration]:
        """Of all logs of the table, as the store has them: whoever waits for one writes to none."""
        views = [look(self.db, tablet) for tablet in self.tablets]
        return [view.history[-1].record.configuration for view in views]

    def kill_driver(self) -> None:
        """The leader of the masters dies in the middle of a move; nobody asks for that again."""
        (view, spare), leader = self._view(), self.servers.leader()
        self._order(view, spare)
        self._wait_middle()
        os.kill(leader, signal.SIGKILL)
        killed_at = time.time()
        self.load.wait_writes("without the driver")
        (ended,) = wait_at_rest(self.db, [self.tablet])
        found = [each.record.configuration for each in ended.history if each.at <= killed_at][-1]
        self._learn(view.configuration, found)
        self.resumed += found.is_joint
        self.servers.leader()


def look(db: Database, tablet: TabletId) -> TimelineView:
    """What the masters, and the store if it is there, know of a log."""
    return until(
        lambda: db.locate_timeline(tablet), LIMIT_S, "the masters answer", retried=NO_LEADER
    )


def test_a_log_moves_through_splits_and_the_death_of_its_driver(
    launch_small: Callable[..., Database], capsys: pytest.CaptureFixture[str]
) -> None:
    """Writes go on where a majority is, the change ends after healing, or when the next leader of
    the masters takes over; nothing is lost, and each step follows the one before."""
    with contextlib.closing(launch_small("split", **SPEC)) as db:
        cluster = ClusterFixture(db)
        loaded = LoadedTable(cluster, 1)
        splits = Splits(cluster, loaded)
        splits.split("before")
        splits.split("after")
        for number in range(ROUNDS_MAX):
            splits.split("middle", dies=number % 2 == 0)
            if splits.joint >= 3:
                break
        for _ in range(ROUNDS_MAX):
            splits.kill_driver()
            if splits.resumed >= 2:
                break
        text = loaded.end()
        (view,) = wait_whole(db, loaded.tablets)
        check_history(view.history)
        assert db.check(wait=LIMIT_S).is_well
    with capsys.disabled():
        counts = f"{splits.joint} splits while joint, {splits.resumed} moves resumed"
        counts += f", slowest half {splits.slowest_s:.1f} s"
        print(f"\n{counts}, generation {view.configuration.generation}; {text}")
    assert splits.joint >= 3
    assert splits.served >= 2
    assert splits.resumed >= 2


# ---- a configuration store ------------------------------------------------------------------


class SqliteStore:
    """The store's own file. To be away, its server is stopped, then killed: Ray starts another."""

    url = "sqlite:///cas.db"

    def __init__(self, folder: Path) -> None:
        self._path = folder / "cas_store-1" / "cas.db"

    @contextlib.contextmanager
    def away(self, servers: ServerProcesses) -> Iterator[None]:
        (store,) = servers.wait_live("cas_store", 1).values()
        os.kill(store["pid"], signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(store["pid"], signal.SIGKILL)

    def rows(self) -> list[tuple[str, int, int]]:
        with contextlib.closing(sqlite3.connect(self._path, timeout=10.0)) as file:
            order = "SELECT key, revision, generation FROM configurations ORDER BY key, revision"
            return file.execute(order).fetchall()

    def remove(self) -> None:
        """The cluster's folder goes with the cluster."""


class PostgresStore:
    """A real PostgreSQL, killed without a checkpoint; its URL says all."""

    def __init__(self, folder: Path) -> None:
        self._server = Postgres(needed_binaries())
        self._server.create()
        self.url = self._server.url

    @contextlib.contextmanager
    def away(self, servers: ServerProcesses) -> Iterator[None]:
        self._server.kill()
        try:
            yield
        finally:
            self._server.start()

    def rows(self) -> list[tuple[str, int, int]]:
        with psycopg.connect(self.url) as connection:
            return connection.execute(
                "SELECT key, revision, generation FROM stelae_configurations ORDER BY key, revision"
            ).fetchall()

    def remove(self) -> None:
        self._server.remove()


@pytest.fixture(params=[SqliteStore, PostgresStore], ids=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, ray_folder: Path) -> Iterator[Any]:
    made = request.param(ray_folder / request.param.__name__)
    yield made
    made.remove()


def test_with_a_configuration_store_that_goes_away_too(
    store: Any, launch_small: Callable[..., Database], capsys: pytest.CaptureFixture[str]
) -> None:
    """Kills, splits and the death of the driver as before. While the store is away writes go on,
    and a move waits; then it ends. Every configuration that ever was is in the store's history."""
    launched = launch_small(type(store).__name__, **SPEC, cas_store={"url": store.url})
    with contextlib.closing(launched) as db:
        cluster, rng = ClusterFixture(db), random.Random(5)
        loaded = LoadedTable(cluster, 2)
        mover = Mover(db, loaded.tablets)
        mover.start()
        began, kinds = time.monotonic(), ("safekeeper", "cas_store", "tserver")
        number = 0
        while time.monotonic() - began < KILLED_FOR_S:
            time.sleep(KILL_EVERY_S)
            cluster.servers.kill_any(kinds[number % len(kinds)], rng)
            number += 1
        mover.end()
        wait_at_rest(db, loaded.tablets)
        away_for_a_while(cluster, loaded.tablets[0], store)
        splits = Splits(cluster, loaded)
        for number in range(ROUNDS_MAX):
            splits.split("middle", dies=number % 2 == 0)
            if splits.joint:
                break
        for _ in range(ROUNDS_MAX):
            splits.kill_driver()
            if splits.resumed:
                break
        text = loaded.end()
        views = wait_whole(db, loaded.tablets)
        for view in views:
            assert view.history[0].revision == 1
            check_history(view.history)
        told = [
            (stored.record.timeline.key, stored.revision, stored.record.generation)
            for view in views
            for stored in view.history
        ]
        assert store.rows() == sorted(told)
        assert db.check(wait=LIMIT_S).is_well
        with capsys.disabled():
            print(f"\n{mover.moved} moves; {len(told)} records in the store; {text}")
        assert mover.moved
        assert splits.joint
        assert splits.resumed


def away_for_a_while(cluster: ClusterFixture, tablet: TabletId, store: Any) -> None:
    """The store is away, while a move is asked for; what was written before stands after."""
    db, before = cluster.database, store.rows()
    view = look(db, tablet)
    (spare,) = set(range(1, SAFEKEEPERS + 1)) - {*view.configuration.sk_set}
    desired = (*view.configuration.sk_set[1:], spare)
    with store.away(cluster.servers):
        ordered = time.monotonic()
        (move,) = db.migrate_timeline(tablet, desired)
        while time.monotonic() - ordered < STORE_AWAY_S:
            cluster.load.wait_writes("without the store")
        there = db.locate_timeline(tablet)
        assert there.store_problem
        assert there.configuration == view.configuration
    db.wait_migrated(move, timeout=LIMIT_S)
    (moved,) = wait_at_rest(db, [tablet])
    assert sorted(moved.configuration.sk_set) == sorted(desired)
    after = store.rows()
    assert [row for row in after if row in before] == before
