"""The loop over soak tests goes on after failures, counts every run, and keeps what failed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import soak_cluster

TESTS = {
    "test_a.py": "def test_fails():\n    assert 1 == 2\n\n\ndef test_passes():\n    pass\n",
    "test_b.py": "import os\n\n\ndef test_ends_pytest():\n    os._exit(3)\n",
    "test_c.py": "import pytest\n\n\n@pytest.mark.ray\ndef test_of_ray():\n    pass\n",
}


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project whose test files fail, end the process of pytest, and pass."""
    monkeypatch.setattr(soak_cluster, "ROOT", tmp_path)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take seconds to import
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = ray\n")
    for name, text in TESTS.items():
        (tmp_path / name).write_text(text)


def soak(folder: Path, *arguments: str) -> tuple[int, dict[str, dict[str, object]]]:
    """Run the loop; return the exit code and the results by the test's name."""
    code = soak_cluster.main(["--folder", str(folder / "out"), *arguments])
    found = json.loads((folder / "out" / "results.json").read_text())["tests"]
    return code, {name: each for name, each in found.items()}


def test_a_failure_does_not_stop_the_loop_and_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two rounds: each test ran twice, and a file whose pytest dies counts as failed."""
    code, found = soak(tmp_path, "--rounds", "2", "--markers", "not ray", ".")
    assert code == 1
    counts = {name: (each["runs"], each["failures"]) for name, each in found.items()}
    assert counts == {
        "test_a.py::test_fails": (2, 2),
        "test_a.py::test_passes": (2, 0),
        "test_b.py": (2, 2),
    }
    assert "assert 1 == 2" in (tmp_path / "out" / "test_a-2.log").read_text()
    assert "    2       2 " in capsys.readouterr().out


def test_only_tests_with_the_markers_run_and_time_ends_the_loop(tmp_path: Path) -> None:
    """Exit code 0 if all passed, and 2 if there was no time for any test."""
    code, found = soak(tmp_path, "--rounds", "1", "--markers", "ray", ".")
    assert (code, list(found)) == (0, ["test_c.py::test_of_ray"])
    (tmp_path / "late").mkdir()
    assert soak_cluster.main(["--folder", str(tmp_path / "late"), "--minutes", "0", "."]) == 2
