"""Exactly-once results: remembered, forgotten, bounded and restored."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.core.errors import Overloaded, StaleRequest
from stelae.core.ids import ClientId, RequestId
from stelae.storage import client_results
from stelae.storage.client_results import ClientResults
from stelae.storage.entry import Result


def request(sequence: int, first_incomplete: int = 1, client: str = "c") -> RequestId:
    return RequestId(ClientId(client), sequence, first_incomplete)


def test_a_retry_gets_the_first_answer() -> None:
    """The same request finds its result and the log index to wait for; another one finds none."""
    results = ClientResults()
    assert results.check(request(1)) is None
    recorded = results.record(request(1), b"one", 7, 0.0)
    found = results.check(request(1))
    assert found is not None
    assert (found.result, found.index) == (recorded, 7)
    assert results.check(request(2)) is None
    assert results.check(request(1, client="d")) is None


def test_what_the_client_has_is_dropped_and_late_copies_refused() -> None:
    """Below first_incomplete nothing is kept, and a late copy is stale, never carried out."""
    results = ClientResults()
    for sequence in range(1, 6):
        results.record(request(sequence), b"", sequence, 0.0)
    results.record(request(6, first_incomplete=4), b"", 6, 0.0)
    assert [result.sequence for result in results.snapshot()] == [4, 5, 6]
    assert len(results) == 3
    with pytest.raises(StaleRequest) as caught:
        results.check(request(3))
    assert caught.value.args == ("c", 3, 4)


def test_a_silent_client_is_forgotten() -> None:
    """Expiry counts from the client's last write."""
    results = ClientResults()
    results.record(request(1, client="old"), b"", 1, 10.0)
    results.record(request(1, client="new"), b"", 2, 50.0)
    assert results.expire(60.0, 30.0) == 1
    assert results.check(request(1, client="old")) is None
    assert results.check(request(1, client="new")) is not None
    assert len(results) == 1


def test_memory_is_bounded_by_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a bound new requests are refused, known ones answered, and acknowledging makes room."""
    monkeypatch.setattr(client_results, "MAX_RESULTS_PER_CLIENT", 3)
    monkeypatch.setattr(client_results, "MAX_CLIENTS", 2)
    monkeypatch.setattr(client_results, "MAX_RESULTS", 5)
    results = ClientResults()
    for sequence in range(1, 4):
        results.record(request(sequence), b"", 1, 0.0)
    with pytest.raises(Overloaded):
        results.check(request(4))
    assert results.check(request(3)) is not None
    results.record(request(1, client="d"), b"", 1, 0.0)
    with pytest.raises(Overloaded):
        results.check(request(1, client="e"))
    results.record(request(2, client="d"), b"", 1, 0.0)
    with pytest.raises(Overloaded):
        results.check(request(3, client="d"))
    assert results.check(request(4, first_incomplete=3)) is None
    assert results.check(request(3, client="d")) is None


WRITES = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 9), st.integers(0, 3)), max_size=20
)


@given(writes=WRITES, seed=st.integers(0, 1000), cut=st.integers(0, 20))
def test_restoring_is_free_of_order_and_repetition(
    writes: list[tuple[str, int, int]], seed: int, cut: int
) -> None:
    """A prologue's snapshot and the entries around it, in any order, twice, restore the state."""
    original = ClientResults()
    logged: list[Result] = []
    for i, (client, sequence, behind) in enumerate(writes):
        if i == cut:
            logged += original.snapshot()
        found = request(sequence, max(1, sequence - behind), client)
        try:
            if original.check(found) is None:
                logged.append(original.record(found, b"%d" % i, i, 0.0))
        except StaleRequest:
            continue
    restored = ClientResults()
    rng = random.Random(seed)
    again = logged + rng.sample(logged, len(logged) // 2)
    rng.shuffle(again)
    restored.restore(again, 0.0)
    assert restored.snapshot() == original.snapshot()
    assert len(restored) == len(original)
    copied = ClientResults()
    copied.restore(original.snapshot(), 0.0)
    assert copied.snapshot() == original.snapshot()
