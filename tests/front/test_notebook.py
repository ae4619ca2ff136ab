"""The notebooks run from top to bottom, as a reader would run them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
PLOTLY = "application/vnd.plotly.v1+json"
ELSEWHERE = {"one_cluster"}
"""It has Feast, and is run in Feast's environment, by tests/feast."""
IN_THE_END = {
    "quickstart": ("image/png", 1, "acknowledged rows are there, and all 50000 from before"),
    "crash_and_recovery": (PLOTLY, 3, "acknowledged changes are there, and all 100000 rows"),
    "safekeepers": (PLOTLY, 1, "acknowledged rows are there; 4 logs have moved"),
}
"""The kind of its plots, how many there are, and what it says once every row was found."""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="st-", dir="/tmp"))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_TMPDIR", str(made / "r"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def executed(name: str, folder: Path) -> tuple[list[dict[str, Any]], str]:
    """The outputs of all cells, run in a fresh kernel, and what was printed."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return outputs, "".join(output.get("text", "") for output in outputs)


@pytest.mark.ray
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "quickstart" else [pytest.mark.soak])
        for name in IN_THE_END
    ],
)
def test_a_notebook_runs_and_plots(name: str, folder: Path) -> None:
    """Every cell runs; the plots are there; every acknowledged row was found."""
    kind, plots, found = IN_THE_END[name]
    outputs, printed = executed(name, folder)
    assert sum(kind in output.get("data", {}) for output in outputs) == plots
    assert found in printed
    assert list((folder / ".stelae").glob("*/cluster.json"))


def test_every_notebook_is_run() -> None:
    """Here, or elsewhere."""
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == {*IN_THE_END, *ELSEWHERE}


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path: Path) -> None:
    """What is in the repository is the text; outputs are made by running it."""
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert not [cell for cell in code if cell.outputs or cell.execution_count]
