"""What is wrong with a cluster, in plain words, and the command that helps: for the status page.

From the status document alone. Pure. The worst comes first; many of one kind are one line.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from stelae.serve.pages.html import duration, plural

Document = Mapping[str, Any]
NAMES_SHOWN = 4
MEMORY_HIGH = 0.9
"""Of a tserver's memory in use: cleaning keeps below it while there is something to clean."""
KIND_WORDS = {
    "master": "master",
    "tserver": "tablet server",
    "backup": "backup",
    "safekeeper": "safekeeper",
    "cas_store": "configuration store",
}


class Finding(NamedTuple):
    """``mood``: bad (rows cannot be had, or would not outlive the next loss), warn, calm."""

    mood: str
    words: str
    help: str = ""
    """A command."""


def findings(status: Document) -> list[Finding]:
    """All that is worth saying; empty: all is well."""
    looks: Sequence[Callable[[Document], Iterator[Finding]]] = (
        _of_masters, _of_servers, _of_unheard, _of_machines, _of_tablets, _of_shortages,
        _of_memory, _of_operations, _of_wishes,
    )  # fmt: skip
    found = [each for look in looks for each in look(status)]
    return sorted(found, key=lambda each: ("bad", "warn", "calm").index(each.mood))


def newest_runs(servers: Sequence[Document]) -> list[Document]:
    """Of each server its last run: those before it are dead, which is as it should be."""
    newest: dict[Any, Document] = {}
    for server in servers:
        key = server.get("uuid") or (server.get("kind"), server.get("id"))
        known = newest.get(key)
        if known is None or server.get("incarnation", 0) >= known.get("incarnation", 0):
            newest[key] = server
    return list(newest.values())


def is_served(tablet: Document) -> bool:
    """Whether its rows can be read and written, as far as whoever answers knows."""
    has_leader = bool(tablet.get("leader")) or "replicas" not in tablet
    return tablet.get("state") == "running" and has_leader


def names(items: Sequence[Any]) -> str:
    """A few of them, and how many more."""
    few = ", ".join(str(item) for item in items[:NAMES_SHOWN])
    more = len(items) - NAMES_SHOWN
    return f"{few} and {more} more" if more > 0 else few


def _of_masters(status: Document) -> Iterator[Finding]:
    masters = [each for each in status.get("servers", ()) if each.get("kind") == "master"]
    voters = [each for each in masters if each.get("voter", True)]
    live = [each for each in voters if each.get("state") == "live"]
    if voters and len(live) < len(voters) and len(live) - 1 < len(voters) // 2 + 1:
        yield Finding(
            "bad",
            f"{len(live)} of {plural(len(voters), 'master')} live: without one more of them no "
            "table can be changed, and no tablet recovered.",
            "stelae master list",
        )
    behind = [each.get("id") for each in masters if each.get("keeps_up") is False]
    if behind:
        yield Finding(
            "warn", f"Behind with the masters' log: {names(behind)}.", "stelae master list"
        )
    if status.get("heard_all") is False:
        yield Finding("calm", "A master leads since a moment ago: not all servers were heard yet.")


def _of_servers(status: Document) -> Iterator[Finding]:
    dead: dict[str, list[Document]] = {}
    stopped = [str(name) for name in status.get("stopped", ())]
    if stopped:
        command = f"stelae server start {stopped[0]}"
        yield Finding("calm", f"Stopped by an operator: {names(stopped)}.", command)
    for server in newest_runs(status.get("servers", ())):
        if server.get("state") != "live" and server.get("id") not in stopped:
            dead.setdefault(str(server.get("kind")), []).append(server)
    for kind, servers in dead.items():
        what = plural(len(servers), KIND_WORDS.get(kind, kind))
        silent = max(float(server.get("silent_s") or 0.0) for server in servers)
        heard = f", not heard for {duration(silent)}" if silent else ""
        away = all(server.get("maintenance") for server in servers)
        listed = names([server.get("id") for server in servers])
        duty = ", in maintenance" if away else ""
        command = "stelae safekeeper list" if kind == "safekeeper" else "stelae check"
        yield Finding("calm" if away else "warn", f"{what} dead: {listed}{heard}{duty}.", command)


def _of_unheard(status: Document) -> Iterator[Finding]:
    live = {s.get("id") for s in status.get("servers", ()) if s.get("state") == "live"}
    unheard = [each for each in status.get("backups_not_heard", ()) if not each.get("retiring")]
    away = [each for each in unheard if each.get("id") not in live]
    if away:
        words = names([f"{each.get('id')} on machine {each.get('node')}" for each in away])
        what = plural(len(away), "known backup")
        yield Finding(
            "warn", f"{what} not heard since the leader master began: {words}.", "stelae check"
        )


def _of_machines(status: Document) -> Iterator[Finding]:
    """Machines that are away, and nodes or racks that are too few."""
    away = status.get("away") or {}
    there = away.get("there") or {}
    for machine in list(away.get("since") or {})[:NAMES_SHOWN]:
        servers = there.get(machine) or ()
        on_it = f": {names(servers)}" if servers else ""
        yield Finding("warn", f"Machine {machine} is away{on_it}.", "stelae check")
    for each in list(away.get("servers") or ())[:NAMES_SHOWN]:
        what = "waits" if each.get("next") == "wait" else "is started elsewhere now"
        yield Finding("calm", f"{each.get('name')} {what}: {each.get('why')}.", "stelae check")
    if away.get("problem"):
        words = f"It is not known which machines are away: {away['problem']}."
        yield Finding("calm", words, "stelae check")
    for warning in status.get("warnings", ()):
        yield Finding("warn", f"{warning[:1].upper()}{warning[1:]}.", "stelae check")


def _of_tablets(status: Document) -> Iterator[Finding]:
    tablets = status.get("tablets", ())
    stopped: dict[str, list[Document]] = {}
    for tablet in tablets:
        if not is_served(tablet):
            stopped.setdefault(str(tablet.get("state")), []).append(tablet)
    for state, found in stopped.items():
        word = "without a leader" if state == "running" else state
        yield Finding(
            "warn" if state == "creating" else "bad",
            f"{plural(len(found), 'tablet')} {word}: {_of_tables(found)}.",
            "stelae recover" if state == "recovering" else "stelae check",
        )
    said: dict[str, list[Document]] = {}
    for tablet in tablets:
        if tablet.get("problem"):
            said.setdefault(str(tablet["problem"]), []).append(tablet)
    for problem, found in list(said.items())[:NAMES_SHOWN]:
        command = f"stelae tablet locate {found[0].get('id')}"
        yield Finding("warn", f"{_of_tables(found)}: {problem}", command)
    if len(said) > NAMES_SHOWN:
        yield Finding(
            "warn", f"{len(said) - NAMES_SHOWN} other problems of tablets.", "stelae check"
        )


def _of_tables(tablets: Sequence[Document]) -> str:
    counts: dict[str, int] = {}
    for tablet in tablets:
        table = str(tablet.get("table"))
        counts[table] = counts.get(table, 0) + 1
    return names([f"table {name} ({plural(count, 'tablet')})" for name, count in counts.items()])


def _of_shortages(status: Document) -> Iterator[Finding]:
    lacking = [t for t in status.get("tablets", ()) if (t.get("under_replicated") or 0) > 0]
    if lacking:
        yield Finding(
            "warn",
            f"{plural(len(lacking), 'tablet')} with fewer replicas than wanted: "
            f"{_of_tables(lacking)}. They are made anew while there are servers for them.",
            "stelae check",
        )


def _of_memory(status: Document) -> Iterator[Finding]:
    full = [
        server.get("id")
        for server in status.get("servers", ())
        if server.get("state") == "live" and memory_share(server) >= MEMORY_HIGH
    ]
    if full:
        words = f"Over {MEMORY_HIGH:.0%} of their memory in use: {names(full)}."
        yield Finding("warn", words, "stelae plan")


def memory_share(server: Document) -> float:
    """Of its limit; 0 where none is known."""
    limit = server.get("memory_limit_bytes") or 0
    return (server.get("memory_bytes") or 0) / limit if limit else 0.0


def _of_operations(status: Document) -> Iterator[Finding]:
    for migration in status.get("migrations", ()):
        for problem in list((migration.get("problems") or {}).values())[:1]:
            tablet = (migration.get("timeline") or ["", ""])[1]
            words = f"Migration of the log of tablet {str(tablet)[:8]}: {problem}"
            yield Finding("warn", words, f"stelae tablet safekeepers {tablet}")
    troubled = [each for each in status.get("copies", ()) if each.get("problem")]
    for copy in troubled[:NAMES_SHOWN]:
        words = f"Copy of table {copy.get('table')} to {copy.get('server')}: {copy.get('problem')}"
        yield Finding("warn", words, "stelae tablet copy list")
    filling = [each for each in status.get("indexes", ()) if each.get("problem")]
    for index in filling[:NAMES_SHOWN]:
        words = f"Index {index.get('column')} of table {index.get('table')}: {index.get('problem')}"
        command = f"stelae table index list {shlex.quote(str(index.get('table')))}"
        yield Finding("warn", words, command)


def _of_wishes(status: Document) -> Iterator[Finding]:
    servers = newest_runs(status.get("servers", ()))
    leaving = [server.get("id") for server in servers if server.get("retiring")]
    if leaving:
        yield Finding("calm", f"Being retired: {names(leaving)}.", "stelae server list")
    away = [server.get("id") for server in servers if server.get("maintenance")]
    if away:
        yield Finding("calm", f"In maintenance: {names(away)}.", "stelae server list")
    if losses := status.get("losses_accepted"):
        words = f"{plural(losses, 'loss', 'losses')} of rows accepted by operators, on record."
        yield Finding("calm", words, "stelae recover")
