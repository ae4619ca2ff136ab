"""What clients did to the catalog and saw of it, and the judge: is it linearizable as one object?

The object is a map of names to tables. Every create carries a *mark* of its own inside the table's
schema, so whoever sees a table knows which request made it. Operations that change nothing (a
look-up, a list, a refusal) are reads of the map; the others change it.

The judge walks over invocations and returns in their order, and keeps every *configuration* that
could be the truth: the map, and which of the operations under way have taken effect. At a return
the operation must have taken effect: where it has not, it is tried now, after any of the other
changes under way. No configuration left means that no order of the operations explains the answers.
Reads take effect as soon as they would be right, which costs nothing. An operation without an
answer may take effect after its invocation, or never; but not any more once a later change of the
same client was answered, for that one said that its client waits for no earlier answer.

Source: Lowe, "Testing for linearizability" (2017), just-in-time linearization; three outcomes as in
Jepsen. A read that may be stale by so many seconds is one that began so much earlier.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

Outcome = Literal["pending", "ok", "failed", "unknown"]


class Seen(NamedTuple):
    """A table as the model knows it."""

    mark: str
    """Names the create request that made it."""
    columns: tuple[str, ...] = ()
    """Columns that were added later, in the order of their names."""


State = tuple[tuple[str, Seen], ...]
"""Names with their tables, by name."""
Step = Callable[[dict[str, Seen]], dict[str, Seen] | None]
"""What an operation with this answer makes of the map; None if it cannot have this answer."""


@dataclass(slots=True, eq=False)
class CatalogOperation:
    """One operation of one client. ``step`` is what it does, once its answer is known."""

    number: int
    client: str
    what: str
    begun: tuple[float, int]
    if_done: Step | None
    """What it does if it is done, for one whose answer never came; None for reads."""
    outcome: Outcome = "pending"
    answer: str = ""
    step: Step | None = None
    changes: bool = False
    ended: tuple[float, int] | None = None

    def __str__(self) -> str:
        end = "…" if self.ended is None else f"{self.ended[0]:.6f}"
        return (
            f"[{self.begun[0]:.6f}, {end}] {self.client} {self.what}: {self.outcome} {self.answer}"
        )


class CatalogHistory:
    """Records operations; `require` judges them."""

    def __init__(self, time: Callable[[], float]) -> None:
        self.operations: list[CatalogOperation] = []
        self._time = time
        self._order = itertools.count(1)

    def begin(
        self, client: str, what: str, if_done: Step | None = None, *, stale_s: float = 0.0
    ) -> CatalogOperation:
        """Record an invocation, just before the call.

        Args:
            if_done: the change, if it is one.
            stale_s: the answer may be as old as this.
        """
        begun = (self._time() - stale_s, next(self._order) if not stale_s else 0)
        number = len(self.operations)
        operation = CatalogOperation(number, client, what, begun, if_done)
        self.operations.append(operation)
        return operation

    def done(self, operation: CatalogOperation) -> None:
        """The change was done, says the answer."""
        assert operation.if_done is not None
        self._end(operation, "ok", "done", operation.if_done, changes=True)

    def saw(self, operation: CatalogOperation, answer: str, step: Step) -> None:
        """The answer tells what was there, and that nothing was changed."""
        self._end(operation, "ok", answer, step, changes=False)

    def failed(self, operation: CatalogOperation) -> None:
        """Surely not done, and nothing was seen."""
        self._end(operation, "failed", "", None, changes=False)

    def unknown(self, operation: CatalogOperation) -> None:
        """No answer came."""
        self._end(operation, "unknown", "", operation.if_done, changes=True)

    def _end(
        self,
        operation: CatalogOperation,
        outcome: Outcome,
        answer: str,
        step: Step | None,
        *,
        changes: bool,
    ) -> None:
        assert operation.outcome == "pending", f"ended twice: {operation}"
        operation.outcome, operation.answer = outcome, answer
        operation.step, operation.changes = step, changes
        now = (self._time(), next(self._order))
        if outcome != "unknown":
            operation.ended = now
        if outcome == "ok" and operation.if_done is not None:
            for earlier in self.operations[: operation.number]:
                is_open = earlier.outcome == "unknown" and earlier.ended is None
                if is_open and earlier.client == operation.client:
                    earlier.ended = now

    def require(self) -> None:
        """Raise AssertionError with the evidence unless the history is linearizable."""
        complaint = check(self.operations)
        assert not complaint, complaint

    def marks(self, *outcomes: Outcome) -> list[str]:
        """The marks of creates that ended so."""
        prefix = "create "
        return [
            o.what.rsplit(" ", 1)[1]
            for o in self.operations
            if o.what.startswith(prefix) and o.outcome in outcomes and o.changes
        ]


# ---- steps ----------------------------------------------------------------------------------


def creates(name: str, mark: str) -> Step:
    """A table comes into being under a free name."""

    def step(tables: dict[str, Seen]) -> dict[str, Seen] | None:
        return None if name in tables else {**tables, name: Seen(mark)}

    return step


def deletes(name: str) -> Step:
    """The table of that name ends."""

    def step(tables: dict[str, Seen]) -> dict[str, Seen] | None:
        return {n: t for n, t in tables.items() if n != name} if name in tables else None

    return step


def moves(mark: str, new: str) -> Step:
    """A table, whatever it is called, gets a free name."""

    def step(tables: dict[str, Seen]) -> dict[str, Seen] | None:
        old = name_of(tables, mark)
        if old is None or new in tables:
            return None
        return {**{n: t for n, t in tables.items() if n != old}, new: tables[old]}

    return step


def alters(mark: str, column: str, *, add: bool) -> Step:
    """A table gains a column that it had not, or loses one that it had."""

    def step(tables: dict[str, Seen]) -> dict[str, Seen] | None:
        name = name_of(tables, mark)
        if name is None or (column in tables[name].columns) is add:
            return None
        rest = [other for other in tables[name].columns if other != column]
        columns = tuple(sorted([*rest, column] if add else rest))
        return {**tables, name: Seen(mark, columns)}

    return step


def name_of(tables: dict[str, Seen], mark: str) -> str | None:
    """What the table with that mark is called; None if it is gone."""
    return next((name for name, table in tables.items() if table.mark == mark), None)


def is_gone(mark: str) -> Step:
    """There is no such table any more."""
    return lambda tables: tables if name_of(tables, mark) is None else None


def is_called(mark: str, name: str) -> Step:
    """The table has this name."""
    return lambda tables: tables if name_of(tables, mark) == name else None


def finds(name: str, table: Seen | None) -> Step:
    """The name has this table, or none."""
    return lambda tables: tables if tables.get(name) == table else None


def has(name: str) -> Step:
    """The name has some table."""
    return lambda tables: tables if name in tables else None


def finds_all(found: dict[str, Seen]) -> Step:
    """These are all tables."""
    return lambda tables: tables if tables == found else None


def has_column(mark: str, column: str, *, present: bool) -> Step:
    """The table is there, and has the column, or not."""

    def step(tables: dict[str, Seen]) -> dict[str, Seen] | None:
        name = name_of(tables, mark)
        return tables if name and (column in tables[name].columns) is present else None

    return step


# ---- the judge ------------------------------------------------------------------------------


class _Configuration(NamedTuple):
    state: State
    done: frozenset[int]
    """Of the operations under way, those that have taken effect."""


CONFIGURATIONS_MAX = 200_000


def check(operations: Iterable[CatalogOperation]) -> str:
    """Why no order of the operations explains their answers; empty if one does."""
    judged = [o for o in operations if o.step is not None and o.outcome != "pending"]
    events = [(o.begun, False, o) for o in judged]
    events += [(o.ended, True, o) for o in judged if o.ended is not None]
    events.sort(key=lambda event: (event[0], event[2].number))
    pending: dict[int, CatalogOperation] = {}
    configurations = {_Configuration((), frozenset()): None}
    for _, is_return, operation in events:
        if not is_return:
            pending[operation.number] = operation
            configurations = {_with_reads(c, pending): None for c in configurations}
            continue
        followed = _after_return(configurations, pending, operation)
        if operation.outcome == "unknown":  # or it never takes effect
            followed.update({_without(c, operation): None for c in configurations})
        if not followed:
            return _complaint(configurations, pending, operation)
        del pending[operation.number]
        configurations = followed
        assert len(configurations) < CONFIGURATIONS_MAX, "too many operations without an answer"
    return ""


def _after_return(
    configurations: dict[_Configuration, None],
    pending: dict[int, CatalogOperation],
    operation: CatalogOperation,
) -> dict[_Configuration, None]:
    """The configurations in which the operation has taken effect, and needs no more thought."""
    followed: dict[_Configuration, None] = {}
    seen = dict(configurations)
    stack = list(configurations)
    while stack:
        configuration = stack.pop()
        if operation.number in configuration.done:
            followed[_without(configuration, operation)] = None
            continue
        for other in pending.values():
            if not other.changes or other.number in configuration.done:
                continue
            assert other.step is not None
            tables = other.step(dict(configuration.state))
            if tables is None:
                continue
            done = configuration.done | {other.number}
            following = _with_reads(_Configuration(_state(tables), done), pending)
            if following not in seen:
                seen[following] = None
                stack.append(following)
    return followed


def _without(configuration: _Configuration, operation: CatalogOperation) -> _Configuration:
    return _Configuration(configuration.state, configuration.done - {operation.number})


def _with_reads(
    configuration: _Configuration, pending: dict[int, CatalogOperation]
) -> _Configuration:
    """Let all reads under way that would be right here take effect."""
    tables = dict(configuration.state)
    right = [
        number
        for number, operation in pending.items()
        if not operation.changes
        and number not in configuration.done
        and operation.step is not None
        and operation.step(tables) is not None
    ]
    return _Configuration(configuration.state, configuration.done.union(right))


def _state(tables: dict[str, Seen]) -> State:
    return tuple(sorted(tables.items()))


def _complaint(
    configurations: dict[_Configuration, None],
    pending: dict[int, CatalogOperation],
    operation: CatalogOperation,
) -> str:
    states = dict.fromkeys(configuration.state for configuration in configurations)
    shown = [f"    {dict(state)}" for state in itertools.islice(states, 5)]
    under_way = [f"    {other}" for other in pending.values() if other is not operation]
    return "\n".join(
        [
            f"no order of the operations explains the answer of\n    {operation}",
            "  before it the catalog was one of",
            *shown,
            "  and these were under way or have no answer",
            *(under_way or ["    none"]),
        ]
    )
