"""``stelae audit`` against a real cluster, in this process."""

from __future__ import annotations

import asyncio
import datetime
import getpass
import itertools
import json
import re
import socket
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stelae.cli import audit as cli_audit
from stelae.cli.app import _take_down, command_of
from stelae.cli.table import create as cli_create
from stelae.cli.which_cluster import as_command
from stelae.core.errors import AlreadyRunning, RetryLater
from stelae.database.api import Database
from stelae.database.callers import Door, called_by
from stelae.database.origins import ClusterOrigin
from stelae.recovery.spark_link import ClusterLink
from stelae.serve.gateway.audit import AuditLog
from tests.cluster_fixture import CLUSTER, SECRET, LocalCluster, local_cluster
from tests.front.test_audit_table import all_of, call, copier_of
from tests.front.test_cli_operators import database_of, run

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


async def test_the_audit_log_is_shown_by_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """For people and as JSON, chosen by time, caller, outcome and path; nothing in it moves a
    cursor."""
    async with local_cluster(tmp_path / "c", tservers=1) as cluster:
        monkeypatch.setattr(cli_audit, "open_cluster", lambda _: database_of(cluster))

        async def command(*arguments: str) -> tuple[int, str]:
            return await asyncio.to_thread(run, capsys, "audit", *arguments)

        assert "no such call" in (await command())[1]
        log = AuditLog(tmp_path / "audit")
        for name, token, status in (("a", "ci", 200), ("b", "ada", 403), ("c\x1b[2J", "ci", 503)):
            await log.end(call(log, f"/v1/tables/{name}", token), status, b'{"x": 1}')
        log.refused({"type": "http", "method": "GET", "path": "/", "client": ("10.1.1.1", 1)}, "no")
        copier = copier_of(log, cluster.database)
        await all_of(copier)
        await copier.close()

        async def paths(*arguments: str) -> list[str]:
            code, out = await command(*arguments, "--json")
            assert code == 0, out
            return [entry["path"] for entry in json.loads(out)["entries"]]

        code, out = await command("--since", "1h")
        assert code == 0, out
        for shown in ("PUT /v1/tables/a", "refused 403", "failed 503", "c\\x1b[2J", "10.1.1.1"):
            assert shown in out
        assert "\x1b[2J" not in out
        assert await paths("--who", "ci", "--path", "/v1/tables/a") == ["/v1/tables/a"]
        assert await paths("--outcome", "refused") == ["/v1/tables/b", "/"]
        assert await paths("--outcome", "refused", "-n", "1") == ["/"]
        assert await paths("--until", "2026-01-01") == []
        assert len(await paths("--since", "2026-01-01T00:00:00+00:00")) == 4
        assert (await command("--since", "soon"))[0] == 2
        assert (await command("--outcome", "good"))[0] == 2


def test_following_shows_each_entry_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once when it has begun and once when it is answered, and nothing from before the first."""
    monkeypatch.setattr(cli_audit, "FOLLOW_S", 0.0)
    now = datetime.datetime(2026, 12, 1, tzinfo=datetime.UTC)

    def entry(name: str, outcome: str, second: int) -> dict[str, Any]:
        return {"id": name, "outcome": outcome, "time": now + datetime.timedelta(seconds=second)}

    a, b, b_done = entry("a", "done", 0), entry("b", "begun", 1), entry("b", "done", 1)
    late = entry("c", "done", 2000)
    answers = [[a, b], [a, b_done], [late], [late, entry("d", "done", 2001)]]
    asked: list[datetime.datetime] = []

    def look(since: datetime.datetime) -> list[dict[str, Any]]:
        asked.append(since)
        return answers.pop(0)

    shown = list(itertools.islice(cli_audit.followed(look, [a]), 5))
    names = [(found["id"], found["outcome"]) for found in shown]
    assert names == [
        ("a", "done"), ("b", "begun"), ("b", "done"), ("c", "done"), ("d", "done")
    ]  # fmt: skip
    assert asked == [now, now, now, late["time"] - datetime.timedelta(seconds=cli_audit.LATE_S)]


async def test_commands_and_python_inside_ray_are_in_the_audit_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With who gave them: the command's words without its arguments; a turn when it begins and
    when it has ended, as one entry; what is refused as well, also for another's turn. A try of
    one that waits for the turn is no entry: it tries again and again. Whoever asked for a turn is
    told once, also where the connection says the same."""
    async with local_cluster(tmp_path / "c", tservers=1, backups=2) as cluster:
        link = ClusterLink(CLUSTER, cluster.master_addresses, SECRET, cluster.settings)

        def opened(_: Any = None) -> Database:
            return Database.open(ClusterOrigin(link), CLUSTER)

        def opened_by_command(_: Any = None) -> Database:
            with as_command():
                return opened()

        monkeypatch.setenv("COLUMNS", "250")  # in 80 the cells of a long process id are broken
        monkeypatch.setattr(cli_audit, "open_cluster", opened)
        monkeypatch.setattr(cli_create, "open_cluster", opened_by_command)

        def story() -> None:
            with opened() as database:
                database.create_table("flights", SCHEMA, key="id")
                told: list[bool] = []
                database.told_of_turn = told.append

                def take_turn() -> None:
                    with database.turn("server replace b-1", "token ci"):
                        assert told == [True]
                        with opened_by_command() as another:
                            refused = another.turn("server stop b-2")
                            with pytest.raises(AlreadyRunning), refused:
                                pass
                        waits = database.turn("apply", tries_again=True)
                        with pytest.raises(AlreadyRunning), waits:
                            pass
                        raise RetryLater("it drains")

                with pytest.raises(RetryLater):
                    take_turn()
                assert told == [True, False]
                database.note_call("down")
            with (
                called_by(Door.APPLIER, "by token ci"),
                opened() as database,
                database.turn("apply", "token ci"),
            ):
                database.create_table("asked", SCHEMA, key="id")
            code, out = run(capsys, "table", "drop", "flights", "--yes")
            assert code == 0, out
            code, out = run(capsys, "audit", "--json")
            assert code == 0
            found = json.loads(out)["entries"]
            assert [(e["method"], e["path"], e["object"], e["outcome"]) for e in found] == [
                ("python", "create_table flights", "flights", "done"),
                ("python", "server replace b-1", "b-1", "refused"),
                ("cli", "server stop b-2", "b-2", "refused"),
                ("python", "down", "", "done"),
                ("applier", "apply", "", "done"),
                ("applier", "create_table asked", "asked", "done"),
                ("cli", "delete_table flights", "flights", "done"),
            ]
            me = f"{getpass.getuser()}@{socket.gethostname()}"
            assert {e["caller"] for e in found} == {me}
            assert found[1]["details"].startswith("it drains; by token ci; process ")
            assert re.match(r"token ci .*\(server replace b-1\)", found[2]["details"])
            assert re.match(r"by token ci, process \d+$", found[4]["details"])
            assert "; by token ci, process " in found[5]["details"]
            assert re.search(r"stelae table drop, process \d+$", found[6]["details"])
            code, out = run(capsys, "audit", "--who", me, "--path", "delete_table")
            assert code == 0
            assert "cli delete_table flights" in out

        await asyncio.to_thread(story)


async def test_a_cluster_that_was_taken_down_tells_of_it_once_it_is_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is on disks before the command ends the first process."""
    keeper, ended = 4711, list[int]()

    def take_down(cluster: LocalCluster) -> None:
        link = ClusterLink(CLUSTER, cluster.master_addresses, SECRET, cluster.settings)

        def opened(_: str) -> Database:
            return Database.open(ClusterOrigin(link), CLUSTER)

        def end_keeper(process: int) -> None:
            with opened("") as database:
                (found,) = database.audit(path="down")
                assert found["outcome"] == "done"
            ended.append(process)

        monkeypatch.setattr("stelae.cluster.connect", opened)
        monkeypatch.setattr("stelae.keeper_process.end_keeper", end_keeper)
        assert _take_down(tmp_path)

    monkeypatch.setattr("stelae.deploy.locks.lock_holder", lambda folder: keeper)
    monkeypatch.setattr("stelae.deploy.locks.wait_ended", lambda folders: [])
    monkeypatch.setattr("stelae.keeper_process.is_keeper", lambda process: True)
    async with local_cluster(tmp_path, tservers=1, backups=2) as cluster:
        await asyncio.to_thread(take_down, cluster)
        assert ended == [keeper]
    async with local_cluster(tmp_path, tservers=1, backups=2) as cluster:
        (found,) = await cluster.database.audit(path="down", timeout=30.0)
        assert (found["method"], found["path"], found["outcome"]) == ("cli", "down", "done")


def test_the_words_of_a_command_are_told_from_its_arguments() -> None:
    """Whatever follows the name of a command may be secret, and is no part of its words."""
    assert command_of(["table", "drop", "flights", "--yes"]) == "stelae table drop"
    assert command_of(["token", "create", "drop", "table"]) == "stelae token create"
    assert command_of(["tablet", "quarantine", "purge", "all"]) == "stelae tablet quarantine purge"
    assert command_of(["up", "up"]) == "stelae up"
    assert command_of(["apply", "a.yaml"]) == "stelae apply"
    assert command_of(["s3://key:password@here"]) == command_of([]) == "stelae"
