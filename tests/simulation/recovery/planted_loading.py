"""Bugs planted into recovery that serves before its rows are back: the ``loading`` scenario sees
each of them. And into what backups keep over a loss of all power, which ``blackouts`` sees."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from stelae.actors.backup.replica_writes import ReplicaWrites
from stelae.actors.tserver.indexes import writes as index_writes
from stelae.actors.tserver.owned_tablet.tablet import Tablet
from stelae.actors.tserver.row_loading import near_columns
from stelae.actors.tserver.row_loading.near_rows import _Near
from stelae.actors.tserver.tablet_log import recovery as tablet_recovery
from stelae.core.messages.rows import WriteOp
from stelae.storage.entries.client_results import ClientResults
from stelae.storage.rows import row_entries
from stelae.storage.rows.gather import Snapshot
from stelae.storage.segments import image
from stelae.storage.segments.partial_image import PartialImage, Range
from stelae.storage.segments.remote import Piece, RemoteSegment, RowsAbsent
from stelae.storage.segments.segment import Segment
from tests.simulation.world.planting import planting


def _second_delivery_doubled() -> Any:
    """Forget at a recovery which requests were carried out: a repeated one is carried out again."""
    return patch.object(ClientResults, "restore", lambda self, results, now_s: None)


def _rows_that_died_on_the_way_return() -> Any:
    """Let a segment arrive with the rows live that were so when it was asked for."""
    init, arrived = RemoteSegment.__init__, RemoteSegment.arrived

    def noted(self: RemoteSegment, *given: Any) -> None:
        init(self, *given)
        self.first_live = None if self._live is None else bytearray(self._live)  # type: ignore[attr-defined]

    def forgetful(self: RemoteSegment, whole: Piece) -> Segment:
        self._live = self.first_live  # type: ignore[attr-defined]
        self._live_shared = False
        count = self.row_count if self._live is None else self._live.count(1)
        self.live_count = count
        return arrived(self, whole)

    return _both(
        patch.object(RemoteSegment, "__init__", noted),
        patch.object(RemoteSegment, "arrived", forgetful),
    )


def writes_that_waited_forget_entries() -> Any:
    """Let a write that waited for rows go on as it was begun, though there is an index by now."""
    needs, as_begun = Tablet._needs_entries, dict[Any, bool]()

    def forgetful(self: Tablet, request: Any, refusal: Any) -> bool:
        return as_begun.setdefault(request, needs(self, request, refusal))

    return patch.object(Tablet, "_needs_entries", forgetful)


def absent_rows_count_as_none() -> Any:
    """A write takes a row that is not here for one that never was: its old entry stays."""
    check, rows_of, many_seen = row_entries.check_here, row_entries.rows_of, row_entries._many_seen
    lacking, located_entries = row_entries.lacking, row_entries.located_entries

    def check_updates(memory: Any, codecs: Any, op: WriteOp, rows: Any, columns: Any) -> None:
        if op is WriteOp.UPDATE:  # it does need them
            check(memory, codecs, op, rows, columns)

    def or_none(memory: Any, keys: Any) -> list[Any]:
        found = []
        for key in keys:
            try:
                found += rows_of(memory, [key])
            except RowsAbsent:
                found.append(None)
        return found

    def many_or_none(*given: Any) -> Any:
        try:
            return many_seen(*given)
        except RowsAbsent:
            return None

    def all_of_them(memory: Any, codecs: Any, keys: Any, few: Any, since: int) -> Any:
        try:
            return lacking(memory, codecs, keys, few, since)
        except RowsAbsent:
            return few

    def entries_or_none(*given: Any) -> Any:
        try:
            return located_entries(*given)
        except RowsAbsent:
            return pa.array([], pa.binary())

    return _both(
        patch.object(index_writes, "check_here", check_updates),
        patch.object(index_writes, "located_entries", entries_or_none),
        patch.object(index_writes, "rows_of", or_none),
        patch.object(index_writes, "lacking", all_of_them),
        patch.object(row_entries, "rows_of", or_none),
        patch.object(row_entries, "_many_seen", many_or_none),
    )


def _fills_without_absent_rows() -> Any:
    """A tablet tells an indexlet of the rows that are here, as if they were all."""
    without_remote = Snapshot.without_remote
    return patch.object(Snapshot, "without_remote", lambda self: (without_remote(self)[0], []))


def near_blocks_believed() -> Any:
    """Take what a file of this machine has for the image's, whatever its checksums say."""
    put, row = _Near.put, _Near.row

    def credulous(self: _Near, ranges: Sequence[Range]) -> bool:
        with blocks_believed():
            return put(self, ranges)

    def credulous_row(self: _Near, number: int, buffer: memoryview) -> Any:
        with blocks_believed():
            return row(self, number, buffer)

    return _both(
        patch.object(_Near, "put", credulous),
        patch.object(_Near, "row", credulous_row),
    )


class _Any(int):
    """The checksum that is looked for, whatever it is."""

    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


def _near_summaries_believed() -> Any:
    """Take what a file of this machine has for the summary of a segment that lay there."""
    check = tablet_recovery._check_near

    def credulous(source: Any, replica: Any) -> Any:
        try:
            with patch.object(image, "crc32c", lambda data: _Any()):
                return check(source, replica)
        except pa.ArrowInvalid as error:  # where no checksum is asked nothing else looks before
            raise AssertionError("what was believed is no summary") from error

    return patch.object(tablet_recovery, "_check_near", credulous)


def near_columns_believed() -> Any:
    """Take what a file of this machine has for the indexed column's, whatever its checksums say."""
    read = near_columns._read

    def credulous(*given: Any) -> Any:
        with blocks_believed():
            return read(*given)

    return patch.object(near_columns, "_read", credulous)


def blocks_believed() -> Any:
    """Let whoever reads blocks of an image believe them: a backup, or who reads past it."""
    return patch.object(PartialImage, "check", lambda self, block, data: None)


def _lasting_gives_way_to_memory() -> Any:
    """Let a replica on a disk follow its owner's wish into memory, though it may be the only one
    that lasts."""
    return patch.object(ReplicaWrites, "_medium_for", lambda self, name, held: self._medium(name))


def _both(*patches: Any) -> Any:
    @contextlib.contextmanager
    def entered() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for each in patches:
                stack.enter_context(each)
            yield

    return entered()


BUGS: dict[str, Callable[[], Any]] = {
    "second_delivery_doubled": _second_delivery_doubled,
    "near_summaries_believed": _near_summaries_believed,
    "rows_that_died_on_the_way_return": _rows_that_died_on_the_way_return,
    "fills_without_absent_rows": _fills_without_absent_rows,
}

BLACKOUT_BUGS: dict[str, Callable[[], Any]] = {
    "lasting_gives_way_to_memory": _lasting_gives_way_to_memory,
}


planted = planting(BUGS, BLACKOUT_BUGS)
