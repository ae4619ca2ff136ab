"""`stelae.core.schema.durability`: what a table may be promised, and what may not be asked for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import stelae
from stelae.core.errors import InvalidArgument
from stelae.core.schema.durability import Durability, Segments, Wal, checked, media_of, wal


def test_a_wal_names_its_safekeepers_and_the_media_of_its_segments() -> None:
    """Two disks unless said otherwise; it comes back from the catalog as it was, and reads well."""
    assert stelae.wal(3) == Wal(3, ("disk", "disk"))
    durability: Durability = wal(5, segments=["ram"])
    assert media_of(durability) == ("ram",)
    assert msgspec.json.decode(msgspec.json.encode(durability), type=Durability) == durability
    assert str(durability) == "wal(5, segments=('ram',))"
    assert eval(str(durability), {"wal": wal}) == durability
    assert checked(durability) == durability


@pytest.mark.parametrize("count", [0, 2, 4, 9, -1, True, "3", 3.0])
def test_an_impossible_number_of_safekeepers_is_refused(count: Any) -> None:
    """Odd, and no more than seven."""
    with pytest.raises(InvalidArgument, match=r"wal\("):
        wal(count)


@pytest.mark.parametrize("media", [(), "disk", ("",), (3,), ("disk",) * 8])
def test_a_wal_needs_a_medium_for_what_is_sealed(media: Any) -> None:
    """Without one the safekeepers' log would only ever grow. One string is not a list of one."""
    with pytest.raises(InvalidArgument):
        wal(3, media)
    with pytest.raises(InvalidArgument):
        checked(Wal(3, tuple(media) if media != "disk" else ()))


def test_segments_may_name_no_medium() -> None:
    """Their rows are then in memory only: there is nothing that would grow for ever."""
    assert checked(Segments(())) == Segments(())
