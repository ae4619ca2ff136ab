"""Scans in pages over HTTP: tokens that any replica understands, and nobody can make up."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pyarrow as pa
import pytest

from stelae.actors.tserver import pins
from stelae.client.http import scan_pieces
from stelae.client.table.scan_pages import KEEP_S, ScanPlace
from stelae.client.table.snapshots import pin_tablet
from stelae.core.errors import SnapshotLost
from stelae.serve.app import make_app
from stelae.serve.gateway.guard import Limits
from tests.front.http_flights import make_flights
from tests.front.http_world import ARROW, World, problem_of
from tests.until import until_async

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCAN = "/v1/tables/flights/rows:scan"
KEY = b"k" * 32


async def test_pages_hold_every_row_once_whatever_is_written_meanwhile(
    world: World, http: httpx.AsyncClient
) -> None:
    """Two replicas answer in turn; each page may be asked for again; rows of a tablet that was
    begun are as they were, though they are written over and others are added."""
    await make_flights(world, http, 200)
    apps = [make_app(world.cluster.database, world.verifier, token_key=KEY) for _ in range(2)]
    seen: list[int] = []
    after: str | None = None
    async with world.client(app=apps[0]) as one, world.client(app=apps[1]) as other:
        for turn in range(100):
            client = (one, other)[turn % 2]
            body: dict[str, Any] = {"page_rows": 7, "columns": ["id"], "after": after}
            page = await client.post(SCAN, json=body)
            assert page.status_code == 200, page.text
            if after is not None:  # (the first one has pinned nothing that could be read again)
                assert (await client.post(SCAN, json=body)).json()["rows"] == page.json()["rows"]
            assert len(page.json()["rows"]) <= 7
            seen += [row["id"] for row in page.json()["rows"]]
            after = page.json()["next"]
            if after is None:
                break
            row = {"id": seen[-1], "dest": "SFO"}
            await http.post("/v1/tables/flights/rows:write", json={"rows": [row]})
    assert after is None
    assert sorted(seen) == list(range(200))


async def test_pages_as_arrow_and_as_lines_name_the_next_in_a_header(
    world: World, http: httpx.AsyncClient
) -> None:
    """And filters hold from page to page."""
    await make_flights(world, http, 20)
    body: dict[str, Any] = {"page_rows": 6, "where": [["dest", "=", "LAX"]], "with_versions": True}
    found = 0
    for _ in range(9):
        page = await http.post(SCAN, json=body, headers={"Accept": ARROW})
        rows = pa.ipc.open_stream(page.content).read_all()
        assert set(rows.column("dest").to_pylist()) <= {"LAX"}
        assert rows.column_names[-1] == "_version"
        found += rows.num_rows
        if "stelae-next-page" not in page.headers:
            break
        body["after"] = page.headers["stelae-next-page"]
        lines = await http.post(SCAN, json=body, headers={"Accept": "application/x-ndjson"})
        assert lines.text.count("\n") <= 6
    assert found == 10


async def test_tokens_that_are_not_of_this_scan_are_refused(
    world: World, http: httpx.AsyncClient
) -> None:
    """Of another request, changed by a bit, of another key, or no token at all: 400."""
    await make_flights(world, http, 50)
    token = (await http.post(SCAN, json={"page_rows": 5})).json()["next"]
    raw = bytearray(base64.urlsafe_b64decode(token))
    raw[-1] ^= 1
    for body in (
        {"after": base64.urlsafe_b64encode(raw).decode()},
        {"after": token, "columns": ["id"]},
        {"after": token[:20]},
        {"after": "ä"},
        {"after": ""},
        {"after": token, "limit": 5},
    ):
        answer = await http.post(SCAN, json={"page_rows": 5, **body})
        problem_of(answer, 400, "invalid-argument")
    other = make_app(world.cluster.database, world.verifier)
    async with world.client(app=other) as client:
        answer = await client.post(SCAN, json={"page_rows": 5, "after": token})
        problem_of(answer, 400, "invalid-argument")
    assert (await http.post(SCAN, json={"page_rows": 3, "after": token})).status_code == 200


async def test_pages_that_are_not_kept_any_more_are_gone(
    world: World, http: httpx.AsyncClient
) -> None:
    """410, and the scan begins anew; what no token names was let go before."""
    await make_flights(world, http, 50)
    for server in world.cluster.tservers:
        server._pins._pins.clear()
    assert (await http.post(SCAN, json={"page_rows": 50})).json()["next"] is not None
    token = (await http.post(SCAN, json={"page_rows": 5})).json()["next"]
    assert sum(len(server._pins) for server in world.cluster.tservers) == 2
    for server in world.cluster.tservers:
        server._pins._pins.clear()
    problem_of(await http.post(SCAN, json={"page_rows": 5, "after": token}), 410, "snapshot-lost")


async def test_readers_who_never_come_back_keep_nobody_out(
    world: World, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many ask for a first page only. Who goes on page by page meanwhile gets all rows; who
    left off before as many others began is told to begin anew."""
    monkeypatch.setattr(pins, "MAX_YIELDING", 8)
    await make_flights(world, http, 60)
    body: dict[str, Any] = {"page_rows": 5, "columns": ["id"]}
    left = (await http.post(SCAN, json=body)).json()["next"]
    seen: list[int] = []
    after: str | None = None
    for _ in range(100):
        page = await http.post(SCAN, json={**body, "after": after})
        assert page.status_code == 200, page.text
        seen += [row["id"] for row in page.json()["rows"]]
        after = page.json()["next"]
        if after is None:
            break
        for _ in range(3):
            assert (await http.post(SCAN, json=body)).status_code == 200
    assert sorted(seen) == list(range(60))
    gone = await http.post(SCAN, json={**body, "after": left})
    assert gone.status_code == 410, gone.text


async def test_each_page_keeps_all_pins_that_later_pages_need(
    world: World, http: httpx.AsyncClient
) -> None:
    """A tablet that was split has a pin for each part: those that wait are kept as long as the one
    that is read, however many pages that takes; and the page in which one part ends keeps the
    next."""
    await make_flights(world, http, 200)
    table = await world.cluster.database.table("flights")
    clock = world.cluster.database.runtime.clock
    parts = []
    for number in range(3):  # (as if they were the parts of one tablet, the last of the table)
        until = clock.monotonic() + 30.0
        runtime, record = world.cluster.database.runtime, table.cache.table
        parts += await pin_tablet(runtime, table.cache, number, record, KEEP_S, until)
    pins = [server._pins for server in world.cluster.tservers]
    place: ScanPlace | None = ScanPlace(2, tuple(parts), 0)
    seen: list[int] = []
    while place is not None:
        for each in pins:
            for pinned in each._pins.values():
                pinned.until = clock.monotonic() + 1.0
        page = await table.scan_page(20, after=place, columns=["id"])
        seen += page.rows.column("id").to_pylist()
        place = page.next
        for tablet in () if place is None else place.pinned:
            (kept,) = [each._pins[tablet.pin] for each in pins if tablet.pin in each]
            assert kept.until > clock.monotonic() + KEEP_S / 2
    assert sorted(seen) == list(range(200))


def _pin_count(world: World) -> int:
    return sum(len(server._pins) for server in world.cluster.tservers)


async def test_a_page_of_no_rows_releases_what_its_token_pins(
    world: World, http: httpx.AsyncClient
) -> None:
    """At once; the token is gone then. Without a token there is nothing to end."""
    await make_flights(world, http, 50)
    for server in world.cluster.tservers:
        server._pins._pins.clear()
    token = (await http.post(SCAN, json={"page_rows": 5})).json()["next"]
    assert _pin_count(world) > 0
    ended = await http.post(SCAN, json={"page_rows": 0, "after": token})
    assert ended.json() == {"rows": [], "next": None}
    assert _pin_count(world) == 0
    problem_of(await http.post(SCAN, json={"page_rows": 5, "after": token}), 410, "snapshot-lost")
    problem_of(await http.post(SCAN, json={"page_rows": 0}), 400, "invalid-argument")


async def test_the_clients_stream_is_made_of_pages(
    world: World, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every row once; closed half read it leaves no pin; rows that are lost end it with their
    error, again and again."""
    await make_flights(world, http, 200)
    for server in world.cluster.tservers:
        server._pins._pins.clear()
    monkeypatch.setattr(scan_pieces, "PAGE_ROWS", 7)
    table = await world.database().table("flights")
    stream = await table.scan_batches(columns=["id"])
    ids = [n async for batch in stream for n in batch.column("id").to_pylist()]
    assert sorted(ids) == list(range(200))
    for server in world.cluster.tservers:
        server._pins._pins.clear()
    stream = await table.scan_batches()
    assert stream.schema == table.schema
    assert (await anext(stream)).num_rows == 7
    await stream.aclose()
    await until_async(lambda: _none(world), 20.0, "no pin")
    stream = await table.scan_batches(batch_rows=3)
    await anext(stream)
    for server in world.cluster.tservers:
        server._pins._pins.clear()
    with pytest.raises(SnapshotLost):
        [batch async for batch in stream]
    with pytest.raises(SnapshotLost):
        await anext(stream)


async def test_a_page_has_no_more_rows_than_one_call_may_have(
    world: World, http: httpx.AsyncClient
) -> None:
    """A greater ``page_rows`` gets shorter pages, as the client's streams need where its pages are
    longer than the gateway's; what is no number of rows is refused."""
    await make_flights(world, http, 50)
    small = World(world.cluster, Limits(rows=7))
    assert scan_pieces.PAGE_ROWS > 7
    async with small.client() as client:
        page = await client.post(SCAN, json={"page_rows": 8})
        assert len(page.json()["rows"]) == 7
        assert page.json()["next"] is not None
        after = page.json()["next"]
        for rows in (-1, "7", 7.5):
            refused = await client.post(SCAN, json={"page_rows": rows, "after": after})
            problem_of(refused, 422, "invalid-request")
        problem_of(await client.post(SCAN, json={"after": after}), 400, "invalid-argument")
    table = await small.database().table("flights")
    stream = await table.scan_batches(columns=["id"])
    assert sorted([n async for batch in stream for n in batch["id"].to_pylist()]) == list(range(50))
    stream = await table.scan_batches(limit=20)
    assert sum([batch.num_rows async for batch in stream]) == 20


async def _none(world: World) -> bool:
    return _pin_count(world) == 0
