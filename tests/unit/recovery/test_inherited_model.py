"""Where a part's log ends, against the model of a writer: the tablet is split while some backups
are out of reach, and each part is planned while others are. Nothing acknowledged is left out."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from stelae.core.errors import SegmentsMissing
from stelae.core.ids import TabletId
from stelae.core.messages.backups import LogInventory
from stelae.core.records.records import Inheritance, TabletRecord
from stelae.recovery import plan
from stelae.recovery.inherited import end_of, plan_inherited, plan_of

_SPEC = importlib.util.spec_from_file_location(
    "recovery_log_model_3", Path(__file__).with_name("log_model.py")
)
assert _SPEC is not None
assert _SPEC.loader is not None
model = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = model
_SPEC.loader.exec_module(model)

PART = TabletId("b" * 32)
RUNS = 1500


def written(rng: random.Random) -> Any:
    """A writer with losses and returns of backups, stopped anywhere."""
    count = rng.randint(2, 5)
    log = model.LogModel(rng, rng.randint(1, min(3, count)), count)
    for _ in range(rng.randint(1, 80)):
        if rng.random() < 0.08 and len(log.lost) < count - 1:
            log.lost.add(rng.randrange(count))
        if rng.random() < 0.1 and log.lost:
            log.lost.remove(rng.choice(sorted(log.lost)))
        log.step()
    return log


def some(rng: random.Random, log: Any) -> dict[Any, LogInventory]:
    """What backups hold that are within reach just now."""
    found = {b for b in range(len(log.backups)) if rng.random() < 0.6}
    inventories: dict[Any, LogInventory] = log.inventories(found)
    return inventories


def check(log: Any, part: TabletRecord, inherited: dict[Any, LogInventory]) -> str:
    """Plan a part; how its log ends: as all parts read it, as is found, or not."""
    inventories = {PART: {}, model.TABLET: inherited}
    try:
        plan_of(part, log.replica_count, inventories, are_all_in=False)
        kind = "as the entry says"
    except SegmentsMissing:
        kind = "as is found"
    try:
        sources = plan_inherited(part, log.replica_count, {}, inherited)
    except SegmentsMissing:
        return "missing"
    by_id = {source.segment_id: source for source in sources}
    for segment in log.segments:
        if segment.acked:
            source = by_id.get(segment.id)
            assert source is not None, f"segment {segment.id} with acknowledged entries is left out"
            assert source.length >= segment.acked, f"{segment.id} ends before what counts"
            for uuid, _, _ in source.replicas:
                found = log.backups[int(uuid[1:])][segment.id]
                assert found.length >= segment.acked, f"a short replica of {segment.id} was chosen"
    return kind


def run_many() -> Counter[str]:
    kinds: Counter[str] = Counter()
    for seed in range(RUNS):
        rng = random.Random(seed)
        log = written(rng)
        end = _split(log, some(rng, log))
        if end is None:
            continue
        part = msgspec.structs.replace(log.tablet, tablet_id=PART, term=end.term, inherits=end)
        for _ in range(2):
            kinds[check(log, part, some(rng, log))] += 1
    return kinds


def _split(log: Any, inventories: dict[Any, LogInventory]) -> Inheritance | None:
    """As masters do: only once the log is at hand whole."""
    try:
        plan.plan_recovery(log.tablet, log.replica_count, inventories)
    except SegmentsMissing:
        return None
    return end_of(log.tablet, log.replica_count, inventories)


def test_whoever_answers_a_part_has_all_that_was_acknowledged() -> None:
    """Also where nobody who answers has what the split entry says."""
    kinds = run_many()
    assert kinds["as the entry says"] > 300
    assert kinds["as is found"] > 20


def test_stale_replicas_taken_for_the_end_are_found_by_the_model() -> None:
    """The part's mark is what keeps them out."""

    def forgetful(tablet: TabletRecord, media_count: int, by_segment: Any) -> Any:
        unmarked = msgspec.structs.replace(tablet, valid_segment=0, valid_epoch=0)
        return plan.find_head(unmarked, media_count, by_segment)

    planted = patch("stelae.recovery.inherited.find_head", forgetful)
    with planted, pytest.raises(AssertionError):
        run_many()
