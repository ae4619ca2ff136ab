"""Owners that die while they open a tablet: when the next one is told to, and what is suspected."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from stelae.coordinator.backoff.owners import (
    DEATH_PAUSE_S,
    FORGOTTEN_AFTER_S,
    LONGEST_DEATH_PAUSE_S,
    LONGEST_SERVER_PAUSE_S,
    PRUNE_PERIOD_S,
    SERVER_PAUSE_S,
    Deaths,
    FailedOwners,
)
from stelae.coordinator.decide import Move, Open, Recover
from stelae.coordinator.status.document import StatusInputs, status_document
from stelae.coordinator.status.recoveries import Recoveries
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.messages.servers import TabletReport
from stelae.core.records.records import TabletRecord, TabletState
from tests.unit.coordinator.decide_world import P, World, report, run, tablet

A, B = TabletId("a"), TabletId("b")
S1, S2 = ServerUuid("s1"), ServerUuid("s2")


def owned(number: int, owner: str = "s1", state: TabletState = TabletState.RUNNING) -> TabletRecord:
    """One of a server's tablets; number 0 is ``a``."""
    return replace(tablet(owner, state), tablet_id=TabletId("abcdefgh"[number]), number=number)


class Fleet:
    """Servers that start again a moment after they died, and a leader that looks each 0.1 s."""

    def __init__(self, world: World, names: Sequence[str]) -> None:
        self.world = world
        self.incarnations = dict.fromkeys(names, 1)
        self.held: dict[str, dict[TabletId, int]] = {name: {} for name in names}
        """Of each server: the terms of the tablets that it has opened."""
        for each in world.catalog.live_tablets():
            self.held[each.owner][each.tablet_id] = each.term
        self.deaths: list[tuple[str, float]] = []
        self.told_to_end: set[str] = set()
        """Servers that an operator ends."""

    def kill(self, name: str) -> None:
        self.world.liveness.process_gone(run(name, self.incarnations[name]))
        self.incarnations[name] += 1
        self.held[name] = {}
        self.deaths.append((name, self.world.now))

    def look(self, deadly: Collection[str] = (), loading: Collection[str] = ()) -> None:
        """Servers report what they have opened. One that is told to open what is ``deadly`` dies.
        ``loading``: tablets of which rows are not in memory yet."""
        world = self.world
        world.now += 0.1
        for name, incarnation in self.incarnations.items():
            said = [
                replace(report(tablet_id, term, P.SERVING), remote_bytes=tablet_id in loading)
                for tablet_id, term in self.held[name].items()
            ]
            ends = name in self.told_to_end
            world.beat(name, *said, incarnation=incarnation, ends=ends)
        told = [each for each in world.decide() if isinstance(each, Open | Recover)]
        for each in told:
            world.pacing.owners.opening(each.tablet.tablet_id, each.tablet.term, world.now)
            self.held[each.owner.name][each.tablet.tablet_id] = each.tablet.term
        for name in {each.owner.name: None for each in told if each.tablet.tablet_id in deadly}:
            self.kill(name)

    def look_for(self, time_s: float, **what: Collection[str]) -> None:
        for _ in range(round(time_s / 0.1)):
            self.look(**what)

    @property
    def pauses(self) -> list[float]:
        at = [at for _, at in self.deaths]
        return [later - former for former, later in itertools.pairwise(at)]


def test_each_death_leads_to_another_server_and_to_a_longer_pause() -> None:
    """The second server is told at once. From then on nobody is for a pause that doubles."""
    fleet = Fleet(World(owned(0)), ["s1", "s2", "s3"])
    fleet.look_for(1.0)
    fleet.kill("s1")
    fleet.look_for(70.0, deadly=["a"])
    names, pauses = [name for name, _ in fleet.deaths[1:]], fleet.pauses[1:]
    assert sorted(names[:3]) == ["s1", "s2", "s3"]
    assert all(one != other for one, other in itertools.pairwise(names)), names
    assert pauses[0] < 0.5
    assert [round(pause / DEATH_PAUSE_S) for pause in pauses[1:]] == [1, 2, 4, 8, 16]
    fleet.look_for(2 * FORGOTTEN_AFTER_S + 4 * LONGEST_DEATH_PAUSE_S, deadly=["a"])
    assert fleet.pauses[-1] == pytest.approx(LONGEST_DEATH_PAUSE_S, abs=1.0), "it is bounded"


def test_an_only_server_is_not_ended_again_and_again() -> None:
    """It is chosen, as nobody else is there; all other tablets are served in the pauses."""
    fleet = Fleet(World(*(owned(number) for number in range(5))), ["s1"])
    fleet.look_for(1.0)
    fleet.kill("s1")
    served = 0
    for _ in range(600):
        fleet.look(deadly=["c"])
        tablets = fleet.world.catalog.live_tablets()
        running = [t for t in tablets if t.state is TabletState.RUNNING]
        is_up = all(t.owner_incarnation == fleet.incarnations["s1"] for t in running)
        served += is_up and len(running) == 4
    assert len(fleet.deaths) <= 8
    assert served > 400, f"the four others were served in {served} of 600 looks"
    assert {*fleet.world.pacing.owners.deaths(fleet.world.now)} == {"c"}, "the culprit is known"


def test_an_owner_that_dies_of_the_rows_that_follow_counts_as_well() -> None:
    """A tablet is served while its rows are on their way: one of them may kill."""
    fleet = Fleet(World(owned(0)), ["s1", "s2", "s3"])
    for _ in range(2):
        fleet.look_for(1.0, loading=["a"])
        fleet.kill(fleet.world.tablet.owner)
    fleet.look_for(DEATH_PAUSE_S / 2)
    assert fleet.world.pacing.owners.may_open(A, fleet.world.now), "of one it was told nothing"
    fleet.look_for(1.0, loading=["a"])
    fleet.kill(fleet.world.tablet.owner)
    fleet.look_for(DEATH_PAUSE_S / 2)
    assert not fleet.world.pacing.owners.may_open(A, fleet.world.now)
    assert fleet.world.tablet.state is TabletState.RUNNING, "nobody has it meanwhile"


def test_an_end_by_order_is_no_death() -> None:
    """An operator restarts one server after the other while rows load: nobody waits for that. A
    death that nobody ordered counts afterwards as it did before."""
    fleet = Fleet(World(owned(0)), ["s1", "s2", "s3"])
    for _ in range(4):
        fleet.look_for(1.0, loading=["a"])
        owner = fleet.world.tablet.owner
        fleet.told_to_end = {owner}
        fleet.look(loading=["a"])
        fleet.kill(owner)
        fleet.told_to_end = set()
        fleet.look_for(0.5, loading=["a"])
        assert A in fleet.held[fleet.world.tablet.owner], "another has it at once"
        assert fleet.world.pacing.owners.may_open(A, fleet.world.now)
    for _ in range(2):
        fleet.look_for(1.0, loading=["a"])
        fleet.kill(fleet.world.tablet.owner)
    fleet.look_for(DEATH_PAUSE_S / 2)
    assert not fleet.world.pacing.owners.may_open(A, fleet.world.now)


def test_a_row_of_deaths_ends_once_the_tablet_was_open() -> None:
    """A server that dies later, of whatever it is, leaves it to the next one at once."""
    fleet = Fleet(World(owned(0)), ["s1", "s2", "s3"])
    fleet.look_for(1.0)
    for _ in range(5):
        fleet.kill(fleet.world.tablet.owner)
        fleet.look()
        fleet.look(deadly=["a"])  # the next one dies, or has opened it already
        fleet.look_for(5.0)
        assert fleet.world.tablet.state is TabletState.RUNNING
        assert fleet.world.pacing.owners.may_open(A, fleet.world.now)


def test_who_was_not_told_to_open_a_tablet_has_not_died_of_it() -> None:
    """The order of an older term, and one that nobody gave, say nothing; none counts twice."""
    owners: FailedOwners[TabletId] = FailedOwners()
    owners.opening(A, 3, 100.0)
    owners.ended(S1, [(A, 4), (B, 1)], 100.0)
    assert owners.avoid(A) == owners.avoid(B) == {}
    owners.opening(A, 4, 100.0)
    owners.ended(S1, [(A, 4)], 100.0)
    owners.ended(S1, [(A, 4)], 101.0)
    assert owners.avoid(A) == {S1: 100.0 + SERVER_PAUSE_S}
    assert owners.deaths(101.0) == {}, "one death may be of anything"


def test_what_an_owner_had_in_an_older_term_is_not_open_in_this_one() -> None:
    """It got the tablet back, and died before it said anything of that."""
    world = World(replace(tablet("s1", TabletState.RECOVERING), term=3))
    world.beat("s1", report("a", 1, P.SERVING))
    world.pacing.owners.opening(A, 3, world.now)
    world.liveness.process_gone(run("s1"))
    world.beat("s2")
    assert Move in [type(action) for action in world.decide()], "one death costs no pause"
    assert S1 in world.pacing.owners.avoid(A)


def test_suspects_are_opened_one_after_the_other() -> None:
    """Those that one server was opening are spread over as long as the pause is."""
    owners: FailedOwners[TabletId] = FailedOwners()
    names = [TabletId(f"{number}") for number in range(4)]
    for term, server in ((1, S1), (2, S2)):
        for name in names:
            owners.opening(name, term, 100.0)
        owners.ended(server, [(name, term) for name in names], 100.0)
    waits = [owners.deaths(100.0)[name] for name in names]
    assert waits == [Deaths(2, S2, DEATH_PAUSE_S * (1 + n / 4)) for n in range(4)]
    owners.was_open(names[0])
    assert names[0] not in owners.deaths(100.0)


def test_one_death_is_one_failure_of_a_server_however_much_it_was_opening() -> None:
    """It is not doubted for a loss of power, and for several until the next success."""
    owners: FailedOwners[TabletId] = FailedOwners()
    names = [TabletId(f"{number:03}") for number in range(100)]
    for term in range(2):
        for name in names:
            owners.opening(name, term, 100.0)
        owners.ended(S1, [(name, term) for name in names], 100.0)
    assert not owners.doubted()
    owners.opening(names[5], 2, 100.0)
    owners.ended(S1, [(names[5], 2)], 100.0)
    assert owners.doubted() == {S1: 100.0 + SERVER_PAUSE_S}
    owners.opened(S1)
    assert not owners.doubted()


def test_parts_inherit_a_row_of_deaths_and_what_is_over_is_forgotten() -> None:
    """Whoever opens a part reads the same log. What was told long ago is not held in memory."""
    owners: FailedOwners[TabletId] = FailedOwners()
    for term in range(3):
        owners.opening(A, term, 100.0)
        owners.ended(S1, [(A, term)], 100.0)
    owners.inherit(A, [B], 100.0)
    assert owners.may_open(B, 100.0), "the pause was the other one's"
    owners.opening(B, 1, 100.0)
    owners.ended(S2, [(B, 1)], 100.0)
    assert owners.deaths(100.0)[B] == Deaths(4, S2, 4 * DEATH_PAUSE_S)
    owners.opening(A, 9, 100.0)
    owners.begin_round(100.0 + LONGEST_SERVER_PAUSE_S + FORGOTTEN_AFTER_S + PRUNE_PERIOD_S)
    assert owners.deaths(100.0) == {}
    owners.ended(S1, [(A, 9)], 100.0)
    assert not owners.avoid(A)


def test_status_tells_who_died_how_often_and_when_it_is_tried_again() -> None:
    """As long as the tablet is not open; the last server is named as people know it."""
    world = World(tablet("s1", TabletState.RECOVERING))
    world.beat("s1")
    world.pacing.owners.opening(A, 1, world.now)
    world.pacing.owners.ended(S2, [(A, 1)], world.now)
    world.pacing.owners.opening(A, 1, world.now)
    world.pacing.owners.ended(S1, [(A, 1)], world.now)

    def shown(*said: TabletReport) -> tuple[int, str]:
        world.beat("s1", *said)
        of: Any = {"problems": {A: "s1 is dead"}, "deaths": world.pacing.owners.deaths(world.now)}
        known = (world.catalog, world.liveness, Recoveries())
        inputs = StatusInputs("c", 0.0, world.now, 1, (), *known, **of)
        found = msgspec.json.decode(status_document(inputs))["tablets"][0]
        return found["owners_died"], found["problem"]

    text = "2 servers in a row ended while they opened it, last s1; "
    assert shown() == (2, f"{text}next try in 2 s; s1 is dead")
    world.now += DEATH_PAUSE_S
    assert shown() == (2, f"{text}another one is tried now; s1 is dead")
    loading = replace(report("a", 1, P.SERVING), remote_bytes=1)
    assert shown(loading)[0] == 2
    assert shown(report("a", 1, P.SERVING)) == (0, "s1 is dead")
    world.liveness.process_gone(run("s1"))
    assert shown()[0] == 2, "it was open, and is so no more"
