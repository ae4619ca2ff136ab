"""The results of a soak: figures of each scenario, failing seeds, the table and the JSON file.

The file is replaced atomically while the soak runs, so that a soak that is killed leaves its
figures.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from stelae.simulation.runner import replay_command
from stelae.simulation.soak.workers import SeedResult

FORMAT = 1
"""Version of the JSON file; a change that readers must know raises it."""


@dataclass(slots=True)
class Figures:
    """The sums of one scenario, or of all."""

    seeds: int = 0
    failures: int = 0
    virtual_s: float = 0.0
    wall_s: float = 0.0
    """Wall time of the worker processes."""

    def add(self, result: SeedResult) -> None:
        """Count one seed."""
        self.seeds += 1
        self.failures += bool(result.error)
        self.virtual_s += result.virtual_s
        self.wall_s += result.wall_s

    @property
    def simulated_hours(self) -> float:
        return self.virtual_s / 3600.0

    @property
    def seeds_per_hour(self) -> float:
        """Number of seeds that one worker process runs in an hour."""
        return 3600.0 * self.seeds / self.wall_s if self.wall_s else 0.0

    def document(self) -> dict[str, Any]:
        """Return the figures as the JSON file has them."""
        return {
            "seeds": self.seeds,
            "failures": self.failures,
            "simulated_hours": round(self.simulated_hours, 4),
            "worker_hours": round(self.wall_s / 3600.0, 4),
            "seeds_per_hour": round(self.seeds_per_hour, 1),
        }


class SoakReport:
    """The results of a soak, in the order in which they came.

    Args:
        scenarios: every scenario of the soak, whether or not a seed of it ran.
        base: the text from which the seeds are derived.
        commit: the commit of the checkout, "" if it is unknown.
        facts: constant further members of the JSON file.
    """

    def __init__(
        self, scenarios: Sequence[str], base: str, commit: str, facts: dict[str, Any]
    ) -> None:
        self.base = base
        self.commit = commit
        self.state = "running"
        """"running", "done", or "interrupted"; of a soak that was killed it stays "running"."""
        self.elapsed_s = 0.0
        self.figures = {name: Figures() for name in scenarios}
        self.total = Figures()
        self.failures: list[SeedResult] = []
        self._facts = facts

    def add(self, result: SeedResult) -> None:
        """Count a seed that has ended."""
        self.figures[result.scenario].add(result)
        self.total.add(result)
        if result.error:
            self.failures.append(result)

    def document(self) -> dict[str, Any]:
        """Return the content of the JSON file."""
        return {
            "format": FORMAT,
            "base": self.base,
            "commit": self.commit,
            "state": self.state,
            **self._facts,
            "elapsed_s": round(self.elapsed_s, 1),
            "total": self.total.document(),
            "scenarios": {name: figures.document() for name, figures in self.figures.items()},
            "failures": [
                {
                    "scenario": failure.scenario,
                    "seed": failure.seed,
                    "error": failure.error,
                    "replay": replay_line(failure),
                }
                for failure in self.failures
            ],
        }

    def write(self, path: Path) -> None:
        """Write the JSON file; a reader sees the old content or the new one."""
        path.parent.mkdir(parents=True, exist_ok=True)  # `make lint` removes build/ meanwhile
        new = path.with_name(f".{path.name}.{os.getpid()}")
        new.write_text(json.dumps(self.document(), indent=2) + "\n")
        new.replace(path)

    def table(self) -> Table:
        """Return the table that ends a soak."""
        table = Table(
            title=f"soak of {self.elapsed_s / 60.0:.1f} minutes, base {self.base}",
            caption="seeds an hour: of one worker process",
        )
        table.add_column("scenario", overflow="fold")
        for heading in ("seeds", "failures", "simulated hours", "seeds an hour"):
            table.add_column(heading, justify="right")
        for name, figures in self.figures.items():
            table.add_row(name, *_cells(figures))
        table.add_section()
        table.add_row("all", *_cells(self.total))
        return table


def _cells(figures: Figures) -> list[str]:
    return [
        str(figures.seeds),
        str(figures.failures),
        f"{figures.simulated_hours:.2f}",
        f"{figures.seeds_per_hour:.0f}",
    ]


def replay_line(failure: SeedResult) -> str:
    """Return the command that replays a failing seed, for a shell."""
    return replay_command(shlex.quote(failure.scenario), failure.seed)
