"""The notebook that has Feast runs from top to bottom, in a cluster of its own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("feast", reason="Feast has an environment of its own: make test-feast")

from tests.front.test_notebook import PLOTLY, executed


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short one, and the environment of a Ray of its own."""
    made = Path(tempfile.mkdtemp(prefix="st-", dir="/tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_TMPDIR", str(made / "r"))
        yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.ray
@pytest.mark.soak
def test_the_notebook_with_spark_ray_data_and_feast_runs(folder: Path) -> None:
    """Both plots are there, the last push counted, and Feast's tables are gone in the end."""
    outputs, printed = executed("one_cluster", folder)
    assert sum(PLOTLY in output.get("data", {}) for output in outputs) == 2
    assert "and the last one counts" in printed
    assert "in the end there are flights, origins" in printed
