"""Exactly-once results: remembered, forgotten, bounded and restored."""

from __future__ import annotations

import random
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.core.errors import InvalidArgument, Overloaded, StaleRequest
from stelae.core.ids import (
    ClientId,
    RequestId,
    gateway_client,
    is_job,
    is_keyed,
    job_client,
    keyed_client,
    stream_client,
)
from stelae.storage.entries import client_results
from stelae.storage.entries.client_results import (
    GATEWAY_LEAST_S,
    KEY_LEAST_S,
    PIECE_LEAST_S,
    ClientResults,
)
from stelae.storage.entries.entry import Result


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
    assert results.forget_before(30.0, 60.0, 9) == 1
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


def test_keys_and_other_clients_keep_each_other_out_of_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each kind has a bound of its own; a result that is known is answered in any case."""
    monkeypatch.setattr(client_results, "MAX_KEYS", 3)
    monkeypatch.setattr(client_results, "MAX_CLIENTS", 2)
    monkeypatch.setattr(client_results, "MAX_RESULTS", 2)
    results = ClientResults()
    for number in range(3):
        results.record(request(1, client=keyed_client(str(number))), b"", 1, 0.0)
    with pytest.raises(Overloaded, match="Idempotency-Key"):
        results.check(request(1, client=keyed_client("3")))
    assert results.check(request(1, client=keyed_client("2"))) is not None
    assert results.check(request(1, client="a")) is None
    results.record(request(1, client="a"), b"", 1, 0.0)
    results.record(request(1, client="b"), b"", 1, 0.0)
    with pytest.raises(Overloaded, match="each client"):
        results.check(request(1, client="c"))
    with pytest.raises(Overloaded, match="unacknowledged"):
        results.check(request(2, client="b"))
    assert not results.are_new([request(1, client=keyed_client("3")), request(1, client="a")])
    other = ClientResults()
    other.load(results.records())
    assert other.records() == results.records()
    assert other.snapshot() == results.snapshot()
    assert len(other) == len(results) == 5


def test_clients_over_http_keep_no_other_client_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many names they have: the oldest of them make way, and until then they wait."""
    monkeypatch.setattr(client_results, "MAX_GATEWAY_CLIENTS", 3)
    monkeypatch.setattr(client_results, "MAX_CLIENTS", 1)
    results = ClientResults()
    for number in range(3):
        client = gateway_client(str(number))
        results.record(request(7, client=client), b"", 1, float(number))
    with pytest.raises(Overloaded, match="over HTTP") as refused:
        results.check(request(1, client=gateway_client("new")), 10.0)
    assert refused.value.args[2] == GATEWAY_LEAST_S - 10.0
    assert results.check(request(1, client="native"), 10.0) is None
    assert results.check(request(8, client=gateway_client("0")), 10.0) is None
    results.record(request(1, client="native"), b"", 1, 0.0)
    assert results.forget_before(-1.0, GATEWAY_LEAST_S + 0.5, 9) == 1
    assert results.check(request(1, client=gateway_client("new"))) is None
    assert results.find(request(7, client=gateway_client("0"))) is None
    assert results.find(request(1, client="native")) is not None
    other = ClientResults()
    other.load(results.records())
    assert other.records() == results.records()


def test_where_keys_are_too_many_the_oldest_go_after_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some at once, and no other client with them; where they are few all stay for an hour."""
    monkeypatch.setattr(client_results, "MAX_KEYS", 32)
    results = ClientResults()
    results.record(request(1, client="old"), b"", 1, 0.0)
    for number in range(32):
        assert results.forget_before(-1.0, float(number), 9) == 0
        results.record(request(1, client=keyed_client(f"{number:02}")), b"", 1, float(number))
    assert results.forget_before(-1.0, KEY_LEAST_S, 9) == 0, "none is older than a minute"
    with pytest.raises(Overloaded) as refused:
        results.check(request(1, client=keyed_client("new")), 22.5)
    assert refused.value.args[2] == KEY_LEAST_S - 22.5, "when the oldest is a minute old"
    assert results.forget_before(-1.0, KEY_LEAST_S + 10.5, 9) == 3
    assert results.check(request(1, client=keyed_client("new"))) is None
    for number in range(3):
        assert results.find(request(1, client=keyed_client(f"{number:02}"))) is None
    assert results.find(request(1, client=keyed_client("03"))) is not None
    assert results.find(request(1, client="old")) is not None
    assert results.forget_before(-1.0, 10_000.0, 9) == 0, "they are not too many"


def test_a_key_whose_write_is_not_committed_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However old it is: sent again, it would be done twice. Nor are those that came after it."""
    monkeypatch.setattr(client_results, "MAX_KEYS", 16)
    results = ClientResults()
    for number in range(16):
        results.record(request(1, client=keyed_client(f"{number:02}")), b"", 1 + number, 0.0)
    assert results.forget_before(100.0, 100.0, 0) == 0
    assert results.forget_before(-1.0, 100.0, 1) == 1
    assert results.forget_before(100.0, 100.0, 9) == 8
    assert results.forget_before(100.0, 100.0, 16) == 7


def piece(series: str, batch: int, digest: str = "d", sequence: int = 1) -> RequestId:
    return RequestId(stream_client(series, batch, digest), sequence, sequence)


def test_of_a_stream_a_batch_is_known_until_the_next_one_begins() -> None:
    """However long that takes. Then it is forgotten, and a late piece of it refused, also one that
    was never heard of; other streams, jobs and clients notice nothing."""
    results = ClientResults()
    for name in ("x", "y"):
        results.record(piece("a", 4, name), b"", 1, 0.0)
    results.record(piece("b", 9), b"", 2, 0.0)
    results.record(request(1, client=job_client("j")), b"", 3, 0.0)
    results.record(piece("a", 4, "x", 2), b"", 4, 0.0)
    assert results.forget_before(1e9, 1e9, 9) == 1, "the job"
    assert results.find(piece("a", 4, "x", 2)) is not None
    with pytest.raises(StaleRequest):
        results.check(piece("a", 4, "x", 1))
    assert results.check(piece("a", 5)) is None
    assert results.find(piece("a", 4, "y")) is not None, "a question changes nothing"
    results.record(piece("a", 5), b"", 5, 1.0)
    for name in ("x", "y", "new"):
        with pytest.raises(InvalidArgument, match="batch 4 of stream a is over: batch 5"):
            results.check(piece("a", 4, name))
    assert results.find(piece("b", 9)) is not None
    assert len(results) == 2


def test_a_batch_of_a_stream_has_the_room_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hundreds of tasks every few seconds are never refused; too many pieces of one batch are,
    until those of others are older than a task waits for an answer."""
    monkeypatch.setattr(client_results, "MAX_PIECES", 32)
    results = ClientResults()
    for batch in range(20):
        for task in range(30):
            assert results.check(piece("a", batch, str(task))) is None
            results.record(piece("a", batch, str(task)), b"", 1, float(batch))
    results.record(piece("b", 0, "0"), b"", 1, 20.0)
    results.record(piece("b", 0, "1"), b"", 1, 20.0)
    with pytest.raises(Overloaded, match="streams"):
        results.check(piece("b", 0, "2"))
    assert results.check(piece("a", 20, "0")) is None, "it makes room"
    assert results.check(request(1, client=job_client("0"))) is None
    now_s = 19.5 + PIECE_LEAST_S
    assert results.forget_before(-1.0, now_s, 9) == 3
    assert results.check(piece("b", 0, "2")) is None


PIECES = st.lists(
    st.tuples(
        st.sampled_from([*[0.0, 1.0, 5.0] * 4, 100.0, 5000.0]),
        st.sampled_from(["a", "b", "job"]),
        st.integers(-1, 2),
        st.integers(0, 12),
        st.booleans(),
    ),
    min_size=40,
    max_size=120,
)


@given(steps=PIECES)
def test_pieces_are_carried_out_once_for_as_long_as_it_matters(
    steps: list[tuple[float, str, int, int, bool]],
) -> None:
    """Against plain dicts. A piece of a stream's present batch is new once, unless pieces are too
    many and it is old; of a batch before none is; a job's is new once an hour. Replicas agree, and
    so does one that goes through its records, or is restored from its prologue in any order."""
    with patch.multiple(client_results, MAX_PIECES=16):
        one, other, now_s = ClientResults(), ClientResults(), 0.0
        heard: dict[str, float] = {}
        batches = {"a": 1, "b": 1}
        for index, (pause_s, series, ahead, number, restarts) in enumerate(steps):
            now_s += pause_s
            asked = request(1, client=job_client(str(number)))
            if series != "job":
                asked = piece(series, max(0, batches[series] + ahead), str(number))
            for each in (one, other):
                each.forget_before(now_s - 3600.0, now_s, index)
            outcome = outcome_of(one, asked)
            assert outcome == outcome_of(other, asked)
            told_s = heard.get(asked.client_id)
            is_old = told_s is not None and now_s - told_s > PIECE_LEAST_S
            if outcome == "known":
                assert told_s is not None
            elif outcome == "new":
                assert told_s is None or is_old
                heard[asked.client_id] = now_s
                if series != "job":
                    batches[series] = max(batches[series], max(0, batches[series] + ahead))
                for each in (one, other):
                    each.record(asked, b"", index, now_s)
            elif outcome == "refused":
                young = [now_s - heard[name] <= PIECE_LEAST_S for name in kept(one, series)]
                assert all(young)
                assert len(young) == 16
            else:
                assert series != "job"
                assert max(0, batches[series] + ahead) < batches[series]
            if restarts:
                records, other = other.records(), ClientResults()
                other.load(records)
            assert one.records() == other.records()
            restored = ClientResults()
            restored.restore(reversed(one.snapshot()), now_s)
            assert restored.snapshot() == one.snapshot()


def kept(results: ClientResults, series: str) -> list[str]:
    """Pieces of the same kind."""
    names = [each.client_id for each in results.records()]
    return [name for name in names if is_job(name) is (series == "job")]


STEPS = st.lists(
    st.tuples(
        st.sampled_from([*[0.0, 0.5, 1.0, 2.0] * 4, 50.0]),
        st.sampled_from([True, True, True, False]),
        st.integers(0, 30),
        st.booleans(),
    ),
    min_size=60,
    max_size=150,
)


@given(steps=STEPS)
def test_replicas_forget_the_same_and_no_key_too_early(
    steps: list[tuple[float, bool, int, bool]],
) -> None:
    """One goes through its records now and then, as after a restart. A key is refused only if none
    is older than a minute, and done again only if it is."""
    with patch.multiple(client_results, MAX_KEYS=16, MAX_CLIENTS=5):
        one, other, now_s = ClientResults(), ClientResults(), 0.0
        heard: dict[str, float] = {}
        for index, (pause_s, is_key, number, restarts) in enumerate(steps):
            now_s += pause_s
            name = keyed_client(str(number)) if is_key else str(number)
            for each in (one, other):
                each.forget_before(now_s - 3600.0, now_s, index)
            outcomes = [outcome_of(each, request(1, client=name)) for each in (one, other)]
            assert outcomes[0] == outcomes[1]
            if outcomes[0] == "refused" and is_key:
                assert all(now_s - heard[key] <= KEY_LEAST_S for key in kept_keys(one))
            if outcomes[0] == "new":
                assert name not in heard or (is_key and now_s - heard[name] > KEY_LEAST_S)
                heard[name] = now_s
                for each in (one, other):
                    each.record(request(1, client=name), b"", index, now_s)
            if restarts:
                records, other = other.records(), ClientResults()
                other.load(records)
            assert one.records() == other.records()
            assert one.snapshot() == other.snapshot()
            assert len(kept_keys(one)) <= 16


def outcome_of(results: ClientResults, asked: RequestId) -> str:
    try:
        return "new" if results.check(asked) is None else "known"
    except Overloaded:
        return "refused"
    except InvalidArgument:
        return "over"


def kept_keys(results: ClientResults) -> list[str]:
    return [each.client_id for each in results.records() if is_keyed(each.client_id)]


CLIENTS = ["a", "b", job_client("c"), *[stream_client("s", n // 2, str(n)) for n in range(6)]]
WRITES = st.lists(
    st.tuples(st.sampled_from(CLIENTS), st.integers(1, 9), st.integers(0, 3)), max_size=20
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
        except (StaleRequest, InvalidArgument):
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
