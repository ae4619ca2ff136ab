"""Which tablets have still something of the log of a tablet that was split: as of the catalog.

As long as there is one, that log is freed nowhere. Source: `docs/decisions.md`, §41.
"""

from __future__ import annotations

from stelae.core.ids import TabletId
from stelae.core.records.records import TabletRecord


class Heirs:
    """Kept by `stelae.coordinator.catalog.catalog` with each record that it puts."""

    def __init__(self) -> None:
        self._of: dict[TabletId, dict[TabletId, None]] = {}

    def put(self, tablet: TabletRecord, before: TabletRecord | None) -> None:
        """The catalog has this record of a tablet from now on."""
        if before is not None and before.inherits is not None:
            left = self._of.get(before.inherits.log, {})
            left.pop(tablet.tablet_id, None)
            if not left:
                self._of.pop(before.inherits.log, None)
        if tablet.inherits is not None and not tablet.state.is_gone:
            self._of.setdefault(tablet.inherits.log, {})[tablet.tablet_id] = None

    def is_needed(self, log: TabletId) -> bool:
        """Whether a live tablet may have rows that are nowhere but in this log."""
        return log in self._of

    def of(self, log: TabletId) -> list[TabletId]:
        """The live tablets that inherit from it."""
        return list(self._of.get(log, ()))
