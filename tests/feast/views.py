"""Feature views, entity keys and rows of Feast's, as the tests of its online store want them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from feast import Entity, FeatureView, Field, FileSource
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from feast.types import FeastType, String
from feast.value_type import ValueType

from stelae.connectors.feast_rows import Given

START = datetime(2026, 1, 1, tzinfo=UTC)
PLANE = Entity(name="plane", join_keys=["tail"], value_type=ValueType.STRING)


def view_of(name: str, features: dict[str, FeastType]) -> FeatureView:
    """A view of planes."""
    return FeatureView(
        name=name,
        entities=[PLANE],
        schema=[
            Field(name="tail", dtype=String),  # of the key, as Feast finds it out by itself
            *(Field(name=feature, dtype=kind) for feature, kind in features.items()),
        ],
        source=FileSource(path="none.parquet", timestamp_field="at"),
    )


def key_of(tail: str) -> EntityKey:
    return EntityKey(join_keys=["tail"], entity_values=[Value(string_val=tail)])


def row_of(tail: str, minute: float, values: dict[str, Any], created: float | None = None) -> Given:
    """Times are in minutes after `START`; values are integers, or Feast's own."""
    taken = {n: Value(int64_val=v) if isinstance(v, int) else v for n, v in values.items()}
    made = None if created is None else START + timedelta(minutes=created)
    return key_of(tail), taken, START + timedelta(minutes=minute), made
