"""The checker of timeline traces takes what the model allows and stops at the first step it does
not: each of `bad_traces` breaks one condition of one action of `spec/`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.core.records.timelines import SafekeeperId
from stelae.simulation.timelines import events as trace
from stelae.simulation.timelines.log import TermLog
from stelae.simulation.timelines.trace import NotInModelError, TimelineTrace, check_trace
from tests.simulation.wal.bad_traces import ABORT, BAD, SECOND_JOINT, START_AGAIN
from tests.simulation.wal.timeline_stories import (
    ELECTION,
    GOOD,
    JOINT,
    BadTrace,
    Step,
    altered,
    answer,
    at,
    before,
    by,
    events,
    index,
    without,
)

SPEC = Path(__file__).parents[3] / "spec"


def test_a_correct_migration_is_taken() -> None:
    """Every step of it is one of the model's, also when a second timeline is in the same file."""
    one, other = events(GOOD, "one"), events(GOOD, "other")
    mixed = [event for pair in zip(one, other, strict=True) for event in pair]
    assert check_trace(one) == len(GOOD)
    assert check_trace(mixed) == 2 * len(GOOD)


def test_the_correct_migration_has_every_action() -> None:
    """So that no action is without a correct example; aborting has one of its own."""
    used = {type(event).__name__ for event in events(GOOD)}
    known = {kind.__name__ for kind in get_args(trace.Event)}
    assert known - used == {"AbortChange", "Forget", "BeginAfter"}
    given_up = before("m finishes", ABORT, (trace.Forget, {"server": "m"}))(GOOD)
    again: list[Step] = [
        ("", *START_AGAIN),
        ("", trace.SwitchConf, at(1, 4, 2, 2, 3, configuration=SECOND_JOINT)),
        ("", trace.Collect, answer("m", 1, 4, 2, 2, 3)),
    ]
    assert check_trace(events([*given_up, *again])) == len(given_up) + 3


def test_who_is_behind_goes_on_after_the_horizon() -> None:
    """What is committed is left out; what follows comes from the leader, and counts."""
    number = index(GOOD, "3 takes 1-3")
    skip: Step = ("", trace.BeginAfter, at(3, 1, 1, 1, 2))
    steps = [*GOOD[:number], skip, *altered("3 takes 1-3", first_lsn=3)(GOOD)[number:]]
    assert check_trace(events(steps)) == len(GOOD) + 1


def own_log(server: str) -> list[Any]:
    """A proposer is elected again, and goes on with the three entries that it had as a leader."""
    elected = by(server, 1, 4, voters=(1, 2), last_log_term=1, flush_lsn=3)
    return [
        *ELECTION,
        ("", trace.RestartProposer, by(server, 1, 4)),
        ("", trace.Vote, at(1, 1, 4, 1, 2, proposer=server)),
        ("", trace.Vote, at(2, 1, 4, 1, 2, proposer=server)),
        ("", trace.BecomeLeader, elected),
    ]


def test_who_led_before_goes_on_with_its_own_log() -> None:
    """If that is ahead of what its voters have; nobody else may."""
    assert check_trace(events(own_log("p"))) == len(own_log("p"))
    with pytest.raises(NotInModelError, match="the best log of the votes"):
        check_trace(events(own_log("q")))


def test_a_pull_replaces_a_copy_that_is_behind() -> None:
    """Of one that came too early to have all."""
    number = index(GOOD, "4 votes q")
    again: Step = ("", trace.Pull, at(4, 2, 1, 1, 2, donor=2, configuration=JOINT))
    early = altered("4 pulls", term=1, last_log_term=1, flush_lsn=1)(GOOD)
    steps = [*early[:number], again, *GOOD[number:]]
    assert check_trace(events(steps)) == len(GOOD) + 1


def test_a_restart_may_show_a_copy_that_was_not_told() -> None:
    """Of the beginning, or pulled: as somebody had it; and nothing else."""

    def instead(steps: list[Step], label: str, found: dict[str, Any]) -> list[Step]:
        number = index(steps, label)
        return [*steps[:number], (label, trace.RestartSafekeeper, found), *steps[number + 1 :]]

    pulled = instead(GOOD, "4 pulls", at(4, 2, 1, 1, 2, voted_for="", is_pulled=True))
    assert check_trace(events(pulled)) == len(GOOD)
    created = instead(GOOD, "create 3", at(3, 1, 0, 0, 0, voted_for=""))
    assert check_trace(events(created)) == len(GOOD)
    with pytest.raises(NotInModelError, match="what was durable"):
        check_trace(events(altered("4 pulls", last_log_term=2)(pulled)))


def test_a_copy_that_no_line_told_of_is_noticed_at_the_restart() -> None:
    """It is allowed only where a copy was being installed when the safekeeper stopped."""
    number = index(GOOD, "4 pulls")
    lost = ("4 restarts", trace.RestartSafekeeper, at(4, 2, 1, 1, 2, voted_for=""))
    with pytest.raises(NotInModelError, match="what was durable"):
        check_trace(events([*GOOD[:number], lost, *GOOD[number + 1 :]]))


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.rule)
def test_a_step_that_breaks_a_rule_is_not_in_the_model(bad: BadTrace) -> None:
    """The reason names the condition that is broken, and no other is."""
    with pytest.raises(NotInModelError, match=re.escape(bad.reason)):
        check_trace(events(bad.spoil(GOOD)))


def test_lines_come_in_order() -> None:
    """A trace that was put together wrongly is no evidence."""
    first, second, *_ = events(GOOD)
    with pytest.raises(NotInModelError, match="out of order"):
        check_trace([first, msgspec.structs.replace(second, seq=0)])


def replayed(label: str) -> tuple[TimelineTrace, trace.Event]:
    """The state before the step with that label, and that step."""
    steps, number = events(GOOD), index(GOOD, label)
    state = TimelineTrace()
    for event in steps[:number]:
        state.step(event)
    return state, steps[number]


def test_the_invariants_are_looked_at_too() -> None:
    """Conditions that hold keep the invariants, so they are broken by hand here."""
    state, event = replayed("p leads")
    state.won[1] = "z"
    with pytest.raises(NotInModelError, match="ElectionSafety"):
        state.step(event)
    state, event = replayed("2 takes 1-2")
    state.committed = TermLog(((1, 9),), 1)
    with pytest.raises(NotInModelError, match="CommittedOnce"):
        state.step(event)
    state, event = replayed("p commits 2")
    state.acceptors[SafekeeperId(2)].log = TermLog()
    with pytest.raises(NotInModelError, match="CommittedHeldBy"):
        state.step(event)
    state, event = replayed("4 takes 3")
    state.acceptors[SafekeeperId(4)].log = TermLog(((1, 9),), 2)
    with pytest.raises(NotInModelError, match="on top of other entries"):
        state.step(event)


def test_a_restart_may_show_one_step_that_was_not_told() -> None:
    """A crash between the sync and the line: an append of the leader, or a higher term."""
    untold = without("4 takes 3", "m confirms 4", "m finishes", "4 finishes", "3 goes")
    steps = untold(GOOD)[:-2]
    more = [("", trace.RestartSafekeeper, at(4, 2, 2, 2, 3, voted_for="q"))]
    assert check_trace(events([*steps, *more])) == len(steps) + 1
    raised = [("", trace.RestartSafekeeper, at(4, 2, 7, 1, 2, voted_for=""))]
    assert check_trace(events([*steps, *raised])) == len(steps) + 1
    alien = [("", trace.RestartSafekeeper, at(4, 2, 2, 2, 4, voted_for="q"))]
    with pytest.raises(NotInModelError, match="what was durable"):
        check_trace(events([*steps, *alien]))


def voted_unsaid(**found: Any) -> list[Step]:
    """Safekeeper 1 joins; q campaigns; 1 crashes when a vote of it may be durable and is unsaid."""
    steps = GOOD[: index(GOOD, "1 votes q")]
    at_1 = {**at(1, 2, 2, 1, 2, voted_for="q"), **found}
    return [*steps, ("1 restarts", trace.RestartSafekeeper, at_1)]


def test_a_vote_that_a_restart_shows_is_one_that_was_given() -> None:
    """It may be given again, to the same proposer; to another one in that term it may not, and
    neither may the same one's be there again without it."""
    steps = voted_unsaid()
    again = ("", trace.Vote, at(1, 2, 2, 1, 2, proposer="q"))
    assert check_trace(events([*steps, again, *GOOD[index(GOOD, "2 votes q") :]])) == len(GOOD) + 1
    rival: list[Step] = [
        ("", trace.RestartProposer, by("s", 2, 2)),
        ("", trace.Vote, at(1, 2, 2, 1, 2, proposer="s")),
    ]
    with pytest.raises(NotInModelError, match="a term that it knows"):
        check_trace(events([*steps, *rival]))
    without_vote = voted_unsaid(voted_for="")
    assert check_trace(events(without_vote)) == len(without_vote)
    with pytest.raises(NotInModelError, match="a term that it knows"):
        check_trace(events([*without_vote, again]))
    lost = ("", trace.RestartSafekeeper, at(1, 2, 2, 1, 2, voted_for=""))
    with pytest.raises(NotInModelError, match="not the vote"):
        check_trace(events([*steps, lost]))


def test_an_unsaid_vote_elects_nobody() -> None:
    """Its answer waited for the line: only when it is given again does it count."""
    steps = [*voted_unsaid(), *GOOD[index(GOOD, "2 votes q") :]]
    with pytest.raises(NotInModelError, match="nobody gave"):
        check_trace(events(steps))


def test_an_unsaid_vote_is_for_who_asked_for_it_there() -> None:
    """In that term, in a configuration that the safekeeper had and is a member of; and not by who
    had no copy."""
    for found, reason in (
        ({"voted_for": "s"}, "never asked for votes"),
        ({"term": 7}, "never asked for votes"),
        ({"term": 3, "voted_for": "r"}, "another generation"),
    ):
        with pytest.raises(NotInModelError, match=reason):
            check_trace(events(voted_unsaid(**found)))
    pulled = altered("4 pulls", term=2)(GOOD)
    number = index(pulled, "4 pulls")
    found = at(4, 2, 2, 1, 2, voted_for="q")
    with pytest.raises(NotInModelError, match="a copy brings no vote"):
        check_trace(events([*pulled[:number], ("", trace.RestartSafekeeper, found)]))
    left: list[Step] = [
        ("", trace.RestartProposer, by("s", 3, 4)),
        ("", trace.RestartSafekeeper, at(3, 3, 4, 1, 3, voted_for="s")),
    ]
    number = index(GOOD, "3 goes")
    with pytest.raises(NotInModelError, match="who is not a member"):
        check_trace(events([*GOOD[:number], *left]))


def test_the_same_vote_may_be_granted_again() -> None:
    """The answer may have been lost; the vote then tells of the log as it is now."""
    steps = before("p leads", (trace.Vote, at(1, 1, 1, 0, 0, proposer="p")))(GOOD)
    assert check_trace(events(steps)) == len(steps)


def test_lines_that_are_no_events_are_refused() -> None:
    """Unknown kinds and fields are mistakes of who writes the trace."""
    line = trace.encode_events(events(GOOD)[:1])
    for wrong in (line.replace(b'"Init"', b'"Begin"'), line.replace(b'"seq"', b'"sequence"')):
        assert wrong != line
        with pytest.raises(msgspec.ValidationError):
            list(trace.decode_events(wrong))


def test_actions_have_the_names_of_the_model() -> None:
    """Each kind of line is an action of `spec/`, but for those that README.md names."""
    text = "".join((SPEC / name).read_text() for name in ("ProposerAcceptor.tla", "Migration.tla"))
    actions = set(re.findall(r"^(\w+)(?:\([^)]*\))? ==", text, re.MULTILINE))
    extra = {kind.__name__ for kind in get_args(trace.Event)} - actions
    assert extra == {"Create", "RestartSafekeeper", "Commit", "BeginAfter"}
    readme = (SPEC / "README.md").read_text()
    for kind in get_args(trace.Event):
        assert f"| `{kind.__name__}` |" in readme, "the table of lines in spec/README.md"


logs = st.lists(st.integers(1, 3), max_size=7).map(sorted)


def as_log(terms: list[int]) -> TermLog:
    log = TermLog()
    for lsn, term in enumerate(terms, 1):
        log = log.extended(term, lsn)
    return log


@given(logs, logs, st.integers(0, 7))
def test_logs_behave_as_sequences_of_terms(one: list[int], other: list[int], end: int) -> None:
    """Cut, term and position against plain lists; the common beginning where log matching holds."""
    log = as_log(one)
    assert [log.term_at(lsn) for lsn in range(1, len(one) + 1)] == one
    assert log.cut(min(end, len(one))) == as_log(one[:end])
    assert tuple(msgspec.structs.astuple(log.position)) == (one[-1] if one else 0, len(one))
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    assert log.common_length(as_log(other)) <= same
    matching = all(mine != theirs for mine, theirs in zip(one[same:], other[same:], strict=False))
    if matching and set(one[same:]).isdisjoint(other[same:]):
        assert log.common_length(as_log(other)) == same
