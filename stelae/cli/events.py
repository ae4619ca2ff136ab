"""``stelae events``: what happened of late in a cluster, as its masters tell it."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import typer

from stelae.cli.output import make_console, print_json, print_table
from stelae.cli.which_cluster import STATUS_TIMEOUT_S, Debug, Where, open_cluster

FOLLOW_S = 1.0
"""Seconds between two looks."""
SAME_S = 5.0
"""Maximum difference of the times that two masters have of one event."""
KEPT = 100
"""Number of events that a master keeps."""
_COLORS = {"bad": "red", "warn": "yellow", "good": "green"}


def events(
    bad: Annotated[
        bool, typer.Option("--bad", help="Only deaths, losses and the like, and warnings.")
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=KEPT, help="The newest so many of these.")
    ] = KEPT,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what happens, until Ctrl-C.")
    ] = False,
    where: Where = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document; with -f a JSON object a line.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Show what happened: deaths, recoveries, drains, tables, tokens. Newest last.

    The masters keep the last 100. An event from before the leader master's start has no time.
    Times are UTC. `stelae audit` shows who asked for what, `stelae logs` what one server wrote.

    \b
    stelae events
    stelae events --bad -n 10
    stelae events -f --json | jq 'select(.mood == "bad")'
    """
    with open_cluster(where) as database:

        def look() -> dict[str, Any]:
            return database._status(None, STATUS_TIMEOUT_S, join=False)

        told = Told()
        found = [each for each in told.new_in(look()) if not bad or _is_bad(each)][-limit:]
        if follow:
            for each in found:
                _print(each, as_json=as_json)
            for each in followed(told, look):
                if not bad or _is_bad(each):
                    _print(each, as_json=as_json)
    if as_json:
        print_json({"events": found})
    elif found:
        print_table("events", ["time", "event"], [[_time(each), _text(each)] for each in found])
    else:
        make_console().print("no such event")


class Told:
    """Which events were told already. Each master counts its own, and its times differ a little."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._looked_at = 0.0
        """Time of the last look."""
        self._leader = ""
        self._newest = 0
        """Number of the newest event of that master."""
        self._last: list[Mapping[str, Any]] = []

    def new_in(self, status: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the events of a status document that are new, the oldest first."""
        leader = _leader_of(status)
        is_same = leader == self._leader
        found: list[dict[str, Any]] = sorted(status["events"], key=lambda each: int(each["id"]))
        if is_same:
            new = [each for each in found if each["id"] > self._newest]
        else:
            new = [each for each in found if not self._is_old(each)]
        self._leader, self._newest = leader, found[-1]["id"] if found else 0
        self._last = [*self._last, *new][-KEPT:]
        self._looked_at = self._wall()
        return new

    def _is_old(self, event: Mapping[str, Any]) -> bool:
        """Whether another master has told it."""
        if not self._leader:
            return False
        if event["time"] is None:  # from before that master's start
            return True
        times = [each["time"] for each in self._last if each["text"] == event["text"]]
        if None in times and event["time"] <= self._looked_at + SAME_S:
            return True  # the former leader had started after it
        return any(at is not None and abs(at - event["time"]) <= SAME_S for at in times)


def _leader_of(status: Mapping[str, Any]) -> str:
    """UUID and start of the leader master: one that was started anew counts from 1 again."""
    leaders = [each for each in status["servers"] if each.get("role") == "leader"]
    return f"{leaders[0]['uuid']}:{leaders[0].get('incarnation', '')}" if leaders else ""


def followed(told: Told, look: Callable[[], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Events as they come. ``look``: returns the status document."""
    from stelae.core.errors import OutcomeUnknown, RetryLater, Unavailable

    while True:
        time.sleep(FOLLOW_S)
        try:
            yield from told.new_in(look())
        except (RetryLater, Unavailable, OutcomeUnknown) as error:  # worth watching, too
            make_console(stderr=True).print(str(error), style="yellow", markup=False)


def _is_bad(event: Mapping[str, Any]) -> bool:
    return event["mood"] in ("bad", "warn")


def _print(event: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        import json

        print(json.dumps(event), flush=True)
    else:
        text, style = f"{_time(event):23}  {_text(event)}", _COLORS.get(event["mood"])
        make_console().print(text, style=style, markup=False, soft_wrap=True)


def _time(event: Mapping[str, Any]) -> str:
    if event["time"] is None:
        return ""
    at = datetime.datetime.fromtimestamp(event["time"], datetime.UTC)
    return at.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _text(event: Mapping[str, Any]) -> str:
    from stelae.cli.cluster.logs import plain

    return plain(event["text"])
