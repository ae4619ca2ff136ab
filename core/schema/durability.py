"""Who has to agree before an entry of a table counts (design §2)."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from stelae.core.errors import InvalidArgument

MAX_REPLICAS = 7
"""Of one segment, and of one tablet."""


class Segments(msgspec.Struct, frozen=True, tag="segments"):
    """Every backup named has the entry, each on the medium named; none for ``segments()``."""

    media: tuple[str, ...]

    def __str__(self) -> str:
        return "segments(" + ", ".join(repr(medium) for medium in self.media) + ")"


class Replicas(msgspec.Struct, frozen=True, tag="replicas"):
    """A majority of ``count`` tablet replicas has the entry on its disk."""

    count: int

    def __str__(self) -> str:
        return f"replicas({self.count})"


class Wal(msgspec.Struct, frozen=True, tag="wal"):
    """A majority of ``count`` safekeepers has the entry. A sealed segment has one replica on each
    medium named; only then is the safekeepers' log cut to where that segment ends."""

    count: int
    media: tuple[str, ...]

    def __str__(self) -> str:
        return f"wal({self.count}, segments={self.media!r})"


Durability: TypeAlias = Segments | Replicas | Wal


def replicas(count: int) -> Replicas:
    """``count`` replicas of each tablet on as many tablet servers, which agree by Raft.

    A write is acknowledged once a majority has it on disk; the table serves on while a majority of
    each tablet's replicas lives. Odd, as one more replica survives no more failures.
    """
    _check_majority("replicas", count)
    return Replicas(count)


def wal(count: int, segments: Sequence[str] = ("disk", "disk")) -> Wal:
    """``count`` safekeepers for the log of each tablet, and one copy of its rows in memory.

    A write is acknowledged once a majority of them has it on disk; the table serves on while a
    majority lives, and their set can be changed while it does. ``segments`` names the medium of
    each replica of what is sealed: at least one, as the safekeepers keep only what backups do not
    have yet, and their disks would fill up without.
    """
    _check_majority("wal", count)
    if isinstance(segments, str) or not segments:
        raise InvalidArgument(
            f"wal({count}, segments={segments!r}): name at least one medium of cluster.yaml, as in "
            'segments=("disk",): the log is cut to what the backups hold'
        )
    return Wal(count, _checked_media(segments))


def _check_majority(kind: str, count: int) -> None:
    """Odd, as one more survives no more failures. Raises InvalidArgument."""
    if isinstance(count, bool) or not isinstance(count, int):
        raise InvalidArgument(f"{kind}({count!r}): a number, as in {kind}(3)")
    if not 1 <= count <= MAX_REPLICAS or count % 2 == 0:
        raise InvalidArgument(f"{kind}({count}): an odd number from 1 to {MAX_REPLICAS}")


def checked(durability: Durability) -> Durability:
    """The same, if a table may have it. Raises `InvalidArgument`: whoever sent it made it up."""
    match durability:
        case Segments(media):
            return segments(*media)
        case Replicas(count):
            return replicas(count)
        case Wal(count, media):
            return wal(count, media)


def media_of(durability: Durability) -> tuple[str, ...]:
    """The medium of each segment replica; none for tables whose segments are on no backups."""
    return () if isinstance(durability, Replicas) else durability.media


def segments(*media: str) -> Segments:
    """One segment replica on each medium named, e.g. ``segments("disk", "disk")``.

    A write is acknowledged once all of them have it. ``segments()`` keeps rows in memory only:
    they die with their tablet server.
    """
    return Segments(_checked_media(media))


def _checked_media(media: Sequence[str]) -> tuple[str, ...]:
    """Raises InvalidArgument."""
    if len(media) > MAX_REPLICAS:
        raise InvalidArgument(f"{len(media)} segment replicas; the limit is {MAX_REPLICAS}")
    if not all(isinstance(medium, str) and medium for medium in media):
        raise InvalidArgument(
            f"segments{tuple(media)!r}: name a medium of cluster.yaml for each replica"
        )
    return tuple(media)


def parse_durability(text: str) -> Durability:
    """A durability as it is written in Python, as on the command line. Raises `InvalidArgument`."""
    makers: dict[str, Callable[..., Durability]]
    makers = {"segments": segments, "wal": wal, "replicas": replicas}
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError(text)
        make = makers[call.func.id]
        named = {each.arg or "": ast.literal_eval(each.value) for each in call.keywords}
        return make(*[ast.literal_eval(each) for each in call.args], **named)
    except (SyntaxError, ValueError, KeyError, TypeError, RecursionError):
        raise InvalidArgument(
            f"durability {text!r}: write segments('disk', 'disk'), wal(3), "
            "wal(3, segments=('disk',)) or replicas(3)"
        ) from None
