"""The scripts under ``examples/`` do what they say, from an installed wheel and outside the
checkout, as their readers have it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
TIMEOUT_S = 600.0


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has the wheel's files, and commands beside them."""
    built, folder = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("installed")
    skip = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__", "tests", "docs")
    checkout = shutil.copytree(ROOT, built / "checkout", ignore=skip)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    wheel = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(built), str(checkout)]
    subprocess.run(wheel, check=True)
    found = [str(path) for path in built.glob("*.whl")]
    subprocess.run([*pip, "install", "--no-deps", "--target", str(folder), *found], check=True)
    return folder


@pytest.mark.ray
@pytest.mark.parametrize(
    "name",
    [
        "researcher.py",
        pytest.param("web_client.py", marks=pytest.mark.soak),
        pytest.param("operator.sh", marks=pytest.mark.soak),
        pytest.param("spark_and_ray_data.py", marks=[pytest.mark.spark, pytest.mark.soak]),
    ],
)
def test_an_example_does_what_it_says(name: str, installed: Path, tmp_path: Path) -> None:
    """To its end, with its own checks; and every one that there is is run here."""
    shutil.copy(EXAMPLES / name, tmp_path)
    first = sys.executable if name.endswith(".py") else "bash"
    commands = f"{installed / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [first, name, "here"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed), "PATH": commands},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert (tmp_path / "here").is_dir()


def test_each_example_is_told_of_and_run() -> None:
    """A script that is new is named in the list above, and in the folder's README."""
    scripts = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh")}
    told = (EXAMPLES / "README.md").read_text()
    marked = vars(test_an_example_does_what_it_says)["pytestmark"]
    (marks,) = [m for m in marked if m.name == "parametrize"]
    run = {getattr(each, "values", [each])[0] for each in marks.args[1]}
    assert run == scripts
    assert all(f"]({name})" in told for name in scripts)
