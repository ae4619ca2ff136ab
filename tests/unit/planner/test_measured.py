"""Rates out of results of benchmarks, and predictions held against those results."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from stelae.core.errors import InvalidArgument
from stelae.planner.hardware import SERVER, VM
from stelae.planner.layout import Mode
from stelae.planner.measured import FACTOR_MAX, read_measured, recovery_layout
from stelae.planner.recovery import recovery_times

WRITES = 'batches of 1,000 rows of 100 bytes, 4 writers, segments("disk", "disk")'
RECOVERY = "recovery of 1 GB, 8 tablets, 2 survivors, native"


def results(**suites: dict[str, float | None]) -> dict[str, Any]:
    """A file of ``make bench``: suites with figures by name."""
    return {
        "quick": False,
        "machine": "somewhere",
        "suites": {
            name.replace("_", "-"): {
                "load": {},
                "figures": [
                    {"name": figure, "measured": str(value), "value": value, "note": ""}
                    for figure, value in figures.items()
                ],
            }
            for name, figures in suites.items()
        },
    }


TAKEN = results(
    replica_writes={WRITES: 343_880.6},
    tablet_copy={
        "tablet copy of 1,063 MiB": 698.6,
        "ray.get, write and sync of as many bytes": 1907.9,
    },
)
"""Figures as they were taken on the machine that `VM` describes, at different hours."""


def test_figures_of_this_kind_of_machine_are_predicted_within_a_factor_of_two() -> None:
    """Before any rate is fitted to them."""
    compared = read_measured(TAKEN, VM).comparisons
    assert [each.unit for each in compared] == ["rows/s", "MiB/s"]
    assert all(each.factor < 2.0 for each in compared)


def test_a_recovery_of_a_gigabyte_takes_about_a_second_on_two_cores() -> None:
    """What `VM` predicts of the benchmark, whose tablets serve with keys and versions alone: within
    its target of 1.5 s, and more than what merging takes (0.67 s on two cores). Then the rows: at
    the target's 400 MB/s at least, and never before the tablets serve."""
    document = results(recovery={RECOVERY: 1.5, "… all rows in memory": 3.0})
    serving, loaded = read_measured(document, VM).comparisons
    assert 0.7 < serving.predicted < 1.5
    assert serving.predicted < loaded.predicted < 1.5 + 1e9 / 400e6
    assert (loaded.name, loaded.measured) == ("recovery: … all rows in memory", 3.0)


def test_the_prediction_is_of_what_the_benchmark_waits_for() -> None:
    """Predicted as if all rows had to be back first, it would be another figure."""
    layout = recovery_layout(1e9, 8, 2)
    whole = recovery_times(VM, replace(layout, mode=Mode.WHOLE)).serves_again_s
    assert whole > 1.5 * recovery_times(VM, layout).serves_again_s


@pytest.mark.parametrize("total_s", [1.0, 2.5, 8.0])
def test_rates_are_fitted_so_that_the_figure_comes_out(total_s: float) -> None:
    """With the rates of a measured recovery, the formulas give its time; detection and planning
    are those measured."""
    phases = {"… detection": 0.02, "… plan": 0.1, "… merge": 0.5}
    read = read_measured(results(recovery={RECOVERY: total_s, **phases}), VM)
    fitted = read.hardware
    times = recovery_times(fitted, recovery_layout(1e9, 8, 2))
    assert times.of("detection") == 0.02
    assert times.of("planning") == pytest.approx(0.1)
    assert times.serves_again_s == pytest.approx(total_s, rel=0.05)
    assert "recovery" in read.sources[0]


def test_phases_of_the_other_engine_are_not_taken() -> None:
    """Spark's recovery has phases of the same names."""
    document = results(
        recovery={RECOVERY: 2.5, "… detection": 0.02},
        recovery_spark={"… detection": 5.0},
    )
    assert read_measured(document, VM).hardware.detection_s == 0.02


def test_disks_and_writes_are_taken_as_measured() -> None:
    """MiB/s as bytes; rows of a core."""
    fitted = read_measured(TAKEN, VM).hardware
    assert fitted.disk_write_bytes_per_s == pytest.approx(1907.9 * 2**20)
    assert fitted.write_rows_per_core_s == pytest.approx(343_880.6 / 2)
    assert fitted.name == "measured"


def test_a_busy_machine_is_believed_up_to_a_limit() -> None:
    """A recovery that took minutes says little of the cores."""
    slow = read_measured(results(recovery={RECOVERY: 600.0}), VM).hardware
    assert slow.receive_bytes_per_core_s == pytest.approx(VM.receive_bytes_per_core_s / FACTOR_MAX)


def test_what_is_not_measured_stays_as_it_was() -> None:
    """Skipped figures, odd names, suites that broke: nothing is taken from them."""
    document = results(writes={"etcd": 5.0, "skipped": None}, other={RECOVERY: math.nan})
    document["suites"]["broken"] = {"error": "Traceback"}
    read = read_measured(document, SERVER)
    assert read.hardware == SERVER
    assert read.sources == ()
    assert read.comparisons == ()


def test_a_calibration_is_taken_as_it_is() -> None:
    """The document of ``stelae plan --json`` has the rates that it used."""
    read = read_measured({"hardware": SERVER.document(), "layout": {}}, VM)
    assert read.hardware == SERVER


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"suites": []},
        {"suites": {"a": 1}},
        {"suites": {"a": {"figures": {}}}},
        {"suites": {"a": {"figures": [1]}}},
        {"hardware": {"name": "x"}},
    ],
)
def test_other_files_are_refused_in_words(document: object) -> None:
    """Whatever JSON it is."""
    with pytest.raises(InvalidArgument):
        read_measured(document, VM)
