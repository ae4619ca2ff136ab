"""A deterministic asyncio loop: virtual time, and a seeded choice among the ready callbacks.

Unmodified asyncio code runs on it (locks, queues, timeouts, task groups, gather, shield). Three
things differ from a real loop:

- *Time is virtual*: it moves only when nothing is ready, straight to the next timer.
- *Tasks belong to processes*: each `Process` is a crash domain, carried by a context variable, so
  everything a server starts inherits it. A dead process never runs again, not even its ``finally``
  blocks as far as anyone can see; what a paused one would have run is held until it resumes.
- *Nothing is swallowed*: the exception of a callback, or of a task that nobody looks at, fails the
  run. Threads and executors are errors.

Nothing here depends on ``id()`` or on string hashes: tasks hash by their number, so that the sets
inside asyncio (`TaskGroup`, `wait`) keep one order. Source: the simulators of
FoundationDB and TigerBeetle.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
import random
import weakref
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

from stelae.simulation.world.process import PROCESS, Process, ProcessEnded

T = TypeVar("T")

LIVELOCK_CALLBACKS = 2_000_000
"""So many callbacks without time moving mean that something spins."""
GRACE_S = 60.0
"""A failed task whose exception nobody has looked at for so long fails the run."""
COLLECT_EVERY = 100_000
"""Callbacks between two garbage collections, which must come at the same points in every run."""


class SimulationError(Exception):
    """The world itself cannot go on: deadlock, livelock, time limit, or a forbidden call."""


class SimHandle(asyncio.TimerHandle):
    """A callback to run, and the process it belongs to."""

    __slots__ = ("process",)

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
        when: float,
    ) -> None:
        # Deliberately not calling super().__init__: it is twice as slow, and for debug mode only.
        if context is None:
            self._context = contextvars.copy_context()
            self.process = PROCESS.get()
        else:
            self._context = context
            self.process = context.get(PROCESS)
        self._callback: Callable[..., object] | None = callback
        self._args = args
        self._cancelled = False
        self._when = when

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = None
        self._args = ()

    def cancelled(self) -> bool:
        return self._cancelled

    def __repr__(self) -> str:
        return f"<SimHandle {self._callback!r} of {self.process.name if self.process else 'world'}>"


class SimTask(asyncio.Task[T]):
    """A task that hashes by its number, so that sets of tasks have one order in every run."""

    __slots__ = ("number", "sim_context")

    def __init__(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        number: int,
        loop: SimLoop,
        name: str,
        context: contextvars.Context,
    ) -> None:
        self.number = number
        self.sim_context = context
        super().__init__(coro, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self.number


class SimFuture(asyncio.Future[T]):
    """A future that hashes by its number, for the same reason, and knows whose it is."""

    __slots__ = ("number", "process")

    number: int
    process: Process | None

    def __hash__(self) -> int:
        return self.number


class SimLoop(asyncio.AbstractEventLoop):
    """Runs asyncio code in virtual time; the same seed gives the same run, callback for callback.

    Args:
        rng: decides which ready callback runs next.
        shuffle: how often that is any of them rather than the oldest; 0 is asyncio's own order.
    """

    def __init__(self, rng: random.Random, shuffle: float = 1.0) -> None:
        self._draw = rng.random
        self._shuffle = shuffle
        self._now = 0.0
        self._ready: list[SimHandle] = []
        self._timers: list[tuple[float, int, SimHandle]] = []
        self._timers_made = 0
        self._tasks_made = 0
        self._world_tasks: dict[asyncio.Task[Any], None] = {}
        self._processes: list[Process] = []
        self._failed: list[weakref.ref[SimTask[Any]]] = []
        self._failure: BaseException | None = None
        self._failed_process: Process | None = None
        self._running = False
        self._closed = False
        self.steps = 0
        """Callbacks run so far."""
        self.mix = 0
        """A rolling hash of how many callbacks were ready at each step: two equal runs agree."""
        self.context = contextvars.Context()
        """Where callbacks of the world itself run, owned by no process."""

    # ---- what asyncio asks of a loop ----------------------------------------------------------

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> SimHandle:
        handle = SimHandle(callback, args, context, self._now)
        self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> SimHandle:
        return self._set_timer(when, callback, args, context)

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> SimHandle:
        return self._set_timer(self._now + delay, callback, args, context)

    def _set_timer(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> SimHandle:
        handle = SimHandle(callback, args, context, when)
        self._timers_made += 1  # ties keep the order of their making
        heapq.heappush(self._timers, (when, self._timers_made, handle))
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, *args: Any, **kwargs: Any
    ) -> asyncio.Handle:
        raise SimulationError("a thread called into the simulated loop")

    def run_in_executor(  # type: ignore[override]
        self, *args: Any, **kwargs: Any
    ) -> Any:
        raise SimulationError("threads are not allowed in simulation; use runtime.offload")

    def create_future(self) -> asyncio.Future[Any]:
        self._tasks_made += 1
        future: SimFuture[Any] = SimFuture(loop=self)
        future.number = self._tasks_made
        future.process = PROCESS.get()
        return future

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> SimTask[T]:
        if context is None:
            context = contextvars.copy_context()
        self._tasks_made += 1
        task = SimTask(coro, self._tasks_made, self, name or f"task-{self._tasks_made}", context)
        process = context.get(PROCESS)
        if process is None:
            self._world_tasks[task] = None
        elif process.alive:
            process.tasks[task] = None
        else:  # a ``finally`` of a dead process
            _finish(task)
            return task
        task.add_done_callback(self._task_done, context=context)
        return task

    def _task_done(self, task: SimTask[Any]) -> None:
        process = PROCESS.get()
        tasks = self._world_tasks if process is None else process.tasks
        tasks.pop(task, None)
        # Private, unchanged since 3.4, guarded by a test: True until somebody asks for the error.
        if not task.cancelled() and task._log_traceback:
            reference = weakref.ref(task)
            self._failed.append(reference)
            self.call_later(GRACE_S, self._still_unseen, reference)

    def _still_unseen(self, reference: weakref.ref[SimTask[Any]]) -> None:
        task = reference()
        if reference in self._failed:
            self._failed.remove(reference)
        if task is not None and task._log_traceback:
            self.fail(_error_of(task), PROCESS.get())

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Fail the run: asyncio reports here what nobody else will see.

        A process may die between a future's failure and the turn of the task that waits for it; the
        future is collected at some later moment, which may be anybody's.
        """
        future = context.get("future")
        owner = None
        if isinstance(future, SimFuture):
            owner = future.process
        elif isinstance(future, SimTask):
            owner = future.sim_context.get(PROCESS)
        if owner is not None and not owner.alive:
            return
        error = context.get("exception")
        if not isinstance(error, BaseException):
            error = SimulationError(str(context.get("message")))
        self.fail(error, PROCESS.get())

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers stay in the heap until their time comes."""

    # ---- running ------------------------------------------------------------------------------

    def fail(self, error: BaseException, process: Process | None = None) -> None:
        """End the run with ``error`` after the current callback; the first failure counts."""
        if self._failure is None and not (process is not None and not process.alive):
            self._failure, self._failed_process = error, process

    @property
    def failed_process(self) -> Process | None:
        """The process in which the failure of the run happened, if it was in one."""
        return self._failed_process

    def run(self, main: Coroutine[Any, Any, T], limit_s: float) -> T:
        """Run ``main`` to its end, then stop everything else.

        Raises:
            SimulationError: deadlock, livelock, or more than ``limit_s`` of virtual time.
            BaseException: that of ``main``, or of any callback or task that nobody looked at.
        """
        assert not self._closed, "a loop runs once"
        assert not self._running, "a loop runs once"
        assert asyncio._get_running_loop() is None, "simulate from a synchronous test"
        collecting = gc.isenabled()
        gc.disable()  # finalizers run at fixed points, or runs would differ
        asyncio._set_running_loop(self)
        self._running = True
        try:
            task = self.create_task(main, name="main", context=self.context.copy())
            self._run_until(task, self._now + limit_s)
            if task.exception() is None:
                self._check_unseen()
            return task.result()
        finally:
            self._shut_down()
            self._running = False
            self._closed = True
            asyncio._set_running_loop(None)
            if collecting:
                gc.enable()

    def _run_until(self, task: SimTask[Any], end: float) -> None:
        ready, draw, shuffle, is_over = self._ready, self._draw, self._shuffle, task.done
        moved_at = collected_at = self.steps
        look_at = 0  # nothing but the callback itself needs a look before so many
        while not is_over():
            if not ready:
                self._advance(end)
                moved_at = self.steps
            count = len(ready)
            if count == 1:
                handle = ready.pop()
            else:
                handle = ready.pop(int(draw() * count) if draw() < shuffle else 0)
            if handle._cancelled:
                continue
            process = handle.process
            if process is not None and (process.paused or not process.alive):
                if process.alive:
                    process.held.append(handle)
                continue
            self.steps = steps = self.steps + 1
            self.mix = (self.mix * 1_000_003 + count) & 0xFFFF_FFFF_FFFF
            self._call(handle)
            if self._failure is not None:
                raise self._failure
            if steps > look_at:
                if steps - moved_at > LIVELOCK_CALLBACKS:
                    raise SimulationError(f"livelock: time stands still at {self._now:.6f} s")
                if steps - collected_at > COLLECT_EVERY:
                    collected_at = steps
                    gc.collect(1)
                look_at = min(moved_at + LIVELOCK_CALLBACKS, collected_at + COLLECT_EVERY)

    def _call(self, handle: SimHandle) -> None:
        assert handle._callback is not None
        try:
            handle._context.run(handle._callback, *handle._args)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            self.fail(error, handle.process)

    def _advance(self, end: float) -> None:
        """Move the clock to the next timer, and make all timers of that moment ready."""
        timers, ready = self._timers, self._ready
        while timers and not ready:
            when = timers[0][0]
            if when > end:
                raise SimulationError(f"not done after {end:.0f} s of virtual time")
            while timers and timers[0][0] <= when:
                handle = heapq.heappop(timers)[2]
                if not handle._cancelled and (handle.process is None or handle.process.alive):
                    ready.append(handle)
            if ready and when > self._now:
                self._now = when
        if not ready:
            raise SimulationError(f"deadlock at {self._now:.6f} s: nothing is left to run")

    def _check_unseen(self) -> None:
        for reference in self._failed:
            task = reference()
            process = task.sim_context.get(PROCESS) if task is not None else None
            if process is not None and not process.alive:
                continue  # it died before anybody in it could look
            if task is not None and task._log_traceback:
                raise _error_of(task)

    # ---- processes ----------------------------------------------------------------------------

    def new_process(self, name: str, incarnation: int) -> Process:
        """Make a process; it ends with `kill`, or with the run."""
        process = Process(name, incarnation)
        self._processes.append(process)
        return process

    def pause(self, process: Process) -> None:
        """Stop running anything of the process, as SIGSTOP does."""
        process.paused = True

    def resume(self, process: Process) -> None:
        """Run what was held, and go on."""
        process.paused = False
        self._ready.extend(process.held)
        process.held.clear()

    def kill(self, process: Process) -> None:
        """End the process: none of its callbacks runs again.

        Its coroutines are closed at once, so that no finalizer is left to the garbage collector.
        By then the process is dead: files and network refuse what ``finally`` blocks try.
        """
        assert PROCESS.get() is not process, "a process is killed from outside"
        process.alive = False
        process.held.clear()
        for task in list(process.tasks):
            assert isinstance(task, SimTask)
            _finish(task)
        process.tasks.clear()
        self._processes.remove(process)

    def _shut_down(self) -> None:
        for process in list(self._processes):
            self.kill(process)
        for task in list(self._world_tasks):
            assert isinstance(task, SimTask)
            _finish(task)
        self._world_tasks.clear()
        self._ready.clear()
        self._timers.clear()


def _error_of(task: asyncio.Task[Any]) -> BaseException:
    error = task.exception()
    assert error is not None
    error.add_note(f"in task {task.get_name()!r}, whose exception nobody looked at")
    return error


def _finish(task: SimTask[Any]) -> None:
    """Close a task's coroutine; ``finally`` blocks that await are cut short."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coro: Any = task.get_coro()
    for _ in range(100):
        try:
            task.sim_context.copy().run(coro.close)
            return
        except (RuntimeError, ProcessEnded):
            continue  # it awaited while closing: close again from there
        except BaseException:
            return  # the dying breath of a dead process says nothing about the system
