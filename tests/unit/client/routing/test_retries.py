"""How calls are repeated: where to, at what pace, until when, and what is said in the end."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from stelae.client.routing.attempts import LONGEST_PAUSE_S
from stelae.client.routing.masters import MastersClient
from stelae.client.routing.retries import on_tablet
from stelae.client.table.scan import scan_tablet
from stelae.core.errors import (
    DeadlineExpired,
    InvalidArgument,
    NoQuorum,
    NoSpace,
    NotLeader,
    OutcomeUnknown,
    OutOfMemory,
    Overloaded,
    RowExists,
    SchemaChanged,
    StelaeError,
    TableNotFound,
    TabletNotHere,
    TabletNotReady,
    Unavailable,
    decode_error,
    encode_error,
)
from stelae.core.ids import Address
from stelae.core.messages.catalog import (
    GET_TABLE,
    LINEARIZABLE,
    LIST_TABLES,
    ListTables,
    TableList,
)
from stelae.core.messages.rows import GET, SCAN, GetReply, ScanReply
from stelae.core.rpc import Reply
from stelae.core.schema.schema import TableSchema
from tests.unit.client.routing.scripted import TSERVER, Scripted, cache_of, locations

SCHEMA = TableSchema.of(pa.schema([("id", pa.int64())]), ["id"])
UNKNOWN = OutcomeUnknown("t:1", "write", 1.0)


@pytest.fixture(params=[False, True], ids=["owned", "grouped"])
def grouped(request: pytest.FixtureRequest) -> bool:
    """Whether the tablet has replicas that are a group; its first one leads."""
    return bool(request.param)


async def attempt_all(
    *outcomes: StelaeError | str,
    timeout_s: float = 10.0,
    runtime: Scripted | None = None,
    grouped: bool = False,
    max_staleness_s: float = LINEARIZABLE,
) -> Any:
    """Run `on_tablet` with attempts that end so, one after the other; the last one for ever."""
    runtime = runtime or Scripted()
    cache = cache_of(runtime, locations(SCHEMA, grouped=grouped))
    runtime.peers.otherwise[GET.name] = lambda _: GetReply(())
    left = list(outcomes)

    async def attempt(where: Any, owner: Any, limit_s: float) -> str:
        assert 0 < limit_s <= timeout_s
        outcome = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(outcome, StelaeError):
            raise outcome
        return outcome

    return await on_tablet(
        runtime,  # type: ignore[arg-type]
        cache,
        0,
        "write",
        attempt,
        timeout_s=timeout_s,
        max_staleness_s=max_staleness_s,
    )


async def test_moves_waits_and_lost_answers_are_repeated(grouped: bool) -> None:
    """Until there is an answer."""
    outcomes = (
        TabletNotHere("t", "s"),
        TabletNotReady("t", "opening"),
        UNKNOWN,
        Overloaded("q", 1),
        Unavailable("t:1", "refused"),
    )
    assert await attempt_all(*outcomes, "done", grouped=grouped) == "done"
    answer = await attempt_all(*outcomes, "done", grouped=grouped, max_staleness_s=1.0)
    assert answer == "done"


@pytest.mark.parametrize(
    "error",
    [RowExists("t", "1", 1), OutOfMemory("s", 2, 1), NoSpace("s", "d"), SchemaChanged("t", 1, 2)],
)
async def test_what_repeating_cannot_mend_is_raised_at_once(
    error: StelaeError, grouped: bool
) -> None:
    """Refusals, no room, and columns that mean nothing any more."""
    runtime = Scripted()
    with pytest.raises(type(error)):
        await attempt_all(error, runtime=runtime, grouped=grouped)
    assert runtime.clock.sleeps == []


@pytest.mark.parametrize("error", [OutOfMemory("s", 2, 1), NoSpace("s", "d")])
async def test_no_room_after_a_lost_answer_is_an_unknown_outcome(
    error: StelaeError, grouped: bool
) -> None:
    """OutOfMemory means "surely not done", and nobody is sure any more."""
    with pytest.raises(OutcomeUnknown):
        await attempt_all(UNKNOWN, error, grouped=grouped)


async def test_the_deadline_ends_it_and_says_the_worst_that_may_have_happened(
    grouped: bool,
) -> None:
    """Unknown if any attempt may have been carried out, else what was met last."""
    with pytest.raises(OutcomeUnknown):
        await attempt_all(UNKNOWN, Overloaded("q", 1), grouped=grouped)
    with pytest.raises(Overloaded):
        await attempt_all(TabletNotReady("t", "x"), Overloaded("q", 1), grouped=grouped)
    with pytest.raises(DeadlineExpired):
        await attempt_all("never tried", timeout_s=0.0, grouped=grouped)


async def test_pauses_grow_to_a_bound_and_none_is_left_out(grouped: bool) -> None:
    """Ten seconds of refusals are some fifty tries, not thousands."""
    runtime = Scripted()
    with pytest.raises(Overloaded):
        await attempt_all(Overloaded("q", 1), runtime=runtime, grouped=grouped)
    assert 0.9 * LONGEST_PAUSE_S < max(runtime.clock.sleeps) <= LONGEST_PAUSE_S
    assert 30 < len(runtime.clock.sleeps) < 60
    assert runtime.clock.time == pytest.approx(110.0)


async def test_a_deleted_table_ends_it() -> None:
    """The masters say so at the refresh."""
    runtime = Scripted()
    runtime.peers.script(GET_TABLE.name, TableNotFound("t"))
    with pytest.raises(TableNotFound):
        await attempt_all(TabletNotHere("t", "s"), runtime=runtime)


async def test_silent_masters_do_not_hold_a_call_beyond_its_deadline() -> None:
    """The refresh of locations takes what is left of it, and no more."""
    runtime = Scripted()
    cache = cache_of(runtime, locations(SCHEMA))

    async def hang() -> None:
        await asyncio.sleep(3600)

    cache.refresh = hang  # type: ignore[method-assign]

    async def attempt(where: Any, owner: Any, limit_s: float) -> str:
        raise TabletNotHere("t", "s")

    async def slept(duration_s: float) -> None:
        await asyncio.sleep(duration_s)

    runtime.clock.monotonic = asyncio.get_running_loop().time  # type: ignore[method-assign]
    runtime.clock.sleep = slept  # type: ignore[method-assign]
    async with asyncio.timeout(5):
        with pytest.raises(DeadlineExpired, match="tablet t is not served by s"):
            await on_tablet(runtime, cache, 0, "get", attempt, timeout_s=0.05)  # type: ignore[arg-type]


# ---- scans ------------------------------------------------------------------------------------


def piece(cursor: str, *ids: int) -> Reply[ScanReply]:
    batch = pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return Reply(ScanReply(cursor, len(ids)), [memoryview(sink.getvalue())])


async def scan(runtime: Scripted, timeout_s: float = 10.0) -> list[int]:
    cache = cache_of(runtime, locations(SCHEMA))
    batches = await scan_tablet(runtime, cache, 0, (), (), None, False, timeout_s)  # type: ignore[arg-type]
    return [row["id"] for batch in batches for row in batch.to_pylist()]


async def test_a_scan_that_breaks_off_begins_anew_and_gives_each_row_once() -> None:
    """Nothing of the first try is handed out."""
    runtime = Scripted()
    runtime.peers.script(
        SCAN.name, piece("c", 1), InvalidArgument("expired"), piece("d", 1), piece("", 2)
    )
    assert await scan(runtime) == [1, 2]
    assert [(s.cursor, s.piece) for s in runtime.peers.sent(SCAN.name)] == [
        ("", 0),
        ("c", 1),
        ("", 0),
        ("d", 1),
    ]


async def test_a_wrong_scan_is_refused_at_once() -> None:
    """At its first piece an InvalidArgument is the caller's own."""
    runtime = Scripted()
    runtime.peers.script(SCAN.name, InvalidArgument("no such column"))
    with pytest.raises(InvalidArgument, match="no such column"):
        await scan(runtime)


async def test_a_scan_ends_with_its_deadline_in_the_middle_of_its_pieces() -> None:
    """No piece is given more time than is left."""
    runtime = Scripted()
    runtime.peers.script(SCAN.name, *[x for n in range(100) for x in (1.5, piece("c", n))])
    with pytest.raises(StelaeError):
        await scan(runtime, timeout_s=4.0)
    assert len(runtime.peers.sent(SCAN.name)) <= 4
    assert all(timeout_s <= 4.0 for *_, timeout_s in runtime.peers.calls)


# ---- masters ----------------------------------------------------------------------------------

MASTERS = [Address("m:1"), Address("m:2"), Address("m:3")]


async def ask(runtime: Scripted, timeout_s: float = 5.0) -> Any:
    client = MastersClient(runtime, MASTERS)  # type: ignore[arg-type]
    return await client.call(LIST_TABLES, ListTables(), timeout_s=timeout_s)


async def test_the_hint_of_a_follower_is_followed_at_once() -> None:
    """One more call, no pause."""
    runtime = Scripted()
    runtime.peers.script(LIST_TABLES.name, NotLeader("m", 1, "m:3"), TableList(()))
    await ask(runtime)
    assert [address for address, *_ in runtime.peers.calls] == ["m:1", "m:3"]
    assert runtime.clock.sleeps == []


async def test_why_a_master_is_not_reached_is_in_the_error() -> None:
    """That no master leads is only what follows: the text has the cause, such as TLS."""
    runtime = Scripted()
    reason = "tls: its certificate has expired"
    runtime.peers.otherwise[LIST_TABLES.name] = lambda _: Unavailable("m:1", reason)
    with pytest.raises(NoQuorum, match=reason) as caught:
        await ask(runtime, timeout_s=1.0)
    told = decode_error(encode_error(caught.value))
    assert str(told) == str(caught.value)


async def test_masters_that_name_each_other_are_asked_at_a_pace() -> None:
    """During an election hints may go in a circle; that must not become a busy loop."""
    runtime = Scripted()

    def other(_: Any) -> StelaeError:
        asked = runtime.peers.calls[-1][0]
        return NotLeader(asked, 1, "m:2" if asked == "m:1" else "m:1")

    runtime.peers.otherwise[LIST_TABLES.name] = other
    with pytest.raises(NoQuorum):
        await ask(runtime, timeout_s=3.0)
    assert len(runtime.peers.calls) < 250


async def test_a_lost_answer_of_a_master_is_told_unless_a_later_one_comes() -> None:
    """At the deadline the call may have been carried out."""
    runtime = Scripted()
    runtime.peers.script(LIST_TABLES.name, OutcomeUnknown("m:1", "x", 1.0))
    runtime.peers.otherwise[LIST_TABLES.name] = lambda _: Unavailable("m", "refused")
    with pytest.raises(OutcomeUnknown):
        await ask(runtime)
    runtime = Scripted()
    runtime.peers.script(LIST_TABLES.name, OutcomeUnknown("m:1", "x", 1.0), TableList(()))
    assert (await ask(runtime)).tables == ()


def test_a_client_without_masters_cannot_be_made() -> None:
    """And says so."""
    with pytest.raises(InvalidArgument):
        MastersClient(Scripted(), [])  # type: ignore[arg-type]
    assert TSERVER
