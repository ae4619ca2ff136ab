"""What backups keep free for the cleaner, and when rows have to wait for it: tables of cases."""

from __future__ import annotations

import pytest

from stelae.actors.server import membership
from stelae.actors.server.membership import Membership
from stelae.core.ids import Address, ServerUuid
from stelae.core.messages.backup_loads import (
    RESERVE_FRAMES,
    BackupLoad,
    BackupsView,
    MediumLoad,
    is_low,
)
from stelae.core.records.records import ServerInfo, ServerKind
from stelae.core.runtime import ProcessIdentity
from tests.until import until_async

FRAME = 9 << 20


def backup(name: str) -> ServerInfo:
    process = ProcessIdentity("node", 1, 0.0)
    where = (ServerUuid(name), 1, Address(f"{name}:1"), process)
    return ServerInfo(ServerKind.BACKUP, name, *where, media=("disk", "flash"))


def load(name: str, *, disk: str = "roomy", flash: str = "roomy") -> BackupLoad:
    found = [
        MediumLoad(medium, 0 if how == "full" else 8, is_low=how != "roomy")
        for medium, how in (("disk", disk), ("flash", flash))
    ]
    return BackupLoad(ServerUuid(name), tuple(found))


@pytest.mark.parametrize(
    ("used", "free", "expected"),
    [
        (0, 1000, False),
        (937, 62, True),
        (937, 64, False),
        (100_000, RESERVE_FRAMES, False),
        (100_000, RESERVE_FRAMES - 1, True),
        (31, 1, True),
        (15, 1, False),
        (8, 0, True),
    ],
)
def test_the_reserve_is_a_share_of_a_medium_and_bounded(
    used: int, free: int, *, expected: bool
) -> None:
    """A sixteenth, or some frames of a large one; of a very small one nothing until it is full."""
    assert is_low((used + free) * FRAME, free * FRAME, FRAME) is expected


def test_rows_wait_once_too_few_backups_have_more_than_their_reserve() -> None:
    """On each medium as many as it has replicas of a segment; one that says nothing has room."""
    members = Membership()
    members.update([backup(name) for name in "abc"])
    assert members.short_medium(("disk", "disk")) == ""
    members.see_backups(BackupsView(1, (load("a", disk="low"),)))
    assert members.short_medium(("disk", "disk")) == ""
    members.see_backups(BackupsView(2, (load("a", disk="low"), load("b", disk="full"))))
    assert members.short_medium(("disk", "disk")) == "disk"
    assert members.short_medium(("disk", "flash")) == ""
    assert members.short_medium(("flash",) * 3) == ""
    members.see_backups(BackupsView(3))
    assert members.short_medium(("disk", "disk")) == ""


async def test_a_backups_own_word_counts_until_heartbeats_have_come_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is newer than what the masters pass on, and is forgotten: they may have nothing new to
    say of a medium that was low for a moment."""
    monkeypatch.setattr(membership, "LOW_S", 0.01)
    members = Membership()
    members.update([backup(name) for name in "abc"])
    members.note_low(ServerUuid("a"), "disk")
    assert members.short_medium(("disk", "disk")) == ""
    members.note_low(ServerUuid("b"), "disk")
    members.note_low(ServerUuid("b"), "disk")
    members.see_backups(BackupsView(1, (load("a"), load("b"), load("c"))))
    assert members.short_medium(("disk", "disk")) == "disk"
    assert members.short_medium(("flash", "flash")) == ""
    await until_async(lambda: not members.short_medium(("disk", "disk")), 10.0, "it is forgotten")


def test_rows_do_not_wait_while_a_backup_that_is_to_go_is_needed_and_has_room() -> None:
    """It takes what the others have no room for."""
    members = Membership()
    members.update([backup(name) for name in "abc"])
    leaving, full = (ServerUuid("c"),), (load("a", disk="full"),)
    members.see_backups(BackupsView(1, full, retiring=leaving))
    assert members.short_medium(("disk", "disk")) == "disk"
    members.see_backups(BackupsView(2, full, retiring=leaving, needed=leaving))
    assert members.short_medium(("disk", "disk")) == ""
    members.see_backups(BackupsView(3, (*full, load("c", disk="low")), (), leaving, leaving))
    assert members.short_medium(("disk", "disk")) == "disk"


def test_a_head_stays_on_a_backup_that_is_to_go_while_the_others_are_full() -> None:
    """Its follower would be put there again, each time."""
    members = Membership()
    members.update([backup(name) for name in "abc"])
    leaving = (ServerUuid("c"),)
    for loads, can_spare in (
        ((), True),
        ((load("a", disk="low"),), True),
        ((load("a", disk="full"),), False),
    ):
        members.see_backups(BackupsView(1, loads, retiring=leaving))
        assert members.can_spare(("disk", "disk")) is can_spare
        assert members.can_spare(("disk",))


def test_a_shunned_backup_is_no_room_while_others_have_a_reserve() -> None:
    """Placement takes the reserve of one that answers first: deletes and the cleaner need it."""
    members = Membership()
    members.update([backup(name) for name in "abcd"])
    low, shunned = (load("a", disk="low"), load("b", disk="low")), (ServerUuid("d"),)
    members.see_backups(BackupsView(1, low))
    assert members.short_medium(("disk", "disk")) == ""
    members.see_backups(BackupsView(2, low, shunned=shunned))
    assert members.short_medium(("disk", "disk")) == "disk"
    assert members.short_medium(("disk",)) == ""
    assert members.short_medium(("flash",) * 3) == ""


def test_a_shunned_backup_is_room_for_what_the_others_are_too_few_for() -> None:
    """It is chosen then, and no reserve is taken in its place."""
    members = Membership()
    members.update([backup(name) for name in "abc"])
    shunned = (ServerUuid("b"), ServerUuid("c"))
    for loads, short in (
        ((), ""),
        ((load("b", disk="low"),), ""),
        ((load("b", disk="low"), load("c", disk="low")), "disk"),
        ((load("a", disk="low"),), "disk"),
    ):
        members.see_backups(BackupsView(1, loads, shunned=shunned))
        assert members.short_medium(("disk", "disk")) == short


def test_a_head_stays_on_a_backup_that_is_to_go_while_the_others_are_shunned() -> None:
    """Placement takes one that is to go before one that is shunned."""
    members = Membership()
    members.update([backup(name) for name in "abc"])
    leaving = (ServerUuid("c"),)
    for shunned, can_spare in (((), True), ((ServerUuid("b"),), False)):
        members.see_backups(BackupsView(1, (), retiring=leaving, shunned=shunned))
        assert members.can_spare(("disk", "disk")) is can_spare
        assert members.can_spare(("disk",))


def test_where_too_few_backups_live_rows_wait_for_those() -> None:
    """A reserve is not the reason then: the head waits for another backup."""
    members = Membership()
    members.update([backup("a")])
    members.see_backups(BackupsView(1, (load("a", disk="low"),)))
    assert members.short_medium(("disk", "disk")) == ""
    assert members.short_medium(("disk",)) == "disk"
    assert members.short_medium(()) == ""
