"""Reading one tablet's scan to its end, anew if its server dies or a piece is lost."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from stelae.client.filters import WireFilters
from stelae.client.locations import TableCache
from stelae.client.retries import on_tablet
from stelae.core.errors import DeadlineExpired, InvalidArgument, TabletNotReady
from stelae.core.ids import ServerUuid
from stelae.core.messages import SCAN, Scan, TabletLocation
from stelae.core.runtime import Runtime

PIECE_TIMEOUT_S = 30.0


async def scan_tablet(
    runtime: Runtime,
    cache: TableCache,
    number: int,
    columns: tuple[str, ...],
    where: WireFilters,
    limit: int | None,
    with_versions: bool,
    timeout_s: float,
    schema_version: int = 0,
) -> list[pa.RecordBatch]:
    """All matching rows of a tablet at one point of its log.

    The rows are handed out only once all are here: a scan that breaks off begins anew, and would
    see a later point. ``schema_version``: the one that the columns are of.

    Raises:
        StelaeError: as `on_tablet` does; after ``timeout_s`` in all.
    """
    deadline = runtime.clock.monotonic() + timeout_s

    async def attempt(where_: TabletLocation, owner: ServerUuid, _: float) -> Any:
        batches: list[pa.RecordBatch] = []
        cursor, piece = "", 0
        while True:
            left_s = deadline - runtime.clock.monotonic()
            if left_s <= 0:
                raise DeadlineExpired("scan", "the next of its pieces")
            request = Scan(
                where_.tablet.tablet_id,
                cursor,
                columns,
                where,
                limit or 0,
                with_versions,
                piece,
                schema_version,
            )
            try:
                reply = await runtime.peers.call(
                    where_.address,
                    SCAN,
                    request,
                    timeout_s=min(PIECE_TIMEOUT_S, left_s),
                    destination=owner,
                )
            except InvalidArgument as error:
                if not cursor:
                    raise
                raise TabletNotReady(
                    where_.tablet.tablet_id, f"to be read anew: {error}"
                ) from error
            with pa.ipc.open_stream(pa.py_buffer(reply.blobs[0])) as reader:
                batches.extend(reader)
            cursor, piece = reply.body.cursor, piece + 1
            if not cursor:
                return batches

    return await on_tablet(runtime, cache, number, "scan", attempt, timeout_s=timeout_s)
