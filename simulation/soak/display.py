"""How a soak shows its progress: a bar in a terminal, or else a line now and then."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from stelae.simulation.soak.report import SoakReport, replay_line
from stelae.simulation.soak.workers import SeedResult

LINE_EVERY_S = 30.0
"""Wall time between two lines of progress, where there is no terminal."""


class Display:
    """Lines for a log: one each half minute, and one for each failure."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Nothing is open."""

    def say(self, text: str) -> None:
        """Print a line as it is."""
        self._console.print(escape(text), soft_wrap=True, highlight=False)

    def fail(self, failure: SeedResult) -> None:
        """Print a failing seed and the command that replays it."""
        what = f"FAILED: {failure.scenario}, seed {failure.seed}: {failure.error}"
        self.say(f"{what}; to replay: {replay_line(failure)}")

    def update(self, report: SoakReport, running: Sequence[str]) -> None:
        """Show how far the soak is, and the scenarios whose seeds are running."""
        now_s = time.monotonic()
        if now_s - self._told_s >= LINE_EVERY_S:
            self._told_s = now_s
            self.say(f"{report.elapsed_s / 60.0:.1f} minutes: {_progress(report, running)}")

    def finish(self, report: SoakReport, json: Path) -> None:
        """Print the table, and the failing seeds once more."""
        self._console.print(report.table())
        for failure in report.failures:
            self.fail(failure)
        ended = "" if report.state == "done" else f"{report.state}; "
        self.say(f"{ended}the figures and the failures are in {json}")


class BarDisplay(Display):
    """A bar of the time, below the failures."""

    def __init__(self, console: Console, duration_s: float) -> None:
        super().__init__(console)
        columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=console, transient=True)
        self._task = self._bar.add_task("the workers load the scenarios", total=duration_s)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def update(self, report: SoakReport, running: Sequence[str]) -> None:
        what = escape(_progress(report, running))
        self._bar.update(self._task, completed=report.elapsed_s, description=what)


def _progress(report: SoakReport, running: Sequence[str]) -> str:
    total = report.total
    failures = f"{total.failures} failure{'' if total.failures == 1 else 's'}"
    return f"{total.seeds} seeds, {failures}; running: {', '.join(running) or 'none'}"


def open_display(duration_s: float) -> Display:
    """Return the display that fits the standard output."""
    console = Console()
    return BarDisplay(console, duration_s) if console.is_terminal else Display(console)
