"""Many rows in one call over HTTP, as JSON and as Arrow; each write once."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pyarrow as pa
import pytest

from stelae.client.http.protocol import TIMEOUT_HEADER
from stelae.core.records.tokens import Role
from stelae.serve.app import make_app
from stelae.serve.bodies.arrow import write_stream
from stelae.storage.entries import client_results
from tests.front.http_flights import make_flights
from tests.front.http_world import ARROW, World, problem_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


# ---- many rows ------------------------------------------------------------------------------


async def test_many_rows_as_json(world: World, http: httpx.AsyncClient) -> None:
    """write, get, scan with filters, update, delete; versions given and checked."""
    await make_flights(world, http, 250)
    rows = "/v1/tables/flights/rows"
    scan = await http.post(
        f"{rows}:scan", json={"where": [["dest", "=", "LAX"]], "columns": ["id"]}
    )
    assert sorted(row["id"] for row in scan.json()["rows"]) == list(range(1, 250, 2))
    any_of = {"where": [[["id", "<", 2]], [["id", "in", [7, 8]], ["dest", "=", "LAX"]]]}
    scan = await http.post(f"{rows}:scan", json=any_of)
    assert sorted(row["id"] for row in scan.json()["rows"]) == [0, 1, 7]
    limited = await http.post(f"{rows}:scan", json={"limit": 10, "with_versions": True})
    assert len(limited.json()["rows"]) == 10
    assert all(row["_version"] > 0 for row in limited.json()["rows"])
    got = await http.post(
        f"{rows}:get", json={"keys": [5, [3], {"id": 4}, 9999], "with_versions": True}
    )
    assert [row["id"] for row in got.json()["rows"]] == [5, 3, 4]
    five = got.json()["rows"][0]["_version"]
    update = {"op": "update", "rows": [{"id": 5, "delay": 1.5}], "if_versions": [five]}
    assert (await http.post(f"{rows}:write", json=update)).status_code == 200
    problem_of(await http.post(f"{rows}:write", json=update), 409, "version-mismatch")
    assert (await http.get(f"{rows}/5")).json()["delay"] == 1.5
    assert (await http.get(f"{rows}/5")).json()["dest"] == "LAX"
    delete = {"op": "delete", "rows": [{"id": 5}, {"id": 6}]}
    assert len((await http.post(f"{rows}:write", json=delete)).json()["versions"]) == 2
    problem_of(await http.get(f"{rows}/6"), 404, "row-not-found")


async def test_many_rows_as_arrow(world: World, http: httpx.AsyncClient) -> None:
    """Arrow in, Arrow out, streamed scans in all three forms agree."""
    await make_flights(world, http)
    table = pa.table({"id": range(5000), "dest": ["x" * (i % 7) for i in range(5000)]})
    arrow = {"Content-Type": ARROW, "Accept": ARROW}
    rows = "/v1/tables/flights/rows"
    body = write_stream(table.schema, table.to_batches(max_chunksize=700))
    wrote = await http.post(f"{rows}:write?op=insert", content=body, headers=arrow)
    versions = pa.ipc.open_stream(wrote.content).read_all()
    assert versions.schema == pa.schema([("_version", pa.uint64())])
    assert versions.num_rows == 5000
    problem_of(
        await http.post(f"{rows}:write?op=insert", content=body, headers=arrow), 409, "row-exists"
    )
    keys = table.select(["id"]).slice(10, 3)
    got = await http.post(
        f"{rows}:get?columns=dest",
        content=write_stream(keys.schema, keys.to_batches()),
        headers=arrow,
    )
    found = pa.ipc.open_stream(got.content).read_all()
    assert found.equals(table.select(["dest"]).slice(10, 3))
    forms = {}
    for accept in (ARROW, "application/x-ndjson", "application/json"):
        answer = await http.post(
            f"{rows}:scan", json={"columns": ["id", "dest"]}, headers={"Accept": accept}
        )
        assert answer.headers["content-type"].startswith(accept)
        forms[accept] = answer.content
    whole = pa.ipc.open_stream(forms[ARROW]).read_all().sort_by("id")
    assert whole.to_pylist() == table.to_pylist()
    lines = [json.loads(line) for line in forms["application/x-ndjson"].splitlines()]
    assert lines == json.loads(forms["application/json"])["rows"]
    assert sorted(lines, key=lambda row: row["id"]) == table.to_pylist()


async def test_an_empty_scan_is_a_whole_answer_in_each_form(
    world: World, http: httpx.AsyncClient
) -> None:
    """No rows: an Arrow stream with its schema, no lines, an empty list."""
    await make_flights(world, http)
    path = "/v1/tables/flights/rows:scan"
    arrow = await http.post(path, json={}, headers={"Accept": ARROW})
    assert pa.ipc.open_stream(arrow.content).read_all().column_names[0] == "id"
    assert (
        await http.post(path, json={}, headers={"Accept": "application/x-ndjson"})
    ).content == b""
    assert (await http.post(path, json={})).json() == {"rows": []}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("write", {"rows": [{"id": 1}], "op": "replace"}, 422),
        ("write", {"rows": "x"}, 422),
        ("write", {"rows": [5]}, 422),
        ("write", {"rows": [{"id": None}]}, 400),
        ("write", {"rows": [{}]}, 400),
        ("write", {"rows": [{"id": "1"}]}, 400),
        ("write", {"rows": [{"id": 1, "x": 1}]}, 400),
        ("write", {"rows": [{"id": 1}], "if_versions": [1, 2]}, 400),
        ("write", {"rows": [{"id": 1}], "if_versions": [-1]}, 400),
        ("write", {"rows": [{"id": 1}], "if_versions": [2**64]}, 400),
        ("write", {"rows": [{"id": 1}], "op": "insert", "if_versions": [0]}, 400),
        ("write", {"rows": [{"id": 1, "dest": "a"}, {"id": 2}], "op": "update"}, 400),
        ("write", {"rows": [{"dest": "a"}], "op": "update"}, 400),
        ("write", {"rows": [{"id": 1, "dest": "a"}], "op": "update"}, 404),
        ("write", {"rows": [{"id": 1, "dest": "a"}], "op": "delete"}, 400),
        ("write", {"rows": [{"id": 1}, {"id": 1}], "op": "insert"}, 400),
        ("get", {"keys": ["x"]}, 400),
        ("get", {"keys": [[1, 2]]}, 400),
        ("get", {"keys": [{"x": 1}]}, 400),
        ("get", {"keys": [1], "columns": ["x"]}, 400),
        ("get", {"keys": [1], "columns": []}, 422),
        ("get", {}, 422),
        ("scan", {"where": [["x", "=", 1]]}, 400),
        ("scan", {"where": [["id", "~", 1]]}, 400),
        ("scan", {"where": [["id", "=", "a"]]}, 400),
        ("scan", {"where": [["id", "="]]}, 400),
        ("scan", {"where": [5]}, 400),
        ("scan", {"where": [[]]}, 400),
        ("scan", {"where": [["id", 5, 1]]}, 400),
        ("scan", {"where": [["id", "in", 5]]}, 400),
        ("scan", {"where": [["id", "=", [1]]]}, 400),
        ("scan", {"where": [["id", "=", None]]}, 400),
        ("scan", {"limit": -1}, 422),
        ("scan", {"limit": 1.5}, 422),
        ("scan", {"columns": ["x"]}, 400),
        ("scan", {"columns": "id"}, 422),
    ],
)
async def test_bad_calls_on_many_rows_are_refused_whole(
    world: World, http: httpx.AsyncClient, path: str, body: dict[str, object], status: int
) -> None:
    """A 4xx problem, and the table stays empty."""
    await make_flights(world, http)
    response = await http.post(f"/v1/tables/flights/rows:{path}", json=body)
    problem_of(response, status, response.json()["type"].removeprefix("/problems/"))
    assert (await http.post("/v1/tables/flights/rows:scan", json={})).json() == {"rows": []}


async def test_bad_arrow_bodies_are_refused(world: World, http: httpx.AsyncClient) -> None:
    """Damaged streams, wrong types, unknown columns, missing keys: 400, nothing written."""
    await make_flights(world, http)
    good = pa.table({"id": [1, 2], "dest": ["a", "b"]})
    stream = write_stream(good.schema, good.to_batches())
    bad_text = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")]
    )
    bodies: dict[str, Any] = {
        "nothing": b"",
        "noise": b"x" * 100,
        "half": stream[: len(stream) // 2],
        "text": pa.table({"id": ["1"]}),
        "unknown": pa.table({"id": [1], "x": [1]}),
        "no key": pa.table({"dest": ["a"]}),
        "null key": pa.table({"id": pa.array([None], pa.int64())}),
        "bad utf-8": pa.table({"id": [1], "dest": bad_text}),
        "versions": pa.table({"id": [1], "_if_version": ["a"]}),
    }
    for op in ("insert", "upsert", "update", "delete"):
        for name, body in bodies.items():
            if op == "delete" and name in ("unknown", "bad utf-8"):
                continue
            data = body if isinstance(body, bytes) else write_stream(body.schema, body.to_batches())
            response = await http.post(
                f"/v1/tables/flights/rows:write?op={op}",
                content=data,
                headers={"Content-Type": ARROW},
            )
            assert response.status_code == 400, (op, name, response.text)
    assert (await http.post("/v1/tables/flights/rows:scan", json={})).json() == {"rows": []}


# ---- exactly once ---------------------------------------------------------------------------


async def test_the_same_write_with_the_same_key_is_done_once(
    world: World, http: httpx.AsyncClient
) -> None:
    """The second sending gets the first answer, also from another replica of the API."""
    await make_flights(world, http)
    path = "/v1/tables/flights/rows:write"
    key = {"Idempotency-Key": "order-1"}
    body = {"op": "insert", "rows": [{"id": i, "dest": "A"} for i in range(5)]}
    first = await http.post(path, json=body, headers=key)
    other = make_app(world.cluster.connect("replica-2"), world.verifier)
    async with world.client(app=other) as second_replica:
        again = await second_replica.post(path, json=body, headers=key)
    assert again.status_code == 200, again.text
    assert again.json() == first.json()
    problem_of(await http.post(path, json=body), 409, "row-exists")
    changed = {"op": "upsert", "rows": [{"id": 0, "dest": "B"}]}
    assert (await http.post(path, json=changed, headers=key)).status_code == 200
    assert (await http.get("/v1/tables/flights/rows/0")).json()["dest"] == "B"


async def test_keys_of_different_tokens_do_not_meet(world: World, http: httpx.AsyncClient) -> None:
    """One token's key is not an answer for another's request."""
    await make_flights(world, http)
    path = "/v1/tables/flights/rows/1"
    headers = {"Idempotency-Key": "k", "If-None-Match": "*"}
    assert (await http.put(path, json={}, headers=headers)).status_code == 200
    assert (await http.put(path, json={}, headers=headers)).status_code == 200
    async with world.client(Role.WRITE) as other:
        problem_of(await other.put(path, json={}, headers=headers), 412, "version-mismatch")


async def test_too_many_keys_of_the_last_minute_are_refused_in_plain_words(
    world: World, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer says what is full, for how long, and what to do; writes without a key go on, also
    those of clients that nobody has heard of."""
    await make_flights(world, http)
    monkeypatch.setattr(client_results, "MAX_KEYS", 4)
    path = "/v1/tables/flights/rows/1"
    assert (await http.put(path, json={})).status_code == 200
    for number in range(20):
        # What is full is tried until the deadline; a busy machine may need as long for a write.
        headers = {
            "Idempotency-Key": f"key-{number}",
            TIMEOUT_HEADER: "20" if number < 4 else "0.5",
        }
        answer = await http.put(path, json={}, headers=headers)
        if answer.status_code not in (200, 504):
            break
    detail = problem_of(answer, 429, "overloaded")["detail"]
    assert all(text in detail for text in ("Idempotency-Key", "last minute", "limit of 4")), detail
    assert (await http.put(path, json={})).status_code == 200
    newcomer = await world.database().table("flights")
    await newcomer.upsert({"id": 2})
