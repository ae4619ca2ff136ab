"""Calls that share an entry of the log come to what each would have come to by itself."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.core.ids import ClientId, RequestId
from stelae.core.messages.rows import Write, WriteOp
from stelae.core.schema.schema import TableSchema
from stelae.core.schema.values import batch_to_rows
from stelae.storage.entries import client_results
from stelae.storage.replicated.commands import (
    GroupCommand,
    Stamp,
    decode_command,
    encode_alter,
    encode_group,
    encode_write,
)
from stelae.storage.replicated.state_machine import TabletStateMachine
from tests.unit.storage.replicated.group_model import TABLET, outcome_of, record_of

SCHEMA = TableSchema.of(pa.schema([("id", pa.int64()), ("value", pa.string())]), ["id"])
STAMP = Stamp(1.0, -5.0)
WRONG = "no number"

CALLS = st.tuples(
    st.integers(0, 1),  # client
    st.integers(1, 9),  # sequence
    st.integers(0, 4),  # requests before it that are open
    st.one_of(st.integers(0, 3), st.integers(0, 3), st.just(WRONG)),  # key
)
GROUPS = st.lists(
    st.tuples(
        st.sampled_from([WriteOp.UPSERT, WriteOp.UPSERT, WriteOp.DELETE]),
        st.integers(1, 2),  # version of the schema
        st.lists(CALLS, min_size=1, max_size=6),
    ),
    max_size=6,
)


def machine(*, founded: bool) -> TabletStateMachine:
    made = TabletStateMachine(TABLET, record_of(SCHEMA))
    if founded:
        made.apply(1, 1, encode_alter(record_of(SCHEMA), STAMP))
    return made


def listed(made: TabletStateMachine) -> list[tuple[Any, ...]]:
    batches = made.memory.scan_snapshot().batches(with_versions=True)
    return sorted((row for b in batches for row in batch_to_rows(b)), key=lambda row: row[-1])


def play(groups: Any, *, founded: bool = True) -> None:
    """Execute ``groups`` as they are, and call by call; both must come to the same."""
    together, alone = machine(founded=founded), machine(founded=founded)
    index = 1
    for number, (op, version, calls) in enumerate(groups):
        requests, rows = list[RequestId](), list[tuple[Any, ...]]()
        for client, sequence, open_before, key in calls:
            first = max(1, sequence - open_before)
            requests.append(RequestId(ClientId(f"c{client}"), sequence, first))
            rows.append((key,) if op is WriteOp.DELETE else (key, f"{number}.{len(rows)}"))
        group = GroupCommand(STAMP, op, version, (), tuple(requests), tuple(rows))
        found = together.apply(number + 2, 1, encode_group(group))
        assert isinstance(found, tuple)
        for outcome, request, row in zip(found, requests, rows, strict=True):
            index += 1
            write = Write(TABLET, version, op, request, (row,))
            command = encode_write(write, (row,), None, schema_version=version, stamp=STAMP)
            single = alone.apply(index, 1, command)
            assert isinstance(single, bytes)
            assert outcome_of(outcome) == outcome_of(single)
        assert listed(together) == listed(alone)
        assert together.memory.results.records() == alone.memory.results.records()
    assert together.memory.next_version == alone.memory.next_version


@given(groups=GROUPS, founded=st.booleans())
def test_a_group_is_its_calls_one_after_the_other(groups: Any, founded: bool) -> None:
    """Whatever is repeated, stale, wrong, of the same key or of a schema not known: outcomes, rows,
    versions, and what is remembered of the clients."""
    play(groups, founded=founded)


@given(groups=GROUPS)
def test_also_where_results_run_out_of_room(groups: Any) -> None:
    """A call for which there is no room is refused; those before it in its group are not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_results, "MAX_RESULTS_PER_CLIENT", 3)
        patch.setattr(client_results, "MAX_RESULTS", 5)
        play(groups)


def test_most_groups_are_executed_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that have nothing to do with each other: their rows are written at once."""
    made = machine(founded=True)
    written: list[int] = []
    execute = made.memory.execute

    def counting(op: Any, rows: Any, *rest: Any) -> Any:
        written.append(len(rows))
        return execute(op, rows, *rest)

    monkeypatch.setattr(made.memory, "execute", counting)
    requests = tuple([RequestId(ClientId("c"), n, 1) for n in range(1, 33)])
    rows = tuple([(n, "x") for n in range(32)])
    group = GroupCommand(STAMP, WriteOp.UPSERT, 1, (), requests, rows)
    outcomes = made.apply(2, 1, encode_group(group))
    assert isinstance(outcomes, tuple)
    assert [outcome_of(outcome) for outcome in outcomes] == [(n, 1) for n in range(1, 33)]
    assert written == [32]


def test_a_group_survives_the_log() -> None:
    """It comes out as it went in."""
    requests = (RequestId(ClientId("a"), 3, 1), RequestId(ClientId("b"), 9, 9))
    group = GroupCommand(STAMP, WriteOp.UPSERT, 4, ("x", "y"), requests, ((1, b"\0"), (None, "s")))
    assert decode_command(encode_group(group)).command == group
