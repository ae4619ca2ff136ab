"""Which connection a handle uses: that of its process, shared by origin until the last closes."""

from __future__ import annotations

import gc
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from stelae.client.aio import Loop
from stelae.client.connection import Connection, Opened
from stelae.core.errors import InvalidArgument


class FakeDatabase:
    """A database that knows who its masters are by now."""

    def __init__(self) -> None:
        self.masters = "as made"
        self.closed = 0

    async def close(self) -> None:
        self.closed += 1


@dataclass(frozen=True)
class FakeOrigin:
    """Opens a connection to nobody."""

    name: str
    masters: str = "as made"

    def open(self) -> Opened:
        database: Any = FakeDatabase()
        database.masters = self.masters
        return Opened(Loop(), database, None)

    def newest(self, database: Any) -> FakeOrigin:
        return FakeOrigin(self.name, database.masters)


def unpickled(connection: Connection) -> Connection:
    found: Connection = pickle.loads(pickle.dumps(connection))
    return found


def database_of(connection: Connection) -> Any:
    return connection.opened().database


def test_a_connection_is_opened_at_the_first_call_only() -> None:
    """An unpickled handle that nobody uses costs nothing."""
    one = Connection(None, FakeOrigin("lazy"))
    assert one._opened is None
    one.close()
    assert one._opened is None
    with pytest.raises(InvalidArgument, match="closed: connect again"):
        one.opened()


def test_handles_of_one_origin_share_until_the_last_is_closed() -> None:
    """C2: it is closed once, and opened again by the next one."""
    one = Connection(None, FakeOrigin("shared"))
    other, third = unpickled(one), unpickled(one)
    database = database_of(one)
    assert database_of(other) is database_of(third) is database
    one.close()
    one.close()
    third.close()
    assert database.closed == 0
    assert database_of(other) is database
    with pytest.raises(InvalidArgument, match="closed: connect again"):
        one.opened()
    fresh = unpickled(other)
    other.close()
    assert database.closed == 1
    assert database_of(fresh) is not database
    fresh.close()


def test_a_pickle_has_what_the_connection_has_learned() -> None:
    """Masters that came since; another process may find none of the first ones."""
    one = Connection(None, FakeOrigin("learned"))
    database_of(one).masters = "newer"
    assert unpickled(one).origin == FakeOrigin("learned", "newer")
    one.close()


def test_other_origins_share_nothing() -> None:
    """Such as another token for the same URL."""
    one, other = Connection(None, FakeOrigin("a")), Connection(None, FakeOrigin("b"))
    assert database_of(one) is not database_of(other)
    one.close()
    other.close()


def in_child(look: Callable[[], object]) -> str:
    """What a forked child sees, or the error that it meets."""
    answer, written = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            try:
                said = str(look())
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
            os.write(written, said.encode())
        finally:
            os._exit(0)
    os.close(written)
    with os.fdopen(answer) as file:
        said = file.read()
    os.waitpid(pid, 0)
    return said


def test_a_forked_child_opens_connections_by_their_origin() -> None:
    """C1: one of its own for all handles of an origin; nothing changes in its parent."""
    one = Connection(None, FakeOrigin("forked"))
    other = unpickled(one)
    parents = one.opened()
    assert other.opened() is parents

    def look() -> list[bool]:
        fresh = one.opened()
        return [fresh is not parents, other.opened() is fresh, parents.is_over]

    assert in_child(look) == "[True, True, True]"
    assert one.opened() is parents
    assert not parents.is_over
    one.close()
    assert in_child(one.opened) == "InvalidArgument: this database is closed: connect again"
    other.close()


def test_without_an_origin_a_forked_child_is_told_what_to_do() -> None:
    """It has no way to connect as its parent did. Its parent's loop is closed to it."""
    database: Any = FakeDatabase()
    loop = Loop()
    alone = Connection(Opened(loop, database, None), None)
    assert "stelae.connect(" in in_child(alone.opened)
    assert "closed: connect again" in in_child(lambda: loop.run(database.close()))
    assert database.closed == 0
    alone.close()
    assert database.closed == 1


def test_connections_without_handles_are_closed_before_another_is_opened() -> None:
    """C4: handles that were forgotten without `close` leave no thread and no sockets."""
    forgotten = Connection(None, FakeOrigin("forgotten"))
    used = Connection(None, FakeOrigin("used"))
    closed, kept = database_of(forgotten), database_of(used)
    origin = FakeOrigin("made")
    made = Connection(origin.open(), origin)
    made_database = database_of(made)
    del forgotten, made
    gc.collect()
    assert closed.closed == made_database.closed == 0
    again = Connection(None, FakeOrigin("made"))
    assert database_of(again) is made_database, "one that is still open is used again"
    other = Connection(None, FakeOrigin("other"))
    database_of(other)
    assert (closed.closed, made_database.closed, kept.closed) == (1, 0, 0)
    del again
    gc.collect()
    last = FakeOrigin("last")
    handle = Connection(last.open(), last)
    assert (closed.closed, made_database.closed, kept.closed) == (1, 1, 0)
    for each in (used, other, handle):
        each.close()
