"""Change of masters on Ray: their actors are started and ended here, the set is the masters' own.

A new master is an actor that waits to be added; the leader adds it, brings it up and gives it a
vote. A master is removed from the set first, and its actor ended then. Every step may be repeated:
a call that was interrupted is finished by the next one of the same name. Where the masters listen
is kept in ``cluster.json``, for those who connect later, and on every machine that has a server
(`stelae.deploy.cluster_files`). Design §7; the seed's "change of masters".
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from stelae.actors.ray_host.host import ServerPlan, cluster_actors, create_actor
from stelae.client.admin.operators import CHANGE_TIMEOUT_S
from stelae.core.addresses import address_of
from stelae.core.errors import DeadlineExpired, InvalidArgument, RetryLater, StelaeError
from stelae.core.ids import Address, ServerUuid
from stelae.core.messages.masters import MasterSet
from stelae.core.records.records import MasterMember, ServerKind, ServerState
from stelae.deploy import cluster_state, launcher, locks, machines, ray_session
from stelae.deploy.changed import ChangedCluster, masters_status
from stelae.deploy.cluster_files import home_of, publish
from stelae.runtime.free_ports import free_port

END_GRACE_S = 5.0
POLL_S = 0.1


def list_masters(
    database: ChangedCluster, *, timeout: float = CHANGE_TIMEOUT_S
) -> list[dict[str, Any]]:
    """The masters, linearizably; see `Database.masters`."""
    found = database._loop.run(database._database.masters(timeout=timeout))
    return _described(found)


def add_master(
    database: ChangedCluster, name: str | None = None, *, timeout: float = CHANGE_TIMEOUT_S
) -> list[dict[str, Any]]:
    """Start a master and make it one of the set; see `Database.add_master`."""
    clock = database._database.runtime.clock
    deadline = clock.monotonic() + timeout
    members = database._loop.run(database._database.masters(timeout=timeout)).members
    actors = _actors(database)
    chosen = name or _free_name(members, actors)
    if any(member.name == chosen and member.voter for member in members) and chosen in actors:
        raise InvalidArgument(f"there is a master {chosen!r} already")
    actor, address = _start(database, chosen, actors, members)
    uuid, _ = ray.get(actor.run.remote(), timeout=launcher.START_TIMEOUT_S)
    try:
        found = _make_voter(database, uuid, chosen, address, deadline)
    except StelaeError:
        _give_up(database, uuid, chosen)
        raise
    _remember(database, found)
    return _described(found)


def _make_voter(
    database: ChangedCluster, uuid: ServerUuid, name: str, address: Address, deadline: float
) -> MasterSet:
    """Have the leader add it, and wait until it votes."""
    client = database._database

    async def work() -> MasterSet:
        clock = client.runtime.clock
        while (left_s := deadline - clock.monotonic()) > 0:
            found = await client.add_master(uuid, name, address, timeout=left_s)
            if any(member.uuid == uuid and member.voter for member in found.members):
                return found
            await clock.sleep(POLL_S)
        raise DeadlineExpired(f"add_master({name!r})", f"{name} to catch up")

    return database._loop.run(work())


def _give_up(database: ChangedCluster, uuid: ServerUuid, name: str) -> None:
    """What could not become a master is none: out of the set, and its process ended."""
    with contextlib.suppress(StelaeError):  # then it is for the leader to let go of it
        found = database._loop.run(database._database.remove_master(uuid, timeout=5.0))
        if not any(member.uuid == uuid for member in found.members):
            _end(database, name)


def remove_master(
    database: ChangedCluster, master: str, *, timeout: float = CHANGE_TIMEOUT_S
) -> list[dict[str, Any]]:
    """Take a master out of the set and end it; see `Database.remove_master`."""
    client = database._database
    before = database._loop.run(client.masters(timeout=timeout)).members
    found = database._loop.run(client.remove_master(master, timeout=timeout))
    left = {member.name for member in found.members}
    for member in before:
        if master in (member.uuid, member.name) and member.name not in left:
            _end(database, member.name)
    _remember(database, found)
    return _described(found)


def add_master_alone(
    database: ChangedCluster, name: str | None = None, *, timeout: float = CHANGE_TIMEOUT_S
) -> list[dict[str, Any]]:
    """`add_master` for operators: not while somebody else changes the cluster's servers."""
    with database.turn(f"master add {name or ''}".rstrip()):
        return add_master(database, name, timeout=timeout)


def remove_master_alone(
    database: ChangedCluster, master: str, *, timeout: float = CHANGE_TIMEOUT_S
) -> list[dict[str, Any]]:
    """The same of `remove_master`."""
    with database.turn(f"master remove {master}"):
        return remove_master(database, master, timeout=timeout)


def end_stray(database: ChangedCluster, name: str) -> None:
    """End the process of a master that is not of the set."""
    _end(database, name)


def scale_masters(database: ChangedCluster, count: int, progress: Any = lambda text: None) -> None:
    """Add or remove masters, one at a time, until there are ``count``; dead ones go first."""
    while len(members := list_masters(database)) != count:
        if len(members) < count:
            progress(f"adding a master: {len(members)} of {count}")
            add_master(database)
            continue
        status = {
            s["uuid"]: s for s in masters_status(database)["servers"] if s["kind"] == "master"
        }

        def worth(member: dict[str, Any], seen: dict[str, Any] = status) -> tuple[bool, bool, int]:
            """The dead go before the living, the newest before the oldest, the leader last."""
            known = seen.get(member["uuid"], {})
            lives = known.get("state") == ServerState.LIVE.value
            return lives, known.get("role") == "leader", -_number(member["name"])

        victim = min(members, key=worth)
        progress(f"removing {victim['name']}: {len(members)} masters, {count} wanted")
        remove_master(database, victim["uuid"])


# ---- actors and files ---------------------------------------------------------------------------


def _actors(database: ChangedCluster) -> dict[str, Any]:
    if not ray.is_initialized():
        ray_session.join_ray(database.ray_address)
    actors = cluster_actors(database.cluster)
    masters = {n: a for n, a in actors.items() if n.startswith(ServerKind.MASTER.value)}
    if not masters:
        raise InvalidArgument(f"cluster {database.cluster!r} does not run in this Ray")
    return masters


def _plan(actors: dict[str, Any]) -> ServerPlan:
    """The plan of some master whose process answers. Raises RetryLater: none does."""
    asked = [actor.describe.remote() for actor in actors.values()]
    ready, _ = ray.wait(asked, num_returns=1, timeout=launcher.START_TIMEOUT_S)
    if not ready:
        raise RetryLater(f"no process of {', '.join(sorted(actors))} answers: are they starting?")
    plan: ServerPlan = ray.get(ready[0])
    return plan


def _start(
    database: ChangedCluster, name: str, actors: dict[str, Any], members: tuple[MasterMember, ...]
) -> tuple[Any, Address]:
    """The actor of that name, started if there is none, and where it listens."""
    if name in actors:
        return actors[name], Address(ray.get(actors[name].ready.remote(launcher.START_TIMEOUT_S)))
    plan = _plan(actors)
    folder = Path(plan.folder).parent / name
    port = free_port(machines.LOOPBACK)
    with home_of(database.cluster, (database.home, folder.parent)) as home:
        machine, host = machines.for_master(cluster_state.load_state(home), name, plan)
        publish(home, database.cluster)
    address = address_of(host, port)
    known = {member.name or member.uuid: member.address for member in members}
    actor = create_actor(
        replace(
            plan,
            name=name,
            folder=str(folder),
            host=host,
            port=port,
            machine=machine,
            selector={label: machine for label in plan.selector if machine} or plan.selector,
            masters={**known, name: address},
            joining=True,
        )
    )
    return actor, Address(ray.get(actor.ready.remote(launcher.START_TIMEOUT_S)))


def _end(database: ChangedCluster, name: str) -> None:
    """End the actor of a master that is none any more; its folder stays."""
    actors = _actors(database)
    actor = actors.pop(name, None)
    if actor is None:
        return
    launcher.kill_servers({name: actor}, grace_s=END_GRACE_S)
    if actors and locks.wait_ended([Path(_plan(actors).folder).parent / name]):
        raise StelaeError(f"{name} is no master any more, but its process does not end")


def _remember(database: ChangedCluster, found: MasterSet) -> None:
    """Write into ``cluster.json`` where the masters listen now."""
    folder = Path(_plan(_actors(database)).folder).parent
    masters = {m.name: str(m.address) for m in found.members if m.name and m.address}
    with home_of(database.cluster, (database.home, folder)) as home:
        replace(cluster_state.load_state(home), masters=dict(sorted(masters.items()))).save()
        publish(home, database.cluster)


def _free_name(members: tuple[MasterMember, ...], actors: dict[str, Any]) -> str:
    """One that no master has, nor any that waits or was lost: a number above all."""
    used = [*(member.name for member in members), *actors]
    return f"{ServerKind.MASTER.value}-{max(map(_number, used), default=0) + 1}"


def _number(name: str) -> int:
    digits = name.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else 0


def _described(found: MasterSet) -> list[dict[str, Any]]:
    members = [
        {"name": m.name, "uuid": m.uuid, "address": m.address, "voter": m.voter}
        for m in found.members
    ]
    return sorted(members, key=lambda member: str(member["name"]))
