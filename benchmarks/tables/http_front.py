"""The HTTP front through Serve, beside an empty application in the same Serve, in the same run.

The empty application is as Serve deploys one, but for its access log, which is off. Our replicas
have settings of Serve's that save work for each request (`REPLICA_ENVIRONMENT`, `REPLICA_LOGGING`),
so what an empty one does that has them, too, is shown as well.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import FastAPI
from ray import serve
from starlette.responses import Response

import stelae
from benchmarks.common.clusters import cluster
from benchmarks.common.figures import Figure, at_least, at_most, median, percentile, shown, timed
from benchmarks.common.generated import SCHEMA, rows
from benchmarks.common.http_load import Answered, load, request_bytes
from stelae import hash_partition, segments
from stelae.serve.deployment import REPLICA_ENVIRONMENT, REPLICA_LOGGING

CONNECTIONS = 16
MORE_CONNECTIONS = (32, 64)
ROWS = 100_000
KEYS = 10_000
ANSWER = b'{"id":1,"x":0.5,"body":"' + b"x" * 84 + b'"}'
"""As large as a row of 100 bytes."""


def measure(quick: bool) -> list[Figure]:
    """Single rows one after the other and by many at once; many rows as Arrow."""
    rounds, duration_s = (1, 1.0) if quick else (5, 2.0)
    front = {"host": "127.0.0.1", "port": 0, "replicas": 1}
    with cluster("http", serve=front, tservers={"count": 2, "memory": "1GiB"}) as database:
        url = database.http_url
        token = Path(database.state.data_dir, "admin-token").read_text().strip()
        table = database.create_table(
            "t",
            SCHEMA,
            key="id",
            partition=hash_partition("id", 8),
            durability=segments("disk", "disk"),
        )
        table.load(rows(np.arange(KEYS)))
        _deploy_empty("empty", {}, {"enable_access_log": False})
        _deploy_empty("empty-alike", REPLICA_ENVIRONMENT, REPLICA_LOGGING)
        figures = _single_rows(url, token, rounds, duration_s, quick)
        figures += _arrow(database, url, token, 2 if quick else 8)
        serve.delete("empty")
        serve.delete("empty-alike")
        return figures


def _deploy_empty(name: str, environment: dict[str, str], logging: dict[str, Any]) -> None:
    app = FastAPI()

    @app.get("/row")
    async def row() -> Response:
        return Response(ANSWER, media_type="application/json")

    @serve.ingress(app)
    class Empty:
        """Answers as large as ours, and does nothing for it."""

    deployment = serve.deployment(
        name=name,
        num_replicas=1,
        max_ongoing_requests=300,
        ray_actor_options={"num_cpus": 0, "runtime_env": {"env_vars": environment}},
        logging_config=logging,
    )(Empty)
    serve.run(deployment.bind(), name=name, route_prefix=f"/{name}")


def _single_rows(url: str, token: str, rounds: int, duration_s: float, quick: bool) -> list[Figure]:
    body = b'{"x":0.5,"body":"' + b"y" * 84 + b'"}'

    def empty(_: int) -> bytes:
        return request_bytes(url, "GET", "/empty/row", token)

    def alike(_: int) -> bytes:
        return request_bytes(url, "GET", "/empty-alike/row", token)

    def get(number: int) -> bytes:
        return request_bytes(url, "GET", f"/v1/tables/t/rows/{number * 7919 % KEYS}", token)

    def put(number: int) -> bytes:
        return request_bytes(url, "PUT", f"/v1/tables/t/rows/{number * 7919 % KEYS}", token, body)

    one: dict[str, list[float]] = {"empty": [], "get": [], "put": []}
    many: dict[tuple[str, int], list[Answered]] = {}
    makers: dict[str, Any] = {"empty": empty, "get": get, "put": put}
    turns = [(name, CONNECTIONS) for name in (*makers, "alike")]
    turns += [(name, count) for count in MORE_CONNECTIONS for name in ("empty", "put")]
    makers["alike"] = alike
    for make in makers.values():
        load(url, make, 4, 0.5)  # connections, caches
    for _ in range(rounds):
        for name, times_s in one.items():
            times_s += load(url, makers[name], 1, duration_s / 2).times_s
        for name, count in turns:
            answered = load(url, makers[name], count, duration_s)
            many.setdefault((name, count), []).append(answered)
    rate = {turn: median([each.rate for each in loads]) for turn, loads in many.items()}
    nothing = f"an empty Serve app: {median(one['empty']) * 1e3:.2f} ms"
    figures = [
        at_most("HTTP get, one client, p50", median(one["get"]) * 1e3, 2.0, "ms", nothing),
        shown("HTTP get, one client, p99", percentile(one["get"], 0.99) * 1e3, "ms"),
        shown("HTTP put on two disks, one client, p50", median(one["put"]) * 1e3, "ms"),
    ]
    return figures + _shares(rate, quick)


def _shares(rate: dict[tuple[str, int], float], quick: bool) -> list[Figure]:
    """What many clients get, of what they get of the empty application."""
    mode = "HAProxy" if os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") == "1" else "Serve's own proxy"
    alike = f"{mode}; with our replicas' settings {rate['alike', CONNECTIONS]:,.0f}"
    figures = [
        shown(
            f"an empty Serve app, {CONNECTIONS} clients",
            rate["empty", CONNECTIONS],
            "requests/s",
            alike,
        )
    ]
    for name, count in [("get", CONNECTIONS), ("put", CONNECTIONS)]:
        share = 100 * rate[name, count] / rate["empty", count]
        note = f"{rate[name, count]:,.0f} requests/s"
        what = f"HTTP {name}, {count} clients, of an empty Serve app"
        figures.append(
            shown(what, share, "%", note) if quick else at_least(what, share, 60, "%", note)
        )
    for count in MORE_CONNECTIONS:
        share = 100 * rate["put", count] / rate["empty", count]
        note = f"{rate['put', count]:,.0f} of {rate['empty', count]:,.0f} requests/s"
        figures.append(shown(f"HTTP put, {count} clients, of an empty Serve app", share, "%", note))
    return figures


def _arrow(database: Any, url: str, token: str, rounds: int) -> list[Figure]:
    data = rows(np.arange(ROWS))
    direct_table = database.table("t")
    with stelae.connect(url, token=token) as over_http:
        http_table = over_http.table("t")
        direct, http = [], []
        http_table.upsert(data)
        for _ in range(rounds):
            direct.append(ROWS / timed(lambda: direct_table.upsert(data)))
            http.append(ROWS / timed(lambda: http_table.upsert(data)))
        for number in range(100):
            http_table.get(number)
        single = [timed(lambda n=n: http_table.get(n)) for n in range(1000)]  # type: ignore[misc]
        asked = data.select(["id"]).slice(0, 10_000)
        many = 10_000 / median([timed(lambda: http_table.get_many(asked)) for _ in range(rounds)])
        scan = ROWS / median([timed(http_table.scan) for _ in range(rounds)])
    share = 100 * median(http) / median(direct)
    note = f"{median(http):,.0f} of {median(direct):,.0f} rows/s"
    return [
        shown("get by the Python HTTP client, p50", median(single) * 1e3, "ms"),
        at_least(f"Arrow rows:write of {ROWS:,} rows, of the direct client", share, 50, "%", note),
        shown("Arrow rows:get of 10,000 keys", many, "rows/s"),
        shown(f"Arrow rows:scan of {ROWS:,} rows", scan, "rows/s"),
    ]
