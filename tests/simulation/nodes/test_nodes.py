"""Nodes as units of failure: how servers are spread, what happens to a node, and planted bugs."""

from __future__ import annotations

import asyncio
import io
import itertools
import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace

import msgspec
import pytest

from stelae.core.errors import OutcomeUnknown, StelaeError, Unavailable
from stelae.core.ids import ServerUuid
from stelae.core.places import Place
from stelae.core.rpc import Call, Handlers, Method, Reply
from stelae.core.runtime import Runtime
from stelae.core.tasks import Tasks
from stelae.deploy.machines import assigned
from stelae.simulation import Options, World
from stelae.simulation.nemesis import FLAPS, Action, Nemesis, draw_node_faults, rack_faults_of
from stelae.simulation.runner import derive_seeds, find_bug, kept_seeds, run_seed, run_seeds
from stelae.simulation.scenarios import NODES, ON_NODES, SCENARIOS, load_scenario
from stelae.simulation.spread import require_apart
from tests.simulation.nodes.planted_nodes import BUGS, FOUND_BY, with_bugs

CALL_S = 0.5
DURATION_S = 400.0
FILES = 20
DRAWN = Options(nodes=3, node_gap_mean_s=2.0, node_duration_mean_s=3.0)
SERVERS = {
    f"node-{n}": {"master": [f"m{n}"], "backup": [f"b{n}"], "tserver": [f"t{n}"]} for n in (1, 2, 3)
}
NAMES = {"tserver": 7, "backup": 5, "safekeeper": 3}
GATE = ("nodes_durabilities", "nodes_masters", "nodes_replicas", "nodes_tables", "nodes_wal")
"""Scenarios of which the gate runs a seed besides the kept ones."""
BUG_SEEDS = 60
REPLACED = {"nodes_durabilities": 594898427888, "nodes_wal": 304429648785}
"""Seeds in which servers are replaced, and their former ones come back."""


class Empty(msgspec.Struct, frozen=True, array_like=True):
    pass


HELLO = Method("hello", Empty, Empty, "of a story, with fixed servers")


class Writer:
    """Answers, and writes files that it does not sync."""

    def __init__(self, runtime: Runtime) -> None:
        self.tasks = Tasks()
        self.runtime = runtime

    async def start(self) -> None:
        handlers: Handlers = {HELLO: self._greet}
        await self.runtime.peers.listen(ServerUuid("writer"), handlers)
        for number in range(FILES):
            file = await self.runtime.disk.open(f"f{number}")
            file.write_at(0, b"unsynced")

    async def stop(self) -> None:
        await self.runtime.peers.close()

    async def _greet(self, call: Call[Empty]) -> Reply[Empty]:
        return Reply(call.body)


def tell(story: Callable[[World], Awaitable[None]], nodes: int = 3) -> World:
    """Run a story of two writers on each node; process deaths alone lose nothing."""
    world = World(1, Options(nodes=nodes, unnoticed_end_rate=0.0, keep_unsynced_rate=1.0))

    async def main() -> None:
        for number in range(2 * nodes):
            world.start(f"t{number}", Writer, kind="tserver", fixed_port=False)
        world.client("client")
        await world.wait_ready()
        await story(world)

    world.run(main())
    return world


def unsynced(world: World, name: str) -> int:
    """The number of files whose content is there."""
    found = [world.nodes[name].disk.find(f"f{number}") for number in range(FILES)]
    return sum(content is not None and bytes(content.live) == b"unsynced" for content in found)


def drawn(
    options: Options = DRAWN, seed: int = 1, losable: tuple[str, ...] = ("backup", "tserver")
) -> list[Action]:
    rng = random.Random(seed)
    return draw_node_faults(options, rng, SERVERS, ["client"], DURATION_S, losable)


# ---- where servers are ----------------------------------------------------------------------


@pytest.mark.parametrize("racks", [(), ("r", "r", "r", "", "s")])
def test_servers_are_spread_as_a_cluster_on_ray_spreads_them(racks: tuple[str, ...]) -> None:
    """The simulator repeats the rule of `stelae.deploy.machines.assigned`, with and without
    racks."""
    nodes = len(racks) or 4
    names = [f"{kind}-{n}" for kind, count in NAMES.items() for n in range(1, count + 1)]
    world = World(1, Options(nodes=nodes, racks=racks))
    machines = [f"node-{n}" for n in range(1, nodes + 1)]
    by_machine = {machine: rack for machine, rack in zip(machines, racks, strict=False) if rack}

    async def main() -> None:
        for name in names:
            world.start(name, Writer, kind=name.rpartition("-")[0], fixed_port=False)
        assert {name: world.nodes[name].machine for name in names} == assigned(
            names, {}, machines, by_machine
        )
        for name in names:
            runtime = world.nodes[name].runtime
            assert runtime is not None
            assert runtime.identity.node == world.nodes[name].machine
            assert runtime.rack == by_machine.get(runtime.identity.node, "")

    world.run(main())


def test_scenarios_on_nodes_have_servers_for_each_and_leave_the_others_as_they_are() -> None:
    """Plain runs do not depend on them: same options but for nodes and the servers on them."""
    assert {name for name in SCENARIOS if name.startswith(NODES)} == {NODES + n for n in ON_NODES}
    for name in ON_NODES:
        plain, found = load_scenario(name), load_scenario(NODES + name)
        assert (found.name, found.limit_s) == (NODES + name, plain.limit_s)
        for seed in derive_seeds(name, 5):
            before, after = plain.options(seed), found.options(seed)
            assert (before.nodes, before.node_gap_mean_s) == (0, 0.0)
            assert (before.racks, before.rack_gap_mean_s) == ((), 0.0)
            assert before.replace_after_s == 0.0
            assert after.nodes in (4, 5)
            assert len(after.racks) in (0, after.nodes)
            for kind in ("tservers", "backups", "safekeepers"):
                count = getattr(after.servers, kind)
                assert count >= after.nodes or count == getattr(before.servers, kind) == 0
            names = (
                *("nodes", "node_gap_mean_s", "node_duration_mean_s", "servers"),
                *("racks", "rack_gap_mean_s", "replace_after_s"),
            )
            assert after.but(**{each: getattr(before, each) for each in names}) == before


# ---- what happens to a node -----------------------------------------------------------------


def test_a_node_loses_its_power_as_a_whole_and_nobody_is_told() -> None:
    """All its servers end at once, calls to them get no answer, and unsynced bytes are lost."""

    async def story(world: World) -> None:
        client = world.nodes["client"].runtime
        assert client is not None
        here = [node.name for node in world.nodes.values() if node.machine == "node-1"]
        assert len(here) == 2
        world.cut_power("node-1")
        assert not any(world.nodes[name].running for name in here)
        assert all(node.running for node in world.nodes.values() if node.name not in here)
        assert all(unsynced(world, name) < FILES for name in here)
        began_s = world.loop.time()
        with pytest.raises((OutcomeUnknown, Unavailable)):
            await client.peers.call(world.address(here[0]), HELLO, Empty(), timeout_s=CALL_S)
        assert world.loop.time() == pytest.approx(began_s + CALL_S), "it was told"
        await asyncio.sleep(30.0)
        world.restart(here[0])
        assert not any(world.nodes[name].running for name in here), "without power"
        world.give_power("node-1")
        await world.wait_ready(*here)
        await client.peers.call(world.address(here[0]), HELLO, Empty(), timeout_s=CALL_S)

    tell(story)


def test_a_process_that_dies_alone_keeps_what_it_wrote() -> None:
    """The counterpart: the machine still has it."""

    async def story(world: World) -> None:
        world.crash("t0")
        assert unsynced(world, "t0") == FILES

    tell(story)


def test_a_healed_world_has_power_everywhere() -> None:
    """Whatever is judged in the end is judged on whole clusters."""

    async def story(world: World) -> None:
        nemesis = Nemesis(world, [])
        nemesis.strike(Action(0.0, "power", ("node-1",), (), 1e6))
        nemesis.strike(Action(0.0, "power", ("node-2",), (), 1e6))
        assert list(world.machines.down) == ["node-1"], "one at a time"
        await nemesis.finish()
        assert not world.machines.down
        assert all(node.running for node in world.nodes.values())

    tell(story)


def test_a_rack_loses_its_power_as_a_whole_where_the_promise_covers_that() -> None:
    """All its nodes at once, and they come back together; it is spared where all of something may
    be in it, or while a node is down."""
    rack = Action(0.0, "power", ("node-1", "node-2"), (), 1.0)

    async def story(world: World) -> None:
        nemesis = Nemesis(world, [])
        nemesis.strike(rack)
        assert not world.machines.down, "two servers or more are not covered"
        world.may_lose_together = lambda names: "t0" in names and "t1" in names
        nemesis.strike(replace(rack, nodes=("node-3",)))
        nemesis.strike(rack)
        assert list(world.machines.down) == ["node-3"]
        await asyncio.sleep(2.0)
        nemesis.strike(rack)
        assert list(world.machines.down) == ["node-1", "node-2"]
        down = {node.name for node in world.nodes.values() if not node.running}
        assert down - {"client"} == {"t0", "t1", "t3", "t4"}
        await asyncio.sleep(2.0)
        assert not world.machines.down
        await world.wait_ready()

    tell(story)


def test_racks_with_several_nodes_lose_their_power() -> None:
    """As often as the options say, each rack as a whole, and never a node without one."""
    options = Options(nodes=5, racks=("r", "s", "r", "", ""), rack_gap_mean_s=5.0)
    faults = rack_faults_of(World(1, options), DURATION_S)
    assert {action.nodes for action in faults} == {("node-1", "node-3")}
    assert {(action.kind, action.others) for action in faults} == {("power", ())}
    assert 40 < len(faults) < 160
    assert not rack_faults_of(World(1, options.but(rack_gap_mean_s=0.0)), DURATION_S)
    assert not rack_faults_of(World(1, options.but(racks=("r", "s"))), DURATION_S)


def test_addresses_of_a_node_soon_belong_to_others() -> None:
    """A stale address leads to another server, of the same node or of another one."""

    async def story(world: World) -> None:
        servers: dict[str, set[str]] = {}
        nodes: dict[str, set[str]] = {}
        for number in range(12):
            machine = f"node-{1 + number % 3}"
            world.cut_power(machine)
            world.give_power(machine)
            await world.wait_ready()
            there = [node for node in world.nodes.values() if node.kind == "tserver"]
            assert len({node.address for node in there}) == len(there)
            for node in there:
                servers.setdefault(node.address, set()).add(node.name)
                nodes.setdefault(node.address, set()).add(node.machine)
        assert max(map(len, servers.values())) > 2
        assert max(map(len, nodes.values())) > 1

    tell(story)


def test_servers_come_back_with_each_others_disks() -> None:
    """And each finds what the other one had written and synced, or not."""

    async def story(world: World) -> None:
        disks = [world.nodes[name].disk for name in ("t0", "t1")]
        Nemesis(world, []).strike(Action(0.0, "swap", ("t0", "t1")))
        assert not world.nodes["t0"].running
        await world.wait_ready()
        assert [world.nodes[name].disk for name in ("t1", "t0")] == disks
        assert [disk.name for disk in disks] == ["t1", "t0"]

    tell(story)


def test_disks_of_a_node_are_spared_where_no_promise_covers_their_loss() -> None:
    """Alone, each might be lost; all together they may not."""

    async def story(world: World) -> None:
        for covered in (False, True):
            world.may_lose_together = {False: lambda names: False, True: lambda names: True}[
                covered
            ]
            Nemesis(world, []).strike(Action(0.0, "power", ("node-1",), ("t0", "t3"), 1.0))
            lost = [name for name in world.nodes if world.nodes[name].disks_lost]
            assert lost == (["t0", "t3"] if covered else [])
            await asyncio.sleep(2.0)
            await world.wait_ready()

    tell(story)


def test_every_fault_is_drawn_and_the_seed_fixes_all() -> None:
    """Nodes as a whole, as often as the options say, and never a disk of other kinds."""
    faults = drawn()
    assert faults == drawn()
    assert faults != drawn(seed=2)
    kinds = Counter(action.kind for action in faults)
    assert set(kinds) == {"power", "split", "one_way", "swap"}
    empty = Counter(len(action.others) for action in faults if action.kind == "power")
    assert set(empty) == {0, 1, 2}, "no disk, one, or all that may be lost"
    assert not any(a.others for a in drawn(losable=()) if a.kind == "power")
    cuts = [action for action in faults if action.kind in ("split", "one_way")]
    whole = {
        tuple(name for names in kinds.values() for name in names) for kinds in SERVERS.values()
    }
    assert all((action.nodes in whole) != (action.others in whole) for action in cuts)
    assert {action.nodes in whole for action in cuts if action.kind == "one_way"} == {True, False}
    flaps = [a.nodes for a, b in itertools.pairwise(cuts) if a.nodes == b.nodes]
    assert len(flaps) >= FLAPS[0]
    swaps = [action.nodes for action in faults if action.kind == "swap"]
    assert all(one[0] == other[0] in "bt" and one != other for one, other in swaps)
    assert not drawn(DRAWN.but(node_gap_mean_s=0.0))


def test_some_worlds_on_nodes_start_servers_elsewhere() -> None:
    """A fixed share of them, whose nodes stay away for longer than it takes, and keep their disks:
    a disk on another node would have the fenced UUID of a server that is there."""
    scenario = load_scenario("nodes_wal")
    drawn_options = [scenario.options(seed) for seed in derive_seeds("replaced", 200)]
    found = [options for options in drawn_options if options.replace_after_s]
    assert 30 < len(found) < 70
    assert all(each.node_duration_mean_s > each.replace_after_s for each in found)

    async def story(world: World) -> None:
        for replace_after_s in (0.0, 1.0):
            world.options = DRAWN.but(replace_after_s=replace_after_s)
            world.schedule = None
            await Nemesis.begin(world, DURATION_S).finish()
            schedule: list[Action] = list(world.schedule or ())
            kinds = {action.kind for action in schedule}
            assert ("swap" in kinds) is (replace_after_s == 0.0)
            assert "power" in kinds

    tell(story)


def test_a_server_is_started_elsewhere_and_its_former_disk_comes_back_with_its_node() -> None:
    """The new one is reached at once, on an empty disk; the former one only once its node has
    power, with its own disk. It is not started again when it ends."""

    async def story(world: World) -> None:
        client = world.nodes["client"].runtime
        assert client is not None
        disk = world.nodes["t0"].disk
        world.cut_power("node-1")
        former = world.replace("t0", "node-2", keeps_former=True)
        await world.wait_ready("t0")
        assert world.nodes["t0"].machine == "node-2"
        assert world.nodes["t0"].disk is not disk
        for caller in ("client", "t1"):
            runtime = world.nodes[caller].runtime
            assert runtime is not None
            await runtime.peers.call(world.address("t0"), HELLO, Empty(), timeout_s=CALL_S)
        neighbour = world.nodes["t3"]
        assert neighbour.machine == "node-1"
        assert not world.formers()
        world.give_power("node-1")
        await world.wait_ready("t3")
        assert world.formers() == [former]
        assert world.nodes[former].disk is disk
        for name in (former, "t3"):
            await client.peers.call(world.address(name), HELLO, Empty(), timeout_s=CALL_S)
        assert neighbour.runtime is not None
        await neighbour.runtime.peers.call(world.address("t0"), HELLO, Empty(), timeout_s=CALL_S)
        world.crash(former)
        await asyncio.sleep(30.0)
        world.heal()
        assert not world.formers()

    tell(story)


def test_a_server_that_has_power_leaves_nothing_behind() -> None:
    """Its process is ended, as Ray can reach it; nothing is started on its disk."""

    async def story(world: World) -> None:
        lives = world.nodes["t0"].lives
        assert world.replace("t0", "node-3", keeps_former=False) == ""
        await world.wait_ready()
        assert (world.nodes["t0"].machine, world.nodes["t0"].lives) == ("node-3", lives + 1)
        assert not world.formers()

    tell(story)


# ---- judges and planted bugs ----------------------------------------------------------------


def test_two_copies_on_one_node_are_judged_by_what_else_was_free() -> None:
    """A second copy on a node is right where nothing else is left."""
    a, b, c, d = map(Place, "abcd")
    require_apart("a segment", a, [b], [a, c])
    require_apart("a segment", a, [a, b], [a, b])
    with pytest.raises(AssertionError, match="two copies on a, and could have one on c, d"):
        require_apart("a segment", a, [a, b], [a, d, b, c])


def test_two_copies_in_one_rack_are_judged_by_what_else_was_free() -> None:
    """A second copy in a rack is right where all racks have one, on another node."""
    a, b, c, d = Place("a", "r"), Place("b", "r"), Place("c", "s"), Place("d")
    require_apart("a segment", b, [a], [b])
    require_apart("a segment", b, [a, c], [a, b, c])
    with pytest.raises(AssertionError, match="two copies in r, and could have one on c, d"):
        require_apart("a segment", b, [a], [b, c, d])
    with pytest.raises(AssertionError, match="two copies on a, and could have one on b"):
        require_apart("a segment", a, [a], [b])


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_a_planted_bug_is_found_on_nodes_alone(bug: str) -> None:
    """The same seed is fine without the bug, and with it where every server fails by itself."""
    name, says = FOUND_BY[bug]
    outcome = find_bug(with_bugs(name), bug, BUG_SEEDS)
    assert outcome.failure is not None
    assert isinstance(outcome.failure.error, AssertionError | StelaeError)
    assert says in str(outcome.failure.error)
    assert run_seed(with_bugs(name), outcome.seed).failure is None
    assert run_seed(with_bugs(name, on_nodes=False), outcome.seed, bug=bug).failure is None


@pytest.mark.parametrize(
    "name",
    [each for each in SCENARIOS if each in GATE or (each.startswith(NODES) and kept_seeds(each))],
)
def test_whole_clusters_outlive_their_nodes(name: str) -> None:
    """The kept seeds, and for some scenarios a fixed one."""
    outcomes = run_seeds(load_scenario(name), int(name in GATE))
    assert all(outcome.schedule for outcome in outcomes)


@pytest.mark.parametrize("name", sorted(REPLACED))
def test_servers_that_were_replaced_end_when_they_come_back(name: str) -> None:
    """Nothing is lost, and no master believes them, while faults of all kinds go on."""
    trace = io.StringIO()
    outcome = run_seed(load_scenario(name), REPLACED[name], trace=trace)
    assert outcome.failure is None
    told = trace.getvalue()
    former = re.findall(r"replaces \S+: .*; (\S+~\d+) is left", told)
    assert former
    for each in former:
        assert re.search(rf"{each} +ends itself: Replaced", told), f"{each} did not come back"
