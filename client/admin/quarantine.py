"""What lies in the quarantines of the tablet servers: lists of it, and its end.

Each server is asked for itself, some at a time; one that does not answer is told of, and is no
reason not to ask the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stelae.core.errors import InvalidArgument, StelaeError
from stelae.core.ids import Address, ServerUuid
from stelae.core.messages.replicas import QuarantineEntry, QuarantineList
from stelae.core.records.records import ServerKind
from stelae.core.rpc import Reply

SERVERS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Quarantined:
    """What one deletion of a replica left on one server."""

    server: str
    uuid: str
    entry: QuarantineEntry

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        entry = self.entry
        return {
            "server": self.server,
            "uuid": self.uuid,
            "tablet": entry.tablet_id,
            "number": entry.number,
            "table": entry.table,
            "folder": entry.folder,
            "bytes": entry.size_bytes,
            "age_s": round(entry.age_s, 1),
        }


@dataclass(frozen=True, slots=True)
class QuarantineReport:
    """What the servers answered."""

    entries: tuple[Quarantined, ...]
    """By server, tablet and number."""
    silent: Mapping[str, str]
    """Of servers that did not answer: why."""

    @property
    def size_bytes(self) -> int:
        return sum(each.entry.size_bytes for each in self.entries)

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        entries = [each.document() for each in self.entries]
        return {"entries": entries, "bytes": self.size_bytes, "silent": dict(self.silent)}


@dataclass(frozen=True, slots=True)
class Asked:
    """A tablet server, as the status has it."""

    name: str
    uuid: ServerUuid
    address: Address
    is_live: bool


def servers_to_ask(status: Mapping[str, Any], server: str) -> list[Asked]:
    """All tablet servers of a status document, or those of that name or UUID. Pure.

    Raises:
        InvalidArgument: there is none of that name.
    """
    found = [
        Asked(each["id"], each["uuid"], each["address"], each["state"] == "live")
        for each in status["servers"]
        if each["kind"] == ServerKind.TSERVER.value and server in ("", each["id"], each["uuid"])
    ]
    if server and not found:
        raise InvalidArgument(f"{server!r} is no tserver")
    # Of one name there may be former ones, whose disks are gone: they are asked for by UUID.
    live = {each.name for each in found if each.is_live}
    kept = [e for e in found if e.is_live or e.name not in live or server == e.uuid]
    return sorted(kept, key=lambda each: (each.name, each.uuid))


async def ask_all(
    status: Mapping[str, Any],
    server: str,
    call: Callable[[Address, ServerUuid], Awaitable[Reply[QuarantineList]]],
) -> QuarantineReport:
    """Ask the servers, and put together what they say. Raises InvalidArgument."""
    room = asyncio.Semaphore(SERVERS_AT_ONCE)
    silent: dict[str, str] = {}

    async def ask(each: Asked) -> list[Quarantined]:
        if not each.is_live:
            silent[each.name] = "it is dead"
            return []
        async with room:
            try:
                reply = await call(each.address, each.uuid)
            except StelaeError as error:
                silent[each.name] = str(error)
                return []
        return [Quarantined(each.name, each.uuid, entry) for entry in reply.body.entries]

    answers = await asyncio.gather(*map(ask, servers_to_ask(status, server)))
    entries = tuple(entry for answer in answers for entry in answer)
    return QuarantineReport(entries, dict(sorted(silent.items())))
