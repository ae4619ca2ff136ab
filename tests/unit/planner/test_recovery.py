"""The formulas of a recovery: by hand, and rules that hold for every layout."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from stelae.core.errors import InvalidArgument
from stelae.planner.hardware import SERVER, UNLIMITED, VM, Hardware, hardware_from
from stelae.planner.layout import Layout, Lost, Medium, Mode, Scatter
from stelae.planner.recovery import Limit, moved_bytes, recovery_times, seconds, size
from tests.unit.planner.layouts import GB, hardware_of_many_kinds, layout, layouts

PLAIN = Hardware(
    name="plain",
    cores=4,
    disk_read_bytes_per_s=100e6,
    disk_write_bytes_per_s=50e6,
    disk_seek_s=0.01,
    network_bytes_per_s=1e9,
    network_round_trip_s=0.0,
    send_bytes_per_core_s=UNLIMITED,
    receive_bytes_per_core_s=1e9,
    merge_rows_per_core_s=1e6,
    write_rows_per_core_s=1e5,
    detection_s=0.25,
    plan_s=0.1,
    plan_replica_s=0.001,
    tablet_s=0.05,
    server_threads=2,
    fetches=1000,
)
TWO = layout(
    2,
    backups=1,
    replicas=1,
    data_bytes=4 * GB,
    segment_bytes=10**7,
    tablets_per_server=4,
)
"""One other server, one backup: nothing is left to chance."""


def test_each_phase_is_what_one_reckons_by_hand() -> None:
    """2 GB in 200 segments of 10 MB, 20 million rows, one disk, one taker with two threads."""
    times = recovery_times(PLAIN, TWO)
    assert times.of("detection") == 0.25
    assert times.of("planning") == pytest.approx(0.1 + 200 * 0.001)
    assert times.of("reading") == pytest.approx(200 * (0.01 + 0.1))
    assert times.of("network") == pytest.approx(2.0)
    assert times.of("replay") == pytest.approx((2.0 + 20.0) / 2)
    assert times.of("handing over") == pytest.approx(4 * 0.05)
    assert times.limit is Limit.DISK
    rest = 0.01 + 0.01 + 0.11 + 0.05  # links out and in, taking one segment, handing over
    assert times.serves_again_s == pytest.approx(0.25 + 0.3 + 22.0 + rest)


@pytest.mark.parametrize(
    ("changes", "rates", "limit"),
    [
        ({"medium": Medium.RAM}, {}, Limit.CPU),
        ({"medium": Medium.RAM}, {"network_bytes_per_s": 1e8}, Limit.NETWORK),
        ({}, {"detection_s": 100.0}, Limit.DETECTION),
        ({}, {"plan_replica_s": 1.0}, Limit.MASTERS),
        ({}, {"tablet_s": 30.0}, Limit.TABLETS),
        ({"medium": Medium.RAM}, {"fetches": 1, "network_bytes_per_s": 2e8}, Limit.FETCHES),
    ],
)
def test_what_limits_is_named(
    changes: dict[str, object], rates: dict[str, float], limit: Limit
) -> None:
    """Whichever resource is made scarce is the one that the plan names."""
    hardware = replace(PLAIN, **rates)  # type: ignore[arg-type]
    assert recovery_times(hardware, TWO.with_changes(**changes)).limit is limit


@settings(max_examples=100, deadline=None)
@given(hardware_of_many_kinds, layouts(100))
def test_more_servers_never_make_it_slower_beyond_detection(
    hardware: Hardware, shape: Layout
) -> None:
    """Twice the machines, with as many servers each and as much in each: what was lost is as much,
    and is brought back by more. From one living machine on another thing is added: the link."""
    if shape.living_machines == 1:
        shape = shape.with_changes(servers=3, backups=3, machines=3)
    twice = shape.with_changes(
        servers=2 * shape.servers,
        backups=2 * shape.backups,
        machines=2 * shape.machines,
        data_bytes=2 * shape.data_bytes,
    )
    before, after = recovery_times(hardware, shape), recovery_times(hardware, twice)
    assert twice.lost_segments == shape.lost_segments
    assert after.overlapped_s <= before.overlapped_s * (1 + 1e-9)


@settings(max_examples=100, deadline=None)
@given(hardware_of_many_kinds, layouts())
def test_no_faster_part_makes_the_whole_slower(hardware: Hardware, shape: Layout) -> None:
    """Twice any rate, or half of any time, and the recovery takes no longer."""
    before = recovery_times(hardware, shape).serves_again_s
    for name, value in hardware.document().items():
        if name == "name" or value is None:
            continue
        is_rate = name.endswith(("_per_s", "_per_core_s", "cores", "threads", "fetches"))
        faster = replace(hardware, **{name: value * 2 if is_rate else value / 2})
        assert recovery_times(faster, shape).serves_again_s <= before * (1 + 1e-9), name


@settings(max_examples=100, deadline=None)
@given(hardware_of_many_kinds, layouts())
def test_keys_first_serve_no_later_than_whole_rows(hardware: Hardware, shape: Layout) -> None:
    """Less travels before tablets serve; all rows are there later, or at the same time."""
    first = recovery_times(hardware, shape.with_changes(mode=Mode.METADATA_FIRST))
    whole = recovery_times(hardware, shape.with_changes(mode=Mode.WHOLE))
    assert first.serves_again_s <= whole.serves_again_s * (1 + 1e-9)
    assert first.of("loading rows") >= 0.0


def test_a_lost_machine_takes_its_backups_replicas_along() -> None:
    """Those are made anew, k of everything over the machines; adopted segments are not."""
    alone = recovery_times(SERVER, layout(11))
    machine = recovery_times(SERVER, layout(11, lost=Lost.MACHINE))
    assert alone.of("re-replication") == 0.0
    assert machine.of("re-replication") == pytest.approx(2 * 10 * GB / 10 / 1.25e9)
    assert machine.whole_again_s > machine.serves_again_s


def test_takers_share_whole_tablets() -> None:
    """Three takers on two machines get 3, 3 and 2 of eight tablets; one machine has 5 of them."""
    shape = layout(2, servers=4, tablets_per_server=8)
    assert (shape.takers, shape.tablets_per_taker) == (3, 3)
    assert shape.share_of_busiest_machine == 5 / 8
    assert layout(10, tablets_per_server=1).takers == 1


def test_a_tablet_above_the_limit_is_taken_over_by_several_servers() -> None:
    """In a power of two parts, no more than live; each fetches all keys, merges and loads its own
    rows, and writes them once."""
    whole = layout(10, tablets_per_server=1, mode=Mode.METADATA_FIRST)
    split = whole.with_changes(split_above_bytes=2 * GB)
    assert [whole.parts_per_tablet, split.parts_per_tablet] == [1, 8]
    assert split.with_changes(split_above_bytes=20 * GB).parts_per_tablet == 1
    limits = {"split_above_bytes": 20 * GB, "split_above_rows": 5e7}
    assert whole.with_changes(**limits).parts_per_tablet == 2
    assert layout(4, tablets_per_server=1, split_above_bytes=1e6).parts_per_tablet == 2
    assert (split.takers, split.share_of_busiest_taker) == (8, 1 / 8)
    assert moved_bytes(split) == 8 * moved_bytes(whole)
    before, after = recovery_times(SERVER, whole), recovery_times(SERVER, split)
    assert after.serves_again_s < before.serves_again_s
    assert after.of("loading rows") == pytest.approx(before.of("loading rows") / 8)
    assert before.of("re-replication") == 0.0 < after.of("re-replication")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"replicas": 11}, "11 replicas need as many backups"),
        ({"servers": 0}, "servers"),
        ({"machines": 1, "lost": Lost.MACHINE}, "one machine"),
        ({"scatter": Scatter(1)}, "group"),
        ({"data_bytes": float("nan")}, "data"),
        ({"live_share": 0.0}, "live"),
        ({"replicas": 17, "backups": 50}, "k must be"),
    ],
)
def test_impossible_layouts_are_refused(changes: dict[str, object], word: str) -> None:
    """In words that name what is wrong."""
    with pytest.raises(InvalidArgument, match=word):
        layout(10).with_changes(**changes)


def test_rates_come_back_from_their_document() -> None:
    """Also those without a limit, which JSON cannot say; wrong ones are refused by name."""
    for each in (VM, SERVER, PLAIN):
        assert hardware_from(each.document()) == each
    for change in ({"cores": "two"}, {"cores": 1.5}, {"cores": 0}, {"nonsense": 1.0}):
        with pytest.raises(InvalidArgument, match=next(iter(change))):
            hardware_from({**VM.document(), **change})
    with pytest.raises(InvalidArgument, match="missing"):
        hardware_from({"name": "x"})


def test_an_empty_server_is_back_after_detection_and_planning() -> None:
    """Nothing to read is no division by nothing."""
    times = recovery_times(PLAIN, TWO.with_changes(data_bytes=0.0))
    assert times.of("reading") == 0.0
    assert times.serves_again_s == pytest.approx(0.25 + 0.1 + 4 * 0.05)


def test_times_and_sizes_read_well() -> None:
    """As people write them."""
    assert [seconds(t) for t in (0.0, 3e-6, 0.0815, 81.92, 5000.0)] == [
        "0 s",
        "3 µs",
        "81.5 ms",
        "81.9 s",
        "5,000 s",
    ]
    assert [size(s) for s in (10.24e9, 500.0, UNLIMITED)] == ["10.2 GB", "500 B", "unlimited"]
