"""What happens to writes into ``wal(3)`` while a safekeeper hangs, the log moves, the owner dies.

One tablet, written to by single rows; two tservers and one safekeeper more than the log needs.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.common.clusters import Status, cluster, servers
from benchmarks.common.figures import Figure, at_most, median, percentile, shown
from benchmarks.common.generated import SCHEMA, one_row
from benchmarks.common.row_load import Written
from benchmarks.operations.masters import Caller
from benchmarks.tables.replica_writes import write_rows
from stelae import wal

SAFEKEEPERS = 3
WRITERS = 32
CALLERS = 4
STOP_ROUNDS, MOVES, KILLS = 5, 5, 7
HANG_FACTOR = 1.5
PAUSE_MS = 300
FAILOVER_S = 2.5
SETTLE_S, AFTER_S = 1.0, 4.0
WHOLE_TIMEOUT_S = 60.0


def measure(quick: bool) -> list[Figure]:
    """All with default timing."""
    name = "t"
    spec: dict[str, Any] = {
        "tservers": {"count": 2, "memory": "1GiB"},
        "safekeepers": {"count": SAFEKEEPERS + 1},
    }
    with cluster("wal-moves", **spec) as database:
        table = database.create_table(name, SCHEMA, key="id", durability=wal(SAFEKEEPERS))
        _wait_whole(database)
        return [
            *_hangs(database, table, 1 if quick else STOP_ROUNDS, 1.0 if quick else 4.0),
            *_moves(database, table, 1 if quick else MOVES),
            *_kills(database, table, 1 if quick else KILLS),
        ]


def _write(database: Any, table: Any, duration_s: float) -> Sequence[float]:
    load: Written = database._loop.run(write_rows([table._table] * WRITERS, duration_s))
    return load.times_s


# ---- a safekeeper hangs -------------------------------------------------------------------------


def _hangs(database: Any, table: Any, rounds: int, duration_s: float) -> list[Figure]:
    """One of the three is stopped (SIGSTOP) before each second measurement, and goes on after."""
    ratios: list[float] = []
    before: list[float] = []
    during: list[float] = []
    _write(database, table, duration_s)
    for number in range(rounds):
        members = _timeline(database)[1]
        pid = _safekeeper_pids(database)[members[number % len(members)]]
        whole = _write(database, table, duration_s)
        os.kill(pid, signal.SIGSTOP)
        try:
            hung = _write(database, table, duration_s)
        finally:
            os.kill(pid, signal.SIGCONT)
        time.sleep(SETTLE_S)
        before.append(percentile(whole, 0.99))
        during.append(percentile(hung, 0.99))
        ratios.append(during[-1] / before[-1])
    name = f"a safekeeper hangs under {WRITERS} writers: p99 of a write against before, median"
    note = f"worst {max(ratios):.2f}, best {min(ratios):.2f} of {rounds}"
    return [
        at_most(name, median(ratios), HANG_FACTOR, "×", note),
        shown("… p99 with all of them", median(before) * 1e3, "ms"),
        shown("… p99 without it", median(during) * 1e3, "ms"),
    ]


def _timeline(database: Any) -> tuple[str, tuple[int, ...]]:
    """The tablet, and the safekeepers of its log."""
    ((_, tablet, configuration),) = database.timelines("t").timelines
    return tablet, configuration.sk_set


def _safekeeper_pids(database: Any) -> dict[int, int]:
    return {s["safekeeper_id"]: s["pid"] for s in servers(database, "safekeeper")}


# ---- the log moves ------------------------------------------------------------------------------


def _moves(database: Any, table: Any, count: int) -> list[Figure]:
    """Each takes the first member out and the spare in, as an operator does it."""
    longest: list[float] = []
    usual: list[float] = []
    took: list[float] = []
    for _ in range(count):
        tablet, members = _timeline(database)
        (spare,) = [number for number in _safekeeper_pids(database) if number not in members]
        load = _Load(database, table)
        time.sleep(SETTLE_S)
        usual.append(load.take_longest_s())
        started = time.perf_counter()
        (move,) = database.migrate_timeline(tablet, [*members[1:], spare])
        database.wait_migrated(move)
        took.append(time.perf_counter() - started)
        time.sleep(SETTLE_S)
        longest.append(load.take_longest_s())
        load.stop()
    name = f"the log moves to another safekeeper under {WRITERS} writers: longest write"
    note = f"the worst of {count} moves, median {median(longest) * 1e3:.0f} ms"
    note += f"; without a move {median(usual) * 1e3:.0f} ms"
    return [
        at_most(name, max(longest) * 1e3, PAUSE_MS, "ms", note),
        shown("… from the order to its end", median(took), "s"),
    ]


class _Load:
    """Writers that go on until they are told to stop; and how long their longest write took."""

    def __init__(self, database: Any, table: Any) -> None:
        self._longest_s = 0.0
        self._is_over = False
        work = self._run(table._table)
        self._thread = threading.Thread(target=lambda: database._loop.run(work))
        self._thread.start()

    async def _run(self, table: Any) -> None:
        async def writer(number: int) -> None:
            done = 0
            while not self._is_over:
                start = time.perf_counter()
                await table.upsert(one_row(number * 1_000_000 + done % 10_000))
                self._longest_s = max(self._longest_s, time.perf_counter() - start)
                done += 1

        await asyncio.gather(*(writer(number) for number in range(WRITERS)))

    def take_longest_s(self) -> float:
        """Since the last look."""
        longest_s, self._longest_s = self._longest_s, 0.0
        return longest_s

    def stop(self) -> None:
        self._is_over = True
        self._thread.join()


# ---- the owner dies -----------------------------------------------------------------------------


def _kills(database: Any, table: Any, count: int) -> list[Figure]:
    """SIGKILL of the tserver that has the tablet: how long a client waits for its next answer."""
    pauses: list[float] = []
    for _ in range(count):
        victim = _wait_whole(database)
        callers = [_caller(table, number) for number in range(CALLERS)]
        time.sleep(SETTLE_S)
        os.kill(victim["pid"], signal.SIGKILL)
        time.sleep(AFTER_S)
        for caller in callers:
            caller.stop()
        pauses.append(max(caller.longest_s for caller in callers))
    name = f"owner killed under {CALLERS} writers: longest pause at a client, median"
    note = f"worst {max(pauses):.2f} s, best {min(pauses):.2f} s of {count}"
    return [at_most(name, median(pauses), FAILOVER_S, "s", note)]


def _caller(table: Any, number: int) -> Caller:
    return Caller(lambda calls: table.upsert(one_row(number * 1_000_000 + calls % 10_000)))


def _wait_whole(database: Any) -> Status:
    """The owner, once both tservers and all safekeepers live and the tablet is served."""
    deadline = time.monotonic() + WHOLE_TIMEOUT_S
    while time.monotonic() < deadline:
        status = database.status()
        live = [server for server in status["servers"] if server["state"] == "live"]
        tservers = {s["id"]: s for s in live if s["kind"] == "tserver"}
        keepers = [s for s in live if s["kind"] == "safekeeper"]
        tablet = status["tablets"][0]
        is_served = tablet["progress"] == "serving" and not tablet["problem"]
        has_all = len(tservers) == 2 and len(keepers) == SAFEKEEPERS + 1
        if has_all and is_served and tablet["leader"] in tservers:
            owner: dict[str, Any] = tservers[tablet["leader"]]
            return owner
        time.sleep(0.1)
    raise TimeoutError(f"not whole again: {database.status()['tablets']}")
