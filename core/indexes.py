"""Secondary indexes of tables: what the table's record says of them. Design §11."""

from __future__ import annotations

import msgspec

from stelae.core.ids import IndexId


class IndexRecord(msgspec.Struct, frozen=True, array_like=True):
    """One index, of one column, whatever that is called by now."""

    index_id: IndexId
    column_id: int
