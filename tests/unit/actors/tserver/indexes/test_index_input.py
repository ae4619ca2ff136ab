"""What an indexlet is sent: malformed, stale or too much of it is refused, and changes nothing.

Over TCP to a server in this process, whose fixture fails on any error that is not ours; and at an
indexlet that is being filled, for what recovery jobs and other indexlets bring.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from stelae.actors.tserver.indexes.entry_streams import stream_of
from stelae.actors.tserver.indexes.indexlet import Indexlet
from stelae.actors.tserver.indexes.indexlet_hand_over import take_copy
from stelae.actors.tserver.indexes.indexlet_offers import IndexletOffers
from stelae.core.errors import (
    IndexletNotHere,
    IndexletNotReady,
    InvalidArgument,
    StaleTerm,
    WrongServer,
)
from stelae.core.ids import TabletId
from stelae.core.messages.index_offers import OFFER_ENTRIES, OfferEntries
from stelae.core.messages.indexes import (
    COPY_ENTRIES,
    ENTRIES_MAX,
    FILL_ENTRIES,
    INSERT_ENTRIES,
    LOOKUP,
    OPEN_INDEXLET,
    REMOVE_ENTRIES,
    CopyEntries,
    FillEntries,
    IndexletProgress,
    InsertEntries,
    KnownTablet,
    Lookup,
    OpenIndexlet,
    RemoveEntries,
    TabletStamp,
)
from stelae.core.rpc import Blob, Call
from stelae.core.schema.durability import segments
from stelae.core.schema.indexes import IndexletId, IndexletState
from stelae.core.schema.partition import hash_partition
from stelae.core.schema.shares import NUMBERS_MAX
from stelae.core.tasks import Tasks
from stelae.storage.indexes.keys import EntryCodec
from tests.cluster_fixture import LocalCluster, local_cluster
from tests.until import until_async

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), pa.field("n", pa.int32())])
TABLETS = 2
TERM = 3
EPOCH = 5
JUNK = b"neither a stream nor a frame"


def stamp(number: int = 0, epoch: int = EPOCH, first: int = 0) -> TabletStamp:
    return TabletStamp(number, epoch, first)


def view(blob: Blob) -> memoryview:
    return memoryview(blob)


def stream(*entries: bytes | None) -> pa.Buffer:
    """Whatever it is, as an Arrow IPC stream with a column ``entry``."""
    batch = pa.record_batch({"entry": pa.array(entries, pa.binary())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def other_stream() -> pa.Buffer:
    """A stream of something else."""
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"number": [1, 2]})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def progress_of(filling: Filling) -> IndexletProgress:
    return filling.indexlet.progress


def seen(indexlet: Indexlet) -> Any:
    """All that a message could change."""
    return (
        list(indexlet.entries.live_entries()),
        {number: (k.epoch, k.first_incomplete) for number, k in indexlet.known.items()},
        sorted(indexlet.filled),
        indexlet.progress,
    )


class ServedIndexlet:
    """A server with the one indexlet of a table of a few rows, and a caller."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.peers = cluster.client_runtime("caller").peers
        self.server = next(s for s in cluster.tservers if s.indexlets.reports())
        (report,) = self.server.indexlets.reports()
        found = self.server.indexlets.indexlet(report.indexlet_id)
        assert found is not None
        self.indexlet = found
        self.codec = EntryCodec(found.table.schema, found.table.schema.indexes[0])

    @property
    def name(self) -> tuple[IndexletId, int]:
        return self.indexlet.indexlet_id, self.indexlet.term

    def is_quiet(self) -> bool:
        """No tablet makes itself known any more."""
        known = self.indexlet.known.values()
        return len(known) == TABLETS and all(each.is_compared for each in known)

    def entry(self, n: int | None, key: int) -> bytes:
        return self.codec.encode_one(n, (key,))

    async def send(self, method: Any, body: Any, blobs: Sequence[Blob] = ()) -> Any:
        info = self.server.info
        return await self.peers.call(
            info.address, method, body, timeout_s=5.0, blobs=blobs, destination=info.uuid
        )

    async def refused(
        self, error: type[Exception], text: str, method: Any, body: Any, *blobs: Blob
    ) -> None:
        """The message is refused so, and nothing is another than before."""
        before = seen(self.indexlet)
        with pytest.raises(error, match=text):
            await self.send(method, body, blobs)
        assert seen(self.indexlet) == before, body


async def here(cluster: LocalCluster) -> ServedIndexlet:
    """With rows whose entries are in."""
    table = await cluster.database.create_table(
        "things",
        SCHEMA,
        key="id",
        partition=hash_partition("id", TABLETS),
        durability=segments("ram"),
        indexes=("n",),
    )
    await table.upsert([{"id": i, "n": i % 3} for i in range(9)])
    assert (await table.find("n", 1))["id"].to_pylist() == [1, 4, 7]
    at = ServedIndexlet(cluster)
    await until_async(at.is_quiet, 20.0, "no entries are on their way", poll_s=0.02)
    return at


async def test_insertions_that_no_tablet_would_send_change_nothing(tmp_path: Path) -> None:
    """Numbers that are none, sequences without entries, streams of something else."""
    async with local_cluster(tmp_path) as cluster:
        at = await here(cluster)
        own = next(iter(at.indexlet.known.values())).epoch
        good, ok = at.entry(7, 70), stamp(epoch=own)
        for method, message in ((INSERT_ENTRIES, InsertEntries), (REMOVE_ENTRIES, RemoveEntries)):

            def few(
                tablet: TabletStamp, sequences: tuple[int, ...], *entries: bytes, of: Any = message
            ) -> Any:
                return of(*at.name, tablet, sequences, entries)

            bad: list[tuple[Any, str, Sequence[Blob]]] = [
                (few(ok, (1, 2), good), "each entry has its sequence", ()),
                (few(ok, (-1,), good), "cannot be read", ()),
                (few(ok, (1 << 62,), good), "cannot be read", ()),
                (few(stamp(-1), (1,), good), "cannot be read", ()),
                (few(stamp(epoch=-1), (1,), good), "cannot be read", ()),
                (few(stamp(NUMBERS_MAX), (1,), good), "tablet 32768 of 2", ()),
                (few(stamp(1 << 31), (1,), good), "tablet 2147483648 of 2", ()),
                (few(ok, tuple(range(600)), *[good] * 600), f"at most {ENTRIES_MAX}", ()),
                (few(ok, (1,)), "not an Arrow IPC stream", (JUNK,)),
                (few(ok, (1,)), "not an Arrow IPC stream", (other_stream(),)),
                (few(ok, (1,)), "never null", (stream(good, None),)),
            ]
            for body, text, blobs in bad:
                await at.refused(InvalidArgument, text, method, body, *blobs)
        nothing = InsertEntries(*at.name, ok, (), ())
        await at.refused(InvalidArgument, "has a sequence", INSERT_ENTRIES, nothing)


async def test_messages_that_are_late_or_for_another_change_nothing(tmp_path: Path) -> None:
    """Another term, an epoch that is over, an indexlet that is not here."""
    async with local_cluster(tmp_path) as cluster:
        at = await here(cluster)
        entry, (indexlet_id, term) = at.entry(7, 70), at.name
        for number, known in at.indexlet.known.items():
            late = stamp(number, known.epoch - 1)
            body = InsertEntries(indexlet_id, term, late, (1,), (entry,))
            await at.refused(StaleTerm, "epoch of tablet", INSERT_ENTRIES, body)
        now = stamp(epoch=max(known.epoch for known in at.indexlet.known.values()))
        other = IndexletId("0" * 32)
        for change in (-1, 1):
            body = InsertEntries(indexlet_id, term + change, now, (1,), (entry,))
            await at.refused(StaleTerm, "term of indexlet", INSERT_ENTRIES, body)
            look = Lookup(indexlet_id, term + change, b"")
            await at.refused(StaleTerm, "term of indexlet", LOOKUP, look)
            offer = OfferEntries(indexlet_id, term + change, now, 0, 1)
            await at.refused(StaleTerm, "term of indexlet", OFFER_ENTRIES, offer, stream(entry))
        for method, absent in (
            (INSERT_ENTRIES, InsertEntries(other, term, now, (1,), (entry,))),
            (LOOKUP, Lookup(other, term, b"")),
            (OFFER_ENTRIES, OfferEntries(other, term, now, 0, 1)),
            (COPY_ENTRIES, CopyEntries(other, term, (), True)),
        ):
            await at.refused(IndexletNotHere, other, method, absent)


async def test_another_run_of_the_server_was_to_open_it(tmp_path: Path) -> None:
    """Nothing is opened: that run is over, or is still to come, and so is its lease."""
    async with local_cluster(tmp_path) as cluster:
        at = await here(cluster)
        record, table = at.indexlet.record, at.indexlet.table
        for term in (record.term, record.term + 1):
            for change in (-1, 1):
                of = record.owner_incarnation + change
                other = msgspec.structs.replace(record, owner_incarnation=of, term=term)
                other = msgspec.structs.replace(other, indexlet_id=IndexletId("0" * 32))
                order = OpenIndexlet(other, table)
                await at.refused(WrongServer, f"run {of}", OPEN_INDEXLET, order)
        assert len(at.server.indexlets.reports()) == 1


async def test_fills_and_look_ups_that_ask_for_nothing_sound(tmp_path: Path) -> None:
    """Sessions and pieces that never were; bounds and limits that are none of an entry."""
    async with local_cluster(tmp_path) as cluster:
        at = await here(cluster)
        tablet = at.server.reports()[0].tablet_id
        index_id = at.indexlet.record.index_id
        version = at.indexlet.table.schema.version
        unknown = FillEntries(tablet, index_id, b"", b"", version, "never begun", 1)
        await at.refused(InvalidArgument, "let go", FILL_ENTRIES, unknown)
        beyond = FillEntries(tablet, index_id, b"", b"", version, "", 7)
        await at.refused(InvalidArgument, "has no 7", FILL_ENTRIES, beyond)
        gone = FillEntries(TabletId("0" * 32), index_id, b"", b"", version)
        await at.refused(Exception, "0" * 32, FILL_ENTRIES, gone)
        for low, high in ((b"\xff" * 9, b""), (b"b", b"a")):
            reply = await at.send(LOOKUP, Lookup(*at.name, low, high, 5))
            assert reply.body.entries == ()
        reply = await at.send(LOOKUP, Lookup(*at.name, b"", b"", -5))
        assert len(reply.body.entries) == 1


class Filling:
    """An indexlet of that table that is filled, or is to succeed another one, in no server."""

    def __init__(self, at: ServedIndexlet, *, succeeds: str = "") -> None:
        runtime, record = (
            at.cluster.client_runtime("heir" if succeeds else "holder"),
            at.indexlet.record,
        )
        record = type(record)(
            IndexletId("f" * 32),
            record.index_id,
            record.table_id,
            b"",
            at.entry(100, 0),
            IndexletState.FILLING,
            TERM,
            record.owner,
            record.owner_incarnation,
            1,
            IndexletId(succeeds),
        )
        table = at.indexlet.table
        self.runtime = runtime
        self.indexlet = Indexlet(runtime, Tasks(), "holder", record, table, lambda: True)
        self.offers = IndexletOffers(runtime, self.indexlet)

    async def offer(self, tablet: TabletStamp, piece: int, count: int, *blobs: Blob) -> None:
        body = OfferEntries(self.indexlet.indexlet_id, TERM, tablet, piece, count)
        await self.offers.take(Call(body, [view(blob) for blob in blobs], 5.0))

    async def copy(self, tablets: tuple[KnownTablet, ...], *blobs: Blob) -> None:
        body = CopyEntries(self.indexlet.indexlet_id, TERM, tablets, not blobs)
        call = Call(body, [view(blob) for blob in blobs], 5.0)
        await take_copy(self.runtime, self.indexlet, call)


async def test_offers_that_no_job_would_make_change_nothing(tmp_path: Path) -> None:
    """Refused, each with what is wrong; afterwards a right one is taken as if none had come."""
    async with local_cluster(tmp_path) as cluster:
        at = await here(cluster)
        filling = Filling(at)
        good, above = at.entry(1, 10), at.entry(100, 10)
        bad: list[tuple[type[Exception], str, TabletStamp, int, int, Sequence[Blob]]] = [
            (InvalidArgument, "tablet 32768 of 2", stamp(NUMBERS_MAX), 0, 1, [stream(good)]),
            (InvalidArgument, "piece 1 of 1", stamp(), 1, 1, [stream(good)]),
            (InvalidArgument, "piece -1 of 2", stamp(), -1, 2, [stream(good)]),
            (InvalidArgument, "piece 0 of -1", stamp(), 0, -1, [stream(good)]),
            (InvalidArgument, "piece 0 of 2097152", stamp(), 0, 1 << 21, [stream(good)]),
            (InvalidArgument, "is one blob, not 0", stamp(), 0, 1, []),
            (InvalidArgument, "is one blob, not 2", stamp(), 0, 1, [stream(good)] * 2),
            (InvalidArgument, "not an Arrow IPC stream", stamp(), 0, 1, [JUNK]),
            (InvalidArgument, "not an Arrow IPC stream", stamp(), 0, 1, [other_stream()]),
            (InvalidArgument, "never null", stamp(), 0, 1, [stream(None)]),
        ]
        for error, text, tablet, piece, count, blobs in bad:
            before = seen(filling.indexlet)
            with pytest.raises(error, match=text):
                await filling.offer(tablet, piece, count, *blobs)
            assert seen(filling.indexlet) == before, text
        await filling.offer(stamp(), 0, 0)  # a promise, by which the epoch is known
        for text, entries in (
            ("not entries of index", (b"",)),
            ("not entries of index", (good + b"!",)),
            ("not entries of index", (good, b"\1short")),
        ):
            before = seen(filling.indexlet)
            with pytest.raises(InvalidArgument, match=text):
                await filling.offer(stamp(), 0, 1, stream(*entries))
            assert seen(filling.indexlet) == before, entries
        with pytest.raises(IndexletNotHere):
            await filling.offer(stamp(), 0, 1, stream(good, above))
        with pytest.raises(StaleTerm, match="epoch of tablet 0"):
            await filling.offer(stamp(epoch=EPOCH - 1), 0, 1, stream(good))
        assert not filling.indexlet.filled
        await filling.offer(stamp(), 0, 1, stream(good))
        assert filling.indexlet.filled == {0}
        assert list(filling.indexlet.entries.live_entries()) == [good]


async def test_pieces_of_two_jobs_do_not_make_one_whole(tmp_path: Path) -> None:
    """A tablet's entries are here once all pieces of one cut are: another job cuts otherwise."""
    async with local_cluster(tmp_path) as cluster:
        at = await here(cluster)
        filling, entries = Filling(at), [at.entry(n, n) for n in range(3)]
        await filling.offer(stamp(), 0, 3, stream(entries[0]))
        await filling.offer(stamp(), 1, 2, stream(entries[2]))
        assert not filling.indexlet.filled
        await filling.offer(stamp(), 1, 3, stream(entries[1]))
        await filling.offer(stamp(), 1, 3, stream(entries[1]))
        assert not filling.indexlet.filled
        await filling.offer(stamp(), 2, 3, stream(entries[2]))
        assert filling.indexlet.filled == {0}
        assert list(filling.indexlet.entries.live_entries()) == entries


async def test_copies_that_no_indexlet_would_send_change_nothing(tmp_path: Path) -> None:
    """Also to one that succeeds no other, or whose offers come from the one before it."""
    async with local_cluster(tmp_path) as cluster:
        at = await here(cluster)
        filling, heir = Filling(at), Filling(at, succeeds="a" * 32)
        entry = pa.array([at.entry(1, 10)], pa.binary())
        known = KnownTablet(NUMBERS_MAX, EPOCH, 0, 0, 0, True)
        bad: list[tuple[Filling, str, tuple[KnownTablet, ...], Sequence[Blob]]] = [
            (filling, "succeeds no other", (), [stream_of(entry, [0], [EPOCH], [1], [False])]),
            (heir, "tablet 32768 of 2", (known,), []),
            (heir, "tablet 65536 of 2", (), [stream_of(entry, [1 << 16], [EPOCH], [1], [False])]),
            (heir, "below 2", (), [stream_of(entry, [0], [EPOCH], [1 << 62], [False])]),
            (heir, "below 2", (), [stream_of(entry, [0], [1 << 63], [1], [False])]),
            (heir, "not an Arrow IPC stream", (), [JUNK]),
            (heir, "not an Arrow IPC stream", (), [stream(entry[0].as_py())]),
        ]
        for indexlet, text, tablets, blobs in bad:
            before = seen(indexlet.indexlet)
            with pytest.raises(InvalidArgument, match=text):
                await indexlet.copy(tablets, *blobs)
            assert seen(indexlet.indexlet) == before, text
        with pytest.raises(InvalidArgument, match="filled by another one"):
            await heir.offer(stamp(), 0, 1, stream(at.entry(1, 10)))
        assert progress_of(heir) is IndexletProgress.FILLING
        await heir.copy((), stream_of(entry, [0], [EPOCH], [1], [False]))
        await heir.copy(())
        assert progress_of(heir) is IndexletProgress.COMPLETE
        assert list(heir.indexlet.entries.live_entries()) == entry.to_pylist()


async def test_who_has_everything_takes_nothing_of_another_hand_over(tmp_path: Path) -> None:
    """To that it would seem to have all, and what was put in since at its source alone is lost."""
    async with local_cluster(tmp_path) as cluster:
        at = await here(cluster)
        heir, (old, new) = Filling(at, succeeds="a" * 32), (at.entry(1, 10), at.entry(2, 11))
        for entry, is_refused in ((old, False), (new, True)):
            piece = stream_of(pa.array([entry], pa.binary()), [0], [EPOCH], [1], [False])
            for blobs in ((piece,), ()):
                with pytest.raises(IndexletNotReady) if is_refused else nullcontext():
                    await heir.copy((), *blobs)
        assert list(heir.indexlet.entries.live_entries()) == [old]
