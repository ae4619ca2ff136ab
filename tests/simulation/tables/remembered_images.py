"""Whoever sees all servers at once also sees rows that are with backups: each image that was ever
opened is remembered by its end, which holds all its checksums."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from stelae.storage.rows.gather import Snapshot
from stelae.storage.segments.image import Image
from stelae.storage.segments.remote import Piece, RowsAbsent

_images: dict[bytes, Image] = {}


@contextmanager
def remembered_images() -> Iterator[None]:
    """While it is entered `batches_of` knows all rows."""
    opened = Image.open

    def noted(*given: Any, **options: Any) -> Image:
        image = opened(*given, **options)
        _images.setdefault(image.trailer, image)
        return image

    with patch.object(Image, "open", noted):
        try:
            yield
        finally:
            _images.clear()


def batches_of(snapshot: Snapshot, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """All rows of a tablet, wherever they are; nothing is here for longer than it was."""
    batches, held = snapshot.batches(columns), list[Piece]()
    while True:
        try:
            batch = next(batches, None)
        except RowsAbsent as absent:
            runs = [wanted.run for wanted in absent.wanted]
            held += [run.take_image(_images[run._trailer]) for run in runs]
            continue
        if batch is None:
            return
        yield batch
