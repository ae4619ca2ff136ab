"""What the documentation shows is run."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from stelae.cli.cluster import safekeepers as cli_safekeepers
from stelae.cli.cluster import timelines as cli_timelines
from stelae.core.config.spec_file import parse_spec
from stelae.core.records.tokens import Role
from tests.cluster_fixture import local_cluster
from tests.front.http_world import World
from tests.front.pages import blocks_of
from tests.front.test_cli_operators import database_of, run
from tests.until import until_async

DOCS = Path(__file__).resolve().parents[2] / "docs"


async def test_the_example_of_a_log_that_moves_under_load_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it stands in the page: rows are written all the while, and none of them is missing. Then
    a safekeeper goes for good, as the page says."""
    text = (DOCS / "safekeepers.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (commands,) = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    async with local_cluster(tmp_path, safekeepers=5) as cluster:
        for module in (cli_safekeepers, cli_timelines):
            monkeypatch.setattr(module, "open_cluster", lambda _: database_of(cluster))

        def run_it() -> dict[str, Any]:
            with database_of(cluster) as database:
                names: dict[str, Any] = {"db": database}
                exec(compile(example, "safekeepers.md", "exec"), names)
                return names

        names = await asyncio.to_thread(run_it)
        assert names["written"] > 0
        assert sorted(names["view"].configuration.sk_set) == sorted(
            [*names["kept"], names["spare"]]
        )
        assert names["view"].configuration.generation == 3
        assert len(capsys.readouterr().out.splitlines()) == 3
        for line in commands.splitlines():
            name, *arguments = shlex.split(line)
            assert name == "stelae"
            code, out = await asyncio.to_thread(run, capsys, *arguments)
            assert code == 0, f"{line}\n{out}"
        assert "decommissioned" in out


def test_what_pages_show_of_a_cluster_yaml_is_accepted() -> None:
    """Those pages that no reader follows block by block."""
    shown = [
        block.text
        for page in ("safekeepers.md", "monitoring.md", "reference/http.md")
        for block in blocks_of(DOCS / page)
        if block.language == "yaml" and "scrape_configs" not in block.text  # Prometheus's own
    ]
    assert len(shown) == 3
    for text in shown:
        parse_spec(f"apiVersion: stelae/v1\nkind: Cluster\n{text}")


async def test_the_examples_of_http_run_one_after_the_other(tmp_path: Path) -> None:
    """As they stand in the page, by a shell and curl, but for where the cluster is."""
    text = (DOCS / "reference" / "http.md").read_text()
    where, *blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    assert [line.partition("=")[0] for line in where.splitlines()] == ["URL", "TOKEN"]
    async with local_cluster(tmp_path, tservers=2) as cluster:
        world = World(cluster)
        server = uvicorn.Server(
            uvicorn.Config(world.app, host="127.0.0.1", port=0, log_level="warning")
        )
        serving = asyncio.create_task(server.serve())
        # uvicorn has no event for it.
        await until_async(lambda: server.started, 10.0, "uvicorn listens", poll_s=0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        script = "set -euo pipefail\n" + "\necho; echo '--'\n".join(blocks)
        done = await asyncio.to_thread(
            lambda: subprocess.run(
                ["bash", "-c", script],
                env={
                    **os.environ,
                    "URL": f"http://127.0.0.1:{port}",
                    "TOKEN": world.tokens[Role.ADMIN],
                },
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
            )
        )
        server.should_exit = True
        await serving
    assert done.returncode == 0, done.stdout + done.stderr
    rows, scans, tokens, audited, operators = done.stdout.split("--\n")
    assert "304" in rows
    assert rows.count('{"versions":') == 2
    assert '"miles":8.0' in rows
    assert scans.count('"next":') == 2 or scans.count('"next":') == 3
    assert '"dashboard"' in tokens
    assert audited.count('"entries":') == 2
    assert '"well":true' in operators
