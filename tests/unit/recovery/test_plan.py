"""`stelae.recovery.plan`: the whole log, or the names of what is missing; never a shorter log."""

from __future__ import annotations

import importlib.util
import itertools
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stelae.core.errors import SegmentsMissing
from stelae.core.ids import segment_id
from stelae.core.messages.backups import LogInventory, ReplicaInfo, ReplicaState
from stelae.core.messages.servers import SegmentSource
from stelae.core.records.records import ServerInfo
from stelae.recovery import plan
from stelae.recovery.plan import plan_recovery, plan_sealed

_SPEC = importlib.util.spec_from_file_location(
    "recovery_log_model", Path(__file__).with_name("log_model.py")
)
assert _SPEC is not None
assert _SPEC.loader is not None
model = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = model
_SPEC.loader.exec_module(model)

OPEN, CLOSED, SEALED = ReplicaState.OPEN, ReplicaState.CLOSED, ReplicaState.SEALED
A, B, C = (model.backup_info(number) for number in (1, 2, 3))


def replica(
    number: int,
    state: ReplicaState,
    *,
    digest: tuple[int, ...] = (),
    length: int = 10,
    epoch: int = 0,
    term: int = 1,
    crc: int = 0,
) -> ReplicaInfo:
    """Segment ``number`` of term 1, as a backup tells it."""
    ids = tuple(segment_id(1, n) for n in digest)
    return ReplicaInfo(segment_id(1, number), term, epoch, state, "disk", length, crc, ids)


def held(by: dict[ServerInfo, list[ReplicaInfo]]) -> dict[ServerInfo, LogInventory]:
    """Inventories."""
    return {b: LogInventory(model.TABLET, 2, tuple(found)) for b, found in by.items()}


def tablet(valid: tuple[int, int] = (0, 0)) -> Any:
    """A record whose mark is segment ``valid[0]`` of term 1, epoch ``valid[1]``."""
    log = model.LogModel(random.Random(0), 1, 1)
    log.mark = (segment_id(1, valid[0]) if valid[0] else 0, valid[1])
    return log.tablet


def ids(sources: tuple[SegmentSource, ...]) -> list[tuple[int, bool, bool]]:
    """(number, sealed, is head) of each source."""
    return [(s.segment_id & 0xFFFFFFFF, s.sealed, s.is_head) for s in sources]


def test_of_two_open_heads_the_older_ends_the_log() -> None:
    """RAMCloud's order rules: nothing was acknowledged out of the newer one."""
    sources = plan_recovery(
        tablet(),
        2,
        held(
            {
                A: [replica(1, SEALED), replica(2, OPEN, digest=(1, 2))],
                B: [replica(2, OPEN, digest=(1, 2)), replica(3, OPEN, digest=(1, 2, 3), length=0)],
            }
        ),
    )
    assert ids(sources) == [(1, True, False), (2, False, True)]


def test_a_closed_replica_makes_a_segment_final_whatever_other_replicas_say() -> None:
    """A backup that missed the close does not bring an old head back."""
    sources = plan_recovery(
        tablet(),
        2,
        held(
            {
                A: [replica(2, OPEN, digest=(2,), length=4), replica(3, OPEN, digest=(2, 3))],
                B: [replica(2, CLOSED), replica(3, OPEN, digest=(2, 3))],
            }
        ),
    )
    assert ids(sources) == [(2, False, False), (3, False, True)]
    assert [uuid for uuid, _, _ in sources[0].replicas] == ["b2"]


def test_open_replicas_below_the_mark_are_stale() -> None:
    """A replica lost and replaced under a higher epoch never ends the log."""
    stale = held({A: [replica(2, OPEN, digest=(2,), length=4, epoch=0)]})
    with pytest.raises(SegmentsMissing, match="ends its log"):
        plan_recovery(tablet((2, 1)), 2, stale)
    both = held(
        {
            A: [replica(2, OPEN, digest=(2,), length=40, epoch=0)],
            B: [replica(2, OPEN, digest=(2,), length=9, epoch=1)],
        }
    )
    (head,) = plan_recovery(tablet((2, 1)), 2, both)
    assert (head.length, head.epoch, [r[0] for r in head.replicas]) == (9, 1, ["b2"])


def test_of_the_head_only_the_highest_epoch_counts_and_the_longest_comes_first() -> None:
    """All of them hold what was acknowledged; the longest most of what was not."""
    (head,) = plan_recovery(
        tablet(),
        3,
        held(
            {
                A: [replica(1, OPEN, digest=(1,), length=5, epoch=1)],
                B: [replica(1, OPEN, digest=(1,), length=7, epoch=1)],
                C: [replica(1, OPEN, digest=(1,), length=9, epoch=0)],
            }
        ),
    )
    assert head.length == 7
    assert [r[0] for r in head.replicas] == ["b2", "b1"]


def test_missing_segments_are_named() -> None:
    """The tablet stays offline, and people read which segments it waits for."""
    with pytest.raises(SegmentsMissing, match=r"segments 1\.1, 1\.3$"):
        plan_recovery(
            tablet(),
            2,
            held({A: [replica(2, SEALED), replica(4, OPEN, digest=(1, 2, 3, 4))]}),
        )


def test_no_backup_at_all_means_a_missing_log_end() -> None:
    """Nobody answered: that is not an empty log."""
    with pytest.raises(SegmentsMissing, match="ends its log"):
        plan_recovery(tablet(), 1, {})


def test_a_log_without_media_is_empty() -> None:
    """``segments()``: the rows died with their server."""
    assert plan_recovery(tablet(), 0, {}) == ()


def test_sealed_replicas_are_preferred_to_row_form() -> None:
    """One form per segment: length and offsets mean different things in the two."""
    sources = plan_recovery(
        tablet(),
        2,
        held(
            {
                A: [replica(1, CLOSED, length=50), replica(2, OPEN, digest=(1, 2))],
                B: [replica(1, SEALED, length=20)],
            }
        ),
    )
    assert sources[0].sealed
    assert [r[0] for r in sources[0].replicas] == ["b2"]
    assert sources[0].length == 20


def test_final_replicas_of_an_earlier_recovery_do_not_count_beside_a_later_ones() -> None:
    """Two recoveries converted different tails of one head: the later one was served."""
    sources = plan_recovery(
        tablet(),
        2,
        held(
            {
                A: [replica(1, SEALED, length=99, term=2, crc=7)],
                B: [replica(1, SEALED, length=98, term=3, crc=8)],
                C: [replica(2, OPEN, digest=(1, 2), term=3)],
            }
        ),
    )
    assert sources[0].length == 98
    assert [r[0] for r in sources[0].replicas] == ["b2"]


# ---- against the model of a writer ------------------------------------------------------------


def check(log: Any, reachable: set[int]) -> bool:
    """Plan, and see that nothing acknowledged is left out; False if segments are missing."""
    try:
        sources = plan_recovery(log.tablet, log.replica_count, log.inventories(reachable))
    except SegmentsMissing:
        return False
    by_id = {source.segment_id: source for source in sources}
    assert [s.segment_id for s in sources] == sorted(by_id), "segments in order"
    assert [s.is_head for s in sources] == [False] * (len(sources) - 1) + [True]
    for segment in log.segments:
        if segment.acked == 0:
            continue
        source = by_id.get(segment.id)
        assert source is not None, f"segment {segment.id} with acknowledged entries is left out"
        for uuid, _, _ in source.replicas:
            found = log.backups[int(uuid[1:])][segment.id]
            assert found.length >= segment.acked, f"a short replica of {segment.id} was chosen"
    return True


def run_random(seed: int) -> bool:
    """One writer with losses and returns of backups, stopped anywhere; some are out of reach."""
    rng = random.Random(seed)
    count = rng.randint(2, 5)
    log = model.LogModel(rng, rng.randint(1, min(3, count)), count)
    for _ in range(rng.randint(1, 80)):
        if rng.random() < 0.08 and len(log.lost) < count - 1:
            log.lost.add(rng.randrange(count))
        if rng.random() < 0.1 and log.lost:
            log.lost.remove(rng.choice(sorted(log.lost)))
        log.step()
    reachable = {b for b in range(count) if rng.random() < 0.7}
    return check(log, reachable)


def test_whatever_backups_answer_the_plan_is_complete_or_refused() -> None:
    """Random writers with lost, replaced and returning backups, crashed at random points."""
    assert run_random_many() > 500, "the model must not make everything missing"


def run_every_crash_point() -> int:
    """Two replicas on three backups, no losses: every crash point, every set of backups."""
    planned = 0
    for seed, steps in itertools.product(range(12), range(1, 40)):
        log = model.LogModel(random.Random(seed), 2, 3)
        for _ in range(steps):
            log.step()
        for size in range(4):
            for reachable in itertools.combinations(range(3), size):
                planned += check(log, set(reachable))
        assert check(log, {0, 1, 2}) or steps < 4, "all backups answered: nothing is missing"
        if log.segments[0].acked:
            # One of the two replicas of everything is always there with two of three backups.
            assert all(check(log, set(two)) for two in itertools.combinations(range(3), 2))
    return planned


def test_every_crash_point_and_every_set_of_backups_without_losses() -> None:
    """Exhaustive over the first steps of a writer; what can be recovered is."""
    assert run_every_crash_point() > 1000


def run_random_many() -> int:
    """Random writers; how many could be planned."""
    return sum(run_random(seed) for seed in range(1500))


def _highest_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "min", max, raising=False)


def _stale_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        plan, "_valid_open", lambda tablet, held: [h for h in held if h.replica.state is OPEN]
    )


def _digest_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    head_replicas = plan._head_replicas

    def only_head(held: Any) -> Any:
        return [
            h._replace(replica=msgspec.structs.replace(h.replica, digest=(h.replica.segment_id,)))
            for h in head_replicas(held)
        ]

    monkeypatch.setattr(plan, "_head_replicas", only_head)


@pytest.mark.parametrize(
    ("plant", "run"),
    [
        (_highest_head, run_every_crash_point),
        (_stale_epoch, run_random_many),
        (_digest_ignored, run_random_many),
    ],
)
def test_a_planted_bug_is_found_by_the_model(
    plant: Callable[[pytest.MonkeyPatch], None],
    run: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wrong head of two taken; stale epoch accepted; a missing segment overlooked."""
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        run()


def test_of_a_timelines_segments_all_final_replicas_are_named() -> None:
    """The digest is in the timeline: nothing is left out, and nothing open is taken for a segment.
    Of one segment only replicas that agree with the newest are named."""
    sources = plan_sealed(
        held(
            {
                A: [replica(1, SEALED), replica(2, SEALED, length=9, term=1)],
                B: [replica(1, SEALED), replica(2, SEALED, length=8, term=3), replica(3, OPEN)],
            }
        )
    )
    assert ids(sources) == [(1, True, False), (2, True, False)]
    assert [[uuid for uuid, _, _ in source.replicas] for source in sources] == [
        [A.uuid, B.uuid],
        [B.uuid],
    ]
    assert plan_sealed({}) == ()
