"""The servers of the status page, by kind: state, duty, what they hold, memory. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stelae.serve.pages.health import MEMORY_HIGH, memory_share, newest_runs
from stelae.serve.pages.html import (
    NOTHING,
    UNKNOWN,
    Column,
    Html,
    Row,
    anchor,
    badge,
    bar,
    calm,
    duration,
    join,
    plural,
    section,
    size,
    table_of_groups,
    text,
)

ROWS_MAX = 300
"""Servers shown; those that are not well first."""
KINDS = {
    "master": "Masters",
    "tserver": "Tablet servers",
    "backup": "Backups",
    "safekeeper": "Safekeepers",
    "cas_store": "Configuration stores",
}
_COLUMNS = (
    Column("Server"),
    Column("State"),
    Column("Duty"),
    Column("Holds", "line"),
    Column("Memory"),
    Column("Last heard", "number"),
    Column("Address", "minor"),
    Column("Node, process", "minor"),
)


def servers_section(status: Mapping[str, Any]) -> Html:
    """All of them, in one table."""
    servers = newest_runs(status.get("servers", ()))
    if not servers:
        return section("servers", "Servers", calm("No server was heard."))
    order = list(KINDS)
    servers.sort(key=lambda each: _place(order, each))
    left_out = len(servers) - ROWS_MAX
    if left_out > 0:
        servers.sort(key=lambda each: (each.get("state") == "live", _place(order, each)))
        servers = sorted(servers[:ROWS_MAX], key=lambda each: _place(order, each))
    groups: dict[str, list[Row]] = {}
    for server in servers:
        kind = str(server.get("kind"))
        groups.setdefault(KINDS.get(kind, kind), []).append(_row(server))
    shown = table_of_groups("server", "Servers by kind", _COLUMNS, groups)
    more = calm(f"and {left_out} more, all live") if left_out > 0 else ""
    return section("servers", "Servers", shown, more)


def _place(order: list[str], server: Mapping[str, Any]) -> tuple[int, int, str]:
    """By kind, then by name; tserver-10 after tserver-9."""
    kind, name = str(server.get("kind")), str(server.get("id"))
    return order.index(kind) if kind in order else len(order), len(name), name


def _row(server: Mapping[str, Any]) -> Row:
    live = server.get("state") == "live"
    state = badge(server.get("state"), "good" if live else "bad")
    silent = server.get("silent_s")
    node = str(server.get("node") or "").partition("/")[0]
    node = f"{rack}/{node}" if (rack := server.get("rack")) else node
    process = join([text(node), " · ", text(server.get("pid"))]) if node else NOTHING
    return Row(
        anchor(server.get("kind"), server.get("uuid") or server.get("id")),
        (
            text(server.get("id")),
            state,
            join(_duty(server)) or NOTHING,
            text(", ".join(_holds(server))) or NOTHING,
            _memory(server),
            NOTHING if silent is None else join([duration(float(silent)), " ago"]),
            text(server.get("address")) or NOTHING,
            process,
        ),
        "" if live else "unwell",
    )


def _duty(server: Mapping[str, Any]) -> Iterator[str]:
    if role := server.get("role"):
        yield badge(role, "good") if role == "leader" else text(role)
        if server.get("voter") is False:
            yield " (no vote yet)"
        if server.get("keeps_up") is False:
            yield " " + badge("behind", "warn")
    if "media" in server:
        yield text(", ".join(str(medium) for medium in server["media"]))
    if (status := server.get("status")) is not None:
        yield text(status) if status == "active" else badge(status or "unknown", "warn")
    if server.get("avoided_by"):
        yield " " + badge("does not answer tservers", "warn")
    if server.get("retiring"):
        yield " " + badge("drained" if server.get("drained") else "retiring", "warn")
    if server.get("maintenance"):
        yield " " + badge("maintenance", "warn")


def _holds(server: Mapping[str, Any]) -> Iterator[str]:
    """What it has, in words; not safe markup."""
    if server.get("tablets") is not None:
        yield plural(server["tablets"], "tablet")
    if server.get("indexlets"):
        yield plural(server["indexlets"], "indexlet")
    if server.get("segments") is not None:
        yield plural(server["segments"], "segment replica")
    if server.get("timelines") is not None:
        yield plural(server["timelines"], "log")
    if server.get("free_bytes"):
        yield f"{size(server['free_bytes'])} free"


def _memory(server: Mapping[str, Any]) -> Html:
    used, limit = server.get("memory_bytes"), server.get("memory_limit_bytes")
    if not limit:
        return size(used) if used else NOTHING
    if used is None:
        return UNKNOWN
    share = memory_share(server)
    mood = "bad" if share >= MEMORY_HIGH else "warn" if share >= MEMORY_HIGH - 0.1 else "good"
    shown = bar(share, f"Memory of {server.get('id')}", mood)
    return join(['<span class="amount">', shown, " ", size(used), " of ", size(limit), "</span>"])
