"""Which record may follow which in the configuration store, and what a record leaves to be done."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.core.errors import InvalidArgument
from stelae.core.ids import TableId, TabletId
from stelae.core.records.configurations import (
    MEMBERS_MAX,
    TimelineId,
    TimelineRecord,
    check_record,
    check_succession,
)
from stelae.core.records.timelines import SafekeeperId, TimelineConfiguration

replace = msgspec.structs.replace
TIMELINE = TimelineId(TableId("t"), TabletId("a"))
SETS = st.lists(st.integers(1, 6).map(SafekeeperId), min_size=1, max_size=4, unique=True).map(tuple)


def first(*members: int) -> TimelineRecord:
    sk_set = tuple(map(SafekeeperId, members))
    return TimelineRecord(TIMELINE, TimelineConfiguration(1, sk_set))


@given(st.data())
def test_every_step_of_the_procedure_is_a_succession_and_loses_nobody(data: st.DataObject) -> None:
    """Join, switch, abort, tidy and remove are accepted; whoever ever was a member is one, has
    departed, or was excluded in between."""
    record = first(*data.draw(SETS))
    check_succession(None, record)
    for _ in range(data.draw(st.integers(0, 12))):
        if record.deleted:
            break
        held = {*record.departed, *record.configuration.members}
        if data.draw(st.booleans()):
            kept = tuple(one for one in record.departed if data.draw(st.booleans()))
            new = replace(record, departed=kept, notified_generation=record.generation)
            held = {*kept, *record.configuration.members}
        elif data.draw(st.integers(0, 5)) == 0:
            new = record.removed()
        elif record.configuration.is_joint:
            new = record.switched() if data.draw(st.booleans()) else record.aborted()
        else:
            new = record.joint_with(data.draw(SETS))
        check_succession(record, new)
        assert {*new.departed, *new.configuration.members} >= held
        assert new.generation - record.generation in (0, 1)
        record = new


ONE, PAIR = first(1), first(1, 2)
JOINT = ONE.joint_with((SafekeeperId(2),))


def at(generation: int, *members: int) -> TimelineConfiguration:
    return TimelineConfiguration(generation, tuple(map(SafekeeperId, members)))


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        (None, replace(ONE, configuration=at(2, 1)), "begins"),
        (PAIR, first(1, 3), "one configuration"),
        (PAIR, replace(PAIR, configuration=at(3, 1, 2)), "grow by one"),
        (ONE, replace(ONE, configuration=at(2, 1)), "joint"),
        (JOINT, replace(JOINT.switched(), departed=()), "excluded"),
        (ONE.removed(), JOINT, "one configuration"),
        (ONE.removed(), replace(ONE.removed(), configuration=at(3, 1)), "deleted"),
        (replace(ONE, notified_generation=1), ONE, "for ever"),
        (ONE, replace(ONE, notified_generation=2), "not written yet"),
        (ONE, replace(ONE, departed=(SafekeeperId(1),)), "not departed"),
        (ONE, replace(ONE, departed=(SafekeeperId(2),)), "within a generation"),
        (ONE, ONE.joint_with(()), "members"),
        (ONE, ONE.joint_with((SafekeeperId(0),)), "positive"),
        (ONE, ONE.joint_with(at(1, *range(1, MEMBERS_MAX + 2)).sk_set), "members"),
    ],
)
def test_what_is_no_step_is_refused(
    old: TimelineRecord | None, new: TimelineRecord, rule: str
) -> None:
    """A driver that is wrong, or too old, cannot bring the store where no procedure leads."""
    with pytest.raises(InvalidArgument, match=rule):
        check_succession(old, new)


def test_a_change_goes_to_one_of_the_two_sets_and_to_no_third() -> None:
    """While it is joint, a timeline goes on to the new members or back to the old."""
    joint = first(1, 2).joint_with((SafekeeperId(3),))
    third = TimelineConfiguration(3, (SafekeeperId(4),))
    departed = tuple(map(SafekeeperId, (1, 2, 3)))
    with pytest.raises(InvalidArgument, match="neither"):
        check_succession(joint, replace(joint, configuration=third, departed=departed))
    other = TimelineConfiguration(3, joint.configuration.sk_set, (SafekeeperId(5),))
    wrong = replace(joint, configuration=other, departed=(SafekeeperId(3),))
    with pytest.raises(InvalidArgument, match="before the next"):
        check_succession(joint, wrong)


def test_names_that_would_collide_in_the_store_are_refused() -> None:
    """Keys are table/tablet: neither part has a slash, or is empty."""
    for table, tablet in (("a/b", "c"), ("a", "b/c"), ("", "c"), ("a", "")):
        timeline = TimelineId(TableId(table), TabletId(tablet))
        with pytest.raises(InvalidArgument, match="name"):
            check_record(replace(first(1), timeline=timeline))


def test_a_record_says_what_is_left_to_be_done() -> None:
    """Joint, undelivered, not excluded, not notified; and finished if it is none of these."""
    assert first(1).unfinished == ("undelivered", "not notified")
    done = replace(first(1), delivered_generation=1, notified_generation=1)
    assert done.is_finished
    joint = done.joint_with((SafekeeperId(2),))
    assert joint.unfinished == ("joint", "not notified")
    final = joint.switched()
    assert final.unfinished == ("undelivered", "not excluded", "not notified")
    assert final.departed == (1,)
    gone = replace(done.removed(), notified_generation=2)
    assert gone.unfinished == ("not excluded",)
    assert replace(gone, departed=()).is_finished
