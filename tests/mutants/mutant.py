"""A protection of the code, and how it is taken away.

A mutant replaces one text of one file, which must stand there exactly once: a text that is gone
says that the list is out of date, and is an error, never a mutant that nothing runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

Change: TypeAlias = tuple[str, str] | tuple[str, str, str]
"""Text, replacement, and for a mutant that may survive the reason why."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change to one file, and the tests that should fail with it."""

    path: str
    """Relative to the root of the checkout."""
    text: str
    replacement: str
    tests: tuple[str, ...]
    """Test files or node ids, the nearest to the protection."""
    explained: str = ""
    """Why no test can or need fail: what else keeps the promise."""

    def line(self, root: Path) -> int:
        """Return the number of the line in which the text begins. Raises ValueError."""
        source = (root / self.path).read_text()
        return source[: _place(self, source)].count("\n") + 1

    def applied(self, source: str) -> str:
        """Return the file's content with the change. Raises ValueError: the text is not in it
        exactly once."""
        place = _place(self, source)
        return source[:place] + self.replacement + source[place + len(self.text) :]


def _place(mutant: Mutant, source: str) -> int:
    count = source.count(mutant.text)
    if count != 1:
        found = f"{mutant.path} has it {count} times, expected once"
        raise ValueError(f"mutant {mutant.text!r}: {found}; bring the list up to date")
    return source.index(mutant.text)


def mutants_of(path: str, tests: Iterable[str], changes: Iterable[Change]) -> list[Mutant]:
    """Return the mutants of one file that the same tests should see."""
    named = tuple(tests)
    return [Mutant(path, each[0], each[1], named, *each[2:]) for each in changes]
