"""A deterministic world in which the servers of Stelae run instead of on Ray: one seed is one run.

How to run a server in it::

    from stelae.simulation import Options, World

    async def scenario(world: World, bug: str = "") -> None:
        for name in ("m1", "m2", "m3"):                       # addresses are known beforehand:
            world.start(name, lambda runtime: Master(runtime, peers=...), kind="master")
        await world.wait_ready()                              # world.address("m1") == "m1:7000"
        client = world.client("c1")                           # a Runtime that never crashes
        reply = await client.peers.call(world.address("m1"), PING, Ping(), timeout_s=1.0)
        nemesis = Nemesis.begin(world, duration_s=20.0, losable=("backup",))
        ...                                                   # work under faults
        await nemesis.finish()                                # ends all faults, restarts everything
        await world.wait_until(lambda: ..., timeout_s=60.0, what="a leader")

    world = World(4711, Options.draw(4711))
    world.run(scenario(world))                                # raises SimulationFailure

A server is any object with ``tasks: Tasks``, ``async start()``, ``async stop()``. Each life of its
process gets a fresh `SimRuntime`; after a crash it comes back on its disk. An injected disk error,
or one named in ``exits=``, may end the process; any other exception ends the run.

By hand: ``world.crash(name, lose_disk=False)``, ``restart``, ``stop``, ``pause``/``resume``,
``move`` (a zombie next to its successor), ``cut_power``/``give_power``,
``partition``/``unpartition``, ``heal``, ``network.clog``/``reset``, ``nodes[name].disk``.
To look in: ``server(name)``, ``metrics[name]``, ``note(name, text)``.

Rules for code that runs here: never await a task or an object of another process. Use no threads,
no global randomness, no order taken from sets, no clock but ``runtime.clock`` and the loop's.

- `world`: loop, network, disks and processes. `cluster`: a whole cluster in it.
- `nemesis`: faults; `scenarios`, `runner`: what a seed is run through, and how.
- `spread`: whether copies are put on different nodes.
- `history`, `checkers`: what clients did, and whether it may be so.
- `timelines`: traces replayed against the TLA+ model; `soak`: fresh seeds for hours.

Read first: `world`. Also searched for as: DST, Jepsen, fault injection, FoundationDB, VOPR.
"""

from stelae.simulation.world.loop import SimLoop, SimulationError
from stelae.simulation.world.node import Factory, Node, Server, SimulationFailure
from stelae.simulation.world.options import Limits, Options, Servers, Workload
from stelae.simulation.world.process import PROCESS, Process, ProcessEnded
from stelae.simulation.world.world import World

__all__ = [
    "PROCESS",
    "Factory",
    "Limits",
    "Node",
    "Options",
    "Process",
    "ProcessEnded",
    "Server",
    "Servers",
    "SimLoop",
    "SimulationError",
    "SimulationFailure",
    "Workload",
    "World",
]
