"""What is chosen for cleaning: a table of cases; and the filter of keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.storage.keys.bloom_filter import KeyFilter
from stelae.storage.rows.cleaning import (
    SPARE_SEGMENTS,
    Candidate,
    Needs,
    best_to_clean,
    best_to_compact,
    first_to_go,
    low_bytes,
)

MIB = 1 << 20
NEEDS = Needs(8 * MIB, 2.0)


def segment(
    number: int,
    live: int,
    tombstones: int = 0,
    *,
    rows: int = 100,
    log: int = 8 * MIB,
    memory: int = 8 * MIB,
    age: int | None = None,
    schema: int = 1,
    is_free: bool = True,
    is_lost: bool = False,
) -> Candidate:
    """One of a hundred rows and 8 MiB; the older the lower its number."""
    given_age = 1000 - number if age is None else age
    return Candidate(
        number,
        number,
        schema,
        rows,
        live,
        tombstones,
        memory,
        log,
        given_age,
        True,
        is_free,
        is_lost,
    )


def chosen(*candidates: Candidate, needs: Needs = NEEDS) -> list[int]:
    return [each.segment_id for each in best_to_clean(candidates, needs)]


COMPACTED = {
    "nothing there": ([], None),
    "all live": ([segment(1, 100)], None),
    "too little dead": ([segment(1, 98)], None),
    "tombstones are not dead rows": ([segment(1, 50, 50)], None),
    "most freed for what is copied": ([segment(1, 60), segment(2, 30), segment(3, 50)], 2),
    "not while it is cleaned, or has to replicate": (
        [segment(1, 60), segment(2, 30, is_free=False)],
        1,
    ),
    "all dead": ([segment(1, 60), segment(2, 0)], 2),
}


@pytest.mark.parametrize("case", COMPACTED)
def test_the_segment_that_frees_most_for_its_copy_is_compacted(case: str) -> None:
    """One case each; ties go to the first."""
    candidates, wanted = COMPACTED[case]
    found = best_to_compact(candidates)
    assert (None if found is None else found.segment_id) == wanted


def compacted(number: int, live: int, **other: Any) -> Candidate:
    """What memory has of it is what lives, of 8 MiB in the log."""
    return segment(number, live, rows=live, memory=live * 8 * MIB // 100, **other)


CLEANED: dict[str, tuple[list[Candidate], Needs, list[int]]] = {
    "nothing there": ([], NEEDS, []),
    "a log as long as memory": ([segment(1, 50), segment(2, 50)], NEEDS, []),
    "no rows left, whatever the need": (
        [segment(1, 90), segment(2, 0), segment(3, 0)],
        NEEDS,
        [2, 3],
    ),
    "tombstones guard what is before them": ([segment(1, 90), segment(2, 0, 9)], NEEDS, []),
    "nothing is before the first": (
        [segment(1, 0, 9), segment(2, 0, 3), segment(3, 9)],
        NEEDS,
        [1, 2],
    ),
    "none may be forgotten": (
        [segment(1, 0, 9), segment(2, 9)],
        Needs(8 * MIB, 2.0, keeps_tombstones=True),
        [],
    ),
    "a replica is lost that only a survivor replaces": (
        [segment(1, 90), segment(2, 90, is_lost=True), segment(3, 0)],
        NEEDS,
        [2],
    ),
    "neighbours that fit one segment": (
        [compacted(n, 30, age=500) for n in range(1, 5)],
        NEEDS,
        [1, 2, 3],
    ),
    "not across a change of the schema": (
        [compacted(1, 30), compacted(2, 20, schema=2), compacted(3, 20, schema=2)],
        NEEDS,
        [2, 3],
    ),
    "old ones rather than young ones of the same share": (
        [compacted(1, 40, age=1000), compacted(2, 95, age=900), compacted(3, 40, age=5)],
        Needs(8 * MIB, 1.2),
        [1],
    ),
    "a young one if it is much emptier": (
        [compacted(1, 90, age=1000), compacted(2, 95, age=900), compacted(3, 2, age=500)],
        Needs(8 * MIB, 1.2),
        [3],
    ),
    "many small ones are joined": (
        [segment(n, 100, log=1000, memory=1000) for n in range(SPARE_SEGMENTS + 2)],
        NEEDS,
        [*range(SPARE_SEGMENTS + 2)],
    ),
    "without replicas only memory counts": (
        [compacted(n, 10) for n in range(1, 5)],
        Needs(8 * MIB, 2.0, has_replicas=False),
        [],
    ),
    "dead ones are not joined across a change of the schema": (
        [segment(1, 0), segment(2, 0), segment(3, 0, schema=2)],
        NEEDS,
        [1, 2],
    ),
    "disks are low, and the log is not long": (
        [segment(1, 90), segment(2, 30), segment(3, 30)],
        Needs(8 * MIB, 2.0, disks_are_low=True),
        [2, 3],
    ),
    "disks are low, and everything lives": (
        [segment(1, 100), segment(2, 100)],
        Needs(8 * MIB, 2.0, disks_are_low=True),
        [],
    ),
    "memory is low for tombstones": (
        [segment(1, 50, 0), segment(2, 50, 50)],
        Needs(8 * MIB, 2.0, memory_is_low=True),
        [1, 2],
    ),
}


@pytest.mark.parametrize("case", CLEANED)
def test_neighbours_are_cleaned_by_benefit_and_cost(case: str) -> None:
    """One case each."""
    candidates, needs, wanted = CLEANED[case]
    assert chosen(*candidates, needs=needs) == wanted


GOES: dict[str, tuple[list[Candidate], list[int]]] = {
    "nothing there": ([], []),
    "all of it may stay": ([compacted(n, 10) for n in range(1, 5)], []),
    "no rows at all, as in a head that was closed early": (
        [segment(1, 90), segment(2, 0, rows=0), segment(3, 0), segment(4, 90)],
        [2, 3],
    ),
    "tombstones, also first ones": ([segment(1, 0, 9), segment(2, 0, 9), segment(3, 0)], [3]),
    "rows that are elsewhere": ([segment(1, 0, is_free=False), segment(2, 0)], [2]),
    "what lacks a replica comes first": (
        [segment(1, 0), segment(2, 90, is_lost=True)],
        [2],
    ),
}


@pytest.mark.parametrize("case", GOES)
def test_what_is_dead_or_lost_leaves_a_log_however_short_it_is(case: str) -> None:
    """One case each; of rows that are elsewhere nothing is known that would let tombstones go."""
    candidates, wanted = GOES[case]
    found = first_to_go(candidates, Needs(8 * MIB, 2.0, keeps_tombstones=True))
    assert [each.segment_id for each in found] == wanted


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 100),
            st.integers(0, 100),
            st.integers(1, 3),
            st.booleans(),
            st.integers(1, 8),
        ),
        max_size=30,
    ),
    st.booleans(),
)
def test_what_is_chosen_may_be_cleaned_and_fits(
    drawn: list[tuple[int, int, int, bool, int]], low: bool
) -> None:
    """Free neighbours of one schema, whose rows fit one segment if they are several."""
    candidates = [
        segment(n, min(live, 100 - dead), dead // 3, schema=schema, is_free=free, memory=mib * MIB)
        for n, (live, dead, schema, free, mib) in enumerate(drawn)
    ]
    found = best_to_clean(candidates, Needs(8 * MIB, 1.0, memory_is_low=low))
    ids = [each.segment_id for each in found]
    assert ids == list(range(ids[0], ids[0] + len(ids))) if ids else not found
    assert all(each.is_free for each in found)
    assert len({each.schema_version for each in found}) <= 1
    live = sum(each.memory_bytes * each.live_rows // each.rows for each in found)
    assert len(found) <= 1 or live <= 8 * MIB


def test_memory_is_cleaned_early_enough_to_free_much_at_a_time() -> None:
    """From the share on; where more lives, from the middle between that and the limit."""
    assert low_bytes(1000, 100, 0.9) == 900
    assert low_bytes(1000, 900, 0.9) == 950
    assert low_bytes(1000, 900, 0.0) == 0


@pytest.mark.parametrize("count", [0, 1, 7, 1000, 50_000])
def test_a_filter_forgets_no_key_and_takes_few_for_others(count: int) -> None:
    """A byte a key; one in thirty of others is taken for one of them."""
    rng = np.random.default_rng(count)
    hashes = rng.integers(0, 1 << 64, count, np.uint64)
    keys = KeyFilter(hashes)
    assert keys.may_have(hashes).all()
    assert keys.size_bytes == max(1, count)
    others = rng.integers(0, 1 << 64, 20_000, np.uint64)
    assert keys.may_have(others).mean() < 0.05 or 0 < count < 10
