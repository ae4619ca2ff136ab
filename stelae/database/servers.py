"""Servers of every kind: what there is of each, and one that is stopped, started or replaced."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from stelae.client.admin.operators import (
    CALL_TIMEOUT_S,
    CHANGE_TIMEOUT_S,
    WAIT_TIMEOUT_S,
    Retiring,
)
from stelae.client.admin.servers import ORDER
from stelae.client.aio import Loop
from stelae.client.database import AsyncDatabase
from stelae.core.errors import InvalidArgument, StelaeError
from stelae.core.messages.operators import ServerProgress
from stelae.core.records.records import ServerKind, ServerMark
from stelae.database.progress import words_bar

if TYPE_CHECKING:
    from stelae.applying.replacement import Replacement
    from stelae.client.check.check import WhoIsStopped
    from stelae.deploy.changed import ChangedCluster
    from stelae.recovery.spark_link import ClusterLink

logger = logging.getLogger(__name__)
STOP_TIMEOUT_S = 120.0

STOPPED = "stopped"
"""State of a server that an operator stopped, and that the cluster's spec still has."""


class ServerOperations:
    """The part of `Database` that is for operators of servers of any kind."""

    if TYPE_CHECKING:

        @property
        def _loop(self) -> Loop: ...

        @property
        def _database(self) -> AsyncDatabase: ...

    link: ClusterLink | None
    """None where the connection is HTTP."""
    cluster: str
    home: str
    ray_address: str

    def _require_inside(self) -> None:
        if self.link is None:
            text = "servers are looked at and changed from inside the cluster, not over HTTP"
            raise InvalidArgument(text)

    def servers(self, kind: str = "", *, timeout: float = CALL_TIMEOUT_S) -> list[dict[str, Any]]:
        """All servers, or those of one ``kind``: ``kind``, ``name``, ``uuid``, ``state``, ``role``,
        ``retiring``, ``maintenance``, ``waits`` (why one that is to leave has not left), ``node``,
        ``address``, and what each has.

        ``state``: ``live``, ``dead``, or ``stopped`` (by an operator, until it is started again).
        That is known where Ray is: without it a stopped server is ``dead``. Raises
        `InvalidArgument`.
        """
        self._require_inside()
        found = self._loop.run(self._database.servers(kind, timeout=timeout))
        wanted, there = self._processes()
        return with_stopped(found, [n for n in wanted if kind in ("", _kind_of(n))], there)

    def stop_server(
        self,
        server: str,
        *,
        progress: Callable[[str], None] | None = None,
        timeout: float = STOP_TIMEOUT_S,
    ) -> None:
        """End a server (name or UUID) of any kind in order; Ray does not start it again.

        It hands its leaderships over first. It stays in the cluster's spec, with its folder and its
        UUID, until `start_server` or `apply` starts it again. Meanwhile it is away: after a while
        what it had is made again on others. Returns once its process has ended and all tablets are
        served. It may be called again. ``progress`` is told of each step.

        Raises:
            InvalidArgument: there is no such server; or a table would have too few servers, or what
                is in its memory would be gone. Nothing has changed.
            AlreadyRunning: somebody else changes the cluster.
            RetryLater: the time is over; the text says what is waited for.
        """
        self._require_inside()
        from stelae.applying.one_server import stop_server

        with words_bar(f"stopping {server}", progress) as tell:
            stop_server(cast("ChangedCluster", self), server, progress=tell, timeout=timeout)

    def start_server(
        self,
        server: str,
        *,
        progress: Callable[[str], None] | None = None,
        timeout: float = STOP_TIMEOUT_S,
    ) -> None:
        """Start a server (name or UUID) that was stopped, in its folder and with its UUID.

        Returns once it takes part with all that it has. One that runs is only waited for.

        Raises:
            InvalidArgument: the cluster's spec has no such server.
            AlreadyRunning: somebody else changes the cluster.
            NotEnoughServers, RetryLater: Ray has no room, or it is not back in time.
        """
        self._require_inside()
        from stelae.applying.one_server import start_server

        with words_bar(f"starting {server}", progress) as tell:
            start_server(cast("ChangedCluster", self), server, progress=tell, timeout=timeout)

    def replace_server(
        self,
        server: str,
        *,
        drain: bool = True,
        elsewhere: bool = False,
        progress: Callable[[str], None] | None = None,
        timeout: float = WAIT_TIMEOUT_S,
    ) -> Replacement:
        """Give the name of a server (name or UUID) of any kind to a new, empty one.

        For a disk that fails, or is to be another one. A server that lives is drained first, and
        ended. Its UUID is fenced permanently, its folders are renamed where they are
        (`Replacement.set_aside`), and the new server starts under its name. Returns once that lives
        and nothing lacks. A server that is dead is replaced only once nothing needs its disk. A
        configuration store is replaced where its rows are in PostgreSQL.

        It may be interrupted at any moment, and goes on when it is called again. If the new server
        was heard by then, the call only waits for the end of that (`Replacement.only_ended`), and
        with the former one's UUID as ``server`` in any case. The exception is a server of which the
        masters know no UUID: once its new server lives, another call replaces that one.
        ``progress`` is told of each step.

        Args:
            drain: False: end a server that lives without a drain, where others have all that it
                has; the new one gets what is missing from them.
            elsewhere: Start the new server on another machine.
            timeout: Seconds, with the drain.

        Raises:
            InvalidArgument: there is no such server; or something would be lost, or has nowhere to
                go. Nothing has changed.
            AlreadyRunning: somebody else changes the cluster; the text says who.
            NotEnoughServers, RetryLater: Ray has no room; or the time is over, or nothing has
                changed for two minutes, during a drain for 30: the text says what is waited for.
                A drain goes on by itself.
        """
        self._require_inside()
        from stelae.applying.replace_one import replace_server

        with words_bar(f"replacing {server}", progress) as tell:
            return replace_server(
                cast("ChangedCluster", self),
                *(server,),
                drain=drain,
                elsewhere=elsewhere,
                progress=tell,
                timeout=timeout,
            )

    def _retire_other(
        self, server: str, wait: bool, *, cancel: bool, told: Retiring, timeout: float
    ) -> ServerProgress | None:
        """Retire what is neither a tablet server nor a backup; None: it is one of these.

        Raises as `Database.retire_server`.
        """
        kind = self._loop.run(self._database.kind_of(server))
        if kind == ServerKind.SAFEKEEPER.value:
            return self._loop.run(
                self._database.retire_safekeeper(
                    server, wait=wait, cancel=cancel, progress=told, timeout=timeout
                )
            )
        if kind == ServerKind.MASTER.value:
            return self._retire_master(server, cancel, min(timeout, CHANGE_TIMEOUT_S))
        if kind == ServerKind.CAS_STORE.value:
            raise InvalidArgument(
                f"{server} is not retired: it keeps where the logs of all tables are, which is "
                "chosen when a cluster is made. To be rid of it, restore a backup of the tables "
                "into a cluster with another cas_store"
            )
        return None

    def _retire_master(self, server: str, cancel: bool, timeout: float) -> ServerProgress:
        if cancel:
            raise InvalidArgument(
                f"{server} is a master, which leaves the set at once: `stelae master add` adds one"
            )
        from stelae.deploy.masters import list_masters, remove_master_alone

        cluster = cast("ChangedCluster", self)
        members = list_masters(cluster)
        found = next((m for m in members if server in (m["name"], m["uuid"])), None)
        if found is None:
            raise InvalidArgument(f"{server} is no master of the set any more")
        remove_master_alone(cluster, found["uuid"], timeout=timeout)
        mark = ServerMark(found["uuid"], found["name"], retiring=True, kind=ServerKind.MASTER)
        return ServerProgress(mark, is_live=False, replicas=0, tablets=0)

    def _who_is_stopped(self, *, join: bool) -> WhoIsStopped:
        """What tells a check which servers an operator stopped. ``join``: whether a connection to
        Ray may be opened for that."""

        async def ask() -> Collection[str]:
            return await asyncio.to_thread(self._stopped_names, join)

        return ask

    def _stopped_names(self, join: bool) -> Collection[str]:
        import ray

        if not (join or ray.is_initialized()):
            return ()
        try:
            wanted, there = self._processes()
        except StelaeError as error:  # its Ray has ended: then the servers are dead
            logger.warning("it is not known which servers are stopped: %s", error)
            return ()
        return [name for name in wanted if name not in there]

    def _processes(self) -> tuple[Sequence[str], Collection[str]]:
        """See `processes_of`, once this process is connected to the cluster's Ray."""
        import ray

        from stelae.deploy.ray_session import join_ray

        if not ray.is_initialized():
            if not self.home:
                return (), ()  # a cluster without Ray
            join_ray(self.ray_address)
        return processes_of(self.cluster, self.home)


def processes_of(cluster: str, home: str) -> tuple[Sequence[str], Collection[str]]:
    """The servers that a cluster is to have, and those that have an actor in Ray. Both are empty
    where that is not known: the log says why."""
    from stelae.applying.processes import wanted_and_there

    try:
        return wanted_and_there(cluster, home)
    except (StelaeError, OSError, ValueError, TypeError) as error:  # the files may be damaged
        logger.warning("it is not known which servers are stopped: %s", error)
        return (), ()


def with_stopped(
    servers: Sequence[Mapping[str, Any]], wanted: Sequence[str], there: Collection[str]
) -> list[dict[str, Any]]:
    """Say of servers that the spec has, and that have no actor in Ray, that they are stopped. Pure.

    Ray keeps the actor of a server that died, and starts it again. A server without one was ended
    by an operator. A server that this leader master never heard is added to the list.
    """
    found = [dict(server) for server in servers]
    live = {server["name"] for server in found if server["state"] == "live"}
    for name in wanted:
        if name in there or name in live:
            continue
        known = [server for server in found if server["name"] == name]
        for server in known:
            server["state"] = STOPPED
        if not known:
            found.append({**_NOTHING_KNOWN, "kind": _kind_of(name), "name": name})
    return sorted(found, key=lambda server: ORDER.index(server["kind"]))


_NOTHING_KNOWN: Mapping[str, Any] = {
    "kind": "",
    "name": "",
    "uuid": "",
    "state": STOPPED,
    "role": "",
    "address": "",
    "node": "",
    "rack": "",
    "retiring": False,
    "maintenance": False,
    "waits": "",
    "memory_bytes": None,
    "memory_limit_bytes": None,
}


def _kind_of(name: str) -> str:
    return name.rpartition("-")[0]
