"""Conditional requests: ``If-Match`` and ``If-None-Match``, and what they mean for rows and tables.

``If-Match`` compares strongly (a weak tag names nothing), ``If-None-Match`` weakly; both take lists
and ``*``. What has no tag (a row that is absent) is named by nothing. Where a request would be
refused anyway its conditions are not looked at. Source: RFC 9110, 8.8.3, 13.1 and 13.2.

The tag of a row is its version. That of a table is its edition, and how its tablets are where not
all run: who alters or deletes it is held to the edition alone, since tablets go and come by
themselves.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starlette.requests import Request

from stelae.core.errors import InvalidArgument
from stelae.core.records.records import TableRecord, TabletState
from stelae.serve.bodies.problems import PreconditionFailed

MAX_TAGS = 100
"""Of one header; beyond it, 400."""
MAX_VERSION = (1 << 63) - 1
_TAG = re.compile(r'[ \t]*(?:(W/)?"([\x21\x23-\x7e\x80-\xff]*)"[ \t]*)?(?:,|$)')
_VERSION = re.compile(r"[1-9][0-9]{0,19}")
_STATES = "-"
"""Between a table's edition and the states of its tablets."""


@dataclass(frozen=True, slots=True)
class Tags:
    """One header."""

    is_any: bool
    strong: tuple[str, ...] = ()
    weak: tuple[str, ...] = ()

    def name(self, tag: str | None, *, weakly: bool = False) -> bool:
        """Whether this is one of them. None: there is nothing that could be."""
        if tag is None:
            return False
        return self.is_any or tag in self.strong or (weakly and tag in self.weak)

    def __str__(self) -> str:
        """As much of it as a message needs."""
        shown = [f'"{tag}"' for tag in self.strong] + [f'W/"{tag}"' for tag in self.weak]
        return "*" if self.is_any else ", ".join(shown)[:80]


@dataclass(frozen=True, slots=True)
class Condition:
    """Both headers of a request."""

    match: Tags | None
    none_match: Tags | None

    def check_match(self, tag: str | None, what: str) -> None:
        """Raise `PreconditionFailed` unless ``If-Match`` holds."""
        if self.match is not None and not self.match.name(tag):
            raise PreconditionFailed(f"{what} {_shown(tag)}; If-Match: {self.match}")

    def check(self, tag: str | None, what: str) -> None:
        """Raise `PreconditionFailed` unless both hold, of a request that changes something."""
        self.check_match(tag, what)
        if self.excludes(tag):
            raise PreconditionFailed(f"{what} {_shown(tag)}; If-None-Match: {self.none_match}")

    def excludes(self, tag: str | None) -> bool:
        """Whether ``If-None-Match`` names it: a read is answered with 304 then."""
        return self.none_match is not None and self.none_match.name(tag, weakly=True)

    def only_version(self) -> int | None:
        """The one version that a row must have for the condition to hold, 0: it must be absent.
        None: it takes a look at the row to tell."""
        if self.match is None:
            assert self.none_match is not None, "a condition has one of them"
            return 0 if self.none_match.is_any else None
        if self.none_match is None and len(self.match.strong) == 1:
            text = self.match.strong[0]
            if _VERSION.fullmatch(text) and int(text) <= MAX_VERSION:
                return int(text)
        return None


def condition_of(request: Request) -> Condition | None:
    """What the request's headers say; None: nothing. Raises InvalidArgument."""
    match = _tags(request, "If-Match")
    none_match = _tags(request, "If-None-Match")
    return None if match is None and none_match is None else Condition(match, none_match)


def _tags(request: Request, header: str) -> Tags | None:
    """Raises InvalidArgument."""
    if request.headers.get(header) is None:
        return None
    text = ",".join(request.headers.getlist(header)).strip(" \t")
    if text == "*":
        return Tags(is_any=True)
    strong: list[str] = []
    weak: list[str] = []
    at = 0
    while at < len(text):
        found = _TAG.match(text, at)
        if found is None:
            raise InvalidArgument(
                f'{header}: {text[:40]!r} is not *, nor ETags in quotes: "7", "8"'
            )
        if found[2] is not None:
            (weak if found[1] else strong).append(found[2])
        if len(strong) + len(weak) > MAX_TAGS:
            raise InvalidArgument(f"{header}: more than {MAX_TAGS} ETags")
        at = found.end()
    if not strong and not weak:
        raise InvalidArgument(f'{header} is empty: *, or ETags in quotes: "7", "8"')
    return Tags(False, tuple(strong), tuple(weak))


def _shown(tag: str | None) -> str:
    return "is not there" if tag is None else f'has ETag "{tag}"'


# ---- tables ---------------------------------------------------------------------------------


def table_tag(record: TableRecord, tablet_states: Mapping[str, int] | None = None) -> str:
    """The tag of a table, and of how its tablets are, if that is told too."""
    running = TabletState.RUNNING.value
    others = {state: n for state, n in (tablet_states or {}).items() if state != running}
    return _STATES.join([record.edition, *(f"{state}.{n}" for state, n in sorted(others.items()))])


def list_tag(records: Sequence[TableRecord]) -> str:
    """The tag of a list of tables."""
    editions = "\n".join([record.edition for record in records])
    return hashlib.sha256(editions.encode()).hexdigest()[:32]


def wanted_edition(request: Request, record: TableRecord) -> str:
    """The edition that a table must have to be changed, for the masters to look at once more;
    empty: whichever. Raises InvalidArgument, PreconditionFailed.

    One that it does not have is passed on: the same request may have been carried out before, and
    is answered as then. Editions that have passed never come back, so what ``If-None-Match`` does
    not name now it will not name.
    """
    condition = condition_of(request)
    if condition is None:
        return ""
    what = f"table {record.name!r}"
    if condition.none_match is not None:
        Condition(None, _editions(condition.none_match)).check(record.edition, what)
    if condition.match is None or condition.match.is_any:
        return ""
    wanted = _editions(condition.match).strong
    if not wanted:
        condition.check_match(record.edition, what)
    return record.edition if record.edition in wanted else wanted[0]


def _editions(tags: Tags) -> Tags:
    """Without how tablets were."""
    strong, weak = (
        tuple([tag.partition(_STATES)[0] for tag in kind]) for kind in (tags.strong, tags.weak)
    )
    return Tags(tags.is_any, strong, weak)
