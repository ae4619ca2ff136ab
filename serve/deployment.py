"""The HTTP API as an application of Ray Serve.

A replica builds its own database client in its own event loop, straight to the servers' TCP ports;
only Serve's proxy stands before it. Tokens reach the replicas as ``user_config``,
so a change of tokens needs no restart. A Serve that others use is used too, never shut down.
(design §12)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import ray
from fastapi import FastAPI
from ray import serve
from ray.serve.config import BackpressureConfig, HTTPOptions
from ray.serve.exceptions import RayServeException

from stelae.client.database import AsyncDatabase
from stelae.core.errors import AlreadyRunning, RetryLater
from stelae.core.ids import Address
from stelae.core.settings import Settings
from stelae.runtime.client import client_runtime
from stelae.serve.app import make_app
from stelae.serve.environment import free_port
from stelae.serve.guard import Limits
from stelae.serve.tokens import TokenEntry, TokenVerifier

MAX_ONGOING_REQUESTS = 300
"""Of one replica; the application itself refuses beyond `Limits.requests`, with a problem."""
MAX_QUEUED_REQUESTS = 300
START_TIMEOUT_S = 60
APP_PREFIX = "stelae-"


@dataclass(frozen=True, slots=True)
class GatewayPlan:
    """What a replica needs to know."""

    cluster: str
    masters: tuple[Address, ...]
    secret: bytes
    settings: Settings
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True)
class Deployed:
    """Where the API answers, and whether Serve was started for it."""

    url: str
    app_name: str
    started_serve: bool


def app_name(cluster: str) -> str:
    return APP_PREFIX + cluster


def open_database(plan: GatewayPlan) -> AsyncDatabase:
    """A client of the cluster in the running event loop. It keeps nothing on disk."""
    return AsyncDatabase(client_runtime(plan.cluster, plan.secret), plan.masters, plan.settings)


def build_app(plan: GatewayPlan, verifier: TokenVerifier) -> FastAPI:
    """The application of one replica."""
    return make_app(partial(open_database, plan), verifier, plan.limits)


def gateway_deployment(plan: GatewayPlan, tokens: Sequence[TokenEntry], replicas: int) -> Any:
    """The Serve application, for `serve.run` or a Serve config of the user's own."""
    verifier_of_process: list[TokenVerifier] = []

    def build() -> FastAPI:
        verifier = TokenVerifier()
        verifier_of_process.append(verifier)
        return build_app(plan, verifier)

    @serve.ingress(build)
    class StelaeGateway:
        """One replica of the HTTP API."""

        def reconfigure(self, user_config: dict[str, Any]) -> None:
            """Take the tokens that are good from now on."""
            entries = msgspec.convert(user_config["tokens"], list[TokenEntry])
            for verifier in verifier_of_process:
                verifier.replace(entries)

    deployment = serve.deployment(
        name="gateway",
        num_replicas=replicas,
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        max_queued_requests=MAX_QUEUED_REQUESTS,
        backpressure_config=BackpressureConfig(status_code=429, retry_after_s=1),
        user_config={"tokens": msgspec.to_builtins(list(tokens))},
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_wait_loop_s=0.2,
        graceful_shutdown_timeout_s=5,
        logging_config={"enable_access_log": False},
    )(StelaeGateway)
    return deployment.bind()


def deploy(
    plan: GatewayPlan,
    tokens: Sequence[TokenEntry],
    *,
    host: str,
    port: int,
    replicas: int = 1,
    started_serve: bool | None = None,
) -> Deployed:
    """Start the API (or bring the running one up to date), and wait until it answers.

    Ray must be initialised. Where Serve runs already, its host and port hold, and the API
    has the route prefix ``/stelae/<cluster>``; a Serve started here is ours, with the prefix ``/``.
    ``started_serve``: what an earlier `Deployed` said, when this is an update.

    Raises:
        AlreadyRunning: the port is in use.
        RetryLater: no replica became healthy.
    """
    running = serve_address()
    ours = running is None if started_serve is None else started_serve
    if running is None:
        port = port or free_port(host)
        _start_serve(host, port)
    name = app_name(plan.cluster)
    prefix = "/" if ours else f"/stelae/{plan.cluster}"
    try:
        serve.run(gateway_deployment(plan, tokens, replicas), name=name, route_prefix=prefix)
    except (RuntimeError, TimeoutError, RayServeException) as error:
        raise RetryLater(f"the HTTP API did not start: {error}") from error
    address = serve_address() or f"{host}:{port}"
    return Deployed(f"http://{address}{prefix.rstrip('/')}", name, ours)


def undeploy(cluster: str, *, started_serve: bool) -> None:
    """Take the API away; and Serve too, if it was started for it and nobody else uses it now."""
    if serve_address() is None:
        return
    name = app_name(cluster)
    if name in serve.status().applications:
        serve.delete(name)
    if started_serve and not serve.status().applications:
        serve.shutdown()


def serve_address() -> str | None:
    """``host:port`` of the Serve that runs on this Ray; None if there is none."""
    try:
        details = ray.serve.context._get_global_client().get_serve_details()
    except RayServeException:
        return None
    options = details.get("http_options") or {}
    host = options.get("host") or "127.0.0.1"
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    return f"{shown}:{options.get('port', 8000)}"


def _start_serve(host: str, port: int) -> None:
    try:
        serve.start(
            proxy_location="HeadOnly",
            http_options=HTTPOptions(host=host, port=port, request_timeout_s=660),
            logging_config={"enable_access_log": False},
        )
    except (RuntimeError, OSError, ValueError) as error:
        raise AlreadyRunning(
            f"the HTTP API cannot listen on {host}:{port} (serve.port in cluster.yaml): {error}"
        ) from error
