"""How far long calls are: in a notebook they show it, unless the caller listens by itself.

Elsewhere nothing is shown: a script says what it wants to hear with ``progress=``, the command line
has bars of its own. A bar is a piece of HTML that is replaced, so that no widgets are needed; the
last one stays in the notebook, with what it came to.
"""

from __future__ import annotations

import html
import importlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from stelae.core.messages.operators import ServerProgress

Told: TypeAlias = Callable[[int, int, str], None]
"""How much is done, of how much (0: nobody knows), and what goes on."""
Counts: TypeAlias = Callable[[int, int], None]
Words: TypeAlias = Callable[[str], None]

PARTS = 1000
"""Of a bar that fills by and by."""
LONGEST_TEXT = 120
PAUSE_S = 0.1
"""Between two looks of a bar: each is a message to the browser."""


def is_notebook() -> bool:
    """Whether this program is the kernel of a notebook."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return type(get_ipython()).__name__ == "ZMQInteractiveShell"


@contextmanager
def bar(title: str) -> Iterator[Told]:
    """In a notebook a bar, elsewhere nothing."""
    if not is_notebook():
        yield lambda done, of, text: None
        return
    shown = _Bar(title)
    try:
        yield shown.tell
    except BaseException as error:
        shown.end(f"ended by {type(error).__name__}")
        raise
    shown.end("done")


@contextmanager
def count_bar(title: str, given: Counts | None, unit: str = "rows") -> Iterator[Counts]:
    """``given``, or else a bar of rows, or of whatever is counted."""
    if given is not None:
        yield given
        return
    with bar(title) as tell:
        yield lambda done, of: tell(done, of, f"{done:,} of {of:,} {unit}")


@contextmanager
def words_bar(title: str, given: Words | None) -> Iterator[Words]:
    """``given``, or else what goes on, in words."""
    if given is not None:
        yield given
        return
    with bar(title) as tell:
        yield lambda text: tell(0, 0, text)


@contextmanager
def steps_bar(title: str, given: Told | None) -> Iterator[Told]:
    """``given``, or else a bar of steps."""
    if given is not None:
        yield given
        return
    with bar(title) as tell:
        yield tell


# ---- what long calls tell, as a bar has it --------------------------------------------------


def index_told(tell: Told) -> Callable[[dict[str, Any]], None]:
    """For `Table.create_index`: which part is filled."""

    def progress(seen: dict[str, Any]) -> None:
        what = f"{seen['entries']:,} entries"
        why = f": {seen['problem']}" if seen["problem"] else ""
        tell(round(PARTS * seen["filled"]), PARTS, f"{what}{why}"[:LONGEST_TEXT])

    return progress


def retiring_told(tell: Told) -> Callable[[ServerProgress], None]:
    """For `Database.retire_server`: how much is left, of the most that there was."""
    most = 0

    def progress(seen: ServerProgress) -> None:
        nonlocal most
        left = seen.replicas + seen.tablets + seen.indexlets + seen.segments + seen.logs
        most = max(most, left)
        why = f": {seen.problem}" if seen.problem else ""
        tell(most - left, most, what_is_left(left, seen) + why)

    return progress


def what_is_left(left: int, seen: ServerProgress) -> str:
    """What ``left`` things are, in words."""
    if seen.segments:
        return f"{left} segments are left"
    if seen.logs:
        return f"{left} logs are left"
    indexlets = seen.indexlets
    if not indexlets:
        return f"{left} tablets are left"
    return f"{left - indexlets} tablets and {indexlets} indexlets are left"


# ---- a bar ----------------------------------------------------------------------------------


class _Bar:
    def __init__(self, title: str) -> None:
        shown: Any = importlib.import_module("IPython.display")  # it has no types
        self._title = title
        self._html: Callable[[str], Any] = shown.HTML
        self._began_s = self._shown_s = time.monotonic()
        self._last = (0, 0, "")
        self._handle = shown.display(shown.HTML(self._page()), display_id=True)

    def tell(self, done: int, of: int, text: str) -> None:
        """Perhaps from another thread."""
        self._last = (done, of, text)
        now_s = time.monotonic()
        if now_s - self._shown_s >= PAUSE_S:
            self._shown_s = now_s
            self._show()

    def end(self, outcome: str) -> None:
        done, of, text = self._last
        self._last = (done, of, f"{text}; {outcome}" if text else outcome)
        self._show()

    def _show(self) -> None:
        if self._handle is not None:
            self._handle.update(self._html(self._page()))

    def _page(self) -> str:
        done, of, text = self._last
        taken = f"{time.monotonic() - self._began_s:.1f} s"
        shown = f'<progress value="{min(done, of)}" max="{of}"></progress> ' if of else ""
        return f"<div>{html.escape(self._title)}: {shown}{html.escape(text)} ({taken})</div>"
