"""What the log tells by size is what adding up its entries tells, whatever was cut and dropped."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stelae.consensus.raft.log_view import LogView
from stelae.core.ids import Address, OpId, ServerUuid
from stelae.core.records.replication import Entry, EntryKind, Snapshot, first_configuration

FIRST = first_configuration({ServerUuid("n1"): Address("n1:1")})


def entry(term: int, index: int, size_bytes: int) -> Entry:
    return Entry(term, index, EntryKind.COMMAND, bytes(size_bytes))


def check(log: LogView, entries: list[Entry], limit: int) -> None:
    """``entries`` are those after the log's base."""
    log.check_invariants()
    first = log.last.index + 1
    left = limit
    for one in reversed(entries):
        left -= len(one.body)
        if left < 0:
            break
        first = one.index
    assert log.first_within(limit) == first
    waiting = [e for e in entries if log.applied_index < e.index <= log.commit_index][:3]
    while len(waiting) > 1 and sum(len(e.body) for e in waiting) > limit:
        waiting.pop()
    assert log.unapplied(3, limit) == tuple(waiting)


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["append", "cut", "commit", "apply", "compact", "reset"]),
            st.integers(0, 9),
            st.integers(0, 40),
        ),
        max_size=40,
    )
)
def test_sizes_are_those_of_the_entries_that_are_there(steps: list[tuple[str, int, int]]) -> None:
    """Appended, cut by another leader, compacted, or replaced by a snapshot."""
    log, entries, term = LogView(FIRST, None, []), [], 1
    for kind, number, limit in steps:
        if kind == "append":
            entries.append(entry(term, log.last.index + 1, number))
            log.append(entries[-1])
            log.stable_index = log.handed_index = log.last.index
        elif kind == "cut" and log.last.index > log.commit_index:
            term += 1
            at = log.commit_index + 1 + number % (log.last.index - log.commit_index)
            entries = [e for e in entries if e.index < at]
            previous = entries[-1].op_id if entries else log.base
            new = [entry(term, at, number), entry(term, at + 1, limit)]
            log.merge(previous, new)
            entries += new
            log.stable_index = log.handed_index = log.last.index
        elif kind == "commit":
            log.commit_to(min(log.last.index, log.commit_index + number))
        elif kind == "apply":
            log.applied_index = min(log.commit_index, log.applied_index + number)
        elif kind == "compact" and log.applied_index > log.base.index:
            at_term = log.term_at(log.applied_index)
            assert at_term is not None
            snapshot = Snapshot(OpId(at_term, log.applied_index), FIRST, b"")
            log.compact(snapshot, number)
            entries = [e for e in entries if e.index > log.base.index]
        elif kind == "reset":
            term += 1
            log.reset(Snapshot(OpId(term, log.last.index + 5), FIRST, b""))
            entries = []
        check(log, entries, limit)
