"""A replica's leader is killed under writes: how long a client waits for its next answer."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from benchmarks.common.clusters import Status, cluster, servers
from benchmarks.common.figures import Figure, at_most, median, shown
from benchmarks.common.generated import SCHEMA, one_row
from benchmarks.operations.masters import Caller
from stelae import replicas

KILLS = 10
TSERVERS = 3
CLIENTS = 4
LIMIT_S = 2.0
WARM_S, AFTER_S = 1.0, 4.0
WHOLE_TIMEOUT_S = 60.0


def measure(quick: bool) -> list[Figure]:
    """SIGKILL of the tserver that leads the only tablet, with default timing, again and again."""
    with cluster("failover", tservers={"count": TSERVERS, "memory": "512MiB"}) as database:
        return pauses(database, 2 if quick else KILLS, LIMIT_S)


def pauses(database: Any, kills: int, limit_s: float) -> list[Figure]:
    """Kill the leader of a new table's only tablet ``kills`` times. The cluster has three tservers,
    and no other table."""
    table = database.create_table("t", SCHEMA, key="id", durability=replicas(TSERVERS))
    pauses: list[float] = []
    rates: list[float] = []
    for _ in range(kills):
        victim = _leader(database)
        callers = [_writer(table, number) for number in range(CLIENTS)]
        time.sleep(WARM_S)
        rates.append(sum(caller.calls for caller in callers) / WARM_S)
        os.kill(victim["pid"], signal.SIGKILL)
        time.sleep(AFTER_S)
        for caller in callers:
            caller.stop()
        pauses.append(max(caller.longest_s for caller in callers))
    note = f"worst {max(pauses):.2f} s, best {min(pauses):.2f} s of {len(pauses)}"
    name = f"leader killed under {CLIENTS} writers: longest pause at a client, median"
    return [
        at_most(name, median(pauses), limit_s, "s", note),
        shown("… their writes before the kill", median(rates), "rows/s"),
    ]


def _writer(table: Any, number: int) -> Caller:
    return Caller(lambda calls: table.upsert(one_row(number * 1_000_000 + calls % 10_000)))


def _leader(database: Any) -> Status:
    """The server that leads the tablet, once all replicas take part and have everything."""
    deadline = time.monotonic() + WHOLE_TIMEOUT_S
    while time.monotonic() < deadline:
        status = database.status()
        tablet = status["tablets"][0]
        tservers = {s["id"]: s for s in servers(database, "tserver") if s["state"] == "live"}
        if len(tservers) == TSERVERS and tablet["leader"] in tservers and is_whole(tablet):
            return tservers[tablet["leader"]]
        time.sleep(0.1)
    raise TimeoutError(f"the tablet is not whole again: {database.status()['tablets']}")


def is_whole(tablet: Status) -> bool:
    """All members vote, take part and lack at most what is on its way."""
    members = [replica for replica in tablet["replicas"] if replica["member"] != "none"]
    ends = [replica.get("last", [0, 0])[1] for replica in members]
    return (
        tablet["under_replicated"] == 0
        and not tablet["problem"]
        and len(members) == tablet["replicas_wanted"]
        and all(replica["member"] == "voter" for replica in members)
        and max(ends) - min(ends) < 100
    )
