"""What one master tells the metrics: how it is itself, and, while it leads, how the cluster is.

A gauge stays at its last value for as long as the process lives. So a master that leads no more
says 0 once for all that it has said of the cluster, and the maximum over the masters is the truth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stelae.coordinator.status.document import StatusInputs
from stelae.coordinator.status.figures import Figure, figures, nothing

if TYPE_CHECKING:
    from collections.abc import Callable

    from stelae.actors.raft.replica import Replica
    from stelae.actors.raft.staleness import Freshness
    from stelae.core.runtime import Metrics

CLUSTER_PERIOD_S = 5.0
"""Between looks at all tablets, of which there may be many thousands."""
LOOK_SHARE_MAX = 0.01
"""Of the leader's time: where a look takes long the next one comes later."""


class MasterGauges:
    """Of one master."""

    def __init__(self, metrics: Metrics, monotonic: Callable[[], float]) -> None:
        self._metrics = metrics
        self._monotonic = monotonic
        self._next_s = float("-inf")
        self._has_led = True  # zeros are said at the first look, so that every series is there

    def show_self(self, replica: Replica, freshness: Freshness | None, *, leads: bool) -> None:
        """How it is itself, once it has joined the others."""
        status, gauge = replica.status(), self._metrics.gauge
        gauge("master_leads", float(leads))
        gauge("master_term", status.term)
        gauge("master_commit_index", status.commit_index)
        gauge("master_applied_index", status.applied_index)
        if freshness is not None:
            gauge("master_staleness_s", 0.0 if leads else freshness.staleness_s())

    def show_cluster(self, inputs: Callable[[], StatusInputs] | None) -> None:
        """How the cluster is, by ``inputs``; None: this master does not lead."""
        if inputs is None:
            if self._has_led:
                self._tell(nothing())
                self._metrics.gauge("timelines_broken", 0.0)
            self._has_led, self._next_s = False, float("-inf")
        elif (began_s := self._monotonic()) >= self._next_s:
            self._has_led = True
            self._tell(figures(inputs()))
            took_s = self._monotonic() - began_s
            self._next_s = began_s + max(CLUSTER_PERIOD_S, took_s / LOOK_SHARE_MAX)

    def _tell(self, told: list[Figure]) -> None:
        for figure in told:
            self._metrics.gauge(figure.name, figure.value, **figure.labels)
