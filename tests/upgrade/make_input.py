"""Makes the upgrade's test input with the code of an older commit: see ``input/README.md``.

.venv/bin/python -m tests.upgrade.make_input COMMIT
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

from tests.mutants.checkout import ROOMS

ROOT = Path(__file__).parents[2]
INPUT = Path(__file__).parent / "input"
SHARED = ("contents.py", "write_input.py")
"""Modules of this folder that run under the older code."""


def older_tree(commit: str, folder: Path) -> str:
    """Put the files of ``commit`` into ``folder``, importable from there; the version they have."""
    folder.mkdir(parents=True)
    packed = subprocess.run(
        ["git", "archive", commit], cwd=ROOT, check=True, stdout=subprocess.PIPE
    ).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed, check=True)
    for room in ROOMS:
        (folder / "stelae" / room).symlink_to(f"../{room}")
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def environment(tree: Path) -> dict[str, str]:
    """In which Python imports ``stelae`` and ``tests`` from ``tree``, not from an installed one."""
    return {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}


def pack(folder: Path, target: Path) -> None:
    """Pack the folder's files in one order, with no owner and no time."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        info.mtime = 0
        return info

    with tarfile.open(target, "w:xz", preset=9) as packed:
        for path in sorted(folder.rglob("*")):
            packed.add(path, str(path.relative_to(folder)), recursive=False, filter=plain)


def main(commit: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        tree, made = Path(scratch) / "tree", Path(scratch) / "made"
        version = older_tree(commit, tree)
        # The checkout's, also where the commit has some: input is compared by the checkout's.
        (tree / "tests" / "upgrade").mkdir(exist_ok=True)
        for name in SHARED:
            shutil.copy(Path(__file__).with_name(name), tree / "tests" / "upgrade" / name)
        made.mkdir()
        subprocess.run(
            [sys.executable, "-m", "tests.upgrade.write_input", str(made)],
            cwd=tree,
            env=environment(tree),
            check=True,
        )
        INPUT.mkdir(exist_ok=True)
        target = INPUT / f"{version}.tar.xz"
        pack(made, target)
    print(f"{target}: {target.stat().st_size:,} bytes, made by {version} ({commit})")


if __name__ == "__main__":
    main(sys.argv[1])
