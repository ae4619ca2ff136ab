"""The ``applied`` scenario: operators apply one spec after the other, under every fault.

Each operator does what `stelae.applying.run` does on Ray: it takes the turn, writes down what it
asks for, and then looks, plans, and takes the first step, until there is none. Looking and planning
are the product's own functions. Only what a step does to processes is the world's. An operator may
die at any await; the next one goes on with what was asked for last, or asks for something else.
A server that was taken out keeps its disk, and the nemesis may start it again. Now and then an
operator replaces a server of the spec by a new, empty one of its name, as
`stelae.applying.replace_one` does: drained or not, alive or dead.

Judged, beside what the ``tables`` scenario demands:

1. A step that cannot be taken back is taken by one operator at a time, whose spec is the one that
   was asked for last.
2. Nothing is on a server that is ended for good, or that was drained to be replaced, by the newest
   of the masters' catalogs and by the owners of segments.
3. In the end the cluster is as it was asked for, and no server of it is marked.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from stelae.actors.ray_host.host import ServerPlan
from stelae.applying.replacing import half_replaced
from stelae.applying.run import is_first, servers_that_are
from stelae.applying.steps import traits_of, what_is_unwell
from stelae.client.admin.turns import OperatorTurn
from stelae.client.database import AsyncDatabase
from stelae.coordinator.apply.plan import Act, Present, Step, TableIs, Wanted, plan_steps
from stelae.coordinator.apply.replaces import (
    Kept,
    ReplaceAct,
    ReplaceLook,
    ReplaceStep,
    former_of,
    next_of_replacement,
    quiet_s,
    refusals_of_replacement,
)
from stelae.core.errors import AlreadyRunning, InvalidArgument, OutcomeUnknown, RetryLater
from stelae.core.ids import ServerUuid
from stelae.core.records.records import ServerKind
from stelae.core.schema.durability import media_of
from stelae.simulation.cluster import CLUSTER, SimCluster
from stelae.simulation.history import History
from stelae.simulation.scenarios import Scenario
from stelae.simulation.world.world import World
from tests.simulation.applied.planted_applying import planted
from tests.simulation.tables import tables
from tests.simulation.tables.log_watch import newest_tablets

OPERATORS = 2
TSERVERS = (1, 4)
BACKUPS = (3, 6)
MEMORY_BYTES = (64 << 20, 96 << 20)
STEPS_MAX = 60
CALL_S = 5.0
DRAIN_S = 40.0
SETTLE_S = 60.0
SURE_S = 30.0
ACT_S = 2.0
POLL_S = 0.2
REPLACE_S = 60.0
REPLACED_RATE = 0.25
"""Share of an operator's works that replace a server."""
LIVES_S = (0.5, 5.0, 60.0)
"""Mean times after which an operator dies."""
LAST_S = 300.0
"""Longest time that the last apply may take, once all faults have ended."""
TRANSIENT = (RetryLater, OutcomeUnknown, AlreadyRunning, InvalidArgument)
"""What ends an apply, which is then given again."""


@dataclass(frozen=True, slots=True)
class Spec:
    """How many servers there are to be, and with how much memory tablet servers run."""

    tservers: int
    backups: int
    memory_bytes: int


@dataclass(slots=True)
class Asked:
    """What was asked for last: ``spec.json``."""

    spec: Spec
    generation: int = 0

    def ask(self, spec: Spec) -> int:
        self.spec = spec
        self.generation += 1
        return self.generation


class Operator:
    """One process that applies specs."""

    def __init__(
        self, name: str, cluster: SimCluster, asked: Asked, plans: dict[str, ServerPlan]
    ) -> None:
        self.name = name
        self._cluster = cluster
        self._world = cluster.world
        self._database = cluster.database(name)
        self._asked = asked
        self._plans = plans
        """Processes that Ray would have by now, with what they were made with."""
        self._rng = cluster.world.rng(name)
        self.applied = self.removed = self.replaced = 0

    async def run(self, until_s: float) -> None:
        """Apply something again and again, and die now and then."""
        life_s = self._rng.choice(LIVES_S)
        while self._world.loop.time() < until_s:
            await asyncio.sleep(self._rng.uniform(0.2, 4.0))
            spec = self._asked.spec if self._rng.random() < 0.4 else self._draw()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._rng.expovariate(1.0 / life_s)):
                    if self._rng.random() < REPLACED_RATE:
                        await self.replace()
                    else:
                        await self.apply(spec)

    async def status(self) -> Mapping[str, Any]:
        """Asked for until it is answered: a lost message ends no apply."""
        while True:
            with contextlib.suppress(RetryLater, OutcomeUnknown):
                return await self._database.status(timeout=CALL_S)

    def _draw(self) -> Spec:
        rng = self._rng
        return Spec(rng.randint(*TSERVERS), rng.randint(*BACKUPS), rng.choice(MEMORY_BYTES))

    async def apply(self, spec: Spec) -> bool:
        """Whether the cluster is as it was asked for; what keeps it from that is noted."""
        is_done = await self._in_turn("apply", lambda turn: self._carry_out(spec, turn))
        self.applied += is_done
        return is_done

    async def replace(self) -> bool:
        """Whether one server of the spec was replaced."""
        name = self._rng.choice([*self._cluster.tservers, *self._cluster.backups])
        drains = self._rng.random() < 0.6

        async def work(turn: OperatorTurn) -> bool:
            return await self._replace(name, drains, turn)

        is_done = await self._in_turn(f"replace {name}", work)
        self.replaced += is_done
        return is_done

    async def _in_turn(self, what: str, work: Callable[[OperatorTurn], Awaitable[bool]]) -> bool:
        turn = self._database.turn(self.name, what)
        try:
            await turn.begin(CALL_S)
            is_done = await work(turn)
            await turn.end()
        except TRANSIENT as error:
            self._world.note(self.name, f"does not go on: {error}")
            await turn.end()
            return False
        except asyncio.CancelledError:
            await turn._tasks.close()  # its process is gone, and nobody says that the turn ends
            raise
        return is_done

    async def _carry_out(self, spec: Spec, turn: OperatorTurn) -> bool:
        mine = self._asked.ask(spec)
        self._world.note(self.name, f"asks for {spec}, generation {mine}")
        for _ in range(STEPS_MAX):
            steps = await self._look(spec)
            if not steps:
                return True
            await self._sure(turn, mine)
            await self._take(steps[0], spec, turn, mine)
        return False

    async def _look(self, spec: Spec) -> list[Step]:
        status = await self.status()
        members = set(self._cluster.masters)
        there = servers_that_are(self._plans, members, status)
        return plan_steps(wanted_of(self._cluster, spec), Present(there))

    async def _sure(self, turn: OperatorTurn, mine: int) -> None:
        await turn.sure(SURE_S)
        if self._asked.generation != mine:
            raise AlreadyRunning("something else was asked for meanwhile")

    async def _take(self, step: Step, spec: Spec, turn: OperatorTurn, mine: int) -> None:
        """As `stelae.applying.steps.Steps.take`."""
        if step.act in (Act.RESTART, Act.DRAIN, Act.REMOVE):
            await self._wait(turn, mine, lambda status: not what_is_unwell(status))
            if not is_first(step, await self._look(spec)):
                return
            await self._sure(turn, mine)
        self._world.note(self.name, str(step))
        match step.act:
            case Act.KEEP:
                await self._database.retire_server(step.name, cancel=True, timeout=CALL_S)
            case Act.ADD:
                half = half_replaced(await self.status())
                await self._alone(mine, lambda: self._add(step, spec, half))
                await self._wait_live(step.name, turn, mine)
            case Act.RESTART:
                await self._alone(mine, lambda: self._restart(step, spec))
                await self._wait_live(step.name, turn, mine)
            case Act.DRAIN:
                await self._database.retire_server(step.name, timeout=DRAIN_S)
            case Act.REMOVE:
                await self._alone(mine, lambda: self._remove(step))
            case Act.CHANGE:
                raise AssertionError(f"there is no front here: {step}")

    async def _alone(self, mine: int, act: Callable[[], None]) -> None:
        """Rule 1. Ray takes a while to start or end a process, and is not told whose turn it is."""
        await asyncio.sleep(self._rng.uniform(0.0, ACT_S))
        newest = self._asked.generation
        assert mine == newest, f"{self.name} carries out generation {mine}, and {newest} was asked"
        act()

    async def _wait_live(self, name: str, turn: OperatorTurn, mine: int) -> None:
        def lives(status: Mapping[str, Any]) -> bool:
            return any(s["id"] == name and s["state"] == "live" for s in status["servers"])

        await self._wait(turn, mine, lives)

    async def _wait(
        self, turn: OperatorTurn, mine: int, is_so: Callable[[Mapping[str, Any]], bool]
    ) -> None:
        """Raises RetryLater."""
        end_s = self._world.loop.time() + SETTLE_S
        while True:
            with contextlib.suppress(RetryLater, OutcomeUnknown):
                if is_so(await self._database.status(timeout=CALL_S)):
                    return
            if self._world.loop.time() > end_s:
                raise RetryLater("it does not settle")
            await self._sure(turn, mine)
            await asyncio.sleep(POLL_S)

    # ---- a server that is replaced ------------------------------------------------------------

    async def _replace(self, name: str, drains: bool, turn: OperatorTurn) -> bool:
        """As `stelae.applying.replace_one`, which does not hold its turn for the drain."""
        mine, has_drained, has_started = self._asked.generation, False, False
        end_s = self._world.loop.time() + REPLACE_S
        while (status := await self.status()).get("heard_all") is not True:
            if self._world.loop.time() > end_s:
                return False
            await self._sure(turn, mine)
            await asyncio.sleep(POLL_S)
        former = former_of(status, name, name)
        self._world.note(self.name, f"replaces {name}, {former}, drains: {drains}")
        while self._world.loop.time() < end_s:
            look = await self._seen(name, former, drains, has_drained)
            look = replace(look, has_started=has_started)
            if why := refusals_of_replacement(look):
                raise InvalidArgument("; ".join(why))
            step = next_of_replacement(look)
            await self._sure(turn, mine)
            if step.act in (ReplaceAct.DONE, ReplaceAct.TAKEN_BACK):
                for uuid in former if step.act is ReplaceAct.DONE else ():
                    await self._note_replaced(uuid, goes_on=False)
                return step.act is ReplaceAct.DONE
            await self._take_replacing(step, look, mine)
            has_drained = has_drained or step.act is ReplaceAct.DRAIN
            has_started = has_started or step.act is ReplaceAct.START
        return False

    async def _seen(
        self, name: str, former: tuple[str, ...], drains: bool, has_drained: bool
    ) -> ReplaceLook:
        status, records = await self.status(), await self._database.tables(own=True)
        used = [d for r in records for d in (r.durability, r.becoming) if d is not None]
        settings = self._cluster.settings
        return ReplaceLook(
            name=name,
            former=former,
            status=status,
            tables=[TableIs(r.name, r.durability, r.becoming) for r in records],
            kept=Kept(max((len(media_of(each)) for each in used), default=0)),
            has_actor=name in self._plans,
            quiet_s=quiet_s(settings.dead_after_s, settings.heartbeat_s),
            drains=drains,
            has_drained=has_drained,
            unwell=what_is_unwell(status),
        )

    async def _take_replacing(self, step: ReplaceStep, look: ReplaceLook, mine: int) -> None:
        if step.act is not ReplaceAct.WAIT:
            self._world.note(self.name, f"{step.act} {look.name} {step.uuids}")
        match step.act:
            case ReplaceAct.DRAIN:
                await self._database.retire_server(step.uuids[0], wait=False, timeout=CALL_S)
            case ReplaceAct.END:
                if look.drains and look.former:
                    await self._alone(mine, lambda: self._require_nothing_there(look.name))
                self._end_process(look.name)
            case ReplaceAct.FENCE:
                for uuid in step.uuids:
                    await self._note_replaced(uuid, goes_on=True)
                if look.has_actor:
                    self._end_process(look.name)
            case ReplaceAct.START:
                await self._alone(mine, lambda: self._start_empty(look.name))
            case _:
                await asyncio.sleep(POLL_S)

    async def _note_replaced(self, uuid: str, *, goes_on: bool) -> None:
        await self._database.replace_server(ServerUuid(uuid), goes_on=goes_on, timeout=CALL_S)

    # ---- what a step does to processes ----------------------------------------------------------

    def _add(self, step: Step, spec: Spec, half: Collection[str]) -> None:
        """One that was there before comes back on its disk, unless that was fenced."""
        names = self._names(step.kind)
        if step.name in self._world.nodes:
            if step.name not in names:
                names.append(step.name)
            self._world.nodes[step.name].auto_restart = True
            if step.name in half:
                self._start_empty(step.name)
            else:
                self._world.restart(step.name)
        else:
            added = (
                self._cluster.add_tserver()
                if step.kind == ServerKind.TSERVER
                else self._cluster.add_backup()
            )
            assert added == step.name, f"{added} was made for {step.name}"
        self._plans[step.name] = plan_of(self._cluster, step.name, spec.memory_bytes)

    def _restart(self, step: Step, spec: Spec) -> None:
        self._plans[step.name] = plan_of(self._cluster, step.name, spec.memory_bytes)
        self._world.restart(step.name)

    def _remove(self, step: Step) -> None:
        self._require_nothing_there(step.name)
        self._names(step.kind).remove(step.name)
        del self._plans[step.name]
        self._world.nodes[step.name].auto_restart = False
        self._world.crash(step.name, restart=False)
        self.removed += 1

    def _end_process(self, name: str) -> None:
        """Its actor is gone, and the spec has it still."""
        del self._plans[name]
        self._world.nodes[name].auto_restart = False
        self._world.crash(name, restart=False)

    def _start_empty(self, name: str) -> None:
        """On the same machine, with another disk. What the former one had is given up."""
        node = self._world.nodes[name]
        node.auto_restart = True
        self._world.replace(name, node.machine, keeps_former=False)
        self._plans[name] = plan_of(self._cluster, name, self._asked.spec.memory_bytes)

    def _names(self, kind: str) -> list[str]:
        cluster = self._cluster
        return cluster.tservers if kind == ServerKind.TSERVER else cluster.backups

    def _require_nothing_there(self, name: str) -> None:
        """Rule 2. One that does not run says nothing; what is on its disk was made anew."""
        server = self._world.server(name)
        if server is None or not hasattr(server, "info"):
            return
        uuid, known = server.info.uuid, newest_tablets(self._cluster)
        owned = [t.tablet_id for t in known.values() if t.owner == uuid and not t.state.is_gone]
        assert not owned, f"{name} is ended, and owns {owned}"
        for other in self._cluster.tservers:
            owner = self._world.server(other)
            if owner is None or not hasattr(owner, "info"):
                continue
            for tablet_id, segments in owner.holders().items():
                record = known.get(tablet_id)
                if record is not None and record.owner == owner.info.uuid:
                    there = [uuids for uuids in segments if uuid in uuids]
                    assert not there, f"{name} is ended, and tablet {tablet_id} is on it"


class Operators:
    """Beside the clients of the ``tables`` scenario."""

    def __init__(self, cluster: SimCluster, database: AsyncDatabase) -> None:
        del database
        self._cluster = cluster
        self._world = cluster.world
        first = Spec(len(cluster.tservers), len(cluster.backups), MEMORY_BYTES[0])
        self._asked, self._plans = Asked(first), dict[str, ServerPlan]()
        for name in [*cluster.masters, *cluster.tservers, *cluster.backups]:
            self._plans[name] = plan_of(cluster, name, first.memory_bytes)
        self._operators = [
            Operator(f"operator-{n}", cluster, self._asked, self._plans) for n in range(OPERATORS)
        ]
        may_lose = self._world.may_lose_disk
        # A server that was taken out and loses its disk would be another one, without a mark.
        self._world.may_lose_disk = lambda name: name in self._plans and may_lose(name)

    async def run(self, until_s: float) -> None:
        async with asyncio.TaskGroup() as group:
            for operator in self._operators:
                group.create_task(operator.run(until_s))

    async def judge(self, history: History) -> None:
        """Rule 3."""
        operator, end_s = self._operators[0], self._world.loop.time() + LAST_S
        while not await operator.apply(self._asked.spec):
            assert self._world.loop.time() < end_s, f"{self._asked.spec} does not come true"
            await asyncio.sleep(POLL_S)
        wanted = wanted_of(self._cluster, self._asked.spec).servers
        there = {*self._cluster.tservers, *self._cluster.backups}
        assert there == set(wanted), f"there are {sorted(there)}, and {sorted(wanted)} were wanted"
        status = await operator.status()
        for server in status["servers"]:
            if server["id"] in wanted and server["state"] == "live":
                assert not server["retiring"], f"{server['id']} is wanted, and marked"
        applied = sum(each.applied for each in self._operators)
        removed = sum(each.removed for each in self._operators)
        replaced = sum(each.replaced for each in self._operators)
        told = f"{removed} servers were removed, {replaced} replaced"
        self._world.note("world", f"{applied} specs came true, {told}")


def wanted_of(cluster: SimCluster, spec: Spec) -> Wanted:
    """What a spec asks for."""
    names = [f"tserver-{n}" for n in range(1, spec.tservers + 1)]
    names += [f"backup-{n}" for n in range(1, spec.backups + 1)]
    plans = [plan_of(cluster, name, spec.memory_bytes) for name in names]
    master = plan_of(cluster, cluster.masters[0], spec.memory_bytes)
    servers = {plan.name: (plan.kind, traits_of(plan)) for plan in plans}
    return Wanted(servers, len(cluster.masters), traits_of(master))


def plan_of(cluster: SimCluster, name: str, memory_bytes: int) -> ServerPlan:
    """What an actor of that name would be made with."""
    kind = ServerKind(name.rpartition("-")[0])
    plan = ServerPlan(
        kind, name, CLUSTER, bytes(32), name, "", 0, cluster.addresses, cluster.settings
    )
    return replace(plan, memory_limit_bytes=memory_bytes) if kind is ServerKind.TSERVER else plan


async def run(world: World, bug: str = "") -> None:
    """One seed; ``bug`` is one of `tests.simulation.applied.planted_applying`."""
    rng = world.rng("applied")
    cluster = SimCluster(
        world,
        rereplication_bytes_per_s=rng.choice([0, 40_000]),
        replica_dead_after_s=rng.choice([2.5, 6.0]),
        **tables.cleaning_of(world),
    )
    with planted(bug):
        await tables.run_tables(
            world, (), longest_gap_s=4.0, make_beside=Operators, cluster=cluster
        )


SCENARIO = Scenario("applied", run, tables.spare_options, limit_s=2400.0)
