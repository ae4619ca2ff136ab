"""The seed's back of the envelope, redone."""

from __future__ import annotations

import pytest

from stelae.planner.envelope import MISTAKE, steps


def test_the_seeds_numbers_come_out_but_for_its_mistakes() -> None:
    """61 ms, 5.12 GB, 10.24 GB and ten minutes hold; 5.49 s should be 82 s, and 3 ms 32 ms."""
    by_name = {step.what: step for step in steps()}
    found = {name: step.found for name, step in by_name.items()}
    assert found["a backup reads one chunk"] == pytest.approx(0.0613, rel=0.01)
    assert found["ids of one log"] == pytest.approx(5.12e9)
    assert found["... of k = 2 replicas"] == pytest.approx(10.24e9)
    assert found["they reach the new master"] == pytest.approx(81.92)
    assert found["... as the note must have reckoned"] == pytest.approx(5.49, abs=0.01)
    assert found["phase 2, all data to the new master"] == pytest.approx(512)
    assert found["index entries of a chunk, to another machine"] == pytest.approx(0.032)
    differing = [name for name, step in by_name.items() if not step.agrees]
    assert differing == [
        "all backups read their chunks",
        "they reach the new master",
        "phase 1 in all",
        "index entries of a chunk, to another machine",
    ]


def test_the_mistake_is_one_sentence_with_both_figures() -> None:
    """What the note says, and what is right."""
    assert MISTAKE.count(". ") == 0
    for figure in ("5.49 s", "82 s", "10.24 GB"):
        assert figure in MISTAKE


def test_many_takers_beat_the_notes_phase_1() -> None:
    """All rows onto a thousand takers are back before the note's keys onto one."""
    spread = list(steps())[-1]
    assert spread.said is None
    assert spread.found < 1.0
