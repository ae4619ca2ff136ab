"""The id by which configurations call a safekeeper: the masters draw it, and it is kept for ever.

It lies beside the ``instance`` file, sealed, with the UUID of the server that it was given to.
Invariant: an id is durable here before anything is done under it. Neon RFC 035, where a safekeeper
is registered under an id; design §10.
"""

from __future__ import annotations

import msgspec

from stelae.core.errors import CorruptData, InvalidArgument
from stelae.core.ids import ServerUuid
from stelae.core.records.timelines import SafekeeperId
from stelae.core.runtime import Disk
from stelae.storage.files.sealed import HEADER_BYTES, seal, unseal

ID_FILE = "safekeeper-id"
ID_MAGIC = b"STELSKID"


class _Given(msgspec.Struct, frozen=True, array_like=True):
    safekeeper_id: SafekeeperId
    server_uuid: ServerUuid


async def load_safekeeper_id(disk: Disk, server_uuid: ServerUuid) -> SafekeeperId | None:
    """None: none was given yet. Raises CorruptData."""
    try:
        data = await disk.read(ID_FILE)
    except FileNotFoundError:
        return None
    given = unseal(ID_FILE, ID_MAGIC, data, _Given)
    if given.server_uuid != server_uuid:
        reason = f"was given to server {given.server_uuid}, and this is {server_uuid}"
        raise CorruptData(ID_FILE, HEADER_BYTES, reason)
    return given.safekeeper_id


async def store_safekeeper_id(
    disk: Disk, server_uuid: ServerUuid, safekeeper_id: SafekeeperId
) -> None:
    """Durable when it returns. Raises OSError; InvalidArgument for what can be no id."""
    if safekeeper_id < 1:
        raise InvalidArgument(f"safekeeper id {safekeeper_id}: ids begin with 1")
    given = _Given(safekeeper_id, server_uuid)
    await disk.replace(ID_FILE, seal(ID_MAGIC, msgspec.msgpack.encode(given)))
