"""Sizes and durations as people write them: ``1GiB``, ``512 MiB``, ``250ms``, ``2s``.

Pure functions; errors are ``ValueError`` with text for the person who wrote the value.
"""

from __future__ import annotations

import math
import re
from typing import Any

_SIZE_UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_DURATION_UNITS = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}

_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")


def parse_size(value: Any) -> int:
    """Bytes of ``"1GiB"``, ``"1.5 MiB"``, ``"100MB"`` or of a plain whole number of bytes.

    Raises:
        ValueError: anything else, also fractions of a byte, negative numbers and unknown units.
    """
    wrong = f"must be a size such as 512MiB or 1GiB, or a whole number of bytes, got {value!r}"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    unit = _SIZE_UNITS.get(match.group(2).upper()) if match else None
    if match is None or unit is None:
        raise ValueError(wrong)
    whole, _, fraction = match.group(1).partition(".")
    # In whole numbers, so that every size is exact.
    size_bytes, rest = divmod(int(whole + fraction) * unit, int("1" + "0" * len(fraction)))
    if rest:
        raise ValueError(wrong)
    return size_bytes


def parse_duration(value: Any) -> float:
    """Seconds of ``"250ms"``, ``"2s"``, ``"1.5m"``, ``"1h"`` or of a plain number of seconds.

    Raises:
        ValueError: anything else, also negative and infinite numbers and unknown units.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        if math.isfinite(value) and value >= 0:
            return float(value)
    elif isinstance(value, str) and (match := _QUANTITY.fullmatch(value)):
        unit = _DURATION_UNITS.get(match.group(2))
        if unit is not None:
            return float(match.group(1)) * unit
    raise ValueError(
        f"must be a duration such as 250ms or 2s, or a number of seconds, got {value!r}"
    )


def format_size(size_bytes: int) -> str:
    """The shortest exact spelling, which `parse_size` reads back: ``1GiB``, ``1536MiB``."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return f"{size_bytes}B"
