"""What `stelae apply` has to do: from what is wanted and what is, an ordered list of steps. Pure.

A plan is made anew after every step, from what is then. So nothing has to be remembered of one that
was interrupted, and whoever makes the next one goes on with it:

- what is not there yet is added first, then servers that run with other values are started anew,
  one at a time, and only then is drained what is to go, and ended once nothing is left on it;
- each step may be done twice;
- what would break a table's promise is refused before anything is changed, all reasons at once
  (`stelae.coordinator.apply.checks`).

Masters are counted: those that there are have names of their own. Design §1, §12; decisions §44.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from stelae.core.records.records import ServerKind
from stelae.core.schema.durability import Durability

Traits = Mapping[str, str]
"""What a server runs with, by the names of the file."""
FRONT, SPARK = "serve", "spark"
"""What is no server, and is changed all the same."""
KINDS = (
    ServerKind.CAS_STORE,
    ServerKind.BACKUP,
    ServerKind.SAFEKEEPER,
    ServerKind.TSERVER,
    ServerKind.MASTER,
)
"""In the order in which they are added and started anew: who is needed before who needs it."""
DRAINED_KINDS = (ServerKind.TSERVER, ServerKind.SAFEKEEPER, ServerKind.BACKUP)
"""In the order in which they go: who needs others before these."""


class Act(enum.StrEnum):
    """What a step does."""

    KEEP = "keep"
    """A server that is wanted is not to be retired any more."""
    ADD = "add"
    RESTART = "restart"
    CHANGE = "change"
    """The HTTP front, or Spark."""
    DRAIN = "drain"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Step:
    act: Act
    kind: str
    """A `ServerKind`, or ``serve``, or ``spark``."""
    name: str = ""
    """Empty: of a master that is to be added, whose name is found then."""
    why: str = ""

    def __str__(self) -> str:
        what = self.name or (self.kind if self.act is Act.CHANGE else f"a {self.kind}")
        return f"{self.act.value} {what}" + (f" ({self.why})" if self.why else "")


@dataclass(frozen=True, slots=True)
class ServerIs:
    """A server that has a process, or is a master by the set."""

    kind: ServerKind
    name: str
    traits: Traits = field(default_factory=dict)
    live: bool = True
    retiring: bool = False
    """Of a safekeeper: it is decommissioned."""
    left: int = 1
    """What it has yet that would have to go elsewhere."""
    leads: bool = False
    """Of a master."""
    has_process: bool = True
    """False: a master of the set whose process was ended, and that is not started anew yet."""
    answers: bool = True
    """Its process says what it runs with. Else it starts, or Ray has no room for it."""
    is_known: bool = True
    """The masters have heard it once."""
    is_lost: bool = False
    """The masters have never heard it, and miss nothing: there is nothing to be drained."""
    is_member: bool = True
    """False: a master's process that waits to be added to the set."""
    is_away: bool = False
    """Ray does not have its machine: its process cannot start before that is back."""


@dataclass(frozen=True, slots=True)
class TableIs:
    name: str
    durability: Durability
    becoming: Durability | None = None

    @property
    def durabilities(self) -> tuple[Durability, ...]:
        """All that hold while it is altered."""
        return (self.durability,) if self.becoming is None else (self.durability, self.becoming)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Servers that are to be there, by name, and what they are to run with."""

    servers: Mapping[str, tuple[ServerKind, Traits]]
    """All but masters."""
    masters: int
    master_traits: Traits = field(default_factory=dict)
    others: Mapping[str, Traits] = field(default_factory=dict)
    """Of the HTTP front and of Spark; one that is not to be is not in it."""


@dataclass(frozen=True, slots=True)
class Present:
    servers: Sequence[ServerIs]
    others: Mapping[str, Traits] = field(default_factory=dict)


def plan_steps(wanted: Wanted, present: Present) -> list[Step]:
    """What is to be done, in order; empty: all is as it is wanted."""
    return [
        *_kept(wanted, present),
        *_added(wanted, present),
        *_lost(wanted, present),
        *_restarted(wanted, present),
        *_changed(wanted, present),
        *_drained(wanted, present),
        *_awaited(wanted, present),
    ]


def _others(present: Present) -> list[ServerIs]:
    return [server for server in present.servers if server.kind is not ServerKind.MASTER]


def _masters(present: Present) -> list[ServerIs]:
    """Those of the set."""
    return [s for s in present.servers if s.kind is ServerKind.MASTER and s.is_member]


def _strays(present: Present) -> list[ServerIs]:
    """Processes of masters that were not added, or are out of the set: the oldest first."""
    strays = [s for s in present.servers if s.kind is ServerKind.MASTER and not s.is_member]
    return sorted(strays, key=lambda s: _numbered(s.name))


def _going_masters(wanted: Wanted, present: Present) -> list[ServerIs]:
    masters = _masters(present)
    return _victims(masters)[: max(0, len(masters) - wanted.masters)]


def _kept(wanted: Wanted, present: Present) -> Iterable[Step]:
    for server in _others(present):
        if server.retiring and server.name in wanted.servers:
            yield Step(Act.KEEP, server.kind.value, server.name, "it is wanted again")


def _added(wanted: Wanted, present: Present) -> Iterable[Step]:
    there = {server.name for server in present.servers}
    for kind in KINDS:
        for name in _in_order(wanted.servers):
            if wanted.servers[name][0] is kind and name not in there:
                yield Step(Act.ADD, kind.value, name)
    going = [master.name for master in _going_masters(wanted, present)]
    for master in _masters(present):
        if not master.has_process and master.name not in going:
            yield Step(Act.ADD, ServerKind.MASTER.value, master.name, "its process is gone")
    strays = [each.name for each in _strays(present)]
    for number in range(wanted.masters - len(_masters(present))):
        name = strays[number] if number < len(strays) else ""
        yield Step(Act.ADD, ServerKind.MASTER.value, name, "it waits to be added" if name else "")


def _lost(wanted: Wanted, present: Present) -> Iterable[Step]:
    """Masters without a process that are to go, first: while one is missed, none other may be."""
    for master in _going_masters(wanted, present):
        if not master.has_process:
            yield Step(Act.REMOVE, ServerKind.MASTER.value, master.name, "its process is gone")


def _restarted(wanted: Wanted, present: Present) -> Iterable[Step]:
    """Those that stay, and run with something else; a leader master last of its kind."""
    going = {step.name for step in [*_lost(wanted, present), *_drained(wanted, present)]}
    order = {kind: place for place, kind in enumerate(KINDS)}

    def turn(server: ServerIs) -> tuple[int, bool, tuple[str, int, str]]:
        return order[server.kind], server.leads, _numbered(server.name)

    for server in sorted(present.servers, key=turn):
        traits = wanted.master_traits
        if server.kind is not ServerKind.MASTER:
            traits = wanted.servers.get(server.name, (server.kind, server.traits))[1]
        knows = server.has_process and server.answers and server.is_member
        if knows and server.name not in going and server.traits != traits:
            why = changes(server.traits, traits)
            yield Step(Act.RESTART, server.kind.value, server.name, why)


def _changed(wanted: Wanted, present: Present) -> Iterable[Step]:
    for what in (SPARK, FRONT):
        before, after = present.others.get(what), wanted.others.get(what)
        if before == after:
            continue
        if before is None or after is None:
            why = "there is to be none" if after is None else "there is none yet"
        else:
            why = changes(before, after)
        yield Step(Act.CHANGE, what, "", why)


def _drained(wanted: Wanted, present: Present) -> Iterable[Step]:
    """Who is to go: the newest first, one after the other; masters at the very end."""
    for kind in DRAINED_KINDS:
        going = [s for s in _others(present) if s.kind is kind and s.name not in wanted.servers]
        for server in sorted(going, key=lambda s: _numbered(s.name), reverse=True):
            if not (server.is_lost or (server.retiring and server.left == 0)):
                yield Step(Act.DRAIN, kind.value, server.name)
            yield Step(Act.REMOVE, kind.value, server.name)
    for stray in _strays(present)[max(0, wanted.masters - len(_masters(present))) :]:
        yield Step(Act.REMOVE, ServerKind.MASTER.value, stray.name, "it is no master of the set")
    for master in _going_masters(wanted, present):
        if master.has_process:
            yield Step(Act.REMOVE, ServerKind.MASTER.value, master.name)


def _awaited(wanted: Wanted, present: Present) -> Iterable[Step]:
    """Whose process does not answer, last: nothing else has to wait for it."""
    going = {step.name for step in _drained(wanted, present)}
    for server in sorted(present.servers, key=lambda s: _numbered(s.name)):
        # Where its machine is away, to wait for its process would be to wait in vain.
        is_there = server.has_process and server.is_member and not server.is_away
        if is_there and not server.answers and server.name not in going:
            yield Step(Act.ADD, server.kind.value, server.name, "its process does not answer")


def _victims(masters: Sequence[ServerIs]) -> list[ServerIs]:
    """The dead go before the living, the newest before the oldest, the leader last."""
    newest = sorted(masters, key=lambda m: _numbered(m.name), reverse=True)
    return sorted(newest, key=lambda m: (m.live, m.leads))


def changes(before: Traits, after: Traits) -> str:
    """What differs, in the words of the file."""
    names = sorted({*before, *after})
    return ", ".join(
        f"{name}: {before.get(name, 'none')} → {after.get(name, 'none')}"
        for name in names
        if before.get(name) != after.get(name)
    )


def _numbered(name: str) -> tuple[str, int, str]:
    kind, _, digits = name.rpartition("-")
    return (kind, int(digits), "") if digits.isdecimal() else ("", 0, name)


def _in_order(names: Iterable[str]) -> list[str]:
    return sorted(names, key=_numbered)


# ---- what a file says anew ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Difference:
    """A field of the file, as it was asked for before and as it is now."""

    field: str
    before: str
    after: str


def differences(before: Mapping[str, object], after: Mapping[str, object]) -> list[Difference]:
    """Between two documents of specs, by the fields' paths."""
    old, new = dict(_flat(before, "")), dict(_flat(after, ""))
    paths = dict.fromkeys([*new, *old])
    found = [Difference(path, old.get(path, "none"), new.get(path, "none")) for path in paths]
    return [each for each in found if each.before != each.after]


def _flat(document: Mapping[str, object], where: str) -> Iterable[tuple[str, str]]:
    for name, value in document.items():
        path = f"{where}.{name}" if where else name
        if isinstance(value, Mapping):
            yield from _flat(value, path)
        else:
            yield path, "none" if value is None else str(value)
