"""What Feast's own online-store tests ask of any store, case by case, in tests of ours.

Those tests are only in Feast's repository (docs/decisions.md §49), where test_feast_suite.py runs
them. Theirs, and what stands for each of them here; "store" is test_feast_store.py:

- test_feature_get_online_features_types_match: `test_each_type_is_pythons_own`
- test_e2e_consistency: `test_online_is_what_offline_was_then`
- test_online_retrieval_with_shared_batch_source: `test_views_of_one_source_are_apart`
- test_online_store_cleanup: `test_what_is_deleted_is_gone_and_the_rest_stays`
- test_online_retrieval_success, test_online_list_retrieval, test_get_online_features,
  test_online_to_df: `test_views_of_all_kinds_are_read_at_once`
- TestOnlineWrites, TestEmptyDataFrameValidation: `test_writes_of_nothing_change_nothing`
- TestOnlineWritesWithTransform: `test_a_view_on_demand_may_be_stored`
- test_write_to_online_store, test_write_to_online_store_event_check,
  test_online_retrieval_with_event_timestamps: store, the newest event
- test_push_features_and_read: store, the newest event; their async tests: store, over HTTP
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

pytest.importorskip("feast", reason="Feast has an environment of its own: make test-feast")

from feast import FeatureService, FeatureStore, FeatureView, Field, FileSource, RequestSource
from feast.errors import FeatureNameCollisionError, FeatureViewNotFoundException
from feast.on_demand_feature_view import on_demand_feature_view
from feast.types import Array, Bool, Float32, Float64, Int32, Int64, Json, Map, String
from feast.types import UnixTimestamp as Time

from tests.feast.stores import DRIVER, NOW, drivers_of, frame_of, online, store_of

HOUR = timedelta(hours=1)
MOMENT = datetime(2026, 3, 1, 12, tzinfo=UTC)
PLAIN: dict[str, tuple[Any, type, Any]] = {
    "small": (Int32, int, 1),
    "large": (Int64, int, 2),
    "single": (Float32, float, 0.5),
    "yes": (Bool, bool, True),
    "when": (Time, datetime, MOMENT),
}


def view_of(path: Path, name: str, entities: list[Any], kinds: dict[str, Any]) -> FeatureView:
    """Over a file with the column ``at``; without kinds, Feast finds them in the file."""
    schema = [Field(name=feature, dtype=kind) for feature, kind in kinds.items()]
    source = FileSource(name=f"{name}_file", path=str(path), timestamp_field="at")
    return FeatureView(name=name, entities=entities, schema=schema or None, source=source)


def test_each_type_is_pythons_own(servers: Any, tmp_path: Path) -> None:
    """Alone, in lists, in lists that are empty; with maps beside them, there and absent."""
    frame = frame_of({1: 10, 2: 10})
    for name, (_, _, value) in PLAIN.items():
        frame[name] = [value, value]
        frame[f"{name}_list"] = [[value] * 2, []]
    frame["map"], frame["json"] = [{"a": "b"}, None], ['{"a": 1}', None]
    frame.to_parquet(tmp_path / "drivers.parquet")
    kinds = {name: kind for name, (kind, _, _) in PLAIN.items()}
    kinds |= {f"{name}_list": Array(kind) for name, (kind, _, _) in PLAIN.items()}
    store = store_of(tmp_path, "python")
    store.apply([DRIVER, drivers_of(tmp_path, kinds | {"map": Map, "json": Json})])
    store.materialize(NOW - HOUR, NOW)

    found = online(store, [f"drivers:{name}" for name in (*kinds, "map", "json")], [1, 2])
    for name, (_, kind, value) in PLAIN.items():
        assert found[name] == [value, value], name
        assert found[f"{name}_list"] == [[value, value], []], name
        assert {type(each) for each in (*found[name], *found[f"{name}_list"][0])} == {kind}, name
    assert found["map"] == [{"a": "b"}, None]
    assert found["json"] == [{"a": 1}, None]
    store.teardown()


@pytest.mark.parametrize("is_inferred", [False, True], ids=["schema", "inferred"])
def test_online_is_what_offline_was_then(servers: Any, tmp_path: Path, is_inferred: bool) -> None:
    """At the end of each of two steps of materializing, for drivers with events before, between
    and after; the second step begins where the first one ended."""
    events = [(1, 240.0), (3, 240.0), (1, 90.0), (3, 30.0), (2, 30.0)]
    parts = [frame_of({driver: minutes}, x=[minutes]) for driver, minutes in events]
    pd.concat(parts).to_parquet(tmp_path / "drivers.parquet")
    view = view_of(
        tmp_path / "drivers.parquet",
        "drivers",
        [DRIVER],
        {} if is_inferred else {"driver_id": Int64, "x": Float64},
    )
    store = store_of(tmp_path, f"offline{is_inferred:d}")
    store.apply([DRIVER, view])
    split = NOW - HOUR
    store.materialize(NOW - 5 * HOUR, split)
    assert then_and_online(store, split) == [90.0, None, 240.0]
    store.materialize_incremental(NOW)
    assert then_and_online(store, NOW) == [90.0, 30.0, 30.0]
    assert [end for _, end in store.get_feature_view("drivers").materialization_intervals] == [
        split,
        NOW,
    ]
    store.teardown()


def then_and_online(store: FeatureStore, at: datetime) -> list[Any]:
    """What is online, which is what the past was at that time."""
    asked = pd.DataFrame({"driver_id": [1, 2, 3], "event_timestamp": [at] * 3})
    past = store.get_historical_features(asked, ["drivers:x"]).to_df()
    known = dict(zip(past["driver_id"], past["x"], strict=True))  # of some there is nothing yet
    found = online(store, ["drivers:x"], [1, 2, 3])["x"]
    assert [known.get(driver) for driver in (1, 2, 3)] == found
    return found


def test_views_of_one_source_are_apart(servers: Any, tmp_path: Path) -> None:
    """Each has its own features, and none of the other's."""
    path = tmp_path / "drivers.parquet"
    frame_of({1: 30}, x=[1], y=[0.5]).to_parquet(path)
    source = FileSource(path=str(path), timestamp_field="at")
    one, two = (
        FeatureView(name=name, entities=[DRIVER], schema=schema, source=source)
        for name, schema in (
            ("one", [Field(name="x", dtype=Int32)]),
            ("two", [Field(name="x", dtype=Int32), Field(name="y", dtype=Float32)]),
        )
    )
    store = store_of(tmp_path, "shared")
    store.apply([DRIVER, one, two])
    store.write_to_online_store("one", frame_of({1: 1}, x=[7]))
    store.write_to_online_store("two", frame_of({1: 2}, x=[8], y=[0.25]))
    with pytest.raises(KeyError):
        online(store, ["one:y"], [1])
    rows = [{"driver_id": 1}]
    found = store.get_online_features(["one:x", "two:x", "two:y"], rows, full_feature_names=True)
    assert found.to_dict() == {"driver_id": [1], "one__x": [7], "two__x": [8], "two__y": [0.25]}
    store.teardown()


def test_what_is_deleted_is_gone_and_the_rest_stays(servers: Any, tmp_path: Path) -> None:
    """Of two views of the same drivers; one that is made anew is empty."""
    ids = range(1, 20)
    for name in ("kept", "gone"):
        frame = frame_of(dict.fromkeys(ids, 5.0), x=list(ids))
        frame.to_parquet(tmp_path / f"{name}.parquet")
    kept, gone = (drivers_of(tmp_path, {"x": Int64}, name) for name in ("kept", "gone"))
    store = store_of(tmp_path, "cleanup")
    store.apply([DRIVER, kept, gone])
    store.materialize(NOW - HOUR, NOW + HOUR)
    store.apply([kept], objects_to_delete=[gone], partial=False)
    assert online(store, ["kept:x"], [*ids])["x"] == [*ids]
    store.apply([], objects_to_delete=[kept], partial=False)
    store.apply([kept])
    assert online(store, ["kept:x"], [*ids])["x"] == [None] * len(ids)
    store.teardown()


def store_of_all_kinds(tmp_path: Path) -> FeatureStore:
    """One with values in views of one key, of none, renamed in the source, computed on demand; and
    services, one with two names of a key."""
    frame_of({1: 30, 2: 20}, x=[0.5, 0.25]).to_parquet(tmp_path / "drivers.parquet")
    world = frame_of({1: 30}, rides=[9])[["at", "rides"]]
    world.to_parquet(tmp_path / "world.parquet")
    frame_of({1: 30}, raw=[3]).to_parquet(tmp_path / "renamed.parquet")
    drivers = drivers_of(tmp_path, {"x": Float32})
    everywhere = view_of(tmp_path / "world.parquet", "world", [], {"rides": Int64})
    renamed = view_of(tmp_path / "renamed.parquet", "renamed", [DRIVER], {"nice": Int64})
    renamed.batch_source.field_mapping = {"raw": "nice"}
    given = RequestSource(name="given", schema=[Field(name="plus", dtype=Int64)])

    @on_demand_feature_view(  # type: ignore[untyped-decorator]
        sources=[drivers[["x"]], given], schema=[Field(name="sum", dtype=Float64)], mode="pandas"
    )
    def computed(inputs: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"sum": (inputs["x"] + inputs["plus"]).astype("float64")})

    pair = [
        drivers[["x"]].with_name(name).with_join_key_map({"driver_id": f"{name}_id"})
        for name in ("front", "rear")
    ]
    services = [
        FeatureService(name="some", features=[drivers[["x"]], computed]),
        FeatureService(name="pair", features=pair),
    ]
    store = store_of(tmp_path, "kinds")
    store.apply([DRIVER, drivers, everywhere, renamed, computed, *services])
    store.materialize(NOW - HOUR, NOW)
    return store


def test_views_of_all_kinds_are_read_at_once(servers: Any, tmp_path: Path) -> None:
    """Of one key, of another name for it, of none, renamed in the source, computed on demand; by
    name and by service; rows in the order asked for, also those with nothing."""
    store = store_of_all_kinds(tmp_path)
    rows = [{"driver_id": each, "plus": 1} for each in (2, 4, 1)]
    names = ["drivers:x", "world:rides", "renamed:nice", "computed:sum"]
    found = store.get_online_features(names, rows)
    expected = {
        "driver_id": [2, 4, 1],
        "x": [0.25, None, 0.5],
        "rides": [9, 9, 9],
        "nice": [None, None, 3],
        "sum": [1.25, None, 1.5],
    }
    assert found.to_dict() == expected
    frame = found.to_df()
    assert set(frame) == set(expected)
    assert list(frame["driver_id"]) == [2, 4, 1]
    service = store.get_feature_service("some")
    assert store.get_online_features(service, rows).to_dict()["sum"] == [1.25, None, 1.5]

    both = store.get_feature_service("pair")
    rows = [{"front_id": 1, "rear_id": 2}, {"front_id": 2, "rear_id": 4}]
    found = store.get_online_features(both, rows, full_feature_names=True)
    assert found.to_dict() == {
        "front_id": [1, 2],
        "rear_id": [2, 4],
        "front__x": [0.5, 0.25],
        "rear__x": [0.25, None],
    }
    with pytest.raises(FeatureNameCollisionError):
        store.get_online_features(both, rows)
    with pytest.raises(FeatureViewNotFoundException):
        online(store, ["nobody:x"], [1])
    with pytest.raises(KeyError, match="join key"):
        store.get_online_features(["drivers:x"], [{"other": 1}])
    store.teardown()


def test_writes_of_nothing_change_nothing(servers: Any, tmp_path: Path) -> None:
    """No rows, rows without any value, a source without rows; a row with some values counts."""
    frame_of({}, x=[], y=[]).astype(
        {"at": "datetime64[us, UTC]", "created": "datetime64[us, UTC]", "x": float, "y": float}
    ).to_parquet(tmp_path / "drivers.parquet")
    frame_of({1: 30}, z=[1]).to_parquet(tmp_path / "others.parquet")
    others = drivers_of(tmp_path, {"z": Int64}, "others")
    store = store_of(tmp_path, "nothing")
    store.apply([DRIVER, drivers_of(tmp_path, {"x": Float64, "y": Float64}), others])
    store.materialize(NOW - HOUR, NOW)
    assert online(store, ["drivers:x", "others:z"], [1]) == {
        "driver_id": [1],
        "x": [None],
        "z": [1],
    }
    store.write_to_online_store("drivers", frame_of({1: 9}, x=[0.5], y=[1.5]))
    empty = frame_of({1: 1}, x=[None], y=[None])
    for frame, warning in ((pd.DataFrame(), "empty dataframe"), (empty, "empty feature columns")):
        with pytest.warns(UserWarning, match=warning):
            store.write_to_online_store("drivers", frame)
        with pytest.warns(UserWarning, match=warning):
            asyncio.run(store.write_to_online_store_async("drivers", frame))
    assert online(store, ["drivers:x", "drivers:y"], [1])["x"] == [0.5]
    some = frame_of({1: 1, 2: 1}, x=[0.25, None], y=[None, 2.5])
    store.write_to_online_store("drivers", some)
    found = online(store, ["drivers:x", "drivers:y"], [1, 2])
    assert found == {"driver_id": [1, 2], "x": [0.25, None], "y": [None, 2.5]}
    store.teardown()


def test_a_view_on_demand_may_be_stored(servers: Any, tmp_path: Path) -> None:
    """It makes several rows of one, whose key it gives them."""
    given = RequestSource(
        name="text", schema=[Field(name="driver_id", dtype=Int64), Field(name="text", dtype=String)]
    )

    @on_demand_feature_view(  # type: ignore[untyped-decorator]
        entities=[DRIVER],
        sources=[given],
        schema=[
            Field(name="driver_id", dtype=Int64),
            Field(name="word", dtype=String),
            Field(name="vector", dtype=Array(Float32)),
        ],
        mode="python",
        write_to_online_store=True,
        singleton=True,
    )
    def words(inputs: dict[str, Any]) -> dict[str, Any]:
        found = inputs["text"].split()
        return {
            "driver_id": list(range(1, len(found) + 1)),
            "word": found,
            "vector": [[float(len(word))] * 2 for word in found],
        }

    store = store_of(tmp_path, "stored")
    store.apply([DRIVER, words])
    store.write_to_online_store("words", pd.DataFrame([{"driver_id": 1, "text": "one three"}]))
    rows = servers.table("stored.words").scan(columns=["word"])
    assert sorted(rows["word"].to_pylist()) == ["one", "three"]
    store.teardown()
