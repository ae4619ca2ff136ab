"""``stelae table index``, status, the check, and what retiring says of indexes, in this process."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stelae.cli.cluster import check as cli_check
from stelae.cli.cluster import servers as cli_servers
from stelae.cli.table import indexes as cli_indexes
from stelae.cli.table import tables as cli_tables
from stelae.core.schema.durability import segments
from tests.cluster_fixture import local_cluster
from tests.front.test_cli_operators import database_of, run

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("dest", pa.string())])


def story(capsys: pytest.CaptureFixture[str]) -> None:
    def document(*arguments: str) -> Any:
        code, out = run(capsys, *arguments, "--json")
        assert code == 0, out
        return json.loads(out)

    (made,) = document("table", "index", "create", "t", "dest")["indexes"]
    assert (made["column"], made["state"], made["entries"]) == ("dest", "serving", 10)
    code, out = run(capsys, "table", "index", "create", "t", "dest")
    assert code == 1, out
    code, out = run(capsys, "table", "index", "list", "t")
    assert (code, "dest" in out, made["indexlets"][0]["id"] in out) == (0, True, True), out
    assert document("table", "describe", "t")["indexes"] == [made]
    assert "index of" in run(capsys, "table", "describe", "t")[1]
    code, out = run(capsys, "check", "--wait", "10")
    assert (code, "all is well" in out) == (0, True), out
    holder = made["indexlets"][0]["server"]
    left = document("server", "retire", holder)
    assert (left["indexlets"], left["owned"]) == (0, 0)
    (moved,) = document("table", "index", "list", "t")["indexes"]
    assert moved["indexlets"][0]["server"] != holder
    assert document("server", "retire", holder, "--cancel")["retiring"] is False
    assert run(capsys, "table", "index", "drop", "t", "dest")[0] == 0
    assert "no indexes" in run(capsys, "table", "index", "list", "t")[1]
    assert run(capsys, "table", "index", "drop", "t", "dest")[0] == 1


async def test_indexes_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Made, listed, moved off a server that is retired, and dropped."""
    async with local_cluster(tmp_path, tservers=3) as cluster:
        table = await cluster.database.create_table(
            "t", SCHEMA, key="id", durability=segments("disk")
        )
        await table.insert([{"id": n, "dest": "LAX"} for n in range(10)])
        monkeypatch.delenv("COLUMNS", raising=False)
        for module in (cli_check, cli_servers, cli_tables, cli_indexes):
            monkeypatch.setattr(module, "open_cluster", lambda _: database_of(cluster))
        await asyncio.to_thread(story, capsys)
