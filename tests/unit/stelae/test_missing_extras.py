"""A part whose packages are not installed says which extra has them."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [("stelae.data", "ray.data", "data"), ("stelae.feast", "feast", "feast")],
)
def test_an_import_names_the_extra(module: str, package: str, extra: str) -> None:
    """With the command that installs it."""
    code = f"import sys; sys.modules[{package!r}] = None; import {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"pip install 'stelae[{extra}]'" in done.stderr
