"""All servers of a cluster, of whatever kind, as operators see them: one entry for each.

The status document has most of it. Two things are asked of the masters in addition: why a server
that is to leave cannot yet, and of how many logs each safekeeper is a member.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stelae.client.admin.operators import CALL_TIMEOUT_S, describe_tservers, what_keeps
from stelae.client.routing.masters import MastersClient
from stelae.core.errors import InvalidArgument
from stelae.core.messages.catalog import STATUS, GetStatus
from stelae.core.messages.operators import GET_SERVER, GetServer
from stelae.core.messages.timelines import LIST_SAFEKEEPERS, ListSafekeepers, SafekeeperView
from stelae.core.records.records import ServerKind
from stelae.core.records.timelines import SafekeeperStatus

ORDER = (
    ServerKind.MASTER.value,
    ServerKind.TSERVER.value,
    ServerKind.BACKUP.value,
    ServerKind.SAFEKEEPER.value,
    ServerKind.CAS_STORE.value,
)
"""Kinds, in the order in which they are listed."""
_COMMON = ("kind", "uuid", "state", "address", "node")


class ServerCalls:
    """The part of `AsyncDatabase` that lists servers of all kinds."""

    _masters: MastersClient

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
        problems: dict[str, str] = {}
        for server in status["servers"]:
            if server.get("retiring") and kind in ("", server["kind"]):
                asked = GetServer(server["uuid"])
                progress = await self._masters.call(GET_SERVER, asked, timeout_s=timeout)
                problems[server["uuid"]] = progress.problem
        return describe_servers(status, keepers, problems, kind)


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
    for move in status["migrations"]:
        if number in move["members"] and number not in (move["desired"] or (number,)):
            reasons = [f"{effect}: {why}" for effect, why in move["problems"].items()]
            reasons += [f"waits for {each}" for each in move["waits_for"]]
            if reasons:
                return f"{left}; {'; '.join(reasons)}"
    return left


def _numbered(name: str) -> tuple[str, int, str]:
    """Sort ``backup-10`` behind ``backup-9``."""
    kind, _, digits = name.rpartition("-")
    return (kind, int(digits), "") if digits.isdecimal() else (name, 0, name)
