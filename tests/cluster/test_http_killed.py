"""The HTTP front on real Ray: HTTPS; tokens by command; generated requests; replicas and proxy
killed under load."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import pyarrow as pa
import pytest
from cryptography import x509

import stelae
from stelae import errors, hash_partition, segments
from tests.cluster.row_clients import VALUES, Client, check_failures, check_rows
from tests.front.generated_requests import ask_every_route, check_control_routes, make_timeline
from tests.front.pages import DOCS, blocks_of
from tests.pem import DAY, write_pair
from tests.until import until

if TYPE_CHECKING:
    from stelae.cluster import LaunchedDatabase

pytestmark = [pytest.mark.ray, pytest.mark.soak]

LOAD_S = 2.0
CLIENTS = 3
KEYS = 40
SAFEKEEPERS = 4
"""One more than a table of ``wal(3)`` needs: its logs can move."""
CALLS_PER_ROUTE = 12
GENERATED_S = 45.0
LEFT_OUT = ("PUT /v1/cluster/spec",)
"""A spec that is made up would be carried out: servers would be drained, the front would move."""


@pytest.fixture(scope="module", autouse=True)
def _ends(ends_processes: None) -> None:
    """Nothing is left behind."""


def processes(*words: str) -> list[psutil.Process]:
    """Of this process's Ray, those whose command line has one of these words."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            line = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if any(word in line for word in words):
            found.append(process)
    return found


def test_https_and_tokens_by_configuration_and_command(
    ray_folder: Path, small_spec: Callable[..., dict[str, Any]]
) -> None:
    """A certificate of our own is believed by who is told of it, and by nobody else."""
    cert, key = write_pair(ray_folder, 1, ends=2 * DAY, is_rsa=True)
    spec = small_spec(
        ray_folder / "tls",
        serve={"host": "127.0.0.1", "port": 0, "tls": {"cert": str(cert), "key": str(key)}},
        tservers={"count": 1, "memory": "128MiB"},
        masters={"count": 1},
        safekeepers={"count": 0},
        backups={"count": 2},
    )
    with stelae.launch(spec) as database:
        url = database.http_url
        assert url.startswith("https://127.0.0.1:")
        made = database.create_token("reader", "read")
        with stelae.connect(url, token=made, ca_file=cert) as reader:
            assert reader.tables() == []
            with pytest.raises(errors.Unauthorized):
                reader.create_table("t", pa.schema([("a", pa.int64())]), key="a")
        with stelae.connect(url, token=made) as strange, pytest.raises(errors.Unavailable):
            strange.status(timeout=1.0)
        with pytest.raises(errors.InvalidArgument):
            stelae.connect(url, token=made, ca_file=ray_folder / "none.pem")
        plain = url.replace("https", "http")
        with pytest.raises(httpx.TransportError):
            httpx.get(plain + "/healthz", timeout=5.0)
        port = int(url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as raw:
            context = ssl.create_default_context(cafile=cert)
            with context.wrap_socket(raw, server_hostname="127.0.0.1") as wrapped:
                assert wrapped.version() in ("TLSv1.2", "TLSv1.3")
        listed = _command("token", "list", "--json", cluster=spec["data_dir"])
        assert '"reader"' in listed
        assert made not in listed
        _command("token", "revoke", "reader", cluster=spec["data_dir"])
        time.sleep(2.0)
        with (
            stelae.connect(url, token=made, ca_file=cert) as gone,
            pytest.raises(errors.Unauthorized),
        ):
            gone.tables()
        audit = (Path(spec["data_dir"]) / "audit" / "http.jsonl").read_text()
        assert '"token":"reader"' in audit
        assert '"status":403' in audit
        _audit_table_follows(database, spec["data_dir"])
        _renew(database, cert, key)


def _audit_table_follows(database: LaunchedDatabase, data_dir: str) -> None:
    """What the front has noted is in the table, and is shown by command; lists are without it."""
    (noted,) = until(lambda: database.audit(who="reader"), 60.0, "the refusal in the audit table")
    assert (noted["method"], noted["path"], noted["status"]) == ("POST", "/v1/tables", 403)
    shown = json.loads(_command("audit", "--outcome", "refused", "--json", cluster=data_dir))
    assert {entry["status"] for entry in shown["entries"]} == {401, 403}
    assert database.tables() == []


def _renew(database: LaunchedDatabase, cert: Path, key: Path) -> None:
    """A broken key changes nothing; new files are served by command, and nobody's process ends."""
    old = Path(shutil.copy(cert, cert.with_name("old.pem")))
    before = {process.pid for process in processes("ProxyActor", "ServerHost")}
    assert len(before) == 5
    (shown,) = database.certificates()
    assert shown.ends_soon(time.time())
    assert (shown.is_same, _serial(database.http_url)) == (True, 1)
    key.write_text(key.read_text()[:100])
    with pytest.raises(errors.InvalidArgument, match="nothing has changed"):
        database.renew_certificate()
    assert _serial(database.http_url) == 1
    told = _renew_as_the_page_says(database, cert.parent)
    assert _serial(database.http_url) == 2
    assert "the same" in told
    assert "ends within 14 days" not in told
    (shown,) = database.certificates()
    assert shown.is_same
    assert not shown.ends_soon(time.time())
    url, token = database.http_url, database.admin_token
    with stelae.connect(url, token=token, ca_file=cert) as new:
        assert new.tables() == []
    with (
        stelae.connect(url, token=token, ca_file=old) as strange,
        pytest.raises(errors.Unavailable),
    ):
        strange.status(timeout=1.0)
    assert before == {process.pid for process in processes("ProxyActor", "ServerHost")}


def _renew_as_the_page_says(database: LaunchedDatabase, folder: Path) -> str:
    """The block of its section, where new files and the cluster's own are at hand."""
    (block,) = [each for each in blocks_of(DOCS / "reference/http.md") if each.language == "bash"]
    here = folder / "renewing"
    here.mkdir()
    for file in write_pair(here, 2):
        file.rename(here / f"new-{file.name}")
    (here / "cluster.yaml").write_text(json.dumps(database.spec.document()))
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.text.replace("/etc/stelae", str(folder))],
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        cwd=here, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _serial(url: str) -> int:
    """Of the certificate that a new connection is shown."""
    host, port = url.removeprefix("https://").split(":")
    shown = ssl.get_server_certificate((host, int(port)), timeout=10.0)
    return x509.load_pem_x509_certificate(shown.encode()).serial_number


@pytest.fixture(scope="module")
def database(
    ray_folder: Path, small_spec: Callable[..., dict[str, Any]], ends_processes: None
) -> Iterator[LaunchedDatabase]:
    """A cluster with two replicas of the front, in the Ray of this process: whatever else needs one
    of its own comes before."""
    spec = small_spec(
        ray_folder / "d",
        serve={"host": "127.0.0.1", "port": 0, "replicas": 2},
        tservers={"count": 2, "memory": "128MiB"},
        masters={"count": 1},
        safekeepers={"count": SAFEKEEPERS},
    )
    with stelae.launch(spec) as launched:
        yield launched


def test_generated_requests_over_the_network_are_answered_as_described(
    database: LaunchedDatabase,
) -> None:
    """schemathesis, through the proxy and both replicas: no 5xx of ours, and status, media type and
    body as OpenAPI says."""
    import schemathesis

    url = database.http_url
    headers = {"Authorization": f"Bearer {database.admin_token}"}

    async def prepare() -> dict[str, object]:
        async with httpx.AsyncClient(base_url=url, headers=headers) as client:
            return await make_timeline(client)

    there = asyncio.run(prepare())
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json", headers=headers)
    statuses = ask_every_route(
        *(schema, headers, there),
        calls_per_route=CALLS_PER_ROUTE,
        left_out=LEFT_OUT,
        seconds=GENERATED_S,
    )
    assert set(LEFT_OUT).isdisjoint(statuses)
    check_control_routes(statuses)


def test_a_front_without_a_certificate_has_none_to_renew(database: LaunchedDatabase) -> None:
    """Whatever ends TLS before it is named."""
    for call in (database.certificates, database.renew_certificate):
        with pytest.raises(errors.InvalidArgument, match=r"no certificate \(serve.tls\)"):
            call()


def test_replicas_and_the_proxy_are_killed_under_load_and_no_write_is_lost_or_doubled(
    database: LaunchedDatabase,
) -> None:
    """Each write is bound to a version: one that was lost or done twice fails the next one of its
    row. Clients of the Python API over HTTP meet no error: they repeat, under their request ids."""
    database.create_table(
        "t",
        pa.schema([pa.field("id", pa.int64(), False), *VALUES]),
        key="id",
        partition=hash_partition("id", 2),
        durability=segments("disk", "disk"),
    )
    url, token = database.http_url, database.admin_token
    opened = [stelae.connect(url, token=token) for _ in range(CLIENTS)]
    clients = [
        Client(each.table("t"), f"c{n}", [{"id": n * KEYS + i} for i in range(KEYS)], batch=8)
        for n, each in enumerate(opened)
    ]
    for client in clients:
        client.start()
    time.sleep(LOAD_S)
    for words in (("ServeReplica",), ("haproxy", "ProxyActor"), ("ServeReplica",)):
        victims = processes(*words)
        assert victims, words
        victims[0].kill()
        before = [len(client.acknowledged) for client in clients]
        until(partial(have_written, clients, before), 45.0, f"writes after {words} were killed")
    for client in clients:
        client.end()
    check_failures(clients)
    assert sum(len(client.acknowledged) for client in clients) > 60
    check_rows(clients)
    for each in opened:
        each.close()


def have_written(clients: Sequence[Client], before: Sequence[int]) -> bool:
    """Whether each client that has not failed has written some more."""
    return all(
        len(client.acknowledged) >= count + 20 or not client.is_alive()
        for client, count in zip(clients, before, strict=True)
    )


def _command(*arguments: str, cluster: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "stelae", *arguments, "--cluster", cluster],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
