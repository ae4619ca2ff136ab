"""The jar for Spark: when it is taken as it is, and what may go wrong when it is made."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path
from typing import NoReturn

import pytest

from stelae.connectors import spark_jar
from stelae.connectors.spark_jar import NoJar, jar_path


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a package that is installed where there is no compiler."""
    folder = tmp_path / "java"
    folder.mkdir()
    (folder / "A.java").write_text("class A {}")
    monkeypatch.setattr(spark_jar, "SOURCES", folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def no_javac() -> NoReturn:
        raise NoJar("there is no javac")

    monkeypatch.setattr(spark_jar, "_javac", no_javac)
    return folder


def put_jar(folder: Path) -> Path:
    jar = folder / spark_jar.NAME
    with zipfile.ZipFile(jar, "w") as opened:
        opened.writestr(spark_jar.DIGEST, spark_jar._digest())
    return jar


def test_a_jar_is_known_by_its_sources_not_by_its_time(sources: Path) -> None:
    """A wheel's files have the times of the installation, in any order."""
    with pytest.raises(NoJar):
        jar_path()
    jar = put_jar(sources)
    os.utime(jar, (0, 0))
    assert jar_path() == jar
    (sources / "A.java").write_text("class B {}")
    with pytest.raises(NoJar):
        jar_path()
    jar.write_bytes(b"cut off")
    with pytest.raises(NoJar):
        jar_path()


@pytest.mark.parametrize(
    "error", [PermissionError("javac"), subprocess.TimeoutExpired("javac", 120.0)], ids=repr
)
def test_whatever_happens_to_the_compiler_a_wheel_is_built_without_the_jar(
    sources: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
) -> None:
    """And whoever wants the jar hears why there is none."""

    def run(*_: object, **__: object) -> NoReturn:
        raise error

    monkeypatch.setattr(spark_jar, "_javac", lambda: "javac")
    monkeypatch.setattr(subprocess, "run", run)
    spark_jar.main()
    assert "no jar" in capsys.readouterr().err
    with pytest.raises(NoJar, match="javac failed"):
        jar_path()


def test_a_wheel_is_built_where_the_jar_cannot_be_put(
    sources: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on a disk that is full."""

    def build(target: Path) -> NoReturn:
        raise OSError("no space left")

    monkeypatch.setattr(spark_jar, "build", build)
    spark_jar.main()
    assert "no space left" in capsys.readouterr().err
