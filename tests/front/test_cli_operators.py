"""What operators type, against real servers over TCP in this process, without Ray."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stelae.cli import app as cli
from stelae.cli.cluster import check as cli_check
from stelae.cli.cluster import servers as cli_servers
from stelae.cli.table import quarantine as cli_quarantine
from stelae.cli.table import tables as cli_tables
from stelae.client.aio import Loop
from stelae.client.database import AsyncDatabase
from stelae.core.errors import InvalidArgument
from stelae.core.messages.rows import WriteOp
from stelae.core.schema.durability import replicas, segments
from stelae.database.api import Database
from stelae.recovery.spark_link import ClusterLink
from stelae.runtime.client import client_runtime
from tests.cluster_fixture import CLUSTER, SECRET, LocalCluster, local_cluster
from tests.until import until_async

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


def database_of(cluster: LocalCluster) -> Database:
    """A blocking client, on a loop of its own."""
    loop = Loop()

    async def connect() -> AsyncDatabase:
        runtime = client_runtime(CLUSTER, SECRET)
        return AsyncDatabase(runtime, cluster.master_addresses, cluster.settings)

    database = Database(loop, loop.run(connect()), CLUSTER)
    database.link = ClusterLink(CLUSTER, cluster.master_addresses, SECRET, cluster.settings)
    return database


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code and standard output of a command, in this process."""
    with pytest.raises(SystemExit) as ended:
        cli.main(list(arguments))
    code = ended.value.code
    return code if isinstance(code, int) else 0, capsys.readouterr().out


def story(capsys: pytest.CaptureFixture[str]) -> None:
    """A healthy cluster, as operators see it."""

    def document(*arguments: str) -> Any:
        code, out = run(capsys, *arguments, "--json")
        assert code == 0, out
        return json.loads(out)

    code, out = run(capsys, "check", "--wait", "10", "--checksums")
    assert (code, "all is well" in out) == (0, True), out
    assert "checksums: 0 of 0 tablets with replicas are equal" in out
    checked = document("check", "--table", "t")
    assert [(t["name"], t["healthy"]) for t in checked["tables"]] == [("t", 1)]
    assert [m["state"] for m in checked["masters"]] == ["voter"]
    assert run(capsys, "check", "--table", "nowhere")[0] == 1

    assert document("server", "maintenance", "tserver-1", "on")["maintenance"] is True
    everything = document("server", "list")["servers"]
    kinds = [s["kind"] for s in everything]
    assert list(dict.fromkeys(kinds)) == ["master", "tserver", "backup"]
    code, out = run(capsys, "server", "list")
    assert code == 0
    assert all(s["name"] in out for s in everything)
    assert "tserver-0" not in run(capsys, "server", "list", "--kind", "backup")[1]
    assert run(capsys, "server", "list", "--kind", "table")[0] == 2
    listed = document("server", "list", "--kind", "tserver")["servers"]
    assert [(s["name"], s["maintenance"]) for s in listed] == [
        ("tserver-0", False),
        ("tserver-1", True),
    ]
    code, out = run(capsys, "check")
    assert (code, "tserver-1: is in maintenance" in out) == (0, True), out
    assert document("server", "maintenance", "tserver-1", "off")["maintenance"] is False
    assert sum(server["owned"] for server in listed) == 1
    owner = next(server["name"] for server in listed if server["owned"])
    code, out = run(capsys, "server", "retire", owner)
    assert (code, "has nothing left: it may be stopped" in out) == (0, True), out
    listed = document("server", "list", "--kind", "tserver")["servers"]
    assert next(s["name"] for s in listed if s["owned"]) != owner
    assert document("server", "retire", owner, "--cancel")["retiring"] is False
    assert run(capsys, "server", "retire", "nobody")[0] == 2
    assert run(capsys, "tablet", "move", "t", "a")[0] == 2
    assert run(capsys, "tablet", "move", "t")[0] == 2
    assert run(capsys, "tablet", "move", "t", "a", "b", "--cancel")[0] == 2
    assert run(capsys, "tablet", "move", "0" * 32, "--cancel")[0] == 1
    assert run(capsys, "tablet", "move", "0" * 32, "a", "b")[0] == 1

    assert document("rebalance", "on")["after_s"] == 60.0
    assert document("rebalance", "status")["on"] is True
    assert "rebalancing is off; 0 replicas" in run(capsys, "rebalance", "off")[1]


async def test_operators_look_at_a_cluster_and_mark_its_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command answers for people and, with --json, for programs; exit codes say the rest."""
    async with local_cluster(tmp_path) as cluster:
        await cluster.database.create_table("t", SCHEMA, key="id", durability=segments("disk"))
        for module in (cli_check, cli_servers):
            monkeypatch.setattr(module, "open_cluster", lambda _: database_of(cluster))
        await asyncio.to_thread(story, capsys)


async def test_replicas_are_compared_and_what_deleted_ones_leave_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Equal replicas are exit code 0; the quarantine is listed, and purged by those who say yes."""
    async with local_cluster(tmp_path) as cluster:
        for module in (cli_check, cli_quarantine):
            monkeypatch.setattr(module, "open_cluster", lambda _: database_of(cluster))
        table = await cluster.database.create_table("r", SCHEMA, key="id", durability=replicas(1))
        await table.insert([{"id": n} for n in range(10)])
        code, out = await asyncio.to_thread(run, capsys, "check", "--checksums", "--wait", "10")
        assert code == 0, out
        assert "checksums: 1 of 1 tablets with replicas are equal" in out
        await cluster.database.delete_table("r")

        async def quarantined() -> dict[str, Any]:
            _, out = await asyncio.to_thread(run, capsys, "tablet", "quarantine", "list", "--json")
            found: dict[str, Any] = json.loads(out)
            return found if found["entries"] else {}

        listed = await until_async(quarantined, 60.0, "the replica is in quarantine")
        (entry,) = listed["entries"]
        assert (entry["table"], listed["silent"]) == ("r", {})
        assert entry["bytes"] == listed["bytes"] > 0
        code, out = await asyncio.to_thread(run, capsys, "tablet", "quarantine", "list")
        assert (code, "1 deleted replicas" in out) == (0, True), out

        purge = ("tablet", "quarantine", "purge")
        assert (await asyncio.to_thread(run, capsys, *purge, "--json"))[0] == 2
        assert (await asyncio.to_thread(run, capsys, *purge, "--older-than", "x"))[0] == 2
        code, out = await asyncio.to_thread(run, capsys, *purge, "--older-than", "1d")
        assert (code, "nothing to remove" in out) == (0, True), out
        code, out = await asyncio.to_thread(run, capsys, *purge, "--server", "nobody", "--yes")
        assert code == 2
        code, out = await asyncio.to_thread(run, capsys, *purge, "--yes", "--json")
        assert (code, json.loads(out)["entries"][0]["folder"]) == (0, entry["folder"])
        _, out = await asyncio.to_thread(run, capsys, "tablet", "quarantine", "list", "--json")
        assert json.loads(out)["entries"] == []


async def test_a_replica_with_other_rows_is_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The check says which tablet, and which server has what."""
    async with local_cluster(tmp_path, tservers=3) as cluster:
        monkeypatch.setattr(cli_check, "open_cluster", lambda _: database_of(cluster))
        table = await cluster.database.create_table("r", SCHEMA, key="id", durability=replicas(3))
        await table.insert([{"id": n} for n in range(10)])
        (located,) = await cluster.database.locate_table("r")
        replica = cluster.tservers[0].replicas.serving(located.tablet.tablet_id)
        code, out = await asyncio.to_thread(run, capsys, "check", "--checksums", "--wait", "20")
        assert code == 0, out
        machine = replica.machine
        machine.memory.execute(WriteOp.UPSERT, ((77,),), None, machine.applied_index)
        code, out = await asyncio.to_thread(run, capsys, "check", "--checksums", "--wait", "20")
        assert code == 1
        assert "replicas differ" in out
        assert "tserver-0: 11 rows" in out


async def test_the_number_of_replicas_is_changed_both_ways_while_rows_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of one table, by the command line; the command ends once every tablet has as many voters."""
    async with local_cluster(tmp_path, tservers=3) as cluster:
        monkeypatch.setattr(cli_tables, "open_cluster", lambda _: database_of(cluster))
        table = await cluster.database.create_table("r", SCHEMA, key="id", durability=replicas(1))
        await cluster.database.create_table("other", SCHEMA, key="id", durability=replicas(1))
        written, goes_on = 0, True

        async def write() -> None:
            nonlocal written
            while goes_on:
                await table.upsert({"id": written})
                written += 1
                await asyncio.sleep(0.01)

        async def voters(name: str) -> list[int]:
            return [
                sum(replica.voter for replica in located.replicas)
                for located in await cluster.database.locate_table(name)
            ]

        writer = asyncio.create_task(write())
        for count in ("3", "1"):
            before = written
            command = ["table", "alter", "r", "--replicas", count, "--json"]
            code, out = await asyncio.to_thread(run, capsys, *command)
            assert code == 0, out
            assert json.loads(out)["durability"] == f"replicas({count})"
            assert await voters("r") == [int(count)]
            assert await voters("other") == [1]
            assert written > before, "writes went on"
        for wrong in ("2", "9"):
            command = ["table", "alter", "r", "--replicas", wrong]
            assert (await asyncio.to_thread(run, capsys, *command))[0] == 2
        command = ["table", "alter", "r", "--replicas", "3", "--durability", "wal(3)"]
        assert (await asyncio.to_thread(run, capsys, *command))[0] == 2
        goes_on = False
        await writer
        assert (await table.scan()).num_rows == written


async def test_a_dead_server_is_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is not well is named, in red for people and in findings for programs."""
    async with local_cluster(tmp_path) as cluster:
        monkeypatch.setattr(cli_check, "open_cluster", lambda _: database_of(cluster))
        await cluster.backups[0].stop()

        async def has_dead() -> bool:
            servers = (await cluster.database.status())["servers"]
            return any(server["state"] == "dead" for server in servers)

        await until_async(has_dead, 60.0, "a dead server", poll_s=0.02)
        code, out = await asyncio.to_thread(run, capsys, "check", "--json")
        assert code == 1
        problems = [f for f in json.loads(out)["findings"] if f["severity"] == "warning"]
        assert [f["subject"] for f in problems] == ["backup-0"]


def test_operators_calls_do_not_go_over_http() -> None:
    """They say so, rather than fail in some other way."""
    loop = Loop()
    database = Database(loop, None, "x")  # type: ignore[arg-type]
    for call in (database.tservers, database.check, database.rebalancing):
        with pytest.raises(InvalidArgument, match="not over HTTP"):
            call()
    loop.close()
