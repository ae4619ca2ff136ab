"""Why an operator may not stop a server just now: all reasons at once. Pure.

A stopped server is away until it is started again. Rules:

- R1: each tablet with replicas keeps a live majority of its voters, and each log of its members.
- R2: the tablets that a tablet server owns find memory on other tablet servers.
- R3: each table's media find enough other backups, so that writes go on.
- R4: the masters keep a majority.
- R5: the configuration store is alone, and is restarted only.

- R6: tables of Stelae's own keep no server. The lines of the audit log wait in the gateways' files.

What is in a server's memory and nowhere else is looked at by `stelae.deploy.restarts`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from stelae.coordinator.apply.checks import USABLE_SHARE
from stelae.coordinator.apply.majorities import (
    named,
    without_log_majority,
    without_replica_majority,
)
from stelae.coordinator.apply.plan import TableIs
from stelae.coordinator.apply.room import homeless, no_home, room_of
from stelae.core.records.records import ServerKind
from stelae.core.schema.durability import media_of
from stelae.core.schema.own_tables import is_own_table

NAMED = 5
"""Tablets, in a sentence."""


def refusals_of_stop(
    server: Mapping[str, Any], status: Mapping[str, Any], tables: Sequence[TableIs]
) -> list[str]:
    """Return all reasons why a live server of this status document may not be stopped."""
    tablets = [t for t in status["tablets"] if not is_own_table(t["table"])]  # R6
    tables = [table for table in tables if not is_own_table(table.name)]
    status = {**status, "tablets": tablets}
    kind, uuid = server["kind"], server["uuid"]
    if kind == ServerKind.CAS_STORE.value:
        return [
            "it is the only configuration store, without which no log moves to other safekeepers; "
            f"`stelae server restart {server['id']}` starts it again at once"
        ]
    if kind == ServerKind.MASTER.value:
        return list(_masters(server, status))
    if kind == ServerKind.TSERVER.value:
        lacking = [named(tablet) for tablet in without_replica_majority(status, {uuid})]
        found = [f"{_listed(lacking)} would have no live majority of replicas"] if lacking else []
        return [*found, *_owned(server, status)]
    if kind == ServerKind.SAFEKEEPER.value:
        lacking = [named(tablet) for tablet in without_log_majority(status, {uuid})]
        return [f"the logs of {_listed(lacking)} would have no live majority"] if lacking else []
    return list(_backups(server, status, tables))


def _masters(server: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[str]:
    """R4."""
    voters = [
        each for each in status["servers"] if each["kind"] == server["kind"] and each["voter"]
    ]
    others = [each for each in voters if each["state"] == "live" and each["uuid"] != server["uuid"]]
    if 2 * len(others) <= len(voters):
        yield f"{len(others)} of {len(voters)} masters would live, which is no majority"


def _owned(server: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[str]:
    """R2. Replicas are copied elsewhere only if the server stays away, and serve meanwhile."""
    name, room = server["id"], room_of(status, None)
    free = {
        each["id"]: int(USABLE_SHARE * (each["memory_limit_bytes"] or sys.maxsize))
        - room.live_by_server[each["id"]]
        for each in _others(server, status)
    }
    owned = [each for each in room.hosted if each.server == name and not each.beside]
    homeless_one = homeless([name], free, owned)
    if homeless_one is not None:
        yield no_home(homeless_one, free)


def _backups(
    server: Mapping[str, Any], status: Mapping[str, Any], tables: Sequence[TableIs]
) -> Iterator[str]:
    """R3. Each replica of a segment is on another backup."""
    for table in tables:
        for durability in table.durabilities:
            media = media_of(durability)
            others = [each for each in _others(server, status) if {*media} <= {*each["media"]}]
            if len(others) < len(media):
                yield (
                    f"writes to table {table.name!r} with {durability} need {len(media)} backups, "
                    f"and {len(others)} would be left"
                )


def _others(server: Mapping[str, Any], status: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """Other servers of its kind that live and stay."""
    return [
        each
        for each in status["servers"]
        if each["kind"] == server["kind"] and each["uuid"] != server["uuid"]
        if each["state"] == "live" and not each["retiring"]
        if not each.get("maintenance")
    ]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"
