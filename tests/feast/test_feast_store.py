"""Feast itself, with Stelae as its online store, on a real cluster; and what its page says."""

from __future__ import annotations

import asyncio
import os
import pickle
import shutil
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

pytest.importorskip("feast", reason="Feast has an environment of its own: make test-feast")

from feast import Entity, FeatureService, FeatureView, Field, FileSource, ValueType
from feast.types import Array, Bool, Bytes, Float32, Float64, Int32, Int64, String, UnixTimestamp

from stelae.core.errors import InvalidArgument
from stelae.feast import StelaeOnlineStore
from tests.feast.conftest import run
from tests.feast.stores import DRIVER, NOW, drivers_of, frame_of, online, store_of
from tests.front.pages import DOCS, Reader

pytestmark = [pytest.mark.ray, pytest.mark.soak]

CITY = Entity(name="city", join_keys=["city"], value_type=ValueType.STRING)
EXAMPLE = Path(__file__).parents[2] / "examples" / "feast"
TYPES: dict[str, tuple[Any, list[Any]]] = {
    "small": (Int32, [1, 2, None]),
    "large": (Int64, [2**53 + 1, -3, 0]),
    "single": (Float32, [0.5, 1.5, -2.5]),
    "double": (Float64, [0.1, 1e300, None]),
    "text": (String, ["", "Å", None]),
    "yes": (Bool, [True, False, None]),
    "raw": (Bytes, [b"", b"\x00\xff", None]),
    "numbers": (Array(Int64), [[1, 2], [3], [4]]),
    "names": (Array(String), [["a", "b"], ["c"], ["d"]]),
}


def test_values_of_many_types_are_materialized_and_read(database: Any, tmp_path: Path) -> None:
    """Feast's own conversions at both ends; a null is None, and so is a driver nobody knows."""
    columns = {name: values for name, (_, values) in TYPES.items()}
    frame = frame_of({1: 30, 2: 20, 3: 10}, **columns)
    frame["small"] = frame["small"].astype("Int32")
    frame["when"] = frame["at"].dt.floor("s")
    frame.to_parquet(tmp_path / "drivers.parquet")
    store = store_of(tmp_path, "types")
    kinds = {name: kind for name, (kind, _) in TYPES.items()} | {"when": UnixTimestamp}
    store.apply([DRIVER, drivers_of(tmp_path, kinds)])
    store.materialize(NOW - timedelta(days=1), NOW)
    store.materialize(NOW - timedelta(days=1), NOW)

    found = online(store, [f"drivers:{name}" for name in kinds], [3, 4, 1, 2, 1])
    for name, (_, values) in TYPES.items():
        assert found[name] == [values[2], None, values[0], values[1], values[0]], name
    assert found["when"][2] == frame["when"][0].to_pydatetime()
    assert found["driver_id"] == [3, 4, 1, 2, 1]

    rows = database.table("types.drivers").scan(columns=["driver_id"])
    assert sorted(rows["driver_id"].to_pylist()) == [1, 2, 3]
    store.teardown()
    assert "types.drivers" not in database.tables()


def test_the_newest_event_counts(database: Any, tmp_path: Path) -> None:
    """Materialized, pushed, or written; in one batch and in several; with its time."""
    frame_of({1: 30}, x=[1]).to_parquet(tmp_path / "drivers.parquet")
    store = store_of(tmp_path, "newest")
    store.apply([DRIVER, drivers_of(tmp_path, {"x": Int64})])
    store.push("drivers_pushed", frame_of({1: 10, 2: 10}, x=[10, 10]))
    store.materialize(NOW - timedelta(days=1), NOW)
    assert online(store, ["drivers:x"], [1, 2])["x"] == [10, 10]

    store.write_to_online_store("drivers", frame_of({1: 20, 2: 5}, x=[20, 5]))
    assert online(store, ["drivers:x"], [1, 2])["x"] == [10, 5]
    frames = [frame_of({2: minute}, x=[minute]) for minute in (3, 1, 2)]
    store.push("drivers_pushed", pd.concat(frames))
    assert online(store, ["drivers:x"], [2])["x"] == [1]
    again = frame_of({2: 1}, x=[111])
    again["created"] = NOW
    store.push("drivers_pushed", again)
    response = store.get_online_features(["drivers:x"], [{"driver_id": 2}])
    assert response.to_dict(include_event_timestamps=True)["x__ts"] == [
        int((NOW - timedelta(minutes=1)).timestamp())
    ]
    assert response.to_dict()["x"] == [111]
    store.teardown()


def test_views_come_change_and_go(database: Any, tmp_path: Path) -> None:
    """By `apply`: their tables with them, and the others as they were."""
    frame_of({1: 30}, x=[1], y=["a"]).to_parquet(tmp_path / "drivers.parquet")
    shutil.copy(tmp_path / "drivers.parquet", tmp_path / "others.parquet")
    store = store_of(tmp_path, "change")
    others = drivers_of(tmp_path, {"x": Int64}, "others")
    store.apply([DRIVER, drivers_of(tmp_path, {"x": Int64}), others])
    store.materialize(NOW - timedelta(days=1), NOW)
    service = FeatureService(name="both", features=[others[["x"]]])
    store.apply([drivers_of(tmp_path, {"x": Int64, "y": String}), service])
    assert online(store, ["drivers:x", "drivers:y"], [1]) == {
        "driver_id": [1],
        "x": [1],
        "y": [None],
    }
    store.push("drivers_pushed", frame_of({1: 3}, x=[2], y=["b"]))
    assert online(store, ["drivers:y"], [1])["y"] == ["b"]
    found = store.get_online_features(
        ["drivers:x", "others:x"], [{"driver_id": 1}], full_feature_names=True
    ).to_dict()
    assert found == {"driver_id": [1], "drivers__x": [2], "others__x": [1]}
    got = store.get_online_features(store.get_feature_service("both"), [{"driver_id": 1}])
    assert got.to_dict()["x"] == [1]

    store.apply([], objects_to_delete=[service, others], partial=False)
    assert [name for name in database.tables() if name.startswith("change.")] == ["change.drivers"]
    store.teardown()
    provider = store._get_provider()
    with pytest.raises(InvalidArgument, match="run feast apply"):
        provider.online_read(store.config, others, [], ["x"])


def test_each_version_of_a_view_has_its_own_table(database: Any, tmp_path: Path) -> None:
    """If the registry says so; an earlier version is read by its name."""
    frame_of({1: 30}, x=[1], y=["a"]).to_parquet(tmp_path / "drivers.parquet")
    store = store_of(tmp_path, "versions", versions=True)
    for kinds in ({"x": Int64}, {"x": Int64, "y": String}):
        store.apply([DRIVER, drivers_of(tmp_path, kinds)])
        store.materialize(NOW - timedelta(days=1), NOW)
    tables = [name for name in database.tables() if name.startswith("versions.")]
    assert tables == ["versions.drivers", "versions.drivers@1"]
    store.push("drivers_pushed", frame_of({1: 3}, x=[2], y=["b"]))
    assert online(store, ["drivers:x", "drivers:y"], [1]) == {
        "driver_id": [1],
        "x": [2],
        "y": ["b"],
    }
    rows = [{"driver_id": 1}]
    assert store.get_online_features(["drivers@v0:x"], rows).to_dict()["x"] == [1]
    store.teardown()
    assert not [name for name in database.tables() if name.startswith("versions.")]


def test_keys_of_two_parts_and_views_without_any(database: Any, tmp_path: Path) -> None:
    """In whatever order the parts are given; without a key there is one row."""
    frame = frame_of({1: 3, 2: 3}, city=["Rome", "Oslo"], x=[1, 2])
    frame.to_parquet(tmp_path / "both.parquet")
    frame[["at", "created", "x"]][:1].to_parquet(tmp_path / "world.parquet")
    views = []
    for name, entities in {"both": [DRIVER, CITY], "world": []}.items():
        views.append(
            FeatureView(
                name=name,
                entities=entities,
                schema=[Field(name="x", dtype=Int64)],
                source=FileSource(path=str(tmp_path / f"{name}.parquet"), timestamp_field="at"),
            )
        )
    store = store_of(tmp_path, "keys")
    store.apply([DRIVER, CITY, *views])
    store.materialize(NOW - timedelta(days=1), NOW)
    rows = [{"city": c, "driver_id": d} for c, d in (("Oslo", 2), ("Oslo", 1), ("Rome", 1))]
    found = store.get_online_features(["both:x", "world:x"], rows, full_feature_names=True)
    assert found.to_dict()["both__x"] == [2, None, 1]
    assert found.to_dict()["world__x"] == [1, 1, 1]
    store.teardown()


def test_over_http_async_and_in_parts(
    database: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the token of the environment; a store that is closed connects again."""
    monkeypatch.setenv("STELAE_TOKEN", database.admin_token)
    frame_of({1: 30}, x=[1]).to_parquet(tmp_path / "drivers.parquet")
    store = store_of(tmp_path, "http", cluster=database.http_url, write_rows=2)
    store.apply([DRIVER, drivers_of(tmp_path, {"x": Int64})])
    ids = list(range(1, 8))

    async def use() -> list[Any]:
        await store.initialize()
        await store.push_async("drivers_pushed", frame_of(dict.fromkeys(ids, 5.0), x=ids))
        rows = [{"driver_id": each} for each in ids]
        found = await store.get_online_features_async(["drivers:x"], rows)
        await store.close()
        return found.to_dict()["x"]  # type: ignore[no-any-return]

    assert asyncio.run(use()) == ids
    store.push("drivers_pushed", frame_of({1: 7}, x=[0]))
    assert online(store, ["drivers:x"], ids)["x"] == ids
    copy = pickle.loads(pickle.dumps(store._get_provider().online_store))
    assert isinstance(copy, StelaeOnlineStore)
    store.teardown()
    assert not [name for name in database.tables() if name.startswith("http.")]


def test_a_reader_can_do_what_the_page_says(database: Any) -> None:
    """All its blocks, in order."""
    reader = Reader(Path.cwd())
    try:
        assert reader.follow(DOCS / "how-to" / "feast.md") > 4
    finally:
        reader.close()


def test_the_example_repository_works(database: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files and commands, as its README has them."""
    folder = Path.cwd() / "example"
    shutil.copytree(EXAMPLE, folder)
    (folder / ".stelae").symlink_to(Path.cwd() / ".stelae")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    run([sys.executable, "prepare.py"], folder)
    run(["feast", "apply"], folder)
    assert database.table("flights.carrier_delays").count() == 0
    run(["feast", "materialize", "2013-12-01T00:00:00", "2014-01-02T00:00:00"], folder)
    assert database.table("flights.carrier_delays").count() == 16
    assert "visibility at JFK: 3.5 miles" in run([sys.executable, "read.py"], folder)
    run(["feast", "teardown"], folder)
    assert not [name for name in database.tables() if name.startswith("flights.")]
