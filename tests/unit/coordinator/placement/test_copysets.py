"""How backups are grouped: a table of cases."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from stelae.coordinator.catalog.backups import BackupCatalog
from stelae.coordinator.placement.copysets import next_groups
from stelae.core.ids import Address, ServerUuid
from stelae.core.records.records import Copysets, ServerInfo, ServerKind
from stelae.core.runtime import ProcessIdentity


def backup(name: str, node: str = "") -> ServerInfo:
    """A node like ``r1/n1`` is in rack r1."""
    rack, _, node = node.rpartition("/")
    process = ProcessIdentity(node or f"node of {name}", 1, 0.0)
    uuid, address = ServerUuid(name), Address(f"{name}:1")
    info = ServerInfo(ServerKind.BACKUP, name, uuid, 1, address, process, ("disk",))
    return msgspec.structs.replace(info, rack=rack) if rack else info


def groups_of(
    known: Sequence[str], live: Sequence[ServerInfo], gone: str = "", size: int = 2
) -> list[str]:
    found = next_groups(
        [tuple(ServerUuid(m) for m in each) for each in known],
        live,
        [ServerUuid(m) for m in gone],
        size,
    )
    return ["".join(each) for each in found]


def in_racks(*words: str) -> list[ServerInfo]:
    """Of words like ``ar1``: backup a on machine 1 in rack r."""
    return [backup(word[0], f"{word[1]}/{word[2:]}") for word in words]


def some(names: str) -> list[ServerInfo]:
    return [backup(name) for name in names]


CASES: dict[str, tuple[list[str], list[str]]] = {
    "of all backups there are": (groups_of([], some("abcd")), ["ab", "cd"]),
    "one is left over": (groups_of([], some("abcde")), ["ab", "cd"]),
    "fewer than a group has members": (groups_of([], some("ab"), size=3), []),
    "they stay as they are": (groups_of(["ad", "cb"], some("abcd")), ["ad", "cb"]),
    "a member that is away for a while is waited for": (groups_of(["ab"], some("a")), ["ab"]),
    "a member that is lost ends its group": (groups_of(["ab", "cd"], some("acd"), "b"), ["cd"]),
    "what is free of it goes with one that is left over": (
        groups_of(["ab", "cd"], some("acde"), "b"),
        ["cd", "ae"],
    ),
    "one that is new makes a group with one left over": (
        groups_of(["ab"], some("abcd")),
        ["ab", "cd"],
    ),
    "one that was lost and is back is as a new one": (
        groups_of(["cd"], some("abcd")),
        ["cd", "ab"],
    ),
    "another size": (groups_of(["ab", "cd"], some("abcdef"), size=3), ["abc", "def"]),
    "no groups any more": (groups_of(["ab", "cd"], some("abcd"), size=0), []),
    "apart on machines": (
        groups_of([], [backup("a", "1"), backup("b", "1"), backup("c", "2"), backup("d", "2")]),
        ["ac", "bd"],
    ),
    "together on a machine where there is no other": (
        groups_of([], [backup("a", "1"), backup("b", "1")]),
        ["ab"],
    ),
    "the machine with most of them first": (
        groups_of([], [backup(n, m) for n, m in ("a1", "b1", "c1", "d2", "e3")], size=2),
        ["ad", "be"],
    ),
    "apart on racks": (
        groups_of([], in_racks("ar1", "br2", "cs3", "ds4")),
        ["ac", "bd"],
    ),
    "the rack with most of them first": (
        groups_of([], in_racks("ar1", "br2", "cs3", "ds4", "et5", "ft6", "gt7")),
        ["ea", "cf", "bd"],
    ),
    "apart on machines where there are too few racks": (
        groups_of([], in_racks("ar1", "br1", "cr2", "ds3"), size=3),
        ["adc"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_groups(case: str) -> None:
    """Each rule by itself."""
    found, expected = CASES[case]
    assert found == expected


def test_a_record_follows_the_one_before() -> None:
    """Two leaders that decide at once do not overwrite each other."""
    catalog = BackupCatalog()
    first = Copysets(((ServerUuid("a"), ServerUuid("b")),), 1)
    assert not catalog.refusal((), first)
    catalog.commit((), first)
    assert "changed meanwhile" in catalog.refusal((), first)
    again = BackupCatalog(catalog.state())
    assert again.copysets == first
