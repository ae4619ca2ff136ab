"""Appends of several logs to one backup, in one message: who sends them, and who takes them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from stelae.actors.tserver.segments.shared_appends import (
    PAUSE_S,
    TOGETHER_BYTES,
    Append,
    NotSent,
    SharedAppends,
)
from stelae.core.errors import InvalidArgument, OutcomeUnknown, StaleTerm, Unavailable, encode_error
from stelae.core.ids import TabletId
from stelae.core.messages.backups import (
    APPENDS_MAX,
    WRITE_REPLICA,
    WRITE_REPLICAS,
    WriteReplica,
    WriteReplicas,
    WriteReplicasReply,
)
from stelae.core.rpc import EMPTY, Reply
from stelae.simulation.world.node import SimulationFailure
from tests.simulation.tables.planted import SHARED_AT_BACKUPS, planted
from tests.unit.actors.backup.backup_world import LOG, Owner, Rows, run

UNKNOWN = OutcomeUnknown("here", "an append", 1.0)


class Backups:
    """What backups were sent; each message is answered at once, ``answer`` says how."""

    def __init__(self, answer: Any = None, *, posts: bool = True) -> None:
        self.sent: list[int] = []
        self.answer = answer
        self.posts = posts
        self.now_s = 0.0

    def post(self, address: Any, method: Any, body: Any, done: Any, **given: Any) -> bool:
        writes = body.writes if method is WRITE_REPLICAS else (body,)
        assert method is WRITE_REPLICAS or len(writes) == 1
        if not self.posts:
            return False
        assert given["blobs"] == [str(write.offset).encode() for write in writes]
        self.sent.append(len(writes))
        outcome: Any = EMPTY
        if method is WRITE_REPLICAS:
            outcome = self.answer or Reply(WriteReplicasReply((b"",) * len(writes)))
        asyncio.get_running_loop().call_soon(done, outcome)
        return True


def told(
    backups: Backups, media: list[str], size_bytes: int = 1, shared: SharedAppends | None = None
) -> list[Any]:
    """What each append, made in one turn, was told of its end."""
    ends: dict[int, Any] = {}
    clock = SimpleNamespace(monotonic=lambda: backups.now_s)
    runtime: Any = SimpleNamespace(peers=backups, clock=clock)
    target: Any = SimpleNamespace(uuid="b1", address="here")
    appends = shared or SharedAppends()

    async def story() -> None:
        for number, medium in enumerate(media):
            write = WriteReplica(TabletId("t"), 1, 1, 0, medium, number, None)
            blob = str(number).encode()
            done = _noting(ends, number)
            appends.add(runtime, target, Append(write, [blob], size_bytes, done), 1.0)
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(story())
    return [ends[number] for number in range(len(media))]


def _noting(ends: dict[int, Any], number: int) -> Any:
    def done(end: Any) -> None:
        assert number not in ends, "told once"
        ends[number] = end

    return done


def test_those_of_a_turn_share_a_message_for_each_medium() -> None:
    """One alone goes as ever; more than fit go in several."""
    backups = Backups()
    assert told(backups, ["a", "b", "a", "a"]) == [None] * 4
    assert sorted(backups.sent) == [1, 3]
    backups = Backups()
    assert told(backups, ["a"] * (APPENDS_MAX + 2)) == [None] * (APPENDS_MAX + 2)
    assert backups.sent == [APPENDS_MAX, 2]
    backups = Backups()
    assert told(backups, ["a"] * 5, TOGETHER_BYTES // 2) == [None] * 5
    assert backups.sent == [2, 2, 1]


def test_each_is_told_its_own_end() -> None:
    """A refusal is that of one; what is not known is not known of all."""
    errors = (b"", encode_error(StaleTerm("term", 1, 2)), b"what is this")
    ends = told(Backups(Reply(WriteReplicasReply(errors))), ["a"] * 3)
    assert ends[0] is None
    assert isinstance(ends[1], StaleTerm)
    assert ends[1].args == ("term", 1, 2)
    assert isinstance(ends[2], NotSent)
    assert told(Backups(UNKNOWN), ["a"] * 3) == [UNKNOWN] * 3


@pytest.mark.parametrize(
    "backups",
    [
        Backups(Unavailable("here", "gone")),
        Backups(Reply(WriteReplicasReply(()))),
        Backups(posts=False),
    ],
    ids=["not sent", "cut", "not connected"],
)
def test_those_that_did_not_leave_are_to_go_by_themselves(backups: Backups) -> None:
    """Whoever has them knows how."""
    assert all(isinstance(end, NotSent) for end in told(backups, ["a"] * 3))


def test_a_backup_that_knows_no_such_message_is_sent_none_for_a_while() -> None:
    """It may be one of before."""
    backups, shared = Backups(InvalidArgument("no such method")), SharedAppends()
    assert all(isinstance(end, NotSent) for end in told(backups, ["a"] * 3, shared=shared))
    assert told(backups, ["a"] * 3, shared=shared) == [None] * 3
    assert backups.sent == [3, 1, 1, 1]
    backups.answer, backups.now_s = None, PAUSE_S
    assert told(backups, ["a"] * 3, shared=shared) == [None] * 3
    assert backups.sent[4:] == [3]


# ---- at the backup ------------------------------------------------------------------------------


def _write(log: TabletId, some: Rows, *, epoch: int = 0, medium: str = "disk") -> WriteReplica:
    return WriteReplica(log, 1, 1, epoch, medium, 0, some.certificate, create=True)


async def _one_refused_and_a_crash(owner: Owner) -> None:
    logs = [TabletId(f"{n}" * 32) for n in range(1, 4)]
    some = [Rows() for _ in logs]
    await owner.fence((logs[1], 5))
    writes = tuple([_write(log, one) for log, one in zip(logs, some, strict=True)])
    blobs = [bytes(one.data) for one in some]
    owner.world.nodes[owner.backup].disk.slowness = 100.0  # an answer is faster than a sync
    reply = await owner.call(WRITE_REPLICAS, WriteReplicas(writes), *blobs)
    assert [bool(error) for error in reply.body.errors] == [False, True, False]
    assert b"LogFenced" in reply.body.errors[1]
    owner.world.nodes[owner.backup].disk.slowness = 1.0
    await owner.restart(loses_all=True)
    found = [await owner.inventory(log) for log in logs]
    assert [[info.length for info in infos] for infos in found] == [
        [some[0].certificate.length],
        [],
        [some[2].certificate.length],
    ]


def test_a_backup_takes_each_by_itself_and_all_are_durable() -> None:
    """One that is refused, in the middle, changes nothing for the others; a crash right after the
    answer takes nothing away."""
    run(_one_refused_and_a_crash)


@pytest.mark.parametrize("bug", sorted(SHARED_AT_BACKUPS))
def test_a_bug_of_that_is_seen(bug: str) -> None:
    """The simulated disk and the fence show it."""
    with planted(bug), pytest.raises(SimulationFailure):
        run(_one_refused_and_a_crash)


def test_a_message_that_is_none_is_refused() -> None:
    """Without a blob for each, of several media, or with too many; nothing of it is taken."""

    async def scenario(owner: Owner) -> None:
        some = Rows()
        write, data = _write(LOG, some), bytes(some.data)
        other = _write(LOG, some, medium="ram")
        for writes, blobs in [
            ((write,), []),
            ((), []),
            ((write, other), [data, data]),
            ((write,) * (APPENDS_MAX + 1), [data] * (APPENDS_MAX + 1)),
        ]:
            with pytest.raises(InvalidArgument):
                await owner.call(WRITE_REPLICAS, WriteReplicas(writes), *blobs)
        assert await owner.inventory() == ()
        await owner.call(WRITE_REPLICA, write, data)

    run(scenario)
