"""The HTTP API as an application of Ray Serve.

A replica builds its own database client in its own event loop, straight to the servers' TCP ports;
only Serve's proxy stands before it. Tokens reach the replicas as ``user_config``,
so a change of tokens needs no restart. A Serve that others use is used too, never shut down.
(design §12)
"""

from __future__ import annotations

import hmac
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import ray
from fastapi import FastAPI
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.config import HTTPOptions
from ray.serve.context import _get_global_client
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ProxyStatus

from stelae.client.database import AsyncDatabase
from stelae.core.config.peer_tls import OFF, PeerTls
from stelae.core.config.settings import Settings
from stelae.core.errors import AlreadyRunning, InvalidArgument, RetryLater
from stelae.core.ids import Address
from stelae.runtime.client import client_runtime
from stelae.runtime.free_ports import free_port
from stelae.runtime.logs import log_as
from stelae.runtime.processes import calm_collector
from stelae.runtime.traces import trace_as
from stelae.serve.app import make_app
from stelae.serve.gateway.audit import AUDIT_FOLDER as AUDIT_FOLDER
from stelae.serve.gateway.audit import AuditLog
from stelae.serve.gateway.guard import Limits
from stelae.serve.gateway.tokens import TokenEntry, TokenVerifier
from stelae.serve.routes.cluster_spec import ClusterSpecs

SPARE_REQUESTS = 44
"""So many more than `Limits.requests` reach a replica: the application refuses with a problem."""
PROXY_LIMIT_S = 120.0
"""Upper bound on the wait for proxies that Serve's controller has replaced at their start."""
PROXY_POLL_S = 0.1
APP_PREFIX = "stelae-"
REPLICA_ENVIRONMENT = {"RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0"}
"""Of our replicas alone: they work in the loop that reads requests, as nothing there blocks it for
long. So a request need not change threads, nor its answer."""
REPLICA_LOGGING: dict[str, Any] = {"enable_access_log": False, "log_level": "WARNING"}
"""Of Serve's own lines. It makes one for each request, and drops it: at this level it makes none.
"""


@dataclass(frozen=True, slots=True)
class GatewayPlan:
    """What a replica needs to know."""

    cluster: str
    masters: tuple[Address, ...]
    secret: bytes = field(repr=False)
    settings: Settings
    limits: Limits = field(default_factory=Limits)
    specs: Callable[[], ClusterSpecs] | None = None
    """Who carries out what is put to the cluster's spec."""
    audit_folder: str = ""
    """On the replica's node; empty: the program's log alone."""
    traces_endpoint: str = ""
    """Of the collector of traces; empty: the file names none."""
    peer_tls: PeerTls = OFF
    """TLS of its connections with the cluster's servers; that of HTTP is `Tls`."""


@dataclass(frozen=True, slots=True)
class Deployed:
    """Where the API answers, and whether Serve was started for it."""

    url: str
    app_name: str
    started_serve: bool


@dataclass(frozen=True, slots=True)
class Tls:
    """Files of a Serve that is started here. HAProxy mode knows none: Serve's own proxy it is."""

    cert: str
    key: str


def app_name(cluster: str) -> str:
    return APP_PREFIX + cluster


def open_database(plan: GatewayPlan) -> AsyncDatabase:
    """A client of the cluster in the running event loop. It keeps nothing on disk."""
    runtime = client_runtime(plan.cluster, plan.secret, tls=plan.peer_tls)
    return AsyncDatabase(runtime, plan.masters, plan.settings)


def token_key(plan: GatewayPlan) -> bytes:
    """What the replicas sign with: never the cluster's secret itself."""
    return hmac.digest(plan.secret, b"http tokens", "sha256")


def _answer_to_too_many() -> dict[str, Any]:
    """Serve's option that makes a request beyond the queue a 429. Ray before 2.57 has none, and
    answers 503: both are told to come again."""
    config = getattr(ray.serve.config, "BackpressureConfig", None)
    return (
        {} if config is None else {"backpressure_config": config(status_code=429, retry_after_s=1)}
    )


def build_app(plan: GatewayPlan, verifier: TokenVerifier) -> FastAPI:
    """The application of one replica."""
    name = f"http-{os.getpid()}"
    log_as(cluster=plan.cluster, kind="http", server=name)
    trace_as(plan.traces_endpoint, cluster=plan.cluster, kind="http", server=name)
    specs = None if plan.specs is None else plan.specs()
    app = make_app(
        partial(open_database, plan),
        verifier,
        plan.limits,
        token_key(plan),
        AuditLog(plan.audit_folder or None, f"{socket.gethostname()}/{name}"),
        specs,
        is_named=True,
    )
    calm_collector()
    return app


def gateway_deployment(plan: GatewayPlan, tokens: Sequence[TokenEntry], replicas: int) -> Any:
    """The Serve application, for `serve.run` or a Serve config of the user's own."""
    apps_of_process: list[FastAPI] = []

    def build() -> FastAPI:
        app = build_app(plan, TokenVerifier())
        apps_of_process.append(app)
        return app

    @serve.ingress(build)
    class StelaeGateway:
        """One replica of the HTTP API."""

        def reconfigure(self, user_config: dict[str, Any]) -> None:
            """Take the tokens that are good from now on, and the bounds that hold."""
            entries = msgspec.convert(user_config["tokens"], list[TokenEntry])
            limits = msgspec.convert(user_config["limits"], Limits)
            for app in apps_of_process:
                app.state.tokens.replace(entries)
                app.state.gateway.limits = limits

    deployment = serve.deployment(
        name="gateway",
        num_replicas=replicas,
        max_ongoing_requests=plan.limits.requests + SPARE_REQUESTS,
        max_queued_requests=plan.limits.requests + SPARE_REQUESTS,
        **_answer_to_too_many(),
        user_config={
            "tokens": msgspec.to_builtins(list(tokens)),
            "limits": msgspec.to_builtins(plan.limits),
            "traces_endpoint": plan.traces_endpoint,  # told to `traces_of`: a process has one
        },
        ray_actor_options={"num_cpus": 0, "runtime_env": {"env_vars": REPLICA_ENVIRONMENT}},
        graceful_shutdown_wait_loop_s=0.2,
        graceful_shutdown_timeout_s=5,
        logging_config=REPLICA_LOGGING,
    )(StelaeGateway)
    return deployment.bind()


def deploy(
    plan: GatewayPlan,
    tokens: Sequence[TokenEntry],
    host: str,
    port: int,
    replicas: int = 1,
    *,
    started_serve: bool | None = None,
    tls: Tls | None = None,
) -> Deployed:
    """Start the API (or bring the running one up to date), and wait until it answers.

    Ray must be initialised. Where Serve runs already, its host and port hold, and the API
    has the route prefix ``/stelae/<cluster>``; a Serve started here is ours, with the prefix ``/``.
    ``started_serve``: what an earlier `Deployed` said, when this is an update.

    Raises:
        AlreadyRunning: the port is in use; or Serve runs without the TLS that is wanted.
        RetryLater: no replica became healthy.
    """
    running = serve_address()
    ours = running is None if started_serve is None else started_serve
    if running is None:
        port = port or _free_port(host)
        _start_serve(host, port, tls)
    elif tls is not None and not running.startswith("https://"):
        raise AlreadyRunning(
            f"Serve runs at {running} without TLS, and serve.tls wants it: end that Serve, or give "
            "the certificate to whatever stands before it"
        )
    name = app_name(plan.cluster)
    prefix = "/" if ours else f"/stelae/{plan.cluster}"
    try:
        serve.run(gateway_deployment(plan, tokens, replicas), name=name, route_prefix=prefix)
    except (RuntimeError, TimeoutError, RayServeException) as error:
        raise RetryLater(f"the HTTP API did not start: {error}") from error
    scheme = "http" if tls is None else "https"
    address = serve_address() or f"{scheme}://{in_url(host)}:{port}"
    return Deployed(f"{address}{prefix.rstrip('/')}", name, ours)


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
    """``http://host:port`` of the Serve that runs on this Ray; None if there is none."""
    options = _serve_options()
    if options is None:
        return None
    host, port = _place(options)
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    scheme = "https" if options.get("ssl_certfile") else "http"
    return f"{scheme}://{in_url(shown)}:{port}"


def in_url(host: str) -> str:
    """A host as a URL has it: IPv6 addresses in brackets (RFC 3986, 3.2.2)."""
    return f"[{host}]" if ":" in host else host


def _free_port(host: str) -> int:
    """Raises InvalidArgument."""
    try:
        return free_port(host)
    except OSError as error:
        raise InvalidArgument(
            f"serve.host {host!r} in cluster.yaml is no address of this machine ({error}): give "
            "one of its own, 127.0.0.1 or ::1 for this machine alone, or 0.0.0.0 for all"
        ) from error


@dataclass(frozen=True, slots=True)
class Proxy:
    """One of Serve's own, as the controller knows it."""

    node_id: str
    address: str
    """Of its node."""
    actor: str
    """Its name, in Serve's namespace."""


def proxies_of(cluster: str) -> tuple[list[Proxy], str]:
    """The proxies of the Serve on this Ray, and the path of the cluster's front in it; empty: the
    cluster has none."""
    try:
        details = _serve_details()
    except RayServeException:
        return [], ""
    prefix = details["applications"].get(app_name(cluster), {}).get("route_prefix") or ""
    found = [
        Proxy(node_id, str(each["node_ip"]), str(each["actor_name"]))
        for node_id, each in sorted(details["proxies"].items())
    ]
    return found, prefix


def limits_of(cluster: str) -> Limits | None:
    """What the replicas that run were told to take on; None: nothing is known of it."""
    config = _user_config(cluster)
    return msgspec.convert(config["limits"], Limits) if "limits" in config else None


def traces_of(cluster: str) -> str:
    """Where the replicas that run were told to send traces; empty: nowhere."""
    return str(_user_config(cluster).get("traces_endpoint", ""))


def _user_config(cluster: str) -> Mapping[str, Any]:
    details = _serve_details()
    deployments = details["applications"].get(app_name(cluster), {}).get("deployments", {})
    config = deployments.get("gateway", {}).get("deployment_config", {}).get("user_config")
    return config or {}


def _serve_details() -> Mapping[str, Any]:
    """What the Serve of this Ray says of itself. Raises RayServeException: there is none."""
    client = _get_global_client()
    assert client is not None, "without raise_if_no_controller_running=False it raises instead"
    details: Mapping[str, Any] = client.get_serve_details()
    return details


def serve_place() -> tuple[str, int] | None:
    """Host and port as the Serve that runs on this Ray was given them; None if there is none."""
    options = _serve_options()
    return None if options is None else _place(options)


def _place(options: Mapping[str, Any]) -> tuple[str, int]:
    return options.get("host") or "127.0.0.1", int(options.get("port", 8000))


def _serve_options() -> Mapping[str, Any] | None:
    try:
        details = _serve_details()
    except RayServeException:
        return None
    options: Mapping[str, Any] = details.get("http_options") or {}
    return options


def _start_serve(host: str, port: int, tls: Tls | None) -> None:
    options = HTTPOptions(
        host=host,
        port=port,
        request_timeout_s=660,
        ssl_certfile=None if tls is None else tls.cert,
        ssl_keyfile=None if tls is None else tls.key,
    )
    try:
        serve.start(
            proxy_location="HeadOnly",
            http_options=options,
            logging_config={"enable_access_log": False},
        )
    except RayActorError:
        # On a busy machine Serve's controller replaces a proxy that is not ready within 5 s, and
        # gives the next one longer; `serve.start` waits for the first one only.
        _wait_for_proxies()
    except (RuntimeError, OSError, ValueError) as error:
        raise AlreadyRunning(
            f"the HTTP API cannot listen on {host}:{port} (serve.port in cluster.yaml): {error}"
        ) from error


def _wait_for_proxies() -> None:
    """Wait until each of Serve's proxies is healthy. Raises RetryLater: one is not in time."""
    deadline = time.monotonic() + PROXY_LIMIT_S
    while True:
        details = _serve_details()
        states = [each["status"] for each in details["proxies"].values()]
        if states and all(state == ProxyStatus.HEALTHY for state in states):
            return
        if time.monotonic() > deadline:
            raise RetryLater(
                f"Serve's HTTP proxies are not healthy after {PROXY_LIMIT_S:.0f} s: {states}"
            )
        time.sleep(PROXY_POLL_S)
