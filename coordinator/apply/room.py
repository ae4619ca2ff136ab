"""Whether what an apply moves, and what stays, has room where it will be. Pure.

- A tablet is in one server's memory: so each that leaves a server has to fit beside what another
  one has, and not only all of them in the memory of all. They are placed the largest first, each
  where it leaves least room over, never two replicas of one tablet on a server (best fit,
  decreasing). Counted is what lives of their rows: cleaning frees the rest before it is missed.
- A backup keeps what it has on a medium: that does not become smaller than this.

Source: Johnson et al. 1974 (bin packing); decisions §44.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stelae.core.config.units import format_size
from stelae.core.records.records import ServerKind

NAMED = 4
"""Servers, in a sentence."""


@dataclass(frozen=True, slots=True)
class Hosted:
    """A tablet in a tablet server's memory, or a replica of one."""

    name: str
    server: str
    size_bytes: int
    beside: tuple[str, ...] = ()
    """Servers that have other replicas of it."""


@dataclass(frozen=True, slots=True)
class Room:
    """What there is; None is not known."""

    rows_bytes: int = 0
    """In the memory of all tablet servers."""
    rows_by_server: Mapping[str, int] = field(default_factory=dict)
    """The same, of each that lives."""
    live_by_server: Mapping[str, int] = field(default_factory=dict)
    """Of that what is not yet to be cleaned away."""
    hosted: Sequence[Hosted] = ()
    used: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """On media of backups, by the backups' names, as they said last."""
    ray_free_bytes: int | None = None
    taken: Sequence[str] = ()
    """Why ports, places on disk, or memory of machines are not to be had."""


def room_of(status: Mapping[str, Any], ray_free_bytes: int | None) -> Room:
    """What a status document says of it."""
    servers = status["servers"]
    tservers = [
        s for s in servers if s["kind"] == ServerKind.TSERVER.value and s["state"] == "live"
    ]
    rows = {s["id"]: int(s["memory_bytes"]) for s in tservers}
    return Room(
        rows_bytes=sum(rows.values()),
        rows_by_server=rows,
        live_by_server={s["id"]: s.get("live_bytes") or s["memory_bytes"] for s in tservers},
        hosted=[each for tablet in status["tablets"] for each in _hosted(tablet)],
        used={s["id"]: s["used_bytes"] for s in servers if s.get("used_bytes")},
        ray_free_bytes=ray_free_bytes,
    )


def _hosted(tablet: Mapping[str, Any]) -> Iterator[Hosted]:
    name = f"tablet {tablet['number']} of table {tablet['table']!r}"
    cleaning = tablet.get("cleaning") or {}
    size_bytes = int(cleaning.get("live_bytes") or tablet["memory_bytes"] or 0)
    members = [r["server"] for r in tablet.get("replicas", ()) if r["member"] != "none"]
    for server in members or [tablet["leader"]]:
        yield Hosted(name, server, size_bytes, tuple([m for m in members if m != server]))


def homeless(
    leaving: Iterable[str], stays: Mapping[str, int], hosted: Sequence[Hosted]
) -> Hosted | None:
    """The first tablet that would find no place once these servers are left; None: all find one.

    ``stays``: of each server that stays, how many bytes it has room for beside what it has.
    """
    gone, free = dict.fromkeys(leaving), dict(stays)
    placed: dict[str, list[str]] = {}
    moving = [each for each in hosted if each.server in gone]
    for each in sorted(moving, key=lambda m: (-m.size_bytes, m.name, m.server)):
        shunned = {*each.beside, *placed.get(each.name, ())}
        fits = [s for s, room in free.items() if s not in shunned and room >= each.size_bytes]
        if not fits:
            return each
        best = min(fits, key=lambda s: (free[s], s))
        free[best] -= each.size_bytes
        placed.setdefault(each.name, []).append(best)
    return None


def no_home(tablet: Hosted, stays: Mapping[str, int]) -> str:
    """That, for people."""
    most = sorted(stays, key=lambda name: (-stays[name], name))[:NAMED]
    room = ", ".join(f"{name} {max(0, stays[name]) / 2**20:,.0f} MiB" for name in most)
    return (
        f"tservers: {tablet.name} on {tablet.server}, with {tablet.size_bytes / 2**20:,.0f} MiB, "
        f"fits beside the others on no server that stays (room: {room or 'none'}); keep more "
        "servers, or give them more memory first (tservers.memory)"
    )


def too_small(
    backup: str, medium: str, before: int | None, after: int | None, used_bytes: int
) -> str:
    """Why a medium of a backup cannot become as small as this; empty: it can, or need not."""
    if after is None or used_bytes <= after or (before is not None and after >= before):
        return ""
    return (
        f"media.{medium}.size: {backup} holds {_gibibytes(used_bytes)} there, more than the new "
        f"{format_size(after)}: have that moved to other backups first (`stelae server retire "
        f"{backup}`, then apply again, which takes it back empty), delete what is not needed, or "
        "ask for more"
    )


def _gibibytes(size_bytes: int) -> str:
    if size_bytes < 1 << 30:
        return f"{size_bytes / 2**20:,.1f} MiB"
    return f"{size_bytes / 2**30:,.1f} GiB"
