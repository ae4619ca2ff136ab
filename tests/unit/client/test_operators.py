"""What operators are told: how far a move is, what keeps a retirement, what servers have."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stelae.cli.cluster.servers import retired
from stelae.client.admin.operators import (
    AWAY_S,
    MoveStage,
    Waiting,
    describe_tservers,
    stage_of,
    what_keeps,
)
from stelae.core.errors import RetryLater
from stelae.core.ids import Address, OpId, ServerUuid, TableId, TabletId
from stelae.core.messages.operators import ServerProgress
from stelae.core.records.records import (
    ReplicaMove,
    ServerKind,
    ServerMark,
    TabletRecord,
    TabletState,
)
from stelae.core.records.replication import Configuration, Peer

MOVE = ReplicaMove(ServerUuid("c"), ServerUuid("d"))
COPY = {
    "tablet": "t0", "uuid": "d", "state": "copying", "copied_bytes": 3, "bytes": 9, "problem": "",
}  # fmt: skip


def tablet(peers: str, move: ReplicaMove | None = MOVE, **changes: Any) -> TabletRecord:
    """A tablet with these members: voters in capitals."""
    members = tuple(
        Peer(ServerUuid(p.lower()), Address(f"{p.lower()}:1"), p.isupper(), p.lower())
        for p in peers
    )
    record = TabletRecord(
        TabletId("t0"), TableId("t"), 0, TabletState.RUNNING, 0, ServerUuid(""), 0,
        configuration=Configuration(OpId(1, 4), members), move=move,
    )  # fmt: skip
    return msgspec.structs.replace(record, **changes)


def seen(copies: list[dict[str, Any]], **changes: Any) -> Any:
    """A status document of the tablet, its voters a, b, c and the server d."""
    servers = [
        {"id": f"tserver-{name}", "uuid": name, "state": "live", "maintenance": False}
        for name in "abcd"
    ]
    voters = [
        {
            "server": f"tserver-{name}", "uuid": name, "member": "voter", "server_live": True,
            "role": "leader" if name == "a" else "follower", "problem": "",
        }
        for name in "abc"
    ]  # fmt: skip
    shown = {"id": "t0", "leader": "tserver-a", "problem": "", "replicas": voters}
    return {"copies": copies, "servers": servers, "tablets": [shown], **changes}


WAITING = {**COPY, "state": "waiting", "problem": ""}
THERE = {"server": "tserver-d", "uuid": "d", "member": "non-voter", "server_live": True}


@pytest.mark.parametrize(
    ("change", "copies", "why"),
    [
        (lambda s: None, [], ""),
        (lambda s: None, [WAITING], ""),
        (lambda s: s["tablets"].clear(), [], "the tablet has no leader"),
        (lambda s: s["tablets"][0].update(leader="", problem="1 of 3 is there"), [], "1 of 3 is"),
        (lambda s: s["servers"][3].update(state="dead"), [], "tserver-d is dead"),
        (lambda s: s["servers"][3].update(maintenance=True), [], "tserver-d is in maintenance"),
        (lambda s: None, [{**WAITING, "problem": "no space"}], "the copy to tserver-d: no space"),
        (lambda s: None, [{**WAITING, "state": "throttled"}], "as many copies as it may"),
        (
            lambda s: s["tablets"][0]["replicas"].append(
                {**THERE, "role": "failed", "problem": "its disk is full"}
            ),
            [],
            "the replica on tserver-d: its disk is full",
        ),
        (
            lambda s: s["tablets"][0]["replicas"].append({**THERE, "role": "follower"}),
            [],
            "",
        ),
        (
            lambda s: s["tablets"][0]["replicas"][2].update(role="tombstone"),
            [],
            "replicas on tserver-c do not take part",
        ),
        (
            lambda s: s["tablets"][0]["replicas"][1].update(server_live=False),
            [],
            "replicas on tserver-b do not take part",
        ),
    ],
)
def test_an_operator_is_told_what_a_move_waits_for(
    change: Any, copies: list[dict[str, Any]], why: str
) -> None:
    """Of what the masters know, the first that keeps it from going on."""
    status = seen([{"problem": "", **copy} for copy in copies])
    change(status)
    found = stage_of(tablet("ABCd"), MOVE, status)
    assert (found.stage, bool(found.why)) == ("catches up", bool(why))
    assert why in found.why
    assert found.text == (f"catches up: {found.why}" if why else "catches up")


@pytest.mark.parametrize(
    ("record", "copies", "stage"),
    [
        (tablet("ABC"), [], MoveStage("waits")),
        (tablet("ABC"), [{**COPY, "uuid": "e"}, {**COPY, "tablet": "t1"}], MoveStage("waits")),
        (tablet("ABCd"), [COPY], MoveStage("copies", 3, 9)),
        (tablet("ABCd"), [], MoveStage("catches up")),
        (
            tablet("ABCd"),
            [{**COPY, "state": "throttled"}],
            MoveStage("catches up", why="tserver-d receives as many copies as it may at a time"),
        ),
        (tablet("ABCD"), [], MoveStage("lets go")),
        (tablet("ABD"), [], MoveStage("done")),
        (tablet("ABD", None), [], MoveStage("done")),
    ],
)
def test_a_move_is_followed_from_the_records_alone(
    record: TabletRecord, copies: list[dict[str, Any]], stage: MoveStage
) -> None:
    """Whoever looks sees the same, also after an interruption; done is when the source is gone."""
    assert stage_of(record, MOVE, seen(copies)) == stage
    assert stage.is_done == (stage.stage == "done")


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (tablet("ABC", None), "given up"),
        (tablet("ABC", ReplicaMove(ServerUuid("a"), ServerUuid("d"))), "given up"),
        (tablet("ABE", None), "given up"),
        (tablet("ABC", state=TabletState.DELETED), "is deleted"),
    ],
)
def test_a_move_that_nobody_works_on_any_more_is_not_waited_for(
    record: TabletRecord, text: str
) -> None:
    """Given up by another operator, overtaken by another move, or of a deleted table."""
    with pytest.raises(RetryLater, match=text):
        stage_of(record, MOVE, seen([]))


def status(*, marked: str = "", dead: str = "", leader: str = "a", wanted: int = 3) -> Any:
    """A status document of servers a to d and one tablet on a, b, c, and one with segments on a."""
    servers = [
        {
            "kind": "tserver", "id": f"tserver-{name}", "uuid": name, "node": "n",
            "state": "dead" if name in dead else "live", "address": f"{name}:1",
            "retiring": name in marked, "maintenance": False, "memory_bytes": 1,
            "memory_limit_bytes": 2, "replicas": int(name != "d"), "tablets": 2 - (name != "a"),
        }
        for name in "abcd"
    ]  # fmt: skip
    replicas = [
        {
            "uuid": name,
            "server": f"tserver-{name}",
            "member": "voter",
            "role": "leader" if name == leader else "follower",
        }
        for name in "abc"
    ]
    group = {
        "leader": f"tserver-{leader}" if leader else "",
        "replicas_wanted": wanted,
        "replicas": replicas,
        "load_per_s": 40.0,
    }
    owned = {"leader": "tserver-a", "load_per_s": 2.5}
    other = {"leader": "tserver-d", "load_per_s": None}
    backup = {"kind": "backup", "id": "backup-1", "uuid": "x", "state": "live"}
    return {"servers": [backup, *reversed(servers)], "tablets": [owned, other, group]}


@pytest.mark.parametrize(
    ("document", "uuid", "text"),
    [
        (status(marked="a"), "a", ""),
        (status(marked="ab"), "a", "1 of its tablets want 3 servers, and 2 are live"),
        (status(marked="a", dead="d"), "a", "1 of its tablets want 3 servers, and 2 are live"),
        (status(marked="ab", dead="cd"), "d", ""),
        (status(marked="a", leader=""), "a", "1 of its tablets have no leader"),
        (status(marked="ab", wanted=1), "a", ""),
    ],
)
def test_what_keeps_a_retirement_is_told(document: Any, uuid: str, text: str) -> None:
    """Too few other servers, or a group without a leader; otherwise it only takes its time."""
    assert what_keeps(document, uuid).startswith(text)
    assert bool(what_keeps(document, uuid)) == bool(text)


def test_tablet_servers_are_listed_with_what_they_have() -> None:
    """Sorted by name, without backups; leaders are counted, and tablets that are not replicas;
    load is that of what is led or owned, as far as it is known."""
    found = describe_tservers(status(marked="b", dead="c"))
    shown = [(s["name"], s["state"], s["retiring"], s["replicas"], s["leads"]) for s in found]
    assert shown == [
        ("tserver-a", "live", False, 1, 1),
        ("tserver-b", "live", True, 1, 0),
        ("tserver-c", "dead", False, 1, 0),
        ("tserver-d", "live", False, 0, 0),
    ]
    assert [server["owned"] for server in found] == [1, 0, 0, 1]
    assert [server["load_per_s"] for server in found] == [42.5, 0.0, 0.0, 0.0]


def test_a_backup_that_is_away_is_waited_for_while_something_comes_of_it() -> None:
    """Two minutes without a change end the wait, with words that name every way out; one that
    lives, or of which less is left each time, takes as long as it takes."""
    mark = ServerMark(ServerUuid("a"), "backup-2", retiring=True, kind=ServerKind.BACKUP)
    waiting, now = Waiting(0.0), 0.0

    def look(segments: int, *, is_live: bool = False, after_s: float = AWAY_S) -> None:
        nonlocal now
        now += after_s
        waiting.check(ServerProgress(mark, is_live, 0, 0, problem="why", segments=segments), now)

    for segments in (5, 4, 3):
        look(segments)
    for _ in range(3):
        look(3, is_live=True)
    look(3, after_s=AWAY_S - 1)
    look(0)
    look(2)
    look(2, after_s=AWAY_S - 1)
    with pytest.raises(RetryLater) as raised:
        look(2, after_s=1.0)
    for words in ("why", "Start it", "stelae recover", "--gone backup-2", "--no-wait"):
        assert words in str(raised.value)


def test_a_backup_that_is_away_and_needed_by_nobody_is_let_go_of() -> None:
    """It cannot be stopped: it is told that nothing is missing without it."""
    mark = ServerMark(ServerUuid("a"), "backup-2", retiring=True, kind=ServerKind.BACKUP)
    assert "away, and nothing is missing without it" in retired(ServerProgress(mark, False, 0, 0))


@pytest.mark.parametrize(
    ("retiring", "is_live", "replicas", "tablets", "bound", "text"),
    [
        (True, True, 2, 0, 0, "is being retired: 2 tablets are left; why"),
        (True, True, 1, 3, 1, "is being retired: 4 tablets are left"),
        (True, True, 0, 3, 3, "cannot be stopped yet: 3 tablets are left; why"),
        (True, True, 0, 0, 0, "may be stopped for good"),
        (True, False, 0, 3, 0, "may be stopped for good"),
        (False, True, 2, 3, 0, "not to be retired any more"),
    ],
)
def test_a_retirement_ends_in_a_sentence(
    retiring: bool, is_live: bool, replicas: int, tablets: int, bound: int, text: str
) -> None:
    """It says whether the server may be stopped, and what happens then."""
    mark = ServerMark(ServerUuid("a"), "tserver-a", retiring=retiring)
    found = ServerProgress(mark, is_live, replicas, tablets, bound, "why")
    assert text in retired(found)
