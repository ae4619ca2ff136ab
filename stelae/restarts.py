"""Planned restarts of tablet servers, masters and safekeepers on Ray: leaderships go first.

So that a cluster can be restarted server by server while it serves. Ray starts the actor anew; what
is waited for afterwards is that the server lives in a new run, and takes part with all its replicas
again (of a master: in the catalog's group): only then may the next one go. Design §7, §8.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import ray

from stelae import ray_session
from stelae.actors.ray_host import cluster_actors
from stelae.core.errors import InvalidArgument, RetryLater, StelaeError
from stelae.core.records import ServerKind

if TYPE_CHECKING:
    from stelae.api import Database

HAND_OVER_S = 5.0
"""For all leaderships together, at most."""
POLL_S = 0.2
LEADING = (ServerKind.TSERVER.value, ServerKind.MASTER.value)
RESTARTED = (*LEADING, ServerKind.SAFEKEEPER.value)
TAKES_PART = ("leader", "follower")


def restart_server(
    database: Database,
    server: str,
    *,
    progress: Callable[[str], None] = lambda text: None,
    timeout: float,
) -> None:
    """End one server's process in order, and wait until it is back; see `Database`."""
    deadline = time.monotonic() + timeout
    found = find_server(database.status(timeout=timeout), server)
    if not ray.is_initialized():
        ray_session.join_ray(database.ray_address)
    actor = cluster_actors(database.cluster).get(found["id"])
    if actor is None:
        raise InvalidArgument(f"{found['id']} does not run in this Ray")
    left = 0
    if found["kind"] in LEADING:
        progress(f"{found['id']} hands its leaderships over")
        left = ray.get(actor.hand_over.remote(HAND_OVER_S), timeout=2 * HAND_OVER_S)
    note = f", and {left} of the groups that it led wait for an election" if left else ""
    progress(f"{found['id']} starts anew{note}")
    ray.kill(actor, no_restart=False)
    missing = "it does not answer"
    while time.monotonic() < deadline:
        time.sleep(POLL_S)
        try:
            missing = what_is_missing(database.status(), found["uuid"], found["incarnation"])
        except StelaeError as error:
            missing = str(error)
        if not missing:
            return
        progress(f"{found['id']}: {missing}")
    raise RetryLater(f"{found['id']} is not back after {timeout:g} s: {missing}")


def find_server(status: Mapping[str, Any], server: str) -> Mapping[str, Any]:
    """The live tserver, master or safekeeper of that name or UUID. Raises `InvalidArgument`."""
    for each in status["servers"]:
        is_live = each["kind"] in RESTARTED and each["state"] == "live"
        if is_live and server in (each["id"], each["uuid"]):
            found: Mapping[str, Any] = each
            return found
    raise InvalidArgument(f"{server!r} is no tserver, master or safekeeper that lives")


def what_is_missing(status: Mapping[str, Any], uuid: str, incarnation: int) -> str:
    """Why a server that ran as ``incarnation`` is not back yet; empty: it is. Pure."""
    lives = any(
        each["uuid"] == uuid and each["incarnation"] > incarnation and each["state"] == "live"
        for each in status["servers"]
    )
    if not lives:
        return "it does not live yet"
    away = sum(
        replica["role"] not in TAKES_PART or replica.get("heard") is False
        for tablet in status["tablets"]
        for replica in tablet.get("replicas", ())
        if replica["uuid"] == uuid and replica["member"] != "none"
    )
    if away:
        return f"{away} of its replicas do not take part yet"
    offline = sum(tablet["state"] != "running" for tablet in status["tablets"])
    return f"{offline} tablets are being recovered" if offline else ""
