"""The judges: correct histories pass, and every kind of broken one is flagged."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.simulation.checkers import check_rows, require_rows, unread_keys
from stelae.simulation.history import History, Kind, Operation


def make() -> History:
    return History(lambda: 0.0)


def write(history: History, value: str, version: int, **more: Any) -> Operation:
    operation = history.begin("c", "write", "k", value, **more)
    history.ok(operation, version=version)
    return operation


def delete(history: History, version: int | None = None) -> Operation:
    operation = history.begin("c", "delete", "k")
    history.ok(operation, version=version)
    return operation


def read(history: History, value: str | None, version: int | None = None) -> Operation:
    operation = history.begin("c", "read", "k")
    history.ok(operation, version=version, value=value)
    return operation


def rules(history: History) -> str:
    return "; ".join(violation.rule for violation in check_rows(history))


def test_a_correct_history_passes() -> None:
    """Writes, reads, a delete and a new write in sequence break nothing."""
    history = make()
    read(history, None)
    write(history, "a", 1)
    read(history, "a", 1)
    write(history, "b", 2, expected=1)
    delete(history)
    read(history, None)
    delete(history)
    write(history, "c", 5)
    read(history, "c", 5)
    require_rows(history)


def test_a_lost_acknowledged_write_is_flagged() -> None:
    """A row that was written, and that nobody deleted, cannot be absent."""
    history = make()
    write(history, "a", 1)
    read(history, None)
    assert "lost" in rules(history)
    with pytest.raises(AssertionError, match="a row is lost"):
        require_rows(history)


def test_a_delete_that_ended_before_the_write_does_not_excuse_its_loss() -> None:
    """Only a delete that can come after the write explains why the row is gone."""
    history = make()
    delete(history)
    write(history, "a", 3)
    read(history, None)
    assert "lost" in rules(history)


def test_a_stale_read_is_flagged() -> None:
    """A read is never older than a write that ended before it began."""
    history = make()
    write(history, "a", 1)
    write(history, "b", 2)
    read(history, "a", 1)
    assert "older version" in rules(history)


def test_reads_never_go_back_even_among_unacknowledged_writes() -> None:
    """What one finished read saw, later reads see too."""
    history = make()
    write(history, "a", 1)
    slow = history.begin("d", "write", "k", "b")
    read(history, "b", 2)
    read(history, "a", 1)
    history.unknown(slow)
    assert "older version" in rules(history)


def test_a_write_of_unknown_outcome_may_appear_or_not() -> None:
    """Unknown writes are allowed to be seen late, and never to be seen."""
    history = make()
    write(history, "a", 1)
    history.unknown(history.begin("d", "write", "k", "b"))
    history.unknown(history.begin("d", "write", "k", "never"))
    read(history, "a", 1)
    read(history, "b", 2)
    require_rows(history)


def test_a_deleted_row_that_comes_back_is_flagged() -> None:
    """Deletes stay deleted, whether their version is told or not."""
    for version in (None, 2):
        history = make()
        write(history, "a", 1)
        delete(history, version)
        read(history, "a", 1)
        assert "deleted row came back" in rules(history)


def test_an_absence_once_seen_stays_seen() -> None:
    """After a read found the row gone, its old value cannot be read again."""
    history = make()
    write(history, "a", 1)
    history.unknown(history.begin("d", "delete", "k"))
    read(history, None)
    read(history, "a", 1)
    assert "deleted row came back" in rules(history)


def test_a_write_applied_twice_is_flagged() -> None:
    """One write has one version (exactly once)."""
    history = make()
    write(history, "a", 1)
    write(history, "b", 2)
    read(history, "a", 3)
    assert "two versions" in rules(history)


def test_a_version_given_to_two_writes_is_flagged() -> None:
    """One version belongs to one write."""
    history = make()
    first = history.begin("c", "write", "k", "a")
    second = history.begin("d", "write", "k", "b")
    history.ok(first, version=1)
    history.ok(second, version=1)
    assert "given twice" in rules(history)


def test_a_version_that_does_not_grow_is_flagged() -> None:
    """A write gets a larger version than every write that ended before it began."""
    history = make()
    write(history, "a", 5)
    write(history, "b", 4)
    assert "not above" in rules(history)


def test_an_unknown_write_that_took_effect_in_the_past_is_flagged() -> None:
    """Also a write whose answer was lost got a version above those before it."""
    history = make()
    write(history, "a", 5)
    late = history.begin("d", "write", "k", "b")
    read(history, "b", 4)
    history.unknown(late)
    assert "not above" in rules(history)


def test_reads_of_failed_foreign_and_future_writes_are_flagged() -> None:
    """A read returns what somebody wrote, had not failed to write, and had begun to write."""
    history = make()
    history.failed(history.begin("c", "write", "k", "a"))
    read(history, "a", 1)
    assert "had failed" in rules(history)
    history = make()
    read(history, "x", 1)
    assert "nobody wrote" in rules(history)
    history = make()
    read(history, "a", 1)
    write(history, "a", 1)
    assert "before it was written" in rules(history)


def test_a_conditional_write_on_an_old_version_is_flagged() -> None:
    """Between the version asked for and the version made there is no other."""
    history = make()
    write(history, "a", 1)
    write(history, "b", 2)
    write(history, "c", 3, expected=1)
    assert "if version 1 came after version 2" in rules(history)


def test_values_must_be_unique_and_answers_complete() -> None:
    """The checker refuses a history that it cannot judge."""
    history = make()
    write(history, "a", 1)
    write(history, "a", 2)
    with pytest.raises(ValueError, match="unique"):
        check_rows(history)
    history = make()
    history.ok(history.begin("c", "write", "k", "a"))
    with pytest.raises(ValueError, match="tells its version"):
        check_rows(history)


def test_keys_without_a_final_read_are_named() -> None:
    """Loss can only be seen where somebody looks."""
    history = make()
    last = write(history, "a", 1)
    assert unread_keys(history, last.invoked) == ["k"]
    read(history, "a", 1)
    assert unread_keys(history, last.invoked) == []


KINDS: dict[str, Kind] = {"w": "write", "d": "delete", "r": "read"}
STEPS = st.lists(st.tuples(st.sampled_from("wdr"), st.integers(0, 3)), max_size=40)


@given(steps=STEPS, random=st.randoms(use_true_random=False))
def test_concurrent_operations_on_a_real_register_are_never_accused(
    steps: list[tuple[str, int]], random: Random
) -> None:
    """Operations that take effect at one moment between call and return form no violation."""
    history = make()
    version, value = 0, None
    waiting: list[list[Any]] = []  # operation, has it taken effect, what it answers

    def effect(entry: list[Any]) -> None:
        nonlocal version, value
        operation = entry[0]
        if operation.kind == "write" or (operation.kind == "delete" and value is not None):
            version += 1
            value = operation.value
            entry[1:] = [True, (version if random.random() < 0.7 else None, value)]
            if operation.kind == "write":
                entry[2] = (version, value)
        else:
            seen = operation.kind == "read" and value is not None
            entry[1:] = [True, (version if seen else None, value if seen else None)]

    def finish(entry: list[Any]) -> None:
        operation, done, answer = entry
        waiting.remove(entry)
        if operation.kind != "read" and random.random() < 0.3:
            history.unknown(operation)
            if not done and random.random() < 0.5:
                effect(entry)  # after the caller gave up
            return
        if not done:
            effect(entry)
            answer = entry[2]
        history.ok(operation, version=answer[0], value=answer[1])

    for number, (kind, choice) in enumerate(steps):
        full = KINDS[kind]
        text = f"v{number}" if full == "write" else None
        waiting.append([history.begin("c", full, "k", text), False, None])
        for _ in range(choice):
            entry = random.choice(waiting) if waiting else None
            if entry is not None and not entry[1] and random.random() < 0.5:
                effect(entry)
            elif entry is not None:
                finish(entry)
    assert check_rows(history) == []
