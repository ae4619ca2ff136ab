"""The audit log as a table: lines come from the gateways' files, each once, whatever dies."""

from __future__ import annotations

import asyncio
import datetime
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from fastapi import FastAPI

from stelae.client import audit as client_audit
from stelae.client.audit import audit_durability
from stelae.client.database import AsyncDatabase
from stelae.client.table.table import AsyncTable
from stelae.coordinator.ddl import tables as ddl_tables
from stelae.core.errors import InvalidArgument, RetryLater, RowExists
from stelae.core.records.tokens import Role
from stelae.core.schema import audit as core_audit
from stelae.core.schema.audit import AUDIT_SCHEMA, Outcome
from stelae.core.schema.durability import replicas, segments
from stelae.core.schema.own_tables import AUDIT_TABLE
from stelae.serve.app import make_app
from stelae.serve.gateway import audit as audit_module
from stelae.serve.gateway import audit_copier
from stelae.serve.gateway.audit import AuditLog
from stelae.serve.gateway.audit_copier import AuditCopier
from stelae.serve.gateway.audit_files import MARK
from stelae.serve.gateway.audit_rows import rows_of
from stelae.serve.gateway.guard import Limits
from tests.cluster_fixture import local_cluster
from tests.front.http_world import World, problem_of
from tests.front.test_cli_operators import database_of
from tests.until import until_async

NOW = datetime.datetime.now(datetime.UTC)


@asynccontextmanager
async def gateway(world: World, folder: Path, name: str) -> AsyncIterator[httpx.AsyncClient]:
    """A replica with its copier at work, and an admin's client of it."""
    app = gateway_app(world, folder, name)
    async with app.router.lifespan_context(app), world.client(app=app) as http:
        yield http


def gateway_app(world: World, folder: Path, name: str) -> FastAPI:
    def connect() -> AsyncDatabase:
        return world.cluster.connect(name)

    return make_app(connect, world.verifier, audit=AuditLog(folder, name))


def copier_of(log: AuditLog, database: AsyncDatabase, limits: Limits | None = None) -> AuditCopier:
    async def opened() -> AsyncDatabase:
        return database

    return AuditCopier(log, opened, lambda: limits or Limits())


async def all_of(copier: AuditCopier) -> None:
    while await copier.turn():
        pass


async def until_entries(database: AsyncDatabase, count: int, **asked: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    async def enough() -> bool:
        nonlocal found
        found = await database.audit(**asked)
        return len(found) >= count

    await until_async(enough, 90.0, f"{count} entries")
    return found


def call(log: AuditLog, path: str, token: str = "ci", method: str = "PUT") -> Any:
    scope = {"type": "http", "method": method, "path": path, "client": ("10.0.0.9", 1)}
    return log.begin(scope, token, "admin")


async def test_calls_of_admins_and_refusals_are_in_the_table(tmp_path: Path) -> None:
    """Each call is one entry, by whichever replica; bad tokens too; other reads are not; the newest
    are last."""
    async with local_cluster(tmp_path / "c", tservers=1) as cluster:
        world, folder = World(cluster), tmp_path / "audit"
        async with gateway(world, folder, "one") as one, gateway(world, folder, "two") as two:
            made = await one.post("/v1/tokens", json={"name": "ada", "role": "read"})
            ada = {"Authorization": f"Bearer {made.json()['token']}"}
            problem_of(await two.delete("/v1/tables/t?x=1", headers=ada), 403, "not-permitted")
            bad = {"Authorization": "Bearer stelae_x"}
            for _ in range(3):
                assert (await two.get("/v1/tables", headers=bad)).status_code == 401
            assert (await one.get("/v1/tables", headers=ada)).status_code == 200
            found = await until_entries(cluster.database, 3)
            shown = [
                (e["gateway"], e["caller"], e["role"], e["method"], e["path"], e["object"])
                for e in found
            ]
            assert shown == [
                ("one", "admin", "admin", "POST", "/v1/tokens", "ada"),
                ("two", "ada", "read", "DELETE", "/v1/tables/t", "t"),
                ("two", "", "", "GET", "/v1/tables", ""),
            ]
            assert [(e["outcome"], e["status"]) for e in found] == [
                ("done", 201), ("refused", 403), ("refused", 401),
            ]  # fmt: skip
            assert found[0]["details"] == '{"name":"ada","role":"read"}'
            assert found[1]["details"].startswith("?x=1 not authorized: token 'ada' has role read")
            assert made.json()["token"] not in str(found)
            assert all(e["time"].tzinfo and e["time"] >= NOW for e in found)
            # The other two bad tokens are told of by the next line, here that of the end.
        await all_of(copier_of(AuditLog(folder), cluster.database))
        counts = [e["calls"] for e in await cluster.database.audit(who="", outcome="refused")]
        assert sorted(counts) == [1, 1, 2]


async def test_a_line_that_is_copied_twice_is_one_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that dies between copy and mark, and one whose mark is damaged; an older line of a
    call changes nothing of what came of it."""
    async with local_cluster(tmp_path / "c", tservers=1) as cluster:
        log = AuditLog(tmp_path / "audit")
        entry = call(log, "/v1/tables/t")
        await log.end(entry, 200, b"{}")
        call(log, "/v1/tables/cut-off")
        dying = copier_of(log, cluster.database)

        def killed(_: object) -> None:
            raise OSError("the process ends here")

        monkeypatch.setattr(dying._files, "write_mark", killed)
        with pytest.raises(OSError, match="ends here"):
            await dying.turn()
        dying._files.release()
        before = await cluster.database.audit()
        assert [(e["object"], e["outcome"]) for e in before] == [
            ("t", "done"),
            ("cut-off", "begun"),
        ]

        for damage in (None, b"", b"{", b'{"file": 3}', b'{"offset": -1}'):
            if damage is not None:
                (tmp_path / "audit" / MARK).write_bytes(damage)
            copier = copier_of(log, cluster.database)
            # Only the beginnings: as from a copier that was overtaken by another.
            begun = [{**e, "outcome": "begun", "status": None} for e in before]
            await cluster.database.put_audit(begun)
            await all_of(copier)
            await copier.close()
            assert await cluster.database.audit() == before
        table = await cluster.database.table(AUDIT_TABLE)
        assert await table.count() == 2


async def test_rows_that_were_not_written_are_copied_by_the_next_copier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that dies before its rows are in the table leaves the mark as it was, in its file
    too: no line is lost."""
    async with local_cluster(tmp_path / "c", tservers=1) as cluster:
        log, mark = AuditLog(tmp_path / "audit"), tmp_path / "audit" / MARK
        await log.end(call(log, "/v1/tables/a"), 200, b"")
        dying = copier_of(log, cluster.database)
        await all_of(dying)
        before = mark.read_bytes()
        await log.end(call(log, "/v1/tables/b"), 200, b"")

        async def killed(*_: Any, **__: Any) -> None:
            raise OSError("the process ends here")

        with monkeypatch.context() as patched:
            patched.setattr(AsyncDatabase, "put_audit", killed)
            with pytest.raises(OSError, match="ends here"):
                await dying.turn()
        assert mark.read_bytes() == before
        dying._files.release()
        copier = copier_of(log, cluster.database)
        await all_of(copier)
        await copier.close()
        assert [e["object"] for e in await cluster.database.audit()] == ["a", "b"]


async def test_a_beginning_that_is_overtaken_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look for a row and its insert another copier may write how the call ended."""
    async with local_cluster(tmp_path / "c", tservers=1) as cluster:
        log = AuditLog(tmp_path / "audit")
        entry = call(log, "/v1/tables/t")
        ((begun,), _) = rows_of((tmp_path / "audit" / "http.jsonl").read_bytes().splitlines())
        await log.end(entry, 200, b"{}")
        ((ended,), _) = rows_of((tmp_path / "audit" / "http.jsonl").read_bytes().splitlines())
        whole = AsyncTable.get_many

        async def overtaken(self: AsyncTable, keys: Any, **named: Any) -> pa.Table:
            found = await whole(self, keys, **named)
            await self.for_stelae().upsert(ended)
            return found

        with monkeypatch.context() as patched:
            patched.setattr(AsyncTable, "get_many", overtaken)
            with pytest.raises(RowExists):
                await cluster.database.put_audit([begun])
        await cluster.database.put_audit([begun])
        (found,) = await cluster.database.audit()
        assert (found["outcome"], found["status"]) == ("done", 200)


async def test_while_the_table_is_away_lines_wait_in_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Calls are answered meanwhile; errors of all kinds are logged once a minute, and end no
    copier; then every line is there once."""
    monkeypatch.setattr(audit_copier, "POLL_S", 0.01)
    monkeypatch.setattr(audit_copier, "PAUSE_MAX_S", 0.01)
    async with local_cluster(tmp_path / "c", tservers=1) as cluster:
        world, folder = World(cluster), tmp_path / "audit"
        errors: list[BaseException] = [
            RetryLater("away"), AssertionError("a bug"), asyncio.CancelledError("another task"),
            OSError("disk"), TimeoutError(), KeyError("x"),
        ]  # fmt: skip
        waiting = list(errors)
        whole = AsyncDatabase.put_audit

        async def away(self: AsyncDatabase, *given: Any, **named: Any) -> None:
            if waiting:
                raise waiting.pop(0)
            await whole(self, *given, **named)

        monkeypatch.setattr(AsyncDatabase, "put_audit", away)
        async with gateway(world, folder, "one") as http:
            for number in range(5):
                assert (await http.delete(f"/v1/tables/t{number}?confirm=x")).status_code == 400
            found = await until_entries(cluster.database, 5)
        assert not waiting
        assert [e["object"] for e in found] == [f"t{n}" for n in range(5)]
        said = [r for r in caplog.records if "are not copied to the audit table" in r.getMessage()]
        assert len(said) == 1


async def test_a_copier_takes_over_from_one_that_ends(tmp_path: Path) -> None:
    """One at a time copies the files of a node; another goes on when it is gone, from the mark."""
    async with local_cluster(tmp_path / "c", tservers=1) as cluster:
        log = AuditLog(tmp_path / "audit")
        first, second = (copier_of(log, cluster.database) for _ in range(2))
        await log.end(call(log, "/v1/tables/a"), 200, b"")
        await all_of(first)
        await log.end(call(log, "/v1/tables/b"), 200, b"")
        assert await second.turn() is False
        assert len(await cluster.database.audit()) == 1
        await first.close()
        await all_of(second)
        assert [e["object"] for e in await cluster.database.audit()] == ["a", "b"]
        await second.close()


async def test_lines_of_files_that_are_set_aside_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the oldest on. Where a file was deleted before its lines were copied, an entry says so,
    once."""
    monkeypatch.setattr(audit_module, "FILE_BYTES", 700)
    async with local_cluster(tmp_path / "c", tservers=1) as cluster:
        log = AuditLog(tmp_path / "audit")
        copier = copier_of(log, cluster.database)
        for number in range(4):
            await log.end(call(log, f"/v1/tables/a{number}"), 200, b"")
        await all_of(copier)
        assert [e["object"] for e in await cluster.database.audit()] == [f"a{n}" for n in range(4)]
        for number in range(40):
            await log.end(call(log, f"/v1/tables/b{number}"), 200, b"")
        await all_of(copier)
        found = await cluster.database.audit(limit=1000)
        assert [e["outcome"] for e in found].count(Outcome.LOST) == 1
        there = [e["object"] for e in found if e["outcome"] == Outcome.DONE and e["object"] > "b"]
        assert there[-1] == "b39"
        assert 8 <= len(there) < 40
        begun = [e for e in found if e["outcome"] == Outcome.BEGUN]
        assert not begun, "a call is one entry, also where its lines are in two files"
        await copier.close()


async def test_damaged_lines_are_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Pieces that a loss of power has left, and other people's lines, stop nothing."""
    async with local_cluster(tmp_path / "c", tservers=1) as cluster:
        log = AuditLog(tmp_path / "audit")
        file = tmp_path / "audit" / "http.jsonl"
        await log.end(call(log, "/v1/tables/a"), 200, b"")
        bad = [b'{"at": "2026', b"[]", b'{"id": 3}', b'{"id": "x", "at": "soon"}', b"\xff\xfe", b""]
        with file.open("ab") as out:
            out.write(b"\n".join(bad) + b'\n{"id": "torn')
        await log.end(call(log, "/v1/tables/b"), 503, b"")
        copier = copier_of(log, cluster.database)
        await all_of(copier)
        found = await cluster.database.audit()
        assert [(e["object"], e["outcome"]) for e in found] == [("a", "done"), ("b", "failed")]
        assert "6 lines of the audit log are damaged" in caplog.text
        await copier.close()


async def test_what_is_too_old_or_too_much_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest first, in pieces, found without holding up the event loop; what is in the files
    still does not bring it back."""
    monkeypatch.setattr(client_audit, "PIECE_ROWS", 3)
    whole = client_audit._doomed
    threads: set[int] = set()

    def doomed(*given: Any) -> pa.ChunkedArray:
        threads.add(threading.get_ident())
        return whole(*given)

    monkeypatch.setattr(client_audit, "_doomed", doomed)
    async with local_cluster(tmp_path / "c", tservers=1) as cluster:
        log = AuditLog(tmp_path / "audit")
        for number in range(10):
            await log.end(call(log, f"/v1/tables/a{number}"), 200, b"")
        kept = Limits(audit_rows=4)
        copier = copier_of(log, cluster.database, kept)
        await all_of(copier)
        found = await cluster.database.audit()
        assert [e["object"] for e in found] == ["a6", "a7", "a8", "a9"]
        oldest = found[2]["time"]
        assert await cluster.database.trim_audit(oldest, 100) == 2
        assert threads
        assert threading.get_ident() not in threads
        assert [e["object"] for e in await cluster.database.audit()] == ["a8", "a9"]
        await copier.close()
        (tmp_path / "audit" / MARK).unlink()
        again = copier_of(log, cluster.database, Limits(audit_keep_s=-60.0))
        assert await again.turn(), "which writes rows, and trims none"
        found = await cluster.database.audit()
        assert [e["object"] for e in found] == ["a8", "a9"], "no older row came back"
        await again.close()


async def test_entries_are_chosen_by_caller_time_path_and_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And come in pages, found without holding up the event loop. What cannot be is refused, over
    HTTP too; only admins may ask."""
    whole = client_audit._newest
    threads: set[int] = set()

    def newest(*given: Any) -> list[str]:
        threads.add(threading.get_ident())
        return whole(*given)

    monkeypatch.setattr(client_audit, "_newest", newest)
    async with local_cluster(tmp_path / "c", tservers=1) as cluster:
        database = cluster.database
        assert await database.audit() == []
        log = AuditLog(tmp_path / "audit")
        calls = [("a", "ci", 200), ("ab", "ada", 404), ("b", "ci", 500), ("c", "ci", 403)]
        for name, token, status in calls:
            await log.end(call(log, f"/v1/tables/{name}", token), status, b"")
        copier = copier_of(log, database)
        await all_of(copier)
        await copier.close()

        async def names(**asked: Any) -> list[str]:
            return [e["object"] for e in await database.audit(**asked)]

        assert await names() == ["a", "ab", "b", "c"]
        assert await names(who="ada") == ["ab"]
        assert await names(outcome="refused") == ["ab", "c"]
        assert await names(outcome="failed") == ["b"]
        assert await names(path="/v1/tables/a") == ["a", "ab"]
        assert await names(limit=2) == ["b", "c"]
        entries = await database.audit()
        assert await names(limit=1, before=entries[2]["id"]) == ["ab"]
        assert await names(since=entries[2]["time"]) == ["b", "c"]
        assert await names(until=entries[2]["time"]) == ["a", "ab"]
        for wrong in (
            {"outcome": "good"}, {"limit": 0}, {"limit": 1001}, {"before": "none"},
            {"since": datetime.datetime(2026, 1, 1)},
        ):  # fmt: skip
            with pytest.raises(InvalidArgument):
                await database.audit(**wrong)

        world = World(cluster)
        async with world.client() as http:
            asked = {"who": "ci", "limit": "2", "since": "2026-01-01T00:00:00Z"}
            listed = (await http.get("/v1/audit", params=asked)).json()["entries"]
            assert [e["object"] for e in listed] == ["b", "c"]
            assert listed[0]["time"] == entries[2]["time"].isoformat(timespec="microseconds")
            for bad in ("since=soon", "limit=5000", "outcome=x", "since=2026-01-01T00:00:00"):
                assert (await http.get(f"/v1/audit?{bad}")).status_code in (400, 422), bad
        async with world.client(Role.WRITE) as http:
            problem_of(await http.get("/v1/audit"), 403, "not-permitted")
        assert threads
        assert threading.get_ident() not in threads


async def test_nobody_but_stelae_writes_to_the_table_or_drops_it(tmp_path: Path) -> None:
    """Nor makes one of such a name, or renames one to it; its durability may be altered. Over HTTP
    only admins see its rows. Lists of tables are without it; the status has it."""
    async with local_cluster(tmp_path / "c", tservers=1) as cluster:
        database = cluster.database
        log = AuditLog(tmp_path / "audit")
        await log.end(call(log, "/v1/tables/a"), 200, b"")
        copier = copier_of(log, database)
        await all_of(copier)
        await copier.close()
        table = await database.table(AUDIT_TABLE)
        (row,) = (await table.scan()).to_pylist()
        forbidden: list[Callable[[], Awaitable[Any]]] = [
            lambda: table.upsert(row),
            lambda: table.upsert(AUDIT_SCHEMA.empty_table().from_pylist([row], AUDIT_SCHEMA)),
            lambda: table.insert([row]),
            lambda: table.update({"id": row["id"], "caller": "me"}),
            lambda: table.delete(row["id"]),
            lambda: table.rename("t"),
            lambda: table.alter(add_columns={"x": pa.int64()}),
            lambda: database.delete_table(AUDIT_TABLE),
            lambda: database.create_table("_stelae.x", AUDIT_SCHEMA, key="id"),
            lambda: database.create_table(AUDIT_TABLE, AUDIT_SCHEMA, key="time"),
        ]
        for forbidden_call in forbidden:
            with pytest.raises(InvalidArgument, match=r"Stelae's own"):
                await forbidden_call()
        users = await database.create_table("t", AUDIT_SCHEMA, key="id", durability=segments("ram"))
        for name in (AUDIT_TABLE, "_stelae.y"):
            with pytest.raises(InvalidArgument, match=r"Stelae's own"):
                await users.rename(name)
        await table.alter(durability=segments("disk"), timeout=180.0)
        assert (await table.scan()).to_pylist() == [row]

        world = World(cluster)
        path = f"/v1/tables/{AUDIT_TABLE}"
        async with world.client() as http, world.client(Role.WRITE) as writer:
            assert (await http.get(f"{path}/rows/{row['id']}")).json()["caller"] == "ci"
            assert (await http.delete(f"{path}/rows/{row['id']}")).status_code == 400
            assert (await http.delete(f"{path}?confirm={AUDIT_TABLE}")).status_code == 400
            for method, where in (
                ("GET", ""),
                ("GET", f"/rows/{row['id']}"),
                ("POST", "/rows:scan"),
            ):
                answer = await writer.request(method, path + where, content=b"{}")
                problem_of(answer, 403, "not-permitted")
            seen = [t["name"] for t in (await writer.get("/v1/tables")).json()["tables"]]
            assert seen == ["t"]
            seen = [t["name"] for t in (await http.get("/v1/tables")).json()["tables"]]
            assert seen == ["t"]
            seen = [t["name"] for t in (await http.get("/v1/cluster")).json()["tables"]]
            assert sorted(seen) == [AUDIT_TABLE, "t"]
            assert [t.name for t in await database.tables(own=True)] == [AUDIT_TABLE, "t"]


async def test_a_table_of_that_name_with_other_columns_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version let anybody make one: it is not written to, and the answer says so. Once
    it is renamed or dropped, Stelae's is made, and that one is protected."""
    whole = core_audit.check_new_name
    monkeypatch.setattr(ddl_tables, "check_new_name", lambda *_: None)
    async with local_cluster(tmp_path / "c", tservers=1) as cluster:
        schema = pa.schema([pa.field("id", pa.string(), nullable=False)])
        made = await cluster.database.create_table(AUDIT_TABLE, schema, key="id")
        log = AuditLog(tmp_path / "audit")
        await log.end(call(log, "/v1/tables/a"), 200, b"")
        copier = copier_of(log, cluster.database)
        with pytest.raises(InvalidArgument, match="Rename or drop it"):
            await copier.turn()
        assert await made.count() == 0
        await made.rename("mine")
        await cluster.database.create_table(AUDIT_TABLE, schema, key="id")
        await cluster.database.delete_table(AUDIT_TABLE)
        monkeypatch.setattr(ddl_tables, "check_new_name", whole)
        mine = await cluster.database.table("mine")
        await mine.upsert({"id": "x"})
        await all_of(copier)
        await copier.close()
        assert [e["object"] for e in await cluster.database.audit()] == ["a"]
        assert await mine.count() == 1
        with pytest.raises(InvalidArgument, match=r"Stelae's own"):
            await cluster.database.delete_table(AUDIT_TABLE)


def servers_of(disks: int, tservers: int) -> dict[str, Any]:
    backups = [
        {"kind": "backup", "state": "live", "media": ["disk", "ram"], "retiring": False}
        for _ in range(disks)
    ]
    homes = [{"kind": "tserver", "state": "live", "retiring": False} for _ in range(tservers)]
    return {"servers": [*backups, *homes]}


def test_the_table_has_as_many_copies_as_there_are_disks() -> None:
    """Two on backups; on tablet servers where there are no backups."""
    assert audit_durability(servers_of(3, 3)) == segments("disk", "disk")
    assert audit_durability(servers_of(1, 3)) == segments("disk")
    assert audit_durability(servers_of(0, 3)) == replicas(3)
    assert audit_durability(servers_of(0, 2)) == replicas(1)


async def test_backups_leave_the_audit_table_out(tmp_path: Path) -> None:
    """It is this cluster's, and nobody else may write its rows: named, it is refused."""
    async with local_cluster(tmp_path / "c", tservers=1) as cluster:
        log = AuditLog(tmp_path / "audit")
        await log.end(call(log, "/v1/tables/a"), 200, b"")
        copier = copier_of(log, cluster.database)
        await all_of(copier)
        await copier.close()
        await cluster.database.create_table(
            "t", pa.schema([("id", pa.int64())]), key="id", durability=segments("disk")
        )
        archive = str(tmp_path / "archive")

        def backed_up() -> list[str]:
            with database_of(cluster) as database:
                assert database.tables() == ["t"]
                with pytest.raises(InvalidArgument, match="Stelae's own"):
                    database.backup(archive, [AUDIT_TABLE])
                return [table["name"] for table in database.backup(archive)["tables"]]

        assert await asyncio.to_thread(backed_up) == ["t"]
