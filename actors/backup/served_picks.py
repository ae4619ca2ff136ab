"""Rows of sealed replicas that a backup serves to a part of a split tablet, which inherits them.

All parts read the same segments, and each needs its own rows of them: so the backup picks them out,
and not all bytes go to all parts. The image is read whole, and checked, before that.

Source: RAMCloud, recovery segments: a backup divides what it has by partitions; design §9.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from stelae.actors.backup.holdings import REPLY_BYTES_MAX, Holdings
from stelae.core.errors import InvalidArgument, TooLarge
from stelae.core.ids import segment_name
from stelae.core.messages.backups import (
    READ_PICKED,
    ReadPicked,
    ReadPickedReply,
    ReadReplica,
    ReplicaState,
)
from stelae.core.rpc import Blob, Call, Handlers, Reply
from stelae.core.runtime import Runtime
from stelae.storage.segments.image import Image
from stelae.storage.segments.picked import mask_of


class ServedPicks:
    """See the module."""

    def __init__(self, runtime: Runtime, holdings: Holdings) -> None:
        self._runtime = runtime
        self._holdings = holdings

    def handlers(self) -> Handlers:
        return {READ_PICKED: self._read_picked}

    async def _read_picked(self, call: Call[ReadPicked]) -> Reply[ReadPickedReply]:
        request = call.body
        key = request.tablet_id, request.segment_id
        name = f"segment {segment_name(request.segment_id)} of tablet {request.tablet_id}"
        bits = call.blobs[0] if len(call.blobs) == 1 else b""
        if request.row_count < 0 or len(bits) != -(-request.row_count // 8):
            raise InvalidArgument(f"{len(bits)} bytes of bits for {request.row_count} rows")
        info, data = await self._holdings.read(ReadReplica(*key))
        if info.state is not ReplicaState.SEALED:
            raise InvalidArgument(f"{name} is not sealed here")
        reply, rows = await self._runtime.offload(_picked, data, request.row_count, bits, name)
        if rows.size > REPLY_BYTES_MAX:
            raise TooLarge("rows asked for at once", rows.size, REPLY_BYTES_MAX)
        return Reply(reply, [rows])


def _picked(data: Blob, row_count: int, bits: Blob, name: str) -> tuple[ReadPickedReply, pa.Buffer]:
    image = Image.open(data, name, check_rows=False)  # its holder has checked all of it
    if image.meta.row_count != row_count:
        raise InvalidArgument(f"{name} has {image.meta.row_count} rows, and not {row_count}")
    mask = mask_of(np.frombuffer(bits, np.uint8), row_count)
    rows = image.batch.filter(pa.array(mask)).serialize()
    return ReadPickedReply(image.trailer, crc32c(rows)), rows
