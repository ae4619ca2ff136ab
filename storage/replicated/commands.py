"""Commands in the log of a replicated tablet: what the leader proposes and every replica executes.

A command is ``prefix | header | padding | blob``: the prefix says format, kind and the header's
length; the header is msgpack; the blob, at a multiple of 16 bytes, is the Arrow IPC stream of a
bulk write, in the types of the schema it was made with, and is read where it lies. Checksums are
the log's. Outcomes are decided when a command is applied, and by nothing that is not in the log:
the leader's time, and how long it remembers silent clients, are in each command. Design §5, §8.

The bytes lie in logs on disk and are executed after upgrades: fields are only ever appended.
"""

from __future__ import annotations

import enum
import struct
from typing import Any, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa

from stelae.core.errors import CorruptData, InvalidArgument, UnknownFormat
from stelae.core.ids import RequestId, TabletId
from stelae.core.messages.rows import Write, WriteOp
from stelae.core.records.records import TableRecord
from stelae.core.records.succession import SuccessionStage
from stelae.core.rpc import Blob
from stelae.core.schema.schema import TableSchema
from stelae.storage.entries.entry import Result, decode_batch, encode_batch
from stelae.storage.rows.shapes import check_names

FORMAT_VERSION = 1
_PREFIX = struct.Struct("<BBHI")  # format, kind, reserved, bytes of the header
_ALIGNMENT = 16
_LARGE = {pa.large_string().id, pa.large_binary().id, pa.large_list(pa.null()).id}
_WITH_OFFSETS = {
    pa.string().id,
    pa.binary().id,
    pa.list_(pa.null()).id,
    pa.map_(pa.string(), pa.null()).id,
}
_STREAM_ROOM_BYTES = 64 << 10
"""For schema, padding and what else a stream has besides the columns' buffers."""


class CommandKind(enum.IntEnum):
    WRITE = 1
    ALTER = 2
    MARK = 3
    GROUP = 4
    IMPORT = 5
    SUCCESSION = 6


class Stamp(msgspec.Struct, frozen=True, array_like=True):
    """The group's time, by its leader: seconds in which it had one. See `GroupClock`."""

    now_s: float
    forget_before_s: float
    """Clients not heard of since then are forgotten before the command is carried out."""


class WriteCommand(msgspec.Struct, frozen=True, array_like=True):
    """A `Write` call. ``schema_version`` is never 0: the leader has said which one it read."""

    stamp: Stamp
    request: RequestId
    op: WriteOp
    schema_version: int
    rows: tuple[tuple[Any, ...], ...] = ()
    columns: tuple[str, ...] = ()
    if_versions: tuple[int, ...] = ()


class GroupCommand(msgspec.Struct, frozen=True, array_like=True):
    """Calls of one row each that say the same but for it, carried out in this order, each by
    itself: one entry of the log for all that came during one sync."""

    stamp: Stamp
    op: WriteOp
    schema_version: int
    columns: tuple[str, ...]
    requests: tuple[RequestId, ...]
    rows: tuple[tuple[Any, ...], ...]
    """Of each request its row."""


class AlterCommand(msgspec.Struct, frozen=True, array_like=True):
    """What the catalog says of the table from here on; the tablet's first command is one."""

    stamp: Stamp
    table: TableRecord


class MarkCommand(msgspec.Struct, frozen=True, array_like=True):
    """All replicas keep a view of their rows at this command's index, to compare checksums."""

    stamp: Stamp


class ImportCommand(msgspec.Struct, frozen=True, array_like=True):
    """What another tablet has, as `stelae.core.records.succession.ImportChanges` brings it; carried
    out only if ``from_version`` is the next version."""

    stamp: Stamp
    from_version: int
    next_version: int
    results: tuple[Result, ...] = ()


class SuccessionCommand(msgspec.Struct, frozen=True, array_like=True):
    """The tablet makes way for its successor; ``stage`` OPEN: it does so no more.

    A leader that is late opens what it has fenced; what is closed only the masters open, who have
    given the successor up for good. Each names whom it is about, so a late one does no harm.
    """

    stamp: Stamp
    successor: TabletId
    stage: SuccessionStage
    by_masters: bool = False


Command: TypeAlias = (
    WriteCommand | GroupCommand | AlterCommand | MarkCommand | ImportCommand | SuccessionCommand
)


class Decoded(NamedTuple):
    """A command, and the Arrow stream of a bulk write (a view into the command's bytes)."""

    command: Command
    blob: memoryview | None


class GroupClock:
    """The time that a leader stamps its commands with: it goes on while the group has a leader.

    Servers' clocks need not agree, and one that is set wrong forgets no client: a leader counts on
    from the last stamp that was applied when it became ready, by its own monotonic clock. Stamps
    of one leader never fall; those of an earlier one may still be ahead, which apply evens out.
    """

    def __init__(self, applied_s: float, monotonic_s: float) -> None:
        """``applied_s``: the state machine's time; ``monotonic_s``: this server's clock."""
        self._offset_s = applied_s - monotonic_s

    def stamp(self, monotonic_s: float, client_expiry_s: float) -> Stamp:
        """The stamp of a command proposed at ``monotonic_s``."""
        now_s = monotonic_s + self._offset_s
        return Stamp(now_s, now_s - client_expiry_s)


_encode = msgspec.msgpack.Encoder().encode
_DECODERS: dict[int, msgspec.msgpack.Decoder[Command]] = {
    CommandKind.WRITE: msgspec.msgpack.Decoder(WriteCommand),
    CommandKind.GROUP: msgspec.msgpack.Decoder(GroupCommand),
    CommandKind.ALTER: msgspec.msgpack.Decoder(AlterCommand),
    CommandKind.MARK: msgspec.msgpack.Decoder(MarkCommand),
    CommandKind.IMPORT: msgspec.msgpack.Decoder(ImportCommand),
    CommandKind.SUCCESSION: msgspec.msgpack.Decoder(SuccessionCommand),
}


def _joined(kind: CommandKind, header: bytes, blob: Blob | None = None) -> bytes:
    prefix = _PREFIX.pack(FORMAT_VERSION, kind, 0, len(header))
    if blob is None:
        return prefix + header
    padding = bytes(-(len(prefix) + len(header)) % _ALIGNMENT)
    return b"".join((prefix, header, padding, memoryview(blob)))


def encode_write(
    write: Write,
    rows: Any,
    stream: Blob | None,
    *,
    schema_version: int,
    stamp: Stamp,
) -> bytes:
    """The command of a call. May run off the loop.

    ``rows``: its rows as tuples, or as the batch that was checked against ``schema_version`` (the
    call's own, or where it says none the present one). ``stream``: what that batch was read from.
    """
    bulk = isinstance(rows, pa.RecordBatch)
    header = WriteCommand(
        stamp,
        write.request,
        write.op,
        schema_version,
        () if bulk else rows,
        () if bulk else write.columns,
        write.if_versions,
    )
    blob: Blob | None = None
    if bulk:
        as_it_came = stream is not None and is_stream_of(stream, rows)
        blob = stream if as_it_came else encode_batch(rows)
    return _joined(CommandKind.WRITE, _encode(header), blob)


def encode_group(group: GroupCommand) -> bytes:
    """The command of several calls."""
    return _joined(CommandKind.GROUP, _encode(group))


def encode_alter(table: TableRecord, stamp: Stamp) -> bytes:
    """The command after which the table is as ``table`` says."""
    return _joined(CommandKind.ALTER, _encode(AlterCommand(stamp, table)))


def encode_mark(stamp: Stamp) -> bytes:
    """The command at whose index replicas are compared."""
    return _joined(CommandKind.MARK, _encode(MarkCommand(stamp)))


def encode_import(command: ImportCommand, stream: Blob | None) -> bytes:
    """The command that takes in what another tablet has; ``stream``: its rows, as they came."""
    return _joined(CommandKind.IMPORT, _encode(command), stream)


def encode_succession(command: SuccessionCommand) -> bytes:
    """The command by which a tablet makes way, or does so no more."""
    return _joined(CommandKind.SUCCESSION, _encode(command))


def is_stream_of(stream: Blob, batch: pa.RecordBatch) -> bool:
    """Whether a batch that was read from ``stream`` can be kept as that stream.

    It cannot if columns were cast or left out, if the stream is compressed or has much besides its
    batch, or if a buffer of offsets is longer than its column needs: every replica and every
    recovery reads the log again, so it holds what this process would write.
    """
    besides_bytes = memoryview(stream).nbytes - batch.nbytes
    if not 0 <= besides_bytes <= _STREAM_ROOM_BYTES:
        return False
    if not all([has_exact_offsets(column) for column in batch.columns]):
        return False
    return bool(pa.ipc.read_schema(pa.py_buffer(stream)).equals(batch.schema))


def has_exact_offsets(column: pa.Array) -> bool:
    """Whether no buffer of offsets, at any depth, has bytes after its last offset."""
    kind, parts = column.type, []
    if pa.types.is_struct(kind):
        parts = [column.field(place) for place in range(kind.num_fields)]
    elif pa.types.is_map(kind):
        parts = [column.keys, column.items]
    elif pa.types.is_nested(kind):
        parts = [column.values]
    width = 8 if kind.id in _LARGE else 4 if kind.id in _WITH_OFFSETS else 0
    offsets = column.buffers()[1] if width and len(column) else None
    if offsets is not None and offsets.size != width * (column.offset + len(column) + 1):
        return False
    return all([has_exact_offsets(part) for part in parts])


def decode_command(data: bytes) -> Decoded:
    """What an entry's body says.

    Raises:
        CorruptData: it is of a format or kind that this code does not know. Whoever executes the
            log has to stop there: to leave a command out is to differ from the other replicas.
    """
    if len(data) < _PREFIX.size:
        raise CorruptData("a command", 0, f"{len(data)} bytes are none")
    version, kind, _, length = _PREFIX.unpack_from(data)
    decoder = _DECODERS.get(kind)
    if version != FORMAT_VERSION or decoder is None:
        known = f"{FORMAT_VERSION} with kinds {', '.join(map(str, _DECODERS))}"
        raise UnknownFormat("a command", f"{version} with kind {kind}", known)
    view = memoryview(data)
    end = _PREFIX.size + length
    try:
        command = decoder.decode(view[_PREFIX.size : end])
    except msgspec.DecodeError as error:
        raise CorruptData("a command", _PREFIX.size, str(error)) from error
    start = end + -end % _ALIGNMENT
    return Decoded(command, view[start:] if len(view) > start else None)


def batch_of(blob: memoryview, op: WriteOp, asked: TableSchema, table: str) -> pa.RecordBatch:
    """The batch of a bulk write, in columns of the schema that it was made with.

    The leader has checked its content before it proposed the command; only what execution relies
    on is looked at again.
    """
    try:
        batch = decode_batch(blob, "a command")
    except CorruptData as error:
        raise InvalidArgument(str(error)) from error
    names = batch.schema.names
    check_names(asked, table, names, partial=op in (WriteOp.UPDATE, WriteOp.DELETE))
    wanted = pa.schema([asked.arrow.field(name) for name in names])
    if not batch.schema.equals(wanted):
        raise InvalidArgument(f"columns {batch.schema} are not those of the table, {wanted}")
    return batch
