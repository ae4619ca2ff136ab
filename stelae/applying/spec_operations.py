"""What is put to ``/v1/cluster/spec``, handed to the actor that carries it out.

An apply begins on its own, also when whoever put it waits no longer: then the outcome is unknown.
Design §12; decisions §44.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ray

from stelae.actors.ray_host.host import NAMESPACE, cluster_actors
from stelae.actors.ray_host.node_selector import node_options
from stelae.applying.processes import wanted_of
from stelae.core.errors import (
    DeadlineExpired,
    OutcomeUnknown,
    RetryLater,
    StelaeError,
    Unavailable,
)
from stelae.deploy.launcher import APPLIER
from stelae.deploy.machines import NODE_ID

CALLS_AT_ONCE = 16
AWAY_TIMEOUT_S = 1.0
WATCH_PERIOD_S = 5.0
"""Between looks at machines that are away."""
HOST = ("stelae.spec_host", "SpecHost")
"""The actor's class, by name: it opens a `stelae.Database`, which knows of applying itself."""
AGAIN = "ask for it again: while it runs, that is refused and names the operation"
APPLIER_IS = "the cluster's actor that applies specs"
RENEWS = "`stelae down`, then `stelae up` start a new one"

Document = dict[str, Any]


class ApplierEnded(RetryLater):
    """The actor, while it was asked; it is started again."""


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

    async def around(self) -> Document:
        try:
            return await asyncio.to_thread(around, self.cluster, Path(self.data_dir))
        except ray.exceptions.RayError as error:
            raise Unavailable("Ray", str(error)) from error

    async def begin_server(
        self, verb: str, server: str, options: Document, by: str, timeout_s: float
    ) -> Document:
        values = (verb, server, options, f"token {by}")
        try:
            found: Document = await self._ask("begin_server", values, timeout_s)
        except (DeadlineExpired, ApplierEnded) as error:  # it may have begun, or yet begin
            unknown = OutcomeUnknown("the cluster", f"server {verb} {server}", timeout_s)
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
        if not hasattr(actor, method):
            raise Unavailable(APPLIER_IS, f"it is of an older version, without {method}; {RENEWS}")
        asked: Awaitable[Any] = getattr(actor, method).remote(*values)
        try:
            return await asyncio.wait_for(asked, timeout_s)
        except TimeoutError:
            raise DeadlineExpired(f"{method} of the cluster's spec", "the cluster") from None
        except ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, StelaeError) else error) from None
        except ray.exceptions.RayActorError as error:
            raise ApplierEnded(f"who applies specs has just ended: {error}") from None

    def start(self) -> None:
        """Start the actor, if there is none."""
        self._actor()

    def _actor(self) -> Any:
        module, name = HOST
        host = getattr(importlib.import_module(module), name)
        made = ray.remote(host).options(
            name=f"{self.cluster}/{APPLIER}",
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_concurrency=CALLS_AT_ONCE,
            **node_options({NODE_ID: self.node_id} if self.node_id else {}),
        )
        return made.remote(self.cluster, str(Path(self.data_dir)), WATCH_PERIOD_S)


def around(cluster: str, data_dir: Path) -> Document:
    """See `ClusterSpecs.around`. Asks actors that there are, and starts none. Raises StelaeError,
    RayError, OSError."""
    actors = cluster_actors(cluster)
    spec, wanted = wanted_of(cluster, data_dir)
    placement, spread = spec.placement, None
    if placement is not None and placement.spread is not None:
        spread = "node" if placement.spread == "node" else "rack"
    has_actor = APPLIER in actors
    return {
        "stopped": [name for name in wanted if name not in actors],
        "away": ask_away(cluster, AWAY_TIMEOUT_S) if has_actor else None,
        "spread": spread,
    }


def away_lines(told: Document) -> list[str]:
    """What the actor says of machines that are away (`SpecHost.away`), for people. Pure."""
    found = []
    for machine, since_s in told["since"].items():
        since = datetime.fromtimestamp(since_s, UTC).isoformat(" ", "seconds")
        there = ", ".join(told.get("there", {}).get(machine, ()))
        found.append(f"machine {machine} is away since {since}" + (f": {there}" if there else ""))
    for each in told["servers"]:
        what = "waits" if each["next"] == "wait" else "is started elsewhere now"
        found.append(f"{each['name']} {what}: {each['why']}")
    return found


def ask_away(cluster: str, timeout_s: float) -> Document:
    """What the actor says; nothing where there is none. Needs a connection to Ray.

    Raises DeadlineExpired, ApplierEnded, Unavailable.
    """
    actor = cluster_actors(cluster).get(APPLIER)
    if actor is None:
        return {"since": {}, "servers": []}
    if not hasattr(actor, "away"):
        raise Unavailable(
            APPLIER_IS,
            f"it is of an older version, which replaces no servers; {RENEWS}",
        )
    try:
        found: Document = ray.get(actor.away.remote(), timeout=timeout_s)
    except ray.exceptions.GetTimeoutError:
        raise DeadlineExpired("away", "the cluster's actor that replaces servers") from None
    except ray.exceptions.RayActorError as error:
        raise ApplierEnded(f"who replaces servers has just ended: {error}") from None
    return found
