"""Bugs of the register of backups, planted on purpose: each must be found by ``cold_starts``."""

from __future__ import annotations

from stelae.coordinator.catalog.backups import BackupCatalog, BackupState
from stelae.coordinator.ddl import losses
from tests.simulation.world.planting import Place, replacing


def _no_backup_is_waited_for(*_: object) -> list[object]:
    """A loss is accepted by what the backups that are heard have, as if there were no others."""
    return []


def _state_without_register(self: BackupCatalog) -> BackupState:
    """A master that takes its catalog from a snapshot knows the backups that it hears."""
    return BackupState(list(self.losses), self.copysets)


PLANTED: dict[str, Place] = {
    "no_backup_is_waited_for": (losses, "_check_gone", _no_backup_is_waited_for),
    "snapshots_forget_backups": (BackupCatalog, "state", _state_without_register),
}

planted = replacing(PLANTED)
