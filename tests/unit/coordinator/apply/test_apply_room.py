"""What an apply moves, and what stays, has to have room where it will be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.coordinator.apply.checks import Asked, Made, refusals
from stelae.coordinator.apply.plan import Act, Present, ServerIs, Step
from stelae.coordinator.apply.room import Hosted, Room, homeless, room_of, too_small
from stelae.core.config.spec_file import load_spec
from stelae.core.records.records import ServerKind

MIB = 1 << 20


def asked(document: dict[str, object], room: Room, *steps: Step) -> Asked:
    """Of a cluster that was made with the defaults."""
    before = load_spec({})
    made = Made(
        before.cluster, before.data_dir, before.segment_size_bytes, "", before.timings.lease_s,
        ray_address=before.ray.address, placement=before.placement,
        sizes={"backup-1": {"disk": None, "ram": 512 * MIB}, "backup-2": {"disk": None}},
    )  # fmt: skip
    servers = [ServerIs(ServerKind.TSERVER, f"tserver-{n}") for n in (1, 2, 3)]
    return Asked(made, load_spec(document), steps, Present(servers), (), room)


def test_a_medium_is_not_made_smaller_than_what_is_on_it() -> None:
    """Each backup that holds more is named, with the way out; one that goes has nothing to hold,
    and what is larger, or as it was, is nobody's matter."""
    document: dict[str, object] = {"media": {"disk": {"path": "disk", "size": "2GiB"}}}
    used = {"backup-1": {"disk": 3 << 30}, "backup-2": {"disk": 1 << 30}}
    (found,) = refusals(asked(document, Room(used=used)))
    assert found.startswith(
        "media.disk.size: backup-1 holds 3.0 GiB there, more than the new 2GiB: "
    )
    assert "`stelae server retire backup-1`" in found
    gone = Step(Act.REMOVE, "backup", "backup-1")
    assert not refusals(asked(document, Room(used=used), gone))
    assert not refusals(asked(document, Room()))
    assert not too_small("b", "disk", 2 << 30, 2 << 30, 3 << 30), "it is so already"
    assert not too_small("b", "disk", 1 << 30, 2 << 30, 3 << 30)
    assert not too_small("b", "disk", 4 << 30, None, 3 << 30)
    assert "1.5 MiB there" in too_small("b", "ram", 4 * MIB, MIB, MIB + MIB // 2)


def test_a_tablet_has_to_fit_on_one_server_not_on_all_together() -> None:
    """Two servers with room for 60 MiB each have none for one of 100 MiB."""
    document: dict[str, object] = {"tservers": {"count": 2, "memory": "100MiB"}}
    going = Step(Act.REMOVE, "tserver", "tserver-3")
    held = {"tserver-1": 35 * MIB, "tserver-2": 35 * MIB, "tserver-3": 90 * MIB}
    large = Room(
        rows_bytes=sum(held.values()),
        live_by_server=held,
        hosted=[Hosted("tablet 4 of table 'flights'", "tserver-3", 90 * MIB)],
    )
    (found,) = refusals(asked(document, large, going))
    assert found.startswith("tservers: tablet 4 of table 'flights' on tserver-3, with 90 MiB, fits")
    assert "tserver-1 60 MiB, tserver-2 60 MiB" in found
    small = [Hosted(f"tablet {n} of table 'flights'", "tserver-3", 45 * MIB) for n in (1, 2)]
    assert not refusals(asked(document, replace(large, hosted=small), going))
    added = Step(Act.ADD, "tserver", "tserver-4")
    assert not refusals(asked(document, large, going, added)), "a new one has all of its memory"
    assert not refusals(asked(document, large)), "nothing leaves"


def test_two_replicas_of_a_tablet_do_not_come_together() -> None:
    """Neither where one is already, nor where one has just been placed."""
    both = [Hosted("t", "a", 10, ("b", "c")), Hosted("t", "b", 10, ("a", "c"))]
    assert homeless(["a", "b"], {"c": 100, "d": 100}, both) == both[1]
    assert homeless(["a", "b"], {"c": 100, "d": 100, "e": 10}, both) is None
    assert homeless(["a"], {"c": 100}, both) == both[0]


SIZES = st.lists(st.integers(0, 50), max_size=8)


@given(SIZES, st.lists(st.integers(0, 60), min_size=1, max_size=4))
def test_what_finds_a_home_fits_and_what_fits_alone_in_halves_finds_one(
    sizes: list[int], rooms: list[int]
) -> None:
    """Nothing is placed beyond what there is; and with twice the room in sum, no tablet larger than
    the least room, none is refused."""
    hosted = [Hosted(f"t{n}", "gone", size) for n, size in enumerate(sizes)]
    stays = {f"s{n}": room for n, room in enumerate(rooms)}
    found = homeless(["gone"], stays, hosted)
    if found is None:
        assert sum(sizes) <= sum(rooms)
        assert max(sizes, default=0) <= max(rooms)
    else:
        largest, least = max(sizes), min(rooms)
        assert largest > least or 2 * sum(sizes) > sum(rooms)


def test_what_lives_counts_and_cleaning_frees_the_rest() -> None:
    """A server says how much of its memory lives, a tablet too; a replica is on each member."""
    tserver = {"kind": "tserver", "id": "tserver-1", "state": "live", "memory_bytes": 90}
    status = {
        "servers": [
            {**tserver, "live_bytes": 40},
            {**tserver, "id": "tserver-2", "live_bytes": 0},
            {**tserver, "id": "tserver-3", "state": "dead"},
            {"kind": "backup", "id": "backup-1", "state": "dead", "used_bytes": {"disk": 7}},
        ],
        "tablets": [
            {"number": 1, "table": "a", "leader": "tserver-1", "memory_bytes": 60,
             "cleaning": {"live_bytes": 30}},
            {"number": 2, "table": "b", "leader": "tserver-2", "memory_bytes": 50, "cleaning": None,
             "replicas": [{"server": "tserver-1", "member": "voter"},
                          {"server": "tserver-2", "member": "voter"},
                          {"server": "tserver-3", "member": "none"}]},
        ],
    }  # fmt: skip
    room = room_of(status, None)
    assert room.rows_by_server == {"tserver-1": 90, "tserver-2": 90}
    assert room.live_by_server == {"tserver-1": 40, "tserver-2": 90}
    assert [(h.server, h.size_bytes, h.beside) for h in room.hosted] == [
        ("tserver-1", 30, ()),
        ("tserver-1", 50, ("tserver-2",)),
        ("tserver-2", 50, ("tserver-1",)),
    ]
    assert room.used == {"backup-1": {"disk": 7}}


@pytest.mark.parametrize("kind", ["backup", "tserver"])
def test_a_cluster_whose_servers_say_less_is_not_kept_from_anything(kind: str) -> None:
    """Servers of a version before do not tell what is used."""
    server = {"kind": kind, "id": "s", "state": "live", "memory_bytes": 1}
    assert not room_of({"servers": [server], "tablets": []}, None).used
