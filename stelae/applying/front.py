"""What an apply looks at and changes that is no server: the HTTP front, and Spark's session.

The front is brought up to date, or, to listen elsewhere, ended and started anew: data servers and
their clients notice nothing of it. A Serve that others use as well has their place, and is never
ended. Spark's actor is ended, and is started with its new values: by whoever needs it next, or at
once if it is to be warm; masters know them before, as they are started anew first. Decisions §44.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import ray

from stelae.actors.ray_host.host import cluster_actors
from stelae.actors.ray_host.kept_files import changing
from stelae.actors.ray_host.spark_host import spark_actor
from stelae.actors.ray_host.spark_plan import SPARK_NAME, SparkPlan
from stelae.applying.spec_operations import RaySpecs
from stelae.coordinator.apply.plan import FRONT, SPARK, Traits
from stelae.core.config.spec import ClusterSpec
from stelae.core.config.units import format_size
from stelae.core.errors import RetryLater
from stelae.core.ids import Address
from stelae.deploy import cluster_state, launcher, machines
from stelae.deploy.cluster_state import ClusterState
from stelae.deploy.launcher import HttpFront

ASK_TIMEOUT_S = 5.0
FRONT_TIMEOUT_S = 60.0
FRONT_POLL_S = 0.2
GONE = "none"
UNKNOWN: Traits = {"spark": "unknown"}
"""Of a session whose actor does not say: it may be in use, and is left alone."""


def spark_text(plan: SparkPlan | None) -> str:
    """What a session is made with, in words."""
    if plan is None:
        return GONE
    size = plan.size
    memory = format_size(size.memory_bytes)
    how = "warm" if plan.warm else "on demand"
    return f"{size.executors} executors, {size.cores} cores, {memory}, {how}"


def limits_text(limits: Mapping[str, Any]) -> dict[str, str]:
    """Bounds of the front by the names of the file, in words."""
    return {
        f"serve.limits.{name.removesuffix('_bytes').removesuffix('_s')}": format_size(value)
        if name.endswith("_bytes")
        else f"{value:.12g} s"
        if name.endswith("_s")
        else str(value)
        for name, value in limits.items()
    }


def traces_text(endpoint: str) -> dict[str, str]:
    """Where traces go, by the name of the file, if it says so."""
    return {"traces.endpoint": endpoint} if endpoint else {}


def others_present(cluster: str, state: ClusterState) -> dict[str, Traits]:
    """The front and the Spark that there are."""
    found: dict[str, Traits] = {}
    front = _front(cluster, state)
    if front is not None:
        found[FRONT] = front
    actor = cluster_actors(cluster).get(SPARK_NAME)
    if actor is not None:
        with contextlib.suppress(ray.exceptions.ActorDiedError):  # it has ended
            found[SPARK] = _spark(actor)
    return found


def _spark(actor: Any) -> Traits:
    try:
        plan = ray.get(actor.describe.remote(), timeout=ASK_TIMEOUT_S)
    except ray.exceptions.ActorDiedError:
        raise
    except ray.exceptions.RayError:
        return UNKNOWN
    return {"spark": spark_text(plan)}


def _front(cluster: str, state: ClusterState) -> dict[str, str] | None:
    from ray import serve

    from stelae.serve.deployment import app_name, limits_of, serve_place, traces_of

    place = serve_place()
    if place is None:
        return None
    app = serve.status().applications.get(app_name(cluster))
    deployment = None if app is None else app.deployments.get("gateway")
    if deployment is None:
        return None
    found = {"serve.replicas": str(sum(deployment.replica_states.values()))}
    limits = limits_of(cluster)
    found |= {} if limits is None else limits_text(asdict(limits))
    found |= traces_text(traces_of(cluster))
    if state.started_serve:
        found |= {"serve.host": place[0], "serve.port": str(place[1])}
    return found


def others_wanted(
    spec: ClusterSpec, state: ClusterState, present: Mapping[str, Traits]
) -> dict[str, Traits]:
    """What a spec asks for; what it leaves open is as it is. Pure."""
    found: dict[str, Traits] = {}
    if spec.serve is not None:
        there = present.get(FRONT, {})
        wanted = {"serve.replicas": str(spec.serve.replicas)}
        wanted |= limits_text(spec.serve.limits.model_dump())
        wanted |= traces_text(spec.traces_endpoint)
        if "serve.port" in there:
            port = str(spec.serve.port or there["serve.port"])
            wanted |= {"serve.host": spec.serve.host, "serve.port": port}
        found[FRONT] = wanted
    plan = launcher.spark_plan(spec, state)
    if present.get(SPARK) == UNKNOWN:
        found[SPARK] = UNKNOWN
    elif plan is not None and (plan.warm or SPARK in present):
        found[SPARK] = {"spark": spark_text(plan)}
    return found


def _place(front: Traits) -> tuple[str, str]:
    return front.get("serve.host", ""), front.get("serve.port", "")


def start_http(
    spec: ClusterSpec, state: ClusterState, started_serve: bool | None = None
) -> HttpFront:
    """Deploy the HTTP front on Ray Serve, if the spec has one, with an admin token of its own.

    ``started_serve``: of one that is there, and is brought up to date. Raises AlreadyRunning (its
    port is in use), RetryLater (no replica became healthy).
    """
    if spec.serve is None:
        return HttpFront()
    from stelae.serve.deployment import AUDIT_FOLDER, GatewayPlan, Tls, deploy
    from stelae.serve.gateway.guard import Limits
    from stelae.serve.gateway.tokens import TOKENS_FILE, make_admin_token, read_tokens

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    with changing(state.folder):
        make_admin_token(state.folder)
    front, tls = spec.serve, spec.serve.tls
    plan = GatewayPlan(
        spec.cluster,
        tuple(Address(address) for address in state.masters.values()),
        state.secret,
        spec.settings(),
        Limits(**front.limits.model_dump()),
        audit_folder=str(Path(state.data_dir).absolute() / AUDIT_FOLDER),
        specs=RaySpecs(spec.cluster, state.data_dir, machines.node_of_others(spec)),
        traces_endpoint=spec.traces_endpoint,
        peer_tls=spec.tls.peer_tls,
    )
    made = deploy(
        *(plan, read_tokens(state.folder / TOKENS_FILE), front.host, front.port),
        replicas=front.replicas,
        started_serve=started_serve,
        tls=None if tls is None else Tls(tls.cert, tls.key),
    )
    return HttpFront(made.url, made.started_serve)


def wait_front(
    home: Path,
    refreshed: Callable[[], ClusterState],
    deadline: float,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait while the process that launched a cluster starts its front, so that there is one only.

    After `FRONT_TIMEOUT_S` take it that this process has ended, and note so: the apply then starts
    the front. ``refreshed`` returns the newest state; ``deadline`` is the caller's, by ``now``.

    Raises:
        RetryLater: the caller's deadline comes first; what the state says is left as it is.
    """
    launch_ended = now() + FRONT_TIMEOUT_S
    while refreshed().http_starts:
        left_s = min(launch_ended, deadline) - now()
        if left_s > 0:
            sleep(min(FRONT_POLL_S, left_s))
            continue
        if deadline < launch_ended:
            raise RetryLater(
                "the process that launched the cluster still starts its HTTP front, and the "
                "timeout of this apply is over. Apply again; with a timeout over "
                f"{FRONT_TIMEOUT_S:g} s it starts the front itself if that process has ended"
            )
        cluster_state.change(home, lambda state: replace(state, http_starts=False))
        return


def change_front(spec: ClusterSpec, home: Path) -> None:
    """Bring the HTTP front up to date, start it anew elsewhere, or end it. Again is fine."""
    state = cluster_state.load_state(home)
    there = _front(spec.cluster, state)
    if there is not None:
        wanted = others_wanted(spec, state, {FRONT: there}).get(FRONT)
        if wanted is not None and _place(wanted) == _place(there):
            start_http(spec, state, started_serve=state.started_serve)
            return
        launcher.stop_http(state)
    front = start_http(spec, state)
    cluster_state.change(
        home,
        lambda known: replace(
            known,
            http=front.url,
            started_serve=front.started_serve,
            http_starts=False,
            http_problem="",
        ),
    )


def change_spark(spec: ClusterSpec, home: Path) -> None:
    """End the session that there is, and have the one that is to be. Again is fine."""
    actor = cluster_actors(spec.cluster).get(SPARK_NAME)
    if actor is not None:
        launcher.kill_servers({SPARK_NAME: actor})
    plan = launcher.spark_plan(spec, cluster_state.load_state(home))
    if plan is not None and plan.warm:
        spark_actor(plan)
