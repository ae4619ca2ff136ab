"""Java's compiler for tests, and what is made by it: the jar for ``format("stelae")``."""

from __future__ import annotations

import shutil

import stelae
from stelae.core.errors import InvalidArgument
from tests.services import need


def needed_javac() -> str:
    """Where ``javac`` is; without it the test is skipped, or fails."""
    missing = "there is no javac (Debian: apt-get install default-jdk-headless)"
    return need(shutil.which("javac"), missing)


def found_jar() -> str | None:
    """The jar for Spark, if it is there or can be made."""
    try:
        jar: str = stelae.spark.jar()
    except InvalidArgument:
        return None
    return jar


def needed_jar() -> str:
    """The jar for Spark; where it cannot be made the test is skipped, or fails."""
    return need(found_jar(), "there is no jar for Spark: `stelae.spark.jar()` says why")
