"""A proposer's mail whose large bodies travel beside it; each test states its rule."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.consensus.wal.messages import (
    BESIDE_BYTES,
    ProposerElected,
    ProposerMail,
    ToAcceptor,
    WalAppendRequest,
    packed,
    unpacked,
)
from stelae.core.errors import InvalidArgument
from stelae.core.ids import Address, OpId, TabletId
from stelae.core.records.replication import Entry, EntryKind
from stelae.core.records.timelines import ProposerId, SafekeeperId

HEADER = (TabletId("t"), ProposerId("p"), SafekeeperId(1), 1, 1, 1, 1)


def mail_of(sizes: list[list[int]]) -> ProposerMail:
    """One message for each list, of entries whose bodies have these sizes; an empty list is a
    message that has no entries."""
    messages: list[ToAcceptor] = []
    lsn = 0
    for some in sizes:
        entries = tuple(
            Entry(1, number, EntryKind.COMMAND, bytes([number % 251]) * size)
            for number, size in enumerate(some, lsn + 1)
        )
        previous = OpId(1, lsn)
        lsn += len(entries)
        messages.append(
            WalAppendRequest(*HEADER, previous, entries, 0, 0, 0)
            if entries
            else ProposerElected(*HEADER, (), 0)
        )
    return ProposerMail(TabletId("t"), Address("a:1"), tuple(messages), takes_replies=True)


def over_the_wire(mail: ProposerMail) -> ProposerMail:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(mail), type=ProposerMail)


SIZES = st.sampled_from([0, 1, BESIDE_BYTES - 1, BESIDE_BYTES, 3 * BESIDE_BYTES])


@given(st.lists(st.lists(SIZES, max_size=5), max_size=4))
def test_mail_arrives_as_it_was_and_no_large_body_is_within_it(sizes: list[list[int]]) -> None:
    """Whichever bodies are large, in however many messages, of whatever kinds."""
    mail = mail_of(sizes)
    sent, bodies = packed(mail)
    large = [size for some in sizes for size in some if size >= BESIDE_BYTES]
    assert [len(body) for body in bodies] == large
    arrived = over_the_wire(sent)
    assert unpacked(arrived, [memoryview(body) for body in bodies]) == mail.messages
    assert arrived.takes_replies


@pytest.mark.parametrize("beside", [(0,), (0, 1, 2), (1, 0), (0, 0), (0, 7), (-1, 1)])
def test_bodies_that_do_not_fit_the_mail_are_refused(beside: tuple[int, ...]) -> None:
    """Nothing is written of a mail whose bodies are too many, too few, or of no entry of it."""
    sent, bodies = packed(mail_of([[BESIDE_BYTES, BESIDE_BYTES, 5]]))
    assert sent.beside == (0, 1)
    wrong = msgspec.structs.replace(sent, beside=beside)
    with pytest.raises(InvalidArgument, match="beside"):
        unpacked(over_the_wire(wrong), [memoryview(body) for body in bodies])
    with pytest.raises(InvalidArgument, match="beside"):
        unpacked(sent, [])
    with pytest.raises(InvalidArgument, match="beside"):
        unpacked(mail_of([[5]]), [memoryview(bodies[0])])


def test_an_entry_has_its_body_in_one_place() -> None:
    """One that has a body in the mail and another beside it is of no proposer of ours."""
    mail = mail_of([[5]])
    wrong = msgspec.structs.replace(mail, beside=(0,))
    with pytest.raises(InvalidArgument, match="beside"):
        unpacked(wrong, [memoryview(b"another")])
