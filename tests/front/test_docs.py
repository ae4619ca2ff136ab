"""What the documentation shows is run."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_fixture import local_cluster
from tests.front.test_cli_operators import database_of

DOCS = Path(__file__).resolve().parents[2] / "docs"


async def test_the_example_of_a_log_that_moves_under_load_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it stands in the page: rows are written all the while, and none of them is missing."""
    text = (DOCS / "safekeepers.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    async with local_cluster(tmp_path, safekeepers=4) as cluster:

        def run_it() -> dict[str, Any]:
            with database_of(cluster) as database:
                names: dict[str, Any] = {"db": database}
                exec(compile(example, "safekeepers.md", "exec"), names)
                return names

        names = await asyncio.to_thread(run_it)
        assert names["written"] > 10
        assert sorted(names["view"].configuration.sk_set) == sorted(
            [*names["kept"], names["spare"]]
        )
        assert names["view"].configuration.generation == 3
    assert len(capsys.readouterr().out.splitlines()) == 3
