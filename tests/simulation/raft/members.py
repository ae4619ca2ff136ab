"""A Raft group whose members change all the time, under faults: added, removed, replaced.

Founders and spares each run one replica; an operator adds spares, removes members (the leader
among them), and replaces servers that lost their disk, which come back under a new UUID. What
clients saw must be linearizable; nobody is promoted who lacks more than one batch; at the end, all
healed, the members hold the same rows, nobody waits for a vote, and every change that was
acknowledged is in force.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import msgspec

from stelae.consensus.raft.leader import Leader
from stelae.consensus.raft.membership import ChangeKind, MemberChange, changed_peers
from stelae.consensus.raft.raft import Raft
from stelae.core.errors import (
    ConfigurationMismatch,
    InvalidArgument,
    NotLeader,
    OutcomeUnknown,
    StelaeError,
    TabletNotReady,
)
from stelae.core.ids import Address, OpId, ServerUuid
from stelae.core.records.replication import Configuration, Peer
from stelae.core.rpc import Call, Empty, Handlers, Method, Reply
from stelae.core.runtime import Runtime
from stelae.simulation import Options, World
from stelae.simulation.checkers import require_rows
from stelae.simulation.history import History
from stelae.simulation.nemesis import Nemesis
from stelae.simulation.scenarios import Scenario
from tests.simulation.world.planting import planting
from tests.simulation.world.registers import (
    GET,
    PUT,
    Get,
    RegisterServer,
    call_leader,
    ready_leader,
    work,
)

WORK_S = 10.0


class Change(msgspec.Struct, frozen=True):
    change: MemberChange
    expected: OpId | None


CHANGE: Method[Change, Configuration] = Method("change", Change, Configuration)
MEMBERS: Method[Empty, Configuration] = Method("members", Empty, Configuration)


class MemberServer(RegisterServer):
    """A server with one replica whose members can be changed."""

    async def start(self) -> None:
        handlers: Handlers = {
            **self.replica.handlers(),
            PUT: self.put,
            GET: self.get,
            CHANGE: self.change,
            MEMBERS: self.members,
        }
        await self.runtime.peers.listen(self.uuid, handlers)
        await self.replica.start()

    async def change(self, call: Call[Change]) -> Reply[Configuration]:
        if self.replica._core is None:
            raise NotLeader(self.uuid, 0, "")
        order = call.body
        return Reply(
            await self.replica.change_configuration(
                order.change, expected=order.expected, timeout_s=call.timeout_s
            )
        )

    async def members(self, call: Call[Empty]) -> Reply[Configuration]:
        """The members, linearizably; TabletNotReady while a change is pending."""
        if self.replica._core is None:
            raise NotLeader(self.uuid, 0, "")
        await self.replica.read_barrier(call.timeout_s)
        core = self.replica.core
        if core.configuration.op_id != self.replica.members.op_id:
            raise TabletNotReady(core.group_id, "changing")
        return Reply(self.replica.members)


class Operator:
    """Changes the members by chance, one after the other."""

    def __init__(self, world: World, names: Sequence[str]) -> None:
        self.done = 0
        self._world = world
        self._names = names
        self._client = world.client("operator")
        self._rng = world.rng("operator")
        self._pause_s = self._rng.choice([0.05, 0.3, 0.3])

    def uuid(self, name: str) -> ServerUuid:
        """Who runs on that node now: a lost disk makes another server of it."""
        return uuid_of(self._world, name)

    async def work(self, until_s: float) -> None:
        """Add, remove, replace."""
        while asyncio.get_running_loop().time() < until_s:
            await self._step()
            await asyncio.sleep(self._rng.expovariate(1 / self._pause_s))

    async def _step(self) -> None:
        members = await self._call(MEMBERS, Empty())
        if members is None:
            return
        lost = [p for p in members.peers if p.uuid not in map(self.uuid, self._names)]
        outside = [n for n in self._names if members.peer(self.uuid(n)) is None]
        if outside and self._rng.random() < 0.15:  # nothing is promised of who is no member
            self._world.crash(self._rng.choice(outside), lose_disk=True)
        elif not lost and self._rng.random() < 0.25:
            await self._besiege(members)
        elif lost:
            await self._replace(members, lost[0], outside)
        elif outside and self._rng.random() < 0.55:
            name = self._rng.choice(outside)
            await self._change(members, ChangeKind.ADD, self.uuid(name), name)
        elif len(members.voters) > 2 and self._rng.random() < 0.3:
            name = self._rng.choice([n for n in self._names if n not in outside])
            self._world.crash(name, lose_disk=True)
        elif len(members.voters) > 2 and self._rng.random() < 0.3:
            await self._change_twice(members)
        elif len(members.peers) > 1:
            choice = self._rng.choice(members.peers)
            if members.voters != (choice.uuid,):
                await self._change(members, ChangeKind.REMOVE, choice.uuid)

    async def _change_twice(self, members: Configuration) -> None:
        """Two removals at once, which are to happen one after the other or not at all."""
        pair = self._rng.sample(members.voters, 2)
        await asyncio.gather(
            *(self._change(members, ChangeKind.REMOVE, uuid, blindly=True) for uuid in pair)
        )

    async def _besiege(self, members: Configuration) -> None:
        """Ask a leader for changes while it is cut off with a few others, or with nobody."""
        leader = ready_leader(self._world, self._names)
        if leader is None:
            return
        rest = [name for name in self._names if name != leader]
        side = [leader, *self._rng.sample(rest, self._rng.choice([0, 0, 1, 2]))]
        others = [name for name in rest if name not in side]
        self._world.partition(side, others)
        self._world.partition(others, side)
        spares = [name for name in side if members.peer(self.uuid(name)) is None]
        for _ in range(self._rng.choice([1, 2, 3])):
            change = MemberChange(ChangeKind.REMOVE, self._rng.choice(members.peers).uuid)
            expected = None
            if spares and self._rng.random() < 0.7:
                name = spares.pop()
                address = self._world.address(name)
                change = MemberChange(ChangeKind.ADD, self.uuid(name), address, name)
                expected = members.op_id  # or it might be done much later, when nobody thinks of it
            order = Change(change, expected)
            with contextlib.suppress(StelaeError):
                await self._client.peers.call(
                    self._world.address(leader), CHANGE, order, timeout_s=0.1
                )
        await asyncio.sleep(self._rng.expovariate(1 / 0.4))
        self._world.unpartition(side, others)
        self._world.unpartition(others, side)

    async def _replace(self, members: Configuration, lost: Peer, outside: list[str]) -> None:
        """First a new server, if there is none on the way; then the lost one goes."""
        if not members.non_voters and outside and self._rng.random() < 0.5:
            name = self._rng.choice(outside)
            await self._change(members, ChangeKind.ADD, self.uuid(name), name)
        else:
            await self._change(members, ChangeKind.REMOVE, lost.uuid)

    async def _change(
        self,
        members: Configuration,
        kind: ChangeKind,
        uuid: ServerUuid,
        name: str = "",
        *,
        blindly: bool = False,
    ) -> None:
        address = self._world.address(name) if name else Address("")
        change = MemberChange(kind, uuid, address, name)
        try:
            after = await self._call(CHANGE, Change(change, None if blindly else members.op_id))
        except (ConfigurationMismatch, InvalidArgument):
            return  # an earlier try, or the leader's own care, was faster
        if after is not None:
            self.done += 1
            assert (after.peer(uuid) is not None) == (kind is ChangeKind.ADD)

    async def _call(self, method: Any, request: Any) -> Any:
        try:
            start = self._rng.randrange(len(self._names))
            return await call_leader(self._world, self._client, method, request, start, self._names)
        except OutcomeUnknown:
            return None


def uuid_of(world: World, name: str) -> ServerUuid:
    lost = world.nodes[name].disks_lost
    return ServerUuid(f"uuid-{name}.{lost}" if lost else f"uuid-{name}")


def watch_promotions(world: World, names: Sequence[str]) -> Any:
    """Every promotion is judged by what the promoted server truly has on its disk."""
    real = Raft.change_members

    def judged(core: Raft, change: MemberChange, expected: OpId | None = None) -> OpId:
        op_id = real(core, change, expected)
        if change.kind is ChangeKind.PROMOTE:
            for name in names:
                server = world.server(name)
                if server is None or server.uuid != change.uuid or not world.nodes[name].ready:
                    continue
                missing = core.log.commit_index - server.replica.core.log.stable_index
                most = core._settings.batch_entries_max
                assert missing <= most, f"{name} is promoted, and lacks {missing} entries"
        return op_id

    return patch.object(Raft, "change_members", judged)


async def run(world: World, bug: str = "") -> None:
    """Clients and an operator work under faults; then all is healed, and must be in order."""
    names = [f"m{number}" for number in range(1, 7)]
    founders = names[: world.rng("founders").choice([1, 3, 3, 4])]

    def make(runtime: Runtime, name: str) -> MemberServer:
        is_founder = name in founders and world.nodes[name].disks_lost == 0
        uuid = uuid_of(world, name)
        return MemberServer(runtime, world, name, "", uuid, founders if is_founder else ())

    with contextlib.ExitStack() as stack:
        stack.enter_context(watch_promotions(world, names))
        stack.enter_context(planted(bug))
        for name in names:
            world.start(name, partial(make, name=name), kind="master")
        world.leader_hint = lambda: ready_leader(world, names)
        await world.wait_ready()
        await work_and_heal(world, names)


async def work_and_heal(world: World, names: Sequence[str]) -> None:
    history = History(world.loop.time)
    await world.wait_until(lambda: ready_leader(world, names) is not None, 60.0, "a first leader")
    operator = Operator(world, names)
    nemesis = Nemesis.begin(world, duration_s=WORK_S)
    clients = [work(world, history, f"c{i}", 25, names) for i in range(3)]
    await asyncio.gather(operator.work(WORK_S), *clients)
    await nemesis.finish()
    await world.wait_until(lambda: ready_leader(world, names) is not None, 60.0, "a leader")
    reader = world.client("reader")
    for key in ("k0", "k1", "k2", "k3"):
        operation = history.begin("reader", "read", key)
        row = None
        for _ in range(20):
            row = row or await call_leader(world, reader, GET, Get(key), 0, names)
        assert row is not None, "no answer after all faults ended"
        version = row.version if row.value is not None else None
        history.ok(operation, version=version, value=row.value)
    require_rows(history)
    await world.wait_until(lambda: in_order(world, names), 60.0, "members in order")
    world.note("world", f"{operator.done} changes of members")


def in_order(world: World, names: Sequence[str]) -> bool:
    """All members that still exist hold the same rows and know the same members."""
    leader = ready_leader(world, names)
    if leader is None:
        return False
    members = world.server(leader).replica.members
    servers = [world.server(name) for name in names]
    held = [s for s in servers if s is not None and members.peer(s.uuid) is not None]
    rows = world.server(leader).registers.rows
    same = all(s.registers.rows == rows and s.replica.members == members for s in held)
    return same and not members.non_voters and len(held) * 2 > len(members.voters)


# ---- planted bugs -------------------------------------------------------------------------------


def _change_while_changing(leader: Leader, change: MemberChange, expected: Any) -> Any:
    if not leader.settled or leader.transfer_target is not None:
        raise TabletNotReady(leader.group_id, "not settled")
    return changed_peers(leader.configuration, change)


def _change_before_own_entry(leader: Leader, change: MemberChange, expected: Any) -> Any:
    committed = leader._log.committed_configuration
    if leader.transfer_target is not None or committed.op_id != leader.configuration.op_id:
        raise TabletNotReady(leader.group_id, "changing")
    return changed_peers(leader.configuration, change)


def _count(uuids: Callable[[Leader], list[ServerUuid]]) -> Callable[[Leader], bool]:
    def advance_commit(leader: Leader) -> bool:
        reached = {uuid: progress.match_index for uuid, progress in leader.progress.items()}
        reached[leader.uuid] = leader._log.stable_index
        positions = sorted((reached[uuid] for uuid in uuids(leader)), reverse=True)
        index = positions[len(leader.configuration.voters) // 2]
        return leader.may_commit(index) and leader._log.commit_to(index)

    return advance_commit


def _everyone(leader: Leader) -> list[ServerUuid]:
    return [peer.uuid for peer in leader.configuration.peers]


def _voters_and_itself(leader: Leader) -> list[ServerUuid]:
    voters = leader.configuration.voters
    return [*voters, *([] if leader.uuid in voters else [leader.uuid])]


BUGS: dict[str, Callable[[], Any]] = {
    "two changes at once": lambda: patch.object(Leader, "may_change", _change_while_changing),
    "change before an own entry": lambda: patch.object(
        Leader, "may_change", _change_before_own_entry
    ),
    "non-voters count": lambda: patch.object(Leader, "advance_commit", _count(_everyone)),
    "a removed leader counts itself": lambda: patch.object(
        Leader, "advance_commit", _count(_voters_and_itself)
    ),
    "promoted before it has caught up": lambda: patch.object(
        Leader, "has_caught_up", lambda self, uuid: True
    ),
}


planted = planting(BUGS)


def draw(seed: int) -> Options:
    """Swarm options; lost disks are the operator's, who knows what the promise covers."""
    return replace(Options.draw(seed), lost_disk_every_s=0.0)


def draw_fierce(seed: int) -> Options:
    """Partitions all the time, between them time enough for a change: for bugs hard to meet."""
    return draw(seed).but(
        partition_every_s=0.7,
        fault_duration_mean_s=0.6,
        crash_every_s=0.0,
        pause_every_s=0.0,
        full_disk_every_s=0.0,
        sync_mean_s=0.0002,
        latency_mean_s=0.001,
        drop_request_rate=0.0,
        drop_reply_rate=0.0,
    )


SCENARIO = Scenario("members", run, draw, limit_s=300.0)
FIERCE = Scenario("tests/simulation/raft/members.py:FIERCE", run, draw_fierce, limit_s=300.0)
