"""Calls that do not go over HTTP, in the audit log: which are noted, and what a log that is away
costs them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stelae.client import audit as client_audit
from stelae.client.admin import call_log
from stelae.client.admin.call_log import ABOUT, Caller, CallLog, Row
from stelae.client.database import AsyncDatabase
from stelae.core.errors import (
    InvalidArgument,
    OutcomeUnknown,
    RetryLater,
    StelaeError,
    TableNotFound,
)
from stelae.core.messages import (
    alter,
    catalog,
    index_catalog,
    indexes,
    masters,
    operators,
    servers,
    timelines,
)
from stelae.core.records import losses, tokens, turns
from stelae.core.rpc import ANY_MASTER, Method
from stelae.core.schema.durability import segments
from stelae.runtime.client import client_runtime
from tests.cluster_fixture import CLUSTER, SECRET, LocalCluster, local_cluster
from tests.until import until_async

ALICE = Caller("alice@here", "cli", "here", "stelae table drop, process 7")
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])
OTHERS = {
    "heartbeat", "indexlet_reported", "raise_epoch", "tablet_opened",  # of servers
    "take_turn", "end_turn",  # noted as a whole by `Database.turn`
    "get_losses", "get_rebalancing", "get_server", "get_table", "get_tablet_locations", "info",
    "is_alter_done", "is_create_done", "list_indexes", "list_masters", "list_migrations",
    "list_safekeepers", "list_tables", "list_timelines", "list_tokens", "locate_indexlets",
    "locate_timeline", "status",  # reads
}  # fmt: skip


def test_each_order_to_the_masters_is_noted_or_known_to_be_none() -> None:
    """A new method of the masters has to be put into one of the two lists."""
    modules = [alter, catalog, index_catalog, indexes, masters, operators, servers, timelines]
    found = {
        each.name: each
        for module in (*modules, losses, tokens, turns)
        for each in vars(module).values()
        if isinstance(each, Method) and each.untagged == ANY_MASTER
    }
    assert set(found) == set(ABOUT) | {f"master.{name}" for name in OTHERS}
    assert not set(ABOUT) & {f"master.{name}" for name in OTHERS}
    for name, field in ABOUT.items():
        assert not field or field in found[name].request.__struct_fields__


def logged(cluster: LocalCluster, name: str = "alice") -> AsyncDatabase:
    runtime = cluster.client_runtime(name)
    return AsyncDatabase(runtime, cluster.master_addresses, cluster.settings, ALICE)


def shown(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    return [(row["path"], row["object"], row["outcome"]) for row in rows]


async def test_orders_are_in_the_audit_log_and_reads_and_rows_are_not(tmp_path: Path) -> None:
    """One row for each order, with who gave it and what it came to, once the order has returned.
    The front's own client notes nothing."""
    async with local_cluster(tmp_path, tservers=1, backups=2) as cluster:
        database = logged(cluster)
        table = await database.create_table("t", SCHEMA, key="id")
        await table.upsert([{"id": 1}])
        assert await table.count() == 1
        await table.alter(add_columns={"seats": pa.int16()}, rename_to="u", wait=False)
        await database.put_token("ada", "read", "ab" * 32)
        with pytest.raises(TableNotFound):
            await database.delete_table("t")
        await database.delete_table("u")
        await cluster.database.create_table("unnoted", SCHEMA, key="id")
        found = await database.audit()
        assert shown(found) == [
            ("create_table t", "t", "done"),
            ("alter_table t", "t", "done"),
            ("put_token ada", "ada", "done"),
            ("delete_table t", "t", "refused"),
            ("delete_table u", "u", "done"),
        ]
        for row in found:
            who = (row["caller"], row["method"], row["role"], row["source"], row["status"])
            assert who == ("alice@here", "cli", "secret", "here", None)
            assert row["duration_s"] >= 0
            assert row["details"].endswith(ALICE.details)
        assert found[0]["details"].startswith(f"durability: {segments('disk', 'disk')}; ")
        assert found[1]["details"].startswith("new_name: u; adds: seats; ")
        assert "ab" * 8 not in str(found), "hashes of tokens are in the audit log"
        assert found[3]["details"].startswith("there is no table")
        await database.close()


async def test_a_call_neither_fails_nor_waits_long_while_the_audit_table_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first call waits for its row for `WAIT_S`, later ones not at all; the rows are written
    once the table is there, each once."""
    async with local_cluster(tmp_path, tservers=1, backups=2) as cluster:
        database = logged(cluster)
        whole, is_away = database.put_audit, True
        asked = 0

        async def put(rows: Any, **more: Any) -> None:
            nonlocal asked
            asked += 1
            if is_away:
                raise RetryLater("no tablet server has it")
            await whole(rows, **more)

        monkeypatch.setattr(database, "put_audit", put)
        monkeypatch.setattr(call_log, "PAUSE_MAX_S", 0.2)
        for name in "abc":
            await database.create_table(name, SCHEMA, key="id", timeout=30)
        assert asked
        assert await database.audit() == []
        is_away = False

        async def written() -> bool:
            return len(await database.audit()) == 3

        await until_async(written, 60, "the rows are written")
        names = [f"create_table {name}" for name in "abc"]
        assert [row["path"] for row in await database.audit()] == names
        await database.close()
    assert not [r for r in caplog.records if "was not written" in r.message]


async def test_a_cluster_without_a_front_has_its_log_trimmed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Now and then a client deletes the oldest rows above the largest limit that a front may have;
    if that fails, its own row is written all the same."""
    monkeypatch.setattr(client_audit, "TRIM_EVERY", 1)
    monkeypatch.setattr(client_audit, "MOST_ROWS", 2)
    async with local_cluster(tmp_path, tservers=1, backups=2) as cluster:
        database = logged(cluster)
        for name in "abc":
            await database.create_table(name, SCHEMA, key="id")
        assert [row["object"] for row in await database.audit()] == ["b", "c"]

        async def refused(*arguments: Any, **more: Any) -> int:
            raise RetryLater("busy")

        monkeypatch.setattr(database, "trim_audit", refused)
        await database.delete_table("a")
        assert [row["object"] for row in await database.audit()] == ["b", "c", "a"]
        await database.close()


class Away(CallLog):
    """One whose rows are written nowhere: each write raises ``error``; None: it succeeds."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.rows: list[list[Row]] = []
        self.hangs = False
        super().__init__(client_runtime(CLUSTER, SECRET), ALICE, self._puts)

    async def _puts(self, rows: Sequence[Row]) -> None:
        self.rows.append([dict(row) for row in rows])
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error


def lost_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.message for r in caplog.records if "was not written" in r.message]


async def test_a_write_that_hangs_holds_no_call_and_no_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call waits for `WAIT_S`, or for what its own deadline leaves; the end for `CLOSE_S`."""
    monkeypatch.setattr(call_log, "CLOSE_S", 0.05)
    calls = Away(None)
    calls.hangs = True
    await asyncio.wait_for(calls.end(calls.begun("delete_table", "a"), None, 0.05), 60)
    await asyncio.wait_for(calls.end(calls.begun("delete_table", "b"), None, -1.0), 60)
    monkeypatch.setattr(call_log, "WAIT_S", 0.05)
    await asyncio.wait_for(calls.end(calls.begun("delete_table", "c"), None, 1e9), 60)
    await asyncio.wait_for(calls.close(), 60)
    assert len(lost_lines(caplog)) == 3


async def test_no_call_waits_for_its_row_while_the_last_write_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first one has waited; an order of many calls is not slowed by a table that is away."""
    monkeypatch.setattr(call_log, "WAIT_S", 1e9)
    monkeypatch.setattr(call_log, "GIVE_UP_S", 1e9)
    monkeypatch.setattr(call_log, "CLOSE_S", 0.05)
    calls = Away(RetryLater("away"))
    await calls.end(calls.begun("delete_table", "a"), None, 0.05)
    await asyncio.wait_for(calls.end(calls.begun("delete_table", "b"), None, 1e9), 30)
    await calls.close()


@pytest.mark.parametrize(
    ("error", "give_up_s"), [(InvalidArgument("other columns"), 1e9), (RetryLater("away"), 0.0)]
)
async def test_a_row_that_is_given_up_is_in_the_log_of_the_program(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    error: StelaeError,
    give_up_s: float,
) -> None:
    """At once if it never can be written, after `GIVE_UP_S` otherwise; with all that it says."""
    monkeypatch.setattr(call_log, "GIVE_UP_S", give_up_s)
    caplog.set_level(logging.WARNING)
    calls = Away(error)
    await calls.end(calls.begun("delete_table", "t"), None)
    (line,) = lost_lines(caplog)
    for said in ("delete_table t", "alice@here", str(error)):
        assert said in line
    await calls.close()


async def test_one_row_that_is_not_taken_takes_no_other_along(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Which one it is shows when each is written alone."""
    caplog.set_level(logging.WARNING)
    written: list[str] = []

    async def put(rows: Sequence[Row]) -> None:
        if any(row["object"] == "bad" for row in rows):
            raise InvalidArgument("a value that the table cannot hold")
        written.extend(row["object"] for row in rows)

    calls = CallLog(client_runtime(CLUSTER, SECRET), ALICE, put)
    for name in ("a", "bad", "b"):
        calls._note(calls.begun("delete_table", name).row)
    await calls.end(calls.begun("delete_table", "c"), None)
    assert written == ["a", "b", "c"]
    (line,) = lost_lines(caplog)
    assert "delete_table bad" in line
    await calls.close()


async def test_a_failure_after_long_success_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`GIVE_UP_S` is the time for which nothing could be written."""
    monkeypatch.setattr(call_log, "GIVE_UP_S", 1.0)
    puts = 0

    async def put(rows: Sequence[Row]) -> None:
        nonlocal puts
        puts += 1
        if puts < 5:  # orders go on arriving
            await asyncio.sleep(0.3)
            calls._note(calls.begun("delete_table", f"t{puts}").row)
        elif puts == 5:
            raise RetryLater("the tablet is handed over")

    calls = CallLog(client_runtime(CLUSTER, SECRET), ALICE, put)
    await calls.end(calls.begun("delete_table", "t"), None)
    assert puts == 6
    assert not lost_lines(caplog)
    await calls.close()


async def test_a_write_without_an_answer_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it waits for, of all that a write may be made of."""
    monkeypatch.setattr(call_log, "WRITE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(call_log, "GIVE_UP_S", 0.0)
    calls = Away(None)
    calls.hangs = True
    await asyncio.wait_for(calls.end(calls.begun("delete_table", "t"), None, 30.0), 10)
    assert calls._problem
    await calls.close()


async def test_what_waits_at_the_end_is_in_the_log_of_the_program(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that closes says which rows are not written; so does one that has too many."""
    monkeypatch.setattr(call_log, "MAX_WAITING", 2)
    caplog.set_level(logging.WARNING)
    calls = Away(RetryLater("away"))
    for name in "abc":
        await calls.end(calls.begun("delete_table", name), None)
    (line,) = lost_lines(caplog)
    assert "delete_table a" in line
    await calls.close()
    assert len(lost_lines(caplog)) == 3


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "done"),
        (TableNotFound("t"), "refused"),
        (RetryLater("busy"), "refused"),
        (OutcomeUnknown("m", "delete", 1.0), "failed"),
        (KeyboardInterrupt(), "failed"),
    ],
)
async def test_a_long_call_is_written_when_it_begins_and_when_it_has_ended(
    error: BaseException | None, outcome: str
) -> None:
    """Both are one row; refused says that nothing was done, failed that something may have been."""
    calls = Away(None)
    call = await calls.begin("server replace b", "b", "by token ci")
    assert shown(calls.rows[-1]) == [("server replace b", "b", "begun")]
    await calls.end(call, error)
    assert shown(calls.rows[-1]) == [("server replace b", "b", outcome)]
    assert calls.rows[0][0]["id"] == calls.rows[-1][0]["id"]
    await calls.close()
