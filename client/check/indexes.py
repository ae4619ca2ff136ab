"""Whether indexes answer, and are where the catalog says. Pure."""

from __future__ import annotations

from stelae.client.check import hints as check_hints
from stelae.client.check.facts import Finding, IndexFacts, Severity, StatusFacts
from stelae.core.messages.indexes import IndexletProgress
from stelae.core.schema.indexes import END, IndexletState, covers


def judge_indexes(status: StatusFacts) -> list[Finding]:
    """Each index has all entries, each at a live server that says that it answers."""
    live = {server.id: None for server in status.servers if server.is_live}
    found: list[Finding] = []
    for index in status.indexes:
        subject = f"index of {index.column!r} of {index.table!r} ({index.id})"
        for severity, text, hint in _judge(index, live):
            found.append(Finding("indexes", subject, text, severity, hint))
    return found


def _judge(index: IndexFacts, live: dict[str, None]) -> list[tuple[Severity, str, str]]:
    found: list[tuple[Severity, str, str]] = []
    ranges = [(bytes.fromhex(e.low), bytes.fromhex(e.high) or END) for e in index.indexlets]
    if not covers(sorted(ranges)):
        text = "its indexlets do not have all of it, each entry once"
        found.append((Severity.ERROR, text, check_hints.CONTRADICTION))
    for each in index.indexlets:
        name = f"indexlet {each.id} on {each.server}"
        if each.server not in live:
            found.append((Severity.ERROR, f"{name}: the server is dead", check_hints.INDEX_SERVER))
        elif each.state != IndexletState.SERVING:
            why = f": {each.problem}" if each.problem else ""
            found.append((Severity.WARNING, f"{name} is filled{why}", check_hints.INDEX_FILLS))
        elif each.progress not in (IndexletProgress.SERVING, IndexletProgress.CLOSED):
            text = f"{name} is to answer, and is {each.progress or 'not there'}"
            found.append((Severity.ERROR, text, check_hints.INDEX_SERVER))
    return found
