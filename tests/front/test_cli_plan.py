"""``stelae plan``: what it says, what it teaches, and how it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

WIDE = {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}
ROOT = Path(__file__).parents[2]


def plan(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run ``stelae plan`` as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "stelae", "plan", *arguments],
        cwd=cwd,
        env={**os.environ, **WIDE},
        capture_output=True,
        text=True,
        timeout=100,
    )


def document(*arguments: str, cwd: Path) -> Any:
    answer = plan(*arguments, "--json", cwd=cwd)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def test_help_teaches_with_examples(tmp_path: Path) -> None:
    """How it is called, which names there are, and that it can answer in JSON."""
    answer = plan("--help", cwd=tmp_path)
    assert answer.returncode == 0
    assert "\n stelae plan" in answer.stdout
    for word in ("--json", "--calibrate", "--what-if", "copysets", "metadata-first"):
        assert word in answer.stdout


def test_tables_show_phases_space_risk_and_what_would_help(tmp_path: Path) -> None:
    """Of the repository's own file, at another size, beside a change."""
    answer = plan(
        str(ROOT / "cluster.yaml"), "--servers", "100", "--what-if", "k=3,copysets=3", cwd=tmp_path
    )
    assert answer.returncode == 0, answer.stderr
    assert "100 tablet servers" in answer.stdout
    for word in (
        "detection",
        "re-replication",
        "serves again",
        "memory of a tablet server",
        "risk of losing data, in a year",
        "k=3,copysets=3",
        "what would help",
        "what limits the recovery",
    ):
        assert word in answer.stdout
    assert "Traceback" not in answer.stderr


def test_a_thousand_servers_are_simulated(tmp_path: Path) -> None:
    """Formula and simulation in one document, near each other; the seed says which run."""
    arguments = ("--servers", "1000", "--set", "memory=64GiB,lost=machine,tablets=1000")
    found = document(*arguments, "--simulate", "--seed", "5", cwd=tmp_path)
    assert found["layout"]["machines"] == 1000
    simulated, predicted = found["simulated"], found["recovery"]["serves_again_s"]
    assert predicted / 2 < simulated["serves_again_s"] < predicted * 2
    assert len(simulated["tablets_s"]) == 1000
    again = document(*arguments, "--simulate", "--seed", "5", cwd=tmp_path)
    assert again["simulated"] == simulated
    slow = document(*arguments, "--simulate", "--slow", "5%", cwd=tmp_path)
    assert slow["simulated"]["slow_machines"] == 50


def test_what_if_stands_beside_the_plan(tmp_path: Path) -> None:
    """Each change is a plan of its own; more replicas are safer."""
    found = document("--servers", "50", "--what-if", "k=3", "--what-if", "k=4", cwd=tmp_path)
    fewer = document("--servers", "50", "--set", "power-failures=0,disk-mttf=10000d", cwd=tmp_path)
    assert fewer["failures"]["disk_mttf_s"] == 10000 * 86400
    assert fewer["risk"]["power_failures"]["probability"] == 0.0
    risks = [
        each["risk"]["year"]["log10"]
        for each in (found, found["what_if"]["k=3"], found["what_if"]["k=4"])
    ]
    assert risks == sorted(risks, reverse=True)
    assert len(set(risks)) == 3


def test_results_of_benchmarks_give_rates_and_are_held_against_predictions(tmp_path: Path) -> None:
    """And rates written by one plan are read by the next."""
    figure = {"name": "recovery of 1 GB, 8 tablets, 2 survivors, native", "value": 2.5}
    (tmp_path / "results.json").write_text(
        json.dumps({"suites": {"recovery": {"figures": [figure]}}})
    )
    found = document("--measured", "results.json", cwd=tmp_path)
    assert found["hardware"]["name"] == "measured"
    (compared,) = found["measured"]["comparisons"]
    assert compared["measured"] == 2.5
    (tmp_path / "rates.json").write_text(json.dumps(found))
    again = document("--measured", "rates.json", cwd=tmp_path)
    assert again["hardware"] == found["hardware"]
    shown = plan("--measured", "results.json", cwd=tmp_path)
    assert "off by" in shown.stdout


def test_the_envelope_is_redone(tmp_path: Path) -> None:
    """With what the note says, what comes out, and the mistake in a sentence."""
    shown = plan("--envelope", cwd=tmp_path)
    assert "5.49 s" in shown.stdout
    assert "81.9 s" in shown.stdout
    assert "82 s" in document("--envelope", cwd=tmp_path)["mistake"]


def test_rows_that_do_not_fit_are_a_failure(tmp_path: Path) -> None:
    """Exit code 1, and what would fit."""
    answer = plan("--data", "1TB", cwd=tmp_path)
    assert answer.returncode == 1
    assert "do not fit" in answer.stdout
    assert json.loads(plan("--data", "1TB", "--json", cwd=tmp_path).stdout)["problems"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--set", "k=9"], "as many backups"),
        (["--what-if", "servers"], "NAME=VALUE"),
        (["--what-if", "server=9"], "do you mean servers"),
        (["--data", "much"], "size such as"),
        (["--data", "1TB", "--set", "data=2TB"], "given twice"),
        (["--measured", "none.json"], "cannot be read"),
        (["--measured", "x", "--calibrate"], "one of them"),
        (["--simulate", "--slow", "often"], "--slow"),
        (["none.yaml"], "none.yaml"),
    ],
)
def test_misuse_is_told_in_words(tmp_path: Path, arguments: list[str], word: str) -> None:
    """Exit code 2, no traceback, and what would do."""
    answer = plan(*arguments, cwd=tmp_path)
    assert answer.returncode == 2, answer.stdout
    assert word in answer.stderr
    assert "Traceback" not in answer.stderr
    assert list(tmp_path.iterdir()) == []


def test_this_machine_is_calibrated(tmp_path: Path) -> None:
    """For real: rates of this machine, a plan with them, and nothing left in the folder."""
    found = document("--calibrate", cwd=tmp_path)
    assert found["hardware"]["name"] == "calibrated"
    assert found["hardware"]["disk_write_bytes_per_s"] > 1e6
    assert list(tmp_path.iterdir()) == []
