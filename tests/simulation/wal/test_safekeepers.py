"""Real safekeepers under writers, migrations, evictions and faults lose nothing acknowledged."""

from __future__ import annotations

import io
from typing import get_args

import msgspec
import pytest

from stelae.core.records.records import ServerKind
from stelae.simulation import Options, World
from stelae.simulation.cluster import SimCluster
from stelae.simulation.runner import run_seed, run_seeds
from stelae.simulation.timelines.events import (
    AppendEntry,
    Event,
    NewEntry,
    RestartProposer,
    Vote,
    decode_events,
)
from stelae.simulation.timelines.trace import NotInModelError, check_trace
from stelae.simulation.world.options import Servers
from tests.simulation.wal.planted_timelines import BUGS
from tests.simulation.wal.safekeepers import SCENARIO, Life, live, options

SEEDS = 4
BUG_SEEDS = 150
SEEDS_OF_TRACE = 4


def test_timelines_lose_nothing_under_faults() -> None:
    """Proposers, safekeepers, backups, drivers and network fail; all ends well once they do not."""
    run_seeds(SCENARIO, SEEDS)


def test_a_seed_is_replayed_exactly() -> None:
    """Nothing hash-ordered or of the real clock gets into a run."""
    first, again = (run_seed(SCENARIO, 10) for _ in range(2))
    assert first.digest == again.digest


def test_the_lives_are_worth_their_name() -> None:
    """Over a few seeds there are elections, acknowledgements, trims, pulls and evictions, and in
    some a proposer is elected in the same tablet term as another."""
    lives: list[Life] = []
    for seed in range(12):
        world = World(seed, options(seed))
        lives.append(world.run(live(Life(world))))
    judges = [judge for life in lives for judge in life.judges.values()]
    assert all(judge.elections and judge.acknowledged for judge in judges)
    assert any(judge.trimmed_lsn > 20 for judge in judges)
    for metric in ("timelines_pulled", "timelines_evicted"):
        assert sum(life.count(metric) for life in lives) > 5, metric
    duels = 0
    for judge in judges:
        owners = {(term >> 32, proposer) for term, proposer in judge.winners.items()}
        duels += len(owners) - len({owner for owner, _ in owners})
    assert duels > 5


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_a_planted_bug_is_found(bug: str) -> None:
    """Each safeguard that is left out is a step that the model does not have, or loses an entry;
    the same seed is fine without it."""
    for seed in range(BUG_SEEDS):
        failure = run_seed(SCENARIO, seed, bug=bug).failure
        if failure is not None:
            found = BaseExceptionGroup("found", [failure.error])
            assert found.subgroup(AssertionError) is not None, "the planting itself is broken"
            assert run_seed(SCENARIO, seed).failure is None
            return
    raise AssertionError(f"{bug!r} was not found")


def test_a_cut_that_is_missing_is_seen_where_it_is_missing() -> None:
    """The line of Elected has what the safekeeper has then, not what it should have."""
    for seed in range(BUG_SEEDS):
        failure = run_seed(SCENARIO, seed, bug="no cut").failure
        if failure is not None:
            refused = BaseExceptionGroup("found", [failure.error]).subgroup(NotInModelError)
            assert refused is not None
            assert "Elected(" in str(refused.exceptions[0])
            return
    raise AssertionError("not found")


def test_a_trace_has_steps_of_every_kind() -> None:
    """Whole runs are replayed, and what is replayed is much: campaigns, votes, appends, switches,
    copies, cuts over the horizon, restarts, migrators' answers; and a line that is left out, or of
    which the position is another, is seen."""
    kinds: dict[str, int] = {}
    for seed in range(SEEDS_OF_TRACE):
        lines = io.BytesIO()
        assert run_seed(SCENARIO, seed, timelines=lines).failure is None
        events = list(decode_events(lines.getvalue()))
        assert check_trace(events) == len(events)
        for event in events:
            kinds[type(event).__name__] = kinds.get(type(event).__name__, 0) + 1
        for kind in (Vote, AppendEntry, NewEntry, RestartProposer):
            at = next(number for number, event in enumerate(events) if isinstance(event, kind))
            with pytest.raises(NotInModelError):
                check_trace(events[:at] + events[at + 1 :])
        append = next(event for event in events if isinstance(event, AppendEntry))
        wrong = msgspec.structs.replace(append, flush_lsn=append.flush_lsn + 1)
        with pytest.raises(NotInModelError):
            check_trace([wrong if event is append else event for event in events])
    assert {kind.__name__ for kind in get_args(Event)} - set(kinds) <= {"AbortChange", "BumpTerm"}


def test_a_cluster_starts_safekeepers_and_masters_hear_them() -> None:
    """As many as its options say; all masters know that they live, under their kind."""
    world = World(3, Options(servers=Servers(masters=3, tservers=1, backups=1, safekeepers=3)))

    async def main() -> None:
        cluster = SimCluster(world)
        await cluster.start()
        assert cluster.safekeepers == ["safekeeper-1", "safekeeper-2", "safekeeper-3"]

        def heard() -> bool:
            now = world.loop.time()
            masters = [world.server(name) for name in cluster.masters]
            live = [m.liveness.live(ServerKind.SAFEKEEPER, now) for m in masters]
            return all(len(found) == 3 for found in live)

        await world.wait_until(heard, 20.0, "every master hears of every safekeeper")
        cluster.add_safekeeper()
        await world.wait_ready()

    world.run(main())
