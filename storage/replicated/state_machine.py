"""The state machine of a replicated tablet: executes committed commands, and nothing else.

Every replica executes the same commands in the same order, and ends with the same rows, versions
and answers, whenever it flushed, was started again or copied. So nothing but commands decides: no
clock, chance or setting of this server, and not how rows are held (head, image, which segments).
Nothing is executed before it is committed, so nothing is ever taken back. Design §8.

A **flush** puts all rows up to one log entry into images, so that the log before it can go:
`begin_flush` closes the head and notes everything of that moment, `seal` builds the missing images
off the loop while commands go on, `installed` holds the rows as them, `manifest` gives what the
superblock then says, and `flushed`, once it says so, lets go of what that leaves out. Flushes of
one tablet follow each other; one that is given up changed nothing.

The table's record comes from the log too. Replicas of a new tablet may have heard of the table at
different times, so its first leader proposes an `AlterCommand` with what the catalog says before
anything else (`is_founded`), and writes before that are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from crc32c import crc32c

from stelae.core.errors import CorruptData, InvalidArgument, Rejected, StelaeError, TabletNotReady
from stelae.core.ids import OpId, RequestId, TabletId
from stelae.core.messages.rows import Write, WriteMany, WriteOp
from stelae.core.records.records import TableRecord
from stelae.core.records.succession import NO_SUCCESSION, SuccessionStage
from stelae.storage.entries.outcomes import done, refused
from stelae.storage.keys.codec import KeyCodec
from stelae.storage.replicated.checksum import ChecksumSource
from stelae.storage.replicated.commands import (
    AlterCommand,
    GroupCommand,
    ImportCommand,
    MarkCommand,
    SuccessionCommand,
    WriteCommand,
    batch_of,
    decode_command,
)
from stelae.storage.replicated.flush import (
    LOW_FACTOR,
    BuiltSurvivor,
    Flush,
    SealedImage,
    Window,
    build_survivor,
    choose_windows,
)
from stelae.storage.replicated.manifest import (
    ImageFile,
    Manifest,
    decode_manifest,
    describe_image,
    droppable,
    encode_manifest,
)
from stelae.storage.rows.cleaning import Needs
from stelae.storage.rows.memory import TabletMemory
from stelae.storage.rows.schemas import TabletSchemas
from stelae.storage.rows.survivors import Move
from stelae.storage.rows.write import UNFIT, Executed, unfit
from stelae.storage.segments.image import Image
from stelae.storage.segments.recovered import RecoveredSegment

_LOG_BYTES_PER_HEAD_BYTE = 4
"""The log also grows by what leaves no rows; so much of it is worth a flush as well."""
_NONE: Mapping[int, ImageFile | None] = {}
_HEAD_BYTES_MAX = 64 << 20
"""Of a segment, where flushes are late: what is held in one piece must stay small enough for it."""


class TabletStateMachine:
    """See the module. Belongs to one event loop; what may run off it says so."""

    def __init__(
        self, tablet_id: TabletId, table: TableRecord, codec: KeyCodec | None = None
    ) -> None:
        """An empty tablet. ``table`` is any record of its table; ``codec`` is for tests."""
        self.tablet_id = tablet_id
        self.schemas = TabletSchemas(tablet_id, table)
        self.memory = TabletMemory(table.schema, table.name, codec)
        """To read from. Everything in it is committed."""
        self.is_founded = False
        """Whether the log has said what table this is of."""
        self.now_s = 0.0
        """The group's time, as of the last command."""
        self.applied_index = 0
        """Of the last command; entries that are none follow it unseen."""
        self.succession = NO_SUCCESSION
        self.log_factor = 2.0
        """Images may take so many times what lives of their rows."""
        self.keeps_all = False
        """Of a leader whose successor is being brought up: no tombstone is forgotten meanwhile."""
        self._log_bytes = 0  # of commands since the last flush began
        self._next_segment_id = 1
        self._files: dict[int, ImageFile] = {}
        self._manifest = b""
        self._mark: ChecksumSource | None = None

    # ---- commands ---------------------------------------------------------------------------

    def apply(self, index: int, term: int, command: bytes) -> bytes | int | tuple[bytes, ...]:
        """Execute a committed command. The same on every replica.

        Returns:
            Of a write its outcome (`stelae.storage.entries.outcomes.answer`), of a group those of
            its calls, of an alter the version of the schema in force, of a mark its index
            (`checksum`), of an import the next version, of a succession the stage in force.

        Raises:
            CorruptData: the command is not understood here. The replica must stop.
        """
        assert index > self.applied_index, "each entry is executed once, in order"
        decoded = decode_command(command)
        body = decoded.command
        memory = self.memory
        self.now_s = max(self.now_s, body.stamp.now_s)
        memory.results.forget_before(body.stamp.forget_before_s, self.now_s, index)
        outcome: bytes | int | tuple[bytes, ...]
        if isinstance(body, WriteCommand):
            outcome = self._write(body, decoded.blob, index)
        elif isinstance(body, GroupCommand):
            outcome = self._write_group(body, index)
        elif isinstance(body, AlterCommand):
            outcome = self._alter(body.table)
        elif isinstance(body, ImportCommand):
            outcome = self._import(body, decoded.blob, index)
        elif isinstance(body, SuccessionCommand):
            outcome = self._give_way(body)
        else:
            assert isinstance(body, MarkCommand)
            outcome = index
        self.applied_index = memory.last_index = index
        self._log_bytes += len(command)
        if isinstance(body, MarkCommand):
            self._mark = self._source()
        return outcome

    def _write(self, command: WriteCommand, blob: memoryview | None, index: int) -> bytes:
        """The outcome of a write, carried out unless it was before.

        Refusals that would be given again are remembered as well: a late copy of the request must
        not be carried out after its client was told that it was refused.
        """
        results = self.memory.results
        try:
            known = results.check(command.request, self.now_s)
            if known is not None:
                return known.result.outcome
        except StelaeError as error:
            return refused(error)
        try:
            outcome = self._carry_out(command, blob, index)
        except Rejected as error:
            outcome = refused(error)
        except StelaeError as error:
            return refused(error)
        results.record(command.request, outcome, index, self.now_s)
        return outcome

    def _write_group(self, group: GroupCommand, index: int) -> tuple[bytes, ...]:
        """What each call came to: all at once if none is in doubt, else one after the other."""
        requests = group.requests
        if self.memory.results.are_new(requests):
            outcomes = self._write_together(group, index)
            if outcomes is not None:
                return outcomes
        shared = (group.op, group.schema_version)
        calls = [
            WriteCommand(group.stamp, request, *shared, (row,), group.columns)
            for request, row in zip(requests, group.rows, strict=True)
        ]
        return tuple([self._write(call, None, index) for call in calls])

    def _write_together(self, group: GroupCommand, index: int) -> tuple[bytes, ...] | None:
        """None: it cannot be, and nothing was done; which call is at fault shows one by one."""
        version, rows = group.schema_version, group.rows
        try:
            self._require_founded()
            executed = self._execute(group.op, version, rows, group.columns, None, index)
        except StelaeError:
            return None
        first = executed.first_version
        outcomes = tuple([done(first + i, 1) for i in range(executed.row_count)])
        for request, outcome in zip(group.requests, outcomes, strict=True):
            self.memory.results.record(request, outcome, index, self.now_s)
        return outcomes

    def _carry_out(self, command: WriteCommand, blob: memoryview | None, index: int) -> bytes:
        self._require_founded()
        version, columns, conditions = command.schema_version, command.columns, command.if_versions
        rows: Any = command.rows
        if blob is not None:
            asked = self.schemas.asked(version)
            try:
                rows = batch_of(blob, command.op, asked, self.memory.table)
            except UNFIT as error:
                raise unfit(command.op, self.memory.table) from error
        executed = self._execute(command.op, version, rows, columns, conditions or None, index)
        return done(executed.first_version, executed.row_count)

    def _execute(
        self,
        op: WriteOp,
        schema_version: int,
        rows: Any,
        columns: Sequence[str],
        if_versions: Sequence[int] | None,
        index: int,
    ) -> Executed:
        view = self.schemas.view(schema_version)
        if view is not None:
            rows, columns = view.write(op, rows, columns)
        self._open_head()
        return self.memory.execute(op, rows, if_versions, index, columns)

    def _open_head(self) -> None:
        if not self.memory.has_head or self.memory.head_bytes >= _HEAD_BYTES_MAX:
            self.memory.new_head(self._next_segment_id)
            self._next_segment_id += 1

    def _require_founded(self) -> None:
        """Until the log says what table it is of, replicas may know different things of it. Once it
        makes way for a successor, nothing is written any more."""
        if not self.is_founded:
            raise TabletNotReady(self.tablet_id, "to hear what table it is of")
        if self.succession.stage is not SuccessionStage.OPEN:
            raise TabletNotReady(self.tablet_id, f"served as {self.succession.successor}")

    # ---- giving way to another tablet, and taking over from one -------------------------------

    def _import(self, body: ImportCommand, blob: memoryview | None, index: int) -> int:
        memory = self.memory
        if body.from_version == memory.next_version and self.is_founded:
            try:
                batch = None if blob is None else memory.imported_batch(blob)
            except CorruptData:  # it is of another schema than the table has by now
                return memory.next_version
            self._open_head()
            memory.import_changes(batch, body.next_version, index)
            memory.results.restore(body.results, self.now_s)
        return memory.next_version

    def _give_way(self, body: SuccessionCommand) -> int:
        now = self.succession.after(body.successor, body.stage, by_masters=body.by_masters)
        self.succession = now
        return now.stage if now.successor == body.successor else SuccessionStage.OPEN

    def _alter(self, table: TableRecord) -> int:
        """Take over a newer record; the first one whatever was known here before."""
        if not self.is_founded:
            self.is_founded = True
            self.schemas.found(table)
            changed = table.schema != self.memory.schema
        else:
            changed = self.schemas.adopt(table)
        self.memory.rename(self.schemas.table.name)
        if changed:
            self.memory.use_schema(self.schemas.present)
        return self.schemas.present.version

    # ---- what a leader asks before it proposes ------------------------------------------------

    def known(self, request: RequestId) -> bytes | None:
        """The outcome of an earlier copy of the request, if one was executed. It stays for good:
        whoever has it may answer with it."""
        found = self.memory.results.find(request)
        return None if found is None else found.result.outcome

    def check_write(self, write: Write, rows: Any) -> int:
        """Refuse at once what could only be refused later, and would be logged for nothing.

        ``rows``: the call's tuples, or its batch, which has been checked. Returns about how many
        bytes tuples of the present schema take; 0: it was not looked at.

        Raises:
            InvalidArgument, ColumnNotFound, TooLarge: the call cannot be carried out.
            SchemaChanged, TabletNotReady: it was made with a schema that is not known here.
        """
        conditions = len(write.if_versions)
        if conditions not in (0, len(rows)):
            raise InvalidArgument(f"{conditions} if_versions for {len(rows)} rows")
        view = self.schemas.view(write.schema_version)
        if isinstance(rows, pa.RecordBatch):
            return 0
        if view is None:
            return self.memory.check_rows(write.op, rows, write.columns)
        if rows:
            view.write(write.op, rows, write.columns)
        return 0

    def check_many(self, many: WriteMany) -> int:
        """About how many bytes the rows of calls take that can be carried out together; 0: they
        are to be looked at one by one, which tells what is the matter."""
        results = self.memory.results
        if any([results.find(request) is not None for request in many.requests]):
            return 0
        try:
            if self.schemas.view(many.schema_version) is not None:
                return 0
            return self.memory.check_rows(many.op, many.rows, many.columns)
        except StelaeError:
            return 0

    # ---- flush --------------------------------------------------------------------------------

    def flush_due(self, segment_bytes: int) -> bool:
        """Whether the head has grown to ``segment_bytes``, or the log to several times that."""
        grown = self.memory.head_bytes >= segment_bytes
        return grown or self._log_bytes >= _LOG_BYTES_PER_HEAD_BYTE * segment_bytes

    def begin_flush(
        self, last: OpId, segment_bytes: int = 0, *, memory_is_low: bool = False
    ) -> Flush:
        """Close the head and note the state, which is that after entry ``last``.

        ``segment_bytes``: at most so large are survivors; 0: nothing is cleaned.
        ``last`` is the last entry that the replica applied, be it a command or not.
        """
        memory = self.memory
        assert last.index >= self.applied_index, "commands after the entry were executed"
        if memory.head_row_count:
            memory.close_head()
        self._log_bytes = 0
        closed = [segment for segment in memory.statistics() if segment.closed]
        gone = [False] * len(closed) if self.keeps_all else droppable(closed)
        kept = tuple([s.slot for s, drop in zip(closed, gone, strict=True) if not drop])
        windows = self._choose(kept, segment_bytes, memory_is_low)
        return Flush(
            last,
            kept,
            tuple([slot for slot in kept if slot not in self._files]),
            tuple([s.slot for s, drop in zip(closed, gone, strict=True) if drop]),
            self.schemas.table if self.is_founded else None,
            memory.next_version,
            self.now_s,
            memory.results.records(),
            self._next_segment_id,
            self.succession,
            windows,
        )

    def _choose(
        self, kept: Sequence[int], segment_bytes: int, memory_is_low: bool
    ) -> tuple[Window, ...]:
        if not segment_bytes:
            return ()
        images = [slot for slot in kept if slot in self._files]
        factor = LOW_FACTOR if memory_is_low else self.log_factor
        needs = Needs(segment_bytes, factor, True, self.keeps_all, memory_is_low)
        windows = choose_windows(self.memory, images, needs, self._next_segment_id)
        self._next_segment_id += len(windows)
        return windows

    def survive(self, flush: Flush, window: Window) -> BuiltSurvivor:
        """Build what takes the place of one of ``flush.windows``; may run off the loop."""
        table_id, term = self.schemas.table.table_id, flush.last.term
        return build_survivor(window, self.memory.codec, table_id, self.tablet_id, term)

    def seal(self, flush: Flush, slot: int) -> SealedImage:
        """Build the image of one of ``flush.unsealed``; changes nothing, may run off the loop.

        Its content depends on where this replica's heads began: images are not compared.
        """
        memory = self.memory
        content = memory.seal(slot, self.schemas.table.table_id, self.tablet_id, flush.last.term)
        where = f"the image in slot {slot}"
        meta = Image.open(content, where, check_rows=False).meta
        return SealedImage(slot, describe_image(meta.segment_id, content, meta.row_count), content)

    def installed(self, sealed: SealedImage) -> None:
        """Hold a segment as its image, which is on disk."""
        image = Image.open(sealed.content, f"image {sealed.file.name}", check_rows=False)
        self.memory.install_sealed(sealed.slot, image)
        self._files[sealed.slot] = sealed.file

    def manifest(self, flush: Flush, survivors: Mapping[int, ImageFile | None] = _NONE) -> bytes:
        """What the superblock is to say, once all of ``flush.unsealed`` are installed.

        ``survivors``: by slot, what stands in the place of an image; None: nothing does.
        """
        assert all(slot in self._files for slot in flush.kept), "an image is missing"
        named = [survivors.get(slot, self._files[slot]) for slot in flush.kept]
        return encode_manifest(
            Manifest(
                self.tablet_id,
                flush.last,
                flush.table,
                flush.next_version,
                flush.now_s,
                flush.clients,
                flush.next_segment_id,
                tuple([file for file in named if file is not None]),
                flush.succession,
            )
        )

    def flushed(self, flush: Flush) -> None:
        """The manifest counts: forget the segments that it leaves out."""
        for slot in flush.dropped:
            self.memory.drop(slot)
            self._files.pop(slot, None)

    def begin_move(self, built: BuiltSurvivor, file: ImageFile | None) -> Move:
        """The manifest counts that names ``file``: bring its rows over; `TabletMemory.step`."""
        slots = built.window.slots
        batch, size = built.survivor.batch, 0
        if built.content is not None:
            size = built.content.size
            where = f"image {built.window.segment_id:x}"
            batch = Image.open(built.content, where, check_rows=False).batch
        move = self.memory.begin_move(slots, built.survivor, built.window.segment_id, batch, size)
        for slot in slots:
            del self._files[slot]
        if move.slot >= 0 and file is not None:
            self._files[move.slot] = file
        return move

    # ---- start --------------------------------------------------------------------------------

    def load(self, data: bytes, images: Sequence[Image]) -> None:
        """Become what a manifest says. The entries after ``last`` are executed next.

        ``images``: those that it names, in its order, each by `open_image`. May run off the loop
        while nobody else uses this.

        Raises:
            CorruptData: manifest and images do not fit each other.
        """
        where = f"the manifest of tablet {self.tablet_id}"
        manifest = decode_manifest(where, self.tablet_id, data)
        named = [file.segment_id for file in manifest.images]
        found = [image.meta.segment_id for image in images]
        if named != found:
            raise CorruptData(where, 0, f"it names images {named}; there are {found}")
        memory = self.memory
        self.is_founded = manifest.table is not None
        if manifest.table is not None:
            self.schemas.found(manifest.table)
            memory.rename(manifest.table.name)
            memory.use_schema(manifest.table.schema)
        memory.adopt([RecoveredSegment.from_image(image) for image in images], None, 0.0)
        memory.results.load(manifest.clients)
        memory.next_version = manifest.next_version
        memory.forgot_below = manifest.next_version  # what segments were left out, nobody notes
        self.succession = manifest.succession
        memory.last_index = self.applied_index = manifest.last.index
        self.now_s = manifest.now_s
        self._log_bytes = 0
        self._next_segment_id = manifest.next_segment_id
        self._files = dict(enumerate(manifest.images))
        self._manifest = data
        self._mark = None

    def restore(self, data: bytes) -> None:
        """The replica says which snapshot it begins with: it is the one that was loaded."""
        assert data == self._manifest, "images are loaded before the replica is started"

    def snapshot(self) -> bytes:
        """Never asked for: snapshots are the manifests of flushes, which the host makes."""
        raise AssertionError("a replicated tablet is flushed by its host")

    # ---- comparing replicas -------------------------------------------------------------------

    def checksum(self, at: int) -> ChecksumSource | None:
        """The rows after entry ``at``, to be summed up off the loop: of the newest mark, or of the
        last command. None: not (or no longer) to be had here."""
        if self._mark is not None and self._mark.index == at:
            return self._mark
        return self._source() if at == self.applied_index else None

    @property
    def marked_index(self) -> int:
        """Of the mark whose rows are kept; 0: none are."""
        return 0 if self._mark is None else self._mark.index

    def unmark(self) -> None:
        """Let go of the mark's rows, which otherwise stay in memory until the next one."""
        self._mark = None

    def _source(self) -> ChecksumSource:
        memory, table = self.memory, self.schemas.table
        record = table if self.is_founded else None
        rest: tuple[object, ...]
        rest = (memory.next_version, self.now_s, memory.results.records(), record)
        if self.succession != NO_SUCCESSION:
            rest = (*rest, self.succession)
        crc = crc32c(msgspec.msgpack.encode(rest))
        return ChecksumSource(self.applied_index, memory.schema, memory.scan_snapshot(), crc)
