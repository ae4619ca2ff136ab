"""What a benchmark hands back: figures beside their targets, and the load they were taken under."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import psutil


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number. ``met`` is None where there is no target, or nothing to hold against."""

    name: str
    measured: str
    target: str = ""
    met: bool | None = None
    value: float | None = None
    """The measured number itself, in the unit that ``measured`` names."""
    note: str = ""


def at_most(name: str, value: float, limit: float, unit: str, note: str = "") -> Figure:
    """A figure that must not be above ``limit``."""
    measured, target = f"{_number(value)} {unit}", f"≤ {_number(limit)} {unit}"
    return Figure(name, measured, target, value <= limit, value, note)


def at_least(name: str, value: float, limit: float, unit: str, note: str = "") -> Figure:
    """A figure that must not be below ``limit``."""
    measured, target = f"{_number(value)} {unit}", f"≥ {_number(limit)} {unit}"
    return Figure(name, measured, target, value >= limit, value, note)


def shown(name: str, value: float, unit: str, note: str = "") -> Figure:
    """A figure without a target."""
    return Figure(name, f"{_number(value)} {unit}", value=value, note=note)


def skipped(name: str, reason: str) -> Figure:
    """A figure that could not be taken here; ``reason`` says why."""
    return Figure(name, "skipped", note=reason)


def _number(value: float) -> str:
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def percentile(samples: Sequence[float], part: float) -> float:
    """The value that ``part`` (0 to 1) of the samples do not exceed."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def median(samples: Sequence[float]) -> float:
    return statistics.median(samples)


def timed(work: Callable[[], Any]) -> float:
    """Seconds that ``work`` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@dataclass(slots=True)
class Load:
    """How busy the machine was while figures were taken: ratios count, absolutes are to be read
    beside this."""

    cpus: int
    load_before: float
    load_after: float = 0.0
    busy_share: float = 0.0
    """Of all CPU time while it ran, by whomever: the benchmark itself included."""
    started: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%S"))
    taken_s: float = 0.0

    @staticmethod
    def begin() -> Load:
        psutil.cpu_percent(None)
        return Load(os.cpu_count() or 1, os.getloadavg()[0])

    def end(self, started: float) -> Load:
        self.load_after = os.getloadavg()[0]
        self.busy_share = psutil.cpu_percent(None) / 100
        self.taken_s = time.perf_counter() - started
        return self

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
