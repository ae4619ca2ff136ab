"""A whole plan: what it says can be relied upon, and can be written down."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings

from stelae.planner.hardware import SEED, SERVER, VM, Hardware
from stelae.planner.layout import Layout, Lost, Medium
from stelae.planner.plan import make_plan
from stelae.planner.resources import CLEANING_SHARE, bytes_per_row, resources_of
from stelae.planner.simulated import simulate
from tests.unit.planner.layouts import GB, hardware_of_many_kinds, layout, layouts


@settings(max_examples=100, deadline=None)
@given(hardware_of_many_kinds, layouts())
def test_every_plan_is_json_without_infinities(hardware: Hardware, shape: Layout) -> None:
    """Programs read it; and each piece of advice makes something better."""
    made = make_plan(hardware, shape)
    document = json.loads(json.dumps(made.document(), allow_nan=False))
    assert document["recovery"]["serves_again_s"] == made.times.serves_again_s
    assert document["recovery"]["limit"] == made.times.limit.value
    assert 0.0 <= document["risk"]["year"]["probability"] <= 1.0
    assert all(0.0 < each["saved_share"] <= 1.0 for each in document["advice"])


def test_rates_without_limits_and_simulations_are_written_too() -> None:
    """Null is a rate without a limit."""
    shape = layout(5)
    document = make_plan(SEED, shape, None, simulate(SEED, shape)).document()
    text = json.dumps(document, allow_nan=False)
    assert json.loads(text)["hardware"]["receive_bytes_per_core_s"] is None
    assert json.loads(text)["simulated"]["segments"] == shape.lost_segments


def test_advice_turns_what_limits() -> None:
    """A slow disk: disks that read faster, or memory; one table of one tablet: more tablets."""
    slow = layout(10, tablets_per_server=1)
    knobs = [each.knob for each in make_plan(SERVER, slow).advice]
    assert "twice the tablets (buckets) in a table" in knobs
    hardware = replace(SERVER, disk_read_bytes_per_s=1e8)
    knobs = [each.knob for each in make_plan(hardware, layout(10)).advice]
    assert {"disks that read twice as fast", "replicas in backups' memory (medium=ram)"} <= set(
        knobs
    )
    assert "k=3" in knobs


def test_what_does_not_fit_is_said_with_what_would() -> None:
    """As many tablet servers as it says hold the rows, and one fewer does not."""
    shape = layout(3, memory_bytes=4 * GB, data_bytes=20 * GB)
    made = make_plan(SERVER, shape)
    assert not made.resources.fits
    needed = made.resources.servers_needed
    assert f"{needed} tablet servers" in made.problems[0]
    enough = layout(needed, memory_bytes=4 * GB, data_bytes=20 * GB, tablets_per_server=200)
    assert make_plan(SERVER, enough).resources.fits
    short = layout(needed - 1, memory_bytes=4 * GB, data_bytes=20 * GB, tablets_per_server=200)
    assert not make_plan(SERVER, short).resources.fits


def test_replicas_that_are_no_copies_are_pointed_out() -> None:
    """k=2 on one machine; no replicas at all."""
    assert "1 machine" in make_plan(VM, layout(1, servers=2, backups=2)).problems[0]
    assert any("k=0" in text for text in make_plan(VM, layout(3, replicas=0)).problems)


def test_space_is_counted_by_hand() -> None:
    """A million rows of 100 bytes, half of the log overwritten: 136 bytes a live row, 109 a dead
    one; twice the log on disks, with 17 bytes beside each row."""
    shape = layout(2, data_bytes=100e6, live_share=0.5)
    found = resources_of(SERVER, shape)
    assert found.rows == 1e6
    assert bytes_per_row(shape) == 136
    assert found.memory_per_server_bytes == pytest.approx(500_000 * (136 + 109))
    assert found.disk_bytes == pytest.approx(2 * 200e6 * 1.17)
    assert found.memory_limit_bytes == CLEANING_SHARE * 64 * GB
    assert found.memory_after_loss_bytes == pytest.approx(2 * found.memory_per_server_bytes)


def test_writes_are_held_up_by_the_scarcest() -> None:
    """Cores of a small cluster; disks where replicas are many; no disk, no limit of it."""
    small = layout(3)
    cpu = 3 * SERVER.cores * SERVER.write_rows_per_core_s
    slow = replace(SERVER, disk_write_bytes_per_s=50e6)
    assert resources_of(slow, small).write_rows_per_s == pytest.approx(3 * 50e6 / 2 / 100)
    assert resources_of(SERVER, small).write_rows_per_s == pytest.approx(cpu)
    in_memory = small.with_changes(medium=Medium.RAM)
    assert resources_of(slow, in_memory).write_rows_per_s == pytest.approx(cpu)


def test_memory_after_the_loss_counts_what_dies_with_a_machine() -> None:
    """Three servers on each machine: the takers hold a machine's worth."""
    one = layout(4, servers=12, tablets_per_server=60)
    alone = resources_of(SERVER, one).memory_after_loss_bytes
    machine = resources_of(SERVER, one.with_changes(lost=Lost.MACHINE)).memory_after_loss_bytes
    each = resources_of(SERVER, one).memory_per_server_bytes
    assert alone == pytest.approx(each * (1 + 6 / 60))
    assert machine == pytest.approx(each * (1 + 3 / 9))
