"""The front page of the package: what ``import stelae`` alone gives."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("name", ["errors.RowNotFound", "spark.read", "launch", "replicas"])
def test_what_the_readme_names_is_there_without_another_import(name: str) -> None:
    """``stelae.spark.read`` and its like work after ``import stelae``."""
    code = f"import stelae; assert callable(stelae.{name})"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_name_that_is_not_there_is_an_ordinary_error() -> None:
    """Nothing is imported for it."""
    import stelae

    with pytest.raises(AttributeError, match="no attribute 'sparks'"):
        stelae.sparks  # noqa: B018
