"""A whole plan: times, space, risk, what limits, and which knob would help by how much."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from stelae.core.errors import InvalidArgument
from stelae.planner.hardware import Hardware
from stelae.planner.layout import Layout, Medium, Scatter
from stelae.planner.recovery import Limit, RecoveryTimes, counted, recovery_times, seconds
from stelae.planner.resources import Resources, resources_of
from stelae.planner.risk import Failures, Risk, risk_of
from stelae.planner.simulated import SimulatedRecovery

WORTH_SHARE = 0.02
"""Advice that saves less of the time is not given."""
ADVICE_MAX = 4


@dataclass(frozen=True, slots=True)
class Advice:
    """A knob, and what turning it does, by the same formulas."""

    knob: str
    before: str
    after: str
    saved_share: float
    """Of the time until everything serves again, or of the risk."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is predicted of one layout."""

    hardware: Hardware
    layout: Layout
    failures: Failures
    times: RecoveryTimes
    resources: Resources
    risk: Risk
    advice: tuple[Advice, ...]
    simulated: SimulatedRecovery | None = None

    @property
    def problems(self) -> list[str]:
        """Why this cluster cannot be as it is described; empty: it can."""
        found = []
        needed = self.resources.servers_needed
        if not self.resources.fits:
            found.append(
                "the rows do not fit into memory after the loss of a server: that takes "
                f"{needed:,} tablet servers of this size, or more memory in each"
            )
        apart = self.layout.copies_apart
        if apart < self.layout.replicas:
            where = counted(apart, "machine")
            found.append(
                f"k={self.layout.replicas} replicas of a segment lie on {where}: the loss of a "
                "machine takes more than one of them"
            )
        if self.layout.replicas == 0:
            found.append("with k=0 rows die with their server")
        return found

    def document(self) -> dict[str, Any]:
        """For JSON: numbers in base units, infinite ones as null."""
        risk = self.risk
        phases = [asdict(phase) for phase in self.times.phases]
        chances = {
            "independent_failures": risk.independent,
            "power_failures": risk.at_once,
            "each_power_failure": risk.at_each_power_failure,
            "year": risk.year,
        }
        years = risk.years_between
        return {
            "hardware": self.hardware.document(),
            "layout": {**asdict(self.layout), "scatter": str(self.layout.scatter)},
            "failures": asdict(self.failures),
            "recovery": {
                "serves_again_s": self.times.serves_again_s,
                "whole_again_s": self.times.whole_again_s,
                "limit": self.times.limit.value,
                "phases": phases,
            },
            "resources": self.resources.document(),
            "risk": {
                **{
                    name: {"probability": each.value, "log10": each.log10 if each.value else None}
                    for name, each in chances.items()
                },
                "years_between_losses": None if years == float("inf") else years,
                "bytes_lost_at_power_failure": risk.bytes_lost,
                "memory_window_s": risk.memory_window_s,
                "replica_window_s": risk.replica_window_s,
            },
            "advice": [asdict(each) for each in self.advice],
            "simulated": None if self.simulated is None else asdict(self.simulated),
            "problems": self.problems,
        }


def make_plan(
    hardware: Hardware,
    layout: Layout,
    failures: Failures | None = None,
    simulated: SimulatedRecovery | None = None,
) -> Plan:
    """Predict everything of one layout."""
    failures = failures or Failures()
    times = recovery_times(hardware, layout)
    risk = risk_of(hardware, layout, failures)
    advice = (*faster(hardware, layout, times), *safer(hardware, layout, failures, risk))
    resources = resources_of(hardware, layout)
    return Plan(hardware, layout, failures, times, resources, risk, advice, simulated)


# ---- advice --------------------------------------------------------------------------------

Knob = tuple[str, Hardware, Layout]


def faster(hardware: Hardware, layout: Layout, times: RecoveryTimes) -> Sequence[Advice]:
    """Knobs that shorten the recovery, the best first."""
    now_s = times.serves_again_s
    found = []
    for text, other, changed in _knobs(hardware, layout, times.limit):
        then_s = recovery_times(other, changed).serves_again_s
        share = 1 - then_s / now_s if now_s else 0.0
        if share >= WORTH_SHARE:
            found.append(Advice(text, seconds(now_s), seconds(then_s), share))
    return sorted(found, key=lambda each: -each.saved_share)[:ADVICE_MAX]


def _knobs(hardware: Hardware, layout: Layout, limit: Limit) -> Iterator[Knob]:
    """What could be turned. Data stays the same in all."""
    double = {"servers": 2 * layout.servers, "backups": 2 * layout.backups}
    if layout.machines > 1:
        double["machines"] = 2 * layout.machines
        text = "twice the machines, with as many servers each"
        yield text, hardware, layout.with_changes(**double)
    more = layout.with_changes(tablets_per_server=2 * layout.tablets_per_server)
    yield "twice the tablets (buckets) in a table", hardware, more
    if layout.medium is Medium.DISK:
        in_memory = layout.with_changes(medium=Medium.RAM)
        yield "replicas in backups' memory (medium=ram)", hardware, in_memory
        faster_disk = replace(hardware, disk_read_bytes_per_s=2 * hardware.disk_read_bytes_per_s)
        yield "disks that read twice as fast", faster_disk, layout
    if layout.machines > 1:
        link = replace(hardware, network_bytes_per_s=2 * hardware.network_bytes_per_s)
        yield "twice the network", link, layout
    yield "twice the cores", replace(hardware, cores=2 * hardware.cores), layout
    if limit is Limit.CPU:
        threads = replace(hardware, server_threads=2 * hardware.server_threads)
        yield "twice the threads of a tablet server", threads, layout
    if layout.live_share < 0.9:
        yield "a cleaner log (live=90%)", hardware, layout.with_changes(live_share=0.9)


def safer(hardware: Hardware, layout: Layout, failures: Failures, risk: Risk) -> Sequence[Advice]:
    """Knobs that make a loss rarer, the best first."""
    found = []
    for text, changed in _safety_knobs(layout):
        then = risk_of(hardware, changed, failures).year
        if then.ln < risk.year.ln - 0.1:
            share = 1.0 - 10 ** max(-300.0, then.log10 - risk.year.log10)
            found.append(Advice(text, str(risk.year), str(then), share))
    return sorted(found, key=lambda each: -each.saved_share)[:ADVICE_MAX]


def _safety_knobs(layout: Layout) -> Iterator[tuple[str, Layout]]:
    candidates: list[tuple[str, dict[str, Any]]] = [
        (f"k={layout.replicas + 1}", {"replicas": layout.replicas + 1})
    ]
    if not layout.scatter.group_size and layout.replicas > 1:
        groups = Scatter(layout.replicas)
        candidates.append((f"min-copysets of {layout.replicas}", {"scatter": groups}))
    if layout.medium is Medium.RAM:
        candidates.append(("replicas on disk (medium=disk)", {"medium": Medium.DISK}))
    for text, changes in candidates:
        try:
            changed = layout.with_changes(**changes)
        except InvalidArgument:
            continue  # too few backups for it
        yield text, changed
