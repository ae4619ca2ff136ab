"""Fetching the rows that a part of a split tablet wants of a segment which it inherits."""

from __future__ import annotations

from stelae.actors.tserver.row_loading.pieces import Remote
from stelae.actors.tserver.tablet_log.recovery import Intake
from stelae.core.config.settings import Settings
from stelae.core.ids import Address, ServerUuid, TabletId, segment_name
from stelae.core.messages.backups import READ_PICKED, ReadPicked
from stelae.core.runtime import Runtime
from stelae.storage.segments.remote import Piece


async def fetch_picked(
    runtime: Runtime,
    settings: Settings,
    tablet_id: TabletId,
    remote: Remote,
    at: tuple[ServerUuid, Address],
    intake: Intake,
) -> Piece:
    """The picked rows, from one replica, shown while the piece is held.

    Raises:
        CorruptData: they are damaged, or of another image; and what the call raises.
    """
    run, (uuid, address) = remote.run, at
    picks = run.picks
    assert picks is not None, "of all others the whole image is fetched"
    if not picks.count:
        return run.take_none()
    request = ReadPicked(remote.found.log or tablet_id, run.segment_id, picks.row_count)
    async with intake.turns:
        reply = await runtime.peers.call(
            address,
            READ_PICKED,
            request,
            timeout_s=settings.call_timeout_s,
            blobs=[picks.bits.data],
            destination=uuid,
        )
    where = f"segment {segment_name(run.segment_id)} from {address}"
    return run.take_picked(reply.body.trailer, reply.body.crc, memoryview(reply.blobs[0]), where)
