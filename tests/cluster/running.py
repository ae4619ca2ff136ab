"""A running cluster on real Ray as a test sees it: its database, its processes, and its clients.

A test gives the database that it launched, with its own settings, and bounds the waits; everything
else is composed here. `ServerProcesses` finds and kills servers by what the masters know of them.
`ClientLoad` holds the clients, each of which checks its own rows.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from stelae import Database, Table
from stelae.client.check.check import CheckReport
from tests.cluster.row_clients import Client, check_failures, check_rows
from tests.until import NO_LEADER, until

T = TypeVar("T")
LIMIT_S = 60.0
"""Upper bound of a wait, where a test has none of its own."""
MASTERS = 3
ServerStatus = dict[str, Any]
"""One server, as the status document has it."""


class ServerProcesses:
    """The processes of a cluster's servers, by name."""

    def __init__(self, database: Database, limit_s: float) -> None:
        self._database = database
        self._limit_s = limit_s

    def live(self, kind: str = "") -> dict[str, ServerStatus]:
        """Servers that live, of one kind or of all."""
        servers = self._database.status()["servers"]
        return {s["id"]: s for s in servers if kind in ("", s["kind"]) and s["state"] == "live"}

    def wait_live(self, kind: str, count: int) -> dict[str, ServerStatus]:
        """Wait until at least ``count`` live; they by name."""

        def enough() -> dict[str, ServerStatus]:
            found = self.live(kind)
            return found if len(found) >= count else {}

        what = f"{count} live servers of kind {kind}"
        return until(enough, self._limit_s, what, retried=NO_LEADER)

    def processes(self, kind: str, count: int) -> dict[str, int]:
        """Ids of the processes of all of a kind, by name, once all of them live."""
        return {name: one["pid"] for name, one in self.wait_live(kind, count).items()}

    def leader(self) -> int:
        """The process of the leader of the masters, once all of them are there."""
        masters = self.wait_live("master", MASTERS)
        (leader,) = (one for one in masters.values() if one["role"] == "leader")
        return int(leader["pid"])

    def victims(self, kind: str) -> list[ServerStatus]:
        """The server to kill for a kind, which may name a role ("leader master"); of tablet
        servers the one with most tablets. Empty: none lives."""
        *role, kind = kind.split()
        found = list(self.live(kind).values())
        found = [s for s in found if not role or s.get("role", "") in role]
        return sorted(found, key=lambda s: -s.get("tablets", 0))[:1]

    def kill(self, name: str) -> int:
        """Kill a server that lives; its process, or 0 if it does not live."""
        server = self.live().get(name)
        if server is None:
            return 0
        os.kill(server["pid"], signal.SIGKILL)
        return int(server["pid"])

    def kill_any(self, kind: str, rng: random.Random) -> str:
        """Kill one of a kind that lives; its name, or nothing if none is back from its last
        death."""
        live = self.live(kind)
        if not live:
            return ""
        name = rng.choice(sorted(live))
        os.kill(live[name]["pid"], signal.SIGKILL)
        return name

    def kill_at(self, address: str) -> int:
        """Kill the tablet server that listens there; its process, or 0 if it is gone."""
        for server in self.live("tserver").values():
            if server["address"] == address:
                os.kill(server["pid"], signal.SIGKILL)
                return int(server["pid"])
        return 0

    def replace(self, victims: Iterable[ServerStatus]) -> None:
        """Kill all of them at once; wait until each lives in another process."""
        killed = {victim["id"]: victim["pid"] for victim in victims}
        for pid in killed.values():
            os.kill(pid, signal.SIGKILL)

        def are_back() -> bool:
            pids = {name: server["pid"] for name, server in self.live().items()}
            return all(pids.get(name, pid) != pid for name, pid in killed.items())

        what = f"{', '.join(killed)} live in other processes"
        until(are_back, self._limit_s, what, retried=NO_LEADER)


class ClientLoad:
    """The clients that write to the tables of a cluster."""

    def __init__(self, limit_s: float) -> None:
        self.clients: list[Client] = []
        self._limit_s = limit_s

    def add(self, table: Table, name: str, keys: Sequence[dict[str, Any]], *, batch: int) -> None:
        """Add a client that owns these rows of the table, and writes up to ``batch`` a call."""
        self.clients.append(Client(table, name, keys, batch=batch))

    def start(self) -> None:
        for client in self.clients:
            client.start()

    @property
    def writes(self) -> int:
        """Number of calls acknowledged so far."""
        return sum(len(client.acknowledged) for client in self.clients)

    def wait_writes(self, what: str, count: int = 50) -> None:
        """Wait until ``count`` more calls of all clients together are acknowledged."""
        wanted = self.writes + count
        self._wait(lambda: self.writes >= wanted, what)

    def wait_each(self, what: str, count: int) -> None:
        """Wait until ``count`` more calls of each client are acknowledged."""
        wanted = {client.name: len(client.acknowledged) + count for client in self.clients}
        self._wait(lambda: all(len(c.acknowledged) >= wanted[c.name] for c in self.clients), what)

    def _wait(self, written: Callable[[], bool], what: str) -> None:
        def are_written() -> bool:
            check_failures(self.clients)
            return written()

        until(are_written, self._limit_s, f"writes {what}")

    def stop(self) -> None:
        """End all clients, whatever they met."""
        for client in self.clients:
            client.end()

    def end(self) -> None:
        """End all clients; none of them met an error or a wrong row."""
        self.stop()
        check_failures(self.clients)

    def longest_pause_s(self, table: str, since: float) -> float:
        """The longest time, of any client of a table, between two of its writes.

        The later one was acknowledged not before ``since``, by the monotonic clock.
        """
        of_table = [client for client in self.clients if client.table.name == table]
        return max(client.longest_pause_s(since) for client in of_table)

    def check_rows(self, table: str, seen_by: Table | None = None) -> int:
        """Compare all rows of a table with what its clients know; how many rows there are.

        ``seen_by``: the table of another connection, which the clients use from now on.
        """
        of_table = [client for client in self.clients if client.table.name == table]
        for client in of_table:
            client.table = seen_by or client.table
        return check_rows(of_table)


class ClusterFixture:
    """One running cluster: its database, the processes of its servers, and clients that write."""

    def __init__(self, database: Database, *, limit_s: float = LIMIT_S) -> None:
        """``database`` is closed by the test; ``limit_s`` bounds each wait."""
        self.database = database
        self.limit_s = limit_s
        self.servers = ServerProcesses(database, limit_s)
        self.load = ClientLoad(limit_s)

    def until(self, condition: Callable[[], T | None], what: str) -> T:
        """Wait until a condition holds that asks servers, which may be electing a leader."""
        return until(condition, self.limit_s, what, retried=NO_LEADER)

    def check_whole(self, wait_s: float) -> CheckReport:
        """Wait until the masters and every server find nothing missing; their report."""
        report = self.database.check(wait=wait_s, timeout=wait_s)
        assert report.is_well, [str(problem) for problem in report.problems]
        return report
