"""A deterministic world in which Stelae's servers run instead of on Ray: design, chapter 14.

One seed is one run, callback for callback. How to run a server in it::

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

A server is any object with ``tasks: Tasks``, ``async start()``, ``async stop()``. Its factory gets
a fresh `SimRuntime` for each life of the process. After a crash it comes back by itself, on its
disk. Its process may end through an injected disk error (or one named in ``exits=``); any other
exception of a handler, a background task or a callback ends the run.

By hand: ``world.crash(name, lose_disk=False)``, ``restart``, ``stop``, ``pause``/``resume`` (a hung
process), ``move`` (a zombie beside its successor), ``partition``/``unpartition``,
``network.clog``/``reset``, ``nodes[name].disk`` (``full``, ``slowness``, ``fail_next_sync``,
``corrupt``), ``heal``. To look in: ``server(name)``, ``metrics[name]``, ``note(name, text)``.

Histories: `History` records what clients did, `check_rows` judges it. Scenarios for the runner and
for ``python -m stelae.simulation SEED --scenario NAME``: see `scenarios`.

Rules for code that runs here: never await a task or an object of another process; no threads, no
global randomness, no clock but ``runtime.clock`` and the loop's; no order taken from sets.
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
