"""The deterministic world: nodes with disks on a network, whose processes start, crash and hang.

A `World` is one run. `World.start` gives a server class a `Runtime` and looks after its process as
Ray looks after an actor: it comes back after a crash, on the same disk, as a new process. An error
that the world itself injected may end a process; any other error ends the run, with the story of
what happened, as a `SimulationFailure`.

The world imports nothing but ``stelae.core``: what runs in it comes as factories.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, TextIO, TypeVar

from stelae.core.ids import Address
from stelae.core.runtime import ProcessIdentity
from stelae.simulation.world.disk import InjectedDiskError, SimDisk, SimDiskView
from stelae.simulation.world.instance import SimClock, SimMetrics, SimRuntime
from stelae.simulation.world.loop import SimLoop
from stelae.simulation.world.machines import FORMER, Machines
from stelae.simulation.world.near_files import SimNearFile
from stelae.simulation.world.network import Network, SimPeers
from stelae.simulation.world.node import Factory, Node, SimulationFailure
from stelae.simulation.world.objects import SimObjects, SimStore
from stelae.simulation.world.options import Options
from stelae.simulation.world.process import PROCESS, Process
from stelae.simulation.world.server_logs import logs_into
from stelae.simulation.world.story import Story

T = TypeVar("T")
POLL_S = 0.01


class World:
    """One deterministic run.

    Args:
        seed: fixes everything: order, latencies, faults, ids.
        options: the physics; `Options.draw(seed)` for a swarm member, ``Options()`` for calm.
        schedule: replaces the nemesis's own schedule (replay, shrinking).
        trace: receives every event as a line, and what the servers log.
    """

    def __init__(
        self,
        seed: int | str,
        options: Options | None = None,
        *,
        schedule: Sequence[Any] | None = None,
        trace: TextIO | None = None,
    ) -> None:
        self.seed = str(seed)
        self.options = options if options is not None else Options()
        self.schedule: list[Any] | None = None if schedule is None else list(schedule)
        """Of the nemesis: given, or else what it drew once it began."""
        self.loop = SimLoop(self.rng("loop"), self.options.shuffle)  # type: ignore[abstract]
        self.story = Story(self.loop.time, trace)
        self.nodes: dict[str, Node] = {}
        self.network = Network(
            self.loop, self.rng("network"), self.options, self.note, self._on_handler_error
        )
        self.objects = SimStore(self.options, self.rng("objects"), self.network)
        self.metrics: dict[str, SimMetrics] = {}
        self.leader_hint: Callable[[], str | None] = lambda: None
        """For the nemesis: the node whose isolation hurts most right now."""
        self.may_lose_disk: Callable[[str], bool] = lambda name: True
        """For the nemesis: whether the promise of durability covers the loss of this disk now."""
        self.may_outlive: Callable[[str], bool] = lambda name: True
        """For the nemesis: whether a process that loses its disk may live on for a while. What it
        is given meanwhile is lost with it."""
        self.may_lose_together: Callable[[Sequence[str]], bool] = lambda names: len(names) < 2
        """For the nemesis: whether all these may lose their disks at once, if each of them may."""
        self.holds_what_is_believed: Callable[[], bool] = lambda: True
        """For scenarios on nodes: whether servers have what others believe that they have."""
        self.machines = Machines(self.options.nodes, self.rng("ports"), self.options.racks)
        """The nodes over which servers are spread, if they are."""
        self.timelines: Callable[[], bytes] = lambda: b""
        """The trace of timelines, as lines, where a scenario has it recorded."""
        self._restart_rng = self.rng("restarts")
        self._clock_rng = self.rng("clocks")
        self._offload_rng = self.rng("offload")
        self._pids = 1000
        self._identities: dict[ProcessIdentity, Process] = {}

    def rng(self, component: str) -> random.Random:
        """A stream of its own for each component: a change in one does not reshuffle the others."""
        return random.Random(f"{self.seed}/{component}")

    def note(self, node: str, text: str) -> None:
        """Add to the story."""
        self.story.note(node, text)

    def digest(self) -> str:
        """What identifies this run: two runs of one seed have the same."""
        return f"{self.story.digest()[:32]}-{self.loop.steps}-{self.loop.mix:012x}"

    # ---- running ------------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, T], *, limit_s: float = 3600.0) -> T:
        """Run ``main`` in this world until it ends; a world runs once.

        Args:
            main: the scenario, written as ordinary asyncio code; it belongs to no process.
            limit_s: of virtual time.

        Raises:
            SimulationFailure: from whatever went wrong, with the evidence.
        """
        try:
            with logs_into(self.story):
                return self.loop.run(main, limit_s)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            process = self.loop.failed_process
            if process is not None:
                error.add_note(f"in process {process.name}, life {process.incarnation}")
            raise SimulationFailure(self.seed, error, self.story.tell()) from error

    async def wait_until(
        self, condition: Callable[[], bool], timeout_s: float, what: str, poll_s: float = POLL_S
    ) -> None:
        """Wait for a condition on the world; a liveness failure after ``timeout_s``."""
        end_s = self.loop.time() + timeout_s
        while not condition():
            assert self.loop.time() < end_s, f"no progress within {timeout_s} s: {what}"
            await asyncio.sleep(poll_s)

    async def wait_ready(self, *names: str, timeout_s: float = 60.0) -> None:
        """Wait until the ``start`` of the nodes named (default: all) has returned."""
        chosen = [self.nodes[name] for name in names or self.nodes]
        servers = [node for node in chosen if node.factory is not None]
        await self.wait_until(
            lambda: all(node.ready for node in servers), timeout_s, "all servers have started"
        )

    # ---- nodes --------------------------------------------------------------------------------

    def start(
        self,
        name: str,
        factory: Factory,
        *,
        kind: str = "server",
        machine: str | None = None,
        auto_restart: bool = True,
        fixed_port: bool = True,
        exits: tuple[type[BaseException], ...] = (),
    ) -> Node:
        """Make a node and start its first process.

        Args:
            factory: makes the server, anew for each life of the process.
            kind: "master", "tserver", "backup", ...: what the nemesis chooses by.
            machine: the node it runs on, for `process_gone`; by default as the options say.
            auto_restart: bring a crashed process back after a drawn delay.
            fixed_port: False gives each life a new port, and so a new address.
            exits: errors with which a server may rightly end itself; it is then started again.
        """
        node = self._make_node(name, kind, machine)
        node.factory = factory
        node.auto_restart = auto_restart
        node.fixed_port = fixed_port
        node.exits = exits
        self._start_process(node)
        return node

    def client(self, name: str) -> SimRuntime:
        """A process without a server, which never crashes: its runtime is for clients."""
        node = self._make_node(name, "client", None)
        self._new_life(node)
        assert node.runtime is not None
        return node.runtime

    def address(self, name: str) -> Address:
        """Where the node listens, or will listen if its port is fixed; known before it starts."""
        return self.nodes[name].address if name in self.nodes else Address(f"{name}:7000")

    def server(self, name: str) -> Any:
        """The server object of the running process, to look at (not to await)."""
        node = self.nodes[name]
        return node.server if node.running else None

    def names(self, kind: str) -> list[str]:
        """Names of the nodes of a kind, in the order of their making."""
        return [node.name for node in self.nodes.values() if node.kind == kind]

    def spawn(self, name: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run ``work`` in the node's process, so that it hangs and dies with it.

        Awaiting the task of a process that dies waits for ever.
        """
        process = self.nodes[name].process
        assert process is not None
        assert process.alive, f"{name} is not running"
        return self.loop.create_task(work, name=f"{name}:spawned", context=process.context.copy())

    def _make_node(self, name: str, kind: str, machine: str | None) -> Node:
        assert name not in self.nodes, f"there is a node {name} already"
        if machine is None and self.machines.names and kind != "client":
            machine = self.machines.choose(kind, self.nodes.values())
        if machine is None:
            together = self.options.one_machine and not self.machines.names
            machine = "machine-1" if together else f"machine-{name}"
        node = self.nodes[name] = Node(name, kind, machine, 7000, self._make_disk(name))
        return node

    def _make_disk(self, name: str) -> SimDisk:
        def note(text: str) -> None:
            self.note(name, text)

        disk = SimDisk(self.rng(f"disk/{name}"), self.options, note)
        disk.name = name
        return disk

    def _open_near(self, node: Node, process: Process, place: str) -> SimNearFile | None:
        """A file of any server on the node's machine, for ``process`` of that node."""
        name, _, path = place.partition(":")
        other = self.nodes.get(name)
        content = None if other is None else other.disk.find(path)
        if other is None or content is None or other.machine != node.machine:
            return None
        return SimNearFile(content, process, self.rng(f"near/{node.name}/{node.lives}/{place}"))

    def _new_life(self, node: Node) -> Process:
        options = self.options
        node.lives += 1
        if node.machine in self.machines.names and not node.fixed_port:
            self.machines.move_address(node, self.nodes.values())
        elif node.lives > 1 and not node.fixed_port:
            node.port += 1
        self._pids += 1
        process = self.loop.new_process(node.name, node.lives)
        identity = ProcessIdentity(node.machine, self._pids, self.loop.time())
        self._identities[identity] = process
        self.network.name_address(node.address, node.name)
        metrics = self.metrics.setdefault(node.name, SimMetrics())
        drift = self._clock_rng.uniform(-1.0, 1.0) * options.clock_drift
        skew_s = self._clock_rng.uniform(-1.0, 1.0) * options.clock_skew_s
        node.process = process
        node.runtime = SimRuntime(
            process=process,
            clock=SimClock(self.loop, process, drift, skew_s),
            rng=self.rng(f"server/{node.name}/{node.lives}"),
            secrets=self.rng(f"secrets/{node.name}/{node.lives}"),
            peers=SimPeers(self.network, process, node.address, self.loop),
            disk=SimDiskView(
                node.disk, process, options, functools.partial(self._open_near, node, process)
            ),
            objects=SimObjects(process, self.objects),
            metrics=metrics,
            identity=identity,
            offload_latency=lambda: self._offload_rng.expovariate(1.0 / options.offload_mean_s),
            process_gone=self._gone,
            rack=self.machines.racks.get(node.machine, ""),
        )
        return process

    def _gone(self, machine: str, identity: ProcessIdentity) -> bool:
        if identity.node != machine:
            return False  # nothing can be told from another machine
        process = self._identities.get(identity)
        return process is None or not process.alive

    # ---- life and death -----------------------------------------------------------------------

    def _start_process(self, node: Node) -> None:
        if node.machine in self.machines.down:
            self.machines.waiting[node.name] = None
            return
        process = self._new_life(node)
        self.note(node.name, f"starts, life {node.lives}, at {node.address}")
        task = self.loop.create_task(
            self._live(node), name=f"{node.name}:life", context=process.context.copy()
        )
        task.add_done_callback(lambda task: self._on_end(process, task), context=self.loop.context)

    async def _live(self, node: Node) -> None:
        assert node.factory is not None
        assert node.runtime is not None
        life = node.lives
        server = node.server = node.factory(node.runtime)
        await server.start()
        if node.lives == life:  # or else it has become a zombie meanwhile
            node.ready = True
            self.note(node.name, "is ready")
        raise await server.tasks.wait_failed()

    def _on_end(self, process: Process, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self._on_error(process, AssertionError("a server's main task was cancelled"))
            return
        error = task.exception()
        assert error is not None
        self._on_error(process, error)

    def _on_handler_error(self, process: Process, error: BaseException) -> None:
        # Not from within the process's own task: it is about to be killed.
        self.loop.call_soon(self._on_error, process, error, context=self.loop.context)

    def _on_error(self, process: Process, error: BaseException) -> None:
        """A server failed: its process ends if the world is to blame, or else the run."""
        if not process.alive:
            return
        node = self.nodes[process.name]
        if _injected(error) or (node.exits and isinstance(error, node.exits)):
            self.note(node.name, f"ends itself: {type(error).__name__}: {error}")
            self.crash(node.name)
        else:
            self.note(node.name, f"FAILS: {type(error).__name__}: {error}")
            self.loop.fail(error, process)

    def crash(
        self, name: str, *, lose_disk: bool = False, restart: bool = True, power_lost: bool = False
    ) -> None:
        """Kill the node's process at once, as SIGKILL or a power cut does.

        Args:
            lose_disk: the next process finds an empty disk.
            restart: let it come back by itself, if the node does that at all.
            power_lost: it is a power cut, for certain; else chance has it.
        """
        node = self.nodes[name]
        if node.process is not None and PROCESS.get() is node.process:
            # Asked for by the process itself: it goes on to its next await, like any instruction
            # that was in the pipeline.
            again = functools.partial(
                self.crash, name, lose_disk=lose_disk, restart=restart, power_lost=power_lost
            )
            self.loop.call_soon(again, context=self.loop.context)
            return
        if lose_disk:
            node.disks_lost += 1
        if not node.running:
            if lose_disk:
                node.disk.lose()
                self.note(name, "loses its disk while down")
            elif power_lost:
                node.disk.crash(power_lost=True)
            return
        assert node.process is not None
        assert node.runtime is not None
        self.note(name, "crashes" + (" and loses its disk" if lose_disk else ""))
        peers = node.runtime.peers
        node.ready = False
        node.server = None
        self.loop.kill(node.process)  # first: no ``finally`` block may write or send
        peers.closed = True
        self.network.process_ended(peers)
        if lose_disk:
            node.disk.lose()
        else:
            node.disk.crash(power_lost=power_lost)
        if restart and node.auto_restart and node.factory is not None:
            options = self.options
            delay_s = options.restart_min_s + self._restart_rng.expovariate(
                1.0 / options.restart_mean_s
            )
            self.loop.call_later(
                delay_s, self._come_back, node, node.lives, context=self.loop.context
            )

    def _come_back(self, node: Node, life: int) -> None:
        if not node.running and node.lives == life and node.auto_restart:
            self._start_process(node)

    def restart(self, name: str) -> None:
        """Start a new process on the node's disk, now; crashes the old one if it runs."""
        self.crash(name, restart=False)
        self._start_process(self.nodes[name])

    def move(self, name: str) -> str:
        """Start the server anew on an empty disk, while its old process lives on as a zombie.

        Ray does this when it takes a node for dead that is not. The zombie keeps its address and
        its disk, belongs to no kind, and ends with `heal` (or `crash`); its disk is lost then.

        Returns:
            The name of the zombie.
        """
        node = self.nodes[name]
        assert node.running, f"{name} is not running"
        assert not node.fixed_port, f"{name} has a fixed port, so two of it cannot listen"
        assert node.process is not None
        assert node.runtime is not None
        zombie = Node(f"{name}~{node.lives}", "zombie", node.machine, node.port, node.disk)
        zombie.host, zombie.auto_restart, zombie.exits = node.host, False, node.exits
        zombie.lives, zombie.ready = node.lives, node.ready
        zombie.process, zombie.runtime, zombie.server = node.process, node.runtime, node.server
        self.nodes[zombie.name] = zombie
        zombie.process.name = zombie.runtime.peers.name = zombie.name
        self.network.name_address(zombie.address, zombie.name)
        self.note(name, f"is taken for dead; its old process lives on as {zombie.name}")
        node.disks_lost += 1
        node.disk = self._make_disk(f"{name}/{node.lives}")
        node.ready = False
        node.server = None
        self._start_process(node)
        return zombie.name

    def replace(self, name: str, machine: str, *, keeps_former: bool) -> str:
        """Start a server on another machine, with an empty disk.

        Args:
            keeps_former: once its machine has power, a server of its name is started there on its
                former disk, too; it has to end itself, and is not started again.

        Returns:
            The name of the former server; empty: there is none.
        """
        node = self.nodes[name]
        assert not node.fixed_port, f"{name} has a fixed port, and stays where it is"
        self.crash(name, restart=False)
        self.machines.waiting.pop(name, None)
        former = ""
        if keeps_former:
            former = self._make_former(node)
        self._leave_cut(node, former)
        self.note(name, f"is started on {machine}, with an empty disk")
        node.disks_lost += 1
        node.disk = self._make_disk(f"{name}/{node.lives}")
        node.machine = machine
        self._start_process(node)
        return former

    def _make_former(self, node: Node) -> str:
        """A server on the disk of ``node``, to be started when its machine has power."""
        assert node.machine in self.machines.down, f"{node.machine} has power"
        former = Node(f"{node.name}~{node.lives}", FORMER, node.machine, node.port, node.disk)
        former.host, former.factory, former.exits = node.host, node.factory, node.exits
        former.auto_restart = former.fixed_port = False
        former.disk.name = former.name
        self.nodes[former.name] = former
        self.machines.waiting[former.name] = None
        return former.name

    def _leave_cut(self, node: Node, former: str) -> None:
        """A server that leaves a machine without power reaches the others, and they reach it."""
        here, others = self.machines.down.get(node.machine, ([], []))
        if node.name not in here:
            return
        here.remove(node.name)
        self.unpartition([node.name], others)
        self.unpartition(others, [node.name])
        others.append(node.name)
        self.partition([node.name], here)
        self.partition(here, [node.name])
        if former:
            here.append(former)
            self.partition([former], others)
            self.partition(others, [former])

    def formers(self) -> list[str]:
        """Servers that were replaced, and run."""
        return [node.name for node in self.nodes.values() if node.kind == FORMER and node.running]

    async def stop(self, name: str, timeout_s: float = 60.0) -> None:
        """Stop a server in good order: its ``stop``, then the end of its process.

        It stays down until `restart`.
        """
        node = self.nodes[name]
        node.auto_restart = False
        self.machines.waiting.pop(name, None)
        if node.server is None or not node.ready:
            self.crash(name, restart=False)
            return
        self.note(name, "is told to stop")
        life = node.lives
        task: asyncio.Task[None] = self.spawn(name, node.server.stop())
        await self.wait_until(
            lambda: task.done() or node.lives != life or not node.running,  # a fault came first
            timeout_s,
            f"{name} stops",
        )
        if task.done():
            task.result()
        self.crash(name, restart=False)

    def cut_power(self, machine: str, empty: Collection[str] = ()) -> None:
        """End all processes of a machine at the same instant; it stays down until `give_power`.

        Nobody is told: connections to a machine without power do not end, and calls to it get no
        answer. Disks lose what was not synced, and those of ``empty`` everything.
        """
        here = [node.name for node in self.nodes.values() if node.machine == machine]
        others = [name for name in self.nodes if name not in here]
        self.note(machine, "loses its power")
        self.partition(here, others)
        self.partition(others, here)
        self.machines.down[machine] = (here, others)
        for name in here:
            self.crash(name, lose_disk=name in empty, power_lost=True)

    def give_power(self, machine: str) -> None:
        """Undo `cut_power`, if that was done: the servers start on the disks that they have."""
        cut = self.machines.down.pop(machine, None)
        if cut is None:
            return
        self.note(machine, "has power again")
        self.machines.draw_host(machine)
        here, others = cut
        self.unpartition(here, others)
        self.unpartition(others, here)
        for name in list(self.machines.waiting):
            node = self.nodes[name]
            if node.machine == machine:
                del self.machines.waiting[name]
                if not node.running:
                    self._start_process(node)

    def swap_disks(self, first: str, second: str) -> None:
        """Let two servers crash, and come back each with the other's disk."""
        one, other = self.nodes[first], self.nodes[second]
        self.note(first, f"changes its disk with {second}")
        self.crash(first)
        self.crash(second)
        one.disk, other.disk = other.disk, one.disk
        one.disk.name, other.disk.name = other.disk.name, one.disk.name

    def pause(self, name: str) -> None:
        """Hang the node's process, as SIGSTOP does; messages to it wait."""
        node = self.nodes[name]
        if node.running and node.process is not None:
            self.note(name, "hangs")
            self.loop.pause(node.process)

    def resume(self, name: str) -> None:
        """Let a hung process go on as if nothing had happened."""
        node = self.nodes[name]
        if node.running and node.process is not None and node.process.paused:
            self.note(name, "goes on")
            self.loop.resume(node.process)

    # ---- network and healing ------------------------------------------------------------------

    def partition(self, senders: Sequence[str], receivers: Sequence[str]) -> None:
        """Cut everything from ``senders`` to ``receivers``; call it both ways for a full split."""
        for sender in senders:
            for receiver in receivers:
                if sender != receiver:
                    self.network.block(sender, receiver)

    def unpartition(self, senders: Sequence[str], receivers: Sequence[str]) -> None:
        """Undo one `partition`."""
        for sender in senders:
            for receiver in receivers:
                if sender != receiver:
                    self.network.unblock(sender, receiver)

    def heal(self) -> None:
        """End every fault: links, hung processes, zombies, disks; start what is down."""
        self.note("world", "heals")
        self.network.unblock_all()
        for machine in list(self.machines.down):
            self.give_power(machine)
        for node in self.nodes.values():
            node.disk.heal()
            self.resume(node.name)
            if node.kind == "zombie":
                self.crash(node.name)
            if not node.running and node.factory is not None and node.auto_restart:
                self._start_process(node)


def _injected(error: BaseException) -> bool:
    """Whether an injected disk error is what it is, wraps, or was caused by."""
    seen: list[BaseException] = [error]
    for one in seen:  # grows while it runs; chains are short, and cycles are cut below
        if isinstance(one, InjectedDiskError):
            return True
        children: list[BaseException | None] = [one.__cause__]
        if not isinstance(one, AssertionError):  # a broken invariant is never excused by its past
            children.append(one.__context__)
        if isinstance(one, BaseExceptionGroup):
            children.extend(one.exceptions)
        seen.extend(child for child in children if child is not None and child not in seen)
    return False


__all__ = ["Factory", "Node", "SimulationFailure", "World"]
