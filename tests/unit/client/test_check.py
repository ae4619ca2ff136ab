"""`stelae check`: what is found in which facts, as tables of cases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from stelae.client.check import judge
from stelae.client.check_facts import (
    DigestAnswer,
    Facts,
    Known,
    MasterAnswer,
    ReplicaFacts,
    ServerFacts,
    Severity,
    StatusFacts,
    TableFacts,
    TabletDigests,
    TabletFacts,
    Verdict,
)
from stelae.client.check_masters import judge_masters, judge_servers
from stelae.client.check_tablets import (
    compared,
    judge_digests,
    judge_group,
    judge_owned,
    judge_tables,
    judge_tablets,
)
from stelae.core.ids import Address, OpId, ServerUuid, TabletId
from stelae.core.member_messages import MasterInfo, MasterState
from stelae.core.records import MasterMember, ServerInfo, ServerKind
from stelae.core.replica_messages import ReplicaDigest
from stelae.core.runtime import ProcessIdentity
from stelae.core.timelines import SafekeeperId, TimelineConfiguration

NOTE, WARNING, ERROR = Severity.NOTE, Severity.WARNING, Severity.ERROR
V = Verdict
change = msgspec.structs.replace

# ---- masters ------------------------------------------------------------------------------------


def master(
    name: str,
    *,
    leader: str = "a",
    term: int = 5,
    members: str = "ABC",
    index: int = 1,
    state: MasterState = MasterState.VOTER,
) -> MasterAnswer:
    """The answer of a master called as its UUID; of the members, voters are in capitals."""
    address = Address(f"{name}:1")
    process = ProcessIdentity("node", 1, 0.0)
    server = ServerInfo(ServerKind.MASTER, name, ServerUuid(name), 1, address, process)
    named = tuple(
        MasterMember(ServerUuid(m.lower()), m.lower(), Address(f"{m.lower()}:1"), m.isupper())
        for m in members
    )
    info = MasterInfo(server, state, OpId(1, index), named, term, ServerUuid(leader))
    return MasterAnswer(address, info)


def silent(name: str) -> MasterAnswer:
    return MasterAnswer(Address(f"{name}:1"), None, "cannot be reached")


def at(answer: MasterAnswer, address: str) -> MasterAnswer:
    return replace(answer, address=Address(address))


MASTER_CASES: dict[str, tuple[list[MasterAnswer], list[tuple[Severity, str]]]] = {
    "all is well": ([master("a"), master("b"), master("c")], []),
    "nobody is there": ([silent("a"), silent("b")], [(ERROR, "no master answers: a:1: cannot")]),
    "one is away": (
        [master("a"), master("b"), silent("c")],
        [(WARNING, "c: does not answer: cannot be reached")],
    ),
    "a majority is away": (
        [master("b", leader=""), silent("a"), silent("c")],
        [
            (WARNING, "a: does not answer"),
            (WARNING, "c: does not answer"),
            (ERROR, "2 of 3 do not answer: no majority"),
            (ERROR, "nobody leads"),
        ],
    ),
    "nobody leads": (
        [master(name, leader="") for name in "abc"],
        [(ERROR, "nobody leads")],
    ),
    "two lead in one term": (
        [master("a"), master("b", leader="b"), master("c")],
        [(ERROR, "b: leads in term 5, and a in term 5")],
    ),
    "a former leader does not know it yet": (
        [master("a", leader="a", term=4), master("b", leader="b"), master("c", leader="b")],
        [(WARNING, "a: leads in term 4, and b in term 5")],
    ),
    "one follows somebody else": (
        [master("a"), master("b"), master("c", leader="b")],
        [(WARNING, "c: follows b, and not a")],
    ),
    "one follows nobody": (
        [master("a"), master("b"), master("c", leader="")],
        [(WARNING, "c: follows nobody, and not a")],
    ),
    "one is in a newer term": (
        [master("a"), master("b"), master("c", leader="", term=6)],
        [(WARNING, "c: is in term 6; a leads in term 5")],
    ),
    "one names other masters by the same entry": (
        [master("a"), master("b"), master("c", members="ABD")],
        [(ERROR, "c: names other masters than a: a, b, d")],
    ),
    "one knows an older set": (
        [master("a", index=7), master("b", index=7), master("c", members="AB")],
        [(WARNING, "c: knows the masters as of entry 1.1 of their log; a knows 1.7")],
    ),
    "a new one is being brought up": (
        [
            *(master(name, members="ABCd", index=7) for name in "abc"),
            master("d", members="ABCd", index=7, state=MasterState.NON_VOTER),
        ],
        [(WARNING, "d: is no voter yet")],
    ),
    "a removed one still answers": (
        [
            *(master(name, members="AB", index=7) for name in "ab"),
            master("c", members="AB", index=7, state=MasterState.REMOVED),
        ],
        [(NOTE, "c: is a master no more, or not yet: removed")],
    ),
    "a removed one that is away matters to nobody": (
        [*(master(name, members="AB", index=7) for name in "ab"), silent("c")],
        [],
    ),
    "one came back with another disk": (
        [master("a"), master("b"), at(master("x", members="", state=MasterState.JOINING), "c:1")],
        [
            (ERROR, "c: at its address c:1 is x, UUID x"),
            (NOTE, "x: is a master no more, or not yet: joining"),
        ],
    ),
}


@pytest.mark.parametrize("case", MASTER_CASES)
def test_masters_are_all_there_agree_and_follow_one(case: str) -> None:
    """Each way in which masters may not be well is found, and nothing else."""
    answers, expected = MASTER_CASES[case]
    found = judge_masters(answers)
    assert [finding.severity for finding in found] == [severity for severity, _ in expected], found
    for finding, (_, text) in zip(found, expected, strict=True):
        assert str(finding).startswith(text)


# ---- servers ------------------------------------------------------------------------------------


def server(name: str, **fields: Any) -> ServerFacts:
    kind = "backup" if name.startswith("backup") else "tserver"
    return ServerFacts(kind, name, ServerUuid(name), **{"state": "live", **fields})


SERVER_CASES: list[tuple[list[ServerFacts], list[tuple[Severity, str]]]] = [
    ([server("t1"), server("backup-1")], []),
    (
        [server("t1"), server("t2", state="dead", silent_s=7.2), server("backup-1")],
        [(WARNING, "t2: is dead: silent for 7 s")],
    ),
    ([server("t1", state="dead"), server("t1"), server("backup-1")], []),
    (
        [server("t1"), server("t2", state="dead", maintenance=True), server("backup-1")],
        [(NOTE, "t2: is away, in maintenance")],
    ),
    (
        [server("t1"), server("t2", state="dead", retiring=True), server("backup-1")],
        [(NOTE, "t2: is away for good")],
    ),
    (
        [server("t1"), server("t2", state="dead", retiring=True, replicas=1), server("backup-1")],
        [(WARNING, "t2: is dead")],
    ),
    (
        [server("t1", retiring=True, replicas=2, tablets=3), server("backup-1", state="dead")],
        [
            (WARNING, "backup-1: is dead"),
            (NOTE, "t1: is being retired: 3 tablets are left"),
            (ERROR, "no backup is live"),
        ],
    ),
    (
        [server("t1", retiring=True, tablets=3), server("backup-1")],
        [(NOTE, "t1: is being retired: 3 tablets are left")],
    ),
    (
        [
            server("t1"),
            server("backup-1"),
            ServerFacts("cas_store", "cas_store-1", ServerUuid("s"), "dead", silent_s=9.0),
        ],
        [(WARNING, "cas_store-1: is dead: silent for 9 s")],
    ),
    (
        [server("t1", maintenance=True), server("backup-1")],
        [(NOTE, "t1: is in maintenance")],
    ),
]


@pytest.mark.parametrize(("servers", "expected"), SERVER_CASES)
def test_servers_are_live_unless_it_is_meant(
    servers: list[ServerFacts], expected: list[tuple[Severity, str]]
) -> None:
    """The dead are told of, but not those that came back, nor those that are to be away."""
    found = judge_servers(StatusFacts("c", 1, tuple(servers), (), ()))
    assert [finding.severity for finding in found] == [severity for severity, _ in expected], found
    for finding, (_, text) in zip(found, expected, strict=True):
        assert str(finding).startswith(text)


# ---- tablets with segments ----------------------------------------------------------------------

OWNED = TabletFacts(
    TabletId("t0"), "t", 0, "running", 3, "tserver-1", "x:1", progress="serving", problem=""
)


@pytest.mark.parametrize(
    ("changes", "is_owner_live", "verdict", "text"),
    [
        ({}, True, V.HEALTHY, ""),
        ({"state": "creating", "problem": "no"}, True, V.RECOVERING, "is being created: no"),
        ({"state": "recovering", "problem": "no"}, True, V.UNAVAILABLE, "is recovering: no"),
        ({}, False, V.UNAVAILABLE, "its server tserver-1 is dead"),
        ({"progress": ""}, True, V.UNAVAILABLE, "its server tserver-1 has not reported it"),
        ({"progress": "failed", "problem": "x"}, True, V.UNAVAILABLE, "says 'failed': x"),
        ({"under_replicated": 2}, True, V.UNDER_REPLICATED, "2 of its segments have lost"),
    ],
)
def test_an_owned_tablet_is_served_and_its_segments_are_whole(
    changes: dict[str, Any], is_owner_live: bool, verdict: Verdict, text: str
) -> None:
    """State, owner, progress and segments are looked at."""
    judged = judge_owned(change(OWNED, **changes), is_owner_live=is_owner_live)
    assert judged.verdict is verdict
    assert text in "; ".join(str(finding) for finding in judged.findings())
    assert bool(text) == bool(judged.reasons)


# ---- tablets with replicas ----------------------------------------------------------------------


def timeline(generation: int, *members: int) -> TimelineConfiguration:
    return TimelineConfiguration(generation, tuple(map(SafekeeperId, members)))


@pytest.mark.parametrize(
    ("members", "live", "expected"),
    [
        (timeline(1, 1, 2, 3), (1, 2, 3), []),
        (
            timeline(1, 1, 2, 3),
            (1, 3),
            [(V.UNDER_REPLICATED, "of safekeepers [1, 2, 3] of its log 2 are not live")],
        ),
        (
            timeline(1, 1, 2, 3),
            (3, 4, 5),
            [(V.UNAVAILABLE, "no majority of safekeepers [1, 2, 3]: not live are 1, 2")],
        ),
        (
            msgspec.structs.replace(timeline(2, 1, 2, 3), new_sk_set=timeline(2, 3, 4, 5).sk_set),
            (1, 2, 3),
            [
                (V.UNAVAILABLE, "no majority of safekeepers [3, 4, 5]: not live are 4, 5"),
                (V.RECOVERING, "its log moves to safekeepers [3, 4, 5]"),
            ],
        ),
        (None, (), []),
    ],
)
def test_the_log_of_a_wal_tablet_has_all_its_safekeepers(
    members: TimelineConfiguration | None,
    live: tuple[int, ...],
    expected: list[tuple[Verdict, str]],
) -> None:
    """By the servers of the same document; each member set is looked at by itself."""
    servers = [server("t1")]
    for number in map(SafekeeperId, range(1, 6)):
        name, state = f"k{number}", "live" if number in live else "dead"
        servers.append(
            ServerFacts("safekeeper", name, ServerUuid(name), state, safekeeper_id=number)
        )
    tablet = change(OWNED, leader="t1", timeline=members)
    (judged,) = judge_tablets(StatusFacts("c", 1, tuple(servers), (), (tablet,)))
    assert [verdict for verdict, _ in judged.reasons] == [verdict for verdict, _ in expected]
    for (_, text), (_, wanted) in zip(judged.reasons, expected, strict=True):
        assert wanted in text


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


def test_each_number_of_a_table_has_one_tablet() -> None:
    """A tablet that is missing, or there twice, is an error that no tablet shows by itself."""
    table = TableFacts("t", "segments()", 3, "running")

    def found(*numbers: int) -> list[str]:
        tablets = tuple(change(OWNED, number=number) for number in numbers)
        status = StatusFacts("c", 1, (), (table,), tablets)
        return [str(finding) for finding in judge_tables(status)]

    assert found(2, 0, 1) == []
    assert found(0, 2) == ["table 't': has not one tablet each of its 3 numbers: 1"]
    assert found(0, 1, 1, 2) == ["table 't': has not one tablet each of its 3 numbers: 1"]
    assert len(found(0, 1, 2, 3)) == 1


# ---- checksums ----------------------------------------------------------------------------------


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


# ---- all together -------------------------------------------------------------------------------


def test_a_report_is_well_only_if_nothing_but_notes_was_found() -> None:
    """Notes are shown and do no harm; the worst comes first; the document has all of it."""
    masters = tuple(master(name) for name in "abc")
    servers = (server("tserver-1", maintenance=True), server("backup-1"))
    table = TableFacts("t", "segments()", 1, "running")
    status = StatusFacts("c", 1, servers, (table,), (OWNED,))
    report = judge(Facts(masters, status))
    assert report.is_well
    assert [str(finding) for finding in report.findings] == ["tserver-1: is in maintenance"]
    assert report.document()["tables"][0]["healthy"] == 1
    assert "checksums" not in report.document()
    assert str(report) == "all is well: 1 tablets are healthy"
    assert repr(report) == "<check of 1 tablets: all is well>"

    lost = change(OWNED, state="recovering")
    status = change(status, tablets=(lost,))
    report = judge(Facts((*masters[:2], silent("c")), status, digests=()))
    assert not report.is_well
    assert [finding.severity for finding in report.problems] == [ERROR, WARNING]
    assert str(report).splitlines()[0].startswith("error: tablet 0 of 't'")
    assert repr(report) == "<check of 1 tablets: 2 problems>"
    document = msgspec.json.decode(msgspec.json.encode(report.document()))
    assert document["well"] is False
    assert document["masters"][2] == {"address": "c:1", "error": "cannot be reached"}
    assert [each["verdict"] for each in document["tablets"]] == ["unavailable"]
    assert document["tables"][0]["unavailable"] == 1
    assert [each["severity"] for each in document["findings"]] == ["warning", "note", "error"]
    assert document["checksums"]["tablets"] == 0


def test_a_cluster_that_cannot_tell_its_status_is_not_well() -> None:
    """What could not be looked at is not taken for healthy."""
    answers = tuple(master(name) for name in "abc")
    report = judge(Facts(answers, None, "no leader among the masters"))
    assert [finding.severity for finding in report.problems] == [ERROR]
    assert "could not be looked at: no leader" in report.problems[0].text
    assert report.document()["cluster"] is None
