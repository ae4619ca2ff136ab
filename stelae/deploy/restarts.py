"""Planned restarts of servers on Ray, of whatever kind: leaderships go first.

So that a cluster can be restarted server by server while it serves. Ray starts the actor anew; what
is waited for afterwards is that the server lives in a new run, and takes part with all its replicas
again (of a master: in the catalog's group; of a backup: that no segment lacks one): only then may
the next one go. What is in the server's memory and nowhere else is never ended. Design §7, §8.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ray

from stelae.actors.ray_host.host import cluster_actors
from stelae.core.errors import InvalidArgument, RetryLater, StelaeError
from stelae.core.records.records import ServerKind, TableRecord
from stelae.core.schema.durability import Durability, Segments, media_of
from stelae.deploy import ray_session
from stelae.deploy.changed import ChangedCluster, masters_status

if TYPE_CHECKING:
    from stelae.actors.backup.frames import MediumSpec
    from stelae.actors.ray_host.host import ServerPlan

HAND_OVER_S = 5.0
"""For all leaderships together, at most."""
POLL_S = 0.2
LEADING = (ServerKind.TSERVER.value, ServerKind.MASTER.value)
TAKES_PART = ("leader", "follower")


def restart_server(
    database: ChangedCluster,
    server: str,
    *,
    progress: Callable[[str], None] = lambda text: None,
    timeout: float,
) -> None:
    """End one server's process in order, and wait until it is back; see `Database`. Not while
    somebody else starts or ends servers."""
    if not ray.is_initialized():
        ray_session.join_ray(database.ray_address)
    status = masters_status(database, timeout=timeout)
    found = find_server(status, server)
    name = found["id"]
    actor = cluster_actors(database.cluster).get(name)
    if actor is None:
        raise InvalidArgument(f"{name} does not run in this Ray")
    plan: ServerPlan = ray.get(actor.describe.remote(), timeout=timeout)
    tables = database._loop.run(database._database.tables(own=True, timeout=timeout))
    if why := what_would_go(found, status["tablets"], plan.media, tables):
        raise InvalidArgument(f"{name} is not restarted: {why}")
    with database.turn(f"server restart {name}"):
        _restart(database, server, progress=progress, timeout=timeout)


def _restart(
    database: ChangedCluster,
    server: str,
    *,
    progress: Callable[[str], None] = lambda text: None,
    timeout: float,
) -> None:
    deadline = time.monotonic() + timeout
    found = find_server(masters_status(database, timeout=timeout), server)
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
            missing = what_is_missing(masters_status(database), found["uuid"], found["incarnation"])
        except StelaeError as error:
            missing = str(error)
        if not missing:
            return
        progress(f"{found['id']}: {missing}")
    raise RetryLater(f"{found['id']} is not back after {timeout:g} s: {missing}")


def find_server(status: Mapping[str, Any], server: str) -> Mapping[str, Any]:
    """The live server of that name or UUID. Raises `InvalidArgument`."""
    for each in status["servers"]:
        if each["state"] == "live" and server in (each["id"], each["uuid"]):
            found: Mapping[str, Any] = each
            return found
    raise InvalidArgument(f"{server!r} is no server that lives (`stelae status` lists them)")


def what_would_go(
    server: Mapping[str, Any],
    tablets: Sequence[Mapping[str, Any]],
    media: Sequence[MediumSpec],
    tables: Sequence[TableRecord],
) -> str:
    """What a server has in its memory, and would be gone with it; empty: nothing. Pure.

    ``server``, ``tablets``: as the status has them; ``media``: those that it was made with.
    """
    here = {tablet["table"] for tablet in tablets if tablet["leader"] == server["id"]}
    bound = [t.name for t in tables if t.name in here and Segments(()) in _durabilities(t)]
    if bound:
        named = ", ".join(bound)
        return f"rows of {named} (segments()) are in its memory only; copy or delete them first"
    in_memory = {medium.name for medium in media if medium.path is None}
    kept = [t.name for t in tables if any(in_memory & {*media_of(d)} for d in _durabilities(t))]
    if kept and server.get("segments", 1):
        name = server["id"]
        return (
            f"segments of {', '.join(kept)} are in its memory; `stelae server retire {name}` "
            "brings them to other backups; taken back with --cancel it takes some again"
        )
    return ""


def _durabilities(table: TableRecord) -> tuple[Durability, ...]:
    return tuple(each for each in (table.durability, table.becoming) if each is not None)


def what_is_missing(status: Mapping[str, Any], uuid: str, incarnation: int) -> str:
    """Why a server that ran as ``incarnation`` is not back yet; empty: it is. Pure."""
    lives = any(
        each["uuid"] == uuid and each["incarnation"] > incarnation and each["state"] == "live"
        for each in status["servers"]
    )
    if not lives:
        return "it does not live yet"
    behind = [
        each["id"]
        for each in status["servers"]
        if each["uuid"] == uuid and each.get("keeps_up") is False
    ]
    if behind:
        return "it does not have all that the masters know yet"
    away = sum(
        replica["role"] not in TAKES_PART or replica.get("heard") is False
        for tablet in status["tablets"]
        for replica in tablet.get("replicas", ())
        if replica["uuid"] == uuid and replica["member"] != "none"
    )
    if away:
        return f"{away} of its replicas do not take part yet"
    offline = sum(tablet["state"] != "running" for tablet in status["tablets"])
    if offline:
        return f"{offline} tablets are being recovered"
    is_backup = any(
        each["uuid"] == uuid and each.get("kind") == ServerKind.BACKUP for each in status["servers"]
    )
    lacking = sum(tablet.get("under_replicated") or 0 for tablet in status["tablets"])
    return f"{lacking} segments lack replicas" if is_backup and lacking else ""
