"""The loop of the simulated world: time, order, failures, processes."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from stelae.simulation import PROCESS, SimLoop, SimulationError
from tests.simulation.world.loops import make_loop


def run(main: Coroutine[Any, Any, Any], seed: str = "seed", limit_s: float = 1e6) -> Any:
    return make_loop(random.Random(seed)).run(main, limit_s)


def test_time_is_virtual_and_jumps_to_the_next_timer() -> None:
    """A day of sleep costs nothing and is exact."""

    async def main() -> float:
        await asyncio.sleep(86_400.0)
        return asyncio.get_running_loop().time()

    assert run(main()) == 86_400.0


def test_plain_asyncio_code_works() -> None:
    """Queues, events, locks, groups, timeouts, gather, shield and wait behave as documented."""

    async def producer(queue: asyncio.Queue[int], lock: asyncio.Lock) -> None:
        for number in range(5):
            async with lock:
                await asyncio.sleep(0.01)
                await queue.put(number)

    async def slow() -> str:
        await asyncio.sleep(1.0)
        return "slow"

    async def main() -> list[int]:
        queue: asyncio.Queue[int] = asyncio.Queue(maxsize=2)
        lock, event = asyncio.Lock(), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(producer(queue, lock))
            group.create_task(event.wait())
            got = [await queue.get() for _ in range(15)]
            event.set()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await slow()
        kept = asyncio.create_task(slow())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(kept), 0.1)
        assert list(await asyncio.gather(kept, slow())) == ["slow", "slow"]
        done, pending = await asyncio.wait(
            {asyncio.create_task(slow()), asyncio.create_task(event.wait())},
            return_when=asyncio.FIRST_COMPLETED,
        )
        assert len(done) == len(pending) == 1
        await asyncio.wait(pending)
        return got

    assert sorted(run(main())) == sorted([0, 1, 2, 3, 4] * 3)


def order_of_ten(seed: str, shuffle: float) -> list[int]:
    async def main() -> list[int]:
        order: list[int] = []

        async def one(number: int) -> None:
            await asyncio.sleep(0)
            order.append(number)

        await asyncio.gather(*(one(number) for number in range(10)))
        return order

    return make_loop(random.Random(seed), shuffle).run(main(), 1.0)


def test_the_seed_decides_the_order_of_ready_callbacks() -> None:
    """The same seed repeats an order, other seeds give others, and shuffle 0 is asyncio's."""
    orders = [order_of_ten(str(seed), 1.0) for seed in range(5)]
    assert orders == [order_of_ten(str(seed), 1.0) for seed in range(5)]
    assert len({tuple(order) for order in orders}) > 1
    assert order_of_ten("any", 0.0) == list(range(10))


def test_the_exception_of_an_unowned_task_fails_the_run() -> None:
    """A task nobody awaits cannot fail silently."""

    async def fails() -> None:
        await asyncio.sleep(0.1)
        raise ZeroDivisionError

    async def main() -> None:
        asyncio.get_running_loop().create_task(fails())
        await asyncio.sleep(10.0)

    with pytest.raises(ZeroDivisionError):
        run(main())


def test_the_exception_of_a_task_that_is_kept_but_never_looked_at_fails_the_run() -> None:
    """A reference to a failed task does not hide its failure (guards a private attribute)."""
    kept = []

    async def fails() -> None:
        raise ZeroDivisionError

    async def main(wait_s: float) -> None:
        kept.append(asyncio.create_task(fails()))
        await asyncio.sleep(wait_s)

    for wait_s in (1.0, 1000.0):  # at the end of the run, and in its midst
        with pytest.raises(ZeroDivisionError):
            run(main(wait_s))


def test_the_exception_of_a_callback_fails_the_run() -> None:
    """Callbacks have no owner, so their errors end the run."""

    async def main() -> None:
        asyncio.get_running_loop().call_later(1.0, lambda: 1 / 0)
        await asyncio.sleep(10.0)

    with pytest.raises(ZeroDivisionError):
        run(main())


def test_a_deadlock_a_livelock_and_a_run_without_end_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing left to run, time standing still, and too much time are failures."""

    async def deadlock() -> None:
        await asyncio.Event().wait()

    async def spin(delay_s: float) -> None:
        for _ in itertools.count():
            await asyncio.sleep(delay_s)

    with pytest.raises(SimulationError, match="deadlock"):
        run(deadlock())
    monkeypatch.setattr("stelae.simulation.world.loop.LIVELOCK_CALLBACKS", 1000)
    with pytest.raises(SimulationError, match="livelock"):
        run(spin(0.0))
    with pytest.raises(SimulationError, match="not done after 100 s"):
        run(spin(1.0), limit_s=100.0)


def test_threads_are_refused() -> None:
    """A thread would make runs differ, so the executor is an error."""

    async def main() -> None:
        await asyncio.to_thread(print)

    with pytest.raises(SimulationError, match="threads"):
        run(main())


def test_killing_a_process_ends_exactly_its_tasks() -> None:
    """Tasks started by a process's tasks die with it, and nothing of it runs again."""
    ran: list[str] = []

    async def child(name: str) -> None:
        try:
            while True:
                await asyncio.sleep(1.0)
                ran.append(name)
        finally:
            await asyncio.sleep(1.0)  # a dead process cannot wait either
            ran.append(f"{name} cleaned up")

    async def parent(name: str) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(child(name))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        processes = [loop.new_process(name, 1) for name in ("a", "b")]
        tasks = [
            loop.create_task(parent(process.name), context=process.context.copy())
            for process in processes
        ]
        await asyncio.sleep(2.5)
        loop.kill(processes[0])
        ran.clear()
        await asyncio.sleep(2.0)
        assert ran == ["b", "b"]
        assert PROCESS.get() is None
        assert not processes[0].tasks
        assert not tasks[1].done()

    run(main())
    assert "a cleaned up" not in ran


@pytest.mark.parametrize("dies", [True, False])
def test_a_failed_future_fails_the_run_unless_its_process_died_before_it_could_look(
    dies: bool,
) -> None:
    """A future that fails at the instant of a crash is collected later, in the midst of others."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        process = loop.new_process("server", 1)
        context = contextvars.copy_context()
        context.run(PROCESS.set, process)
        future = context.run(loop.create_future)
        future.set_exception(ZeroDivisionError())
        if dies:
            loop.kill(process)
        del future
        await asyncio.sleep(1.0)

    if dies:
        run(main())
    else:
        with pytest.raises(ZeroDivisionError):
            run(main())


def test_a_task_that_fails_at_the_instant_of_its_processs_death_does_not_fail_the_run() -> None:
    """Whoever in it waited for the task can look at it no more."""

    async def fails() -> None:
        raise ZeroDivisionError

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        process = loop.new_process("server", 1)
        task = loop.create_task(fails(), context=process.context.copy())
        await asyncio.sleep(0)
        assert task.done()
        loop.kill(process)
        del task
        await asyncio.sleep(1.0)

    make_loop(random.Random(1), 0.0).run(main(), 10.0)


def test_a_paused_process_runs_nothing_until_it_resumes() -> None:
    """A hung process misses nothing: what became ready runs after it."""
    ran: list[float] = []

    async def ticks() -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(1.0)
            ran.append(loop.time())

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        process = loop.new_process("a", 1)
        ticking = loop.create_task(ticks(), context=process.context.copy())
        await asyncio.sleep(1.5)
        loop.pause(process)
        await asyncio.sleep(10.0)
        assert ran == [1.0]
        loop.resume(process)
        await asyncio.sleep(1.1)
        assert ran == [1.0, 11.5, 12.5]
        assert not ticking.done()

    run(main())


def test_sets_of_tasks_and_futures_have_one_order() -> None:
    """Asyncio keeps tasks in sets; their order must not come from addresses."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in range(50)]
        tasks = [asyncio.ensure_future(asyncio.sleep(0)) for _ in range(50)]
        assert [hash(one) for one in futures] == sorted(hash(one) for one in futures)
        assert [hash(one) for one in tasks] == [hash(tasks[0]) + n for n in range(50)]
        await asyncio.gather(*tasks)

    run(main())
