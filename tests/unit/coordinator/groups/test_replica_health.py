"""`stelae.coordinator.groups.health`: who is well, in doubt, lost or broken, case by
case."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stelae.coordinator.backoff.pacing import Pacing
from stelae.coordinator.groups.group import group_of
from stelae.coordinator.groups.healing import Health
from stelae.coordinator.groups.health import (
    BEGINNINGS_MAX,
    RETURN_GRACE_S,
    Judge,
    Plea,
    Unwell,
)
from stelae.core.config.settings import STUCK_FACTOR
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.messages.servers import PeerHealth, ReplicaRole, TabletProgress
from stelae.core.records.records import ServerMark, TabletRecord
from tests.unit.coordinator.groups.group_world import World, changes, grown

R = ReplicaRole
C = ServerUuid("c")
DEAD_S = 30.0
STUCK_S = DEAD_S * STUCK_FACTOR


def judge(world: World, tablet: TabletRecord, mark: ServerMark | None = None) -> Health:
    """How c is, as things are now."""
    group = group_of(tablet, world.liveness.reporters(world.now).of.get(tablet.tablet_id, ()))
    assert group.leader is not None
    unwell = world.pacing.unwell

    def wanted(uuid: ServerUuid) -> ServerMark:
        return mark if mark is not None and uuid == C else ServerMark(uuid, str(uuid))

    made = Judge(world.liveness, unwell, wanted, world.now, DEAD_S)
    found = {m.uuid: m.health for m in made.members(group, group.leader, None, {})}
    unwell.end_of_look(world.now, DEAD_S)
    assert found[ServerUuid("a")] is found[ServerUuid("b")] is Health.HEALTHY
    return found[C]


def hears(world: World, tablet: TabletRecord, *, heard: bool) -> None:
    """What the leader says of c from now on."""
    peers = (PeerHealth(ServerUuid("b"), True, 1), PeerHealth(C, heard, 1))
    world.says("a", tablet, R.LEADER, leader=ServerUuid("a"), peers=peers)


HEARD, UNHEARD = True, False
CASES: list[tuple[str, R | None, dict[str, Any], bool, float, Health]] = [
    # why, what c says of its replica, more of it, what the leader says of c, for how long, health
    ("all is well", R.FOLLOWER, {}, HEARD, 1, Health.HEALTHY),
    ("a candidate has its rows", R.CANDIDATE, {}, HEARD, 1, Health.HEALTHY),
    ("not heard just now", R.FOLLOWER, {}, UNHEARD, 1, Health.UNKNOWN),
    ("it may be heard again", R.FOLLOWER, {}, UNHEARD, DEAD_S - 1, Health.UNKNOWN),
    ("they cannot reach each other", R.FOLLOWER, {}, UNHEARD, DEAD_S + 1, Health.FAILED),
    ("being opened is waited for", R.FOLLOWER, {"opening": True}, UNHEARD, 60, Health.UNKNOWN),
    ("but not for ever", R.FOLLOWER, {"opening": True}, UNHEARD, STUCK_S + 1, Health.FAILED),
    ("a copy answers no appends", R.COPYING, {"copied_bytes": 7}, UNHEARD, 60, Health.UNKNOWN),
    ("it goes no further", R.COPYING, {"copied_bytes": 7}, UNHEARD, STUCK_S + 1, Health.FAILED),
    ("a tombstone waits for its turn", R.TOMBSTONE, {}, UNHEARD, 60, Health.UNKNOWN),
    ("nothing is there yet", None, {}, UNHEARD, 60, Health.UNKNOWN),
    ("nothing comes", None, {}, UNHEARD, STUCK_S + 1, Health.FAILED),
    ("it answers, and has no rows", R.TOMBSTONE, {}, HEARD, 1, Health.UNKNOWN),
    ("damaged", R.FAILED, {}, UNHEARD, 1, Health.BROKEN),
    ("a full disk is waited for", R.FAILED, {"no_room": True}, UNHEARD, 1, Health.UNKNOWN),
    ("as long as for a server", R.FAILED, {"no_room": True}, UNHEARD, DEAD_S - 1, Health.UNKNOWN),
    ("and no longer", R.FAILED, {"no_room": True}, UNHEARD, DEAD_S + 1, Health.FAILED),
    ("it tries again", R.FAILED, {"tries_again": True}, UNHEARD, 1, Health.UNKNOWN),
    ("for a grace", R.FAILED, {"tries_again": True}, UNHEARD, RETURN_GRACE_S - 1, Health.UNKNOWN),
    ("in vain", R.FAILED, {"tries_again": True}, UNHEARD, RETURN_GRACE_S + 1, Health.FAILED),
]  # fmt: skip


@pytest.mark.parametrize(
    ("why", "role", "more", "leader_hears", "for_s", "health"), CASES, ids=[c[0] for c in CASES]
)
def test_each_member_is_found_as_the_table_says(
    why: str,
    role: R | None,
    more: dict[str, Any],
    leader_hears: bool,
    for_s: float,
    health: Health,
) -> None:
    """Its own word, its leader's, and for how long it has been so; the masters hear its server."""
    world = World("a", "b", "c")
    tablet = grown(world)
    opening = more.pop("opening", False) if (more := dict(more)) else False
    if role is None:
        del world.held["c"][tablet.tablet_id]
    else:
        world.says("c", tablet, role, leader=ServerUuid("a"), **more)
    if opening:
        report = world.held["c"][tablet.tablet_id]
        world.held["c"][tablet.tablet_id] = msgspec.structs.replace(
            report, progress=TabletProgress.OPENING
        )
    hears(world, tablet, heard=leader_hears)
    world.beat()
    for _ in range(int(for_s)):
        world.wait(1)
        judge(world, tablet)
    assert judge(world, tablet) is health, why


def test_a_server_that_is_silent_is_waited_for_and_in_maintenance_for_ever() -> None:
    """What its leader says adds nothing."""
    world = World("a", "b", "c")
    tablet = grown(world)
    hears(world, tablet, heard=False)
    world.silent["c"] = None
    world.wait(DEAD_S - 1)
    assert judge(world, tablet) is Health.UNKNOWN
    world.wait(2)
    assert judge(world, tablet) is Health.FAILED
    assert judge(world, tablet, ServerMark(C, "c", maintenance=True)) is Health.UNKNOWN


def test_a_new_leader_master_waits_for_the_word_of_a_server_that_may_be_copying() -> None:
    """The tablet's leader has spoken, its receiver has not: nobody is evicted meanwhile."""
    world = World("a", "b", "c", "d")
    tablet = grown(world)
    world.silent["c"] = None
    world.wait(DEAD_S + 1)
    world.reconfigure(tablet, "ABCd", 5, unheard="cd")
    peers = (PeerHealth(ServerUuid("b"), True, 1), PeerHealth(ServerUuid("d"), False, 0))
    word = world.held["a"][tablet.tablet_id].group
    assert word is not None
    world.says(
        "a", tablet, R.LEADER, leader=ServerUuid("a"), peers=peers, configuration=word.configuration
    )
    del world.held["d"][tablet.tablet_id]
    world.decide()
    world.pacing = Pacing()
    world.liveness.lead(world.now)
    world.beat("a", "b")
    world.decide()
    assert changes(world.decide()) == []


def test_a_copy_that_lasts_longer_than_a_server_may_be_silent_goes_on() -> None:
    """However big the tablet: its leader hears nothing of it, and the masters hear how it grows."""
    world = World("a", "b", "c", "d")
    tablet = grown(world)
    world.silent["c"] = None
    world.wait(DEAD_S + 1)
    assert changes(world.decide()) == [("a", "add", "d")]
    world.reconfigure(tablet, "ABCd", 5, unheard="cd")
    world.decide()
    for second in range(1000):
        if second % 100 == 0:
            more = {"copied_bytes": 1 + second, "copy_bytes": 1000}
            world.says("d", tablet, R.COPYING, configuration=None, **more)
        world.wait(1)
        assert changes(world.decide()) == [], second


def test_a_copy_that_ends_is_heard_in_time() -> None:
    """Its leader has not heard it for long when it begins to run, and needs a moment to do so."""
    world = World("a", "b", "c")
    tablet = grown(world)
    hears(world, tablet, heard=False)
    world.says("c", tablet, R.COPYING, configuration=None, copied_bytes=1)
    for _ in range(100):
        world.wait(1)
        assert judge(world, tablet) is Health.UNKNOWN
    world.says("c", tablet, R.FOLLOWER, leader=ServerUuid("a"))
    for _ in range(29):
        world.wait(1)
        assert judge(world, tablet) is Health.UNKNOWN
    world.wait(2)
    assert judge(world, tablet) is Health.FAILED


def test_a_voter_that_is_copied_for_long_gets_no_replacement() -> None:
    """It was too far behind; its leader does not hear it until it has all."""
    world = World("a", "b", "c", "d")
    tablet = grown(world)
    hears(world, tablet, heard=False)
    world.says("c", tablet, R.COPYING, configuration=None, copied_bytes=1)
    for _ in range(100):
        world.wait(1)
        assert changes(world.decide()) == []


def test_a_copy_that_fails_again_and_again_at_the_same_place_is_no_progress() -> None:
    """Each of the first few may take its time; after that only more than ever before counts."""
    unwell, tablet, now = Unwell(), TabletId("t"), 0.0

    def doubt(copied_bytes: int) -> float:
        nonlocal now
        now += 10.0
        found = unwell.for_s(tablet, C, now, runs=False, copied_bytes=copied_bytes)
        unwell.end_of_look(now, DEAD_S)
        return found

    assert doubt(50) == 0.0
    assert doubt(50) == 10.0
    for _ in range(BEGINNINGS_MAX):
        assert doubt(0) == 0.0
        assert doubt(50) == 0.0
    assert [doubt(0), doubt(50), doubt(0), doubt(40)] == [10.0, 20.0, 30.0, 40.0]
    assert doubt(51) == 0.0


def test_a_replica_that_is_full_again_and_again_counts_as_full_all_the_time() -> None:
    """It begins again every few seconds, and is well until the next write; once it is quiet for
    long enough, it is forgiven."""
    unwell, tablet = Unwell(), TabletId("t")

    def full_s(now: float, *, is_full: bool) -> float:
        unwell.end_of_look(now, DEAD_S)
        return unwell.pleads_for_s(
            tablet, C, Plea.NO_ROOM, is_said=is_full, now=now, forget_s=DEAD_S
        )

    assert full_s(0.0, is_full=True) == 0.0
    assert full_s(2.0, is_full=False) == 0.0
    assert full_s(5.0, is_full=True) == 5.0
    assert full_s(34.0, is_full=False) == 5.0
    assert full_s(34.5, is_full=True) == 34.5
    assert full_s(60.0, is_full=False) == 34.5, "still: it has not been quiet for long enough"
    assert full_s(65.0, is_full=False) == 0.0
    assert full_s(66.0, is_full=True) == 0.0


def test_a_replica_that_tries_again_is_not_replaced_before_its_grace_is_over() -> None:
    """One that says that it will not come back is, at once; one that comes and goes is as well,
    counted from the first time."""
    world = World("a", "b", "c", "d")
    tablet = grown(world)
    world.says("c", tablet, R.FAILED, tries_again=True)
    hears(world, tablet, heard=False)
    for _ in range(int(RETURN_GRACE_S) - 1):
        world.wait(1)
        assert changes(world.decide()) == []
    world.says("c", tablet, R.FOLLOWER, leader=ServerUuid("a"))
    hears(world, tablet, heard=True)
    world.wait(1)
    assert changes(world.decide()) == [], "it is back"
    world.says("c", tablet, R.FAILED, tries_again=True)
    world.wait(1)
    assert changes(world.decide()) == [("a", "add", "d")], "again and again"

    world = World("a", "b", "c", "d")
    tablet = grown(world)
    world.says("c", tablet, R.FAILED)
    world.wait(1)
    assert changes(world.decide()) == [("a", "add", "d")]


def test_a_full_disk_for_a_moment_moves_nothing_and_for_long_is_replaced_voter_first() -> None:
    """Not evicted first where there is no other server: it will be well once there is room."""
    for names, late in [("abcd", [("a", "add", "d")]), ("abc", [])]:
        world = World(*names)
        tablet = grown(world)
        world.says("c", tablet, R.FAILED, no_room=True)
        hears(world, tablet, heard=False)
        for _ in range(29):
            world.wait(1)
            assert changes(world.decide()) == []
        world.wait(2)
        assert changes(world.decide()) == late
