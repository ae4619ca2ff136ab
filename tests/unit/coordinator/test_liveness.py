"""`stelae.coordinator.liveness.liveness`: whose silence counts, for how long, under which
leader."""

from __future__ import annotations

import pytest

from stelae.coordinator.liveness.liveness import Liveness
from stelae.core.config.settings import Settings
from stelae.core.ids import Address, ServerUuid
from stelae.core.messages.servers import Heartbeat
from stelae.core.records.records import ServerInfo, ServerKind
from stelae.core.runtime import ProcessIdentity

SETTINGS = Settings(heartbeat_s=0.2, lease_s=1.5, dead_after_s=2.0)
GONE, HERE = ServerUuid("gone"), ServerUuid("here")


class World:
    """One master, and two safekeepers that heartbeat to it: one of them for a while."""

    def __init__(self) -> None:
        self.liveness = Liveness(SETTINGS)
        self.now = 100.0

    def beat(self, uuid: ServerUuid) -> None:
        process = ProcessIdentity("n", 1, 0)
        info = ServerInfo(ServerKind.SAFEKEEPER, uuid, uuid, 1, Address(f"{uuid}:1"), process)
        self.liveness.heartbeat(Heartbeat(info, self.now, ()), self.now)

    def wait(self, duration_s: float) -> None:
        """One of them is heard all the time."""
        for _ in range(round(duration_s / 0.2)):
            self.now += 0.2
            self.beat(HERE)

    def stall(self, duration_s: float) -> None:
        """This master does nothing; then it reads what came meanwhile."""
        self.now += duration_s
        self.liveness.stalled(self.now, duration_s)
        self.beat(HERE)

    @property
    def missed_s(self) -> float:
        return self.liveness.missed_s(GONE, self.now)


def test_the_pauses_of_a_leader_stop_the_count_of_silence_and_do_not_begin_it_anew() -> None:
    """One second in six it has no processor: the dead are found to be dead all the same, but none
    of its own pauses is held against anybody."""
    world = World()
    world.liveness.lead(world.now)
    world.beat(GONE)
    for _ in range(6):
        world.wait(5.0)
        world.stall(1.0)
    assert world.missed_s == pytest.approx(30.0)
    assert world.liveness.silent_s(GONE, world.now) == pytest.approx(30.0)
    world.stall(1000.0)
    assert world.missed_s == pytest.approx(30.0)
    assert world.liveness.missed_s(HERE, world.now) == 0.0
    world.beat(GONE)
    assert world.missed_s == 0.0


def test_a_new_leader_counts_what_it_missed_before_it_led_once_all_could_reach_it() -> None:
    """However often the leader changes: who is not heard by any of them is missed in the end. At
    first the new one holds nothing against anybody."""
    world = World()
    world.beat(GONE)
    world.wait(40.0)
    world.liveness.lead(world.now)
    world.wait(SETTINGS.dead_after_s - 0.4)
    assert world.missed_s < SETTINGS.dead_after_s
    world.wait(0.8)
    assert world.missed_s == pytest.approx(42.0, abs=0.5)
    assert world.liveness.silent_s(GONE, world.now) < 3.0, "of that by which copies are made anew"
    world.liveness.follow()
    world.wait(5.0)
    world.liveness.lead(world.now)
    world.wait(3.0)
    assert world.missed_s == pytest.approx(50.0, abs=0.5)


def test_a_follower_that_was_cut_off_holds_that_against_nobody() -> None:
    """It heard nobody for an hour, and leads: those who are away have been so for as long as it
    was told that others are there."""
    world = World()
    world.beat(GONE)
    world.wait(4.0)
    world.now += 3600.0
    world.liveness.lead(world.now)
    world.wait(6.0)
    assert world.missed_s == pytest.approx(10.0, abs=0.5)


def test_who_was_never_heard_is_missed_since_this_master_began_to_listen() -> None:
    """A master that starts again, and leads at once, gives everybody the whole time."""
    world = World()
    world.liveness.lead(world.now)
    world.wait(29.0)
    assert world.missed_s == pytest.approx(29.0)
