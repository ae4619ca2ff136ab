"""The judge of catalog histories: it accepts what some order explains, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest

from tests.simulation.masters.catalog_history import (
    CatalogHistory,
    CatalogOperation,
    Seen,
    Step,
    creates,
    deletes,
    finds,
    finds_all,
    has,
    moves,
)

T1, T2 = Seen("c1-1"), Seen("c1-2")


class Script:
    """A history written by hand: ``begin`` and ``end`` in the order of the calls."""

    def __init__(self) -> None:
        self.now = 0.0
        self.history = CatalogHistory(self._time)

    def _time(self) -> float:
        self.now += 1.0
        return self.now

    def create(self, name: str, mark: str) -> CatalogOperation:
        return self.history.begin("c1", f"create {name} {mark}", creates(name, mark))

    def delete(self, name: str) -> CatalogOperation:
        return self.history.begin("c1", f"delete {name}", deletes(name))

    def look(self, name: str, found: Seen | None, *, stale_s: float = 0.0) -> None:
        operation = self.history.begin("c2", f"look {name}", stale_s=stale_s)
        self.history.saw(operation, str(found), finds(name, found))


def good_sequence(script: Script) -> None:
    script.history.done(script.create("a", "c1-1"))
    script.look("a", T1)
    script.history.done(script.history.begin("c1", "rename a b", moves("c1-1", "b")))
    script.look("a", None)
    listed = script.history.begin("c1", "list")
    script.history.saw(listed, "b", finds_all({"b": T1}))
    script.history.done(script.delete("b"))
    script.look("b", None)


def concurrent_reads_may_differ(script: Script) -> None:
    made = script.create("a", "c1-1")
    script.look("a", None)
    script.look("a", T1)
    script.history.done(made)


def an_unanswered_change_may_come_late(script: Script) -> None:
    script.history.unknown(script.create("a", "c1-1"))
    script.look("a", None)
    script.look("a", T1)


def an_unanswered_change_may_never_come(script: Script) -> None:
    script.history.unknown(script.create("a", "c1-1"))
    script.history.done(script.create("a", "c1-2"))
    script.look("a", T2)


def an_unanswered_change_may_come_until_the_next_answer(script: Script) -> None:
    script.history.unknown(script.create("a", "c1-1"))
    last = script.create("b", "c1-2")
    script.look("a", None)
    script.look("a", T1)
    script.history.done(last)
    script.look("a", T1)


def a_stale_read_may_see_what_was(script: Script) -> None:
    script.history.done(script.create("a", "c1-1"))
    script.look("a", None, stale_s=5.0)


def a_refusal_among_concurrent_creators(script: Script) -> None:
    first, second = script.create("a", "c1-1"), script.create("a", "c1-2")
    script.history.saw(first, "exists", has("a"))
    script.history.done(second)


@pytest.mark.parametrize(
    "write",
    [
        good_sequence,
        concurrent_reads_may_differ,
        an_unanswered_change_may_come_late,
        an_unanswered_change_may_never_come,
        an_unanswered_change_may_come_until_the_next_answer,
        a_stale_read_may_see_what_was,
        a_refusal_among_concurrent_creators,
    ],
)
def test_a_history_with_an_explanation_is_accepted(write: Callable[[Script], None]) -> None:
    """No answer of a correct catalog is ever held against it."""
    script = Script()
    write(script)
    script.history.require()


def a_lost_table(script: Script) -> None:
    script.history.done(script.create("a", "c1-1"))
    script.look("a", None)


def a_table_that_goes_and_comes(script: Script) -> None:
    made = script.create("a", "c1-1")
    script.look("a", T1)
    script.look("a", None)
    script.history.done(made)


def two_tables_of_one_name(script: Script) -> None:
    script.history.done(script.create("a", "c1-1"))
    script.history.done(script.create("a", "c1-2"))


def a_ghost(script: Script) -> None:
    script.history.failed(script.create("a", "c1-1"))
    script.look("a", T1)


def too_stale(script: Script) -> None:
    script.history.done(script.create("a", "c1-1"))
    script.look("b", None)
    script.look("b", None)
    script.look("b", None)
    script.look("a", None, stale_s=2.0)


def an_unanswered_change_that_comes_too_late(script: Script) -> None:
    script.history.unknown(script.create("a", "c1-1"))
    script.history.done(script.create("b", "c1-2"))
    script.look("a", None)
    script.look("a", T1)


def a_table_under_both_names(script: Script) -> None:
    script.history.done(script.create("a", "c1-1"))
    moved = script.history.begin("c1", "rename a b", moves("c1-1", "b"))
    listed = script.history.begin("c2", "list")
    script.history.saw(listed, "a b", finds_all({"a": T1, "b": T1}))
    script.history.done(moved)


def a_deleted_table_comes_back(script: Script) -> None:
    script.history.done(script.create("a", "c1-1"))
    script.history.done(script.delete("a"))
    script.look("a", T1)


@pytest.mark.parametrize(
    "write",
    [
        a_lost_table,
        a_table_that_goes_and_comes,
        two_tables_of_one_name,
        a_ghost,
        too_stale,
        an_unanswered_change_that_comes_too_late,
        a_table_under_both_names,
        a_deleted_table_comes_back,
    ],
)
def test_a_history_without_an_explanation_is_refused(write: Callable[[Script], None]) -> None:
    """Each of these is an answer that no catalog may give."""
    script = Script()
    write(script)
    with pytest.raises(AssertionError, match="no order of the operations explains"):
        script.history.require()


@pytest.mark.parametrize("seed", range(30))
def test_random_histories_of_one_true_catalog_are_accepted(seed: int) -> None:
    """Operations take effect at one moment of their time: whatever the overlap, it is fine."""
    rng, script = random.Random(seed), Script()
    truth: dict[str, Seen] = {}
    endings: list[Callable[[], None]] = []
    for number in range(60):
        name = rng.choice("ab")
        if rng.random() < 0.5:
            operation = script.create(name, f"m{number}")
            refusal = has(name) if name in truth else None
            truth.setdefault(name, Seen(f"m{number}"))
        else:
            operation = script.delete(name)
            refusal = None if truth.pop(name, None) else finds(name, None)
        endings.append(partial(_end, script.history, operation, refusal))
        while len(endings) > 3 or (endings and rng.random() < 0.3):
            endings.pop(rng.randrange(len(endings)))()
    for end in endings:
        end()
    script.history.require()


def _end(history: CatalogHistory, operation: CatalogOperation, refusal: Step | None) -> None:
    if refusal is None:
        history.done(operation)
    else:
        history.saw(operation, "refused", refusal)
