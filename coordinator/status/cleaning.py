"""How full memory and logs are, and what cleaning costs, in the status document. Pure.

**Utilisation** is the share of memory in use that lives. **Write cost** is what is written to each
backup for a byte that clients write: 1 as long as nothing survives. Both as RAMCloud reports them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stelae.core.messages.servers import TabletReport

_SUMMED = (
    "live_bytes",
    "log_bytes",
    "written_bytes",
    "copied_bytes",
    "survivor_bytes",
    "segments_compacted",
    "segments_cleaned",
    "survivors",
)


def describe_cleaning(reports: Iterable[TabletReport | None]) -> dict[str, Any] | None:
    """Of one tablet, or of many together; None: nobody says so."""
    known = [each for each in reports if each is not None and each.cleaning is not None]
    if not known:
        return None
    found: dict[str, Any] = {
        name: sum([getattr(each.cleaning, name) for each in known]) for name in _SUMMED
    }
    memory_bytes = sum([each.memory_bytes for each in known])
    written, survived = found["written_bytes"], found["survivor_bytes"]
    found["utilisation"] = round(found["live_bytes"] / memory_bytes, 3) if memory_bytes else None
    found["write_cost"] = round((written + survived) / written, 3) if written else None
    return found
