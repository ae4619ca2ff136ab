"""What ``GET`` gives, ``PUT`` takes back: values of every type that a table can hold."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import httpx
import msgspec
import numpy as np
import pyarrow as pa
import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.client.http.json_values import column_to_json, from_json_value, to_json_value
from stelae.core.errors import InvalidArgument
from stelae.core.schema.exact import exact_column
from stelae.core.schema.schema import check_column_type
from stelae.core.schema.values import from_wire
from tests.cluster_fixture import local_cluster
from tests.front.http_world import World

UNITS = ("s", "ms", "us", "ns")
ZONES = (None, "UTC", "+05:30", "Europe/Berlin")
DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
MOMENTS = st.one_of(
    st.integers(-(2**63) + 1, 2**63 - 1), st.integers(-(10**10), 10**10), st.just(10**18 + 1)
)
Typed = tuple[pa.DataType, st.SearchStrategy[Any]]
"""A type, and what Arrow stores of its values."""


def integers(kind: pa.DataType) -> Typed:
    low = 0 if pa.types.is_unsigned_integer(kind) else -(2 ** (kind.bit_width - 1))
    return kind, st.integers(low, low + 2**kind.bit_width - 1)


def floats(kind: pa.DataType) -> Typed:
    return kind, st.floats(width=kind.bit_width)


def decimals(kind: pa.DataType) -> Typed:
    digits = st.integers(-(10**kind.precision) + 1, 10**kind.precision - 1)
    return kind, digits.map(lambda number: Decimal(number).scaleb(-kind.scale))


PLAIN: list[Typed] = [
    *[integers(each()) for each in (pa.int8, pa.int16, pa.int32, pa.int64)],
    *[integers(each()) for each in (pa.uint8, pa.uint16, pa.uint32, pa.uint64)],
    *[floats(each()) for each in (pa.float16, pa.float32, pa.float64)],
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(st.characters(exclude_categories=["Cs"]))),
    (pa.binary(), st.binary()),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.null(), st.none()),
    (pa.date32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.date64(), st.integers(-(10**11), 10**11).map(lambda days: days * 86_400_000)),
    *[(pa.timestamp(unit, zone), MOMENTS) for unit in UNITS for zone in ZONES],
    *[(pa.time32(unit), st.integers(0, DAY[unit] - 1)) for unit in UNITS[:2]],
    *[(pa.time64(unit), st.integers(0, DAY[unit] - 1)) for unit in UNITS[2:]],
    *[(pa.duration(unit), st.integers(-(2**63) + 1, 2**63 - 1)) for unit in UNITS],
    decimals(pa.decimal32(7, 2)),
    decimals(pa.decimal64(15, 0)),
    decimals(pa.decimal128(38, 10)),
    decimals(pa.decimal128(5, -2)),
    decimals(pa.decimal256(60, 30)),
    (
        pa.month_day_nano_interval(),
        st.tuples(st.integers(-9, 9), st.integers(-9, 9), st.integers(-(2**62), 2**62)).map(
            pa.MonthDayNano
        ),
    ),
    (pa.uuid(), st.uuids().map(lambda value: value.bytes)),
]


def nullable(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


def lists(inner: Typed) -> st.SearchStrategy[Typed]:
    kind, values = inner
    some = st.lists(nullable(values), max_size=3)
    two = st.lists(nullable(values), min_size=2, max_size=2)
    return st.sampled_from(
        [(pa.list_(kind), some), (pa.large_list(kind), some), (pa.list_(kind, 2), two)]
    )


def maps(inner: Typed) -> st.SearchStrategy[Typed]:
    kind, values = inner
    pairs = st.lists(st.tuples(st.text(max_size=3), nullable(values)), max_size=3)
    return st.just((pa.map_(pa.string(), kind), pairs))


def structs(first: Typed, second: Typed) -> Typed:
    kind = pa.struct([("a", first[0]), ("b", second[0])])
    return kind, st.fixed_dictionaries({"a": nullable(first[1]), "b": nullable(second[1])})


TYPES = st.recursive(
    st.sampled_from(PLAIN),
    lambda inner: st.one_of(
        inner.flatmap(lists),
        inner.flatmap(maps),
        st.tuples(inner, inner).map(lambda p: structs(*p)),
    ),
    max_leaves=3,
)


def stored(values: list[Any], kind: pa.DataType) -> pa.Array:
    """A column of what Arrow stores, which for moments and spans is integers."""
    if pa.types.is_struct(kind):
        parts = [
            stored([None if value is None else value[f.name] for value in values], f.type)
            for f in kind
        ]
        mask = pa.array([value is None for value in values], pa.bool_())
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)
    if pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        mask = pa.array([value is None for value in values], pa.bool_())
        flat = [item for value in values for item in value or ()]
        ends = np.cumsum([0, *[len(value or ()) for value in values]])
        if pa.types.is_map(kind):
            keys = pa.array([key for key, _ in flat], kind.key_type)
            items = stored([item for _, item in flat], kind.item_type)
            offsets = pa.array(ends, pa.int32())
            return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=mask)
        made, width = (
            (pa.ListArray, pa.int32())
            if pa.types.is_list(kind)
            else (pa.LargeListArray, pa.int64())
        )
        child = stored(flat, kind.value_type)
        return made.from_arrays(pa.array(ends, width), child, type=kind, mask=mask)
    if pa.types.is_fixed_size_list(kind):
        mask = pa.array([value is None for value in values], pa.bool_())
        flat = [item for value in values for item in value or [None] * kind.list_size]
        return pa.FixedSizeListArray.from_arrays(
            stored(flat, kind.value_type), type=kind, mask=mask
        )
    if kind == pa.uuid():
        column: pa.Array = pa.ExtensionArray.from_storage(kind, pa.array(values, pa.binary(16)))
        return column
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
    if pa.types.is_float16(kind):
        return pa.array(values, pa.float64()).cast(kind)
    return pa.array(values, kind)


@settings(max_examples=150)
@given(st.data())
def test_json_gives_back_what_a_column_stores(data: st.DataObject) -> None:
    """Bit for bit, at every depth, nulls and slices too: through JSON text, and through the rules
    for values that a client gives."""
    kind, values = data.draw(TYPES)
    check_column_type(kind, "column 'c'")
    column = stored(data.draw(st.lists(nullable(values), max_size=4)), kind)
    column = column[data.draw(st.integers(0, len(column))) :]
    text = msgspec.json.encode(column_to_json(column))
    given_back = [from_json_value(each, kind, "c") for each in msgspec.json.decode(text)]
    back = exact_column(given_back, pa.field("c", kind))
    back.validate(full=True)
    assert column_to_json(back) == column_to_json(column)
    if "halffloat" not in str(kind) and "float" not in str(kind) and "double" not in str(kind):
        assert back.equals(column)  # NaN is not equal to itself


@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [
        (datetime.time(1, 2, 3), pa.time32("s"), 3723),
        (datetime.timedelta(seconds=-1), pa.duration("ms"), -1000),
        ([datetime.time(0, 0, 1)], pa.list_(pa.time64("us")), [1_000_000]),
        ({"a": Decimal("1.50")}, pa.struct([("a", pa.decimal128(5, 2))]), {"a": "1.50"}),
        (uuid.UUID(int=5), pa.uuid(), str(uuid.UUID(int=5))),
        (from_wire(2**40, pa.timestamp("s")), pa.timestamp("s"), 2**40),
    ],
)
def test_single_values_are_shown_as_columns_are(
    value: object, kind: pa.DataType, shown: object
) -> None:
    """One form of a value, wherever it stands."""
    assert to_json_value(value, kind) == shown


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("not one", pa.uuid()),
        (5, pa.uuid()),
        ([1, 2], pa.month_day_nano_interval()),
        ([1, 2, "x"], pa.month_day_nano_interval()),
        ("01:02:03", pa.time32("s")),
        (2**31, pa.time32("s")),
    ],
)
def test_values_of_other_types_are_refused_by_name(value: object, kind: pa.DataType) -> None:
    """Naming the column."""
    with pytest.raises(InvalidArgument, match="column 'x'"):
        from_json_value(value, kind, "column 'x'")


# ---- through the front ----------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with local_cluster(tmp_path_factory.mktemp("values"), tservers=1) as cluster:
        yield World(cluster)


FIELDS = [pa.field(f"c{place}", kind) for place, (kind, _) in enumerate(PLAIN)] + [
    pa.field("list", pa.list_(pa.time64("ns"))),
    pa.field("struct", pa.struct([("at", pa.timestamp("ns", "UTC")), ("for", pa.duration("ns"))])),
    pa.field("map", pa.map_(pa.string(), pa.list_(pa.decimal128(5, 2)))),
]
STORED: dict[str, Any] = {
    "c0": -128,
    "c7": 2**64 - 1,
    "c8": 0.5,
    "c10": float("-inf"),
    "c12": "é",
    "c13": b"\x00\xff",
    "c14": b"abc",
    "c16": 2**31 - 1,
    "c17": 86_400_000,
    "list": [1, None, 86_399_999_999_999],
    "struct": {"at": 1_600_000_000_123_456_789, "for": -1},
    "map": [("a", [Decimal("1.50"), None])],
}


@pytest.mark.asyncio(loop_scope="module")
async def test_a_row_that_was_got_is_put_back_as_it_was(
    world: World, http: httpx.AsyncClient
) -> None:
    """A table of every type, a full row and a row of nulls: by one row, and by many."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), *FIELDS])
    database = world.cluster.database
    table = await database.create_table("every", schema, key="id")
    temporal: dict[str, Any] = {f.name: 7 for f in FIELDS if pa.types.is_temporal(f.type)}
    temporal |= {f.name: None for f in FIELDS if pa.types.is_interval(f.type)}
    full = {**temporal, **STORED}
    columns = [stored([full.get(f.name), None], f.type) for f in FIELDS]
    await table.upsert(pa.table([pa.array([1, 2]), *columns], schema=schema))
    before = await table.scan()
    rows = "/v1/tables/every/rows"
    got = [await http.get(f"{rows}/{key}") for key in (1, 2)]
    scanned = (await http.post(f"{rows}:scan", json={})).json()["rows"]
    assert sorted(scanned, key=lambda row: row["id"]) == [answer.json() for answer in got]
    await table.delete([1, 2])
    for answer in got:
        row = answer.json()
        put = await http.put(f"{rows}/{row['id']}", json=row)
        assert put.status_code == 200, put.text
    assert (await table.scan()).sort_by("id").equals(before.sort_by("id"))
    await table.delete([1, 2])
    written = await http.post(f"{rows}:write", json={"rows": scanned})
    assert written.status_code == 200, written.text
    assert (await table.scan()).sort_by("id").equals(before.sort_by("id"))
    chosen = await http.get(f"{rows}/1", params={"columns": ["list"]})
    assert chosen.json() == {"list": STORED["list"]}
