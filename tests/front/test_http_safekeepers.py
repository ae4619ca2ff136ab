"""The seed's API of safekeepers over HTTP: status codes, bodies, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from stelae.core.ids import TabletId
from stelae.core.records.tokens import Role
from stelae.core.schema.durability import wal
from tests.cluster_fixture import local_cluster
from tests.front.http_world import World, copies_held, problem_of
from tests.until import until_async

pytestmark = pytest.mark.asyncio(loop_scope="module")

SAFEKEEPERS = "/control/v1/safekeepers"
U32_MAX = 2**32 - 1
MISSING = "0" * 32
MOVE = {"src_sk": 2, "dst_sk": 5}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def keepers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """Five safekeepers, a table `w` with wal(3) in two tablets, and `s` without."""
    async with local_cluster(tmp_path_factory.mktemp("wal"), safekeepers=5) as cluster:
        world = World(cluster, durability=wal(3, segments=("disk",)))
        async with world.client() as client:
            column = {"name": "id", "type": "int64", "nullable": False}
            for name, buckets, durability in (
                ("w", 2, {"wal": 3, "segments": ["disk"]}),
                ("s", 1, {"segments": ["disk"]}),
            ):
                body = {
                    "name": name,
                    "columns": [column],
                    "key": ["id"],
                    "partition": {"hash": {"columns": ["id"], "buckets": buckets}},
                    "durability": durability,
                }
                assert (await client.post("/v1/tables", json=body)).status_code == 201
        yield world


@pytest_asyncio.fixture(loop_scope="module")
async def http(keepers: World) -> AsyncIterator[httpx.AsyncClient]:
    async with keepers.client() as client:
        yield client


async def tablets_of(http: httpx.AsyncClient, table: str) -> list[str]:
    found = (await http.get(f"/v1/tables/{table}/tablets")).json()["tablets"]
    return [each["tablet"]["tablet_id"] for each in found]


async def moved(http: httpx.AsyncClient, path: str, desired: list[int]) -> dict[str, Any]:
    """The timeline, once it is where it was to go and nothing is under way."""
    found: dict[str, Any] = {}

    async def is_there() -> bool:
        nonlocal found
        found = (await http.get(path)).json()
        at = found["configuration"]
        is_whole = at["new_sk_set"] is None and sorted(at["sk_set"]) == desired
        return is_whole and found["migration"] is None and not found["unfinished"]

    await until_async(is_there, 60.0, lambda: f"the log on {desired}: {found}", poll_s=0.02)
    return found


async def everything(http: httpx.AsyncClient) -> list[Any]:
    """All that these paths could change."""
    keepers = (await http.get(SAFEKEEPERS)).json()
    statuses = [(each["id"], each["status"]) for each in keepers]
    paths = [f"/control/v1/tenant/w/timeline/{tablet}/" for tablet in await tablets_of(http, "w")]
    return [statuses, *[(await http.get(path)).json() for path in paths]]


async def test_safekeepers_are_listed_and_their_status_is_set(http: httpx.AsyncClient) -> None:
    """By either path; setting it again is fine; the answer is the safekeeper as it is now."""
    listed = (await http.get(SAFEKEEPERS)).json()
    assert [each["id"] for each in listed] == [1, 2, 3, 4, 5]
    assert sorted(each["name"] for each in listed) == [f"safekeeper-{n}" for n in range(5)]
    assert all(each["live"] and each["status"] == "active" for each in listed)
    for _ in range(2):
        answer = await http.put(f"{SAFEKEEPERS}/5/status", json={"status": "offline"})
        assert (answer.status_code, answer.json()["status"]) == (200, "offline")
    assert (await http.get(f"{SAFEKEEPERS}/5")).json()["status"] == "offline"
    answer = await http.post(SAFEKEEPERS, json={"id": 5})
    assert (answer.status_code, answer.json()["status"]) == (200, "offline")
    host, port = listed[4]["address"].split(":")
    again = {"id": 5, "status": "active", "host": host, "port": int(port)}
    for body in ({"id": 5, "status": "active"}, again, again):
        answer = await http.post(SAFEKEEPERS, json=body)
        assert (answer.status_code, answer.json()["status"]) == (200, "active")


async def test_a_timeline_moves_and_its_path_tells_of_it(http: httpx.AsyncClient) -> None:
    """The answer is what was scheduled; the table is named by name or by id, and the path works
    with and without the last slash."""
    first, _ = await tablets_of(http, "w")
    table_id = (await http.get("/v1/tables/w")).json()["id"]
    path = f"/control/v1/tenant/w/timeline/{first}"
    for desired in ([1, 2, 3], [2, 3, 4]):
        answer = await http.put(f"{path}/safekeeper_migrate", json={"desired_set": desired})
        assert answer.status_code == 200, answer.text
        scheduled = answer.json()
        assert scheduled["desired_set"] == desired
        assert (scheduled["tenant_id"], scheduled["timeline_id"]) == (table_id, first)
        found = await moved(http, f"{path}/", desired)
    by_id = f"/control/v1/tenant/{table_id}/timeline/{first}"
    assert (await http.get(path)).json() == (await http.get(f"{by_id}/")).json() == found
    assert found["last_result"]["verdict"] == "done"
    assert found["catalog_generation"] == found["configuration"]["generation"]
    listing = (await http.get("/control/v1/migrations")).json()
    assert found["last_result"] in listing["ended"]
    rows = [{"id": n} for n in range(20)]
    assert (await http.post("/v1/tables/w/rows:write", json={"rows": rows})).status_code == 200


async def test_tables_and_safekeepers_are_emptied_into_others(http: httpx.AsyncClient) -> None:
    """Only what is elsewhere is scheduled; of a safekeeper so many as the limit says."""
    tablets = await tablets_of(http, "w")
    paths = [f"/control/v1/tenant/w/timeline/{tablet}/" for tablet in tablets]
    tenant = "/control/v1/tenant/w/safekeeper_migrate"
    assert (await http.put(tenant, json={"desired_set": [1, 2, 3]})).status_code == 200
    for path in paths:
        await moved(http, path, [1, 2, 3])
    again = await http.put(tenant, json={"desired_set": [1, 2, 3]})
    assert (again.status_code, again.json()) == (200, [])

    order = {"src_sk": 1, "dst_sk": 4, "limit": 1}
    (one,) = (await http.put(f"{SAFEKEEPERS}/migrate", json=order)).json()
    assert one["desired_set"] == [4, 2, 3]
    await moved(http, f"/control/v1/tenant/w/timeline/{one['timeline_id']}/", [2, 3, 4])
    (other,) = (await http.put(f"{SAFEKEEPERS}/migrate", json={"src_sk": 1, "dst_sk": 4})).json()
    assert {one["timeline_id"], other["timeline_id"]} == set(tablets)
    for path in paths:
        await moved(http, path, [2, 3, 4])
    counts = {each["id"]: each["timelines"] for each in (await http.get(SAFEKEEPERS)).json()}
    assert counts == {1: 0, 2: 2, 3: 2, 4: 2, 5: 0}
    scrubbed = await http.put(f"{SAFEKEEPERS}/1/scrub")
    assert (scrubbed.status_code, scrubbed.json()["problems"]) == (200, {})


async def test_an_abort_of_nothing_says_so(http: httpx.AsyncClient) -> None:
    """It is decided, and the timeline is where it was."""
    (first, _), before = await tablets_of(http, "w"), await everything(http)
    path = f"/control/v1/tenant/w/timeline/{first}/safekeeper_migrate_abort"
    answer = await http.put(path)
    assert answer.status_code == 200, answer.text
    assert (answer.json()["verdict"], answer.json()["reason"]) == (
        "done",
        "there is nothing to take back",
    )
    after = await everything(http)
    assert [each["configuration"] for each in after[1:]] == [
        each["configuration"] for each in before[1:]
    ]


async def test_an_abort_goes_back_to_the_members_of_before(
    http: httpx.AsyncClient, keepers: World
) -> None:
    """A move whose new members cannot be copied to stays joint: it is taken back, and the rows are
    there. While it is joint, the path says what it waits for, and another move is refused."""
    first, _ = await tablets_of(http, "w")
    path = f"/control/v1/tenant/w/timeline/{first}"
    await http.put(f"{path}/safekeeper_migrate", json={"desired_set": [1, 2, 3]})
    before = (await moved(http, path, [1, 2, 3]))["configuration"]["generation"]
    async with copies_held(keepers.cluster, TabletId(first), 4, 5):
        await http.put(f"{path}/safekeeper_migrate", json={"desired_set": [3, 4, 5]})

        async def is_stuck() -> dict[str, Any]:
            found: dict[str, Any] = (await http.get(path)).json()
            return found if (found["migration"] or {}).get("problems") else {}

        seen = await until_async(is_stuck, 60.0, "the move says what is wrong", poll_s=0.02)
        assert seen["configuration"] == {
            "generation": before + 1,
            "sk_set": [1, 2, 3],
            "new_sk_set": [3, 4, 5],
        }
        assert seen["migration"]["desired_set"] == [3, 4, 5]
        assert "copy the timeline to 4" in seen["migration"]["waits_for"]
        (running,) = (await http.get("/control/v1/migrations")).json()["running"]
        assert running["timeline_id"] == first
        order = {"desired_set": [1, 2, 4]}
        other = await http.put(f"{path}/safekeeper_migrate", json=order)
        problem_of(other, 409, "migration-under-way")
        answer = await http.put(f"{path}/safekeeper_migrate_abort")
        assert (answer.status_code, answer.json()["verdict"]) == (200, "aborted"), answer.text
    found = await moved(http, path, [1, 2, 3])
    assert found["configuration"]["generation"] == before + 2
    rows = [{"id": n} for n in range(20, 40)]
    assert (await http.post("/v1/tables/w/rows:write", json={"rows": rows})).status_code == 200


async def test_a_move_that_waits_for_its_turn_is_shown_as_such(
    http: httpx.AsyncClient, keepers: World
) -> None:
    """While the master drives as many as it may: it is under way, and nothing is written yet."""
    first, _ = await tablets_of(http, "w")
    path = f"/control/v1/tenant/w/timeline/{first}"
    await http.put(f"{path}/safekeeper_migrate", json={"desired_set": [1, 2, 3]})
    before = await moved(http, path, [1, 2, 3])
    timelines = keepers.cluster.masters[0].timelines
    assert timelines is not None
    room = timelines._runner._room
    taken = 0
    while not room.locked():
        await room.acquire()
        taken += 1
    try:
        await http.put(f"{path}/safekeeper_migrate", json={"desired_set": [1, 2, 4]})
        seen = (await http.get(path)).json()
        assert (seen["migration"]["step"], seen["migration"]["desired_set"]) == (0, [1, 2, 4])
        assert seen["configuration"] == before["configuration"]
    finally:
        for _ in range(taken):
            room.release()
    await moved(http, path, [1, 2, 4])


REFUSED: list[tuple[str, str, Any, int, str]] = [
    # Unknown ids.
    ("POST", SAFEKEEPERS, {"id": 99, "status": "active"}, 404, "safekeeper-not-found"),
    ("GET", f"{SAFEKEEPERS}/99", None, 404, "safekeeper-not-found"),
    ("GET", f"{SAFEKEEPERS}/x", None, 422, "invalid-request"),
    ("GET", f"{SAFEKEEPERS}/-1", None, 422, "invalid-request"),
    ("GET", f"{SAFEKEEPERS}/{U32_MAX + 1}", None, 422, "invalid-request"),
    ("PUT", f"{SAFEKEEPERS}/99/status", {"status": "offline"}, 404, "safekeeper-not-found"),
    ("PUT", f"{SAFEKEEPERS}/99/scrub", None, 404, "safekeeper-not-found"),
    ("PUT", f"{SAFEKEEPERS}/migrate", {"src_sk": 99, "dst_sk": 1}, 400, "invalid-argument"),
    ("PUT", f"{SAFEKEEPERS}/migrate", {"src_sk": 1, "dst_sk": 99}, 400, "invalid-argument"),
    ("GET", "/control/v1/tenant/none/timeline/{w}/", None, 404, "table-not-found"),
    ("GET", f"/control/v1/tenant/w/timeline/{MISSING}/", None, 404, "tablet-not-found"),
    ("GET", "/control/v1/tenant/w/timeline/{s}/", None, 400, "invalid-argument"),
    ("GET", "/control/v1/tenant/s/timeline/{w}/", None, 404, "tablet-not-found"),
    ("PUT", "/control/v1/tenant/s/timeline/{w}/{move}", [2, 3, 5], 404, "tablet-not-found"),
    ("PUT", "/control/v1/tenant/none/timeline/{w}/{move}", [2, 3, 5], 404, "table-not-found"),
    ("PUT", f"/control/v1/tenant/w/timeline/{MISSING}/{{move}}", [2, 3], 404, "tablet-not-found"),
    ("PUT", "/control/v1/tenant/s/timeline/{w}/{move}_abort", None, 404, "tablet-not-found"),
    ("PUT", "/control/v1/tenant/none/{move}", [2, 3, 5], 404, "table-not-found"),
    ("PUT", "/control/v1/tenant/s/{move}", [2, 3, 5], 400, "invalid-argument"),
    # Sets that cannot be.
    ("PUT", "/control/v1/tenant/w/timeline/{w}/{move}", [2, 3, 99], 400, "invalid-argument"),
    ("PUT", "/control/v1/tenant/w/timeline/{w}/{move}", [2, 3, 3], 400, "invalid-argument"),
    ("PUT", "/control/v1/tenant/w/timeline/{w}/{move}", [2, 3], 400, "invalid-argument"),
    ("PUT", "/control/v1/tenant/w/timeline/{w}/{move}", [1, 2, 3, 5], 400, "invalid-argument"),
    ("PUT", "/control/v1/tenant/w/timeline/{w}/{move}", [], 422, "invalid-request"),
    ("PUT", "/control/v1/tenant/w/timeline/{w}/{move}", ["2"], 422, "invalid-request"),
    ("PUT", "/control/v1/tenant/w/timeline/{w}/{move}", [-2, 3, 5], 422, "invalid-request"),
    ("PUT", "/control/v1/tenant/w/{move}", [2, 2, 3], 400, "invalid-argument"),
    ("PUT", "/control/v1/tenant/w/{move}", [2, 3], 400, "invalid-argument"),
    ("PUT", f"{SAFEKEEPERS}/migrate", {"src_sk": 2, "dst_sk": 2}, 400, "invalid-argument"),
    # Bodies that do not fit.
    ("POST", SAFEKEEPERS, {"id": 1, "status": "gone"}, 422, "invalid-request"),
    ("POST", SAFEKEEPERS, {"status": "offline"}, 422, "invalid-request"),
    ("POST", SAFEKEEPERS, {"id": 1, "host": "h", "status": "offline"}, 400, "invalid-argument"),
    ("POST", SAFEKEEPERS, {"id": 1, "port": 1, "status": "offline"}, 400, "invalid-argument"),
    ("POST", SAFEKEEPERS, {"id": 1, "port": 0, "status": "offline"}, 422, "invalid-request"),
    ("POST", SAFEKEEPERS, {"id": 1, "uuid": "u", "status": "offline"}, 422, "invalid-request"),
    ("PUT", f"{SAFEKEEPERS}/1/status", {"status": "gone"}, 422, "invalid-request"),
    ("PUT", f"{SAFEKEEPERS}/1/status", {}, 422, "invalid-request"),
    ("PUT", f"{SAFEKEEPERS}/migrate", {"src_sk": 2}, 422, "invalid-request"),
    ("PUT", f"{SAFEKEEPERS}/migrate", {**MOVE, "limit": 0}, 422, "invalid-request"),
    ("PUT", f"{SAFEKEEPERS}/migrate", {"src_sk": "2", "dst_sk": 5}, 422, "invalid-request"),
    # Methods that are none.
    ("DELETE", f"{SAFEKEEPERS}/1", None, 405, "method-not-allowed"),
    ("POST", "/control/v1/tenant/w/timeline", {}, 404, "not-found"),
]  # fmt: skip


async def test_what_is_refused_is_a_problem_and_changes_nothing(http: httpx.AsyncClient) -> None:
    """Unknown ids, duplicates, sets of another size, bodies of another shape: 4xx, each with its
    type."""
    (w, _), (s,) = await tablets_of(http, "w"), await tablets_of(http, "s")
    before = await everything(http)
    for method, path, body, status, slug in REFUSED:
        where = path.replace("{w}", w).replace("{s}", s).replace("{move}", "safekeeper_migrate")
        json = {"desired_set": body} if isinstance(body, list) else body
        problem_of(await http.request(method, where, json=json), status, slug)
    timeline = f"/control/v1/tenant/w/timeline/{w}/safekeeper_migrate"
    for method, where in (
        ("POST", SAFEKEEPERS),
        ("PUT", f"{SAFEKEEPERS}/1/status"),
        ("PUT", f"{SAFEKEEPERS}/migrate"),
        ("PUT", "/control/v1/tenant/w/safekeeper_migrate"),
        ("PUT", timeline),
    ):
        for text in (b"", b"{", b"[1, 2", b"\xff"):
            problem_of(await http.request(method, where, content=text), 400, "malformed-body")
        answer = await http.request(method, where, content=b"x", headers={"content-type": "a/b"})
        problem_of(answer, 415, "unsupported-media-type")
    assert await everything(http) == before


@pytest.mark.parametrize("status", ["offline", "decommissioned"])
async def test_nothing_moves_to_those_that_are_to_be_away(
    http: httpx.AsyncClient, status: str
) -> None:
    """Neither of one timeline, nor of a table, nor of a safekeeper; nothing changes."""
    tablets = await tablets_of(http, "w")
    tenant = "/control/v1/tenant/w/safekeeper_migrate"
    await http.put(tenant, json={"desired_set": [1, 2, 3]})
    for tablet in tablets:
        await moved(http, f"/control/v1/tenant/w/timeline/{tablet}/", [1, 2, 3])
    assert (await http.put(f"{SAFEKEEPERS}/5/status", json={"status": status})).status_code == 200
    before = await everything(http)
    timeline = f"/control/v1/tenant/w/timeline/{tablets[0]}/safekeeper_migrate"
    for path in (tenant, timeline):
        answer = await http.put(path, json={"desired_set": [1, 2, 5]})
        assert status in str(problem_of(answer, 400, "invalid-argument")["detail"])
    answer = await http.put(f"{SAFEKEEPERS}/migrate", json={"src_sk": 1, "dst_sk": 5})
    assert status in str(problem_of(answer, 400, "invalid-argument")["detail"])
    assert await everything(http) == before
    assert (await http.put(f"{SAFEKEEPERS}/5/status", json={"status": "active"})).status_code == 200


async def test_only_admins_change_anything(http: httpx.AsyncClient, keepers: World) -> None:
    """A reader sees all of it; a writer of rows changes none of it; nobody else sees it."""
    (tablet, _), before = await tablets_of(http, "w"), await everything(http)
    timeline = f"/control/v1/tenant/w/timeline/{tablet}"
    changes: list[tuple[str, str, Any]] = [
        ("POST", SAFEKEEPERS, {"id": 1, "status": "offline"}),
        ("PUT", f"{SAFEKEEPERS}/1/status", {"status": "offline"}),
        ("PUT", f"{SAFEKEEPERS}/1/scrub", None),
        ("PUT", f"{SAFEKEEPERS}/migrate", {"src_sk": 2, "dst_sk": 5}),
        ("PUT", "/control/v1/tenant/w/safekeeper_migrate", {"desired_set": [2, 3, 5]}),
        ("PUT", f"{timeline}/safekeeper_migrate", {"desired_set": [2, 3, 5]}),
        ("PUT", f"{timeline}/safekeeper_migrate_abort", None),
    ]
    async with keepers.client(Role.WRITE) as writer, keepers.client(None) as nobody:
        for method, path, body in changes:
            problem_of(await writer.request(method, path, json=body), 403, "not-permitted")
            problem_of(await nobody.request(method, path, json=body), 401, "not-authenticated")
        problem_of(await nobody.get(SAFEKEEPERS), 401, "not-authenticated")
    async with keepers.client(Role.READ) as reader:
        for path in (SAFEKEEPERS, f"{SAFEKEEPERS}/1", "/control/v1/migrations", f"{timeline}/"):
            assert (await reader.get(path)).status_code == 200
    assert await everything(http) == before


async def test_openapi_has_the_bodies_of_these_paths(http: httpx.AsyncClient) -> None:
    """What is read by hand is described too."""
    document = (await http.get("/openapi.json")).json()
    found = document["paths"]["/control/v1/tenant/{tenant_id}/safekeeper_migrate"]["put"]
    schema = found["requestBody"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/MigrateRequest"}
    assert "desired_set" in document["components"]["schemas"]["MigrateRequest"]["properties"]
