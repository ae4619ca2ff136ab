"""What to clean of a tablet's memory and of its log, by cost and benefit. Pure.

Two levels, as memory is dear and disks are not (RAMCloud). **Compacting** drops a segment's dead
rows from memory and leaves its replicas as they are: it costs a copy in memory. **Cleaning** puts
one segment, the survivor, in the place of neighbours, in memory and on backups: it costs as many
writes as there are replicas, and is done once the log is much larger than memory, where by then
most of it is dead. Only neighbours, so that rows stay in the order in which they were written.

The benefit of cleaning is what it frees, times how long that will stay free: old rows die more
slowly than young ones. The cost is what has to be copied.

Source: Rumble, Kejriwal, Ousterhout, "Log-structured Memory for DRAM-based Storage" (FAST 2014);
Rosenblum, Ousterhout, "The Design and Implementation of a Log-Structured File System" (1992).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

DEAD_SHARE_MIN = 0.02
"""Of a segment: less is not worth a copy of the rest."""
OVERHEAD_BYTES = 4096
"""What a segment costs beside its rows: small ones are worth joining."""
NEIGHBOURS_MAX = 64
SPARE_SEGMENTS = 32
"""A log may have so many segments more than twice what its bytes need."""
LIVE_SHARE_MAX = 0.95
"""Of the memory: with more live rows cleaning would take ever longer, and free ever less."""
COPIED_SHARE_MAX = 0.9
"""Of the memory, up to which a server takes rows that another tablet has as well, whose successor
is here: the rest is for those who write."""


class Candidate(NamedTuple):
    """A closed segment as the choice sees it."""

    slot: int
    segment_id: int
    schema_version: int
    rows: int
    """In memory: live ones, dead ones and tombstones."""
    live_rows: int
    tombstones: int
    memory_bytes: int
    log_bytes: int
    age: int
    """Versions given since its last row."""
    was_written: bool = True
    """Whether it ever had rows: a head that was closed early has none."""
    is_free: bool = True
    """Sealed, on all of its replicas, and not being cleaned."""
    is_lost: bool = False
    """It lacks a replica, and there is nothing to make one of but a survivor."""

    @property
    def dead_rows(self) -> int:
        return self.rows - self.live_rows - self.tombstones

    @property
    def kept_bytes(self) -> int:
        """Of memory, with its tombstones: about."""
        return self.memory_bytes * (self.live_rows + self.tombstones) // max(1, self.rows)

    @property
    def dead_bytes(self) -> int:
        return self.memory_bytes - self.kept_bytes


def best_to_compact(candidates: Iterable[Candidate]) -> Candidate | None:
    """The segment that frees most memory for what is copied; None: there is nothing to gain."""
    best: Candidate | None = None
    most = 0.0
    for each in candidates:
        if not each.is_free or each.dead_rows <= DEAD_SHARE_MIN * each.rows:
            continue
        gain = each.dead_bytes / (each.kept_bytes + 1)
        if gain > most:
            best, most = each, gain
    return best


@dataclass(frozen=True, slots=True)
class Needs:
    """When a log is to be cleaned."""

    segment_bytes: int
    log_factor: float
    """The log may take so many times what memory takes of the same rows."""
    has_replicas: bool = True
    keeps_tombstones: bool = False
    """For now none may be forgotten."""
    memory_is_low: bool = False
    """And compacting frees nothing."""
    disks_are_low: bool = False
    """Those of backups: whatever is dead is worth to be freed."""


def best_to_clean(candidates: Sequence[Candidate], needs: Needs) -> tuple[Candidate, ...]:
    """The neighbours that one survivor should replace now; none: there is no need.

    ``candidates``: all closed segments of the log, in its order.
    """
    goes = first_to_go(candidates, needs)
    if goes:
        return goes
    log_bytes = sum([each.log_bytes for each in candidates])
    memory_bytes = sum([each.memory_bytes for each in candidates])
    allowed_bytes = needs.log_factor * max(memory_bytes, needs.segment_bytes)
    is_long = needs.has_replicas and log_bytes > allowed_bytes
    fill = memory_bytes if not needs.has_replicas else log_bytes
    is_cut_up = len(candidates) > SPARE_SEGMENTS + 2 * fill // needs.segment_bytes
    if not (is_long or is_cut_up or needs.memory_is_low or needs.disks_are_low):
        return ()
    return _best_window(candidates, needs)


def first_to_go(candidates: Sequence[Candidate], needs: Needs) -> tuple[Candidate, ...]:
    """What leaves a log however short that is: a segment that lacks a replica for good, or
    neighbours of which nothing stays. None: all of it may stay."""
    for each in candidates:
        if each.is_lost and each.is_free:
            return (each,)
    return _dead_ones(candidates, needs)


def _dead_ones(candidates: Sequence[Candidate], needs: Needs) -> tuple[Candidate, ...]:
    """The first neighbours of which nothing stays: all rows are dead, and there are no tombstones,
    or none that has anything before it to guard against."""
    found: list[Candidate] = []
    is_prefix = not needs.keeps_tombstones
    for each in candidates:
        is_dead = not each.live_rows and each.is_free
        is_prefix = is_prefix and is_dead
        is_alike = not found or each.schema_version == found[0].schema_version
        fits = is_alike and len(found) < NEIGHBOURS_MAX
        if is_dead and (is_prefix or not each.tombstones) and fits:
            found.append(each)
        elif found:
            break
    return tuple(found)


def _best_window(candidates: Sequence[Candidate], needs: Needs) -> tuple[Candidate, ...]:
    best: tuple[Candidate, ...] = ()
    most = 0.0
    for first, start in enumerate(candidates):
        kept = freed = age = 0
        window = candidates[first : first + NEIGHBOURS_MAX]
        for count, each in enumerate(window, 1):
            if not each.is_free or each.schema_version != start.schema_version:
                break
            stays = _stays(each, needs)
            kept += stays
            if kept > needs.segment_bytes and count > 1:
                break
            freed += (each.log_bytes if needs.has_replicas else each.memory_bytes) - stays
            freed += OVERHEAD_BYTES if count > 1 else 0
            age += each.age
            if freed <= DEAD_SHARE_MIN * (kept + freed):
                continue
            score = freed * (1.0 + age / count) / (kept + OVERHEAD_BYTES)
            if score > most:
                best, most = tuple(window[:count]), score
    return best


def _stays(each: Candidate, needs: Needs) -> int:
    """Bytes that a survivor takes over. Where memory is low for tombstones, they may go: whether
    they do shows when it is built."""
    if needs.memory_is_low and not needs.keeps_tombstones:
        return each.memory_bytes * each.live_rows // max(1, each.rows)
    return min(each.kept_bytes, each.log_bytes) if needs.has_replicas else each.kept_bytes


def low_bytes(limit_bytes: int, live_bytes: int, share: float) -> int:
    """From so many bytes in use on, memory is cleaned: from ``share`` of the limit on, or, where
    most of it lives, from half of what lives not: later there is more to free at a time."""
    return int(max(share * limit_bytes, (limit_bytes + live_bytes) / 2)) if share else 0
