"""Which connection a handle uses: that of its process, shared by origin until the last closes."""

from __future__ import annotations

import pickle
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


def test_what_was_forgotten_is_opened_again_by_its_origin() -> None:
    """C1: as in a forked child. Without an origin the error says what to do."""
    one = Connection(None, FakeOrigin("forgotten"))
    opened = one.opened()
    opened.loop.forget()
    opened.forget()
    fresh = one.opened()
    assert fresh is not opened
    fresh.loop.run(fresh.database.close())
    one.close()

    database: Any = FakeDatabase()
    alone = Connection(Opened(Loop(), database, None), None)
    alone.opened().loop.forget()
    alone.opened().forget()
    with pytest.raises(InvalidArgument, match=r"stelae\.connect\("):
        alone.opened()
