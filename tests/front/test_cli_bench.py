"""`stelae bench`, against real servers over TCP in this process."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from stelae.cli.cluster import bench as cli_bench
from stelae.client.table.table import AsyncTable
from stelae.core.errors import TooLarge
from tests.cluster_fixture import local_cluster
from tests.front.test_cli_operators import database_of, run

SMALL = ["bench", "--rows", "3000", "--row-bytes", "50", "--seconds", "0.3", "--clients", "4"]


async def test_a_cluster_is_measured_and_keeps_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Loads, single rows and a scan, for each durability that is asked for."""
    async with local_cluster(tmp_path, tservers=3) as cluster:
        monkeypatch.setattr(cli_bench, "open_cluster", lambda _: database_of(cluster))
        for durability in ("segments('disk', 'disk')", "replicas(3)"):
            given = [*SMALL, "--durability", durability, "--json"]
            code, out = await asyncio.to_thread(run, capsys, *given)
            assert code == 0, out
            load, upserts, gets, scan = json.loads(out)["measured"]
            assert load["rows"] == scan["rows"] == 3000
            for each in (upserts, gets):
                assert each["rows"] == each["calls"] > 4
                assert 0 < each["p50_ms"] <= each["p99_ms"]
                assert each["mb_per_s"] == pytest.approx(each["rows_per_s"] * 50 / 1e6, abs=0.01)
            assert await cluster.database.tables() == []
        code, out = await asyncio.to_thread(run, capsys, *SMALL)
        assert code == 0, out
        assert "upsert of one row" in out


async def test_a_run_that_fails_leaves_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says why; wrong values are told before anything is made."""

    async def refused(*_: object, **__: object) -> object:
        raise TooLarge("the row", 1, 2)

    async with local_cluster(tmp_path) as cluster:
        monkeypatch.setattr(cli_bench, "open_cluster", lambda _: database_of(cluster))
        monkeypatch.setattr(AsyncTable, "get", refused)
        code, out = await asyncio.to_thread(run, capsys, *SMALL, "--json")
        assert (code, json.loads(out)["error"]["type"]) == (1, "TooLarge")
        assert await cluster.database.tables() == []
        code, _ = await asyncio.to_thread(run, capsys, *SMALL, "--durability", "replicas(")
        assert code == 2
        assert await cluster.database.tables() == []
