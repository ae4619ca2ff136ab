"""The migration of a timeline, step by step: in a calm world where one thing happens at a time."""

from __future__ import annotations

import pytest

from stelae.coordinator.timelines.migration_steps import (
    Abort,
    Create,
    Effect,
    Exclude,
    FinishPending,
    MoveTo,
    Notify,
    Passed,
    Ping,
    PullTimeline,
    PutConfiguration,
    Remove,
    Step,
    Verdict,
    WriteRecord,
)
from stelae.core.errors import OutcomeUnknown, StelaeError
from stelae.core.records.timelines import SafekeeperId, SafekeeperStatus, TimelineConfiguration
from tests.simulation.wal.model_safekeepers import Copy, Drop, Slot
from tests.simulation.world.bag_of_messages import TIMELINE
from tests.unit.coordinator.timelines.migration_story import (
    SETTINGS,
    STEPS,
    Died,
    Story,
    begun,
    die_at,
    ids,
    replace,
)


@pytest.fixture
def story() -> Story:
    return Story()


def test_a_change_goes_through_all_steps_in_order(story: Story) -> None:
    """Two generations further, the new members have log, term and configuration; who left has
    nothing; the catalog knows."""
    outcome = story.drive(MoveTo(ids(2, 3, 4)))
    assert (outcome.verdict, outcome.is_finished) == (Verdict.DONE, True)
    assert [passed.step for passed in story.passed] == STEPS
    caught_up = story.passed[STEPS.index(Step.CATCH_UP)].replies
    assert {4} <= set(caught_up)
    assert all((r.term, r.flush_lsn, r.conf.generation) == (3, 2, 2) for r in caught_up.values())
    assert story.record.generation == 3
    story.check_finished(2, 3, 4)
    copy = story.slots[SafekeeperId(4)].copy
    assert copy is not None
    assert (copy.term, copy.log) == (3, ((1, "a"), (3, "b")))
    assert story.slots[SafekeeperId(1)].tombstone == 3
    story._write_once()


def test_a_timeline_is_created_on_a_majority_and_then_on_the_rest(story: Story) -> None:
    """The record first, then an empty timeline on each member; one that was down gets it later. A
    second creation changes nothing, whatever members it names; a crash in between is finished."""
    story.store.history = []
    story.slots = dict.fromkeys(story.ids, Slot())
    story.catalog = 0
    assert story.drive(FinishPending()).verdict is Verdict.NOT_FOUND
    assert story.drive(Create(ids(1, 2))).verdict is Verdict.REJECTED
    story.on_passed = die_at(Step.SWITCH)
    with pytest.raises(Died):
        story.drive(Create(ids(1, 2, 3)))
    assert story.holders() == []
    story.on_passed = lambda passed: None
    story.down = {SafekeeperId(3)}
    assert story.drive(Create(ids(4, 5, 6))).verdict is Verdict.DONE
    assert story.holders() == [1, 2]
    story.down = set()
    story.drive(FinishPending())
    story.check_finished(1, 2, 3)
    story._write_once()


def test_what_is_so_already_changes_nothing(story: Story) -> None:
    """The same set, in whatever order, is no change: no generation, no write."""
    outcome = story.drive(MoveTo(ids(3, 1, 2)))
    assert outcome.verdict is Verdict.DONE
    assert story.record.generation == 1
    assert story.count(WriteRecord) == 0


@pytest.mark.parametrize(
    ("desired", "reason"),
    [
        (ids(1, 2, 9), "no safekeeper 9"),
        (ids(1, 2, 2), "twice"),
        (ids(1, 2, 3, 3), "twice"),
        (ids(1, 2), "3 or more"),
        ((), "3 or more"),
        (ids(1, 2, 6), "decommissioned"),
        (ids(1, 2, 5), "offline"),
    ],
)
def test_a_wrong_wish_is_rejected_before_anything_is_written(
    story: Story, desired: tuple[SafekeeperId, ...], reason: str
) -> None:
    """Else the store would hold a set that nobody can finish."""
    story.statuses[SafekeeperId(6)] = SafekeeperStatus.DECOMMISSIONED
    story.statuses[SafekeeperId(5)] = SafekeeperStatus.OFFLINE
    outcome = story.drive(MoveTo(desired))
    assert outcome.verdict is Verdict.REJECTED
    assert reason in outcome.reason
    assert len(story.store.history) == 1
    assert story.count(Ping) == story.count(PutConfiguration) == 0


def test_who_is_to_join_is_pinged_before_anything_is_written(story: Story) -> None:
    """A node that is down is no place to migrate to; those that stay are not asked."""
    story.down = {SafekeeperId(4), SafekeeperId(1)}
    outcome = story.drive(MoveTo(ids(2, 3, 4)))
    assert outcome.verdict is Verdict.UNREACHABLE
    assert len(story.store.history) == 1
    pinged = {effect.safekeeper for effect in story.effects if isinstance(effect, Ping)}
    assert pinged == {4}
    assert story.count(Ping) == SETTINGS.pings_max


@pytest.mark.parametrize("step", STEPS)
def test_whoever_scans_goes_on_after_a_death_at_any_step(story: Story, step: Step) -> None:
    """No caller is needed: what was written is finished, what was not is forgotten."""
    begun(story, 4, 5, 6, step=step)
    outcome = story.drive(FinishPending())
    assert outcome.verdict is Verdict.DONE
    if step is Step.CHECK:
        story.check_finished(1, 2, 3)
    else:
        story.check_finished(4, 5, 6)
        assert story.record.generation == 3
    story._write_once()


@pytest.mark.parametrize("step", STEPS)
def test_the_same_wish_again_continues_and_another_is_refused(story: Story, step: Step) -> None:
    """A retry joins in. Another target is refused while a change is under way, which is finished;
    once that is decided, a new one may begin."""
    begun(story, 4, 5, 6, step=step)
    was_joint = story.record.configuration.is_joint
    outcome = story.drive(MoveTo(ids(1, 2, 4)))
    if was_joint:
        assert outcome.verdict is Verdict.REFUSED
        assert "[4, 5, 6]" in outcome.reason
        story.check_finished(4, 5, 6)
    else:
        assert outcome.verdict is Verdict.DONE
        story.check_finished(1, 2, 4)
    again = Story()
    begun(again, 4, 5, 6, step=step)
    assert again.drive(MoveTo(ids(6, 5, 4))).verdict is Verdict.DONE
    again.check_finished(4, 5, 6)
    assert again.record.generation == 3


@pytest.mark.parametrize("step", STEPS)
def test_a_change_can_be_taken_back_until_it_is_decided(story: Story, step: Step) -> None:
    """One more compare-and-set goes back to the old members, and the new ones are emptied; after
    step 8 there is nothing to take back, and what was decided is finished."""
    begun(story, 3, 4, 5, step=step)
    was_joint = story.record.configuration.is_joint
    outcome = story.drive(Abort())
    assert outcome.verdict is (Verdict.ABORTED if was_joint else Verdict.DONE)
    if was_joint or step is Step.CHECK:
        story.check_finished(1, 2, 3)
    else:
        story.check_finished(3, 4, 5)
    story._write_once()


def test_a_driver_whose_change_is_taken_back_does_not_begin_it_again(story: Story) -> None:
    """It learns it from a safekeeper or from its own compare-and-set, and says so."""

    def abort(passed: Passed) -> None:
        if passed.step is Step.CATCH_UP and story.runs == 1:
            story.on_passed = lambda passed: None
            last = story.last
            assert story.drive(Abort()).verdict is Verdict.ABORTED
            story.last = last

    story.on_passed = abort
    outcome = story.drive(MoveTo(ids(4, 5, 6)))
    assert story.on_passed is not abort, "it was taken back"
    assert outcome.verdict is Verdict.ABORTED
    story.check_finished(1, 2, 3)
    assert story.record.generation == 3


def test_two_drivers_with_one_wish_make_one_change(story: Story) -> None:
    """The loser of the compare-and-set goes on from what the winner wrote."""

    def race(passed: Passed) -> None:
        if passed.step is Step.CHECK and story.runs == 1:
            story.on_passed = lambda passed: None
            assert story.drive(MoveTo(ids(4, 5, 6))).verdict is Verdict.DONE

    story.on_passed = race
    assert story.drive(MoveTo(ids(4, 5, 6))).verdict is Verdict.DONE
    assert story.on_passed is not race, "there was another driver"
    assert story.record.generation == 3
    story.check_finished(4, 5, 6)


def test_a_lost_answer_of_the_store_is_recognised(story: Story) -> None:
    """The same write, under the same name, is repeated until its outcome is known."""
    lost: list[WriteRecord] = []

    def lose(effect: Effect) -> None:
        if isinstance(effect, WriteRecord) and effect not in lost:
            lost.append(effect)
            story.store.cas(effect)
            raise OutcomeUnknown("store", "cas", 1.0)

    story.on_effect = lose
    assert story.drive(MoveTo(ids(2, 3, 4))).verdict is Verdict.DONE
    story.check_finished(2, 3, 4)
    assert story.record.generation == 3
    assert len({stored.nonce for stored in story.store.history}) == len(story.store.history)
    assert len(lost) >= 3


def test_an_idle_timeline_with_a_stale_copy_catches_up_without_a_writer(story: Story) -> None:
    """A new member that has the timeline already, but less of it, is given a copy in its place."""
    old = TimelineConfiguration(1, ids(4, 5))
    story.slots[SafekeeperId(4)] = Slot(Copy(replace(old, generation=0), 9, ((1, "a"),)))
    outcome = story.drive(MoveTo(ids(4, 5, 6)))
    assert outcome.verdict is Verdict.DONE
    story.check_finished(4, 5, 6)
    copy = story.slots[SafekeeperId(4)].copy
    assert copy is not None
    assert copy.log == ((1, "a"), (3, "b"))
    assert copy.term == 9


def test_the_copy_comes_from_the_most_advanced_and_else_from_the_next(story: Story) -> None:
    """By last term first, then length. Term and length of the vote do not matter: a lagging member
    may have the highest term, and that term goes to the new members all the same."""
    conf = TimelineConfiguration(1, ids(1, 2, 3))
    story.slots[SafekeeperId(1)] = Slot(Copy(conf, 8, ((1, "a"), (1, "x"), (1, "y"))))
    story.slots[SafekeeperId(3)] = Slot(Copy(conf, 3, ((1, "a"), (3, "b"), (3, "c"))))
    assert story.drive(MoveTo(ids(4, 5, 6))).verdict is Verdict.DONE
    sources = {effect.source for effect in story.effects if isinstance(effect, PullTimeline)}
    assert sources == {3}
    for one in ids(4, 5, 6):
        copy = story.slots[one].copy
        assert copy is not None
        assert (copy.term, copy.log[-1]) == (8, (3, "c"))


def test_when_the_most_advanced_dies_another_majority_is_asked(story: Story) -> None:
    """Its unacknowledged tail blocks nothing: step 4 is taken again, without it."""
    conf = TimelineConfiguration(1, ids(1, 2, 3))
    story.slots[SafekeeperId(1)] = Slot(Copy(conf, 5, ((1, "a"), (3, "b"), (5, "tail"))))

    def die(passed: Passed) -> None:
        if passed.step is Step.SYNC:
            story.down = {SafekeeperId(1)}

    story.on_passed = die
    outcome = story.drive(MoveTo(ids(4, 5, 6)))
    assert outcome.verdict is Verdict.DONE
    assert not outcome.is_finished  # 1 is down, and to be excluded once it is back
    assert story.record.departed == (1,)
    assert [passed.step for passed in story.passed].count(Step.SYNC) == 2
    story.down = set()
    story.on_passed = lambda passed: None
    story.drive(FinishPending())
    story.check_finished(4, 5, 6)


def test_a_majority_of_each_set_is_enough_and_the_rest_is_told_when_it_is_back(
    story: Story,
) -> None:
    """One of the old and one of the new members down: the change is decided, and is finished by a
    later scan: configuration to every member, exclusion of who left."""

    def die(passed: Passed) -> None:
        if passed.step is Step.JOIN:
            story.down = {SafekeeperId(1), SafekeeperId(6)}

    story.on_passed = die
    outcome = story.drive(MoveTo(ids(4, 5, 6)))
    assert outcome.verdict is Verdict.DONE
    assert not outcome.is_finished
    assert story.record.configuration == TimelineConfiguration(3, ids(4, 5, 6))
    assert story.record.departed == (1,)
    assert story.record.notified_generation == 3
    assert story.record.delivered_generation == 1
    story._write_once()
    story.down = set()
    story.drive(FinishPending())
    story.check_finished(4, 5, 6)


@pytest.mark.parametrize(("down", "step"), [(ids(1, 2), Step.SYNC), (ids(5, 6), Step.PULL)])
def test_without_a_majority_of_both_it_waits_and_says_for_whom(
    story: Story, down: tuple[SafekeeperId, ...], step: Step
) -> None:
    """The run ends after its patience; nothing is decided; later runs go on."""

    def die(passed: Passed) -> None:
        if passed.step is Step.JOIN:
            story.down = set(down)

    story.on_passed = die
    outcome = story.drive(MoveTo(ids(4, 5, 6)))
    assert outcome.verdict is Verdict.WAITING
    assert story.record.configuration.is_joint
    assert story.last is not None
    progress = story.last.progress()
    assert progress.step in (step, Step.SYNC)
    assert any(str(down[0]) in what for what in progress.waits_for)
    assert "OutcomeUnknown" in "".join(progress.problems.values())
    assert story.now < 10 * SETTINGS.patience_s
    assert story.count(PutConfiguration) + story.count(PullTimeline) < 800
    story.down = set()
    story.on_passed = lambda passed: None
    story.drive(FinishPending())
    story.check_finished(4, 5, 6)


def test_a_late_exclusion_does_not_touch_who_was_added_again(story: Story) -> None:
    """Exclude 1 at generation 3; 1 comes back at generation 5: the old order is refused."""
    begun(story, 2, 3, 4, step=Step.DELIVER)
    late = Exclude(SafekeeperId(1), TIMELINE, story.record.configuration)
    assert story.drive(MoveTo(ids(1, 2, 3))).verdict is Verdict.DONE
    assert story.record.generation == 5
    with pytest.raises(StelaeError, match="exclude"):
        story.carry_out(late)
    story.check_finished(1, 2, 3)
    assert not any(
        isinstance(effect, Exclude) and effect.safekeeper == 1 for effect in story.effects
    )


def test_who_is_away_by_order_is_not_asked_and_who_never_comes_back_is_struck_off(
    story: Story,
) -> None:
    """Offline: what it holds stays until it is active again. Decommissioned: nothing is left."""
    story.statuses[SafekeeperId(1)] = SafekeeperStatus.OFFLINE
    outcome = story.drive(MoveTo(ids(2, 3, 4)))
    assert outcome.verdict is Verdict.DONE
    assert story.record.departed == (1,)
    assert story.count(Exclude) == 0
    assert story.now < SETTINGS.patience_s / 2, "it does not wait for who is expected to be away"
    story.statuses[SafekeeperId(1)] = SafekeeperStatus.ACTIVE
    story.drive(FinishPending())
    story.check_finished(2, 3, 4)
    other = Story()
    other.statuses[SafekeeperId(1)] = SafekeeperStatus.DECOMMISSIONED
    other.down = {SafekeeperId(1)}
    assert other.drive(MoveTo(ids(2, 3, 4))).is_finished
    assert other.record.departed == ()


def test_a_deleted_timeline_leaves_nothing_and_never_comes_back(story: Story) -> None:
    """Also in the middle of a change: both sets delete it for good, and later wishes are told."""
    begun(story, 3, 4, 5, step=Step.CATCH_UP)
    outcome = story.drive(Remove())
    assert (outcome.verdict, outcome.is_finished) == (Verdict.DONE, True)
    assert story.record.deleted
    assert story.holders() == []
    assert all(story.slots[one].is_gone for one in ids(1, 2, 3, 4, 5))
    assert story.drive(MoveTo(ids(1, 2, 3))).verdict is Verdict.DELETED
    assert story.drive(Remove()).verdict is Verdict.DONE
    with pytest.raises(StelaeError):
        story.carry_out(
            PullTimeline(
                SafekeeperId(4),
                SafekeeperId(1),
                TIMELINE,
                TimelineConfiguration(99, ids(4)),
                Copy(TimelineConfiguration(1, ids(4))).position,
            )
        )


def test_the_catalog_is_told_until_it_knows(story: Story) -> None:
    """Notified generations are kept in the store: a later run tells what an earlier could not."""

    def refuse(effect: Effect) -> None:
        if isinstance(effect, Notify):
            raise OutcomeUnknown("catalog", "notify", 1.0)

    story.on_effect = refuse
    outcome = story.drive(MoveTo(ids(2, 3, 4)))
    assert outcome.verdict is Verdict.DONE
    assert story.record.unfinished == ("not notified",)
    story.on_effect = lambda effect: None
    story.drive(FinishPending())
    story.check_finished(2, 3, 4)


def test_a_term_won_before_is_not_won_again_by_a_copy_of_a_laggard(story: Story) -> None:
    """Why step 6 stays. X is written in term 4 to 1 alone, by votes of 1 and 2; 1 goes dark; the
    copy comes from 3, which never heard of term 4. The next leader must take a higher term."""
    conf = TimelineConfiguration(1, ids(1, 2, 3))
    log = ((1, "a"), (3, "b"))
    story.slots[SafekeeperId(1)] = Slot(Copy(conf, 4, (*log, (4, "X"))))
    story.slots[SafekeeperId(2)] = Slot(Copy(conf, 4, log[:1]))
    story.slots[SafekeeperId(3)] = Slot(Copy(conf, 3, log))
    story.judge.elected(4, "before", log)
    story.down = {SafekeeperId(1)}
    assert story.drive(MoveTo(ids(3, 4, 5))).verdict is Verdict.DONE
    story._write_once()
    assert max(story.judge.winners) == 5


def test_scrub_orders_are_the_gate_that_exclusion_is(story: Story) -> None:
    """The order of a scrub goes by the same rule of the safekeeper: a member refuses it."""
    drop = Drop(TIMELINE, TimelineConfiguration(7, ids(4)), forever=False)
    slot = story.rules[SafekeeperId(1)].exclude(story.slots[SafekeeperId(1)], drop)
    assert (slot.copy, slot.tombstone) == (None, 7)
    with pytest.raises(StelaeError, match="member"):
        story.rules[SafekeeperId(4)].exclude(story.slots[SafekeeperId(1)], drop)
