"""Which writes share an entry of the log, and how its outcome is shared out again."""

from __future__ import annotations

from typing import Any

import pytest

from stelae.actors.raft import requests as replica_requests
from stelae.actors.raft.requests import ReplicaRequests, command_of
from stelae.actors.tserver.tablet.small_writes import SmallWrite, check_many, is_small
from stelae.core.errors import InvalidArgument, NotLeader, OutcomeUnknown
from stelae.core.ids import ClientId, OpId, RequestId, ServerUuid, TabletId
from stelae.core.messages.rows import WRITES_MAX, Write, WriteMany, WriteOp
from stelae.storage.replicated.commands import GroupCommand, Stamp, WriteCommand, decode_command

TABLET = TabletId("t")


def request(sequence: int) -> RequestId:
    return RequestId(ClientId("c"), sequence, 1)


def one(
    n: int,
    op: WriteOp = WriteOp.UPSERT,
    *,
    columns: tuple[str, ...] = (),
    version: int = 1,
    row_bytes: int = 10,
) -> SmallWrite:
    write = Write(TABLET, version, op, request(n), ((n,),), columns)
    return SmallWrite(write, (request(n),), Stamp(float(n), 0.0), version, row_bytes)


def several(first: int, count: int) -> SmallWrite:
    numbers = range(first, first + count)
    requests, rows = tuple(map(request, numbers)), tuple((n,) for n in numbers)
    many = WriteMany(TABLET, 1, WriteOp.UPSERT, (), requests, rows)
    return SmallWrite(many, requests, Stamp(float(first), 0.0), 1, 10 * count)


def queue() -> ReplicaRequests:
    return ReplicaRequests(TABLET, ServerUuid("n1"), 1 << 20)


def rows_of(command: bytes) -> list[Any]:
    decoded = decode_command(command).command
    assert isinstance(decoded, GroupCommand | WriteCommand)
    return [row[0] for row in decoded.rows]


async def test_only_what_is_alike_shares_an_entry_and_order_stays() -> None:
    """Calls beside each other of one operation, columns and schema; any other command ends it."""
    requests = queue()
    commands: list[Any] = [
        one(1),
        several(2, 3),
        one(5),
        one(6, WriteOp.DELETE),
        one(7, columns=("id",)),
        one(8, version=2),
        b"a large one",
        one(9),
        one(10),
    ]
    for command in commands:
        requests.queue_proposal(command, 5.0)
    found = [command_of(group) for group in requests.take_proposals()]
    assert [c if c == b"a large one" else rows_of(c) for c in found] == [
        [1, 2, 3, 4, 5],
        [6],
        [7],
        [8],
        b"a large one",
        [9, 10],
    ]
    requests.close()


async def test_an_entry_takes_no_more_than_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes then begins another."""
    monkeypatch.setattr(replica_requests, "JOINED_BYTES_MAX", 200)
    requests = queue()
    for n in range(6):
        requests.queue_proposal(one(n, row_bytes=40), 5.0)
    assert [len(group) for group in requests.take_proposals()] == [2, 2, 2]
    requests.close()


async def test_each_gets_its_own_outcome() -> None:
    """One call one outcome, several calls of one message theirs; who has gone is left out."""
    requests = queue()
    waiting = [requests.queue_proposal(part, 5.0) for part in (one(1), several(2, 2), one(4))]
    [group] = requests.take_proposals()
    requests.appended(group, OpId(1, 7))
    waiting[2].future.cancel()
    requests.applied(OpId(1, 7), (b"1", b"2", b"3", b"4"), lambda: NotLeader("", 0, ""))
    assert [p.future.result() for p in waiting[:2]] == [b"1", (b"2", b"3")]
    requests.close()


async def test_an_entry_that_was_replaced_is_lost_to_all_of_it() -> None:
    """Another leader's entry stands at its index: none of them was done."""
    requests = queue()
    waiting = [requests.queue_proposal(one(n), 5.0) for n in (1, 2)]
    [group] = requests.take_proposals()
    requests.appended(group, OpId(1, 7))
    requests.applied(OpId(2, 7), None, lambda: NotLeader(ServerUuid("n2"), 2, ""))
    for proposal in waiting:
        with pytest.raises(NotLeader):
            await requests.decided(proposal)
    requests.close()


async def test_one_whose_time_is_over_leaves_the_others_waiting() -> None:
    """They share the entry and nothing else; once nobody waits, nothing is kept of it."""
    requests = queue()
    short, long = requests.queue_proposal(one(1), 0.01), requests.queue_proposal(one(2), 0.2)
    [group] = requests.take_proposals()
    requests.appended(group, OpId(1, 7))
    with pytest.raises(OutcomeUnknown):
        await requests.decided(short)
    assert requests.awaits(7)
    assert not long.future.done()
    with pytest.raises(OutcomeUnknown):
        await requests.decided(long)
    assert not requests.awaits(7)
    requests.close()


def test_what_is_small() -> None:
    """One row, not large, that is written whatever is there."""
    write = Write(TABLET, 1, WriteOp.UPSERT, request(1), ((1,),))
    assert is_small(write, 10)
    assert not is_small(write, 0)
    assert not is_small(write, 1 << 20)
    conditional = Write(TABLET, 1, WriteOp.UPSERT, request(1), ((1,),), (), (3,))
    assert not is_small(conditional, 10)
    for op in (WriteOp.INSERT, WriteOp.UPDATE):
        assert not is_small(Write(TABLET, 1, op, request(1), ((1,),)), 10)


@pytest.mark.parametrize(
    ("count", "rows", "op"),
    [
        (0, 0, WriteOp.UPSERT),
        (2, 1, WriteOp.UPSERT),
        (WRITES_MAX + 1, WRITES_MAX + 1, WriteOp.UPSERT),
        (1, 1, WriteOp.INSERT),
    ],
)
def test_a_message_that_makes_no_sense_is_refused(count: int, rows: int, op: WriteOp) -> None:
    """Too many, none, requests without rows, or an operation that depends on what is there."""
    requests = tuple(request(n + 1) for n in range(count))
    many = WriteMany(TABLET, 1, op, (), requests, tuple((n,) for n in range(rows)))
    with pytest.raises(InvalidArgument):
        check_many(many)
