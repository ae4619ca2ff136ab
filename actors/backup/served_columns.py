"""Columns of sealed replicas that a backup serves to whoever fills an index from a log.

The image is read whole, and checked, before any of it is served: what is not looked at may be
damaged as well, and an index that is filled from it would miss rows for good.
"""

from __future__ import annotations

import pyarrow as pa

from stelae.actors.backup.holdings import REPLY_BYTES_MAX, Holdings, info_of
from stelae.core.errors import InvalidArgument, TooLarge
from stelae.core.ids import segment_name
from stelae.core.messages.backups import ReadReplica, ReplicaState
from stelae.core.messages.index_offers import READ_COLUMNS, ReadColumns, ReadColumnsReply
from stelae.core.rpc import Blob, Call, Handlers, Reply
from stelae.core.runtime import Runtime
from stelae.storage.entries.entry import encode_batch
from stelae.storage.indexes.log_entries import with_ids
from stelae.storage.segments.image import Image


class ServedColumns:
    """See the module."""

    def __init__(self, runtime: Runtime, holdings: Holdings) -> None:
        self._runtime = runtime
        self._holdings = holdings

    def handlers(self) -> Handlers:
        return {READ_COLUMNS: self._read_columns}

    async def _read_columns(self, call: Call[ReadColumns]) -> Reply[ReadColumnsReply]:
        request = call.body
        key = request.tablet_id, request.segment_id
        if request.only_place:
            return self._place(request)
        info, data = await self._holdings.read(ReadReplica(*key))
        name = f"segment {segment_name(request.segment_id)} of tablet {request.tablet_id}"
        if info.state is not ReplicaState.SEALED:
            raise InvalidArgument(f"{name} is not sealed here")
        trailer, columns = await self._runtime.offload(_columns_of, data, request.column_ids, name)
        if columns.size > REPLY_BYTES_MAX:
            raise TooLarge("columns asked for", columns.size, REPLY_BYTES_MAX)
        return Reply(ReadColumnsReply(info, trailer), [columns])

    def _place(self, request: ReadColumns) -> Reply[ReadColumnsReply]:
        replica, facts = self._holdings.readable(request.tablet_id, request.segment_id)
        place = None
        if facts.state is ReplicaState.SEALED and not replica.damaged:
            place = self._holdings.place_of(replica)
        return Reply(ReadColumnsReply(info_of(replica, facts), place=place))


def _columns_of(data: Blob, column_ids: tuple[int, ...], name: str) -> tuple[bytes, pa.Buffer]:
    image = Image.open(data, name, check_rows=False)  # its holder has checked all of it
    return image.trailer, encode_batch(with_ids(image.batch, column_ids))
