"""What `status` and `check` show of a cluster in addition to what its masters know.

1. Machines that are away, and what becomes of their servers: from the actor that replaces servers.
2. The spread that the spec asks for, where nodes or racks are too few for it.
3. The HTTP front: from ``cluster.json``.
4. Servers that an operator stopped: those that have no actor in Ray.

Trouble on the way is part of what is shown, and never raised. Decisions §69, §70, §72.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from stelae.client.check.nodes import spread_warnings
from stelae.core.errors import StelaeError

if TYPE_CHECKING:
    from stelae.client.check.check import CheckReport
    from stelae.deploy.cluster_state import ClusterState

Document = dict[str, Any]
AWAY_TIMEOUT_S = 5.0
APPLY_STARTS = "`stelae apply` starts it again"


class Placed(Protocol):
    """A cluster, and how its files are reached."""

    cluster: str
    home: str
    ray_address: str


def deployed(database: Placed, status: Mapping[str, Any], *, join: bool = False) -> Document:
    """Return ``away``, ``stopped``, ``http`` and ``warnings`` of a cluster with this status.

    ``join``: whether a connection to Ray may be opened, and servers be asked for files that are not
    here. Without it nobody is asked whom this process is not connected to.
    """
    away = away_of(database, status, join=join)
    stopped = stopped_of(database, status, join=join)
    known = {"away": away, "stopped": stopped}
    try:
        state, spec = _files(database, join=join)
    except (StelaeError, OSError, ValueError, TypeError) as error:  # of another user, or damaged
        return {**known, "http": None, "warnings": [f"the cluster's files: {error}"]}
    spread = (spec.get("placement") or {}).get("spread")
    warnings = [] if spread is None else spread_warnings(status, has_racks=spread != "node")
    return {**known, "http": front_of(state, spec), "warnings": warnings}


def away_of(database: Placed, status: Mapping[str, Any], *, join: bool = False) -> Document | None:
    """Machines that are away, and what becomes of their servers (`SpecHost.away`), or ``problem``.

    None: all servers live and none is half replaced, or this cluster replaces none.
    """
    import ray

    from stelae.applying.replacing import may_replace
    from stelae.applying.spec_operations import ask_away
    from stelae.deploy.ray_session import join_ray

    is_half = any(not each["successor"] for each in status.get("replaced", ()))
    if not is_half and all(server["state"] == "live" for server in status["servers"]):
        return None
    try:
        if not ray.is_initialized():
            if not database.home or not (is_half or may_replace(Path(database.home))):
                return None
            if not join:
                why = "this process is not connected to Ray: `stelae status` connects"
                return {"since": {}, "servers": [], "problem": why}
            join_ray(database.ray_address)
        return ask_away(database.cluster, AWAY_TIMEOUT_S)
    except (StelaeError, OSError, ValueError, TypeError) as error:  # its files are read as well
        return {"since": {}, "servers": [], "problem": str(error)}


def stopped_of(database: Placed, status: Mapping[str, Any], *, join: bool = False) -> list[str]:
    """The servers that do not live, and have no actor: an operator stopped them. Empty also where
    it is not known, as no server is dead or this process is not connected to Ray."""
    import ray

    from stelae.database.servers import processes_of
    from stelae.deploy.ray_session import join_ray

    live = {server["id"] for server in status["servers"] if server["state"] == "live"}
    dead = sorted({server["id"] for server in status["servers"]} - live)
    if not dead:
        return []
    if not ray.is_initialized():
        if not join or not database.home:
            return []
        try:
            join_ray(database.ray_address)
        except StelaeError:  # its Ray has ended: then the servers are dead
            return []
    wanted, there = processes_of(database.cluster, database.home)
    return [name for name in dead if name in wanted and name not in there]


def _files(database: Placed, *, join: bool) -> tuple[ClusterState | None, Mapping[str, Any]]:
    """What is written down of the cluster, and its spec. Raises StelaeError."""
    import ray

    from stelae.deploy.asked import kept_spec
    from stelae.deploy.cluster_files import home_of
    from stelae.deploy.cluster_state import STATE_FILE, load_state

    is_here = bool(database.home) and (Path(database.home) / STATE_FILE).exists()
    if not is_here and not (join and ray.is_initialized()):
        return None, {}
    of = nullcontext(Path(database.home)) if is_here else home_of(database.cluster, ())
    with of as home:
        kept = kept_spec(home)
        return load_state(home), {} if kept is None else kept.spec


def front_of(state: ClusterState | None, spec: Mapping[str, Any]) -> Document | None:
    """The HTTP front: its ``state`` (serving, starting, failed), ``url`` and ``problem``. None: the
    spec has none, or nothing is known of it. Pure."""
    if state is None or not state.ray_address or spec.get("serve") is None:
        return None
    if state.http:
        return {"state": "serving", "url": state.http, "problem": ""}
    if state.http_starts:
        why = (
            "the process that launched the cluster starts it; if that process has ended, "
            f"{APPLY_STARTS}"
        )
        return {"state": "starting", "url": "", "problem": why}
    if state.http_problem:
        return {"state": "failed", "url": "", "problem": state.http_problem}
    return None


def with_front(report: CheckReport, front: Mapping[str, Any] | None) -> CheckReport:
    """Add what is not well with the HTTP front to what a check has found. Pure."""
    from stelae.client.check.facts import Finding, Severity

    found = [Finding("http", "", each, Severity.WARNING) for each in front_problems(front)]
    return replace(report, findings=(*report.findings, *found))


def front_problems(front: Mapping[str, Any] | None) -> list[str]:
    """What is not well with the HTTP front, as sentences. Pure."""
    if front is None or front["state"] != "failed":
        return []
    return [f"the HTTP front did not start: {front['problem']}; {APPLY_STARTS}"]


def deployed_lines(shown: Mapping[str, Any]) -> list[str]:
    """What is worth a look, and no fault: for people. Pure."""
    from stelae.applying.spec_operations import away_lines

    away, front = shown.get("away"), shown.get("http")
    found: list[str] = []
    if away is not None:
        found += away_lines(away)
        if problem := away.get("problem"):
            found.append(f"it is not known which machines are away: {problem}")
    if front is not None and front["state"] == "starting":
        found.append(f"the HTTP front starts: {front['problem']}")
    return [*found, *(f"warning: {each}" for each in shown.get("warnings", ()))]
