"""``stelae plan --calibrate``: figures of this machine, in bounded time, with nothing left over."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest

from stelae.core.errors import InvalidArgument, RetryLater
from stelae.planner.hardware import VM
from stelae.planning import calibration, calibration_work

FIGURES = {
    "cores": 8,
    "disk_write_bytes_per_s": 1e9,
    "disk_read_bytes_per_s": 2e9,
    "disk_seek_s": 0.0001,
    "cached_read_bytes_per_core_s": 4e9,
    "new_memory_bytes_per_core_s": 1e9,
    "stream_bytes_per_core_s": 4e9,
    "check_bytes_per_core_s": 4e9,
    "merge_rows_per_core_s": 15e6,
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements of some milliseconds."""
    monkeypatch.setattr(calibration_work, "PIECE_BYTES", 1 << 20)
    monkeypatch.setattr(calibration_work, "FILE_BYTES_MAX", 4 << 20)
    monkeypatch.setattr(calibration_work, "TOUCH_BYTES", 4 << 20)
    monkeypatch.setattr(calibration_work, "STREAM_BYTES_MAX", 4 << 20)
    monkeypatch.setattr(calibration_work, "SEGMENT_ROWS", 500)
    monkeypatch.setattr(calibration_work, "RUNS", 2)


@pytest.mark.usefixtures("small")
def test_each_step_measures_something(tmp_path: Path) -> None:
    """All figures that rates are made of, each positive, of real work on this machine."""
    found: dict[str, float] = {"cores": calibration_work.cpu_count()}
    for step in calibration_work.steps():
        found.update(step.measure(tmp_path))
    assert set(found) == set(FIGURES)
    assert all(value > 0 for value in found.values())
    made = calibration.hardware_of(found, VM)
    assert made.name == "calibrated"
    assert made.network_bytes_per_s == VM.network_bytes_per_s


def test_rates_are_put_together_from_their_parts() -> None:
    """Sending: page cache and one end of a connection; receiving: the other end, the check, new
    memory; a server's own work on top."""
    made = calibration.hardware_of(FIGURES, VM)
    around = calibration.AROUND
    assert 1 / made.send_bytes_per_core_s == pytest.approx(around * 0.5e-9)
    assert 1 / made.receive_bytes_per_core_s == pytest.approx(around * 1.5e-9)
    assert made.merge_rows_per_core_s == pytest.approx(15e6 / around)
    assert (made.cores, made.disk_read_bytes_per_s) == (8, 2e9)


def child(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Have another program do the work."""
    monkeypatch.setattr(
        calibration, "command_of", lambda folder: [sys.executable, "-c", script, str(folder)]
    )


GOOD = f"""
import json, pathlib, sys
pathlib.Path(sys.argv[1], "left").write_text("x")
print("a library says something")
for done in range(2):
    print(json.dumps({{"step": "s%d" % done, "done": done, "total": 2}}))
print(json.dumps({{"figures": {FIGURES!r}}}))
"""


def test_progress_is_told_and_the_folder_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step by step; what else is printed is no harm."""
    child(monkeypatch, GOOD)
    told: list[tuple[int, int, str]] = []
    made = calibration.calibrate(VM, lambda *step: told.append(step), folder=tmp_path)
    assert told == [(0, 2, "s0"), (1, 2, "s1")]
    assert made == calibration.hardware_of(FIGURES, VM)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_is_told_in_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last line of what it said, and nothing stays."""
    child(monkeypatch, "raise OSError('no space left')")
    with pytest.raises(RetryLater, match="no space left"):
        calibration.calibrate(VM, print, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_hangs_is_ended_at_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its process and its folder."""
    child(monkeypatch, "import time; print('{', flush=True); time.sleep(600)")
    with pytest.raises(RetryLater, match="not done in time"):
        calibration.calibrate(VM, print, folder=tmp_path, timeout_s=0.5)
    assert list(tmp_path.iterdir()) == []
    mine = psutil.Process().children(recursive=True)
    assert not [each for each in mine if str(tmp_path) in " ".join(each.cmdline())]


def test_the_work_ends_with_whoever_asked_for_it(tmp_path: Path) -> None:
    """Its standard input is closed: it is gone at once, not when it is done."""
    command = calibration.command_of(tmp_path)
    process = psutil.Popen(command, stdin=-1, stdout=-1, cwd=os.getcwd())
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(30) == 1
    assert process.stdout is not None
    process.stdout.close()


def test_a_folder_that_cannot_be_used_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None there, or no room in it: before anything is started."""
    with pytest.raises(InvalidArgument, match="no folder"):
        calibration.calibrate(VM, print, folder=tmp_path / "none")
    monkeypatch.setattr(calibration, "FREE_BYTES_MIN", 1 << 80)
    with pytest.raises(InvalidArgument, match="free"):
        calibration.calibrate(VM, print, folder=tmp_path)
