"""What is not well in a status document, in plain sentences. Pure."""

from __future__ import annotations

from typing import Any


def problems_of(status: dict[str, Any]) -> list[str]:
    """What is not well in a status document, as sentences; empty: all is."""
    live = {server["id"] for server in status["servers"] if server["state"] == "live"}
    stopped = set(status.get("stopped", ()))
    found = [
        f"{server} is stopped: `stelae server start {server}` starts it again"
        if server in stopped
        else f"{server} is dead"
        for server in dict.fromkeys(server["id"] for server in status["servers"])
        if server not in live
    ]
    found += [
        f"{backup['id']}, a backup on machine {backup['node']}, has not been heard yet"
        for backup in status.get("backups_not_heard", ())
        if backup["id"] not in live and not backup["retiring"]
    ]
    found += [
        f"{server['id']} has only its reserve left on medium {medium!r}, which takes deletes and "
        "no rows: delete some, free its disk, or add backups"
        for server in status["servers"]
        if server["state"] == "live"
        for medium in server.get("media_low", ())
    ]
    found += [
        f"{server['id']} took no replicas from {', '.join(server['avoided_by'])} of late"
        for server in status["servers"]
        if server["state"] == "live" and server.get("avoided_by")
    ]
    found += [
        f"{each['id']} is fenced, and its successor was not heard yet"
        for each in status.get("replaced", ())
        if not each["successor"]
    ]
    if not any(s.get("role") == "leader" and s["id"] in live for s in status["servers"]):
        found.append("no master leads")
    for tablet in status["tablets"]:
        name = f"tablet {tablet['number']} of {tablet['table']!r}"
        if tablet["state"] != "running":
            why = f": {tablet['problem']}" if tablet["problem"] else ""
            found.append(f"{name} is {tablet['state']}{why}")
        elif tablet.get("owners_died"):
            found.append(f"{name} is not open: {tablet['problem']}")
        elif tablet.get("loaded", 1.0) < 1.0 and tablet["problem"]:
            share = f"{100 * tablet['loaded']:.0f} %"
            found.append(f"{name} is loading, {share}, {tablet['problem']}")
        elif tablet["under_replicated"] and "replicas" in tablet:
            found.append(f"{name} lacks {tablet['under_replicated']} of its replicas")
        elif tablet["under_replicated"] and tablet.get("inherits"):
            count = tablet["under_replicated"]
            found.append(f"{name} has {count} segments yet in the log of a tablet that was split")
        elif tablet["under_replicated"]:
            found.append(f"{name} has {tablet['under_replicated']} segments with lost replicas")
    for index in document_indexes(status):
        if index["state"] != "serving":
            why = f": {index['problem']}" if index["problem"] else ""
            found.append(f"the index of {index['column']!r} of {index['table']!r} is filled{why}")
    return found


def document_indexes(status: dict[str, Any]) -> list[dict[str, Any]]:
    """The indexes in a status document."""
    return list(status.get("indexes", ()))
