"""Feast's rows as Stelae's: how the table of a feature view looks, and which event of a key counts.

No I/O. A table has one row for each entity key, with the time of the event that it is of. Features
of plain types are columns of that type, which Spark and Ray Data read as they are; lists, maps and
all others are kept as the bytes of Feast's own message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from feast.infra.key_encoding_utils import serialize_entity_key
from feast.infra.online_stores.helpers import compute_versioned_name
from feast.protos.feast.types.Value_pb2 import Value
from feast.value_type import ValueType

from stelae.core.errors import InvalidArgument
from stelae.core.schema.schema import VERSION_COLUMN

KEY = "entity_key"
EVENT = "event_timestamp"
CREATED = "created_timestamp"
TIME = pa.timestamp("us", "UTC")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
RENAMED = "feature "
"""Before the name of a feature that could not be a column's."""

PLAIN: dict[ValueType, tuple[str, pa.DataType]] = {
    ValueType.STRING: ("string_val", pa.string()),
    ValueType.BYTES: ("bytes_val", pa.binary()),
    ValueType.INT32: ("int32_val", pa.int32()),
    ValueType.INT64: ("int64_val", pa.int64()),
    ValueType.FLOAT: ("float_val", pa.float32()),
    ValueType.DOUBLE: ("double_val", pa.float64()),
    ValueType.BOOL: ("bool_val", pa.bool_()),
    ValueType.UNIX_TIMESTAMP: ("unix_timestamp_val", pa.int64()),
}
"""The member of Feast's message that holds values of a type, and the type of their column."""
ABSENT = (None, "null_val")
INTEGERS = ("int32_val", "int64_val")
FLOATS = ("float_val", "double_val")

Given = tuple[Any, Mapping[str, Any], datetime, datetime | None]
"""A row as Feast hands it in: entity key, values by feature, time of the event, when created."""
Read = tuple[datetime | None, dict[str, Any] | None]
"""A row as Feast wants it."""


@dataclass(frozen=True)
class Column:
    """Where a feature, or a part of the key, stands. ``member`` is empty for whole messages."""

    name: str
    member: str
    kind: pa.DataType

    @staticmethod
    def of(name: str, value_type: ValueType) -> Column:
        if name.startswith(("_", RENAMED)) or name in (KEY, EVENT, CREATED):
            name = RENAMED + name
        return Column(name, *PLAIN.get(value_type, ("", pa.binary())))

    def array(self, values: Iterable[Any], what: str) -> pa.Array:
        """Feast's values as the column. Numbers are of the column's size, whatever theirs is, as
        if Feast had converted them. Raises `InvalidArgument` if one is of another type."""
        taken: list[Any] = []
        for value in values:
            member = None if value is None else value.WhichOneof("val")
            if member in ABSENT:
                taken.append(None)
            elif not self.member:
                taken.append(value.SerializeToString())
            elif member == self.member or member in self.converted:
                taken.append(getattr(value, member))
            else:
                raise InvalidArgument(
                    f"{what} is of type {self.kind} ({self.member}); a value is a {member}"
                )
        try:
            return pa.array(taken, self.kind)
        except pa.ArrowInvalid as error:
            raise InvalidArgument(f"{what} is of type {self.kind}: {error}") from None

    @property
    def converted(self) -> tuple[str, ...]:
        """Other members whose values the column takes."""
        if self.member in FLOATS:
            return INTEGERS + FLOATS
        return INTEGERS if self.member in INTEGERS else ()

    def values(self, array: pa.ChunkedArray) -> list[Any]:
        """The column as Feast's values."""
        member = self.member
        if not member:
            parse = Value.FromString
            return [Value() if v is None else parse(v) for v in array.to_pylist()]
        return [Value() if v is None else Value(**{member: v}) for v in array.to_pylist()]


@dataclass(frozen=True)
class Layout:
    """The table of one feature view, or of one version of it."""

    view: str
    table: str
    features: dict[str, Column]
    join_keys: dict[str, Column]
    """Beside `KEY`, for those who read the table without Feast."""
    key_version: int
    """Of Feast's encoding of entity keys."""

    @property
    def schema(self) -> pa.Schema:
        columns = (*self.join_keys.values(), *self.features.values())
        return pa.schema(
            [
                pa.field(KEY, pa.binary(), nullable=False),
                (EVENT, TIME),
                (CREATED, TIME),
                *((column.name, column.kind) for column in columns),
            ]
        )

    def keys(self, entity_keys: Iterable[Any]) -> list[bytes]:
        version = self.key_version
        return [
            serialize_entity_key(key, entity_key_serialization_version=version)
            for key in entity_keys
        ]

    def columns(self, features: Iterable[str]) -> list[str]:
        """Those that a read of these features needs. Features that are not the view's are left
        out: there is nothing of them."""
        found = [self.features[name].name for name in features if name in self.features]
        return [KEY, EVENT, *found]


def layout_of(project: str, view: Any, *, versions: bool, key_version: int) -> Layout:
    """``versions``: whether each version of a view has a table of its own."""
    suffix = compute_versioned_name(view, versions).removeprefix(view.name)
    features = {f.name: Column.of(f.name, f.dtype.to_value_type()) for f in view.features}
    taken = {column.name for column in features.values()}
    entities = {f.name: f.dtype.to_value_type() for f in getattr(view, "entity_columns", ())}
    join_keys = {
        name: Column.of(name, kind)
        for name, kind in entities.items()
        if name not in taken and not name.startswith("_") and kind in PLAIN
    }
    return Layout(
        view=view.name,
        table=table_name(project, view.name) + (f"@{suffix[2:]}" if suffix else ""),
        features=features,
        join_keys=join_keys,
        key_version=key_version,
    )


def table_name(project: str, view: str) -> str:
    """Of a feature view's table. There is no dot in a project's name; ``@2`` follows for version 2
    where versions have tables of their own."""
    return f"{project}.{view}"


# ---- writing -------------------------------------------------------------------------------------


@dataclass
class Event:
    """What is to be stored of one entity key."""

    entity_key: Any
    at_us: int
    created_us: int | None
    values: dict[str, Any]

    def is_due(self, at_us: int | None, created_us: int | None, *, is_ours: bool) -> bool:
        """Whether it replaces what is stored: an older event never does, the same one does unless
        it was created earlier, or may have been stored by ourselves (``is_ours``)."""
        if at_us is None or self.at_us != at_us:
            return at_us is None or self.at_us > at_us
        if self.created_us is None or created_us is None or self.created_us == created_us:
            return not is_ours
        return self.created_us > created_us


@dataclass
class Batch:
    """Events of different entity keys, the newest of each."""

    layout: Layout
    events: dict[bytes, Event] = field(default_factory=dict)

    @staticmethod
    def of(layout: Layout, rows: Sequence[Given]) -> Batch:
        """Raises `InvalidArgument`: a feature that the view does not have, no time of the event."""
        batch = Batch(layout)
        keys = layout.keys(row[0] for row in rows)
        for key, (entity_key, values, at, created) in zip(keys, rows, strict=True):
            if not layout.features.keys() >= values.keys():
                values = _without_key(layout, entity_key, values)
            if _is_null(at):
                raise InvalidArgument(
                    f"an event of feature view {layout.view!r} has no time: {_text_of(entity_key)}"
                )
            made = None if created is None or _is_null(created) else _us(created)
            batch._add(key, Event(entity_key, _us(at), made, dict(values)))
        return batch

    def _add(self, key: bytes, event: Event) -> None:
        other = self.events.get(key)
        if other is None:
            self.events[key] = event
        elif event.is_due(other.at_us, other.created_us, is_ours=False):
            event.values = other.values | event.values
            self.events[key] = event
        else:
            other.values = event.values | other.values

    @property
    def is_whole(self) -> bool:
        """Whether every event gives every feature, so that nothing stored has to be kept."""
        wanted = len(self.layout.features)
        return all(len(event.values) == wanted for event in self.events.values())

    def due(self, stored: pa.Table, *, is_again: bool) -> tuple[pa.Table, list[int]]:
        """The rows to write, given those stored (with versions), and the version that each must
        still have. ``is_again``: an attempt came before, of which parts may have been done.

        A row that is skipped then is ours, or of the same event and written at the same time by
        somebody else; where rows are not whole, that one may lack what ours gives.
        """
        is_ours = is_again and self.is_whole
        found = dict(zip(stored[KEY].to_pylist(), range(stored.num_rows), strict=True))
        times = [_times(stored[name]) for name in (EVENT, CREATED)]
        versions = stored[VERSION_COLUMN].to_pylist()
        kept = self._stored_values(stored)
        rows: dict[bytes, Event] = {}
        expected = []
        for key, event in self.events.items():
            place = found.get(key)
            if place is None:
                rows[key] = event
                expected.append(0)
            elif event.is_due(times[0][place], times[1][place], is_ours=is_ours):
                older = {name: values[place] for name, values in kept.items()}
                rows[key] = replace(event, values=older | event.values)  # a repeat reads again
                expected.append(versions[place])
        return self._arrow(rows), expected

    def _stored_values(self, stored: pa.Table) -> dict[str, list[Any]]:
        """What is stored of all features; empty if every event gives all of them."""
        if self.is_whole:
            return {}
        features = self.layout.features.items()
        return {name: column.values(stored[column.name]) for name, column in features}

    def _arrow(self, rows: dict[bytes, Event]) -> pa.Table:
        events = list(rows.values())
        layout = self.layout
        columns = [
            pa.array(list(rows), pa.binary()),
            pa.array([event.at_us for event in events], TIME),
            pa.array([event.created_us for event in events], TIME),
        ]
        for name, column in layout.join_keys.items():
            columns.append(_key_part(events, name, column))
        for name, column in layout.features.items():
            what = f"feature {name!r} of {layout.view!r}"
            columns.append(column.array([event.values.get(name) for event in events], what))
        return pa.table(columns, schema=layout.schema)


def _without_key(layout: Layout, entity_key: Any, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of views on demand that are stored, Feast gives the parts of the key as features, too."""
    parts = set(entity_key.join_keys)
    for name in values:
        if name not in layout.features and name not in parts:
            raise InvalidArgument(f"feature view {layout.view!r} has no feature {name!r}")
    return {name: value for name, value in values.items() if name in layout.features}


def _key_part(events: Iterable[Event], name: str, column: Column) -> pa.Array:
    """Null where a key has no such part, or one of another type than the view says."""
    values = []
    for event in events:
        of_name = dict(zip(event.entity_key.join_keys, event.entity_key.entity_values, strict=True))
        value = of_name.get(name)
        fits = value is not None and value.WhichOneof("val") == column.member
        values.append(value if fits else None)
    return column.array(values, f"join key {name!r}")


def _is_null(at: Any) -> bool:
    """None, or one of pandas' kinds of it, which do not equal themselves."""
    return at is None or at != at


def _text_of(entity_key: Any) -> str:
    values = [getattr(v, v.WhichOneof("val") or "", None) for v in entity_key.entity_values]
    pairs = zip(entity_key.join_keys, values, strict=True)
    return ", ".join(f"{name}={value!r}" for name, value in pairs)


def _us(at: datetime) -> int:
    """Microseconds since 1970. Feast's times without a zone are in UTC."""
    return ((at.replace(tzinfo=UTC) if at.tzinfo is None else at) - EPOCH) // MICROSECOND


def _times(column: pa.ChunkedArray) -> list[int | None]:
    return column.cast(pa.int64()).to_pylist()  # type: ignore[no-any-return]


# ---- reading -------------------------------------------------------------------------------------


def feast_rows(
    layout: Layout, keys: Sequence[bytes], features: Sequence[str], found: pa.Table
) -> list[Read]:
    """What was found, in the order of the keys asked for."""
    names = [name for name in features if name in layout.features]
    columns = [layout.features[name] for name in names]
    values = zip(*(column.values(found[column.name]) for column in columns), strict=True)
    rows = values if columns else [()] * found.num_rows
    read: dict[bytes, Read] = {
        key: (None if at is None else EPOCH + at * MICROSECOND, dict(zip(names, row, strict=True)))
        for key, at, row in zip(found[KEY].to_pylist(), _times(found[EVENT]), rows, strict=True)
    }
    return [read.get(key, (None, None)) for key in keys]
