"""Which server of a machine that stays away may be started elsewhere now, and why not yet. Pure.

A server that is started elsewhere is a new, empty one under the old name. The masters restore what
it had from what they have elsewhere. So its former disk is given up, by a fence that is permanent
(`stelae.coordinator.ddl.replacement`). Rules of the decision:

- R1: the machine has been away for ``replace_after``, by Ray's nodes. How long a server was silent
  says nothing of its machine. Time in which nobody looked does not count.
- R2: a server that the masters hear is not replaced, nor one whose UUID they do not know. One that
  they have not heard since all masters were started again has the UUID that the catalog names. An
  operator's mark alone does not count: it may be of an earlier server of the name.
- R3 to R6: nothing needs its disk; see `stelae.coordinator.apply.replaces`, which has these rules.
- R7: one server at a time. One whose fence stands and whose successor was never heard is carried on
  first, wherever it was left: its data was given up before. A fence by an operator's mark alone
  gave up nothing for sure (R2). It is carried on where its machine is, and keeps nobody waiting.
- R8: a server that is in maintenance or leaves is left alone. Masters are replaced by operators.
- R9: what is on any machine that is away counts for nothing. The masters notice the servers of a
  machine one after the other, and call some of them live for a while longer.

`replacements` is asked again right before the fence, with a new look. Decisions §69.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stelae.coordinator.apply.replaces import (
    Kept,
    is_unknown,
    kind_of,
    known_as,
    who_needs_disk,
)
from stelae.core.records.records import ServerKind

START_LIMIT_S = 90.0
"""Seconds after which a server that was started elsewhere, and that the masters have not heard,
goes to another machine. It has no data."""
LOOK_GAP_S = 60.0
"""Longest time between two looks that counts. A machine may have been there in a longer one."""
ORDER = (
    ServerKind.CAS_STORE.value,
    ServerKind.BACKUP.value,
    ServerKind.SAFEKEEPER.value,
    ServerKind.TSERVER.value,
)
"""In the order in which they are replaced: who is needed before who needs it."""


class Next(enum.StrEnum):
    """What is to be done with a server of a machine that is away."""

    WAIT = "wait"
    MOVE = "move"
    """Fence it, end its actor, choose another machine, and start it there."""
    START = "start"
    """It has its machine, which is live, and no process: start it there."""


@dataclass(frozen=True, slots=True)
class Verdict:
    name: str
    next: Next
    why: str
    uuids: tuple[str, ...] = ()
    """UUIDs to be fenced first. A server that lost its disk before has several."""
    in_s: float = 0.0
    """Seconds until its machine has been away for ``replace_after``."""


@dataclass(frozen=True, slots=True)
class Look:
    """What is known at one moment."""

    wanted: Collection[str]
    """Servers of the spec, but masters."""
    placed: Mapping[str, str]
    """Machine of each server."""
    away_s: Mapping[str, float]
    """Machines that Ray does not have, and for how many seconds that has been seen."""
    status: Mapping[str, Any]
    replace_after_s: float | None
    """None: only what is half replaced is carried on."""
    copies: int
    """Most replicas that a segment of any table is to have."""
    store_moves: bool = False
    """The configuration store keeps its rows in a database elsewhere."""
    has_lone_blobs: bool = False
    """Evicted ends of logs are on one backup each."""
    there: Collection[str] = ()
    """Servers that have an actor, whether it runs or not."""
    starting_s: Mapping[str, float] = field(default_factory=dict)
    """Servers that are half replaced, and whose machine is live: for how many seconds."""
    paused: Mapping[tuple[str, Next], str] = field(default_factory=dict)
    """What failed a moment ago, by server and step, and why: it is not tried yet again."""


def since_when(
    before: Mapping[str, float], names: Iterable[str], now: float, looked_at: float
) -> dict[str, float]:
    """Since when each of these names has been among them, by looks without long gaps.

    ``before``: what the last look returned. It was made at ``looked_at``, by the same clock.
    """
    known = before if now - looked_at <= LOOK_GAP_S else {}  # R1
    return {name: known.get(name, now) for name in sorted(set(names))}


def replacements(look: Look) -> list[Verdict]:
    """One verdict for each server that is away or half replaced; at most one is not `Next.WAIT`."""
    half = [name for name in _ordered(look.wanted) if _is_half(look, name)]
    found = [_carried_on(look, name) for name in half]
    away = [name for name in look.wanted if look.placed.get(name) in look.away_s]
    if look.replace_after_s is None:
        away = []
    first_of_all = [name for name in half if not _why_stuck(look, name)]
    found += [_judged(look, name, first_of_all) for name in _ordered(away) if name not in half]
    # Those behind it may have what they need.
    found = [
        Verdict(each.name, Next.WAIT, look.paused[each.name, each.next])
        if (each.name, each.next) in look.paused
        else each
        for each in found
    ]
    # R7: what is done changes what may be done next.
    first = next((each for each in found if each.next is not Next.WAIT), None)
    if first is None:
        return found
    waits = f"{first.name} goes first"
    return [
        each if each is first or each.next is Next.WAIT else Verdict(each.name, Next.WAIT, waits)
        for each in found
    ]


def _ordered(names: Iterable[str]) -> list[str]:
    return sorted(
        (name for name in names if kind_of(name) in ORDER),
        key=lambda name: (ORDER.index(kind_of(name)), len(name), name),
    )


def _is_half(look: Look, name: str) -> bool:
    """Whether its fence stands, and nobody was heard in its place yet."""
    return any(
        each["id"] == name and not each["successor"] for each in look.status.get("replaced", ())
    )


def _why_stuck(look: Look, name: str) -> str:
    """Why a server that is half replaced is not moved; empty: it may be, if that is due.

    Its process may be another's than that of the fence, and come back next to a new one. A start on
    its own machine sees that it has ended.
    """
    half = [each for each in look.status.get("replaced", ()) if each["id"] == name]
    uuids = [str(each["uuid"]) for each in half if not each["successor"]]
    machine = look.placed.get(name, "")
    is_due = machine in look.away_s or look.starting_s.get(name, 0.0) >= START_LIMIT_S
    if not is_due or not is_unknown(look.status, uuids):
        return ""
    return (
        f"it stays on machine {machine}: only an operator's mark named the UUID that is fenced "
        f"({', '.join(uuids)}), maybe of an earlier server"
    )


def _carried_on(look: Look, name: str) -> Verdict:
    if why := _why_stuck(look, name):
        return Verdict(name, Next.WAIT, why)
    machine = look.placed.get(name, "")
    # A step that was killed may have fenced only some of its UUIDs.
    silent = [each for each in known_as(look.status, name) if each["state"] != "live"]
    unheard = _unheard(look, name)
    # The catalog may name a successor that served before all masters were started again.
    if _why_not(look, name, unheard):
        unheard = []
    uuids = _uuids_of([*silent, *unheard])
    if machine in look.away_s:
        return Verdict(name, Next.MOVE, f"machine {machine} is away, and it is fenced", uuids)
    starting_s = look.starting_s.get(name, 0.0)
    if starting_s >= START_LIMIT_S:  # with an actor or without one
        return Verdict(
            name, Next.MOVE, f"it has not started on {machine} within {starting_s:.0f} s", uuids
        )
    if name not in look.there:
        return Verdict(name, Next.START, f"it was moved to {machine}, and has no process there")
    return Verdict(name, Next.WAIT, f"it starts on {machine}")


def _judged(look: Look, name: str, half: Sequence[str]) -> Verdict:
    assert look.replace_after_s is not None
    left_s = max(0.0, look.replace_after_s - look.away_s[look.placed[name]])
    if left_s > 0.0:
        why = f"its machine {look.placed[name]} may come back for {left_s:.0f} s more"
        return Verdict(name, Next.WAIT, why, in_s=left_s)
    if half:
        return Verdict(name, Next.WAIT, f"{half[0]} goes first")
    known = _without_former([*known_as(look.status, name), *_unheard(look, name)])
    why = _why_not(look, name, known)
    if why:
        return Verdict(name, Next.WAIT, why)
    away = f"machine {look.placed[name]} stays away"
    return Verdict(name, Next.MOVE, away, _uuids_of(known))


def _why_not(look: Look, name: str, known: Sequence[Mapping[str, Any]]) -> str:
    """Why a server that is not fenced yet may not be; empty: it may."""
    if look.status.get("heard_all") is not True:
        return "the leader master has just begun to hear the servers"
    if any(each.get("state") == "live" for each in known):
        return "the masters still hear it"
    if not known:
        return "the masters know no UUID of it, and it takes one to fence it"
    if is_unknown(look.status, _uuids_of(known)):
        named = ", ".join(_uuids_of(known))
        return f"only an operator's mark names a UUID of it ({named}), maybe of an earlier server"
    if any(each.get("maintenance") for each in known):
        return "it is in maintenance"
    if any(e.get("retiring") or e.get("status") == "decommissioned" for e in known):
        return "it is to leave"
    kept = Kept(look.copies, look.store_moves, look.has_lone_blobs)
    return who_needs_disk(kind_of(name), _uuids_of(known), look.status, kept, _uuids_away(look))


def _unheard(look: Look, name: str) -> list[Mapping[str, Any]]:
    """Those of a name that the catalog has, and that the leader master has never heard."""
    return [each for each in look.status.get("servers_not_heard", ()) if each["id"] == name]


def _without_former(known: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Without servers that only a mark names, and that were to leave or to rest: marks are kept for
    ever, and the name is another server's by now, if another is known."""
    if all(each.get("marked_only") for each in known):
        return known
    return [
        each
        for each in known
        if not each.get("marked_only") or not (each.get("maintenance") or each.get("retiring"))
    ]


def _uuids_of(known: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(str(each["uuid"]) for each in known)


def _uuids_away(look: Look) -> set[str]:
    """R9."""
    servers = look.status["servers"]
    return {str(e["uuid"]) for e in servers if look.placed.get(e["id"]) in look.away_s}
