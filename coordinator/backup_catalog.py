"""What the catalog keeps of backups: losses that operators accepted, and groups of backups. A part
of `stelae.coordinator.catalog`, and as deterministic.

Invariants: losses are numbered from 1 on, and each stays for ever; the groups follow those before
them by their generation.
"""

from __future__ import annotations

import msgspec

from stelae.core.losses import LossRecord
from stelae.core.records import Copysets

NO_GROUPS = Copysets(generation=0)


class BackupState(msgspec.Struct, array_like=True):
    """All of it, in a snapshot."""

    losses: list[LossRecord] = []
    copysets: Copysets = NO_GROUPS


class BackupCatalog:
    """Accepted losses, and copysets."""

    def __init__(self, state: BackupState | None = None) -> None:
        state = state or BackupState()
        self.losses = list(state.losses)
        """In the order of their numbers."""
        self.copysets = state.copysets

    def state(self) -> BackupState:
        """For a snapshot."""
        return BackupState(list(self.losses), self.copysets)

    def refusal(self, losses: tuple[LossRecord, ...], copysets: Copysets | None) -> str:
        """Why these do not follow from what is there; empty if they do."""
        for number, loss in enumerate(losses, len(self.losses) + 1):
            if loss.number != number:
                return "another loss was accepted meanwhile"
        if copysets is not None and copysets.generation != self.copysets.generation + 1:
            return "the groups of backups have changed meanwhile"
        return ""

    def commit(self, losses: tuple[LossRecord, ...], copysets: Copysets | None) -> None:
        """They follow."""
        self.losses += losses
        self.copysets = copysets or self.copysets
