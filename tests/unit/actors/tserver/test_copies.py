"""Of copies of one call each speaks for itself alone."""

from __future__ import annotations

import pytest

from stelae.actors.tserver.copies import KEPT, Copies
from stelae.core.errors import NotLeader, OutcomeUnknown, RowExists, TabletNotReady
from stelae.core.ids import ClientId, RequestId, TabletId
from stelae.storage.entries.outcomes import done, refused

TABLET = TabletId("t1")


def _request(sequence: int) -> RequestId:
    return RequestId(ClientId("c"), sequence, 1)


def test_a_refusal_is_not_told_while_another_copy_is_here() -> None:
    """Of a call that is here once it is; what would be refused again is told in any case."""
    copies, refusal = Copies(), TabletNotReady(TABLET, "handing its leadership over")
    one = (_request(1),)
    with pytest.raises(TabletNotReady), copies.one(TABLET, one, 1.0):
        raise refusal
    with copies.one(TABLET, one, 1.0):
        with pytest.raises(OutcomeUnknown), copies.one(TABLET, one, 1.0):
            raise refusal
        with pytest.raises(RowExists), copies.one(TABLET, one, 1.0):
            raise RowExists("t", "1", 1)
    with pytest.raises(TabletNotReady), copies.one(TABLET, one, 1.0):
        raise refusal


def test_nor_after_another_one_was_carried_out() -> None:
    """Also for those that went together; of what was long ago nothing is known."""
    copies, refusal = Copies(), NotLeader("s", 3, "")
    copies.carried_out(_request(1))
    with pytest.raises(OutcomeUnknown), copies.one(TABLET, (_request(1),), 1.0):
        raise refusal
    two = (_request(2), _request(3))
    with copies.one(TABLET, two, 1.0):
        outcomes = (done(7, 1), refused(refusal))
        assert copies.told(TABLET, two, outcomes, 1.0) == outcomes
        with copies.one(TABLET, two, 1.0):
            told = copies.told(TABLET, two, (refused(refusal), refused(refusal)), 1.0)
    assert told != (refused(refusal), refused(refusal))
    with pytest.raises(OutcomeUnknown), copies.one(TABLET, (_request(2),), 1.0):
        raise refusal
    for sequence in range(10, 10 + 2 * KEPT):
        copies.carried_out(_request(sequence))
    with pytest.raises(NotLeader), copies.one(TABLET, (_request(2),), 1.0):
        raise refusal
