"""How far long calls are, in a notebook and elsewhere."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import IPython.display
import pytest

from stelae.core.ids import ServerUuid
from stelae.core.messages.operators import ServerProgress
from stelae.core.records.records import ServerMark
from stelae.database import progress


class Notebook:
    """What a browser would show: the newest HTML of each bar."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shown: list[str] = []
        monkeypatch.setattr(progress, "is_notebook", lambda: True)
        monkeypatch.setattr(progress, "PAUSE_S", 0.0)
        monkeypatch.setattr(IPython.display, "display", self._display)

    def _display(self, page: Any, *, display_id: bool) -> Any:
        assert display_id
        at = len(self.shown)
        self.shown.append(page.data)

        def update(newer: Any) -> None:
            self.shown[at] = newer.data

        return SimpleNamespace(update=update)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    return Notebook(monkeypatch)


def test_a_bar_shows_what_is_told_and_stays_with_its_outcome(notebook: Notebook) -> None:
    """Names are text, whatever is in them."""
    with progress.count_bar("load of <b>", None) as tell:
        tell(250, 1000)
        (seen,) = notebook.shown
        assert '<progress value="250" max="1000">' in seen
        assert "load of &lt;b&gt;" in seen
        assert "250 of 1,000 rows" in seen
        tell(1000, 1000)
    assert "1,000 of 1,000 rows; done" in notebook.shown[0]


def test_a_call_that_fails_says_so_and_fails(notebook: Notebook) -> None:
    """Ctrl-C, too."""

    def interrupted() -> None:
        with progress.words_bar("launch", None) as tell:
            tell("starting Ray")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "starting Ray; ended by KeyboardInterrupt" in notebook.shown[0]
    assert "<progress" not in notebook.shown[0]


def test_who_listens_gets_no_bar(notebook: Notebook) -> None:
    """What was given is what is told."""
    counts: list[tuple[int, int]] = []
    with progress.count_bar("x", lambda done, of: counts.append((done, of))) as tell:
        tell(1, 2)
    steps: list[tuple[int, int, str]] = []
    with progress.steps_bar("x", lambda *told: steps.append(told)) as tell_step:
        tell_step(1, 2, "three")
    words: list[str] = []
    with progress.words_bar("x", words.append) as say:
        say("yes")
    assert (counts, steps, words) == ([(1, 2)], [(1, 2, "three")], ["yes"])
    assert notebook.shown == []


def test_outside_of_a_notebook_nothing_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither in a script nor in IPython's own terminal."""
    assert not progress.is_notebook()
    monkeypatch.delitem(sys.modules, "IPython")
    assert not progress.is_notebook()
    with progress.steps_bar("x", None) as tell:
        tell(1, 2, "three")
    assert capsys.readouterr() == ("", "")


def test_what_servers_and_indexes_tell_is_put_into_a_bar() -> None:
    """Done is what is there no more, of the most that there was."""
    told: list[tuple[int, int, str]] = []
    tell = progress.retiring_told(lambda *seen: told.append(seen))
    mark = ServerMark(ServerUuid("a"), "tserver-1", retiring=True)
    for replicas, problem in ((4, ""), (7, ""), (2, "no room")):
        tell(ServerProgress(mark, True, replicas, 0, problem=problem))
    assert [each[:2] for each in told] == [(0, 4), (0, 7), (5, 7)]
    assert told[-1][2] == "2 tablets are left: no room"
    fill = progress.index_told(lambda *seen: told.append(seen))
    fill({"entries": 1000, "filled": 0.5, "problem": ""})
    fill({"entries": 1000, "filled": 0.5, "problem": "waits"})
    assert told[-2:] == [(500, 1000, "1,000 entries"), (500, 1000, "1,000 entries: waits")]
