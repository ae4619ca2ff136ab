"""`stelae check` of tablets with replicas: what is found in which facts, as tables of cases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stelae.client.check.facts import (
    DigestAnswer,
    Known,
    ReplicaFacts,
    Severity,
    TabletDigests,
    TabletFacts,
    Verdict,
)
from stelae.client.check.tablets import (
    compared,
    judge_digests,
    judge_group,
)
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.messages.replicas import ReplicaDigest
from tests.unit.client.check.check_facts import ERROR, WARNING, V, change


def known(peers: str, index: int = 1) -> Known:
    voters = tuple(ServerUuid(p.lower()) for p in peers if p.isupper())
    return Known((1, index), voters, tuple(ServerUuid(p) for p in peers if p.islower()))


def group(peers: str = "ABC", index: int = 1, **changes: Any) -> TabletFacts:
    """A healthy tablet with these members: voters in capitals; the first one leads in term 5."""
    first = peers[0].lower()
    replicas = tuple(
        ReplicaFacts(
            p.lower(),
            ServerUuid(p.lower()),
            "voter" if p.isupper() else "non-voter",
            server_live=True,
            role="leader" if p.lower() == first else "follower",
            term=5,
            leader=first,
            configuration=known(peers, index),
            heard=None if p.lower() == first else True,
        )
        for p in peers
    )
    tablet = TabletFacts(TabletId("g0"), "g", 0, "running", 5, first, configuration=(1, index))
    return change(tablet, **{"replicas": replicas, "replicas_wanted": 3, **changes})


def but(tablet: TabletFacts, **changes: dict[str, Any]) -> TabletFacts:
    """The same with other words of single replicas."""
    return change(
        tablet,
        replicas=tuple(change(r, **changes.get(r.server, {})) for r in tablet.replicas or ()),
    )


def plus(tablet: TabletFacts, name: str, **fields: Any) -> TabletFacts:
    """The same with a replica on a server that is no member."""
    stranger = ReplicaFacts(name, ServerUuid(name), "none", server_live=True, **fields)
    return change(tablet, replicas=(*(tablet.replicas or ()), stranger))


GONE: dict[str, Any] = {
    "server_live": False, "role": "", "term": 0, "leader": "", "configuration": None,
}  # fmt: skip
SILENT = {**GONE, "server_live": True}
MOVE = (ServerUuid("c"), ServerUuid("d"))

GROUP_CASES: dict[str, tuple[TabletFacts, Verdict, list[str]]] = {
    "all is well": (group(), V.HEALTHY, []),
    "one replica is wanted, and there": (group("A", replicas_wanted=1), V.HEALTHY, []),
    "it is being created": (group(state="creating"), V.RECOVERING, ["is being created"]),
    "it was replaced": (group(state="replaced"), V.UNAVAILABLE, ["is replaced"]),
    "one server is dead": (but(group(), c=GONE), V.UNDER_REPLICATED, ["c is dead"]),
    "one does not report": (
        but(group(), c=SILENT),
        V.UNDER_REPLICATED,
        ["c does not report its replica"],
    ),
    "one has failed": (
        but(group(), c={"role": "failed", "problem": "wals/g0, offset 7: bad CRC"}),
        V.UNDER_REPLICATED,
        ["the replica on c is failed: wals/g0, offset 7: bad CRC"],
    ),
    "one is being copied": (
        but(group(), c={"role": "copying", "configuration": None}),
        V.UNDER_REPLICATED,
        ["the replica on c is copying"],
    ),
    "a copy hides no lost majority": (
        but(group(), b=GONE, c={"role": "copying", "configuration": None}),
        V.UNAVAILABLE,
        ["1 of its 3 voters are there", "b is dead", "on c is copying"],
    ),
    "the majority is lost, and with it the leader": (
        but(group(), a=GONE, b=GONE),
        V.UNAVAILABLE,
        ["1 of its 3 voters are there", "a is dead", "b is dead", "none of its replicas leads"],
    ),
    "the leader is not there, others are": (
        but(group(problem="its replicas elect a leader"), a=GONE, b={"role": "candidate"}),
        V.UNAVAILABLE,
        ["a is dead", "its replicas elect a leader"],
    ),
    "the leader does not hear one": (
        but(group(), b={"heard": False}),
        V.UNDER_REPLICATED,
        ["the leader does not hear b"],
    ),
    "two lead in one term": (
        but(group(), b={"role": "leader", "leader": "b"}),
        V.MISMATCH,
        ["b leads in term 5, a in term 5"],
    ),
    "a former leader does not know it yet": (
        but(group(), b={"role": "leader", "leader": "b", "term": 4}),
        V.MISMATCH,
        ["b leads in term 4, a in term 5"],
    ),
    "one is in another term": (
        but(group(), b={"term": 6, "leader": ""}),
        V.MISMATCH,
        ["b is in term 6, its leader a in 5"],
    ),
    "one follows another in the same term": (
        but(group(), b={"leader": "c"}),
        V.MISMATCH,
        ["b follows c in term 5, which a leads"],
    ),
    "one entry has other members": (
        but(group(), b={"configuration": known("ABD")}),
        V.MISMATCH,
        ["entry 1.1 has the members a, b, d by b, and a, b, c by the masters"],
    ),
    "a vote is a difference": (
        but(group(), b={"configuration": known("ABc")}),
        V.MISMATCH,
        ["entry 1.1 has the members a, b, c (non-voter) by b"],
    ),
    "one has not heard of the newest members": (
        but(group(index=9), b={"configuration": known("ABD", 4)}),
        V.MISMATCH,
        ["newest members known by b are those of entry 1.4, and by the leader a those of 1.9"],
    ),
    "the masters have not heard of the newest members": (
        group(index=9, configuration=(1, 4)),
        V.MISMATCH,
        ["newest members known by the masters are those of entry 1.4"],
    ),
    "members by reports in another order are the same": (
        but(group(), b={"configuration": known("CAB")}),
        V.HEALTHY,
        [],
    ),
    "fewer voters than wanted": (
        group("AB"),
        V.UNDER_REPLICATED,
        ["it has 2 voters of the 3 wanted"],
    ),
    "a replacement is being brought up": (
        but(group("ABCd"), c=GONE, d={"role": "copying", "configuration": None}),
        V.UNDER_REPLICATED,
        ["c is dead", "d is being brought up (copying)"],
    ),
    "more voters than wanted": (
        group("ABCD"),
        V.RECOVERING,
        ["it has 4 voters, and 3 are wanted"],
    ),
    "a move is no problem": (
        group("ABCd", move=MOVE),
        V.HEALTHY,
        ["a replica moves from c to d", "d is being brought up (follower)"],
    ),
    "nor is its last step": (
        group("ABCD", move=MOVE),
        V.HEALTHY,
        ["a replica moves from c to d", "it has 4 voters, and 3 are wanted"],
    ),
    "but what is lost meanwhile is": (
        but(group("ABCd", move=MOVE), b=GONE),
        V.UNDER_REPLICATED,
        ["b is dead", "a replica moves", "d is being brought up"],
    ),
    "a tombstone is no replica": (plus(group(), "d", role="tombstone", term=3), V.HEALTHY, []),
    "a former member still has one": (
        plus(group(), "d", role="copying"),
        V.RECOVERING,
        ["d has a replica (copying), and is no member"],
    ),
    "a stranger leads in a newer term": (
        plus(group(), "d", role="leader", term=6, leader="d", configuration=known("DEF", 9)),
        V.MISMATCH,
        [
            "a leads in term 5, d in term 6",
            "b is in term 5, its leader d in 6",
            "c is in term 5, its leader d in 6",
            "by the masters are those of entry 1.1, and by the leader d those of 1.9",
            "by a are",
            "by b are",
            "by c are",
            "d has a replica (leader), and is no member",
        ],
    ),
}


@pytest.mark.parametrize("case", GROUP_CASES)
def test_a_tablet_with_replicas_is_there_led_and_agrees_with_itself(case: str) -> None:
    """Everything that is wrong is said, in this order, and the worst is the verdict."""
    tablet, verdict, texts = GROUP_CASES[case]
    judged = judge_group(tablet)
    found = [text for _, text in judged.reasons]
    assert judged.verdict is verdict, found
    assert len(found) == len(texts), found
    for said, text in zip(found, texts, strict=True):
        assert text in said


def digest(server_name: str, rows: str = "aa", count: int = 9, rest: int = 7) -> DigestAnswer:
    return DigestAnswer(server_name, ReplicaDigest(40, count, rows, rest))


LEARNER = DigestAnswer("d", None, "copied since", voter=False)
NO_METHOD = DigestAnswer("c", None, "server c has no method 'tserver.checksum_replica'")


@pytest.mark.parametrize(
    ("answers", "error", "expected", "equal"),
    [
        ([digest("a"), digest("b"), digest("c")], "", [], 1),
        ([], "it has no leader", [(WARNING, "was not compared: it has no leader")], 0),
        ([digest("a"), digest("b"), NO_METHOD], "", [(WARNING, "on c was not compared")], 0),
        (
            [digest("a"), digest("b", "bb"), digest("c")],
            "",
            [(ERROR, "replicas differ: a, c: 9 rows, aa, 00000007; b: 9 rows, bb, 00000007")],
            0,
        ),
        ([digest("a"), digest("b", count=8)], "", [(ERROR, "b: 8 rows")], 0),
        ([digest("a"), digest("b", rest=8)], "", [(ERROR, "b: 9 rows, aa, 00000008")], 0),
        ([digest("a"), digest("b"), LEARNER], "", [(Severity.NOTE, "non-voter on d was not")], 1),
        (
            [digest("a"), digest("b"), replace(digest("d", "bb"), voter=False)],
            "",
            [(ERROR, "d: 9 rows, bb")],
            0,
        ),
        (
            [digest("a"), digest("b", "bb"), NO_METHOD],
            "",
            [(WARNING, "on c was not compared"), (ERROR, "replicas differ")],
            0,
        ),
    ],
)
def test_replicas_that_tell_different_digests_are_named(
    answers: list[DigestAnswer], error: str, expected: list[tuple[Severity, str]], equal: int
) -> None:
    """Rows, their number and all the rest are compared; who did not answer was not compared."""
    digests = [TabletDigests(group(), tuple(answers), error)]
    found = judge_digests(digests)
    assert [finding.severity for finding in found] == [severity for severity, _ in expected], found
    for finding, (_, text) in zip(found, expected, strict=True):
        assert text in finding.text
    assert compared(digests) == equal
