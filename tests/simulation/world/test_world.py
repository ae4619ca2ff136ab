"""The simulated world: processes start, crash, hang, come back, and fail the run when they err."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest

from stelae.core.tasks import Tasks
from stelae.simulation import Options, SimulationFailure, World
from stelae.simulation.nemesis import Nemesis
from stelae.simulation.world.instance import EPOCH_S, SimRuntime

Background = Callable[[SimRuntime], Awaitable[None]]


class Fenced(Exception):
    """A server's own reason to end."""


class Plain:
    """A server that does one thing in the background."""

    def __init__(self, runtime: SimRuntime, background: Background | None) -> None:
        self.tasks = Tasks()
        self.runtime = runtime
        self.stopped = False
        self._background = background

    async def start(self) -> None:
        if self._background is not None:
            self.tasks.spawn(self._work(self._background), "background")

    async def _work(self, background: Background) -> None:
        await background(self.runtime)

    async def stop(self) -> None:
        await self.tasks.close()
        self.stopped = True


Body = Callable[[World], Awaitable[Any]]


def in_world(
    body: Body, background: Background | None = None, options: Options | None = None, **start: Any
) -> Any:
    """Run ``body`` in a world with one server "s"."""
    world = World("seed", options)

    async def main() -> Any:
        world.start("s", lambda runtime: Plain(runtime, background), **start)
        await world.wait_ready()
        return await body(world)

    return world.run(main())


async def sync_for_ever(runtime: SimRuntime) -> None:
    file = await runtime.disk.open("f")
    while True:
        file.write_at(file.size, b"x")
        await file.sync()
        await runtime.clock.sleep(0.1)


def test_a_crashed_server_comes_back_on_its_disk() -> None:
    """A new life, a new identity, the same disk, after a delay."""

    async def body(world: World) -> None:
        first = world.server("s")
        await asyncio.sleep(1.05)
        world.crash("s")
        assert world.server("s") is None
        await world.wait_ready()
        second = world.server("s")
        assert second is not first
        assert second.runtime.identity != first.runtime.identity
        assert world.nodes["s"].lives == 2
        assert world.nodes["s"].disk.durable("f").count(b"x") >= 10

    in_world(body, sync_for_ever)


def test_a_server_that_lost_its_disk_finds_it_empty() -> None:
    """lose_disk means that the next life starts from nothing."""

    async def body(world: World) -> None:
        await asyncio.sleep(1.0)
        world.crash("s", lose_disk=True)
        assert world.nodes["s"].disk.paths() == []
        await world.wait_ready()

    in_world(body, sync_for_ever)


def test_a_server_without_restart_stays_down_until_told() -> None:
    """auto_restart=False, restart=False and stop leave a node down; restart starts it."""

    async def body(world: World) -> None:
        world.crash("s")
        await asyncio.sleep(60.0)
        assert not world.nodes["s"].running
        world.restart("s")
        await world.wait_ready()
        server = world.server("s")
        await world.stop("s")
        assert server.stopped
        await asyncio.sleep(60.0)
        assert not world.nodes["s"].running

    in_world(body, auto_restart=False)


def test_new_lives_take_new_ports_if_wanted() -> None:
    """An address may belong to a life only."""

    async def body(world: World) -> None:
        before = world.address("s")
        world.restart("s")
        assert world.address("s") != before

    in_world(body, fixed_port=False)


def test_an_injected_disk_error_ends_the_process_only() -> None:
    """EIO in a background task is a crash and a restart, not a failure of the run."""

    async def body(world: World) -> None:
        world.nodes["s"].disk.fail_next_sync = True
        await world.wait_until(lambda: world.nodes["s"].lives == 2, 10.0, "a second life")

    in_world(body, sync_for_ever)


def test_a_full_disk_ends_the_process_until_there_is_space() -> None:
    """ENOSPC that a server does not handle restarts it, again and again."""

    async def body(world: World) -> None:
        world.nodes["s"].disk.full = True
        await asyncio.sleep(5.0)
        assert world.nodes["s"].lives > 2
        world.heal()
        await world.wait_ready()
        lives = world.nodes["s"].lives
        await asyncio.sleep(5.0)
        assert world.nodes["s"].lives == lives

    in_world(body, sync_for_ever)


def test_any_other_background_error_fails_the_run_with_the_story() -> None:
    """The failure names the process and carries what happened before."""

    async def fails(runtime: SimRuntime) -> None:
        await runtime.clock.sleep(1.0)
        raise KeyError("a bug")

    async def body(world: World) -> None:
        world.note("test", "before the failure")
        await asyncio.sleep(10.0)

    with pytest.raises(SimulationFailure) as caught:
        in_world(body, fails)
    assert isinstance(caught.value.error, KeyError)
    assert "in process s, life 1" in str(caught.value)
    assert "before the failure" in caught.value.story


def test_an_assertion_after_a_disk_error_still_fails_the_run() -> None:
    """An injected error excuses neither broken invariants nor what follows in handling it."""

    async def wrong(runtime: SimRuntime) -> None:
        try:
            await sync_for_ever(runtime)
        except OSError:
            raise AssertionError("invariant") from None

    async def body(world: World) -> None:
        world.nodes["s"].disk.fail_next_sync = True
        await asyncio.sleep(10.0)

    with pytest.raises(SimulationFailure, match="invariant"):
        in_world(body, wrong)


def test_a_server_may_end_itself_for_a_named_reason() -> None:
    """Errors in ``exits`` are an end of the process that Ray would answer with a restart."""

    async def ends(runtime: SimRuntime) -> None:
        await runtime.clock.sleep(1.0)
        raise Fenced

    async def body(world: World) -> None:
        await world.wait_until(lambda: world.nodes["s"].lives == 3, 60.0, "a third life")

    in_world(body, ends, exits=(Fenced,))
    with pytest.raises(SimulationFailure, match="Fenced"):
        in_world(body, ends)


def test_a_process_may_ask_for_its_own_crash() -> None:
    """The crash comes at its next await."""

    async def suicidal(runtime: SimRuntime) -> None:
        await runtime.clock.sleep(1.0)
        if worlds[0].nodes["s"].lives == 1:
            worlds[0].crash("s")
        await runtime.clock.sleep(1e6)

    worlds: list[World] = []

    async def body(world: World) -> None:
        worlds.append(world)
        await world.wait_until(lambda: world.nodes["s"].lives == 2, 60.0, "a second life")

    in_world(body, suicidal)


def test_process_gone_is_true_only_for_dead_processes_of_the_same_machine() -> None:
    """Hung is not gone, and other machines cannot tell."""

    async def body(world: World) -> None:
        watcher = world.client("c")
        old = world.server("s").runtime.identity

        def gone() -> bool:
            return watcher.process_gone(old.node, old.pid, old.started)

        world.pause("s")
        assert not gone()
        world.crash("s")
        assert gone() is world.options.one_machine
        await world.wait_ready()
        new = world.server("s").runtime.identity
        assert not watcher.process_gone(new.node, new.pid, new.started)
        if world.options.one_machine:  # a pid used again by a later process
            assert watcher.process_gone(new.node, new.pid, new.started + 1.0)

    in_world(body, options=Options(one_machine=True))
    in_world(body, options=Options(one_machine=False))


def test_objects_live_as_long_as_their_owner() -> None:
    """After the owner's crash an object is gone, also for its next life."""

    async def body(world: World) -> None:
        runtime = world.server("s").runtime
        source = bytearray(b"segment")
        handle = await runtime.objects.put(pa.py_buffer(source))
        source[:] = b"changed"
        other = world.client("c")
        assert handle.size == 7
        assert (await other.objects.get(handle)).to_pybytes() == b"segment"
        world.crash("s")
        await world.wait_ready()
        for reader in (other, world.server("s").runtime):
            with pytest.raises(KeyError):
                await reader.objects.get(handle)

    in_world(body)


def test_offload_clocks_and_metrics() -> None:
    """Offloaded work takes virtual time; clocks drift and are skewed; metrics count."""

    async def body(world: World) -> None:
        runtime = world.server("s").runtime
        began_s = world.loop.time()
        assert await runtime.offload(divmod, 7, 2) == (3, 1)
        assert world.loop.time() > began_s
        with pytest.raises(ZeroDivisionError):
            await runtime.offload(divmod, 7, 0)
        began_s = runtime.clock.monotonic()
        await runtime.clock.sleep(100.0)
        assert runtime.clock.monotonic() - began_s == pytest.approx(100.0)
        assert 0 < abs(runtime.clock.monotonic() - world.loop.time()) < 1.1
        assert 5.0 > abs(runtime.clock.now() - EPOCH_S - world.loop.time()) > 0
        runtime.metrics.count("rows", 2.0, table="t")
        runtime.metrics.count("rows", table="t")
        runtime.metrics.gauge("bytes", 5.0)
        runtime.metrics.observe("latency", 0.1)
        metrics = world.metrics["s"]
        assert metrics.counts == {"rows{table=t}": 3.0}
        assert metrics.gauges == {"bytes": 5.0}
        assert metrics.observations == {"latency": 1}

    in_world(body, options=Options(clock_drift=0.01, clock_skew_s=3.0))


def test_a_moved_server_has_a_zombie_for_a_while() -> None:
    """The old process lives on under another name while the new one has an empty disk."""

    async def body(world: World) -> None:
        await asyncio.sleep(1.0)
        old = world.server("s")
        before = world.address("s")
        zombie = world.move("s")
        await world.wait_ready("s")
        assert world.server(zombie) is old
        assert world.server("s") is not old
        assert (world.address(zombie), world.address("s")) == (before, "s:7001")
        lines = world.nodes[zombie].disk.durable("f").count(b"x")
        await asyncio.sleep(1.0)
        assert world.nodes[zombie].disk.durable("f").count(b"x") > lines
        assert 0 < world.nodes["s"].disk.durable("f").count(b"x") <= lines
        assert not world.client("c").process_gone(*identity_of(old))
        world.heal()
        await asyncio.sleep(10.0)
        assert not world.nodes[zombie].running
        assert world.nodes["s"].lives == 2
        await world.wait_ready()

    def identity_of(server: Plain) -> tuple[str, int, float]:
        identity = server.runtime.identity
        return identity.node, identity.pid, identity.started

    in_world(body, sync_for_ever, fixed_port=False)


def test_the_nemesis_loses_disks_only_where_allowed_and_leaves_everything_whole() -> None:
    """Zombies and empty disks occur; a spared disk stays; in the end all servers run."""

    async def run(world: World) -> None:
        for name in ("a", "b", "c"):
            world.start(
                name, lambda runtime: Plain(runtime, sync_for_ever), kind="t", fixed_port=False
            )
        await world.wait_ready()
        world.may_lose_disk = lambda name: name != "a"
        world.may_outlive = lambda name: name != "b"
        nemesis = Nemesis.begin(world, 200.0, losable=("t",))
        await asyncio.sleep(200.0)
        await nemesis.finish()
        nodes = world.nodes
        zombies = [name for name in nodes if nodes[name].kind == "zombie"]
        assert zombies
        assert not any(name.startswith("b") for name in zombies)
        assert not any(nodes[name].running for name in zombies)
        assert all(nodes[name].ready for name in "abc")
        assert nodes["a"].disks_lost == 0
        assert nodes["b"].disks_lost > 0
        assert nodes["c"].disks_lost > len(zombies)
        assert len(nodes["a"].disk.durable("f")) > 500

    options = Options(lost_disk_every_s=1.0, healing_s=5.0, crash_every_s=10.0, pause_every_s=20.0)
    world = World("lost disks", options)
    world.run(run(world))


def test_work_spawned_in_a_process_hangs_with_it() -> None:
    """A client task of a paused node waits."""

    async def body(world: World) -> None:
        world.client("c")
        done = []

        async def work() -> None:
            await asyncio.sleep(1.0)
            done.append(1)

        world.spawn("c", work())
        await asyncio.sleep(0.5)
        world.pause("c")
        await asyncio.sleep(10.0)
        assert not done
        world.heal()
        await asyncio.sleep(0.01)
        assert done

    in_world(body)


def test_waiting_in_vain_is_a_failure_that_says_for_what() -> None:
    """A liveness failure names the condition."""

    async def body(world: World) -> None:
        await world.wait_until(lambda: False, 5.0, "pigs fly")

    with pytest.raises(SimulationFailure, match=r"within 5\.0 s: pigs fly"):
        in_world(body)
