"""Recoveries as traces: one span for each that is over, and one for each of its phases.

Made from what the status document tells of recoveries, now and then, by the host of the leader
master; so no recovery waits for it, and the simulator knows nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stelae.core.tracing import Spans

_PHASES = ("raised", "fenced", "planned", "opened", "running")


class RecoverySpans:
    """Of one process: each recovery is told once."""

    def __init__(self) -> None:
        self._told: dict[tuple[float, str], None] = {}

    def tell(self, spans: Spans, recoveries: Iterable[Mapping[str, Any]]) -> None:
        """Those that are done, and were not when this was asked last."""
        told: dict[tuple[float, str], None] = {}
        for recovery in recoveries:
            key = float(recovery["started"]), str(recovery["server"])
            if recovery["state"] != "done":
                continue
            told[key] = None
            if key not in self._told:
                _record(spans, recovery)
        self._told = told


def _record(spans: Spans, recovery: Mapping[str, Any]) -> None:
    began_s, phases = float(recovery["started"]), recovery["phases_s"]
    about: dict[str, str | int] = {
        "stelae.lost_server": str(recovery["server"]),
        "stelae.cause": str(recovery["cause"]),
        "stelae.engine": str(recovery["engine"]),
        "stelae.tablets": int(recovery["tablets_total"]),
    }
    whole = spans.record("recovery", began_s, began_s + max(phases.values(), default=0), "", about)
    if not whole:
        return
    before_s = 0.0
    for name in _PHASES:
        if name in phases:
            until_s = max(before_s, float(phases[name]))
            spans.record(f"recovery {name}", began_s + before_s, began_s + until_s, whole, {})
            before_s = until_s
