"""The blocks of code of the documentation's pages, and how each is run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
README = DOCS.parent / "README.md"
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND_TIMEOUT_S = 180.0
SHOWN = ("text", "mermaid")
"""Not to be run: what is printed, drawn, or for tools that are not here."""


@dataclass(frozen=True)
class Block:
    """One block, and where it stands."""

    where: str
    line: int
    language: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    """In the order of the page."""
    text = page.read_text()
    return [
        Block(page.name, text.count("\n", 0, found.start()) + 2, found[1], found[2])
        for found in BLOCK.finditer(text)
    ]


class Reader:
    """Does what a page says, block by block, in one folder: one Python, and one shell after another
    that knows the variables of those before. ``elsewhere`` names what stands for what a page has of
    a machine that is not here, ``left`` the commands that are not run; ``names`` is what Python
    knows, before and after."""

    def __init__(
        self,
        folder: Path,
        elsewhere: Mapping[str, str] | None = None,
        left: Collection[str] = (),
    ) -> None:
        self._folder = folder
        self._elsewhere = elsewhere or {}
        self._left = left
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self._environment = dict(os.environ)
        self._environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    def follow(self, page: Path, chosen: Callable[[Block], bool] = lambda block: True) -> int:
        """Run all blocks of a page that are chosen. How many there were."""
        done = 0
        for block in blocks_of(page):
            if block.language not in SHOWN and chosen(block):
                text = block.text
                for name, here in self._elsewhere.items():
                    text = text.replace(name, here)
                getattr(self, f"_{block.language or 'unnamed'}")(replace(block, text=text))
                done += 1
        return done

    def close(self) -> None:
        """Close what the blocks left open."""
        for value in list(self.names.values()):
            if hasattr(value, "create_table"):
                value.close()

    def _python(self, block: Block) -> None:
        # The page's own line numbers stand in a traceback.
        code = compile("\n" * (block.line - 1) + block.text, block.where, "exec")
        exec(code, self.names)

    def _bash(self, block: Block) -> None:
        variables = self._folder / ".variables"
        lines = [line for line in block.text.splitlines() if not line.startswith(tuple(self._left))]
        script = "\n".join([*lines, f"(set -o posix; set) > {variables}\n"])
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        said = f"{block.where}, line {block.line}\n{block.text}\n{done.stdout}\n{done.stderr}"
        assert done.returncode == 0, said
        for name in re.findall(r"^(?:export )?([A-Z][A-Z_]*)=", block.text, re.MULTILINE):
            found = re.search(rf"^{name}=(.*)$", variables.read_text(), re.MULTILINE)
            assert found is not None
            self._environment[name] = found[1].strip("'")

    def _json(self, block: Block) -> None:
        json.loads(block.text)

    def _yaml(self, block: Block) -> None:
        """A file whose name is in its first line is written; any is YAML."""
        import yaml

        yaml.safe_load(block.text)
        name = re.match(r"# ([\w.-]+\.yaml)\n", block.text)
        if name is not None:
            (self._folder / name[1]).write_text(block.text)
