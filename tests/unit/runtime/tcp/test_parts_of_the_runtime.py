"""The smaller parts: room and its line, deadlines, arrival of late requests, processes, objects."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from stelae.core.deadlines import Deadlines
from stelae.core.errors import DeadlineExpired, Overloaded, Unavailable, decode_error
from stelae.core.ids import ServerUuid
from stelae.core.rpc import Blob, Call, Method, Reply
from stelae.runtime.processes import process_gone, this_process
from stelae.runtime.real import CountingMetrics, LocalObjects
from stelae.runtime.tcp.backpressure import Room
from stelae.runtime.tcp.connection import Connection
from stelae.runtime.tcp.frames import NO_DESTINATION, Kind, encode_request
from stelae.runtime.tcp.handshake import Credentials, ServerHandshake
from stelae.runtime.tcp.limits import Limits
from stelae.runtime.tcp.server import Inbound, Service

# ---- room -----------------------------------------------------------------------------------


async def test_senders_get_room_in_the_order_in_which_they_came() -> None:
    """A small one does not slip past a large one that waits: no one starves."""
    room = Room("peer", 100, 10)
    room.queued_bytes = 90
    order: list[str] = []

    async def sender(name: str, size: int) -> None:
        await room.wait(size, 10.0)
        order.append(name)
        room.queued_bytes += size

    tasks = [asyncio.ensure_future(sender(*each)) for each in (("a", 50), ("b", 1), ("c", 100))]
    await asyncio.sleep(0)
    assert not room.has(1)
    room.let_in()
    assert order == []
    room.queued_bytes = 50
    room.let_in()
    await asyncio.gather(tasks[0])
    assert order == ["a"]
    room.queued_bytes = 40
    room.let_in()
    await asyncio.gather(tasks[1])
    assert order == ["a", "b"]
    room.queued_bytes = 0
    room.let_in()
    await asyncio.gather(tasks[2])
    assert order == ["a", "b", "c"]


async def test_room_given_counts_before_it_is_used() -> None:
    """Two cannot be let into the place of one."""
    room = Room("peer", 100, 10)
    room.queued_bytes = 100
    waiting = [asyncio.ensure_future(room.wait(80, 10.0)) for _ in range(2)]
    await asyncio.sleep(0)
    room.queued_bytes = 0
    room.let_in()
    assert not room.has(80)
    await waiting[0]
    room.queued_bytes = 80
    assert not waiting[1].done()
    room.queued_bytes = 0
    room.let_in()
    await waiting[1]
    assert room.has(100)


async def test_waiting_for_room_ends_at_the_deadline_and_in_a_full_line_at_once() -> None:
    """Overloaded, and the place in the line is free again."""
    room = Room("peer", 10, 1)
    room.queued_bytes = 10
    waiting = asyncio.ensure_future(room.wait(5, 0.01))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="line of calls"):
        await room.wait(5, 10.0)
    with pytest.raises(Overloaded, match="queue of bytes"):
        await waiting
    room.queued_bytes = 0
    assert room.has(10)


async def test_a_message_larger_than_the_bound_goes_alone() -> None:
    """Else it could never be sent."""
    room = Room("peer", 10, 1)
    assert room.has(1000)
    room.queued_bytes = 1
    assert not room.has(1000)


# ---- deadlines ------------------------------------------------------------------------------


class SteppedLoop:
    """A loop's clock and timers, moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Any, asyncio.Event]] = []
        self.woken = 0

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Any) -> Any:
        handle = _Handle()
        self.timers.append((when, callback, handle))  # type: ignore[arg-type]
        return handle

    def advance(self, to: float) -> None:
        while True:
            due = [timer for timer in self.timers if not timer[2].cancelled and timer[0] <= to]  # type: ignore[attr-defined]
            if not due:
                break
            first = min(due, key=lambda timer: timer[0])
            self.timers.remove(first)
            self.woken += 1
            self.now = max(self.now, first[0])
            first[1]()
        self.now = to


class _Handle:
    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


def test_deadlines_fire_once_in_order_never_early_and_within_a_tick() -> None:
    """Removed ones do not fire; one added later may be due earlier."""
    loop = SteppedLoop()
    fired: list[tuple[int, float]] = []
    deadlines = Deadlines(loop, lambda key: fired.append((key, loop.now)))  # type: ignore[arg-type]
    due = {1: 100.5, 2: 100.1, 3: 100.3, 4: 100.1001}
    buckets = {key: deadlines.add(key, at) for key, at in due.items()}
    deadlines.remove(3, buckets[3])
    loop.advance(101.0)
    deadlines.remove(1, buckets[1])
    assert [key for key, _ in fired] == [2, 4, 1]
    for key, at in fired:
        assert due[key] <= at <= due[key] + 0.0041
    assert deadlines.add(5, 100.0) > 0
    loop.advance(101.01)
    assert fired[-1][0] == 5
    assert not [timer for timer in loop.timers if not timer[2].cancelled]  # type: ignore[attr-defined]


def test_calls_that_were_answered_wake_nobody() -> None:
    """However many there were: one that waits still has its deadline, and that is all."""
    loop = SteppedLoop()
    fired: list[int] = []
    deadlines = Deadlines(loop, fired.append)  # type: ignore[arg-type]
    for key in range(1, 501):
        bucket = deadlines.add(key, 100.0 + key / 100)
        if key != 400:
            deadlines.remove(key, bucket)
    loop.advance(103.9)
    assert loop.woken == 1
    assert fired == []
    loop.advance(110.0)
    assert fired == [400]
    assert not [timer for timer in loop.timers if not timer[2].cancelled]  # type: ignore[attr-defined]


# ---- requests -------------------------------------------------------------------------------


class Text(msgspec.Struct, frozen=True, array_like=True):
    text: str


class SentOnly:
    """Stands for a connection: keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[Kind, int, bytes]] = []

    def send(
        self, kind: Kind, call_id: int, buffers: list[Blob], size: int, alone: bool = False
    ) -> None:
        self.sent.append((kind, call_id, b"".join(buffers)))


@pytest.mark.parametrize(("age_s", "runs"), [(0.0, True), (0.4, True), (0.6, False)])
async def test_a_request_that_took_longer_to_arrive_than_its_deadline_is_not_begun(
    age_s: float, runs: bool
) -> None:
    """The caller has given it up: to do it now would only surprise."""
    ran: list[float] = []

    async def handler(call: Call[Text]) -> Reply[Text]:
        ran.append(call.timeout_s)
        return Reply(call.body)

    errors: list[BaseException] = []
    service = Service(
        ServerUuid("a" * 32),
        {Method("m", Text, Text, "of tests, with one server"): handler},
        Limits(),
        errors.append,
    )
    inbound = Inbound(service, ServerHandshake(Credentials("demo", bytes(32)), "a peer"))
    connection = SentOnly()
    inbound.connection = connection  # type: ignore[assignment]
    buffers, _ = encode_request(500, NO_DESTINATION, b"m", msgspec.msgpack.encode(Text("x")))
    message = memoryview(b"".join(buffers))
    inbound.message_received(Kind.REQUEST, 7, message, age_s)
    await asyncio.gather(*service.running.values())
    assert errors == []
    if runs:
        assert ran == [pytest.approx(0.5 - age_s)]
        assert connection.sent[0][:2] == (Kind.REPLY, 7)
    else:
        assert ran == []
        kind, call_id, payload = connection.sent[0]
        assert (kind, call_id) == (Kind.ERROR, 7)
        assert decode_error(payload).args == DeadlineExpired("m", "the network").args


# ---- processes, objects, metrics ------------------------------------------------------------


def test_a_process_is_gone_only_when_that_is_sure() -> None:
    """Alive, elsewhere, or of a pid used again: each is told apart."""
    here = this_process()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    stat = f"/proc/{child.pid}/stat"
    with open(stat) as file:
        started = int(file.read().rpartition(")")[2].split()[19]) / 100
    assert not process_gone(here, here.node, child.pid, started)
    assert not process_gone(here, "another node", child.pid, started)
    assert process_gone(here, here.node, child.pid, started - 1.0)
    child.kill()
    state = ""
    while state != "Z":  # killed, but not yet waited for
        with open(stat) as file:
            state = file.read().rpartition(")")[2].split()[0]
    assert process_gone(here, here.node, child.pid, started)
    child.communicate()
    assert process_gone(here, here.node, child.pid, started)
    assert not process_gone(here, "another node", child.pid, started)
    assert not process_gone(here, here.node, here.pid, here.started)


def test_a_server_process_has_no_huge_pages() -> None:
    """The kernel says so of a process that asked for it."""
    code = (
        "from stelae.runtime.processes import use_small_pages\n"
        "print(use_small_pages(), open('/proc/self/status').read())"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("True")
    assert "THP_enabled:\t0" in said.stdout


async def test_an_object_lives_as_long_as_its_handle() -> None:
    """The same buffer comes back without a copy; what is gone is a KeyError."""
    objects = LocalObjects()
    buffer = pa.py_buffer(b"sealed")
    handle = await objects.put(buffer)
    other = await objects.put(pa.py_buffer(b"other"))
    assert handle.size == 6
    assert await objects.get(handle) is buffer
    del other
    gc.collect()
    assert len(objects._buffers) == 1
    objects.clear()
    with pytest.raises(KeyError):
        await objects.get(handle)


def test_metrics_are_kept_by_name_and_tags() -> None:
    """Tags count whatever their order; observations keep number and sum."""
    metrics = CountingMetrics()
    metrics.count("writes", table="a", kind="b")
    metrics.count("writes", 2.0, kind="b", table="a")
    metrics.gauge("size", 1.0)
    metrics.gauge("size", 5.0)
    metrics.observe("wait", 0.5)
    metrics.observe("wait", 1.5)
    assert metrics.counts == {("writes", (("kind", "b"), ("table", "a"))): 3.0}
    assert metrics.gauges == {("size", ()): 5.0}
    assert metrics.observations == {("wait", ()): (2, 2.0)}


# ---- back-pressure of an answering end ------------------------------------------------------


class SlowTransport(asyncio.Transport):
    """Takes what is written, and notes whether it is being read from."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = True
        self.written = 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += memoryview(data).nbytes

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def abort(self) -> None:
        pass


def is_read(transport: SlowTransport) -> bool:
    return transport.reading


async def test_an_answering_end_stops_reading_while_its_answers_pile_up() -> None:
    """A peer that asks and does not read cannot fill this server's memory."""
    errors: list[BaseException] = []
    service = Service(ServerUuid("a" * 32), {}, Limits(), errors.append)
    inbound = Inbound(service, ServerHandshake(Credentials("demo", bytes(32)), "a peer"))
    handshake = ServerHandshake(Credentials("demo", bytes(32)), "peer")
    limits = Limits(large_bytes=1_000_000)
    connection = Connection(inbound, handshake, limits, answers=True, peer="peer")
    inbound.connection = connection
    transport = SlowTransport()
    connection.connection_made(transport)
    connection.pause_writing()
    answer = bytes(600_000)
    connection.send(Kind.REPLY, 1, [answer], len(answer))
    assert is_read(transport)
    connection.send(Kind.REPLY, 2, [answer], len(answer))
    assert not is_read(transport)
    assert transport.written == 0
    connection.resume_writing()
    for _ in range(10):  # some parts a turn
        await asyncio.sleep(0)
    assert transport.written > 2 * len(answer)
    assert is_read(transport)
    connection.fail(Unavailable("peer", "the test is over"))
    assert errors == []
