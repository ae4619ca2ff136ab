"""All servers of a cluster, of whatever kind, as operators see them: one entry for each.

The status document has most of it. Two things are asked of the masters in addition: why a server
that is to leave cannot yet, and of how many logs each safekeeper is a member.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from stelae.client.admin.operators import (
    CALL_TIMEOUT_S,
    WAIT_TIMEOUT_S,
    WATCH_S,
    Retiring,
    describe_tservers,
    what_keeps,
)
from stelae.client.routing.masters import MastersClient
from stelae.core.errors import InvalidArgument, RetryLater
from stelae.core.messages.catalog import STATUS, GetStatus
from stelae.core.messages.operators import GET_SERVER, GetServer, ServerProgress
from stelae.core.messages.timelines import (
    LIST_SAFEKEEPERS,
    ListSafekeepers,
    MigrationProgress,
    SafekeeperView,
)
from stelae.core.records.records import ServerKind, ServerMark, TableRecord
from stelae.core.records.timelines import SafekeeperStatus
from stelae.core.runtime import Runtime
from stelae.core.schema.durability import Wal

ORDER = (
    ServerKind.MASTER.value,
    ServerKind.TSERVER.value,
    ServerKind.BACKUP.value,
    ServerKind.SAFEKEEPER.value,
    ServerKind.CAS_STORE.value,
)
"""Kinds, in the order in which they are listed."""
NAMED = 5
"""Tables, in a sentence."""
_COMMON = ("kind", "uuid", "state", "address", "node")


class ServerCalls:
    """The part of `AsyncDatabase` that lists servers of all kinds."""

    runtime: Runtime
    _masters: MastersClient

    if TYPE_CHECKING:

        async def tables(
            self, *, own: bool = False, max_staleness: float | None = None, timeout: float = ...
        ) -> list[TableRecord]: ...

        async def set_safekeeper_status(
            self, safekeeper: int, status: str, *, timeout: float = ...
        ) -> SafekeeperView: ...

    async def servers(
        self, kind: str = "", *, timeout: float = CALL_TIMEOUT_S
    ) -> list[dict[str, Any]]:
        """List all servers, or those of one kind, by kind and name. Raises InvalidArgument."""
        if kind and kind not in ORDER:
            raise InvalidArgument(f"{kind!r} is no kind of server: one of {', '.join(ORDER)}")
        reply = await self._masters.call(STATUS, GetStatus(), timeout_s=timeout)
        status = msgspec.json.decode(reply.document, type=dict[str, Any])
        keepers: Sequence[SafekeeperView] = ()
        if kind in ("", ServerKind.SAFEKEEPER.value):
            look = ListSafekeepers()
            found = await self._masters.call(LIST_SAFEKEEPERS, look, timeout_s=timeout)
            keepers = found.safekeepers
        return await self._described(status, kind, keepers, timeout)

    async def _described(
        self,
        status: Mapping[str, Any],
        kind: str,
        keepers: Sequence[SafekeeperView],
        timeout: float,
    ) -> list[dict[str, Any]]:
        """Ask why servers that are to leave cannot yet."""
        problems: dict[str, str] = {}
        for server in status["servers"]:
            if server.get("retiring") and kind in ("", server["kind"]):
                asked = GetServer(server["uuid"])
                progress = await self._masters.call(GET_SERVER, asked, timeout_s=timeout)
                problems[server["uuid"]] = progress.problem
        return describe_servers(status, keepers, problems, kind)

    async def kind_of(self, server: str, *, timeout: float = CALL_TIMEOUT_S) -> str:
        """Return the kind of a server (name or UUID); empty: the masters know none of that name."""
        reply = await self._masters.call(STATUS, GetStatus(), timeout_s=timeout)
        status = msgspec.json.decode(reply.document, type=dict[str, Any])
        kinds = [s["kind"] for s in status["servers"] if server in (s["id"], s["uuid"])]
        return str(kinds[0]) if kinds else ""

    async def retire_safekeeper(
        self,
        server: str,
        *,
        wait: bool = True,
        cancel: bool = False,
        progress: Retiring | None = None,
        timeout: float = WAIT_TIMEOUT_S,
    ) -> ServerProgress:
        """Have others take over the logs of a safekeeper (name or UUID), and give it nothing new.

        It is ``decommissioned`` from now on; ``cancel`` makes it ``active`` again. Returns once it
        is a member of no log (without ``wait``: at once). Moves go on by themselves.

        Raises:
            InvalidArgument: there is no such safekeeper, or several; or too few would be left for
                some table, and nothing has changed.
            RetryLater: the time is over, and the text says what keeps it; or it was taken back.
        """
        clock = self.runtime.clock
        deadline, first = clock.monotonic() + timeout, min(timeout, CALL_TIMEOUT_S)
        view, views, _ = await self._keeper(server, first)
        leaves = view.record.status is SafekeeperStatus.DECOMMISSIONED
        if not cancel and not leaves:
            tables = await self.tables(own=True, timeout=first)
            if why := too_few_left(view, views, tables):
                raise InvalidArgument(f"{view.record.name} is not retired: {why}")
        number = view.record.safekeeper_id
        wanted = SafekeeperStatus.ACTIVE if cancel else SafekeeperStatus.DECOMMISSIONED
        if view.record.status is not wanted:
            await self.set_safekeeper_status(number, wanted.value, timeout=first)
        while True:
            view, _, status = await self._keeper(view.record.uuid, CALL_TIMEOUT_S)
            found = _progress_of(view, status)
            if progress is not None:
                progress(found)
            if cancel or not wait or not found.logs:
                return found
            if not found.mark.retiring:
                raise RetryLater(f"{view.record.name} is not to be retired any more")
            left_s = deadline - clock.monotonic()
            if left_s <= 0:
                raise RetryLater(
                    f"{found.logs} logs are still on {view.record.name}: {found.problem}"
                )
            await clock.sleep(min(WATCH_S, left_s))

    async def _keeper(
        self, server: str, timeout_s: float
    ) -> tuple[SafekeeperView, Sequence[SafekeeperView], Mapping[str, Any]]:
        """A safekeeper, all of them, and a status document. Raises InvalidArgument."""
        reply = await self._masters.call(STATUS, GetStatus(), timeout_s=timeout_s)
        status = msgspec.json.decode(reply.document, type=dict[str, Any])
        look = ListSafekeepers()
        views = (await self._masters.call(LIST_SAFEKEEPERS, look, timeout_s=timeout_s)).safekeepers
        found = [v for v in views if server in (v.record.name, v.record.uuid)]
        found = [v for v in found if v.is_live] or found
        if len(found) != 1:
            raise InvalidArgument(f"{server!r}: {len(found)} safekeepers are called so")
        return found[0], views, status


def too_few_left(
    view: SafekeeperView, views: Sequence[SafekeeperView], tables: Sequence[TableRecord]
) -> str:
    """Say which tables need more safekeepers than would be left; empty: none does. Pure."""
    others = sum(
        v.is_live and v.record.status is SafekeeperStatus.ACTIVE and v is not view for v in views
    )
    short = [
        f"{table.name} with {durability}"
        for table in tables
        for durability in (table.durability, table.becoming)
        if isinstance(durability, Wal) and durability.count > others
    ]
    if not short:
        return ""
    return (
        f"{others} other safekeepers live and are active, too few for {', '.join(short[:NAMED])}; "
        "add one first (safekeepers.count in cluster.yaml and `stelae apply`)"
    )


def _progress_of(view: SafekeeperView, status: Mapping[str, Any]) -> ServerProgress:
    record = view.record
    leaves = record.status is SafekeeperStatus.DECOMMISSIONED
    mark = ServerMark(record.uuid, record.name, retiring=leaves, kind=ServerKind.SAFEKEEPER)
    why = _waits(record.safekeeper_id, view.timelines, status) if leaves else ""
    return ServerProgress(
        mark, view.is_live, replicas=0, tablets=0, logs=view.timelines, problem=why
    )


def describe_servers(
    status: Mapping[str, Any],
    keepers: Sequence[SafekeeperView] = (),
    problems: Mapping[str, str] | None = None,
    kind: str = "",
) -> list[dict[str, Any]]:
    """Describe the servers of a status document, or those of one kind. Pure.

    ``problems``: what keeps a server from leaving, by UUID, as the masters say. Each entry has
    ``waits``: why a server that is to leave has not left yet; empty: nothing is in its way.
    """
    tservers = {server["uuid"]: server for server in describe_tservers(status)}
    known = {str(view.record.uuid): view for view in keepers}
    said = problems or {}
    found = []
    for server in status["servers"]:
        if kind not in ("", server["kind"]):
            continue
        uuid = server["uuid"]
        entry = {
            "name": server["id"],
            **{key: server[key] for key in _COMMON},
            "rack": server.get("rack", ""),
            "role": "",
            "retiring": bool(server.get("retiring")),
            "maintenance": bool(server.get("maintenance")),
            "memory_bytes": server.get("memory_bytes"),
            "memory_limit_bytes": server.get("memory_limit_bytes"),
            "waits": said.get(uuid, ""),
        }
        match server["kind"]:
            case ServerKind.MASTER.value:
                voter = server["voter"]
                entry |= {"role": server["role"] if voter else "non-voter", "voter": voter}
            case ServerKind.TSERVER.value:
                entry |= {**tservers[uuid], "indexlets": server["indexlets"]}
                if entry["retiring"]:
                    entry["waits"] = entry["waits"] or what_keeps(status, uuid)
            case ServerKind.BACKUP.value:
                entry |= _backup(server)
            case ServerKind.SAFEKEEPER.value:
                entry |= _safekeeper(server, known.get(uuid), status)
        found.append(entry)
    return sorted(found, key=lambda s: (ORDER.index(s["kind"]), _numbered(s["name"]), s["uuid"]))


def _backup(server: Mapping[str, Any]) -> dict[str, Any]:
    used, free = server["used_bytes"], server["media_free_bytes"]
    return {
        "segments": server["segments"],
        "drained": server["drained"],
        "media": {
            medium: {"used_bytes": used.get(medium), "free_bytes": free.get(medium)}
            for medium in server["media"]
        },
    }


def _safekeeper(
    server: Mapping[str, Any], view: SafekeeperView | None, status: Mapping[str, Any]
) -> dict[str, Any]:
    """``logs`` are counted by the catalog, also while the safekeeper is away."""
    number = server["safekeeper_id"]
    logs = server["timelines"] if view is None else view.timelines
    leaves = server["status"] == SafekeeperStatus.DECOMMISSIONED.value
    return {
        "safekeeper_id": number,
        "status": server["status"],
        "logs": logs,
        "broken_logs": 0 if view is None else view.broken,
        "retiring": leaves,
        "waits": _waits(number, logs, status) if leaves else "",
    }


def _waits(number: int | None, logs: int | None, status: Mapping[str, Any]) -> str:
    """Say why a safekeeper that is to leave still has logs; empty: it has none."""
    if not logs:
        return ""
    left = f"{logs} logs are to move"
    for shown in status["migrations"]:
        move = msgspec.convert(shown, MigrationProgress)
        if number in move.members and number not in (move.desired or (number,)):
            reasons = [f"{effect}: {why}" for effect, why in move.problems.items()]
            reasons += [f"waits for {each}" for each in move.waits_for]
            if reasons:
                return f"{left}; {'; '.join(reasons)}"
    return left


def _numbered(name: str) -> tuple[str, int, str]:
    """Sort ``backup-10`` behind ``backup-9``."""
    kind, _, digits = name.rpartition("-")
    return (kind, int(digits), "") if digits.isdecimal() else (name, 0, name)
