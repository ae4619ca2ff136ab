"""The wheel, installed alone, on each Python and with the ends of the tested window of Ray.

The wheel is made from the sdist. For each pair a fresh environment gets it with its core
dependencies, and `quickstart.py` runs there, outside of the checkout. Results go to the terminal
and to ``build/matrix.json``; exit code 1 if a pair fails.

    make test-matrix
    make test-matrix MATRIX_ARGS="--python python3.12 --ray 2.55.1"
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from stelae.actors.ray_host.ray_window import tested_window

ROOT = Path(__file__).parents[2]
QUICKSTART = Path(__file__).with_name("quickstart.py")
PYTHONS = ("3.11", "3.12", "3.13")
RUN_TIMEOUT_S = 900.0
SHOWN_CHARACTERS = 3000


@dataclass(frozen=True)
class Outcome:
    """Of one pair."""

    python: str
    ray: str
    passed: bool
    took_s: float
    text: str
    """The quickstart's line of figures, or the end of what went wrong."""


def main() -> int:
    """Run the pairs that were asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--python", action="append", help="interpreters (those found of 3.11 to 3.13)"
    )
    parser.add_argument(
        "--ray", action="append", help="versions (the oldest and newest of the window)"
    )
    parser.add_argument("--spark", action="store_true", help="install the extra [spark] too")
    asked = parser.parse_args()
    pythons = asked.python or _found_pythons()
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="st-", dir="/tmp") as kept:
        folder = Path(kept)
        wheel = _built_wheel(folder)
        for python in pythons:
            for ray in asked.ray or _window_ends(python):
                outcomes.append(_tried(folder / "pair", wheel, python, ray, spark=asked.spark))
                _show(outcomes[-1])
    report = ROOT / "build" / "matrix.json"
    report.parent.mkdir(exist_ok=True)
    report.write_text(json.dumps([asdict(each) for each in outcomes], indent=2) + "\n")
    return int(not outcomes or not all(each.passed for each in outcomes))


def _found_pythons() -> list[str]:
    """On the path, or where pyenv keeps them; one that is not found is said so."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = []
    for version in PYTHONS:
        places = [shutil.which(f"python{version}"), *map(str, kept.glob(f"{version}.*/bin/python"))]
        working = [place for place in places if place and _runs(place)]
        if working:
            found.append(working[0])
        else:
            print(f"Python {version} is not here: not tried", flush=True)
    return found


def _runs(python: str) -> bool:
    """pyenv puts commands on the path that run no Python."""
    return subprocess.run([python, "-c", ""], capture_output=True).returncode == 0


def _window_ends(python: str) -> list[str]:
    """The oldest and the newest Ray of the window that the registry has for a Python."""
    listed = subprocess.run(
        [python, "-m", "pip", "--disable-pip-version-check", "index", "versions", "ray"],
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"^Available versions: (.*)$", listed.stdout, re.MULTILINE)
    assert found is not None, listed.stdout
    there = [version for version in found[1].split(", ") if tested_window().contains(version)]
    return list(dict.fromkeys([there[-1], there[0]]))


def _version_of(python: str) -> str:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def _built_wheel(folder: Path) -> Path:
    """Made from the sdist, as an installer does where it takes no wheel."""
    code = "import sys, setuptools.build_meta as b; b.build_sdist(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", code, str(folder)], check=True, cwd=ROOT, stdout=subprocess.DEVNULL
    )
    (sdist,) = folder.glob("stelae-*.tar.gz")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    wheel = ["wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(sdist)]
    subprocess.run([*pip, *wheel], check=True)
    (found,) = folder.glob("stelae-*.whl")
    return found


def _tried(folder: Path, wheel: Path, python: str, ray: str, *, spark: bool) -> Outcome:
    """One pair, in a folder that is empty before and after."""
    began = time.monotonic()
    folder.mkdir()
    own = folder / "venv" / "bin" / "python"
    what = f"{wheel}[spark]" if spark else str(wheel)
    install = [str(own), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    steps = [
        [python, "-m", "venv", str(folder / "venv")],
        [*install, what, f"ray[default,serve]=={ray}"],
        [str(own), str(QUICKSTART), str(folder)],
    ]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    environment.pop("PYTHONPATH", None)
    text, passed = "", True
    for step in steps:
        try:
            done = subprocess.run(
                step,
                cwd=folder,
                env=environment,
                timeout=RUN_TIMEOUT_S,
                capture_output=True,
                text=True,
            )
        except subprocess.TimeoutExpired as error:
            text, passed = f"{error}", False
            break
        text = done.stdout
        if done.returncode:
            text, passed = (done.stdout + done.stderr)[-SHOWN_CHARACTERS:], False
            break
    shutil.rmtree(folder, ignore_errors=True)
    took_s = round(time.monotonic() - began, 1)
    return Outcome(_version_of(python), ray, passed, took_s, text.strip())


def _show(outcome: Outcome) -> None:
    verdict = "passed" if outcome.passed else "FAILED"
    print(
        f"Python {outcome.python}, Ray {outcome.ray}: {verdict} in {outcome.took_s} s", flush=True
    )
    print(outcome.text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
