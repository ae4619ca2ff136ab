"""The cluster's Spark session as a Ray actor, and how the leader master uses it for recoveries.

`SparkHost` (``<cluster>/spark``, detached) keeps the session in a child process (see
`stelae.actors.ray_host.spark_process`), starts it when asked to or at once (warm), and bounds
everything by time: a session that does not come up or a job that hangs is killed with all its JVMs,
and the caller is told, who then goes on natively. `RaySparkEngine` is the master's end.

Source: design §9.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import ray

from stelae.actors.ray_host.spark_plan import NAMESPACE, SPARK_NAME, SparkPlan
from stelae.actors.ray_host.spark_process import Done, Order, Setup, Started, encode_frame
from stelae.core.errors import InvalidArgument, StelaeError, Unavailable
from stelae.core.ids import TabletId
from stelae.recovery.engine import RecoveryJob, SparkState
from stelae.recovery.java import find_java, java_environment, python_environment
from stelae.runtime.logs import log_as

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0
"""Of a session, from nothing to warm; measured 15 to 45 s on two cores."""
JOB_TIMEOUT_S = 30.0
JOB_BYTES_PER_S = 50e6
"""A job may take `JOB_TIMEOUT_S` and what its bytes take at this rate."""
STOP_TIMEOUT_S = 3.5
ASSUMED_START_S = 30.0
"""How long a session takes to start, until it was seen."""
RESTART_PAUSE_S = (2.0, 10.0, 60.0, 300.0)
"""Before a warm session that has failed is started again; the last one for ever."""
STATE_POLL_S = 2.0
FRAME_BYTES_MAX = 1 << 30


class Session:
    """One run of the child process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._answers: dict[int, asyncio.Future[Done]] = {}
        self._number = 0
        self._reader: asyncio.Task[None] | None = None
        self.started = Started()

    @staticmethod
    async def start(plan: SparkPlan, ray_address: str) -> Session:
        """Start the child and wait until the session is warm.

        Raises:
            InvalidArgument: Java is missing.
            Unavailable: it did not come up in time, or at all; nothing is left of it.
        """
        environment = {**os.environ, **java_environment(find_java()), **python_environment()}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "stelae.actors.ray_host.spark_process",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        session = Session(process)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await session._send(
                    Setup(
                        ray_address=ray_address,
                        ray_namespace=plan.ray_namespace,
                        cluster=plan.cluster,
                        masters=plan.masters,
                        secret=plan.secret,
                        settings=plan.settings,
                        size=plan.size,
                        start_timeout_s=START_TIMEOUT_S,
                        peer_tls=plan.peer_tls,
                        node_address=ray.util.get_node_ip_address(),
                    )
                )
                body = await session._receive()
        except TimeoutError:
            await session.kill()
            text = f"it did not come up in {START_TIMEOUT_S:g} s"
            raise Unavailable("the Spark session", text) from None
        except BaseException:
            await session.kill()
            raise
        session.started = (
            Started(problem="its process ended")
            if body is None
            else msgspec.msgpack.decode(body, type=Started)
        )
        if session.started.problem:
            await session.kill()
            raise Unavailable("the Spark session", session.started.problem)
        session._reader = asyncio.create_task(session._read_answers())
        return session

    @property
    def is_alive(self) -> bool:
        return self._reader is not None and not self._reader.done()

    async def recover(self, jobs: Sequence[RecoveryJob], timeout_s: float) -> Done:
        """Have the session carry out a recovery job. Raises Unavailable, TimeoutError."""
        if not self.is_alive:
            raise Unavailable("the Spark session", "its process ended")
        self._number += 1
        number = self._number
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await self._send(Order(number, tuple(jobs)))
                done: Done = await answer
                return done
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Unavailable("the Spark session", "its process ended") from error
        finally:
            del self._answers[number]

    async def stop(self) -> None:
        """End it in order; by force if that takes too long."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._process.wait()
        await self.kill()

    async def kill(self) -> None:
        """End the child and its JVM at once; Ray ends the actors of the driver that it was."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        if self._reader is not None:
            self._reader.cancel()
        self._give_up()

    async def _send(self, message: msgspec.Struct) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(encode_frame(message))
        await self._process.stdin.drain()

    async def _receive(self) -> bytes | None:
        """The next answer; None when the child has ended."""
        assert self._process.stdout is not None
        try:
            head = await self._process.stdout.readexactly(8)
            length = int.from_bytes(head, "little")
            if length > FRAME_BYTES_MAX:
                logger.error("the Spark session sent a frame of %d bytes: it is given up", length)
                return None
            return await self._process.stdout.readexactly(length)
        except asyncio.IncompleteReadError:
            return None  # how a pipe says that the child has ended

    async def _read_answers(self) -> None:
        try:
            while (body := await self._receive()) is not None:
                done = msgspec.msgpack.decode(body, type=Done)
                waiting = self._answers.get(done.number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(done)
        except msgspec.MsgspecError:
            logger.exception("the Spark session sent what is no answer: it is given up")
        finally:
            self._give_up()

    def _give_up(self) -> None:
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_exception(Unavailable("the Spark session", "its process ended"))


class SparkHost:
    """The actor class. One session at a time, started by whoever needs it first."""

    def __init__(self, plan: SparkPlan) -> None:
        log_as(cluster=plan.cluster, kind="spark", server="spark")
        self._plan = plan
        self._session: Session | None = None
        self._starting: asyncio.Task[Session] | None = None
        self._start_s = ASSUMED_START_S
        self._problem = ""
        self._keeper = asyncio.get_running_loop().create_task(self._keep_warm())
        self._keeper.add_done_callback(_log_failure)

    def __repr__(self) -> str:
        return f"Stelae({SPARK_NAME})"

    async def state(self) -> dict[str, Any]:
        """For status and for the leader: whether the session is warm, and what it took."""
        session = self._session if self._is_warm else None
        starting = self._starting is not None and not self._starting.done()
        return {
            "state": "warm" if session else "starting" if starting else "cold",
            "cores": self._plan.size.total_cores,
            "start_s": 0.0 if session else self._start_s,
            "session_s": session.started.session_s if session else 0.0,
            "warm_s": session.started.warm_s if session else 0.0,
            "workers": session.started.workers if session else 0,
            "problem": "" if session else self._problem,
        }

    async def describe(self) -> SparkPlan:
        """What it was made with."""
        return self._plan

    async def warm(self) -> dict[str, Any]:
        """Start the session if it is not there, wait until it is warm; return its state."""
        await self._ready()
        return await self.state()

    async def recover(self, jobs: bytes, timeout_s: float) -> bytes:
        """Run a recovery job (msgpack of `RecoveryJob`s); return msgpack of `Done`.

        Starts a session on demand if there is none, for which it has `START_TIMEOUT_S` besides; one
        that was to be warm and is not yet is not waited for. A job that takes longer than
        ``timeout_s`` is killed with the session.

        Raises:
            Unavailable, InvalidArgument: there is no session, or the job failed; the text says why.
        """
        if self._plan.warm and not self._is_warm:
            raise Unavailable("the Spark session", self._problem or "it is still being started")
        session = await self._ready()
        decoded = msgspec.msgpack.decode(jobs, type=tuple[RecoveryJob, ...])
        try:
            done = await session.recover(decoded, timeout_s)
        except TimeoutError:
            logger.error("a recovery job took more than %g s: its session is ended", timeout_s)
            await session.kill()
            raise Unavailable("the Spark session", f"no end after {timeout_s:g} s") from None
        if done.is_over:
            logger.error("the Spark session is over, and is ended: %s", done.problem)
            await session.kill()
        if done.problem:
            raise Unavailable("the Spark recovery job", done.problem)
        return msgspec.msgpack.encode(done)

    async def stop(self) -> None:
        """End the session and its JVMs; the actor is then killed by the caller."""
        self._keeper.cancel()
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        if self._session is not None:
            await self._session.stop()

    @property
    def _is_warm(self) -> bool:
        return self._session is not None and self._session.is_alive

    async def _ready(self) -> Session:
        """The session, started if need be; callers who come together wait for one start."""
        if self._session is not None and self._session.is_alive:
            return self._session
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._start())
        return await asyncio.shield(self._starting)

    async def _start(self) -> Session:
        if self._session is not None:
            await self._session.kill()
            self._session = None
        began = time.monotonic()
        try:
            address = ray.get_runtime_context().gcs_address
            self._session = await Session.start(self._plan, address)
        except (StelaeError, OSError) as error:
            self._problem = str(error)
            logger.warning("Spark is not to be had: %s", error)
            raise
        self._start_s = time.monotonic() - began
        self._problem = ""
        logger.info("Spark is warm after %.1f s", self._start_s)
        return self._session

    async def _keep_warm(self) -> None:
        """With a warm session asked for: start it now, and again whenever it has ended."""
        failures = 0
        while self._plan.warm:
            try:
                session = await self._ready()
            except (Unavailable, OSError):  # logged by `_start`, and told by `state`
                pause_s = RESTART_PAUSE_S[min(failures, len(RESTART_PAUSE_S) - 1)]
                failures += 1
                await asyncio.sleep(pause_s)
                continue
            except InvalidArgument:
                return  # no Java: that does not change by waiting
            failures = 0
            assert session._reader is not None
            await asyncio.wait([session._reader])


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.critical("Spark is not kept warm any more", exc_info=error)


def spark_actor(plan: SparkPlan) -> Any:
    """The cluster's Spark actor, made now if there is none."""
    return (
        ray.remote(SparkHost)
        .options(
            name=f"{plan.cluster}/{SPARK_NAME}",
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=100,
            enable_task_events=False,
        )
        .remote(plan)
    )


class RaySparkEngine:
    """The Spark engine as a master sees it; `stelae.recovery.engine.SparkEngine`."""

    def __init__(self, plan: SparkPlan) -> None:
        self._plan = plan
        self._state = SparkState(plan.size.total_cores, ASSUMED_START_S)
        self._answers = True
        self._actor: Any = None
        """Whom the last order went to: to find it again takes two calls more."""

    @property
    def state(self) -> SparkState:
        """As it was a moment ago: a recovery does not wait for an answer about it."""
        return self._state

    async def __call__(self, jobs: Sequence[RecoveryJob]) -> Mapping[TabletId, str]:
        """See `SparkEngine`. Raises Unavailable if there is no session, or the job fails."""
        try:
            done = await self._order(jobs)
        except Unavailable:
            self._state = await self._ask()  # whether it is worth asking again
            raise
        outcomes = {outcome.tablet_id: outcome.problem for outcome in done.outcomes}
        missing = "the job has no answer for it"
        wanted = {job.tablet.tablet_id: None for job in jobs}
        problems = {tablet: outcomes.get(tablet, missing) for tablet in wanted}
        return {tablet: problem for tablet, problem in problems.items() if problem}

    async def _order(self, jobs: Sequence[RecoveryJob]) -> Done:
        size_bytes = sum(job.size_bytes for job in jobs)
        timeout_s = JOB_TIMEOUT_S + size_bytes / JOB_BYTES_PER_S
        began = time.monotonic()
        body = msgspec.msgpack.encode(tuple(jobs))
        try:
            async with asyncio.timeout(START_TIMEOUT_S + timeout_s):
                if self._actor is None:
                    self._actor = await asyncio.to_thread(spark_actor, self._plan)
                answer = await self._actor.recover.remote(body, timeout_s)
        except TimeoutError:
            raise Unavailable("the Spark session", "the actor does not answer") from None
        except ray.exceptions.RayTaskError as error:
            raise Unavailable("the Spark session", str(error.cause)) from error
        except ray.exceptions.RayActorError as error:
            self._actor = None
            raise Unavailable("the Spark session", str(error)) from error
        done = msgspec.msgpack.decode(answer, type=Done)
        self._log(done, time.monotonic() - began, size_bytes)
        return done

    def _log(self, done: Done, seconds: float, size_bytes: int) -> None:
        times = {
            name: max((getattr(outcome, name) for outcome in done.outcomes), default=0.0)
            for name in ("fetch_s", "merge_s", "install_s")
        }
        logger.info(
            "Spark merged %d tablets (%.0f MB of log, %d rows) in %.3f s, the job %.3f s; at most "
            "fetch %.3f s, merge %.3f s, install %.3f s; %d entries for lost indexlets, at most "
            "%.3f s",
            len(done.outcomes),
            size_bytes / 1e6,
            sum(outcome.row_count for outcome in done.outcomes),
            seconds,
            done.seconds,
            times["fetch_s"],
            times["merge_s"],
            times["install_s"],
            sum(outcome.indexes.entry_count for outcome in done.outcomes),
            max((outcome.indexes.seconds for outcome in done.outcomes), default=0.0),
        )

    async def watch(self, is_leader: Any) -> None:
        """Keep `state` current while this master leads. Runs for ever."""
        while True:
            if is_leader():
                self._state = await self._ask()
            await asyncio.sleep(STATE_POLL_S)

    async def _ask(self) -> SparkState:
        cores, name = self._plan.size.total_cores, f"{self._plan.cluster}/{SPARK_NAME}"
        try:
            actor: Any = await asyncio.to_thread(ray.get_actor, name, NAMESPACE)
            async with asyncio.timeout(STATE_POLL_S):
                state = await actor.state.remote()
            self._actor = actor
        except ValueError:
            self._actor = None
            return SparkState(cores, ASSUMED_START_S)  # no such actor: a job starts it
        except (TimeoutError, ray.exceptions.RayError) as error:
            if self._answers:
                logger.warning("the Spark actor does not tell its state: %r", error)
            self._answers = False
            return SparkState(cores, ASSUMED_START_S)
        self._answers = True
        return SparkState(state["cores"], state["start_s"])
