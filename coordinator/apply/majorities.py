"""Which tablets would have no live majority without a server, by a status document. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from stelae.core.records.records import ServerKind


def without_replica_majority(
    status: Mapping[str, Any], uuids: Collection[str]
) -> Iterator[Mapping[str, Any]]:
    """Yield tablets whose replicas have no live majority of voters without these tablet servers."""
    for tablet in status["tablets"]:
        voters = [each for each in tablet.get("replicas", ()) if each["member"] == "voter"]
        live = sum(each["server_live"] and each["uuid"] not in uuids for each in voters)
        if voters and 2 * live <= len(voters):
            yield tablet


def without_log_majority(
    status: Mapping[str, Any], uuids: Collection[str] = ()
) -> Iterator[Mapping[str, Any]]:
    """Yield tablets whose logs have no live majority without these safekeepers, which may live.

    While a log moves it takes a majority of its former members, and one of those to come.
    """
    live = {
        each["safekeeper_id"]
        for each in status["servers"]
        if each["kind"] == ServerKind.SAFEKEEPER.value and each["state"] == "live"
        if each["uuid"] not in uuids
    }
    for tablet in status["tablets"]:
        timeline = tablet.get("timeline") or {}
        for members in (timeline.get("sk_set"), timeline.get("new_sk_set")):
            if members and 2 * sum(each in live for each in members) <= len(members):
                yield tablet
                break


def named(tablet: Mapping[str, Any]) -> str:
    """Name a tablet for people."""
    return f"tablet {tablet['number']} of {tablet['table']!r}"
