"""Requests that end before they are decided give back what they took, and are answered."""

from __future__ import annotations

import asyncio

import pytest

from stelae.actors.raft.requests import FORGOTTEN_READS_MAX, ReplicaRequests
from stelae.core.errors import (
    DeadlineExpired,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    StelaeError,
    TooLarge,
)
from stelae.core.ids import OpId, ServerUuid, TabletId

LIMIT = 100


def requests() -> ReplicaRequests:
    return ReplicaRequests(TabletId("t"), ServerUuid("n1"), LIMIT)


async def ended(queue: ReplicaRequests, *, timeout_s: float = 5.0) -> asyncio.Task[object]:
    """Somebody who waits for a command that takes all the room."""
    proposal = queue.queue_proposal(b"x" * LIMIT, timeout_s)
    task = asyncio.create_task(queue.decided(proposal))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        queue.queue_proposal(b"y", 1.0)
    return task


async def is_free(queue: ReplicaRequests) -> None:
    queue._forget(queue.queue_proposal(b"x" * LIMIT, 1.0))


@pytest.mark.parametrize("end", ["refused", "lost", "cancelled", "expired", "applied", "stopped"])
@pytest.mark.parametrize("is_appended", [False, True])
async def test_room_is_given_back_however_a_command_ends(end: str, is_appended: bool) -> None:
    """And whoever waits is told, but for who has gone."""
    queue = requests()
    task = await ended(queue, timeout_s=0.02 if end == "expired" else 5.0)
    [group] = queue.take_proposals() if is_appended else [tuple(queue._queue.values())]
    if is_appended:
        queue.appended(group, OpId(1, 7))
    if end == "refused":
        queue.refuse(group, NotLeader(ServerUuid("n2"), 2, ""))
    elif end == "lost":
        queue.applied(OpId(2, 7), None, lambda: NotLeader(ServerUuid("n2"), 2, ""))
        queue.refuse(group, NotLeader(ServerUuid("n2"), 2, ""))
    elif end == "applied":
        queue.applied(OpId(1, 7), "done", lambda: NotLeader(ServerUuid("n2"), 2, ""))
        queue.refuse(group, NotLeader(ServerUuid("n2"), 2, ""))
    elif end == "cancelled":
        task.cancel()
    elif end == "stopped":
        queue.close()
    expected: dict[str, type[BaseException]] = {
        "cancelled": asyncio.CancelledError,
        "expired": OutcomeUnknown if is_appended else DeadlineExpired,
        "stopped": OutcomeUnknown if is_appended else NotLeader,
    }
    if end == "applied" and is_appended:
        assert await task == "done"
    else:
        with pytest.raises(expected.get(end, NotLeader)):
            await task
    await is_free(queue)
    assert queue._queue == {}
    assert queue._undecided == {}
    queue.close()


async def test_a_command_that_nobody_waits_for_is_not_kept() -> None:
    """While proposals are held back, callers come and go: their commands do not pile up."""
    queue = requests()
    for _ in range(10):
        task = await ended(queue, timeout_s=0.01)
        with pytest.raises(StelaeError):
            await task
    assert queue._queue == {}
    queue.close()


async def test_a_command_whose_time_is_over_is_not_appended() -> None:
    """Its caller was told that it was never carried out, and may not have gone yet."""
    queue = requests()
    late, wanted = queue.queue_proposal(b"x", 5.0), queue.queue_proposal(b"y", 5.0)
    queue._expire(late.number)
    assert queue.take_proposals() == [(wanted,)]
    with pytest.raises(DeadlineExpired):
        await queue.decided(late)
    queue.close()


async def test_a_command_that_never_fits_is_refused_as_too_large() -> None:
    """`Overloaded` would have it repeated for ever."""
    with pytest.raises(TooLarge):
        requests().queue_proposal(b"x" * (LIMIT + 1), 1.0)


async def test_reads_that_were_given_up_leave_nothing_behind() -> None:
    """A replica that is cut off may be asked for what it will never have, again and again."""
    queue = requests()
    for index in range(50 * FORGOTTEN_READS_MAX):
        queue.forget_read(queue.queue_read(1000 + index))
    kept = queue.queue_read(10)
    assert len(queue._reads_waiting) <= 2 * FORGOTTEN_READS_MAX
    queue.release_reads(10)
    assert await kept.future == 10
