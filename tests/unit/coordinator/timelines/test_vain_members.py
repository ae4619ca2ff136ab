"""Members that never get the log of a timeline, and what is remembered of them."""

from __future__ import annotations

from stelae.coordinator.timelines.safekeepers import Pause, decide_replacements
from stelae.coordinator.timelines.vain_members import FIRST_PAUSE_S, VainMembers
from stelae.core.ids import TableId, TabletId
from stelae.core.records.configurations import TimelineId
from stelae.core.records.timelines import SafekeeperId
from tests.unit.coordinator.timelines.test_safekeepers import fleet, ids, keeper, record

TIMELINE = TimelineId(TableId("t"), TabletId("a"))
FOUR, FIVE = SafekeeperId(4), SafekeeperId(5)
GRACE_S = 30.0


class Leader:
    """One leader's memory; all safekeepers hold the timeline but those in ``lack``."""

    def __init__(self) -> None:
        self.vain = VainMembers()
        self.now = 0.0
        self.lack = ids(4)
        self.silent = ids()

    def look(self, *members: int, after_s: float = 1.0) -> tuple[SafekeeperId, ...]:
        """The members that have to give way."""
        self.now += after_s

        def holds(safekeeper: SafekeeperId) -> list[TabletId] | None:
            if safekeeper in self.silent:
                return None
            return [] if safekeeper in self.lack else [TIMELINE.tablet_id]

        self.vain.look([record("a", *members)], holds, self.now, GRACE_S)
        return self.vain.lasting(self.now, GRACE_S).get(TIMELINE, ())


def test_a_member_without_the_log_gives_way_after_the_grace_time() -> None:
    """What is not known says nothing; who has got it has not failed."""
    leader = Leader()
    assert leader.look(2, 3, 4) == ()
    leader.silent = ids(4)
    assert leader.look(2, 3, 4, after_s=GRACE_S - 1.0) == ()
    assert leader.vain.avoid == {}
    assert leader.look(2, 3, 4) == (FOUR,), "it has lacked it for all that is known"
    end = leader.now + FIRST_PAUSE_S
    assert leader.vain.avoid == {TIMELINE: {FOUR: Pause(end, end)}}
    leader.look(2, 3, 4)
    assert leader.vain.avoid == {TIMELINE: {FOUR: Pause(end, end)}}, "counted once"
    leader.lack, leader.silent = ids(), ids()
    assert leader.look(2, 3, 4) == ()


def test_pauses_of_the_same_safekeeper_grow() -> None:
    """It left the members, and came back in vain. What it has to wait for at least does not."""
    leader = Leader()
    for pause_s in (60.0, 120.0, 240.0, 300.0, 300.0):
        leader.look(2, 3, 4)
        assert leader.look(2, 3, 4, after_s=GRACE_S) == (FOUR,)
        pause = leader.vain.avoid[TIMELINE][FOUR]
        assert pause == Pause(leader.now + pause_s, leader.now + FIRST_PAUSE_S)
        leader.look(2, 3, 5)


def chosen(avoid: dict[SafekeeperId, Pause], *hurt: int, now: float = 1000.0) -> list[int]:
    """The members that timeline ``a`` on 1, 2 and 3 is to have; 4 and 5 are spare."""
    keepers = fleet(*(keeper(number) for number in range(1, 6)))
    moves = decide_replacements(
        [record("a", 1, 2, 3)],
        keepers,
        now,
        silence_s=10.0,
        grace_s=60.0,
        limit=1,
        broken={TIMELINE: ids(*hurt)},
        avoid={TIMELINE: avoid},
    )
    return [int(member) for move in moves for member in move.request.desired]


def test_who_was_chosen_in_vain_comes_last_and_after_its_pause() -> None:
    """And a member that is to give way is not chosen for its own place."""
    assert chosen({}, 3) == [1, 2, 4]
    assert chosen({FOUR: Pause(1010.0, 900.0)}, 3) == [1, 2, 5]
    assert chosen({FOUR: Pause(900.0, 900.0)}, 3) == [1, 2, 5], "last"
    assert chosen({FOUR: Pause(1000.0, 900.0), FIVE: Pause(1001.0, 1001.0)}, 3) == [1, 2, 4]


def test_where_no_other_is_free_the_one_comes_whose_pause_ends_first() -> None:
    """But not before the shortest pause has passed, so that it is not tried without end."""
    both = {FOUR: Pause(1020.0, 990.0), FIVE: Pause(1010.0, 990.0)}
    assert chosen(both, 3) == [1, 2, 5]
    assert chosen({**both, FIVE: Pause(1010.0, 1001.0)}, 3) == [1, 2, 4]
    assert chosen({FOUR: Pause(1020.0, 1001.0), FIVE: Pause(1010.0, 1001.0)}, 3) == []
    assert chosen({FOUR: Pause(1020.0, 990.0)}, 3) == [1, 2, 5], "one that has not failed is free"
