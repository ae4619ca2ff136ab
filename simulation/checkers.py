"""Judges of histories: versioned rows must be linearizable per key, and nothing acknowledged lost.

The model: a row has a value and a version; each write and each delete of a key gives it a version
larger than all before. As answers carry versions, the order of the writes of a key is known and no
search is needed: the history of a key is linearizable if and only if that order agrees with real
time, and every read fits in between. One sweep over the events of a key keeps the *floor*: the
newest state that some finished operation has seen or made. Whoever begins later must not see less.

A final read of every key, after all faults have ended, turns "never older than the floor" into "no
acknowledged write is lost". The checker never accuses a correct history: what is not known (the
version of a delete that only timed out) counts in the system's favour.

Modelled on Gibbons and Korach, "Testing Shared Memories", 1997 (the case where the write order is
known), and on Jepsen's three outcomes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from stelae.simulation.history import History, Operation

VIOLATIONS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule and the operations that show it."""

    rule: str
    key: str
    operations: tuple[Operation, ...]

    def __str__(self) -> str:
        lines = "".join(f"\n    {operation}" for operation in self.operations)
        return f"key {self.key}: {self.rule}{lines}"


@dataclass(frozen=True, slots=True)
class _Floor:
    """The newest state seen for certain; if ``absent``, ``version`` is a lower bound of it."""

    version: int = 0
    absent: bool = True
    witness: Operation | None = None

    def rank(self) -> tuple[int, bool]:
        return self.version, self.absent


@dataclass(slots=True)
class _Key:
    """What is known about one key while sweeping."""

    key: str
    operations: list[Operation]
    by_value: dict[str, Operation] = field(default_factory=dict)
    by_version: dict[int, Operation] = field(default_factory=dict)
    version_of: dict[int, int] = field(default_factory=dict)
    """Operation number -> version, also learnt from reads."""
    floor_of: dict[int, _Floor] = field(default_factory=dict)
    """Operation number -> the floor when it was invoked."""
    violations: list[Violation] = field(default_factory=list)

    def accuse(self, rule: str, *operations: Operation | None) -> None:
        named = tuple(operation for operation in operations if operation is not None)
        self.violations.append(Violation(rule, self.key, named))


def check_rows(history: History | Iterable[Operation]) -> list[Violation]:
    """Every broken rule of a history of versioned rows; empty if it is correct.

    Rules: a version belongs to one write, and a write has one version (exactly once); versions grow
    in real time; a read returns what was written, never something older than what an operation that
    finished before it saw or made; deleted rows stay deleted until written again; a conditional
    write followed directly on the version it asked for.
    """
    operations = history.operations if isinstance(history, History) else list(history)
    by_key: dict[str, list[Operation]] = {}
    for operation in operations:
        by_key.setdefault(operation.key, []).append(operation)
    violations: list[Violation] = []
    for key, of_key in by_key.items():
        state = _Key(key, of_key)
        _index(state)
        _sweep(state)
        _check_conditions(state)
        violations.extend(state.violations)
    return violations


def require_rows(history: History | Iterable[Operation]) -> None:
    """Raise AssertionError with the evidence if `check_rows` finds anything."""
    violations = check_rows(history)
    shown = "\n".join(str(violation) for violation in violations[:VIOLATIONS_SHOWN])
    assert not violations, f"{len(violations)} violations:\n{shown}"


def unread_keys(history: History, since: int) -> list[str]:
    """Keys written in ``history`` without a successful read invoked after place ``since``."""
    read = {
        operation.key: None
        for operation in history.operations
        if operation.kind == "read" and operation.outcome == "ok" and operation.invoked > since
    }
    written = {operation.key: None for operation in history.operations if operation.kind != "read"}
    return [key for key in written if key not in read]


def _index(state: _Key) -> None:
    """Learn which operation made which version, from writes and from reads."""
    for operation in state.operations:
        if operation.kind == "write":
            if operation.value is None or operation.value in state.by_value:
                raise ValueError(f"values written to a key must be unique: {operation}")
            state.by_value[operation.value] = operation
    for operation in state.operations:
        if operation.outcome != "ok" or operation.version is None:
            continue
        if operation.kind != "read":
            _learn(state, operation, operation.version, operation)
        elif operation.value is not None:
            writer = state.by_value.get(operation.value)
            if writer is None:
                state.accuse("a read returned a value that nobody wrote", operation)
            elif writer.outcome == "failed":
                state.accuse("a read returned a write that had failed", writer, operation)
            else:
                _learn(state, writer, operation.version, operation)


def _learn(state: _Key, writer: Operation, version: int, source: Operation) -> None:
    known = state.version_of.setdefault(writer.number, version)
    if known != version:
        state.accuse(f"one write has two versions, {known} and {version}", writer, source)
        return
    other = state.by_version.setdefault(version, writer)
    if other is not writer:
        state.accuse(f"version {version} was given twice", other, writer, source)


def _sweep(state: _Key) -> None:
    """Walk through invocations and returns in their order, keeping the floor."""
    events: list[tuple[int, Operation]] = []
    for operation in state.operations:
        events.append((operation.invoked, operation))
        if operation.returned is not None and operation.outcome == "ok":
            events.append((operation.returned, operation))
    events.sort(key=lambda event: event[0])
    floor = _Floor()
    for place, operation in events:
        if place == operation.invoked:
            state.floor_of[operation.number] = floor
            continue
        seen = _judge(state, operation)
        if seen is not None and seen.rank() > floor.rank():
            floor = seen
    for operation in state.operations:  # outcomes that are unknown, but seen by reads
        version = state.version_of.get(operation.number)
        if operation.outcome in ("unknown", "pending") and version is not None:
            _check_grows(state, operation, version)


def _check_grows(state: _Key, operation: Operation, version: int) -> None:
    floor = state.floor_of[operation.number]
    if version <= floor.version:
        state.accuse(
            f"version {version} is not above {floor.version}, which was seen before it began",
            floor.witness,
            operation,
        )


def _judge(state: _Key, operation: Operation) -> _Floor | None:
    """Check an answer; returns the state that it proves."""
    floor = state.floor_of[operation.number]
    if operation.kind == "write":
        if operation.version is None:
            raise ValueError(f"an acknowledged write tells its version: {operation}")
        _check_grows(state, operation, operation.version)
        return _Floor(operation.version, False, operation)
    if operation.kind == "delete":
        if operation.version is not None:
            _check_grows(state, operation, operation.version)
            return _Floor(operation.version, True, operation)
        # Untold: either it deleted the row, or it found it absent; the row was gone in any case.
        return _Floor(floor.version + (not floor.absent), True, operation)
    if operation.value is None:
        return _judge_absent(state, operation, floor)
    if operation.version is None:
        raise ValueError(f"a read tells the version of what it found: {operation}")
    writer = state.by_value.get(operation.value)
    assert operation.returned is not None
    if writer is not None and writer.invoked > operation.returned:
        state.accuse("a read returned a value before it was written", operation, writer)
    # A present row at the floor itself is fine; where the floor is an absence, only above it.
    if (operation.version, True) <= floor.rank():
        rule = "a deleted row came back" if floor.absent else "a read returned an older version"
        state.accuse(f"{rule} (floor {floor.version})", writer, floor.witness, operation)
    return _Floor(operation.version, False, operation)


def _judge_absent(state: _Key, read: Operation, floor: _Floor) -> _Floor | None:
    """A row was found absent: then something deleted it after the floor."""
    if floor.absent:
        return None
    writer = state.by_version.get(floor.version)
    lowest: int | None = None
    for delete in state.operations:
        if delete.kind != "delete" or delete.outcome == "failed":
            continue
        assert read.returned is not None
        if delete.invoked > read.returned:
            continue
        if delete.version is not None:
            version = delete.version
            if version <= floor.version:
                continue
        elif _ended_before(delete, writer):
            continue
        else:
            begun = state.floor_of[delete.number]
            version = max(begun.version, floor.version) + 1
        lowest = version if lowest is None else min(lowest, version)
    if lowest is None:
        state.accuse("a row is lost: nothing deleted it", writer, floor.witness, read)
        return None
    return _Floor(lowest, True, read)


def _ended_before(earlier: Operation, later: Operation | None) -> bool:
    return (
        later is not None
        and earlier.outcome == "ok"
        and earlier.returned is not None
        and earlier.returned < later.invoked
    )


def _check_conditions(state: _Key) -> None:
    """A write made under ``expected`` must be the next version after it that anyone knows of."""
    versions = sorted(state.by_version)
    for operation in state.operations:
        version = state.version_of.get(operation.number)
        if not operation.expected or version is None:
            continue
        between = [known for known in versions if operation.expected < known < version]
        if between:
            others: Sequence[Operation] = [state.by_version[known] for known in between]
            state.accuse(
                f"a write if version {operation.expected} came after version {between[-1]}",
                *others,
                operation,
            )
