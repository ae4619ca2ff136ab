"""Cleaning at any moment changes nothing that anybody sees, also not after a recovery."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stelae.core.ids import ClientId, RequestId
from stelae.core.messages.rows import WriteOp
from stelae.core.schema.schema import TableSchema
from stelae.core.schema.values import batch_to_rows
from stelae.storage.entries.entry import Entry, EntryKind, Prologue, encode_prologue
from stelae.storage.keys.bloom_filter import KeyFilter
from stelae.storage.rows import survivors
from stelae.storage.rows.memory import TabletMemory
from stelae.storage.rows.survivors import Move, filter_of, survive
from stelae.storage.segments.image import Image, ImageMeta, build_image
from stelae.storage.segments.recovered import RecoveredSegment
from tests.unit.storage.rows.tablet_model import (
    INT_KEY,
    KEYS,
    WIDE_KEY,
    LoggedSegment,
    World,
    batch_of,
    make_key,
    make_row,
    state_of,
)
from tests.unit.storage.rows.test_tablet_model import right_versions


class Cleaned(World):
    """A world whose log is cleaned, with what backups hold, and the digests of its heads."""

    def __init__(self, schema: TableSchema, hash_bits: int) -> None:
        self.backups: dict[int, LoggedSegment] = {}
        """All that was not freed."""
        self.live: list[int] = []
        """The segments that the next digest names."""
        self.retired: list[tuple[list[int], int]] = []
        """Parents, and the head whose digest is the first without them; 0: none yet."""
        self.moves: list[tuple[Move, list[int], int]] = []
        """Under way: parents and survivor in the log; none for what memory alone has."""
        self.next_id = 0
        self.heads: list[list[int]] = []
        """Digests of the newest head, and of those that may end the log yet in its place."""
        self.compacted = self.cleaned = 0
        super().__init__(schema, hash_bits)

    def roll(self) -> None:
        self.next_id += 1
        segment_id, tablet = self.next_id, self.tablet
        self.live.append(segment_id)
        prologue = Prologue(
            "table",
            "tablet",
            segment_id,
            1,
            tuple(sorted(self.live)),
            tablet.next_version,
            self.schema,
            tablet.results.snapshot(),
            tablet.forgot_below,
        )
        self.slots[segment_id] = tablet.new_head(segment_id)
        self.log[segment_id] = self.backups[segment_id] = LoggedSegment(segment_id)
        payload = encode_prologue(prologue)
        self.log[segment_id].append(Entry(1, 0, EntryKind.PROLOGUE, 0, 0, (), payload))
        self.heads.append(list(self.live))
        self.retired = [(ids, head or segment_id) for ids, head in self.retired]

    def pass_barrier(self) -> None:
        """The newest head is durable, and those before it are closed: free what it leaves out."""
        self.heads = self.heads[-1:]
        for ids, head in self.retired:
            for freed in ids if head else ():
                del self.backups[freed]
        self.retired = [(ids, head) for ids, head in self.retired if not head]

    def append(self, executed: Any, results: Any) -> None:
        self.heads = self.heads[-1:]  # nothing counts in a head before those before it are closed
        super().append(executed, results)

    def sealed(self) -> list[Any]:
        busy = {i for _, ids, _ in self.moves for i in ids}
        found = [s for s in self.tablet.statistics() if s.sealed and s.segment_id not in busy]
        return [s for s in found if s.segment_id in self.live]

    def compact(self, number: int, rows_at_once: int) -> None:
        """Drop a segment's dead rows from memory alone."""
        if not (sealed := self.sealed()):
            return
        chosen, memory = sealed[number % len(sealed)], self.tablet
        (parent,) = memory.parents([chosen.slot])
        keys = parent.segment.held or filter_of(parent, self.codec)
        survivor = survive([parent], self.codec, None)
        memory.hold(parent, keys)
        size = survivor.batch.nbytes
        move = memory.begin_move(
            [chosen.slot], survivor, chosen.segment_id, survivor.batch, size, chosen.bytes
        )
        self.compacted += 1
        self.moves.append((move, [chosen.segment_id], -1))
        self.go_on(rows_at_once)

    def clean(self, number: int, count: int, rows_at_once: int, keeps: bool) -> None:
        """Put a survivor in the place of neighbours."""
        if any(survivor >= 0 for _, _, survivor in self.moves):
            return
        everything = self.tablet.statistics()
        at = {s.segment_id: place for place, s in enumerate(everything)}
        sealed = self.sealed()
        if not sealed:
            return
        first = number % len(sealed)
        window = [sealed[first]]
        for each in sealed[first + 1 : first + count]:
            if at[each.segment_id] == at[window[-1].segment_id] + 1:
                window.append(each)
        memory = self.tablet
        slots = [each.slot for each in window]
        parents = memory.parents(slots)
        filters: list[KeyFilter] | None = None
        if not keeps:
            earlier = memory.earlier(slots[0])
            made = [each.segment.held or filter_of(each, self.codec) for each in earlier]
            filters = [memory.hold(e, keys) for e, keys in zip(earlier, made, strict=True)]
        survivor = survive(parents, self.codec, filters)
        batch, size, segment_id = survivor.batch, 0, 0
        if batch.num_rows:
            self.next_id += 1
            segment_id = self.next_id
            image = build_image(batch, self.meta(parents, segment_id, batch), self.codec)
            self.backups[segment_id] = LoggedSegment(segment_id, image=image)
            batch, size = Image.open(image, "survivor").batch, image.size
        move = memory.begin_move(slots, survivor, segment_id, batch, size)
        self.cleaned += 1
        self.moves.append((move, [each.segment_id for each in window], segment_id))
        self.go_on(rows_at_once)

    @staticmethod
    def meta(parents: list[Any], segment_id: int, batch: pa.RecordBatch) -> ImageMeta:
        segments = [parent.segment for parent in parents]
        return ImageMeta(
            "table",
            "tablet",
            segment_id,
            1,
            min([each.first_index for each in segments if each.first_index], default=0),
            max([each.last_index for each in segments]),
            batch.num_rows,
            segments[-1].next_version,
            segments[0].schema_version,
        )

    def go_on(self, rows: int) -> None:
        """Move so many rows of each; what is over is in the log from now on."""
        under_way = []
        for move, parents, survivor in self.moves:
            if not self.tablet.step(move, rows):
                under_way.append((move, parents, survivor))
            elif survivor >= 0:
                self.live = [i for i in self.live if i not in parents]
                self.live += [survivor] if survivor else []
                self.retired.append((parents, 0))
        self.moves = under_way

    def recovered(self, rng: random.Random) -> TabletMemory:
        """What a recovery makes of what the backups hold, by any head that may end the log."""
        digest = rng.choice(self.heads)
        segments: list[RecoveredSegment] = []
        for segment_id in digest:
            logged = self.backups[segment_id]
            segments.append(logged.recovered(self.schema, self.codec, rows=not logged.image))
        rng.shuffle(segments)
        tablet = TabletMemory(self.schema, "table", self.codec)
        tablet.adopt(segments, None, 0.0)
        return tablet


def versions_of(tablet: TabletMemory) -> list[Any]:
    parts = tablet.scan_snapshot().batches(with_versions=True)
    return [row[-1] for part in parts for row in batch_to_rows(part)]


MOVES = st.one_of(
    st.tuples(
        st.just("write"),
        st.sampled_from([WriteOp.UPSERT, WriteOp.UPSERT, WriteOp.DELETE, *WriteOp]),
        st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=5),
        st.booleans(),
        st.booleans(),
    ),
    st.tuples(st.just("roll")),
    st.tuples(st.just("seal"), st.integers(1, 3)),
    st.tuples(st.just("compact"), st.integers(0, 9), st.sampled_from([1, 2, 100])),
    st.tuples(
        st.just("clean"),
        st.integers(0, 9),
        st.integers(1, 4),
        st.sampled_from([1, 2, 100]),
        st.sampled_from([False, False, True]),
    ),
    st.tuples(st.just("go on"), st.integers(1, 4)),
    st.tuples(st.just("barrier")),
    st.tuples(st.just("pull"), st.integers(1, 300)),
    st.tuples(st.just("check"), st.integers(0, 1 << 16)),
)


class Copy:
    """Another tablet, brought up to date by `changes_since` while its source is cleaned."""

    def __init__(self, world: Cleaned) -> None:
        self.world = world
        self.begin()

    def begin(self) -> None:
        self.tablet = TabletMemory(self.world.schema, "table", self.world.codec)
        self.tablet.new_head(1)
        self.began_at = self.world.tablet.forgettings

    def pull(self, limit_bytes: int) -> bool:
        """One piece; whether it has all."""
        source, own = self.world.tablet, self.tablet
        changes = source.changes_since(own.next_version, limit_bytes, self.began_at)
        if changes is None:  # it was told that it has to begin anew
            self.begin()
            return False
        own.import_changes(changes.batch, changes.next_version, own.last_index + 1)
        return changes.is_last


def play(world: Cleaned, moves: list[Any]) -> None:
    copy = Copy(world)
    for salt, move in enumerate(moves):
        match move[0]:
            case "write":
                write(world, move, salt)
            case "roll":
                world.roll()
            case "seal":
                for _ in range(move[1]):
                    world.seal()
            case "compact":
                world.compact(*move[1:])
            case "clean":
                world.clean(*move[1:])
            case "go on":
                world.go_on(move[1])
            case "barrier":
                world.pass_barrier()
            case "pull":
                copy.pull(move[1])
            case _:
                check(world, random.Random(move[1]))
    check(world, random.Random(len(moves)))
    while not copy.pull(200):
        continue
    assert state_of(copy.tablet)[0] == world.state()[0]


def write(world: Cleaned, move: Any, salt: int) -> None:
    """One call: updates of some columns, and conditions, find rows wherever they are."""
    _, op, numbers, as_batch, if_there = move
    schema = world.schema
    names = list(schema.arrow.names)
    columns = list(schema.key) if op is WriteOp.DELETE else names
    if op is WriteOp.UPDATE:
        columns = [name for name in names if name != "name"]
    keys = [make_key(schema, n) for n in numbers]
    rows = []
    for i, n in enumerate(numbers):
        named = dict(zip(names, make_row(schema, n, salt + i), strict=True))
        rows.append(tuple([named[name] for name in columns]))
    if_versions = right_versions(world, op, keys) if if_there else None
    request = RequestId(ClientId("client"), salt + 1, salt + 1)
    world.write(op, rows, columns, if_versions, as_batch, request)


def check(world: Cleaned, rng: random.Random) -> None:
    """Readers see what the model says, in the order of versions; so they do after a recovery."""
    world.check(world.tablet)
    seen = versions_of(world.tablet)
    assert seen == sorted(seen)
    recovered = world.recovered(rng)
    world.check(recovered)
    assert versions_of(recovered) == seen
    assert recovered.next_version == world.tablet.next_version
    assert recovered.forgot_below <= world.tablet.forgot_below


@pytest.mark.parametrize(
    ("schema", "hash_bits"), [(INT_KEY, 64), (INT_KEY, 1), (WIDE_KEY, 64), (WIDE_KEY, 1)]
)
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(moves=st.lists(MOVES, min_size=15, max_size=60))
def test_cleaning_at_any_moment_changes_nothing_that_is_seen(
    schema: TableSchema, hash_bits: int, moves: list[Any]
) -> None:
    """Get, get_many, ordered scans and versions stay, before and after a recovery from any digest
    that may count; what is brought over to another tablet meanwhile is whole."""
    play(Cleaned(schema, hash_bits), moves)


def long_play(seed: int, schema: TableSchema) -> Cleaned:
    """Many moves that clean often."""
    rng = random.Random(seed)
    world, moves = Cleaned(schema, 64), list[tuple[Any, ...]]()
    for _ in range(400):
        kind = rng.choices(
            ["write", "roll", "seal", "compact", "clean", "go on", "barrier", "pull", "check"],
            [8, 3, 3, 1, 3, 2, 2, 1, 1],
        )[0]
        match kind:
            case "write":
                op = rng.choice([WriteOp.UPSERT, WriteOp.DELETE, *WriteOp])
                numbers = [rng.randrange(KEYS) for _ in range(rng.randrange(1, 5))]
                moves.append(("write", op, numbers, rng.random() < 0.5, rng.random() < 0.3))
            case "seal":
                moves.append(("seal", 3))
            case "compact":
                moves.append(("compact", rng.randrange(99), rng.choice([1, 100])))
            case "clean":
                rows = rng.choice([1, 100])
                moves.append(("clean", rng.randrange(99), rng.randrange(1, 5), rows, False))
            case "go on":
                moves.append(("go on", rng.randrange(1, 9)))
            case "pull":
                moves.append(("pull", 200))
            case "check":
                moves.append(("check", rng.randrange(999)))
            case other:
                moves.append((other,))
    play(world, moves)
    return world


@pytest.mark.parametrize("schema", [INT_KEY, WIDE_KEY], ids=["exact", "hashed"])
@pytest.mark.parametrize("seed", range(6))
def test_a_log_that_is_cleaned_for_long_stays_short_and_right(
    seed: int, schema: TableSchema
) -> None:
    """And cleaning does happen, tombstones are forgotten, and slots are used again."""
    world = long_play(seed, schema)
    assert world.compacted
    assert world.cleaned > 10
    assert world.tablet.forgot_below
    assert len(world.tablet._store.segments) < len(world.backups) + world.cleaned


def play_long(seeds: int) -> None:
    for seed in range(seeds):
        long_play(seed, INT_KEY)


def test_a_tombstone_that_is_forgotten_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: no segment before it is asked whether it has an older row of the key."""
    none = lambda batch, tombstones, codec, earlier: (  # noqa: E731
        np.zeros(batch.num_rows, np.bool_),
        1,
    )
    monkeypatch.setattr(survivors, "_needed", none)
    with pytest.raises(AssertionError):
        play_long(20)


def test_a_filter_of_what_memory_has_alone_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: nobody asks for keys of rows that memory has dropped, and backups have not."""
    monkeypatch.setattr(TabletMemory, "hold", lambda self, parent, keys: keys)
    with pytest.raises(AssertionError):
        play_long(60)


def test_parents_that_are_freed_before_the_barrier_are_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planted: they go with the next head, whether that is durable or not."""

    def hasty(world: Cleaned) -> None:
        World_roll(world)
        for ids, _ in world.retired:
            for freed in ids:
                del world.backups[freed]
        world.retired = []

    World_roll = Cleaned.roll
    monkeypatch.setattr(Cleaned, "roll", hasty)
    with pytest.raises(KeyError):
        play_long(20)


def test_readers_in_flight_keep_what_they_hold() -> None:
    """A snapshot and rows that were located read the same after their segments are gone."""
    world = Cleaned(INT_KEY, 64)
    names = list(INT_KEY.arrow.names)
    for n in range(KEYS):
        rows = [make_row(INT_KEY, n, n)]
        world.write(
            WriteOp.UPSERT, rows, names, None, False, RequestId(ClientId("c"), n + 1, n + 1)
        )
        world.roll()
        world.seal()
    snapshot = world.tablet.scan_snapshot()
    keys = [make_key(INT_KEY, n) for n in range(KEYS)]
    located = world.tablet.locate(batch_of_keys(keys))
    before = [row for part in snapshot.batches(with_versions=True) for row in batch_to_rows(part)]
    found = batch_to_rows(located.gather())
    for n in range(KEYS):
        sequence = 100 + n
        world.write(
            WriteOp.DELETE,
            keys[n : n + 1],
            ["id"],
            None,
            False,
            RequestId(ClientId("c"), sequence, sequence),
        )
        world.clean(0, 4, 1, False)
        world.go_on(2)
        world.compact(n, 1)
    after = [row for part in snapshot.batches(with_versions=True) for row in batch_to_rows(part)]
    assert after == before
    assert batch_to_rows(located.gather()) == found
    assert len(before) == len(found) == KEYS


def batch_of_keys(keys: list[tuple[Any, ...]]) -> pa.RecordBatch:
    return batch_of(INT_KEY, keys, ["id"])
