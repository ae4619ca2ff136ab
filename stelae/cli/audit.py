"""``stelae audit``: who administered the cluster, what was refused, and what came of it."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypeAlias

import typer

from stelae.cli.output import make_console, print_json, print_table
from stelae.cli.which_cluster import Debug, Where, open_cluster

Look: TypeAlias = Callable[[datetime.datetime], list[dict[str, Any]]]

FOLLOW_S = 1.0
"""Seconds between two looks."""
LATE_S = 900.0
"""How long before the newest entry a call that is only answered now may have begun."""
PAGE = 1000
"""Entries of one look."""
_COLORS = {"refused": "yellow", "failed": "red", "begun": "cyan", "lost": "red"}

Since = Annotated[
    str | None,
    typer.Option(metavar="WHEN", help="Only calls that began then or later: 1h, 7d, or ISO 8601."),
]
Until = Annotated[
    str | None, typer.Option(metavar="WHEN", help="Only calls that began before that.")
]
WantedOutcome = Annotated[
    str, typer.Option(help="done, refused (4xx), failed (5xx), begun (no answer noted) or lost.")
]
PathPrefix = Annotated[
    str,
    typer.Option(
        metavar="PREFIX", help="Only paths that begin so: /v1/tables/flights, delete_table."
    ),
]


def audit(
    since: Since = None,
    until: Until = None,
    who: Annotated[
        str, typer.Option(metavar="NAME", help="Only calls with this token, or by this user@host.")
    ] = "",
    outcome: WantedOutcome = "",
    path: PathPrefix = "",
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=PAGE, help="The newest so many of these.")
    ] = 100,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")
    ] = False,
    where: Where = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document; with -f a JSON object a line.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Show the audit log: who administered the cluster, refused calls too. Newest last.

    By HTTP with an admin's token, and by commands (cli) and Python inside Ray (python), which have
    the cluster's secret: user@host is what their process says of itself. Reads, and writes of rows,
    are not in it. An entry is there about a second after its call was answered. Calls with bad
    tokens are counted by their source: CALLS says how many. It is in the table _stelae.audit, which
    HTTP keeps to 90 days (cluster.yaml: serve.limits.audit_keep and audit_rows). Times are UTC.

    \b
    stelae audit --since 1h
    stelae audit --outcome refused --who dashboard
    stelae audit --path /v1/tables/flights --since 2026-12-01 -n 1000
    stelae audit --path delete_table --who ada@host-1
    stelae audit -f --json | jq 'select(.outcome == "failed")'
    """
    asked: dict[str, Any] = {
        "since": _when("--since", since),
        "until": _when("--until", until),
        "who": who,
        "outcome": outcome,
        "path": path,
    }
    with open_cluster(where) as database:
        found = database.audit(**asked, limit=limit)
        if follow:

            def look(after: datetime.datetime) -> list[dict[str, Any]]:
                return database.audit(**{**asked, "since": after}, limit=PAGE)

            _follow(look, found, as_json=as_json)
            return
    if as_json:
        print_json({"entries": [_document(entry) for entry in found]})
    elif found:
        columns = ["time", "who", "outcome", "calls", "call", "from", "details"]
        print_table("audit log", columns, [_cells(entry) for entry in found])
    else:
        make_console().print("no such call")


def _follow(look: Look, found: list[dict[str, Any]], *, as_json: bool) -> None:
    for entry in followed(look, found):
        if as_json:
            import json

            print(json.dumps(_document(entry)), flush=True)
        else:
            style = _COLORS.get(entry["outcome"])
            text = "  ".join(cell for cell in map(str, _cells(entry)) if cell)
            make_console().print(text, style=style, markup=False, soft_wrap=True)


def followed(look: Look, found: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Entries as they come, each again once its call is answered.

    ``look``: returns the newest `PAGE` entries since a time. ``found``: the first ones.
    """
    told: dict[tuple[str, str], None] = {}
    first = found[0]["time"] if found else datetime.datetime.now(datetime.UTC)
    newest = first  # what is older than the first entry that was shown is not asked for
    while True:
        for entry in found:
            key = (entry["id"], entry["outcome"])
            if key not in told:
                told[key] = None
                yield entry
            newest = max(newest, entry["time"])
        while len(told) > 4 * PAGE:
            del told[next(iter(told))]
        time.sleep(FOLLOW_S)
        found = look(max(first, newest - datetime.timedelta(seconds=LATE_S)))


def _when(option: str, text: str | None) -> datetime.datetime | None:
    from stelae.core.config.units import parse_duration

    if text is None:
        return None
    try:
        at = datetime.datetime.fromisoformat(text)
    except ValueError:
        pass
    else:
        return at if at.tzinfo else at.replace(tzinfo=datetime.UTC)
    try:
        ago = datetime.timedelta(seconds=parse_duration(text))
        return datetime.datetime.now(datetime.UTC) - ago
    except (ValueError, OverflowError) as error:
        said = f"{error}; or ISO 8601, as 2026-12-01T09:00"
        raise typer.BadParameter(said, param_hint=option) from None


def _document(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "time": entry["time"].isoformat(timespec="microseconds")}


def _cells(entry: dict[str, Any]) -> list[Any]:
    from stelae.cli.cluster.logs import plain

    outcome = entry["outcome"]
    if entry["status"] is not None:
        outcome += f" {entry['status']}"
    return [
        entry["time"].strftime("%Y-%m-%d %H:%M:%S.%f")[:-3],
        plain(entry["caller"]),
        outcome,
        entry["calls"] if entry["calls"] > 1 else "",
        plain(f"{entry['method']} {entry['path']}".strip()),
        plain(entry["source"]),
        plain(entry["details"]),
    ]
