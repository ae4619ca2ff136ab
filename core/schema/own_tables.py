"""Tables of Stelae's own: their reserved names. `stelae.core.schema.audit` has their columns.

A new table of a name with `RESERVED` is refused, unless it is one of `OWN_TABLES` with exactly the
columns that Stelae gives it. Masters neither drop nor rename such a table, nor alter its columns,
unless it has other ones, as from an earlier version that let users make it. Clients refuse to write
to it; the HTTP front shows its rows to admins alone.
"""

from __future__ import annotations

from typing import Final

from stelae.core.errors import InvalidArgument

RESERVED: Final = "_stelae."
AUDIT_TABLE: Final = "_stelae.audit"
OWN_TABLES: Final = (AUDIT_TABLE,)


def is_own_table(name: str) -> bool:
    """Whether a table of this name is Stelae's own."""
    return name in OWN_TABLES


def check_users_table(name: str, what: str) -> None:
    """Raise `InvalidArgument` for a table of Stelae's own. ``what``: what is refused, in words."""
    if is_own_table(name):
        raise InvalidArgument(f"table {name!r} is Stelae's own: {what} is refused")
