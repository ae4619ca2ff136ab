"""The superblock's file and transitions, and how consensus metadata are merged."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import msgspec
import pyarrow as pa
import pytest

from stelae.core.errors import CorruptData, InvalidArgument, UnknownFormat
from stelae.core.ids import Address, OpId, ServerUuid, TableId, TabletId
from stelae.core.messages.replicas import DataState
from stelae.core.records.records import TableRecord, TableState
from stelae.core.records.replication import Configuration, Peer, Snapshot, TermAndVote
from stelae.core.schema.durability import segments
from stelae.core.schema.partition import Partitioning
from stelae.core.schema.schema import TableSchema
from stelae.storage.files import sealed as sealed_files
from stelae.storage.files.consensus_metadata import (
    ConsensusMetadata,
    merge_consensus_metadata,
    pristine,
)
from stelae.storage.files.sealed import seal, unseal
from stelae.storage.files.superblock import (
    NOTHING,
    StoredFile,
    Superblock,
    check_stored_file,
    check_tablet_id,
    copied,
    copying,
    created,
    decode_superblock,
    deleted,
    deleted_for_good,
    deleted_unseen,
    encode_superblock,
    flushed,
    parse_quarantine,
    quarantine_folder,
    rolled_back,
    tombstone_of_failed,
)

TABLET = TabletId("a" * 32)
TABLE = TableRecord(
    TableId("t"),
    "rows",
    TableSchema.of(pa.schema([pa.field("id", pa.int64(), nullable=False)]), key=["id"]),
    Partitioning(),
    segments("disk"),
    TableState.RUNNING,
)
A, B = ServerUuid("a"), ServerUuid("b")
OURS = Configuration(OpId(1, 1), (Peer(A, Address("a:1")),))
THEIRS = Configuration(OpId(2, 9), (Peer(A, Address("a:1")), Peer(B, Address("b:1"))))


def snapshot(term: int, index: int) -> Snapshot:
    return Snapshot(OpId(term, index), OURS, b"manifest")


READY = created(TABLET, TABLE)
FLUSHED = flushed(READY, snapshot(2, 7))
DELETED = deleted(FLUSHED, OpId(2, 9), forever=False)
COPYING = copying(DELETED, TABLET, TABLE)
ALL = [
    READY,
    FLUSHED,
    DELETED,
    deleted(READY, None, forever=True),
    deleted_for_good(DELETED),
    deleted_unseen(TABLET),
    tombstone_of_failed(TABLET, 7, forever=True),
    COPYING,
    copying(None, TABLET, TABLE),
    copied(COPYING, TABLE, snapshot(3, 3)),
    rolled_back(COPYING),
    rolled_back(COPYING, forever=True),
]


@pytest.mark.parametrize("superblock", ALL, ids=lambda superblock: superblock.state.value)
def test_every_superblock_that_a_transition_makes_comes_back_from_its_file(
    superblock: Superblock,
) -> None:
    """What is written is what is read."""
    assert decode_superblock("f", TABLET, encode_superblock(superblock)) == superblock


def test_any_flipped_bit_and_any_cut_of_a_superblock_is_noticed() -> None:
    """Damage is an error that names the file, never another state of the tablet."""
    data = encode_superblock(DELETED)
    for position in range(len(data)):
        for bit in (0x01, 0x80):
            damaged = bytearray(data)
            damaged[position] ^= bit
            with pytest.raises(CorruptData, match="tablet-meta/x"):
                decode_superblock("tablet-meta/x", TABLET, bytes(damaged))
        with pytest.raises(CorruptData, match="tablet-meta/x"):
            decode_superblock("tablet-meta/x", TABLET, data[:position])


def test_a_file_of_another_length_kind_or_version_says_so() -> None:
    """Each by itself, with a checksum that is right."""
    body = msgspec.msgpack.encode(7)
    sealed = seal(b"STELTEST", body)
    assert unseal("f", b"STELTEST", sealed, int) == 7
    with pytest.raises(CorruptData, match="header says"):
        unseal("f", b"STELTEST", sealed + b"x", int)
    with pytest.raises(CorruptData, match="version 1, not"):
        unseal("f", b"STELOTHR", sealed, int)
    with patch.object(sealed_files, "FORMAT_VERSION", 2):
        newer = seal(b"STELTEST", body)
    with pytest.raises(UnknownFormat, match="format 2, and this version of Stelae reads 1"):
        unseal("f", b"STELTEST", newer, int)


def test_the_superblock_of_another_tablet_is_refused() -> None:
    """A file under a wrong name is damage."""
    with pytest.raises(CorruptData, match="belongs to tablet"):
        decode_superblock("f", TabletId("b"), encode_superblock(READY))


@pytest.mark.parametrize(
    "change",
    [
        {"tombstone": OpId(1, 1)},
        {"forever": True},
        {"quarantine": "quarantine/x-1"},
        {"state": DataState.DELETED, "snapshot": snapshot(1, 1)},
        {"state": DataState.COPYING, "snapshot": snapshot(1, 1)},
        {"state": DataState.COPYING, "forever": True},
    ],
    ids=str,
)
def test_states_that_no_transition_makes_are_refused(change: dict[str, object]) -> None:
    """A superblock that contradicts itself is not believed, whatever its checksum says."""
    wrong = msgspec.structs.replace(READY, **change)
    with pytest.raises(CorruptData, match=f"is {wrong.state.value}, but"):
        decode_superblock("f", TABLET, encode_superblock(wrong))


def test_generations_rise_with_every_transition() -> None:
    """Quarantine folders are named after them, so none is ever used twice."""
    chain = [READY, FLUSHED, DELETED, COPYING, rolled_back(COPYING)]
    assert [superblock.generation for superblock in chain] == [1, 2, 3, 4, 5]
    assert DELETED.quarantine == quarantine_folder(TABLET, 3)


def test_a_tombstone_keeps_its_last_op_id_through_copies_that_fail() -> None:
    """Its vote depends on it, so only a copy that succeeds may take it away."""
    again = copying(rolled_back(COPYING), TABLET, TABLE)
    assert COPYING.tombstone == again.tombstone == rolled_back(again).tombstone == OpId(2, 9)
    assert COPYING.quarantine == again.quarantine == ""
    assert copied(again, TABLE, snapshot(3, 3)).tombstone is None
    assert copying(None, TABLET, TABLE).tombstone == NOTHING


def test_transitions_from_a_wrong_state_are_broken_invariants() -> None:
    """No order of calls takes a tablet from where it is to where it cannot go."""
    wrongs: list[Callable[[], object]] = [
        lambda: flushed(DELETED, snapshot(3, 9)),
        lambda: flushed(FLUSHED, snapshot(1, 9)),
        lambda: deleted(DELETED, None, forever=False),
        lambda: deleted(FLUSHED, OpId(2, 6), forever=False),
        lambda: deleted_for_good(READY),
        lambda: copying(READY, TABLET, TABLE),
        lambda: copying(deleted_for_good(DELETED), TABLET, TABLE),
        lambda: copied(DELETED, TABLE, None),
        lambda: rolled_back(DELETED),
    ]
    for wrong in wrongs:
        with pytest.raises(AssertionError):
            wrong()


def test_quarantine_folders_tell_tablet_and_number() -> None:
    """What lies in the quarantine is known by its name; other folders are not ours."""
    assert parse_quarantine(quarantine_folder(TABLET, 12).split("/")[1]) == (TABLET, 12)
    for name in ("lost+found", "a-", "-1", "a-b", "a/b-1", "..-1"):
        assert parse_quarantine(name) is None


def test_names_from_the_network_cannot_leave_the_tablets_folder() -> None:
    """Ids and names of files become paths; what could be another path is refused."""
    check_tablet_id("a" * 32)
    check_stored_file(StoredFile("segment-1.2", 1, 0))
    for name in ("", "..", "a/b", "a" * 65, "a-b", "a\n", ".", "a.tmp"):
        with pytest.raises(InvalidArgument):
            check_tablet_id(name)
    for file in (
        StoredFile("../x", 1, 0),
        StoredFile("", 1, 0),
        StoredFile(".x", 1, 0),
        StoredFile("a/b", 1, 0),
        StoredFile("x.tmp", 1, 0),
        StoredFile("x\n", 1, 0),
        StoredFile("x", -1, 0),
    ):
        with pytest.raises(InvalidArgument):
            check_stored_file(file)


@pytest.mark.parametrize(
    ("local", "remote", "merged"),
    [
        (TermAndVote(3, A), TermAndVote(5, B), TermAndVote(5, None)),
        (TermAndVote(3, None), TermAndVote(5, None), TermAndVote(5, None)),
        (TermAndVote(5, A), TermAndVote(5, B), TermAndVote(5, A)),
        (TermAndVote(5, None), TermAndVote(5, B), TermAndVote(5, None)),
        (TermAndVote(7, A), TermAndVote(5, B), TermAndVote(7, A)),
        (TermAndVote(7, None), TermAndVote(5, B), TermAndVote(7, None)),
        (TermAndVote(0, None), TermAndVote(5, B), TermAndVote(5, None)),
    ],
    ids=str,
)
def test_consensus_metadata_merge_by_the_three_rules(
    local: TermAndVote, remote: TermAndVote, merged: TermAndVote
) -> None:
    """The highest term; the own vote unless the remote's term is higher; the remote's members."""
    ours, theirs = (
        ConsensusMetadata(TABLET, local, OURS),
        ConsensusMetadata(TABLET, remote, THEIRS),
    )
    assert merge_consensus_metadata(ours, theirs) == ConsensusMetadata(TABLET, merged, THEIRS)
    assert merge_consensus_metadata(pristine(TABLET), theirs).configuration == THEIRS
