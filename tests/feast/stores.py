"""Feature stores of drivers, on the cluster of the tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
from feast import (
    Entity,
    FeatureStore,
    FeatureView,
    Field,
    FileSource,
    PushSource,
    RepoConfig,
    ValueType,
)
from feast.types import Int64

NOW = datetime.now(UTC).replace(microsecond=123_456)
DRIVER = Entity(name="driver", join_keys=["driver_id"], value_type=ValueType.INT64)


def store_of(folder: Path, project: str, *, versions: bool = False, **online: Any) -> FeatureStore:
    """A feature store whose registry is a file."""
    folder.mkdir(exist_ok=True)
    online = {"type": "stelae.feast.StelaeOnlineStore", "cluster": ".stelae/demo"} | online
    return FeatureStore(
        config=RepoConfig(
            project=project,
            provider="local",
            registry={
                "path": str(folder / "registry.db"),
                "enable_online_feature_view_versioning": versions,
            },
            offline_store={"type": "file"},
            online_store=online,
            entity_key_serialization_version=3,
        )
    )


def drivers_of(folder: Path, features: dict[str, Any], name: str = "drivers") -> FeatureView:
    return FeatureView(
        name=name,
        entities=[DRIVER],
        schema=[
            Field(name="driver_id", dtype=Int64),
            *(Field(name=feature, dtype=kind) for feature, kind in features.items()),
        ],
        source=PushSource(
            name=f"{name}_pushed",
            batch_source=FileSource(
                path=str(folder / f"{name}.parquet"),
                timestamp_field="at",
                created_timestamp_column="created",
            ),
        ),
    )


def frame_of(minutes: dict[int, float], **columns: list[Any]) -> pd.DataFrame:
    """Rows of drivers, at so many minutes before now."""
    at = [NOW - timedelta(minutes=minute) for minute in minutes.values()]
    return pd.DataFrame({"driver_id": list(minutes), "at": at, "created": at, **columns})


def online(store: FeatureStore, features: list[str], ids: list[int]) -> dict[str, list[Any]]:
    rows = [{"driver_id": each} for each in ids]
    return store.get_online_features(features, rows).to_dict()  # type: ignore[no-any-return]
