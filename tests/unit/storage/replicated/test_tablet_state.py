"""Replicas of a tablet that execute the same commands are the same, and do what a dict does."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stelae.core.errors import (
    CorruptData,
)
from stelae.core.ids import ClientId, OpId, RequestId, TabletId
from stelae.core.messages.rows import WriteOp
from stelae.core.schema.schema import TableSchema
from stelae.storage.replicated.commands import (
    encode_alter,
    encode_mark,
)
from stelae.storage.replicated.manifest import (
    ImageFile,
    check_image,
    decode_manifest,
    droppable,
    open_image,
)
from stelae.storage.rows.memory import SegmentStats
from tests.unit.storage.replicated.group_model import TABLET, Group, record_of
from tests.unit.storage.replicated.tablet_commands import (
    FOREVER,
    KEYS,
    NAMES,
    NARROW,
    WIDE,
    alter,
    delete,
    flush,
    upsert,
    write,
)

MOVES = st.one_of(
    st.tuples(
        st.just("write"),
        st.sampled_from(list(WriteOp)),
        st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=4),
        st.booleans(),
        st.sampled_from(["none", "none", "right", "wrong"]),
        st.sets(st.sampled_from(NAMES)),
        st.integers(0, 2),
        st.sampled_from(["new", "new", "new", "new", "again", "stale"]),
    ),
    st.tuples(st.just("wait"), st.integers(0, 3)),
    st.tuples(st.just("add"), st.sampled_from(NAMES), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("drop"), st.sampled_from(NAMES)),
    st.tuples(st.just("rename"), st.sampled_from(NAMES), st.sampled_from(NAMES)),
    st.tuples(st.just("follow"), st.integers(1, 2)),
    st.tuples(st.just("begin flush"), st.integers(0, 2)),
    st.tuples(st.just("flush"), st.integers(0, 2)),
    st.tuples(st.just("restart"), st.integers(0, 2)),
    st.tuples(st.just("copy"), st.integers(0, 2), st.integers(1, 2)),
)
ON_REPLICA = ("follow", "begin flush", "flush", "restart", "copy")


def play(group: Group, moves: list[Any]) -> None:
    """Carry the moves out; every outcome is held against the model and all other replicas."""
    sequences = [0, 0, 0]
    for salt, move in enumerate(moves, 1):
        replica = group.replicas[move[1] if move[0] in ON_REPLICA else 0]
        if move[0] == "write":
            write(group, move, salt, sequences)
        elif move[0] == "wait":
            group.clock_s += move[1] - 0.5  # leaders' clocks may stand back as well
        elif move[0] == "follow":
            behind = len(group.log) - replica.machine.applied_index
            until = replica.machine.applied_index + (behind + 1) // 2
            replica.catch_up(group.log, group.outcomes, until)
        elif move[0] == "begin flush":
            replica.begin_flush()
        elif move[0] == "flush":
            if replica.flush is None:
                replica.begin_flush()
            replica.end_flush()
        elif move[0] == "restart":
            replica.restart()
        elif move[0] == "copy":
            replica.copy(group.replicas[(move[1] + move[2]) % 3])
        else:
            alter(group, move, salt)
        group.replicas[0].catch_up(group.log, group.outcomes, len(group.log))


@pytest.mark.parametrize(("schema", "hash_bits"), [(NARROW, 64), (WIDE, 64), (WIDE, 1)])
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(moves=st.lists(MOVES, max_size=40))
def test_replicas_agree_with_each_other_and_with_a_dict(
    schema: TableSchema, hash_bits: int, moves: list[Any]
) -> None:
    """Whatever is flushed, restarted, copied or behind: same outcomes, rows, versions, checksum."""
    group = Group(schema, hash_bits)
    play(group, moves)
    group.check()


@pytest.mark.parametrize("seed", range(40))
def test_replicas_agree_over_long_histories(seed: int) -> None:
    """The same over hundreds of commands, with many flushes of segments that are dead by then."""
    rng = random.Random(seed)
    group = Group(NARROW if seed % 2 else WIDE)
    sequences = [0, 0, 0]
    for salt in range(1, 160):
        what = rng.random()
        replica = rng.choice(group.replicas)
        if what < 0.6:
            op = rng.choice((WriteOp.UPSERT, WriteOp.DELETE, WriteOp.UPDATE))
            keys = [rng.randrange(KEYS) for _ in range(rng.randint(1, 3))]
            kind = rng.choice(("new", "new", "new", "again", "stale"))
            client = rng.choice((0, 0, 0, 0, 1, 1, 2))
            has_none = rng.random() < 0.3
            move: Any = ("write", op, keys, has_none, "none", set(), client, kind)
            group.clock_s += rng.choice((-1.5, 0.0, 1.0, 1.0))
            write(group, move, salt, sequences)
        elif what < 0.85:
            if replica.flush is None:
                replica.begin_flush()
            else:
                replica.end_flush()
        elif what < 0.9:
            replica.restart()
        else:
            replica.catch_up(group.log, group.outcomes, len(group.log))
        group.replicas[0].catch_up(group.log, group.outcomes, len(group.log))
    group.check()
    for replica in group.replicas:
        replica.begin_flush()
        replica.end_flush()
        replica.restart()
    group.check()


def test_a_tombstone_stays_while_an_older_row_of_its_key_may_be_read() -> None:
    """A segment of tombstones goes only once all segments before it are without live rows."""
    group = Group(NARROW)
    replica = group.replicas[0]
    upsert(group, 1, 2)
    assert flush(replica) == [1]
    delete(group, 1)
    assert flush(replica) == [1, 2]
    upsert(group, 3)
    assert flush(replica) == [1, 2, 3]
    delete(group, 2)
    assert flush(replica) == [3, 4]
    assert sorted(replica.files) == ["0000000000000003.image", "0000000000000004.image"]
    assert [s.segment_id for s in replica.machine.memory.statistics()] == [3, 4]
    replica.restart()
    group.check()
    upsert(group, 3)
    assert flush(replica) == [5]
    replica.restart()
    group.check()


def test_an_overwritten_segment_leaves_the_manifest_between_others() -> None:
    """Without live rows and tombstones a segment goes, whatever lies before it."""
    group = Group(NARROW)
    replica = group.replicas[0]
    upsert(group, 1)
    flush(replica)
    upsert(group, 2)
    assert flush(replica) == [1, 2]
    upsert(group, 2, value=9)
    assert flush(replica) == [1, 3]
    replica.restart()
    group.check()


def test_which_segments_go() -> None:
    """The rule itself, case by case."""

    def stats(live: int, tombstones: int) -> SegmentStats:
        return SegmentStats(0, 1, True, 9, 9, live, 9 - live, True, tombstones, 9, 1, 10, True)

    cases: list[tuple[list[tuple[int, int]], list[bool]]] = [
        ([], []),
        ([(0, 0), (0, 5), (1, 0)], [True, True, False]),
        ([(1, 0), (0, 5), (0, 0)], [False, False, True]),
        ([(0, 1), (2, 2), (0, 1)], [True, False, False]),
    ]
    for given_stats, wanted in cases:
        assert droppable([stats(*one) for one in given_stats]) == wanted


def test_what_is_left_of_a_tablet_without_rows_is_its_next_version() -> None:
    """No image is named, and versions still go on where they were."""
    group = Group(NARROW)
    replica = group.replicas[0]
    upsert(group, 1, 2, 3)
    delete(group, 1, 2, 3)
    assert flush(replica) == []
    replica.restart()
    assert group.write(WriteOp.INSERT, [("x", 1, 1)], ["a", "id", "b"]) == (7, 1)
    group.check()


def test_commands_go_on_while_images_are_built() -> None:
    """The manifest says what was there when the flush began, not what came meanwhile."""
    group = Group(NARROW)
    replica = group.replicas[0]
    upsert(group, 1, 2)
    replica.begin_flush()
    delete(group, 1)
    group.alter(add=[pa.field("c", pa.string())], defaults={"c": pa.scalar("new")})
    group.write(WriteOp.UPDATE, [(2, 7)], ["id", "b"])
    replica.end_flush()
    assert replica.superblock is not None
    manifest = decode_manifest("m", TABLET, replica.superblock[1])
    assert (manifest.last, manifest.next_version) == (OpId(1, 2), 3)
    assert manifest.table is not None
    assert manifest.table.schema == NARROW
    assert len(manifest.clients[0].results) == 1
    replica.restart()
    assert replica.machine.applied_index == 2
    assert [row[1] for row in replica.listed()] == [1, 2]
    group.check()


def test_silent_clients_are_forgotten_by_the_groups_time() -> None:
    """Stamps decide, and never fall, be a leader's clock behind; a restart changes nothing."""
    group = Group(NARROW)
    replica = group.replicas[0]
    quiet, busy = (RequestId(ClientId(name), 1, 1) for name in ("quiet", "busy"))
    columns = ["a", "id", "b"]

    def write_at(clock_s: float, request: RequestId) -> Any:
        group.clock_s = clock_s
        return group.write(WriteOp.UPSERT, [("x", 1, 1)], columns, request=request)

    assert write_at(100.0, quiet) == (1, 1)
    flush(replica)
    replica.restart()
    assert replica.machine.now_s == 100.0
    assert write_at(90.0, busy) == (2, 1)  # counts as of 100
    assert write_at(104.0, busy) == (2, 1)
    assert write_at(105.0, quiet) == (1, 1)
    replica.begin_flush()
    assert write_at(105.5, quiet) == (3, 1)
    replica.end_flush()
    replica.restart()
    assert replica.machine.now_s == 105.0
    group.check()


def test_an_older_record_of_the_table_changes_nothing() -> None:
    """Orders come twice and late: the newest record stays, and the answer is its version."""
    group = Group(NARROW)
    group.alter(add=[pa.field("c", pa.string())])
    machine = group.replicas[0].machine
    assert machine.apply(3, 1, encode_alter(record_of(NARROW), FOREVER)) == 2
    assert machine.memory.schema.version == 2


def test_a_mark_keeps_the_rows_of_its_index() -> None:
    """Replicas that are at different entries by now still compare what they had at the mark."""
    group = Group(NARROW)
    upsert(group, *range(KEYS))
    index = group.mark()
    upsert(group, 1, 2, value=5)
    group.replicas[1].catch_up(group.log, group.outcomes, index)
    sources = [replica.machine.checksum(index) for replica in group.replicas[:2]]
    assert sources[0] is not None
    assert sources[1] is not None
    assert sources[0].compute() == sources[1].compute()
    now = group.replicas[0].machine.checksum(len(group.log))
    assert now is not None
    assert now.compute().rows != sources[0].compute().rows
    group.replicas[0].machine.unmark()
    assert group.replicas[0].machine.checksum(index) is None
    assert encode_mark(FOREVER)


def test_a_flush_is_due_by_rows_or_by_log() -> None:
    """Refused and repeated writes leave no rows, and their log entries have to go as well."""
    group = Group(NARROW)
    machine = group.replicas[0].machine
    assert not machine.flush_due(1000)
    upsert(group, *range(KEYS))
    assert machine.flush_due(machine.memory.head_bytes)
    assert not machine.flush_due(10_000)
    for _ in range(1000):
        group.write(WriteOp.INSERT, [("x", 1, 1)], ["a", "id", "b"])
    assert machine.flush_due(10_000)
    flush(group.replicas[0])
    assert not machine.flush_due(10_000)


def test_what_updates_keep_counts_for_the_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small updates of large rows fill a segment with large rows, and heads are cut in time."""
    group = Group(NARROW)
    machine = group.replicas[0].machine
    columns = ["a", "id", "b"]
    group.write(WriteOp.UPSERT, [("x" * 1000, 1, 1), ("y", 2, 1)], columns)
    for salt in range(20):
        group.write(WriteOp.UPDATE, [(1, salt)], ["id", "b"], as_batch=salt % 2 == 0)
    assert machine.memory.head_bytes > 20_000
    monkeypatch.setattr("stelae.storage.replicated.state_machine._HEAD_BYTES_MAX", 5_000)
    for salt in range(20):
        group.write(WriteOp.UPDATE, [(1, salt)], ["id", "b"])
    assert len(machine.memory.statistics()) == 5
    flush(group.replicas[0])
    group.replicas[0].restart()
    group.check()


def test_an_image_has_the_length_and_the_checksum_of_its_manifest() -> None:
    """Whoever takes a file of another server looks at both, before anything else is read."""
    content = b"image" * 20
    file = ImageFile(1, len(content), crc32c(content), 1)
    check_image(file, content, "image")
    with pytest.raises(CorruptData, match="the manifest says 100 bytes"):
        check_image(file, content[:-1], "image")
    with pytest.raises(CorruptData, match="checksum is not the manifest's"):
        check_image(file, content[:-1] + b"!", "image")


@pytest.mark.parametrize("damage", ["bit", "cut", "other tablet", "missing image", "image bit"])
def test_a_damaged_manifest_or_image_is_an_error(damage: str) -> None:
    """What does not check is never loaded."""
    group = Group(NARROW)
    upsert(group, 1)
    replica = group.replicas[0]
    flush(replica)
    assert replica.superblock is not None
    data = replica.superblock[1]
    manifest = decode_manifest("m", TABLET, data)
    content = bytearray(replica.files[manifest.images[0].name])
    images = [open_image(manifest.images[0], TABLET, bytes(content), "image")]
    machine = replica.empty()
    content[70] ^= 4
    flipped = data[:50] + bytes([data[50] ^ 1]) + data[51:]
    attempts: dict[str, Callable[[], object]] = {
        "bit": lambda: machine.load(flipped, images),
        "cut": lambda: machine.load(data[:-1], images),
        "other tablet": lambda: decode_manifest("m", TabletId("other"), data),
        "missing image": lambda: machine.load(data, []),
        "image bit": lambda: open_image(manifest.images[0], TABLET, bytes(content), "image"),
    }
    with pytest.raises(CorruptData):
        attempts[damage]()


def test_a_flush_puts_survivors_in_the_place_of_images() -> None:
    """Fewer files, the same rows, also after a restart that replays what came during the flush."""
    group = Group(NARROW)
    replica, plain = group.replicas[1], group.replicas[0]
    replica.survivor_bytes = 4000
    for n in range(12):
        upsert(group, n % 6, 6 + n % 2, value=n)
        for each in (replica, plain):
            each.catch_up(group.log, group.outcomes, len(group.log))
            each.begin_flush()
        upsert(group, (n + 1) % 6, value=-n)
        for each in (replica, plain):
            each.catch_up(group.log, group.outcomes, len(group.log))
            each.end_flush()
            assert each.listed() == group.model.listed()
        replica.restart()
        replica.catch_up(group.log, group.outcomes, len(group.log))
        assert replica.listed() == group.model.listed()
    assert replica.survivors > 3
    assert len(replica.files) < len(plain.files)
    group.check()
