"""What the catalog keeps of backups: which there are, losses that operators accepted, and groups of
backups. A part of `stelae.coordinator.catalog.catalog`, and as deterministic.

Invariants: losses are numbered from 1 on, and each stays for ever; the groups follow those before
them by their generation. The register of backups alone has no generations: a record is put in its
place, or is not there any more, whatever was before, so a batch never fails for it. Whoever writes
it looks again and again (`stelae.coordinator.placement.known_backups`).
"""

from __future__ import annotations

import msgspec

from stelae.core.ids import ServerUuid
from stelae.core.records.losses import LossRecord
from stelae.core.records.records import BackupRecord, Copysets

NO_GROUPS = Copysets(generation=0)


class BackupChanges(msgspec.Struct, frozen=True, array_like=True):
    """Of the register: records that are in it from now on, and backups that are not."""

    known: tuple[BackupRecord, ...] = ()
    forgotten: tuple[ServerUuid, ...] = ()


class BackupState(msgspec.Struct, array_like=True):
    """All of it, in a snapshot."""

    losses: list[LossRecord] = []
    copysets: Copysets = NO_GROUPS
    known: list[BackupRecord] = []


class BackupCatalog:
    """Known backups, accepted losses, and copysets."""

    def __init__(self, state: BackupState | None = None) -> None:
        state = state or BackupState()
        self.losses = list(state.losses)
        """In the order of their numbers."""
        self.copysets = state.copysets
        self.known = {record.uuid: record for record in state.known}
        """Those that may hold something, heard or not, in the order in which they came. Another
        object whenever it changes."""

    def state(self) -> BackupState:
        """For a snapshot."""
        return BackupState(list(self.losses), self.copysets, list(self.known.values()))

    def refusal(self, losses: tuple[LossRecord, ...], copysets: Copysets | None) -> str:
        """Why these do not follow from what is there; empty if they do."""
        for number, loss in enumerate(losses, len(self.losses) + 1):
            if loss.number != number:
                return "another loss was accepted meanwhile"
        if copysets is not None and copysets.generation != self.copysets.generation + 1:
            return "the groups of backups have changed meanwhile"
        return ""

    def commit(
        self,
        losses: tuple[LossRecord, ...],
        copysets: Copysets | None,
        changes: BackupChanges | None = None,
    ) -> None:
        """They follow."""
        self.losses += losses
        self.copysets = copysets or self.copysets
        if changes is not None:
            known = {**self.known, **{record.uuid: record for record in changes.known}}
            gone = {*changes.forgotten}
            self.known = {uuid: record for uuid, record in known.items() if uuid not in gone}
