"""What all logs of one server share when they send to backups."""

from __future__ import annotations

from stelae.actors.tserver.segments.avoided import AvoidedBackups
from stelae.actors.tserver.segments.rereplication import ReplicaUpkeep
from stelae.actors.tserver.segments.shared_appends import SharedAppends


class SegmentTraffic:
    """Small appends share calls; lost replicas are made again in turns; backups that do not answer
    are avoided by all."""

    def __init__(self) -> None:
        self.appends = SharedAppends()
        self.upkeep = ReplicaUpkeep()
        self.avoided = AvoidedBackups()
