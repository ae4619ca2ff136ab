"""``k=3``, ``network=25Gbit``, ``disk-mttf=3650d``: changes to a layout, to rates, and to how often
what fails, as people write them (``--what-if``)."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stelae.core.config.units import parse_duration, parse_size
from stelae.core.errors import InvalidArgument
from stelae.planner.hardware import Hardware
from stelae.planner.layout import Layout, Lost, Medium, Mode, Scatter
from stelae.planner.risk import Failures

_BITS = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)bit(?:/s)?", re.IGNORECASE)
_BIT_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def _count(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text):
        raise ValueError(f"must be a whole number, got {text!r}")
    return int(text)


def _rate(text: str) -> float:
    """Bytes a second of ``150MB``, ``150MB/s`` or ``10Gbit``."""
    if match := _BITS.fullmatch(text):
        return float(match.group(1)) * _BIT_UNITS[match.group(2).upper()] / 8
    try:
        return float(parse_size(text.removesuffix("/s")))
    except ValueError:
        raise ValueError(f"must be a rate such as 150MB/s or 10Gbit, got {text!r}") from None


def _share(text: str) -> float:
    """``75%`` or ``0.75``."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise ValueError(f"must be a share such as 75% or 0.75, got {text!r}")
    return value


def _size_or_off(text: str) -> float:
    return 0.0 if text == "off" else float(parse_size(text))


def _scatter(text: str) -> Scatter:
    if text == "random":
        return Scatter()
    if re.fullmatch(r"[1-9]\d{0,8}", text):
        return Scatter(int(text))
    raise ValueError(f"must be random, or the size of a group, got {text!r}")


def share_of(text: str, option: str) -> float:
    """A share as people write it. Raises `InvalidArgument`."""
    try:
        return _share(text)
    except ValueError as error:
        raise InvalidArgument(f"{option} {error}") from None


Reader = Callable[[str], Any]

LAYOUT_WORDS: dict[str, tuple[str, Reader]] = {
    "k": ("replicas", _count),
    "servers": ("servers", _count),
    "backups": ("backups", _count),
    "machines": ("machines", _count),
    "memory": ("memory_bytes", parse_size),
    "data": ("data_bytes", parse_size),
    "row": ("row_bytes", parse_size),
    "segment": ("segment_bytes", parse_size),
    "tablets": ("tablets_per_server", _count),
    "takers": ("takers_max", _count),
    "live": ("live_share", _share),
    "split-above": ("split_above_bytes", _size_or_off),
    "medium": ("medium", Medium),
    "copysets": ("scatter", _scatter),
    "rereplication": ("rereplication_bytes_per_s", _rate),
    "lost": ("lost", Lost),
    "mode": ("mode", Mode),
}
HARDWARE_WORDS: dict[str, tuple[str, Reader]] = {
    "cores": ("cores", _count),
    "threads": ("server_threads", _count),
    "fetches": ("fetches", _count),
    "network": ("network_bytes_per_s", _rate),
    "disk-read": ("disk_read_bytes_per_s", _rate),
    "disk-write": ("disk_write_bytes_per_s", _rate),
    "seek": ("disk_seek_s", parse_duration),
    "detection": ("detection_s", parse_duration),
}

FAILURE_WORDS: dict[str, tuple[str, Reader]] = {
    "server-mttf": ("server_mttf_s", parse_duration),
    "disk-mttf": ("disk_mttf_s", parse_duration),
    "replace": ("replace_s", parse_duration),
    "power-failures": ("power_failures_per_year", _count),
    "power-share": ("power_loss_share", _share),
}


def changes_of(texts: Sequence[str], option: str = "--what-if") -> dict[str, str]:
    """``name=value`` texts as a dict. Raises `InvalidArgument` with what would do."""
    known = [*LAYOUT_WORDS, *HARDWARE_WORDS, *FAILURE_WORDS]
    found: dict[str, str] = {}
    for text in [part.strip() for each in texts for part in each.split(",")]:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not value:
            raise InvalidArgument(f"{option} {text!r}: write NAME=VALUE, as in k=3")
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; do you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
            raise InvalidArgument(f"{option} {text!r}: there is no {name!r}{hint}")
        if name in found:
            raise InvalidArgument(f"{option} {name}: given twice")
        found[name] = value
    return found


def changed(
    hardware: Hardware, layout: Layout, changes: Mapping[str, str], option: str = "--what-if"
) -> tuple[Hardware, Layout]:
    """Both with these changes. Where ``servers`` changes and nothing else is said, backups and
    machines change with it: a cluster is made larger by machines that have both. Out of one
    machine comes a machine for each server.

    Raises:
        InvalidArgument: a value that does not fit; the text names it.
    """
    of_layout = _read({k: v for k, v in changes.items() if k in LAYOUT_WORDS}, LAYOUT_WORDS, option)
    of_hardware = _read(
        {k: v for k, v in changes.items() if k in HARDWARE_WORDS}, HARDWARE_WORDS, option
    )
    if (servers := of_layout.get("servers", 0)) and servers != layout.servers:
        of_layout = {**_grown(layout, servers), **of_layout}
    return replace(hardware, **of_hardware), layout.with_changes(**of_layout)


def failures_with(
    failures: Failures, changes: Mapping[str, str], option: str = "--what-if"
) -> Failures:
    """How often what fails, with those of the changes that say so. Raises `InvalidArgument`."""
    wanted = {k: v for k, v in changes.items() if k in FAILURE_WORDS}
    return replace(failures, **_read(wanted, FAILURE_WORDS, option))


def _grown(layout: Layout, servers: int) -> dict[str, int]:
    if layout.machines == 1 and servers > layout.servers:
        return {"machines": servers, "backups": max(servers, layout.backups)}
    if layout.machines == 1:
        return {}
    factor = servers / layout.servers
    return {name: max(1, round(getattr(layout, name) * factor)) for name in ("machines", "backups")}


def _read(
    changes: Mapping[str, str], words: Mapping[str, tuple[str, Reader]], option: str
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, text in changes.items():
        field, read = words[name]
        try:
            found[field] = read(text)
        except ValueError as error:
            problem = str(error)
            if isinstance(read, type):
                allowed = ", ".join(str(each) for each in read)  # type: ignore[attr-defined]
                problem = f"must be one of {allowed}, got {text!r}"
            raise InvalidArgument(f"{option} {name}: {problem}") from None
    return found
