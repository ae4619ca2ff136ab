"""Golden conversations of the Raft core: commands, and everything that could be seen after each.

A file in ``raft/`` is a list of blocks: command lines, ``----``, the output, an empty line. After a
meant change, ``STELAE_REWRITE_GOLDEN=1 pytest tests/golden`` rewrites the outputs; read the diff.

The commands are told in `tests.golden.raft_conversation`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from stelae.consensus.raft import raft as raft_module
from stelae.consensus.raft.leader import Leader
from stelae.consensus.raft.membership import MemberChange, changed_peers
from stelae.consensus.raft.messages import (
    VoteRequest,
)
from stelae.consensus.raft.raft import Raft
from stelae.core.ids import OpId
from tests.golden.raft_conversation import play

FOLDER = Path(__file__).parent / "raft"
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
    assert len(list(FOLDER.glob("*.txt"))) >= 24


def change_before_own_entry(leader: Leader, change: MemberChange, expected: OpId | None) -> Any:
    return changed_peers(leader.configuration, change)


def commit_with_own_copy(leader: Leader) -> bool:
    voters = leader.configuration.voters
    counting = [*voters, *([] if leader.uuid in voters else [leader.uuid])]
    reached = {uuid: progress.match_index for uuid, progress in leader.progress.items()}
    reached[leader.uuid] = leader._log.stable_index
    index = sorted((reached[uuid] for uuid in counting), reverse=True)[len(voters) // 2]
    return leader.may_commit(index) and leader._log.commit_to(index)


def test_without_its_floor_a_copy_elects_a_leader_that_lacks_what_was_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A copied replica that forgets how far its log had come breaks the promise."""
    monkeypatch.setattr(Raft, "end_of_log", property(lambda core: core.log.last))
    with pytest.raises(AssertionError, match=r"contradicts the commit|two entries at one index"):
        play((FOLDER / "copy_moves_on.txt").read_text())


def void_of_any_term(request: VoteRequest, end: OpId) -> bool:
    gone = request.taken_back
    return request.last >= end or (gone is not None and end.index >= gone.index)


def test_what_was_taken_back_is_void_only_for_those_who_know_of_no_later_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A leader since then may have committed it: else one is elected that lacks it, and is told of
    more entries than it has."""
    monkeypatch.setattr(raft_module, "holds_enough", void_of_any_term)
    with pytest.raises(AssertionError):
        play((FOLDER / "members_take_back_late.txt").read_text())


@pytest.mark.parametrize(
    ("name", "method", "bug"),
    [
        ("members_early_change", "may_change", change_before_own_entry),
        ("members_removed_count", "advance_commit", commit_with_own_copy),
    ],
)
def test_without_its_rule_the_conversation_loses_what_was_committed(
    name: str, method: str, bug: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chance hardly finds these histories; with the rule broken, they break the promise."""
    monkeypatch.setattr(Leader, method, bug)
    with pytest.raises(AssertionError, match=r"contradicts the commit|two entries at one index"):
        play((FOLDER / f"{name}.txt").read_text())
