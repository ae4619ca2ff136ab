"""The nemesis: faults as data, drawn from the seed, carried out by virtual time, shrunk by ddmin.

A schedule is a list of `Action`, each of which ends by itself, so any part of a schedule is one
too: a failing run shrinks by leaving actions out (Zeller and Hildebrandt, "Simplifying and
Isolating Failure-Inducing Input", 2002). Which kinds of fault occur, and how often, is up to
`Options`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from stelae.simulation.world.options import Options
from stelae.simulation.world.world import World

SLOW_DISK_FACTOR = 200.0
NODE_WAYS = ("power", "power", "power", "cut", "mute", "deaf", "flaps", "swap")
"""What happens to whole nodes, as often as it is named."""
FLAPS = (2, 5)
"""Least and greatest number of short cuts that follow each other."""
FLAP_MEAN_S = 0.4
EMPTY_RATE = 0.6
"""Nodes that come back without the disk of one server, or without any."""
SWAPPED = ("tserver", "backup", "safekeeper")
"""Kinds of servers that may come back with each other's disks; masters are known by address."""
ZOMBIE_RATE = 0.4
"""Lost disks that come with a zombie, where servers may change their port."""


@dataclass(frozen=True, slots=True)
class Action:
    """One fault. ``fraction`` in [0, 1) is a free choice: where in a sync to crash, for example."""

    at_s: float
    kind: str
    nodes: tuple[str, ...]
    others: tuple[str, ...] = ()
    duration_s: float = 0.0
    fraction: float = 0.0

    def __str__(self) -> str:
        text = f"{self.at_s:8.3f} s {self.kind} {','.join(self.nodes)}"
        if self.others:
            text += f" | {','.join(self.others)}"
        return text + (f" for {self.duration_s:.3f} s" if self.duration_s else "")


def draw_schedule(
    options: Options,
    rng: random.Random,
    servers: Mapping[str, Sequence[str]],
    clients: Sequence[str],
    duration_s: float,
    losable: Collection[str] = (),
    fillable: Collection[str] = (),
) -> list[Action]:
    """Draw the faults of ``duration_s`` seconds, in order of time.

    Args:
        servers: names by kind; faults choose a kind first, then one of its servers.
        clients: names of clients, which partitions may cut off too.
        losable: kinds whose disks may be lost, one at a time with ``options.healing_s`` between.
        fillable: kinds whose disks may be full; by default all.
    """
    kinds = [kind for kind in servers if servers[kind]]
    if not kinds:
        return []
    every_s = {
        "crash": options.crash_every_s,
        "restart": options.crash_every_s * 2.0,
        "crash_in_sync": options.crash_in_sync_every_s,
        "pause": options.pause_every_s,
        "partition": options.partition_every_s,
        "clog": options.clog_every_s,
        "reset": options.reset_every_s,
        "slow_disk": options.slow_disk_every_s,
        "sync_error": options.sync_error_every_s,
        "full_disk": options.full_disk_every_s,
        "lose_disk": options.lost_disk_every_s if losable else 0.0,
    }
    everyone = [name for kind in kinds for name in servers[kind]]
    limited = {"lose_disk": sorted(losable), "full_disk": sorted(fillable) or kinds}
    schedule: list[Action] = []
    for kind, mean_s in every_s.items():
        at_s = rng.expovariate(1.0 / mean_s) if mean_s > 0 else duration_s
        while at_s < duration_s:
            among = limited.get(kind, kinds)
            candidates = list(servers.get(rng.choice(among), ())) or everyone
            lasting_s = rng.expovariate(1.0 / options.fault_duration_mean_s)
            schedule.append(
                _draw_action(rng, at_s, kind, candidates, everyone, list(clients), lasting_s)
            )
            at_s += rng.expovariate(1.0 / mean_s)
            if kind == "lose_disk":
                at_s += options.healing_s
    return sorted(schedule, key=lambda action: action.at_s)


def _draw_action(
    rng: random.Random,
    at_s: float,
    kind: str,
    candidates: list[str],
    everyone: list[str],
    clients: list[str],
    lasting_s: float,
) -> Action:
    one = rng.choice(candidates)
    rest = [name for name in everyone + clients if name != one]
    if kind == "partition":
        return _draw_partition(rng, at_s, one, rest, everyone, lasting_s)
    if kind in ("clog", "reset") and rest:
        return Action(at_s, kind, (one,), (rng.choice(rest),), lasting_s)
    return Action(at_s, kind, (one,), (), lasting_s, rng.random())


def _draw_partition(
    rng: random.Random,
    at_s: float,
    one: str,
    rest: list[str],
    everyone: list[str],
    lasting_s: float,
) -> Action:
    mode = rng.choice(["isolate", "isolate", "halves", "mute", "deaf", "link", "isolate_leader"])
    if mode == "halves":
        shuffled = everyone + [name for name in rest if name not in everyone]
        rng.shuffle(shuffled)
        cut = rng.randint(1, max(1, len(shuffled) - 1))
        return Action(at_s, "split", tuple(shuffled[:cut]), tuple(shuffled[cut:]), lasting_s)
    if mode == "link" and rest:
        return Action(at_s, "split", (one,), (rng.choice(rest),), lasting_s)
    if mode == "mute":
        return Action(at_s, "one_way", (one,), tuple(rest), lasting_s)
    if mode == "deaf":
        return Action(at_s, "one_way", tuple(rest), (one,), lasting_s)
    if mode == "isolate_leader":
        return Action(at_s, mode, (one,), (), lasting_s)
    return Action(at_s, "split", (one,), tuple(rest), lasting_s)


def draw_gray_faults(
    options: Options,
    rng: random.Random,
    servers: Mapping[str, Sequence[str]],
    clients: Sequence[str],
    duration_s: float,
) -> list[Action]:
    """Draw the gray faults of ``duration_s`` seconds, in order of time; see `draw_schedule`.

    Each is one of: a server that masters hear and that answers nobody else; a server that masters
    and clients hear, and that is cut off from all others; a server that answers no master and all
    others; a link between two servers that is cut both ways, or one way.
    """
    masters = tuple(servers.get("master", ()))
    everyone = [name for names in servers.values() for name in names]
    others = [name for name in everyone if name not in masters]
    kinds = [kind for kind in servers if kind != "master" and servers[kind]]
    ways = ["hangs", "cut_off", "unled"] if masters and others else []
    if len(everyone) > 1:
        ways += ["link", "one_way"]
    schedule: list[Action] = []
    mean_s = options.gray_gap_mean_s
    at_s = rng.expovariate(1.0 / mean_s) if mean_s > 0 and ways else duration_s
    while at_s < duration_s:
        way = rng.choice(ways)
        lasting_s = rng.expovariate(1.0 / options.gray_duration_mean_s)
        if way in ("link", "one_way"):
            kind = "split" if way == "link" else "one_way"
            one, other = rng.sample(everyone, 2)
            schedule.append(Action(at_s, kind, (one,), (other,), lasting_s))
        else:
            one = rng.choice(servers[rng.choice(kinds)])  # there may be few of a kind
            rest = tuple(name for name in others if name != one)
            if way == "cut_off":  # clients reach it, and wait for what it waits for
                schedule.append(Action(at_s, "split", (one,), rest, lasting_s))
            else:
                callers = masters if way == "unled" else (*rest, *clients)
                schedule.append(Action(at_s, "lose_calls", callers, (one,), lasting_s))
        at_s += rng.expovariate(1.0 / mean_s)
    return schedule


def draw_node_faults(
    options: Options,
    rng: random.Random,
    servers: Mapping[str, Mapping[str, Sequence[str]]],
    clients: Sequence[str],
    duration_s: float,
    losable: Collection[str] = (),
) -> list[Action]:
    """Draw the faults of whole nodes of ``duration_s`` seconds, in order of time.

    Each is one of: a node loses its power, and comes back with all disks, without that of one
    server, or without all that may be lost; a node is cut off from everybody, both ways or one way,
    once or a few times shortly after each other; servers of two nodes change their disks.

    Args:
        servers: names by node and by kind.
        clients: names of clients, which are on no node.
        losable: kinds whose disks may be lost.
    """
    schedule: list[Action] = []
    mean_s = options.node_gap_mean_s
    at_s = rng.expovariate(1.0 / mean_s) if mean_s > 0 and servers else duration_s
    everyone = [name for kinds in servers.values() for names in kinds.values() for name in names]
    while at_s < duration_s:
        way, node = rng.choice(NODE_WAYS), rng.choice(sorted(servers))
        lasting_s = rng.expovariate(1.0 / options.node_duration_mean_s)
        inside = tuple(name for names in servers[node].values() for name in names)
        outside = tuple(name for name in [*everyone, *clients] if name not in inside)
        match way:
            case "power":
                empty = _draw_empty(rng, servers[node], losable)
                schedule.append(Action(at_s, "power", (node,), empty, lasting_s))
            case "cut":
                schedule.append(Action(at_s, "split", inside, outside, lasting_s))
            case "mute":
                schedule.append(Action(at_s, "one_way", inside, outside, lasting_s))
            case "deaf":
                schedule.append(Action(at_s, "one_way", outside, inside, lasting_s))
            case "flaps":
                for _ in range(rng.randint(*FLAPS)):
                    lasting_s = rng.expovariate(1.0 / FLAP_MEAN_S)
                    schedule.append(Action(at_s, "split", inside, outside, lasting_s))
                    at_s += lasting_s + rng.expovariate(1.0 / FLAP_MEAN_S)
            case _:
                schedule += _draw_swap(rng, at_s, node, servers)
        at_s += rng.expovariate(1.0 / mean_s)
    return schedule


def _draw_empty(
    rng: random.Random, servers: Mapping[str, Sequence[str]], losable: Collection[str]
) -> tuple[str, ...]:
    """Whose disks are empty once their node comes back."""
    names = tuple(name for kind in servers if kind in losable for name in servers[kind])
    if not names or rng.random() >= EMPTY_RATE:
        return ()
    return names if rng.random() < 0.5 else (rng.choice(names),)


def _draw_swap(
    rng: random.Random, at_s: float, node: str, servers: Mapping[str, Mapping[str, Sequence[str]]]
) -> list[Action]:
    """A server of the node and one of its kind on another node."""
    pairs = [
        (one, other)
        for kind, names in servers[node].items()
        for one in names
        for there in sorted(servers)
        for other in servers[there].get(kind, ())
        if there != node and kind in SWAPPED
    ]
    return [Action(at_s, "swap", rng.choice(pairs))] if pairs else []


def node_faults_of(world: World, duration_s: float, losable: Collection[str] = ()) -> list[Action]:
    """Draw the faults of whole nodes of a world whose servers run, if they are spread over some.

    Disks are lost only where the world's options have lost disks at all.
    """
    servers: dict[str, dict[str, list[str]]] = {}
    for node in world.nodes.values():
        if node.factory is not None and node.machine in world.machines.names:
            servers.setdefault(node.machine, {}).setdefault(node.kind, []).append(node.name)
    clients = _nodes_of(world)[1]
    rng = world.rng("nodes")
    lost = losable if world.options.lost_disk_every_s else ()
    return draw_node_faults(world.options, rng, servers, clients, duration_s, lost)


def rack_faults_of(world: World, duration_s: float) -> list[Action]:
    """Draw losses of power of whole racks, each with at least two nodes, if there are any."""
    nodes: dict[str, list[str]] = {}
    for name, rack in world.machines.racks.items():
        nodes.setdefault(rack, []).append(name)
    racks = [tuple(names) for names in nodes.values() if len(names) > 1]
    mean_s, rng = world.options.rack_gap_mean_s, world.rng("racks")
    schedule: list[Action] = []
    at_s = rng.expovariate(1.0 / mean_s) if mean_s > 0 and racks else duration_s
    while at_s < duration_s:
        lasting_s = rng.expovariate(1.0 / world.options.node_duration_mean_s)
        schedule.append(Action(at_s, "power", rng.choice(racks), (), lasting_s))
        at_s += rng.expovariate(1.0 / mean_s)
    return schedule


def gray_faults_of(world: World, duration_s: float) -> list[Action]:
    """Draw the gray faults of a world whose servers run, if its options have any."""
    servers, clients = _nodes_of(world)
    return draw_gray_faults(world.options, world.rng("gray"), servers, clients, duration_s)


def _nodes_of(world: World) -> tuple[dict[str, list[str]], list[str]]:
    """The names of servers, by kind, and of clients."""
    servers: dict[str, list[str]] = {}
    for node in world.nodes.values():
        if node.factory is not None:
            servers.setdefault(node.kind, []).append(node.name)
    return servers, [node.name for node in world.nodes.values() if node.factory is None]


class Nemesis:
    """Carries a schedule out."""

    def __init__(self, world: World, schedule: Sequence[Action]) -> None:
        self._world = world
        self._handles: list[asyncio.Handle] = []
        self._lost_at_s: float | None = None
        for action in schedule:
            self._after(action.at_s, self._begin, action)

    @classmethod
    def begin(
        cls,
        world: World,
        duration_s: float,
        *,
        losable: Collection[str] = (),
        fillable: Collection[str] = (),
    ) -> Nemesis:
        """Start the world's schedule now; draw it first unless one was given for a replay.

        Args:
            losable: kinds of servers whose disks may be lost. Besides the time between two losses,
                ``world.may_lose_disk(name)`` has a say at the moment itself.
            fillable: kinds whose disks may be full; by default all.
        """
        if world.schedule is None:
            servers, clients = _nodes_of(world)
            drawn = draw_schedule(
                world.options, world.rng("nemesis"), servers, clients, duration_s, losable, fillable
            )
            drawn += gray_faults_of(world, duration_s)
            drawn += node_faults_of(world, duration_s, losable)
            drawn += rack_faults_of(world, duration_s)
            if world.options.replace_after_s:
                # A disk on another node would keep the UUID that is fenced with its former name.
                drawn = [action for action in drawn if action.kind != "swap"]
            world.schedule = sorted(drawn, key=lambda action: action.at_s)
        return cls(world, world.schedule)

    async def finish(self, timeout_s: float = 120.0) -> None:
        """End all faults, and wait until every server has started again."""
        for handle in self._handles:
            handle.cancel()
        self._world.heal()
        names = [node.name for node in self._world.nodes.values() if node.auto_restart]
        await self._world.wait_ready(*names, timeout_s=timeout_s)

    def strike(self, action: Action) -> None:
        """Begin a fault now that is in no schedule: one aimed at something a client does."""
        self._begin(action)

    def _after(self, delay_s: float, callback: Callable[[Action], None], action: Action) -> None:
        loop = self._world.loop
        self._handles.append(loop.call_later(delay_s, callback, action, context=loop.context))

    def _begin(self, action: Action) -> None:
        """Begin a fault; kinds that last are ended by `_end`."""
        world = self._world
        if action.kind.endswith("_leader"):
            action = self._aim(action)
        world.note("nemesis", str(action))
        name = action.nodes[0]
        match action.kind:
            case "crash":
                world.crash(name)
            case "restart":
                world.restart(name)
            case "crash_in_sync":
                self._arm(action)
            case "lose_disk":
                self._lose_disk(action)
            case "swap":
                self._swap(action)
            case "sync_error":
                world.nodes[name].disk.fail_next_sync = True
            case "reset":
                for other in action.others:
                    world.network.reset(name, other)
            case "clog":
                for other in action.others:
                    world.network.clog(name, other, action.duration_s)
                    world.network.clog(other, name, action.duration_s)
            case _:
                self._begin_lasting(action)
                self._after(action.duration_s, self._end, action)

    def _begin_lasting(self, action: Action) -> None:
        world = self._world
        name = action.nodes[0]
        match action.kind:
            case "pause":
                world.pause(name)
            case "slow_disk":
                world.nodes[name].disk.slowness = SLOW_DISK_FACTOR
            case "full_disk":
                world.nodes[name].disk.full = True
            case "power":
                self._cut_power(action)
            case "split" | "one_way":
                world.partition(action.nodes, action.others)
                if action.kind == "split":
                    world.partition(action.others, action.nodes)
            case "lose_calls":
                for caller in action.nodes:
                    for receiver in action.others:
                        world.network.lose_calls(caller, receiver)
            case unknown:
                raise AssertionError(f"no such fault: {unknown}")

    def _end(self, action: Action) -> None:
        world = self._world
        name = action.nodes[0]
        match action.kind:
            case "pause":
                world.resume(name)
            case "slow_disk":
                world.nodes[name].disk.slowness = 1.0
            case "full_disk":
                world.nodes[name].disk.full = False
            case "power":
                for machine in action.nodes:
                    world.give_power(machine)
            case "lose_calls":
                world.note("nemesis", f"ends lost calls to {','.join(action.others)}")
                for caller in action.nodes:
                    for receiver in action.others:
                        world.network.carry_calls(caller, receiver)
            case _:
                world.note("nemesis", f"ends {action.kind} of {','.join(action.nodes)}")
                world.unpartition(action.nodes, action.others)
                if action.kind == "split":
                    world.unpartition(action.others, action.nodes)

    def _aim(self, action: Action) -> Action:
        """``crash_leader``, ``isolate_leader`` and the like: at whoever leads at that moment."""
        leader = self._world.leader_hint() or action.nodes[0]
        kind = action.kind.removesuffix("_leader")
        if kind != "isolate":
            return replace(action, kind=kind, nodes=(leader,))
        others = tuple(name for name in self._world.nodes if name != leader)
        return Action(action.at_s, "split", (leader,), others, action.duration_s)

    def _arm(self, action: Action) -> None:
        """Crash in the midst of the node's next sync: that is where it hurts."""
        world = self._world
        node = world.nodes[action.nodes[0]]
        life = node.lives

        def crash() -> None:
            if node.lives == life:
                world.crash(node.name)

        def in_sync(latency_s: float) -> None:
            delay_s = latency_s * action.fraction
            world.loop.call_later(delay_s, crash, context=world.loop.context)

        node.disk.on_sync = in_sync

    def _cut_power(self, action: Action) -> None:
        """One node at a time, or one rack: of two the promise covers nothing. A rack only if what
        is needed of everything is elsewhere: for want of another rack it may all be in one."""
        world, machines = self._world, action.nodes
        if world.machines.down:
            world.note("nemesis", f"spares {','.join(machines)}: another node is down")
            return
        inside = [node.name for node in world.nodes.values() if node.machine in machines]
        if len(machines) > 1 and not world.may_lose_together(inside):
            world.note("nemesis", f"spares {','.join(machines)}: the promise would not cover it")
            return
        empty = action.others if self._may_lose(action.others) else ()
        for machine in machines:
            world.cut_power(machine, empty)

    def _swap(self, action: Action) -> None:
        world = self._world
        if all(world.nodes[name].running for name in action.nodes):
            world.swap_disks(*action.nodes)

    def _may_lose(self, names: Sequence[str]) -> bool:
        """Whether the promise covers the loss of these disks at once; if so, they are lost now."""
        world = self._world
        now_s = world.loop.time()
        if not names:
            return False
        if self._lost_at_s is not None and now_s - self._lost_at_s < world.options.healing_s:
            return False
        if not (all(map(world.may_lose_disk, names)) and world.may_lose_together(names)):
            spared = ", ".join(names)
            world.note("nemesis", f"spares the disk of {spared}: the promise would not cover it")
            return False
        self._lost_at_s = now_s
        return True

    def _lose_disk(self, action: Action) -> None:
        world = self._world
        name = action.nodes[0]
        if not self._may_lose((name,)):
            return
        node = world.nodes[name]
        may_move = node.running and not node.fixed_port and world.may_outlive(name)
        if action.fraction < ZOMBIE_RATE and may_move:
            zombie = world.move(name)
            self._after(action.duration_s, lambda _: world.crash(zombie), action)
        else:
            world.crash(name, lose_disk=True)


def shrink(
    schedule: Sequence[Action], fails: Callable[[Sequence[Action]], bool], runs_max: int = 200
) -> list[Action]:
    """Leave out of a failing schedule what the failure does not need (ddmin).

    Args:
        fails: runs a part of the schedule; True if it still fails.
        runs_max: at most so many calls of ``fails``.
    """
    kept = list(schedule)
    runs = 0
    pieces = 2
    while kept and runs < runs_max:
        size = max(1, len(kept) // pieces)
        for start in range(0, len(kept), size):
            rest = kept[:start] + kept[start + size :]
            runs += 1
            if fails(rest):
                kept, pieces = rest, max(2, pieces - 1)
                break
            if runs >= runs_max:
                break
        else:
            if size == 1:
                break
            pieces = min(len(kept), pieces * 2)
    return kept
