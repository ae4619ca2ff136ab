"""Bugs of a backup that its scenario must find."""

from __future__ import annotations

from typing import Any

import pytest

from stelae.actors.backup import disk_opening as frame_opening
from stelae.actors.backup.disk_medium import FrameMedium
from stelae.actors.backup.fences import Fences
from stelae.actors.backup.replicas import Batch, Facts, Replica
from stelae.core.ids import TabletId


def _blind(patch: pytest.MonkeyPatch) -> None:
    """Believe the newest record, whether its data bears it out or not."""

    async def yes(*_: object) -> bool:
        return True

    patch.setattr(frame_opening._Opening, "_is_borne_out", yes)


def _one_side(patch: pytest.MonkeyPatch) -> None:
    """Overwrite the last durable record with the next."""

    class OneSide(dict[int, int]):
        def __setitem__(self, frame: int, side: int) -> None:
            super().__setitem__(frame, 0)

    made = FrameMedium.__init__

    def make(self: FrameMedium, *args: Any, **named: Any) -> None:
        made(self, *args, **named)
        self.next_side = OneSide()

    patch.setattr(FrameMedium, "__init__", make)


def _reuse_at_once(patch: pytest.MonkeyPatch) -> None:
    """Give freed frames out again before the record that frees them is durable."""
    write_record = FrameMedium._write_record

    def write(self: FrameMedium, *given: Any, **how: Any) -> None:
        write_record(self, *given, **how)
        self.allocator._free.extendleft(self._freed)
        self._freed = []

    patch.setattr(FrameMedium, "_write_record", write)


def _answer_first(patch: pytest.MonkeyPatch) -> None:
    """Answer before the sync."""

    async def sync(self: FrameMedium) -> None:
        self.allocator.release(self._freed)
        self._freed = []

    patch.setattr(FrameMedium, "_sync", sync)


def _image_after_record(patch: pytest.MonkeyPatch) -> None:
    """Sync an image together with its record instead of before it."""
    stage = FrameMedium.stage

    async def hasty(self: FrameMedium, replica: Replica, facts: Facts) -> Batch | None:
        replica.synced = facts.length
        return await stage(self, replica, facts)

    patch.setattr(FrameMedium, "stage", hasty)


def _forget_repairs(patch: pytest.MonkeyPatch) -> None:
    """Leave rejected records on the disk."""

    async def nothing(self: frame_opening._Opening) -> None:
        return

    patch.setattr(frame_opening._Opening, "_repair", nothing)


def _forget_heads(patch: pytest.MonkeyPatch) -> None:
    """Know of closed heads only until a restart."""
    load = Fences.load

    async def forgetful(self: Fences) -> None:
        await load(self)
        self._promised.heads_from.clear()

    patch.setattr(Fences, "load", forgetful)


def _free_first(patch: pytest.MonkeyPatch) -> None:
    """Answer before it is durable which heads are closed."""

    async def hasty(self: Fences, log: TabletId, heads_from: int) -> bool:
        self._promised.heads_from[log] = heads_from
        return True

    patch.setattr(Fences, "close_heads", hasty)


BUGS = [
    _blind,
    _one_side,
    _reuse_at_once,
    _answer_first,
    _image_after_record,
    _forget_repairs,
    _forget_heads,
    _free_first,
]
