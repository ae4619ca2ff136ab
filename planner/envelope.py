"""The back-of-the-envelope of the RAMCloud note on master recovery, redone step by step.

Each step has what the note says, and what its own numbers give, computed with the planner's
functions where the step is one of them. `MISTAKE` says in a sentence what is wrong with its result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stelae.planner.chance import busiest
from stelae.planner.hardware import GIGABIT, SEED
from stelae.planner.layout import Layout, Mode
from stelae.planner.recovery import moved_bytes, recovery_times, seconds, segment_work, size

CHUNK_BYTES = 8_000_000
MEMORY_BYTES = 64e9
OBJECT_BYTES = 100
ID_BYTES = 8
MACHINES = 8192
"""The note's own count: 64 GB in chunks of 8 MB, one on each disk."""
TOLERANCE = 0.15
"""A step agrees with the note if it is off by less."""

MISTAKE = (
    "The note's 5.49 s is the time of 5.12 GiB at 1 GB/s: it leaves out the second replica that "
    "its own sum has just put in, and takes the 1 Gb/s of the link for bytes; 10.24 GB over 1 Gb/s "
    "are 82 s, so that its phase 1 of about 5 s needs the data on many takers, or links of 16 Gb/s."
)

LAYOUT = Layout(
    servers=MACHINES + 1,
    backups=MACHINES,
    machines=MACHINES + 1,
    memory_bytes=int(MEMORY_BYTES),
    data_bytes=MEMORY_BYTES * (MACHINES + 1),
    row_bytes=OBJECT_BYTES,
    replicas=2,
    segment_bytes=CHUNK_BYTES,
    takers_max=1,
    mode=Mode.METADATA_FIRST,
    summary_row_bytes=ID_BYTES,
    summaries_of_all_replicas=True,
    live_share=1.0,
)
"""What the note describes: one spare takes over, ids come first, of both replicas."""


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the envelope, in seconds or in bytes. ``said`` None: it is not in the note."""

    what: str
    formula: str
    said: float | None
    found: float
    is_time: bool
    remark: str = ""

    @property
    def agrees(self) -> bool:
        return self.said is None or abs(self.found - self.said) <= TOLERANCE * self.said

    @property
    def said_text(self) -> str:
        if self.said is None:
            return ""
        return seconds(self.said) if self.is_time else size(self.said)

    @property
    def found_text(self) -> str:
        return seconds(self.found) if self.is_time else size(self.found)


def steps() -> Iterator[Step]:
    """The envelope, from top to bottom, and what becomes of it with many takers."""
    yield from _reading()
    yield from _keys()
    yield from _rest()


def _reading() -> Iterator[Step]:
    chunk_s = segment_work(SEED, LAYOUT).disk_s
    yield Step("a backup reads one chunk", "8 ms + 8 MB / 150 MB/s", 0.061, chunk_s, True)
    most = busiest(LAYOUT.lost_segments, MACHINES)
    yield Step(
        "all backups read their chunks",
        f"{most} chunks on the busiest of {MACHINES:,} disks × {seconds(chunk_s)}",
        0.061,
        recovery_times(SEED, LAYOUT).of("reading"),
        True,
        "placed at random, some disks have several: a choice among a few evens it out",
    )


def _keys() -> Iterator[Step]:
    """Phase 1: where the mistake is."""
    one, both = LAYOUT.with_changes(summaries_of_all_replicas=False), LAYOUT
    times = recovery_times(SEED, both)
    yield Step("ids of one log", "64 GB / 100 B × 8 B", 5.12e9, moved_bytes(one), False)
    yield Step("... of k = 2 replicas", "2 × 5.12 GB", 10.24e9, moved_bytes(both), False)
    yield Step(
        "they reach the new master",
        "10.24 GB / (1 Gb/s ÷ 8)",
        5.49,
        times.of("network"),
        True,
        "the mistake: see below",
    )
    yield Step(
        "... as the note must have reckoned",
        "5.12 GiB / 1 GB/s",
        5.49,
        5.12 * 2**30 / (8 * GIGABIT),
        True,
        "one replica, and bytes for bits",
    )
    yield Step("phase 1 in all", "the slowest of these", 5.0, times.serves_again_s, True)
    one_copy = recovery_times(SEED, one).serves_again_s
    yield Step("... asking one replica of each chunk", "5.12 GB / 125 MB/s", None, one_copy, True)


def _rest() -> Iterator[Step]:
    yield Step(
        "phase 2, all data to the new master",
        "64 GB / (1 Gb/s ÷ 8)",
        600.0,
        recovery_times(SEED, LAYOUT).of("loading rows"),
        True,
        "the note's “up to ~10 min” holds",
    )
    yield Step(
        "index entries of a chunk, to another machine",
        "half of 8 MB / (1 Gb/s ÷ 8)",
        0.003,
        CHUNK_BYTES / 2 / GIGABIT,
        True,
        "the note's 3 ms is 10 Gb/s",
    )
    spread = LAYOUT.with_changes(takers_max=0, tablets_per_server=1000, mode=Mode.WHOLE)
    yield Step(
        "what Stelae does: all rows, onto 1,000 takers",
        "64 MB each / (1 Gb/s ÷ 8), beside the reading",
        None,
        recovery_times(SEED, spread).serves_again_s,
        True,
        "whole rows in a fraction of the note's phase 1",
    )
