"""What one tablet gets of a call that writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from stelae.core.messages import WriteOp
from stelae.core.values import WireRow


@dataclass(slots=True)
class Part:
    """What one tablet gets of a call: few rows as wire values, or a blob of many."""

    number: int
    op: WriteOp
    rows: tuple[WireRow, ...]
    columns: tuple[str, ...]
    expected: tuple[int, ...]
    schema_version: int
    """The one that the rows and columns are of."""
    blobs: Sequence[pa.Buffer] = ()
