"""Carries out what is put to ``/v1/cluster/spec``: an actor beside the cluster's servers.

It outlives the HTTP front, which an apply may start anew; and one runs at a time, by the masters'
word. How far each is, is kept while the actor lives; what was asked for last is in ``spec.json``,
and an apply that was interrupted, or cancelled at its next look, goes on when it is put again. It
begins on its own, also when whoever put it waits no longer: then the outcome is unknown. Design
§12; decisions §44.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
import uuid
from collections.abc import Awaitable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ray

from stelae.actors.ray_host.host import NAMESPACE
from stelae.core.errors import (
    AlreadyRunning,
    DeadlineExpired,
    InvalidArgument,
    OutcomeUnknown,
    RetryLater,
    StelaeError,
)
from stelae.deploy.asked import Kept, kept_spec
from stelae.deploy.cluster_files import home_of
from stelae.deploy.machines import NODE_ID
from stelae.serve.bodies.problems import PreconditionFailed

ACTOR = "apply"
CALLS_AT_ONCE = 16
OPERATIONS_KEPT = 50
LONGEST_S = 24 * 3600.0
RUNNING, DONE, FAILED, CANCELLED = "running", "done", "failed", "cancelled"
AGAIN = "put it again: while it runs, that is refused and names the operation"

Document = dict[str, Any]


class ApplierEnded(RetryLater):
    """The actor, while it was asked; it is started again."""


class Cancelled(Exception):
    """Somebody wants no more of it."""


@dataclass(slots=True)
class Operation:
    """One apply, as its resource shows it."""

    id: str
    by: str
    state: str = RUNNING
    steps_done: int = 0
    steps: int = 0
    text: str = ""
    error: str = ""
    cancelled_by: str = ""
    """Somebody, who wants it to end at its next look; or empty."""


def etag_of(kept: Kept) -> str:
    """Which asking it is."""
    return hashlib.blake2b(repr(kept.stamp).encode(), digest_size=8).hexdigest()


class SpecHost:
    """The actor. Its methods block, each in a thread of its own."""

    def __init__(self, cluster: str, data_dir: str) -> None:
        self._cluster = cluster
        self._data_dir = data_dir
        self._lock = threading.Lock()
        self._operations: dict[str, Operation] = {}

    def stop(self) -> None:
        """The cluster is taken down."""

    def kept(self) -> Document:
        """What was asked for last. Raises RetryLater: the cluster is not up yet."""
        with home_of(self._cluster, (self._data_dir,)) as home:
            kept = kept_spec(home)
        if kept is None:
            raise RetryLater("nobody has written down yet what was asked of this cluster")
        found = {"spec": kept.spec, "by": kept.by, "at": kept.at_s, "done": kept.is_done}
        return {**found, "etag": etag_of(kept)}

    def plan(self, spec: Document) -> Document:
        """What would be done. Raises StelaeError."""
        return self._apply(spec, Operation("", ""), dry_run=True)

    def begin(self, spec: Document, by: str, etag: str) -> Document:
        """See `ClusterSpecs.begin`."""
        with self._lock:
            running = [each for each in self._operations.values() if each.state == RUNNING]
            if running:
                raise AlreadyRunning(f"operation {running[0].id} is changing this cluster")
            if etag and self.kept()["etag"] != etag:
                raise PreconditionFailed("something else was asked for meanwhile")
            shown = self.plan(spec)
            if shown["refused"]:
                reasons = "".join(f"\n  {reason}" for reason in shown["refused"])
                raise InvalidArgument(f"this cannot be applied:{reasons}")
            work = Operation(uuid.uuid4().hex[:12], by, steps=len(shown["steps"]))
            self._operations[work.id] = work
            while len(self._operations) > OPERATIONS_KEPT:
                del self._operations[next(iter(self._operations))]
            threading.Thread(target=self._run, args=(spec, work), daemon=True).start()
            return asdict(work)

    def operation(self, operation_id: str) -> Document | None:
        """How far it is."""
        found = self._operations.get(operation_id)
        return None if found is None else asdict(found)

    def cancel(self, operation_id: str, by: str) -> Document | None:
        """See `ClusterSpecs.cancel`."""
        found = self._operations.get(operation_id)
        if found is None:
            return None
        if found.state == RUNNING:
            found.cancelled_by = found.cancelled_by or by
        return asdict(found)

    def _run(self, spec: Document, work: Operation) -> None:
        try:
            self._apply(spec, work, dry_run=False)
        except Cancelled:
            work.state = CANCELLED
        except Exception as error:  # whatever it was: somebody asks what has come of it
            work.error, work.state = str(error) or type(error).__name__, FAILED
        else:
            work.state = DONE

    def _apply(self, spec: Document, work: Operation, *, dry_run: bool) -> Document:
        from stelae.applying.run import apply
        from stelae.cluster import connect

        def progress(done: int, of: int, text: str) -> None:
            work.steps_done, work.steps, work.text = done, of, text
            if work.cancelled_by:
                raise Cancelled

        if not os.path.isabs(str(spec.get("data_dir", ""))):  # as in a file that lies elsewhere
            spec = {**spec, "data_dir": self._data_dir}
        with connect(self._cluster) as database:
            found = apply(
                database, spec, dry_run=dry_run, progress=progress, timeout=LONGEST_S, by=work.by
            )
        return found.document()


@dataclass(frozen=True, slots=True)
class RaySpecs:
    """A `stelae.serve.routes.cluster_spec.ClusterSpecs` by that actor; it is started when it is
    needed."""

    cluster: str
    data_dir: str
    node_id: str = ""
    """Ray's node that all servers are on; empty: any may be used. The front may be elsewhere."""

    def __call__(self) -> RaySpecs:
        return self

    async def kept(self, timeout_s: float) -> Document:
        found: Document = await self._ask("kept", (), timeout_s)
        return found

    async def plan(self, spec: Document, timeout_s: float) -> Document:
        found: Document = await self._ask("plan", (spec,), timeout_s)
        return found

    async def begin(self, spec: Document, by: str, etag: str, timeout_s: float) -> Document:
        try:
            found: Document = await self._ask("begin", (spec, f"token {by}", etag), timeout_s)
        except (DeadlineExpired, ApplierEnded) as error:  # it may have begun, or yet begin
            unknown = OutcomeUnknown("the cluster", "the change of its spec", timeout_s)
            unknown.add_note(AGAIN)
            raise unknown from error
        return found

    async def operation(self, operation_id: str, timeout_s: float) -> Document | None:
        found: Document | None = await self._ask("operation", (operation_id,), timeout_s)
        return found

    async def cancel(self, operation_id: str, by: str, timeout_s: float) -> Document | None:
        found: Document | None = await self._ask("cancel", (operation_id, f"token {by}"), timeout_s)
        return found

    async def _ask(self, method: str, values: tuple[Any, ...], timeout_s: float) -> Any:
        actor = await asyncio.to_thread(self._actor)
        asked: Awaitable[Any] = getattr(actor, method).remote(*values)
        try:
            return await asyncio.wait_for(asked, timeout_s)
        except TimeoutError:
            raise DeadlineExpired(f"{method} of the cluster's spec", "the cluster") from None
        except ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, StelaeError) else error) from None
        except ray.exceptions.RayActorError as error:
            raise ApplierEnded(f"who applies specs has just ended: {error}") from None

    def _actor(self) -> Any:
        made = ray.remote(SpecHost).options(
            name=f"{self.cluster}/{ACTOR}",
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_concurrency=CALLS_AT_ONCE,
            label_selector={NODE_ID: self.node_id} if self.node_id else None,
        )
        return made.remote(self.cluster, str(Path(self.data_dir)))
