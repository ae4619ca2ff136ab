"""The page about `stelae check` quotes what `stelae check` says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "check.md"
SOURCES = ("client/check", "stelae/database", "stelae/applying")
QUOTED = re.compile(r"`([^`]+)`")


def texts() -> Iterator[str]:
    """What is between the values of each text of the sources."""
    for folder in SOURCES:
        for path in sorted((ROOT / folder).glob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


def test_each_finding_of_the_page_is_one_of_the_check() -> None:
    """In the first column of its tables; so a text that is changed is changed there, too."""
    said = list(texts())
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert len(rows) > 30
    for row in rows:
        for quoted in QUOTED.findall(row.split("|")[1]):
            assert any(quoted in text for text in said), f"no finding says {quoted!r}"


def test_each_command_that_a_finding_names_is_on_the_page() -> None:
    """Those of its hints, without their arguments."""
    hints = ast.parse((ROOT / "client/check/hints.py").read_text())
    constants = [node.value for node in ast.walk(hints) if isinstance(node, ast.Constant)]
    named = {
        " ".join(word for word in command.split() if word.isalpha())
        for text in constants
        if isinstance(text, str)
        for command in QUOTED.findall(text)
        if command.startswith("stelae ")
    }
    page = PAGE.read_text()
    assert len(named) > 5
    for command in sorted(named):
        assert command in page, f"{command!r} is a way out, and not on the page"
