"""What a tablet server asks a backup while a tablet's rows are still being brought back."""

from __future__ import annotations

from stelae.core.ids import TabletId
from stelae.core.rpc import Body, Method


class ReadRows(Body, frozen=True):
    """Serve pieces of a SEALED replica: ``piece_rows`` rows each, the first one is number 0.

    The backup checks what it serves, or all of the image. Refused if there is no such replica, or
    it is in row form.
    """

    tablet_id: TabletId
    segment_id: int
    piece_rows: int
    pieces: tuple[int, ...]


class ReadRowsReply(Body, frozen=True):
    """Blobs: a piece each, as an Arrow record batch without its schema."""

    trailer: bytes
    """The image's end, which tells it from any other."""
    crcs: tuple[int, ...]
    """CRC-32C of each piece."""


READ_ROWS = Method("backup.read_rows", ReadRows, ReadRowsReply)
