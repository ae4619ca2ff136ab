"""What Ray is given of what servers count: in time, few labels, and the catalogue's texts."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.util import metrics as ray_metrics

from stelae.actors.ray_host import host as ray_host
from stelae.actors.ray_host.runtime import RayMetrics
from stelae.core.metric_catalogue import METRICS


class Told:
    """Stands for Ray's counters, gauges and histograms."""

    all: list[tuple[str, float, dict[str, str]]]
    texts: dict[str, str]

    def __init__(self, name: str, description: str, tag_keys: tuple[str, ...], **_: Any) -> None:
        self.name, self.keys = name, set(tag_keys)
        self.texts[name] = description

    def record(self, value: float, tags: dict[str, str]) -> None:
        assert set(tags) == self.keys, "Ray wants every label each time"
        self.all.append((self.name, value, tags))

    inc = set = observe = record


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> type[Told]:
    for kind in ("Counter", "Gauge", "Histogram"):
        monkeypatch.setattr(ray_metrics, kind, Told)
    Told.all, Told.texts = [], {}
    return Told


def test_ray_gets_the_labels_of_the_catalogue_and_no_others(told: type[Told]) -> None:
    """Addresses and peers stay here; what differs in nothing else is one count."""
    metrics = RayMetrics(cluster="c", server="tserver-1")
    metrics.count("heartbeats_failed", master="host:1")
    metrics.count("heartbeats_failed", master="host:2")
    metrics.count("fences_failed", error="Unavailable", extra="x")
    metrics.gauge("cluster_servers_live", 3.0, kind="backup")
    metrics.observe("recovery_s", 1.5, engine="native")
    metrics.flush()
    metrics.tell_gauges()
    own = {"cluster": "c", "server": "tserver-1"}
    assert told.all == [
        ("stelae_recovery_s", 1.5, {**own, "engine": "native"}),
        ("stelae_heartbeats_failed", 2.0, own),
        ("stelae_fences_failed", 1.0, {**own, "error": "Unavailable"}),
        ("stelae_cluster_servers_live", 3.0, {**own, "kind": "backup"}),
    ]
    assert told.texts["stelae_recovery_s"] == METRICS["recovery_s"].help


def test_a_metric_that_nobody_has_catalogued_has_no_labels_of_its_own(told: type[Told]) -> None:
    """It is counted all the same."""
    metrics = RayMetrics(cluster="c", server="s")
    metrics.count("surprises", table="users_own")
    metrics.flush()
    assert told.all == [("stelae_surprises", 1.0, {"cluster": "c", "server": "s"})]


def test_a_gauge_is_told_again_and_again_with_its_last_value(told: type[Told]) -> None:
    """Ray drops one that it has not heard of for a while."""
    metrics = RayMetrics(cluster="c", server="s")
    metrics.gauge("write_cost", 1.0)
    metrics.gauge("write_cost", 2.0)
    metrics.tell_gauges()
    metrics.tell_gauges()
    assert [value for _, value, _ in told.all] == [2.0, 2.0]


async def test_the_last_counts_reach_ray_and_a_bug_in_a_measure_ends_no_server(
    told: type[Told], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The host flushes, also when nothing more is counted; a failure is logged once."""
    looks = 0

    class Broken:
        def measure(self) -> None:
            raise ZeroDivisionError

    class Enough(Exception):
        pass

    async def sleep(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            raise Enough

    # The host's alone: other threads of this process sleep as usual.
    monkeypatch.setattr(ray_host, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    metrics = RayMetrics(cluster="c", server="s")
    metrics.count("flushes")
    titles: list[tuple[str, str]] = []
    measured: list[str] = []

    class Whole:
        def measure(self) -> None:
            measured.append("s")

    def no_title(*_: str) -> None:
        raise AttributeError("setproctitle")

    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray_host, "title_as", lambda *given: titles.append(given))
    plan: Any = SimpleNamespace(cluster="c", name="s")
    with pytest.raises(Enough):
        await ray_host._measure(Broken(), metrics, plan)  # type: ignore[arg-type]
    assert len([r for r in caplog.records if "metrics" in r.message]) == 1
    looks = 0
    with pytest.raises(Enough):
        await ray_host._measure(object(), metrics, plan)  # type: ignore[arg-type]
    assert ("stelae_flushes", 1.0, {"cluster": "c", "server": "s"}) in told.all
    assert set(titles) == {("c", "s")}
    looks = 0
    monkeypatch.setattr(ray_host, "title_as", no_title)
    with pytest.raises(Enough):
        await ray_host._measure(Whole(), metrics, plan)  # type: ignore[arg-type]
    assert measured == ["s"] * 3, "a Ray that gives processes no title"
