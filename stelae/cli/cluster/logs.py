"""``stelae logs``: what a server has logged, by its name, wherever it runs or has run."""

from __future__ import annotations

import re
import time
from typing import Annotated, Any

import typer

from stelae.cli.output import make_console
from stelae.cli.which_cluster import Debug, Where, join_cluster

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_IDENTITY = ("cluster", "kind", "server", "uuid", "incarnation")
_SHOWN_APART = ("time", "level", "logger", "message", "exception", *_IDENTITY)


def logs(
    server: Annotated[str, typer.Argument(metavar="SERVER", help="As `stelae status` names it.")],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is written, until Ctrl-C.")
    ] = False,
    since: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Only what is no older: 5m, 2h.")
    ] = None,
    grep: Annotated[
        str, typer.Option(metavar="TEXT", help="Only lines with this text: an id, a level.")
    ] = "",
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, max=1_000_000, help="The last so many of these.")
    ] = 100,
    where: Where = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Lines as they were written: JSON objects.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Show the log of a server: of all its processes in this Ray, also after its death.

    It is read on the machines where the server has run, from the files of Ray's session. Times are
    UTC. The files are called stelae_CLUSTER_SERVER_PID.err there.

    \b
    stelae logs tserver-1
    stelae logs master-2 -f --since 5m
    stelae logs tserver-1 --grep 5f0c6e0b1d2a4c77 -n 1000
    stelae logs tserver-1 --json | jq 'select(.level == "error") | .message'
    """
    from stelae.cli.cluster.server_logs import Wanted, server_log
    from stelae.core.config.units import parse_duration

    try:
        since_s = 0.0 if since is None else time.time() - parse_duration(since)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--since") from None
    wanted = Wanted(join_cluster(where), server, lines, since_s, grep)
    silent: set[str] = set()
    for found in server_log(wanted, follow=follow):
        for node in sorted(set(found.silent) - silent):
            text = f"node {node} was not asked: {found.silent[node]}"
            make_console(stderr=True).print(text, style="yellow", markup=False, soft_wrap=True)
        silent = set(found.silent)
        for line in found.lines:
            print(json_line(line) if as_json else shown(line), flush=follow)


def json_line(line: str) -> str:
    """A line as a JSON object: most are; others are what Python or Ray wrote."""
    import msgspec

    try:
        msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.MsgspecError:
        return msgspec.json.encode({"message": line}).decode()
    return line


def shown(line: str) -> str:
    """A line for people: time, level, logger, message, and the ids of what was worked on."""
    import msgspec

    try:
        entry = msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.MsgspecError:
        return plain(line)
    ids = " ".join(f"{name}={entry[name]}" for name in entry if name not in _SHOWN_APART)
    head = f"{entry.get('time', '')} {str(entry.get('level', '')).upper():7}"
    text = f"{head} {entry.get('logger', '')}: {entry.get('message', '')}"
    rest = [f"  {each}" for each in str(entry.get("exception", "")).splitlines()]
    return "\n".join([plain(text + (f" [{ids}]" if ids else "")), *map(plain, rest)])


def plain(text: str) -> str:
    """Nobody's text moves the cursor of who reads it."""
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)
