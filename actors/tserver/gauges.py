"""What a tablet server tells the metrics of its tablets and of the logs that it writes.

Memory is told by the cleaner, which weighs it.
"""

from __future__ import annotations

from collections.abc import Sequence

from stelae.actors.tserver.tablet_log.proposer import AcceptorMailbox
from stelae.core.messages.servers import ReplicaRole, TabletProgress, TabletReport
from stelae.core.runtime import Metrics


def show(metrics: Metrics, reports: Sequence[TabletReport], mailbox: AcceptorMailbox) -> None:
    """Tell what there is now; 0 where there is nothing."""
    owned = [r for r in reports if r.group is None and r.progress is TabletProgress.SERVING]
    groups = [r for r in reports if r.group is not None]
    led = [r for r in groups if r.group is not None and r.group.role is ReplicaRole.LEADER]
    served, behind = [*owned, *led], mailbox.behind()
    metrics.gauge("tserver_tablets", len(served))
    metrics.gauge("tserver_replicas", len(groups))
    metrics.gauge("tserver_rows", sum(report.row_count for report in served))
    metrics.gauge("tserver_calls_per_s", sum(max(0.0, r.load_per_s) for r in served))
    metrics.gauge("wal_lag_entries", behind.entries)
    metrics.gauge("wal_members_silent", behind.silent)
