"""`stelae check`: what is found in which facts, as tables of cases.

Tablets with replicas have a module of their own, `test_check_replicas`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from stelae.client.check.check import judge
from stelae.client.check.facts import (
    Facts,
    MasterAnswer,
    ReplacedFacts,
    ServerFacts,
    Severity,
    StatusFacts,
    TableFacts,
    TabletFacts,
    UnheardFacts,
    Verdict,
)
from stelae.client.check.masters import judge_masters, judge_servers
from stelae.client.check.tablets import (
    judge_owned,
    judge_tables,
    judge_tablets,
)
from stelae.core.ids import Address, OpId, ServerUuid, TabletId
from stelae.core.messages.masters import MasterInfo, MasterState
from stelae.core.records.records import MasterMember, ServerInfo, ServerKind
from stelae.core.records.timelines import SafekeeperId, TimelineConfiguration
from stelae.core.runtime import ProcessIdentity
from tests.unit.client.check.check_facts import ERROR, NOTE, WARNING, V, change

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


def test_a_backup_that_is_known_and_was_not_heard_is_missed() -> None:
    """Unless it was retired, or came back under its name with another disk."""
    unheard = (
        UnheardFacts("backup-1", ServerUuid("former")),
        UnheardFacts("backup-2", ServerUuid("b2")),
        UnheardFacts("backup-3", ServerUuid("b3"), retiring=True),
    )
    status = StatusFacts("c", 1, (server("t1"), server("backup-1")), (), (), (), (), unheard)
    found = judge_servers(status)
    assert [(each.severity, each.subject) for each in found] == [
        (WARNING, "backup-2"),
        (NOTE, "backup-3"),
    ]
    assert "was not heard since" in found[0].text
    assert "stelae server retire backup-2`" in found[0].hint


def test_a_server_that_is_half_replaced_is_missed() -> None:
    """No server of its name is listed then."""
    servers = (server("t1"), server("backup-1"))
    fences = (
        ReplacedFacts("backup-2", ServerUuid("old")),
        ReplacedFacts("backup-1", ServerUuid("older"), ServerUuid("backup-1")),
    )
    found = judge_servers(StatusFacts("c", 1, servers, (), (), replaced=fences))
    assert [(each.severity, each.subject) for each in found] == [(WARNING, "backup-2")]
    assert "successor was not heard" in found[0].text


def test_a_replacement_that_has_not_ended_is_a_note() -> None:
    """Once for a name, whichever disks it had; one that is whole is none."""
    servers = (server("t1"), server("backup-1"))
    fences = tuple(
        ReplacedFacts("backup-1", ServerUuid(old), ServerUuid("backup-1"), goes_on=goes_on)
        for old, goes_on in (("a", True), ("b", True), ("c", False))
    )
    (found,) = judge_servers(StatusFacts("c", 1, servers, (), (), replaced=fences))
    assert (found.severity, found.subject) == (NOTE, "backup-1")
    assert "stelae server replace`" in found.hint
    whole = StatusFacts("c", 1, servers, (), (), replaced=fences[2:])
    assert judge_servers(whole) == []


def test_a_server_that_an_operator_stopped_is_a_note() -> None:
    """With the command that starts it. One that is live, or that nobody stopped, is as it is."""
    servers = (server("t1"), server("t2", state="dead"), server("t3", state="dead"))
    unheard = (UnheardFacts("backup-2", ServerUuid("b2")),)
    status = StatusFacts("c", 1, (*servers, server("backup-1")), (), (), (), (), unheard)
    found = judge_servers(status, ["t1", "t2", "backup-2"])
    assert [(each.severity, each.subject) for each in found] == [
        (NOTE, "t2"),
        (WARNING, "t3"),
        (NOTE, "backup-2"),
    ]
    assert found[0].text == "is stopped by an operator"
    assert found[0].hint == "`stelae server start t2`"


SERVER_CASES: list[tuple[list[ServerFacts], list[tuple[Severity, str]]]] = [
    ([server("t1"), server("backup-1")], []),
    (
        [server("t1"), server("t2", state="dead", silent_s=7.2), server("backup-1")],
        [(WARNING, "t2: is dead: silent for 7 s")],
    ),
    ([server("t1", state="dead"), server("t1"), server("backup-1")], []),
    (
        [
            server("t1"),
            server(
                "backup-1",
                used_bytes={"disk": 140_000_000, "ram": 1},
                media_free_bytes={"disk": 7_000_000, "ram": 5_000_000},
                media_low=("disk",),
            ),
        ],
        [(WARNING, "backup-1: medium 'disk' holds 140.0 MB and has 7.0 MB free, which is its")],
    ),
    (
        [server("t1"), server("backup-1", avoided_by=("t1", "t2"))],
        [(WARNING, "backup-1: took no replicas from t1, t2 in the last minutes")],
    ),
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
        ({"segments_lacking": 1, "problem": "why"}, True, V.UNAVAILABLE, "cannot be read: why"),
        ({"under_replicated": 2}, True, V.UNDER_REPLICATED, "2 of its segments have lost"),
        (
            {"under_replicated": 2, "inherits": "t", "problem": "no memory for 2 segments"},
            True,
            V.UNDER_REPLICATED,
            "2 of its segments are in the log that it was split from",
        ),
        ({"problem": "no memory"}, True, V.RECOVERING, "its server tserver-1 says: no memory"),
        ({"owners_died": 2, "problem": "two"}, True, V.RECOVERING, "rows are in memory yet: two"),
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


def test_who_lacks_memory_is_told_what_helps() -> None:
    """A tablet that is served and waits does not simply go on by itself, as one that is created."""
    waiting = judge_owned(change(OWNED, problem="no memory"), is_owner_live=True)
    assert "tservers.memory" in waiting.findings()[0].hint
    created = judge_owned(change(OWNED, state="creating"), is_owner_live=True)
    assert "memory" not in created.findings()[0].hint


@pytest.mark.parametrize("state", ["recovering", "running", "creating"])
def test_a_tablet_that_ends_its_servers_is_told_apart(state: str) -> None:
    """It goes on by itself, less often each time: their logs say why they ended."""
    tablet = change(OWNED, state=state, problem="2 servers in a row", owners_died=2)
    (found,) = judge_owned(tablet, is_owner_live=False).findings()
    assert "2 servers in a row" in found.text
    assert "stelae logs" in found.hint


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
    assert [bool(each["hint"]) for each in document["findings"]] == [True, False, True]
    assert document["checksums"]["tablets"] == 0


def test_a_cluster_that_cannot_tell_its_status_is_not_well() -> None:
    """What could not be looked at is not taken for healthy."""
    answers = tuple(master(name) for name in "abc")
    report = judge(Facts(answers, None, "no leader among the masters"))
    assert [finding.severity for finding in report.problems] == [ERROR]
    assert "could not be looked at: no leader" in report.problems[0].text
    assert report.document()["cluster"] is None
