"""Traces of timelines written by hand: one correct run of a migration, and ways to spoil it.

Steps have labels, so that a spoiled trace says which step it drops, alters or puts in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stelae.core.records.timelines import SafekeeperId, TimelineConfiguration
from stelae.simulation.timelines import events as trace

Step = tuple[str, type[trace.TraceEvent], dict[str, Any]]
Spoil = Callable[[list[Step]], list[Step]]


def configuration(
    generation: int, sk_set: Sequence[int], new_sk_set: Sequence[int] | None = None
) -> TimelineConfiguration:
    new_set = None if new_sk_set is None else tuple(map(SafekeeperId, new_sk_set))
    return TimelineConfiguration(generation, tuple(map(SafekeeperId, sk_set)), new_set)


FIRST = configuration(1, [1, 2, 3])
JOINT = configuration(2, [1, 2, 3], [1, 2, 4])
FINAL = configuration(3, [1, 2, 4])


def at(
    server: int, generation: int, term: int, last_log_term: int, flush_lsn: int, **more: Any
) -> dict[str, Any]:
    """What a safekeeper has after a step."""
    return {
        "server": server,
        "generation": generation,
        "term": term,
        "last_log_term": last_log_term,
        "flush_lsn": flush_lsn,
        **more,
    }


def answer(
    server: str, safekeeper: int, generation: int, term: int, last_log_term: int, flush_lsn: int
) -> dict[str, Any]:
    """What a migrator was told."""
    position = {"last_log_term": last_log_term, "flush_lsn": flush_lsn}
    told = {"safekeeper": safekeeper, "generation": generation, "term": term, **position}
    return {"server": server, **told}


def by(server: str, generation: int, term: int, **more: Any) -> dict[str, Any]:
    """What a proposer did."""
    return {"server": server, "generation": generation, "term": term, **more}


ELECTION: list[Step] = [
    ("init", trace.Init, {"configuration": FIRST}),
    ("create 1", trace.Create, {"server": 1}),
    ("create 2", trace.Create, {"server": 2}),
    ("create 3", trace.Create, {"server": 3}),
    ("p campaigns", trace.RestartProposer, by("p", 1, 1)),
    ("1 votes p", trace.Vote, at(1, 1, 1, 0, 0, proposer="p")),
    ("2 votes p", trace.Vote, at(2, 1, 1, 0, 0, proposer="p")),
    (
        "p leads",
        trace.BecomeLeader,
        by("p", 1, 1, voters=(1, 2), last_log_term=0, flush_lsn=0),
    ),
    ("1 hears p", trace.Elected, at(1, 1, 1, 0, 0, proposer="p")),
    ("2 hears p", trace.Elected, at(2, 1, 1, 0, 0, proposer="p")),
    ("3 hears p", trace.Elected, at(3, 1, 1, 0, 0, proposer="p")),
    ("p writes 1-3", trace.NewEntry, by("p", 1, 1, last_lsn=3)),
    ("1 takes 1-2", trace.AppendEntry, at(1, 1, 1, 1, 2, proposer="p", first_lsn=1)),
    ("2 takes 1-2", trace.AppendEntry, at(2, 1, 1, 1, 2, proposer="p", first_lsn=1)),
    ("p commits 2", trace.Commit, by("p", 1, 1, commit_lsn=2)),
    ("3 takes 1-3", trace.AppendEntry, at(3, 1, 1, 1, 3, proposer="p", first_lsn=1)),
]
"""p leads 1, 2 and 3; two entries are committed, a third is on 3 alone."""

MIGRATION: list[Step] = [
    ("m starts", trace.StartChange, {"server": "m", "configuration": JOINT}),
    ("1 joins", trace.SwitchConf, at(1, 2, 1, 1, 2, configuration=JOINT)),
    ("m hears 1", trace.Collect, answer("m", 1, 2, 1, 1, 2)),
    ("2 joins", trace.SwitchConf, at(2, 2, 1, 1, 2, configuration=JOINT)),
    ("m hears 2", trace.Collect, answer("m", 2, 2, 1, 1, 2)),
    ("q campaigns", trace.RestartProposer, by("q", 2, 2)),
    ("4 pulls", trace.Pull, at(4, 2, 1, 1, 2, donor=2, configuration=JOINT)),
    ("4 votes q", trace.Vote, at(4, 2, 2, 1, 2, proposer="q")),
    ("1 votes q", trace.Vote, at(1, 2, 2, 1, 2, proposer="q")),
    ("2 votes q", trace.Vote, at(2, 2, 2, 1, 2, proposer="q")),
    (
        "q leads",
        trace.BecomeLeader,
        by("q", 2, 2, voters=(1, 2), last_log_term=1, flush_lsn=2),
    ),
    ("1 hears q", trace.Elected, at(1, 2, 2, 1, 2, proposer="q")),
    ("4 hears q", trace.Elected, at(4, 2, 2, 1, 2, proposer="q")),
    ("q writes 3", trace.NewEntry, by("q", 2, 2, last_lsn=3)),
    ("1 takes 3", trace.AppendEntry, at(1, 2, 2, 2, 3, proposer="q", first_lsn=3)),
    ("4 takes 3", trace.AppendEntry, at(4, 2, 2, 2, 3, proposer="q", first_lsn=3)),
    ("2 hears q", trace.Elected, at(2, 2, 2, 1, 2, proposer="q")),
    ("2 takes 3", trace.AppendEntry, at(2, 2, 2, 2, 3, proposer="q", first_lsn=3)),
    ("q commits 3", trace.Commit, by("q", 2, 2, commit_lsn=3)),
    ("m confirms 1", trace.Confirm, answer("m", 1, 2, 2, 1, 2)),
    ("m confirms 4", trace.Confirm, answer("m", 4, 2, 2, 2, 3)),
    ("m finishes", trace.FinishChange, {"server": "m", "configuration": FINAL}),
    ("4 finishes", trace.SwitchConf, at(4, 3, 2, 2, 3, configuration=FINAL)),
    ("3 goes", trace.Exclude, {"server": 3, "configuration": FINAL}),
    ("4 restarts", trace.RestartSafekeeper, at(4, 3, 2, 2, 3, voted_for="q")),
    ("4 is bumped", trace.BumpTerm, at(4, 3, 3, 2, 3)),
]
"""{1, 2, 3} becomes {1, 2, 4}, and q, elected by the joint configuration, commits a third entry.
The term of the bump is asked for in `GOOD`, between both."""

GOOD: list[Step] = [
    *ELECTION,
    ("r campaigns", trace.RestartProposer, by("r", 1, 3)),
    *MIGRATION,
]


def events(steps: Sequence[Step], timeline: str = "t") -> list[trace.Event]:
    """As the trace of one timeline, decoded from its lines."""
    written = [
        kind(seq=number, timeline=timeline, **fields)
        for number, (_, kind, fields) in enumerate(steps)
    ]
    return list(trace.decode_events(trace.encode_events(written)))


def index(steps: Sequence[Step], label: str) -> int:
    (found,) = (number for number, step in enumerate(steps) if step[0] == label)
    return found


def without(*labels: str) -> Spoil:
    """Drop those steps."""

    def spoil(steps: list[Step]) -> list[Step]:
        assert set(labels) <= {step[0] for step in steps}
        return [step for step in steps if step[0] not in labels]

    return spoil


def altered(label: str, **fields: Any) -> Spoil:
    """Let that step say something else."""

    def spoil(steps: list[Step]) -> list[Step]:
        number = index(steps, label)
        name, kind, told = steps[number]
        assert set(fields) <= set(told)
        return [*steps[:number], (name, kind, {**told, **fields}), *steps[number + 1 :]]

    return spoil


def before(label: str, *more: tuple[type[trace.TraceEvent], dict[str, Any]]) -> Spoil:
    """Put steps in before that one, and end the trace with them."""

    def spoil(steps: list[Step]) -> list[Step]:
        added: list[Step] = [("spoiled", kind, fields) for kind, fields in more]
        return [*steps[: index(steps, label)], *added]

    return spoil


def both(first: Spoil, then: Spoil) -> Spoil:
    return lambda steps: then(first(steps))


@dataclass(frozen=True, slots=True)
class BadTrace:
    """The rule that it breaks, how, and what the checker has to say."""

    rule: str
    spoil: Spoil
    reason: str
