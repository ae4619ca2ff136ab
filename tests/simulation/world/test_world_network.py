"""The simulated network: each way in which a call can end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from stelae.core.errors import (
    DeadlineExpired,
    InvalidArgument,
    OutcomeUnknown,
    StelaeError,
    TableNotFound,
    Unavailable,
    WrongServer,
)
from stelae.core.ids import Address, ServerUuid
from stelae.core.rpc import Call, Handlers, Method, Reply
from stelae.core.tasks import Tasks
from stelae.simulation import Options, SimulationFailure, World
from stelae.simulation.world.instance import SimRuntime


class Text(msgspec.Struct, frozen=True, array_like=True):
    text: str


ECHO = Method("echo", Text, Text, "of a story, with fixed servers")
FAIL = Method("fail", Text, Text, "of a story, with fixed servers")
HANG = Method("hang", Text, Text, "of a story, with fixed servers")
NOBODY = Method("nobody", Text, Text, "of a story, with fixed servers")


class Echo:
    """Answers; ``executed`` counts by request text, over all lives."""

    def __init__(self, runtime: SimRuntime, executed: Counter[str]) -> None:
        self.tasks = Tasks()
        self.runtime = runtime
        self.executed = executed
        self.deadlines: list[float] = []

    async def start(self) -> None:
        handlers: Handlers = {ECHO: self.echo, FAIL: self.fail, HANG: self.hang}
        await self.runtime.peers.listen(ServerUuid("uuid-1"), handlers)

    async def stop(self) -> None:
        await self.runtime.peers.close()

    async def echo(self, call: Call[Text]) -> Reply[Text]:
        self.executed[call.body.text] += 1
        self.deadlines.append(call.timeout_s)
        return Reply(call.body, call.blobs)

    async def fail(self, call: Call[Text]) -> Reply[Text]:
        if call.body.text == "bug":
            raise KeyError("a bug")
        raise TableNotFound(call.body.text)

    async def hang(self, call: Call[Text]) -> Reply[Text]:
        self.executed["hang"] += 1
        await asyncio.Event().wait()
        raise AssertionError("never")


Body = Callable[[World, SimRuntime, Counter[str]], Awaitable[Any]]


def with_echo(body: Body, options: Options | None = None, seed: int = 1) -> Any:
    """Run ``body`` with an echo server "s" and a client "c"."""
    world = World(seed, options)

    async def main() -> Any:
        executed: Counter[str] = Counter()
        world.start("s", lambda runtime: Echo(runtime, executed))
        await world.wait_ready()
        return await body(world, world.client("c"), executed)

    return world.run(main())


def echo(client: SimRuntime, text: str, timeout_s: float = 1.0, **more: Any) -> Any:
    return client.peers.call(Address("s:7000"), ECHO, Text(text), timeout_s=timeout_s, **more)


async def outcomes(client: SimRuntime, count: int, timeout_s: float = 1.0) -> Counter[str]:
    """Call ``count`` times and count answers and errors by class."""
    found: Counter[str] = Counter()
    for number in range(count):
        try:
            await echo(client, str(number), timeout_s)
            found["ok"] += 1
        except StelaeError as error:
            found[type(error).__name__] += 1
    return found


def test_a_call_carries_copies_of_body_and_blobs() -> None:
    """Nothing is shared: later changes of the sender's buffer are not seen."""

    async def body(world: World, client: SimRuntime, executed: Counter[str]) -> None:
        buffer = bytearray(b"blob")
        blobs = [buffer, memoryview(b"view"), pa.py_buffer(b"arrow")]
        task = asyncio.ensure_future(echo(client, "hi", blobs=blobs))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        buffer[:] = b"oops"
        reply = await task
        assert reply.body == Text("hi")
        assert [bytes(blob) for blob in reply.blobs] == [b"blob", b"view", b"arrow"]
        with pytest.raises(TypeError):
            reply.blobs[0][0] = 1
        server = world.server("s")
        assert 0.9 < server.deadlines[0] < 1.0

    with_echo(body, Options(shuffle=0.0))


def test_errors_of_handlers_reach_the_caller() -> None:
    """StelaeError classes cross the wire; unknown methods and wrong servers are told."""

    async def body(world: World, client: SimRuntime, executed: Counter[str]) -> None:
        address = world.address("s")
        with pytest.raises(TableNotFound, match="'t'"):
            await client.peers.call(address, FAIL, Text("t"), timeout_s=1.0)
        with pytest.raises(InvalidArgument, match="nobody"):
            await client.peers.call(address, NOBODY, Text(""), timeout_s=1.0)
        with pytest.raises(WrongServer):
            await echo(client, "x", destination=ServerUuid("uuid-2"))
        await echo(client, "y", destination=ServerUuid("uuid-1"))
        with pytest.raises(DeadlineExpired):
            await echo(client, "z", timeout_s=0.0)
        assert executed == Counter("y")

    with_echo(body)


def test_any_other_error_of_a_handler_fails_the_run() -> None:
    """A bug in a handler is never turned into an answer."""

    async def body(world: World, client: SimRuntime, executed: Counter[str]) -> None:
        await client.peers.call(world.address("s"), FAIL, Text("bug"), timeout_s=1.0)

    with pytest.raises(SimulationFailure, match="KeyError: 'a bug'") as caught:
        with_echo(body)
    assert "handler of fail" in str(caught.value)
    assert "< " in caught.value.story


def test_a_lost_request_is_not_executed_and_its_outcome_is_unknown() -> None:
    """The caller cannot tell a lost request from a lost reply."""

    async def body(world: World, client: SimRuntime, executed: Counter[str]) -> None:
        found = await outcomes(client, 100)
        assert found["OutcomeUnknown"] == 100 - sum(executed.values()) > 10

    with_echo(body, Options(drop_request_rate=0.3))


def test_a_lost_reply_comes_after_the_execution() -> None:
    """Requests whose reply is lost were executed."""

    async def body(world: World, client: SimRuntime, executed: Counter[str]) -> None:
        found = await outcomes(client, 100)
        assert found["OutcomeUnknown"] > 10
        assert sum(executed.values()) == 100

    with_echo(body, Options(drop_reply_rate=0.3))


def test_requests_are_duplicated_and_reordered() -> None:
    """Some run twice, and those sent later may run first."""

    async def body(world: World, client: SimRuntime, executed: Counter[str]) -> None:
        await asyncio.gather(*(echo(client, f"{number:03}") for number in range(100)))
        await asyncio.sleep(1.0)
        assert Counter(executed.values())[2] > 10
        assert list(executed) != sorted(executed)

    with_echo(body, Options(duplicate_rate=0.3, slow_message_rate=0.2))


def test_a_refusal_is_told_only_when_no_other_copy_can_be_done() -> None:
    """ "Surely not done" is said of the request, not of one copy of it."""

    async def body(world: World, client: SimRuntime, executed: Counter[str]) -> None:
        refused: dict[str, bool] = {}

        async def refuse_first(self: Echo, call: Call[Text]) -> Reply[Text]:
            if refused.setdefault(call.body.text, True):
                refused[call.body.text] = False
                raise TableNotFound(call.body.text)
            self.executed[call.body.text] += 1
            return Reply(call.body)

        await world.server("s").runtime.peers.listen(
            ServerUuid("uuid-1"), {ECHO: lambda call: refuse_first(world.server("s"), call)}
        )
        told: Counter[str] = Counter()
        for number in range(60):
            try:
                await echo(client, str(number))
            except TableNotFound:
                told[str(number)] += 1
        await asyncio.sleep(2.0)
        assert executed
        assert told
        assert not executed.keys() & told.keys()

    with_echo(body, Options(duplicate_rate=0.3, slow_message_rate=0.2))


def test_a_late_request_is_executed_after_its_caller_gave_up() -> None:
    """Execution may come after OutcomeUnknown."""

    async def body(world: World, client: SimRuntime, executed: Counter[str]) -> None:
        world.network.clog("c", "s", 5.0)
        with pytest.raises(OutcomeUnknown):
            await echo(client, "late")
        assert not executed
        await asyncio.sleep(6.0)
        assert executed == Counter(["late"])

    with_echo(body)


def test_a_server_that_is_down_refuses() -> None:
    """Refused connections are known not to have done anything."""

    async def body(world: World, client: SimRuntime, executed: Counter[str]) -> None:
        world.crash("s", restart=False)
        found = await outcomes(client, 50)
        assert found == Counter(Unavailable=50)

    with_echo(body)


def test_a_crash_breaks_the_calls_in_flight() -> None:
    """The caller learns OutcomeUnknown soon after the crash, or at its deadline."""

    async def body(world: World, client: SimRuntime, executed: Counter[str]) -> None:
        calls = [
            client.peers.call(world.address("s"), HANG, Text(""), timeout_s=30.0) for _ in range(40)
        ]
        tasks = [asyncio.ensure_future(call) for call in calls]
        await asyncio.sleep(1.0)
        world.crash("s", restart=False)
        await asyncio.sleep(1.0)
        done = [task for task in tasks if task.done()]
        assert 25 < len(done) < 40
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(result) for result in results} == {OutcomeUnknown}
        assert executed["hang"] == 40

    with_echo(body)


def test_partitions_cut_one_way_or_both() -> None:
    """Cut towards the server nothing runs; cut towards the client all runs, nothing is answered."""

    async def body(world: World, client: SimRuntime, executed: Counter[str]) -> None:
        world.partition(["c"], ["s"])
        found = await outcomes(client, 30, 0.1)
        assert set(found) == {"OutcomeUnknown", "Unavailable"}
        assert not executed
        world.unpartition(["c"], ["s"])
        world.partition(["s"], ["c"])
        assert await outcomes(client, 30, 0.1) == Counter(OutcomeUnknown=30)
        assert len(executed) == 30
        world.unpartition(["s"], ["c"])
        assert await outcomes(client, 30) == Counter(ok=30)

    with_echo(body)


def test_unavailable_means_that_nothing_was_executed_even_later() -> None:
    """Messages caught by a partition may come when it heals; those called Unavailable never do."""

    async def body(world: World, client: SimRuntime, executed: Counter[str]) -> None:
        certain, unknown = [], []
        world.partition(["c"], ["s"])
        for number in range(60):
            try:
                await echo(client, str(number), 0.05)
            except Unavailable:
                certain.append(str(number))
            except OutcomeUnknown:
                unknown.append(str(number))
        world.heal()
        await asyncio.sleep(5.0)
        assert not [text for text in certain if executed[text]]
        assert [text for text in unknown if executed[text]]
        assert certain

    with_echo(body, Options(late_rate=0.5))


def test_watch_ends_soon_after_a_crash_and_late_in_a_partition() -> None:
    """The end of a connection is a hint: milliseconds for a crash, keepalive for a partition."""

    async def timed(world: World, client: SimRuntime) -> float:
        began_s = world.loop.time()
        await client.peers.watch(world.address("s"))
        return world.loop.time() - began_s

    async def body(world: World, client: SimRuntime, executed: Counter[str]) -> None:
        watching = asyncio.ensure_future(timed(world, client))
        await asyncio.sleep(10.0)
        world.crash("s", restart=False)
        assert 10.0 < await watching < 10.1
        assert await timed(world, client) < 0.1
        world.restart("s")
        await world.wait_ready()
        watching = asyncio.ensure_future(timed(world, client))
        await asyncio.sleep(1.0)
        world.partition(["s"], ["c"])
        assert 5.0 < await watching < 30.0

    with_echo(body)


def test_a_reset_breaks_connections_of_living_servers() -> None:
    """Watches end and calls become unknown although nobody died."""

    async def body(world: World, client: SimRuntime, executed: Counter[str]) -> None:
        address = world.address("s")
        watching = asyncio.ensure_future(client.peers.watch(address))
        call = asyncio.ensure_future(client.peers.call(address, HANG, Text(""), timeout_s=60.0))
        await asyncio.sleep(1.0)
        world.network.reset("c", "s")
        await watching
        with pytest.raises(OutcomeUnknown):
            await call
        assert world.loop.time() < 5.0
        await echo(client, "fine")

    with_echo(body)


def test_closing_ends_pending_calls_as_unknown() -> None:
    """A client that closes its peers gets an end to everything."""

    async def body(world: World, client: SimRuntime, executed: Counter[str]) -> None:
        call = asyncio.ensure_future(
            client.peers.call(world.address("s"), HANG, Text(""), timeout_s=60.0)
        )
        await asyncio.sleep(1.0)
        await client.peers.close()
        with pytest.raises(OutcomeUnknown):
            await call
        with pytest.raises(Unavailable):
            await echo(client, "x")

    with_echo(body)


def test_requests_to_a_hung_process_wait_for_it() -> None:
    """A paused server executes what came meanwhile once it goes on."""

    async def body(world: World, client: SimRuntime, executed: Counter[str]) -> None:
        world.pause("s")
        with pytest.raises(OutcomeUnknown):
            await echo(client, "x")
        assert not executed
        world.resume("s")
        await asyncio.sleep(0.1)
        assert executed == Counter("x")

    with_echo(body)
