"""Traces, as far as servers know of them: where spans begin and end, and nothing of who keeps them.

A trace is named by W3C's ``traceparent``, a text. Off, which is the rule, `active` is None, and
nothing else is done. Whether a trace is kept is decided where it begins (HTTP); only one that is
kept travels with calls, so that others cost a server nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, Protocol, TypeAlias

Kind: TypeAlias = Literal["server", "client", "internal"]
_PARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class Span(Protocol):
    """One piece of work of a trace that is kept. Not ended, it is not kept."""

    context: str
    """The ``traceparent`` of what belongs to it."""

    def end(self, error: str = "", attributes: Mapping[str, str | int] | None = None) -> None: ...


class Spans(Protocol):
    """Who keeps them."""

    def begin(
        self, name: str, kind: Kind, parent: str, attributes: Mapping[str, str | int]
    ) -> Span | None:
        """Begin now; None: its trace is not kept. ``parent``: empty, a trace begins with it."""
        ...

    def record(
        self,
        name: str,
        began_s: float,
        ended_s: float,
        parent: str,
        attributes: Mapping[str, str | int],
    ) -> str:
        """A span that is over, by the wall clock; returns its context, empty if it is not kept."""
        ...


active: Spans | None = None
"""Of this process; set once, at its start (`stelae.runtime.traces`). Look it up at each use."""


def use(spans: Spans | None) -> None:
    """From now on."""
    global active
    active = spans


@contextmanager
def spanned(name: str, parent: str = "", **attributes: str | int) -> Iterator[str]:
    """A piece of work as a span; gives the context of what belongs to it, empty without traces."""
    spans = active
    span = None if spans is None else spans.begin(name, "internal", parent, attributes)
    try:
        yield "" if span is None else span.context
    except BaseException as error:
        if span is not None:
            span.end(f"{type(error).__name__}: {error}")
        raise
    if span is not None:
        span.end()


def sane_parent(text: str) -> str:
    """A ``traceparent`` that somebody sent, if it is one; else empty."""
    return text if _PARENT.fullmatch(text) else ""
