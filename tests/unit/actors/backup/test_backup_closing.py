"""A backup that is to be retired takes nothing from the moment on that it has nothing."""

from __future__ import annotations

import msgspec
import pytest

from stelae.actors.backup.closing import Closing
from stelae.coordinator.placement.leaving_backups import may_close
from stelae.core.errors import RetryLater
from stelae.core.ids import ServerUuid
from stelae.core.messages.servers import HeartbeatReply
from stelae.core.records.records import ServerMark


def test_it_closes_once_it_holds_nothing_and_opens_when_it_is_taken_back() -> None:
    """What is on its way in counts; a word is of one mark only; older marks are not heard of."""
    held = 1
    closing = Closing("backup-1", lambda: held)
    closing.told(7, True)
    assert closing.closed_for == 0
    with closing.arrival():
        held = 0
        closing.told(7, True)
        assert closing.closed_for == 0, "something comes in just now"
    closing.told(7, True)
    assert closing.closed_for == 7
    with pytest.raises(RetryLater, match="takes nothing"), closing.arrival():
        pass
    closing.told(6, False)
    assert closing.closed_for == 7, "that was on its way since before"
    closing.told(8, False)
    assert closing.closed_for == 0
    with closing.arrival():
        held = 1
    closing.told(9, True)
    assert closing.closed_for == 0, "the new mark says nothing of what came since"


def test_while_others_are_too_few_it_takes_what_comes_though_it_holds_nothing() -> None:
    """And closes under the next mark, not under that one."""
    closing = Closing("backup-1", lambda: 0)
    closing.told(1, True)
    closing.told(2, False)
    closing.told(1, True)
    assert closing.closed_for == 0
    with closing.arrival():
        pass
    closing.told(3, True)
    assert closing.closed_for == 3


def test_what_is_said_of_the_mark_stands_where_backups_of_before_look() -> None:
    """Fields are positional: new ones come last, and the one that was there keeps its place and
    its meaning."""
    mark = ServerMark(ServerUuid("b"), "backup-1", retiring=True, generation=7)
    reply = HeartbeatReply(True, 1, 0.0, retiring=7, mark=7, may_close=True)
    said = msgspec.msgpack.decode(msgspec.msgpack.encode(reply))
    assert (said[14], said[15:17]) == (7, [7, True])
    assert may_close(mark)
    assert not may_close(msgspec.structs.replace(mark, needed=True))
    assert not may_close(msgspec.structs.replace(mark, retiring=False))
