"""Which versions of Ray are warned about."""

from __future__ import annotations

import importlib.metadata
import tomllib
import warnings
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import ray
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from stelae.actors.ray_host import ray_window

ROOT = Path(__file__).parents[4]
WINDOW = SpecifierSet(">=2.50,<2.61")


@pytest.mark.parametrize("version", ["2.50.0", "2.60.1", "2.60.0rc1"])
def test_a_version_within_the_window_is_not_warned_about(version: str) -> None:
    """Nor is a release candidate of the next one."""
    assert ray_window.warning_about(version, WINDOW) == ""


@pytest.mark.parametrize("version", ["2.49.2", "2.61.0", "3.0.0.dev0"])
def test_a_version_outside_is_warned_about_with_the_way_out(version: str) -> None:
    """Both older and newer ones."""
    text = ray_window.warning_about(version, WINDOW)
    assert version in text
    assert "pip install" in text


def test_the_window_is_that_of_the_package_and_has_this_ray() -> None:
    """It is written down once, in pyproject.toml."""
    assert ray_window.tested_window().contains(ray.__version__)


def test_the_docs_name_the_ends_of_the_window() -> None:
    """From the oldest version to the last minor version below the upper bound."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = map(Requirement, project["dependencies"])
    window = next(each.specifier for each in asked if each.name == "ray")
    ends = {each.operator: Version(each.version) for each in window}
    above = ends["<"]
    text = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert f"| Ray | {ends['>=']} to {above.major}.{above.minor - 1};" in text


def test_a_process_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each launch and each connect looks."""
    monkeypatch.setattr(ray, "__version__", "1.0.0")
    ray_window.warn_outside_window.cache_clear()
    try:
        with pytest.warns(RuntimeWarning, match=r"Ray 1\.0\.0 is not among the versions"):
            ray_window.warn_outside_window()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ray_window.warn_outside_window()
    finally:
        ray_window.warn_outside_window.cache_clear()


def test_a_process_without_the_package_warns_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's ``py_modules`` bring modules alone, and a launch goes on there."""
    missing = MagicMock(side_effect=importlib.metadata.PackageNotFoundError("stelae"))
    monkeypatch.setattr(importlib.metadata, "requires", missing)
    monkeypatch.setattr(ray, "__version__", "1.0.0")
    ray_window.warn_outside_window.cache_clear()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ray_window.warn_outside_window()
    finally:
        ray_window.warn_outside_window.cache_clear()
    missing.assert_called_once_with("stelae")
