"""Try all mutants of `tests.mutants.protections`: which of them does a test notice?

``python -m tests.mutants.run`` first runs the named tests without a mutant, as one that fails by
itself would kill everything. Then it tries the mutants, each in a copy of the checkout, and prints
a table. ``build/mutants.json`` has the same. It fails if a mutant without an explanation survived.
"""

from __future__ import annotations

import argparse
import json
import queue
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.checkout import Checkout, Outcome, Ran
from tests.mutants.mutant import Mutant
from tests.mutants.protections import MUTANTS

ROOT = Path(__file__).parents[2]
BASELINE_LIMIT_S = 900.0
LEAST_LIMIT_S = 300.0
SLOWER = 10.0
"""Factor by which a run with a mutant may take longer than the one without."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A mutant and what became of it."""

    mutant: Mutant
    line: int
    outcome: Outcome
    took_s: float

    @property
    def is_open(self) -> bool:
        """Whether it survived, and nothing explains why it may."""
        return self.outcome is Outcome.SURVIVED and not self.mutant.explained

    def row(self) -> str:
        """Its line of the table."""
        place = f"{self.mutant.path}:{self.line}"
        first = " ".join(self.mutant.text.split())[:70]
        why = f"\n{'':12}{self.mutant.explained}" if self.outcome is Outcome.SURVIVED else ""
        return f"{self.outcome:10}  {place}  {first}{why.rstrip()}"


class Copies:
    """As many copies as mutants are tried at a time."""

    def __init__(self, root: Path, folder: Path, count: int) -> None:
        self._free: queue.Queue[Checkout] = queue.Queue()
        for number in range(count):
            self._free.put(Checkout(root, folder / str(number)))

    def baseline(self, tests: tuple[str, ...]) -> Ran:
        """Run tests without a mutant."""
        copy = self._free.get()
        try:
            return copy.run(tests, BASELINE_LIMIT_S)
        finally:
            self._free.put(copy)

    def attempt(self, mutant: Mutant, limit_s: float) -> Ran:
        """Run a mutant's tests with it."""
        copy = self._free.get()
        try:
            with copy.mutated(mutant):
                return copy.run(mutant.tests, limit_s)
        finally:
            self._free.put(copy)


def run(mutants: Sequence[Mutant], root: Path, jobs: int) -> list[Tried]:
    """Try mutants, and print each as it ends.

    Raises ValueError: a mutant's text is gone. RuntimeError: tests fail without any mutant.
    """
    lines = [mutant.line(root) for mutant in mutants]
    with (
        tempfile.TemporaryDirectory(prefix="stelae-mutants-") as folder,
        ThreadPoolExecutor(jobs) as pool,
    ):
        copies = Copies(root, Path(folder), jobs)
        sets = list(dict.fromkeys(mutant.tests for mutant in mutants))
        took_s: dict[tuple[str, ...], float] = {}
        for tests, ran in zip(sets, pool.map(copies.baseline, sets), strict=True):
            if ran.outcome is not Outcome.SURVIVED:
                raise RuntimeError(f"without a mutant: {' '.join(tests)} {ran.outcome}\n{ran.said}")
            took_s[tests] = ran.took_s
        limits = [max(LEAST_LIMIT_S, SLOWER * took_s[mutant.tests]) for mutant in mutants]
        tried = []
        runs = pool.map(copies.attempt, mutants, limits)
        for mutant, line, ran in zip(mutants, lines, runs, strict=True):
            tried.append(Tried(mutant, line, ran.outcome, ran.took_s))
            print(tried[-1].row(), flush=True)
    return tried


def report(tried: Sequence[Tried], path: Path) -> None:
    """Print how many came to what, then those that nothing explains; write the JSON file."""
    counts = Counter(each.outcome for each in tried)
    explained = sum(
        each.outcome is Outcome.SURVIVED and bool(each.mutant.explained) for each in tried
    )
    figures = ", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome)
    print(f"\n{len(tried)} mutants: {figures}; {explained} of the survivors are explained")
    for each in tried:
        if each.is_open:
            print(f"no test noticed  {each.mutant.path}:{each.line}\n  {each.mutant.text.strip()}")
    found = [
        {
            "path": each.mutant.path,
            "line": each.line,
            "text": each.mutant.text,
            "replacement": each.mutant.replacement,
            "tests": each.mutant.tests,
            "outcome": each.outcome,
            "explained": each.mutant.explained,
            "took_s": round(each.took_s, 1),
        }
        for each in tried
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code: 1 if a mutant survived that nothing explains."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="mutants tried at a time")
    parser.add_argument("--only", default="", help="those whose path or text has this")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "mutants.json")
    given = parser.parse_args(arguments)
    chosen = [each for each in MUTANTS if given.only in each.path or given.only in each.text]
    if not chosen:
        parser.error(f"no mutant has {given.only!r} in its path or text")
    tried = run(chosen, ROOT, given.jobs)
    report(tried, given.json)
    return int(any(each.is_open for each in tried))


if __name__ == "__main__":
    sys.exit(main())
