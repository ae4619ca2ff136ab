"""What to do with safekeepers: where timelines begin, where they go, and what is left behind.

Pure functions of the registry, of what is heard, and of the store's records. Nothing here moves
anything: the answers are requests for migrations, and orders to remove under a generation.

- New timelines and replacements go to active safekeepers that were heard of recently: none in a
  rack or on a node that has one while another is free, the least loaded first.
- A safekeeper that is silent for the grace time is replaced, where it can be; a decommissioned one
  at once; an offline one is expected back.
- What was tried in vain for a timeline is tried after a pause, and after all others
  (`stelae.coordinator.timelines.vain_members`). Where nothing else is free, the one is tried whose
  pause ends first, as soon as the shortest pause has passed since it failed.
- Garbage is only what the store proves to be such.

Implements seed 004 ("API", node management, migrate, scrub); design §10.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from stelae.coordinator.timelines.migration_steps import (
    SILENT,
    Exclude,
    MoveTo,
    Statuses,
)
from stelae.core.errors import InvalidArgument, NotEnoughServers, TooFewServers
from stelae.core.places import Place
from stelae.core.records.configurations import TimelineId, TimelineRecord
from stelae.core.records.timelines import SafekeeperId, SafekeeperStatus, has_majority


class Safekeeper(msgspec.Struct, frozen=True):
    """One safekeeper: what the registry has of it, and when it was heard of last."""

    safekeeper_id: SafekeeperId
    node: str
    """The machine that it runs on: two members there die together."""
    status: SafekeeperStatus = SafekeeperStatus.ACTIVE
    heard_s: float = float("-inf")
    """By the coordinator's clock. Never: minus infinity."""
    rack: str = ""
    """The rack of its machine; empty: the machine stands for it."""

    @property
    def place(self) -> Place:
        """What it shares with other safekeepers."""
        return Place(self.node, self.rack)


Fleet = Mapping[SafekeeperId, Safekeeper]


class Pause(NamedTuple):
    """How long a timeline leaves a safekeeper alone, by the coordinator's clock."""

    ends_at: float
    ends_at_least: float
    """When it may end if no other safekeeper is free: the bound on how often it is tried."""


Avoided = Mapping[TimelineId, Mapping[SafekeeperId, Pause]]
"""Safekeepers that were chosen for a timeline in vain."""


def count_timelines(records: Iterable[TimelineRecord]) -> dict[SafekeeperId, int]:
    """How many timelines each safekeeper is a member of."""
    load: dict[SafekeeperId, int] = {}
    for record in records:
        for member in () if record.deleted else record.configuration.members:
            load[member] = load.get(member, 0) + 1
    return load


# ---- choosing ---------------------------------------------------------------------------------


def _candidates(fleet: Fleet, now: float, silence_s: float) -> list[Safekeeper]:
    return [
        fleet[safekeeper_id]
        for safekeeper_id in sorted(fleet)
        if fleet[safekeeper_id].status is SafekeeperStatus.ACTIVE
        and now - fleet[safekeeper_id].heard_s <= silence_s
    ]


def _pick(
    candidates: Sequence[Safekeeper],
    kept: Collection[Safekeeper],
    count: int,
    load: Mapping[SafekeeperId, int],
    last: Collection[SafekeeperId] = (),
) -> list[Safekeeper]:
    """``count`` of the candidates: in the places that have the fewest members
    (`stelae.core.places`), then the least loaded; those of ``last`` after all others."""
    chosen: list[Safekeeper] = []
    taken = {one.safekeeper_id for one in kept}
    used = [one.place for one in kept]
    for _ in range(count):
        free = [one for one in candidates if one.safekeeper_id not in taken]
        if not free:
            break
        best = min(
            free,
            key=lambda one: (
                one.safekeeper_id in last,
                one.place.crowd(used),
                load.get(one.safekeeper_id, 0),
                one.safekeeper_id,
            ),
        )
        chosen.append(best)
        taken.add(best.safekeeper_id)
        used.append(best.place)
    return chosen


def choose_initial(
    fleet: Fleet,
    count: int,
    load: Mapping[SafekeeperId, int],
    now: float,
    silence_s: float,
    last: Collection[SafekeeperId] = (),
) -> tuple[SafekeeperId, ...]:
    """Choose the members of a new timeline; those of ``last`` after all others.

    Raises:
        TooFewServers: there are not so many, heard of or not.
        NotEnoughServers: not so many are active and heard of just now.
    """
    usable = [one for one in fleet.values() if one.status is SafekeeperStatus.ACTIVE]
    if len(usable) < count:
        raise TooFewServers("a timeline", count, "safekeepers", len(usable))
    candidates = _candidates(fleet, now, silence_s)
    if len(candidates) < count:
        raise NotEnoughServers("a timeline", count, "safekeepers", len(candidates))
    return tuple(one.safekeeper_id for one in _pick(candidates, (), count, load, last))


# ---- moving -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Move:
    timeline: TimelineId
    request: MoveTo
    reason: str


def decide_replacements(
    records: Sequence[TimelineRecord],
    fleet: Fleet,
    now: float,
    *,
    silence_s: float,
    grace_s: float,
    limit: int,
    broken: Mapping[TimelineId, Collection[SafekeeperId]] = MappingProxyType({}),
    avoid: Avoided = MappingProxyType({}),
) -> list[Move]:
    """Whose members are to be replaced: those silent for ``grace_s``, and the decommissioned.

    A timeline that is being changed is left alone, and so is one of which no majority is heard:
    it could not be changed. At most ``limit`` moves; the most endangered first.

    ``broken``: members that are heard, and whose timeline does nothing any more. ``avoid``: those
    that were chosen in vain, and how long each is left alone.
    """
    assert silence_s <= grace_s
    load = count_timelines(records)
    candidates = _candidates(fleet, now, silence_s)
    found: list[tuple[int, TimelineId, Move]] = []
    for record in records:
        configuration = record.configuration
        if record.deleted or configuration.is_joint:
            continue
        hurt = broken.get(record.timeline, ())
        members = [fleet.get(member) for member in configuration.sk_set]
        lost = [
            number
            for number, member in enumerate(members)
            if member is None or member.safekeeper_id in hurt or _is_lost(member, now, grace_s)
        ]
        heard = [
            one
            for one in members
            if one is not None and one.safekeeper_id not in hurt and now - one.heard_s <= silence_s
        ]
        if not lost or 2 * len(heard) <= len(members):
            continue
        kept = [one for number, one in enumerate(members) if one and number not in lost]
        vain = avoid.get(record.timeline, {})
        others = [one for one in candidates if one.safekeeper_id not in configuration.sk_set]
        free, paused = _by_pause(others, vain, now)
        chosen = _pick(free, kept, len(lost), load, vain)
        # Avoided is not excluded: an only spare that works again is not to wait for a long pause.
        chosen += paused[: len(lost) - len(chosen)]
        if not chosen:
            continue
        move = _replace(record, lost[: len(chosen)], chosen)
        for one in chosen:
            load[one.safekeeper_id] = load.get(one.safekeeper_id, 0) + 1
        found.append((len(heard) - len(members) // 2, record.timeline, move))
    found.sort(key=lambda one: one[:2])
    return [move for _, _, move in found[:limit]]


def _by_pause(
    candidates: Iterable[Safekeeper], vain: Mapping[SafekeeperId, Pause], now: float
) -> tuple[list[Safekeeper], list[Safekeeper]]:
    """Those without a pause, or after it; and those whose pause may end now, the first first."""
    free: list[Safekeeper] = []
    paused: list[tuple[float, SafekeeperId, Safekeeper]] = []
    for one in candidates:
        pause = vain.get(one.safekeeper_id)
        if pause is None or now >= pause.ends_at:
            free.append(one)
        elif now >= pause.ends_at_least:
            paused.append((pause.ends_at, one.safekeeper_id, one))
    return free, [one for _, _, one in sorted(paused, key=lambda each: each[:2])]


def is_hopeless(record: TimelineRecord, fleet: Fleet, now: float, grace_s: float) -> bool:
    """Whether a change of members can be taken back only: of the new ones no majority is left, and
    while it is under way nothing is committed without them."""
    configuration = record.configuration
    if configuration.new_sk_set is None or record.deleted:
        return False

    def left(members: Iterable[SafekeeperId]) -> list[SafekeeperId]:
        known = (fleet.get(member) for member in members)
        return [one.safekeeper_id for one in known if one and not _is_lost(one, now, grace_s)]

    old, new = configuration.sk_set, configuration.new_sk_set
    return has_majority(old, left(old)) and not has_majority(new, left(new))


def _is_lost(one: Safekeeper, now: float, grace_s: float) -> bool:
    if one.status is SafekeeperStatus.OFFLINE:
        return False
    return one.status is SafekeeperStatus.DECOMMISSIONED or now - one.heard_s > grace_s


def _replace(record: TimelineRecord, lost: Sequence[int], chosen: Sequence[Safekeeper]) -> Move:
    desired = list(record.configuration.sk_set)
    names: list[str] = []
    for number, one in zip(lost, chosen, strict=True):
        names.append(f"{desired[number]} by {one.safekeeper_id}")
        desired[number] = one.safekeeper_id
    return Move(record.timeline, MoveTo(tuple(desired)), f"replace {', '.join(names)}")


def decide_evacuation(
    records: Sequence[TimelineRecord],
    statuses: Statuses,
    source: SafekeeperId,
    target: SafekeeperId,
    limit: int | None = None,
) -> list[Move]:
    """All timelines (or so many) from one safekeeper to another: ``PUT …/safekeepers/migrate``.

    Those that are being changed, and those that have the target already, stay as they are.

    Raises InvalidArgument: they are the same, or the target takes nothing.
    """
    if source == target:
        raise InvalidArgument(f"safekeeper {source} is source and target")
    status = statuses.get(target)
    if status is not SafekeeperStatus.ACTIVE:
        is_away = status is SafekeeperStatus.OFFLINE
        why = "" if status is None else f": it is {status}{f', or {SILENT}' if is_away else ''}"
        raise InvalidArgument(f"there is no active safekeeper {target}{why}")
    if limit is not None and limit < 1:
        raise InvalidArgument(f"limit must be positive, got {limit}")
    moves: list[Move] = []
    for record in records:
        configuration = record.configuration
        members = configuration.sk_set
        if record.deleted or configuration.is_joint or source not in members or target in members:
            continue
        desired = tuple(target if member == source else member for member in members)
        moves.append(Move(record.timeline, MoveTo(desired), f"move from {source} to {target}"))
    return moves[:limit]


# ---- what is left -----------------------------------------------------------------------------


def needs_work(record: TimelineRecord, statuses: Statuses) -> bool:
    """Whether a driver could do something now of what is left to be done."""
    if record.is_finished:
        return False
    if record.configuration.is_joint or record.notified_generation < record.generation:
        return True

    def can_act(safekeeper: SafekeeperId) -> bool:
        status = statuses.get(safekeeper)
        return status in (SafekeeperStatus.ACTIVE, SafekeeperStatus.DECOMMISSIONED)

    undelivered = record.delivered_generation < record.generation and not record.deleted
    waiting = record.configuration.members if undelivered else ()
    return any(can_act(one) for one in (*waiting, *record.departed))


@dataclass(frozen=True, slots=True)
class Held:
    """A timeline that a safekeeper says it has, and in which generation."""

    timeline: TimelineId
    generation: int


def decide_scrub(
    safekeeper: SafekeeperId,
    held: Sequence[Held],
    records: Mapping[TimelineId, TimelineRecord],
) -> list[Exclude]:
    """What of it is garbage by the store: to be removed under the generation that proves it.

    Who is a member of either set keeps what it has, and within a change everybody does: a
    tombstone has the generation of a change that has ended. Of a timeline that the store does not
    know nothing is removed: its record is written before anything is put on a safekeeper and is
    never removed, so that another store is being asked.
    """
    garbage: list[Exclude] = []
    for one in held:
        record = records.get(one.timeline)
        if record is None or one.generation > record.generation:
            continue
        configuration = record.configuration
        is_over = not configuration.is_joint and safekeeper not in configuration.members
        if record.deleted or is_over:
            garbage.append(Exclude(safekeeper, one.timeline, configuration, forever=record.deleted))
    return garbage
