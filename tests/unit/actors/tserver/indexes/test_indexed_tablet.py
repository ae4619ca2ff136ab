"""`stelae.actors.tserver.indexes.indexed_tablet`: what one copy of a write says of all of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stelae.actors.tserver.indexes.indexed_tablet import IndexedTablet
from stelae.core.errors import DeadlineExpired, OutcomeUnknown
from stelae.core.ids import ClientId, RequestId
from stelae.storage.entries.client_results import ClientResults

CLIENT = ClientId("client")
REQUEST, OTHER = RequestId(CLIENT, 1, 1), RequestId(CLIENT, 2, 1)


@pytest.fixture
def tablet() -> Any:
    """As much of a tablet as this is about."""
    return SimpleNamespace(
        tablet_id="t", _copies=None, _memory=SimpleNamespace(results=ClientResults())
    )


def fail(tablet: Any, *requests: RequestId) -> None:
    with IndexedTablet._as_a_copy(tablet, requests, 1.0):
        raise DeadlineExpired("tserver.write", "an indexlet")


def test_a_single_copy_says_that_nothing_was_done(tablet: Any) -> None:
    """Then the call may be repeated anywhere, or given up."""
    for _ in range(2):
        with pytest.raises(DeadlineExpired):
            fail(tablet, REQUEST)
    assert not tablet._copies


def test_a_copy_beside_another_does_not_speak_for_it(tablet: Any) -> None:
    """The other one may be carried out yet; of other requests nothing follows."""
    with IndexedTablet._as_a_copy(tablet, [REQUEST], 1.0):
        with pytest.raises(OutcomeUnknown):
            fail(tablet, OTHER, REQUEST)
        with pytest.raises(DeadlineExpired):
            fail(tablet, OTHER)
    with pytest.raises(DeadlineExpired):
        fail(tablet, REQUEST)


def test_a_copy_after_another_that_was_carried_out_does_not_deny_it(tablet: Any) -> None:
    """It waited, and did not see that meanwhile another one came first."""
    tablet._memory.results.record(REQUEST, b"", 1, 0.0)
    with pytest.raises(OutcomeUnknown):
        fail(tablet, REQUEST)
