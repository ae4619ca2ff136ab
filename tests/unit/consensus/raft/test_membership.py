"""Which changes of members, and which hand-overs, make sense: refused is what does not."""

from __future__ import annotations

import pytest

from stelae.consensus.raft.membership import ChangeKind, MemberChange, changed_peers
from stelae.consensus.raft.raft import Raft
from stelae.core.errors import ConfigurationMismatch, InvalidArgument, TabletNotReady
from stelae.core.ids import Address, OpId, ServerUuid
from stelae.core.records.replication import Configuration, Peer
from tests.unit.consensus.raft.test_taken_back import N1, N2, N3, N4, Leading, grown

STRANGER = ServerUuid("stranger")


def member(uuid: ServerUuid, voter: bool = True) -> Peer:
    return Peer(uuid, Address(f"{uuid}:1"), voter, f"name of {uuid}")


MEMBERS = Configuration(OpId(2, 7), (member(N1), member(N2), member(N3, voter=False)))
ALONE = Configuration(OpId(2, 7), (member(N1), member(N2, voter=False)))
AT = Address("somewhere:1")


@pytest.mark.parametrize(
    ("before", "change", "why"),
    [
        (MEMBERS, MemberChange(ChangeKind.ADD, N1, AT), "a member already"),
        (MEMBERS, MemberChange(ChangeKind.ADD, N3, AT), "a member already"),
        (MEMBERS, MemberChange(ChangeKind.ADD, N4), "has none"),
        (MEMBERS, MemberChange(ChangeKind.PROMOTE, STRANGER), "is not a member"),
        (MEMBERS, MemberChange(ChangeKind.PROMOTE, N2), "a voter already"),
        (MEMBERS, MemberChange(ChangeKind.REMOVE, STRANGER), "is not a member"),
        (ALONE, MemberChange(ChangeKind.REMOVE, N1), "the last voter"),
    ],
)
def test_a_change_that_makes_no_sense_is_refused_and_says_why(
    before: Configuration, change: MemberChange, why: str
) -> None:
    """Twice the same, strangers, no address, nobody left (Kudu's table of bad changes)."""
    with pytest.raises(InvalidArgument, match=why):
        changed_peers(before, change)


def test_a_change_touches_one_member_and_no_other() -> None:
    """Added without a vote, promoted where it stands, removed."""
    added = changed_peers(MEMBERS, MemberChange(ChangeKind.ADD, N4, AT, "four"))
    assert added == (*MEMBERS.peers, Peer(N4, AT, False, "four"))
    promoted = changed_peers(MEMBERS, MemberChange(ChangeKind.PROMOTE, N3))
    assert promoted == (member(N1), member(N2), member(N3))
    assert changed_peers(MEMBERS, MemberChange(ChangeKind.REMOVE, N2)) == (
        member(N1),
        member(N3, voter=False),
    )
    assert changed_peers(MEMBERS, MemberChange(ChangeKind.REMOVE, N1)) == MEMBERS.peers[1:]


def test_a_change_by_an_old_look_is_refused_by_name() -> None:
    """Of the entry that was expected, and of the one that is."""
    group = grown()
    seen = group.core.log.committed_configuration.op_id
    remove = MemberChange(ChangeKind.REMOVE, N3)
    with pytest.raises(ConfigurationMismatch, match=r"2\.7.*0\.0"):
        group.core.change_members(remove, OpId(0, 0))
    assert group.core.change_members(remove, seen).index == seen.index + 1


def test_one_change_at_a_time_and_none_during_a_hand_over() -> None:
    """Either could leave two majorities that share nobody, or be cut off by the successor."""
    group = grown()
    group.deaf = {N2, N3}
    group.core.change_members(MemberChange(ChangeKind.REMOVE, N4))
    with pytest.raises(TabletNotReady, match="one at a time"):
        group.core.change_members(MemberChange(ChangeKind.REMOVE, N3))
    group = grown()
    group.deaf = {N2, N3, N4}
    group.core.propose(b"not everywhere yet")
    group.core.transfer(N2)
    with pytest.raises(TabletNotReady, match="handing its leadership over"):
        group.core.change_members(MemberChange(ChangeKind.REMOVE, N3))


def other_than(core: Raft, target: ServerUuid) -> None:
    """It stays the leader, and takes proposals."""
    with pytest.raises(InvalidArgument, match=f"{target} is not another voter"):
        core.transfer(target)
    core.propose(b"still")


def test_leadership_goes_to_another_voter_and_to_nobody_else() -> None:
    """Not to itself, to a non-voter, or to a stranger; a second hand-over waits for the first, and
    one that comes to nothing ends by itself."""
    group = grown()
    for target in (N1, N4, STRANGER):
        other_than(group.core, target)
    group.turn()
    group.deaf = {N2}
    group.core.propose(b"not everywhere yet")
    group.core.transfer(N2)
    with pytest.raises(TabletNotReady, match="already"):
        group.core.transfer(N3)
    with pytest.raises(TabletNotReady, match="handing its leadership over"):
        group.core.propose(b"meanwhile")
    group.tick(11)
    assert group.core.leader is not None
    group.core.propose(b"it goes on")
    group.turn()
    group.core.transfer(N3)
    assert group.core.leader is None, "N3 has everything, and is told to lead"


def test_the_only_voter_has_nobody_to_hand_over_to() -> None:
    """Named or not."""
    group = Leading((N1,))
    with pytest.raises(InvalidArgument, match="is not another voter"):
        group.core.transfer(None)
