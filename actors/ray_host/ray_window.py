"""The versions of Ray that Stelae is tested with: the window in its package's own metadata.

Outside of it Stelae tries, and warns once in a process. The ends of the window and the newest
version are tried by ``make test-matrix``.
"""

from __future__ import annotations

import functools
import importlib.metadata
import warnings

import ray
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet


def tested_window() -> SpecifierSet:
    """What the package ``stelae`` asks of Ray's version. Raises PackageNotFoundError: Stelae is not
    installed as a package, but found by ``PYTHONPATH`` or Ray's ``py_modules``."""
    asked = map(Requirement, importlib.metadata.requires("stelae") or ())
    return next(each.specifier for each in asked if each.name == "ray")


def warning_about(version: str, window: SpecifierSet) -> str:
    """What to say of a version of Ray; empty: it is within the window. Pure."""
    if window.contains(version, prereleases=True):
        return ""
    return (
        f"Ray {version} is not among the versions that Stelae is tested with ({window}); if "
        f"something fails, try `pip install 'ray[default,serve]{window}'`"
    )


@functools.cache
def warn_outside_window() -> None:
    """Warn, once, if this process has a Ray that Stelae is not tested with."""
    try:
        window = tested_window()
    except importlib.metadata.PackageNotFoundError:  # the window is not known there
        return
    if text := warning_about(ray.__version__, window):
        warnings.warn(text, RuntimeWarning, stacklevel=3)
