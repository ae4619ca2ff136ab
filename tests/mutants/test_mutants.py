"""The mutants fit the code as it is, and the runner tells killed, survived and stuck apart."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from tests.mutants import run as runner
from tests.mutants.checkout import ROOMS, Outcome
from tests.mutants.mutant import Mutant
from tests.mutants.protections import MUTANTS

ROOT = Path(__file__).parents[2]
LEAST = 250
"""Number of protections below which some were dropped from the lists."""
GUARD = """MOST = 2


def may(count):
    if count > MOST:
        return False
    return True


def pause_s():
    return 0.0
"""
TEST = """import time

from stelae.core.guard import may, pause_s


def test_guard():
    time.sleep(pause_s())
    assert not may(3)
"""


def test_every_protection_is_still_where_its_mutant_expects_it() -> None:
    """Each text stands in its file once, what replaces it is Python, and its tests exist."""
    for mutant in MUTANTS:
        source = (ROOT / mutant.path).read_text()
        assert mutant.text != mutant.replacement, mutant
        ast.parse(mutant.applied(source))
        for test in mutant.tests:
            assert (ROOT / test.partition("::")[0]).is_file(), f"{mutant.path}: no {test}"


def test_no_mutant_is_tried_twice_and_none_was_dropped() -> None:
    """Two with the same change are one; the lists grow with the code."""
    changes = {(each.path, each.text, each.replacement) for each in MUTANTS}
    assert len(changes) == len(MUTANTS) >= LEAST


def test_the_copy_knows_every_package_of_the_checkout() -> None:
    """A folder at the root that is a package of ``stelae`` is linked into it."""
    found = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"stelae", "tests", "build"}
    assert found == set(ROOMS)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout of one module with a guard, and its test."""
    root = tmp_path / "project"
    for folder in ("stelae", "core"):
        (root / folder).mkdir(parents=True)
        (root / folder / "__init__.py").touch()
    (root / "core" / "guard.py").write_text(GUARD)
    (root / "test_guard.py").write_text(TEST)
    (root / "pytest.ini").write_text("[pytest]\nmarkers = soak\n ray\n spark\n")
    (root / "conftest.py").write_text(
        "from hypothesis import settings\nsettings.register_profile('mutants')\n"
    )
    return root


def mutant(text: str, replacement: str, explained: str = "") -> Mutant:
    """One of the project's."""
    return Mutant("core/guard.py", text, replacement, ("test_guard.py",), explained)


def test_a_mutant_is_killed_or_survives(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each in the copy alone: the checkout stays as it is. The table and the file say the same."""
    before = (project / "core" / "guard.py").read_text()
    tried = runner.run(
        [
            mutant("if count > MOST:", "if False:"),
            mutant("MOST = 2", "MOST = 1"),
            mutant("MOST = 2", "MOST = 0", "a lower bound refuses more"),
        ],
        project,
        jobs=2,
    )
    outcomes = [each.outcome for each in tried]
    assert outcomes == [Outcome.KILLED, Outcome.SURVIVED, Outcome.SURVIVED]
    assert [each.is_open for each in tried] == [False, True, False]
    assert (project / "core" / "guard.py").read_text() == before
    runner.report(tried, tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    assert [(each["outcome"], each["line"]) for each in found] == [
        ("killed", 5),
        ("survived", 1),
        ("survived", 1),
    ]
    said = capsys.readouterr().out
    assert "3 mutants: 1 killed, 2 survived, 0 timed out; 1 of the survivors are explained" in said
    assert "a lower bound refuses more" in said


def test_a_mutant_that_never_ends_is_stopped(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its limit, with all processes that it started."""
    monkeypatch.setattr(runner, "LEAST_LIMIT_S", 1.0)
    monkeypatch.setattr(runner, "SLOWER", 0.0)
    (tried,) = runner.run([mutant("return 0.0", "return 600.0")], project, jobs=1)
    assert tried.outcome is Outcome.TIMED_OUT
    assert not tried.is_open


def test_a_mutant_whose_text_is_gone_is_an_error(project: Path) -> None:
    """Nothing is run: the list does not fit the code."""
    with pytest.raises(ValueError, match="has it 0 times, expected once"):
        runner.run([mutant("if count >= MOST:", "if False:")], project, jobs=1)


def test_tests_that_fail_without_a_mutant_are_an_error(project: Path) -> None:
    """They would kill whatever they are given."""
    (project / "test_guard.py").write_text("def test_guard():\n    assert False\n")
    with pytest.raises(RuntimeError, match="without a mutant"):
        runner.run([mutant("MOST = 2", "MOST = 1")], project, jobs=1)
