"""A leader whose own removal is in its log alone may be needed to lead once more."""

from __future__ import annotations

import random

from stelae.consensus.raft.messages import VoteRequest
from stelae.consensus.raft.raft import Raft
from stelae.consensus.raft.ready import Tick
from stelae.consensus.raft.settings import RaftSettings
from stelae.core.ids import Address, OpId, ServerUuid, TabletId
from stelae.core.records.replication import (
    Configuration,
    Entry,
    EntryKind,
    Peer,
    TermAndVote,
    encode_peers,
)

N1, N5 = ServerUuid("n1"), ServerUuid("n5")


def member(uuid: ServerUuid) -> Peer:
    return Peer(uuid, Address(f"{uuid}:1"), True, uuid)


def change(index: int, *uuids: ServerUuid) -> Entry:
    peers = tuple([member(uuid) for uuid in uuids])
    body = encode_peers(peers)
    return Entry(1, index, EntryKind.CONFIGURATION, body)


def test_who_was_added_and_restarts_with_its_own_removal_still_asks_for_votes() -> None:
    """It began without members, and does not know yet what is committed; the other voter cannot be
    elected without it, as it lacks the removal (Raft thesis, 4.2.2)."""
    entries = [change(1, N1, N5), change(2, N1)]
    core = Raft(
        group_id=TabletId("group"),
        uuid=N5,
        configuration=Configuration(OpId(0, 0), ()),
        term_and_vote=TermAndVote(1, None),
        snapshot=None,
        entries=entries,
        settings=RaftSettings(),
        rng=random.Random(1),
    )
    asked = []
    for tick in range(60):
        core.step(Tick(tick * 1000))
        ready = core.take_ready()
        asked += [m.destination for m in ready.messages if isinstance(m, VoteRequest)]
        if ready:
            core.advance(ready)
    assert N1 in asked
