"""Some columns of all rows of a remote segment, for indexes that are filled: from whoever has them.

One replica after the other is asked, past its backup where its file lies on this machine. Nothing
that was fetched stays. Invariant: columns are those of the image whose summary was merged.
Design §11; decisions §40.
"""

from __future__ import annotations

import pyarrow as pa

from stelae.actors.server.membership import Membership
from stelae.actors.tserver.row_loading.near_columns import NearColumns
from stelae.actors.tserver.row_loading.pieces import Remote
from stelae.actors.tserver.tablet_log.recovery import Intake
from stelae.core.config.settings import Settings
from stelae.core.errors import DataLost, StelaeError
from stelae.core.ids import TabletId, segment_name
from stelae.core.messages.index_offers import READ_COLUMNS, ReadColumns
from stelae.core.runtime import Runtime
from stelae.storage.entries.entry import decode_batch


class RemoteColumns:
    """Those of one tablet."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        members: Membership,
        intake: Intake,
        tablet_id: TabletId,
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._members = members
        self._intake = intake
        self._tablet_id = tablet_id
        self._near = NearColumns(runtime)

    async def read(
        self, remote: Remote, column_ids: tuple[int, ...], timeout_s: float
    ) -> pa.RecordBatch | None:
        """From one replica after the other; None: from none of them."""
        run, runtime = remote.run, self._runtime
        log = remote.found.log or self._tablet_id
        request = ReadColumns(log, run.segment_id, column_ids)
        limit_s = min(self._settings.call_timeout_s, timeout_s)
        for uuid, address in remote.places(self._members, runtime.rng):
            where = f"segment {segment_name(run.segment_id)} from {address}"
            try:
                near = await self._near.read(run, request, uuid, address, limit_s)
                if near is not None:
                    return near
                async with self._intake.turns:
                    reply = await runtime.peers.call(
                        address,
                        READ_COLUMNS,
                        request,
                        timeout_s=limit_s,
                        destination=uuid,
                    )
                batch = await runtime.offload(decode_batch, reply.blobs[0], where)
                found = run.take_columns(reply.body.trailer, batch, where)
            except DataLost:
                remote.is_damaged_at(uuid, runtime.metrics)
            except StelaeError:
                runtime.metrics.count("row_reads_failed")
            else:
                remote.failures = 0
                runtime.metrics.count("segment_columns_read")
                return found
        remote.failures += 1
        return None

    def clear(self) -> None:
        """All rows are here: nothing is read again soon."""
        self._near.clear()

    def close(self) -> None:
        """Nothing is read any more."""
        self._near.close()
