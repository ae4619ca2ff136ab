"""The HTTP front through Serve, beside an empty application in Serve and by plain uvicorn.

The empty application is as Serve deploys one, but for its access log, which is off. Our replicas
have settings of Serve's that save work for each request (`REPLICA_ENVIRONMENT`, `REPLICA_LOGGING`),
so what an empty one does that has them, too, is shown as well.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from ray import serve

import stelae
from benchmarks.common.clusters import cluster
from benchmarks.common.figures import Figure, at_least, at_most, median, percentile, shown, timed
from benchmarks.common.generated import SCHEMA, rows
from benchmarks.common.http_load import load, request_bytes
from benchmarks.common.plain_app import empty_app, plain_uvicorn
from stelae import hash_partition, segments
from stelae.serve.deployment import REPLICA_ENVIRONMENT, REPLICA_LOGGING

CONNECTIONS = (16, 32, 64)
ROWS = 100_000
KEYS = 10_000
MANY_KEYS = 100
"""Of one request for many rows."""
PAGE_ROWS = 1000
Make: TypeAlias = Callable[[int], bytes]


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
        with plain_uvicorn() as plain:
            figures = _rows(url, plain, token, rounds, duration_s)
        figures += _arrow(database, url, token, 2 if quick else 8)
        serve.delete("empty")
        serve.delete("empty-alike")
        return figures


def _deploy_empty(name: str, environment: dict[str, str], logging: dict[str, Any]) -> None:
    @serve.ingress(empty_app())
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


def _requests(url: str, plain: str, token: str) -> dict[str, tuple[str, Make]]:
    """What is measured: where it goes, and the n-th request of it."""
    body = b'{"x":0.5,"body":"' + b"y" * 84 + b'"}'
    page = json.dumps({"page_rows": PAGE_ROWS}).encode()

    def made(method: str, path: str, content: bytes = b"") -> Make:
        whole = request_bytes(url, method, path, token, content)
        return lambda _: whole

    def row(method: str, content: bytes = b"") -> Make:
        def of(number: int) -> bytes:
            path = f"/v1/tables/t/rows/{number * 7919 % KEYS}"
            return request_bytes(url, method, path, token, content)

        return of

    def many(number: int) -> bytes:
        keys = [(number * 7919 + each * 31) % KEYS for each in range(MANY_KEYS)]
        asked = json.dumps({"keys": keys}).encode()
        return request_bytes(url, "POST", "/v1/tables/t/rows:get", token, asked)

    return {
        "plain uvicorn": (plain, lambda _: request_bytes(plain, "GET", "/row", token)),
        "empty": (url, made("GET", "/empty/row")),
        "empty-alike": (url, made("GET", "/empty-alike/row")),
        "get": (url, row("GET")),
        "put": (url, row("PUT", body)),
        "rows:get": (url, many),
        "scan page": (url, made("POST", "/v1/tables/t/rows:scan", page)),
    }


def _rows(url: str, plain: str, token: str, rounds: int, duration_s: float) -> list[Figure]:
    """Requests one after the other, and by many clients at once; all in turn, each round."""
    requests = _requests(url, plain, token)
    one: dict[str, list[float]] = {name: [] for name in requests}
    many: dict[tuple[str, int], list[float]] = {}
    for where, make in requests.values():
        load(where, make, 4, 0.5)  # connections, caches
    for _ in range(rounds):
        for name, (where, make) in requests.items():
            one[name] += load(where, make, 1, duration_s / 2).times_s
            for count in CONNECTIONS:
                rate = load(where, make, count, duration_s).rate
                many.setdefault((name, count), []).append(rate)
    rates = {turn: median(each) for turn, each in many.items()}
    return _alone(one) + _at_once(rates)


def _alone(one: Mapping[str, list[float]]) -> list[Figure]:
    """Figures of one client."""
    ms = {name: median(times) * 1e3 for name, times in one.items()}
    nothing = f"an empty Serve app {ms['empty']:.2f}, plain uvicorn {ms['plain uvicorn']:.2f} ms"
    put = f"{ms['put']:.2f} ms"
    return [
        at_most("HTTP get, one client, p50", ms["get"], 1.3, "ms", nothing),
        shown("HTTP get, one client, p99", percentile(one["get"], 0.99) * 1e3, "ms"),
        at_most("HTTP put on two disks, one client, p50", ms["put"] / ms["get"], 2.5, "x get", put),
        shown(f"HTTP rows:get of {MANY_KEYS} keys, one client, p50", ms["rows:get"], "ms"),
        shown(f"HTTP page of {PAGE_ROWS} rows, one client, p50", ms["scan page"], "ms"),
    ]


def _at_once(rates: Mapping[tuple[str, int], float]) -> list[Figure]:
    """What many clients get, of what they get of the empty application."""
    mode = "HAProxy" if os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") == "1" else "Serve's own proxy"
    figures = []
    for count in CONNECTIONS:
        empty = rates["empty", count]
        alike, plain = rates["empty-alike", count], rates["plain uvicorn", count]
        note = f"{mode}; with our replicas' settings {alike:,.0f}, plain uvicorn {plain:,.0f}"
        figures.append(shown(f"an empty Serve app, {count} clients", empty, "requests/s", note))
        for name in ("get", "put", "rows:get", "scan page"):
            what = f"HTTP {name}, {count} clients, of an empty Serve app"
            share, said = 100 * rates[name, count] / empty, f"{rates[name, count]:,.0f} requests/s"
            is_goal = (name, count) == ("get", 32)
            figures.append(
                at_least(what, share, 85, "%", said) if is_goal else shown(what, share, "%", said)
            )
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
