"""The image of a sealed segment as a backup has it, for another replica to be made of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from stelae.actors.server.membership import Membership
from stelae.actors.tserver.segments.traffic import SegmentTraffic
from stelae.core.config.settings import Settings
from stelae.core.errors import CorruptData, StelaeError
from stelae.core.ids import ServerUuid, TabletId, segment_name
from stelae.core.messages.backups import READ_REPLICA, ReadReplica
from stelae.core.runtime import Runtime
from stelae.storage.segments.image import Image


class ImagedLog(Protocol):
    """What is asked of the log that the segment is of."""

    runtime: Runtime
    settings: Settings
    members: Membership
    traffic: SegmentTraffic
    tablet_id: TabletId


async def fetch_image(
    log: ImagedLog, segment_id: int, holders: Sequence[ServerUuid]
) -> pa.Buffer | None:
    """The image from the first of ``holders`` that has it whole, checked; None: nobody serves it
    now."""
    for uuid in holders:
        backup = log.members.find(uuid)
        if backup is None:
            continue
        try:
            reply = await log.runtime.peers.call(
                backup.address,
                READ_REPLICA,
                ReadReplica(log.tablet_id, segment_id),
                timeout_s=log.settings.call_timeout_s,
                destination=uuid,
            )
            where = f"segment {segment_name(segment_id)} from {backup.address}"
            return await log.runtime.offload(
                _checked, reply.blobs[0], log.tablet_id, segment_id, where
            )
        except StelaeError:
            log.runtime.metrics.count("images_not_fetched")
    return None


def _checked(data: object, tablet_id: TabletId, segment_id: int, where: str) -> pa.Buffer:
    """The image, if it is one, and of that segment. Off the loop. Raises CorruptData."""
    image = Image.open(data, where)
    if (image.meta.tablet_id, image.meta.segment_id) != (tablet_id, segment_id):
        raise CorruptData(where, 0, f"the image of segment {segment_name(image.meta.segment_id)}")
    return image.buffer
