"""`stelae.simulation.soak.explore`: explores for hours, whatever fails, and reports what it
found."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stelae.simulation.__main__ import main
from stelae.simulation.runner import KEPT_SEEDS, derive_seeds, kept_seeds
from stelae.simulation.scenarios import SCENARIOS
from stelae.simulation.soak.explore import FairSeeds, parser_of_soaks
from stelae.simulation.soak.workers import STEP_MAX_S, SoakClock
from tests.simulation.world.soaked import EXIT_CODE, VIRTUAL_S

SOAKED = Path(__file__).parent / "soaked.py"
HOLDS, FAILS, DIES, HANGS, FRESH = (
    f"{SOAKED}:{name}" for name in ("HOLDS", "FAILS", "DIES", "HANGS", "FRESH")
)
BASE = "a base of the tests"


def soak(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run a soak with one worker; return its exit code and the content of its JSON file."""
    path = folder / "figures" / "soak.json"
    code = main(["soak", "--base", BASE, "--jobs", "1", "--json", str(path), *arguments])
    return code, json.loads(path.read_text())


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_scenarios_get_equal_shares_of_the_time(workers: int) -> None:
    """Seeds that take 100 times as long run 100 times less often, whatever the number of workers:
    the times of two scenarios never differ by more than what is running of the longer one."""
    cost_s = {"short": 0.1, "middle": 1.0, "long": 10.0}
    seeds = FairSeeds(list(cost_s), BASE)
    done_s = dict.fromkeys(cost_s, 0.0)
    running: list[tuple[float, float, str]] = []  # (end, begin, scenario)
    now_s = 0.0
    while now_s < 2000.0:
        while len(running) < workers:
            spent_s = dict(done_s)
            for _, began_s, name in running:
                spent_s[name] += now_s - began_s
            chosen = seeds.next(spent_s)
            assert chosen is not None
            running.append((now_s + cost_s[chosen[0]], now_s, chosen[0]))
        running.sort()
        now_s, began_s, name = running.pop(0)
        done_s[name] += now_s - began_s
        assert max(done_s.values()) - min(done_s.values()) <= 10.0 * (workers + 1)
    assert min(done_s.values()) > 0.9 * workers * now_s / 3


def test_seeds_are_those_of_the_base_in_order() -> None:
    """A soak is repeated by its base: no seed is left out, however many are derived at a time."""
    seeds = FairSeeds(["kv"], BASE, seeds_max=1000)
    chosen = [seeds.next({"kv": 1.0}) for _ in range(1000)]
    assert chosen == [("kv", seed) for seed in derive_seeds("kv", 1000, BASE)]
    assert seeds.next({}) is None


def test_a_pause_of_the_soak_does_not_count() -> None:
    """A soak that was stopped for a night goes on where it was: no seed has become late."""
    times_s = iter([100.0, 100.5, 130.0, 40_000.0, 40_001.0])
    clock = SoakClock(lambda: next(times_s))
    assert [clock.now() for _ in range(4)] == [0.5, 30.0, 30.0 + STEP_MAX_S, 31.0 + STEP_MAX_S]


def test_failures_do_not_stop_a_soak(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Failing seeds and dead workers are counted, named and replayable; all other seeds run, and
    no kept list changes."""
    kept, before = tmp_path / "seeds.txt", KEPT_SEEDS.read_text()
    code, found = soak(tmp_path, FAILS, DIES, HOLDS, "--seeds", "3", "--kept", str(kept))
    assert code == 1
    assert (found["base"], found["state"], found["jobs"]) == (BASE, "done", 1)
    figures = found["scenarios"]
    assert {name: (f["seeds"], f["failures"]) for name, f in figures.items()} == {
        FAILS: (3, 3),
        DIES: (3, 3),
        HOLDS: (3, 0),
    }
    assert figures[HOLDS]["simulated_hours"] == round(3 * VIRTUAL_S / 3600, 4)
    assert figures[HOLDS]["seeds_per_hour"] > 0
    failures = {(f["scenario"], f["seed"]): f for f in found["failures"]}
    for name in (FAILS, DIES):
        assert [seed for of, seed in failures if of == name] == derive_seeds(name, 3, BASE)
    for (name, seed), failure in failures.items():
        lost = f"AssertionError: row 1 of seed {seed} is lost"
        died = f"the worker process died: exit code {EXIT_CODE}"
        assert failure["error"] == (lost if name == FAILS else died)
        assert failure["replay"] == f"python -m stelae.simulation {seed} --scenario {name}"
    said = capsys.readouterr().out
    assert f"--base {BASE}" in said
    assert all(failure["replay"] in said for failure in failures.values())
    assert re.search(r"all +│ +9 │ +6 │", said)
    assert not kept.exists()
    assert KEPT_SEEDS.read_text() == before


def test_failing_seeds_join_the_kept_list_on_request(tmp_path: Path) -> None:
    """With --keep each failing seed is in the list, once, with its cause."""
    kept = tmp_path / "seeds.txt"
    for _ in range(2):
        soak(tmp_path, FAILS, HOLDS, "--seeds", "2", "--keep", "--kept", str(kept))
    assert kept_seeds(FAILS, kept) == derive_seeds(FAILS, 2, BASE)
    assert kept_seeds(HOLDS, kept) == []
    assert "is lost" in kept.read_text()


def test_a_seed_that_hangs_costs_itself_only(tmp_path: Path) -> None:
    """It fails after its limit, and another process goes on."""
    code, found = soak(tmp_path, HANGS, HOLDS, "--seeds", "2", "--seed-limit", "1")
    assert code == 1
    assert [f["error"] for f in found["failures"]] == ["no end within 1 s of wall time"] * 2
    assert found["scenarios"][HOLDS]["seeds"] == 2


def test_a_worker_is_replaced_before_it_grows(tmp_path: Path) -> None:
    """A process runs no more seeds than allowed; the exit code of a soak without failures is 0."""
    code, found = soak(tmp_path, FRESH, "--seeds", "3", "--seeds-per-process", "1")
    assert (code, found["failures"]) == (0, [])
    code, _ = soak(tmp_path, FRESH, "--seeds", "3")
    assert code == 1


def begin_to_hang(path: Path) -> subprocess.Popen[str]:
    """Start a soak whose first seed fails and whose second one hangs; return after the first."""
    command = [sys.executable, "-m", "stelae.simulation", "soak", FAILS, HANGS]
    command += ["--base", BASE, "--jobs", "1", "--json", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert any(line.startswith("FAILED") for line in iter(process.stdout.readline, ""))
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_the_table_and_the_file(tmp_path: Path, number: signal.Signals) -> None:
    """A soak that is ended from outside reports what has run, and leaves no process."""
    path = tmp_path / "soak.json"
    with begin_to_hang(path) as process:
        process.send_signal(number)
        assert process.stdout is not None
        rest = process.stdout.read()  # to its end: no worker holds the pipe open
    assert process.returncode == 1
    assert "simulated hours" in rest
    found = json.loads(path.read_text())
    total = found["total"]
    assert (found["state"], total["seeds"], total["failures"]) == ("interrupted", 1, 1)
    assert list(tmp_path.iterdir()) == [path]


def test_a_soak_that_is_killed_leaves_its_figures(tmp_path: Path) -> None:
    """A failure is in the file before it is printed; the workers end with their soak."""
    path = tmp_path / "soak.json"
    with begin_to_hang(path) as process:
        process.kill()
        assert process.stdout is not None
        process.stdout.read()  # to its end: no worker holds the pipe open
    found = json.loads(path.read_text())
    assert found["state"] == "running"
    assert [failure["scenario"] for failure in found["failures"]] == [FAILS]


def test_a_soak_of_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown scenario is a wrong call, with exit code 2 and the names that there are."""
    assert main(["soak", "nonsense", "--json", str(tmp_path / "soak.json")]) == 2
    assert "no scenario 'nonsense'; there are alters" in capsys.readouterr().err
    for wrong in (["--minutes", "0"], ["--jobs", "0"], ["--seeds", "-1"]):
        with pytest.raises(SystemExit):
            main(["soak", *wrong])


def test_the_help_names_every_scenario() -> None:
    """What can be soaked is said where one looks for it."""
    text = " ".join(parser_of_soaks().format_help().split())
    assert all(name in text for name in SCENARIOS)
    assert "--keep" in text
