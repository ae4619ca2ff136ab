"""Ticks and mail that all replicas of a server share."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any
from unittest.mock import patch

from stelae.actors.raft import host as raft_host
from stelae.actors.raft.handlers import raft_handlers
from stelae.actors.raft.host import RaftHost
from stelae.consensus.raft.messages import (
    RAFT_MAIL,
    AppendResponse,
    Message,
    RaftMail,
    RaftMessages,
)
from stelae.consensus.raft.ready import Tick
from stelae.core.errors import InvalidArgument
from stelae.core.ids import Address, OpId, ServerUuid, TabletId
from stelae.core.messages.replicas import DataState
from stelae.core.rpc import Call
from stelae.core.tasks import Tasks
from stelae.simulation.world.options import Options
from stelae.simulation.world.world import World

SOURCE, TARGET = ServerUuid("a" * 32), ServerUuid("b" * 32)


def message(group: str, term: int = 1) -> AppendResponse:
    """One that says next to nothing."""
    return AppendResponse(TabletId(group), SOURCE, TARGET, term, True, 0, OpId(0, 0), 1)


class Group:
    """A member that notes what it gets, and a sender that notes what got lost."""

    def __init__(self) -> None:
        self.ticks: list[int] = []
        self.mail: list[Message] = []
        self.lost: list[DataState | None] = []

    def tick(self, tick: Tick) -> None:
        self.ticks.append(tick.now_us)

    def take_mail(self, message: Message, address: Address) -> None:
        if message.term < 0:
            raise InvalidArgument("malformed")
        self.mail.append(message)

    def receive(self, envelope: RaftMessages) -> tuple[Message, ...]:
        raise AssertionError("mail is given one by one")

    async def read_barrier(self, timeout_s: float) -> int:
        raise AssertionError("nobody reads")

    def spread_commit(self) -> None:
        raise AssertionError("nobody reads")

    def undelivered(self, uuid: ServerUuid, state: DataState | None) -> None:
        assert uuid == TARGET
        self.lost.append(state)


class Server:
    """One simulated server with some groups, which counts the calls that come."""

    def __init__(self, runtime: Any, uuid: ServerUuid, groups: dict[TabletId, Group]) -> None:
        self.tasks = Tasks()
        self.runtime = runtime
        self.uuid = uuid
        self.groups = groups
        self.calls: list[int] = []

    async def start(self) -> None:
        take = raft_handlers(self.groups)[RAFT_MAIL]

        async def counted(call: Call[RaftMail]) -> Any:
            self.calls.append(len(call.body.messages))
            return await take(call)

        await self.runtime.peers.listen(self.uuid, {RAFT_MAIL: counted})
        self.host = RaftHost(self.runtime, self.tasks, 0.1)

    async def stop(self) -> None:
        await self.host.stop()
        await self.tasks.close()


def play(story: Any, groups: dict[TabletId, Group]) -> None:
    """Two servers; the second one has ``groups``."""
    world = World(1, Options())
    world.start("s1", lambda runtime: Server(runtime, SOURCE, {}))
    world.start("s2", lambda runtime: Server(runtime, TARGET, groups))

    async def run() -> None:
        await world.wait_until(lambda: all(n.ready for n in world.nodes.values()), 5.0, "servers")
        task = world.spawn("s1", story(world, world.server("s1"), world.server("s2")))
        await world.wait_until(task.done, 60.0, "the story")
        task.result()

    work: Coroutine[Any, Any, None] = run()
    world.run(work)


def test_what_arises_together_for_one_server_goes_in_one_call() -> None:
    """Hundreds of groups' heartbeats cost one call, and each group gets exactly its own."""
    groups = {TabletId(f"g{n}"): Group() for n in range(300)}

    async def story(world: World, one: Server, two: Server) -> None:
        for group_id, group in groups.items():
            one.host.post(TARGET, world.address("s2"), message(group_id), group)
        await asyncio.sleep(0.5)
        assert two.calls == [300]
        for group_id, group in groups.items():
            assert [m.group_id for m in group.mail] == [group_id]
            assert group.lost == []

    play(story, groups)


def test_a_lost_call_is_told_to_each_of_its_groups() -> None:
    """To each group it is a lost message; later mail arrives again."""
    groups = {TabletId(f"g{n}"): Group() for n in range(3)}

    async def story(world: World, one: Server, two: Server) -> None:
        world.partition(["s1"], ["s2"])
        for group_id, group in groups.items():
            one.host.post(TARGET, world.address("s2"), message(group_id), group)
        await asyncio.sleep(2 * raft_host.CALL_TIMEOUT_S)
        assert all(group.lost == [None] and not group.mail for group in groups.values())
        world.heal()
        for group_id, group in groups.items():
            one.host.post(TARGET, world.address("s2"), message(group_id), group)
        await asyncio.sleep(0.5)
        assert all(len(group.mail) == 1 for group in groups.values())

    play(story, groups)


def test_one_group_that_is_not_there_takes_nothing_from_the_others() -> None:
    """Who has no such tablet says so of that group alone; a malformed message is refused alone."""
    groups = {TabletId("here"): Group(), TabletId("bad"): Group()}
    absent = Group()

    async def story(world: World, one: Server, two: Server) -> None:
        address = world.address("s2")
        one.host.post(TARGET, address, message("absent"), absent)
        one.host.post(TARGET, address, message("bad", term=-1), groups[TabletId("bad")])
        one.host.post(TARGET, address, message("here"), groups[TabletId("here")])
        await asyncio.sleep(0.5)
        assert absent.lost == [DataState.ABSENT]
        assert groups[TabletId("bad")].lost == [None]
        assert len(groups[TabletId("here")].mail) == 1
        assert groups[TabletId("here")].lost == []

    play(story, groups)


def test_all_groups_tick_together_until_they_leave() -> None:
    """One task ticks all at the same moment; who has left is ticked no more."""
    groups = {TabletId(f"g{n}"): Group() for n in range(5)}

    async def story(world: World, one: Server, two: Server) -> None:
        for group_id, group in groups.items():
            one.host.join(group_id, group)
        await asyncio.sleep(1.05)
        ticks = [group.ticks for group in groups.values()]
        assert len(ticks[0]) == 10
        assert all(other == ticks[0] for other in ticks)
        one.host.leave(TabletId("g0"), groups[TabletId("g0")])
        await asyncio.sleep(0.5)
        assert len(groups[TabletId("g0")].ticks) == 10
        assert len(groups[TabletId("g1")].ticks) > 10

    play(story, groups)


def test_what_waits_for_a_silent_server_is_bounded() -> None:
    """The oldest messages are lost; the calls under way are few."""
    groups = {TabletId("g"): Group()}

    async def story(world: World, one: Server, two: Server) -> None:
        world.partition(["s1"], ["s2"])
        group = groups[TabletId("g")]
        for term in range(1, 3 * raft_host.BOX_MAX):
            one.host.post(TARGET, world.address("s2"), message("g", term), group)
        box = one.host._boxes[TARGET]
        assert len(box.waiting) == raft_host.BOX_MAX
        await asyncio.sleep(0.1)
        assert box.calls <= raft_host.CALLS_MAX

    play(story, groups)


def test_calls_under_way_to_a_silent_server_are_few() -> None:
    """However often there is more to say to it."""
    groups = {TabletId("g"): Group()}

    async def story(world: World, one: Server, two: Server) -> None:
        world.partition(["s1"], ["s2"])
        for term in range(1, 4 * raft_host.CALLS_MAX):
            one.host.post(TARGET, world.address("s2"), message("g", term), groups[TabletId("g")])
            await asyncio.sleep(0.001)
        assert one.host._boxes[TARGET].calls == raft_host.CALLS_MAX

    play(story, groups)


def test_much_mail_goes_in_several_calls_of_a_bounded_size() -> None:
    """All of it arrives, in the order in which it was given."""
    groups = {TabletId("g"): Group()}
    count = 2 * raft_host.MAIL_MAX + 1

    async def story(world: World, one: Server, two: Server) -> None:
        group = groups[TabletId("g")]
        for term in range(1, count + 1):
            one.host.post(TARGET, world.address("s2"), message("g", term), group)
        await asyncio.sleep(1.0)
        assert two.calls == [raft_host.MAIL_MAX, raft_host.MAIL_MAX, 1]
        assert [each.term for each in group.mail] == list(range(1, count + 1))

    play(story, groups)


def test_who_leaves_while_all_are_ticked_is_ticked_no_more() -> None:
    """The tick of one replica may end another one."""
    groups = {TabletId(f"g{n}"): Group() for n in range(2)}

    async def story(world: World, one: Server, two: Server) -> None:
        first, second = groups.values()

        def ends(tick: Tick) -> None:
            one.host.leave(TabletId("g1"), second)

        with patch.object(first, "tick", ends):
            for group_id, group in groups.items():
                one.host.join(group_id, group)
            await asyncio.sleep(0.35)
        assert second.ticks == []

    play(story, groups)
