"""Golden conversations of timelines: commands, and everything that could be seen after each.

A file in ``wal/`` is a list of blocks: command lines, ``----``, the output, an empty line. After a
meant change, ``STELAE_REWRITE_GOLDEN=1 pytest tests/golden`` rewrites the outputs; read the diff.

The commands are told in `tests.golden.wal_conversation`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.golden.wal_conversation import play

FOLDER = Path(__file__).parent / "wal"
REWRITE = "STELAE_REWRITE_GOLDEN"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_the_conversation_is_as_recorded(path: Path) -> None:
    """The same commands give the same messages, writes and decisions as when a person read them."""
    text = path.read_text()
    played = play(text)
    if os.environ.get(REWRITE):
        path.write_text(played)
        return
    assert played == text


def test_there_are_conversations() -> None:
    """An empty folder would make the test above prove nothing."""
    assert len(list(FOLDER.glob("*.txt"))) >= 9


def test_without_the_term_bump_a_term_is_won_twice() -> None:
    """The conversation in which the bump decides: without it, the same term has two leaders."""
    text = (FOLDER / "term_bump.txt").read_text()
    played = play(text)
    assert "b is leading in term 2" in played
    without = play(text.replace("min_term=1", "min_term=0"))
    assert "a is leading in term 1" in without
    assert "b is leading in term 1" in without


def test_without_the_term_bump_a_stale_copy_takes_the_place_of_what_was_committed() -> None:
    """Two proposers win one term, so that its history does not tell their entries apart."""
    text = (FOLDER / "stale_copy.txt").read_text()
    with pytest.raises(AssertionError, match="two at one LSN"):
        play(text.replace("min_term=2", "min_term=0"))
